//! A job: what is to be done with a model, planned and run in one place.
//!
//! ```
//! use apr_arch::Families;
//! use apr_ops::job::Job;
//! use apr_registry::{Limits, PlanOptions, Serial, apr2};
//! use apr_source::Source;
//!
//! let header = br#"{"bias":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
//! let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! file.extend_from_slice(header);
//! file.extend_from_slice(&[0; 8]);
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//!
//! let families = Families::builtin();
//! let source = Source::new(&*model, &families).named("model.safetensors");
//! let job = Job::new(PlanOptions::new(&apr2::FORMAT, "model.apr"));
//! let mut file = Vec::new();
//! let report = job.plan(&source, |planned| planned.run(&mut file, &Serial, &()))?;
//! assert_eq!(report.conversion.bytes_out, file.len() as u64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod computed;
mod error;
mod exported;
mod layout;
mod planned;
mod scripted;
mod weights;

use apr_registry::{CheckpointReader, Computes, Convention, Error, Format, Metadata, PlanOptions, keys};
use apr_source::Source;
use apr_view::{View, sort_by_first_use};

pub use computed::GraphWishes;
pub use error::JobError;
pub use planned::{JobReport, Planned};
pub use weights::Weights;

use crate::inline::ValidationConfig;

/// What is to be done with a model.
#[derive(Debug, Clone)]
#[must_use = "a job does nothing until it is planned and run"]
pub struct Job {
    /// The format to write, and how its files are laid out.
    pub target: PlanOptions,
    /// Only the tensors whose names start so; what starts them is taken off.
    pub prefix: Option<String>,
    /// What happens to names and layout.
    pub naming: Naming,
    /// What happens to the weights.
    pub weights: Weights,
    /// What is wanted of the graph, where the target says what the model computes.
    pub graph: GraphWishes,
    /// How tensors are checked on the way.
    pub validation: ValidationConfig,
    /// Licence of the model, where its files don't tell.
    pub license: Option<String>,
    /// What people call the model, for formats that want a name, where the model does not say it.
    pub title: Option<String>,
    /// Taking the source's encryption away is what the job is for, and not told.
    pub opens: bool,
    /// SHA-256 of the source's file in hexadecimal digits, to be written down.
    pub source_sha256: Option<String>,
    /// Where a model comes from that was not on this machine: entries of the metadata's `source`.
    pub provenance: Option<Metadata>,
}

/// What happens to the names and the layout of a model's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// They become those of the target format.
    OfTarget,
    /// They stay: the job copies a model.
    AsTheyAre,
}

impl Job {
    /// A conversion that checks everything and changes no value.
    pub fn new(target: PlanOptions) -> Self {
        Self {
            target,
            prefix: None,
            naming: Naming::OfTarget,
            weights: Weights::default(),
            graph: GraphWishes::default(),
            validation: ValidationConfig::strict(),
            license: None,
            title: None,
            opens: false,
            source_sha256: None,
            provenance: None,
        }
    }

    /// A copy of the model as it is.
    pub fn copy(target: PlanOptions) -> Self {
        Self { naming: Naming::AsTheyAre, validation: ValidationConfig::off(), ..Self::new(target) }
    }

    /// Plans the job from headers and companions alone, and hands the plan to `then`, which runs it or only looks at it.
    ///
    /// # Errors
    /// What contradicts the format or the model, what is wrong with the source's headers, and what `then` says.
    pub fn plan<R, E: From<JobError>>(
        &self,
        source: &Source<'_>,
        then: impl FnOnce(Planned<'_>) -> Result<R, E>,
    ) -> Result<R, E> {
        self.check()?;
        let selected = self.selected(source.reader()).map_err(JobError::from)?;
        match self.naming {
            Naming::AsTheyAre => self.plan_copy(&selected, source, then),
            Naming::OfTarget if self.target.format.convention == Convention::Canonical => {
                self.plan_canonical(&selected, source, then)
            }
            Naming::OfTarget if self.keeps_graph(source.reader()) => self.plan_exported(&selected, source, then),
            Naming::OfTarget => match self.computes() {
                Computes::Always => self.plan_computed(&selected, source, then),
                Computes::IfKnown => self.plan_scripted(&selected, source, then),
                Computes::Nothing => self.plan_foreign(selected, source, then),
            },
        }
    }

    /// The tensors that are meant, in the order in which they are written.
    fn selected<'a>(&self, reader: &'a dyn CheckpointReader) -> Result<View<'a>, Error> {
        let mut selected = View::new(reader);
        if let Some(prefix) = &self.prefix {
            selected.select(prefix)?;
        }
        if self.target.streaming && self.naming == Naming::OfTarget {
            // Before the tensors are judged, which goes by their positions.
            sort_by_first_use(&mut selected);
        }
        Ok(selected)
    }

    /// Whether the target says what the model computes.
    fn computes(&self) -> Computes {
        self.target.format.target.map_or(Computes::Nothing, |target| target.computes)
    }

    /// Refuses what would do nothing, or say two things at once.
    fn check(&self) -> Result<(), JobError> {
        self.target.check().map_err(|error| JobError::Request(error.message().to_owned()))?;
        let Weights { quantize, dequantize, precision, gate, .. } = &self.weights;
        let is_imported = self.naming == Naming::OfTarget && self.target.format.convention == Convention::Canonical;
        let wrong = [
            (self.license.is_some() && !is_imported, "a licence is written into imported .apr files only"),
            (
                self.source_sha256.is_some() && !is_imported,
                "the SHA-256 of a source is written into imported .apr files only",
            ),
            (self.weights.change_dtypes() && self.naming == Naming::AsTheyAre, "a copy changes no weights"),
            (
                !self.graph.is_empty() && self.computes() == Computes::Nothing,
                "--opset, --with-past, --task and --matmul-nbits are about what a model computes, and the output does not \
                 say that",
            ),
            (
                quantize.is_some() && dequantize.is_some(),
                "quantizing and dequantizing are two types for the same tensors",
            ),
            (
                gate.is_some() && quantize.is_none() && precision.is_none(),
                "a gate is about quantizing, and nothing is quantized",
            ),
        ];
        match wrong.iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, message)) => Err(JobError::Request((*message).to_owned())),
            None => Ok(()),
        }
    }

    /// What the user should know of what the source loses by being written anew.
    fn warnings_of_seals(&self, reader: &dyn CheckpointReader) -> apr_registry::Result<Vec<&'static str>> {
        let mut warnings = Vec::new();
        let signed = reader.container().signed()?;
        let is_sealed = signed.is_some_and(|signed| signed.signatures.is_some() || signed.licence.is_some());
        if is_sealed && !self.target.apr2.signs() {
            warnings.push("the source is signed, which holds for that file alone: the output is not");
        }
        if reader.container().features().encrypted && !self.target.apr2.encrypts() && !self.opens {
            warnings.push("the source is encrypted, and the output is not");
        }
        Ok(warnings)
    }

    /// Writes down which file the model came from.
    fn record_source(&self, metadata: &mut Metadata) {
        let came_from = self.provenance.iter().flat_map(Metadata::iter);
        let mut learnt: Vec<(String, serde_json::Value)> =
            came_from.map(|(key, value)| (key.to_owned(), value.clone())).collect();
        learnt.extend(self.source_sha256.iter().map(|digest| ("sha256".to_owned(), digest.as_str().into())));
        if learnt.is_empty() {
            return;
        }
        let mut source = metadata.object(keys::SOURCE).cloned().unwrap_or_default();
        source.extend(learnt);
        metadata.set(keys::SOURCE, source);
    }
}

/// Whether files of a format have tokenizer and configuration inside, so that the files beside the weights are wanted
/// even where the weights alone are named.
#[must_use]
pub fn wants_companions(format: &Format) -> bool {
    matches!(format.convention, Convention::LlamaCpp | Convention::Whisper)
}

#[cfg(test)]
mod tests {
    use apr_arch::Families;
    use apr_quantize::{QualityGate, Quantization, Scheme};
    use apr_registry::{DType, Limits, apr2, gguf};

    use super::*;

    #[test]
    fn what_would_be_left_out_without_a_word_is_refused() {
        let empty = b"\x02\0\0\0\0\0\0\0{}".to_vec();
        let model = apr_registry::open(empty, "model.safetensors", &Limits::default()).expect("a model");
        let families = Families::builtin();
        let source = Source::new(&*model, &families);
        let (native, foreign) = (PlanOptions::new(&apr2::FORMAT, "m.apr"), PlanOptions::new(&gguf::FORMAT, "m.gguf"));
        let weights = |weights: Weights| Job { weights, ..Job::new(native.clone()) };
        let quantize = Some(Quantization::to(Scheme::Q8_0));
        let jobs = [
            (Job { license: Some("mit".into()), ..Job::new(foreign.clone()) }, "a licence"),
            (Job { source_sha256: Some("00".into()), ..Job::new(foreign) }, "SHA-256"),
            (Job { license: Some("mit".into()), ..Job::copy(native.clone()) }, "a licence"),
            (
                Job {
                    weights: Weights { quantize: quantize.clone(), ..Weights::default() },
                    ..Job::copy(native.clone())
                },
                "a copy changes no weights",
            ),
            (weights(Weights { quantize, dequantize: Some(DType::F16), ..Weights::default() }), "two types"),
            (weights(Weights { gate: Some(QualityGate::default()), ..Weights::default() }), "nothing is quantized"),
        ];
        for (job, expected) in jobs {
            let refused = job.plan(&source, |_| Ok::<_, JobError>(())).expect_err(expected);
            assert!(matches!(&refused, JobError::Request(message) if message.contains(expected)), "{refused}");
        }
    }
}
