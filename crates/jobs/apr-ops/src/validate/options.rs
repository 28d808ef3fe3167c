//! What is checked.

use apr_arch::{Families, FamilyModel};
use apr_registry::Error;

use crate::graph::Computed;
use crate::physics::Physics;

/// Checks to make in addition to the structure, which is checked when the file is opened.
#[derive(Debug, Clone, Copy)]
pub struct ValidateOptions<'a> {
    /// The file's checksum and the tensors' digests.
    pub checksum: bool,
    /// NaN and infinite values are errors.
    pub nan: bool,
    /// Tensors without a nonzero value are suspicious.
    pub zero: bool,
    /// Check that tensors match their family.
    ///
    /// None may be missing or unknown, and shapes must be as in the configuration.
    pub shapes: bool,
    /// Check that means and deviations of tensors are in the ranges of trained models.
    pub physics: bool,
    /// Warnings count as errors.
    pub strict: bool,
    /// A file without a signature by a trusted key fails.
    pub require_signature: bool,
    /// Ed25519 public keys that the user trusts; with one, signatures are verified.
    pub trusted: &'a [[u8; 32]],
}

/// Facts about a model that are known before its bytes are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// The model as a member of its family, if the family is known.
    pub(crate) model: Option<&'a FamilyModel<'a>>,
    /// The families that are known: a checkpoint of none of them must not claim to be of one.
    pub(crate) families: &'a Families,
    /// Graphs of the model's file, or the error in them; `None` if the file has no graphs.
    pub(crate) graphs: Option<Result<&'a Computed, &'a Error>>,
}

impl Default for ValidateOptions<'_> {
    fn default() -> Self {
        Self {
            checksum: true,
            nan: true,
            zero: true,
            shapes: true,
            physics: true,
            strict: false,
            require_signature: false,
            trusted: &[],
        }
    }
}

impl ValidateOptions<'_> {
    /// Adds the checks that the options imply.
    ///
    /// Signatures cover only digests, so a signed file also requires comparing the digests with the
    /// bytes.
    pub(crate) fn complete(self) -> Self {
        let is_signed = self.require_signature || !self.trusted.is_empty();
        Self { checksum: self.checksum || is_signed, ..self }
    }

    pub(super) fn reads_values(self) -> bool {
        self.nan || self.zero || self.physics
    }

    pub(super) fn values(self) -> Physics {
        Physics { finite: self.nan, zeros: self.zero, ranges: self.physics }
    }
}
