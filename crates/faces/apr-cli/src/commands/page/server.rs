//! A server of files on 127.0.0.1: GET and HEAD of HTTP/1.1, with ranges (RFC 9110).

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use apr_io::FileSource;
use apr_registry::ByteSource;

use super::listing::Folder;
use super::site::Site;
use crate::failure::{Failure, Outcome};

/// Maximum bytes of a request; browsers send a few hundred.
const REQUEST: usize = 16 << 10;
const HEADERS: usize = 64;
/// Connections at a time; a browser opens six.
const CONNECTIONS: usize = 64;
/// Maximum time for which a connection may be idle.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a file to send in one piece.
const PIECE: u64 = 1 << 16;
/// Path of the model's files below the page's.
const MODEL: &str = "open/";
/// Path of the list of the model's files.
const INDEX: &str = "files.json";

/// Server of the page, with its listener.
pub(super) struct Server {
    listener: TcpListener,
    shared: Arc<Served>,
}

struct Served {
    address: SocketAddr,
    /// Prefix of every path: `/SECRET/`.
    root: String,
    page: Site,
    model: Option<Folder>,
    connections: Connections,
}

/// Body of an HTTP response.
pub(super) enum Body<'s> {
    File(FileSource),
    Bytes(&'s [u8]),
    /// Bytes in HTTP's encoding `deflate` (RFC 9110, section 8.4.1.2), which is the zlib format.
    Packed(&'s [u8]),
}

/// The connections that are open, each with when it last got on: sent a request or took a piece of
/// an answer.
#[derive(Default)]
struct Connections(Mutex<HashMap<u64, (Instant, TcpStream)>>);

impl Connections {
    /// Adds a connection.
    ///
    /// If too many are open, the connection without progress for the longest time is closed, so
    /// that slow clients do not block others.
    fn add(&self, number: u64, stream: &TcpStream) -> io::Result<()> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= CONNECTIONS
            && let Some((&slowest, _)) = open.iter().min_by_key(|(_, (since, _))| *since)
            && let Some((_, stream)) = open.remove(&slowest)
        {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        open.insert(number, (Instant::now(), stream.try_clone()?));
        Ok(())
    }

    fn got_on(&self, number: u64) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, _)) = open.get_mut(&number) {
            *since = Instant::now();
        }
    }

    fn remove(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

/// Request of a browser.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    is_head: bool,
    /// Path without the query after `?`, with escapes resolved.
    path: String,
    host: String,
    range: Option<(u64, Option<u64>)>,
    /// `true` if the client accepts the encoding `deflate`.
    unpacks: bool,
    keeps_open: bool,
}

impl Server {
    /// Listens on a port of this machine; `None` lets the system choose the port.
    ///
    /// # Errors
    /// A port that can't be listened on, such as one that is in use.
    pub(super) fn bind(
        port: Option<u16>,
        secret: &str,
        page: Site,
        model: Option<Folder>,
    ) -> Outcome<Self> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0)));
        let bound = TcpListener::bind(wanted).and_then(|it| Ok((it.local_addr()?, it)));
        let (address, listener) = bound.map_err(|error| {
            Failure::General(format!("can't listen on port {}: {error}", wanted.port()))
        })?;
        let connections = Connections::default();
        let root = format!("/{secret}/");
        Ok(Self { listener, shared: Arc::new(Served { address, root, page, model, connections }) })
    }

    /// Returns the address to open in a browser.
    pub(super) fn address(&self) -> String {
        format!("http://{}{}", self.shared.address, self.shared.root)
    }

    /// Serves requests, each connection in a thread of its own.
    ///
    /// # Errors
    /// Where no connection can be accepted any more.
    pub(super) fn run(self) -> Outcome {
        for number in 0.. {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                // The other side is gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(Failure::General(format!("can't listen: {error}"))),
            };
            let shared = Arc::clone(&self.shared);
            if shared.connections.add(number, &stream).is_err() {
                continue;
            }
            thread::spawn(move || {
                // A browser that goes away in the middle is no fault of ours.
                let _ = shared.converse(number, &stream);
                shared.connections.remove(number);
            });
        }
        Ok(())
    }
}

impl Served {
    fn converse(&self, number: u64, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let mut input = BufReader::new(stream);
        loop {
            let mut out = BufWriter::new(stream);
            let Some(head) = head(&mut input)? else { return Ok(()) };
            let Some(request) = parsed(&head) else {
                return refuse(&mut out, "400 Bad Request");
            };
            self.connections.got_on(number);
            self.answer(&mut out, &request, number)?;
            out.flush()?;
            if !request.keeps_open {
                return Ok(());
            }
        }
    }

    fn answer(&self, out: &mut impl Write, request: &Request, number: u64) -> io::Result<()> {
        if !is_own_name(&request.host, self.address.port()) {
            return refuse(out, "403 Forbidden");
        }
        let Some(body) = request.path.strip_prefix(&self.root).and_then(|path| self.body(path))
        else {
            return refuse(out, "404 Not Found");
        };
        let is_packed = matches!(body, Body::Packed(_));
        if is_packed && !request.unpacks {
            return refuse(out, "406 Not Acceptable");
        }
        let len = match &body {
            Body::Bytes(bytes) | Body::Packed(bytes) => bytes.len(),
            Body::File(file) => file.len(),
        };
        let last = len.saturating_sub(1);
        // A range would be one of the packed bytes.
        let range = request
            .range
            .filter(|_| !is_packed)
            .map(|(from, to)| (from, to.unwrap_or(last).min(last)));
        if range.is_some_and(|(from, to)| from > to || from >= len) {
            write!(out, "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-range: bytes */{len}\r\n")?;
            return write!(out, "content-length: 0\r\n\r\n");
        }
        let (from, count) = range.map_or((0, len), |(from, to)| (from, to - from + 1));
        let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
        let is_models = self.is_models(&request.path);
        // What a model has may be anybody's: the page reads it, and a browser shows none of it.
        let kind = if is_models { "application/octet-stream" } else { kind_of(&request.path) };
        write!(out, "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n")?;
        if is_models {
            write!(out, "content-security-policy: sandbox; default-src 'none'\r\n")?;
            write!(out, "content-disposition: attachment\r\n")?;
        }
        write!(
            out,
            "content-length: {count}\r\naccept-ranges: bytes\r\ncache-control: no-cache\r\n"
        )?;
        write!(out, "x-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n")?;
        write!(out, "cross-origin-resource-policy: same-origin\r\n")?;
        if is_packed {
            write!(out, "content-encoding: deflate\r\nvary: accept-encoding\r\n")?;
        }
        if range.is_some() {
            write!(out, "content-range: bytes {from}-{}/{len}\r\n", from + count - 1)?;
        }
        write!(out, "\r\n")?;
        if request.is_head {
            return Ok(());
        }
        match body {
            Body::File(file) => self.send(out, &file, (from, count), number),
            Body::Bytes(bytes) | Body::Packed(bytes) => {
                let range = usize::try_from(from).ok().zip(usize::try_from(count).ok());
                let part = range.and_then(|(from, count)| bytes.get(from..from + count));
                out.write_all(part.unwrap_or_default())
            }
        }
    }

    /// Sends a part of a file, given as offset and length.
    fn send(
        &self,
        out: &mut impl Write,
        file: &FileSource,
        (from, count): (u64, u64),
        number: u64,
    ) -> io::Result<()> {
        let mut buf = vec![0; usize::try_from(PIECE.min(count)).unwrap_or_default()];
        let mut at = from;
        while at < from + count {
            let len = usize::try_from(PIECE.min(from + count - at)).unwrap_or_default();
            let piece = &mut buf[..len];
            // A file that was cut in the meantime: the connection ends, so that it is noticed.
            file.read_at(at, piece).map_err(io::Error::other)?;
            out.write_all(piece)?;
            self.connections.got_on(number);
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Returns `true` if a path is one of the model's files.
    fn is_models(&self, path: &str) -> bool {
        let name = path.strip_prefix(&self.root).and_then(|path| path.strip_prefix(MODEL));
        name.is_some_and(|name| name != INDEX)
    }

    /// Returns the content of a path below the secret.
    fn body(&self, path: &str) -> Option<Body<'_>> {
        match (path, path.strip_prefix(MODEL), &self.model) {
            ("", ..) => self.page.file("index.html"),
            (_, Some(INDEX), Some(model)) => model.index().map(Body::Bytes),
            (_, Some(name), Some(model)) => model.file(name).map(Body::File),
            (_, Some(_), None) => None,
            _ => self.page.file(path),
        }
    }
}

/// Returns `true` if a host is one of the server's own names; the default port 80 may be omitted.
///
/// This rejects pages of other sites whose name resolves to this server (DNS rebinding), because
/// their requests use that name.
fn is_own_name(host: &str, port: u16) -> bool {
    ["127.0.0.1", "localhost"].iter().any(|name| match host.strip_prefix(name) {
        Some("") => port == 80,
        Some(rest) => rest.strip_prefix(':').is_some_and(|text| text == port.to_string()),
        None => false,
    })
}

fn refuse(out: &mut impl Write, status: &str) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")?;
    out.flush()
}

/// Reads the lines of a request up to the empty line; `None` if the client has hung up.
fn head(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match input.read(&mut byte)? {
            0 => return Ok(None),
            _ => head.push(byte[0]),
        }
        if head.len() > REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(Some(head))
}

fn parsed(head: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut parsed = httparse::Request::new(&mut headers);
    parsed.parse(head).ok().filter(httparse::Status::is_complete)?;
    let is_head = match parsed.method? {
        "GET" => false,
        "HEAD" => true,
        _ => return None,
    };
    let path = parsed.path?.split(['?', '#']).next()?;
    let value = |name: &str| {
        let found = parsed.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| str::from_utf8(header.value).ok())
    };
    let closes = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    Some(Request {
        is_head,
        path: percent_encoding::percent_decode_str(path).decode_utf8().ok()?.into_owned(),
        host: value("host")?.to_owned(),
        range: value("range").and_then(range_of),
        unpacks: value("accept-encoding").is_some_and(takes_deflate),
        keeps_open: parsed.version == Some(1) && !closes,
    })
}

/// Returns `true` if a list of encodings has `deflate` with a weight other than 0.
fn takes_deflate(value: &str) -> bool {
    value.split(',').any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_deflate = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("deflate"));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        is_deflate && weight != Some(0.0)
    })
}

/// First and last byte of `bytes=0-499` or `bytes=500-`; other forms are ignored, as the standard
/// allows.
fn range_of(value: &str) -> Option<(u64, Option<u64>)> {
    let (from, to) = value.strip_prefix("bytes=")?.split_once('-')?;
    let to = if to.is_empty() { None } else { Some(to.parse().ok()?) };
    Some((from.parse().ok()?, to))
}

/// Media type by the extension.
fn kind_of(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("html", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript",
        "css" => "text/css",
        "svg" => "image/svg+xml",
        "wasm" => "application/wasm",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_browsers_write_them() {
        let text = b"GET /s/open/a%20b.gguf?x=1 HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\
            Range: bytes=5-9\r\n\r\n";
        let request = Request {
            is_head: false,
            path: "/s/open/a b.gguf".to_owned(),
            host: "127.0.0.1:80".to_owned(),
            range: Some((5, Some(9))),
            unpacks: false,
            keeps_open: true,
        };
        assert_eq!(parsed(text), Some(request));
        assert_eq!(parsed(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"), None);
        assert_eq!(parsed(b"GET / HTTP/1.1\r\n\r\n"), None, "no host");
    }

    #[test]
    fn only_the_port_of_http_is_left_out_of_the_host() {
        assert!(is_own_name("127.0.0.1", 80) && is_own_name("localhost:80", 80));
        assert!(is_own_name("localhost:8000", 8000));
        for (host, port) in [("127.0.0.1", 8000), ("localhost:80", 8000), ("evil.example:80", 80)] {
            assert!(!is_own_name(host, port), "{host}, {port}");
        }
    }

    #[test]
    fn deflate_is_sent_to_those_who_take_it() {
        assert!(takes_deflate("gzip, deflate, br, zstd") && takes_deflate("Deflate;q=0.5"));
        for other in ["gzip, br", "", "deflate;q=0", "identity"] {
            assert!(!takes_deflate(other), "{other}");
        }
    }

    #[test]
    fn ranges_of_other_forms_are_ignored() {
        assert_eq!(range_of("bytes=7-"), Some((7, None)));
        for other in ["bytes=-5", "bytes=0-1,4-5", "items=0-1", "bytes=a-b"] {
            assert_eq!(range_of(other), None, "{other}");
        }
    }
}
