//! Sessions and tokens: only a form that this process has sent to this browser changes anything.
//!
//! A session is a random cookie that no script can read and no other site can send. A token is the
//! name of one form (which makes a double click harmless) with a signature over it and the session,
//! under a key that is made at each start.

use axum::http::header::COOKIE;
use axum::http::{HeaderMap, HeaderValue};
use ring::hmac;

use crate::random_name;

const COOKIE_NAME: &str = "potok-session";
/// Behind TLS: a name that browsers take from this host alone, so that no neighbour sets one for it.
const SECURE_NAME: &str = "__Host-potok-session";
const SESSION_CHARS: usize = 24;

/// The key, and what stands for a token until a page is sent.
pub(super) struct Keys {
    key: hmac::Key,
    /// Not to be guessed, so that no record of somebody else's contains it.
    mark: String,
}

impl Default for Keys {
    fn default() -> Self {
        let secret = format!("{}{}{}", random_name(), random_name(), random_name());
        Keys { key: hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), mark: random_name() }
    }
}

impl Keys {
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// The session of a request; a new one comes with the cookie to set.
    pub fn session(&self, headers: &HeaderMap) -> (String, Option<HeaderValue>) {
        if let Some(session) = session_of(headers) {
            return (session, None);
        }
        let session = random_name();
        let set = HeaderValue::from_str(&cookie(&session, None, false)).ok();
        (session, set)
    }

    /// Gives every form of a page a token of its own.
    pub fn fill(&self, html: String, session: &str) -> String {
        let mut filled = String::with_capacity(html.len());
        let mut rest = html.as_str();
        while let Some((before, after)) = rest.split_once(&self.mark) {
            filled.push_str(before);
            filled.push_str(&self.token(&random_name(), session));
            rest = after;
        }
        filled.push_str(rest);
        filled
    }

    fn token(&self, form: &str, session: &str) -> String {
        let signature = hmac::sign(&self.key, signed(form, session).as_bytes());
        let digits: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{form}.{digits}")
    }

    /// The name of the form that a token was made for, if it was made here for this session.
    pub fn form_of(&self, token: &str, headers: &HeaderMap) -> Option<String> {
        let session = session_of(headers)?;
        let (form, digits) = token.split_once('.')?;
        let (pairs, odd) = digits.as_bytes().as_chunks::<2>();
        let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let signature: Vec<u8> = pairs.iter().map(byte).collect::<Option<_>>()?;
        if !odd.is_empty() {
            return None;
        }
        let good = hmac::verify(&self.key, signed(form, &session).as_bytes(), &signature);
        good.is_ok().then(|| form.to_owned())
    }
}

/// What a browser keeps of a session, for so many seconds; until it is closed where nobody says.
pub(super) fn cookie(session: &str, seconds: Option<u64>, secure: bool) -> String {
    let age = seconds.map(|seconds| format!("; Max-Age={seconds}")).unwrap_or_default();
    let (name, secure) = if secure { (SECURE_NAME, "; Secure") } else { (COOKIE_NAME, "") };
    format!("{name}={session}; Path=/; SameSite=Strict; HttpOnly{secure}{age}")
}

fn signed(form: &str, session: &str) -> String {
    format!("{form}.{session}")
}

/// The session that a request names, if it looks like one of ours.
pub(crate) fn session_of(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|line| line.split(';')).filter_map(|c| c.trim().split_once('='));
    let pairs: Vec<(&str, &str)> = pairs.collect();
    let named = |wanted: &str| pairs.iter().find(|(name, _)| *name == wanted);
    let (_, session) = named(SECURE_NAME).or_else(|| named(COOKIE_NAME))?;
    let good = session.len() == SESSION_CHARS && session.bytes().all(|b| b.is_ascii_hexdigit());
    good.then(|| (*session).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cookie(session: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, format!("a=b; {COOKIE_NAME}={session}").parse().unwrap());
        headers
    }

    #[test]
    fn behind_tls_no_neighbour_sets_the_session() {
        let (own, other) = (random_name(), random_name());
        let set = super::cookie(&own, Some(60), true);
        assert!(set.starts_with("__Host-potok-session=") && set.contains("; Path=/;"), "{set}");
        assert!(set.contains("; Secure") && !set.contains("Domain"), "{set}");
        let mut headers = HeaderMap::new();
        let both = format!("{COOKIE_NAME}={other}; {SECURE_NAME}={own}");
        headers.insert(COOKIE, both.parse().unwrap());
        assert_eq!(session_of(&headers), Some(own));
    }

    #[test]
    fn a_token_is_good_for_its_session_and_form_only() {
        let keys = Keys::default();
        let (session, set) = keys.session(&HeaderMap::new());
        assert!(set.unwrap().to_str().unwrap().contains("SameSite=Strict; HttpOnly"));
        let html = keys.fill(format!("{}|{}", keys.mark(), keys.mark()), &session);
        let (one, two) = html.split_once('|').unwrap();
        assert_ne!(one, two, "each form has its own");
        assert!(keys.form_of(one, &cookie(&session)).is_some());
        assert!(keys.form_of(one, &cookie(&random_name())).is_none());
        assert!(keys.form_of(one, &HeaderMap::new()).is_none());
        assert!(Keys::default().form_of(one, &cookie(&session)).is_none(), "another start");
        let (form, digits) = one.split_once('.').unwrap();
        assert!(keys.form_of(&format!("x{form}.{digits}"), &cookie(&session)).is_none());
        for bad in ["", ".", "a.b", "a.zz", &format!("{form}.{digits}0"), form] {
            assert!(keys.form_of(bad, &cookie(&session)).is_none(), "{bad}");
        }
    }
}
