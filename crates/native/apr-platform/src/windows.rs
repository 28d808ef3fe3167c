//! Windows 10 and later.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::windows::fs::{FileExt, OpenOptionsExt, symlink_file};
use std::os::windows::io::AsHandle;
use std::path::{Component, Path, Prefix};

use winapi_util::file::{information, typ};
use windows_sys::Win32::Foundation::ERROR_LOCK_VIOLATION;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_FLAG_BACKUP_SEMANTICS, FILE_FLAG_OPEN_REPARSE_POINT,
};

use crate::names::is_device;
use crate::{Access, Identity};

/// Fills a buffer from a position of a file.
///
/// # Errors
/// What the system says; `UnexpectedEof` where the file ends before.
pub fn read_exact_at(file: &File, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match file.seek_read(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buf = &mut buf[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes bytes to a position of a file, whose cursor may be anywhere afterwards.
///
/// # Errors
/// What the system says.
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.seek_write(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[allow(clippy::cast_possible_wrap, reason = "the time is compared only")]
pub(crate) fn identity_of_file(file: &File) -> io::Result<Identity> {
    let found = information(file)?;
    Ok(Identity {
        volume: found.volume_serial_number(),
        index: found.file_index(),
        len: found.file_size(),
        modified: (found.last_write_time().unwrap_or(0) as i64, 0),
        noted: None,
        links: found.number_of_links(),
    })
}

pub(crate) fn identity_of_path(path: &Path) -> io::Result<Identity> {
    identity_by(path, FILE_FLAG_BACKUP_SEMANTICS)
}

pub(crate) fn identity_of_name(path: &Path) -> io::Result<Identity> {
    identity_by(path, FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT)
}

/// Returns the identity of a file without opening its contents, which a lock does not prevent
/// either. Folders are opened as well.
fn identity_by(path: &Path, flags: u32) -> io::Result<Identity> {
    identity_of_file(&OpenOptions::new().access_mode(0).custom_flags(flags).open(path)?)
}

/// Returns `true` if a handle refers to a regular file. Folders open only on explicit request, so
/// they do not occur.
///
/// # Errors
/// The error of the system.
pub fn is_regular(file: &File) -> io::Result<bool> {
    Ok(typ(file)?.is_disk())
}

/// Returns `true` if a path is a device or a pipe, by its name, so that it can only be streamed to.
#[must_use]
pub fn is_stream(path: &Path) -> bool {
    let is_in_space_of_devices = matches!(
        path.components().next(),
        Some(Component::Prefix(prefix)) if matches!(prefix.kind(), Prefix::DeviceNS(_))
    );
    let name = path.file_name().and_then(|name| name.to_str());
    is_in_space_of_devices || name.is_some_and(|name| is_device(name) && !name.contains('.'))
}

/// Returns the options unchanged: opening a pipe does not wait for its other end on this system.
pub fn unwaiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

/// Sets the options so that a link is opened itself, not its target.
pub fn unfollowed(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(FILE_FLAG_OPEN_REPARSE_POINT)
}

/// Returns the options unchanged: new files inherit their readers from the folder, as the other
/// file did.
pub fn new_like<'o>(options: &'o mut OpenOptions, _other: &Metadata) -> &'o mut OpenOptions {
    options
}

/// Returns the options unchanged: new files inherit their writers from the folder.
pub fn new_shared(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

pub(crate) fn with_access<'o>(
    options: &'o mut OpenOptions,
    _access: &Access,
) -> &'o mut OpenOptions {
    options
}

/// Returns the permissions unchanged: on Windows they do not determine who may read a file.
pub(crate) fn narrowed(own: &fs::Permissions, _others: &fs::Permissions) -> fs::Permissions {
    own.clone()
}

pub(crate) fn apply_access(_access: &Access, _file: &File) -> io::Result<()> {
    Ok(())
}

/// Fails, because this system has no unnamed files.
///
/// # Errors
/// `Unsupported`.
pub fn unnamed(_folder: &Path, _access: &Access) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails, because this system has no unnamed files.
///
/// # Errors
/// `Unsupported`.
pub fn link_unnamed(_file: &File, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a file a name that must be free. The file may keep its old name.
///
/// # Errors
/// The error of the system, for example `AlreadyExists`.
pub fn place_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if to.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        // A file system without links, as on a memory card. For a moment somebody else could take
        // the name.
        Err(_) => fs::rename(from, to),
        linked => linked,
    }
}

/// Gives a folder a name that must be free.
///
/// # Errors
/// The error of the system, for example `AlreadyExists`.
pub fn place_new_folder(from: &Path, to: &Path) -> io::Result<()> {
    if to.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(from, to)
}

/// Lists the names in a folder.
///
/// # Errors
/// What the system says.
pub fn list_folder(folder: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    folder.read_dir()?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

/// Renames a file, over another one if there is one. That may be open, if not without
/// `FILE_SHARE_DELETE`.
///
/// # Errors
/// What the system says.
pub fn replace(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && may_be_moved(to) => {
            replace_open(from, to)
        }
        renamed => renamed,
    }
}

fn may_be_moved(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| !found.is_dir() && !found.permissions().readonly())
}

/// Replaces a file if the file system can't rename over an open one. The open file is first moved
/// aside, and vanishes when it is closed. For a moment, no file has the name.
fn replace_open(from: &Path, to: &Path) -> io::Result<()> {
    let mut aside = from.as_os_str().to_owned();
    aside.push(".old");
    fs::rename(to, &aside)?;
    if let Err(error) = fs::rename(from, to) {
        fs::rename(&aside, to)?;
        return Err(error);
    }
    // It is in use: where it can't be removed either, it stays, and nothing is lost.
    let _ = fs::remove_file(&aside);
    Ok(())
}

/// Fails, because this system can't exchange two files atomically.
///
/// # Errors
/// `Unsupported`.
pub fn exchange(_one: &Path, _other: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Creates a link at `link` to a file, which is `target` relative to the link and `file` relative
/// to the current folder.
///
/// Creating symbolic links requires a privilege or developer mode. Without them, the file gets a
/// hard link or is copied.
///
/// # Errors
/// The error of the system.
pub fn link_file(target: &Path, file: &Path, link: &Path) -> io::Result<()> {
    // Relative links are not followed with slashes.
    let target: std::path::PathBuf = target.components().collect();
    // Wine reports links that it has not made.
    symlink_file(target, link)
        .and_then(|()| link.symlink_metadata().map(drop))
        .or_else(|_| fs::hard_link(file, link))
        .or_else(|_| fs::copy(file, link).map(drop))
}

/// Does nothing: names are in the journal of the file system.
///
/// # Errors
/// None.
pub fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Returns the number of bytes that a file occupies on disk. Files have no holes unless a program
/// requests them.
#[must_use]
pub fn allocated(metadata: &Metadata) -> u64 {
    metadata.len()
}

/// Returns `true` if another handle's lock made a read or write fail.
#[must_use]
pub fn is_lock_violation(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| u32::try_from(code) == Ok(ERROR_LOCK_VIOLATION))
}

/// Returns `true` if a server's name could not be resolved. The standard library has no error kind
/// for that.
#[must_use]
pub fn is_failed_lookup(error: &io::Error) -> bool {
    // WSAHOST_NOT_FOUND, WSATRY_AGAIN, WSANO_RECOVERY and WSANO_DATA.
    matches!(error.raw_os_error(), Some(11001..=11004))
}

/// Returns standard input without a buffer.
///
/// # Errors
/// The error of the system.
pub fn standard_input() -> io::Result<File> {
    Ok(io::stdin().as_handle().try_clone_to_owned()?.into())
}

/// Returns standard output without a buffer.
///
/// # Errors
/// The error of the system.
pub fn standard_output() -> io::Result<File> {
    Ok(io::stdout().as_handle().try_clone_to_owned()?.into())
}
