//! Telling formats apart by their first bytes; an extension is only a hint.

use serde::Serialize;

/// Formats that have a name here, whether this build reads them or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FormatId {
    /// The native container.
    Apr2,
    /// Safetensors: a file, or shards with an index.
    Safetensors,
    /// Whisper container of seed 002, and the JSON-indexed one of the same name.
    Apr1,
    /// Typed-model container of seed 004.
    Aprn,
    /// Header, metadata and index of the APR v2 dialects of `spec/legacy.md`.
    AprDialect,
    /// llama.cpp's current format.
    Gguf,
    /// llama.cpp's formats before GGUF.
    Ggml,
    /// A ZIP archive: PyTorch, TorchScript or Keras.
    Zip,
    /// PyTorch, in any of its containers.
    Pytorch,
    /// A bare pickle stream, as old PyTorch wrote.
    Pickle,
    /// A TAR archive, as the first PyTorch wrote.
    Tar,
    /// HDF5, as Keras wrote.
    Hdf5,
    /// TensorFlow Lite.
    Tflite,
}

impl FormatId {
    /// Name for a sentence.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Apr2 => "APR2",
            Self::Safetensors => "safetensors",
            Self::Apr1 => "APR1",
            Self::Aprn => "APRN",
            Self::AprDialect => "an APR v2 dialect",
            Self::Gguf => "GGUF",
            Self::Ggml => "legacy GGML",
            Self::Zip => "a ZIP archive (PyTorch or Keras)",
            Self::Pytorch => "PyTorch",
            Self::Pickle => "a pickle (PyTorch)",
            Self::Tar => "a TAR archive",
            Self::Hdf5 => "HDF5 (Keras)",
            Self::Tflite => "TensorFlow Lite",
        }
    }
}

/// Bytes that [`recognise`] wants to see.
pub const HEAD_LEN: u64 = 512;

/// The format that the first bytes of a file speak for: [`HEAD_LEN`] are enough; fewer may be too few.
///
/// ```
/// use apr_core::{FormatId, recognise};
///
/// assert_eq!(recognise(b"\x08\0\0\0\0\0\0\0{}      "), Some(FormatId::Safetensors));
/// assert_eq!(recognise(b"GGUF\x03\0\0\0"), Some(FormatId::Gguf));
/// assert_eq!(recognise(b"just some text"), None);
/// ```
#[must_use]
pub fn recognise(head: &[u8]) -> Option<FormatId> {
    let magic: [u8; 4] = head.get(..4)?.try_into().ok()?;
    match &magic {
        // Ours starts its metadata right after the 32-byte header; the dialects keep other fields there (`spec/legacy.md`).
        // The same word byte-swapped is ours too, for its reader to refuse.
        b"APR2"
            if head.get(12..16).is_none_or(|field| [[32, 0, 0, 0], [0, 0, 0, 32]].iter().any(|ours| field == ours)) =>
        {
            return Some(FormatId::Apr2);
        }
        // whisper-apr 0.2 gave APR1 a new magic and kept its version; the dialects say 2 there.
        b"APR\0" if head.get(4..6).is_some_and(|version| [[0, 0], [1, 0]].iter().any(|known| version == known)) => {
            return Some(FormatId::Apr1);
        }
        b"APR2" | b"APR\0" => return Some(FormatId::AprDialect),
        b"APR1" => return Some(FormatId::Apr1),
        b"APRN" => return Some(FormatId::Aprn),
        b"GGUF" | b"FUGG" => return Some(FormatId::Gguf),
        b"lmgg" | b"ggmf" | b"tjgg" | b"fmgg" | b"ggjt" | b"ggml" => return Some(FormatId::Ggml),
        b"PK\x03\x04" => return Some(FormatId::Zip),
        b"\x89HDF" => return Some(FormatId::Hdf5),
        _ => {}
    }
    if head.get(4..8) == Some(b"TFL3") {
        return Some(FormatId::Tflite);
    }
    // The header length comes first, then JSON; the upper half of a plausible length is zero.
    if head.get(4..8) == Some(&[0; 4]) && head.get(8) == Some(&b'{') {
        return Some(FormatId::Safetensors);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Some(FormatId::Tar);
    }
    // PROTO 2 to 5, then the opcodes PyTorch's magic number or a dictionary start with.
    if magic[0] == 0x80 && (2..=5).contains(&magic[1]) {
        return Some(FormatId::Pickle);
    }
    None
}
