//! What safetensors says of itself.

use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

/// Safetensors: a file, or shards with an index.
pub static FORMAT: Format = Format {
    id: "safetensors",
    name: "safetensors",
    option: Some("safetensors"),
    about: "Hugging Face safetensors",
    extensions: &["safetensors"],
    recognises,
    convention: Convention::Framework,
    target: Some(Target {
        extensions: &["safetensors"],
        file_name: "model.safetensors",
        folder: true,
        self_contained: false,
        sharding: Sharding::Index,
        seals: false,
        computes: Computes::Nothing,
        streaming: false,
        alignments: Alignments::Fixed,
        quantized: QuantizedTypes::Unpacked,
        entries: Entries::HeaderTexts,
    }),
    successor: None,
};

/// Returns `true` if the file starts with a plausible header length, whose upper half is zero, and
/// JSON.
fn recognises(head: &[u8]) -> bool {
    head.get(4..8) == Some(&[0; 4]) && head.get(8) == Some(&b'{')
}
