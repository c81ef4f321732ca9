//! Where clients come from: networks as flags name them, and the client behind a proxy. Called by `http`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// An address, or a network such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    /// How many of its first bits count.
    bits: u32,
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differing = (own.to_bits() ^ other.to_bits()).leading_zeros();
                differing >= self.bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differing = (own.to_bits() ^ other.to_bits()).leading_zeros();
                differing >= self.bits
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "must be an IP address, or a network such as 10.0.0.0/8";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| WRONG)?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| WRONG)?.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits <= most { Ok(Self { address, bits }) } else { Err(WRONG) }
    }
}

/// What one client has: an address of IPv4, or the 64 bits of IPv6 that an access provider gives to a customer.
pub fn holder(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The client of a connection from `peer`. Behind proxies that are trusted it is the last address of the header
/// `x-forwarded-for` that is not one of theirs: what stands before it, the client may have written itself.
pub fn client<'a>(
    peer: IpAddr,
    proxies: &[Network],
    forwarded_for: impl DoubleEndedIterator<Item = &'a [u8]>,
) -> IpAddr {
    let is_trusted = |address| proxies.iter().any(|network| network.contains(address));
    let mut client = peer.to_canonical();
    let mut entries = forwarded_for.rev().flat_map(|line| line.rsplit(|&byte| byte == b','));
    while is_trusted(client) {
        match entries.next().map(parse) {
            Some(Some(before)) => client = before,
            // A proxy that says nothing, or nonsense, answers for it.
            Some(None) | None => break,
        }
    }
    client
}

/// An address as proxies write it, some with a port.
fn parse(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_network_holds_the_addresses_that_begin_like_it() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.168.1.7", "192.168.1.7", "192.168.1.6"),
            ("0.0.0.0/0", "1.2.3.4", "::1"),
            ("fd00::/8", "fd12::1", "fe80::1"),
            ("127.0.0.0/31", "::ffff:127.0.0.1", "127.0.0.2"),
        ] {
            let network: Network = network.parse().expect("a network");
            assert!(network.contains(address(inside)), "{network:?}");
            assert!(!network.contains(address(outside)), "{network:?}");
        }
        for bad in ["", "proxy", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::/129", "10.0.0.0/-1"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_customer_of_ipv6_is_one_holder() {
        assert_eq!(holder(address("2001:db8:1:2:3:4:5:6")), holder(address("2001:db8:1:2:9::")));
        assert_ne!(holder(address("2001:db8:1:2::1")), holder(address("2001:db8:1:3::1")));
        assert_eq!(holder(address("::ffff:10.0.0.1")), address("10.0.0.1"));
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let proxies = ["10.0.0.0/8".parse().expect("a network")];
        for (peer, lines, expected) in [
            ("203.0.113.5", vec!["198.51.100.1"], "203.0.113.5"),
            ("10.0.0.1", vec!["198.51.100.1"], "198.51.100.1"),
            ("10.0.0.1", vec!["1.2.3.4, 198.51.100.1, 10.0.0.2"], "198.51.100.1"),
            ("10.0.0.1", vec!["1.2.3.4", "198.51.100.1:4711"], "198.51.100.1"),
            ("10.0.0.1", vec!["[2001:db8::1]:80"], "2001:db8::1"),
            ("10.0.0.1", vec!["[2001:db8::1]"], "2001:db8::1"),
            ("10.0.0.1", vec!["1.2.3.4, unknown"], "10.0.0.1"),
            ("10.0.0.1", vec![], "10.0.0.1"),
            ("10.0.0.1", vec!["10.0.0.3"], "10.0.0.3"),
        ] {
            let found = client(address(peer), &proxies, lines.iter().map(|line| line.as_bytes()));
            assert_eq!(found, address(expected), "{peer} {lines:?}");
        }
    }

    proptest! {
        /// Whatever a client writes, the address that the trusted proxy saw is believed.
        #[test]
        fn no_header_hides_a_client(lines in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4)) {
            let proxies = ["10.0.0.1".parse().expect("an address")];
            let seen = b"198.51.100.1".as_slice();
            let all = lines.iter().map(Vec::as_slice).chain([seen]);
            prop_assert_eq!(client(address("10.0.0.1"), &proxies, all), address("198.51.100.1"));
            let all = lines.iter().map(Vec::as_slice);
            prop_assert_eq!(client(address("198.51.100.1"), &proxies, all), address("198.51.100.1"));
        }
    }
}
