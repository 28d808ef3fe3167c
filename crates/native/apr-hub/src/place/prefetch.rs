//! What is fetched before it is read, and what of it is kept.

use std::sync::{Arc, Mutex, PoisonError};

use apr_core::{ByteSource, Result};

use super::{OpenedFile, ResolvedLocation};
use crate::lookup::LocationKind;
use crate::source::{LONGEST_COMPANION, RemoteSource};

impl ResolvedLocation {
    /// Marks the model as open. From now on, only requested bytes are fetched.
    pub fn opened(&self) {
        self.reading.opened();
    }

    /// Announces that these ranges of a file are going to be read whole. They are fetched by long
    /// requests.
    pub fn expect(&self, file: &str, ranges: impl IntoIterator<Item = (u64, u64)>) {
        let source = self.sources().get(file).cloned();
        if let Some(source) = source {
            source.expect(ranges);
        }
    }

    /// Announces that all of the model is going to be read, so that following bytes are fetched
    /// ahead.
    pub fn read_whole(&self) {
        self.reading.whole();
    }

    /// Announces that all of the model is going to be read, and keeps opened files in the cache.
    ///
    /// The files are fetched from now on in the background, and read from the cache. Files that
    /// were already cached are compared with their digests meanwhile.
    pub fn keep_whole(&self) {
        self.reading.keep();
        self.check_cached();
        let downloads: Vec<_> =
            self.sources().values().filter_map(RemoteSource::download).collect();
        // One after the other, each by many ranges; one that is read before its turn begins at
        // once. Small files wait for the server rather than for the line, so that they come beside
        // the large ones.
        let (small, large): (Vec<_>, Vec<_>) =
            downloads.into_iter().partition(|download| download.is_small());
        for downloads in [small, large] {
            std::thread::spawn(move || {
                downloads.iter().for_each(|download| drop(download.finish(&())));
            });
        }
    }

    /// Announces that all of the model is going to be read, past the cache.
    ///
    /// Files opened from the cache are compared with their digests meanwhile. With `compare`,
    /// received bytes are compared too. Bytes that the caller did not read are fetched for that at
    /// the [end](Self::finish).
    pub fn stream_whole(&self, compare: bool) {
        self.reading.whole();
        self.check_cached();
        if compare {
            self.reading.compare();
            self.sources().values().for_each(RemoteSource::hash_what_comes);
        }
    }

    /// Waits until kept files are complete, and checks the digests of files that were read or
    /// claimed.
    ///
    /// # Errors
    /// E004 when a file is not the one that the hub has, E007 when it can't be fetched or written.
    pub fn finish(&self) -> Result<()> {
        for name in self.claimed() {
            // One that nothing was read of, and maybe nobody opened.
            self.open(&name)?;
        }
        let opened = self.sources().clone();
        for source in opened.values() {
            match source.begun() {
                Some(download) => match download.finish(&()) {
                    Err(_) if source.leave_cache(&download) => {
                        if !download.is_verified() {
                            source.check_streamed()?;
                        }
                    }
                    finished => finished?,
                },
                None if self.reading.compares() => source.check_streamed()?,
                None => {}
            }
        }
        self.finish_cached()
    }

    /// Notes the bytes kept of files that were not fetched to their end.
    pub fn note_kept(&self) {
        let opened = self.sources();
        let kept =
            opened.values().filter_map(RemoteSource::begun).filter_map(|download| download.kept());
        kept.for_each(|note| self.hub.notes.add(note));
    }

    /// Starts to fetch the first bytes of all shards, whole companions, or both, several files at a
    /// time. A caller that opens the files one after the other then waits only once for a distant
    /// server.
    pub fn fetch_heads(&self, with_shards: bool, with_companions: bool) {
        /// Number of files that are requested at the same time.
        const AT_ONCE: usize = 8;

        if matches!(self.kind, LocationKind::Url(_)) {
            return;
        }

        let companions = self.files.iter().filter(|file| {
            let is_short = file.len.is_none_or(|len| len <= LONGEST_COMPANION);
            with_companions && is_short && self.chosen.companions.contains(&file.name)
        });

        // What is one file is opened at once anyway.
        let weights =
            self.chosen.weights.iter().filter(|_| with_shards && self.chosen.weights.len() > 1);
        let names = weights
            .map(|name| (name.clone(), false))
            .chain(companions.map(|file| (file.name.clone(), true)));
        let names: Vec<(String, bool)> = names.collect();
        let threads = AT_ONCE.min(names.len());
        let names = Arc::new(Mutex::new(names.into_iter()));
        for _ in 0..threads {
            let (place, names) = (self.clone(), Arc::clone(&names));
            let next = move || names.lock().unwrap_or_else(PoisonError::into_inner).next();
            // What fails here fails again, and is told, when the file is read.
            std::thread::spawn(move || {
                while next().is_some_and(|(name, whole)| place.fetch(&name, whole).is_ok()) {}
            });
        }
    }

    /// Fetches a file, or its first bytes.
    fn fetch(&self, name: &str, whole: bool) -> Result<()> {
        match self.open(name)? {
            OpenedFile::Remote(source) if source.len() > 0 => {
                // What is listed as short may be long where it is served.
                let whole = whole && source.len() <= LONGEST_COMPANION;
                let len = if whole { usize::try_from(source.len()).unwrap_or(1) } else { 1 };
                source.read_at(0, &mut vec![0; len])
            }
            OpenedFile::Remote(_) | OpenedFile::Local(_) => Ok(()),
        }
    }
}
