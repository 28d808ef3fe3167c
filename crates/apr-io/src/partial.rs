//! Files that are being written: without a name where the system has such files, else hidden,
//! locked, and removed by the next writer once no process holds the lock.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use apr_core::Result;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile, TempPath};

use crate::identity::{Identity, open_own};
use crate::io_error;

/// How the name of a file that is being written ends.
const SUFFIX: &str = ".partial";

/// Random characters between the target's name and [`SUFFIX`].
const RANDOM: usize = 6;

/// How often a hidden name is tried.
const ATTEMPTS: usize = 16;

/// Who may read a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    /// Whoever the process lets read new files.
    Usual,
    /// As this mode says.
    Exactly(u32),
}

/// A file that is being written to take the place of another.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) file: File,
    /// None where the file has no name yet.
    hidden: Option<TempPath>,
}

impl Partial {
    /// Creates a file in the folder of `target`, empty and locked.
    pub(crate) fn create(target: &Path, access: Access) -> io::Result<Self> {
        Self::unnamed(target, access).or_else(|_| Self::named(target, access))
    }

    /// One that vanishes with the process, whatever ends it.
    #[cfg(target_os = "linux")]
    fn unnamed(target: &Path, access: Access) -> io::Result<Self> {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(open(parent(target), flags, Mode::from_raw_mode(access.mode()))?);
        // Without it the file could not be given a name at the end.
        descriptor_path(&file).symlink_metadata()?;
        // For the moment in which it has a hidden name; nobody else has it yet.
        let _ = file.try_lock();
        access.apply(&file)?;
        Ok(Self { file, hidden: None })
    }

    #[cfg(not(target_os = "linux"))]
    fn unnamed(_target: &Path, _access: Access) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn named(target: &Path, access: Access) -> io::Result<Self> {
        let create = || under_hidden_name(target, |path| create_new(path, access));
        let (file, hidden) = locked(create)?.into_parts();
        access.apply(&file)?;
        Ok(Self { file, hidden: Some(hidden) })
    }

    /// Gives the file its target's name, which must be free.
    pub(crate) fn place_new(self, target: &Path) -> io::Result<()> {
        match self.hidden {
            None => link(&self.file, target),
            Some(hidden) => {
                match renameat_with(CWD, hidden.to_path_buf(), CWD, target, RenameFlags::NOREPLACE)
                {
                    Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                        fs::hard_link(&hidden, target)
                    }
                    renamed => Ok(renamed?),
                }
            }
        }
    }

    /// Puts the file in the place of its target, if there is one.
    pub(crate) fn replace(self, target: &Path) -> io::Result<()> {
        let (_file, hidden) = self.with_name(target)?;
        Ok(hidden.persist(target)?)
    }

    /// Lets the file and its target change places; gives back the hidden name under which the old
    /// file now is. `None` where the system can't do that, and the target was replaced.
    pub(crate) fn exchange(self, target: &Path) -> io::Result<Option<TempPath>> {
        let (_file, hidden) = self.with_name(target)?;
        match renameat_with(CWD, hidden.to_path_buf(), CWD, target, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(Some(hidden)),
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                Ok(hidden.persist(target).map(|()| None)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The locked file and its hidden name, which it gets if it has none. The file has it for a
    /// moment only.
    fn with_name(self, target: &Path) -> io::Result<(File, TempPath)> {
        if let Some(hidden) = self.hidden {
            return Ok((self.file, hidden));
        }
        let (_, hidden) = under_hidden_name(target, |path| link(&self.file, path))?.into_parts();
        Ok((self.file, hidden))
    }
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::Usual => 0o666,
            // Narrow at first; see `apply`.
            Self::Exactly(mode) => mode & 0o700,
        }
    }

    /// The process's mask does not hold for what a mode says exactly.
    fn apply(self, file: &File) -> io::Result<()> {
        match self {
            Self::Usual => Ok(()),
            Self::Exactly(mode) => file.set_permissions(Permissions::from_mode(mode)),
        }
    }
}

fn create_new(path: &Path, access: Access) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(access.mode()).open(path)
}

/// Creates a file and locks it. Between the two, another writer may take it for left over and
/// remove it.
fn locked(create: impl Fn() -> io::Result<NamedTempFile>) -> io::Result<NamedTempFile> {
    for _ in 0..ATTEMPTS {
        let file = create()?;
        match file.as_file().try_lock() {
            Err(TryLockError::WouldBlock) => {}
            Ok(()) if !is_at(file.as_file(), file.path())? => {}
            // Where there are no locks, nobody takes the file for left over either.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
    Err(io::Error::other("another process keeps removing the file before it can be written"))
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = Identity::of(&file.metadata()?);
    Ok(path.symlink_metadata().is_ok_and(|named| Identity::of(&named).is_file_of(&file)))
}

/// Calls `create` with hidden names beside the target until one is free.
fn under_hidden_name<R>(
    target: &Path,
    create: impl FnMut(&Path) -> io::Result<R>,
) -> io::Result<NamedTempFile<R>> {
    let prefix = prefix_of(target);
    Builder::new().prefix(&prefix).rand_bytes(RANDOM).suffix(SUFFIX).make_in(parent(target), create)
}

/// How hidden names of files that are to become `target` start.
fn prefix_of(target: &Path) -> OsString {
    /// Bytes that the hidden name has at most, in every file system that is in use.
    const LONGEST: usize = 255;
    let name = target.file_name().unwrap_or_default().as_bytes();
    let room = LONGEST - ".".len() - RANDOM - SUFFIX.len();
    OsString::from_vec([b".", &name[..name.len().min(room)]].concat())
}

/// Gives a name to a file that has none.
#[cfg(target_os = "linux")]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, linkat};
    Ok(linkat(CWD, descriptor_path(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

#[cfg(not(target_os = "linux"))]
fn link(_file: &File, _path: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn descriptor_path(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What writers left in a folder when they were killed, and what others are writing there.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    folder: PathBuf,
    names: Vec<OsString>,
}

impl Leftovers {
    /// Removes files that were to become `target` and that no process writes any more. A folder is
    /// listed once.
    pub(crate) fn remove(&mut self, target: &Path) {
        let folder = parent(target);
        if self.folder != folder {
            let entries = folder.read_dir().into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name());
            let names = names.filter(|name| name.as_bytes().ends_with(SUFFIX.as_bytes())).collect();
            *self = Self { folder: folder.to_path_buf(), names };
        }
        let prefix = prefix_of(target);
        for name in self.names.iter().filter(|name| is_hidden_name(name, &prefix)) {
            remove_if_abandoned(&folder.join(name));
        }
    }
}

fn is_hidden_name(name: &OsStr, prefix: &OsStr) -> bool {
    let random = name.as_bytes().strip_prefix(prefix.as_bytes());
    let random = random.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    random.is_some_and(|random| {
        random.len() == RANDOM && random.iter().all(u8::is_ascii_alphanumeric)
    })
}

/// Removes a regular file that no process has locked.
fn remove_if_abandoned(path: &Path) {
    // The lock is held until the name is gone: a writer that only now locks its file finds that
    // out.
    if let Ok(Some(file)) = open_own(path)
        && file.try_lock().is_ok()
        && is_at(&file, path).unwrap_or(false)
    {
        let _ = fs::remove_file(path);
    }
}

/// A file that a pipe is copied to. It is removed when this is dropped, or by the next one where
/// the process was killed.
#[derive(Debug)]
pub struct Spool(NamedTempFile);

impl Spool {
    /// Creates one in a folder that holds nothing else, and removes what killed processes left
    /// there.
    ///
    /// # Errors
    /// E007.
    pub fn create(folder: &Path) -> Result<Self> {
        let create = || {
            fs::create_dir_all(folder)?;
            folder.read_dir()?.flatten().for_each(|entry| remove_if_abandoned(&entry.path()));
            locked(|| NamedTempFile::new_in(folder))
        };
        Ok(Self(create().map_err(|error| io_error(&error, folder))?))
    }

    /// Where the copy is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The copy, to write to and to read from.
    #[must_use]
    pub fn file(&self) -> &File {
        self.0.as_file()
    }
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(folder: &Path) -> Vec<String> {
        let entries =
            folder.read_dir().expect("a folder").map(|entry| entry.expect("listed").file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().expect("plain")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_that_is_written_has_no_name_where_the_system_has_such_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("m.apr");
        if let Ok(mut partial) = Partial::unnamed(&target, Access::Usual) {
            partial.file.write_all(b"new").expect("room");
            assert_eq!(names(folder.path()), [""; 0]);
            partial.place_new(&target).expect("the name is free");
            assert_eq!(fs::read(&target).expect("it is there"), b"new");
        } else {
            println!("skipped: this file system has no unnamed files");
        }
    }

    #[test]
    fn both_kinds_take_a_free_name_replace_a_file_and_change_places_with_one() {
        let kinds: [fn(&Path, Access) -> io::Result<Partial>; 2] =
            [Partial::create, Partial::named];
        for kind in kinds {
            let folder = tempfile::tempdir().expect("a folder");
            let target = folder.path().join("m.apr");
            let written = |text: &str| {
                let mut partial = kind(&target, Access::Exactly(0o640)).expect("room");
                partial.file.write_all(text.as_bytes()).expect("room");
                partial
            };
            written("one").place_new(&target).expect("the name is free");
            let taken = written("two").place_new(&target).map_err(|error| error.kind());
            assert_eq!(taken, Err(io::ErrorKind::AlreadyExists));
            assert_eq!(fs::read(&target).expect("it is there"), b"one");
            written("three").replace(&target).expect("it can be replaced");
            let old = written("four").exchange(&target).expect("it can be replaced");
            assert_eq!(fs::read(&target).expect("it is there"), b"four");
            if let Some(old) = old {
                assert_eq!(fs::read(&old).expect("it is kept"), b"three");
            }
            assert_eq!(target.metadata().expect("it is there").permissions().mode() & 0o777, 0o640);
            assert_eq!(names(folder.path()), ["m.apr"]);
        }
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("m.apr");
        let living = Partial::named(&target, Access::Usual).expect("room");
        let living_name =
            living.hidden.as_ref().and_then(|path| path.file_name()?.to_str()).expect("it has one");
        let others = [
            ".m.apr.partial",
            ".m.aprabcde.partial",
            ".m.aprabcdefg.partial",
            ".m.aprabc.ef.partial",
            ".n.aprabcdef.partial",
        ];
        for name in others.iter().chain(&[".m.aprABC012.partial"]) {
            fs::write(folder.path().join(name), "left").expect("room");
        }
        std::os::unix::fs::symlink("/dev/null", folder.path().join(".m.aprlinked.partial"))
            .expect("links");
        Leftovers::default().remove(&target);
        let mut expected = [&others[..], &[living_name, ".m.aprlinked.partial"]].concat();
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn a_name_as_long_as_names_can_be_is_replaced_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("m".repeat(255));
        fs::write(&target, "old").expect("room");
        for kind in [Partial::create, Partial::named] {
            kind(&target, Access::Usual)
                .expect("room")
                .replace(&target)
                .expect("it can be replaced");
            assert_eq!(names(folder.path()).len(), 1);
        }
    }
}
