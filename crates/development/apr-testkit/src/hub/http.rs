//! As much of HTTP/1.1 as tests need.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::content::Body;
use super::line::Line;

/// Bytes that are handed to the system at a time.
const SENT_AT_ONCE: usize = 256 << 10;

/// Received request.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) target: String,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Asked {
    /// The body as JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Path without the query.
    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// A value of the query.
    pub(super) fn query(&self, name: &str) -> Option<&str> {
        let (_, query) = self.target.split_once('?')?;
        query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }
}

/// An answer to be sent.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Body,
    /// Stated length, if it differs from the length of the body.
    pub(super) stated: Option<u64>,
    /// Number of bytes sent before the connection is cut, and the pause before the cut.
    pub(super) cut: Option<(u64, Duration)>,
    /// Bytes of the body that are sent at a time, and the pause before each.
    pub(super) trickle: Option<(usize, Duration)>,
}

impl Answer {
    pub(super) fn new(status: u16, body: impl Into<Body>) -> Self {
        let (body, headers) = (body.into(), Vec::new());
        Self { status, headers, body, stated: None, cut: None, trickle: None }
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Bytes of the body that are going to be sent.
    pub(super) fn planned(&self) -> u64 {
        self.cut.map_or(self.body.len() as u64, |(len, _)| len.min(self.body.len() as u64))
    }
}

pub(super) struct Connection {
    reader: BufReader<TcpStream>,
    stream: TcpStream,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// The next request; `None` at the end of the connection.
    pub(super) fn request(&mut self) -> Option<Asked> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());

        // What a proxy is asked for has the server in it.
        let target = match target.split_once("://") {
            Some((_, rest)) => format!("/{}", rest.split_once('/').map_or("", |(_, path)| path)),
            None => target,
        };
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }

        let mut asked = Asked { method, target, headers, body: Vec::new() };
        asked.body = self.body(&asked)?;
        Some(asked)
    }

    /// The body of a request; `None` if the connection ends in it.
    fn body(&mut self, asked: &Asked) -> Option<Vec<u8>> {
        let is_chunked = asked.header("transfer-encoding") == Some("chunked");
        let mut body = Vec::new();
        if !is_chunked {
            let len = asked.header("content-length").map_or(Some(0), |len| len.parse().ok())?;
            self.reader.by_ref().take(len).read_to_end(&mut body).ok()?;
            return (body.len() as u64 == len).then_some(body);
        }
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).ok().filter(|&len| len > 0)?;
            let len = u64::from_str_radix(line.trim(), 16).ok()?;
            self.reader.by_ref().take(len).read_to_end(&mut body).ok()?;
            self.reader.read_line(&mut line).ok()?;
            if len == 0 {
                return Some(body);
            }
        }
    }

    /// Sends an answer at the speed of the line. Returns `false` if the connection ends.
    pub(super) fn send(
        &mut self,
        answer: &Answer,
        is_head: bool,
        line: &Line,
        written: &AtomicU64,
    ) -> bool {
        let len = answer.stated.unwrap_or(answer.body.len() as u64);
        let mut text = format!("HTTP/1.1 {} X\r\nContent-Length: {len}\r\n", answer.status);
        for (name, value) in &answer.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }

        text.push_str("\r\n");
        if self.stream.write_all(text.as_bytes()).is_err() {
            return false;
        }
        if is_head {
            return true;
        }

        let sent = usize::try_from(answer.planned()).expect("it fits");
        let (at_once, pause) = answer.trickle.unwrap_or((SENT_AT_ONCE, Duration::ZERO));
        let mut pieces = line.pieces(&answer.body[..sent]).flat_map(|piece| piece.chunks(at_once));
        let is_sent = pieces.all(|piece| {
            thread::sleep(pause);
            let is_sent = self.stream.write_all(piece).is_ok();
            written.fetch_add(piece.len() as u64, Ordering::Relaxed);
            is_sent
        });
        if !is_sent {
            return false;
        }

        if let Some((_, stall)) = answer.cut {
            thread::sleep(stall);
            let _ = self.stream.shutdown(std::net::Shutdown::Both);
            return false;
        }

        answer.stated.is_none()
    }
}
