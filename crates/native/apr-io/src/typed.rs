//! Typed models in files: what [`apr_registry::aprn`] does in memory, with the system's clock and
//! randomness.
//!
//! ```
//! use apr_registry::aprn::{ModelType, SaveOptions};
//! use apr_io::typed;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("line.apr");
//! let line = (2.0_f32, 1.0_f32);
//! typed::save(&line, ModelType::Custom, &path, &SaveOptions::default().with_name("a line"))?;
//!
//! let loaded: (f32, f32) = typed::load(&path, ModelType::Custom)?;
//! assert_eq!(loaded, line);
//! assert_eq!(typed::inspect(&path)?.metadata.model_name.as_deref(), Some("a line"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use apr_core::{Error, IoCause, Result, read_vec};
use apr_registry::aprn::{self, Andon, LoadOptions, ModelInfo, ModelType, SaveOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{AtomicOutput, FileSource, Target};

/// Saves a model, replacing the file if there is one. Without a time in the options it is saved as
/// of now.
///
/// # Errors
/// E001 for a model or options that can't be written, E007 when writing fails; the old file is kept
/// then.
pub fn save<M: Serialize + ?Sized>(
    model: &M,
    kind: ModelType,
    path: &Path,
    options: &SaveOptions,
) -> Result<()> {
    let mut options = options.clone();
    if options.metadata.created_at.is_empty() {
        options.metadata.created_at = seconds_since_1970();
    }
    let mut output = AtomicOutput::create(Target::File(path.to_path_buf()), true, [])?;
    let saved = aprn::save_to(&mut output, model, kind, &options, &mut fill_random);
    saved.map_err(|error| error.in_file(path.display()))?;
    // A caller that needs more than an atomic replacement writes through `AtomicOutput` itself.
    output.commit().map(drop)
}

/// Loads a model.
///
/// # Errors
/// An error with one of the signals of [`aprn::Signal`].
pub fn load<M: DeserializeOwned>(path: &Path, expected: ModelType) -> Result<M, Andon> {
    load_with(path, expected, &LoadOptions::default())
}

/// Loads a model that is encrypted, or must be signed.
///
/// # Errors
/// An error with one of the signals of [`aprn::Signal`].
pub fn load_with<M: DeserializeOwned>(
    path: &Path,
    expected: ModelType,
    options: &LoadOptions,
) -> Result<M, Andon> {
    let source = FileSource::open(path)?;
    let file = read_vec(&source, 0, apr_core::ByteSource::len(&source))
        .map_err(|error| error.in_file(path.display()))?;
    aprn::load_from_bytes_with(&file, expected, options)
        .map_err(|andon| andon.in_file(path.display()))
}

/// Returns the description of a file without reading its payload.
///
/// # Errors
/// The errors of [`aprn::inspect`], E007 when the file can't be read.
pub fn inspect(path: &Path) -> Result<ModelInfo, Andon> {
    aprn::inspect(&FileSource::open(path)?).map_err(|andon| andon.in_file(path.display()))
}

fn seconds_since_1970() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string()
}

fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes).map_err(|error| {
        Error::io(IoCause::Other, format!("no random bytes from the system: {error}"))
    })
}
