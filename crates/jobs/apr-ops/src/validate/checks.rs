//! What is checked beside the weights: names and shapes, hyperparameters, companions, checksum,
//! signature.

use apr_core::json::of_python;
use apr_core::{Escaped, Signed, counted, foreign};
use apr_graph::Severity;
use apr_registry::{Code, DType, Error, Metadata, Result, keys};
use apr_source::adapter::{AdapterProblem, adapter_of, is_adapter};
use apr_source::companions::{Learnt, learn_from};
use apr_tensor::stats::{Moments, Scratch};
use serde::de::IgnoredAny;

use super::pass::Pass;
use super::{Check, Level, hyperparameters};
use crate::graph::unreadable;
use crate::import::{
    expected_mels, false_claim, family_misfits, filterbank_misfit, inline_misfits,
    vocabulary_misfit,
};
use crate::tied::contradictions;

impl Pass<'_> {
    /// Checks names and shapes against the family, or against one another in an adapter.
    ///
    /// # Errors
    /// E007 and E008 when an adapter's configuration can't be read.
    pub(super) fn check_shapes(&mut self) -> Result<()> {
        if !self.options.shapes {
            return Ok(());
        }

        if self.known.model.is_none() && is_adapter(self.reader.tensors()) {
            let adapter = adapter_of(self.reader)?;
            let problems = adapter.iter().flat_map(|adapter| &adapter.problems);
            for AdapterProblem { tensor, message } in problems {
                self.find(Level::Error, Check::Shapes, None, message.clone()).tensor =
                    Some(tensor.clone());
            }
            self.adapter = adapter;
            return Ok(());
        }

        let found = match self.known.model {
            Some(model) => {
                let (found, part) = family_misfits(self.reader, model);
                for warning in part.into_iter().chain(contradictions(self.reader, model)) {
                    self.find(Level::Warning, Check::Shapes, None, warning);
                }
                found
            }
            // What contradicts the configuration may be only that tensors are absent.
            None if self.reader.container().absence().is_some() => Vec::new(),
            None => {
                let families = self.known.families;
                false_claim(self.reader, self.reader.metadata(), families).into_iter().collect()
            }
        };

        for misfit in found {
            let finding = self.find(misfit.level, Check::Shapes, None, misfit.message);
            finding.tensor = Some(misfit.tensor);
        }

        Ok(())
    }

    pub(super) fn check_hyperparameters(&mut self) {
        if !self.options.shapes {
            return;
        }
        for (level, message) in hyperparameters::problems(self.reader, self.known.model.is_some()) {
            self.find(level, Check::Hyperparameters, None, message);
        }
    }

    /// Reports what is wrong with the graph of the file.
    pub(super) fn check_graph(&mut self) {
        if !self.options.shapes {
            return;
        }

        let graphs = match self.known.graphs {
            Some(Err(error)) => {
                let finding = self.find(Level::Error, Check::Graph, None, unreadable(error));
                (finding.code, finding.offset) = (Some(error.code().id()), error.offset());
                return;
            }
            Some(Ok(graphs)) => graphs,
            None => return,
        };
        for part in &graphs.parts {
            for finding in &part.findings.list {
                let level = match finding.severity {
                    Severity::Error => Level::Error,
                    Severity::Warning => Level::Warning,
                    Severity::Notice => continue,
                };
                let place = if finding.node.is_empty() {
                    String::new()
                } else {
                    format!("node '{}': ", finding.node)
                };
                self.find(level, Check::Graph, None, format!("{place}{}", finding.message));
            }

            if part.findings.omitted > 0 {
                let message = format!("{} more findings in the graph", part.findings.omitted);
                self.find(Level::Warning, Check::Graph, None, message);
            }
        }
    }

    /// Reads the companions stored within the model's own files, such as the code of a program.
    ///
    /// Companions that can't be read are reported as damaged.
    ///
    /// # Errors
    /// E007 and E008 when they can't be read for another reason than their contents.
    pub(super) fn check_companion_bytes(&mut self) -> Result<()> {
        if !self.options.checksum || self.reader.container().is_locked() {
            return Ok(());
        }
        let reader = self.reader;
        for (position, companion) in reader.companions().iter().enumerate() {
            let Err(error) = reader.read_companion(position) else { continue };
            if matches!(error.code(), Code::Io | Code::Memory) {
                return Err(error);
            }
            let message = format!("companion '{}': {}", Escaped(&companion.name), error.message());
            let finding = self.find(Level::Error, Check::Structure, None, message);
            (finding.code, finding.offset) = (Some(error.code().id()), error.offset());
        }
        Ok(())
    }

    /// Parses the configurations and tokenizers in JSON. Of a file that was cut or overwritten, a
    /// run would use nothing.
    ///
    /// # Errors
    /// E007 and E008 when a companion can't be read for another reason than its contents.
    pub(super) fn check_companion_texts(&mut self) -> Result<()> {
        let reader = self.reader;
        if reader.container().is_locked() {
            return Ok(());
        }
        for (position, companion) in reader.companions().iter().enumerate() {
            if !companion.name.ends_with(".json") {
                continue;
            }
            let bytes = match reader.read_companion(position) {
                Err(error) if matches!(error.code(), Code::Io | Code::Memory) => return Err(error),
                // Damage is reported with the other bytes of the file.
                Err(_) => continue,
                Ok(bytes) => bytes,
            };
            let Err(error) = serde_json::from_slice::<IgnoredAny>(&of_python(&bytes)) else {
                continue;
            };
            let name = Escaped(&companion.name);
            let message = format!("{name}: not valid JSON: {}", foreign(&error));
            // The reader warns of the configuration that it needs itself.
            self.findings.retain(|finding| finding.message != message);
            self.find(Level::Error, Check::Structure, None, message).code = Some(Code::Format.id());
        }
        Ok(())
    }

    /// Holds the tokenizer against the embedding and the filterbank against the configuration, and
    /// reports what an import has let pass.
    pub(super) fn check_companions(&mut self) -> Result<()> {
        if !self.options.shapes {
            return Ok(());
        }

        let recorded =
            self.reader.metadata().get(keys::VIOLATIONS).and_then(serde_json::Value::as_array);
        if let Some(recorded) = recorded.map(Vec::len).filter(|&recorded| recorded > 0) {
            let what = counted(recorded as u64, "violation");
            let message = format!(
                "imported with {what}, listed in the metadata under '{}'",
                keys::VIOLATIONS
            );
            self.find(Level::Warning, Check::Shapes, None, message);
        }

        let metadata = self.reader.metadata();
        let rows = self.known.model.and_then(|model| model.dimension("vocab"));
        let asks = rows.is_some() || expected_mels(metadata).is_some();

        // An import has written down what a folder's files say.
        let is_written = metadata.get("tokenizer.vocab_size").is_some()
            && metadata.get("audio_config").is_some();
        let learnt = if asks && !is_written { learn_from(self.reader)? } else { Learnt::default() };
        let in_files: Metadata =
            learnt.metadata.into_iter().collect::<serde_json::Map<_, _>>().into();
        let get = |key: &str| metadata.get(key).or_else(|| in_files.get(key));
        let vocabulary = rows.and_then(|rows| vocabulary_misfit(rows, get));
        let filterbank = filterbank_misfit(metadata, self.reader.tensors(), get);
        let inline = inline_misfits(metadata);
        for misfit in vocabulary.into_iter().chain(filterbank).chain(inline) {
            self.find(misfit.level, Check::Shapes, None, misfit.message).tensor =
                Some(misfit.tensor);
        }

        Ok(())
    }

    /// Judges the values of a filterbank that is in the metadata, as one that is a tensor.
    pub(super) fn check_inline_filterbank(&mut self) {
        let Some((_, bytes)) = self.reader.metadata().inline_filterbank() else { return };
        let stats = Moments::of(DType::F32, &bytes, &mut Scratch::default()).finish();
        let name = keys::MEL_FILTERBANK_TENSOR;
        for violation in self.options.values().violations(name, &stats, None) {
            let message = violation.to_string();
            self.find(violation.level(), Check::Physics, None, message).tensor =
                Some(name.to_owned());
        }
    }

    pub(super) fn check_crc(&mut self) {
        let Some(checksum) = &self.checksum else { return };
        let (stated, found) = (checksum.crc32, self.crc.value());
        if stated == found {
            return;
        }

        let blamed = self.findings.iter().any(|finding| finding.check == Check::Digests);
        let place = match (blamed, self.digests) {
            (true, _) => "",
            (false, true) => {
                "; all tensors match their digests, so the damage is in header, metadata, index or \
                 padding"
            }
            (false, false) => "; the file has no digests to locate the damage",
        };

        let message =
            format!("the file's CRC-32 is {found:#010x}, its footer states {stated:#010x}{place}");
        self.find(Level::Error, Check::Checksum, None, message).code = Some(Code::Checksum.id());
    }

    pub(super) fn check_uncovered(&mut self) {
        // A signature that holds under no key at all is a change, whoever is trusted.
        let own = self.reader.container();
        if self.options.checksum
            && !self.checks_signature()
            && let Err(error) = own.signed_by()
            && error.code() == Code::Signature
        {
            self.find(Level::Error, Check::Signature, None, error.message().to_owned()).code =
                Some(error.code().id());
        }
        if !self.sealed {
            return;
        }
        if let Err(error) = self.reader.container().check_uncovered() {
            let file = error.file().filter(|file| *file != self.file).map(str::to_owned);
            let finding =
                self.find(Level::Error, Check::Signature, None, error.message().to_owned());
            (finding.code, finding.offset, finding.file) =
                (Some(error.code().id()), error.offset(), file);
        }
    }

    pub(super) fn check_signature(&mut self) {
        if !self.checks_signature() {
            return;
        }
        let container = self.reader.container();
        let outcome = match container.signed_by() {
            Ok(Some(key)) => is_trusted(&key, self.options.trusted),
            Ok(None) => {
                container.signed().and_then(|signed| verify(signed.as_ref(), self.options.trusted))
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            self.find(Level::Error, Check::Signature, None, error.message().to_owned()).code =
                Some(error.code().id());
        }
    }

    pub(super) fn checks_signature(&self) -> bool {
        self.options.require_signature || !self.options.trusted.is_empty()
    }
}

/// Checks that the key of the file's signature is a trusted one.
fn is_trusted(key: &[u8; 32], trusted: &[[u8; 32]]) -> Result<()> {
    let untrusted = |message: &str| Err(Error::new(Code::Signature, message));
    match trusted {
        [] => untrusted(NO_KEY),
        _ if trusted.contains(key) => Ok(()),
        _ => untrusted("the file is signed by a key that is not trusted"),
    }
}

/// Message for a required signature without a trusted key.
const NO_KEY: &str = "signature not verified: no trusted key given";

/// Checks that a trusted key signed the file.
#[cfg(feature = "signing")]
fn verify(signed: Option<&Signed>, trusted: &[[u8; 32]]) -> Result<()> {
    use apr_registry::crypto::{PublicKey, SignBlock};
    let block = signed.and_then(|signed| signed.signatures.as_deref());
    let block =
        block.ok_or_else(|| Error::new(Code::Signature, "missing signature, which is required"))?;
    if trusted.is_empty() {
        return Err(Error::new(Code::Signature, NO_KEY));
    }
    let trusted: Vec<_> = trusted.iter().map(|key| PublicKey::Verifying(*key)).collect();
    let digest = signed.map(|signed| signed.digest).unwrap_or_default();
    SignBlock::decode(block)?.verify(&digest, &trusted).check()
}

#[cfg(not(feature = "signing"))]
fn verify(_signed: Option<&Signed>, _trusted: &[[u8; 32]]) -> Result<()> {
    Err(Error::new(Code::Signature, "this build can't verify signatures (feature `signing`)"))
}
