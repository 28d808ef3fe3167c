//! Uploads: files of this machine become one commit of a repository on a hub.
//!
//! 1. [`Hub::plan_upload`] asks the hub which files belong in the commit itself and which in its
//!    store, and compares their digests with those of the repository.
//! 2. [`UploadPlan::send`] sends the store the bytes that it lacks (`store.rs`), and commits.
//!
//! The store keeps what it has: an upload that ended early sends only the rest when it is repeated.

mod store;

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use apr_core::{Error, IoCause, Phase, Progress, Result};
use apr_platform::Identity;
use base64ct::{Base64, Encoding};
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::client::{Ask, Client, Delivery, Method};
use crate::digest::{file_agrees, sha256_of};
use crate::headers::text;
use crate::hub::{is_commit, is_hex};
use crate::location::{HubLocation, Location, encode_path, encode_segment, is_plain};
use crate::lock::disk;
use crate::lookup::Hub;

/// Files that the hub is asked about in one request.
const AT_ONCE: usize = 256;

/// Bytes of the beginning of a file by which the hub decides how it takes the file.
const SAMPLE: usize = 512;

/// Maximum number of bytes of all files that are part of the commit itself, which is in memory.
const MOST_IN_COMMIT: u64 = 64 << 20;

/// Longest answer of the hub.
const LONGEST_ANSWER: u64 = 16 << 20;

/// A file of this machine with its name in the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalFile {
    /// Name in the repository, with `/` between folders.
    pub name: String,
    /// Path on this machine.
    pub path: PathBuf,
}

/// Options of an upload.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct UploadOptions {
    /// First line of the commit's message.
    pub summary: String,
    /// `true` to open a pull request, and leave the revision as it is.
    pub pull_request: bool,
    /// Creates the repository if there is none, for these readers.
    pub create: Option<Visibility>,
}

/// Who may read a repository that is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visibility {
    /// Its owner, or the members of its organization.
    Private,
    /// Everyone.
    Public,
}

/// What happens with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UploadState {
    /// It is part of the commit, and its bytes are sent.
    Sent,
    /// It is part of the commit. The store had its bytes.
    Stored,
    /// The repository has the same bytes under this name.
    Unchanged,
    /// The repository's `.gitignore` names it.
    Ignored,
}

impl UploadState {
    /// Returns the state as one word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Stored => "stored",
            Self::Unchanged => "unchanged",
            Self::Ignored => "ignored",
        }
    }

    /// Returns `true` if the file is part of the commit.
    fn is_new(self) -> bool {
        matches!(self, Self::Sent | Self::Stored)
    }
}

/// A file of an upload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PlannedFile {
    /// Name in the repository.
    pub name: String,
    /// Size in bytes.
    pub len: u64,
    /// What happens with the file. Before [`UploadPlan::send`], every file that the repository
    /// lacks is [`UploadState::Sent`].
    pub state: UploadState,
    path: PathBuf,
    before: Identity,
    /// SHA-256 of a file for the store; `None` for one in the commit.
    sha256: Option<String>,
}

/// A commit that was made.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Uploaded {
    /// All files of the upload.
    pub files: Vec<PlannedFile>,
    /// The commit; `None` if the repository had all files.
    pub commit: Option<String>,
    /// Address of the pull request that was opened.
    pub pull_request: Option<String>,
}

/// An upload of which nothing was sent.
pub struct UploadPlan<'h> {
    client: &'h Client,
    location: HubLocation,
    options: UploadOptions,
    files: Vec<PlannedFile>,
    is_new: bool,
}

impl Hub {
    /// Plans an upload of files into a repository, below the folder that the location names.
    ///
    /// Of a repository that does not exist and is to be created, the plan has every file.
    ///
    /// # Errors
    /// E001 for a location that is no repository of a hub, and for a name that leads out of a
    /// folder; E007 for a file that can't be read, without a token, and where the hub refuses.
    pub fn plan_upload(
        &self,
        location: &Location,
        files: &[LocalFile],
        options: UploadOptions,
        progress: &dyn Progress,
    ) -> Result<UploadPlan<'_>> {
        let Location::Hub(location) = self.as_hub(location) else {
            let message = "expected a repository of a hub, such as hf://org/model";
            return Err(Error::format(message).in_file(location));
        };
        if self.client.settings.token.is_none() {
            let message = "an upload requires a token: set HF_TOKEN, or run `hf auth login`";
            return Err(Error::io(IoCause::Other, message).in_file(&location));
        }
        let mut planned = files.iter().map(|file| planned(file, &location));
        let files = planned.by_ref().collect::<Result<Vec<_>>>()?;
        let mut plan = UploadPlan { client: &self.client, location, options, files, is_new: false };
        plan.is_new = !plan.compare(progress)?;
        Ok(plan)
    }
}

fn planned(file: &LocalFile, location: &HubLocation) -> Result<PlannedFile> {
    let failed = |error: std::io::Error| disk(&error, &file.path);
    let name = match location.path.trim_end_matches('/') {
        "" => file.name.clone(),
        folder => format!("{folder}/{}", file.name),
    };
    if !is_plain(&name) {
        let message = "a name in a repository can't lead out of its folder";
        return Err(Error::format(message).in_file(file.path.display()));
    }
    let before = Identity::of_path(&file.path).map_err(failed)?;
    Ok(PlannedFile {
        name,
        len: before.len(),
        state: UploadState::Sent,
        path: file.path.clone(),
        before,
        sha256: None,
    })
}

impl UploadPlan<'_> {
    /// Returns the files.
    #[must_use]
    pub fn files(&self) -> &[PlannedFile] {
        &self.files
    }

    /// Returns `true` if the repository does not exist, and is created.
    #[must_use]
    pub fn creates(&self) -> bool {
        self.is_new
    }

    /// Returns the bytes of the files that the repository lacks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter(|file| file.state.is_new()).map(|file| file.len).sum()
    }

    /// Creates the repository if there is none, and compares the files with what it has then.
    ///
    /// # Errors
    /// Those of [`Hub::plan_upload`].
    pub fn create(&mut self, progress: &dyn Progress) -> Result<()> {
        if !self.is_new {
            return Ok(());
        }
        self.ask_to_create()?;
        self.is_new = !self.compare(progress)?;
        if self.is_new {
            let message = "the hub does not find the repository that it created";
            return Err(Error::io(IoCause::NotFound, message).in_file(&self.location));
        }
        Ok(())
    }

    /// Sends the files that the repository lacks, and commits them. Creates the repository if
    /// [`UploadPlan::create`] has not.
    ///
    /// # Errors
    /// E007 where the hub or its store refuses, for a file that changed since it was planned, and
    /// when the user interrupts; E008 for small files that are too large together.
    pub fn send(mut self, progress: &(dyn Progress + Sync)) -> Result<Uploaded> {
        self.create(&())?;
        for at in 0..self.files.len() {
            if let (Some(sha256), true) = (&self.files[at].sha256, self.files[at].state.is_new())
                && !self.store(&self.files[at], sha256, progress)?
            {
                self.files[at].state = UploadState::Stored;
                progress.advance(self.files[at].len);
            }
        }
        if !self.files.iter().any(|file| file.state.is_new()) {
            return Ok(Uploaded { files: self.files, commit: None, pull_request: None });
        }

        let body = self.commit_body(progress)?;
        let url = format!(
            "{}/commit/{}{}",
            self.api(),
            encode_segment(self.location.revision()),
            if self.options.pull_request { "?create_pr=1" } else { "" }
        );
        let answer = self.ask(&url, "application/x-ndjson", &body, false).map_err(|error| {
            if error.cause() != Some(IoCause::Network) {
                return error;
            }
            let message = error.message();
            let message = format!("{message}; the commit may have been made: repeat the upload");
            Error::io(IoCause::Network, message).in_file(&self.location)
        })?;
        let commit = answer.get("commitOid").and_then(Value::as_str);
        let commit = commit.filter(|commit| is_commit(commit));
        let commit = commit.ok_or_else(|| self.wrong("it names no commit"))?.to_owned();
        let pull_request = answer.get("pullRequestUrl").and_then(Value::as_str);
        Ok(Uploaded {
            pull_request: pull_request.map(str::to_owned),
            files: self.files,
            commit: Some(commit),
        })
    }

    /// Asks how the hub takes each file, and which ones it has. Returns `false` if there is no
    /// repository, and it is to be created.
    fn compare(&mut self, progress: &dyn Progress) -> Result<bool> {
        let url = format!("{}/preupload/{}", self.api(), encode_segment(self.location.revision()));
        let asked: u64 = self.files.iter().map(|file| file.len).sum();
        progress.begin(Phase::Hashing, asked);
        for first in (0..self.files.len()).step_by(AT_ONCE) {
            let range = first..self.files.len().min(first + AT_ONCE);
            let files = self.files[range.clone()].iter().map(|file| {
                let sample = Base64::encode_string(&sample_of(file)?);
                Ok(json!({ "path": file.name, "size": file.len, "sample": sample }))
            });
            let body = json!({ "files": files.collect::<Result<Vec<_>>>()? }).to_string();
            let is_missing = Cell::new(false);
            let refusal = |answer: Answer| {
                let code = text(&answer.first, "x-error-code").unwrap_or_default();
                is_missing.set(code == "RepoNotFound" && self.options.create.is_some());
                self.refusal(&answer)
            };
            let answer = self.sent(&url, "application/json", body.as_bytes(), true, refusal);
            if is_missing.get() {
                return Ok(false);
            }
            let answer = answer?;
            let listed = answer.get("files").and_then(Value::as_array);
            let listed = listed.ok_or_else(|| self.wrong("it lists no files"))?.clone();
            for at in range {
                let name = &self.files[at].name;
                let is_named =
                    |entry: &&Value| entry.get("path").and_then(Value::as_str) == Some(name);
                let entry = listed.iter().find(is_named);
                let entry = entry.ok_or_else(|| self.wrong("it leaves out a file"))?;
                self.files[at] = self.compared(&self.files[at], entry, progress)?;
            }
        }
        Ok(true)
    }

    /// Returns a file with what the hub says of it.
    fn compared(
        &self,
        file: &PlannedFile,
        entry: &Value,
        progress: &dyn Progress,
    ) -> Result<PlannedFile> {
        let mut file = file.clone();
        let interrupt = &self.client.settings.interrupt;
        let theirs = entry.get("oid").and_then(Value::as_str).unwrap_or_default();
        let is_same = match entry.get("uploadMode").and_then(Value::as_str) {
            // The store takes no empty files.
            Some("lfs") if file.len > 0 => {
                let sha256 = sha256_of(&file.path, progress, interrupt)?;
                let is_same = theirs == sha256;
                file.sha256 = Some(sha256);
                is_same
            }
            Some("regular" | "lfs") => {
                is_hex(theirs, 40) && file_agrees(&file.path, theirs, progress, interrupt)?
            }
            _ => return Err(self.wrong("it does not say how it takes a file")),
        };
        file.state = match entry.get("shouldIgnore").and_then(Value::as_bool) {
            Some(true) => UploadState::Ignored,
            _ if is_same => UploadState::Unchanged,
            _ => UploadState::Sent,
        };
        Ok(file)
    }

    fn ask_to_create(&self) -> Result<()> {
        let url = format!("{}/api/repos/create", self.client.settings.endpoint);
        let is_private = self.options.create != Some(Visibility::Public);
        let body = match self.location.repo.split_once('/') {
            Some((organization, name)) => {
                json!({ "name": name, "organization": organization, "private": is_private })
            }
            None => json!({ "name": self.location.repo, "private": is_private }),
        };
        self.ask(&url, "application/json", body.to_string().as_bytes(), false).map(drop)
    }

    /// Returns the lines of the commit: its message, and an entry for each file.
    fn commit_body(&self, progress: &dyn Progress) -> Result<Vec<u8>> {
        let inside = |file: &&PlannedFile| file.state.is_new() && file.sha256.is_none();
        let bytes: u64 = self.files.iter().filter(inside).map(|file| file.len).sum();
        if bytes > MOST_IN_COMMIT {
            let message = format!(
                "the hub wants {bytes} bytes of files within one commit, the maximum is \
                 {MOST_IN_COMMIT}: upload them in several runs"
            );
            return Err(Error::memory(message).in_file(&self.location));
        }
        let header = json!({ "summary": self.options.summary, "description": "" });
        let mut lines = vec![json!({ "key": "header", "value": header })];
        for file in self.files.iter().filter(|file| file.state.is_new()) {
            lines.push(match &file.sha256 {
                Some(oid) => {
                    let (path, size) = (&file.name, file.len);
                    let value = json!({ "path": path, "algo": "sha256", "oid": oid, "size": size });
                    json!({ "key": "lfsFile", "value": value })
                }
                None => {
                    let failed = |error: std::io::Error| disk(&error, &file.path);
                    let bytes = std::fs::read(&file.path).map_err(failed)?;
                    file.check_unchanged()?;
                    progress.advance(file.len);
                    let content = Base64::encode_string(&bytes);
                    let value =
                        json!({ "path": file.name, "encoding": "base64", "content": content });
                    json!({ "key": "file", "value": value })
                }
            });
        }
        Ok(lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect())
    }

    /// Returns the address of the repository for programs.
    fn api(&self) -> String {
        let endpoint = &self.client.settings.endpoint;
        format!("{endpoint}/api/models/{}", encode_path(&self.location.repo))
    }

    /// Posts a text to the hub, and returns its answer, which is JSON or nothing.
    fn ask(&self, url: &str, kind: &str, body: &[u8], is_repeatable: bool) -> Result<Value> {
        self.sent(url, kind, body, is_repeatable, |answer| self.refusal(&answer))
    }

    fn sent(
        &self,
        url: &str,
        kind: &str,
        body: &[u8],
        is_repeatable: bool,
        refusal: impl Fn(Answer) -> Error,
    ) -> Result<Value> {
        let delivery = Delivery {
            method: Method::Post,
            headers: vec![("Content-Type", kind), ("Accept", kind_of_answer(kind))],
            len: body.len() as u64,
            body: &body,
            is_repeatable,
        };
        let endpoint = &self.client.settings.endpoint;
        let ask = Ask {
            url,
            // What the hub names may be on another server, which gets no token.
            origin: Some(endpoint),
            token: self.client.settings.token.as_ref(),
            delivery: Some(&delivery),
            ..Ask::default()
        };
        let (answer, _) = self.client.read(&ask, LONGEST_ANSWER, refusal)?;
        if answer.trim_ascii().is_empty() {
            return Ok(Value::Null);
        }
        // Of what is only confirmed, the answer is a word.
        Ok(serde_json::from_slice(&answer).unwrap_or(Value::Null))
    }

    fn refusal(&self, answer: &Answer) -> Error {
        self.client.hub_error(&self.location, answer).in_file(&self.location)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::format(format!("invalid response of the hub: {what}")).in_file(&self.location)
    }
}

impl PlannedFile {
    /// Checks that the file is the one that was planned.
    fn check_unchanged(&self) -> Result<()> {
        let now = Identity::of_path(&self.path).map_err(|error| disk(&error, &self.path))?;
        if now.is_unchanged_since(&self.before) {
            return Ok(());
        }
        let message = "the file changed while it was uploaded: nothing was committed";
        Err(Error::io(IoCause::Other, message).in_file(self.path.display()))
    }
}

/// Returns the kind of answer to a request of this kind: git's large files have one of their own.
fn kind_of_answer(kind: &str) -> &str {
    if kind == "application/x-ndjson" { "application/json" } else { kind }
}

fn sample_of(file: &PlannedFile) -> Result<Vec<u8>> {
    let failed = |error: std::io::Error| disk(&error, &file.path);
    let mut sample = Vec::new();
    let opened = File::open(&file.path).map_err(failed)?;
    opened.take(SAMPLE as u64).read_to_end(&mut sample).map_err(failed)?;
    Ok(sample)
}
