//! Requests: where redirects may lead, who gets the token, and how often something is tried again.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use apr_core::{Error, IoCause, Result};
use ureq::http::{HeaderMap, Uri};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, RequestBuilder, SendBody};

use crate::address::{self, Reach, Within};
use crate::answer::{Answer, Pace, cut};
use crate::headers::text;
use crate::location::shown_url;
use crate::proxy::{Named, Proxies};
use crate::retry::{Patience, Trouble};
use crate::settings::{Settings, Token};
use crate::tls;

/// Redirects that are followed before the answer is given up.
const MOST_REDIRECTS: usize = 8;

/// Maximum time for establishing a connection.
const CONNECT: Duration = Duration::from_secs(15);

/// Connections that are kept for the next request.
const IDLE: usize = 32;

/// A request to a server.
#[derive(Clone, Default)]
pub(crate) struct Ask<'a> {
    pub(crate) url: &'a str,
    pub(crate) range: Option<Range<u64>>,
    /// The state of the file that the range is meant to be of.
    pub(crate) if_range: Option<&'a str>,
    pub(crate) token: Option<&'a Token>,
    /// Address that redirected to `url`: the one that the user named, and that the token is for.
    pub(crate) origin: Option<&'a str>,
    /// Callback that receives the address on another server before that server is contacted.
    pub(crate) found: Option<&'a dyn Fn(String)>,
    /// What is sent; `None` to fetch.
    pub(crate) delivery: Option<&'a Delivery<'a>>,
}

/// A body that is sent to a server.
pub(crate) struct Delivery<'a> {
    pub(crate) method: Method,
    pub(crate) headers: Vec<(&'a str, &'a str)>,
    /// Bytes of the body.
    pub(crate) len: u64,
    pub(crate) body: &'a dyn OpenBody,
    /// `true` if the request may be repeated when its answer was lost.
    pub(crate) is_repeatable: bool,
}

/// A body that is opened for each try.
pub(crate) trait OpenBody {
    fn open(&self) -> Result<Box<dyn Read + '_>>;
}

impl OpenBody for &[u8] {
    fn open(&self) -> Result<Box<dyn Read + '_>> {
        Ok(Box::new(*self))
    }
}

/// How a body is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Post,
    Put,
}

/// Makes requests.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) settings: Settings,
    /// Agent for addresses that the user named, and for addresses that a private one redirects to.
    any: OnceLock<Agent>,
    /// Agent for connections without encryption, which does not read the system's certificates.
    plain: OnceLock<Agent>,
    /// Agent for addresses that a public server redirects to.
    public: OnceLock<Agent>,
    /// Agent for addresses that a server in a private network redirects to.
    private_too: OnceLock<Agent>,
    /// Hosts that the user named, and whether they are private.
    private: Mutex<HashMap<String, bool>>,
    proxies: Proxies,
    /// Servers, by scheme, host and port, that are known to send ranges of files.
    ranged: Mutex<HashSet<String>>,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Client {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            any: OnceLock::new(),
            plain: OnceLock::new(),
            public: OnceLock::new(),
            private_too: OnceLock::new(),
            private: Mutex::default(),
            proxies: Proxies::from_env(),
            ranged: Mutex::default(),
            requests: 0.into(),
            bytes: 0.into(),
        }
    }

    /// Requests made, and bytes of bodies received.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Adds to the number of received bytes.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Returns the whole body of an answer with status 200, or 200 to 299 for a delivery, of at
    /// most `limit` bytes. The answer with another status is given to `other`.
    pub(crate) fn read(
        &self,
        ask: &Ask<'_>,
        limit: u64,
        other: impl Fn(Answer) -> Error,
    ) -> Result<(Vec<u8>, HeaderMap)> {
        let mut patience = Patience::new(&self.settings.interrupt);
        loop {
            let trouble = match self.ask_once(ask) {
                Ok(answer) if ask.is_fulfilled_by(answer.status) => {
                    let headers = answer.first.clone();
                    match self.read_all(answer, limit) {
                        Ok(bytes) => return Ok((bytes, headers)),
                        Err(trouble) => trouble,
                    }
                }
                Ok(answer) => return Err(other(answer)),
                Err(trouble) => trouble,
            };
            let is_repeatable = ask.delivery.is_none_or(|delivery| delivery.is_repeatable);
            patience.wait(if is_repeatable { trouble } else { trouble.without_repetition() })?;
        }
    }

    /// The whole body of an answer, of at most `limit` bytes.
    ///
    /// # Errors
    /// Those of [`Answer::read`], and E008 where it is longer.
    pub(crate) fn read_all(&self, mut answer: Answer, limit: u64) -> Result<Vec<u8>, Trouble> {
        let stated = answer.body.content_length();
        let (mut bytes, mut piece) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            let read = answer.read(self, &mut piece)?;
            if read == 0 {
                break;
            }
            bytes.extend_from_slice(&piece[..read]);
            if bytes.len() as u64 > limit {
                let message = format!("the server's answer is longer than {limit} bytes");
                let error = Error::memory(message).in_file(shown_url(&answer.url));
                return Err(Trouble::Final(error));
            }
        }

        if stated.is_some_and(|stated| stated > bytes.len() as u64) {
            return Err(Trouble::Passing(cut(&answer.url)));
        }
        Ok(bytes)
    }

    /// Notes that the server of an address sends ranges of files.
    pub(crate) fn learn_ranges(&self, url: &str) {
        let mut ranged = self.ranged.lock().unwrap_or_else(PoisonError::into_inner);
        ranged.extend(server_of(url));
    }

    /// Returns `true` if the server of an address is known to support range requests, or to
    /// redirect to one that does.
    pub(crate) fn has_ranges(&self, url: &str) -> bool {
        let ranged = self.ranged.lock().unwrap_or_else(PoisonError::into_inner);
        server_of(url).is_some_and(|server| ranged.contains(&server))
    }

    /// Returns the error for a response that ended early.
    pub(crate) fn cut_by(&self, error: &std::io::Error, url: &str) -> Error {
        let timed_out = error.get_ref().is_some_and(|inner| inner.to_string().contains("timeout"));
        if timed_out || error.kind() == ErrorKind::TimedOut {
            let message = format!("the server stopped responding{}", self.patience());
            return Error::io(IoCause::Network, message).in_file(shown_url(url));
        }
        cut(url)
    }

    /// Returns the end of a message that states the timeout of a silent server.
    fn patience(&self) -> String {
        let seconds = self.settings.timeout.as_secs();
        format!(" for {seconds} s; `timeout` SECONDS waits longer")
    }

    /// Sends one request, and follows redirects.
    pub(crate) fn ask_once(&self, ask: &Ask<'_>) -> Result<Answer, Trouble> {
        if self.settings.offline {
            let message = "network access in offline mode (HF_HUB_OFFLINE or `offline`)";
            return Err(Trouble::Final(
                Error::io(IoCause::Other, message).in_file(shown_url(ask.url)),
            ));
        }

        let start = parse(ask.origin.unwrap_or(ask.url))?;
        let mut uri = parse(ask.url)?;
        let mut first = None;

        // The token is for the server that the user named, and not for one that it led to.
        let mut token = ask.token.filter(|_| authority(&uri) == authority(&start));
        for _ in 0..=MOST_REDIRECTS {
            self.check_scheme(&uri)?;
            let answer = self.send(&uri, &start, ask, token)?;
            let target = match answer.status {
                301 | 302 | 303 | 307 | 308 => text(answer.headers(), "location"),
                _ => None,
            };
            let is_kept = matches!(answer.status, 307 | 308);
            let Some(target) = target else {
                let first = first.unwrap_or_else(|| answer.headers().clone());
                return self.finished(answer, uri.to_string(), first);
            };
            let next = join(&uri, target)
                .map_err(|error| Trouble::Final(error.in_file(shown_url(ask.url))))?;
            check_redirect(&uri, &next, self.settings.insecure)?;
            if ask.delivery.is_some() && !(is_kept && authority(&next) == authority(&uri)) {
                let message = "the server redirects what is sent to it";
                return Err(Trouble::Final(refused(message, &next)));
            }
            if authority(&next) != authority(&uri) {
                first.get_or_insert_with(|| answer.headers().clone());
                if let Some(found) = ask.found {
                    found(next.to_string());
                }
                // Once it has left the server that it is for, it does not come back either.
                token = None;
            }

            uri = next;
        }

        let message = format!("the server redirects more than {MOST_REDIRECTS} times");
        Err(Trouble::Final(Error::io(IoCause::Other, message).in_file(shown_url(ask.url))))
    }

    fn finished(
        &self,
        answer: RawAnswer,
        url: String,
        first: HeaderMap,
    ) -> Result<Answer, Trouble> {
        let RawAnswer { status, headers, body } = answer;
        if !text(&headers, "content-encoding")
            .is_none_or(|encoding| encoding.eq_ignore_ascii_case("identity"))
        {
            let message = "the server compresses its answers despite the request not to";
            return Err(Trouble::Final(
                Error::io(IoCause::Other, message).in_file(shown_url(&url)),
            ));
        }
        let pace = Pace::new(self);
        Ok(Answer { status, headers, first, body, url, pace })
    }

    fn check_scheme(&self, uri: &Uri) -> Result<(), Trouble> {
        let refuse = |message: &str| Err(Trouble::Final(refused(message, uri)));
        match uri.scheme_str() {
            Some("https") => tls::lacking().map_or(Ok(()), refuse),
            Some("http") if address::is_loopback(uri) || self.settings.insecure => Ok(()),
            Some("http") => refuse("http is not encrypted; use https, or allow it with `insecure`"),
            _ => refuse("unsupported protocol: expected https or http"),
        }
    }

    fn send(
        &self,
        uri: &Uri,
        start: &Uri,
        ask: &Ask<'_>,
        token: Option<&Token>,
    ) -> Result<RawAnswer, Trouble> {
        // The server that the user named may be anywhere; where it leads to is judged.
        let reach =
            (authority(uri) != authority(start)).then(|| match self.may_be_private(start) {
                true => Reach::Private,
                false => Reach::Public,
            });
        if reach.is_some_and(|reach| reach.refuses_literal(uri)) {
            return Err(Trouble::Final(refused(address::REFUSED, uri)));
        }

        let named = self.proxies.of(uri);
        let agent = match (reach, uri.scheme_str()) {
            // It is the proxy that looks the name up, and its own address is nobody's redirect.
            _ if named.is_some() => self.any(),
            (Some(reach), _) => self.within(reach),
            (None, Some("http")) => Ok(self.plain()),
            (None, _) => self.any(),
        };
        let agent = agent.map_err(Trouble::Final)?;

        let proxy = named.map(Named::proxy).transpose().map_err(Trouble::Final)?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = match ask.delivery {
            None => {
                let request = agent.get(uri.clone()).config().proxy(proxy).build();
                with_headers(request, ask, token).call()
            }
            Some(delivery) => {
                let request = match delivery.method {
                    Method::Post => agent.post(uri.clone()),
                    Method::Put => agent.put(uri.clone()),
                };
                let mut request = request.config().proxy(proxy).build();
                request = request.header("Content-Length", delivery.len.to_string());
                for (name, value) in &delivery.headers {
                    request = request.header(*name, *value);
                }
                let mut body = delivery.body.open().map_err(Trouble::Final)?;
                with_headers(request, ask, token).send(SendBody::from_reader(&mut body))
            }
        };
        let answer = answer.map_err(|error| {
            let trouble = self.of_transport(&error, uri);
            match named {
                Some(named) => trouble.map(|error| named.named(&error)),
                None => trouble,
            }
        })?;
        let (parts, body) = answer.into_parts();
        let answer = RawAnswer { status: parts.status.as_u16(), headers: parts.headers, body };
        match answer.status {
            408 | 425 | 429 | 500 | 502 | 503 | 504 => {
                Err(Trouble::of_status(answer.status, &answer.headers, uri))
            }
            _ => Ok(answer),
        }
    }

    /// Returns `true` if a redirect may lead to a private address, because the user named one.
    fn may_be_private(&self, start: &Uri) -> bool {
        let host = start.host().unwrap_or_default().to_owned();
        let mut known = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(host).or_insert_with(|| {
            // Behind a proxy, names are looked up by the proxy: here they may lead nowhere.
            if self.proxies.of(start).is_some() {
                address::is_private_literal(start)
            } else {
                address::is_private_host(start)
            }
        })
    }

    fn any(&self) -> Result<&Agent> {
        made(&self.any, || Ok(self.config(tls::config()?).new_agent()))
    }

    fn plain(&self) -> &Agent {
        self.plain.get_or_init(|| self.config(TlsConfig::default()).new_agent())
    }

    fn within(&self, reach: Reach) -> Result<&Agent> {
        let agent = match reach {
            Reach::Public => &self.public,
            Reach::Private => &self.private_too,
        };
        made(agent, || {
            let config = self.config(tls::config()?);
            Ok(Agent::with_parts(config, DefaultConnector::default(), Within::new(reach)))
        })
    }

    fn config(&self, tls: TlsConfig) -> ureq::config::Config {
        let silence = self.settings.timeout;
        Agent::config_builder()
            .user_agent(concat!("apr/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // Redirects are followed in `ask_once`, which checks where each leads.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(silence.min(CONNECT)))
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .timeout_per_write(Some(silence))
            .max_idle_connections(2 * IDLE)
            .max_idle_connections_per_host(IDLE)
            .tls_config(tls)
            .build()
    }

    /// Converts a transport error.
    fn of_transport(&self, error: &ureq::Error, uri: &Uri) -> Trouble {
        let host = uri.host().unwrap_or_default();
        let at = shown_url(&uri.to_string());
        let network = |message: String| Error::io(IoCause::Network, message).in_file(&at);
        let lasting =
            |message: String| Trouble::Final(Error::io(IoCause::Other, message).in_file(&at));
        match error {
            ureq::Error::Io(error) => of_io(error, host, network, lasting),
            ureq::Error::HostNotFound => Trouble::Unreachable(network(unknown_host(host))),
            ureq::Error::ConnectionFailed => {
                Trouble::Unreachable(network(format!("no connection to '{host}'")))
            }
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                Trouble::Unreachable(network(format!("'{host}' does not answer")))
            }
            ureq::Error::Timeout(_) => {
                Trouble::Passing(network(format!("'{host}' stopped responding{}", self.patience())))
            }
            ureq::Error::Protocol(error) => {
                Trouble::Passing(network(format!("invalid HTTP response from '{host}': {error}")))
            }
            ureq::Error::ConnectProxyFailed(error) => {
                Trouble::Passing(network(format!("no connection to '{host}': {error}")))
            }
            ureq::Error::Rustls(error) => lasting(unsafe_connection(host, error)),
            other => lasting(format!("the request to '{host}' failed: {other}")),
        }
    }
}

impl Ask<'_> {
    fn is_fulfilled_by(&self, status: u16) -> bool {
        match self.delivery {
            Some(_) => (200..300).contains(&status),
            None => status == 200,
        }
    }
}

/// Adds the headers of every request.
fn with_headers<B>(
    request: RequestBuilder<B>,
    ask: &Ask<'_>,
    token: Option<&Token>,
) -> RequestBuilder<B> {
    // Ranges count bytes as they are encoded (RFC 9110, section 14.1.2): only plain ones are the
    // file's.
    let mut request = request.header("Accept-Encoding", "identity");
    if let Some(range) = &ask.range {
        // The last byte of a range is one of it (RFC 9110, section 14.1.2).
        request = request
            .header("Range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));

        // A file that was changed comes whole then, instead of parts of two (RFC 9110, section
        // 13.1.5).
        if let Some(etag) = ask.if_range {
            request = request.header("If-Range", etag);
        }
    }
    match token {
        Some(token) => request.header("Authorization", token.header()),
        None => request,
    }
}

/// Returns an agent, which is created on first use.
fn made(agent: &OnceLock<Agent>, make: impl FnOnce() -> Result<Agent>) -> Result<&Agent> {
    if let Some(agent) = agent.get() {
        return Ok(agent);
    }
    let new = make()?;
    Ok(agent.get_or_init(|| new))
}

struct RawAnswer {
    status: u16,
    headers: HeaderMap,
    body: Body,
}

impl RawAnswer {
    fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

fn parse(url: &str) -> Result<Uri, Trouble> {
    let uri: Result<Uri, _> = url.parse();
    uri.ok()
        .filter(|uri| uri.host().is_some())
        .ok_or_else(|| Trouble::Final(Error::format("not a URL of a file").in_file(shown_url(url))))
}

/// Returns the target of a redirect.
fn join(base: &Uri, target: &str) -> Result<Uri> {
    let wrong = || Error::io(IoCause::Other, "the server redirects to an invalid URL");
    let target = escaped(target.split('#').next().unwrap_or_default());
    let scheme = base.scheme_str().unwrap_or("https");
    let authority = base.authority().map_or("", |authority| authority.as_str());
    let absolute = if target.contains("://") {
        target
    } else if target.starts_with("//") {
        format!("{scheme}:{target}")
    } else if target.starts_with('/') {
        format!("{scheme}://{authority}{target}")
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{target}")
    };

    absolute.parse::<Uri>().ok().filter(|uri| uri.host().is_some()).ok_or_else(wrong)
}

/// Escapes the characters of a target that are invalid in an address. Some servers send names
/// unescaped.
fn escaped(target: &str) -> String {
    let odd = |c: char| c == ' ' || "\"<>\\^`{|}".contains(c);
    target.chars().fold(String::new(), |mut escaped, c| {
        if odd(c) {
            escaped.push_str(&format!("%{:02X}", u32::from(c)));
        } else {
            escaped.push(c);
        }
        escaped
    })
}

fn check_redirect(from: &Uri, to: &Uri, insecure: bool) -> Result<(), Trouble> {
    if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") && !insecure {
        return Err(Trouble::Final(refused(
            "the server redirects from https to http, which is not encrypted",
            to,
        )));
    }
    Ok(())
}

/// Returns scheme, host and port, which a token is bound to.
fn authority(uri: &Uri) -> (Option<&str>, Option<String>, Option<u16>) {
    let port = uri.port_u16().or(match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    });
    (uri.scheme_str(), uri.host().map(str::to_ascii_lowercase), port)
}

/// Scheme, host and port of an address.
pub(crate) fn server_of(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let (scheme, host, port) = authority(&uri);
    Some(format!("{}://{}:{}", scheme?, host?, port?))
}

fn refused(message: &str, uri: &Uri) -> Error {
    Error::io(IoCause::Other, message).in_file(shown_url(&uri.to_string()))
}

/// Converts an error of the operating system or of its connection.
fn of_io(
    error: &std::io::Error,
    host: &str,
    network: impl Fn(String) -> Error,
    lasting: impl Fn(String) -> Trouble,
) -> Trouble {
    if error.to_string().contains(address::REFUSED) {
        return lasting(address::REFUSED.to_owned());
    }
    if tls_error(error).is_some() {
        return lasting(unsafe_connection(host, error));
    }
    if apr_platform::is_failed_lookup(error) {
        return Trouble::Unreachable(network(unknown_host(host)));
    }

    match error.kind() {
        std::io::ErrorKind::InvalidInput => lasting(error.to_string()),
        kind if is_unreachable(kind) => {
            Trouble::Unreachable(network(format!("no connection to '{host}': {error}")))
        }
        _ => Trouble::Passing(network(format!("the connection to '{host}' failed: {error}"))),
    }
}

/// Returns the TLS error inside an I/O error, if there is one.
fn tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn unsafe_connection(host: &str, error: &dyn std::fmt::Display) -> String {
    format!(
        "TLS connection to '{host}' failed: {error}; SSL_CERT_FILE sets the trusted \
             certificates"
    )
}

fn unknown_host(host: &str) -> String {
    format!("unknown host '{host}', or no network")
}

fn is_unreachable(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    [ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved_as_the_standard_requires() {
        let base: Uri = "https://host:1/a/b?q".parse().expect("a URL");
        for (target, expected) in [
            ("https://other/x", "https://other/x"),
            ("/x?y=1", "https://host:1/x?y=1"),
            ("x", "https://host:1/a/x"),
            ("//other/x#y", "https://other/x"),
            ("/a b.gguf?q={}", "https://host:1/a%20b.gguf?q=%7B%7D"),
        ] {
            assert_eq!(join(&base, target).expect(target).to_string(), expected);
        }
        assert!(join(&base, "https://").is_err());
    }

    #[test]
    fn https_never_becomes_http_unasked() {
        let (from, to): (Uri, Uri) =
            ("https://a/".parse().expect("a"), "http://b/".parse().expect("b"));
        assert!(check_redirect(&from, &to, false).is_err());
        assert!(check_redirect(&from, &to, true).is_ok());
    }
}
