//! Validation on the way: each tensor is judged while a pass streams it.

use std::collections::BTreeSet;

use apr_arch::{Contradiction, FamilyModel, Mismatch, TensorExpectation};
use apr_core::NotFinite;
use apr_registry::{CheckpointReader, DType, Error, TensorInfo};
use apr_tensor::stats::{Moments, Scratch, Stats};
use serde::Serialize;

use crate::constants::Constants;
use crate::physics::{
    Level, Physics, Sibling, Violation, expectation, expectation_by_name, outliers,
};

/// Checks to make, and whether the first error ends the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidationConfig {
    /// Tensors that are missing, that the family does not know, or whose shapes don't fit the
    /// configuration.
    pub structure: bool,
    /// Values of each tensor.
    pub physics: Physics,
    /// Tensors that are missing are errors, not warnings.
    pub complete: bool,
    /// End the job at the first error; otherwise record errors and continue.
    pub stop: bool,
}

impl ValidationConfig {
    /// Everything is checked, the first error ends the job.
    #[must_use]
    pub const fn strict() -> Self {
        Self { structure: true, physics: Physics::ALL, complete: true, stop: true }
    }

    /// Enables all checks, but accepts a part of a model.
    ///
    /// A converted model need not be complete, unlike an imported one.
    #[must_use]
    pub const fn of_part() -> Self {
        Self { complete: false, ..Self::strict() }
    }

    /// Enables all checks and records errors without ending the job.
    #[must_use]
    pub const fn relaxed() -> Self {
        Self { stop: false, ..Self::strict() }
    }

    /// Checks only the checksums that the source states for its tensors.
    ///
    /// A job can't check less: bytes that were not compared would get new checksums in the output.
    /// Only a configuration that records errors ([`relaxed`](Self::relaxed)) lets a wrong CRC-32
    /// pass, and the output then states it.
    #[must_use]
    pub const fn integrity() -> Self {
        Self { structure: false, physics: Physics::NONE, complete: false, stop: true }
    }

    /// Returns `true` if the values of tensors are checked.
    #[must_use]
    pub(crate) fn reads_values(self) -> bool {
        self.physics != Physics::NONE
    }
}

impl Default for ValidationConfig {
    fn default() -> Self {
        Self::strict()
    }
}

/// Error found in a tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum ValidationReason {
    /// The values of the tensor are wrong.
    Values(Violation),
    /// The name or shape of the tensor is wrong, or the tensor is missing.
    Structure(Mismatch),
    /// The configuration names a family whose tensors these are not.
    Family(Contradiction),
    /// The metadata contradict the tensor.
    Claim(Claim),
}

/// A statement of the metadata about the model that can't be accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Claim {
    /// The file names an architecture that is not known.
    Architecture {
        /// Name of the architecture in the file.
        name: String,
    },
    /// The graph of the file contradicts itself: no runtime takes it.
    Graph,
    /// The graph of the file can't be read.
    UnreadableGraph {
        /// Code of the error.
        code: &'static str,
        /// Byte offset of the error in the file that holds the graph.
        offset: Option<u64>,
    },
    /// The ONNX file has norms plus a constant, which the exporter computed.
    FoldedNorms {
        /// Number of such norms.
        norms: u64,
    },
    /// The tokenizer has ids without a row in the embedding.
    Vocabulary {
        /// Tokens of the tokenizer.
        #[serde(rename = "token_count")]
        tokens: u64,
        /// Rows of the embedding.
        rows: u64,
    },
    /// The list of tokens in the metadata differs in length from the stated size.
    Size {
        /// Tokens of the list.
        #[serde(rename = "token_count")]
        tokens: u64,
        /// Size stated in the metadata.
        stated: u64,
    },
    /// The filterbank in the metadata is not a matrix of the stated shape.
    Filterbank,
    /// The mel filterbank makes another number of mels than the network takes.
    Mels {
        /// Mels of the filterbank.
        filters: u64,
        /// Number of mel bins in the configuration.
        #[serde(rename = "expected_count")]
        expected: u64,
    },
}

/// A tensor that an import should not pass on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ValidationError {
    /// Name of the tensor in the source, or of the node for errors in the graph ([`Claim::Graph`]).
    pub tensor: String,
    /// Severity of the error.
    pub level: Level,
    /// Description of the error.
    pub message: String,
    /// Reason of the error, for programs.
    #[serde(flatten)]
    pub reason: Box<ValidationReason>,
}

impl std::fmt::Display for ValidationError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, message) =
            (apr_registry::Escaped::short(&self.tensor), apr_registry::Escaped(&self.message));
        match (self.is_of_graph(), self.tensor.is_empty()) {
            (true, true) => write!(f, "{message}"),
            (true, false) => write!(f, "node '{name}': {message}"),
            (false, _) => write!(f, "tensor '{name}': {message}"),
        }
    }
}

impl std::error::Error for ValidationError {}

impl ValidationError {
    pub(crate) fn of_values(tensor: &str, violation: Violation) -> Self {
        let (level, message) = (violation.level(), violation.to_string());
        Self {
            tensor: tensor.to_owned(),
            level,
            message,
            reason: Box::new(ValidationReason::Values(violation)),
        }
    }

    /// Returns the error about values that are not finite, if `error` is one.
    pub(crate) fn of_error(error: &Error) -> Option<Self> {
        let NotFinite { nan, infinite, of, .. } = error.not_finite()?;
        let violation = match nan {
            0 => Violation::Infinite { count: infinite, of },
            count => Violation::Nan { count, of },
        };
        let named = Self::of_values(error.tensor().unwrap_or_default(), violation);
        Some(Self { message: error.message().to_owned(), ..named })
    }

    /// Returns `true` if the error is about NaN or infinity.
    pub(crate) fn is_of_no_finite_value(&self) -> bool {
        matches!(
            *self.reason,
            ValidationReason::Values(Violation::Nan { .. } | Violation::Infinite { .. })
        )
    }

    /// Returns `true` if the error is about the graph and not about a tensor.
    pub(crate) fn is_of_graph(&self) -> bool {
        let of_graph =
            |claim: &Claim| matches!(claim, Claim::Graph | Claim::UnreadableGraph { .. });
        matches!(&*self.reason, ValidationReason::Claim(claim) if of_graph(claim))
    }

    /// Returns `true` if the error is about a graph that can't be read.
    pub(crate) fn is_of_unreadable_graph(&self) -> bool {
        matches!(*self.reason, ValidationReason::Claim(Claim::UnreadableGraph { .. }))
    }

    pub(crate) fn of_structure(mismatch: Mismatch) -> Self {
        Self {
            tensor: mismatch.name().to_owned(),
            level: match mismatch {
                // A task's own head is the author's business.
                Mismatch::Unexpected { extra: true, .. } => Level::Warning,
                _ => Level::Error,
            },
            message: mismatch.to_string(),
            reason: Box::new(ValidationReason::Structure(mismatch)),
        }
    }
}

/// Result of a validation.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct ValidationReport {
    /// Tensors whose values were looked at.
    pub checked: usize,
    /// Number of tensors that are infinite and may be: limits and masks.
    #[serde(skip_serializing_if = "is_zero")]
    pub infinite: usize,
    /// Errors that did not end the job.
    pub errors: Vec<ValidationError>,
    /// Warnings about tensors.
    pub warnings: Vec<ValidationError>,
    /// Infinite tensors that are accepted because of their use in the graph.
    #[serde(skip)]
    pub(crate) by_graph: Vec<String>,
    /// Weights of layers in a part of a job, to be compared with those in the other parts.
    #[serde(skip)]
    pub siblings: Vec<Sibling>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Serde passes a reference.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Judges tensors one by one.
///
/// ```
/// use apr_ops::inline::{InlineValidator, ValidationConfig};
///
/// let mut validator = InlineValidator::new(ValidationConfig::strict());
/// assert!(validator.validate_tensor("fc1.weight", &[0.02, -0.03, 0.01]).is_ok());
/// let error = validator.validate_tensor("fc2.weight", &[0.02, f32::NAN]).unwrap_err();
/// assert_eq!(error.to_string(), "tensor 'fc2.weight': 1 of 2 values are NaN");
/// ```
#[derive(Debug, Clone)]
pub struct InlineValidator {
    config: ValidationConfig,
    tensors: Vec<Expected>,
    /// Positions of tensors whose elements are not values of the model.
    codes: BTreeSet<usize>,
    constants: Constants,
    /// `true` if other parts of the job have the other layers.
    is_part: bool,
    report: ValidationReport,
}

/// A tensor of the checkpoint.
#[derive(Debug, Clone)]
struct Expected {
    /// Name of the tensor in the source.
    name: String,
    expectation: Option<TensorExpectation>,
    /// Position of the tensor within its layer ([`FamilyModel::place_in_layer`]).
    place: Option<String>,
}

impl InlineValidator {
    /// Creates a validator without a family. It detects layer norms by their names.
    #[must_use]
    pub fn new(config: ValidationConfig) -> Self {
        Self {
            config,
            tensors: Vec::new(),
            codes: BTreeSet::new(),
            constants: Constants::default(),
            is_part: false,
            report: ValidationReport::default(),
        }
    }

    /// A validator for the tensors of a checkpoint, in their order and under their names.
    #[must_use]
    pub fn for_checkpoint(
        config: ValidationConfig,
        tensors: &[TensorInfo],
        model: Option<&FamilyModel<'_>>,
    ) -> Self {
        let expectations =
            tensors.iter().enumerate().map(|(position, info)| expectation(model, position, info));
        let mut validator = Self::expecting(config, tensors, expectations);
        for (position, tensor) in validator.tensors.iter_mut().enumerate() {
            tensor.place = model.and_then(|model| model.place_in_layer(position));
        }
        validator
    }

    /// A validator with an expectation for each tensor of a checkpoint.
    pub(crate) fn expecting(
        config: ValidationConfig,
        tensors: &[TensorInfo],
        expectations: impl Iterator<Item = Option<TensorExpectation>>,
    ) -> Self {
        let tensors = tensors.iter().zip(expectations).map(|(info, expectation)| Expected {
            name: info.name.clone(),
            expectation,
            place: None,
        });
        Self { tensors: tensors.collect(), ..Self::new(config) }
    }

    /// Returns a validator for a part of a job.
    ///
    /// Norms are compared with those of the other layers when all parts are done.
    pub(crate) fn in_parts(self) -> Self {
        Self { is_part: true, ..self }
    }

    /// Returns the validator for tensors at these positions of the checkpoint.
    ///
    /// The flag marks tensors that are codes and scales of the tensor at the position. These are
    /// not validated.
    pub(crate) fn placed(self, places: impl Iterator<Item = (usize, bool)>) -> Self {
        let places: Vec<(usize, bool)> = places.collect();
        let codes = places.iter().enumerate().filter(|(_, (_, is_code))| *is_code);
        let codes = codes.map(|(position, _)| position).collect();
        let tensors = places.iter().map_while(|(origin, _)| self.tensors.get(*origin).cloned());
        let tensors = tensors.collect();
        Self { tensors, codes, ..self }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> ValidationConfig {
        self.config
    }

    /// Judges a tensor by its values.
    ///
    /// # Errors
    /// The first error, if errors end the job.
    pub fn validate_tensor(&mut self, name: &str, data: &[f32]) -> Result<(), ValidationError> {
        let bytes: Vec<u8> = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        let stats = Moments::of(DType::F32, &bytes, &mut Scratch::default()).finish();
        self.judge(name, &stats, expectation_by_name(name))
    }

    /// Judges the tensor at this position of `reader` by its statistics.
    ///
    /// `name` is used if the checkpoint does not have the tensor.
    ///
    /// # Errors
    /// The first error, if errors end the job.
    pub(crate) fn validate_stats(
        &mut self,
        reader: &dyn CheckpointReader,
        position: usize,
        name: &str,
        stats: Stats,
    ) -> Result<(), ValidationError> {
        if self.codes.contains(&position) {
            return Ok(());
        }
        // A report speaks of the source: its names are the ones to look for.
        let known = self.tensors.get(position).cloned();
        let Expected { name, expectation, place } = known.unwrap_or_else(|| Expected {
            name: name.to_owned(),
            expectation: None,
            place: None,
        });
        let stats = self.constants.judged(reader, position, stats, expectation);
        if let (Some(place), Some(expected), true) =
            (place, expectation, self.config.physics.ranges)
        {
            let stored = reader.tensors().get(position).map_or(DType::F32, |info| info.dtype);
            self.report.siblings.extend(Sibling::at(&place, (&name, stored), expected, &stats));
        }
        self.judge(&name, &stats, expectation)
    }

    /// Judges the tensor at this position by a checksum that the source gives.
    ///
    /// # Errors
    /// The mismatch, if errors end the job.
    pub(crate) fn validate_checksum(
        &mut self,
        position: usize,
        name: &str,
        (stated, found): (u32, u32),
    ) -> Result<(), ValidationError> {
        if stated == found {
            return Ok(());
        }
        let name = self.name(position, name).to_owned();
        self.record(ValidationError::of_values(&name, Violation::Checksum { stated, found }))
    }

    /// Judges the tensor at this position by the number of values outside of its dtype's range.
    ///
    /// # Errors
    /// The violation, if errors end the job.
    pub(crate) fn validate_range(
        &mut self,
        position: usize,
        name: &str,
        (count, dtype): (u64, DType),
    ) -> Result<(), ValidationError> {
        if count == 0 {
            return Ok(());
        }
        let name = self.name(position, name).to_owned();
        self.record(ValidationError::of_values(&name, Violation::beyond_range(count, dtype)))
    }

    /// Returns the source's name of the tensor at this position, or `name` if it has none.
    pub(crate) fn name<'n>(&'n self, position: usize, name: &'n str) -> &'n str {
        self.tensors.get(position).map_or(name, |tensor| &tensor.name)
    }

    fn judge(
        &mut self,
        name: &str,
        stats: &Stats,
        expected: Option<TensorExpectation>,
    ) -> Result<(), ValidationError> {
        self.report.checked += 1;
        for violation in self.config.physics.violations(name, stats, expected) {
            self.record(ValidationError::of_values(name, violation))?;
        }
        Ok(())
    }

    fn record(&mut self, error: ValidationError) -> Result<(), ValidationError> {
        match error.level {
            Level::Error if self.config.stop => return Err(error),
            Level::Error => self.report.errors.push(error),
            Level::Warning => self.report.warnings.push(error),
        }
        Ok(())
    }

    /// Returns the result of the validation.
    #[must_use]
    pub fn finish(self) -> ValidationReport {
        let Constants { infinite, by_graph, .. } = self.constants;
        let mut report = ValidationReport { infinite, by_graph, ..self.report };
        if !self.is_part {
            report.warnings.extend(beside_siblings(&std::mem::take(&mut report.siblings)));
        }
        report
    }
}

/// Returns warnings for weights that are odd beside those of the other layers of a model.
pub(crate) fn beside_siblings(siblings: &[Sibling]) -> Vec<ValidationError> {
    let warning = |(tensor, violation)| ValidationError::of_values(tensor, violation);
    outliers(siblings).into_iter().map(warning).collect()
}
