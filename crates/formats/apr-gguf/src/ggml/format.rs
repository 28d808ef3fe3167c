//! What the formats before GGUF say of themselves.

use apr_core::{Convention, Format};

/// llama.cpp's formats before GGUF.
pub static FORMAT: Format = Format {
    id: "ggml",
    name: "legacy GGML",
    option: Some("ggml"),
    about: "llama.cpp's formats before GGUF",
    extensions: &[],
    recognises: |head| {
        [b"lmgg", b"ggmf", b"tjgg", b"fmgg", b"ggjt", b"ggml"]
            .iter()
            .any(|magic| head.starts_with(&magic[..]))
    },
    convention: Convention::Ggml,
    target: None,
    successor: None,
};
