//! Heads that a configuration ties to the table of tokens, and that a checkpoint has nevertheless.
//!
//! transformers compares the two when it loads a checkpoint: the same values are tied, others are
//! not, with a warning that the configuration is wrong.

use apr_arch::FamilyModel;
use apr_blocks::{GraphOptions, TiedHead, tied_heads};
use apr_registry::{CheckpointReader, Result};
use apr_source::Source;

/// Number of bytes that are compared at a time.
const CHUNK: u64 = 1 << 20;

/// The options with the heads that differ from the tables of tokens they are tied to, and a warning
/// for each. Options that say it already stay as they are.
///
/// # Errors
/// E001 when the configuration says something else than true or false of ties; E002 and E007 when
/// one of the tensors can't be read.
pub fn with_untied(
    source: &Source<'_>,
    options: &GraphOptions,
) -> Result<(GraphOptions, Vec<String>)> {
    let family = source.family()?.filter(|_| options.untied.is_none());
    let Some(family) = family else { return Ok((options.clone(), Vec::new())) };
    let found = differing(source.reader(), family, options)?;
    let warnings = found.iter().map(warning).collect();
    let untied = found.into_iter().map(|tied| tied.head).collect();
    Ok((GraphOptions { untied: Some(untied), ..options.clone() }, warnings))
}

/// Returns a warning for each head that differs from the table that its configuration ties it to.
///
/// A head or table that can't be read is not compared: its own check reports the error.
pub(crate) fn contradictions(
    reader: &dyn CheckpointReader,
    family: &FamilyModel<'_>,
) -> Vec<String> {
    let found = differing(reader, family, &GraphOptions::default()).unwrap_or_default();
    found.iter().map(warning).collect()
}

fn warning(tied: &TiedHead) -> String {
    format!(
        "the configuration ties '{}' to '{}', but their values differ: they are kept apart, as \
         in transformers; set tie_word_embeddings to false",
        tied.head, tied.table
    )
}

/// Returns the heads that differ from the tables that the configuration ties them to.
fn differing(
    reader: &dyn CheckpointReader,
    family: &FamilyModel<'_>,
    options: &GraphOptions,
) -> Result<Vec<TiedHead>> {
    let mut found = Vec::new();
    for tied in tied_heads(family, reader.tensors(), options)? {
        if !is_copy(reader, family, &tied)? {
            found.push(tied);
        }
    }
    Ok(found)
}

/// Returns `true` if the output head has the same bytes as the embedding table.
fn is_copy(
    reader: &dyn CheckpointReader,
    family: &FamilyModel<'_>,
    tied: &TiedHead,
) -> Result<bool> {
    let tensors = reader.tensors();
    let position =
        |name: &str| (0..tensors.len()).find(|position| family.canonical(*position) == Some(name));
    let (Some(head), Some(table)) = (position(&tied.head), position(&tied.table)) else {
        return Ok(true);
    };
    let (one, other) = (&tensors[head], &tensors[table]);
    if one.dtype != other.dtype || one.shape != other.shape {
        return Ok(false);
    }

    let size = one.byte_len()?;
    let mut at = 0;
    let (mut left, mut right) = (Vec::new(), Vec::new());
    while at < size {
        let len = usize::try_from((size - at).min(CHUNK)).unwrap_or_default();
        left.resize(len, 0);
        right.resize(len, 0);
        reader.read_tensor(head, at, &mut left)?;
        reader.read_tensor(table, at, &mut right)?;
        if left != right {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}
