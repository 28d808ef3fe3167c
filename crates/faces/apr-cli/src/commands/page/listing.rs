//! Which files are served: those that are listed before the first request, and no others.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use apr_io::{FileSource, ModelFolder, io_error};
use apr_registry::Error;
use serde_json::json;

use crate::failure::Outcome;

/// Folders in the folder of a model that are gone into, as the page does with one that is dropped.
const MODEL_DEPTH: usize = 1;
const SITE_DEPTH: usize = 4;
/// Maximum number of files in a folder; a folder with more files is not a model.
const MOST: usize = 20_000;

/// Files by their paths below a folder.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<String, PathBuf>,
    /// Folder that a model's files must not leave; the page's own files are trusted.
    within: Option<ModelFolder>,
    /// Description of the model for the page, or `None` if the folder is not a model.
    index: Option<Vec<u8>>,
    left_out: usize,
}

impl Folder {
    /// The files of the page.
    ///
    /// # Errors
    /// E007 where the folder can't be read.
    pub(super) fn of_site(folder: &Path) -> Outcome<Self> {
        let mut found = Self::default();
        found.collect(folder, "", SITE_DEPTH)?;
        Ok(found)
    }

    /// Lists the files of a model: of the folder, or beside the file, because they may belong to
    /// it.
    ///
    /// # Errors
    /// E007 where they can't be read, E008 where there are too many.
    pub(super) fn of_model(path: &Path) -> Outcome<Self> {
        let metadata = fs::metadata(path).map_err(|error| io_error(&error, path))?;
        let text = |name: Option<&OsStr>| {
            name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
        };
        let beside = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = if metadata.is_dir() { path } else { beside.unwrap_or(Path::new(".")) };
        let within = Some(ModelFolder::open(folder)?);
        let mut found = Self { within, ..Self::default() };
        let (title, name) = if metadata.is_dir() {
            found.collect(path, "", MODEL_DEPTH)?;
            let whole = apr_platform::canonicalize(path).map_err(|error| io_error(&error, path))?;
            (text(whole.file_name()), None)
        } else {
            found.collect(folder, "", 0)?;
            let name = text(path.file_name());
            let real = apr_platform::canonicalize(path).map_err(|error| io_error(&error, path))?;
            // It may be hidden, or a link, which those beside it are not.
            if found.files.insert(name.clone(), real).is_none() {
                found.left_out = found.left_out.saturating_sub(1);
            }
            (name.clone(), Some(name))
        };
        let mut listed = Vec::with_capacity(found.files.len());
        for (name, path) in &found.files {
            let size = fs::metadata(path).map_err(|error| io_error(&error, path))?.len();
            listed.push(json!({ "name": name, "size": size }));
        }
        let index = json!({ "title": title, "name": name, "files": listed });
        found.index = Some(index.to_string().into_bytes());
        Ok(found)
    }

    /// Returns the number of names left out: hidden, not UTF-8, links that lead nowhere or out of
    /// the folder, and pipes.
    pub(super) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the number of files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Opens the file of a path. A pipe or a link that has taken a model's file's place since the
    /// files were listed is none of them.
    pub(super) fn file(&self, path: &str) -> Option<FileSource> {
        let listed = self.files.get(path)?;
        if self.within.is_some() && apr_platform::canonicalize(listed).ok()? != *listed {
            return None;
        }
        FileSource::open(listed).ok()
    }

    /// Returns the model's title, its main file, and all files with their sizes, as JSON.
    pub(super) fn index(&self) -> Option<&[u8]> {
        self.index.as_deref()
    }

    /// Adds the regular files of a folder and of the folders in it, `depth` levels down.
    ///
    /// Counts and leaves out hidden names, names that no address can have, everything that is not a
    /// file or a folder, and links that leave a model's folder, which are not followed.
    fn collect(&mut self, folder: &Path, prefix: &str, depth: usize) -> Outcome {
        let names = apr_platform::list_folder(folder).map_err(|error| io_error(&error, folder))?;
        for name in names {
            let path = folder.join(name);
            let name = path.file_name().and_then(OsStr::to_str);
            let name = name.filter(|name| !name.starts_with('.'));
            let name = name.map(|name| format!("{prefix}{name}"));
            let real = name.as_deref().and_then(|name| match &self.within {
                Some(within) => within.path_of(name).ok(),
                None => Some(path.clone()),
            });
            // A link is read as the file or folder that it leads to.
            let kind = real.as_deref().and_then(|real| fs::metadata(real).ok());
            match (name, real, kind) {
                (Some(name), Some(real), Some(kind)) if kind.is_file() => {
                    self.files.insert(name, real);
                }
                (Some(name), Some(_), Some(kind)) if kind.is_dir() => {
                    if depth > 0 {
                        self.collect(&path, &format!("{name}/"), depth - 1)?;
                    }
                }
                _ => self.left_out += 1,
            }
            if self.files.len() > MOST {
                let message =
                    format!("more than {MOST} files: name the model's own folder or file");
                return Err(Error::memory(message).in_file(folder.display().to_string()).into());
            }
        }
        Ok(())
    }
}
