use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result, Sink};
use tempfile::{Builder, NamedTempFile};

use crate::{in_place, io_error};

/// What an [`AtomicOutput`] replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One file.
    File(PathBuf),
    /// Files in this folder, which is made if need be.
    Folder(PathBuf),
}

/// Output that appears under its name only when it is complete and on disk.
///
/// Every file is written to a hidden temporary one beside its target; [`commit`](Self::commit) syncs and renames them.
/// Dropped without it, whatever the reason, they vanish and the targets stay as they were.
#[derive(Debug)]
pub struct AtomicOutput {
    target: Target,
    overwrite: bool,
    finished: Vec<(PathBuf, NamedTempFile)>,
    current: Option<(PathBuf, NamedTempFile)>,
    position: u64,
    made_folders: Vec<PathBuf>,
}

impl AtomicOutput {
    /// Prepares to write the files `names` of `target`; without `overwrite`, those that exist are refused at once,
    /// before any work is done for them.
    ///
    /// # Errors
    /// E007 when a file exists.
    pub fn create<'a>(target: Target, overwrite: bool, names: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let output =
            Self { target, overwrite, finished: Vec::new(), current: None, position: 0, made_folders: Vec::new() };
        names.into_iter().try_for_each(|name| output.check_free(&output.path_of(name)))?;
        Ok(output)
    }

    /// Puts everything in place.
    ///
    /// # Errors
    /// E007; files that were not yet renamed keep their old content.
    pub fn commit(mut self) -> Result<()> {
        self.finished.extend(self.current.take());
        for (path, file) in &self.finished {
            file.as_file().sync_all().map_err(|error| io_error(&error, path))?;
        }
        for (path, file) in std::mem::take(&mut self.finished) {
            let renamed = if self.overwrite { file.persist(&path) } else { file.persist_noclobber(&path) };
            renamed.map_err(|error| io_error(&error.error, &path))?;
            in_place::forget(&path);
        }
        self.made_folders.clear();
        sync_folder(match &self.target {
            Target::File(path) => parent(path),
            Target::Folder(folder) => folder,
        })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        match &self.target {
            // Shards lie beside the target they are named after.
            Target::File(path) => path.with_file_name(name),
            Target::Folder(folder) => folder.join(name),
        }
    }

    fn check_free(&self, path: &Path) -> Result<()> {
        let existing = path.metadata();
        if existing.as_ref().is_ok_and(|target| !target.is_file()) {
            let what = if path.is_dir() { "a folder" } else { "a pipe or a device" };
            return Err(Error::io(IoCause::Other, format!("the target is {what}")).in_file(path.display()));
        }
        if !self.overwrite && path.symlink_metadata().is_ok() {
            return Err(Error::io(IoCause::AlreadyExists, "the file exists already").in_file(path.display()));
        }
        Ok(())
    }

    fn start(&mut self, path: PathBuf) -> Result<()> {
        self.check_free(&path)?;
        // A link to the target keeps being one: what it points at is replaced.
        let path = if path.is_symlink() { path.canonicalize().unwrap_or(path) } else { path };
        let folder = parent(&path).to_path_buf();
        self.make_folder(&folder)?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(path.file_name().unwrap_or_default());
        let mode = path.metadata().map_or(0o666, |old| old.permissions().mode() & 0o7777);
        let file = Builder::new()
            .prefix(&prefix)
            .suffix(".partial")
            .permissions(fs::Permissions::from_mode(mode))
            .tempfile_in(&folder)
            .map_err(|error| io_error(&error, &path))?;
        self.finished.extend(self.current.replace((path, file)));
        self.position = 0;
        Ok(())
    }

    fn make_folder(&mut self, folder: &Path) -> Result<()> {
        let missing = folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
        self.made_folders.extend(missing.map(Path::to_path_buf).collect::<Vec<_>>().into_iter().rev());
        fs::create_dir_all(folder).map_err(|error| io_error(&error, folder))
    }

    fn current(&self) -> Result<(&Path, &File)> {
        let current = self.current.as_ref().map(|(path, file)| (path.as_path(), file.as_file()));
        current.ok_or_else(|| Error::io(IoCause::Other, "bytes came before the name of the first file"))
    }
}

impl Drop for AtomicOutput {
    fn drop(&mut self) {
        self.finished.clear();
        self.current = None;
        // Only folders that this output made, and only while they are empty.
        for folder in self.made_folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A rename is on disk when its folder is.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    match synced {
        // Some file systems can't sync folders; there is nothing more to be done about it there.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(io_error(&error, folder)),
        _ => Ok(()),
    }
}

impl Sink for AtomicOutput {
    fn next_file(&mut self, name: &str) -> Result<()> {
        self.start(self.path_of(name))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        if let (Target::File(path), None) = (&self.target, &self.current) {
            self.start(path.clone())?;
        }
        let (path, mut file) = self.current()?;
        file.write_all(bytes).map_err(|error| io_error(&error, path))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn position(&self) -> u64 {
        self.position
    }

    fn can_patch(&self) -> bool {
        true
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let (path, file) = self.current()?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.position) {
            return Err(Error::io(IoCause::Other, "a patch past what was written").in_file(path.display()).at(offset));
        }
        file.write_all_at(bytes, offset).map_err(|error| io_error(&error, path))
    }
}
