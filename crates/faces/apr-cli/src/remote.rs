//! How models on hubs and servers are read.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apr_core::{ByteSource, Result, SourceSet};
use apr_hub::{Caches, Choice, Holding, Hub, ResolvedLocation, Settings, default_cache};
use apr_io::{Interrupt, RemoteFolder, Sources, is_remote};
use apr_view::NameChoice;
use serde::Serialize;

use crate::args::RemoteArgs;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;

/// Returns the sources of files, whose hub client is created when the first remote model is opened.
pub(crate) fn sources(args: &RemoteArgs, config: &Config, interrupt: &Interrupt) -> Sources {
    let (offline, insecure, keep) = (args.offline, args.insecure, !args.no_cache);
    let configured = config.hub.timeout.map(NonZeroU64::get);
    let configured = configured.filter(|_| std::env::var_os(Settings::TIMEOUT_VARIABLE).is_none());
    let timeout = args.timeout.or(configured).map(|it| it.min(Settings::LONGEST_TIMEOUT));
    let interrupt = Arc::clone(&interrupt.0);
    let file = args.hub_file.clone();
    let (include, exclude) = (args.include.clone(), args.exclude.clone());
    Sources::default().with_hub(move || {
        let mut settings = Settings::from_env(default_cache()?)?;
        settings.offline |= offline;
        settings.insecure = insecure;
        settings.interrupt = Arc::clone(&interrupt);
        settings.keep = keep;
        settings.timeout = timeout.map_or(settings.timeout, Duration::from_secs);
        let names = NameChoice::parse(&include, &exclude)?;
        Ok(Hub::new(settings).choosing(Choice { file: file.clone(), names }))
    })
}

/// Returns the notes on a location, without the note on the choice of one model among several.
pub(crate) fn notes_without_choice(place: &ResolvedLocation) -> Vec<String> {
    let why = place.chosen().why.as_deref();
    let mut notes = place.notes().take();
    notes.retain(|note| why.is_none_or(|why| !note.ends_with(why)));
    notes
}

/// A repository of a hub, or a folder of one.
pub(crate) struct Repository(RemoteFolder);

impl Repository {
    /// Returns the repository at a path, or `None` if the path is local or a single file.
    pub(crate) fn at(path: &Path, sources: &Sources) -> Result<Option<Self>> {
        if !is_remote(path) {
            return Ok(None);
        }
        let folder = sources.place(path)?;
        Ok(folder.place().file().is_none().then_some(Self(folder)))
    }

    /// Returns the names of the files that match `--include` and `--exclude`.
    ///
    /// # Errors
    /// [`Failure::Usage`] where that is none.
    pub(crate) fn names(&self) -> Outcome<Vec<String>> {
        let files = self.0.place().matching();
        if files.is_empty() {
            let location = self.location();
            let message = format!("{location}: no file matches --include and --exclude");
            return Err(Failure::Usage(message));
        }
        Ok(files.into_iter().map(|file| file.name.clone()).collect())
    }

    /// Returns the number of files that `--include` and `--exclude` leave out.
    pub(crate) fn left_out(&self) -> usize {
        self.0.place().files().len() - self.0.place().matching().len()
    }

    /// Returns the notes on the repository, for commands that use all of its files.
    pub(crate) fn notes(&self) -> Vec<String> {
        notes_without_choice(self.0.place())
    }

    /// Returns the location as users write it.
    pub(crate) fn location(&self) -> String {
        self.0.place().location().to_string()
    }

    pub(crate) fn open(&self, file: &str) -> Result<Box<dyn ByteSource>> {
        self.0.open(file)
    }
}

/// Cached files of one model.
#[derive(Debug, Serialize)]
pub(crate) struct Model {
    /// Name of the repository or the address.
    pub(crate) name: String,
    /// Number of complete files.
    pub(crate) file_count: u64,
    /// Size of the complete files.
    pub(crate) bytes: u64,
    /// Bytes of incomplete downloads.
    pub(crate) partial: u64,
    /// Days since one of its files was read or written.
    pub(crate) days: Option<u64>,
    /// Files and bytes that apr fetched itself.
    #[serde(skip)]
    pub(crate) own: (u64, u64),
    /// `true` if another program, such as Hugging Face's client, fetched some of the files.
    pub(crate) shared: bool,
    #[serde(skip)]
    holding: Holding,
}

fn settings() -> Outcome<Settings> {
    Ok(Settings::from_env(default_cache()?)?)
}

/// The folder of the Hugging Face cache.
pub(crate) fn hub_folder() -> Outcome<Option<PathBuf>> {
    Ok(Some(settings()?.hub_cache))
}

fn caches() -> Outcome<Caches> {
    let settings = settings()?;
    Ok(Caches::new(&settings.hub_cache, &settings.cache))
}

/// Returns the folders and files of the caches, under the names by which programs open them.
pub(crate) fn cached_paths() -> Outcome<Vec<PathBuf>> {
    Ok(caches()?.paths())
}

/// Lists the cached models, or the one with the name `hf://ORG/REPO`, `ORG/REPO` or a URL.
pub(crate) fn models(name: Option<&str>) -> Outcome<Vec<Model>> {
    let wanted = name.map(|name| name.trim_end_matches('/'));
    let is_wanted = |holding: &Holding| {
        wanted.is_none_or(|name| holding.name == name || holding.name == format!("hf://{name}"))
    };
    let found = caches()?.list().into_iter().filter(is_wanted);
    Ok(found
        .map(|holding| Model {
            name: holding.name.clone(),
            file_count: holding.files,
            bytes: holding.bytes,
            partial: holding.partial,
            days: holding
                .used
                .and_then(|used| used.elapsed().ok())
                .map(|unused| unused.as_secs() / 86_400),
            own: holding.own,
            shared: holding.has_others,
            holding,
        })
        .collect())
}

/// Removes the files of models that apr fetched; with `all`, also files that other programs
/// fetched.
///
/// Returns the names of the models that are being fetched.
pub(crate) fn clear(models: &[Model], all: bool) -> Outcome<Vec<String>> {
    let caches = caches()?;
    let mut in_use = Vec::new();
    for model in models {
        if !caches.clear(&model.holding, all)? {
            in_use.push(model.name.clone());
        }
    }
    Ok(in_use)
}

/// Compares files with their digests, and returns those that differ.
pub(crate) fn verify(models: &[Model], bar: &Bar, interrupt: &Interrupt) -> Outcome<Vec<PathBuf>> {
    let caches = caches()?;
    let mut damaged = Vec::new();
    for model in models {
        let found = caches.verify(&model.holding, bar, &interrupt.0)?;
        damaged.extend(found.into_iter().map(|damage| damage.path));
    }
    Ok(damaged)
}
