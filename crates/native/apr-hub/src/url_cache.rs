//! The cache of what other servers than hubs have.
//!
//! ```text
//! apr/https/HOST/PATH/FILE     the bytes
//!     checksum.json            where each came from, in which state, and its SHA-256
//!     .locks/                  held while a file is fetched, and while the list is changed
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use apr_core::Result;
use apr_core::json::Sorted;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::digest::{Checked, hex};
use crate::hub::RemoteFile;
use crate::location::{S3Location, path_of, shown_url};
use crate::lock::{Lock, disk};
use crate::notes::Notes;

/// The list's name.
const LIST: &str = "checksum.json";

/// A file that was fetched from a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cached {
    /// Address of the file, without parts that may be secret.
    pub url: String,
    /// Length in bytes.
    pub len: u64,
    /// State of the file on the server.
    pub etag: Option<String>,
    /// SHA-256 of the bytes.
    pub sha256: String,
}

impl Cached {
    /// Returns `true` if this is the server's file, judged by its length and state.
    pub(crate) fn is_same(&self, len: Option<u64>, etag: Option<&str>) -> bool {
        // Without a state, nothing says that the file is still the same.
        etag.is_some() && self.etag.as_deref() == etag && len == Some(self.len)
    }
}

/// The folder of the cache.
#[derive(Debug, Clone)]
pub(crate) struct UrlCache {
    root: PathBuf,
}

impl UrlCache {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Returns the path of a URL's file, relative to the cache's folder.
    pub(crate) fn name_of(url: &str) -> String {
        let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default().replace(':', "_");
        // What is between two slashes is a folder too, whose name no other part of a path has.
        let path = path_of(url).trim_end_matches('/');
        let parts = path.split('/').map(|part| if part.is_empty() { "%" } else { part });
        let parts = parts.filter(|_| !path.is_empty()).map(safe);
        let mut name = [safe(&scheme.to_lowercase()), safe(&host.to_lowercase())]
            .into_iter()
            .chain(parts)
            .collect::<Vec<_>>();

        // Another query may be another file; it may be a secret too, so its digest stands for it.
        if let Some((_, query)) = url.split_once('?') {
            let digest = hex(&Sha256::digest(query.as_bytes()));
            name.insert(2, format!("query-{}", &digest[..16]));
        }

        name.join("/")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn lock(&self, name: &str) -> PathBuf {
        self.root.join(".locks").join(format!("{}.lock", hex(&Sha256::digest(name.as_bytes()))))
    }

    /// Returns the files fetched from servers, by path. A list that can't be read counts as empty:
    /// its files are fetched again.
    pub(crate) fn list(&self) -> BTreeMap<String, Cached> {
        let bytes = fs::read(self.root.join(LIST)).unwrap_or_default();
        let list: BTreeMap<String, Cached> = serde_json::from_slice(&bytes).unwrap_or_default();
        list.into_iter().filter(|(name, _)| crate::location::is_plain(name)).collect()
    }

    /// A file that is there whole.
    pub(crate) fn find(&self, url: &str) -> Option<(PathBuf, Cached)> {
        let name = Self::name_of(url);
        // Names are made plain: two addresses may have the same one.
        let cached = self.list().remove(&name).filter(|cached| cached.url == shown_url(url))?;
        let path = self.path(&name);
        path.metadata().is_ok_and(|found| found.len() == cached.len).then_some((path, cached))
    }

    /// Returns the cached objects below a key, for use without a network.
    pub(crate) fn objects(&self, location: &S3Location) -> Vec<RemoteFile> {
        let bucket = format!("s3://{}/", location.bucket);
        let of_bucket =
            |cached: Cached| Some((cached.url.strip_prefix(&bucket)?.to_owned(), cached));
        let found = self
            .list()
            .into_values()
            .filter_map(of_bucket)
            .filter(|(key, _)| key.starts_with(&location.key));
        found
            .map(|(name, cached)| RemoteFile { name, len: Some(cached.len), etag: cached.etag })
            .collect()
    }

    /// Changes the list.
    ///
    /// # Errors
    /// E007.
    pub(crate) fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Cached>)) -> Result<()> {
        let _lock = Lock::take(&self.lock(LIST), LIST, &Notes::default(), &AtomicBool::new(false))?;
        let mut list = self.list();
        change(&mut list);
        let path = self.root.join(LIST);
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.root)?;
            serde_json::to_writer_pretty(&mut file, &Sorted(&list))?;
            file.persist(&path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|error| disk(&error, &path))
    }
}

/// Converts a part of a path to a plain name.
fn safe(part: &str) -> String {
    let plain: String = part
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_.%+=".contains(c) { c } else { '_' })
        .collect();
    let plain = plain.trim_start_matches('.').to_owned();
    // File systems take names of 255 bytes.
    if plain.is_empty() { "_".to_owned() } else { plain.chars().take(200).collect() }
}

/// A file in the list.
#[derive(Debug, Clone)]
pub(crate) struct ListedEntry {
    pub(crate) cache: Arc<UrlCache>,
    pub(crate) url: String,
    pub(crate) etag: Option<String>,
}

impl ListedEntry {
    /// Returns `true` if the file is in the cache in this state.
    pub(crate) fn is_there(&self, len: u64) -> bool {
        self.cache
            .find(&self.url)
            .is_some_and(|(_, cached)| cached.is_same(Some(len), self.etag.as_deref()))
    }

    /// Adds the file to the list, if its digest was computed.
    ///
    /// # Errors
    /// E007.
    pub(crate) fn add(&self, path: &Path, checked: Option<&Checked>) -> Result<()> {
        let Some(sha256) = checked.and_then(|checked| checked.sha256.clone()) else {
            return Ok(());
        };
        let len = path.metadata().map_err(|error| disk(&error, path))?.len();
        let cached = Cached { url: shown_url(&self.url), len, etag: self.etag.clone(), sha256 };
        self.cache.change(|list| {
            list.insert(UrlCache::name_of(&self.url), cached);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_place_of_its_own_in_the_folder() {
        for (url, name) in [
            ("https://host/a/b.gguf", "https/host/a/b.gguf"),
            ("http://user:secret@Host:81/a/b/", "http/host_81/a/b"),
            ("s3://bucket/a//b", "s3/bucket/a/%/b"),
            ("https://host/../..//etc/passwd", "https/host/_/_/%/etc/passwd"),
            ("https://host", "https/host"),
            ("https://host//", "https/host"),
        ] {
            assert_eq!(UrlCache::name_of(url), name);
        }
        let signed = UrlCache::name_of("https://host/a?token=secret");
        assert!(
            signed.starts_with("https/host/query-")
                && signed.ends_with("/a")
                && !signed.contains("secret")
        );
        assert_ne!(signed, UrlCache::name_of("https://host/a?token=other"));
    }
}
