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
//! let report = job.plan(&source)?.run(&mut file, &Serial, &())?;
//! assert_eq!(report.conversion.bytes_out, file.len() as u64);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod affine;
mod blocks;
mod coded;
mod computed;
mod description;
mod error;
mod exported;
mod gate;
mod halves;
mod image_part;
mod integers;
mod layout;
mod planned;
mod products;
mod quantized;
mod scripted;
mod simplified;
mod weights;
mod wishes;

use apr_registry::{Computes, Convention, Error, Format};
use apr_source::Source;
use apr_view::{View, check_decodable, drop_statement, sort_by_first_use};

use affine::dequantize;
use image_part::part_for_images;

pub use coded::{CodedWeights, WeightsInBlocks};
pub use description::{Job, Naming};
pub use error::{JobError, misfit_title};
pub use gate::Gate;
pub use layout::LaidWeights;
pub use planned::{JobReport, Planned};
pub use weights::{Weights, layout_of, multiplies_integers};
pub use wishes::GraphWishes;

impl Job {
    /// Plans the job from headers and companions alone.
    ///
    /// # Errors
    /// What contradicts the format or the model, and what is wrong with the source's headers.
    pub fn plan<'a>(&self, source: &Source<'a>) -> Result<Planned<'a>, JobError> {
        self.check()?;
        source.reader().container().check_shards()?;
        if !self.weights.keeps_codes(self.target.format, source.reader()) {
            check_decodable(source.reader())?;
        }
        let selected = self.selected(source)?;
        let planned = self.plan_named(selected, source)?;
        if planned.check().is_err() {
            // Codes that can't be decoded are the reason for which a family lacks such tensors.
            check_decodable(source.reader())?;
        }
        Ok(planned)
    }

    fn plan_named<'a>(
        &self,
        selected: View<'a>,
        source: &Source<'a>,
    ) -> Result<Planned<'a>, JobError> {
        match self.naming {
            Naming::AsTheyAre => self.plan_copy(selected, source),
            Naming::OfTarget if self.target.format.convention == Convention::Canonical => {
                self.plan_canonical(selected, source)
            }
            Naming::OfTarget if self.keeps_graph(source.reader()) => {
                self.plan_exported(selected, source)
            }
            Naming::OfTarget => match self.computes() {
                Computes::Always => self.plan_computed(selected, source),
                Computes::IfKnown => self.plan_scripted(selected, source),
                Computes::Nothing => self.plan_foreign(selected, source),
            },
        }
    }

    /// The tensors that are meant, in the order in which they are written.
    fn selected<'a>(&self, source: &Source<'a>) -> Result<View<'a>, JobError> {
        let reader = source.reader();
        let mut selected = match self.part_for_images {
            true => part_for_images(source)?,
            false => View::new(reader),
        };
        if let Some(dtype) = self.weights.dequantize {
            dequantize(&mut selected, reader, dtype)?;
            // Weights may be plain already, beside a configuration that says otherwise.
            drop_statement(&mut selected)?;
        }
        if let Some(prefix) = &self.prefix {
            let unsuited = |error: Error| JobError::Request(error.message().to_owned());
            selected.select(prefix).map_err(unsuited)?;
        }
        if self.target.streaming && self.naming == Naming::OfTarget {
            // Before the tensors are judged, which goes by their positions.
            sort_by_first_use(&mut selected);
        }
        Ok(selected)
    }
}

/// Returns `true` if files of a format contain tokenizer and configuration.
///
/// The companion files are then needed even if only the weights file is named.
#[must_use]
pub fn wants_companions(format: &Format) -> bool {
    matches!(format.convention, Convention::LlamaCpp | Convention::Whisper)
}

#[cfg(test)]
mod tests {
    use apr_arch::Families;
    use apr_quantize::{Quantization, Scheme};
    use apr_registry::{DType, Limits, PlanOptions, apr2, gguf};

    use super::*;

    #[test]
    fn options_that_would_be_silently_ignored_are_rejected() {
        let empty = b"\x02\0\0\0\0\0\0\0{}".to_vec();
        let model =
            apr_registry::open(empty, "model.safetensors", &Limits::default()).expect("a model");
        let families = Families::builtin();
        let source = Source::new(&*model, &families);
        let (native, foreign) =
            (PlanOptions::new(&apr2::FORMAT, "m.apr"), PlanOptions::new(&gguf::FORMAT, "m.gguf"));
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
                "a copy can't change weights",
            ),
            (
                weights(Weights { quantize, dequantize: Some(DType::F16), ..Weights::default() }),
                "exclude each other",
            ),
        ];
        for (job, expected) in jobs {
            let Err(refused) = job.plan(&source) else { panic!("{expected}") };
            assert!(
                matches!(&refused, JobError::Request(message) if message.contains(expected)),
                "{refused}"
            );
        }
    }
}
