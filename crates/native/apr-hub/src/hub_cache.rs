//! The cache that Hugging Face's Python client and apr share.
//!
//! ```text
//! hub/models--ORG--REPO/blobs/ETAG                       the bytes
//!                       refs/REVISION                    the commit that a branch or tag stood for
//!                       snapshots/COMMIT/FILE            a link to ../../blobs/ETAG, or its
//!                                                        second name
//! hub/.locks/models--ORG--REPO/ETAG.lock                 held while a file is fetched
//! ```

use std::cell::LazyCell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use apr_core::Result;
use apr_platform::Identity;

use crate::contents::entries_of;
use crate::digest::is_digest;
use crate::fetched::Fetched;
use crate::hub::{RemoteFile, Repository, is_commit};
use crate::location::{HubLocation, is_plain};
use crate::lock::disk;

/// A repository's folder in the cache.
#[derive(Debug, Clone)]
pub(crate) struct RepositoryFolder {
    root: PathBuf,
    name: String,
    fetched: Fetched,
}

impl RepositoryFolder {
    /// Creates the folder of a repository in the cache `root`; `own` is apr's own cache.
    pub(crate) fn new(root: &Path, own: &Path, repo: &str) -> Self {
        Self {
            root: root.to_path_buf(),
            name: format!("models--{}", repo.replace('/', "--")),
            fetched: Fetched::new(own, root),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(etag)
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.path().join("snapshots").join(commit)
    }

    pub(crate) fn reference(&self, revision: &str) -> PathBuf {
        self.path().join("refs").join(revision)
    }

    pub(crate) fn lock(&self, etag: &str) -> PathBuf {
        self.root.join(".locks").join(&self.name).join(format!("{etag}.lock"))
    }

    /// Returns the path of a file of a commit, if it is complete.
    pub(crate) fn file(&self, commit: &str, file: &RemoteFile) -> Option<PathBuf> {
        let linked = self.snapshot(commit).join(&file.name);
        let blob = || file.etag.as_deref().map(|etag| self.blob(etag));
        let found = [Some(linked), blob()].into_iter().flatten().find(|path| path.is_file())?;
        let len = found.metadata().ok()?.len();
        file.len.is_none_or(|expected| expected == len).then_some(found)
    }

    /// Returns the digest of a file of a snapshot, if the name of its blob is one.
    pub(crate) fn digest(&self, path: &Path) -> Option<String> {
        digest_of(path, &LazyCell::new(|| self.blobs()))
    }

    /// Returns the blobs whose names are their digests.
    fn blobs(&self) -> Vec<(Identity, String)> {
        let entries = entries_of(&self.path().join("blobs")).into_iter();
        let named = entries.filter_map(|path| {
            let digest = path.file_name()?.to_str().filter(|name| is_digest(name))?.to_owned();
            Some((Identity::of_path(&path).ok()?, digest))
        });
        named.collect()
    }

    /// Returns the commit that a revision pointed to at the last request.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.reference(revision)).ok()?;
        is_commit(commit.trim()).then(|| commit.trim().to_owned())
    }

    /// Returns the cached part of a repository, without contacting the hub.
    pub(crate) fn repository(&self, location: &HubLocation) -> Option<Repository> {
        let commit = self.commit(location.revision())?;
        let snapshot = self.snapshot(&commit);
        let mut files = Vec::new();
        list(&snapshot, "", &LazyCell::new(|| self.blobs()), &mut files);
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let id = location.repo.clone();
        (!files.is_empty()).then_some(Repository {
            id,
            commit,
            files,
            license: None,
            odd: Vec::new(),
        })
    }
}

/// A file of a commit in the cache.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotEntry {
    pub(crate) folder: RepositoryFolder,
    pub(crate) commit: String,
    /// Revision that the user requested, which points to the commit.
    pub(crate) revision: String,
    pub(crate) name: String,
}

impl SnapshotEntry {
    /// Records that apr fetched a blob.
    pub(crate) fn fetched(&self, blob: &Path) {
        self.folder.fetched.add(blob);
    }

    /// Links a blob to its name in the commit.
    ///
    /// # Errors
    /// E007.
    pub(crate) fn add(&self, blob: &Path) -> Result<()> {
        let link = self.folder.snapshot(&self.commit).join(&self.name);
        self.link(blob, &link).map_err(|error| disk(&error, &link))?;
        self.refer().map_err(|error| disk(&error, &self.folder.reference(&self.revision)))
    }

    fn link(&self, blob: &Path, link: &Path) -> io::Result<()> {
        if let Some(folder) = link.parent() {
            fs::create_dir_all(folder)?;
        }

        let tag = self.folder.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            fs::write(tag, CACHE_TAG)?;
        }

        // Out of `snapshots/COMMIT` and the name's own folders, as Python's client links it.
        let up = "../".repeat(2 + self.name.matches('/').count());
        let etag = blob.file_name().unwrap_or_default().to_string_lossy();
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(link).is_ok_and(|found| found == target) {
            return Ok(());
        }

        // Under another name first, so that the link is there at every moment.
        let beside = link.with_file_name(format!(".{etag}.apr-link"));
        let _ = fs::remove_file(&beside);
        apr_platform::link_file(&target, blob, &beside)?;
        apr_platform::replace(&beside, link)
    }

    fn refer(&self) -> io::Result<()> {
        if is_commit(&self.revision)
            || self.folder.commit(&self.revision).as_deref() == Some(&self.commit)
        {
            return Ok(());
        }
        let reference = self.folder.reference(&self.revision);
        if let Some(folder) = reference.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(reference, &self.commit)
    }
}

/// Tag file by which backup programs detect a cache.
const CACHE_TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This file marks a folder of the Hugging Face cache, which can be downloaded again.\n";

/// Returns the digest of a file, which is the name of its blob. The file is a symbolic link to the
/// blob, or a hard link if the user may not create symbolic ones.
fn digest_of<F: FnOnce() -> Vec<(Identity, String)>>(
    path: &Path,
    blobs: &LazyCell<Vec<(Identity, String)>, F>,
) -> Option<String> {
    if let Ok(target) = fs::read_link(path) {
        let name = target.file_name()?.to_str()?;
        return is_digest(name).then(|| name.to_owned());
    }
    let identity = Identity::of_path(path).ok().filter(|identity| identity.links() > 1)?;
    let found = blobs.iter().find(|(blob, _)| blob.is_file_of(&identity))?;
    Some(found.1.clone())
}

/// Adds the files of a snapshot, with the digests in the names of their blobs.
fn list<F: FnOnce() -> Vec<(Identity, String)>>(
    folder: &Path,
    prefix: &str,
    blobs: &LazyCell<Vec<(Identity, String)>, F>,
    files: &mut Vec<RemoteFile>,
) {
    for path in entries_of(folder) {
        let Some(name) =
            path.file_name().and_then(|name| name.to_str()).filter(|name| is_plain(name))
        else {
            continue;
        };
        let name = format!("{prefix}{name}");

        // A link to a folder may lead around in a circle.
        if path.is_dir() && !path.is_symlink() {
            list(&path, &format!("{name}/"), blobs, files);
        } else if let Ok(metadata) = path.metadata() {
            let etag = digest_of(&path, blobs);
            files.push(RemoteFile { name, len: Some(metadata.len()), etag });
        }
    }
}
