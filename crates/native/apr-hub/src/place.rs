//! A location that was looked up: which files are there, and how to read them.

mod complete;
mod download;
mod open;
mod prefetch;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apr_core::{Error, IoCause, Result};

use crate::choose::{Choice, Chosen, choose, kind_of};
use crate::hub::{RemoteFile, Repository, did_you_mean, is_hex};
use crate::location::{HubLocation, Location, encode_path, is_plain, path_of};
use crate::lookup::{Hub, LocationKind};
use crate::notes::Notes;
use crate::source::{Reading, RemoteSource};
use crate::url_cache::UrlCache;
use apr_view::nearest_files;

pub use download::Downloaded;
use verify::CachedFile;

pub use open::OpenedFile;

/// A location that was looked up.
#[derive(Clone)]
pub struct ResolvedLocation {
    hub: Hub,
    location: Location,
    kind: LocationKind,
    /// The folder of the repository that the names of files count from: empty, or with a slash at
    /// its end.
    base: String,
    /// The file that was named.
    file: Option<String>,
    files: Vec<RemoteFile>,
    /// Files that make up one model.
    chosen: Chosen,
    reading: Arc<Reading>,
    /// Sources opened over the network, by name.
    opened: Arc<Mutex<BTreeMap<String, RemoteSource>>>,
    /// Files opened from the cache whose digest is known, by name.
    cached: Arc<Mutex<BTreeMap<String, Arc<CachedFile>>>>,
    /// Names of files whose digests were requested.
    claimed: Arc<Mutex<BTreeSet<String>>>,
}

impl Hub {
    /// Looks up a location, with one request to a hub and none to other servers.
    ///
    /// # Errors
    /// E007 if it does not exist or the user has no access to it, and if there is no network.
    pub fn place(&self, location: &Location) -> Result<ResolvedLocation> {
        let kind = match self.as_hub(location) {
            Location::Hub(hub) => self.repository(&hub)?,
            Location::Url(url) => LocationKind::Url(url),
            Location::S3(s3) => self.objects(s3).map_err(|error| error.in_file(location))?,
        };
        ResolvedLocation::new(self.clone(), location.clone(), kind)
            .map_err(|error| error.in_file(location))
    }
}

impl ResolvedLocation {
    pub(crate) fn new(hub: Hub, location: Location, kind: LocationKind) -> Result<Self> {
        let (base, file) = match &kind {
            LocationKind::Repository { location, repository, .. } => {
                let within = within(&location.path, &repository.files);
                within.ok_or_else(|| no_file(location, repository))?
            }
            LocationKind::Objects { location, files, .. } => within(&location.key, files)
                .ok_or_else(|| {
                    Error::io(IoCause::NotFound, format!("no object '{}'", location.key))
                })?,
            LocationKind::Url(url) => (
                String::new(),
                Some(path_of(url).rsplit('/').next().unwrap_or_default().to_owned()),
            ),
        };

        let files = match &kind {
            LocationKind::Repository { repository, .. } => below(&repository.files, &base),
            LocationKind::Objects { files, .. } => {
                let (files, odd): (Vec<_>, Vec<_>) =
                    below(files, &base).into_iter().partition(|file| is_plain(&file.name));
                for RemoteFile { name, .. } in odd {
                    hub.notes.add(format!(
                        "{location}: '{name}' is skipped: it is not the name of a file in this \
                         folder"
                    ));
                }
                files
            }
            LocationKind::Url(_) => file
                .iter()
                .map(|name| RemoteFile { name: name.clone(), len: None, etag: None })
                .collect(),
        };

        let file = file
            .or_else(|| hub.choice.file.clone().filter(|_| !matches!(kind, LocationKind::Url(_))));
        let choice = Choice { file: file.clone(), ..hub.choice.clone() };
        let chosen = choose(&files, &choice).map_err(|error| error.in_file(&location))?;
        if let Some(why) = &chosen.why {
            hub.notes.add(format!("{location}: {why}"));
        }

        Ok(Self {
            hub,
            location,
            kind,
            base,
            file,
            files,
            chosen,
            reading: Arc::default(),
            opened: Arc::default(),
            cached: Arc::default(),
            claimed: Arc::default(),
        })
    }

    /// Returns all files that the patterns to include and to exclude let through, whatever they
    /// are.
    #[must_use]
    pub fn matching(&self) -> Vec<&RemoteFile> {
        self.files.iter().filter(|file| self.hub.choice.names.is_wanted(&file.name)).collect()
    }

    /// Returns the location that was looked up.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the named file, if the location is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Returns all files of the named folder, or of the folder of the named file. For a URL,
    /// returns only the file.
    #[must_use]
    pub fn files(&self) -> &[RemoteFile] {
        &self.files
    }

    /// Returns the files that make up one model.
    #[must_use]
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// Returns the kind of a file: `weights`, `index`, `companion`, `other weights` or `other`.
    #[must_use]
    pub fn kind_of(&self, file: &str) -> &'static str {
        kind_of(file, &self.chosen)
    }

    /// Returns `true` if a file is in the cache.
    #[must_use]
    pub fn is_cached(&self, file: &RemoteFile) -> bool {
        match &self.kind {
            LocationKind::Repository { repository, folder, .. } => {
                let whole =
                    RemoteFile { name: format!("{}{}", self.base, file.name), ..file.clone() };
                folder.file(&repository.commit, &whole).is_some()
            }
            LocationKind::Url(url) => UrlCache::new(&self.hub.client.settings.cache)
                .find(&beside(url, &file.name))
                .is_some(),
            LocationKind::Objects { .. } => {
                let found =
                    UrlCache::new(&self.hub.client.settings.cache).find(&self.name_of(&file.name));
                found.is_some_and(|(_, cached)| cached.is_same(file.len, file.etag.as_deref()))
            }
        }
    }

    /// Returns the repository, or `None` if the location is not one.
    #[must_use]
    pub fn repository(&self) -> Option<&Repository> {
        match &self.kind {
            LocationKind::Repository { repository, .. } => Some(repository),
            LocationKind::Url(_) | LocationKind::Objects { .. } => None,
        }
    }

    /// Returns the SHA-256 that a hub states for a file.
    ///
    /// The hub has the SHA-256 of files in LFS, and git's SHA-1 of others. The ETags of other
    /// servers may be anything, so they are not used.
    #[must_use]
    pub fn sha256_of(&self, file: &RemoteFile) -> Option<String> {
        self.repository()?;
        // One that lists none may have said so when the file was opened.
        let opened = || self.sources().get(&file.name).and_then(RemoteSource::digest);
        let digest = file.etag.clone().or_else(opened).or_else(|| self.cached_digest(&file.name));
        digest.filter(|etag| is_hex(etag, 64))
    }

    /// Returns the SHA-256 of the files of weights, if the hub provides them.
    ///
    /// The caller records these digests as true, so [`finish`](Self::finish) compares the files
    /// with them.
    #[must_use]
    pub fn digests(&self) -> Vec<(String, String)> {
        let weights = self.files.iter().filter(|file| self.chosen.weights.contains(&file.name));
        let digests: Vec<(String, String)> =
            weights.filter_map(|file| Some((file.name.clone(), self.sha256_of(file)?))).collect();
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.extend(digests.iter().map(|(name, _)| name.clone()));
        digests
    }

    /// Returns the cache folder with the files of a commit, under their own names.
    #[must_use]
    pub fn snapshot(&self) -> Option<PathBuf> {
        let LocationKind::Repository { repository, folder, .. } = &self.kind else { return None };
        Some(folder.snapshot(&repository.commit).join(self.base.trim_end_matches('/')))
    }

    /// Returns the display name of a file of this location.
    #[must_use]
    pub fn name_of(&self, file: &str) -> String {
        match &self.kind {
            LocationKind::Repository { location, .. } => {
                HubLocation { path: format!("{}{file}", self.base), ..location.clone() }.to_string()
            }
            LocationKind::Url(url) => Location::Url(beside(url, file)).to_string(),
            LocationKind::Objects { location, .. } => {
                format!("s3://{}/{}{file}", location.bucket, self.base)
            }
        }
    }

    /// Returns the state of a file on the server: SHA-256, git's SHA-1, or an ETag. For the file of
    /// a URL, it is known once the file is open.
    #[must_use]
    pub fn state_of(&self, file: &str) -> Option<String> {
        let listed = self
            .files
            .iter()
            .find(|listed| listed.name == file)
            .and_then(|listed| listed.etag.clone());
        listed.or_else(|| self.sources().get(file).and_then(RemoteSource::etag))
    }

    /// Returns the location at the commit that was found, if there is one.
    #[must_use]
    pub fn pinned(&self) -> Location {
        match (&self.location, self.repository()) {
            (Location::Hub(location), Some(repository)) => Location::Hub(HubLocation {
                revision: Some(repository.commit.clone()),
                ..location.clone()
            }),
            (location, _) => location.clone(),
        }
    }

    /// Returns the notes for the user about fetched files.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        &self.hub.notes
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<String, RemoteSource>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the base folder of a location's files, and the file that it names. Returns `None` if the
/// path does not exist.
fn within(path: &str, files: &[RemoteFile]) -> Option<(String, Option<String>)> {
    if path.is_empty() {
        return Some((String::new(), None));
    }
    if files.iter().any(|file| file.name == path) {
        let (base, file) = path.rsplit_once('/').map_or(("", path), |(base, file)| (base, file));
        let base = if base.is_empty() { String::new() } else { format!("{base}/") };
        return Some((base, Some(file.to_owned())));
    }
    // Keys of objects may have several slashes one after the other.
    let folder = if path.ends_with('/') { path.to_owned() } else { format!("{path}/") };
    files.iter().any(|file| file.name.starts_with(&folder)).then_some((folder, None))
}

fn no_file(location: &HubLocation, repository: &Repository) -> Error {
    let path = &location.path;
    let near = nearest_files(path, repository.files.iter().map(|file| file.name.as_str()), 5);
    let message = format!(
        "{}: file '{path}' not found at {}{}",
        repository.id,
        location.revision(),
        did_you_mean(&near)
    );
    Error::io(IoCause::NotFound, message).in_file(location)
}

/// Returns the files below a folder, by their names in it.
fn below(files: &[RemoteFile], base: &str) -> Vec<RemoteFile> {
    let inside = |file: &RemoteFile| {
        Some(RemoteFile { name: file.name.strip_prefix(base)?.to_owned(), ..file.clone() })
    };
    files.iter().filter_map(inside).collect()
}

/// Returns the URL of a file in the same folder as another one.
fn beside(url: &str, name: &str) -> String {
    let (path, query) =
        url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
    let (folder, file) = path.rsplit_once('/').unwrap_or((path, ""));
    match query {
        _ if file == name => url.to_owned(),
        // Where the query is a token for all of a folder, its files are asked for with it too.
        Some(query) => format!("{folder}/{}?{query}", encode_path(name)),
        None => format!("{folder}/{}", encode_path(name)),
    }
}
