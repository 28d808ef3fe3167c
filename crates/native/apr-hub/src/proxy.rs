//! Which proxy a request goes through, as curl and Python's clients understand the environment.

use std::net::IpAddr;

use apr_core::{Error, IoCause, Result};
use ureq::Proxy;
use ureq::http::Uri;

use crate::location::shown_url;
use crate::settings::variable;

/// Protocols of proxies that can be spoken.
const SPOKEN: [&str; 2] = ["http", "https"];

/// The proxies of the environment.
#[derive(Debug)]
pub(crate) struct Proxies {
    https: Option<Named>,
    http: Option<Named>,
    /// Servers that are contacted without a proxy: the entries of `NO_PROXY`.
    exempt: Vec<String>,
}

/// A proxy, and the variable that names it.
#[derive(Debug)]
pub(crate) struct Named {
    variable: &'static str,
    url: String,
}

impl Proxies {
    /// The proxy of each scheme: of `HTTPS_PROXY` or `HTTP_PROXY`, otherwise of `ALL_PROXY`; names
    /// in small letters come first.
    pub(crate) fn from_env() -> Self {
        let first = |names: [&'static str; 4]| {
            names.into_iter().find_map(|name| {
                let url = variable(name)?.trim().to_owned();
                (!url.is_empty()).then_some(Named { variable: name, url })
            })
        };
        let exempt = variable("no_proxy").or_else(|| variable("NO_PROXY")).unwrap_or_default();
        Self {
            https: first(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            http: first(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
            exempt: exempt
                .split(',')
                .map(|entry| entry.trim().to_ascii_lowercase())
                .filter(|entry| !entry.is_empty())
                .collect(),
        }
    }

    /// Returns the proxy for an address, or `None` if no proxy applies.
    pub(crate) fn of(&self, uri: &Uri) -> Option<&Named> {
        let named = if uri.scheme_str() == Some("https") { &self.https } else { &self.http };
        named.as_ref().filter(|_| !self.exempt.iter().any(|entry| matches(entry, uri)))
    }
}

impl Named {
    /// # Errors
    /// E007 for what is no proxy that can be spoken to.
    pub(crate) fn proxy(&self) -> Result<Proxy> {
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        let is_spoken = scheme.is_none_or(|scheme| SPOKEN.contains(&scheme.as_str()));
        let proxy = Proxy::new(&self.url).ok().filter(|_| is_spoken);
        proxy.ok_or_else(|| {
            let message = format!(
                "{} is '{}': only http:// and https:// proxies are supported",
                self.variable,
                shown_url(&self.url)
            );
            Error::io(IoCause::Other, message)
        })
    }

    /// Adds the name of the proxy to the error of a request through it.
    pub(crate) fn named(&self, error: &Error) -> Error {
        let (variable, url) = (self.variable, shown_url(&self.url));
        let url = url.trim_end_matches('/');
        let message = format!("{} (through the proxy {url} of {variable})", error.message());
        let named = Error::io(error.cause().unwrap_or(IoCause::Other), message);
        match error.file() {
            Some(file) => named.in_file(file),
            None => named,
        }
    }
}

/// Returns `true` if an entry of `NO_PROXY` matches a server.
///
/// `*` matches all servers, a name matches itself and its subdomains, and an address or a network
/// (`10.0.0.0/8`) matches its addresses. Each may have a port.
fn matches(entry: &str, uri: &Uri) -> bool {
    if entry == "*" {
        return true;
    }
    let host = uri.host().unwrap_or_default().to_ascii_lowercase();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(address) = host.parse::<IpAddr>() {
        return is_within(entry, address) || split_port(entry, uri).is_some_and(|it| it == host);
    }
    let Some(name) = split_port(entry, uri) else { return false };
    let name = name.trim_start_matches("*.").trim_start_matches('.');
    host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns an entry without its port, or `None` if the address has another port.
fn split_port<'a>(entry: &'a str, uri: &Uri) -> Option<&'a str> {
    let plain = |text: &'a str| text.trim_start_matches('[').trim_end_matches(']');
    match entry.rsplit_once(':') {
        // An IPv6 address has colons of its own.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            let own = uri.port_u16().or(match uri.scheme_str() {
                Some("https") => Some(443),
                _ => Some(80),
            });
            (port.parse().ok() == own).then(|| plain(name))
        }
        _ => Some(plain(entry)),
    }
}

fn is_within(entry: &str, address: IpAddr) -> bool {
    let Some((network, bits)) = entry.split_once('/') else { return false };
    let Ok(bits) = bits.parse::<u32>() else { return false };
    let shifted =
        |value: u128, width: u32| value.checked_shr(width.saturating_sub(bits)).unwrap_or(0);
    match (network.parse(), address) {
        (Ok(IpAddr::V4(network)), IpAddr::V4(address)) => {
            let (network, address) = (network.to_bits().into(), address.to_bits().into());
            bits <= 32 && shifted(network, 32) == shifted(address, 32)
        }
        (Ok(IpAddr::V6(network)), IpAddr::V6(address)) => {
            bits <= 128 && shifted(network.to_bits(), 128) == shifted(address.to_bits(), 128)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exempt_servers_are_matched_as_curl_matches_them() {
        let cases = [
            ("*", "https://a.example", true),
            ("example", "https://a.example/x", true),
            (".example", "https://a.example", true),
            ("*.example", "https://a.example", true),
            ("ample", "https://a.example", false),
            ("a.example:443", "https://A.example", true),
            ("a.example:80", "https://a.example", false),
            ("127.0.0.1", "http://127.0.0.1:81", true),
            ("127.0.0.1:80", "http://127.0.0.1:81", false),
            ("10.0.0.0/8", "http://10.1.2.3", true),
            ("10.0.0.0/8", "http://11.1.2.3", false),
            ("0.0.0.0/0", "http://11.1.2.3", true),
            ("::1", "http://[::1]:5", true),
            ("fd00::/8", "http://[fd12::1]", true),
            ("10.0.0.0/99", "http://10.0.0.0", false),
        ];
        for (entry, url, expected) in cases {
            assert_eq!(matches(entry, &url.parse().expect(url)), expected, "{entry} {url}");
        }
    }

    #[test]
    fn an_unusable_proxy_is_rejected_without_showing_its_password() {
        let named = |url: &str| Named { variable: "ALL_PROXY", url: url.to_owned() };
        for url in ["http://proxy:3128", "https://user:pass@proxy", "proxy:3128"] {
            assert!(named(url).proxy().is_ok(), "{url}");
        }
        for url in ["socks5://user:secret@proxy:1080", "socks5h://proxy", "http://"] {
            let error = named(url).proxy().expect_err(url);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
