//! Models as paths name them.

use std::path::Path;

use apr_core::Result;
use apr_registry::apr2::{self, ShardedApr2};
use apr_registry::{ByteSource, CheckpointReader, HEAD_LEN, OpenOptions, read_vec};

use crate::names::{is_index, is_part};
use crate::remote::is_remote;
use crate::{FileSource, ModelFolder, Sources, io_error};

/// Opens a file, a Hugging Face folder, an index or manifest of shards, or a part of a split GGUF
/// model with all others.
///
/// # Errors
/// E001 for what is not a model, E007 when a file can't be read, otherwise what the format's reader
/// says.
pub fn open_model(path: &Path, options: &OpenOptions) -> Result<Box<dyn CheckpointReader>> {
    Sources::default().open_model(path, options)
}

/// Opens a model together with the configuration and tokenizer files in its folder.
///
/// # Errors
/// The errors of [`open_model`].
pub fn open_model_with_companions(
    path: &Path,
    options: &OpenOptions,
) -> Result<Box<dyn CheckpointReader>> {
    Sources::default().open_model_with_companions(path, options)
}

/// Returns `true` if a path names a manifest of shards.
///
/// # Errors
/// E007 when it can't be read.
pub fn is_manifest(path: &Path) -> Result<bool> {
    is_manifest_head(path, &FileSource::open(path)?)
}

impl Sources {
    /// Opens the same models as [`open_model`](crate::open_model).
    ///
    /// # Errors
    /// The errors of [`open_model`](crate::open_model), and E007 when a file was changed meanwhile.
    pub fn open_model(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Box<dyn CheckpointReader>> {
        if is_remote(path) {
            return self.open_remote(path, false, options);
        }
        let opened = self.open_parts(path, options);
        // What was read in two states may look damaged, or like a third one.
        self.check_unchanged()?;
        opened
    }

    fn open_parts(&self, path: &Path, options: &OpenOptions) -> Result<Box<dyn CheckpointReader>> {
        let name = path.display();
        if path.is_dir() {
            let folder = ModelFolder::watched(path, self)?;
            self.remember_folder(path);
            let opened = apr_registry::open_folder(&folder, options);
            return Ok(Box::new(opened.map_err(|error| folder.locate(error).in_file(name))?));
        }

        if is_index(path) || is_part(path) {
            let (folder, file) = self.neighbourhood(path)?;
            let opened = apr_registry::open_in(&folder, &file, options);
            return opened.map_err(|error| folder.locate(error));
        }

        let source = self.open_file(path)?;
        let head = head_of(&source)?;
        if apr_registry::is_manifest(&path.to_string_lossy(), &head) {
            return Ok(Box::new(self.open_manifest(path, options)?));
        }

        let by_extension = path.extension().and_then(|extension| extension.to_str());
        if apr_registry::recognise_file(&head, by_extension)
            .is_some_and(apr_registry::may_span_files)
        {
            let (folder, file) = self.neighbourhood(path)?;
            let opened = apr_registry::open_in(&folder, &file, options);
            return opened.map_err(|error| folder.locate(error));
        }
        let reader = apr_registry::open(source, &name.to_string(), options)?;
        let is_shard = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(apr_registry::is_shard_name);
        if is_shard {
            let (folder, _) = self.neighbourhood(path)?;
            apr_registry::alone(reader, &folder).map_err(|error| folder.locate(error))
        } else {
            Ok(reader)
        }
    }

    /// Opens the shards in the folder of a manifest as one model.
    ///
    /// # Errors
    /// E001 and E002 for what is not a sound manifest, E007 when it can't be read, E008 when it
    /// exceeds the limits.
    pub fn open_manifest(&self, path: &Path, options: &OpenOptions) -> Result<ShardedApr2> {
        let source = self.open_file(path)?;
        let manifest = self.open_manifest_of(&source, path, options);
        self.check_unchanged()?;
        manifest
    }

    /// Opens the shards of a manifest that is open; `path` determines their folder.
    ///
    /// # Errors
    /// The errors of [`open_manifest`](Self::open_manifest).
    pub fn open_manifest_of(
        &self,
        source: &FileSource,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<ShardedApr2> {
        let (folder, file) = self.neighbourhood(path)?;
        let json = options
            .limits
            .check_metadata(source.len())
            .and_then(|()| read_vec(source, 0, source.len()));
        let json = json.map_err(|error| error.in_file(path.display()))?;
        apr2::open_manifest(&json, &file, &folder, &options.limits, &options.keys)
            .map_err(|error| folder.locate(error))
    }

    /// Opens the same models as [`open_model_with_companions`](crate::open_model_with_companions).
    ///
    /// # Errors
    /// The errors of [`open_model`](Self::open_model).
    pub fn open_model_with_companions(
        &self,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Box<dyn CheckpointReader>> {
        if is_remote(path) {
            return self.open_remote(path, true, options);
        }

        let reader = self.open_model(path, options)?;

        if path.is_dir() {
            return Ok(reader);
        }
        let (folder, _) = self.neighbourhood(path)?;
        self.remember_folder(path.parent().unwrap_or(Path::new("")));
        let opened = apr_registry::with_neighbours(reader, &folder, &options.limits);
        opened.map_err(|error| folder.locate(error))
    }

    fn neighbourhood(&self, path: &Path) -> Result<(ModelFolder, String)> {
        // A missing file is reported by its own name, not by its folder's.
        path.metadata().map_err(|error| io_error(&error, path))?;
        let folder = ModelFolder::watched(path.parent().unwrap_or(Path::new("")), self)?;
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((folder.naming(&file), file))
    }
}

fn is_manifest_head(path: &Path, source: &FileSource) -> Result<bool> {
    Ok(apr_registry::is_manifest(&path.to_string_lossy(), &head_of(source)?))
}

fn head_of(source: &FileSource) -> Result<Vec<u8>> {
    read_vec(source, 0, source.len().min(HEAD_LEN))
}
