//! What a file format says of itself.

use core::fmt;

use serde::{Serialize, Serializer};

/// A file format: what it is called, how its files are known, what they hold. Each format crate has
/// a static one for each of its formats; whatever is above asks it instead of asking which format
/// it is.
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
    /// Name in options such as `--format`; `None` where files are told apart and nobody would ask
    /// for them.
    pub option: Option<&'static str>,
    /// What help says of it.
    pub about: &'static str,
    /// Extensions of files that may be of the format, where their bytes don't tell; without the
    /// dot.
    pub extensions: &'static [&'static str],
    /// Whether the first bytes of a file speak for the format: [`HEAD_LEN`] are enough, fewer may
    /// be too few.
    pub recognises: fn(&[u8]) -> bool,
    /// Whose names and layout the tensors have.
    pub convention: Convention,
    /// What a file of the format can be written with; `None` where it is only read.
    pub target: Option<Target>,
    /// The format that took its place, which `apr upgrade` writes.
    pub successor: Option<&'static Self>,
}

impl Format {
    /// Whether a file is only written with what the model computes.
    #[must_use]
    pub fn always_computes(&self) -> bool {
        self.target.is_some_and(|target| target.computes == Computes::Always)
    }

    /// What a format has that is only read, and that no option names: all but its `id`, its `name`,
    /// and how it is known.
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

/// Bytes of a file's beginning that tell its format.
pub const HEAD_LEN: u64 = 512;

/// Whose names and layout the tensors of a format have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Convention {
    /// Those of the framework that trained the model.
    Framework,
    /// llama.cpp's, which typed pairs in the file describe.
    LlamaCpp,
    /// Those of ggml's programs before GGUF.
    Ggml,
    /// The canonical ones of the model's family, with a note of what the source had.
    Canonical,
    /// The canonical ones of Whisper, with vocabulary and mel filterbank.
    Whisper,
}

/// What a format can be written with. What is not here is refused where it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Extensions of outputs that stand for the format; without the dot.
    pub extensions: &'static [&'static str],
    /// Name of the file where the output names none.
    pub file_name: &'static str,
    /// Whether an output that does not name a file is a folder, with files beside the weights.
    pub folder: bool,
    /// Whether the file holds companions and any metadata by itself.
    pub self_contained: bool,
    /// How a model is cut into several files.
    pub sharding: Sharding,
    /// Whether tensors can be compressed, encrypted and signed.
    pub seals: bool,
    /// Whether a file says what the model computes.
    pub computes: Computes,
    /// Whether a file can say that its tensors lie in the order of their first use.
    pub streaming: bool,
    /// What tensors can be aligned to.
    pub alignments: Alignments,
    /// Quantized types that the format has.
    pub quantized: QuantizedTypes,
    /// Where texts go that a caller gives as metadata.
    pub entries: Entries,
}

/// How a format has a model in several files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharding {
    /// It has not.
    None,
    /// An index beside the files says which tensor is where.
    Index,
    /// The files' names have numbers, and each says how many there are.
    Numbered,
    /// A manifest lists them, and each can be written by itself, so that several processes write
    /// one each.
    Manifest,
}

/// Where a format has texts that a caller gives as metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Entries {
    /// Each is a value of the metadata.
    Values,
    /// They are pairs of typed keys and values.
    KeyValues,
    /// They are the texts of the header of safetensors.
    HeaderTexts,
}

/// Whether files of a format say what the model computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Computes {
    /// They hold tensors.
    Nothing,
    /// They do, where that is known.
    IfKnown,
    /// They do: a model is only written with a graph.
    Always,
}

/// What tensors can be aligned to, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alignments {
    /// That is not for the caller to choose.
    Fixed,
    /// One of these.
    OneOf(&'static [u32]),
    /// Any power of two.
    PowersOfTwo,
}

/// Quantized types that a format has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantizedTypes {
    /// None.
    None,
    /// None, but a folder has integers and scales in their place, with a description.
    Unpacked,
    /// ggml's.
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
