//! A checkpoint on its way to a format other than `.apr`.

use apr_arch::FamilyModel;
use apr_llama::{GgufExport, Restored, described, from_gguf, is_in_gguf_layout, to_gguf};
use apr_registry::{CheckpointReader, Convention, DType, Error, Format, Loss, Result, keys};
use apr_source::adapter::is_adapter;
use apr_source::naming::{canonical, original};
use apr_source::{Architecture, Source};
use apr_view::View;
use serde_json::{Map, Value};

use super::structure::{
    contradiction, errors_and_warnings, family_misfits, folded_norms, misfits, unknown_architecture,
};
use super::{FamilyNote, Prepared, add_learnt, note};
use crate::inline::{InlineValidator, ValidationConfig};

/// A checkpoint ready for a format other than `.apr`.
#[non_exhaustive]
pub struct Foreign<'a> {
    /// The checkpoint to write, with its validator.
    pub prepared: Prepared<'a>,
    /// Dtypes that the format requires, by position; `None` keeps the dtype of the tensor.
    pub dtypes: Vec<Option<DType>>,
    /// Data that the format can't store.
    pub losses: Vec<Loss>,
    /// Configuration derived from the keys and tensors of a GGUF file that the model is from.
    pub config: Option<Map<String, Value>>,
}

impl Foreign<'_> {
    /// Writes the configuration derived from a GGUF file into the metadata, for its readers.
    #[must_use]
    pub fn stating_configuration(mut self) -> Self {
        let Some(mut config) = self.config.take() else { return self };
        let metadata = self.prepared.view.metadata_mut();
        if let Some(model_type) = config.remove("model_type") {
            metadata.set(keys::MODEL_TYPE, model_type);
        }
        metadata.set(keys::ARCHITECTURE, config);
        self
    }
}

/// Prepares a checkpoint for a format other than `.apr`: under the names and in the layout that it
/// has there, without what an import added for the container alone.
///
/// # Errors
/// E001 when the family asked for is not known, or GGUF needs one and there is none; E007 and E008
/// when a companion can't be read.
pub fn restore<'a>(
    source: &Source<'a>,
    format: &'static Format,
    validation: ValidationConfig,
) -> Result<Foreign<'a>> {
    restore_to(source, format, validation, DType::F32)
}

/// Prepares a checkpoint like [`restore`], and decodes quantized tensors to `decode_to`.
///
/// Only quantized tensors that can't stay quantized are decoded. They must be decoded because the
/// format has their elements in another order.
///
/// # Errors
/// Returns the same errors as [`restore`].
pub fn restore_to<'a>(
    source: &Source<'a>,
    format: &'static Format,
    validation: ValidationConfig,
    decode_to: DType,
) -> Result<Foreign<'a>> {
    let reader = source.reader();
    let ForeignLayout { view, dtypes, losses, warnings, config } =
        layout(source, format, decode_to)?;
    let folded = if format.always_computes() { None } else { source.family()? };
    let folded = folded.and_then(|model| folded_norms(reader, model));
    if let Some(folded) = folded.as_ref().filter(|_| !validation.structure) {
        // Nothing judges names and shapes here, and the values would be wrong in silence.
        return Err(Error::format(folded.message.clone()).for_tensor(&folded.tensor));
    }
    if !validation.structure && !validation.reads_values() {
        let validator = InlineValidator::new(validation);
        let prepared = Prepared { view, validator, family: None, misfits: Vec::new(), warnings };
        return Ok(Foreign { prepared, dtypes, losses, config });
    }

    // Names and shapes are judged as they come, values as they go.
    let found = source.family()?;
    // llama.cpp can't do with a part.
    let whole = format.convention == Convention::LlamaCpp;
    let complete = validation.complete || whole;
    let judged = |model| match whole {
        true => (misfits(FamilyModel::mismatches(model, reader.tensors())), None),
        false => family_misfits(reader, model),
    };
    let (mismatches, part) = found.filter(|_| validation.structure).map(judged).unwrap_or_default();
    let (mut misfits, odd) = errors_and_warnings(mismatches, complete);
    misfits.extend(folded);
    if found.is_none() && format.convention == Convention::Framework && validation.structure {
        misfits.extend(unknown_architecture(reader));
    }

    let model = source.family_in(&view)?;
    let validator = InlineValidator::for_checkpoint(validation, view.tensors(), model.as_ref());

    // What a format can't hold no longer says what the model is; the source did.
    let guessed = found.or(model.as_ref()).is_some_and(FamilyModel::is_guessed);
    let family = model.as_ref().map(|model| FamilyNote { guessed, ..note(model, &view, reader) });
    let is_known = model.is_some();
    drop(model);
    let warnings = warnings.into_iter().chain(odd).chain(part).collect();
    let mut prepared = Prepared { view, validator, family, misfits, warnings };
    if !is_known && validation.structure && matches!(source.architecture(), Architecture::Auto) {
        let contradiction =
            contradiction(&prepared.view, prepared.view.metadata(), source.families());
        prepared.misfits.extend(contradiction);
    }

    Ok(Foreign { prepared, dtypes, losses, config })
}

/// Names and layout in a target format.
struct ForeignLayout<'a> {
    view: View<'a>,
    dtypes: Vec<Option<DType>>,
    losses: Vec<Loss>,
    warnings: Vec<String>,
    config: Option<Map<String, Value>>,
}

impl<'a> ForeignLayout<'a> {
    /// Returns a layout that consists of the view only, without losses and warnings.
    fn of(view: View<'a>) -> Self {
        let (dtypes, losses, warnings) = (Vec::new(), Vec::new(), Vec::new());
        Self { view, dtypes, losses, warnings, config: None }
    }
}

fn layout<'a>(
    source: &Source<'a>,
    format: &'static Format,
    decode_to: DType,
) -> Result<ForeignLayout<'a>> {
    match format.convention {
        Convention::LlamaCpp => {
            let GgufExport { view, dtypes, losses, warnings } = to_gguf(source)?;
            Ok(ForeignLayout { view, dtypes, losses, warnings, config: None })
        }
        Convention::Framework if is_in_gguf_layout(source.reader()) => {
            out_of_gguf(source, decode_to)
        }
        Convention::Whisper => Ok(ForeignLayout::of(for_apr1(source)?)),
        _ => Ok(ForeignLayout::of(original(source, format)?)),
    }
}

/// Names and layout that a framework's programs expect, of a checkpoint that has GGUF's.
///
/// # Errors
/// E001 where there are no tensors, or they can't be taken back.
fn out_of_gguf<'a>(source: &Source<'a>, decode_to: DType) -> Result<ForeignLayout<'a>> {
    let reader = source.reader();
    if reader.tensors().is_empty() {
        return Err(Error::format(
            "the file contains only a vocabulary: there are no weights to write",
        ));
    }

    if is_of_no_architecture(source) {
        return Ok(ForeignLayout {
            warnings: vec![under_its_own_names(reader)],
            ..ForeignLayout::of(View::new(reader))
        });
    }

    let (Restored { view, losses, entries, .. }, warnings) =
        from_gguf(reader, source.families(), source.architecture(), decode_to)?;
    Ok(ForeignLayout { losses, warnings, config: Some(entries), ..ForeignLayout::of(view) })
}

/// Returns the warning for a model that is written under the names of a GGUF file.
fn under_its_own_names(reader: &dyn CheckpointReader) -> String {
    let name = reader.metadata().text(keys::MODEL_TYPE).unwrap_or_default();
    format!(
        "unknown architecture '{name}': tensors keep GGUF's names and layout, and config.json is \
         not written, so libraries can't load the model"
    )
}

/// Returns `true` if a GGUF file, or a model imported from one, has no known architecture.
fn is_of_no_architecture(source: &Source<'_>) -> bool {
    let is_asked = !matches!(source.architecture(), Architecture::Auto);
    let told = described(source.reader(), source.families(), source.architecture());
    !is_asked
        && (told.is_none() || is_adapter(source.reader().tensors()))
        && source.family().is_ok_and(|f| f.is_none())
}

/// The programs that read APR1 know a Whisper model by the canonical names, and take vocabulary and
/// mel filterbank from the file: those of the companions, where the checkpoint has none of its own.
fn for_apr1<'a>(source: &Source<'a>) -> Result<View<'a>> {
    let mut view = match source.family()? {
        Some(model) => canonical(source.reader(), model),
        None => View::new(source.reader()),
    };
    let learnt = source.learnt()?;
    for (key, value) in &learnt.metadata {
        view.metadata_mut().set_default(key, value.clone());
    }
    add_learnt(&mut view, learnt);
    Ok(view)
}
