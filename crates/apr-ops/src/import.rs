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

use apr_arch::{Contradiction, Families, FamilyModel, Mismatch, TensorNameMapper};
use apr_core::counted;
use apr_llama::{GgufExport, Restored, described, from_gguf, is_in_gguf_layout, to_gguf};
use apr_registry::{
    CheckpointReader, Convention, DType, Error, Format, Loss, Metadata, Result, TensorInfo, keys,
};
use apr_source::adapter::is_adapter;
use apr_source::companions::{Learnt, NO_LICENSE, license_warning};
use apr_source::naming::{NAMES, canonical, original};
use apr_source::{Architecture, Source, family_in, is_unpacked};
use apr_view::{View, nearest};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::convert::ConvertError;
use crate::inline::{Claim, InlineValidator, ValidationConfig, ValidationError, ValidationReason};
use crate::physics::Level;

/// How a checkpoint is prepared.
#[derive(Debug, Clone, Default)]
pub struct PrepareOptions {
    /// What is checked on the way.
    pub validation: ValidationConfig,
    /// Licence of the model, where its files don't state it.
    pub license: Option<String>,
}

/// The family that a checkpoint was taken for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FamilyNote {
    /// Name of the family.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Whether its tensors' names alone speak for it.
    pub guessed: bool,
    /// How the source names its tensors.
    pub convention: String,
    /// Tensors that got another name.
    pub renamed: usize,
}

/// A checkpoint ready to be written.
pub struct Prepared<'a> {
    /// The checkpoint under its new names, with what its companions say.
    pub view: View<'a>,
    /// Judges the tensors of `view` on the way.
    pub validator: InlineValidator,
    /// The family, if it is known.
    pub family: Option<FamilyNote>,
    /// What names and shapes show to be wrong, under the names of the source.
    pub misfits: Vec<ValidationError>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// Why an import failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The source could not be fetched.
    DownloadFailed {
        /// What was asked for.
        source: String,
        /// What went wrong.
        reason: String,
    },
    /// The source is not a model file that apr reads.
    UnsupportedFormat {
        /// Extension of the file.
        extension: String,
    },
    /// A tensor is not what a healthy model has.
    ValidationFailed {
        /// Name in the source.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The family has no such tensor.
    UnknownTensor {
        /// Name in the source.
        source_name: String,
    },
    /// The source is not of the family that was asked for.
    ArchitectureMismatch {
        /// The family asked for.
        expected: String,
        /// What the source is.
        found: String,
    },
    /// The source lacks a tensor.
    MissingTensor {
        /// Name in the source's convention.
        name: String,
    },
    /// Quantization moved values further than allowed.
    QualityGate {
        /// What exceeds the gate.
        failures: Vec<String>,
    },
    /// The source can't be read or the target not be written.
    Model(apr_registry::Error),
}

impl std::fmt::Display for ImportError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DownloadFailed { source, reason } => {
                write!(f, "Download failed: {source} - {reason}")
            }
            Self::UnsupportedFormat { extension } => write!(f, "Unsupported format: {extension}"),
            Self::ValidationFailed { name, reason } => {
                write!(f, "Tensor validation failed: {name} - {reason}")
            }
            Self::UnknownTensor { source_name } => {
                write!(f, "Name mapping failed: unknown tensor '{source_name}'")
            }
            Self::ArchitectureMismatch { expected, found } => {
                write!(f, "Architecture mismatch: expected {expected}, found {found}")
            }
            Self::MissingTensor { name } => write!(f, "Missing required tensor: {name}"),
            Self::QualityGate { failures } => {
                write!(f, "Quality gate failed: {}", failures.join(", "))
            }
            Self::Model(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ImportError {}

impl From<apr_registry::Error> for ImportError {
    fn from(error: apr_registry::Error) -> Self {
        Self::Model(error)
    }
}

impl From<ValidationError> for ImportError {
    fn from(error: ValidationError) -> Self {
        match *error.reason {
            ValidationReason::Family(Contradiction { told, alike, .. }) => {
                Self::ArchitectureMismatch {
                    expected: told,
                    found: alike.unwrap_or("unknown".to_owned()),
                }
            }
            ValidationReason::Structure(Mismatch::Unexpected { name, .. }) => {
                Self::UnknownTensor { source_name: name }
            }
            ValidationReason::Structure(Mismatch::Missing { name }) => Self::MissingTensor { name },
            _ => Self::ValidationFailed { name: error.tensor, reason: error.message },
        }
    }
}

impl From<ConvertError> for ImportError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Model(error) => Self::Model(error),
            ConvertError::Invalid(error) | ConvertError::Unfit { error, .. } => error.into(),
            ConvertError::Gate { failures, .. } => Self::QualityGate { failures },
        }
    }
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
    /// Whoever opens the file later should know what was let pass.
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

/// What of the whole checkpoint does not go together: the family that it claims, its vocabulary and
/// its filterbank.
fn structural_misfits(
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
        misfits.extend(vocabulary_misfit(rows, |key| metadata.get(key)));
    }
    misfits.extend(filterbank_misfit(metadata, view.tensors(), |key| metadata.get(key)));
    misfits
}

/// What a checkpoint that no family was found for says of itself, and is not: its configuration
/// names a family that the tensors are not of. A conversion refuses it, and so it is not valid.
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

/// The notice of what is written under the names of a GGUF file.
fn under_its_own_names(reader: &dyn CheckpointReader) -> String {
    let name = reader.metadata().text(keys::MODEL_TYPE).unwrap_or_default();
    format!(
        "apr does not know the architecture '{name}': tensors keep GGUF's names and layout, and \
         there is no config.json, so that libraries will not find a model in it"
    )
}

/// Where the configuration names a family that the tensors are not of.
fn contradiction(
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

/// GGUF files say what they are; one of a kind that is not known would be taken without any check.
fn unknown_architecture(reader: &dyn CheckpointReader) -> Option<ValidationError> {
    let is_foreign =
        reader.format().convention != Convention::LlamaCpp || reader.tensors().is_empty();
    if is_foreign || is_adapter(reader.tensors()) {
        return None;
    }
    let name = reader.metadata().text(keys::MODEL_TYPE).unwrap_or_default().to_owned();
    Some(ValidationError {
        tensor: reader.tensors().first()?.name.clone(),
        level: Level::Error,
        message: format!(
            "the file says '{name}', which is not an architecture that apr knows: names and shapes \
             can't be checked"
        ),
        reason: Box::new(ValidationReason::Claim(Claim::Architecture { name })),
    })
}

fn of_family<'a>(
    reader: &'a dyn CheckpointReader,
    model: &FamilyModel<'_>,
    options: &PrepareOptions,
) -> Prepared<'a> {
    let validation = options.validation;
    let view = canonical(reader, model);
    let mismatches =
        if validation.structure { model.mismatches(reader.tensors()) } else { Vec::new() };
    let (misfits, warnings) = errors_and_warnings(misfits(mismatches), validation.complete);
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

/// Unknown and missing tensors that are compared with one another: where there are more, none of
/// them was renamed.
pub(crate) const COMPARED: usize = 20;

/// Mismatches, with a hint where an unknown tensor looks like a missing one.
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

/// What ends an import, and what is only reported: in one line, since such tensors come in groups.
/// What is missing is only reported where the model need not be `complete`.
fn errors_and_warnings(
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
    if !missing.is_empty() {
        let count = counted(missing.len() as u64, "tensor");
        warnings.push(format!(
            "this is a part of a model: it lacks {count} of the family: {}",
            listed(&missing)
        ));
    }
    if !odd.is_empty() {
        warnings.push(format!("not of the family, kept as they are: {}", listed(&odd)));
    }
    (errors, warnings)
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

/// Adds what companions hold that is too large for metadata, where the checkpoint has none of that
/// name.
fn add_learnt(view: &mut View<'_>, learnt: &Learnt) {
    for tensor in &learnt.tensors {
        if view.tensors().iter().all(|info| info.name != tensor.info.name) {
            view.add(tensor.info.clone(), tensor.bytes.clone());
        }
    }
}

/// A checkpoint ready for a format other than `.apr`.
pub struct Foreign<'a> {
    /// What is written, and judged on the way.
    pub prepared: Prepared<'a>,
    /// Dtypes that the format needs, by position; the tensors' own where there is none.
    pub dtypes: Vec<Option<DType>>,
    /// What the format has no place for.
    pub losses: Vec<Loss>,
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
    let reader = source.reader();
    let Layout { view, dtypes, losses, warnings } = layout(source, format)?;
    if !validation.structure && !validation.reads_values() {
        let validator = InlineValidator::new(validation);
        let prepared = Prepared { view, validator, family: None, misfits: Vec::new(), warnings };
        return Ok(Foreign { prepared, dtypes, losses });
    }
    // Names and shapes are judged as they come, values as they go.
    let found = source.family()?;
    let mismatches =
        found.filter(|_| validation.structure).map(|model| model.mismatches(reader.tensors()));
    // llama.cpp can't do with a part.
    let complete = validation.complete || format.convention == Convention::LlamaCpp;
    let (mut misfits, odd) =
        errors_and_warnings(mismatches.map(misfits).unwrap_or_default(), complete);
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
    let warnings = warnings.into_iter().chain(odd).collect();
    let mut prepared = Prepared { view, validator, family, misfits, warnings };
    if !is_known && validation.structure && matches!(source.architecture(), Architecture::Auto) {
        let contradiction =
            contradiction(&prepared.view, prepared.view.metadata(), source.families());
        prepared.misfits.extend(contradiction);
    }
    Ok(Foreign { prepared, dtypes, losses })
}

/// Names and layout in a target format.
struct Layout<'a> {
    view: View<'a>,
    dtypes: Vec<Option<DType>>,
    losses: Vec<Loss>,
    warnings: Vec<String>,
}

impl<'a> Layout<'a> {
    /// All there is to say is in the view.
    fn of(view: View<'a>) -> Self {
        Self { view, dtypes: Vec::new(), losses: Vec::new(), warnings: Vec::new() }
    }
}

fn layout<'a>(source: &Source<'a>, format: &'static Format) -> Result<Layout<'a>> {
    match format.convention {
        Convention::LlamaCpp => {
            let GgufExport { view, dtypes, losses, warnings } = to_gguf(source)?;
            Ok(Layout { view, dtypes, losses, warnings })
        }
        Convention::Framework if is_in_gguf_layout(source.reader()) => out_of_gguf(source),
        Convention::Whisper => Ok(Layout::of(for_apr1(source)?)),
        _ => Ok(Layout::of(original(source, format)?)),
    }
}

/// Names and layout that a framework's programs expect, of a checkpoint that has GGUF's.
///
/// # Errors
/// E001 where there are no tensors, or they can't be taken back.
fn out_of_gguf<'a>(source: &Source<'a>) -> Result<Layout<'a>> {
    let reader = source.reader();
    if reader.tensors().is_empty() {
        return Err(Error::format(
            "it holds a vocabulary and no tensors: there are no weights to write",
        ));
    }
    if is_of_no_architecture(source) {
        return Ok(Layout {
            warnings: vec![under_its_own_names(reader)],
            ..Layout::of(View::new(reader))
        });
    }
    let (Restored { view, losses, .. }, warnings) =
        from_gguf(reader, source.families(), source.architecture())?;
    Ok(Layout { losses, warnings, ..Layout::of(view) })
}

/// Whether a GGUF file, or what was imported from one, is of no architecture that is known.
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

/// Holds the tokenizer, as the metadata under `get` describe it, against the rows of the embedding:
/// an id without a row ends a run, while rows without an id are padding.
pub(crate) fn vocabulary_misfit<'m>(
    rows: u64,
    get: impl Fn(&str) -> Option<&'m Value>,
) -> Option<ValidationError> {
    let tokens = get("tokenizer.vocab_size").and_then(Value::as_u64)?;
    // Markers that no text yields are added to tokenizers without a row of their own.
    let special = get("tokenizer.special_tokens").and_then(Value::as_object).into_iter().flatten();
    let beyond = special.filter(|(_, id)| id.as_u64().is_some_and(|id| id >= rows)).count() as u64;
    let (has, takes) = (counted(tokens, "token"), counted(rows, "row"));
    (tokens.saturating_sub(rows) > beyond).then(|| ValidationError {
        tensor: "token_embedding".to_owned(),
        level: Level::Error,
        message: format!("the tokenizer has {has}, the embedding {takes}: the last ids have none"),
        reason: Box::new(ValidationReason::Claim(Claim::Vocabulary { tokens, rows })),
    })
}

/// Mels that the network takes, as the configuration says.
pub(crate) fn expected_mels(metadata: &Metadata) -> Option<u64> {
    let config = metadata.object(keys::ARCHITECTURE)?;
    ["num_mel_bins", "n_mels"].iter().find_map(|key| config.get(*key)?.as_u64())
}

/// Holds the mel filterbank, or what is said of it, against the mels that the network takes (QA
/// 48): with another number, no sound can go in.
pub(crate) fn filterbank_misfit<'m>(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    get: impl Fn(&str) -> Option<&'m Value>,
) -> Option<ValidationError> {
    let expected = expected_mels(metadata)?;
    let stored = tensors.iter().find(|info| info.name == keys::MEL_FILTERBANK_TENSOR);
    let stored = stored.and_then(|info| info.shape.dims().first().copied());
    let written = || get("mel_filterbank_shape")?.get(0)?.as_u64();
    let made = || get("audio_config")?.get("n_mels")?.as_u64();
    let filters =
        [stored, written(), made()].into_iter().flatten().find(|&filters| filters != expected)?;
    let has = counted(filters, "mel filter");
    Some(ValidationError {
        tensor: keys::MEL_FILTERBANK_TENSOR.to_owned(),
        level: Level::Error,
        message: format!(
            "the sound becomes {has}, but the configuration's num_mel_bins is {expected}"
        ),
        reason: Box::new(ValidationReason::Claim(Claim::Mels { filters, expected })),
    })
}

impl Prepared<'_> {
    /// Ends the import at what names and shapes show to be wrong, if errors end it.
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
