//! ZIP and TAR archives whose entries are ranges of bytes, and DEFLATE streams that are read at any
//! place.
//!
//! ```text
//! ZIP                                              decoded (what [`Archive::decoded`] gives)
//! ├─ header of "a", its bytes          stored      ├─ the archive's bytes, as they are
//! ├─ header of "b", a DEFLATE stream   ─────────▶  └─ the bytes of "b", after the archive's end
//! ├─ directory: names, sizes, CRC-32, places
//! └─ end record: place of the directory
//! ```
//!
//! PyTorch's and NumPy's files are ZIP archives. Their readers know a tensor by its place in a
//! [`ByteSource`](apr_core::ByteSource), and read any range of it, on several threads. A stored
//! entry is such a range already. A compressed one becomes a range of the decoded source, which
//! reads it a page at a time: it keeps the state of the decoder at some pages, and starts again
//! from the nearest one before the range. [`MAX_PAGES`] pages and [`MAX_STATES`] states are all
//! that is kept in memory, whatever the size of the archive.
//!
//! ```
//! use apr_archive::Archive;
//! use apr_core::Limits;
//!
//! # let name = b"a.txt";
//! # let mut file = b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0".to_vec();
//! # file.extend(b"\x86\xa6\x10\x36\x05\0\0\0\x05\0\0\0\x05\0\0\0");
//! # file.extend(name);
//! # file.extend(b"hello");
//! # let directory = file.len() as u32;
//! # file.extend(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0");
//! # file.extend(b"\x86\xa6\x10\x36\x05\0\0\0\x05\0\0\0\x05\0");
//! # file.extend([0; 16]);
//! # file.extend(name);
//! # let len = file.len() as u32 - directory;
//! # file.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
//! # file.extend(len.to_le_bytes());
//! # file.extend(directory.to_le_bytes());
//! # file.extend([0; 2]);
//! let archive = Archive::read(&file, &Limits::default())?;
//! let entry = &archive.entries[0];
//! assert_eq!((entry.name.as_str(), entry.len), ("a.txt", 5));
//! assert_eq!(&file[entry.offset as usize..][..5], b"hello");
//! # Ok::<(), apr_core::Error>(())
//! ```
//!
//! An entry is described twice, in the directory and in front of its bytes. [`Archive::read`] takes
//! only archives in which both agree and no entries overlap, so that no two readers see two
//! archives in one file. [`Archive::survey`] is for a scan: it takes what a careless reader would
//! take, and says what is odd about it.
//!
//! # Limits
//!
//! | what | most | |
//! |---|---|---|
//! | the directory | [`Limits::max_index`](apr_core::Limits) | E008 |
//! | an entry's size | 1,032 times its compressed bytes, which is all that DEFLATE can say | E002 |
//!
//! ZIP is described in PKWARE's APPNOTE, DEFLATE in RFC 1951, gzip in RFC 1952, zlib in RFC 1950,
//! TAR in POSIX (`pax`).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod decoded;
mod directory;
mod inflate;
mod section;
pub mod tar;
mod zip;

pub use decoded::Decoded;
pub use inflate::{Cache, Inflated, MAX_PAGES, MAX_RATIO, MAX_STATES, PAGE, Wrapper, inflated_len};
pub use section::Section;
pub use zip::{Archive, Entry, EntrySum};
