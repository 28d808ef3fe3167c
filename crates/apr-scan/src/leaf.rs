//! Bytes that are no pickle: whoever knows other formats judges them.

use apr_core::ByteSource;
use serde::Serialize;

use crate::report::FileVerdict;

/// A file, or a file in an archive, in which no pickle, archive or array was found.
pub(crate) struct Leaf<'a> {
    /// Its bytes.
    pub(crate) source: &'a dyn ByteSource,
    /// Its name, with the folders in the archive.
    pub(crate) name: &'a str,
    /// Whether it is part of the code of a TorchScript archive.
    pub(crate) is_torchscript: bool,
}

/// Judges what loaders of other formats than PyTorch's would run.
pub(crate) trait Examine {
    /// What there is to say about these bytes: nothing where they were examined and are harmless.
    fn examine(&self, leaf: &Leaf<'_>) -> Vec<(FileVerdict, String)>;
}

/// What was found in bytes that are no pickle, or that nothing examined them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// Where they are: the entry of an archive; empty where they are the file.
    pub entry: String,
    /// The judgement on them.
    pub verdict: FileVerdict,
    /// Why.
    pub message: String,
}
