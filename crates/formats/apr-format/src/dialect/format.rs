//! What the dialects say of themselves.

use apr_core::{Convention, Format};

use crate::{apr1, apr2};

/// First bytes of the dialects, except the dialect of aprender 0.20, which has the magic of APR2.
pub(super) const MAGIC: [u8; 4] = *b"APR\0";
/// First bytes of the files of aprender 0.20.
pub(super) const MAGIC_0_20: [u8; 4] = *b"APR2";

/// APR v2 as other programs wrote it.
pub static FORMAT: Format = Format {
    id: "aprdialect",
    name: "an APR v2 dialect",
    option: Some("dialect"),
    about: "APR v2 as other programs wrote it",
    extensions: &["apr"],
    recognises,
    convention: Convention::Framework,
    target: None,
    successor: Some(&apr2::FORMAT),
};

/// Returns `true` for the magics of APR2 and APR1, in files that are neither.
fn recognises(head: &[u8]) -> bool {
    (head.starts_with(&MAGIC) || head.starts_with(&MAGIC_0_20))
        && ![&apr1::FORMAT, &apr2::FORMAT].iter().any(|format| (format.recognises)(head))
}
