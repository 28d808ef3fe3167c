//! What servers answer, read from any bytes: what fuzzing begins with.

use crate::headers::parse_content_range;
use crate::hub::{is_commit, parse};
use crate::journal::Journal;
use crate::location::{HubLocation, Location, is_plain};
use crate::s3;

/// Reads bytes as every kind of data from a server or a cache, and checks that the results stay
/// within bounds.
///
/// # Panics
/// If they do not.
pub fn read_any(bytes: &[u8]) {
    let location = HubLocation { repo: "org/repo".to_owned(), revision: None, path: String::new() };
    if let Ok(repository) = parse(bytes, &location) {
        assert!(
            is_commit(&repository.commit)
                && repository.files.iter().all(|file| is_plain(&file.name))
        );
    }

    let text = String::from_utf8_lossy(bytes);
    assert!(s3::objects(&text).all(|file| is_plain(&file.name)));
    if let Some((range, len)) = parse_content_range(&text) {
        assert!(range.start <= range.end && range.end <= len);
    }

    if let Some(Ok(Location::Hub(hub))) = Location::parse(&text) {
        assert!(hub.path.is_empty() || is_plain(&hub.path));
        let again = Location::parse(&hub.to_string());
        assert_eq!(again.and_then(Result::ok), Some(Location::Hub(hub)));
    }

    if let Ok(journal) = serde_json::from_slice::<Journal>(bytes)
        && journal.is_sound()
    {
        assert!(journal.total() <= journal.len);
    }
}
