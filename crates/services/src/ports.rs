//! Free ports on loopback.
//!
//! They lie below the range from which the kernel takes the ports of outgoing connections. Inside
//! it, a port would be lost while its service is down: another connection may get it, and a client
//! that keeps connecting to it sooner or later connects to itself.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// The lowest port taken: below it live services that people know by number.
const LOWEST: u16 = 10_000;
/// How often another port is tried before the machine counts as full.
const TRIES_MAX: usize = 1_000;
/// How often a service is started anew because its port was taken meanwhile.
const STARTS_MAX: usize = 3;

/// A free port, given to nobody else in this process.
pub fn free() -> Result<u16> {
    free_listener().map(|(port, _)| port)
}

/// The same, with the listener that found it.
pub fn free_listener() -> Result<(u16, TcpListener)> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    let chance = RandomState::new();
    let range = first_outgoing().saturating_sub(LOWEST);
    for attempt in 0..TRIES_MAX {
        let port = match range {
            0 => 0,
            range => LOWEST + (chance.hash_one(attempt) % u64::from(range)) as u16,
        };
        let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else { continue };
        let port = listener.local_addr().context("a listener has an address")?.port();
        if given.insert(port) {
            return Ok((port, listener));
        }
    }
    bail!("no free port on loopback after {TRIES_MAX} tries")
}

/// Whether a service may take `port` now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Where the kernel's own ports begin.
fn first_outgoing() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

/// Calls `start` with `wanted`, or with a free port: another one where a stranger took it between
/// our look and the service's own.
pub fn with_free<T>(wanted: Option<u16>, mut start: impl FnMut(u16) -> Result<T>) -> Result<T> {
    let mut tries = STARTS_MAX;
    loop {
        tries -= 1;
        let port = wanted.map_or_else(free, Ok)?;
        match start(port) {
            Err(error) if wanted.is_none() && tries > 0 && is_taken(&error) => {}
            result => return result,
        }
    }
}

fn is_taken(error: &anyhow::Error) -> bool {
    mentions_taken(&format!("{error:#}"))
}

/// Whether a service did not start because of its port; the words are those of the services.
pub fn mentions_taken(said: &str) -> bool {
    let said = said.to_lowercase();
    said.contains("address already in use") || said.contains("address in use")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_are_free_and_differ() {
        let ports: Vec<_> = (0..50).map(|_| free().unwrap()).collect();
        let different: HashSet<_> = ports.iter().collect();
        assert_eq!(different.len(), ports.len());
        assert!(ports.iter().all(|port| *port >= LOWEST && *port < first_outgoing()));
        let (port, listener) = free_listener().unwrap();
        assert!(!is_free(port));
        drop(listener);
        assert!(is_free(port));
    }

    #[test]
    fn a_port_taken_meanwhile_is_replaced_by_another() {
        let mut tried = Vec::new();
        let started = with_free(None, |port| {
            tried.push(port);
            anyhow::ensure!(tried.len() > 1, "could not bind: Address already in use");
            Ok(port)
        });
        assert_eq!(started.unwrap(), tried[1]);
        assert_ne!(tried[0], tried[1]);
        // One that was asked for is not replaced, and other failures are not tried again.
        assert!(with_free(Some(1), |_| -> Result<()> { bail!("Address already in use") }).is_err());
        let mut tries = 0;
        let failed = with_free(None, |_| -> Result<()> {
            tries += 1;
            bail!("disk full")
        });
        assert!(failed.is_err());
        assert_eq!(tries, 1);
    }
}
