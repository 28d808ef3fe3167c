//! Models on hubs and servers, opened as those of folders are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use apr_core::{
    ByteSource, CheckpointReader, Error, Metadata, Result, SourceSet, StoredRange, counted,
};
use apr_hub::{Hub, Location, OpenedFile, ResolvedLocation, Settings};
use apr_registry::OpenOptions;
use serde_json::{Map, Value};

use crate::Sources;
use crate::names::is_index;
use crate::network::Remote;

/// Returns `true` if a path names a model on a hub or server.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    path.to_str().is_some_and(Location::is_remote)
}

impl Sources {
    /// Sets the function that creates the hub client on demand. By default, the environment
    /// determines the client.
    #[must_use]
    pub fn with_hub(mut self, make: impl Fn() -> Result<Hub> + Send + Sync + 'static) -> Self {
        self.remote = Remote { make: Some(Arc::new(make)), ..Remote::default() };
        self
    }

    /// Returns the hub client.
    ///
    /// # Errors
    /// E001 and E007 for an invalid environment.
    pub fn hub(&self) -> Result<&Hub> {
        if let Some(hub) = self.remote.hub.get() {
            return Ok(hub);
        }
        let made = match &self.remote.make {
            Some(make) => make()?,
            None => Hub::new(Settings::from_env(apr_hub::default_cache()?)?),
        };
        Ok(self.remote.hub.get_or_init(|| made))
    }

    /// Looks up a path on a hub or server.
    ///
    /// # Errors
    /// E001 for a location that names nothing, E007 if it does not exist or the user has no access
    /// to it.
    pub fn place(&self, path: &Path) -> Result<RemoteFolder> {
        let text = path.to_str().unwrap_or_default();
        let location =
            Location::parse(text).unwrap_or_else(|| Err(Error::format("not a remote location")))?;
        let place = self.hub()?.place(&location)?;
        self.remote.places.lock().unwrap_or_else(PoisonError::into_inner).push(place.clone());
        Ok(RemoteFolder { place, sources: self.clone() })
    }

    /// Returns notes for the user about fetched files, added since the last call.
    ///
    /// The notes are: which of several models was chosen, that the cache was used for lack of a
    /// network, and that a server does not support ranges.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.remote.hub.get().map(|hub| hub.notes().take()).unwrap_or_default()
    }

    /// Notes the bytes kept of files that were not fetched to their end.
    pub fn note_kept(&self) {
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter().for_each(ResolvedLocation::note_kept);
    }

    /// Announces that all models opened from now on are going to be read whole. Bytes that bypass
    /// the cache can then be compared with their digests.
    pub fn expect_whole(&self) {
        self.remote.whole.store(true, Ordering::Relaxed);
    }

    /// Returns the origin of an open model: its location, its commit, and the SHA-256 of its files
    /// of weights.
    ///
    /// [`finish`](Self::finish) compares these digests with the bytes that were read. Without the
    /// cache, there are digests only if [all is read](Self::expect_whole).
    #[must_use]
    pub fn provenance(&self, path: &Path) -> Option<Metadata> {
        let location = Location::parse(path.to_str()?)?.ok()?;
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.iter().rev().find(|place| *place.location() == location)?;
        let mut metadata = Metadata::new();
        metadata.set("url", location.to_string());
        if let Some(repository) = place.repository() {
            metadata.set("revision", repository.commit.as_str());
        }

        let keep = self.remote.hub.get().is_some_and(|hub| hub.settings().keep);
        let is_checked = keep || self.remote.whole.load(Ordering::Relaxed);
        let digests = if is_checked { place.digests() } else { Vec::new() };
        if !digests.is_empty() {
            metadata.set(
                "sha256_of",
                digests
                    .into_iter()
                    .map(|(name, digest)| (name, Value::String(digest)))
                    .collect::<Map<_, _>>(),
            );
        }

        Some(metadata)
    }

    /// Returns the location of an open model at the revision that was read, and the states of these
    /// files on its server.
    #[must_use]
    pub fn state(&self, path: &Path, files: &[&str]) -> Option<(String, Vec<Option<String>>)> {
        let location = Location::parse(path.to_str()?)?.ok()?;
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.iter().rev().find(|place| *place.location() == location)?;
        let states = files.iter().map(|file| place.state_of(file));
        Some((place.pinned().to_string(), states.collect()))
    }

    /// Compares the recorded source of a model with its current state, and returns a description of
    /// the comparison. The commit must still exist and have files with these digests.
    ///
    /// # Errors
    /// E004 for other digests, E001 if no source is recorded, otherwise the errors of
    /// [`place`](Self::place).
    pub fn check_provenance(&self, source: &Metadata) -> Result<String> {
        let unknown = || Error::format("the file does not record its source, or not with digests");
        let recorded =
            source.object("sha256_of").filter(|digests| !digests.is_empty()).ok_or_else(unknown)?;
        let mut location = Location::parse(source.text("url").ok_or_else(unknown)?)
            .unwrap_or_else(|| Err(unknown()))?;
        if let (Location::Hub(hub), Some(revision)) = (&mut location, source.text("revision")) {
            hub.revision = Some(revision.to_owned());
        }

        let place = self.hub()?.place(&location)?;
        let found = place.files();
        for (name, digest) in recorded {
            let file = found.iter().find(|file| file.name == *name);
            let is_same = file.is_some_and(|file| file.etag.as_deref() == digest.as_str());
            if !is_same {
                let message = format!("SHA-256 of '{name}' differs from the recorded one");
                return Err(Error::checksum(message).in_file(&location));
            }
        }

        let who = if self.hub()?.settings().offline { ", as the cache has it" } else { "" };
        Ok(format!("{} at {location}{who}", counted(recorded.len() as u64, "digest")))
    }

    /// Announces that the companions of models opened from now on are going to be read. They are
    /// fetched while the weights are opened.
    pub fn expect_companions(&self) {
        self.remote.companions.store(true, Ordering::Relaxed);
    }

    /// Announces that all of the open models is going to be read, so that following bytes are
    /// fetched ahead.
    pub fn read_whole(&self) {
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter().for_each(ResolvedLocation::read_whole);
    }

    /// Announces that these tensors of an open model are going to be read whole. A remote tensor is
    /// then fetched with few requests.
    pub fn expect_tensors(
        &self,
        path: &Path,
        reader: &dyn CheckpointReader,
        tensors: impl IntoIterator<Item = usize>,
    ) {
        let Some(Ok(location)) = path.to_str().and_then(Location::parse) else { return };
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = places.iter().rev().find(|place| *place.location() == location) else {
            return;
        };

        let mut ranges: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for tensor in tensors {
            let StoredRange { file, offset, len } = reader.stored(tensor).range;
            ranges.entry(file).or_default().push((offset, offset.saturating_add(len)));
        }
        for (file, ranges) in ranges {
            if let Some(file) = reader.files().get(file) {
                place.expect(&file.name, ranges);
            }
        }
    }

    /// Returns `true` if any file is on a hub or a server.
    pub(crate) fn has_remote(&self) -> bool {
        !self.remote.places.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns `true` if a remote path represents several files.
    ///
    /// # Errors
    /// The errors of [`place`](Self::place).
    pub fn is_remote_set(&self, path: &Path) -> Result<bool> {
        let place = self.place(path)?.place;
        Ok(place.file().is_none_or(|file| is_index(Path::new(file))))
    }

    /// Opens the bytes of one remote file, whatever they are.
    ///
    /// # Errors
    /// E001 for what is not one file, otherwise those of [`place`](Self::place).
    pub fn open_remote_file(&self, path: &Path) -> Result<Box<dyn ByteSource>> {
        let folder = self.place(path)?;
        let Some(file) = folder.place.file() else {
            let message = "this is a repository or folder: name a file in it";
            return Err(Error::format(message).in_file(folder.place.location()));
        };
        folder.open(file).inspect(|_| folder.place.opened())
    }

    /// Announces that all of the open models is going to be read. Files opened over the network are
    /// kept in the cache, unless the settings disable it. Cached files are compared with their
    /// digests from now on.
    pub fn keep_whole(&self) {
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner);
        let keep = self.remote.hub.get().is_some_and(|hub| hub.settings().keep);
        let compare = self.remote.whole.load(Ordering::Relaxed);
        places.iter().for_each(|place| match keep {
            true => place.keep_whole(),
            false => place.stream_whole(compare),
        });
    }

    /// Waits until the files kept in the cache are complete, and checks the digests of the bytes
    /// that were read.
    ///
    /// # Errors
    /// E004 for a file that is not the one that its server has, or that the cache has damaged, E007
    /// when it can't be fetched or written.
    pub fn finish(&self) -> Result<()> {
        let places = self.remote.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        places.iter().try_for_each(ResolvedLocation::finish)
    }

    pub(crate) fn open_remote(
        &self,
        path: &Path,
        with_companions: bool,
        options: &OpenOptions,
    ) -> Result<Box<dyn CheckpointReader>> {
        let folder = self.place(path)?;
        let reader = folder.open_model(with_companions, options);
        self.check_unchanged()?;
        let reader =
            reader.map_err(|error| folder.locate(error).in_file(folder.place.location()))?;
        folder.place.opened();
        Ok(reader)
    }
}

/// The files of a location, as the source of a model's shards and companions.
pub struct RemoteFolder {
    place: ResolvedLocation,
    sources: Sources,
}

impl RemoteFolder {
    /// Returns the location that was looked up.
    #[must_use]
    pub fn place(&self) -> &ResolvedLocation {
        &self.place
    }

    /// Names the file of an error by its location, if the error names it as one of this folder.
    fn locate(&self, error: Error) -> Error {
        let location = self.place.location();
        match error.file().map(str::to_owned) {
            Some(name) if self.place.file().is_none() && self.has(&name) => error.placing(
                &name,
                format_args!("{}/{name}", location.to_string().trim_end_matches('/')),
            ),
            _ => error,
        }
    }

    fn open_model(
        &self,
        with_companions: bool,
        options: &OpenOptions,
    ) -> Result<Box<dyn CheckpointReader>> {
        let is_set = self.place.file().is_none_or(|file| is_index(Path::new(file)));
        let companions = with_companions && self.sources.remote.companions.load(Ordering::Relaxed);
        self.place.fetch_heads(is_set, companions);
        let Some(file) = self.place.file() else {
            return Ok(Box::new(apr_registry::open_folder(self, options)?));
        };
        let reader = apr_registry::open_in(self, file, options)?;
        if with_companions {
            return apr_registry::with_neighbours(reader, self, &options.limits);
        }
        if apr_registry::is_shard_name(file) {
            apr_registry::alone(reader, self)
        } else {
            Ok(reader)
        }
    }
}

impl SourceSet for RemoteFolder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        Ok(match self.place.open(name)? {
            OpenedFile::Local(path) => Box::new(self.sources.open_file(path)?),
            OpenedFile::Remote(source) => Box::new(source),
        })
    }

    fn has(&self, name: &str) -> bool {
        self.place.files().iter().any(|file| file.name == name)
    }

    fn list(&self) -> Result<Vec<String>> {
        let others = &self.place.chosen().others;
        let is_meant = |name: &&String| {
            name.matches('/').count() < 2 && !name.starts_with('.') && !others.contains(name)
        };
        Ok(self.place.files().iter().map(|file| &file.name).filter(is_meant).cloned().collect())
    }
}
