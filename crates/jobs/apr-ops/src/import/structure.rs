//! What names, shapes and metadata show to be wrong, before any value is read.

use apr_arch::{Families, FamilyModel, GgufLayout, Mismatch};
use apr_core::counted;
use apr_registry::onnx::{METADATA, TENSORS};
use apr_registry::{CheckpointReader, Convention, Metadata, Result, TensorInfo, keys};
use apr_source::adapter::is_adapter;
use apr_source::companions::{learn_from, leaves_rows_unused};
use apr_source::{Architecture, Source, is_unpacked};
use apr_view::{View, nearest};
use serde_json::Value;

use crate::graph::{GraphPart, of_file_or_damage, unreadable};
use crate::inline::{Claim, ValidationError, ValidationReason};
use crate::physics::Level;

/// Returns contradictions in the whole checkpoint: its stated family, vocabulary and filterbank.
pub(super) fn structural_misfits(
    source: &Source<'_>,
    model: Option<&FamilyModel<'_>>,
    view: &View<'_>,
) -> Vec<ValidationError> {
    let metadata = view.metadata();
    let mut misfits = Vec::new();
    if model.is_none() && matches!(source.architecture(), Architecture::Auto) {
        misfits.extend(false_claim(source.reader(), metadata, source.families()));
        misfits.extend(unknown_architecture(source.reader()));
    }
    if let Some(rows) = model.and_then(|model| model.dimension("vocab")) {
        // Of a tokenizer that is too small, what was learnt from its files warns.
        let misfit = vocabulary_misfit(rows, |key| metadata.get(key));
        misfits.extend(misfit.filter(|misfit| misfit.level == Level::Error));
    }
    misfits.extend(filterbank_misfit(metadata, view.tensors(), |key| metadata.get(key)));
    misfits.extend(inline_misfits(metadata));
    misfits
}

/// Returns the errors that make the graphs of the file invalid, or why they can't be read.
///
/// `validate` reports the same errors, together with warnings.
///
/// # Errors
/// E007 when reading fails, E008 over the limits.
pub(crate) fn misfits_of_graphs(source: &Source<'_>) -> Result<Vec<ValidationError>> {
    Ok(match of_file_or_damage(source)? {
        Ok(graphs) => graph_misfits(graphs.into_iter().flat_map(|graphs| graphs.parts)),
        Err(error) => {
            let claim = Claim::UnreadableGraph { code: error.code().id(), offset: error.offset() };
            vec![graph_misfit("", unreadable(&error), claim)]
        }
    })
}

/// Returns the errors in graphs that were read.
pub(crate) fn graph_misfits(parts: impl Iterator<Item = GraphPart>) -> Vec<ValidationError> {
    let misfits_of = |part: GraphPart| -> Vec<ValidationError> {
        let errors = part.findings.errors();
        errors
            .map(|finding| graph_misfit(&finding.node, finding.message.clone(), Claim::Graph))
            .collect()
    };
    parts.flat_map(misfits_of).collect()
}

fn graph_misfit(node: &str, message: String, claim: Claim) -> ValidationError {
    ValidationError {
        tensor: node.to_owned(),
        level: Level::Error,
        message,
        reason: Box::new(ValidationReason::Claim(claim)),
    }
}

/// Returns an error if a checkpoint states a family that its tensors contradict.
///
/// No family was detected for such a checkpoint. A conversion rejects such a checkpoint, so it is
/// not valid.
pub(crate) fn false_claim(
    reader: &dyn CheckpointReader,
    metadata: &Metadata,
    families: &Families,
) -> Option<ValidationError> {
    if is_unpacked(reader, &Architecture::Auto) {
        None
    } else {
        contradiction(reader, metadata, families)
    }
}

/// Returns an error if the configuration names a family that the tensors do not belong to.
pub(super) fn contradiction(
    reader: &dyn CheckpointReader,
    metadata: &Metadata,
    families: &Families,
) -> Option<ValidationError> {
    // An adapter may travel with the configuration of the model that it is for.
    families
        .contradiction(reader.tensors(), metadata)
        .filter(|_| !is_adapter(reader.tensors()))
        .map(|contradiction| ValidationError {
            tensor: contradiction.stranger.clone(),
            level: Level::Error,
            message: contradiction.to_string(),
            reason: Box::new(ValidationReason::Family(contradiction)),
        })
}

/// Returns an error for a GGUF file of an unknown architecture.
///
/// GGUF files state their architecture. A file of an unknown one would otherwise pass without any
/// check.
pub(super) fn unknown_architecture(reader: &dyn CheckpointReader) -> Option<ValidationError> {
    let is_foreign =
        reader.format().convention != Convention::LlamaCpp || reader.tensors().is_empty();
    if is_foreign || is_adapter(reader.tensors()) {
        return None;
    }

    let name = reader.metadata().text(keys::MODEL_TYPE).unwrap_or_default().to_owned();
    Some(ValidationError {
        tensor: reader.tensors().first()?.name.clone(),
        level: Level::Error,
        message: format!("unknown architecture '{name}': names and shapes are not checked"),
        reason: Box::new(ValidationReason::Claim(Claim::Architecture { name })),
    })
}

/// Norms of an ONNX file that are not what the family stores. Gemma's models compute with
/// `1 + weight`: an exporter that folds constants writes the sum, under a name of its own. The
/// graph shows only a product with it then; weights that nothing was computed with keep their
/// names.
pub(super) fn folded_norms(
    reader: &dyn CheckpointReader,
    model: &FamilyModel<'_>,
) -> Option<ValidationError> {
    let entry = reader.metadata().object(METADATA)?.get(TENSORS)?.as_object()?;
    let constant = |position: usize| {
        let canonical = model.canonical(position)?;
        match model.gguf_layout(canonical) {
            Ok(GgufLayout::Add(constant)) => Some(constant),
            _ => None,
        }
    };
    let tensors = reader.tensors().iter().enumerate();
    let found: Vec<(&str, f32)> = tensors
        .filter(|(_, info)| entry.contains_key(&info.name))
        .filter_map(|(position, info)| Some((info.name.as_str(), constant(position)?)))
        .collect();
    let (first, constant) = *found.first()?;
    let norms = found.len() as u64;
    Some(ValidationError {
        tensor: first.to_owned(),
        level: Level::Error,
        message: format!(
            "{} of the ONNX file contain {constant} + weight instead of the weights of the {} \
             family: import the checkpoint that it was exported from, or run the ONNX file itself",
            counted(norms, "norm"),
            model.family().title()
        ),
        reason: Box::new(ValidationReason::Claim(Claim::FoldedNorms { norms })),
    })
}

/// Maximum number of unknown and missing tensors that are compared with one another.
///
/// If there are more, none of them is assumed to be renamed.
pub(crate) const COMPARED: usize = 20;

/// Converts mismatches to errors, with a hint if an unknown tensor resembles a missing one.
pub(crate) fn misfits(mismatches: Vec<Mismatch>) -> Vec<ValidationError> {
    let missing: Vec<String> = mismatches
        .iter()
        .filter_map(|mismatch| {
            if let Mismatch::Missing { name } = mismatch { Some(name.clone()) } else { None }
        })
        .collect();
    let mut unknown = 0;
    let hint = |mut error: ValidationError| {
        if !matches!(*error.reason, ValidationReason::Structure(Mismatch::Unexpected { .. }))
            || unknown == COMPARED
        {
            return error;
        }
        unknown += 1;
        if let [similar] =
            nearest(&error.tensor, missing.iter().take(COMPARED).map(String::as_str), 1)[..]
        {
            error.message = format!("{}; was it {similar}, which is missing?", error.message);
        }
        error
    };

    mismatches.into_iter().map(ValidationError::of_structure).map(hint).collect()
}

/// Splits misfits into errors that end an import and warnings.
///
/// Warnings about such tensors are joined into one line, because they come in groups. Missing
/// tensors are only a warning if the model need not be `complete`.
pub(super) fn errors_and_warnings(
    misfits: Vec<ValidationError>,
    complete: bool,
) -> (Vec<ValidationError>, Vec<String>) {
    let is_missing = |misfit: &ValidationError| {
        matches!(*misfit.reason, ValidationReason::Structure(Mismatch::Missing { .. }))
    };
    let (missing, misfits): (Vec<_>, Vec<_>) =
        misfits.into_iter().partition(|misfit| !complete && is_missing(misfit));
    let (errors, odd): (Vec<_>, Vec<_>) =
        misfits.into_iter().partition(|misfit| misfit.level == Level::Error);
    let mut warnings = Vec::new();
    warnings.extend(part_of_model(&missing));

    if !odd.is_empty() {
        warnings
            .push(format!("not in the family, kept if the output can hold them: {}", listed(&odd)));
    }

    (errors, warnings)
}

/// Returns the mismatches of a checkpoint with its family.
///
/// For a graph, also returns a warning about tensors of other parts, which are not mismatches. A
/// graph has all tensors that it computes with, and may be one of several parts of a model.
pub(crate) fn family_misfits(
    reader: &dyn CheckpointReader,
    model: &FamilyModel<'_>,
) -> (Vec<ValidationError>, Option<String>) {
    let mut mismatches = model.mismatches(reader.tensors());
    if reader.container().absence().is_some() {
        // They may be in the shards that can't be read.
        mismatches.retain(|mismatch| !matches!(mismatch, Mismatch::Missing { .. }));
    }
    let is_graph = reader.metadata().object(METADATA).is_some();
    let (others, own) =
        if is_graph { model.of_other_parts(mismatches) } else { (Vec::new(), mismatches) };
    (misfits(own), part_of_model(&misfits(others)))
}

/// Returns the warning for a part of a model that lacks these tensors.
fn part_of_model(missing: &[ValidationError]) -> Option<String> {
    let count = counted(missing.len() as u64, "tensor");
    (!missing.is_empty()).then(|| {
        let are = if missing.len() == 1 { "is" } else { "are" };
        format!("incomplete model: {count} of the family {are} missing: {}", listed(missing))
    })
}

/// The tensors that they are about.
fn listed(misfits: &[ValidationError]) -> String {
    /// Names that are listed before the rest is only counted.
    const TOLD: usize = 4;
    let names: Vec<&str> = misfits.iter().take(TOLD).map(|misfit| misfit.tensor.as_str()).collect();
    let more = if misfits.len() > TOLD {
        format!(" and {} more", misfits.len() - TOLD)
    } else {
        String::new()
    };
    format!("{}{more}", names.join(", "))
}

/// Holds the tokenizer of a model against the `rows` of its embedding: as an import wrote it down,
/// or else as it is in the files beside the weights.
pub(crate) fn tokenizer_misfit(
    reader: &dyn CheckpointReader,
    rows: u64,
) -> Option<ValidationError> {
    let metadata = reader.metadata();
    let is_written = metadata.get("tokenizer.vocab_size").is_some();
    // A file that can't be read is an error of those who need it.
    let learnt = if is_written { None } else { learn_from(reader).ok() };
    let in_files = learnt.iter().flat_map(|learnt| &learnt.metadata);
    vocabulary_misfit(rows, |key| {
        let in_file = || in_files.clone().find(|(known, _)| known == key).map(|(_, value)| value);
        metadata.get(key).or_else(in_file)
    })
}

/// Holds the tokenizer, as the metadata under `get` describe it, against the rows of the embedding:
/// an id without a row ends a run, while rows without an id are padding where they are few.
pub(crate) fn vocabulary_misfit<'m>(
    rows: u64,
    get: impl Fn(&str) -> Option<&'m Value>,
) -> Option<ValidationError> {
    let tokens = get("tokenizer.vocab_size").and_then(Value::as_u64)?;
    // Markers that no text yields are added to tokenizers without a row of their own.
    let special = get("tokenizer.special_tokens").and_then(Value::as_object).into_iter().flatten();
    let beyond = special.filter(|(_, id)| id.as_u64().is_some_and(|id| id >= rows)).count() as u64;
    let (has, takes) = (counted(tokens, "token"), counted(rows, "row"));
    let (level, what) = match tokens.saturating_sub(rows) > beyond {
        true => (Level::Error, "the last ids have no row"),
        false if leaves_rows_unused(tokens, rows) => (Level::Warning, "is it complete?"),
        false => return None,
    };
    Some(ValidationError {
        tensor: "token_embedding".to_owned(),
        level,
        message: format!("the tokenizer has {has}, the embedding {takes}: {what}"),
        reason: Box::new(ValidationReason::Claim(Claim::Vocabulary { tokens, rows })),
    })
}

/// Checks lists in the metadata against their stated sizes.
///
/// These are the vocabulary and its size, and the filterbank and its shape.
pub(crate) fn inline_misfits(metadata: &Metadata) -> Vec<ValidationError> {
    let list = |key: &str| metadata.get(key)?.as_array();
    let stated = |key: &str| metadata.get(key)?.as_u64();
    let mut misfits = Vec::new();
    for (vocabulary, size) in
        [("vocab", "vocab_size"), ("tokenizer.vocabulary", "tokenizer.vocab_size")]
    {
        let (Some(tokens), Some(stated)) = (list(vocabulary), stated(size)) else { continue };
        let tokens = tokens.len() as u64;
        if tokens != stated {
            let has = counted(tokens, "token");
            misfits.push(ValidationError {
                tensor: "token_embedding".to_owned(),
                level: Level::Error,
                message: format!("'{vocabulary}' of the metadata has {has}, '{size}' is {stated}"),
                reason: Box::new(ValidationReason::Claim(Claim::Size { tokens, stated })),
            });
        }
    }
    if list(keys::MEL_FILTERBANK).is_some() && metadata.inline_filterbank().is_none() {
        let (bank, shape) = (keys::MEL_FILTERBANK, keys::MEL_FILTERBANK_SHAPE);
        misfits.push(ValidationError {
            tensor: keys::MEL_FILTERBANK_TENSOR.to_owned(),
            level: Level::Error,
            message: format!("'{bank}' of the metadata does not match '{shape}'"),
            reason: Box::new(ValidationReason::Claim(Claim::Filterbank)),
        });
    }
    misfits
}

/// Returns the number of mel bins that the network expects according to the configuration.
pub(crate) fn expected_mels(metadata: &Metadata) -> Option<u64> {
    let config = metadata.object(keys::ARCHITECTURE)?;
    ["num_mel_bins", "n_mels"].iter().find_map(|key| config.get(*key)?.as_u64())
}

/// Checks the mel filterbank, or its stated shape, against the network's mel bins (QA 48).
///
/// With another number of bins, the model can't process audio.
pub(crate) fn filterbank_misfit<'m>(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    get: impl Fn(&str) -> Option<&'m Value>,
) -> Option<ValidationError> {
    let expected = expected_mels(metadata)?;
    let stored = tensors.iter().find(|info| info.name == keys::MEL_FILTERBANK_TENSOR);
    let stored = stored.and_then(|info| info.shape.dims().first().copied());
    let written = || get(keys::MEL_FILTERBANK_SHAPE)?.get(0)?.as_u64();
    let made = || get("audio_config")?.get("n_mels")?.as_u64();
    let filters =
        [stored, written(), made()].into_iter().flatten().find(|&filters| filters != expected)?;
    let has = counted(filters, "mel filter");
    Some(ValidationError {
        tensor: keys::MEL_FILTERBANK_TENSOR.to_owned(),
        level: Level::Error,
        message: format!(
            "the preprocessor has {has}, but the configuration's num_mel_bins is {expected}"
        ),
        reason: Box::new(ValidationReason::Claim(Claim::Mels { filters, expected })),
    })
}
