//! What the caches hold: shown, cleared, verified.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use apr_core::{Progress, Result};
use apr_platform::Identity;

use crate::digest::{file_agrees, is_digest};
use crate::fetched::Fetched;
use crate::lock::{Lock, disk};
use crate::url_cache::UrlCache;

/// Prefix of the names of repository folders.
const START: &str = "models--";

/// A repository, or the files of a server, in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// `hf://ORG/REPO`, or the address of a file.
    pub name: String,
    /// Number of complete files.
    pub files: u64,
    /// Length of the complete files in bytes.
    pub bytes: u64,
    /// Length in bytes of partial files and of files that did not match their digest.
    pub partial: u64,
    /// Time of the last read or write of one of the files.
    pub used: Option<SystemTime>,
    /// Number of complete files that apr fetched, and their length in bytes, including partial
    /// files. Other files belong to Hugging Face's client or another program.
    pub own: (u64, u64),
    /// `true` if another program stored files there.
    pub has_others: bool,
    kind: CacheEntryKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum CacheEntryKind {
    /// The folder of a repository.
    Repository(PathBuf),
    /// The name of a file in the other cache.
    Url(String),
}

/// A damaged file in a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Repository or address that the file belongs to.
    pub name: String,
    /// Path of the file.
    pub path: PathBuf,
}

/// The caches of both kinds.
#[derive(Debug, Clone)]
pub struct Caches {
    hub: PathBuf,
    urls: UrlCache,
    fetched: Fetched,
}

impl Caches {
    /// Creates the caches in these folders: Hugging Face's, and the one for everything else.
    #[must_use]
    pub fn new(hub: &Path, other: &Path) -> Self {
        let fetched = Fetched::new(other, hub);
        Self { hub: hub.to_path_buf(), urls: UrlCache::new(other), fetched }
    }

    /// Returns the contents of the caches, sorted by name.
    #[must_use]
    pub fn list(&self) -> Vec<Holding> {
        let entries = entries_of(&self.hub).into_iter();
        let mut holdings: Vec<Holding> =
            entries.filter_map(|folder| self.repository(&folder)).collect();
        let urls = self.urls.list();
        holdings.extend(urls.into_iter().filter_map(|(name, cached)| {
            let found = self.urls.path(&name).metadata().ok()?;
            let (bytes, used) = (found.len(), last_use(&found));
            Some(Holding {
                name: cached.url,
                files: 1,
                bytes,
                partial: 0,
                used,
                own: (1, bytes),
                has_others: false,
                kind: CacheEntryKind::Url(name),
            })
        }));
        holdings.sort_by(|a, b| a.name.cmp(&b.name));
        holdings
    }

    /// Returns the paths under which programs open the cached files, in order: the folder of each
    /// snapshot of a repository, and the files of other servers.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let is_repository = |folder: &PathBuf| {
            let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            [START, "datasets--", "spaces--"].iter().any(|start| name.starts_with(start))
        };
        let repositories = entries_of(&self.hub).into_iter().filter(is_repository);
        let mut paths: Vec<PathBuf> =
            repositories.flat_map(|folder| entries_of(&folder.join("snapshots"))).collect();
        let urls = self.urls.list();
        paths.extend(urls.keys().map(|name| self.urls.path(name)).filter(|path| path.is_file()));
        paths.sort();
        paths
    }

    /// Removes the files of `holding` that apr fetched, or with `all` the files of other programs
    /// too. Returns `false` if a program is fetching into it.
    ///
    /// # Errors
    /// E007.
    pub fn clear(&self, holding: &Holding, all: bool) -> Result<bool> {
        match &holding.kind {
            CacheEntryKind::Repository(folder) => {
                self.clear_repository(folder, all || !holding.has_others)
            }
            CacheEntryKind::Url(name) => {
                let Some(_lock) = Lock::try_take(&self.urls.lock(name))? else { return Ok(false) };
                let path = self.urls.path(name);
                fs::remove_file(&path).map_err(|error| disk(&error, &path))?;
                self.urls.change(|list| {
                    list.remove(name);
                })?;
                Ok(true)
            }
        }
    }

    fn clear_repository(&self, folder: &Path, all: bool) -> Result<bool> {
        let locks = self.hub.join(".locks").join(folder.file_name().unwrap_or_default());
        let names = entries_of(&locks);

        // A lock that somebody holds means that a program fetches into the folder.
        let mut held = Vec::new();
        for name in names {
            match Lock::try_take(&name)? {
                Some(lock) => held.push(lock),
                None => return Ok(false),
            }
        }
        let own: Vec<PathBuf> =
            blobs(folder).into_iter().filter(|blob| self.fetched.has(blob)).collect();
        if !all {
            unlink(&folder.join("snapshots"), &own)?;
            for blob in &own {
                fs::remove_file(blob).map_err(|error| disk(&error, blob))?;
                self.fetched.forget(blob);
            }
            return Ok(true);
        }
        fs::remove_dir_all(folder).map_err(|error| disk(&error, folder))?;
        own.iter().for_each(|blob| self.fetched.forget(blob));

        // Whoever takes a lock notices that its file is gone.
        let _ = fs::remove_dir_all(&locks);
        Ok(true)
    }

    /// Compares every file of one with its digest.
    ///
    /// # Errors
    /// E007 for a file that can't be read, and when the user interrupts.
    pub fn verify(
        &self,
        holding: &Holding,
        progress: &dyn Progress,
        interrupt: &AtomicBool,
    ) -> Result<Vec<Damage>> {
        let files: Vec<(PathBuf, String)> = match &holding.kind {
            CacheEntryKind::Repository(folder) => {
                blobs(folder).into_iter().filter_map(|path| digest_of(&path)).collect()
            }
            CacheEntryKind::Url(name) => {
                let listed = self.urls.list().remove(name);
                listed.map(|cached| (self.urls.path(name), cached.sha256)).into_iter().collect()
            }
        };

        let mut damaged = Vec::new();
        for (path, digest) in files {
            if !file_agrees(&path, &digest, progress, interrupt)? {
                damaged.push(Damage { name: holding.name.clone(), path });
            }
        }

        Ok(damaged)
    }
}

impl Caches {
    fn repository(&self, folder: &Path) -> Option<Holding> {
        let name = folder.file_name()?.to_str()?.strip_prefix(START)?;

        // The first `--` is the slash; others may be the name's own.
        let name = format!("hf://{}", name.replacen("--", "/", 1));
        let mut holding = Holding {
            name,
            files: 0,
            bytes: 0,
            partial: 0,
            used: None,
            own: (0, 0),
            has_others: false,
            kind: CacheEntryKind::Repository(folder.to_path_buf()),
        };
        let mut is_empty = true;
        for path in blobs(folder) {
            let Ok(found) = path.metadata() else { continue };
            holding.used = holding.used.max(last_use(&found));
            let is_own = self.fetched.has(&path);
            is_empty = false;
            holding.has_others |= !is_own;
            let (files, bytes) = if digest_of(&path).is_some() {
                holding.files += 1;
                holding.bytes += found.len();
                (1, found.len())
            } else {
                holding.partial += taken(&found);
                (0, taken(&found))
            };
            if is_own {
                holding.own = (holding.own.0 + files, holding.own.1 + bytes);
            }
        }

        // Without blobs, nothing says that apr made the folder.
        holding.has_others |= is_empty;
        Some(holding)
    }
}

/// Removes all links to these blobs in a folder and its subfolders: symbolic links and hard links.
fn unlink(folder: &Path, blobs: &[PathBuf]) -> Result<()> {
    let own: Vec<Identity> = blobs.iter().filter_map(|blob| Identity::of_path(blob).ok()).collect();
    for path in entries_of(folder) {
        if path.is_dir() && !path.is_symlink() {
            unlink(&path, blobs)?;
            // Only where nothing is left in it.
            let _ = fs::remove_dir(&path);
            continue;
        }
        let leads_to = Identity::of_path(&path);
        if leads_to.is_ok_and(|found| own.iter().any(|blob| found.is_file_of(blob))) {
            fs::remove_file(&path).map_err(|error| disk(&error, &path))?;
        }
    }
    Ok(())
}

/// Returns the number of bytes that a file occupies on disk. A partial file has its full length
/// from the start.
fn taken(found: &fs::Metadata) -> u64 {
    apr_platform::allocated(found)
}

/// Returns the paths in a folder; empty if it can't be listed.
pub(crate) fn entries_of(folder: &Path) -> Vec<PathBuf> {
    let names = apr_platform::list_folder(folder).unwrap_or_default();
    names.into_iter().map(|name| folder.join(name)).collect()
}

fn blobs(folder: &Path) -> Vec<PathBuf> {
    let mut paths = entries_of(&folder.join("blobs"));
    paths.sort();
    paths
}

/// Returns the path of a blob and the digest that is its name.
fn digest_of(path: &Path) -> Option<(PathBuf, String)> {
    let name = path.file_name()?.to_str()?;
    is_digest(name).then(|| (path.to_path_buf(), name.to_owned()))
}

fn last_use(found: &fs::Metadata) -> Option<SystemTime> {
    found.accessed().ok().max(found.modified().ok())
}
