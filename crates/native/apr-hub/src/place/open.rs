//! Files of a place, opened: in the cache, or on their server.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use apr_core::{Error, IoCause, Result};

use super::{ResolvedLocation, beside};
use crate::answer::Answer;
use crate::download::{Entry, Target};
use crate::hub::{RemoteFile, Repository, did_you_mean};
use crate::hub_cache::SnapshotEntry;
use crate::location::{HubLocation, Location, S3Location, encode_path, encode_segment, is_plain};
use crate::lookup::{LocationKind, is_about_the_network};
use crate::resource::{Address, Explain, Resource, State};
use crate::s3::Store;
use crate::settings::Token;
use crate::source::RemoteSource;
use crate::url_cache::{ListedEntry, UrlCache};
use apr_view::nearest_files;

/// A file of a place.
pub enum OpenedFile {
    /// A file on this machine.
    Local(PathBuf),
    /// A file on a server.
    Remote(RemoteSource),
}

/// A file that was looked up: in the cache, with its digest if it is known, or on its server.
enum Looked {
    Cached(PathBuf, Option<String>),
    Remote(RemoteSource),
}

/// Returns the destination of the file of a URL.
fn listed_target(cache: Arc<UrlCache>, url: &str, etag: Option<String>) -> Target {
    let name = UrlCache::name_of(url);
    let (path, lock) = (cache.path(&name), cache.lock(&name));
    let state = etag.clone().unwrap_or_else(|| "unknown".to_owned());
    Target {
        path,
        lock,
        etag: state,
        entry: Entry::Listed(ListedEntry { cache, url: url.to_owned(), etag }),
    }
}

impl ResolvedLocation {
    /// Opens a file; one that is open already is shared.
    ///
    /// # Errors
    /// E001 for a name that leads out of the folder, E007 for a file that is absent or not for
    /// this user.
    pub fn open(&self, name: &str) -> Result<OpenedFile> {
        if let Some(source) = self.sources().get(name) {
            return Ok(OpenedFile::Remote(source.clone()));
        }
        match self.look(name)? {
            // Where two open it at the same time, both go on with the first one's.
            Looked::Remote(source) => {
                let source = self.sources().entry(name.to_owned()).or_insert(source).clone();
                self.begin_late(&source);
                Ok(OpenedFile::Remote(source))
            }
            Looked::Cached(path, digest) => {
                self.remember_cached(name, &path, digest);
                Ok(OpenedFile::Local(path))
            }
        }
    }

    fn look(&self, name: &str) -> Result<Looked> {
        if !is_plain(name) {
            return Err(Error::format("the name leads out of the model's folder").in_file(name));
        }

        match &self.kind {
            LocationKind::Repository { location, repository, folder } => {
                let file = self
                    .files
                    .iter()
                    .find(|file| file.name == name)
                    .ok_or_else(|| self.absent(name))?;
                let file = RemoteFile { name: format!("{}{name}", self.base), ..file.clone() };
                if let Some(path) = folder.file(&repository.commit, &file) {
                    let digest = file.etag.or_else(|| folder.digest(&path));
                    return Ok(Looked::Cached(path, digest));
                }
                let resource = self.hub_resource(location, repository, &file.name);
                let entry = SnapshotEntry {
                    folder: folder.clone(),
                    commit: repository.commit.clone(),
                    revision: location.revision().to_owned(),
                    name: file.name.clone(),
                };
                let target = |etag: &str| Target::in_snapshot(&entry, etag);
                Ok(Looked::Remote(match (file.len, &file.etag) {
                    (Some(len), Some(etag)) => {
                        RemoteSource::of_len(resource, len, Some(target(etag)), &self.reading)
                    }
                    // A hub that lists no digests names the bytes where it gives them.
                    (len, _) => {
                        resource.lock().len = len;
                        let linked = |resource: &Resource| Some(target(&resource.linked()?));
                        RemoteSource::open(resource, linked, &self.reading)?
                    }
                }))
            }
            LocationKind::Url(url) => self.look_at(&beside(url, name)),
            LocationKind::Objects { location, store, .. } => self.look_in(store, location, name),
        }
    }

    /// Opens an object of a bucket.
    fn look_in(&self, store: &Store, location: &S3Location, name: &str) -> Result<Looked> {
        let file =
            self.files.iter().find(|file| file.name == name).ok_or_else(|| self.absent(name))?;
        let (cache, url) =
            (Arc::new(UrlCache::new(&self.hub.client.settings.cache)), self.name_of(name));
        if let Some((path, cached)) = cache.find(&url)
            && cached.is_same(file.len, file.etag.as_deref())
        {
            return Ok(Looked::Cached(path, Some(cached.sha256)));
        }
        let object = S3Location { key: format!("{}{name}", self.base), ..location.clone() };
        let signing = (store.clone(), object.clone());
        let sign = move || signing.0.address(&signing.1.bucket, &signing.1.key);
        let store = store.clone();
        let explain = move |answer: &Answer| store.explain(answer, &object);
        let resource =
            self.resource(Address::Signed(Box::new(sign)), url.clone(), None, Box::new(explain));
        let source = match file.len {
            Some(len) => {
                // What comes must be in the state that the list stated.
                resource.lock().etag.clone_from(&file.etag);
                let target = listed_target(cache, &url, file.etag.clone());
                RemoteSource::of_len(resource, len, Some(target), &self.reading)
            }
            None => {
                let target =
                    |resource: &Resource| Some(listed_target(cache, &url, resource.etag()));
                RemoteSource::open(resource, target, &self.reading)?
            }
        };

        Ok(Looked::Remote(source))
    }

    /// Opens the file of a URL. If the file is in the cache, only its state is requested.
    fn look_at(&self, url: &str) -> Result<Looked> {
        let cache = Arc::new(UrlCache::new(&self.hub.client.settings.cache));
        let (resource, known) = (self.url_resource(url), cache.find(url));
        if let Some((path, cached)) = known.as_ref().filter(|_| self.hub.client.settings.offline) {
            self.hub.notes.add(format!("{}: offline, using the cache", resource.name));
            return Ok(Looked::Cached(path.clone(), Some(cached.sha256.clone())));
        }

        if let Some((path, cached)) = known {
            match resource.first_bytes(1) {
                Ok(_) if cached.is_same(resource.len(), resource.etag().as_deref()) => {
                    return Ok(Looked::Cached(path, Some(cached.sha256)));
                }
                Ok(_) => {}
                Err(error) if is_about_the_network(&error) => {
                    self.hub.notes.add(format!(
                        "{}: {}; using the cache",
                        resource.name,
                        error.message()
                    ));
                    return Ok(Looked::Cached(path, Some(cached.sha256)));
                }
                Err(error) => return Err(error),
            }
        }

        let target = |resource: &Resource| Some(listed_target(cache, url, resource.etag()));
        Ok(Looked::Remote(RemoteSource::open(resource, target, &self.reading)?))
    }

    fn absent(&self, name: &str) -> Error {
        let near = nearest_files(name, self.files.iter().map(|file| file.name.as_str()), 3);
        Error::io(IoCause::NotFound, format!("no such file{}", did_you_mean(&near)))
            .in_file(self.name_of(name))
    }

    pub(crate) fn hub_resource(
        &self,
        location: &HubLocation,
        repository: &Repository,
        path: &str,
    ) -> Resource {
        let settings = &self.hub.client.settings;

        // By the commit, since a branch may move between two requests.
        let (repo, commit) = (encode_path(&repository.id), encode_segment(&repository.commit));
        let url = format!("{}/{repo}/resolve/{commit}/{}", settings.endpoint, encode_path(path));
        let asked = HubLocation { path: path.to_owned(), ..location.clone() };
        let (client, name) = (Arc::clone(&self.hub.client), asked.to_string());
        let explain = move |answer: &Answer| client.hub_error(&asked, answer);
        self.resource(Address::Fixed(url), name, settings.token.clone(), Box::new(explain))
    }

    fn url_resource(&self, url: &str) -> Resource {
        let name = Location::Url(url.to_owned()).to_string();
        // The hub's token is for the hub alone.
        self.resource(Address::Fixed(url.to_owned()), name, None, Box::new(url_error))
    }

    fn resource(
        &self,
        address: Address,
        name: String,
        token: Option<Token>,
        explain: Box<Explain>,
    ) -> Resource {
        Resource {
            client: Arc::clone(&self.hub.client),
            name,
            address,
            token,
            explain,
            notes: self.hub.notes.clone(),
            state: Mutex::new(State::default()),
            asking: Mutex::new(()),
            received: 0.into(),
        }
    }
}

/// Returns the error for a server's refusal of a file.
fn url_error(answer: &Answer) -> Error {
    let status = answer.status;
    match status {
        404 | 410 => {
            Error::io(IoCause::NotFound, format!("file not found on the server ({status})"))
        }
        401 | 403 => Error::io(
            IoCause::Other,
            format!(
                "access denied ({status}): apr does not send a password or token to this server"
            ),
        ),
        _ => Error::io(IoCause::Other, format!("the server responds with status {status}")),
    }
}
