//! What a token must say. Takes a token apart and judges it; whether its signature holds is
//! somebody else's question.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::{Person, Refusal};
use crate::contract::UserId;

/// Longer ones are not looked at.
const TOKEN_BYTES_MAX: usize = 16 << 10;
const KEY_ID_BYTES_MAX: usize = 128;
const USER_BYTES_MAX: usize = 256;

/// What is asked of tokens.
#[derive(Clone, Debug)]
pub struct AuthSettings {
    /// As in the tokens' `iss`: `https://id.example.com/realms/messenger`.
    pub issuer: String,
    /// Must be among the tokens' `aud`.
    pub audience: String,
    /// Where the keys are, if the issuer's own address cannot be reached from here.
    pub jwks_url: Option<String>,
    /// The claim that names the user. Names that can be given to another person, such as
    /// `preferred_username`, are a poor choice.
    pub user: String,
    /// Clients (`azp`) whose tokens count; empty for all.
    pub clients: Vec<String>,
    /// Roles that every user must have: `name` of the realm, or `client:name`.
    pub roles: Vec<String>,
    /// How far clocks may differ.
    pub leeway: Duration,
    /// A token with an unknown key makes the hub ask for keys at most this often.
    pub ask_keys_every: Duration,
    /// Keys are asked for again after this, so that one that was removed does not live on here.
    pub refresh_keys_every: Duration,
}

impl AuthSettings {
    pub fn new(issuer: &str, audience: &str) -> Self {
        AuthSettings {
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            jwks_url: None,
            user: "sub".to_owned(),
            clients: Vec::new(),
            roles: Vec::new(),
            leeway: Duration::from_secs(30),
            ask_keys_every: Duration::from_secs(10),
            refresh_keys_every: Duration::from_secs(600),
        }
    }
}

/// A token taken apart, not yet believed.
pub(super) struct Token<'a> {
    pub key_id: String,
    /// As the token says; only compared, never obeyed.
    pub algorithm: String,
    /// Whether the header says by itself that this is an access token.
    pub is_access_token: bool,
    pub message: &'a str,
    pub signature: &'a str,
    claims: &'a str,
}

impl<'a> Token<'a> {
    pub fn parse(token: &'a str) -> Result<Self, Refusal> {
        let malformed = Refusal::Malformed;
        if token.is_empty() {
            return Err(Refusal::Missing);
        }
        if token.len() > TOKEN_BYTES_MAX {
            return Err(malformed("it is too long"));
        }
        let (message, signature) = token.rsplit_once('.').ok_or(malformed("it has no parts"))?;
        let (header, claims) = message.split_once('.').ok_or(malformed("it has too few parts"))?;
        if claims.contains('.') {
            return Err(malformed("it has too many parts"));
        }
        let header = object(header).ok_or(malformed("its header is not JSON"))?;
        // Extensions that must be understood, and an encoding that changes what is signed.
        for unknown in ["crit", "b64", "zip", "enc"] {
            if header.contains_key(unknown) {
                return Err(Refusal::Header(unknown));
            }
        }
        let text = |name: &str| header.get(name).and_then(Value::as_str);
        let key_id = text("kid").ok_or(malformed("it does not say which key signed it"))?;
        if key_id.len() > KEY_ID_BYTES_MAX {
            return Err(malformed("the id of its key is too long"));
        }
        let kind = match header.get("typ") {
            None => String::new(),
            Some(Value::String(kind)) => kind.to_ascii_lowercase(),
            Some(_) => return Err(malformed("its type is not text")),
        };
        let is_access_token = matches!(kind.as_str(), "at+jwt" | "application/at+jwt");
        if !is_access_token && !matches!(kind.as_str(), "" | "jwt") {
            return Err(Refusal::Kind(kind));
        }
        Ok(Token {
            key_id: key_id.to_owned(),
            algorithm: text("alg").unwrap_or_default().to_owned(),
            is_access_token,
            message,
            signature,
            claims,
        })
    }

    /// Judges the claims. Only sensible once the signature holds.
    pub fn judge(&self, settings: &AuthSettings, now: SystemTime) -> Result<Person, Refusal> {
        let claims = object(self.claims).ok_or(Refusal::Malformed("its claims are not JSON"))?;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let shown = |name: &str| claims.get(name).map_or("missing".to_owned(), Value::to_string);
        if text("iss") != Some(&settings.issuer) {
            let found = text("iss").map_or_else(|| shown("iss"), str::to_owned);
            return Err(Refusal::Issuer { found, wanted: settings.issuer.clone() });
        }
        match (text("typ"), claims.contains_key("typ")) {
            (Some("Bearer"), _) => {}
            (None, false) if self.is_access_token => {}
            _ => return Err(Refusal::Kind(shown("typ").trim_matches('"').to_owned())),
        }
        if claims.contains_key("cnf") {
            return Err(Refusal::Bound);
        }
        let is_for_us = |audience: &Value| audience.as_str() == Some(&settings.audience);
        let named = match claims.get("aud") {
            Some(Value::Array(all)) => all.iter().any(is_for_us),
            Some(one) => is_for_us(one),
            None => false,
        };
        if !named {
            let (found, wanted) = (shown("aud"), settings.audience.clone());
            return Err(Refusal::Audience { found, wanted });
        }
        let expires = self.times(&claims, settings.leeway, now)?;
        let client = text("azp").unwrap_or_default();
        if !settings.clients.is_empty() && !settings.clients.iter().any(|known| known == client) {
            return Err(Refusal::Client(client.to_owned()));
        }
        if let Some(role) = settings.roles.iter().find(|role| !has_role(&claims, role)) {
            return Err(Refusal::Role(role.clone()));
        }
        let user = text(&settings.user).filter(|user| (1..=USER_BYTES_MAX).contains(&user.len()));
        let user = user.ok_or_else(|| Refusal::NoUser(settings.user.clone()))?;
        let issued = claims.get("iat").and_then(Value::as_f64).and_then(time);
        Ok(Person { user: UserId::new(user), expires, issued })
    }

    fn times(
        &self,
        claims: &Map<String, Value>,
        leeway: Duration,
        now: SystemTime,
    ) -> Result<SystemTime, Refusal> {
        let at = |name: &str| claims.get(name).and_then(Value::as_f64).and_then(time);
        let expires = at("exp").ok_or(Refusal::NoExpiry)?;
        if let Ok(past) = now.duration_since(expires)
            && past >= leeway
        {
            return Err(Refusal::Expired { seconds: past.as_secs() });
        }
        if claims.contains_key("nbf") {
            let begins = at("nbf").ok_or(Refusal::Malformed("its beginning is not a time"))?;
            if let Ok(left) = begins.duration_since(now)
                && left > leeway
            {
                return Err(Refusal::NotYet { seconds: left.as_secs() });
            }
        }
        Ok(expires)
    }
}

fn object(part: &str) -> Option<Map<String, Value>> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn time(seconds: f64) -> Option<SystemTime> {
    let since = Duration::try_from_secs_f64(seconds).ok()?;
    UNIX_EPOCH.checked_add(since)
}

fn has_role(claims: &Map<String, Value>, role: &str) -> bool {
    let (holder, name) = match role.split_once(':') {
        Some((client, name)) => {
            (claims.get("resource_access").and_then(|clients| clients.get(client)), name)
        }
        None => (claims.get("realm_access"), role),
    };
    let roles = holder.and_then(|holder| holder.get("roles")).and_then(Value::as_array);
    roles.is_some_and(|roles| roles.iter().any(|other| other.as_str() == Some(name)))
}
