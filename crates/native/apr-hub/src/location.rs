//! Where a remote model is, as people write it.

use std::fmt;

use apr_core::{Error, Result};
use apr_platform::check_name;

/// A model, or a file of one, that is not on this machine.
///
/// ```
/// use apr_hub::Location;
///
/// let location =
///     Location::parse("hf://openai/whisper-tiny@main/model.safetensors").expect("a location")?;
/// let Location::Hub(hub) = &location else { panic!("a hub's") };
/// assert_eq!((hub.repo.as_str(), hub.revision.as_deref()), ("openai/whisper-tiny", Some("main")));
/// assert_eq!(hub.path, "model.safetensors");
/// assert!(Location::parse("model.safetensors").is_none());
/// # Ok::<(), apr_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// `hf://org/repo[@rev][/path]`
    Hub(HubLocation),
    /// `https://…`, or `http://…`
    Url(String),
    /// `s3://bucket/key`
    S3(S3Location),
}

/// A repository of a hub, or a file or folder in it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubLocation {
    /// `org/repo`, or a name without an organisation.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub revision: Option<String>,
    /// The file or folder; empty for the whole repository.
    pub path: String,
}

/// An object of a store that speaks S3, or a folder of them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct S3Location {
    /// The bucket.
    pub bucket: String,
    /// The key; a folder's ends with a slash, or is empty.
    pub key: String,
}

/// The schemes that name something remote.
const SCHEMES: [&str; 4] = ["hf://", "https://", "http://", "s3://"];

/// Parts of a path that may belong to the name of a revision.
const LONGEST_REVISION: usize = 8;

/// Kinds of repositories that hold no models.
const NOT_MODELS: [&str; 3] = ["datasets", "spaces", "buckets"];

impl Location {
    /// Reads a location; `None` for the path of a file.
    ///
    /// # Errors
    /// E001 for a location that names nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Result<Self>> {
        let scheme = SCHEMES.into_iter().find(|scheme| starts_with(text, scheme))?;
        let rest = &text[scheme.len()..];
        let parsed = match scheme {
            "hf://" => HubLocation::parse(rest).map(Self::Hub),
            "s3://" => S3Location::parse(rest).map(Self::S3),
            _ if rest.is_empty() || rest.starts_with('/') => {
                Err(Error::format("missing host in the URL"))
            }
            _ => Ok(Self::Url(format!("{scheme}{rest}"))),
        };
        Some(parsed.map_err(|error| error.in_file(shown_url(text))))
    }

    /// Returns `true` if a text names a remote location.
    #[must_use]
    pub fn is_remote(text: &str) -> bool {
        SCHEMES.into_iter().any(|scheme| starts_with(text, scheme))
    }

    /// Returns the last part of the path, without the query.
    #[must_use]
    pub fn file_name(&self) -> &str {
        let path = match self {
            Self::Hub(hub) => hub.path.as_str(),
            Self::Url(url) => path_of(url),
            Self::S3(s3) => s3.key.as_str(),
        };
        path.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Location {
    /// Formats the location for users: without passwords and the parts of a signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(hub) => hub.fmt(f),
            Self::Url(url) => f.write_str(&shown_url(url)),
            Self::S3(s3) => write!(f, "s3://{}/{}", s3.bucket, s3.key),
        }
    }
}

impl fmt::Display for HubLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}", self.repo)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{}", revision.replace('%', "%25").replace('/', "%2F"))?;
        }
        if self.path.is_empty() { Ok(()) } else { write!(f, "/{}", self.path) }
    }
}

impl HubLocation {
    /// Parses the text after `hf://`.
    fn parse(rest: &str) -> Result<Self> {
        let rest = rest.trim_end_matches('/');
        let rest = rest.strip_prefix("models/").unwrap_or(rest);
        let (first, after) = split(rest);
        if NOT_MODELS.contains(&first) {
            return Err(Error::format(format!(
                "'{first}' of the hub are not models: hf://ORG/REPO names one"
            )));
        }

        let (repo, revision, path) = match (first.split_once('@'), after.is_empty()) {
            (Some((name, revision)), _) => (name.to_owned(), Some(revision), after),
            (None, true) => (first.to_owned(), None, ""),
            (None, false) => {
                let (second, after) = split(after);
                let (name, revision) = match second.split_once('@') {
                    Some((name, revision)) => (name, Some(revision)),
                    None => (second, None),
                };
                (format!("{first}/{name}"), revision, after)
            }
        };

        let (revision, path) = long_revision(revision, path);
        check_repo(&repo)?;
        if revision.as_deref().is_some_and(|revision| revision.is_empty() || !is_plain(revision)) {
            return Err(Error::format("the revision after '@' is not a branch, tag or commit"));
        }

        if !path.is_empty() && !is_plain(&path) {
            return Err(Error::format("the path leads out of the repository"));
        }

        Ok(Self { repo, revision, path })
    }

    /// Returns the alternative readings of the location, since branches and tags may contain
    /// slashes. Each takes one more part of the path into the revision.
    pub(crate) fn longer(&self) -> impl Iterator<Item = Self> {
        let ends = self.path.match_indices('/').map(|(at, _)| at).chain([self.path.len()]);
        let longer = ends.filter_map(|end| {
            let (more, rest) = self.path.split_at(end);
            let revision = Some(format!("{}/{}", self.revision.as_deref()?, unescaped(more)));
            let path = rest.trim_start_matches('/').to_owned();
            Some(Self { repo: self.repo.clone(), revision, path })
        });
        let is_path = |location: &Self| is_plain(location.revision());
        longer.filter(is_path).take(LONGEST_REVISION)
    }

    /// Returns the revision to request.
    pub(crate) fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

/// Splits a revision with slashes, such as `refs/pr/3`, from the path. In other revisions slashes
/// are written as `%2F`, or the hub determines the end of the revision ([`HubLocation::longer`]).
fn long_revision(revision: Option<&str>, path: &str) -> (Option<String>, String) {
    let (kind, after) = split(path);
    let (number, rest) = split(after);
    match revision {
        Some("refs") if ["pr", "convert"].contains(&kind) && !number.is_empty() => {
            (Some(format!("refs/{kind}/{number}")), rest.to_owned())
        }
        revision => (revision.map(unescaped), path.to_owned()),
    }
}

/// Removes the escapes of a URL from a text, or returns it unchanged if they are invalid.
fn unescaped(text: &str) -> String {
    percent_decoded(text).unwrap_or_else(|| text.to_owned())
}

/// Removes the escapes of a URL from a text. Returns `None` if an escape is invalid or the result
/// is not UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }

    String::from_utf8(bytes).ok()
}

fn check_repo(repo: &str) -> Result<()> {
    let is_word = |word: &str| {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !word.is_empty() && word.len() <= 96 && word.chars().all(is_fit) && !word.starts_with('.')
    };
    if repo.split('/').all(is_word) {
        return Ok(());
    }
    Err(Error::format(format!(
        "'{repo}' is not a repository name; expected hf://ORG/REPO[@REVISION][/FILE]"
    )))
}

impl S3Location {
    fn parse(rest: &str) -> Result<Self> {
        let (bucket, key) = split(rest);
        let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if bucket.is_empty() || !bucket.chars().all(is_fit) {
            return Err(Error::format("missing bucket: expected s3://BUCKET/KEY"));
        }
        Ok(Self { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

/// Returns `true` if a name stays in its folder and can be shown to users.
pub(crate) fn is_plain(name: &str) -> bool {
    stays_inside(name) && !name.split('/').any(str::is_empty)
}

/// Returns `true` if the key of an object stays in its folder and can be shown. A key is not a
/// path, so its parts may be empty.
pub(crate) fn stays_inside(key: &str) -> bool {
    let leads_out = key.split('/').any(|part| part == "." || part == "..");
    let is_text = !key.contains('\\') && !key.chars().any(char::is_control);
    // What is fetched becomes a file of that name.
    !key.is_empty() && !leads_out && is_text && check_name(key).is_ok()
}

/// Returns the first part of a path, and the rest.
fn split(path: &str) -> (&str, &str) {
    path.split_once('/').unwrap_or((path, ""))
}

fn starts_with(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

/// The path of a URL, without the query.
pub(crate) fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    rest.split_once('/').map_or("", |(_, path)| path)
}

/// A URL without its user, password and query, each of which may be a secret.
pub(crate) fn shown_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) =
        rest.split_once('/').map_or((rest, None), |(authority, path)| (authority, Some(path)));
    let host = authority.rsplit('@').next().unwrap_or_default();
    if scheme.eq_ignore_ascii_case("hf") {
        return format!("{scheme}://{rest}");
    }
    match path {
        Some(path) => format!("{scheme}://{host}/{path}"),
        None => format!("{scheme}://{host}"),
    }
}

/// Escapes a text as part of a URL's path, and keeps slashes.
pub(crate) fn encode_path(text: &str) -> String {
    encode(text, b"/")
}

/// Text as one segment of a URL's path, or a value of its query.
pub(crate) fn encode_segment(text: &str) -> String {
    encode(text, b"")
}

fn encode(text: &str, kept: &[u8]) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) || kept.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(text: &str) -> (String, Option<String>, String) {
        match Location::parse(text).expect("remote").expect(text) {
            Location::Hub(HubLocation { repo, revision, path }) => (repo, revision, path),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn hub_locations_are_parsed() {
        let cases = [
            ("hf://a/b", "a/b", None, ""),
            ("hf://a/b/", "a/b", None, ""),
            ("hf://gpt2", "gpt2", None, ""),
            ("hf://gpt2@v1", "gpt2", Some("v1"), ""),
            ("hf://a/b@main/x/y.gguf", "a/b", Some("main"), "x/y.gguf"),
            ("hf://a/b@refs/pr/3/x.gguf", "a/b", Some("refs/pr/3"), "x.gguf"),
            ("hf://a/b@feature%2Fone/x.gguf", "a/b", Some("feature/one"), "x.gguf"),
            ("hf://a/b@v1%2B2%20%e4%b8%80", "a/b", Some("v1+2 \u{4e00}"), ""),
            ("hf://a/b@100%", "a/b", Some("100%"), ""),
            // Where the revision ends, the hub has to be asked.
            ("hf://a/b@feature/one/x.gguf", "a/b", Some("feature"), "one/x.gguf"),
            ("hf://models/a/b/x", "a/b", None, "x"),
            ("HF://a/b", "a/b", None, ""),
        ];
        for (text, repo, revision, path) in cases {
            assert_eq!(
                hub(text),
                (repo.to_owned(), revision.map(str::to_owned), path.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn a_revision_may_reach_into_the_path() {
        let Some(Ok(Location::Hub(hub))) = Location::parse("hf://a/b@feature/x%2Fy/m.gguf") else {
            panic!("a hub's")
        };
        let longer: Vec<(String, String)> =
            hub.longer().map(|hub| (hub.revision().to_owned(), hub.path)).collect();
        let expected = [("feature/x/y", "m.gguf"), ("feature/x/y/m.gguf", "")];
        assert_eq!(longer, expected.map(|(revision, path)| (revision.into(), path.into())));
        let whole = HubLocation { path: String::new(), ..hub };
        assert_eq!(whole.longer().count(), 0);
    }

    #[test]
    fn texts_that_name_no_location_are_rejected() {
        for text in [
            "hf://",
            "hf:///b",
            "hf://a/b/../c",
            "hf://a/b@/x",
            "hf://a b/c",
            "hf://datasets/a/b",
            "https://",
            "s3://",
            "s3:///key",
            "hf://a/b@../x",
            "hf://a/.b",
        ] {
            assert!(Location::parse(text).expect("remote").is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_of_a_url_are_not_shown() {
        let location =
            Location::Url("https://user:secret@host:1/a/b.gguf?X-Amz-Signature=secret#x".into());
        assert_eq!(location.to_string(), "https://host:1/a/b.gguf");
        assert_eq!(location.file_name(), "b.gguf");
    }
}
