//! What differs between operating systems, under one name for each: positioned reads and writes,
//! the identity of a file, replacement, links, permissions, names, standard streams.
//!
//! Two modules have the same functions, `unix` and `windows`; all other crates are written once.
//! What a system does not have is [`io::ErrorKind::Unsupported`](std::io::ErrorKind), and the
//! caller has another way.
//!
//! | | Unix | Windows |
//! |---|---|---|
//! | positions | `pread`, `pwrite` | `ReadFile`, `WriteFile` at an offset, which move the cursor |
//! | identity | device and inode | serial number of the volume, index of the file |
//! | locks (`File::lock`) | advice | binding: other handles neither read nor write |
//! | files without a name | Linux: `O_TMPFILE` | none |
//! | replacing a file that is open | always | moved aside where the file system can't |
//! | two files change places | Linux, macOS | never |
//! | permissions | modes | the folder's access list, which new files inherit |
//! | folders on disk | `fsync` | file systems keep a journal of names |
//!
//! ```
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("m");
//! let file = std::fs::File::create_new(&path)?;
//! apr_platform::write_all_at(&file, b"weights", 4)?;
//! let identity = apr_platform::Identity::of_file(&file)?;
//! assert!(identity.is_file_of(&apr_platform::Identity::of_path(&path)?));
//! assert_eq!(identity.len(), 11);
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod access;
mod identity;
mod names;
#[cfg(unix)]
#[path = "unix.rs"]
mod system;
#[cfg(windows)]
#[path = "windows.rs"]
mod system;

pub use access::Access;
/// Returns a path without links and dots, in the form that all programs accept: on Windows without
/// the prefix `\\?\`, if the path is short enough.
pub use dunce::canonicalize;
pub use identity::Identity;
pub use names::{check_name, portable};
pub use system::{
    allocated, exchange, is_failed_lookup, is_lock_violation, is_regular, is_stream, link_file,
    link_unnamed, list_folder, new_like, new_shared, place_new, place_new_folder, read_exact_at,
    replace, standard_input, standard_output, sync_folder, unfollowed, unnamed, unwaiting,
    write_all_at,
};
