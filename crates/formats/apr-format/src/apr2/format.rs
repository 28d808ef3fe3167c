//! What the native container says of itself.

use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

use super::{Header, MAGIC};

/// The native container.
pub static FORMAT: Format = Format {
    id: "apr2",
    name: "APR2",
    option: Some("apr"),
    about: "The native container",
    extensions: &["apr"],
    recognises,
    convention: Convention::Canonical,
    target: Some(Target {
        extensions: &["apr"],
        file_name: "model.apr",
        folder: false,
        self_contained: true,
        sharding: Sharding::Manifest,
        seals: true,
        computes: Computes::Nothing,
        streaming: true,
        alignments: Alignments::OneOf(&[32, 64]),
        quantized: QuantizedTypes::All,
        entries: Entries::Values,
    }),
    successor: None,
};

/// Returns `true` for the magic of APR2 and metadata that start right after the header. Dialects
/// with the same magic have other fields there.
///
/// A byte-swapped offset is accepted too, so that the reader can reject the file.
fn recognises(head: &[u8]) -> bool {
    let starts = Header::LEN;
    let field = head.get(12..16);
    head.starts_with(&MAGIC)
        && field.is_none_or(|field| {
            [starts.to_le_bytes(), starts.to_be_bytes()].iter().any(|ours| field == ours)
        })
}
