use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::mem::take;
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result, Sink};
use apr_platform::{Access, Identity, canonicalize, check_name, is_stream, write_all_at};
use tempfile::TempPath;

use crate::error::{check_folders, create_folders};
use crate::lock::{LockedFile, changed, lock_to_replace};
use crate::partial::{Leftovers, Partial, parent};
use crate::pending::PendingFiles;
use crate::whole::{WholeFolder, unsynced};
use crate::{Sources, earlier, io_error, undo};

/// Output that an [`AtomicOutput`] replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// One file.
    File(PathBuf),
    /// Files in this folder, next to others. The folder is created if necessary.
    Folder(PathBuf),
    /// A model of this name: one file, or shards next to it. Shards of an earlier model of the name
    /// are removed.
    Model(PathBuf),
    /// A folder that holds one model: it appears, or is replaced, as a whole.
    ModelFolder(PathBuf),
}

/// Output that appears under its name only when it is complete and on disk.
///
/// Every file is written to an unnamed file in its target's folder, or to one with a hidden name if
/// the system has no unnamed files. [`commit`](Self::commit) syncs them and gives them their names.
/// If the output is dropped before that, they vanish and the targets stay unchanged. Hidden files
/// of a killed process are removed by the next output of the same name.
#[derive(Debug)]
pub struct AtomicOutput {
    target: Target,
    /// The folder that is replaced as a whole.
    whole: Option<WholeFolder>,
    /// Identities of the files that the output is made from; `readers` has their permissions.
    sources: Vec<Identity>,
    readers: Vec<Permissions>,
    overwrite: bool,
    /// Number of shards written before, if this is their manifest.
    shards: Option<u32>,
    /// The lock on the file that is replaced, if it was read under that lock.
    held: Option<LockedFile>,
    finished: Vec<(PathBuf, Partial)>,
    current: Option<(PathBuf, Partial)>,
    position: u64,
    made_folders: Vec<PathBuf>,
    leftovers: Leftovers,
}

impl AtomicOutput {
    /// Prepares to write the files `names` of `target`. Without `overwrite`, existing files are
    /// rejected before any work is done.
    ///
    /// # Errors
    /// E007 when a file exists.
    pub fn create<'a>(
        target: Target,
        overwrite: bool,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        let mut output = Self::new(target, overwrite, None);
        let names: BTreeSet<&str> = names.into_iter().collect();
        if let Target::ModelFolder(folder) = &output.target {
            output.whole = WholeFolder::find(folder, overwrite, &names)?;
        }
        names.into_iter().try_for_each(|name| output.check_free(&output.path_of(name)))?;
        Ok(output)
    }

    /// Sets the sources of the output. These files are not removed with an earlier output. Users
    /// who may not read one of them may not read the output either.
    pub fn made_from(&mut self, sources: &Sources) {
        self.sources = sources.identities();
        self.readers = sources.readers();
    }

    /// Marks the output as the manifest of `count` shards, which are in place. Shards of other
    /// counts are removed.
    pub fn names_shards(&mut self, count: u32) {
        self.shards = Some(count);
    }

    /// Prepares to replace a locked file, which stays locked until it is replaced.
    #[must_use]
    pub fn replacing(locked: LockedFile) -> Self {
        Self::new(Target::File(locked.path.clone()), true, Some(locked))
    }

    fn new(target: Target, overwrite: bool, held: Option<LockedFile>) -> Self {
        Self {
            target,
            whole: None,
            sources: Vec::new(),
            readers: Vec::new(),
            shards: None,
            overwrite,
            held,
            finished: Vec::new(),
            current: None,
            position: 0,
            made_folders: Vec::new(),
            leftovers: Leftovers::default(),
        }
    }

    /// Starts the next file as [`Sink::next_file`] does, readable by its owner alone.
    ///
    /// # Errors
    /// E007.
    pub fn next_private_file(&mut self, name: &str) -> Result<()> {
        check_name_of_output(name)?;
        self.start(self.path_of(name), Some(Access::Private))
    }

    /// Returns the files written so far, to be read before they appear.
    ///
    /// # Errors
    /// E007.
    pub fn pending(&self) -> Result<PendingFiles> {
        let files = self.finished.iter().chain(&self.current);
        let files = files.map(|(path, partial)| (path.as_path(), &partial.file));
        match &self.target {
            Target::File(path) | Target::Model(path) => {
                PendingFiles::new(files, parent(path), Some(path), true)
            }
            Target::Folder(folder) | Target::ModelFolder(folder) => {
                PendingFiles::new(files, folder, None, self.whole.is_none())
            }
        }
    }

    /// Moves all files into place, under the locks of the files that are replaced.
    ///
    /// # Errors
    /// E007; then no file is replaced, as far as the system can undo it. That a folder can't be
    /// synced is no error, because the new files are in their places by then.
    pub fn commit(mut self) -> Result<Committed> {
        self.finished.extend(self.current.take());
        for (path, partial) in &self.finished {
            partial.file.sync_all().map_err(|error| io_error(&error, path))?;
        }

        let finished = std::mem::take(&mut self.finished);
        if let (Some(whole), Target::ModelFolder(folder)) = (self.whole.take(), &self.target) {
            let warnings = whole.commit(finished, folder)?;
            let made_folders = take(&mut self.made_folders);
            return Ok(Committed { warnings, made_folders });
        }
        let earlier = self.earlier(&finished)?;
        let several = finished.len() > 1;
        let folders: BTreeSet<PathBuf> =
            finished.iter().map(|(path, _)| parent(path).to_path_buf()).collect();
        let mut placed = Vec::new();
        for (path, partial) in finished {
            match self.place(&path, partial, several) {
                Ok(done) => placed.push(done),
                Err(error) => {
                    placed.into_iter().rev().for_each(Placed::take_back);
                    return Err(error);
                }
            }
        }

        let mut warnings: Vec<Error> =
            placed.iter().filter_map(|placed| undo::forget(&placed.path).err()).collect();
        warnings.extend(placed.into_iter().filter_map(Placed::finish));
        warnings.extend(earlier::remove(&earlier));
        let mut made_folders = take(&mut self.made_folders);
        if let Target::Folder(folder) = &self.target {
            made_folders.retain(|made| !made.starts_with(folder));
        }
        warnings.extend(
            folders
                .iter()
                .filter_map(|folder| sync_folder(folder).err())
                .map(|error| unsynced(&error)),
        );
        Ok(Committed { warnings, made_folders })
    }

    /// Returns the files of an earlier model of the same name.
    fn earlier(&self, finished: &[(PathBuf, Partial)]) -> Result<Vec<PathBuf>> {
        match &self.target {
            Target::Model(path) if self.overwrite => {
                let written: Vec<&Path> = finished.iter().map(|(path, _)| &**path).collect();
                earlier::files(path, &written, &self.sources, self.shards)
            }
            _ => Ok(Vec::new()),
        }
    }

    fn place(&self, path: &Path, partial: Partial, several: bool) -> Result<Placed> {
        let failed = |error: io::Error| io_error(&error, path);
        if !self.overwrite {
            partial.place_new(path).map_err(failed)?;
            return Ok(Placed { path: path.to_path_buf(), old: Old::Nothing, _lock: None });
        }

        let lock = match &self.held {
            Some(held) if held.is_at(path) => held.check_unchanged().map(|()| None)?,
            Some(_) => return Err(changed(path)),
            None => lock_to_replace(path)?,
        };
        let old = if path.symlink_metadata().is_err() {
            partial.replace(path).map(|()| Old::Nothing)
        } else if several {
            partial.exchange(path).map(|old| old.map_or(Old::Gone, Old::Kept))
        } else {
            partial.replace(path).map(|()| Old::Gone)
        };

        let old = old.map_err(failed)?;
        Ok(Placed { path: path.to_path_buf(), old, _lock: lock })
    }

    fn path_of(&self, name: &str) -> PathBuf {
        if let Some(held) = &self.held {
            return held.path.clone();
        }
        match &self.target {
            // Shards lie beside the target they are named after.
            Target::File(path) | Target::Model(path) => path.with_file_name(name),
            Target::Folder(folder) | Target::ModelFolder(folder) => folder.join(name),
        }
    }

    fn check_free(&self, path: &Path) -> Result<()> {
        let name = path.file_name().and_then(|name| name.to_str());
        name.map_or(Ok(()), check_name_of_output)?;
        check_folders(parent(path))?;
        if self.whole.is_some() {
            return Ok(());
        }
        let existing = path.metadata();
        if is_stream(path) || existing.as_ref().is_ok_and(|target| !target.is_file()) {
            let what = if path.is_dir() { "a folder" } else { "a pipe or a device" };
            return Err(
                Error::io(IoCause::Other, format!("the target is {what}")).in_file(path.display())
            );
        }
        if !self.overwrite && path.symlink_metadata().is_ok() {
            return Err(Error::io(IoCause::AlreadyExists, "the file already exists")
                .in_file(path.display()));
        }
        Ok(())
    }

    fn start(&mut self, path: PathBuf, access: Option<Access>) -> Result<()> {
        self.check_free(&path)?;
        // A link to the target keeps being one: what it points at is replaced.
        let path = if path.is_symlink() && self.whole.is_none() {
            canonicalize(&path).unwrap_or(path)
        } else {
            path
        };
        // The files of a folder that is replaced are made beside it.
        let beside = self.whole.as_ref().map_or_else(|| path.clone(), |whole| whole.path.clone());
        self.made_folders.extend(create_folders(parent(&beside))?);
        self.leftovers.remove(&beside);
        let as_before = || {
            path.metadata().ok().filter(Metadata::is_file).map(|old| Access::As(old.permissions()))
        };
        let access = access.unwrap_or_else(|| as_before().unwrap_or(Access::Usual));
        let access = self.readers.iter().fold(access, Access::within);
        let file = Partial::create(&beside, &access).map_err(|error| io_error(&error, &path))?;
        self.finished.extend(self.current.replace((path, file)));
        self.position = 0;
        Ok(())
    }

    fn current(&self) -> Result<(&Path, &File)> {
        let current = self.current.as_ref().map(|(path, partial)| (path.as_path(), &partial.file));
        current.ok_or_else(|| {
            Error::io(IoCause::Other, "received bytes before the name of the first file")
        })
    }
}

/// Files that are in their places under their names, with contents that are on disk.
#[derive(Debug)]
#[must_use = "what may not survive a crash of the system is to be reported"]
pub struct Committed {
    warnings: Vec<Error>,
    made_folders: Vec<PathBuf>,
}

impl Committed {
    /// Returns a warning for each folder that could not be synced, so that a crash of the system
    /// may still undo the names in it, and for each file that could not be removed.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.warnings.iter().map(ToString::to_string)
    }

    /// Returns the folders that did not exist before the output, outermost first, without the
    /// output's own folder.
    #[must_use]
    pub fn made_folders(&self) -> &[PathBuf] {
        &self.made_folders
    }
}

/// A file that is in its place, and the file that was there before.
struct Placed {
    path: PathBuf,
    old: Old,
    /// Lock on the old file, so that no other process changes it until it is removed.
    _lock: Option<File>,
}

enum Old {
    Nothing,
    Gone,
    /// A file under a hidden name, which is removed on drop.
    Kept(TempPath),
}

impl Placed {
    /// Removes the old file. If that fails, returns an error with the name of the remaining file.
    fn finish(self) -> Option<Error> {
        let Old::Kept(old) = self.old else { return None };
        let hidden = old.to_path_buf();
        let error = old.close().err()?;
        let cause = error.kind();
        let message = format!(
            "{cause}: the output was written, but the file that it replaced could not be \
             removed; it is here"
        );
        Some(Error::io(IoCause::Other, message).in_file(hidden.display()))
    }

    /// Restores the previous file, if it still exists.
    fn take_back(self) {
        let _ = match self.old {
            Old::Nothing => fs::remove_file(&self.path),
            Old::Kept(old) => apr_platform::replace(&old, &self.path),
            Old::Gone => Ok(()),
        };
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

/// Checks the name of an output file. Names come from models, and some systems do not support every
/// name.
fn check_name_of_output(name: &str) -> Result<()> {
    check_name(name).map_err(|why| Error::io(IoCause::Other, why).in_file(name))
}

/// A rename is on disk when its folder is.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    match apr_platform::sync_folder(folder) {
        // Some file systems can't sync folders; there is nothing more to be done about it there.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => Err(io_error(&error, folder)),
        _ => Ok(()),
    }
}

impl Sink for AtomicOutput {
    fn next_file(&mut self, name: &str) -> Result<()> {
        check_name_of_output(name)?;
        self.start(self.path_of(name), None)
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        if let (Target::File(path) | Target::Model(path), None) = (&self.target, &self.current) {
            self.start(path.clone(), None)?;
        }
        let (path, file) = self.current()?;
        write_all_at(file, bytes, self.position).map_err(|error| io_error(&error, path))?;
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
            return Err(Error::io(IoCause::Other, "a patch past what was written")
                .in_file(path.display())
                .at(offset));
        }
        write_all_at(file, bytes, offset).map_err(|error| io_error(&error, path))
    }
}
