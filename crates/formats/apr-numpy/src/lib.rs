//! NumPy's files: `.npy`, one array, and `.npz`, a ZIP archive of them.
//!
//! ```text
//! .npy                                                   .npz
//! ├─ 93 "NUMPY"                                          ├─ a.npy   stored, or with DEFLATE
//! ├─ version   u8 major (1, 2, 3), u8 minor              ├─ b.npy
//! ├─ length    u16 (version 1) or u32 of the header      └─ directory
//! ├─ header    {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//! └─ elements  by rows, or by columns where fortran_order is True
//! ```
//!
//! The header is a Python dictionary written as text. It is read as what NumPy writes, and never
//! evaluated. An array is a tensor: the only one of a `.npy` is called `array`, those of a `.npz`
//! by their entries, without `.npy`. Arrays by columns and big-endian ones are turned around as
//! they are read, a range at a time.
//!
//! # What is refused, by name
//!
//! Arrays of objects, which are pickles (E001; a scan looks into them); of texts, dates, records,
//! and of numbers that no dtype here holds, such as complex128 (E003). In a `.npz` they are left
//! out with a warning, unless there is nothing else.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | a header | 64 KiB | E001 |
//! | dimensions | 64 | E001 |
//! | the directory of a `.npz` | [`Limits::max_index`](apr_core::Limits) | E008 |
//!
//! The format is described in NumPy's NEP 1 and in `numpy.lib.format`.
//!
//! ```
//! use apr_core::{CheckpointReader, DType, Limits};
//!
//! let header = format!("{:117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
//! let mut file = b"\x93NUMPY\x01\x00".to_vec();
//! file.extend((header.len() as u16).to_le_bytes());
//! file.extend(header.as_bytes());
//! file.extend([0, 0, 128, 63, 0, 0, 0, 64]);
//!
//! let reader = apr_numpy::open(file, "array.npy", &Limits::default())?;
//! assert_eq!(
//!     (reader.tensors()[0].name.as_str(), reader.tensors()[0].dtype),
//!     ("array", DType::F32)
//! );
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod array;
mod header;
mod reader;
mod writer;

use apr_core::Format;

pub use reader::{open, open_damaged};
pub use writer::{descr, header};

/// One array.
pub static NPY: Format = Format {
    id: "npy",
    name: "NumPy array",
    recognises: |head| head.starts_with(header::MAGIC),
    extensions: &["npy"],
    ..Format::READ_ONLY
};

/// An archive of arrays.
pub static NPZ: Format = Format {
    id: "npz",
    name: "NumPy arrays (.npz)",
    recognises: starts_with_an_array,
    extensions: &["npz"],
    ..Format::READ_ONLY
};

/// Returns `true` if the first entry of a ZIP archive has the name of an array.
fn starts_with_an_array(head: &[u8]) -> bool {
    let Some(&[a, b]) = head.get(26..28) else { return false };
    let name = head.get(30..30 + usize::from(u16::from_le_bytes([a, b])));
    head.starts_with(b"PK\x03\x04") && name.is_some_and(|name| name.ends_with(b".npy"))
}
