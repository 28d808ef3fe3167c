//! Requests: where redirects may lead, who gets the token, and how often something is tried again.

use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use apr_core::{Error, IoCause, Result};
use ureq::http::{HeaderMap, Uri};
use ureq::tls::TlsConfig;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Proxy};

use crate::address::{self, Reach, Within};
use crate::headers::{parse_content_range, text};
use crate::location::shown_url;
use crate::retry::{Patience, Trouble};
use crate::settings::{Settings, Token, variable};
use crate::tls;

/// Redirects that are followed before the answer is given up.
const MOST_REDIRECTS: usize = 8;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(15);

/// How long a server may be silent, unless `HF_HUB_DOWNLOAD_TIMEOUT` says so.
const SILENCE: u64 = 30;

/// Connections that are kept for the next request.
const IDLE: usize = 32;

/// What a server is asked for.
#[derive(Clone, Default)]
pub(crate) struct Ask<'a> {
    pub(crate) url: &'a str,
    pub(crate) range: Option<Range<u64>>,
    /// The state of the file that the range is meant to be of.
    pub(crate) if_range: Option<&'a str>,
    pub(crate) token: Option<&'a Token>,
    /// Where `url` was learnt from by a redirect: what the user named, and what the token is for.
    pub(crate) origin: Option<&'a str>,
    /// Hears where another server has it, before that one is asked.
    pub(crate) found: Option<&'a dyn Fn(String)>,
}

/// What a server answered, after redirects.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// Of the answer before the first redirect to another server: what the hub says of a file that
    /// is stored elsewhere.
    pub(crate) first: HeaderMap,
    pub(crate) body: Body,
    /// The address that answered.
    pub(crate) url: String,
}

impl Answer {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        text(&self.headers, name)
    }

    /// The range of a partial answer, and the length of the whole.
    pub(crate) fn content_range(&self) -> Option<(Range<u64>, u64)> {
        parse_content_range(self.header("content-range")?)
    }

    /// The state of the file, to be compared with a later one: its tag, unless that is a weak one,
    /// which says nothing of bytes; otherwise when it was changed.
    pub(crate) fn etag(&self) -> Option<&str> {
        let strong = self.header("etag").filter(|etag| !etag.starts_with("W/"));
        strong.or_else(|| self.header("last-modified"))
    }

    /// The whole body, of at most `limit` bytes.
    ///
    /// # Errors
    /// E007 when it is cut, E008 when it is longer.
    pub(crate) fn read_all(mut self, limit: u64) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        let stated = self.body.content_length();

        // One byte more than is allowed, so that a longer answer is noticed.
        let read = self.body.as_reader().take(limit + 1).read_to_end(&mut bytes);
        if bytes.len() as u64 > limit {
            let message = format!("the server's answer is longer than {limit} bytes");
            return Err(Trouble::Final(Error::memory(message).in_file(shown_url(&self.url))));
        }
        let is_short = stated.is_some_and(|stated| stated > bytes.len() as u64);
        match read {
            Ok(_) if !is_short => Ok(bytes),
            Ok(_) => Err(Trouble::Passing(cut(&self.url))),
            Err(error) => Err(Trouble::Passing(cut_by(&error, &self.url))),
        }
    }
}

/// What a connection that ended early is.
pub(crate) fn cut(url: &str) -> Error {
    Error::io(IoCause::Network, "the connection was cut before the answer was complete")
        .in_file(shown_url(url))
}

pub(crate) fn cut_by(error: &std::io::Error, url: &str) -> Error {
    let timed_out = error.get_ref().is_some_and(|inner| inner.to_string().contains("timeout"));
    if timed_out || error.kind() == std::io::ErrorKind::TimedOut {
        return Error::io(IoCause::Network, "the server fell silent").in_file(shown_url(url));
    }
    cut(url)
}

/// Makes requests.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) settings: Settings,
    /// For addresses that the user named, and those that they lead to from a private one.
    any: OnceLock<Agent>,
    /// The same without encryption: it need not read the system's certificates.
    plain: OnceLock<Agent>,
    /// For addresses that a public server named.
    public: OnceLock<Agent>,
    /// For addresses that a server in a private network named.
    private_too: OnceLock<Agent>,
    /// Hosts that the user named, and whether they are private.
    private: Mutex<HashMap<String, bool>>,
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
            requests: 0.into(),
            bytes: 0.into(),
        }
    }

    /// Requests made, and bytes of bodies received.
    pub(crate) fn moved(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Adds what was received.
    pub(crate) fn received(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A whole body of an answer with status 200, of at most `limit` bytes; `None` for other
    /// statuses, whose answer is given to `other`.
    pub(crate) fn read(
        &self,
        ask: &Ask<'_>,
        limit: u64,
        other: impl Fn(Answer) -> Error,
    ) -> Result<(Vec<u8>, HeaderMap)> {
        let mut patience = Patience::new(&self.settings.interrupt);
        loop {
            let answer = match self.ask_once(ask) {
                Ok(answer) if answer.status == 200 => answer,
                Ok(answer) => return Err(other(answer)),
                Err(trouble) => {
                    patience.wait(trouble)?;
                    continue;
                }
            };

            let headers = answer.first.clone();
            match answer.read_all(limit) {
                Ok(bytes) => {
                    self.received(bytes.len());
                    return Ok((bytes, headers));
                }
                Err(trouble) => patience.wait(trouble)?,
            }
        }
    }

    /// Asks once, and follows redirects.
    pub(crate) fn ask_once(&self, ask: &Ask<'_>) -> Result<Answer, Trouble> {
        if self.settings.offline {
            let message =
                "this needs the network, and apr is offline (HF_HUB_OFFLINE or --offline)";
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
            let Some(target) = target else {
                let first = first.unwrap_or_else(|| answer.headers().clone());
                return finished(answer, uri.to_string(), first);
            };
            let next = join(&uri, target)
                .map_err(|error| Trouble::Final(error.in_file(shown_url(ask.url))))?;
            check_redirect(&uri, &next, self.settings.insecure)?;
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

    fn check_scheme(&self, uri: &Uri) -> Result<(), Trouble> {
        let refuse = |message: &str| Err(Trouble::Final(refused(message, uri)));
        match uri.scheme_str() {
            Some("https") => tls::lacking().map_or(Ok(()), refuse),
            Some("http") if address::is_loopback(uri) || self.settings.insecure => Ok(()),
            Some("http") => refuse(
                "http is not encrypted, so anybody on the way can read and change what is sent; \
                 use https, or --insecure if that is all right",
            ),
            _ => refuse("only https and http are spoken"),
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

        let agent = match (reach, uri.scheme_str()) {
            (Some(reach), _) => self.within(reach),
            // A proxy may be spoken to by https.
            (None, Some("http")) if Proxy::try_from_env().is_none() => self.plain(),
            (None, _) => self.any(),
        };

        // Ranges count bytes as they are encoded (RFC 9110, section 14.1.2): only plain ones are
        // the file's.
        let mut request = agent.get(uri.clone()).header("Accept-Encoding", "identity");
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

        if let Some(token) = token {
            request = request.header("Authorization", token.header());
        }

        self.requests.fetch_add(1, Ordering::Relaxed);
        let answer = request.call().map_err(|error| of_transport(&error, uri))?;
        let (parts, body) = answer.into_parts();
        let answer = RawAnswer { status: parts.status.as_u16(), headers: parts.headers, body };
        match answer.status {
            408 | 425 | 429 | 500 | 502 | 503 | 504 => {
                Err(Trouble::of_status(answer.status, &answer.headers, uri))
            }
            _ => Ok(answer),
        }
    }

    /// Whether a redirect may lead to a private address, because the user named one.
    fn may_be_private(&self, start: &Uri) -> bool {
        let host = start.host().unwrap_or_default().to_owned();
        let mut known = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(host).or_insert_with(|| {
            // Behind a proxy, names are looked up by the proxy: here they may lead nowhere.
            let proxied = Proxy::try_from_env().is_some_and(|proxy| !proxy.is_no_proxy(start));
            if proxied {
                address::is_private_literal(start)
            } else {
                address::is_private_host(start)
            }
        })
    }

    fn any(&self) -> &Agent {
        self.any.get_or_init(|| config(tls::config()).new_agent())
    }

    fn plain(&self) -> &Agent {
        self.plain.get_or_init(|| config(TlsConfig::default()).new_agent())
    }

    fn within(&self, reach: Reach) -> &Agent {
        let agent = match reach {
            Reach::Public => &self.public,
            Reach::Private => &self.private_too,
        };
        agent.get_or_init(|| {
            let connector = DefaultConnector::default();
            Agent::with_parts(config(tls::config()), connector, Within::new(reach))
        })
    }
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

fn finished(answer: RawAnswer, url: String, first: HeaderMap) -> Result<Answer, Trouble> {
    let RawAnswer { status, headers, body } = answer;
    if !text(&headers, "content-encoding")
        .is_none_or(|encoding| encoding.eq_ignore_ascii_case("identity"))
    {
        let message = "the server compresses what it sends, though it was asked not to";
        return Err(Trouble::Final(Error::io(IoCause::Other, message).in_file(shown_url(&url))));
    }
    Ok(Answer { status, headers, first, body, url })
}

fn config(tls: TlsConfig) -> ureq::config::Config {
    let silence = variable("HF_HUB_DOWNLOAD_TIMEOUT")
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(SILENCE);
    let silence = Duration::from_secs(silence.max(1));
    Agent::config_builder()
        .user_agent(concat!("apr/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        // Redirects are followed in `ask_once`, which checks where each leads.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(silence))
        .timeout_per_read(Some(silence))
        .max_idle_connections(2 * IDLE)
        .max_idle_connections_per_host(IDLE)
        .tls_config(tls)
        .build()
}

fn parse(url: &str) -> Result<Uri, Trouble> {
    let uri: Result<Uri, _> = url.parse();
    uri.ok().filter(|uri| uri.host().is_some()).ok_or_else(|| {
        Trouble::Final(Error::format("this is no address of a file").in_file(shown_url(url)))
    })
}

/// Where a redirect leads.
fn join(base: &Uri, target: &str) -> Result<Uri> {
    let wrong = || Error::io(IoCause::Other, "the server redirects to what is no address");
    let target = target.split('#').next().unwrap_or_default();
    let scheme = base.scheme_str().unwrap_or("https");
    let authority = base.authority().map_or("", |authority| authority.as_str());
    let absolute = if target.contains("://") {
        target.to_owned()
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

fn check_redirect(from: &Uri, to: &Uri, insecure: bool) -> Result<(), Trouble> {
    if from.scheme_str() == Some("https") && to.scheme_str() != Some("https") && !insecure {
        return Err(Trouble::Final(refused(
            "the server redirects from https to http, which is not encrypted",
            to,
        )));
    }
    Ok(())
}

/// Scheme, host and port: what a token is for.
fn authority(uri: &Uri) -> (Option<&str>, Option<String>, Option<u16>) {
    let port = uri.port_u16().or(match uri.scheme_str() {
        Some("https") => Some(443),
        Some("http") => Some(80),
        _ => None,
    });
    (uri.scheme_str(), uri.host().map(str::to_ascii_lowercase), port)
}

fn refused(message: &str, uri: &Uri) -> Error {
    Error::io(IoCause::Other, message).in_file(shown_url(&uri.to_string()))
}

/// What kept a request from being answered.
fn of_transport(error: &ureq::Error, uri: &Uri) -> Trouble {
    let host = uri.host().unwrap_or_default();
    let at = shown_url(&uri.to_string());
    let network = |message: String| Error::io(IoCause::Network, message).in_file(&at);
    let lasting = |message: String| Trouble::Final(Error::io(IoCause::Other, message).in_file(&at));
    match error {
        ureq::Error::Io(error) => of_io(error, host, network, lasting),
        ureq::Error::HostNotFound => Trouble::Unreachable(network(unknown_host(host))),
        ureq::Error::ConnectionFailed => {
            Trouble::Unreachable(network(format!("no connection to '{host}'")))
        }
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            Trouble::Unreachable(network(format!("'{host}' does not answer")))
        }
        ureq::Error::Timeout(_) => Trouble::Passing(network(format!("'{host}' fell silent"))),
        ureq::Error::Protocol(error) => {
            Trouble::Passing(network(format!("'{host}' does not speak HTTP: {error}")))
        }
        ureq::Error::Rustls(error) => lasting(unsafe_connection(host, error)),
        other => lasting(format!("the request to '{host}' failed: {other}")),
    }
}

/// What the operating system, or the connection that it made, says against a request.
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
    if is_lookup(error) {
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

/// What of an encrypted connection was wrong, where the operating system was asked for it.
fn tls_error(error: &std::io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

fn unsafe_connection(host: &str, error: &dyn std::fmt::Display) -> String {
    format!("no safe connection to '{host}': {error}; SSL_CERT_FILE names certificates of your own")
}

fn unknown_host(host: &str) -> String {
    format!("there is no server '{host}', or no network")
}

/// Whether the name of a server could not be looked up: the standard library has no kind for it.
fn is_lookup(error: &std::io::Error) -> bool {
    error.to_string().contains("failed to lookup address")
}

fn is_unreachable(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    [ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable].contains(&kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_where_the_standard_says() {
        let base: Uri = "https://host:1/a/b?q".parse().expect("a URL");
        for (target, expected) in [
            ("https://other/x", "https://other/x"),
            ("/x?y=1", "https://host:1/x?y=1"),
            ("x", "https://host:1/a/x"),
            ("//other/x#y", "https://other/x"),
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
