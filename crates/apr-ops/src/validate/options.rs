//! What is checked.

use apr_arch::{Families, FamilyModel};
use apr_registry::Error;

use crate::graph::Computed;
use crate::physics::Physics;

/// What to check beside the structure, which opening the file has proven.
#[derive(Debug, Clone, Copy)]
pub struct ValidateOptions<'a> {
    /// The file's checksum and the tensors' digests.
    pub checksum: bool,
    /// NaN and infinite values are errors.
    pub nan: bool,
    /// Tensors without a nonzero value are suspicious.
    pub zero: bool,
    /// Tensors fit their family: none missing, none unknown, shapes as the configuration says.
    pub shapes: bool,
    /// Means and deviations of tensors are those of a healthy model.
    pub physics: bool,
    /// Warnings count as errors.
    pub strict: bool,
    /// A file without a signature by a trusted key fails.
    pub require_signature: bool,
    /// Ed25519 public keys that the user trusts; with one, signatures are verified.
    pub trusted: &'a [[u8; 32]],
}

/// What is known of a model before its bytes are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// The model as a member of its family, where that is known.
    pub(crate) model: Option<&'a FamilyModel<'a>>,
    /// The families that are known: a checkpoint of none of them must not claim to be of one.
    pub(crate) families: &'a Families,
    /// The graphs of the model's file, or what is wrong with them; `None` where that has none.
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
    /// With all that they imply: what is signed are digests, which say nothing of bytes that nobody
    /// compares with them.
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
