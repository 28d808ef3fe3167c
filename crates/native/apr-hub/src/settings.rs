//! What the environment says about hubs, tokens and folders.

use std::fmt;
use std::path::{PathBuf, is_separator};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use apr_core::{Error, Result};
use etcetera::BaseStrategy;

use crate::location::shown_url;

/// Default hub of `hf://` locations.
const ENDPOINT: &str = "https://huggingface.co";

/// Settings for fetching models.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The hub of `hf://`, without a slash at its end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// Token for requests to the hub.
    pub token: Option<Token>,
    /// The folder of the Hugging Face cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`.
    pub hub_cache: PathBuf,
    /// The folder of everything else that is cached: `APR_CACHE`.
    pub cache: PathBuf,
    /// `true` to use only files on this machine, and no network.
    pub offline: bool,
    /// `true` to keep files that are read whole in the cache.
    pub keep: bool,
    /// Allow `http` beyond this machine.
    pub insecure: bool,
    /// Timeout of a silent server, and window over which it must send at least
    /// [`LEAST_RATE`](Self::LEAST_RATE) bytes per second: `HF_HUB_DOWNLOAD_TIMEOUT`.
    pub timeout: Duration,
    /// Stops waiting and fetching when it is set.
    pub interrupt: Arc<AtomicBool>,
}

impl Settings {
    /// Bytes a second that all servers together have to send at least, while something is waited
    /// for.
    pub const LEAST_RATE: u64 = 1024;

    /// The variable that names another timeout.
    pub const TIMEOUT_VARIABLE: &str = "HF_HUB_DOWNLOAD_TIMEOUT";

    /// Seconds of the longest timeout: a day, which is as good as none.
    pub const LONGEST_TIMEOUT: u64 = 86_400;

    /// Default timeout of a silent server.
    pub const TIMEOUT: Duration = Duration::from_secs(30);

    /// Reads the settings from the environment. `cache` is the folder for files that are not
    /// Hugging Face's.
    ///
    /// # Errors
    /// E001 for an endpoint that is no address, a token that no header can carry, or a timeout that
    /// is no number of seconds.
    pub fn from_env(cache: PathBuf) -> Result<Self> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") {
            let message =
                format!("HF_ENDPOINT is '{}': expected an https:// URL", shown_url(&endpoint));
            return Err(Error::format(message));
        }

        let home = hub_home();
        let hub_cache =
            variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")).map(expand);
        Ok(Self {
            endpoint,
            token: Token::from_env(&home)?,
            hub_cache: hub_cache.unwrap_or_else(|| home.join("hub")),
            cache,
            offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
            keep: true,
            insecure: false,
            timeout: timeout_from_env()?,
            interrupt: Arc::default(),
        })
    }
}

/// Returns the timeout in the variable of Hugging Face's client.
fn timeout_from_env() -> Result<Duration> {
    const NAME: &str = Settings::TIMEOUT_VARIABLE;

    let Some(text) = variable(NAME) else { return Ok(Settings::TIMEOUT) };
    let seconds = text.trim().parse().ok().filter(|&seconds: &u64| seconds > 0);
    let seconds = seconds.ok_or_else(|| {
        Error::format(format!("{NAME} is '{text}': expected a number of seconds, 1 or more"))
    })?;
    Ok(Duration::from_secs(seconds.min(Settings::LONGEST_TIMEOUT)))
}

/// Returns the cache folder for files of other servers: `APR_CACHE`, or `apr` in the user's cache
/// folder.
///
/// # Errors
/// E007 when there is no home folder.
pub fn default_cache() -> Result<PathBuf> {
    if let Some(folder) = variable("APR_CACHE") {
        return Ok(folder.into());
    }
    let folders = etcetera::choose_base_strategy();
    let missing = |_| Error::io(apr_core::IoCause::NotFound, "no home folder: set APR_CACHE");
    Ok(folders.map_err(missing)?.cache_dir().join("apr"))
}

/// Returns the folder of Hugging Face's programs.
fn hub_home() -> PathBuf {
    let cache = || variable("XDG_CACHE_HOME").map(expand).unwrap_or_else(|| expand("~/.cache"));
    variable("HF_HOME").map_or_else(|| cache().join("huggingface"), expand)
}

/// A variable that is set and not empty, without the line ends that a value read from a file has.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    let value = value.trim_matches(['\r', '\n']);
    (!value.is_empty()).then(|| value.to_owned())
}

/// Returns `true` if a switch is on, by the words that Hugging Face's client accepts.
fn is_set(name: &str) -> bool {
    variable(name)
        .is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()))
}

/// Expands `~` to the home folder, and `$NAME` and `${NAME}` to variables, as Hugging Face's client
/// does. Other text stays unchanged.
pub(crate) fn expand(path: impl AsRef<str>) -> PathBuf {
    let home =
        || etcetera::choose_base_strategy().ok().map(|folders| folders.home_dir().to_path_buf());
    let path = with_variables(path.as_ref(), |name| std::env::var(name).ok());
    let is_home = |rest: &&str| rest.is_empty() || rest.starts_with(is_separator);
    match path.strip_prefix('~').filter(is_home).zip(home()) {
        Some((rest, home)) => {
            let parts = rest.split(is_separator).filter(|part| !part.is_empty());
            parts.fold(home, |path, part| path.join(part))
        }
        None => path.into(),
    }
}

fn with_variables(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let (name, end) = match after.strip_prefix('{').and_then(|after| after.split_once('}')) {
            Some((name, end)) => (name, end),
            None => after.split_at(after.find(|c| !is_part(c)).unwrap_or(after.len())),
        };
        match value(name).filter(|_| !name.is_empty()) {
            Some(value) => {
                expanded.push_str(&value);
                rest = end;
            }
            None => {
                expanded.push('$');
                rest = after;
            }
        }
    }
    expanded + rest
}

/// A secret for requests to servers. Its output shows its origin, never the secret.
#[derive(Clone)]
pub struct Token {
    secret: String,
    /// The variable or file that it was taken from.
    pub origin: String,
}

impl Token {
    /// Creates a token with its origin.
    #[must_use]
    pub fn new(secret: impl Into<String>, origin: impl Into<String>) -> Self {
        Self { secret: secret.into(), origin: origin.into() }
    }

    /// Reads the token from `HF_TOKEN`, from the file that `HF_TOKEN_PATH` names, or from the file
    /// that `hf auth login` wrote.
    ///
    /// # Errors
    /// E001 for a token that no header can carry.
    fn from_env(home: &std::path::Path) -> Result<Option<Self>> {
        if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            return Ok(None);
        }

        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(token) =
                variable(name).map(|secret| Self::read(&secret, name)).transpose()?
            {
                return Ok(token);
            }
        }

        let path = variable("HF_TOKEN_PATH").map_or_else(|| home.join("token"), expand);
        // A file that is missing or not readable is no token, as for Hugging Face's own client.
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
        Self::read(&text, &path.display().to_string())
    }

    /// Reads a token from a variable or file. Returns `None` if it contains only white space.
    fn read(text: &str, origin: &str) -> Result<Option<Self>> {
        let secret = text.replace(['\r', '\n'], "");
        let secret = secret.trim();
        if !secret.chars().all(|c| c.is_ascii_graphic()) {
            let message = format!(
                "the token of {origin} contains a space or an invalid character; set it to the \
                 token alone"
            );
            return Err(Error::format(message));
        }
        Ok((!secret.is_empty()).then(|| Self::new(secret, origin)))
    }

    /// The header that carries it.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.secret)
    }
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
    fn the_home_folder_is_expanded_in_the_form_of_the_system() {
        let home = expand("~");
        assert!(home.is_absolute(), "{}", home.display());
        let file = expand("~/.aws/config");
        assert_eq!(file.as_os_str(), home.join(".aws").join("config").as_os_str());
        assert_eq!(expand("~other/x"), PathBuf::from("~other/x"));
    }

    #[test]
    fn a_token_never_shows_itself() {
        let token = Token::new("hf_secret", "HF_TOKEN");
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(token.header(), "Bearer hf_secret");
    }

    #[test]
    fn variables_in_a_path_are_expanded_and_other_text_is_unchanged() {
        let value = |name: &str| (name == "HOME").then(|| "/h".to_owned());
        for (text, expected) in [
            ("$HOME/x", "/h/x"),
            ("${HOME}x/$", "/hx/$"),
            ("$HOMES/${NO}/$", "$HOMES/${NO}/$"),
            ("a${HOME", "a${HOME"),
            ("plain", "plain"),
        ] {
            assert_eq!(with_variables(text, value), expected);
        }
    }

    #[test]
    fn line_ends_around_a_token_are_removed() {
        let read = |text: &str| Token::read(text, "HF_TOKEN");
        let token = read(" hf_x\r\n").expect("a token").expect("one that is not empty");
        assert_eq!(token.header(), "Bearer hf_x");
        assert!(read("\n").expect("nothing is wrong with it").is_none());
        let error = read("two words").expect_err("no header carries it");
        assert!(!error.to_string().contains("words"), "{error}");
    }
}
