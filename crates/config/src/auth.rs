//! `auth` in `potok.yaml`: whose tokens the hub accepts.

use std::borrow::Cow;
use std::net::IpAddr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};

use crate::problem::code;
use crate::values::{TextError, TextValue, written};

/// Whose tokens the hub accepts, and from which pages. Without an issuer, a development issuer
/// serves this machine alone.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthSetting {
    /// The issuer of the tokens, as in their `iss`, to the letter. Variable: `POTOK_AUTH_ISSUER`.
    ///
    /// Example: `issuer: https://id.example.com/realms/shop`
    pub issuer: Option<WebAddress>,
    /// What must be among the tokens' `aud`; required with an issuer. Variable:
    /// `POTOK_AUTH_AUDIENCE`.
    ///
    /// Example: `audience: notifications`
    pub audience: Option<String>,
    /// Where the issuer's keys are, if its own address cannot be reached from here.
    ///
    /// Example: `jwks_url: http://127.0.0.1:8080/realms/shop/protocol/openid-connect/certs`
    pub jwks_url: Option<WebAddress>,
    /// The claim that names the user. One that can be given to another person, such as
    /// `preferred_username` or `email`, gives that person the messages.
    ///
    /// Example: `user: sub`
    pub user: String,
    /// Roles that every user must have: `name` of the realm, or `client:name`.
    ///
    /// Example: `roles: [ notifications ]`
    pub roles: Vec<String>,
    /// Clients whose tokens count, by their `azp`; without it, those of all clients.
    ///
    /// Example: `clients: [ shop-web ]`
    pub clients: Vec<String>,
    /// Origins whose pages may connect, as browsers write them.
    ///
    /// Example: `origins: [ "https://app.example.com" ]`
    pub origins: Vec<PageOrigin>,
    /// Who may use the dashboard and the admin API where `admin` can be reached by others.
    ///
    /// Example: `dashboard: { viewers: [ staff ], operators: [ on-call ], admins: [ potok-admin ] }`
    pub dashboard: DashboardRoles,
    /// Proxies in front of the hub, by address or network: what they say of a client's address, and
    /// of the address that its page has, is believed.
    ///
    /// Example: `trusted_proxies: [ 10.0.0.0/8 ]`
    pub trusted_proxies: Vec<Proxies>,
}

/// Roles of users, `name` of the realm or `client:name`, and what they allow on the dashboard and in the
/// admin API. Who has none of them is refused.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct DashboardRoles {
    /// May look at everything but payloads.
    ///
    /// Example: `viewers: [ potok-viewer ]`
    pub viewers: Vec<String>,
    /// May see payloads as well, and change what can be undone: pause, resume, close, replay, send.
    ///
    /// Example: `operators: [ potok-operator ]`
    pub operators: Vec<String>,
    /// May drop as well.
    ///
    /// Example: `admins: [ potok-admin ]`
    pub admins: Vec<String>,
}

impl Default for DashboardRoles {
    fn default() -> Self {
        let one = |role: &str| vec![role.to_owned()];
        DashboardRoles {
            viewers: one("potok-viewer"),
            operators: one("potok-operator"),
            admins: one("potok-admin"),
        }
    }
}

impl Default for AuthSetting {
    fn default() -> Self {
        AuthSetting {
            issuer: None,
            audience: None,
            jwks_url: None,
            user: "sub".to_owned(),
            roles: Vec::new(),
            clients: Vec::new(),
            origins: Vec::new(),
            dashboard: DashboardRoles::default(),
            trusted_proxies: Vec::new(),
        }
    }
}

/// Whose tokens the hub accepts, decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Auth {
    /// Issuer and audience; `None`: the development issuer.
    pub issuer: Option<(String, String)>,
    /// Where its keys are, if not where the issuer says.
    pub jwks_url: Option<String>,
    /// The claim that names the user.
    pub user: String,
    /// Roles that every user must have.
    pub roles: Vec<String>,
    /// Clients whose tokens count; empty for all.
    pub clients: Vec<String>,
    /// Origins whose pages may connect.
    pub origins: Vec<String>,
    /// Who may use the dashboard.
    pub dashboard: DashboardRoles,
    /// Addresses and networks of proxies that are believed.
    pub trusted_proxies: Vec<String>,
}

/// Claims that an account can lose to another person.
const MOVING_CLAIMS: [&str; 4] = ["preferred_username", "email", "username", "upn"];

impl Auth {
    /// What is doubtful about a claim that names users.
    pub fn doubt(claim: &str) -> Option<String> {
        MOVING_CLAIMS.contains(&claim).then(|| {
            format!(
                "users are named by `{claim}`, which can be given to another person: that person gets \
                 the messages then; `sub` is never given twice"
            )
        })
    }

    /// `Err` is what stands alone: one of issuer and audience without the other.
    pub(crate) fn decide(
        file: AuthSetting,
        issuer: Option<WebAddress>,
        audience: Option<String>,
    ) -> Result<Self, &'static str> {
        let issuer = issuer.or(file.issuer).map(|issuer| issuer.0);
        let issuer = match (issuer, audience.or(file.audience)) {
            (Some(issuer), Some(audience)) => Some((issuer, audience)),
            (None, None) => None,
            (Some(_), None) => return Err("issuer"),
            (None, Some(_)) => return Err("audience"),
        };
        Ok(Auth {
            issuer,
            jwks_url: file.jwks_url.map(|url| url.0),
            user: file.user,
            roles: file.roles,
            clients: file.clients,
            origins: file.origins.into_iter().map(|origin| origin.0).collect(),
            dashboard: file.dashboard,
            trusted_proxies: file.trusted_proxies.into_iter().map(|proxies| proxies.0).collect(),
        })
    }
}

/// `https://…`, or `http://` where that stays on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebAddress(pub String);
written!(WebAddress);

/// `https://host[:port]`, and no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PageOrigin(pub String);
written!(PageOrigin);

/// An address, or a network such as `10.0.0.0/8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxies(pub String);
written!(Proxies);

/// Scheme, host with port, and the rest.
fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at_checked(end)?;
    let fine = !host.is_empty() && !host.contains('@') && !text.contains(char::is_whitespace);
    fine.then_some((scheme, host, path))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

impl TextValue for WebAddress {
    const FORMAT: &'static str = "potok-web-address";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let fine = |(scheme, host, path): (&str, &str, &str)| {
            let safe = scheme == "https" || (scheme == "http" && is_loopback(host));
            safe && !path.contains(['?', '#'])
        };
        match parts(text).is_some_and(fine) {
            true => Ok(WebAddress(text.to_owned())),
            false => Err(vec![TextError::new(
                code::ADDRESS,
                0..text.len(),
                format!("`{text}` is not an address to trust tokens by"),
                "`https://host/…`; `http` on this machine alone",
            )]),
        }
    }
}

impl TextValue for PageOrigin {
    const FORMAT: &'static str = "potok-origin";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let fine = |(scheme, host, path): (&str, &str, &str)| {
            let lower = host.bytes().all(|b| !b.is_ascii_uppercase());
            ["https", "http"].contains(&scheme) && path.is_empty() && lower && !host.contains('*')
        };
        match text == "null" || parts(text).is_some_and(fine) {
            true => Ok(PageOrigin(text.to_owned())),
            false => Err(vec![TextError::new(
                code::ADDRESS,
                0..text.len(),
                format!("`{text}` is not an origin"),
                "as browsers write it, without a path: `https://app.example.com`",
            )]),
        }
    }
}

impl TextValue for Proxies {
    const FORMAT: &'static str = "potok-network";

    fn read(text: &str) -> Result<Self, Vec<TextError>> {
        let (address, bits) = text.split_once('/').unwrap_or((text, "0"));
        let most = match address.parse() {
            Ok(IpAddr::V4(_)) => Some(32),
            Ok(IpAddr::V6(_)) => Some(128),
            Err(_) => None,
        };
        let fine = |bits: u32| most.is_some_and(|most| bits <= most);
        match bits.parse().is_ok_and(fine) {
            true => Ok(Proxies(text.to_owned())),
            false => Err(vec![TextError::new(
                code::ADDRESS,
                0..text.len(),
                format!("`{text}` is neither an address nor a network"),
                "`10.0.0.7`, or a whole network: `10.0.0.0/8`",
            )]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_addresses_or_networks() {
        for good in ["10.0.0.7", "10.0.0.0/8", "::1", "2001:db8::/32", "0.0.0.0/0"] {
            assert!(Proxies::read(good).is_ok(), "{good}");
        }
        for bad in ["", "proxy", "10.0.0.0/33", "::1/129", "10.0.0.0/", "10.0.0/8"] {
            assert!(Proxies::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_that_move_from_person_to_person_are_doubtful() {
        assert!(Auth::doubt("email").unwrap().contains("another person"));
        assert!(Auth::doubt("preferred_username").is_some());
        assert_eq!(Auth::doubt("sub"), None);
    }

    #[test]
    fn keys_are_fetched_over_tls_or_from_this_machine() {
        for good in ["https://id.example.com/realms/a", "http://127.0.0.1:8180/realms/a"] {
            assert!(WebAddress::read(good).is_ok(), "{good}");
        }
        for bad in ["http://id.example.com", "id.example.com", "https://", "https://a b", "ftp://a"]
        {
            assert!(WebAddress::read(bad).is_err(), "{bad}");
        }
        assert!(WebAddress::read("https://user:secret@id.example.com").is_err());
        assert!(WebAddress::read("http://localhost.example.com").is_err());
    }

    #[test]
    fn origins_are_as_browsers_write_them() {
        for good in ["https://app.example.com", "http://localhost:3000", "null"] {
            assert!(PageOrigin::read(good).is_ok(), "{good}");
        }
        for bad in ["https://app.example.com/", "app.example.com", "https://*.example.com", "*"] {
            assert!(PageOrigin::read(bad).is_err(), "{bad}");
        }
    }
}
