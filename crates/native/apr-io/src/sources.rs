//! The files that a model is read from, remembered so that a change of them while it is read is
//! noticed.

use std::fs::{File, Permissions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use apr_core::{Code, Error, IoCause, Result};
use apr_platform::{Identity, list_folder};

#[cfg(feature = "hub")]
use crate::network::Remote;
use crate::{FileSource, io_error};

/// Opener of files that remembers the state of each, so that
/// [`check_unchanged`](Self::check_unchanged) detects files that a program rewrote since. Clones
/// share the remembered states.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    opened: Arc<Mutex<Vec<Opened>>>,
    /// Folders of models, as the user wrote them.
    folders: Arc<Mutex<Vec<PathBuf>>>,
    /// State of everything opened over the network.
    #[cfg(feature = "hub")]
    pub(crate) remote: Remote,
}

#[derive(Debug)]
struct Opened {
    path: PathBuf,
    /// `true` if a path led to the file; standard input has none.
    is_named: bool,
    before: Identity,
    access: Permissions,
    /// The open file. Dangling if the file was read whole and closed.
    file: Weak<File>,
}

impl Sources {
    /// Opens a regular file as [`FileSource::open`] does.
    ///
    /// # Errors
    /// Those of [`FileSource::open`].
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<FileSource> {
        self.remember(FileSource::open(path)?)
    }

    /// Remembers a file that is open already.
    ///
    /// # Errors
    /// E007.
    pub fn remember(&self, source: FileSource) -> Result<FileSource> {
        let before = Identity::of_file(&source.file);
        let before = before.map_err(|error| io_error(&error, &source.path))?;
        let access = source.file.metadata().map_err(|error| io_error(&error, &source.path))?;
        let access = access.permissions();
        let (path, file) = (source.path.clone(), Arc::downgrade(&source.file));
        let is_named = Identity::of_path(&path).is_ok_and(|named| named.is_file_of(&before));
        let opened = Opened { path, is_named, before, access, file };
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).push(opened);
        Ok(source)
    }

    /// Checks that no file was rewritten or replaced since it was opened. One that is gone was read
    /// anyway.
    ///
    /// # Errors
    /// E007 with the file that was.
    pub fn check_unchanged(&self) -> Result<()> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        match opened.iter().find(|opened| !opened.is_unchanged()) {
            None => Ok(()),
            Some(opened) => {
                let message =
                    "the file was changed by another program while it was read; try again";
                Err(Error::io(IoCause::Other, message).in_file(opened.path.display()))
            }
        }
    }
}

impl Sources {
    /// Takes over the files that another one remembers, which then remembers none:
    /// [`check_unchanged`](Self::check_unchanged) checks them, too.
    pub fn take_over(&self, other: &Self) {
        if Arc::ptr_eq(&self.opened, &other.opened) {
            return;
        }
        let taken =
            std::mem::take(&mut *other.opened.lock().unwrap_or_else(PoisonError::into_inner));
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).extend(taken);
    }
}

impl Sources {
    pub(crate) fn remember_folder(&self, folder: &Path) {
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if !folders.iter().any(|known| known == folder) {
            folders.push(folder.to_path_buf());
        }
    }

    /// Names the file of an error by its path, if the error names it as a file of a model's folder:
    /// `llama/tokenizer.json` for `tokenizer.json`.
    ///
    /// Readers of configurations and vocabularies know the names in the folder only. The error is
    /// unchanged if the name fits the folders of several models or a file of the working folder.
    #[must_use]
    pub fn locate(&self, error: Error) -> Error {
        // The operating system's errors are about paths.
        let named = error.file().filter(|_| error.code() != Code::Io).map(str::to_owned);
        let Some(name) = named.filter(|name| Path::new(name).is_relative()) else { return error };
        if Path::new(&name).exists() {
            return error;
        }
        let folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        let mut paths: Vec<PathBuf> =
            folders.iter().flat_map(|folder| find_in(folder, &name)).collect();
        match (paths.pop(), paths.is_empty()) {
            (Some(path), true) => error.placing(&name, path.display()),
            _ => error,
        }
    }

    /// Returns the state of all opened files, as a text that changes if one of them is changed or
    /// replaced. Returns `None` if no file was opened, or some are on servers.
    #[must_use]
    pub fn files_state(&self) -> Option<String> {
        if self.has_remote() {
            return None;
        }
        let mut states: Vec<String> = self.identities().iter().map(Identity::state).collect();
        states.sort_unstable();
        states.dedup();
        (!states.is_empty()).then(|| states.join("\n"))
    }

    /// Returns the permissions of each opened file.
    pub(crate) fn readers(&self) -> Vec<Permissions> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().map(|opened| opened.access.clone()).collect()
    }

    /// Returns the identities of the opened files.
    pub(crate) fn identities(&self) -> Vec<Identity> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.iter().map(|opened| opened.before).collect()
    }
}

/// Returns the path of a model's file: in the folder, or in its folders, one of which can be the
/// folder of the first module.
fn find_in(folder: &Path, name: &str) -> Vec<PathBuf> {
    let path = folder.join(name);
    if path.exists() {
        return vec![path];
    }
    let there = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let inner = list_folder(there).unwrap_or_default().into_iter();
    inner.map(|inner| folder.join(inner).join(name)).filter(|path| path.exists()).collect()
}

impl Opened {
    fn is_unchanged(&self) -> bool {
        let open = self.file.upgrade().and_then(|file| Identity::of_file(&file).ok());
        let named = Identity::of_path(&self.path).ok().filter(|_| self.is_named);
        open.iter().chain(&named).all(|found| found.is_unchanged_since(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn rewritten_or_replaced_files_are_detected_but_not_removed_or_linked_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m");
        let longer = |path: &Path| fs::write(path, "longer than before").expect("room");
        let replace = || {
            longer(&folder.path().join("n"));
            apr_platform::replace(&folder.path().join("n"), &path).expect("ours");
        };
        let changes: [(&str, &dyn Fn(), bool); 5] = [
            ("nothing", &|| {}, true),
            ("rewritten", &|| longer(&path), false),
            ("replaced", &replace, false),
            ("linked", &|| fs::hard_link(&path, folder.path().join("l")).expect("ours"), true),
            ("removed", &|| fs::remove_file(&path).expect("ours"), true),
        ];
        for keeps_open in [true, false] {
            for (what, change, expected) in &changes {
                let _ = fs::remove_file(folder.path().join("l"));
                fs::write(&path, "before").expect("room");
                let sources = Sources::default();
                let source = sources.open_file(&path).expect("it is there");
                let source = keeps_open.then_some(source);
                change();
                assert_eq!(sources.check_unchanged().is_ok(), *expected, "{what}, {keeps_open}");
                drop(source);
            }
        }
    }
}
