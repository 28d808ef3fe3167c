//! A location that was looked up: which files are there, and how to read them.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use apr_core::{ByteSource, Error, IoCause, Progress, Result};

use crate::choose::{Choice, Chosen, choose, kind_of};
use crate::client::Answer;
use crate::download::{Download, Entry, Target};
use crate::hub::{RemoteFile, Repository, did_you_mean};
use crate::hub_cache::SnapshotEntry;
use crate::location::{
    HubLocation, Location, S3Location, encode_path, encode_segment, is_plain, path_of,
};
use crate::lock::disk;
use crate::lookup::{Hub, Kind, is_about_the_network};
use crate::nearest::nearest;
use crate::notes::Notes;
use crate::resource::{Address, Explain, Resource, State};
use crate::s3::Store;
use crate::settings::Token;
use crate::source::{LONGEST_COMPANION, Reading, RemoteSource};
use crate::url_cache::{ListedEntry, UrlCache};

/// A file of a place.
pub enum Found {
    /// On this machine.
    Local(PathBuf),
    /// On a server.
    Remote(RemoteSource),
}

/// A file that is in the cache.
#[derive(Debug, Clone)]
pub struct Downloaded {
    /// Its name in the place.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Length in bytes.
    pub len: u64,
    /// Bytes that came over the network: none of a file that was there.
    pub fetched: u64,
}

/// A file that is wanted in the cache.
enum Begun {
    Here(PathBuf),
    Coming(Arc<Download>),
}

fn finished((name, begun): (String, Begun), progress: &dyn Progress) -> Result<Downloaded> {
    let (path, fetched) = match begun {
        Begun::Here(path) => (path, 0),
        Begun::Coming(download) => {
            download.finish(progress)?;
            (download.path(), download.moved())
        }
    };
    let len = path.metadata().map_err(|error| disk(&error, &path))?.len();
    if fetched == 0 {
        progress.advance(len);
    }
    Ok(Downloaded { name, path, len, fetched })
}

/// Where the file of a URL goes.
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

/// A location that was looked up.
#[derive(Clone)]
pub struct Place {
    hub: Hub,
    location: Location,
    kind: Kind,
    /// The folder of the repository that the names of files count from: empty, or with a slash at
    /// its end.
    base: String,
    /// The file that was named.
    file: Option<String>,
    files: Vec<RemoteFile>,
    /// Which of them are one model.
    chosen: Chosen,
    reading: Arc<Reading>,
    /// What was opened over the network, by its name.
    opened: Arc<Mutex<BTreeMap<String, RemoteSource>>>,
}

impl Hub {
    /// Looks a location up: one request to a hub, none to other servers.
    ///
    /// # Errors
    /// E007 for what is not there or not for this user, and where there is no network.
    pub fn place(&self, location: &Location) -> Result<Place> {
        let kind = match self.as_hub(location) {
            Location::Hub(hub) => self.repository(hub)?,
            Location::Url(url) => Kind::Url(url),
            Location::S3(s3) => self.objects(s3).map_err(|error| error.in_file(location))?,
        };
        Place::new(self.clone(), location.clone(), kind).map_err(|error| error.in_file(location))
    }
}

impl Place {
    pub(crate) fn new(hub: Hub, location: Location, kind: Kind) -> Result<Self> {
        let (base, file) = match &kind {
            Kind::Repository { location, repository, .. } => {
                let within = within(&location.path, &repository.files);
                within.ok_or_else(|| no_file(location, repository))?
            }
            Kind::Objects { location, files, .. } => {
                within(&location.key, files).ok_or_else(|| {
                    Error::io(IoCause::NotFound, format!("there is no object '{}'", location.key))
                })?
            }
            Kind::Url(url) => (
                String::new(),
                Some(path_of(url).rsplit('/').next().unwrap_or_default().to_owned()),
            ),
        };
        let files = match &kind {
            Kind::Repository { repository, .. } => below(&repository.files, &base),
            Kind::Objects { files, .. } => below(files, &base),
            Kind::Url(_) => file
                .iter()
                .map(|name| RemoteFile { name: name.clone(), len: None, etag: None })
                .collect(),
        };
        let file =
            file.or_else(|| hub.choice.file.clone().filter(|_| !matches!(kind, Kind::Url(_))));
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
        })
    }

    /// The location that was looked up.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// The file that was named, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// All files of the folder that is named, or that the named file is in; of a URL, the file
    /// alone.
    #[must_use]
    pub fn files(&self) -> &[RemoteFile] {
        &self.files
    }

    /// Which of them are one model.
    #[must_use]
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// What a file is: `weights`, `index`, `companion`, `other weights` or `other`.
    #[must_use]
    pub fn kind_of(&self, file: &str) -> &'static str {
        kind_of(file, &self.chosen)
    }

    /// Whether a file is in the cache.
    #[must_use]
    pub fn is_cached(&self, file: &RemoteFile) -> bool {
        match &self.kind {
            Kind::Repository { repository, folder, .. } => {
                let whole =
                    RemoteFile { name: format!("{}{}", self.base, file.name), ..file.clone() };
                folder.file(&repository.commit, &whole).is_some()
            }
            Kind::Url(url) => UrlCache::new(&self.hub.client.settings.cache)
                .find(&beside(url, &file.name))
                .is_some(),
            Kind::Objects { .. } => {
                let found =
                    UrlCache::new(&self.hub.client.settings.cache).find(&self.name_of(&file.name));
                found.is_some_and(|(_, cached)| cached.is_same(file.len, file.etag.as_deref()))
            }
        }
    }

    /// The repository, where this is one.
    #[must_use]
    pub fn repository(&self) -> Option<&Repository> {
        match &self.kind {
            Kind::Repository { repository, .. } => Some(repository),
            Kind::Url(_) | Kind::Objects { .. } => None,
        }
    }

    /// The SHA-256 of the files of weights, as far as the hub gives them.
    #[must_use]
    pub fn digests(&self) -> Vec<(String, String)> {
        let weights = self.files.iter().filter(|file| self.chosen.weights.contains(&file.name));
        let digest = |file: &RemoteFile| file.etag.clone().filter(|etag| etag.len() == 64);
        weights.filter_map(|file| Some((file.name.clone(), digest(file)?))).collect()
    }

    /// The folder of the cache with the files of a commit, under their own names.
    #[must_use]
    pub fn snapshot(&self) -> Option<PathBuf> {
        let Kind::Repository { repository, folder, .. } = &self.kind else { return None };
        Some(folder.snapshot(&repository.commit).join(self.base.trim_end_matches('/')))
    }

    /// What people call a file of this place.
    #[must_use]
    pub fn name_of(&self, file: &str) -> String {
        match &self.kind {
            Kind::Repository { location, .. } => {
                HubLocation { path: format!("{}{file}", self.base), ..location.clone() }.to_string()
            }
            Kind::Url(url) => Location::Url(beside(url, file)).to_string(),
            Kind::Objects { location, .. } => {
                format!("s3://{}/{}{file}", location.bucket, self.base)
            }
        }
    }

    /// What the server calls the state of a file: SHA-256, git's SHA-1, or an ETag; of the file of
    /// a URL, once it is open.
    #[must_use]
    pub fn state_of(&self, file: &str) -> Option<String> {
        let listed = self
            .files
            .iter()
            .find(|listed| listed.name == file)
            .and_then(|listed| listed.etag.clone());
        listed.or_else(|| self.sources().get(file).and_then(RemoteSource::etag))
    }

    /// The location at the commit that was found, where it has such.
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

    /// What the user should know of how files were fetched.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        &self.hub.notes
    }

    /// The model is open: from now on nothing is fetched that was not asked for.
    pub fn opened(&self) {
        self.reading.opened();
    }

    /// All of the model is going to be read, so that what comes next is fetched ahead.
    pub fn read_whole(&self) {
        self.reading.whole();
    }

    /// The same, and what was opened is kept in the cache: it is fetched from now on, in the
    /// background, and read there.
    pub fn keep_whole(&self) {
        self.reading.whole();
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

    /// Waits until what is kept is whole and checked.
    ///
    /// # Errors
    /// E004 when a file is not the one that the hub has, E007 when it can't be fetched or written.
    pub fn finish(&self) -> Result<()> {
        let opened = self.sources().clone();
        opened
            .values()
            .filter_map(RemoteSource::begun)
            .try_for_each(|download| download.finish(&()))
    }

    /// Notes what is kept of files that were not fetched to their end.
    pub fn note_kept(&self) {
        let opened = self.sources();
        let kept =
            opened.values().filter_map(RemoteSource::begun).filter_map(|download| download.kept());
        kept.for_each(|note| self.hub.notes.add(note));
    }

    fn sources(&self) -> MutexGuard<'_, BTreeMap<String, RemoteSource>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to fetch the first bytes of all shards, companions as a whole, or both, several files
    /// at a time. Whoever opens the files one after the other then waits once for a server that is
    /// far away, and not once for each.
    pub fn fetch_heads(&self, with_shards: bool, with_companions: bool) {
        /// Files that are asked for at the same time.
        const AT_ONCE: usize = 8;
        if matches!(self.kind, Kind::Url(_)) {
            return;
        }
        let companions = self.files.iter().filter(|file| {
            let is_short = file.len.is_some_and(|len| len <= LONGEST_COMPANION);
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
            Found::Remote(source) if source.len() > 0 => {
                // What is listed as short may be long where it is served.
                let whole = whole && source.len() <= LONGEST_COMPANION;
                let len = if whole { usize::try_from(source.len()).unwrap_or(1) } else { 1 };
                source.read_at(0, &mut vec![0; len])
            }
            Found::Remote(_) | Found::Local(_) => Ok(()),
        }
    }

    /// Opens a file; one that is open already is shared.
    ///
    /// # Errors
    /// E001 for a name that leads out of the folder, E007 for a file that is not there or not for
    /// this user.
    pub fn open(&self, name: &str) -> Result<Found> {
        if let Some(source) = self.sources().get(name) {
            return Ok(Found::Remote(source.clone()));
        }
        match self.look(name)? {
            // Where two open it at the same time, both go on with the first one's.
            Found::Remote(source) => {
                Ok(Found::Remote(self.sources().entry(name.to_owned()).or_insert(source).clone()))
            }
            local => Ok(local),
        }
    }

    fn look(&self, name: &str) -> Result<Found> {
        if !is_plain(name) {
            return Err(Error::format("the name leads out of the model's folder").in_file(name));
        }
        match &self.kind {
            Kind::Repository { location, repository, folder } => {
                let file = self
                    .files
                    .iter()
                    .find(|file| file.name == name)
                    .ok_or_else(|| self.absent(name))?;
                let file = RemoteFile { name: format!("{}{name}", self.base), ..file.clone() };
                if let Some(path) = folder.file(&repository.commit, &file) {
                    return Ok(Found::Local(path));
                }
                let resource = self.hub_resource(location, repository, &file.name);
                let entry = SnapshotEntry {
                    folder: folder.clone(),
                    commit: repository.commit.clone(),
                    revision: location.revision().to_owned(),
                    name: file.name.clone(),
                };
                let target = |etag: &str| Target::in_snapshot(&entry, etag);
                Ok(Found::Remote(match file.len {
                    Some(len) => RemoteSource::of_len(
                        resource,
                        len,
                        file.etag.as_deref().map(target),
                        &self.reading,
                    ),
                    None => {
                        let linked = |resource: &Resource| resource.linked().as_deref().map(target);
                        RemoteSource::open(resource, linked, &self.reading)?
                    }
                }))
            }
            Kind::Url(url) => self.look_at(&beside(url, name)),
            Kind::Objects { location, store, .. } => self.look_in(store, location, name),
        }
    }

    /// Opens an object of a bucket.
    fn look_in(&self, store: &Store, location: &S3Location, name: &str) -> Result<Found> {
        let file =
            self.files.iter().find(|file| file.name == name).ok_or_else(|| self.absent(name))?;
        let (cache, url) =
            (Arc::new(UrlCache::new(&self.hub.client.settings.cache)), self.name_of(name));
        if let Some((path, cached)) = cache.find(&url)
            && cached.is_same(file.len, file.etag.as_deref())
        {
            return Ok(Found::Local(path));
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
        Ok(Found::Remote(source))
    }

    /// Opens the file of a URL; one that is in the cache is asked for its state alone.
    fn look_at(&self, url: &str) -> Result<Found> {
        let cache = Arc::new(UrlCache::new(&self.hub.client.settings.cache));
        let (resource, known) = (self.url_resource(url), cache.find(url));
        if let Some((path, _)) = known.as_ref().filter(|_| self.hub.client.settings.offline) {
            self.hub
                .notes
                .add(format!("{}: offline, so what is in the cache is used", resource.name));
            return Ok(Found::Local(path.clone()));
        }
        if let Some((path, cached)) = known {
            match resource.first_bytes(1) {
                Ok(_) if cached.is_same(resource.len(), resource.etag().as_deref()) => {
                    return Ok(Found::Local(path));
                }
                Ok(_) => {}
                Err(error) if is_about_the_network(&error) => {
                    self.hub.notes.add(format!(
                        "{}: {}; what is in the cache is used",
                        resource.name,
                        error.message()
                    ));
                    return Ok(Found::Local(path));
                }
                Err(error) => return Err(error),
            }
        }
        let target = |resource: &Resource| Some(listed_target(cache, url, resource.etag()));
        Ok(Found::Remote(RemoteSource::open(resource, target, &self.reading)?))
    }

    /// Fetches files into the cache. Of each, the path is returned, and how many bytes came over
    /// the network.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`finish`](Self::finish).
    pub fn download(
        &self,
        names: &[String],
        progress: &(dyn Progress + Sync),
    ) -> Result<Vec<Downloaded>> {
        /// The longest file that waits for the server rather than for the line.
        const SMALL: u64 = 1 << 20;
        let len = |name: &String| {
            self.files.iter().find(|file| file.name == *name).and_then(|file| file.len)
        };
        let is_small = |name: &&String| len(name).is_some_and(|len| len <= SMALL);
        let (small, large): (Vec<&String>, Vec<&String>) = names.iter().partition(is_small);
        // Small files come beside the large ones, and not after them.
        let (large, small) = std::thread::scope(|scope| {
            let small = scope.spawn(|| self.download_in_turn(&small, progress));
            (self.download_in_turn(&large, progress), small.join())
        });
        let small = small.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let mut done: Vec<Downloaded> = large?;
        done.extend(small?);
        done.sort_by_key(|file| names.iter().position(|name| *name == file.name));
        Ok(done)
    }

    fn download_in_turn(
        &self,
        names: &[&String],
        progress: &dyn Progress,
    ) -> Result<Vec<Downloaded>> {
        /// Files that are fetched at the same time.
        const AT_ONCE: usize = 4;
        let mut begun = VecDeque::new();
        let mut done = Vec::with_capacity(names.len());
        for &name in names {
            if begun.len() == AT_ONCE {
                done.extend(begun.pop_front().map(|begun| finished(begun, progress)).transpose()?);
            }
            begun.push_back((name.clone(), self.begin(name)?));
        }
        for begun in begun {
            done.push(finished(begun, progress)?);
        }
        Ok(done)
    }

    fn begin(&self, name: &str) -> Result<Begun> {
        let source = match self.open(name)? {
            Found::Local(path) => return Ok(Begun::Here(path)),
            Found::Remote(source) => source,
        };
        let download = source.download().ok_or_else(|| {
            let message = "the hub does not say what the file's digest is, so there is no place \
                for it in the cache";
            Error::io(IoCause::Other, message).in_file(self.name_of(name))
        })?;
        download.start();
        Ok(Begun::Coming(download))
    }

    fn absent(&self, name: &str) -> Error {
        let near = nearest(name, self.files.iter().map(|file| file.name.as_str()), 3);
        Error::io(IoCause::NotFound, format!("there is no such file{}", did_you_mean(&near)))
            .in_file(self.name_of(name))
    }

    pub(crate) fn hub_resource(
        &self,
        location: &HubLocation,
        repository: &Repository,
        path: &str,
    ) -> Resource {
        let settings = &self.hub.client.settings;
        let (repo, commit) = (encode_path(&repository.id), encode_segment(&repository.commit));
        let url = format!("{}/{repo}/resolve/{commit}/{}", settings.endpoint, encode_path(path));
        let asked = HubLocation { path: path.to_owned(), ..location.clone() };
        let (client, name) = (Arc::clone(&self.hub.client), asked.to_string());
        let explain = move |answer: &Answer| client.hub_error(&asked, answer);
        self.resource(Address::Fixed(url), name, settings.token.clone(), Box::new(explain))
    }

    fn url_resource(&self, url: &str) -> Resource {
        let name = Location::Url(url.to_owned()).to_string();
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
        }
    }
}

/// The folder that a location's files count from, and the file that it names; `None` where it names
/// nothing.
fn within(path: &str, files: &[RemoteFile]) -> Option<(String, Option<String>)> {
    if path.is_empty() {
        return Some((String::new(), None));
    }
    if files.iter().any(|file| file.name == path) {
        let (base, file) = path.rsplit_once('/').map_or(("", path), |(base, file)| (base, file));
        let base = if base.is_empty() { String::new() } else { format!("{base}/") };
        return Some((base, Some(file.to_owned())));
    }
    let folder = format!("{}/", path.trim_end_matches('/'));
    files.iter().any(|file| file.name.starts_with(&folder)).then_some((folder, None))
}

fn no_file(location: &HubLocation, repository: &Repository) -> Error {
    let path = &location.path;
    let near = nearest(path, repository.files.iter().map(|file| file.name.as_str()), 5);
    let message = format!(
        "{} has no file '{path}' at {}{}",
        repository.id,
        location.revision(),
        did_you_mean(&near)
    );
    Error::io(IoCause::NotFound, message).in_file(location)
}

/// The files below a folder, by their names in it.
fn below(files: &[RemoteFile], base: &str) -> Vec<RemoteFile> {
    let inside = |file: &RemoteFile| {
        Some(RemoteFile { name: file.name.strip_prefix(base)?.to_owned(), ..file.clone() })
    };
    files.iter().filter_map(inside).collect()
}

/// The URL of a file in the same folder as another one.
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

/// Why a server refuses a file.
fn url_error(answer: &Answer) -> Error {
    let status = answer.status;
    match status {
        404 | 410 => {
            Error::io(IoCause::NotFound, format!("the server has no such file ({status})"))
        }
        401 | 403 => Error::io(
            IoCause::Other,
            format!(
                "the server does not give it to everybody ({status}); apr sends no password to \
                 this server"
            ),
        ),
        _ => Error::io(IoCause::Other, format!("the server answers with status {status}")),
    }
}
