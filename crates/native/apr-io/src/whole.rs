//! The folder of a model: written beside the old one, and put in its place by one rename.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use apr_core::{Error, IoCause, Result};
use apr_platform::{Identity, canonicalize, exchange, list_folder, place_new_folder};
use apr_registry::{ModelFile, model_file};

use crate::atomic::sync_folder;
use crate::io_error;
use crate::lock::lock_to_replace;
use crate::partial::{HiddenFolder, Partial, is_partial_name, parent};

/// A folder that appears, or is replaced, as a whole.
#[derive(Debug)]
pub(crate) struct WholeFolder {
    /// The folder, with links resolved if it exists.
    pub(crate) path: PathBuf,
    /// Files of the folder that is replaced, or `None` if there is no folder.
    old: Option<Vec<String>>,
}

impl WholeFolder {
    /// Examines the folder that files of these names are written to. Returns `None` if it holds no
    /// model, so that the files are added to it.
    ///
    /// # Errors
    /// E007 if it holds a model, unless `overwrite`; if it also holds files that do not belong to a
    /// model; and if it can't be renamed.
    pub(crate) fn find(
        folder: &Path,
        overwrite: bool,
        names: &BTreeSet<&str>,
    ) -> Result<Option<Self>> {
        if folder.symlink_metadata().is_err() {
            return Ok(Some(Self { path: folder.to_path_buf(), old: None }));
        }
        if !folder.is_dir() {
            let message = "the output is a folder, and this is not one";
            return Err(Error::io(IoCause::Other, message).in_file(folder.display()));
        }

        let path = canonicalize(folder).map_err(|error| io_error(&error, folder))?;
        let found = files_of(&path)?;
        let clash = found.iter().find(|name| names.contains(name.as_str()));
        let weights = || found.iter().find(|name| model_file(name) == Some(ModelFile::Weights));
        let Some(first) = clash.or_else(weights) else { return Ok(None) };
        if !overwrite {
            let message = match clash {
                Some(_) => "the file already exists",
                None => "the folder already contains a model",
            };
            let file = folder.join(first);
            return Err(Error::io(IoCause::AlreadyExists, message).in_file(file.display()));
        }

        let is_strange = |name: &&String| {
            !names.contains(name.as_str()) && model_file(name).is_none() && !is_partial_name(name)
        };
        let strange: Vec<&str> = found.iter().filter(is_strange).map(String::as_str).collect();
        check_replaceable(folder, &path, &strange)?;
        Ok(Some(Self { path, old: Some(found) }))
    }

    /// Moves the files, which are on disk, into place. Returns warnings.
    ///
    /// # Errors
    /// E007; then the folder is as it was.
    pub(crate) fn commit(self, files: Vec<(PathBuf, Partial)>, given: &Path) -> Result<Vec<Error>> {
        let hidden = HiddenFolder::create(&self.path).map_err(|error| io_error(&error, given));
        let mut hidden = hidden?;
        let placed = self.place(&mut hidden, files, given);
        placed.map_err(|error| match hidden.remove() {
            Ok(()) => error,
            Err(_) => with_leftover(&error, hidden.path()),
        })
    }

    fn place(
        &self,
        hidden: &mut HiddenFolder,
        files: Vec<(PathBuf, Partial)>,
        given: &Path,
    ) -> Result<Vec<Error>> {
        let failed = |error: io::Error| io_error(&error, given);
        let locks = self.lock_old()?;
        let mut folders = BTreeSet::from([hidden.path().to_path_buf()]);
        let mut open = Vec::new();
        for (path, partial) in files {
            let name = path.strip_prefix(given).unwrap_or(&path);
            let target = hidden.path().join(name);
            let is_new = folders.insert(parent(&target).to_path_buf());
            let made = if is_new { fs::create_dir_all(parent(&target)) } else { Ok(()) };
            let placed = made.and_then(|()| partial.place(&target));
            open.push(placed.map_err(|error| io_error(&error, &path))?);
        }

        if self.old.is_some() {
            let like = self.path.metadata().map_err(failed)?.permissions();
            fs::set_permissions(hidden.path(), like).map_err(failed)?;
        }
        folders.iter().try_for_each(|folder| sync_folder(folder))?;

        // On Windows no file of a folder that is renamed may be open.
        if cfg!(windows) {
            open.clear();
        }
        let mut warnings = Vec::new();
        if self.old.is_none() {
            place_new_folder(hidden.path(), &self.path).map_err(failed)?;
            hidden.keep();
        } else {
            let old = self.exchange(hidden, locks).map_err(failed)?;
            warnings.extend(remove_old(&old).err());
        }
        warnings.extend(sync_folder(parent(&self.path)).err().as_ref().map(unsynced));
        Ok(warnings)
    }

    /// Exchanges the new folder and the old one. Returns the path of the old one.
    fn exchange(&self, hidden: &mut HiddenFolder, locks: Vec<File>) -> io::Result<PathBuf> {
        match exchange(hidden.path(), &self.path) {
            Ok(()) => {
                hidden.keep();
                Ok(hidden.path().to_path_buf())
            }
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                drop(locks);
                let mut aside = hidden.path().as_os_str().to_owned();
                aside.push(".old");
                let aside = PathBuf::from(aside);
                fs::rename(&self.path, &aside)?;
                if let Err(error) = fs::rename(hidden.path(), &self.path) {
                    fs::rename(&aside, &self.path)?;
                    return Err(error);
                }
                hidden.keep();
                Ok(aside)
            }
            Err(error) => Err(error),
        }
    }

    /// Locks the files that are replaced, so that no other process changes them.
    fn lock_old(&self) -> Result<Vec<File>> {
        let mut locks = Vec::new();
        for name in self.old.iter().flatten() {
            locks.extend(lock_to_replace(&self.path.join(name))?);
        }
        Ok(locks)
    }
}

/// Returns the contents of a folder and of its direct subfolders: files by name, with `/` between
/// the parts, and deeper folders by their names.
fn files_of(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let list = |path: &Path| list_folder(path).map_err(|error| io_error(&error, path));
    let is_folder = |path: &Path| path.is_dir() && !path.is_symlink();
    for name in list(folder)? {
        let path = folder.join(&name);
        let name = name.to_string_lossy().into_owned();
        if is_folder(&path) {
            let below = list(&path)?.into_iter();
            found.extend(below.map(|below| format!("{name}/{}", below.to_string_lossy())));
        } else {
            found.push(name);
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Rejects replacing a folder with files of another origin, and a folder that can't be renamed.
fn check_replaceable(folder: &Path, path: &Path, strange: &[&str]) -> Result<()> {
    /// Names that an error lists.
    const SHOWN: usize = 5;

    let refused =
        |message: String| Err(Error::io(IoCause::Other, message).in_file(folder.display()));
    if !strange.is_empty() {
        let listed = strange[..strange.len().min(SHOWN)].join(", ");
        let more = match strange.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        return refused(format!(
            "the whole folder would be replaced, but it contains files that are not part of a \
             model: {listed}{more}; move them, or choose another folder"
        ));
    }

    let is_current = std::env::current_dir().is_ok_and(|current| current.starts_with(path));
    if is_current {
        return refused("the current folder can't be replaced; run apr outside it".to_owned());
    }
    let volumes = [path, parent(path)].map(Identity::of_path);
    if let [Ok(own), Ok(outer)] = &volumes
        && !own.is_on_volume_of(outer)
    {
        let message = "a folder that is mounted can't be replaced; name a folder inside it";
        return refused(message.to_owned());
    }
    Ok(())
}

/// Returns an error with the name of an incomplete folder that could not be removed.
fn with_leftover(error: &Error, folder: &Path) -> Error {
    let message = format!("{}; remove the incomplete '{}'", error.message(), folder.display());
    let told = Error::io(error.cause().unwrap_or(IoCause::Other), message);
    error.file().into_iter().fold(told, Error::in_file)
}

/// Removes the replaced folder. Another program may already have removed it.
fn remove_old(old: &Path) -> Result<()> {
    match fs::remove_dir_all(old) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let message = format!(
                "{error}: the output was written, but the folder that it replaced could not be \
                 removed; it is here"
            );
            Err(Error::io(IoCause::Other, message).in_file(old.display()))
        }
        _ => Ok(()),
    }
}

/// Returns the warning that a crash of the system may undo names.
pub(crate) fn unsynced(error: &Error) -> Error {
    let message = format!(
        "{}: the output is in place, but a power failure may undo its new name",
        error.message()
    );
    let file = error.file().unwrap_or_default().to_owned();
    Error::io(IoCause::Other, message).in_file(file)
}
