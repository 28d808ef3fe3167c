//! The store of large files, as git's LFS has it: a batch request says where a digest's bytes go,
//! in one piece or in several.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use apr_core::{Error, IoCause, Progress, Result};
use serde_json::{Value, json};

use super::{PlannedFile, UploadPlan};
use crate::client::{Ask, Delivery, Method, OpenBody};
use crate::headers::text;
use crate::location::encode_path;
use crate::lock::disk;
use crate::retry::check_interrupt;

/// The kind of requests about large files.
const KIND: &str = "application/vnd.git-lfs+json";

/// Pieces of a file that are sent at the same time.
const AT_ONCE: usize = 4;

/// Maximum number of pieces that a store may ask for.
const MOST_PIECES: u64 = 10_000;

/// The longest answer to a piece.
const LONGEST_ANSWER: u64 = 1 << 20;

/// Where the bytes of a file go.
enum Way<'v> {
    /// In one request, with these headers.
    Whole { href: &'v str, headers: Vec<(&'v str, &'v str)> },
    /// Pieces of `size` bytes, each to its address. `href` learns what they are.
    Pieces { href: &'v str, size: u64, addresses: Vec<&'v str> },
}

/// Bytes of a file that one request sends.
struct Piece<'a> {
    path: &'a Path,
    range: Range<u64>,
    /// Bytes that progress was told of. A piece that is sent again counts once.
    told: AtomicU64,
    /// The error of the disk, which would pass for one of the network.
    failed: Mutex<Option<Error>>,
}

impl UploadPlan<'_> {
    /// Sends a file to the store. Returns `false` if the store has its bytes.
    pub(super) fn store(
        &self,
        file: &PlannedFile,
        sha256: &str,
        progress: &(dyn Progress + Sync),
    ) -> Result<bool> {
        let endpoint = &self.client.settings.endpoint;
        let url =
            format!("{endpoint}/{}.git/info/lfs/objects/batch", encode_path(&self.location.repo));
        let object = json!({ "oid": sha256, "size": file.len });
        let body = json!({
            "operation": "upload", "transfers": ["basic", "multipart"], "objects": [object],
            "hash_algo": "sha256", "ref": { "name": self.location.revision() },
        });
        let answer = self.ask(&url, KIND, body.to_string().as_bytes(), true)?;
        let found = answer.pointer("/objects/0");
        let found = found.ok_or_else(|| self.wrong("it names no place for a file"))?;
        if let Some(message) = found.pointer("/error/message").and_then(Value::as_str) {
            let message: String = message.chars().take(200).collect();
            let message = format!("the hub does not take the file: {message}");
            return Err(Error::io(IoCause::Other, message).in_file(file.path.display()));
        }
        let Some(upload) = found.pointer("/actions/upload") else { return Ok(false) };
        let way = way(upload, file.len);
        let way = way.ok_or_else(|| self.wrong("it names no place for a file's pieces"))?;

        match way {
            Way::Whole { href, headers } => {
                let piece = Piece::of(&file.path, 0..file.len);
                self.put(href, &headers, &piece, progress)?;
            }
            Way::Pieces { href, size, addresses } => {
                let tags = self.put_pieces(file, size, &addresses, progress)?;
                let parts = tags.iter().zip(1..);
                let parts =
                    parts.map(|(etag, number)| json!({ "partNumber": number, "etag": etag }));
                let body = json!({ "oid": sha256, "parts": parts.collect::<Vec<_>>() });
                self.ask(href, KIND, body.to_string().as_bytes(), true)?;
            }
        }
        file.check_unchanged()?;
        if let Some(verify) = found.pointer("/actions/verify/href").and_then(Value::as_str) {
            self.ask(verify, KIND, object.to_string().as_bytes(), true)?;
        }
        Ok(true)
    }

    /// Sends all pieces of a file, and returns the tags that the store gave them.
    fn put_pieces(
        &self,
        file: &PlannedFile,
        size: u64,
        addresses: &[&str],
        progress: &(dyn Progress + Sync),
    ) -> Result<Vec<String>> {
        let pieces: Vec<Piece<'_>> = (0..addresses.len() as u64)
            .map(|at| Piece::of(&file.path, at * size..file.len.min((at + 1) * size)))
            .collect();
        let tags: Mutex<Vec<String>> = Mutex::new(vec![String::new(); pieces.len()]);
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed))
                && at < pieces.len()
            {
                match self.put(addresses[at], &[], &pieces[at], progress) {
                    Ok(tag) => lock(&tags)[at] = tag,
                    Err(error) => {
                        lock(&failure).get_or_insert(error);
                        next.store(pieces.len(), Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(pieces.len()) {
                scope.spawn(work);
            }
        });
        match lock(&failure).take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut *lock(&tags))),
        }
    }

    /// Sends a piece, and returns its tag.
    fn put(
        &self,
        href: &str,
        headers: &[(&str, &str)],
        piece: &Piece<'_>,
        progress: &(dyn Progress + Sync),
    ) -> Result<String> {
        let interrupt = &self.client.settings.interrupt;
        let sending = Sending { piece, progress, interrupt };
        let delivery = Delivery {
            method: Method::Put,
            headers: headers.to_vec(),
            len: piece.range.end - piece.range.start,
            body: &sending,
            is_repeatable: true,
        };
        let ask = Ask {
            url: href,
            // The store is a server that the hub led to.
            origin: Some(&self.client.settings.endpoint),
            delivery: Some(&delivery),
            ..Ask::default()
        };
        let refusal = |answer: crate::answer::Answer| {
            let message = format!("the store refuses the file with status {}", answer.status);
            Error::io(IoCause::Other, message).in_file(piece.path.display())
        };
        match self.client.read(&ask, LONGEST_ANSWER, refusal) {
            Ok((_, headers)) => Ok(text(&headers, "etag").unwrap_or_default().to_owned()),
            Err(error) => Err(lock(&piece.failed).take().unwrap_or(error)),
        }
    }
}

/// Reads where a file of this length goes.
fn way(upload: &Value, len: u64) -> Option<Way<'_>> {
    let href = upload.get("href")?.as_str()?;
    let headers = upload.get("header").and_then(Value::as_object);
    let Some(headers) = headers else { return Some(Way::Whole { href, headers: Vec::new() }) };
    let size = headers.get("chunk_size").map(|size| match size {
        Value::String(text) => text.parse().ok(),
        other => other.as_u64(),
    });
    let Some(size) = size else {
        let headers = headers.iter().map(|(name, value)| Some((name.as_str(), value.as_str()?)));
        return Some(Way::Whole { href, headers: headers.collect::<Option<_>>()? });
    };
    let size = size.filter(|size| *size > 0)?;
    let count = len.div_ceil(size);
    if count > MOST_PIECES {
        return None;
    }
    // Addresses by the numbers of pieces, which some stores pad with zeros.
    let of = |number: u64| {
        let is_it = |name: &str| name.parse() == Ok(number);
        headers.iter().find(|(name, _)| is_it(name))?.1.as_str()
    };
    let addresses = (1..=count).map(of).collect::<Option<_>>()?;
    Some(Way::Pieces { href, size, addresses })
}

impl<'a> Piece<'a> {
    fn of(path: &'a Path, range: Range<u64>) -> Self {
        Self { path, range, told: AtomicU64::new(0), failed: Mutex::new(None) }
    }
}

/// A piece on its way, which is read again for each try.
struct Sending<'p> {
    piece: &'p Piece<'p>,
    progress: &'p (dyn Progress + Sync),
    interrupt: &'p AtomicBool,
}

impl OpenBody for Sending<'_> {
    fn open(&self) -> Result<Box<dyn Read + '_>> {
        let Piece { path, range, .. } = self.piece;
        let failed = |error: io::Error| disk(&error, path);
        let mut file = File::open(path).map_err(failed)?;
        file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
        let file = file.take(range.end - range.start);
        Ok(Box::new(Reading { sending: self, file, read: 0 }))
    }
}

/// A piece that is read while it is sent.
struct Reading<'s> {
    sending: &'s Sending<'s>,
    file: io::Take<File>,
    read: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Sending { piece, progress, interrupt } = self.sending;
        check_interrupt(interrupt).map_err(io::Error::other)?;
        let read = self.file.read(buf);
        let read = read.inspect_err(|error| {
            lock(&piece.failed).get_or_insert_with(|| disk(error, piece.path));
        })?;
        self.read += read as u64;
        let told = piece.told.fetch_max(self.read, Ordering::Relaxed);
        progress.advance(self.read.saturating_sub(told));
        Ok(read)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_goes_whole_or_in_pieces_or_nowhere() {
        let whole = json!({ "href": "https://s/a", "header": { "x-a": "b" } });
        let Some(Way::Whole { href, headers }) = way(&whole, 9) else { panic!("whole") };
        assert_eq!((href, headers), ("https://s/a", vec![("x-a", "b")]));

        let header = json!({ "chunk_size": "4", "01": "u1", "02": "u2", "03": "u3" });
        let pieces = json!({ "href": "https://s/done", "header": header });
        let Some(Way::Pieces { size, addresses, .. }) = way(&pieces, 9) else { panic!("pieces") };
        assert_eq!((size, addresses), (4, vec!["u1", "u2", "u3"]));
        assert!(way(&pieces, 13).is_none(), "an address is missing");
        for size in [json!("0"), json!(0), json!("x"), json!(-1)] {
            let pieces = json!({ "href": "h", "header": { "chunk_size": size, "1": "u" } });
            assert!(way(&pieces, 9).is_none(), "{pieces}");
        }
        let many = json!({ "href": "h", "header": { "chunk_size": 1 } });
        assert!(way(&many, 1 << 40).is_none());
        assert!(way(&json!({}), 9).is_none());
    }
}
