//! Who may send to an HTTP source.

use axum::http::HeaderMap;
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

impl HttpAuth {
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
                // Comparing authentication codes takes the same time whatever differs.
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                let expected = hmac::sign(&key, secret.as_bytes());
                hmac::verify(&key, given, expected.as_ref()).is_ok()
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
