//! Folders of sentence-transformers whose first module, which holds the weights, has a folder of
//! its own: `0_StaticEmbedding/model.safetensors`.

use apr_core::json::{from_python, to_python};
use apr_core::{ByteSource, Error, Limits, Result, SourceSet, read_vec};
use serde_json::{Map, Value};

use crate::weights::find_weights;

/// The list of a sentence-transformers model's modules.
const MODULES: &str = "modules.json";

/// Reads the list of modules of a sentence-transformers model; empty in folders without one.
///
/// # Errors
/// E007 if the file can't be read, E008 if it exceeds the limits.
fn listed(
    set: &dyn SourceSet,
    names: &[String],
    limits: &Limits,
) -> Result<Vec<Map<String, Value>>> {
    if !names.iter().any(|name| name == MODULES) {
        return Ok(Vec::new());
    }
    let in_file = |error: Error| error.in_file(MODULES);
    let file = set.open(MODULES).map_err(in_file)?;
    limits.check_metadata(file.len()).map_err(in_file)?;
    let bytes = read_vec(&file, 0, file.len()).map_err(in_file)?;
    Ok(from_python(&bytes).unwrap_or_default())
}

/// Returns the name of a file within a folder.
fn within<'n>(name: &'n str, folder: &str) -> Option<&'n str> {
    name.strip_prefix(folder)?.strip_prefix('/')
}

fn path(module: &Map<String, Value>) -> Option<&str> {
    module.get("path").and_then(Value::as_str).filter(|path| !path.is_empty())
}

/// Returns the folders of the modules listed in `modules.json` of sentence-transformers.
///
/// Their files are part of the model, including the weights of a dense layer.
///
/// # Errors
/// E007 if the file can't be read, E008 if it exceeds the limits.
pub(crate) fn module_folders(
    set: &dyn SourceSet,
    names: &[String],
    limits: &Limits,
) -> Result<Vec<String>> {
    let listed = listed(set, names, limits)?;
    Ok(listed.iter().filter_map(path).map(str::to_owned).collect())
}

/// A model's folder as later versions of sentence-transformers write it: the files of the first
/// module are at the top.
pub(crate) struct FirstModule<'s> {
    set: &'s dyn SourceSet,
    folder: String,
    names: Vec<String>,
    /// Bytes of the list of modules, in which the first one has no folder.
    modules: Vec<u8>,
}

impl<'s> FirstModule<'s> {
    /// Returns the view of a folder without weights at its top, or `None` if the first module has
    /// no folder, or no weights in it.
    ///
    /// # Errors
    /// E007 if `modules.json` can't be read, E008 if it exceeds the limits.
    pub(crate) fn of(
        set: &'s dyn SourceSet,
        names: &[String],
        limits: &Limits,
    ) -> Result<Option<Self>> {
        let mut listed = listed(set, names, limits)?;
        let Some(folder) = listed.first().and_then(path).map(str::to_owned) else {
            return Ok(None);
        };
        let own: Vec<String> =
            names.iter().filter_map(|name| Some(within(name, &folder)?.to_owned())).collect();
        if find_weights(&own).is_err() {
            return Ok(None);
        }
        listed[0].insert("path".to_owned(), Value::from(""));
        let elsewhere = |name: &&String| within(name, &folder).is_none() && !own.contains(name);
        let mut names: Vec<String> = names.iter().filter(elsewhere).chain(&own).cloned().collect();
        names.sort_unstable();
        Ok(Some(Self { set, folder, names, modules: to_python(&listed) }))
    }

    /// Returns the name of a file in the folder of the first module.
    fn own(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// Names the file of an error as the model's folder does.
    pub(crate) fn locate(&self, error: Error) -> Error {
        match error.file().map(str::to_owned) {
            Some(name) if self.set.has(&self.own(&name)) => error.placing(&name, self.own(&name)),
            _ => error,
        }
    }
}

impl SourceSet for FirstModule<'_> {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        if name == MODULES {
            return Ok(Box::new(self.modules.clone()));
        }
        let own = self.own(name);
        if self.set.has(&own) { self.set.open(&own) } else { self.set.open(name) }
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.names.clone())
    }
}
