//! What an import does to a checkpoint before it is written: canonical names, what its companions
//! say, and the checks that its tensors must pass.
//!
//! ```
//! use apr_arch::Families;
//! use apr_ops::convert::{ConvertOptions, plan};
//! use apr_ops::import::{PrepareOptions, prepare};
//! use apr_registry::{Limits, PlanOptions, Serial};
//! use apr_source::Source;
//!
//! let header = br#"{"layer_norm.weight":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend([1.0_f32; 8].iter().flat_map(|gamma| gamma.to_le_bytes()));
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let prepared = prepare(&Source::new(&*model, &families), &PrepareOptions::default())?;
//! let target = PlanOptions::new(&apr_registry::apr2::FORMAT, "model.apr");
//! let conversion =
//!     plan(&prepared.view, &ConvertOptions::default(), &target)?.validated_by(prepared.validator);
//! let mut imported = Vec::new();
//! let report = conversion.run(&prepared.view, &mut imported, &Serial, &())?;
//! assert_eq!(report.validation.map(|validation| validation.checked), Some(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How an import works
//!
//! `Families::identify` finds the family by `model_type` or by names. Its `FamilyModel` knows each
//! tensor's canonical name, the shape that the configuration implies, and the statistics of a
//! valid tensor. `apr_ops::import::prepare` puts a `View` over the checkpoint, with canonical
//! names, metadata from the companion files and a filterbank. Names and shapes are validated
//! before any tensor is read. The pass is then an ordinary conversion with an `InlineValidator`.
//! `produce` adds the moments of its chunk. `consume` merges them, and validates each complete
//! tensor before the next one begins. The output appears after the last tensor. On export,
//! `apr_source::naming::original` restores the source's names from the record of the import.
//!
//! A family is data (`docs/families.md` shows how to write one). The engine consists of name
//! patterns (`pattern.rs`), expressions over the configuration (`expression.rs`, `dimensions.rs`),
//! and their application to a checkpoint (`model.rs`).

mod error;
mod foreign;
mod structure;

use apr_arch::{FamilyModel, Mismatch, TensorNameMapper};
use apr_llama::described;
use apr_registry::{CheckpointReader, Metadata, Result, keys};
use apr_source::companions::{Learnt, NO_LICENSE, license_warning};
use apr_source::naming::{NAMES, canonical};
use apr_source::{Architecture, Source, family_in, is_unpacked};
use apr_view::View;
use serde::Serialize;
use serde_json::Map;

use crate::inline::{InlineValidator, ValidationConfig, ValidationError};
use structure::{errors_and_warnings, folded_norms, structural_misfits};

pub use error::ImportError;
pub use foreign::{Foreign, restore, restore_to};
pub(crate) use structure::{
    COMPARED, expected_mels, false_claim, family_misfits, filterbank_misfit, graph_misfits,
    inline_misfits, misfits_of_graphs, tokenizer_misfit, vocabulary_misfit,
};

/// Options for preparing a checkpoint.
#[derive(Debug, Clone, Default)]
pub struct PrepareOptions {
    /// Checks to make during the import.
    pub validation: ValidationConfig,
    /// Licence of the model, used if its files do not state it.
    pub license: Option<String>,
}

/// The family that a checkpoint was taken for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FamilyNote {
    /// Name of the family.
    pub name: String,
    /// Display name of the family.
    pub title: String,
    /// `true` if the family was detected by the names of the tensors only.
    pub guessed: bool,
    /// Naming convention of the source's tensors.
    pub convention: String,
    /// Tensors that got another name.
    pub renamed: usize,
}

/// A checkpoint ready to be written.
#[non_exhaustive]
pub struct Prepared<'a> {
    /// The checkpoint under its new names, with metadata learnt from its companion files.
    pub view: View<'a>,
    /// Judges the tensors of `view` on the way.
    pub validator: InlineValidator,
    /// The family, if it is known.
    pub family: Option<FamilyNote>,
    /// Errors found in names and shapes, under the names of the source.
    pub misfits: Vec<ValidationError>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Prepares a checkpoint for an `.apr` file.
///
/// # Errors
/// E001 when the family asked for is not known, E007 and E008 when a companion can't be read.
pub fn prepare<'a>(source: &Source<'a>, options: &PrepareOptions) -> Result<Prepared<'a>> {
    let (reader, families, architecture) =
        (source.reader(), source.families(), source.architecture());

    // GGUF files state family and hyperparameters under keys of their own.
    let described = described(reader, families, architecture);
    let of_pairs = match &described {
        Some(metadata) if !is_unpacked(reader, architecture) => {
            family_in(reader.tensors(), metadata, families, architecture)?
        }
        _ => None,
    };

    let model = if described.is_some() { of_pairs.as_ref() } else { source.family()? };
    let mut prepared = match (model, architecture) {
        (Some(model), _) => of_family(reader, model, options),
        (None, Architecture::Custom(mapper)) => by_mapper(reader, &**mapper, options.validation),
        (None, _) => of_no_family(reader, options.validation),
    };
    if model.is_some() {
        // They are found anew.
        prepared.view.metadata_mut().remove(keys::VIOLATIONS);
    }

    if let Some(described) = &described {
        describe(prepared.view.metadata_mut(), described);
    }

    learn_from_companions(source.learnt()?, &mut prepared, options);

    // Only now the view has what the companions say of vocabulary and filterbank.
    if options.validation.structure {
        let found = structural_misfits(source, model, &prepared.view);
        prepared.misfits.extend(found);
    }

    if !options.validation.stop {
        prepared.record_misfits();
    }

    Ok(prepared)
}

impl Prepared<'_> {
    /// Records the ignored misfits in the metadata, for later readers of the file.
    fn record_misfits(&mut self) {
        if !self.misfits.is_empty() {
            let misfits = serde_json::to_value(&self.misfits).unwrap_or_default();
            self.view.metadata_mut().set(keys::VIOLATIONS, misfits);
        }
    }
}

/// Takes over the type and the hyperparameters that other keys describe.
fn describe(metadata: &mut Metadata, described: &Metadata) {
    for key in [keys::MODEL_TYPE, keys::ARCHITECTURE] {
        if let Some(told) = described.get(key) {
            metadata.set(key, told.clone());
        }
    }
}

fn of_family<'a>(
    reader: &'a dyn CheckpointReader,
    model: &FamilyModel<'_>,
    options: &PrepareOptions,
) -> Prepared<'a> {
    let validation = options.validation;
    let view = canonical(reader, model);
    let (mismatches, part) =
        if validation.structure { family_misfits(reader, model) } else { (Vec::new(), None) };
    let (mut misfits, mut warnings) = errors_and_warnings(mismatches, validation.complete);
    warnings.extend(part);
    misfits.extend(folded_norms(reader, model).filter(|_| validation.structure));
    Prepared {
        validator: InlineValidator::for_checkpoint(validation, reader.tensors(), Some(model)),
        family: Some(note(model, &view, reader)),
        misfits,
        warnings,
        view,
    }
}

fn note(model: &FamilyModel<'_>, view: &View<'_>, reader: &dyn CheckpointReader) -> FamilyNote {
    FamilyNote {
        name: model.family().name().to_owned(),
        title: model.family().title().to_owned(),
        guessed: model.is_guessed(),
        convention: model.naming().convention.clone(),
        renamed: view
            .tensors()
            .iter()
            .zip(reader.tensors())
            .filter(|(new, old)| new.name != old.name)
            .count(),
    }
}

fn by_mapper<'a>(
    reader: &'a dyn CheckpointReader,
    mapper: &dyn TensorNameMapper,
    validation: ValidationConfig,
) -> Prepared<'a> {
    let names: Vec<Option<String>> =
        reader.tensors().iter().map(|info| mapper.map_name(&info.name)).collect();
    let expectations = names.iter().map(|name| mapper.expected_stats(name.as_ref()?));
    let validator = InlineValidator::expecting(validation, reader.tensors(), expectations);
    let unknown = reader
        .tensors()
        .iter()
        .zip(&names)
        .filter(|(_, name)| name.is_none() && validation.structure);
    let misfits = unknown.map(|(info, _)| {
        ValidationError::of_structure(Mismatch::Unexpected {
            name: info.name.clone(),
            extra: false,
        })
    });

    let misfits = misfits.collect();
    let mut view = View::new(reader);
    let mut exceptions = Map::new();
    for (info, name) in reader.tensors().iter().zip(&names) {
        exceptions.extend(name.as_ref().map(|name| (name.clone(), info.name.clone().into())));
    }

    view.rename(|position, _| names[position].clone());
    view.metadata_mut().set(NAMES, serde_json::json!({ "exceptions": exceptions }));
    Prepared { view, validator, family: None, misfits, warnings: Vec::new() }
}

fn of_no_family(reader: &dyn CheckpointReader, validation: ValidationConfig) -> Prepared<'_> {
    Prepared {
        view: View::new(reader),
        validator: InlineValidator::for_checkpoint(validation, reader.tensors(), None),
        family: None,
        misfits: Vec::new(),
        warnings: Vec::new(),
    }
}

fn learn_from_companions(learnt: &Learnt, prepared: &mut Prepared<'_>, options: &PrepareOptions) {
    let answered = |warning: &&String| options.license.is_some() && *warning == NO_LICENSE;
    prepared.warnings.extend(learnt.warnings.iter().filter(|warning| !answered(warning)).cloned());
    let target = prepared.view.metadata_mut();
    if let Some(license) = &options.license {
        target.set("license", license.as_str());
    }
    for (key, value) in &learnt.metadata {
        target.set_default(key, value.clone());
    }
    prepared.warnings.extend(target.text("license").and_then(license_warning));
    add_learnt(&mut prepared.view, learnt);
}

/// Adds tensors learnt from the companions that are too large for metadata.
///
/// Tensors whose names the checkpoint already has are not added.
fn add_learnt(view: &mut View<'_>, learnt: &Learnt) {
    for tensor in &learnt.tensors {
        if view.tensors().iter().all(|info| info.name != tensor.info.name) {
            view.add(tensor.info.clone(), tensor.bytes.clone());
            if tensor.info.name == keys::MEL_FILTERBANK_TENSOR {
                // In place of the numbers, where the metadata had them.
                let place = serde_json::json!({ "tensor": keys::MEL_FILTERBANK_TENSOR });
                view.metadata_mut().set(keys::MEL_FILTERBANK, place);
            }
        }
    }
}

impl Prepared<'_> {
    /// Returns an error if names or shapes are wrong and errors end the import.
    ///
    /// # Errors
    /// The first misfit.
    pub fn check(&self) -> Result<(), ImportError> {
        match self.misfits.first() {
            Some(first) if self.validator.config().stop => Err(first.clone().into()),
            _ => Ok(()),
        }
    }
}
