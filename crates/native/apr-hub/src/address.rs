//! Which addresses a redirect may lead to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Message of resolver errors for a rejected address.
pub(crate) const REFUSED: &str = "a redirect leads to a private address";

/// Permitted targets of redirects from one server to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Public addresses.
    Public,
    /// Private networks as well, since the user named a server in one. Link-local addresses, where
    /// clouds keep the credentials of their machines, stay forbidden.
    Private,
}

impl Reach {
    fn refuses(self, address: IpAddr) -> bool {
        is_of_the_link(address) || self == Self::Public && is_private(address)
    }

    /// Returns `true` if a URL's host is written as a rejected address. Makes no name lookup.
    pub(crate) fn refuses_literal(self, uri: &Uri) -> bool {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        self == Self::Public && is_local_name(host)
            || host.parse::<IpAddr>().is_ok_and(|address| self.refuses(address))
    }
}

/// Resolves names to addresses within reach, and refuses others.
///
/// The addresses that are checked are the ones that are connected to: a name that means another
/// machine a moment later gains nothing.
pub(crate) struct Within(pub(crate) Reach, DefaultResolver);

impl Within {
    pub(crate) fn new(reach: Reach) -> Self {
        Self(reach, DefaultResolver::default())
    }
}

impl fmt::Debug for Within {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Within").field(&self.0).finish()
    }
}

impl Resolver for Within {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.1.resolve(uri, config, timeout)?;

        // One is enough: which of them is connected to is not known here.
        if found.iter().any(|address| self.0.refuses(address.ip())) {
            return Err(ureq::Error::Io(std::io::Error::new(
                std::io::ErrorKind::PermissionDenied,
                REFUSED,
            )));
        }
        Ok(found)
    }
}

/// Returns `true` if a URL's host is this machine or part of a private network; `false` if the name
/// can't be resolved.
pub(crate) fn is_private_host(uri: &Uri) -> bool {
    let Some(host) = uri.host() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return is_private(address);
    }
    let port = uri.port_u16().unwrap_or(443);
    (host, port)
        .to_socket_addrs()
        .is_ok_and(|mut found| found.any(|address| is_private(address.ip())))
}

/// Returns `true` if a host is written as a private address. Makes no name lookup.
pub(crate) fn is_private_literal(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    is_local_name(host) || host.parse::<IpAddr>().is_ok_and(is_private)
}

/// Returns `true` if a host is this machine, judged by its name or address alone.
pub(crate) fn is_loopback(uri: &Uri) -> bool {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    is_local_name(host)
        || host.parse::<IpAddr>().is_ok_and(|address| unmapped(address).is_loopback())
}

fn is_local_name(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost")
}

/// Returns `true` if an address is not part of the public Internet.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match unmapped(address) {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

/// Converts an IPv4 address that is written as an IPv6 one.
fn unmapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

/// Networks whose addresses are not public, with the length of their prefix (IANA's registry of
/// special IPv4 addresses).
const PRIVATE_V4: [(Ipv4Addr, u32); 14] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    // Shared by the customers of a provider.
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Returns `true` for link-local addresses (169.254.0.0/16, fe80::/10) and for the other addresses
/// at which clouds serve credentials.
fn is_of_the_link(address: IpAddr) -> bool {
    const CREDENTIALS: [IpAddr; 2] = [
        // Amazon's over IPv6, Alibaba's.
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
        IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    ];
    let address = unmapped(address);
    let of_link = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    of_link || CREDENTIALS.contains(&address)
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let network = |address: Ipv4Addr, prefix: u32| address.to_bits() >> (u32::BITS - prefix);
    PRIVATE_V4.iter().any(|&(start, prefix)| network(address, prefix) == network(start, prefix))
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    let first = address.segments()[0];
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        // Local to a site or a link.
        || first & 0xfe00 == 0xfc00
        || first & 0xffc0 == 0xfe80
        // An IPv4 address inside, which may be any: 64:ff9b::/96 and 2002::/16.
        || address.segments()[..2] == [0x64, 0xff9b]
        || first == 0x2002
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_known_however_they_are_written() {
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "::",
            "224.0.0.1",
            "255.255.255.255",
            "2002:a00:1::",
        ] {
            assert!(is_private(address.parse().expect(address)), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "100.128.0.1"]
        {
            assert!(!is_private(address.parse().expect(address)), "{address}");
        }
    }

    #[test]
    fn addresses_of_the_link_are_never_within_reach() {
        for host in [
            "169.254.169.254",
            "[fe80::1]",
            "[::ffff:169.254.1.1]",
            "100.100.100.200",
            "[fd00:ec2::254]",
        ] {
            let uri = format!("https://{host}/latest").parse().expect(host);
            assert!(Reach::Private.refuses_literal(&uri), "{host}");
            assert!(Reach::Public.refuses_literal(&uri), "{host}");
        }
        for host in ["127.0.0.1", "10.0.0.1", "[::1]", "localhost"] {
            let uri = format!("https://{host}/x").parse().expect(host);
            assert!(!Reach::Private.refuses_literal(&uri), "{host}");
            assert!(Reach::Public.refuses_literal(&uri), "{host}");
        }
    }

    #[test]
    fn loopback_is_known_by_its_names() {
        for (url, expected) in [
            ("http://localhost:1/x", true),
            ("http://127.0.0.1/x", true),
            ("http://[::1]:80/", true),
            ("http://localhost.example/", false),
            ("http://10.0.0.1/", false),
        ] {
            assert_eq!(is_loopback(&url.parse().expect(url)), expected, "{url}");
        }
    }
}
