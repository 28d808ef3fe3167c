//! Planning the output.

use apr_core::{
    Alignments, CheckpointWriter, Computes, Error, Format, Metadata, Result, Sharding, Target,
    TensorInfo,
};
use apr_format::apr2::CompanionFile;

use crate::formats::FORMATS;
use crate::options::PlanOptions;

impl PlanOptions {
    /// Refuses options that the format does not have.
    ///
    /// # Errors
    /// E001 with the option and the formats that have it.
    pub fn check(&self) -> Result<()> {
        let target = self.target()?;
        type Wish<'a> = (&'a str, bool, fn(&Target) -> bool);
        let wanted: [Wish<'_>; 5] = [
            ("`external_data` works", self.places_data(), |target| {
                target.computes == Computes::Always
            }),
            ("`shard_size` works", self.shard_size.is_some(), |target| {
                target.sharding != Sharding::None
            }),
            ("`streaming` works", self.streaming, |target| target.streaming),
            ("`compress`, `encrypt`, `recipient` and `sign` work", self.apr2.seals(), |target| {
                target.seals
            }),
            ("`alignment` works", self.alignment.is_some(), |target| {
                target.alignments != Alignments::Fixed
            }),
        ];
        if let Some((what, _, has)) =
            wanted.into_iter().find(|(_, wanted, has)| *wanted && !has(target))
        {
            let others = targets().filter(|format| format.target.as_ref().is_some_and(has));
            let others = others.map(output_name).collect::<Vec<_>>().join(", ");
            let message =
                format!("{what} for {others} output only, not for {}", output_name(self.format));
            return Err(Error::format(message));
        }
        match (target.alignments, self.alignment) {
            (Alignments::OneOf(known), Some(wanted)) if !known.contains(&wanted) => {
                let known: Vec<String> = known.iter().map(u32::to_string).collect();
                let message = format!(
                    "tensors of {} are aligned to {} bytes",
                    self.format.name,
                    known.join(" or ")
                );
                Err(Error::format(message))
            }
            _ => Ok(()),
        }
    }

    #[cfg(feature = "onnx")]
    fn places_data(&self) -> bool {
        self.external_data != apr_onnx::write::ExternalData::Auto
    }

    #[cfg(not(feature = "onnx"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    fn places_data(&self) -> bool {
        false
    }
}

/// Returns the display name for output of a format: its extension, such as `.gguf`, or else its
/// name.
fn output_name(format: &'static Format) -> String {
    let extension = format.target.and_then(|target| target.extensions.first().copied());
    extension.map_or_else(|| format.name.to_owned(), |extension| format!(".{extension}"))
}

/// The formats that are written.
///
/// ```
/// assert!(apr_registry::targets().any(|format| format.id == "gguf"));
/// ```
pub fn targets() -> impl Iterator<Item = &'static Format> {
    formats().filter(|format| format.target.is_some())
}

/// Returns the format of outputs with this extension, which is passed without the dot.
#[must_use]
pub fn target_by_extension(extension: &str) -> Option<&'static Format> {
    targets()
        .find(|format| format.target.is_some_and(|target| target.extensions.contains(&extension)))
}

/// All formats that have a name here, read or not.
pub fn formats() -> impl Iterator<Item = &'static Format> {
    FORMATS.iter().map(|entry| entry.format)
}

/// Plans the output for these tensors.
///
/// # Errors
/// E001 when the target can't hold a tensor or has no such option, E008 when metadata exceed what
/// it can address.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: Vec<CompanionFile>,
    options: &PlanOptions,
) -> Result<Box<dyn CheckpointWriter>> {
    options.check()?;
    let entry = FORMATS.iter().find(|entry| entry.format == options.format);
    let Some(plan) = entry.and_then(|entry| entry.plan) else {
        return Err(Error::format(format!(
            "this build of apr does not write {}",
            options.format.name
        )));
    };
    plan(tensors, metadata, companions, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_that_is_a_target_has_a_writer() {
        for entry in FORMATS {
            assert_eq!(entry.format.target.is_some(), entry.plan.is_some(), "{}", entry.format.id);
        }
    }

    #[test]
    fn every_format_has_a_name_of_its_own() {
        let ids: std::collections::BTreeSet<&str> = formats().map(|format| format.id).collect();
        assert_eq!(ids.len(), FORMATS.len());
    }

    #[test]
    #[cfg(feature = "formats")]
    fn options_that_a_format_lacks_are_refused() {
        let sharded = PlanOptions {
            shard_size: Some(1),
            ..PlanOptions::new(&apr_pytorch::FORMAT, "model.pt")
        };
        let odd = PlanOptions {
            alignment: Some(16),
            ..PlanOptions::new(&crate::apr2::FORMAT, "model.apr")
        };
        let read_only = PlanOptions::new(&apr_pytorch::ZIP, "model.zip");
        let cases = [
            (sharded, "`shard_size` works for .apr, .safetensors, .gguf output"),
            (odd, "aligned to 32 or 64 bytes"),
            (read_only, "writing is not supported"),
        ];
        for (options, expected) in cases {
            let error = plan(&[], &Metadata::new(), Vec::new(), &options).map(drop).unwrap_err();
            assert!(error.message().contains(expected), "{error}");
        }
    }
}
