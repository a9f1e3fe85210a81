//! The issuer for development: a key in the data folder, and tokens signed with it.
//!
//! Its tokens count only for clients on this machine, and only while no real issuer is set. Nothing
//! mints over HTTP: whoever can read the key file can be anybody, and nobody else can.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::rules::{AuthSettings, Token};
use super::signature::Key;
use super::{Authority, Person, Refusal, issuer};
use crate::node::wall_now;
use crate::random;

/// What its tokens name as their audience.
pub const AUDIENCE: &str = "potok-dev";
/// A token lives no longer.
pub const LIFETIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const FILE: &str = "hub-dev-key.json";

pub struct DevelopmentIssuer {
    settings: AuthSettings,
    key_id: String,
    signing: EcdsaKeyPair,
    verifying: Key,
}

#[derive(Serialize, Deserialize)]
struct StoredIssuer {
    issuer: String,
    /// PKCS#8, base64.
    key: String,
}

impl DevelopmentIssuer {
    /// The one of a data folder, made there where it is missing, readable by its owner alone.
    pub fn open(folder: &Path) -> io::Result<Arc<Self>> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => Self::from_bytes(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(folder, &path)?;
                Self::from_bytes(&fs::read(&path)?)
            }
            Err(error) => Err(error),
        }
    }

    fn from_bytes(bytes: &[u8]) -> io::Result<Arc<Self>> {
        let unusable = |what: &str| io::Error::other(format!("{FILE} is unusable: {what}"));
        let stored: StoredIssuer =
            serde_json::from_slice(bytes).map_err(|error| unusable(&error.to_string()))?;
        let key = STANDARD.decode(&stored.key).map_err(|error| unusable(&error.to_string()))?;
        let signing = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pair = EcdsaKeyPair::from_pkcs8(signing, &key, &SystemRandom::new());
        let pair = pair.map_err(|error| unusable(&error.to_string()))?;
        // A point that is written in full: a mark and two numbers.
        let (x, y) = pair.public_key().as_ref().get(1..).unwrap_or_default().split_at(32);
        let verifying = Key::es256(x, y);
        Ok(Arc::new(DevelopmentIssuer {
            settings: AuthSettings::new(&stored.issuer, AUDIENCE),
            key_id: stored.issuer,
            signing: pair,
            verifying,
        }))
    }

    pub fn name(&self) -> &str {
        &self.settings.issuer
    }

    /// A token for a user; `lifetime` is cut at a day.
    pub fn mint(&self, user: &str, lifetime: Duration, now: SystemTime) -> Result<String, String> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let claims = json!({
            "iss": self.settings.issuer, "aud": AUDIENCE, "sub": user, "typ": "Bearer",
            "iat": now, "exp": now + lifetime.min(LIFETIME_MAX).as_secs(),
            "jti": format!("{:016x}", random::u64()),
        });
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": self.key_id});
        let part = |part: &serde_json::Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let message = format!("{}.{}", part(&header), part(&claims));
        let signature = self.signing.sign(&SystemRandom::new(), message.as_bytes());
        let signature = signature.map_err(|_| "no random bytes for a signature".to_owned())?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// Whole or not at all, and whoever comes second finds the first one's.
fn make(folder: &Path, path: &Path) -> io::Result<()> {
    let signing = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let key = EcdsaKeyPair::generate_pkcs8(signing, &SystemRandom::new());
    let key = key.map_err(|_| io::Error::other("no random bytes for a key"))?;
    let issuer = format!("potok-dev-{:016x}", random::u64());
    let stored = StoredIssuer { issuer, key: STANDARD.encode(key.as_ref()) };
    let part = folder.join(format!("{FILE}.{:016x}", random::u64()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    file.write_all(&serde_json::to_vec(&stored)?)?;
    file.sync_all()?;
    let made = fs::hard_link(&part, path);
    fs::remove_file(&part)?;
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[async_trait]
impl Authority for DevelopmentIssuer {
    async fn verify(&self, token: &str) -> Result<Person, Refusal> {
        let token = Token::parse(token)?;
        if token.key_id != self.key_id {
            return Err(Refusal::UnknownKey);
        }
        issuer::verify(&token, &self.verifying, &self.settings)
    }

    fn is_for_development(&self) -> bool {
        true
    }
}

/// The time of day, for minting.
pub fn now() -> SystemTime {
    wall_now()
}
