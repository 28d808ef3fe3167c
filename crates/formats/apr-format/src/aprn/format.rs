//! What APRN says of itself.

use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

use super::MAGIC;

/// The container of typed models.
pub static FORMAT: Format = Format {
    id: "aprn",
    name: "APRN",
    option: Some("aprn"),
    about: "The typed container of aprender, for models that were read from one",
    extensions: &["apr"],
    recognises: |head| head.starts_with(&MAGIC),
    convention: Convention::Framework,
    target: Some(Target {
        extensions: &[],
        file_name: "model.apr",
        folder: false,
        self_contained: false,
        sharding: Sharding::None,
        seals: false,
        computes: Computes::Nothing,
        streaming: false,
        alignments: Alignments::Fixed,
        quantized: QuantizedTypes::All,
        entries: Entries::Values,
    }),
    successor: Some(&crate::apr2::FORMAT),
};
