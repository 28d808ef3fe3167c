//! A hub on this machine: what Hugging Face's answers to programs and takes from them, a store that
//! it redirects to, plain files, and whatever can go wrong with them.
//!
//! ```
//! use apr_testkit::hub::TestHub;
//!
//! let hub = TestHub::start();
//! hub.put("org/model", "config.json", b"{}");
//! assert!(hub.url().starts_with("http://127.0.0.1:"));
//! assert!(hub.requests().is_empty());
//! ```

mod answer;
mod content;
mod http;
mod line;
mod upload;

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use content::{Content, git_sha1, sha256};

use content::commit_id;
use line::Line;
use upload::Uploads;

/// A request that was answered.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `HEAD`, `POST` or `PUT`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// `true` for a request to the store, `false` for a request to the hub.
    pub at_store: bool,
    /// The status that was answered.
    pub status: u16,
    /// Bytes of the body that came.
    pub received: u64,
    /// Bytes of the body that are sent, if the connection lasts.
    pub sent: u64,
    /// Bytes of the body that the system took so far.
    pub written: Arc<AtomicU64>,
    /// Time of arrival.
    pub at: Instant,
}

/// Fault of an answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status, with these headers.
    Status(u16, Vec<(String, String)>),
    /// The connection is cut after this many bytes of the body.
    Cut(u64),
    /// After this many bytes of the body, nothing is sent for this time.
    Stall(u64, Duration),
    /// The body is sent in pieces of this many bytes, with this pause between them.
    Trickle(usize, Duration),
    /// The body has one bit flipped.
    Flip,
    /// The stated length of the file is this much too large.
    Longer(u64),
    /// The whole file is sent for every requested range.
    NoRanges,
    /// The stated ETag is that of another state of the file.
    OtherEtag,
    /// A redirect to this address.
    Redirect(String),
}

/// Rule for the answers that have a fault.
#[derive(Debug, Clone)]
struct Rule {
    /// A part of the target.
    matching: String,
    fault: Fault,
    /// Number of answers without the fault before it occurs.
    skip: u32,
    /// Number of answers with the fault.
    times: u32,
}

#[derive(Default)]
struct Repository {
    branches: BTreeMap<String, String>,
    commits: BTreeMap<String, BTreeMap<String, Content>>,
    /// The token that it is shown to.
    token: Option<String>,
    gated: bool,
    license: Option<String>,
}

#[derive(Default)]
struct State {
    repositories: BTreeMap<String, Repository>,
    /// Plain files by their path.
    files: BTreeMap<String, Content>,
    rules: Vec<Rule>,
    requests: Vec<Request>,
    delay: Duration,
    /// Interval of file answers, one of which is cut.
    cut_every: u64,
    answers: u64,
    /// Uses of a store's address before it expires.
    uses: Option<u32>,
    signed: BTreeMap<u64, (String, u32)>,
    next_commit: u64,
    /// Lists of files have their names alone.
    lists_names_alone: bool,
    store_url: String,
    hub_url: String,
    uploads: Uploads,
    /// First lines of the messages of commits that were sent.
    summaries: Vec<String>,
}

/// A running hub; it ends with the process.
pub struct TestHub {
    state: Arc<Mutex<State>>,
    line: Arc<Line>,
    url: String,
}

impl TestHub {
    /// Starts a hub without repositories, and the store beside it.
    #[must_use]
    pub fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port of this machine"))
    }

    /// Starts a hub on a port.
    #[must_use]
    pub fn on(hub: TcpListener) -> Self {
        let store = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
        let url = |listener: &TcpListener| {
            format!("http://{}", listener.local_addr().expect("it is bound"))
        };
        let (hub_url, store_url) = (url(&hub), url(&store));
        let state =
            Arc::new(Mutex::new(State { store_url, hub_url: hub_url.clone(), ..State::default() }));
        let line = Arc::new(Line::default());
        for (listener, at_store) in [(hub, false), (store, true)] {
            let (state, line) = (Arc::clone(&state), Arc::clone(&line));
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, line) = (Arc::clone(&state), Arc::clone(&line));
                    thread::spawn(move || serve(stream, &state, &line, at_store));
                }
            });
        }

        Self { state, line, url: hub_url }
    }

    /// Returns the address, for `HF_ENDPOINT`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Puts a file into the branch `main` of a repository, which becomes a new commit. Files that
    /// are not text are stored elsewhere, as on the real hub.
    pub fn put(&self, repo: &str, name: &str, bytes: impl AsRef<[u8]>) {
        self.put_content(repo, name, Content::of(name, bytes.as_ref()));
    }

    /// Puts a file that begins with `head` and has zeros up to `len`.
    pub fn put_sparse(&self, repo: &str, name: &str, head: &[u8], len: u64) {
        self.put_content(repo, name, Content::sparse(name, head, len));
    }

    fn put_content(&self, repo: &str, name: &str, content: Content) {
        let mut state = self.lock();
        state.next_commit += 1;
        let commit = commit_id(state.next_commit);
        let repository = state.repositories.entry(repo.to_owned()).or_default();
        let before =
            repository.branches.get("main").and_then(|commit| repository.commits.get(commit));
        let mut files = before.cloned().unwrap_or_default();
        files.insert(name.to_owned(), content);
        repository.commits.insert(commit.clone(), files);
        repository.branches.insert("main".to_owned(), commit);
    }

    /// Puts all files of a folder.
    pub fn put_folder(&self, repo: &str, folder: &std::path::Path) {
        for entry in folder.read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_file() {
                let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
                self.put(repo, name, std::fs::read(&path).expect("a file"));
            }
        }
    }

    /// Omits lengths and digests from file lists, as some mirrors do.
    pub fn list_names_alone(&self) {
        self.lock().lists_names_alone = true;
    }

    /// Gives the newest commit of a repository another name.
    pub fn branch(&self, repo: &str, name: &str) {
        let mut state = self.lock();
        let repository = state.repositories.get_mut(repo).expect("a repository");
        let commit = repository.branches["main"].clone();
        repository.branches.insert(name.to_owned(), commit);
    }

    /// The commit of `main`.
    #[must_use]
    pub fn commit(&self, repo: &str) -> String {
        self.lock().repositories[repo].branches["main"].clone()
    }

    /// The bytes of a file of a branch or a commit.
    #[must_use]
    pub fn file(&self, repo: &str, revision: &str, name: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        let repository = state.repositories.get(repo)?;
        let commit = repository.branches.get(revision).map_or(revision, String::as_str);
        let content = repository.commits.get(commit)?.get(name)?;
        Some(content.bytes(0..content.len).to_vec())
    }

    /// First lines of the messages of the commits that were sent.
    #[must_use]
    pub fn summaries(&self) -> Vec<String> {
        self.lock().summaries.clone()
    }

    /// Takes files that are larger in pieces of this many bytes.
    pub fn take_pieces(&self, bytes: u64) {
        self.lock().uploads.piece = Some(bytes);
    }

    /// Restricts a repository to requests with this token.
    pub fn make_private(&self, repo: &str, token: &str) {
        self.lock().repositories.get_mut(repo).expect("a repository").token =
            Some(token.to_owned());
    }

    /// Gates a repository. No request has access to its files.
    pub fn make_gated(&self, repo: &str) {
        self.lock().repositories.get_mut(repo).expect("a repository").gated = true;
    }

    /// Puts a plain file at a path, such as `/models/a.gguf`.
    pub fn put_file(&self, path: &str, bytes: impl AsRef<[u8]>) {
        self.lock().files.insert(path.to_owned(), Content::of(path, bytes.as_ref()));
    }

    /// Adds a fault to answers for targets that contain `matching`: `times` answers after the first
    /// `skip`.
    pub fn fault(&self, matching: &str, fault: Fault, skip: u32, times: u32) {
        self.lock().rules.push(Rule { matching: matching.to_owned(), fault, skip, times });
    }

    /// Removes all faults, delays and limits.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.rules.clear();
        state.cut_every = 0;
        state.uses = None;
        state.delay = Duration::ZERO;
        self.line.set(0);
    }

    /// Each answer takes at least this long.
    pub fn delay(&self, delay: Duration) {
        self.lock().delay = delay;
    }

    /// Limits all connections together to `bytes` bytes per second; 0 means no limit.
    pub fn rate(&self, bytes: u64) {
        self.line.set(bytes);
    }

    /// Cuts one of every `answers` file answers in its middle.
    pub fn cut_every(&self, answers: u64) {
        self.lock().cut_every = answers;
    }

    /// Lets addresses of the store expire after this many uses.
    pub fn expire_after(&self, uses: u32) {
        self.lock().uses = Some(uses);
    }

    /// The requests that were answered, and forgets them.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.lock().requests)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers the requests of a connection, until it ends.
fn serve(stream: TcpStream, state: &Mutex<State>, line: &Line, at_store: bool) {
    let Ok(mut connection) = http::Connection::new(stream) else { return };
    while let Some(asked) = connection.request() {
        let at = Instant::now();
        let (answer, delay) = {
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.answer(&asked, at_store), state.delay)
        };
        thread::sleep(delay);
        let mut request = Request {
            method: asked.method.clone(),
            target: asked.target.clone(),
            range: asked.header("range").map(str::to_owned),
            authorization: asked.header("authorization").map(str::to_owned),
            at_store,
            status: answer.status,
            received: asked.body.len() as u64,
            sent: 0,
            written: Arc::default(),
            at,
        };

        // Noted before it is sent: whoever has the answer finds the request.
        let written = Arc::clone(&request.written);
        request.sent = if asked.method == "HEAD" { 0 } else { answer.planned() };
        state.lock().unwrap_or_else(PoisonError::into_inner).requests.push(request);
        if !connection.send(&answer, asked.method == "HEAD", line, &written) {
            return;
        }
    }
}
