use std::io;
use std::path::{Component, Path, PathBuf};

use apr_core::{ByteSource, Error, IoCause, Result, SourceSet};
use apr_platform::{canonicalize, check_name, list_folder};
use apr_registry::{ModelFile, model_file};

use crate::{Sources, io_error};

/// The folder of a model, as the source of its shards and companions.
///
/// Names must be plain and stay inside: no absolute path, no `..`, no link that leads out. One
/// exception serves the Hugging Face cache, whose `snapshots/REVISION/` consists of links into
/// `blobs/` of the same repository folder. The other is a file that the user named: it can be a
/// link to anywhere.
#[derive(Debug)]
pub struct ModelFolder {
    folder: PathBuf,
    /// Path of the folder as the user wrote it, in front of the names of errors.
    given: PathBuf,
    /// Name of the file that was named.
    named: Option<String>,
    /// Folder that the files must be inside.
    root: PathBuf,
    sources: Sources,
}

impl ModelFolder {
    /// Uses an existing folder.
    ///
    /// # Errors
    /// E007.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        Self::watched(folder, &Sources::default())
    }

    /// Uses an existing folder, whose files are remembered when they are opened.
    ///
    /// # Errors
    /// E007.
    pub fn watched(folder: impl AsRef<Path>, sources: &Sources) -> Result<Self> {
        let given = folder.as_ref().to_path_buf();
        let there = if given.as_os_str().is_empty() { Path::new(".") } else { &given };
        let folder = canonicalize(there).map_err(|error| io_error(&error, there))?;
        let root = hub_cache_root(&folder).unwrap_or_else(|| folder.clone());
        Ok(Self { folder, given, named: None, root, sources: sources.clone() })
    }

    /// Names the file of an error by its path, if the error is from reading this folder, where
    /// files are known by their names in it.
    #[must_use]
    pub(crate) fn locate(&self, error: Error) -> Error {
        match error.file().map(str::to_owned) {
            Some(name) if Path::new(&name).is_relative() => {
                error.placing(&name, self.given.join(&name).display())
            }
            _ => error,
        }
    }

    /// Sets the file of the folder that the user named.
    #[must_use]
    pub(crate) fn naming(self, file: &str) -> Self {
        Self { named: Some(file.to_owned()), ..self }
    }

    /// Returns the real path of a file of the folder, with all links resolved.
    ///
    /// # Errors
    /// E001 for a name that leads out of the folder, E007 for what is not there.
    pub fn path_of(&self, name: &str) -> Result<PathBuf> {
        let escapes = || Error::format("the name leads out of the model's folder").in_file(name);
        let relative = Path::new(name);
        let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !plain || name.contains(['\\', '\0']) {
            return Err(escapes());
        }
        check_name(name).map_err(|why| Error::format(why).in_file(name))?;
        let path = self.folder.join(relative);
        let real = canonicalize(&path).map_err(|error| not_found(&error, &path, relative))?;
        let may_be = self.named.as_deref() == Some(name) || real.starts_with(&self.root);
        if may_be { Ok(real) } else { Err(escapes()) }
    }
}

/// Returns the error for a name that leads to no file. A broken link is not the absence of a file.
fn not_found(error: &io::Error, path: &Path, name: &Path) -> Error {
    if error.kind() == io::ErrorKind::NotFound && path.is_symlink() {
        let message = "broken symbolic link: its target does not exist";
        return Error::io(IoCause::Other, message).in_file(name.display());
    }
    io_error(error, name)
}

/// Returns the repository folder of a Hugging Face cache entry, `models--ORG--NAME`.
fn hub_cache_root(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"))?;
    let repository = snapshots.parent()?;
    repository.join("blobs").is_dir().then(|| repository.to_path_buf())
}

impl SourceSet for ModelFolder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        Ok(Box::new(self.sources.open_file(self.path_of(name)?)?))
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        list_into(&self.folder, "", &mut names)?;
        names.sort_unstable();
        Ok(names)
    }
}

/// Adds the names of the files in a folder, and at the top level of those in its subfolders.
///
/// A broken link, pipe or folder with the name of a model file is listed as well. Opening it then
/// reports the problem; without it the model would seem to have no such file.
fn list_into(folder: &Path, prefix: &str, names: &mut Vec<String>) -> Result<()> {
    for name in list_folder(folder).map_err(|error| io_error(&error, folder))? {
        let path = folder.join(&name);
        let Some(name) = name.to_str() else { continue };
        let hidden = name.starts_with('.');
        let is_listed = match path.metadata() {
            Ok(found) if found.is_file() => true,
            Ok(found) if found.is_dir() && is_companion_file(name) => true,
            Ok(found) if found.is_dir() => {
                if !path.is_symlink() && prefix.is_empty() && !hidden {
                    list_into(&path, &format!("{name}/"), names)?;
                }
                false
            }
            // A link to nothing, what can't be looked at, a pipe.
            _ => !hidden,
        };
        if is_listed {
            names.push(format!("{prefix}{name}"));
        }
    }
    Ok(())
}

/// Returns `true` if a folder has the name of a companion that programs read, which must be a file.
fn is_companion_file(name: &str) -> bool {
    model_file(name) == Some(ModelFile::Companion) && name.contains('.')
}
