//! An output before it appears, opened as it will be afterwards.

use std::fs::File;
use std::path::Path;

use apr_core::{ByteSource, CheckpointReader, Error, IoCause, Result, SourceSet};
use apr_registry::OpenOptions;

use crate::folder::ModelFolder;
use crate::{FileSource, io_error};

/// Files of an [`AtomicOutput`](crate::AtomicOutput) under their final names, and the files that
/// are already in their folder.
pub struct PendingFiles {
    files: Vec<(String, FileSource)>,
    /// The file that names the model, or `None` if its folder does.
    main: Option<String>,
    beside: Option<ModelFolder>,
}

impl PendingFiles {
    /// Takes files with their paths; `main` is the one that names the model, in `folder`, whose
    /// other files stay if `stay`.
    pub(crate) fn new<'f>(
        files: impl Iterator<Item = (&'f Path, &'f File)>,
        folder: &Path,
        main: Option<&Path>,
        stay: bool,
    ) -> Result<Self> {
        let name = |path: &Path| {
            let within = path.strip_prefix(folder).ok().filter(|name| !name.as_os_str().is_empty());
            let name = within.or_else(|| path.file_name().map(Path::new)).unwrap_or(path);
            let parts: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
            parts.join("/")
        };
        let source = |(path, file): (&Path, &File)| {
            let file = file.try_clone().map_err(|error| io_error(&error, path))?;
            Ok((name(path), FileSource::from_file(file, path)?))
        };
        let files: Vec<_> = files.map(source).collect::<Result<_>>()?;

        // A link to a file is replaced where it points, under the name that is there.
        let main = main.map(|main| match files.as_slice() {
            [(only, _)] => only.clone(),
            _ => name(main),
        });
        Ok(Self { files, main, beside: stay.then(|| ModelFolder::open(folder).ok()).flatten() })
    }

    /// Opens the model that the files are, with the companions that it will have.
    ///
    /// # Errors
    /// Those of [`open_model_with_companions`](crate::open_model_with_companions).
    pub fn open_model(&self, options: &OpenOptions) -> Result<Box<dyn CheckpointReader>> {
        let Some(main) = &self.main else {
            return Ok(Box::new(apr_registry::open_folder(self, options)?));
        };
        let reader = apr_registry::open_in(self, main, options)?;
        apr_registry::with_neighbours(reader, self, &options.limits)
    }
}

impl SourceSet for PendingFiles {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        if let Some((_, file)) = self.files.iter().find(|(own, _)| own == name) {
            return Ok(Box::new(file.clone()));
        }
        match &self.beside {
            Some(folder) => folder.open(name),
            None => Err(Error::io(IoCause::NotFound, "no such file").in_file(name)),
        }
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut names: Vec<String> = self.files.iter().map(|(name, _)| name.clone()).collect();
        if let Some(folder) = &self.beside {
            names.extend(folder.list()?);
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}
