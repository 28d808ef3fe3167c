//! What the environment says about hubs, tokens and folders.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use apr_core::{Error, Result};
use etcetera::BaseStrategy;

use crate::location::shown_url;

/// The hub that `hf://` means where nothing else is said.
const ENDPOINT: &str = "https://huggingface.co";

/// How models are fetched, and with what.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub of `hf://`, without a slash at its end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// What the hub is asked with.
    pub token: Option<Token>,
    /// The folder of the Hugging Face cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    pub hub_cache: PathBuf,
    /// The folder of everything else that is cached: `APR_CACHE`.
    pub cache: PathBuf,
    /// Use what is on this machine, and no network.
    pub offline: bool,
    /// Keep what is read as a whole in the cache.
    pub keep: bool,
    /// Allow `http` beyond this machine.
    pub insecure: bool,
    /// Stops waiting and fetching when it is set.
    pub interrupt: Arc<AtomicBool>,
}

impl Settings {
    /// Reads the environment; `cache` is the folder of what is not Hugging Face's.
    ///
    /// # Errors
    /// E007 when a token's file can't be read, E001 for an endpoint that is no address.
    pub fn from_env(cache: PathBuf) -> Result<Self> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let message =
                format!("HF_ENDPOINT is '{}', which is no https:// address", shown_url(&endpoint));
            return Err(Error::format(message));
        }

        let home = hub_home();
        let hub_cache =
            variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")).map(expand);
        Ok(Self {
            endpoint,
            token: Token::from_env(&home),
            hub_cache: hub_cache.unwrap_or_else(|| home.join("hub")),
            cache,
            offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
            keep: true,
            insecure: false,
            interrupt: Arc::default(),
        })
    }
}

/// The folder of what is cached of other servers: `APR_CACHE`, or `apr` in the user's cache folder.
///
/// # Errors
/// E007 where there is no home folder.
pub fn default_cache() -> Result<PathBuf> {
    if let Some(folder) = variable("APR_CACHE") {
        return Ok(folder.into());
    }
    let folders = etcetera::choose_base_strategy();
    let missing =
        |_| Error::io(apr_core::IoCause::NotFound, "there is no home folder; set APR_CACHE");
    Ok(folders.map_err(missing)?.cache_dir().join("apr"))
}

/// The folder of Hugging Face's programs.
fn hub_home() -> PathBuf {
    let cache =
        || variable("XDG_CACHE_HOME").map(expand).unwrap_or_else(|| expand("~/.cache".to_owned()));
    variable("HF_HOME").map_or_else(|| cache().join("huggingface"), expand)
}

/// A variable that is there and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether a switch is on, by the words that Hugging Face's client takes.
fn is_set(name: &str) -> bool {
    variable(name)
        .is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()))
}

/// A path whose `~` is the home folder.
pub(crate) fn expand(path: String) -> PathBuf {
    let home =
        || etcetera::choose_base_strategy().ok().map(|folders| folders.home_dir().to_path_buf());
    match path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')).zip(home())
    {
        Some((rest, home)) => home.join(rest.trim_start_matches('/')),
        None => path.into(),
    }
}

/// A secret that servers are asked with. It shows where it came from, and never itself.
#[derive(Clone)]
pub struct Token {
    secret: String,
    /// The variable or file that it was taken from.
    pub origin: String,
}

impl Token {
    /// A token, and where it came from.
    #[must_use]
    pub fn new(secret: impl Into<String>, origin: impl Into<String>) -> Self {
        Self { secret: secret.into(), origin: origin.into() }
    }

    /// `HF_TOKEN`, or what is in the file that `HF_TOKEN_PATH` names or `hf auth login` wrote.
    fn from_env(home: &std::path::Path) -> Option<Self> {
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(secret) = variable(name).and_then(|secret| cleaned(&secret)) {
                return Some(Self::new(secret, name));
            }
        }
        let path = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), expand);
        // A file that is not there or not readable is no token, as for Hugging Face's own client.
        let secret = cleaned(&std::fs::read_to_string(&path).ok()?)?;
        Some(Self::new(secret, path.display().to_string()))
    }

    /// The header that carries it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.secret)
    }
}

/// A token without the line ends that files have; `None` where nothing is left that a header can
/// carry.
fn cleaned(secret: &str) -> Option<String> {
    let secret = secret.replace(['\r', '\n'], "");
    let secret = secret.trim();
    (!secret.is_empty() && secret.chars().all(|c| c.is_ascii_graphic())).then(|| secret.to_owned())
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_never_shows_itself() {
        let token = Token::new("hf_secret", "HF_TOKEN");
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(token.header(), "Bearer hf_secret");
    }

    #[test]
    fn line_ends_around_a_token_are_no_part_of_it() {
        assert_eq!(cleaned(" hf_x\r\n").as_deref(), Some("hf_x"));
        assert_eq!(cleaned("\n"), None);
        assert_eq!(cleaned("two words"), None);
    }
}
