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

mod error;
mod layout;
mod planned;
mod weights;

use apr_registry::{CheckpointReader, Convention, Format, Metadata, PlanOptions, keys};
use apr_source::Source;
use apr_view::{View, sort_by_first_use};

pub use error::JobError;
pub use planned::{JobReport, Planned};
pub use weights::{Quantize, Weights};

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
            validation: ValidationConfig::strict(),
            license: None,
            title: None,
            opens: false,
            source_sha256: None,
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
        self.target.check().map_err(|error| JobError::Request(error.message().to_owned()))?;
        let mut selected = View::new(source.reader());
        if let Some(prefix) = &self.prefix {
            selected.select(prefix).map_err(JobError::from)?;
        }
        if self.target.streaming && self.naming == Naming::OfTarget {
            // Before the tensors are judged, which goes by their positions.
            sort_by_first_use(&mut selected);
        }
        match self.naming {
            Naming::AsTheyAre => self.plan_copy(&selected, source, then),
            Naming::OfTarget if self.target.format.convention == Convention::Canonical => {
                self.plan_canonical(&selected, source, then)
            }
            Naming::OfTarget => self.plan_foreign(selected, source, then),
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
        if let Some(digest) = &self.source_sha256 {
            let mut source = metadata.object(keys::SOURCE).cloned().unwrap_or_default();
            source.insert("sha256".to_owned(), digest.as_str().into());
            metadata.set(keys::SOURCE, source);
        }
    }
}

/// Whether files of a format have tokenizer and configuration inside, so that the files beside the weights are wanted
/// even where the weights alone are named.
#[must_use]
pub fn wants_companions(format: &Format) -> bool {
    matches!(format.convention, Convention::LlamaCpp | Convention::Whisper)
}
