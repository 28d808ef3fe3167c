//! Which files are served: those that are listed before the first request, and no others.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use apr_io::io_error;
use apr_registry::Error;
use serde_json::json;

use crate::failure::Outcome;

/// Folders in the folder of a model that are gone into, as the page does with one that is dropped.
const MODEL_DEPTH: usize = 1;
const SITE_DEPTH: usize = 4;
/// Most files of a folder: one with more is no model's.
const MOST: usize = 20_000;

/// Files by their paths below a folder.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<String, PathBuf>,
    /// Of a model: what the page is told of it.
    index: Option<Vec<u8>>,
}

impl Folder {
    /// The files of the page. The one that keeps the page for later visits is left out: the address
    /// is another one next time.
    ///
    /// # Errors
    /// E007 where the folder can't be read.
    pub(super) fn of_site(folder: &Path) -> Outcome<Self> {
        let mut files = BTreeMap::new();
        collect(folder, "", SITE_DEPTH, &mut files)?;
        files.remove("service-worker.js");
        Ok(Self { files, index: None })
    }

    /// The files of a model: those of the folder, or those beside the file, which may belong to it.
    ///
    /// # Errors
    /// E007 where they can't be read, E008 where there are too many.
    pub(super) fn of_model(path: &Path) -> Outcome<Self> {
        let metadata = fs::metadata(path).map_err(|error| io_error(&error, path))?;
        let text = |name: Option<&OsStr>| {
            name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
        };
        let mut files = BTreeMap::new();
        let (title, name) = if metadata.is_dir() {
            collect(path, "", MODEL_DEPTH, &mut files)?;
            let whole = path.canonicalize().map_err(|error| io_error(&error, path))?;
            (text(whole.file_name()), None)
        } else {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            collect(folder.unwrap_or(Path::new(".")), "", 0, &mut files)?;
            let name = text(path.file_name());
            // It may be hidden, which those beside it are not.
            files.insert(name.clone(), path.to_path_buf());
            (name.clone(), Some(name))
        };
        let mut listed = Vec::with_capacity(files.len());
        for (name, path) in &files {
            let size = fs::metadata(path).map_err(|error| io_error(&error, path))?.len();
            listed.push(json!({ "name": name, "size": size }));
        }
        let index = json!({ "title": title, "name": name, "files": listed });
        Ok(Self { files, index: Some(index.to_string().into_bytes()) })
    }

    /// How many files there are.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// The file of a path.
    pub(super) fn file(&self, path: &str) -> Option<&Path> {
        self.files.get(path).map(PathBuf::as_path)
    }

    /// Of a model: its title, the file that is meant, and all files with their sizes, as JSON.
    pub(super) fn index(&self) -> Option<&[u8]> {
        self.index.as_deref()
    }
}

/// Adds the regular files of a folder and of the folders in it, `depth` levels down; names that no
/// address can have, and hidden ones, are left out.
fn collect(
    folder: &Path,
    prefix: &str,
    depth: usize,
    into: &mut BTreeMap<String, PathBuf>,
) -> Outcome {
    for entry in fs::read_dir(folder).map_err(|error| io_error(&error, folder))? {
        let path = entry.map_err(|error| io_error(&error, folder))?.path();
        let Some(name) = path.file_name().and_then(OsStr::to_str) else { continue };
        // A link leads to what it stands for; one that leads nowhere is no file of the model.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if name.starts_with('.') {
            continue;
        }
        let name = format!("{prefix}{name}");
        if metadata.is_file() {
            into.insert(name, path);
        } else if metadata.is_dir() && depth > 0 {
            collect(&path, &format!("{name}/"), depth - 1, into)?;
        }
        if into.len() > MOST {
            let message = format!("more than {MOST} files: name the model's own folder or file");
            return Err(Error::memory(message).in_file(folder.display().to_string()).into());
        }
    }
    Ok(())
}
