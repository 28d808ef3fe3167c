//! What a hub says about a repository: its commit, its files, and why it refuses.

use std::cell::RefCell;

use apr_core::{Error, IoCause, Result};
use serde_json::Value;
use ureq::http::HeaderMap;

use crate::answer::Answer;
use crate::client::{Ask, Client};
use crate::headers::{LONGEST_FILE, text};
use crate::location::{HubLocation, encode_path, encode_segment, is_plain};
use apr_view::nearest;

/// The longest listing of a repository.
const LONGEST_LISTING: u64 = 64 << 20;

/// Maximum accepted number of files in a repository.
const MOST_FILES: usize = 100_000;

/// A hub's description of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteFile {
    /// Path in the repository.
    pub name: String,
    /// Length in bytes, if it is known.
    pub len: Option<u64>,
    /// Digest that the bytes are cached under and checked with: SHA-256, or a git blob's SHA-1.
    pub etag: Option<String>,
}

/// A repository at a commit.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Repository {
    /// Full name of the repository, as the hub states it.
    pub id: String,
    /// Commit that the revision points to.
    pub commit: String,
    /// Files of the repository.
    pub files: Vec<RemoteFile>,
    /// The licence on the model card.
    pub license: Option<String>,
    /// Names of files that are rejected, since they lead out of a folder.
    pub odd: Vec<String>,
}

impl Client {
    /// Requests a repository from the hub, and returns it with the resolved location.
    ///
    /// If no revision has the name up to the first slash, the hub's list of revisions determines
    /// the end of the name.
    pub(crate) fn repository(&self, location: &HubLocation) -> Result<(HubLocation, Repository)> {
        let meant = RefCell::new(None);
        let refusal = |answer: Answer| {
            if answer.status == 404 {
                meant.replace(self.longer_revision(location));
            }
            // The explanation may cost requests.
            match *meant.borrow() {
                Some(_) => Error::io(IoCause::NotFound, "no such revision"),
                None => self.hub_error(location, &answer).in_file(location),
            }
        };
        let found = self.at_revision(location, refusal);
        match meant.take() {
            None => Ok((location.clone(), found?)),
            Some(meant) => {
                let refusal = |answer: Answer| self.hub_error(&meant, &answer).in_file(&meant);
                let found = self.at_revision(&meant, refusal)?;
                Ok((meant, found))
            }
        }
    }

    fn at_revision(
        &self,
        location: &HubLocation,
        refusal: impl Fn(Answer) -> Error,
    ) -> Result<Repository> {
        let endpoint = &self.settings.endpoint;
        let (repo, revision) = (encode_path(&location.repo), encode_segment(location.revision()));
        let url = format!("{endpoint}/api/models/{repo}/revision/{revision}?blobs=true");
        let ask = Ask { url: &url, token: self.settings.token.as_ref(), ..Ask::default() };
        let (json, _) = self.read(&ask, LONGEST_LISTING, refusal)?;
        parse(&json, location)
    }

    /// Returns the error for a hub's refusal of a repository, a revision or a file.
    pub(crate) fn hub_error(&self, location: &HubLocation, answer: &Answer) -> Error {
        let code = text(&answer.first, "x-error-code").or_else(|| answer.header("x-error-code"));
        let (repo, revision) = (&location.repo, location.revision());
        let io = |cause: IoCause, message: String| Error::io(cause, message);
        let said = said(&answer.first);
        let page = format!("{}/{repo}", self.settings.endpoint);
        match (answer.status, code.unwrap_or_default()) {
            (401 | 403, "GatedRepo") => io(
                IoCause::Other,
                format!(
                    "access to {repo} is restricted ({}): request it at {page}; {}",
                    answer.status,
                    self.whose()
                ),
            ),
            (_, "RevisionNotFound") => io(
                IoCause::NotFound,
                format!("{repo}: unknown revision '{revision}'{}", self.near_revisions(location)),
            ),
            (404, "EntryNotFound") => io(
                IoCause::NotFound,
                format!("{repo}: file '{}' not found at {revision}", location.path),
            ),
            // The hub answers alike for a private repository and for an absent one.
            (401 | 404, "RepoNotFound") | (404, _) => {
                let near = self.near_repositories(repo);
                let who = if near.is_empty() { format!("; {}", self.whose()) } else { near };
                io(IoCause::NotFound, format!("no repository {repo}, or it is private{who}"))
            }
            (401, _) => {
                io(IoCause::Other, format!("authentication required (401){said}; {}", self.whose()))
            }
            (403, _) => io(IoCause::Other, format!("access denied (403){said}; {}", self.whose())),
            (status, _) => {
                io(IoCause::Other, format!("the hub responds with status {status}{said}"))
            }
        }
    }

    /// Returns a message about the token that was used, without the token.
    fn whose(&self) -> String {
        match &self.settings.token {
            Some(token) => format!("used the token of {}", token.origin),
            None => "no token used: set HF_TOKEN, or run `hf auth login`".to_owned(),
        }
    }

    /// Returns a hint with repositories whose names are similar to one that does not exist.
    fn near_repositories(&self, repo: &str) -> String {
        let (author, name) =
            repo.split_once('/').map_or((None, repo), |(author, name)| (Some(author), name));
        let search = |query: String| {
            self.ids(&format!("{}/api/models?{query}&limit=50", self.settings.endpoint))
        };
        let mut found = match author {
            Some(author) => search(format!("author={}", encode_segment(author))),
            None => search(format!("author={}", encode_segment(name))),
        };
        if found.is_empty() {
            found = search(format!("search={}", encode_segment(name)));
        }
        did_you_mean(&nearest(repo, found.iter().map(String::as_str), 5))
    }

    fn near_revisions(&self, location: &HubLocation) -> String {
        let names = self.revisions(location);
        did_you_mean(&nearest(location.revision(), names.iter().map(String::as_str), 5))
    }

    /// Returns the branches and tags of a repository.
    fn revisions(&self, location: &HubLocation) -> Vec<String> {
        let url =
            format!("{}/api/models/{}/refs", self.settings.endpoint, encode_path(&location.repo));
        let Some(refs) = self.json(&url) else { return Vec::new() };
        let lists = ["branches", "tags"].iter().filter_map(|kind| refs.get(kind)?.as_array());
        let names = lists.flatten().filter_map(|entry| entry.get("name")?.as_str());
        names.map(str::to_owned).collect()
    }

    /// Resolves a location whose revision contains slashes, if there is such a revision.
    fn longer_revision(&self, location: &HubLocation) -> Option<HubLocation> {
        let longer: Vec<HubLocation> = location.longer().collect();
        if longer.is_empty() {
            return None;
        }
        let names = self.revisions(location);
        let is_there = |longer: &HubLocation| names.iter().any(|name| name == longer.revision());
        longer.into_iter().rev().find(is_there)
    }

    fn ids(&self, url: &str) -> Vec<String> {
        let Some(Value::Array(models)) = self.json(url) else { return Vec::new() };
        models.iter().filter_map(|model| Some(model.get("id")?.as_str()?.to_owned())).collect()
    }

    /// Returns the hub's response to an optional request, or `None` if it fails.
    fn json(&self, url: &str) -> Option<Value> {
        let ask = Ask { url, token: self.settings.token.as_ref(), ..Ask::default() };
        // Once: nobody should wait for a hint.
        let answer = self.ask_once(&ask).ok().filter(|answer| answer.status == 200)?;
        serde_json::from_slice(&self.read_all(answer, LONGEST_LISTING).ok()?).ok()
    }
}

/// Returns `; did you mean a, b?`, or an empty string without names.
pub(crate) fn did_you_mean(names: &[&str]) -> String {
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(", ")) }
}

/// Returns the message in a server's refusal, if it sent one.
fn said(headers: &HeaderMap) -> String {
    let message = text(headers, "x-error-message")
        .map(|message| message.chars().take(200).collect::<String>());
    message.map_or_else(String::new, |message| format!(": {message}"))
}

pub(crate) fn parse(json: &[u8], location: &HubLocation) -> Result<Repository> {
    let wrong = |what: &str| {
        Error::format(format!("invalid response of the hub: {what}")).in_file(location)
    };
    if json.trim_ascii_start().starts_with(b"<") {
        // That of a network's sign-in page, or of a server that is no hub.
        return Err(wrong(
            "it is a web page; check HF_ENDPOINT, the proxy and the network's login",
        ));
    }
    let answer: Value =
        serde_json::from_slice(json).map_err(|error| wrong(&apr_core::foreign(&error)))?;
    let commit = answer.get("sha").and_then(Value::as_str).filter(|commit| is_commit(commit));
    let commit = commit.ok_or_else(|| wrong("it names no commit"))?.to_owned();
    let listed = answer
        .get("siblings")
        .and_then(Value::as_array)
        .ok_or_else(|| wrong("it lists no files"))?;
    if listed.len() > MOST_FILES {
        return Err(wrong("it lists too many files"));
    }

    let (mut files, mut odd) = (Vec::new(), Vec::new());
    for entry in listed {
        let Some(name) = entry.get("rfilename").and_then(Value::as_str) else { continue };
        if is_plain(name) { files.push(file(name, entry)) } else { odd.push(name.to_owned()) }
    }

    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    let id = answer
        .get("id")
        .and_then(Value::as_str)
        .filter(|id| is_plain(id))
        .unwrap_or(&location.repo);
    let license = answer.pointer("/cardData/license").and_then(Value::as_str).map(str::to_owned);
    Ok(Repository { id: id.to_owned(), commit, files, license, odd })
}

fn file(name: &str, entry: &Value) -> RemoteFile {
    let large = entry.get("lfs").filter(|lfs| lfs.is_object());
    let sha256 = large.and_then(|lfs| lfs.get("sha256").or_else(|| lfs.get("oid"))?.as_str());

    // The git blob of a large file is a pointer, and not its bytes.
    let sha1 = entry.get("blobId").and_then(Value::as_str).filter(|_| large.is_none());
    let etag =
        sha256.filter(|etag| is_hex(etag, 64)).or_else(|| sha1.filter(|etag| is_hex(etag, 40)));
    let len =
        large.and_then(|lfs| lfs.get("size")?.as_u64()).or_else(|| entry.get("size")?.as_u64());
    RemoteFile {
        name: name.to_owned(),
        len: len.filter(|&len| len <= LONGEST_FILE),
        etag: etag.map(str::to_owned),
    }
}

/// Returns `true` if a text is the digest of a commit, and so the name of a folder.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40) || is_hex(text, 64)
}

pub(crate) fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len
        && text.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location() -> HubLocation {
        HubLocation { repo: "a/b".into(), revision: None, path: String::new() }
    }

    #[test]
    fn listings_have_sizes_and_digests_and_names_that_lead_out_are_rejected() {
        let json = format!(
            r#"{{"id":"A/b","sha":"{0}","cardData":{{"license":"mit"}},"siblings":[
                {{"rfilename":"model.safetensors","size":7,"blobId":"{0}",
                  "lfs":{{"sha256":"{1}","size":9}}}},
                {{"rfilename":"config.json","size":3,"blobId":"{0}"}},
                {{"rfilename":"../evil"}}, {{"rfilename":"/etc/passwd"}}, {{"other":1}}]}}"#,
            "0123456789abcdef0123456789abcdef01234567",
            "a".repeat(64)
        );
        let repository = parse(json.as_bytes(), &location()).expect("a listing");
        assert_eq!((repository.id.as_str(), repository.license.as_deref()), ("A/b", Some("mit")));
        assert_eq!(repository.odd, ["../evil", "/etc/passwd"]);
        let [config, weights] = &repository.files[..] else { panic!("{repository:?}") };
        assert_eq!((config.len, config.etag.as_ref().map(String::len)), (Some(3), Some(40)));
        assert_eq!((weights.len, weights.etag.as_ref().map(String::len)), (Some(9), Some(64)));
    }

    #[test]
    fn every_cut_and_every_flipped_bit_of_a_listing_is_an_error_or_a_listing() {
        let json =
            format!(r#"{{"sha":"{}","siblings":[{{"rfilename":"a","size":1}}]}}"#, "0".repeat(40));
        for broken in apr_testkit::corrupt::truncations(json.as_bytes()) {
            assert!(parse(&broken, &location()).is_err());
        }
        for broken in apr_testkit::corrupt::bit_flips(json.as_bytes(), 0..json.len()) {
            if let Ok(repository) = parse(&broken, &location()) {
                assert!(repository.files.iter().all(|file| is_plain(&file.name)));
                assert!(is_commit(&repository.commit));
            }
        }
    }
}
