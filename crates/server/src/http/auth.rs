//! Who may send to an HTTP source.

use std::collections::HashMap;

use axum::extract::Query;
use axum::http::{HeaderMap, Uri};
use ring::hmac;

/// How a request proves where it comes from.
#[derive(Clone)]
pub enum HttpAuth {
    /// A header has this value. In `Authorization` the word `Bearer` stands before it.
    Secret {
        /// Name of the header.
        header: String,
        /// Its value.
        secret: String,
    },
    /// A header has the HMAC-SHA-256 of the body under this secret, in hexadecimal, with or
    /// without `sha256=` before it.
    Signature {
        /// Name of the header.
        header: String,
        /// What the sender and potok share.
        secret: String,
    },
}

/// Equal bytes. Takes as long for nearly right ones as for wrong ones: comparing authentication codes does.
fn is_equal(given: &[u8], secret: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let expected = hmac::sign(&key, secret);
    hmac::verify(&key, given, expected.as_ref()).is_ok()
}

/// What a sender is told that asks, before it sends anything, whether it has the right address: the
/// challenge it brings along, if it knows the token (`hub.mode=subscribe`).
pub(super) fn challenge(token: &str, uri: &Uri) -> Option<String> {
    let Query(mut asked) = Query::<HashMap<String, String>>::try_from_uri(uri).ok()?;
    let knows = asked
        .get("hub.verify_token")
        .is_some_and(|given| !token.is_empty() && is_equal(given.as_bytes(), token.as_bytes()));
    let subscribes = asked.get("hub.mode").is_some_and(|mode| mode == "subscribe");
    asked.remove("hub.challenge").filter(|_| knows && subscribes)
}

impl HttpAuth {
    /// True where the headers alone show that a request may not be taken, so that its body need not be
    /// waited for, and takes nobody's room.
    pub(super) fn refuses_unseen(&self, headers: &HeaderMap) -> bool {
        match self {
            HttpAuth::Secret { .. } => !self.accepts(headers, &[]),
            HttpAuth::Signature { header, .. } => !headers.contains_key(header),
        }
    }

    /// True for a request that may be taken. Takes as long for a nearly right secret as for a
    /// wrong one.
    pub(super) fn accepts(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        match self {
            HttpAuth::Secret { header, secret } => {
                let Some(given) = headers.get(header) else { return false };
                let given = given.as_bytes();
                let given = match header.eq_ignore_ascii_case("authorization") {
                    true => given.strip_prefix(b"Bearer ").unwrap_or(given),
                    false => given,
                };
                is_equal(given, secret.as_bytes())
            }
            HttpAuth::Signature { header, secret } => {
                let given = headers.get(header).and_then(|value| value.to_str().ok());
                let given = given.map(|text| text.strip_prefix("sha256=").unwrap_or(text));
                let Some(signature) = given.and_then(from_hex) else { return false };
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                hmac::verify(&key, body, &signature).is_ok()
            }
        }
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.iter().map(byte).collect::<Option<Vec<u8>>>().filter(|_| odd.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn accepts(auth: &HttpAuth, name: &'static str, value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        auth.accepts(&headers, b"The quick brown fox jumps over the lazy dog")
    }

    #[test]
    fn a_secret_must_be_whole_and_equal() {
        let auth = HttpAuth::Secret { header: "X-Token".into(), secret: "s3cret".into() };
        assert!(accepts(&auth, "x-token", "s3cret"));
        for wrong in ["s3cre", "s3crets", "", "Bearer s3cret", "S3CRET"] {
            assert!(!accepts(&auth, "x-token", wrong), "{wrong}");
        }
        assert!(!accepts(&auth, "x-other", "s3cret"));
        let bearer = HttpAuth::Secret { header: "Authorization".into(), secret: "s3cret".into() };
        assert!(accepts(&bearer, "authorization", "Bearer s3cret"));
        assert!(!accepts(&bearer, "authorization", "Bearer  s3cret"));
    }

    #[test]
    fn a_challenge_is_answered_to_who_knows_the_token() {
        let asked = |query: &str| challenge("to ken", &format!("/in?{query}").parse().unwrap());
        let right = "hub.mode=subscribe&hub.challenge=115&hub.verify_token=to%20ken";
        assert_eq!(asked(right).as_deref(), Some("115"));
        for wrong in [
            "",
            "hub.mode=subscribe&hub.challenge=115&hub.verify_token=token",
            "hub.mode=subscribe&hub.challenge=115",
            "hub.mode=other&hub.challenge=115&hub.verify_token=to%20ken",
            "hub.mode=subscribe&hub.verify_token=to%20ken",
        ] {
            assert_eq!(asked(wrong), None, "{wrong}");
        }
        let empty = "/in?hub.mode=subscribe&hub.challenge=1&hub.verify_token=".parse().unwrap();
        assert_eq!(challenge("", &empty), None, "no token is no right one");
    }

    /// The example that the encyclopedias have.
    #[test]
    fn a_signature_is_of_the_body() {
        let auth =
            HttpAuth::Signature { header: "X-Hub-Signature-256".into(), secret: "key".into() };
        let right = "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8";
        assert!(accepts(&auth, "x-hub-signature-256", right));
        assert!(accepts(&auth, "x-hub-signature-256", &format!("sha256={right}")));
        for wrong in ["", "sha256=", "f7", &right[..63], &right.replace('f', "e"), "sha1=zz"] {
            assert!(!accepts(&auth, "x-hub-signature-256", wrong), "{wrong}");
        }
    }
}
