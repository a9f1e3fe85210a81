//! Where requests come from, and what one address may do before it has shown a valid token.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::time::Instant;

use crate::settings::{HubSettings, Limits};

const SECOND: Duration = Duration::from_secs(1);
/// Addresses of which refused tokens are counted; when there are more, counting starts anew.
const ADDRESSES_MAX: usize = 10_000;

pub struct Peers {
    strangers_max: usize,
    refused_max: u32,
    strangers: Mutex<HashMap<IpAddr, usize>>,
    refused: Mutex<(Option<Instant>, HashMap<IpAddr, u32>)>,
}

/// One socket.
#[derive(Clone)]
pub struct Peer {
    address: SocketAddr,
    stranger: Arc<Stranger>,
}

/// Counts a socket as a stranger's until it shows a token, or is closed.
struct Stranger {
    network: IpAddr,
    peers: Arc<Peers>,
    known: AtomicBool,
}

impl Stranger {
    fn leave(&self) {
        if !self.known.swap(true, Ordering::AcqRel) {
            let mut strangers = lock(&self.peers.strangers);
            if let Some(count) = strangers.get_mut(&self.network) {
                *count -= 1;
                if *count == 0 {
                    strangers.remove(&self.network);
                }
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Peer {
    pub fn is_known(&self) {
        self.stranger.leave();
    }
}

impl Peers {
    pub fn new(limits: &Limits) -> Arc<Self> {
        Arc::new(Peers {
            strangers_max: limits.strangers_per_address,
            refused_max: limits.refused_tokens_per_second,
            strangers: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Lets a socket in, unless its address has too many that nobody knows.
    pub fn admit(self: &Arc<Self>, address: SocketAddr, trusted: &[IpAddr]) -> Option<Peer> {
        let network = network(address.ip());
        // Behind a proxy many share an address.
        let known = trusted.contains(&address.ip().to_canonical());
        if !known {
            let mut strangers = lock(&self.strangers);
            let count = strangers.entry(network).or_default();
            if *count >= self.strangers_max {
                return None;
            }
            *count += 1;
        }
        let known = AtomicBool::new(known);
        let stranger = Arc::new(Stranger { network, peers: self.clone(), known });
        Some(Peer { address, stranger })
    }

    /// Whether a token of this address is looked at.
    pub fn may_try(&self, address: IpAddr) -> bool {
        let mut refused = lock(&self.refused);
        let (since, counts) = &mut *refused;
        if since.is_none_or(|since| since.elapsed() >= SECOND) || counts.len() > ADDRESSES_MAX {
            *since = Some(Instant::now());
            counts.clear();
        }
        counts.get(&network(address)).is_none_or(|count| *count < self.refused_max)
    }

    pub fn refused(&self, address: IpAddr) {
        *lock(&self.refused).1.entry(network(address)).or_default() += 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What counts as one address: a household has a whole network of version 6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

/// The client's address. What proxies say is believed as far as they are trusted.
pub fn address(request: &Parts, settings: &HubSettings) -> IpAddr {
    let peer = request.extensions.get::<Peer>();
    let peer = peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.address.ip().to_canonical());
    if !settings.trusted_proxies.contains(&peer) {
        return peer;
    }
    let named = request.headers.get_all("x-forwarded-for").iter();
    let named = named.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let named: Vec<IpAddr> = named.map_while(|name| name.trim().parse().ok()).collect();
    let untrusted = |address: &&IpAddr| !settings.trusted_proxies.contains(address);
    named.iter().rev().find(untrusted).copied().unwrap_or(peer)
}

/// Whether a request certainly comes from this machine: a proxy beside us would make everybody's look
/// like that.
pub fn is_of_this_machine(request: &Parts) -> bool {
    let forwarded = request.headers.keys().any(|name| {
        let name = name.as_str();
        name == "forwarded"
            || name == "via"
            || name.starts_with("x-forwarded-")
            || name == "x-real-ip"
    });
    let peer = request.extensions.get::<Peer>();
    !forwarded && peer.is_some_and(|peer| peer.address.ip().to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(peers: &Arc<Peers>, peer: &str, forwarded: Option<&str>) -> Parts {
        let mut request = axum::http::Request::new(()).into_parts().0;
        let peer = peers.admit(SocketAddr::new(peer.parse().unwrap(), 1), &[]).unwrap();
        request.extensions.insert(peer);
        if let Some(forwarded) = forwarded {
            request.headers.insert("x-forwarded-for", forwarded.parse().unwrap());
        }
        request
    }

    #[test]
    fn forwarded_addresses_are_believed_from_trusted_proxies_alone() {
        let peers = Peers::new(&Limits::default());
        let mut settings = HubSettings::default();
        settings.trusted_proxies = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
        for (peer, forwarded, expected) in [
            ("192.0.2.7", Some("198.51.100.1"), "192.0.2.7"),
            ("10.0.0.1", Some("198.51.100.1"), "198.51.100.1"),
            ("10.0.0.1", Some("198.51.100.9, 198.51.100.1, 10.0.0.2"), "198.51.100.1"),
            ("10.0.0.1", None, "10.0.0.1"),
            ("::ffff:10.0.0.1", Some("198.51.100.1"), "198.51.100.1"),
        ] {
            let found = address(&request(&peers, peer, forwarded), &settings);
            assert_eq!(found.to_string(), expected);
        }
    }

    #[test]
    fn a_proxy_on_this_machine_is_not_this_machine() {
        let peers = Peers::new(&Limits::default());
        assert!(is_of_this_machine(&request(&peers, "127.0.0.1", None)));
        assert!(is_of_this_machine(&request(&peers, "::1", None)));
        assert!(!is_of_this_machine(&request(&peers, "127.0.0.1", Some("198.51.100.1"))));
        assert!(!is_of_this_machine(&request(&peers, "192.0.2.7", None)));
    }

    #[test]
    fn strangers_of_one_address_are_bounded_and_known_ones_do_not_count() {
        let limits = Limits { strangers_per_address: 2, ..Limits::default() };
        let peers = Peers::new(&limits);
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
        let one = peers.admit(address("192.0.2.7"), &[]).unwrap();
        let other = peers.admit(address("192.0.2.7"), &[]).unwrap();
        assert!(peers.admit(address("192.0.2.7"), &[]).is_none());
        assert!(peers.admit(address("192.0.2.8"), &[]).is_some());
        one.is_known();
        one.is_known();
        let third = peers.admit(address("192.0.2.7"), &[]).unwrap();
        assert!(peers.admit(address("192.0.2.7"), &[]).is_none());
        drop((other, third));
        assert!(peers.admit(address("192.0.2.7"), &[]).is_some());
        // One network of version 6 counts as one address.
        let _held = peers.admit(address("2001:db8::1"), &[]).unwrap();
        let _held = peers.admit(address("2001:db8::2"), &[]).unwrap();
        assert!(peers.admit(address("2001:db8::3"), &[]).is_none());
    }
}
