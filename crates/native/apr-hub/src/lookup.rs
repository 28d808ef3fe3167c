//! Looking locations up: which repository, address or bucket one is.

use std::sync::Arc;

use apr_core::{Error, IoCause, Result};

use crate::choose::Choice;
use crate::client::Client;
use crate::hub::{RemoteFile, Repository};
use crate::hub_cache::RepositoryFolder;
use crate::location::{HubLocation, Location, S3Location, percent_decoded};
use crate::notes::Notes;
use crate::resource::renamed;
use crate::s3::Store;
use crate::settings::Settings;
use crate::url_cache::UrlCache;

/// Client that looks up locations and reads their files.
#[derive(Clone)]
pub struct Hub {
    pub(crate) client: Arc<Client>,
    pub(crate) notes: Notes,
    pub(crate) choice: Choice,
}

impl Hub {
    /// Creates a hub client with these settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            client: Arc::new(Client::new(settings)),
            notes: Notes::default(),
            choice: Choice::default(),
        }
    }

    /// Sets the user's selection of files.
    #[must_use]
    pub fn choosing(mut self, choice: Choice) -> Self {
        self.choice = choice;
        self
    }

    /// Returns the settings for fetching models.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.client.settings
    }

    /// Returns the notes for the user about fetched files.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Requests made, and bytes received, so far.
    #[must_use]
    pub fn moved(&self) -> (u64, u64) {
        self.client.moved()
    }

    /// Converts the URL of a page of the hub to the location of its repository.
    pub(crate) fn as_hub(&self, location: &Location) -> Location {
        let Location::Url(url) = location else { return location.clone() };
        let endpoint = &self.client.settings.endpoint;
        let hosts = [endpoint.as_str(), "https://huggingface.co", "https://hf.co"];
        let Some(rest) = hosts.iter().find_map(|host| url.strip_prefix(host)?.strip_prefix('/'))
        else {
            return location.clone();
        };
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let parts: Vec<&str> = path.splitn(5, '/').collect();
        let text = match parts[..] {
            [org, repo] if !org.is_empty() && !repo.is_empty() => format!("hf://{org}/{repo}"),
            [org, repo, "resolve" | "blob" | "raw" | "tree", revision] => {
                format!("hf://{org}/{repo}@{revision}")
            }
            [org, repo, "resolve" | "blob" | "raw" | "tree", revision, file] => {
                // Of a location, the path is taken as it is.
                let file = percent_decoded(file).unwrap_or_else(|| file.to_owned());
                format!("hf://{org}/{repo}@{revision}/{file}")
            }
            _ => return location.clone(),
        };

        Location::parse(&text).and_then(Result::ok).unwrap_or_else(|| location.clone())
    }

    /// Lists the objects below a key. If the user may not list the bucket, the key is taken as an
    /// object, which may still be readable.
    pub(crate) fn objects(&self, location: S3Location) -> Result<LocationKind> {
        let store = Store::from_env()?;
        let is_folder = location.key.is_empty() || location.key.ends_with('/');
        let files = if self.client.settings.offline {
            UrlCache::new(&self.client.settings.cache).objects(&location)
        } else {
            match store.list(&self.client, &location) {
                Ok(files) => files,
                Err(error) if is_folder || error.cause() != Some(IoCause::Other) => {
                    return Err(error);
                }
                Err(_) => vec![RemoteFile { name: location.key.clone(), len: None, etag: None }],
            }
        };

        Ok(LocationKind::Objects { location, store, files })
    }

    pub(crate) fn repository(&self, location: &HubLocation) -> Result<LocationKind> {
        let settings = &self.client.settings;
        let folder = RepositoryFolder::new(&settings.hub_cache, &settings.cache, &location.repo);

        // A revision that has slashes may be longer than the location alone shows.
        let mut meant = [location.clone()].into_iter().chain(location.longer());
        let known = meant.find_map(|meant| Some((folder.repository(&meant)?, meant)));
        if self.client.settings.offline {
            let (repository, location) = known.ok_or_else(|| {
                let message = "not in the cache, in offline mode (HF_HUB_OFFLINE or `offline`)";
                Error::io(IoCause::NotFound, message).in_file(location)
            })?;
            self.notes
                .add(format!("{location}: offline, using the cache: commit {}", repository.commit));
            return Ok(LocationKind::Repository { location, repository, folder });
        }

        match self.client.repository(location) {
            Ok((location, repository)) => {
                for name in &repository.odd {
                    self.notes.add(format!(
                        "{location}: a file is left out, since its name leads out of \
                            a folder: {name}"
                    ));
                }
                Ok(LocationKind::Repository { location, repository, folder })
            }
            // What was found wrong with the request would be wrong with the cache too.
            Err(error) => match known.filter(|_| is_about_the_network(&error)) {
                Some((repository, location)) => {
                    let why = error.message();
                    let commit = &repository.commit;
                    self.notes.add(format!("{location}: {why}; using the cache: commit {commit}"));
                    Ok(LocationKind::Repository { location, repository, folder })
                }
                None => Err(renamed(&error, &location.to_string())),
            },
        }
    }
}

/// Returns `true` if an error may not occur in another network.
pub(crate) fn is_about_the_network(error: &Error) -> bool {
    error.cause() == Some(IoCause::Network)
}

/// Kind of a location.
#[derive(Clone)]
pub(crate) enum LocationKind {
    Repository {
        location: HubLocation,
        repository: Repository,
        folder: RepositoryFolder,
    },
    Url(String),
    Objects {
        location: S3Location,
        store: Store,
        /// Objects by their keys.
        files: Vec<RemoteFile>,
    },
}
