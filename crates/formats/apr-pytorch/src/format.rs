//! What PyTorch's containers say of themselves.

use apr_archive::tar;
use apr_core::{
    Alignments, Computes, Convention, Entries, Format, QuantizedTypes, Sharding, Target,
};

/// Extensions that checkpoints have, whatever they are packed in.
const EXTENSIONS: &[&str] = &["pt", "pth", "bin", "ckpt", "pkl", "tar"];

/// PyTorch checkpoints, in any of their containers.
pub static FORMAT: Format = Format {
    id: "pytorch",
    name: "PyTorch",
    option: Some("pytorch"),
    about: "PyTorch state dicts and other checkpoints",
    // The oldest pickles start with no mark of their own.
    extensions: EXTENSIONS,
    recognises: |_| false,
    convention: Convention::Framework,
    target: Some(Target {
        extensions: &["pt", "pth", "bin"],
        file_name: "model.pt",
        folder: false,
        self_contained: false,
        sharding: Sharding::None,
        seals: false,
        computes: Computes::Nothing,
        streaming: false,
        alignments: Alignments::Fixed,
        quantized: QuantizedTypes::None,
        entries: Entries::Values,
    }),
    successor: None,
};

/// A ZIP archive; its directory shows if PyTorch wrote it.
pub static ZIP: Format = Format {
    id: "zip",
    name: "a ZIP archive (PyTorch or Keras)",
    recognises: |head| head.starts_with(b"PK\x03\x04"),
    ..Format::READ_ONLY
};

/// A bare pickle stream, as old PyTorch wrote.
pub static PICKLE: Format =
    Format { id: "pickle", name: "a pickle (PyTorch)", recognises: is_pickle, ..Format::READ_ONLY };

/// A TAR archive, as the first PyTorch wrote.
pub static TAR: Format =
    Format { id: "tar", name: "a TAR archive", recognises: tar::recognise, ..Format::READ_ONLY };

/// PROTO 2 to 5 is what PyTorch's magic number or a dictionary start with.
fn is_pickle(head: &[u8]) -> bool {
    matches!(head, [0x80, 2..=5, ..])
}
