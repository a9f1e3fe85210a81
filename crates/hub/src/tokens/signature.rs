//! Signatures of tokens by ring, the cryptography that TLS brings anyway.
//!
//! A key knows its algorithm, and verifies with no other.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature as algorithms;
use ring::signature::{
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;

/// RSA keys with fewer bytes are not used.
const RSA_BYTES_MIN: usize = 256;

/// A public key that signs tokens.
#[derive(Clone)]
pub struct Key {
    /// As headers of tokens name it.
    pub algorithm: &'static str,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Rsa {
        parameters: &'static RsaParameters,
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// A point of a curve.
    Point {
        algorithm: &'static dyn VerificationAlgorithm,
        bytes: Vec<u8>,
    },
}

/// A key as issuers publish it. All other fields are of no meaning here.
#[derive(Deserialize)]
pub struct PublishedKey {
    kid: Option<String>,
    kty: String,
    #[serde(rename = "use")]
    purpose: Option<String>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl PublishedKey {
    /// A key that may verify signatures, under its id. Secrets and keys for encryption may not.
    pub fn usable(self) -> Option<(String, Key)> {
        if self.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_deref()?).ok();
        let (alg, curve) = (self.alg.as_deref(), self.crv.as_deref());
        let key = match self.kty.as_str() {
            "RSA" => {
                let (n, e) = (bytes(&self.n)?, bytes(&self.e)?);
                let (algorithm, parameters) = rsa(alg.unwrap_or("RS256"))?;
                let is_long = n.len() >= RSA_BYTES_MIN;
                is_long.then_some(Key { algorithm, kind: Kind::Rsa { parameters, n, e } })?
            }
            "EC" => {
                let (name, algorithm): (_, &'static dyn VerificationAlgorithm) = match curve? {
                    "P-256" => ("ES256", &algorithms::ECDSA_P256_SHA256_FIXED),
                    "P-384" => ("ES384", &algorithms::ECDSA_P384_SHA384_FIXED),
                    _ => return None,
                };
                if alg.is_some_and(|alg| alg != name) {
                    return None;
                }
                Key::point(name, algorithm, &bytes(&self.x)?, &bytes(&self.y)?)
            }
            "OKP" if curve == Some("Ed25519") && alg.is_none_or(|alg| alg == "EdDSA") => {
                let bytes = bytes(&self.x)?;
                let kind = Kind::Point { algorithm: &algorithms::ED25519, bytes };
                Key { algorithm: "EdDSA", kind }
            }
            _ => return None,
        };
        Some((self.kid?, key))
    }
}

impl Key {
    /// The key of the development issuer, as the coordinates of its point.
    pub fn es256(x: &[u8], y: &[u8]) -> Self {
        Key::point("ES256", &algorithms::ECDSA_P256_SHA256_FIXED, x, y)
    }

    fn point(
        name: &'static str,
        algorithm: &'static dyn VerificationAlgorithm,
        x: &[u8],
        y: &[u8],
    ) -> Self {
        // The mark of a point that is written in full.
        let bytes = [&[4], x, y].concat();
        Key { algorithm: name, kind: Kind::Point { algorithm, bytes } }
    }

    /// Whether this key made the signature, which is in base64 as in tokens.
    pub fn verifies(&self, message: &str, signature: &str) -> bool {
        let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else { return false };
        let message = message.as_bytes();
        let verified = match &self.kind {
            Kind::Rsa { parameters, n, e } => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, &signature)
            }
            Kind::Point { algorithm, bytes } => {
                UnparsedPublicKey::new(*algorithm, bytes).verify(message, &signature)
            }
        };
        verified.is_ok()
    }
}

fn rsa(name: &str) -> Option<(&'static str, &'static RsaParameters)> {
    Some(match name {
        "RS256" => ("RS256", &algorithms::RSA_PKCS1_2048_8192_SHA256),
        "RS384" => ("RS384", &algorithms::RSA_PKCS1_2048_8192_SHA384),
        "RS512" => ("RS512", &algorithms::RSA_PKCS1_2048_8192_SHA512),
        "PS256" => ("PS256", &algorithms::RSA_PSS_2048_8192_SHA256),
        "PS384" => ("PS384", &algorithms::RSA_PSS_2048_8192_SHA384),
        "PS512" => ("PS512", &algorithms::RSA_PSS_2048_8192_SHA512),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn usable(key: Value) -> Option<(String, Key)> {
        serde_json::from_value::<PublishedKey>(key).ok()?.usable()
    }

    #[test]
    fn only_public_keys_for_signatures_are_used() {
        let point = "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4";
        let other = "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM";
        let good = json!({"kty": "EC", "crv": "P-256", "kid": "a", "x": point, "y": other});
        assert_eq!(usable(good.clone()).unwrap().1.algorithm, "ES256");
        for (field, value) in [("use", "enc"), ("alg", "ES384"), ("alg", "HS256"), ("crv", "P-1")] {
            let mut bad = good.clone();
            bad[field] = value.into();
            assert!(usable(bad).is_none(), "{field}");
        }
        let mut nameless = good;
        nameless.as_object_mut().unwrap().remove("kid");
        assert!(usable(nameless).is_none());
        assert!(usable(json!({"kty": "oct", "kid": "a", "k": "c2VjcmV0"})).is_none());
        assert!(
            usable(json!({"kty": "oct", "kid": "a", "alg": "HS256", "k": "c2VjcmV0"})).is_none()
        );
        assert!(usable(json!({"kty": "RSA", "kid": "a", "n": "c2hvcnQ", "e": "AQAB"})).is_none());
        let long = URL_SAFE_NO_PAD.encode([1; 256]);
        let rsa = json!({"kty": "RSA", "kid": "a", "n": long, "e": "AQAB", "alg": "PS256"});
        assert_eq!(usable(rsa.clone()).unwrap().1.algorithm, "PS256");
        let mut encrypting = rsa;
        encrypting["alg"] = "RSA-OAEP".into();
        assert!(usable(encrypting).is_none());
        assert!(usable(json!({"kty": "new", "kid": "a"})).is_none());
    }

    #[test]
    fn a_key_verifies_what_it_signed_and_nothing_else() {
        use ring::signature::{Ed25519KeyPair, KeyPair};
        let key = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": x});
        let (_, key) = usable(key).unwrap();
        let signature = URL_SAFE_NO_PAD.encode(pair.sign(b"message"));
        assert!(key.verifies("message", &signature));
        assert!(!key.verifies("massage", &signature));
        assert!(!key.verifies("message", ""));
        assert!(!key.verifies("message", "not base64!"));
    }
}
