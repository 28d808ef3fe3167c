//! What GGUF says of itself.

use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

/// llama.cpp's format of today.
pub static FORMAT: Format = Format {
    id: "gguf",
    name: "GGUF",
    option: Some("gguf"),
    about: "llama.cpp's format",
    extensions: &["gguf"],
    recognises: |head| head.starts_with(b"GGUF") || head.starts_with(b"FUGG"),
    convention: Convention::LlamaCpp,
    target: Some(Target {
        extensions: &["gguf"],
        file_name: "model.gguf",
        folder: false,
        self_contained: false,
        sharding: Sharding::Numbered,
        seals: false,
        computes: Computes::Nothing,
        streaming: false,
        alignments: Alignments::PowersOfTwo,
        quantized: QuantizedTypes::Ggml,
        entries: Entries::KeyValues,
    }),
    successor: None,
};
