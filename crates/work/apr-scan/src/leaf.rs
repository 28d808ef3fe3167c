//! Bytes that are no pickle: whoever knows other formats judges them.

use apr_core::ByteSource;

use crate::report::FileVerdict;

/// A file, or a file in an archive, in which no pickle, archive or array was found.
pub(crate) struct Leaf<'a> {
    /// Bytes of the file.
    pub(crate) source: &'a dyn ByteSource,
    /// Name of the file, with the folders in the archive.
    pub(crate) name: &'a str,
    /// `true` if the file is part of the code of a TorchScript archive.
    pub(crate) is_torchscript: bool,
    /// The name of the archive or stream that it is in.
    pub(crate) within: Option<&'a str>,
}

/// Judges what loaders of other formats than PyTorch's would run.
pub(crate) trait Examine {
    /// Returns the findings in these bytes. Empty if they were examined and are harmless.
    fn examine(&self, leaf: &Leaf<'_>) -> Vec<(FileVerdict, String)>;
}
