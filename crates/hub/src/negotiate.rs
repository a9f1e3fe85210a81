//! Negotiation without memory: the secret that a client attaches with is signed, not stored, so that
//! a flood of negotiations costs nothing and any process with the same key accepts the attachment.
//!
//! ```text
//! connectionToken = base64url( node 8 ‖ connection id 16 ‖ issued 4 ‖ 1 where its client may come back, else 0: 1
//!                              ‖ HMAC-SHA-256 of these and the user, 16 )
//! ```

use std::sync::{PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use serde_json::{Value, json};

use crate::contract::{Transport, UserId};
use crate::node::wall_now;
use crate::random;

/// Clients before this version stop for good when a message wants an answer.
pub const CLIENT_MIN: u32 = 7;
const NODE: usize = 8;
const ID: usize = 16;
const SIGNED: usize = NODE + ID + 4 + 1;
const SIGNATURE: usize = 16;

pub(crate) struct Negotiation {
    node: [u8; NODE],
    key: RwLock<SigningKey>,
}

struct SigningKey {
    bytes: [u8; 32],
    key: hmac::Key,
    /// Whether it is the one of all nodes.
    shared: bool,
}

impl SigningKey {
    fn new(bytes: [u8; 32], shared: bool) -> Self {
        SigningKey { bytes, key: hmac::Key::new(hmac::HMAC_SHA256, &bytes), shared }
    }
}

/// A secret that holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Secret {
    pub id: [u8; ID],
    /// Whether it was made by this process.
    pub ours: bool,
    /// Whether it is young enough for a first attachment.
    pub fresh: bool,
    /// Whether its client may come back to its connection after that.
    pub returns: bool,
}

impl Negotiation {
    /// With a key of its own where none is given; that is enough for a node that is `alone`.
    pub fn new(key: Option<[u8; 32]>, alone: bool) -> Self {
        let shared = alone || key.is_some();
        let key = RwLock::new(SigningKey::new(key.unwrap_or_else(random::bytes), shared));
        Negotiation { node: random::bytes(), key }
    }

    /// Whether others understand what is signed here.
    pub fn has_key(&self) -> bool {
        self.key.read().unwrap_or_else(PoisonError::into_inner).shared
    }

    /// What to propose as the key of all nodes: where that was forgotten, the one they had, so that
    /// nobody has to negotiate again.
    pub fn proposal(&self) -> [u8; 32] {
        self.key.read().unwrap_or_else(PoisonError::into_inner).bytes
    }

    /// From now on with the key of all nodes. Who negotiated with another does it again.
    pub fn set_key(&self, key: [u8; 32]) {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = SigningKey::new(key, true);
    }

    /// A new connection: its public id, and the secret it is attached with.
    pub fn issue(&self, user: &UserId, returns: bool) -> ([u8; ID], String) {
        let id = random::bytes();
        let mut secret = Vec::with_capacity(SIGNED + SIGNATURE);
        secret.extend(self.node);
        secret.extend(id);
        secret.extend(now().to_be_bytes());
        secret.push(returns.into());
        let signature = self.sign(&secret, user);
        secret.extend(signature.as_ref().iter().take(SIGNATURE));
        (id, URL_SAFE_NO_PAD.encode(secret))
    }

    /// Takes a secret apart, if we or somebody with our key made it for this user.
    pub fn check(&self, secret: &str, user: &UserId, within: Duration) -> Option<Secret> {
        let bytes = URL_SAFE_NO_PAD.decode(secret).ok()?;
        let (signed, signature) = bytes.split_at_checked(SIGNED)?;
        let wanted = self.sign(signed, user);
        let wanted = wanted.as_ref().get(..SIGNATURE)?;
        // In the same time wherever they differ.
        let differs = wanted.iter().zip(signature).fold(0, |all, (a, b)| all | (a ^ b));
        if signature.len() != SIGNATURE || differs != 0 {
            return None;
        }
        let (node, rest) = signed.split_at_checked(NODE)?;
        let (id, rest) = rest.split_at_checked(ID)?;
        let (issued, returns) = rest.split_at_checked(4)?;
        let issued = u32::from_be_bytes(issued.try_into().ok()?);
        let fresh = u64::from(now().saturating_sub(issued)) <= within.as_secs();
        let (id, returns) = (id.try_into().ok()?, returns == [1]);
        Some(Secret { id, ours: node == self.node, fresh, returns })
    }

    fn sign(&self, signed: &[u8], user: &UserId) -> hmac::Tag {
        let key = self.key.read().unwrap_or_else(PoisonError::into_inner);
        let mut context = hmac::Context::with_key(&key.key);
        context.update(signed);
        context.update(user.as_str().as_bytes());
        context.sign()
    }
}

/// The connection that a secret names, whoever made it.
pub(crate) fn named(secret: &str) -> Option<[u8; ID]> {
    let bytes = URL_SAFE_NO_PAD.decode(secret).ok()?;
    bytes.get(NODE..NODE + ID)?.try_into().ok()
}

fn now() -> u32 {
    wall_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as u32
}

pub(crate) fn public_id(id: &[u8; ID]) -> String {
    URL_SAFE_NO_PAD.encode(id)
}

/// What a client is answered, with its secret.
pub(crate) fn answer(id: &[u8; ID], secret: &str, sticky: bool, returns: bool) -> Value {
    let transport = |transport: Transport, formats: &[&str]| json!({"transport": transport.name(), "transferFormats": formats});
    let mut transports = vec![transport(Transport::WebSockets, &["Text", "Binary"])];
    if sticky {
        transports.push(transport(Transport::ServerSentEvents, &["Text"]));
        transports.push(transport(Transport::LongPolling, &["Text", "Binary"]));
    }
    let mut answer = json!({
        "negotiateVersion": 1, "connectionId": public_id(id), "connectionToken": secret,
        "availableTransports": transports,
    });
    if returns {
        // A client that has not asked for it would stop.
        answer["useStatefulReconnect"] = true.into();
    }
    answer
}

/// Why a client cannot be served, in its own words: `start()` fails with this text.
pub(crate) fn refusal(version: Option<&str>, agent: &str) -> Option<String> {
    if !version.is_some_and(|version| version.parse::<u32>().is_ok_and(|version| version >= 1)) {
        let version = version.unwrap_or("0");
        let version: String = version.chars().filter(|c| !c.is_control()).take(16).collect();
        return Some(format!(
            "The client requested version '{version}', but the server does not support this version."
        ));
    }
    is_too_old(agent).then(|| format!("This hub needs @microsoft/signalr {CLIENT_MIN} or newer."))
}

/// Whether a client says that it is older than answers to messages.
pub(crate) fn is_too_old(agent: &str) -> bool {
    let version =
        agent.split_once("Microsoft SignalR/").and_then(|(_, rest)| rest.split('.').next());
    version.and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major < CLIENT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn secrets_hold_for_their_user_and_their_key_alone() {
        let (negotiation, other) = (Negotiation::new(None, true), Negotiation::new(None, true));
        let (alice, bob) = (UserId::new("alice"), UserId::new("bob"));
        let (id, secret) = negotiation.issue(&alice, true);
        let held = negotiation.check(&secret, &alice, MINUTE).unwrap();
        assert_eq!(held, Secret { id, ours: true, fresh: true, returns: true });
        assert_eq!(negotiation.check(&secret, &bob, MINUTE), None);
        assert_eq!((named(&secret), named("x"), named("")), (Some(id), None, None));
        assert_eq!(other.check(&secret, &alice, MINUTE), None);
        assert_eq!(negotiation.check(&public_id(&id), &alice, MINUTE), None);
        for place in 0..secret.len() {
            let mut changed = secret.clone().into_bytes();
            changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            let held = negotiation.check(&changed, &alice, MINUTE);
            assert_eq!(held, None, "{secret} {changed}");
        }
        for cut in 0..secret.len() {
            assert_eq!(negotiation.check(&secret[..cut], &alice, MINUTE), None);
        }
    }

    #[test]
    fn a_copy_with_the_same_key_accepts_the_secret() {
        let (one, other) = (Negotiation::new(Some([7; 32]), false), Negotiation::new(None, false));
        assert!(one.has_key() && !other.has_key());
        other.set_key(one.proposal());
        assert!(other.has_key());
        let alice = UserId::new("alice");
        let (id, secret) = one.issue(&alice, false);
        let held = other.check(&secret, &alice, MINUTE).unwrap();
        assert_eq!(held, Secret { id, ours: false, fresh: true, returns: false });
    }

    #[test]
    fn old_clients_and_versions_are_told_why() {
        let node = |version| format!("Microsoft SignalR/{version} (x; Linux; NodeJS; 20.x)");
        assert_eq!(refusal(Some("1"), &node("10.0")), None);
        assert_eq!(refusal(Some("2"), "Dart/3.1"), None);
        assert!(refusal(Some("1"), &node("6.0")).unwrap().contains("7 or newer"));
        for version in [None, Some("0"), Some("x"), Some("-1")] {
            assert!(refusal(version, "").unwrap().contains("does not support"), "{version:?}");
        }
    }
}
