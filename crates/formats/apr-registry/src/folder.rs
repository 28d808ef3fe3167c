//! Hugging Face folders: weights, and the files that travel with them.

use std::sync::OnceLock;

use apr_core::json::of_python;
use apr_core::{
    ByteSource, CheckpointReader, Companion, Error, FileInfo, IoCause, Limits, Metadata, Result,
    SourceSet, keys, pass_on, read_vec,
};
use serde_json::{Map, Value};

use crate::first_module::{FirstModule, module_folders};
use crate::in_folder::{INDEX, is_shard_name, shard_number, shard_stem};
use crate::weights::{CONFIG, CONFIGS, find_weights, has_index, what_names_the_shards};
use crate::{OpenOptions, open_in};

/// Maximum length of companions that stay in memory after they were read.
///
/// The configuration is read for each inspection of a model, and again when a job copies the
/// companions.
const KEPT_LEN: u64 = 1 << 20;

/// A checkpoint together with the companions of its folder.
pub struct FolderCheckpoint {
    inner: Box<dyn CheckpointReader>,
    metadata: Metadata,
    /// Companions inside the weights file, followed by the companions of the folder.
    companions: Vec<Companion>,
    /// Sources of the folder's companions.
    beside: Vec<Beside>,
    left_out: Vec<String>,
    limits: Limits,
    warnings: Vec<String>,
}

/// A file beside the weights.
struct Beside {
    source: Box<dyn ByteSource>,
    /// Bytes of the file after the first read, if it is small.
    kept: OnceLock<Vec<u8>>,
}

impl Beside {
    fn read(&self, len: u64) -> Result<Vec<u8>> {
        if let Some(kept) = self.kept.get() {
            return Ok(kept.clone());
        }
        let bytes = read_vec(&self.source, 0, len)?;
        if len <= KEPT_LEN {
            self.kept.get_or_init(|| bytes.clone());
        }
        Ok(bytes)
    }
}

/// Opens a model's folder: the weights (`model.safetensors`, an index or manifest of shards, or the
/// only weights file, which a split GGUF model counts as) and its companions.
///
/// If the weights are in the folder of the first module of sentence-transformers, its files are
/// companions under the names that they have without that folder.
///
/// # Errors
/// E001 when there are no weights or the choice is not clear, otherwise those of [`open_in`].
pub fn open_folder(
    set: &dyn SourceSet,
    options: impl Into<OpenOptions>,
) -> Result<FolderCheckpoint> {
    let options = options.into();
    let names = set.list()?;
    let weights = match find_weights(&names) {
        Ok(weights) => weights,
        Err(error) => {
            let first = FirstModule::of(set, &names, &options.limits)?.ok_or(error)?;
            return open_folder(&first, options).map_err(|error| first.locate(error));
        }
    };
    if let (Some((number, count)), Some(index)) =
        (shard_number(&weights), what_names_the_shards(&weights))
    {
        let message = format!(
            "this is shard {number} of {count}, and the folder does not contain the {index} of \
             the shards"
        );
        return Err(Error::io(IoCause::NotFound, message).in_file(weights));
    }
    with_companions(open_in(set, &weights, &options)?, set, &options.limits)
}

/// Adds the companions of its folder to a checkpoint.
///
/// # Errors
/// E007 when the folder or one of the files can't be read.
pub fn with_companions(
    inner: Box<dyn CheckpointReader>,
    set: &dyn SourceSet,
    limits: &Limits,
) -> Result<FolderCheckpoint> {
    let mut checkpoint = FolderCheckpoint {
        metadata: inner.metadata().clone(),
        warnings: inner.warnings().to_vec(),
        companions: inner.companions().to_vec(),
        left_out: inner.left_out().to_vec(),
        inner,
        beside: Vec::new(),
        limits: *limits,
    };

    let names = set.list()?;
    let modules = module_folders(set, &names, limits)?;
    let warning = shard_warning(&*checkpoint.inner, &names);
    checkpoint.warnings.extend(warning.filter(|warning| !checkpoint.warnings.contains(warning)));
    for name in names {
        // A file that was opened by itself has the path it was opened by.
        let is_own = |name: &str| {
            let is =
                |file: &FileInfo| file.name == name || file.name.ends_with(&format!("/{name}"));
            checkpoint.inner.files().iter().any(is)
        };
        if is_own(&name) {
            continue;
        }
        if let Some(file) = name.strip_suffix(INDEX) {
            // A file is preferred to an index of its shards. Other indexes stand for the shards.
            if is_own(file) {
                checkpoint.left_out.push(name);
            }
            continue;
        }

        // What travels inside the weights' own file is newer.
        if checkpoint.companions.iter().any(|companion| companion.name == name) {
            continue;
        }

        let of_module = |(folder, _): (&str, &str)| modules.iter().any(|module| module == folder);
        if name.split_once('/').is_some_and(of_module) {
            checkpoint.add_whole(set, &name)?;
        } else if Companion::is_name(&name) || SKELETONS.contains(&&*name) {
            checkpoint.add(set, &name)?;
        } else {
            checkpoint.left_out.push(name);
        }
    }

    checkpoint.describe()?;
    Ok(checkpoint)
}

/// Opens a model of one file together with the companions in its folder.
///
/// The companions are added if a configuration shows that they belong to the model. If the file is
/// one shard of several, a warning is added.
///
/// # Errors
/// E007 if the folder or one of the companions can't be read.
pub fn with_neighbours(
    reader: Box<dyn CheckpointReader>,
    set: &dyn SourceSet,
    limits: &Limits,
) -> Result<Box<dyn CheckpointReader>> {
    // A format that holds companions has all of them.
    let is_whole = !reader.companions().is_empty()
        && reader.format().target.is_none_or(|target| target.self_contained);
    if is_whole {
        return Ok(reader);
    }
    if CONFIGS.iter().any(|config| set.has(config)) {
        return Ok(Box::new(with_companions(reader, set, limits)?));
    }
    // Without a configuration, the neighbours are other files that happen to be there.
    let is_shard = matches!(reader.files(), [file] if is_shard_name(plain_name(&file.name)));
    if is_shard { alone(reader, set) } else { Ok(reader) }
}

/// The name of a file without its folders.
fn plain_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Adds a configuration from another folder to a checkpoint.
///
/// The configuration is the bytes of a `config.json`, which becomes one of the checkpoint's
/// companions.
///
/// # Errors
/// E001 if the bytes are not a configuration, E007 if it can't be read, E008 if it exceeds the
/// limits.
pub fn with_config(
    inner: Box<dyn CheckpointReader>,
    config: Box<dyn ByteSource>,
    limits: &Limits,
) -> Result<FolderCheckpoint> {
    limits.check_metadata(config.len())?;
    let bytes = read_vec(&config, 0, config.len())?;
    Metadata::parse(&of_python(&bytes))?;

    let mut checkpoint = FolderCheckpoint {
        metadata: inner.metadata().clone(),
        warnings: inner.warnings().to_vec(),
        companions: inner.companions().to_vec(),
        left_out: inner.left_out().to_vec(),
        inner,
        beside: Vec::new(),
        limits: *limits,
    };

    // What a container writes where nothing is known is no configuration.
    let metadata = &mut checkpoint.metadata;
    if metadata.text(keys::MODEL_TYPE).is_some_and(|name| ["", "unknown"].contains(&name)) {
        metadata.remove(keys::MODEL_TYPE);
    }
    if metadata.object(keys::ARCHITECTURE).is_some_and(Map::is_empty) {
        metadata.remove(keys::ARCHITECTURE);
    }

    checkpoint.companions.push(Companion { name: CONFIG.to_owned(), len: config.len() });
    checkpoint.beside.push(Beside { source: config, kept: OnceLock::from(bytes) });
    checkpoint.describe()?;
    Ok(checkpoint)
}

/// Returns a checkpoint that was opened by itself, with a warning if it is one shard of several.
///
/// `set` is the folder of the checkpoint.
///
/// # Errors
/// E007 if the folder can't be read.
pub fn alone(
    inner: Box<dyn CheckpointReader>,
    set: &dyn SourceSet,
) -> Result<Box<dyn CheckpointReader>> {
    let Some(warning) = shard_warning(&*inner, &set.list()?) else { return Ok(inner) };
    if inner.warnings().contains(&warning) {
        return Ok(inner);
    }
    Ok(Box::new(FolderCheckpoint {
        metadata: inner.metadata().clone(),
        warnings: inner.warnings().iter().cloned().chain([warning]).collect(),
        companions: inner.companions().to_vec(),
        left_out: inner.left_out().to_vec(),
        inner,
        beside: Vec::new(),
        limits: Limits::default(),
    }))
}

/// Returns a warning if the file is one shard of several, with the name of the shards' index.
fn shard_warning(inner: &dyn CheckpointReader, names: &[String]) -> Option<String> {
    // Parts of a split GGUF model need no index, and their reader reports what is missing, as that
    // of .apr shards does.
    let [file] = inner.files() else { return None };
    let (number, count) = shard_number(&file.name).filter(|_| has_index(inner.format()))?;
    let file = plain_name(&file.name);
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    let stem = shard_stem(file).unwrap_or_default();
    let index = format!("{stem}.{extension}.index.json");
    Some(if names.contains(&index) {
        format!("this is only shard {number} of {count}; open {index} instead")
    } else {
        format!("this is only shard {number} of {count}; the folder does not contain {index}")
    })
}

/// Companions that store the rest of a model's file besides its weights: of an ONNX file, and of
/// others with a graph.
///
/// They are copied even if their formats are not built in.
pub(crate) const SKELETONS: [&str; 2] = ["model.onnx.graph", "model.graph"];

impl FolderCheckpoint {
    /// Adds a file that the model is not whole without.
    fn add_whole(&mut self, set: &dyn SourceSet, name: &str) -> Result<()> {
        let left_out = self.left_out.len();
        self.add(set, name)?;
        if self.left_out.len() > left_out {
            let message = format!(
                "the file is part of the model, and companions exceed the limit of {} bytes with \
                 it",
                self.limits.max_companion
            );
            return Err(Error::memory(message).in_file(name));
        }
        Ok(())
    }

    fn add(&mut self, set: &dyn SourceSet, name: &str) -> Result<()> {
        let source = set.open(name).map_err(|error| error.in_file(name))?;
        // All of them are in memory at once when they are written.
        let total = self
            .companions
            .iter()
            .fold(source.len(), |total, other| total.saturating_add(other.len));
        if self.limits.check_companion(total).is_err() {
            self.left_out.push(name.to_owned());
            return Ok(());
        }
        self.companions.push(Companion { name: name.to_owned(), len: source.len() });
        self.beside.push(Beside { source, kept: OnceLock::new() });
        Ok(())
    }

    /// Copies family and hyperparameters from the configuration, if the weights file does not have
    /// them.
    fn describe(&mut self) -> Result<()> {
        let Some(position) = self.companions.iter().position(|companion| companion.name == CONFIG)
        else {
            return Ok(());
        };
        let bytes = self.read_companion(position)?;
        let config = match Metadata::parse(&of_python(&bytes)) {
            Ok(config) => config,
            Err(error) => {
                let why = error.message();
                let why = why.strip_prefix("the metadata is ").unwrap_or(why);
                self.warnings.push(format!("{CONFIG}: {why}"));
                return Ok(());
            }
        };

        if let Some(family) = config.text(keys::MODEL_TYPE) {
            self.metadata.set_default(keys::MODEL_TYPE, family);
        }

        let architecture: Map<String, Value> = config
            .iter()
            .filter(|(key, _)| *key != keys::MODEL_TYPE)
            .filter_map(|(key, value)| Some((key.to_owned(), hyperparameter(key, value, true)?)))
            .collect();
        self.metadata.set_default(keys::ARCHITECTURE, architecture);
        Ok(())
    }
}

/// Returns the part of a configuration entry that describes the network.
///
/// It keeps scalars, short lists of scalars (such as the channels of convolutions), lists of such
/// lists, the entries of a part with its own configuration (`text_config`), and settings of
/// positions and quantized weights. It also keeps null, because a missing entry means the default.
/// Tables of labels are left out.
fn hyperparameter(key: &str, value: &Value, top: bool) -> Option<Value> {
    /// Longest list that is kept.
    const LONGEST: usize = 256;
    /// Entries that are objects; objects for rotary positions may have one entry for each kind of
    /// layer, and settings of single layers have their numbers.
    const OBJECTS: [&str; 8] = [
        "per_layer_config",
        "text_config",
        "vision_config",
        "rope_parameters",
        "rope_scaling",
        "full_attention",
        "sliding_attention",
        "quantization_config",
    ];

    let is_layer = !top && key.bytes().all(|byte| byte.is_ascii_digit());
    let is_scalar = |value: &Value| value.is_number() || value.is_boolean() || value.is_string();
    match value {
        Value::Array(items) => {
            // Lists of lists: hidden sizes of each stage, boxes, ranges.
            let is_flat = |list: &Value| list.as_array().is_some_and(|it| it.iter().all(is_scalar));
            let elements = |list: &Value| list.as_array().map_or(1, Vec::len);
            let is_short = items.iter().map(elements).sum::<usize>() <= LONGEST;
            let is_kept = items.iter().all(|item| is_scalar(item) || is_flat(item));
            (is_short && is_kept).then(|| value.clone())
        }
        Value::Object(part)
            if OBJECTS.contains(&key)
                || is_layer
                || (top && part.contains_key(keys::MODEL_TYPE)) =>
        {
            let entries = part
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), hyperparameter(key, value, false)?)));
            Some(Value::Object(entries.collect()))
        }
        value => (is_scalar(value) || value.is_null()).then(|| value.clone()),
    }
}

impl CheckpointReader for FolderCheckpoint {
    pass_on!(inner: format, tensors, stored, read_tensor, tensor_slice, container, files);

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let Some(position) = companion.checked_sub(self.inner.companions().len()) else {
            return self.inner.read_companion(companion);
        };
        let Companion { name, len } = &self.companions[companion];
        self.beside[position].read(*len).map_err(|error| error.in_file(name))
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
