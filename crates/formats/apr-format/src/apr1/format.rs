//! What APR1 says of itself.

use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

/// First bytes of a file.
pub const MAGIC: [u8; 4] = *b"APR1";

/// First bytes of files of whisper-apr 0.2, shared with the v2 dialects.
pub(super) const MAGIC_0_2: [u8; 4] = *b"APR\0";

/// The container of whisper-apr, and the one of the same name of aprender.
pub static FORMAT: Format = Format {
    id: "apr1",
    name: "APR1",
    option: Some("apr1"),
    about: "The Whisper container of whisper-apr 0.1",
    extensions: &["apr"],
    recognises,
    convention: Convention::Whisper,
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

/// Returns `true` for the magic of APR1, and for the magic of whisper-apr 0.2 with the version of
/// APR1.
///
/// whisper-apr 0.2 changed the magic but kept the version. The v2 dialects have version 2 there.
fn recognises(head: &[u8]) -> bool {
    let version = head.get(4..6);
    head.starts_with(&MAGIC)
        || head.starts_with(&MAGIC_0_2)
            && version.is_some_and(|version| [[0, 0], [1, 0]].iter().any(|known| version == known))
}
