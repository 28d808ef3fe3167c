//! Linux, macOS and their kin.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, Dir, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::{Access, Identity};

/// Fills a buffer from a position of a file.
///
/// # Errors
/// What the system says; `UnexpectedEof` where the file ends before.
pub fn read_exact_at(file: &File, buf: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buf, offset)
}

/// Writes bytes to a position of a file, whose cursor may be anywhere afterwards.
///
/// # Errors
/// What the system says.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)
}

pub(crate) fn identity_of_file(file: &File) -> io::Result<Identity> {
    Ok(identity(&file.metadata()?))
}

pub(crate) fn identity_of_path(path: &Path) -> io::Result<Identity> {
    Ok(identity(&path.metadata()?))
}

pub(crate) fn identity_of_name(path: &Path) -> io::Result<Identity> {
    Ok(identity(&path.symlink_metadata()?))
}

fn identity(metadata: &Metadata) -> Identity {
    Identity {
        volume: metadata.dev(),
        index: metadata.ino(),
        len: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        noted: Some((metadata.ctime(), metadata.ctime_nsec())),
        links: metadata.nlink(),
    }
}

/// Returns `true` if a handle refers to a regular file.
///
/// # Errors
/// The error of the system.
pub fn is_regular(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.is_file())
}

/// Returns `true` if a path exists and is not a regular file or folder, so that it can only be
/// streamed to.
#[must_use]
pub fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|target| !target.is_file() && !target.is_dir())
}

/// Opens without waiting for the other end of a pipe.
pub fn unwaiting(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(flags(OFlags::NONBLOCK))
}

/// Opens no link, and without waiting.
pub fn unfollowed(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK))
}

#[allow(clippy::cast_possible_wrap, reason = "the flags are bits")]
fn flags(flags: OFlags) -> i32 {
    flags.bits() as i32
}

/// Creates files that are as readable as another one, within the process's mask.
pub fn new_like<'o>(options: &'o mut OpenOptions, other: &Metadata) -> &'o mut OpenOptions {
    options.mode(other.permissions().mode() & 0o777)
}

/// Creates files that the members of a group may write, within the process's mask.
pub fn new_shared(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o664)
}

pub(crate) fn with_access<'o>(
    options: &'o mut OpenOptions,
    access: &Access,
) -> &'o mut OpenOptions {
    options.mode(first_mode(access))
}

/// Returns the narrow mode that a file has before its access is applied.
fn first_mode(access: &Access) -> u32 {
    match (access, exact_mode(access)) {
        (Access::Within(others), _) => narrowed(&Permissions::from_mode(0o666), others).mode(),
        (_, exact) => exact.map_or(0o666, |mode| mode & 0o700),
    }
}

fn exact_mode(access: &Access) -> Option<u32> {
    match access {
        Access::Usual | Access::Within(_) => None,
        Access::Private => Some(0o600),
        Access::As(permissions) => Some(permissions.mode() & 0o7777),
    }
}

/// Returns permissions without the group, or without all others, if other permissions do not let
/// these read.
pub(crate) fn narrowed(own: &Permissions, others: &Permissions) -> Permissions {
    let classes = [(0o040, 0o070), (0o004, 0o007)];
    let closed = classes.into_iter().filter(|(read, _)| others.mode() & read == 0);
    Permissions::from_mode(closed.fold(own.mode(), |mode, (_, class)| mode & !class))
}

pub(crate) fn apply_access(access: &Access, file: &File) -> io::Result<()> {
    match exact_mode(access) {
        None => Ok(()),
        Some(mode) => file.set_permissions(Permissions::from_mode(mode)),
    }
}

/// Creates a file without a name in a folder. It vanishes with the process, whatever ends it.
///
/// # Errors
/// What the system says; `Unsupported` where it has no such files.
#[cfg(target_os = "linux")]
pub fn unnamed(folder: &Path, access: &Access) -> io::Result<File> {
    use rustix::fs::{Mode, open};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(open(folder, flags, Mode::from_raw_mode(first_mode(access)))?);
    // Without it the file could not be given a name at the end.
    descriptor_path(&file).symlink_metadata()?;
    Ok(file)
}

/// Gives a name to an unnamed file.
///
/// # Errors
/// The error of the system.
#[cfg(target_os = "linux")]
pub fn link_unnamed(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, linkat};
    Ok(linkat(CWD, descriptor_path(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(target_os = "linux")]
fn descriptor_path(file: &File) -> std::path::PathBuf {
    use std::os::fd::AsRawFd;
    std::path::PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Fails, because this system has no unnamed files.
///
/// # Errors
/// `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn unnamed(_folder: &Path, _access: &Access) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Fails, because this system has no unnamed files.
///
/// # Errors
/// `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn link_unnamed(_file: &File, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a file a name that must be free. The file may keep its old name.
///
/// # Errors
/// The error of the system, for example `AlreadyExists`.
pub fn place_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::hard_link(from, to),
        renamed => Ok(renamed?),
    }
}

/// Gives a folder a name that must be free.
///
/// # Errors
/// The error of the system, for example `AlreadyExists`.
pub fn place_new_folder(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Over a folder that is not empty, the system refuses.
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::rename(from, to),
        renamed => Ok(renamed?),
    }
}

/// Lists the names in a folder. An error on closing the folder is ignored; the standard library's
/// `read_dir` panics on it.
///
/// # Errors
/// The error of the system.
pub fn list_folder(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(File::open(folder)?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Renames a file, over another one if there is one.
///
/// # Errors
/// What the system says.
pub fn replace(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Exchanges two files.
///
/// # Errors
/// The error of the system; `Unsupported` if it, or the file system, can't do that.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Err(io::ErrorKind::Unsupported.into()),
        exchanged => Ok(exchanged?),
    }
}

/// Makes a link at `link` to a file, which `target` names from there and `file` from here.
///
/// # Errors
/// What the system says.
pub fn link_file(target: &Path, _file: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// Writes the names in a folder to disk.
///
/// # Errors
/// What the system says; `InvalidInput` where the file system can't do that.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all())
}

/// Returns the number of bytes that a file occupies on disk, without its holes.
#[must_use]
pub fn allocated(metadata: &Metadata) -> u64 {
    (metadata.blocks() * 512).min(metadata.len())
}

/// Returns `true` if another handle's lock made a read or write fail. Locks are advisory on this
/// system, so the result is always `false`.
#[must_use]
pub fn is_lock_violation(_error: &io::Error) -> bool {
    false
}

/// Returns `true` if a server's name could not be resolved. The standard library has no error kind
/// for that.
#[must_use]
pub fn is_failed_lookup(error: &io::Error) -> bool {
    error.to_string().contains("failed to lookup address")
}

/// Returns standard input without a buffer.
///
/// # Errors
/// The error of the system.
pub fn standard_input() -> io::Result<File> {
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

/// Returns standard output without a buffer.
///
/// # Errors
/// The error of the system.
pub fn standard_output() -> io::Result<File> {
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}
