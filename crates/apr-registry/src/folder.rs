//! Hugging Face folders: weights, and the files that travel with them.

use apr_core::{
    ByteSource, CheckpointReader, Companion, Error, FileInfo, IoCause, Limits, Metadata, Result, SourceSet, keys,
    pass_on, read_vec,
};
use serde_json::{Map, Value};

use crate::formats::has_index;
use crate::{OpenOptions, open_in};

/// The file whose content becomes `model_type` and `architecture`.
const CONFIG: &str = "config.json";

/// Files that say that the weights beside them are one model.
const CONFIGS: [&str; 2] = [CONFIG, "adapter_config.json"];

/// Extensions that only files of weights have, and that are read.
const READ: [&str; 7] = ["safetensors", "apr", "gguf", "pt", "pth", "ckpt", "onnx"];

/// What describes the `.distcp` files of a distributed checkpoint.
const DISTRIBUTED: &str = apr_pytorch::METADATA;

/// The names of PyTorch weights, which are read where there are none in a safer format.
const PYTORCH: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// The configuration of an adapter, and what the weights beside it are called.
const ADAPTER_CONFIG: &str = "adapter_config.json";
const ADAPTERS: [&str; 3] = ["adapter_model.safetensors", "adapters.safetensors", "adapter_model.bin"];

/// Weights of other frameworks and formats that folders carry beside the ones that were opened.
const WEIGHTS: [&str; 12] =
    ["safetensors", "bin", "pt", "pth", "ckpt", "gguf", "onnx", "h5", "msgpack", "tflite", "ot", "apr"];

/// A checkpoint together with the companions of its folder.
pub struct FolderCheckpoint {
    inner: Box<dyn CheckpointReader>,
    metadata: Metadata,
    /// Those inside the weights' file, then those of the folder.
    companions: Vec<Companion>,
    /// Of the companions of the folder.
    sources: Vec<Box<dyn ByteSource>>,
    left_out: Vec<String>,
    limits: Limits,
    warnings: Vec<String>,
}

/// Opens a model's folder: the weights (`model.safetensors`, an index or manifest of shards, or the only weights file,
/// which a split GGUF model counts as) and its companions.
///
/// # Errors
/// E001 when there are no weights or the choice is not clear, otherwise those of [`open_in`].
pub fn open_folder(set: &dyn SourceSet, options: impl Into<OpenOptions>) -> Result<FolderCheckpoint> {
    let options = options.into();
    let weights = find_weights(&set.list()?)?;
    if let Some((number, count)) = shard_number(&weights).filter(|_| !is_gguf(&weights)) {
        let index = if weights.ends_with(".apr") { "manifest" } else { "index" };
        let message = format!("this is shard {number} of {count}, and the folder has no {index} of the shards");
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
        sources: Vec::new(),
        limits: *limits,
    };
    let names = set.list()?;
    let warning = shard_warning(&*checkpoint.inner, &names);
    checkpoint.warnings.extend(warning.filter(|warning| !checkpoint.warnings.contains(warning)));
    for name in names {
        // A file that was opened by itself has the path it was opened by.
        let is_own = |file: &FileInfo| file.name == name || file.name.ends_with(&format!("/{name}"));
        if checkpoint.inner.files().iter().any(is_own) || is_index(&name) {
            continue;
        }
        // What travels inside the weights' own file is newer.
        if checkpoint.companions.iter().any(|companion| companion.name == name) {
            continue;
        }
        if is_companion(&name) {
            checkpoint.add(set, &name)?;
        } else if !name.contains('/') {
            checkpoint.left_out.push(name);
        }
    }
    checkpoint.describe()?;
    Ok(checkpoint)
}

/// A checkpoint that was opened by itself, with a warning where it is one shard of several; `set` is the folder it is in.
///
/// # Errors
/// E007 when the folder can't be read.
pub fn alone(inner: Box<dyn CheckpointReader>, set: &dyn SourceSet) -> Result<Box<dyn CheckpointReader>> {
    let Some(warning) = shard_warning(&*inner, &set.list()?) else { return Ok(inner) };
    Ok(Box::new(FolderCheckpoint {
        metadata: inner.metadata().clone(),
        warnings: inner.warnings().iter().cloned().chain([warning]).collect(),
        companions: inner.companions().to_vec(),
        left_out: inner.left_out().to_vec(),
        inner,
        sources: Vec::new(),
        limits: Limits::default(),
    }))
}

/// That a file is one shard of several, and what names all of them.
fn shard_warning(inner: &dyn CheckpointReader, names: &[String]) -> Option<String> {
    // Parts of a split GGUF model need no index, and their reader reports what is missing, as that of .apr shards does.
    let [file] = inner.files() else { return None };
    let (number, count) = shard_number(&file.name).filter(|_| has_index(inner.format()))?;
    let file = file.name.rsplit(['/', '\\']).next().unwrap_or(&file.name);
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    let stem = shard_stem(file).unwrap_or_default();
    let index = format!("{stem}.{extension}.index.json");
    Some(if names.contains(&index) {
        format!("this is shard {number} of {count} alone; {index} names the whole model")
    } else {
        format!("this is shard {number} of {count} alone; the folder lacks {index}, which names the whole model")
    })
}

/// Whether a name is that of one shard of several.
#[must_use]
pub fn is_shard_name(name: &str) -> bool {
    shard_number(name).is_some()
}

fn find_weights(names: &[String]) -> Result<String> {
    let top = || names.iter().filter(|name| !name.contains('/'));
    if top().any(|name| name == DISTRIBUTED) && top().any(|name| name.ends_with(".distcp")) {
        return Ok(DISTRIBUTED.to_owned());
    }
    check_one_model(names)?;
    if let Some(name) = top().find(|name| *name == "model.safetensors") {
        return Ok(name.clone());
    }
    // What was made of an adapter may lie beside it.
    let is_adapter = top().any(|name| name == ADAPTER_CONFIG);
    if let Some(name) = ADAPTERS.iter().find_map(|adapter| top().find(|name| is_adapter && *name == adapter)) {
        return Ok(name.clone());
    }
    let indexes: Vec<_> = top().filter(|name| name.ends_with(".safetensors.index.json")).collect();
    let native = || top().filter(|name| name.ends_with(".apr"));
    // A manifest stands for its shards; without one, the first reports what is missing.
    let has_manifest =
        |shard: &str| shard_stem(shard).is_some_and(|stem| native().any(|name| *name == format!("{stem}.apr")));
    let is_covered = |name: &str| match shard_number(name) {
        Some((number, _)) => number != 1 || has_manifest(name),
        None => false,
    };
    let files: Vec<_> =
        top().filter(|name| name.ends_with(".safetensors")).chain(native().filter(|name| !is_covered(name))).collect();
    let pickled = top().find(|name| PYTORCH.contains(&name.as_str()));
    if let (true, true, Some(pickled)) = (indexes.is_empty(), files.is_empty(), pickled) {
        return Ok(pickled.clone());
    }
    // Of a split model, the first part stands for all.
    let is_later_part = |name: &str| shard_number(name).is_some_and(|(number, _)| number != 1);
    let quantized: Vec<_> = top().filter(|name| is_gguf(name) && !is_later_part(name)).collect();
    let files = if indexes.is_empty() && files.is_empty() { quantized } else { files };
    let exported = || top().filter(|name| name.ends_with(".onnx")).collect();
    let files = if indexes.is_empty() && files.is_empty() { exported() } else { files };
    match (indexes.as_slice(), files.as_slice()) {
        ([index], _) => Ok((*index).clone()),
        ([], [file]) => Ok((*file).clone()),
        ([], []) => {
            let others: Vec<_> = top().filter(|name| is_weights(name)).map(String::as_str).collect();
            let found = if others.is_empty() { String::new() } else { format!("; it holds {}", others.join(", ")) };
            Err(Error::format(format!("the folder holds no weights that apr reads{found}")))
        }
        (many, files) => {
            let many: Vec<_> = many.iter().chain(files).map(|name| name.as_str()).collect();
            Err(Error::format(format!("the folder holds several models; name one of {}", many.join(", "))))
        }
    }
}

/// Refuses a folder of files that nothing makes one model: without a configuration, each file of weights is one. With it,
/// they are the same model for several programs.
fn check_one_model(names: &[String]) -> Result<()> {
    /// Names that an error lists.
    const SHOWN: usize = 20;
    let top = || names.iter().filter(|name| !name.contains('/'));
    if top().any(|name| CONFIGS.contains(&name.as_str()) || name.ends_with(".index.json")) {
        return Ok(());
    }
    let is_model = |name: &str| {
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        READ.contains(&extension) && shard_number(name).is_none_or(|(number, _)| number == 1)
    };
    // A manifest and its first shard are one.
    let is_shard = |name: &str| shard_stem(name).is_some_and(|stem| top().any(|other| *other == format!("{stem}.apr")));
    let models: Vec<&str> = top().map(String::as_str).filter(|name| is_model(name) && !is_shard(name)).collect();
    if models.len() < 2 {
        return Ok(());
    }
    let more = if models.len() > SHOWN { format!(" and {} more", models.len() - SHOWN) } else { String::new() };
    let listed = models[..models.len().min(SHOWN)].join(", ");
    Err(Error::format(format!("the folder holds {} models; name one of {listed}{more}", models.len())))
}

/// What the names of a model's shards start with: `model` of `model-00001-of-00003.apr`.
fn shard_stem(name: &str) -> Option<&str> {
    shard_number(name)?;
    let (rest, _) = name.rsplit_once("-of-")?;
    rest.rsplit_once('-').map(|(stem, _)| stem)
}

/// Number and count of a shard, by its name: `model-00001-of-00003.safetensors`.
pub(crate) fn shard_number(name: &str) -> Option<(u32, u32)> {
    let (stem, _) = name.rsplit_once('.')?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let (number, count) = (number.parse().ok()?, count.parse().ok()?);
    (count > 1).then_some((number, count))
}

fn is_gguf(name: &str) -> bool {
    name.ends_with(".gguf")
}

fn is_index(name: &str) -> bool {
    name.ends_with(".index.json")
}

fn is_weights(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| WEIGHTS.contains(&extension))
}

/// Configuration, tokenizer, chat template, model card and licence, by the names the hub uses.
fn is_companion(name: &str) -> bool {
    let (folder, file) = name.rsplit_once('/').map_or(("", name), |(folder, file)| (folder, file));
    if !folder.is_empty() {
        // Modules of sentence-transformers (`1_Pooling/config.json`), and templates beside the one that is used by default.
        return file == CONFIG || (folder == "additional_chat_templates" && file.ends_with(".jinja"));
    }
    let extension = file.rsplit_once('.').map_or("", |(_, extension)| extension);
    file == apr_onnx::skeleton::COMPANION
        || ["json", "txt", "md", "model", "jinja", "tiktoken", "yaml", "yml"].contains(&extension)
        || ["LICENSE", "LICENCE", "NOTICE", "USE_POLICY"].iter().any(|prefix| file.starts_with(prefix))
}

impl FolderCheckpoint {
    fn add(&mut self, set: &dyn SourceSet, name: &str) -> Result<()> {
        let source = set.open(name).map_err(|error| error.in_file(name))?;
        // All of them are in memory at once when they are written.
        let total = self.companions.iter().fold(source.len(), |total, other| total.saturating_add(other.len));
        if self.limits.check_companion(total).is_err() {
            self.left_out.push(name.to_owned());
            return Ok(());
        }
        self.companions.push(Companion { name: name.to_owned(), len: source.len() });
        self.sources.push(source);
        Ok(())
    }

    /// Takes family and hyperparameters from the configuration, where the weights don't know them.
    fn describe(&mut self) -> Result<()> {
        let Some(position) = self.companions.iter().position(|companion| companion.name == CONFIG) else {
            return Ok(());
        };
        let bytes = self.read_companion(position)?;
        let config = match Metadata::parse(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes)) {
            Ok(config) => config,
            Err(error) => {
                self.warnings.push(error.in_file(CONFIG).to_string());
                return Ok(());
            }
        };
        if let Some(family) = config.text(keys::MODEL_TYPE) {
            self.metadata.set_default(keys::MODEL_TYPE, family);
        }
        let architecture: Map<String, Value> = config
            .iter()
            .filter(|(key, _)| *key != keys::MODEL_TYPE)
            .filter_map(|(key, value)| Some((key.to_owned(), hyperparameter(value, true)?)))
            .collect();
        self.metadata.set_default(keys::ARCHITECTURE, architecture);
        Ok(())
    }
}

/// What of a configuration's entry describes the network: scalars, short lists of them (the channels of convolutions),
/// and those of a part with a configuration of its own (`text_config`). Tables of labels are neither.
fn hyperparameter(value: &Value, top: bool) -> Option<Value> {
    /// Longest list that is kept.
    const LONGEST: usize = 256;
    let is_scalar = |value: &Value| value.is_number() || value.is_boolean() || value.is_string();
    match value {
        Value::Array(items) => (items.len() <= LONGEST && items.iter().all(is_scalar)).then(|| value.clone()),
        Value::Object(part) if top && part.contains_key(keys::MODEL_TYPE) => {
            let entries = part.iter().filter_map(|(key, value)| Some((key.clone(), hyperparameter(value, false)?)));
            Some(Value::Object(entries.collect()))
        }
        value => is_scalar(value).then(|| value.clone()),
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
        read_vec(&self.sources[position], 0, *len).map_err(|error| error.in_file(name))
    }

    fn left_out(&self) -> &[String] {
        &self.left_out
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
