//! Bytes that are no pickle: whoever knows other formats judges them.

use apr_core::ByteSource;

use crate::report::FileVerdict;

/// A file, or a file in an archive, in which no pickle, archive or array was found.
pub(crate) struct Leaf<'a> {
    /// Its bytes.
    pub(crate) source: &'a dyn ByteSource,
    /// Its name, with the folders in the archive.
    pub(crate) name: &'a str,
    /// Whether it is part of the code of a TorchScript archive.
    pub(crate) is_torchscript: bool,
    /// The name of the archive or stream that it is in.
    pub(crate) within: Option<&'a str>,
}

/// Judges what loaders of other formats than PyTorch's would run.
pub(crate) trait Examine {
    /// What there is to say about these bytes: nothing where they were examined and are harmless.
    fn examine(&self, leaf: &Leaf<'_>) -> Vec<(FileVerdict, String)>;
}
