//! A checkpoint as llama.cpp wants it: tensors under its names and in its layout, hyperparameters
//! under its keys.

mod differences;
mod dtypes;
mod otherwise;
mod tensors;

use std::collections::HashSet;

use apr_arch::{Families, FamilyModel, GGUF, Naming, is_of_others};
use apr_gguf::KeyValue;
use apr_registry::{CheckpointReader, DType, Error, Loss, Metadata, Result, TensorInfo, keys};
use apr_source::Source;
use apr_source::adapter::is_adapter;
use apr_source::naming::NAMES;
use apr_source::sentence::Sentence;
use apr_view::View;
use serde_json::json;

use super::gguf_keys::GgufKeys;
use super::hyperparameters::{Facts, Written, size_label};
use super::reranker::{self, Answers};
use super::rope;
use super::sentence::not_held;
use differences::{
    beyond_family, forget_what_is_held, gained_head, is_stretched, missing_output,
    other_activation, unstretched,
};
use dtypes::{recorded_file_type, required_dtype};
use otherwise::computed_otherwise;
use tensors::ExportPlan;

pub use dtypes::file_type;

/// The version of GGUF that is written.
const VERSION: u32 = 3;

/// A checkpoint ready for a GGUF file.
pub struct GgufExport<'a> {
    /// The tensors; its metadata have the file's keys under `gguf`.
    pub view: View<'a>,
    /// The dtype that llama.cpp requires for each tensor; `None` if it accepts any, including
    /// quantized ones.
    pub dtypes: Vec<Option<DType>>,
    /// Contents that llama.cpp can't store.
    pub losses: Vec<Loss>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Prepares a checkpoint for a GGUF file. `tokenizer` are the keys that start with `tokenizer.`.
///
/// A checkpoint that has its values in GGUF's layout already keeps them, and its keys, and gets its
/// names back.
///
/// # Errors
/// E001 when the family is not known, when llama.cpp has no such models, lacks a place for a tensor
/// of a layer, or needs a missing hyperparameter; when a tensor is stored so that its
/// layout can't be changed. E007 and E008 when a companion can't be read. E001, too, when a
/// hyperparameter is a number that llama.cpp can't compute with, or `rope_scaling` is malformed.
pub fn export<'a>(source: &Source<'a>, tokenizer: Vec<KeyValue>) -> Result<GgufExport<'a>> {
    let reader = source.reader();
    if is_adapter(reader.tensors()) {
        return Err(Error::format("adapters can't be exported to GGUF, only complete models"));
    }

    let model = source.family()?.ok_or_else(|| {
        match reader.tensors().iter().find(|info| is_of_others(&info.name)) {
            Some(info) => Error::format(
                "GGUF requires the model family, which this part of a larger model does not show",
            )
            .for_tensor(&info.name),
            None => unknown_family(reader, source.families()),
        }
    })?;
    if model.is_in_gguf_layout() && reader.metadata().get(keys::GGUF).is_some() {
        return Ok(as_it_is(reader, model));
    }

    let title = model.family().title();
    if let Some(why) = model.gguf_refusal() {
        return Err(Error::version(format!("{title} can't be exported to GGUF: {why}")));
    }
    if model.gguf_architecture().is_none() {
        return Err(Error::format(format!("llama.cpp does not support the family {title}")));
    }

    let mut facts = Facts::of(source)?;
    let architecture = model.gguf_architecture().unwrap_or_default();
    facts.answers = Answers::of(&facts, architecture, &tokenizer);
    if !is_configured(reader) {
        return Err(Error::format(format!(
            "missing configuration, which llama.cpp needs (heads, epsilon, rotary base): pass \
             the config.json of this {} with `config` FILE",
            model.family().title()
        )));
    }

    // What the configuration lacks is told by its name, before a tensor's layout is found to depend
    // on it.
    let early = facts.keys(model, &Written::default())?;
    let scaling = rope::scaling(&facts.config)?;
    let mut plan = ExportPlan::new(reader, model);
    plan.add_computed(&facts, &early)?;
    if let Some(answers) = facts.answers {
        plan.add_answers(answers)?;
    }
    plan.add_all()?;
    plan.cut_to_vocabulary(&tokenizer)?;
    let lists = plan.lists()?;
    let ExportPlan { tensors, mut losses, .. } = plan;
    let naming = Naming::new(GGUF, "");
    let stated = |info: &TensorInfo| {
        let canonical = model.family().canonical_name(&info.name, &naming)?;
        model.gguf_dtype(&canonical)
    };
    let dtypes: Vec<Option<DType>> =
        tensors.iter().map(|(info, _)| required_dtype(info, stated(info))).collect();
    let stored =
        tensors.iter().zip(&dtypes).map(|((info, _), dtype)| (info, dtype.unwrap_or(info.dtype)));
    let classifier = tensors.iter().find(|(info, _)| info.name == "cls.output.weight");
    let written = Written {
        classes: classifier.and_then(|(info, _)| info.shape.dims().first().copied()),
        file_type: recorded_file_type(reader.metadata()).unwrap_or_else(|| file_type(stored)),
        size_label: size_label(
            tensors.iter().map(|(info, _)| (info.name.as_str(), info.shape.dims())),
        ),
    };

    let mut keys = facts.keys(model, &written)?;
    keys.extend(lists);
    if facts.answers.is_some() {
        keys.extend(reranker::template_keys());
    }

    // ggml's reader refuses a file that has a key twice.
    let known: HashSet<String> = keys.iter().map(|pair| pair.key.clone()).collect();
    keys.extend(tokenizer.into_iter().filter(|pair| !known.contains(&pair.key)));

    let mut view = View::of(reader, tensors);
    set_keys(view.metadata_mut(), &keys);
    let mut warnings: Vec<String> = missing_output(&view, model).into_iter().collect();
    if let Some(kind) = scaling.filter(|kind| !is_stretched(kind, &facts.config, &keys, &view)) {
        let why = format!("GGUF has no key for rope scaling '{kind}' in this architecture");
        losses.push(Loss { name: "rope_scaling".to_owned(), what: "left out".to_owned(), why });
        warnings.push(unstretched(&kind, &facts.config));
    }

    if let Some(classes) = written.classes {
        let answers = facts.answers.is_some();
        let family = model.family().name();
        losses.extend(reranker::not_held(&facts, &keys, answers));
        warnings.extend(reranker::computed_otherwise(&facts, family, &keys, (classes, answers)));
    }

    // Modules that are no embeddings' may follow a model without a head, too.
    if let Some(sentence) = facts.sentence.as_ref().filter(|it| it.task().is_some()) {
        let not_held = not_held(sentence, &keys);
        if !not_held.is_empty() {
            let names: Vec<&str> = not_held.iter().map(|loss| loss.name.as_str()).collect();
            warnings.push(format!(
                "llama.cpp makes other vectors of texts than the model's modules: {}",
                names.join(", ")
            ));
        }
        losses.extend(not_held);
    }

    // What the file's keys lead back to is held; only the rest of the configuration is lost.
    let held = GgufKeys::of(view.metadata(), view.tensors(), source.families())
        .map(|described| described.config(model.family()));
    let mut held = held.unwrap_or_default();
    for factor in model.family().factors_in_gguf_weights() {
        held.extend(facts.config.get(factor).map(|value| (factor.to_owned(), value.clone())));
    }
    if model.family().is_for_images() {
        // The rest of the configuration is about the language model, which has a file of its own.
        let whole = reader.metadata().object(keys::ARCHITECTURE).cloned().unwrap_or_default();
        warnings.extend(computed_otherwise(source.families(), model, &whole, &held));
        view.metadata_mut().retain(|key| key != keys::ARCHITECTURE && key != keys::PART);
        return Ok(GgufExport { view, dtypes, losses, warnings });
    }
    warnings.extend(computed_otherwise(source.families(), model, &facts.config, &held));
    let has_pooling = keys.iter().any(|pair| pair.key.ends_with(".pooling_type"));
    warnings.extend(gained_head(&facts.config, &held).filter(|_| !has_pooling));
    let other = other_activation(&facts.config, &held);
    forget_what_is_held(view.metadata_mut(), &held, other.is_some());
    warnings.extend(other);
    let is_stranger = source.families().stranger(reader.metadata()).is_some();
    warnings.extend(beyond_family(view.metadata(), view.tensors(), is_stranger));
    Ok(GgufExport { view, dtypes, losses, warnings })
}

/// Returns `true` if there is a configuration, in the metadata or as a companion file.
fn is_configured(reader: &dyn CheckpointReader) -> bool {
    let in_metadata = reader.metadata().object(keys::ARCHITECTURE);
    in_metadata.is_some_and(|config| !config.is_empty())
        || reader.companions().iter().any(|companion| companion.name == "config.json")
}

fn unknown_family(reader: &dyn CheckpointReader, families: &Families) -> Error {
    if let Some(table) = Sentence::table_of(reader) {
        return Error::format(format!(
            "the model is {table}, which GGUF can't store: .apr, safetensors and PyTorch can"
        ));
    }
    match families.stranger(reader.metadata()) {
        Some(told) => {
            Error::format(format!("GGUF requires the model family, and '{told}' is unknown"))
        }
        None => {
            Error::format("GGUF requires the model family, which metadata and names do not show")
        }
    }
}

fn set_keys(metadata: &mut Metadata, keys: &[KeyValue]) {
    metadata.set(keys::GGUF, json!({ "version": VERSION }));
    metadata.set_key_values(keys.iter().collect());
    metadata.remove(NAMES);
    metadata.remove(keys::TIED);
}

/// Exports a checkpoint whose values are from a GGUF file, under the names in that file.
fn as_it_is<'a>(reader: &'a dyn CheckpointReader, model: &FamilyModel<'_>) -> GgufExport<'a> {
    let mut view = View::new(reader);

    // Names that no rule leads back to were written down by the import.
    let exceptions =
        reader.metadata().object(NAMES).and_then(|names| names.get("exceptions")?.as_object());
    view.rename(|position, name| {
        let exception = exceptions.and_then(|names| names.get(name)?.as_str()).map(str::to_owned);
        exception.or_else(|| model.gguf_name(model.canonical(position)?))
    });
    view.metadata_mut().remove(NAMES);
    view.metadata_mut().remove(keys::PART);
    let dtypes = vec![None; view.tensors().len()];
    GgufExport { view, dtypes, losses: Vec::new(), warnings: Vec::new() }
}
