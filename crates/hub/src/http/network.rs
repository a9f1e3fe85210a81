//! A range of addresses, such as those of a company's proxies.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// `10.0.0.7`, or `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// Leading bits that count.
    bits: u32,
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(other)) => {
                let different = ours.to_bits() ^ other.to_bits();
                different.leading_zeros() >= self.bits
            }
            (IpAddr::V6(ours), IpAddr::V6(other)) => {
                let different = ours.to_bits() ^ other.to_bits();
                different.leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for Network {
    /// One address alone.
    fn from(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Network { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither an address nor a network such as 10.0.0.0/8");
        let (address, bits) = match text.split_once('/') {
            None => (text, None),
            Some((address, bits)) => (address, Some(bits.parse::<u32>().map_err(|_| wrong())?)),
        };
        let whole = Network::from(address.parse::<IpAddr>().map_err(|_| wrong())?);
        match bits {
            None => Ok(whole),
            Some(bits) if bits <= whole.bits => Ok(Network { bits, ..whole }),
            Some(_) => Err(wrong()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_has_its_own_addresses_and_no_others() {
        let has = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(has("10.0.0.7", "10.0.0.7") && has("10.0.0.7", "::ffff:10.0.0.7"));
        assert!(!has("10.0.0.7", "10.0.0.8") && !has("10.0.0.7", "::1"));
        assert!(has("10.1.0.0/16", "10.1.255.3") && !has("10.1.0.0/16", "10.2.0.1"));
        assert!(has("0.0.0.0/0", "192.0.2.1") && !has("0.0.0.0/0", "2001:db8::1"));
        assert!(has("2001:db8::/32", "2001:db8:7::1") && !has("2001:db8::/32", "2001:db9::1"));
        for bad in ["", "10.0.0", "10.0.0.0/33", "::1/129", "10.0.0.0/x", "proxy"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
