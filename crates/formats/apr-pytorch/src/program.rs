//! Programs of `torch.export` (`.pt2`): an archive in which a state dict is one entry, an archive
//! itself.
//!
//! ```text
//! PyTorch 2.1 to 2.7                       later
//! ├─ serialized_exported_program.json      ├─ models/model.json           the program
//! ├─ serialized_state_dict.pt              ├─ data/weights/model.pt       the weights
//! ├─ serialized_constants.pt               ├─ data/constants/model.pt
//! ├─ serialized_example_inputs.pt          ├─ data/sample_inputs/model.pt
//! └─ version                               └─ version, byteorder, archive_format
//! ```

use std::sync::Arc;

use apr_archive::{Archive, Entry, Section};
use apr_core::{ByteSource, Error, Escaped, Limits, Result};

use crate::contents::Contents;
use crate::options::OpenOptions;
use crate::state_dict::read_state_dict;

/// Entries that are left out and named; the rest is counted.
const NAMED: usize = 8;

/// The entry with the weights, if this is such a program.
///
/// # Errors
/// E001 for one with several models, E003 for one whose weights are not a state dict.
pub(crate) fn weights(archive: &Archive) -> Result<Option<&Entry>> {
    let is_weights = |name: &str| {
        name.rsplit('/').next() == Some("serialized_state_dict.pt")
            || name.ends_with(".pt")
                && (name.starts_with("data/weights/") || name.contains("/data/weights/"))
    };
    let is_tensor_by_tensor = |name: &str| name.ends_with("model_weights_config.json");
    let mut found = archive.entries.iter().filter(|entry| is_weights(&entry.name));
    match (found.next(), found.next()) {
        (Some(weights), None) => Ok(Some(weights)),
        (Some(one), Some(other)) => {
            let (one, other) = (Escaped::short(&one.name), Escaped::short(&other.name));
            Err(Error::format(format!(
                "the program has the weights of two models: '{one}' and '{other}'"
            )))
        }
        _ if archive.entries.iter().any(|entry| is_tensor_by_tensor(&entry.name)) => {
            Err(Error::version(
                "this program of torch.export keeps its weights one by one, which is not read yet",
            ))
        }
        _ => Ok(None),
    }
}

/// Opens the state dict in the program.
pub(crate) fn read(
    source: &Arc<dyn ByteSource>,
    program: &Archive,
    weights: &Entry,
    options: &OpenOptions,
    limits: &Limits,
) -> Result<(Contents, Box<dyn ByteSource>)> {
    if !weights.is_stored() {
        let message =
            "the weights of this program are compressed as a whole; torch.export stores them";
        return Err(Error::version(message).at(weights.place));
    }

    weights.check_packing()?;
    let section = Section::new(Arc::clone(source), weights.place, weights.len)?;
    let inner = Archive::read(&section, limits)
        .and_then(|archive| read_state_dict(Arc::new(section), archive, options, limits));
    let (mut contents, inner) = inner.map_err(|error| match error.offset() {
        // Places in errors count from the start of the whole file.
        Some(offset) => error.at(weights.place.saturating_add(offset)),
        None => error.at(weights.place),
    })?;
    let origin = contents.origin.take().unwrap_or_default();
    contents.origin = Some(origin.within(weights.place, source.len()));
    contents.header_fields.insert("kind".into(), "program of torch.export".into());
    let others: Vec<&Entry> =
        program.entries.iter().filter(|entry| entry.name != weights.name).collect();
    let named = others.iter().take(NAMED).map(|entry| Escaped::short(&entry.name).to_string());
    contents.left_out.extend(named);
    if others.len() > NAMED {
        contents.left_out.push(format!("{} more entries of the program", others.len() - NAMED));
    }

    Ok((contents, inner))
}
