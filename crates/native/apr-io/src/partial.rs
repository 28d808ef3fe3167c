//! Files that are being written: without a name where the system has such files, else hidden,
//! locked, and removed by the next writer once no process holds the lock.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use apr_core::Result;
use apr_platform::{
    Access, Identity, exchange, link_unnamed, list_folder, place_new, replace, unnamed,
};
use tempfile::{Builder, NamedTempFile, TempPath};

use crate::regular::open_own;
use crate::{create_folders, io_error};

/// End of the name of a file that is being written.
const SUFFIX: &str = ".partial";

/// Random characters between the target's name and [`SUFFIX`].
const RANDOM: usize = 6;

/// Maximum number of tries to find a free hidden name.
const ATTEMPTS: usize = 16;

/// A file that is being written to take the place of another.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(crate) file: File,
    /// Hidden name, or `None` if the file has no name yet.
    hidden: Option<TempPath>,
}

impl Partial {
    /// Creates a file in the folder of `target`, empty and locked.
    pub(crate) fn create(target: &Path, access: &Access) -> io::Result<Self> {
        Self::unnamed(target, access).or_else(|_| Self::named(target, access))
    }

    /// Creates a file that vanishes with the process, however it ends.
    fn unnamed(target: &Path, access: &Access) -> io::Result<Self> {
        let file = unnamed(parent(target), access)?;
        // For the moment in which it has a hidden name; nobody else has it yet.
        let _ = file.try_lock();
        access.apply(&file)?;
        Ok(Self { file, hidden: None })
    }

    fn named(target: &Path, access: &Access) -> io::Result<Self> {
        let create = || under_hidden_name(target, |path| access.create_new(path));
        let (file, hidden) = locked(create)?.into_parts();
        access.apply(&file)?;
        Ok(Self { file, hidden: Some(hidden) })
    }

    /// Gives the file its target's name, which must be free.
    pub(crate) fn place_new(self, target: &Path) -> io::Result<()> {
        self.place(target).map(drop)
    }

    /// Does the same as [`place_new`](Self::place_new), and returns the locked file.
    pub(crate) fn place(self, target: &Path) -> io::Result<File> {
        match self.hidden {
            None => link_unnamed(&self.file, target)?,
            Some(hidden) => place_new(&hidden, target)?,
        }
        Ok(self.file)
    }

    /// Puts the file in the place of its target, if there is one.
    pub(crate) fn replace(self, target: &Path) -> io::Result<()> {
        let (_file, hidden) = self.with_name(target)?;
        place(hidden, target)
    }

    /// Puts the file in the place of its target. Returns the hidden name of the old file, or `None`
    /// if the system can't keep it.
    pub(crate) fn exchange(self, target: &Path) -> io::Result<Option<TempPath>> {
        let (_file, hidden) = self.with_name(target)?;
        match exchange(&hidden, target) {
            Ok(()) => Ok(Some(hidden)),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let link = |path: &Path| fs::hard_link(target, path);
                let old = under_hidden_name(target, link).map(|old| old.into_parts().1);
                place(hidden, target).map(|()| old.ok())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the locked file and its hidden name. A file without a name gets one, for a moment
    /// only.
    fn with_name(self, target: &Path) -> io::Result<(File, TempPath)> {
        if let Some(hidden) = self.hidden {
            return Ok((self.file, hidden));
        }
        let link = |path: &Path| link_unnamed(&self.file, path);
        let (_, hidden) = under_hidden_name(target, link)?.into_parts();
        Ok((self.file, hidden))
    }
}

/// Renames a hidden file over its target. If it can be neither renamed nor removed, the error has
/// its name.
fn place(mut hidden: TempPath, target: &Path) -> io::Result<()> {
    let Err(error) = replace(&hidden, target) else {
        // The name is gone.
        hidden.disable_cleanup(true);
        return Ok(());
    };
    let name = hidden.to_path_buf();
    match hidden.close() {
        Err(_) if name.symlink_metadata().is_ok() => {
            let stays = format!("{error}; remove the incomplete '{}'", name.display());
            Err(io::Error::new(error.kind(), stays))
        }
        _ => Err(error),
    }
}

/// A folder with a hidden name, locked if the system supports it. It is removed on drop, unless it
/// is kept.
#[derive(Debug)]
pub(crate) struct HiddenFolder {
    path: PathBuf,
    _lock: Option<File>,
    is_kept: bool,
}

impl HiddenFolder {
    /// Creates a hidden folder next to the folder that it is to become.
    pub(crate) fn create(target: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let (_, mut name) =
                under_hidden_name(target, |path| fs::create_dir(path))?.into_parts();
            name.disable_cleanup(true);
            let path = name.to_path_buf();
            let lock = File::open(&path).ok();
            match lock.as_ref().map(File::try_lock) {
                Some(Err(TryLockError::WouldBlock)) => {}
                Some(Ok(())) if !path.is_dir() => {}
                _ => return Ok(Self { path, _lock: lock, is_kept: false }),
            }
        }
        Err(io::Error::other("another process keeps removing the folder before it can be filled"))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder, unless it is kept.
    pub(crate) fn remove(&mut self) -> io::Result<()> {
        if !self.is_kept {
            fs::remove_dir_all(&self.path)?;
            self.is_kept = true;
        }
        Ok(())
    }

    /// Leaves the name alone from now on.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for HiddenFolder {
    fn drop(&mut self) {
        let _ = self.remove();
    }
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
    let file = Identity::of_file(file)?;
    Ok(Identity::of_name(path).is_ok_and(|named| named.is_file_of(&file)))
}

/// Calls `create` with hidden names in the target's folder until one is free.
fn under_hidden_name<R>(
    target: &Path,
    create: impl FnMut(&Path) -> io::Result<R>,
) -> io::Result<NamedTempFile<R>> {
    let prefix = prefix_of(target);
    Builder::new().prefix(&prefix).rand_bytes(RANDOM).suffix(SUFFIX).make_in(parent(target), create)
}

/// Returns the prefix of hidden names of files that are to become `target`.
fn prefix_of(target: &Path) -> String {
    /// Bytes of UTF-8 that the hidden name has at most, in every file system that is in use.
    const LONGEST: usize = 255;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let room = LONGEST - ".".len() - RANDOM - SUFFIX.len();
    format!(".{}", &name[..name.floor_char_boundary(room)])
}

/// Files in a folder left by writers that were killed, and files that others are writing.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    folder: PathBuf,
    names: Vec<String>,
}

impl Leftovers {
    /// Removes files that were to become `target` and that no process writes any more. A folder is
    /// listed once.
    pub(crate) fn remove(&mut self, target: &Path) {
        let folder = parent(target);
        if self.folder != folder {
            let entries = list_folder(folder).unwrap_or_default().into_iter();
            let names = entries.filter_map(|name| name.into_string().ok());
            let names = names.filter(|name| name.ends_with(SUFFIX)).collect();
            *self = Self { folder: folder.to_path_buf(), names };
        }
        let prefix = prefix_of(target);
        for name in self.names.iter().filter(|name| is_hidden_name(name, &prefix)) {
            remove_if_abandoned(&folder.join(name));
        }
    }
}

/// Returns `true` if a name, in a folder or below it, is the name of a file while it is written.
pub(crate) fn is_partial_name(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name);
    let stem = name.strip_suffix(SUFFIX).filter(|stem| stem.starts_with('.'));
    stem.is_some_and(|stem| {
        let random = stem.as_bytes().iter().rev().take(RANDOM);
        stem.len() > RANDOM + 1 && random.into_iter().all(u8::is_ascii_alphanumeric)
    })
}

fn is_hidden_name(name: &str, prefix: &str) -> bool {
    let random = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|random| {
        random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Removes a regular file, or the folder of a model, that no process has locked.
fn remove_if_abandoned(path: &Path) {
    if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        // Where folders can't be opened and locked, nothing says that a writer has ended.
        if File::open(path).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(path);
        }
        return;
    }
    // The lock is held until the name is gone: a writer that only now locks its file finds that
    // out.
    if let Ok(Some(file)) = open_own(path)
        && file.try_lock().is_ok()
        && is_at(&file, path).unwrap_or(false)
    {
        let _ = fs::remove_file(path);
    }
}

/// A file that a pipe is copied to. It is removed on drop or, if the process was killed, by the
/// next `Spool`.
#[derive(Debug)]
pub struct Spool(NamedTempFile);

impl Spool {
    /// Creates a spool in a folder that is used only for spools. Removes the files that killed
    /// processes left there.
    ///
    /// # Errors
    /// E007.
    pub fn create(folder: &Path) -> Result<Self> {
        create_folders(folder)?;
        let create = || {
            list_folder(folder)?.iter().for_each(|name| remove_if_abandoned(&folder.join(name)));
            locked(|| NamedTempFile::new_in(folder))
        };
        Ok(Self(create().map_err(|error| io_error(&error, folder))?))
    }

    /// Returns the path of the copy.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the copy, for writing and reading.
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
    fn output_is_unnamed_until_complete_if_the_system_supports_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("m.apr");
        if let Ok(mut partial) = Partial::unnamed(&target, &Access::Usual) {
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
        let kinds: [fn(&Path, &Access) -> io::Result<Partial>; 2] =
            [Partial::create, Partial::named];
        for kind in kinds {
            let folder = tempfile::tempdir().expect("a folder");
            let target = folder.path().join("m.apr");
            let written = |text: &str| {
                let mut partial = kind(&target, &Access::Private).expect("room");
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
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                let permissions = target.metadata().expect("it is there").permissions();
                assert_eq!(permissions.mode() & 0o777, 0o600);
            }
            assert_eq!(names(folder.path()), ["m.apr"]);
        }
    }

    #[test]
    fn files_of_killed_writers_are_removed_and_files_of_running_ones_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("m.apr");
        let living = Partial::named(&target, &Access::Usual).expect("room");
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
        let mut expected = [&others[..], &[living_name]].concat();
        #[cfg(unix)]
        {
            expected.push(".m.aprlinked.partial");
            std::os::unix::fs::symlink("/dev/null", folder.path().join(".m.aprlinked.partial"))
                .expect("links");
        }
        Leftovers::default().remove(&target);
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn a_name_as_long_as_names_can_be_is_replaced_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("m".repeat(255));
        fs::write(&target, "old").expect("room");
        for kind in [Partial::create, Partial::named] {
            kind(&target, &Access::Usual)
                .expect("room")
                .replace(&target)
                .expect("it can be replaced");
            assert_eq!(names(folder.path()).len(), 1);
        }
    }
}
