//! Where requests come from, and what one address may do before it has shown a valid token.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::network::Network;
use crate::settings::{HubSettings, Limits};
use crate::trouble::{Planted, planted};

const SECOND: Duration = Duration::from_secs(1);
/// Addresses of which refused tokens are counted; when there are more, counting starts anew.
const ADDRESSES_MAX: usize = 10_000;

pub struct Peers {
    strangers_max: usize,
    waiting_max: usize,
    patience: Duration,
    refused_max: u32,
    strangers: Mutex<HashMap<IpAddr, Arc<Places>>>,
    refused: Mutex<(Option<Instant>, HashMap<IpAddr, u32>)>,
}

/// What one address has.
struct Places {
    open: Arc<Semaphore>,
    /// Those that wait for one.
    line: Semaphore,
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
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Stranger {
    fn leave(&self) {
        let Some(place) = lock(&self.place).take() else { return };
        let mut strangers = lock(&self.peers.strangers);
        drop(place);
        let is_unused = |places: &Arc<Places>| {
            Arc::strong_count(places) == 1
                && places.open.available_permits() == self.peers.strangers_max
        };
        if strangers.get(&self.network).is_some_and(is_unused) {
            strangers.remove(&self.network);
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
            waiting_max: limits.waiting_per_address,
            patience: limits.head_within,
            refused_max: limits.refused_tokens_per_second,
            strangers: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Lets a socket in. Where its address has too many that nobody knows it waits for a place, not
    /// yet read from: clients that come back all together are patient, but give up when refused.
    pub async fn admit(self: &Arc<Self>, address: SocketAddr, trusted: &[Network]) -> Option<Peer> {
        let network = network(address.ip());
        // Behind a proxy many share an address.
        let place = match trusted.iter().any(|proxies| proxies.contains(address.ip())) {
            true => None,
            false => Some(self.place(network).await?),
        };
        let stranger =
            Arc::new(Stranger { network, peers: self.clone(), place: Mutex::new(place) });
        Some(Peer { address, stranger })
    }

    async fn place(&self, network: IpAddr) -> Option<OwnedSemaphorePermit> {
        let places = {
            let mut strangers = lock(&self.strangers);
            let places = strangers.entry(network).or_insert_with(|| {
                let open = Arc::new(Semaphore::new(self.strangers_max));
                Arc::new(Places { open, line: Semaphore::new(self.waiting_max) })
            });
            places.clone()
        };
        if let Ok(place) = places.open.clone().try_acquire_owned() {
            return Some(place);
        }
        let _waiting = places.line.try_acquire().ok()?;
        let place = places.open.clone().acquire_owned();
        tokio::time::timeout(self.patience, place).await.ok()?.ok()
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

/// Whether the other end of the socket is a proxy that is believed.
pub fn is_trusted(request: &Parts, settings: &HubSettings) -> bool {
    let peer = request.extensions.get::<Peer>().map(|peer| peer.address.ip());
    let trusted = |peer| settings.trusted_proxies.iter().any(|proxies| proxies.contains(peer));
    peer.is_some_and(trusted) || planted(&settings.limits, Planted::TrustsForwarded)
}

/// The client's address. What proxies say is believed as far as they are trusted: each adds its
/// peer at the end, so that only what stands behind the last untrusted address was written by them.
pub fn address(request: &Parts, settings: &HubSettings) -> IpAddr {
    let peer = request.extensions.get::<Peer>();
    let mut found =
        peer.map_or(Ipv4Addr::UNSPECIFIED.into(), |peer| peer.address.ip().to_canonical());
    if !is_trusted(request, settings) {
        return found;
    }
    let named = request.headers.get_all("x-forwarded-for").iter();
    let named = named.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    for name in named.collect::<Vec<_>>().into_iter().rev() {
        let Some(address) = parse(name.trim()) else { break };
        found = address;
        if !settings.trusted_proxies.iter().any(|proxies| proxies.contains(found)) {
            break;
        }
    }
    found
}

/// Some proxies write the port too.
fn parse(name: &str) -> Option<IpAddr> {
    let with_port = || name.parse::<SocketAddr>().ok().map(|address| address.ip());
    name.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

/// Whether a request certainly comes from this machine: a proxy beside us would make everybody's look
/// like that.
pub fn is_of_this_machine(request: &Parts, limits: &Limits) -> bool {
    let forwarded = !planted(limits, Planted::PeerIsLoopback)
        && request.headers.keys().any(|name| {
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

    async fn request(peers: &Arc<Peers>, peer: &str, forwarded: Option<&str>) -> Parts {
        let mut request = axum::http::Request::new(()).into_parts().0;
        let peer = peers.admit(SocketAddr::new(peer.parse().unwrap(), 1), &[]).await.unwrap();
        request.extensions.insert(peer);
        if let Some(forwarded) = forwarded {
            request.headers.insert("x-forwarded-for", forwarded.parse().unwrap());
        }
        request
    }

    #[tokio::test]
    async fn forwarded_addresses_are_believed_from_trusted_proxies_alone() {
        let peers = Peers::new(&Limits::default());
        let mut settings = HubSettings::default();
        settings.trusted_proxies =
            ["10.0.0.1", "10.0.2.0/24"].map(|text| text.parse().unwrap()).into();
        for (peer, forwarded, expected) in [
            ("192.0.2.7", Some("198.51.100.1"), "192.0.2.7"),
            ("10.0.0.1", Some("198.51.100.1"), "198.51.100.1"),
            ("10.0.0.1", Some("198.51.100.9, 198.51.100.1, 10.0.2.2"), "198.51.100.1"),
            // What a client has written itself stands in front, and hides nothing.
            ("10.0.0.1", Some("nonsense, 198.51.100.1"), "198.51.100.1"),
            ("10.0.0.1", Some("nonsense"), "10.0.0.1"),
            ("10.0.0.1", Some("198.51.100.1:4711"), "198.51.100.1"),
            ("10.0.0.1", Some("[2001:db8::1]:4711"), "2001:db8::1"),
            ("10.0.0.1", None, "10.0.0.1"),
            ("::ffff:10.0.0.1", Some("198.51.100.1"), "198.51.100.1"),
        ] {
            let found = address(&request(&peers, peer, forwarded).await, &settings);
            assert_eq!(found.to_string(), expected, "{peer} {forwarded:?}");
        }
    }

    #[tokio::test]
    async fn a_proxy_on_this_machine_is_not_this_machine() {
        let (limits, peers) = (Limits::default(), Peers::new(&Limits::default()));
        for (peer, forwarded, is) in [
            ("127.0.0.1", None, true),
            ("::1", None, true),
            ("127.0.0.1", Some("198.51.100.1"), false),
            ("192.0.2.7", None, false),
        ] {
            let request = request(&peers, peer, forwarded).await;
            assert_eq!(is_of_this_machine(&request, &limits), is, "{peer} {forwarded:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_of_one_address_are_bounded_and_known_ones_do_not_count() {
        let limits =
            Limits { strangers_per_address: 2, waiting_per_address: 1, ..Limits::default() };
        let peers = Peers::new(&limits);
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 1);
        let one = peers.admit(address("192.0.2.7"), &[]).await.unwrap();
        let other = peers.admit(address("192.0.2.7"), &[]).await.unwrap();
        // Waited for, in vain.
        assert!(peers.admit(address("192.0.2.7"), &[]).await.is_none());
        assert!(peers.admit(address("192.0.2.8"), &[]).await.is_some());
        one.is_known();
        one.is_known();
        let third = peers.admit(address("192.0.2.7"), &[]).await.unwrap();
        // One waits until another is known; a second that would wait is refused at once.
        let waiting = peers.admit(address("192.0.2.7"), &[]);
        let refused = async {
            tokio::task::yield_now().await;
            let refused = peers.admit(address("192.0.2.7"), &[]).await.is_none();
            third.is_known();
            refused
        };
        let (fourth, refused) = tokio::join!(waiting, refused);
        assert!(refused);
        drop((other, third, fourth.unwrap()));
        assert!(lock(&peers.strangers).get(&network(address("192.0.2.7").ip())).is_none());
        // One network of version 6 counts as one address.
        let _held = peers.admit(address("2001:db8::1"), &[]).await.unwrap();
        let _held = peers.admit(address("2001:db8::2"), &[]).await.unwrap();
        assert!(peers.admit(address("2001:db8::3"), &[]).await.is_none());
    }
}
