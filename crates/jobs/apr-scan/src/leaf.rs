//! Bytes that are not a pickle, for examiners of other formats.

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

/// Kind of a file that is not a pickle, and the findings in it.
pub(crate) struct Judgement {
    /// Kind, as reports show it: `GGUF`, `Python source`, `text`.
    pub(crate) kind: String,
    /// Findings. Empty if the file was examined and is harmless.
    pub(crate) found: Vec<(FileVerdict, String)>,
}

/// Judges what loaders of other formats than PyTorch's would run.
pub(crate) trait Examine {
    /// Returns `true` if the name or the first line makes the file a text of a known kind.
    ///
    /// Opcodes of old pickles are letters, so that a text can import a name by chance.
    fn is_text(&self, leaf: &Leaf<'_>) -> bool;

    /// Returns the kind of the file and the findings in it.
    fn examine(&self, leaf: &Leaf<'_>) -> Judgement;
}
