//! The user's `config.toml`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use etcetera::BaseStrategy;
use serde::Deserialize;

use crate::failure::{Failure, Outcome};

/// Settings of a user; an option or an environment variable overrides each.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) defaults: Defaults,
    pub(crate) inspect: Inspect,
    pub(crate) debug: Debug,
    pub(crate) validate: Validate,
    pub(crate) hub: Hub,
}

/// Section `[hub]` of the configuration file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Hub {
    /// Timeout in seconds.
    pub(crate) timeout: Option<NonZeroU64>,
}

/// Section `[defaults]` of the configuration file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Defaults {
    pub(crate) output_format: OutputFormat,
    pub(crate) color: Option<bool>,
}

/// Format in which reports are printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputFormat {
    #[default]
    Text,
    Json,
}

/// Section `[inspect]` of the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Inspect {
    pub(crate) show_vocab: bool,
    pub(crate) max_tokens_display: usize,
}

impl Default for Inspect {
    fn default() -> Self {
        Self { show_vocab: false, max_tokens_display: 20 }
    }
}

/// Section `[debug]` of the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Debug {
    pub(crate) drama_mode: bool,
    pub(crate) hex_limit: usize,
}

impl Default for Debug {
    fn default() -> Self {
        Self { drama_mode: false, hex_limit: 256 }
    }
}

/// Section `[validate]` of the configuration file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Validate {
    pub(crate) strict: bool,
    pub(crate) require_signature: bool,
    /// Public keys that signatures are verified by.
    pub(crate) trusted: Vec<PathBuf>,
}

impl Config {
    /// Reads the file that `APR_CONFIG` names, or the one in the user's configuration folder if it
    /// is there.
    pub(crate) fn load() -> Outcome<Self> {
        let named = std::env::var_os("APR_CONFIG").filter(|path| !path.is_empty());
        let named = named.map(PathBuf::from);
        let Some(path) = named.clone().or_else(default_path) else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            // A file that the user names has to be there.
            Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(apr_io::io_error(&error, &path).into()),
        };
        let config: Self = toml::from_str(&text).map_err(|error| {
            Failure::Usage(format!("{}: {}", path.display(), apr_core::foreign(&error)))
        })?;
        Ok(config.in_folder(path.parent().unwrap_or(std::path::Path::new(""))))
    }
}

impl Config {
    /// Files that the configuration names are beside it.
    fn in_folder(mut self, folder: &std::path::Path) -> Self {
        self.validate.trusted.iter_mut().for_each(|path| *path = folder.join(&path));
        self
    }
}

fn default_path() -> Option<PathBuf> {
    let folders = etcetera::choose_base_strategy().ok()?;
    Some(folders.config_dir().join("apr/config.toml"))
}

/// The cache folder: `APR_CACHE`, or `apr` in the user's cache folder.
pub(crate) fn cache_folder() -> Outcome<PathBuf> {
    if let Some(folder) = std::env::var_os("APR_CACHE") {
        return Ok(folder.into());
    }
    let folders = etcetera::choose_base_strategy();
    let folders =
        folders.map_err(|_| Failure::General("no home folder: set APR_CACHE".to_owned()))?;
    Ok(folders.cache_dir().join("apr"))
}
