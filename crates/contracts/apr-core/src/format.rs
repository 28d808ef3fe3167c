//! What a file format says of itself.

use core::fmt;

use serde::{Serialize, Serializer};

/// A file format: its name, how its files are detected, and what they contain.
///
/// Each format crate has a static one for each of its formats. Code in higher layers reads its
/// fields instead of comparing formats.
///
/// ```
/// use apr_core::Format;
///
/// static LISTS: Format = Format {
///     id: "lists",
///     name: "a list of numbers",
///     extensions: &["list"],
///     recognises: |head| head.starts_with(b"LIST"),
///     ..Format::READ_ONLY
/// };
/// assert!((LISTS.recognises)(b"LIST 1 2 3"));
/// assert!(LISTS.target.is_none(), "it is read only");
/// ```
pub struct Format {
    /// Name in reports, unique among all formats.
    pub id: &'static str,
    /// Name for a sentence.
    pub name: &'static str,
    /// Name in options such as `--format`; `None` if the format is detected and can't be requested.
    pub option: Option<&'static str>,
    /// Description for help texts.
    pub about: &'static str,
    /// Extensions of files that may have this format if their bytes do not decide, without the dot.
    pub extensions: &'static [&'static str],
    /// Returns `true` if the first bytes of a file match the format.
    ///
    /// [`HEAD_LEN`] bytes are enough. Fewer may be too few.
    pub recognises: fn(&[u8]) -> bool,
    /// Convention for the names and layout of the tensors.
    pub convention: Convention,
    /// Properties of the format as an output; `None` if it is only read.
    pub target: Option<Target>,
    /// The format that took its place, which `apr upgrade` writes.
    pub successor: Option<&'static Self>,
}

impl Format {
    /// Returns `true` if a file is always written with the computation of the model.
    #[must_use]
    pub fn always_computes(&self) -> bool {
        self.target.is_some_and(|target| target.computes == Computes::Always)
    }

    /// Defaults for a format that is only read and that no option names.
    ///
    /// The `id`, the name and the detection must be set.
    pub const READ_ONLY: Self = Self {
        id: "",
        name: "",
        option: None,
        about: "",
        extensions: &[],
        recognises: |_| false,
        convention: Convention::Framework,
        target: None,
        successor: None,
    };
}

/// Number of bytes at the beginning of a file that decide its format.
pub const HEAD_LEN: u64 = 512;

/// Convention for the names and layout of a format's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Convention {
    /// Names and layout of the framework that trained the model.
    Framework,
    /// llama.cpp's, which typed pairs in the file describe.
    LlamaCpp,
    /// Names and layout of ggml's programs before GGUF.
    Ggml,
    /// Canonical names of the model's family, with a record of the source's names.
    Canonical,
    /// The canonical ones of Whisper, with vocabulary and mel filterbank.
    Whisper,
}

/// Properties of a format as an output. Options for features that it lacks are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Extensions of outputs that select the format, without the dot.
    pub extensions: &'static [&'static str],
    /// Default name of the file.
    pub file_name: &'static str,
    /// `true` if an output that does not name a file is a folder with companion files.
    pub folder: bool,
    /// `true` if the file contains companions and any metadata itself.
    pub self_contained: bool,
    /// Method of splitting a model into several files.
    pub sharding: Sharding,
    /// `true` if tensors can be compressed, encrypted and signed.
    pub seals: bool,
    /// Presence of the model's computation in a file.
    pub computes: Computes,
    /// `true` if a file can state that its tensors are in the order of their first use.
    pub streaming: bool,
    /// Alignments that the tensors can have.
    pub alignments: Alignments,
    /// Quantized types that the format has.
    pub quantized: QuantizedTypes,
    /// Place of text entries that a caller passes as metadata.
    pub entries: Entries,
}

/// Method of storing a model in several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharding {
    /// A model can't be split.
    None,
    /// An index file lists the file of each tensor.
    Index,
    /// The files' names contain numbers, and each contains the number of files.
    Numbered,
    /// A manifest lists them, and each can be written by itself, so that several processes write
    /// one each.
    Manifest,
}

/// Place of text entries that a caller passes as metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entries {
    /// Each is a value of the metadata.
    Values,
    /// The entries are pairs of typed keys and values.
    KeyValues,
    /// The entries are the texts in the header of safetensors.
    HeaderTexts,
}

/// Presence of the model's computation in the files of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Computes {
    /// Files contain tensors only.
    Nothing,
    /// Files contain the computation if it is known.
    IfKnown,
    /// Files always contain a graph, so a model without one can't be written.
    Always,
}

/// Possible alignments of tensors, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alignments {
    /// The caller can't choose the alignment.
    Fixed,
    /// The caller chooses one of these.
    OneOf(&'static [u32]),
    /// Any power of two.
    PowersOfTwo,
}

/// Quantized types that a format has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantizedTypes {
    /// No quantized types.
    None,
    /// None, but a folder has integers and scales in their place, with a description.
    Unpacked,
    /// Types of ggml.
    Ggml,
    /// All that there are.
    All,
}

impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Format {}

impl fmt::Debug for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Format").field(&self.id).finish()
    }
}

impl Serialize for Format {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id)
    }
}
