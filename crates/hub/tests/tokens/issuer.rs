//! An issuer that publishes keys and signs whatever it is told.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaKeyPair,
};
use serde_json::{Value, json};

pub const AUDIENCE: &str = "notifications";

pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Seconds since 1970.
#[allow(clippy::disallowed_methods, reason = "tokens carry times of day")]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

pub struct Key {
    pub id: String,
    pair: Pair,
}

enum Pair {
    Rsa(Arc<RsaKeyPair>),
    Ec(Box<EcdsaKeyPair>),
}

impl Key {
    /// All share one pair, which takes a while to make.
    pub fn rsa(id: &str) -> Self {
        static PAIR: OnceLock<Arc<RsaKeyPair>> = OnceLock::new();
        let pair = PAIR.get_or_init(|| {
            let made = Command::new("openssl")
                .args([
                    "genpkey",
                    "-algorithm",
                    "RSA",
                    "-pkeyopt",
                    "rsa_keygen_bits:2048",
                    "-outform",
                    "DER",
                ])
                .output()
                .expect("openssl is installed by `cargo xtask services install`");
            // Versions of it differ in what they wrap it into.
            let pair = RsaKeyPair::from_pkcs8(&made.stdout);
            Arc::new(pair.or_else(|_| RsaKeyPair::from_der(&made.stdout)).unwrap())
        });
        Key { id: id.to_owned(), pair: Pair::Rsa(pair.clone()) }
    }

    pub fn ec(id: &str) -> Self {
        let (signing, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let key = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(signing, key.as_ref(), &random).unwrap();
        Key { id: id.to_owned(), pair: Pair::Ec(Box::new(pair)) }
    }

    /// The public part, as issuers publish it.
    pub fn jwk(&self) -> Value {
        match &self.pair {
            Pair::Rsa(pair) => {
                let PublicKeyComponents::<Vec<u8>> { n, e } = pair.public().into();
                json!({"kty": "RSA", "kid": self.id, "use": "sig", "alg": "RS256", "n": base64(n), "e": base64(e)})
            }
            Pair::Ec(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": self.id, "x": base64(x), "y": base64(y)})
            }
        }
    }

    fn sign(&self, message: &[u8], padded: bool) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                match padded {
                    true => pair.sign(&RSA_PSS_SHA256, &random, message, &mut signature).unwrap(),
                    false => {
                        pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap()
                    }
                }
                signature
            }
            Pair::Ec(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
        }
    }

    /// A token with that header and those claims, signed as its header says.
    pub fn token(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
        let signature = self.sign(message.as_bytes(), header["alg"] == "PS256");
        format!("{message}.{}", base64(signature))
    }
}

pub struct FakeIssuer {
    pub issuer: String,
    pub rsa: Key,
    pub ec: Key,
    shared: Arc<Shared>,
}

struct Shared {
    issuer: String,
    keys: Mutex<Value>,
    fetches: AtomicU64,
    away: AtomicBool,
}

impl FakeIssuer {
    /// Publishes both keys, one for encryption, a secret, and one of a kind nobody knows.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}/realms/messenger", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            issuer: issuer.clone(),
            keys: Mutex::default(),
            fetches: AtomicU64::new(0),
            away: AtomicBool::new(false),
        });
        let routes = Router::new()
            .route("/realms/messenger/.well-known/openid-configuration", get(discovery))
            .route("/realms/messenger/certs", get(keys))
            .with_state(shared.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let fake = FakeIssuer { issuer, rsa: Key::rsa("rsa"), ec: Key::ec("ec"), shared };
        fake.publish(&[&fake.rsa, &fake.ec]);
        fake
    }

    pub fn publish(&self, keys: &[&Key]) {
        let mut all: Vec<_> = keys.iter().map(|key| key.jwk()).collect();
        let mut encrypting = Key::rsa("encrypting").jwk();
        encrypting["use"] = "enc".into();
        encrypting["alg"] = "RSA-OAEP".into();
        all.push(encrypting);
        all.push(json!({"kty": "oct", "kid": "secret", "alg": "HS256", "k": base64("secret")}));
        all.push(json!({"kty": "quantum", "kid": "new"}));
        *self.shared.keys.lock().unwrap() = json!({ "keys": all });
    }

    pub fn go_away(&self) {
        self.shared.away.store(true, Ordering::Release);
    }

    pub fn fetches(&self) -> u64 {
        self.shared.fetches.load(Ordering::Acquire)
    }

    /// What a good token says.
    pub fn claims(&self) -> Value {
        json!({
            "iss": self.issuer, "aud": AUDIENCE, "sub": "alice", "typ": "Bearer", "azp": "app",
            "iat": now(), "exp": now() + 300,
            "realm_access": {"roles": ["user"]},
            "resource_access": {"app": {"roles": ["reader"]}},
        })
    }

    pub fn good(&self) -> String {
        self.rsa.token(&json!({"alg": "RS256", "kid": "rsa", "typ": "JWT"}), &self.claims())
    }
}

async fn discovery(State(shared): State<Arc<Shared>>) -> Result<String, StatusCode> {
    if shared.away.load(Ordering::Acquire) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    let issuer = &shared.issuer;
    Ok(json!({"issuer": issuer, "jwks_uri": format!("{issuer}/certs")}).to_string())
}

async fn keys(State(shared): State<Arc<Shared>>) -> String {
    shared.fetches.fetch_add(1, Ordering::AcqRel);
    shared.keys.lock().unwrap().to_string()
}
