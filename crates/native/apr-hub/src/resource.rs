//! One file on a server: where it is now, in which state, and ranges of it.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apr_core::{Code, Error, IoCause, Result};

use crate::answer::{Answer, cut};
use crate::client::{Ask, Client, server_of};
use crate::headers::text;
use crate::location::{is_plain, shown_url};
use crate::notes::Notes;
use crate::retry::{Patience, Trouble, check_interrupt};
use crate::settings::Token;
use crate::whole::{Whole, spool};

/// The longest file that is read whole without a word.
const NOTED: u64 = 64 << 10;

/// Maximum length of a blob's name in bytes; file systems also accept it with the suffixes that are
/// added.
const LONGEST_NAME: usize = 200;

/// Function that explains a refused request, from knowledge of what was requested.
pub(crate) type Explain = dyn Fn(&Answer) -> Error + Send + Sync;

/// Function that returns an address signed for a limited time.
pub(crate) type Sign = dyn Fn() -> String + Send + Sync;

/// A file that a server has.
pub(crate) struct Resource {
    pub(crate) client: Arc<Client>,
    /// Name of the file for users.
    pub(crate) name: String,
    /// The address, or the function that signs one.
    pub(crate) address: Address,
    pub(crate) token: Option<Token>,
    pub(crate) explain: Box<Explain>,
    pub(crate) notes: Notes,
    pub(crate) state: Mutex<State>,
    /// Held by the thread that looks up the address of the file.
    pub(crate) asking: Mutex<()>,
    /// Number of bytes of the file received over the network.
    pub(crate) received: AtomicU64,
}

/// Address that a file is requested from.
pub(crate) enum Address {
    /// Always at the same address.
    Fixed(String),
    /// A signed address, signed again each time it has expired.
    Signed(Box<Sign>),
}

/// Address that a file is currently requested from.
enum Whereabouts<'a> {
    /// The first address, and the one that it led to.
    Known(String, String),
    /// The first address, which may lead elsewhere: others wait until this is dropped.
    Asked(MutexGuard<'a, ()>),
    /// The first address, which does not redirect.
    First,
}

/// Returns `true` if the status means that a learnt address is no longer valid.
fn is_refusal(status: u16) -> bool {
    [400, 401, 403, 404, 410].contains(&status)
}

/// Facts known about a file so far.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) len: Option<u64>,
    /// The address that a redirect led to, until it is refused.
    direct: Option<(String, String)>,
    /// The first address has the file itself.
    is_here: bool,
    /// The state of the file at that address.
    pub(crate) etag: Option<String>,
    /// The single response with the whole file, if the server does not support ranges.
    whole: Option<Arc<Whole>>,
    /// The server sends ranges.
    is_ranged: bool,
    /// The hub's name for the bytes, if it sent one.
    pub(crate) linked: Option<String>,
}

/// A range of a file that is read from its beginning to its end.
pub(crate) struct Stream<'a> {
    resource: &'a Resource,
    /// Range that is still to be read.
    range: Range<u64>,
    coming: Option<Coming>,
    patience: Patience<'a>,
}

/// An answer that is being received.
struct Coming {
    answer: Answer,
    /// End of the response in the file.
    end: u64,
}

impl Stream<'_> {
    /// Fills a buffer with the next bytes.
    ///
    /// # Errors
    /// Those of [`Resource::read`].
    pub(crate) fn fill(&mut self, buf: &mut [u8]) -> Result<()> {
        let resource = self.resource;
        let mut done = 0;
        while done < buf.len() {
            check_interrupt(&resource.client.settings.interrupt)
                .map_err(|error| error.in_file(&resource.name))?;
            let whole = resource.lock().whole.clone();
            if let Some(whole) = whole {
                let (at, rest) = (self.range.start, &mut buf[done..]);
                if whole.read_at(resource, at, rest)? {
                    self.range.start += rest.len() as u64;
                    return Ok(());
                }
                resource.forget_whole(&whole);
            }

            let (got, trouble) = self.receive(&mut buf[done..]);
            done += got;
            if got > 0 {
                self.patience.renew(got);
            }

            if let Some(trouble) = trouble {
                self.coming = None;
                // With the bytes that were wanted there is no trouble yet.
                if done < buf.len() {
                    self.patience.wait(trouble).map_err(|error| renamed(&error, &resource.name))?;
                }
            }
        }

        Ok(())
    }

    /// Requests the bytes, and waits until the first ones arrive.
    ///
    /// # Errors
    /// The errors of [`Resource::read`].
    pub(crate) fn begin(&mut self) -> Result<()> {
        while self.coming.is_none() && self.resource.lock().whole.is_none() {
            match self.resource.open(&self.range) {
                Ok(coming) => self.coming = coming,
                Err(trouble) => self
                    .patience
                    .wait(trouble)
                    .map_err(|error| renamed(&error, &self.resource.name))?,
            }
        }
        Ok(())
    }

    /// Receives some bytes, after sending a request if none is in progress.
    fn receive(&mut self, buf: &mut [u8]) -> (usize, Option<Trouble>) {
        if self.coming.is_none() {
            match self.resource.open(&self.range) {
                Ok(coming) => self.coming = coming,
                Err(trouble) => return (0, Some(trouble)),
            }
        }

        let Some(Coming { answer, end }) = &mut self.coming else { return (0, None) };
        let left = usize::try_from(*end - self.range.start).unwrap_or(usize::MAX);
        let len = buf.len().min(left);
        let (got, trouble) = self.resource.receive(answer, &mut buf[..len]);
        self.range.start += got as u64;
        if got == left {
            answer.end();
            self.coming = None;
        }

        (got, trouble)
    }
}

impl Resource {
    /// Requests the first range, which reveals the length, and returns its bytes.
    ///
    /// # Errors
    /// The errors of the server.
    pub(crate) fn first_bytes(&self, wanted: u64) -> Result<Vec<u8>> {
        let mut patience = Patience::new(&self.client.settings.interrupt);
        loop {
            match self.probe(wanted) {
                Ok(bytes) => return Ok(bytes),
                Err(trouble) => patience.wait(trouble)?,
            }
        }
    }

    fn probe(&self, wanted: u64) -> Result<Vec<u8>, Trouble> {
        let mut answer = self.send(0..wanted, None)?;
        match (answer.status, answer.content_range()) {
            (206, Some((range, len))) if range.start == 0 => {
                self.check_len(&answer, len)?;
                self.learn(&answer, len);

                // A server may send more than it was asked for.
                let expected = usize::try_from(range.end).unwrap_or(usize::MAX);
                let mut bytes =
                    vec![0; expected.min(usize::try_from(wanted).unwrap_or(usize::MAX))];
                let (_, trouble) = self.receive(&mut answer, &mut bytes);
                if let Some(trouble) = trouble {
                    return Err(trouble);
                }
                answer.end();
                Ok(bytes)
            }
            // An empty file has no range that could be sent (RFC 9110, section 15.5.17).
            (416, Some((_, 0))) => {
                self.learn(&answer, 0);
                Ok(Vec::new())
            }
            (200, _) => {
                let whole = self.read_in_order(answer)?;
                let len = self.lock().len.unwrap_or_default();
                let mut bytes = vec![0; usize::try_from(wanted.min(len)).unwrap_or_default()];
                whole.read_at(self, 0, &mut bytes).map_err(Trouble::Final)?;
                Ok(bytes)
            }
            _ => Err(self.refusal(&answer)),
        }
    }

    /// Fills a buffer with the bytes from `offset` on.
    ///
    /// # Errors
    /// E007 when they can't be had, E004 when the file is not the one that it was.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.stream(offset..offset + buf.len() as u64).fill(buf)
    }

    /// Returns a stream of a range that is read piece by piece. It makes one request unless the
    /// connection is cut.
    pub(crate) fn stream(&self, range: Range<u64>) -> Stream<'_> {
        Stream { resource: self, range, coming: None, patience: self.patience() }
    }

    /// Returns the limits for repeating a request.
    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience::new(&self.client.settings.interrupt)
    }

    /// Requests a range. The response may end before the range does. Returns `None` if the server
    /// sends whole files only, and this one was kept.
    fn open(&self, range: &Range<u64>) -> Result<Option<Coming>, Trouble> {
        let etag = self.lock().etag.clone();
        let answer = self.send(range.clone(), etag.as_deref())?;
        match (answer.status, answer.content_range()) {
            (206, Some((sent, len))) => {
                self.check_same(&answer, len)?;
                if sent.start != range.start {
                    let (sent, asked) = (sent.start, range.start);
                    let message = format!("the server sent bytes from {sent}, not from {asked}");
                    return Err(Trouble::Final(
                        Error::io(IoCause::Other, message).in_file(&self.name),
                    ));
                }
                self.learn(&answer, len);
                Ok(Some(Coming { answer, end: sent.end.min(range.end) }))
            }
            // The state that was meant is gone, or there are no ranges.
            (200, _) if etag.is_some() && answer.etag() != etag.as_deref() => {
                Err(Trouble::Final(self.changed()))
            }
            (200, _) => self.read_in_order(answer).map(|_| None),
            (416, _) => Err(Trouble::Final(self.changed())),
            _ => Err(self.refusal(&answer)),
        }
    }

    /// Sends a request to the address that a redirect led to, or to the first address if that one
    /// is refused.
    fn send(&self, range: Range<u64>, if_range: Option<&str>) -> Result<Answer, Trouble> {
        let ask =
            Ask { range: Some(range), if_range, token: self.token.as_ref(), ..Ask::default() };
        for _ in 0..2 {
            let (origin, direct) = match self.whereabouts() {
                Whereabouts::Known(origin, direct) => (origin, direct),
                Whereabouts::Asked(asking) => return self.send_first(&ask, asking),
                Whereabouts::First => break,
            };
            let answer = self.client.ask_once(&Ask {
                url: &direct,
                origin: Some(&origin),
                ..ask.clone()
            })?;
            if !is_refusal(answer.status) {
                return Ok(answer);
            }

            // It has expired, as signed addresses do; another one may have been found meanwhile.
            self.lock().direct.take_if(|(_, known)| *known == direct);
        }

        self.send_alone(&ask)
    }

    /// Sends a request to the first address, and shares the target of its redirect with waiting
    /// threads before the bytes arrive.
    fn send_first(&self, ask: &Ask<'_>, asking: MutexGuard<'_, ()>) -> Result<Answer, Trouble> {
        let origin = self.first_address();
        let (asking, is_shared) = (Cell::new(Some(asking)), Cell::new(false));
        let found = |direct: String| {
            self.lock().direct = Some((origin.clone(), direct));
            is_shared.set(true);
            drop(asking.take());
        };
        let answer =
            self.client.ask_once(&Ask { url: &origin, found: Some(&found), ..ask.clone() })?;
        if is_shared.get() && is_refusal(answer.status) {
            // The others may have used the address up.
            return self.send_alone(ask);
        }

        self.learn_address(origin, &answer);
        Ok(answer)
    }

    /// Requests a new address from the first one. Other threads learn of it only after it has
    /// served.
    fn send_alone(&self, ask: &Ask<'_>) -> Result<Answer, Trouble> {
        let origin = self.first_address();
        let answer = self.client.ask_once(&Ask { url: &origin, ..ask.clone() })?;
        self.learn_address(origin, &answer);
        Ok(answer)
    }

    fn first_address(&self) -> String {
        match &self.address {
            Address::Fixed(url) => url.clone(),
            Address::Signed(sign) => sign(),
        }
    }

    fn learn_address(&self, origin: String, answer: &Answer) {
        if answer.status >= 300 {
            return;
        }
        let mut state = self.lock();
        if matches!(self.address, Address::Signed(_)) || answer.url != origin {
            state.direct = Some((origin, answer.url.clone()));
        } else {
            state.is_here = true;
        }
    }

    /// Returns the address to request from.
    ///
    /// If it is not known yet, one request finds it. The thread that makes the request holds the
    /// lock, and others wait for it instead of making the same request.
    fn whereabouts(&self) -> Whereabouts<'_> {
        let known = || {
            let state = self.lock();
            match &state.direct {
                Some((origin, direct)) => Some(Whereabouts::Known(origin.clone(), direct.clone())),
                None if state.is_here || matches!(self.address, Address::Signed(_)) => {
                    Some(Whereabouts::First)
                }
                None => None,
            }
        };

        if let Some(known) = known() {
            return known;
        }

        let asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        known().unwrap_or(Whereabouts::Asked(asking))
    }

    fn learn(&self, answer: &Answer, len: u64) {
        if answer.status == 206 && !std::mem::replace(&mut self.lock().is_ranged, true) {
            self.client.learn_ranges(&self.first_address());
        }

        let mut state = self.lock();
        state.len = Some(len);
        if let Some(etag) = answer.etag() {
            state.etag = Some(etag.to_owned());
        }
        // The hub names the bytes in its own answer, before it redirects to where they are.
        let linked = text(&answer.first, "x-linked-etag").or_else(|| text(&answer.first, "etag"));
        state.linked = linked.and_then(blob_name).or(state.linked.take());
    }

    /// Compares the state of the file with the known state.
    fn check_same(&self, answer: &Answer, len: u64) -> Result<(), Trouble> {
        let state = self.lock();
        if let Some(known) = state.len.filter(|&known| known != len) {
            let message = format!("the server states {len} bytes, expected {known}");
            return Err(Trouble::Final(Error::new(Code::Checksum, message).in_file(&self.name)));
        }
        match (&state.etag, answer.etag()) {
            (Some(known), Some(found)) if known != found => Err(Trouble::Final(self.changed())),
            _ => Ok(()),
        }
    }

    fn changed(&self) -> Error {
        let message = "the file was changed on the server while it was read; try again";
        Error::io(IoCause::Other, message).in_file(&self.name)
    }

    /// Reads from the response until the buffer is full. Returns the cause if the response ends
    /// early.
    fn receive(&self, answer: &mut Answer, buf: &mut [u8]) -> (usize, Option<Trouble>) {
        let mut done = 0;
        while done < buf.len() {
            match self.receive_some(answer, &mut buf[done..]) {
                Ok(0) => return (done, Some(Trouble::Passing(cut(&answer.url)))),
                Ok(read) => done += read,
                Err(trouble) => return (done, Some(trouble)),
            }
        }

        (done, None)
    }

    /// Reads some bytes of the response; 0 bytes mean its end.
    pub(crate) fn receive_some(
        &self,
        answer: &mut Answer,
        buf: &mut [u8],
    ) -> Result<usize, Trouble> {
        let read = answer.read(&self.client, buf)?;
        self.received.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    /// Takes the response of a server that does not support ranges. Requested bytes are read from
    /// it, up to its end if necessary.
    fn read_in_order(&self, answer: Answer) -> Result<Arc<Whole>, Trouble> {
        if let Some(whole) = &self.lock().whole {
            return Ok(Arc::clone(whole));
        }
        let stated = answer.body.content_length();
        if let Some(len) = stated {
            self.check_len(&answer, len)?;
            self.learn(&answer, len);
        }

        // Of what is shorter, everything is read anyway.
        if stated.is_none_or(|len| len > NOTED) {
            self.notes.add(format!(
                "{} does not support range requests: each file is read from its beginning, as \
                 far as needed",
                server_of(&answer.url).unwrap_or_else(|| "the server".to_owned())
            ));
        }

        let whole = Whole::new(answer, spool(self).map_err(Trouble::Final)?);
        if stated.is_none() {
            // Where it ends is seen at its end alone.
            whole.keep_all(self)?;
        }
        Ok(Arc::clone(self.lock().whole.get_or_insert(whole)))
    }

    /// Requests the file from `at` on, from a server that sent no ranges before. If the response is
    /// the whole file, the bytes before `at` are skipped.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub(crate) fn open_from(&self, at: u64) -> Result<Answer, Trouble> {
        let (etag, len) = (self.etag(), self.len());
        let mut answer = self.send(at..len.unwrap_or(u64::MAX), etag.as_deref())?;
        match (answer.status, answer.content_range()) {
            (206, Some((sent, len))) if sent.start == at => {
                self.check_same(&answer, len)?;
                return Ok(answer);
            }
            (200, _) if etag.as_deref() == answer.etag() => {}
            (200 | 206 | 416, _) => return Err(Trouble::Final(self.changed())),
            _ => return Err(self.refusal(&answer)),
        }

        if let Some(len) = answer.body.content_length() {
            self.check_len(&answer, len)?;
        }
        let (mut left, mut piece) = (at, vec![0; 1 << 17]);
        while left > 0 {
            let most = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
            match self.receive_some(&mut answer, &mut piece[..most])? {
                0 => return Err(Trouble::Passing(cut(&answer.url))),
                read => left -= read as u64,
            }
        }
        Ok(answer)
    }

    /// Records the length of a response that did not state it.
    ///
    /// # Errors
    /// E004 when the hub states another length.
    pub(crate) fn learn_end(&self, answer: &Answer, len: u64) -> Result<(), Trouble> {
        self.check_len(answer, len)?;
        self.learn(answer, len);
        Ok(())
    }

    /// Returns `true` if the server is known to support ranges.
    pub(crate) fn is_ranged(&self) -> bool {
        self.lock().is_ranged || self.client.has_ranges(&self.first_address())
    }

    /// Takes the single response with the whole file, for a caller that reads it to its end and
    /// keeps it.
    pub(crate) fn take_whole(&self) -> Option<Arc<Whole>> {
        self.lock().whole.take()
    }

    /// Forgets the answer that somebody else took over.
    fn forget_whole(&self, gone: &Arc<Whole>) {
        self.lock().whole.take_if(|whole| Arc::ptr_eq(whole, gone));
    }

    fn check_len(&self, answer: &Answer, len: u64) -> Result<(), Trouble> {
        // The hub may have said so where it led elsewhere.
        let linked = text(&answer.first, "x-linked-size").and_then(|size| size.parse().ok());
        match self.lock().len.or(linked) {
            Some(known) if known != len => {
                let message = format!("the server sends {len} bytes, expected {known}");
                Err(Trouble::Final(Error::new(Code::Checksum, message).in_file(&self.name)))
            }
            _ => Ok(()),
        }
    }

    fn refusal(&self, answer: &Answer) -> Trouble {
        Trouble::Final((self.explain)(answer).in_file(&self.name))
    }

    pub(crate) fn disk(&self, error: &std::io::Error) -> Error {
        Error::io(IoCause::Other, error.to_string()).in_file(&self.name)
    }

    /// Locks the facts known about the file.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the length in bytes, if it is known.
    pub(crate) fn len(&self) -> Option<u64> {
        self.lock().len
    }

    /// Returns the hub's name for the bytes, if it sent one. They are cached under this name.
    pub(crate) fn linked(&self) -> Option<String> {
        self.lock().linked.clone()
    }

    /// The state of the file, as its server names it.
    pub(crate) fn etag(&self) -> Option<String> {
        self.lock().etag.clone()
    }
}

/// Returns the name of the bytes with this ETag, as Hugging Face's client forms it: a digest if the
/// hub provides one, or the text that its servers send. Returns `None` if that can't be a file
/// name.
fn blob_name(etag: &str) -> Option<String> {
    let name = etag.trim_start_matches(['W', '/']).trim_matches('"');
    (is_plain(name) && !name.contains('/') && name.len() <= LONGEST_NAME).then(|| name.to_owned())
}

/// An error about an address, as one about the file that the user named.
pub(crate) fn renamed(error: &Error, name: &str) -> Error {
    let at = error.file().filter(|file| !name.contains(file));
    let message = match at {
        Some(file)
            if error.code() == Code::Io
                && error.cause() != Some(IoCause::Interrupted)
                && shown_url(file) == file =>
        {
            format!("{} (at {file})", error.message())
        }
        _ => error.message().to_owned(),
    };

    let named = match error.cause() {
        Some(cause) => Error::io(cause, message),
        None => Error::new(error.code(), message),
    };
    named.in_file(name)
}
