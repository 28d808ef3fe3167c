//! A location that was looked up: which files are there, and how to read them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use apr_core::{Error, IoCause, Result};

use crate::client::{Answer, Client};
use crate::hub::{RemoteFile, Repository, did_you_mean};
use crate::hub_cache::RepositoryFolder;
use crate::location::{HubLocation, Location, encode_path, encode_segment, is_plain, path_of};
use crate::nearest::nearest;
use crate::notes::Notes;
use crate::resource::{Address, Explain, Resource, State};
use crate::settings::Settings;
use crate::source::{Reading, RemoteSource};

/// Looks locations up, and reads what is there.
#[derive(Clone)]
pub struct Hub {
    client: Arc<Client>,
    notes: Notes,
}

impl Hub {
    /// A hub client with these settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { client: Arc::new(Client::new(settings)), notes: Notes::default() }
    }

    /// How models are fetched.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.client.settings
    }

    /// What the user should know of how files were fetched.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Requests made, and bytes received, so far.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        self.client.moved()
    }

    /// Looks a location up: one request to a hub, none to other servers.
    ///
    /// # Errors
    /// E007 for what is not there or not for this user, and where there is no network.
    pub fn place(&self, location: &Location) -> Result<Place> {
        let kind = match self.as_hub(location) {
            Location::Hub(hub) => self.repository(hub)?,
            Location::Url(url) => Kind::Url(url),
            Location::S3(_) => {
                return Err(Error::io(IoCause::Other, "object stores are not read yet").in_file(location));
            }
        };
        Place::new(self.clone(), location.clone(), kind)
    }

    /// A URL of a page of the hub is that of its repository.
    fn as_hub(&self, location: &Location) -> Location {
        let Location::Url(url) = location else { return location.clone() };
        let endpoint = &self.client.settings.endpoint;
        let hosts = [endpoint.as_str(), "https://huggingface.co", "https://hf.co"];
        let Some(rest) = hosts.iter().find_map(|host| url.strip_prefix(host)?.strip_prefix('/')) else {
            return location.clone();
        };
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = path.splitn(5, '/').collect();
        let text = match parts[..] {
            [org, repo] if !org.is_empty() && !repo.is_empty() => format!("hf://{org}/{repo}"),
            [org, repo, "resolve" | "blob" | "raw" | "tree", revision] => format!("hf://{org}/{repo}@{revision}"),
            [org, repo, "resolve" | "blob" | "raw" | "tree", revision, file] => {
                format!("hf://{org}/{repo}@{revision}/{file}")
            }
            _ => return location.clone(),
        };
        Location::parse(&text).and_then(Result::ok).unwrap_or_else(|| location.clone())
    }

    fn repository(&self, location: HubLocation) -> Result<Kind> {
        let cached = |repo: &str| RepositoryFolder::new(&self.client.settings.hub_cache, repo);
        let folder = cached(&location.repo);
        let known = folder.repository(&location);
        if self.client.settings.offline {
            let repository = known.ok_or_else(|| {
                let message = "this is not in the cache, and apr is offline (HF_HUB_OFFLINE or --offline)";
                Error::io(IoCause::NotFound, message).in_file(&location)
            })?;
            self.notes
                .add(format!("{location}: offline, so what is in the cache is used: commit {}", repository.commit));
            return Ok(Kind::Repository { location, repository, folder });
        }
        match self.client.repository(&location) {
            Ok(repository) => {
                for name in &repository.odd {
                    self.notes
                        .add(format!("{location}: a file is left out, since its name leads out of a folder: {name}"));
                }
                Ok(Kind::Repository { location, repository, folder })
            }
            // What was found wrong with the request would be wrong with the cache too.
            Err(error) => match known.filter(|_| is_about_the_network(&error)) {
                Some(repository) => {
                    let why = error.message();
                    let commit = &repository.commit;
                    self.notes.add(format!("{location}: {why}; what is in the cache is used: commit {commit}"));
                    Ok(Kind::Repository { location, repository, folder })
                }
                None => Err(error.in_file(&location)),
            },
        }
    }
}

/// Whether an error may be another one with another network.
fn is_about_the_network(error: &Error) -> bool {
    let hints = ["no network", "no connection", "does not answer", "fell silent", "in trouble", "connection was cut"];
    error.cause() == Some(IoCause::Other) && hints.iter().any(|hint| error.message().contains(hint))
}

/// What a location is.
#[derive(Clone)]
enum Kind {
    Repository { location: HubLocation, repository: Repository, folder: RepositoryFolder },
    Url(String),
}

/// A file of a place.
pub enum Found {
    /// On this machine.
    Local(PathBuf),
    /// On a server.
    Remote(RemoteSource),
}

/// A location that was looked up.
#[derive(Clone)]
pub struct Place {
    hub: Hub,
    location: Location,
    kind: Kind,
    /// The folder of the repository that the names of files count from: empty, or with a slash at its end.
    base: String,
    /// The file that was named.
    file: Option<String>,
    files: Vec<RemoteFile>,
    reading: Arc<Reading>,
}

impl Place {
    fn new(hub: Hub, location: Location, kind: Kind) -> Result<Self> {
        let (base, file) = match &kind {
            Kind::Repository { location, repository, .. } => within(location, repository)?,
            Kind::Url(url) => (String::new(), Some(path_of(url).rsplit('/').next().unwrap_or_default().to_owned())),
        };
        let files = match &kind {
            Kind::Repository { repository, .. } => below(&repository.files, &base),
            Kind::Url(_) => file.iter().map(|name| RemoteFile { name: name.clone(), len: None, etag: None }).collect(),
        };
        Ok(Self { hub, location, kind, base, file, files, reading: Arc::default() })
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

    /// All files of the folder that is named, or that the named file is in; of a URL, the file alone.
    #[must_use]
    pub fn files(&self) -> &[RemoteFile] {
        &self.files
    }

    /// The repository, where this is one.
    #[must_use]
    pub fn repository(&self) -> Option<&Repository> {
        match &self.kind {
            Kind::Repository { repository, .. } => Some(repository),
            Kind::Url(_) => None,
        }
    }

    /// What people call a file of this place.
    #[must_use]
    pub fn name_of(&self, file: &str) -> String {
        match &self.kind {
            Kind::Repository { location, .. } => {
                HubLocation { path: format!("{}{file}", self.base), ..location.clone() }.to_string()
            }
            Kind::Url(url) => Location::Url(beside(url, file)).to_string(),
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

    /// Opens a file.
    ///
    /// # Errors
    /// E001 for a name that leads out of the folder, E007 for a file that is not there or not for this user.
    pub fn open(&self, name: &str) -> Result<Found> {
        if !is_plain(name) {
            return Err(Error::format("the name leads out of the model's folder").in_file(name));
        }
        match &self.kind {
            Kind::Repository { location, repository, folder } => {
                let file = self.files.iter().find(|file| file.name == name).ok_or_else(|| self.absent(name))?;
                let whole = RemoteFile { name: format!("{}{name}", self.base), ..file.clone() };
                if let Some(path) = folder.file(&repository.commit, &whole) {
                    return Ok(Found::Local(path));
                }
                let resource = self.hub_resource(location, repository, &whole.name);
                let source = match file.len {
                    Some(len) => RemoteSource::of_len(resource, len, &self.reading),
                    None => RemoteSource::open(resource, &self.reading)?,
                };
                Ok(Found::Remote(source))
            }
            Kind::Url(url) => {
                let resource = self.url_resource(&beside(url, name));
                Ok(Found::Remote(RemoteSource::open(resource, &self.reading)?))
            }
        }
    }

    fn absent(&self, name: &str) -> Error {
        let near = nearest(name, self.files.iter().map(|file| file.name.as_str()), 3);
        Error::io(IoCause::NotFound, format!("there is no such file{}", did_you_mean(&near)))
            .in_file(self.name_of(name))
    }

    pub(crate) fn hub_resource(&self, location: &HubLocation, repository: &Repository, path: &str) -> Resource {
        let settings = &self.hub.client.settings;
        let (repo, commit) = (encode_path(&repository.id), encode_segment(&repository.commit));
        let url = format!("{}/{repo}/resolve/{commit}/{}", settings.endpoint, encode_path(path));
        let asked = HubLocation { path: path.to_owned(), ..location.clone() };
        let (client, name) = (Arc::clone(&self.hub.client), asked.to_string());
        let explain = move |answer: &Answer| client.hub_error(&asked, answer);
        self.resource(url, name, settings.token.clone(), Box::new(explain))
    }

    fn url_resource(&self, url: &str) -> Resource {
        let name = Location::Url(url.to_owned()).to_string();
        self.resource(url.to_owned(), name, None, Box::new(url_error))
    }

    fn resource(
        &self,
        url: String,
        name: String,
        token: Option<crate::settings::Token>,
        explain: Box<Explain>,
    ) -> Resource {
        Resource {
            client: Arc::clone(&self.hub.client),
            name,
            address: Address::Fixed(url),
            token,
            explain,
            notes: self.hub.notes.clone(),
            state: Mutex::new(State::default()),
        }
    }
}

/// The folder that a location's files count from, and the file that it names.
fn within(location: &HubLocation, repository: &Repository) -> Result<(String, Option<String>)> {
    let path = &location.path;
    if path.is_empty() {
        return Ok((String::new(), None));
    }
    if repository.files.iter().any(|file| file.name == *path) {
        let (base, file) = path.rsplit_once('/').map_or(("", path.as_str()), |(base, file)| (base, file));
        let base = if base.is_empty() { String::new() } else { format!("{base}/") };
        return Ok((base, Some(file.to_owned())));
    }
    let folder = format!("{path}/");
    if repository.files.iter().any(|file| file.name.starts_with(&folder)) {
        return Ok((folder, None));
    }
    let near = nearest(path, repository.files.iter().map(|file| file.name.as_str()), 5);
    let message = format!("{} has no file '{path}' at {}{}", repository.id, location.revision(), did_you_mean(&near));
    Err(Error::io(IoCause::NotFound, message).in_file(location))
}

/// The files below a folder, by their names in it.
fn below(files: &[RemoteFile], base: &str) -> Vec<RemoteFile> {
    let inside =
        |file: &RemoteFile| Some(RemoteFile { name: file.name.strip_prefix(base)?.to_owned(), ..file.clone() });
    files.iter().filter_map(inside).collect()
}

/// The URL of a file in the same folder as another one.
fn beside(url: &str, name: &str) -> String {
    let (path, query) = url.split_once('?').map_or((url, None), |(path, query)| (path, Some(query)));
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
        404 | 410 => Error::io(IoCause::NotFound, format!("the server has no such file ({status})")),
        401 | 403 => Error::io(
            IoCause::Other,
            format!("the server does not give it to everybody ({status}); apr sends no password to this server"),
        ),
        _ => Error::io(IoCause::Other, format!("the server answers with status {status}")),
    }
}
