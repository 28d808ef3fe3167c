//! What a model has read of a prompt, as a file.
//!
//! The file is safetensors: `tokens` (I64) has the ids, and each key and value is a tensor under
//! the name of the graph's input that it goes into. `__metadata__` has
//!
//! | key | value |
//! |---|---|
//! | `apr.prompt_cache` | `1`, the version |
//! | `model` | the [`identity`] of what computed it |
//! | `digest` | BLAKE3 of all elements, in the order of the file |
//!
//! Keys and values of another cache type are written as the `f32` that they stand for, which become
//! the same bits again. Digests are hexadecimal. Keys and values of a prompt depend on all weights,
//! on the graph, on the arithmetic and on the cache type, which the identity stands for. It covers
//! names, dtypes, shapes and the digest of each tensor. For a file without digests, and where
//! nothing compares them with the weights ([`Generator::distrust_digests`]), it covers samples of
//! the tensors and the state of the files, such as length, time and number, which the caller knows
//! ([`Generator::read_from_files`]); without that state, all bytes of the tensors.
//! Answers are not in the file, because their keys and values are products of single rows.

use std::fmt::{self, Write};

use apr_core::digest::{Digest, TensorDigest};
use apr_core::json;
use apr_graph::ElementType;
use apr_infer::{LanguageModel, Memory, Tensor, Value};
use apr_registry::{ByteSource, CheckpointReader, Error, Limits, Result, keys, safetensors};
use serde_json::{Map, Value as Json, json};

use crate::arrays::arrays_of;
use crate::completion::Generator;
use crate::error::{RunError, RunResult};
use crate::files::{little_endian, type_names};
use crate::runner::Prepared;

const VERSION_KEY: &str = "apr.prompt_cache";
const VERSION: &str = "1";
const MODEL: &str = "model";
const DIGEST: &str = "digest";
const TOKENS: &str = "tokens";

/// Bytes of a sample of a tensor, of which there are three.
const SAMPLE: u64 = 1024;

/// Number of bytes of a tensor that are read at a time.
const PIECE: u64 = 1 << 20;

impl Generator<'_> {
    /// Keeps the keys and values of each prompt: of the next one, only what follows their common
    /// beginning is read ([`Completion::reused`](crate::Completion::reused)).
    ///
    /// # Errors
    /// E003 for an encoder with a decoder, and for a model that keeps states, which are those of
    /// all tokens, or nothing; [`RunError::Request`] where prompts show images.
    pub fn keep_prompts(&mut self) -> RunResult<()> {
        self.check_no_images()?;
        if !self.causal()?.language()?.keeps_rows() {
            let message = "a prompt cache needs a model with keys and values of each token";
            return Err(Error::version(message).into());
        }
        self.kept.get_or_insert_default();
        Ok(())
    }

    /// Sets the state of the files from which the model was read, as a text that differs when any
    /// of them is changed or replaced.
    ///
    /// Weights without digests are then not read as a whole to identify the model of a prompt
    /// cache.
    pub fn read_from_files(&mut self, state: String) {
        self.files = Some(state);
        self.identity = std::cell::OnceCell::new();
    }

    /// Identifies the model of a prompt cache without the digests in its file, because nothing
    /// compares them with the weights.
    pub fn distrust_digests(&mut self) {
        self.distrusts_digests = true;
        self.identity = std::cell::OnceCell::new();
    }

    /// Tokens of the last prompt, whose keys and values are kept.
    #[must_use]
    pub fn kept_prompt(&self) -> &[i64] {
        self.kept.as_ref().map(Memory::tokens).unwrap_or_default()
    }

    /// Takes keys and values from what [`write_prompt_cache`](Self::write_prompt_cache) wrote.
    /// `name` is what errors call it.
    ///
    /// # Errors
    /// Those of [`keep_prompts`](Self::keep_prompts); E001 and E002 for a file that is no prompt
    /// cache, or does not fit the graph; E003 for another version, E004 where its elements were
    /// changed, E008 where it exceeds [`RunOptions::max_memory`](crate::RunOptions::max_memory);
    /// [`RunError::Request`] where another model computed it.
    pub fn read_prompt_cache(
        &mut self,
        file: impl ByteSource + 'static,
        name: &str,
    ) -> RunResult<()> {
        self.keep_prompts()?;
        let part = self.causal()?;
        let language = part.language()?;
        let most = self.runner.options().max_memory;
        self.kept = Some(read(&language, file, name, self.identity(part)?, most)?);
        Ok(())
    }

    /// Writes the keys and values that are kept, a tensor at a time: a safetensors file.
    ///
    /// # Errors
    /// [`RunError::Request`] where none are kept; E003 for types that the format lacks, and what
    /// `sink` ends with.
    pub fn write_prompt_cache(&self, sink: &mut dyn FnMut(&[u8]) -> Result<()>) -> RunResult<()> {
        let Some(memory) = self.kept.as_ref().filter(|memory| !memory.is_empty()) else {
            return Err(RunError::request("no keys and values are kept"));
        };
        let part = self.causal()?;
        let language = part.language()?;
        Ok(write(&language, memory, self.identity(part)?, sink)?)
    }

    fn identity(&self, part: &Prepared<'_>) -> Result<&str> {
        if let Some(known) = self.identity.get() {
            return Ok(known);
        }
        let new = identity(part, self.files.as_deref(), !self.distrusts_digests)?;
        Ok(self.identity.get_or_init(|| new))
    }
}

/// Returns the identity of everything that keys and values depend on: the graph, the arithmetic,
/// the cache type, and the weights.
///
/// # Errors
/// Returns the errors of reading the weights.
fn identity(part: &Prepared<'_>, files: Option<&str>, has_digests: bool) -> Result<String> {
    let mut digest = Hashed(TensorDigest::new());
    let arithmetic = part.session().arithmetic().name();
    let cache_type = part.runner().options().cache_type.name();
    // What a digest is fed can't fail.
    let _ = write!(digest, "{} {arithmetic} {cache_type} {:?}", part.name(), part.graph());
    let reader = part.runner().reader();
    let mut has_all_digests = true;
    for (at, info) in reader.tensors().iter().enumerate() {
        let _ = write!(digest, "{} {} {:?}", info.name, info.dtype, info.shape.dims());
        match reader.stored(at).digest().filter(|_| has_digests) {
            Some(known) => digest.0.update(&known),
            None => {
                has_all_digests = false;
                let len = info.byte_len()?;
                let parts = if files.is_some() { samples(len) } else { all(len) };
                parts.into_iter().try_for_each(|part| feed(reader, at, part, &mut digest.0))?;
            }
        }
    }
    if let Some(files) = files.filter(|_| !has_all_digests) {
        let _ = write!(digest, "{files}");
    }
    Ok(hex(digest.0.value()))
}

/// The beginning, the middle and the end of a tensor.
fn samples(len: u64) -> Vec<(u64, u64)> {
    let size = len.min(SAMPLE);
    let last = len - size;
    let mut offsets = vec![0, last / 2, last];
    offsets.dedup();
    offsets.into_iter().map(|offset| (offset, size)).collect()
}

/// A whole tensor, in pieces.
fn all(len: u64) -> Vec<(u64, u64)> {
    let pieces = 0..len.div_ceil(PIECE);
    pieces.map(|piece| (piece * PIECE, PIECE.min(len - piece * PIECE))).collect()
}

/// Hashes a part of a tensor: its offset and its length.
fn feed(
    reader: &dyn CheckpointReader,
    tensor: usize,
    (offset, len): (u64, u64),
    digest: &mut TensorDigest,
) -> Result<()> {
    let mut buf = vec![0; usize::try_from(len).unwrap_or_default()];
    reader.read_tensor(tensor, offset, &mut buf)?;
    digest.update(&buf);
    Ok(())
}

/// Hashes what is written.
struct Hashed(TensorDigest);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.update(text.as_bytes());
        Ok(())
    }
}

fn hex(digest: Digest) -> String {
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes what a memory has, a tensor at a time.
///
/// # Errors
/// E003 for keys and values whose type safetensors has no name for, and what `sink` ends with.
fn write(
    language: &LanguageModel<'_, '_>,
    memory: &Memory,
    identity: &str,
    sink: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let tokens = Value::from(Tensor::row(memory.tokens().to_vec()));
    let mut values = vec![(TOKENS, &tokens)];
    values.extend(language.kept(memory));
    // Those of another type than `f32` are decoded one at a time, twice.
    let tensor = |value: &Value| value.clone().without_cache()?.tensor().cloned();
    let (mut header, mut end, mut digest) = (Map::new(), 0, TensorDigest::new());
    for (name, value) in &values {
        let tensor = tensor(value)?;
        let bytes = little_endian(tensor.data());
        let start = end;
        end += bytes.len();
        let dtype = dtype_name(tensor.element()).map_err(|error| error.for_tensor(*name))?;
        digest.update(&bytes);
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": dtype, "shape": tensor.shape(), "data_offsets": [start, end] }),
        );
    }
    let metadata = json!({
        VERSION_KEY: VERSION, MODEL: identity, DIGEST: hex(digest.value()),
    });
    header.insert("__metadata__".to_owned(), metadata);
    let mut header = json::text(&Json::Object(header));
    // Elements then begin at a multiple of 8.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    sink(&(header.len() as u64).to_le_bytes())?;
    sink(header.as_bytes())?;
    values.iter().try_for_each(|(_, value)| sink(&little_endian(tensor(value)?.data())))
}

fn dtype_name(element: ElementType) -> Result<&'static str> {
    if element == ElementType::BF16 {
        return Ok("BF16");
    }
    type_names(element).map(|(_, name)| name).ok_or_else(|| {
        Error::version(format!("keys and values of {} can't be stored in a file", element.name()))
    })
}

/// The memory of a file.
///
/// # Errors
/// E001 and E002 for a file that is no prompt cache, or does not fit the graph; E003 for another
/// version, E004 where its elements were changed, E008 where it exceeds `max_memory`;
/// [`RunError::Request`] where something else computed it.
fn read(
    language: &LanguageModel<'_, '_>,
    file: impl ByteSource + 'static,
    name: &str,
    identity: &str,
    max_memory: u64,
) -> RunResult<Memory> {
    let len = file.len();
    if len > max_memory {
        // Without a file it is the limit that is too low.
        let message = format!("{name}: {len} bytes exceed the memory limit of {max_memory}");
        return Err(Error::memory(message).into());
    }
    let reader = safetensors::open(file, name, &Limits::default())?;
    let text = |key: &str| {
        let metadata = reader.metadata().get(keys::SAFETENSORS)?.get("metadata")?;
        Some(metadata.get(key)?.as_str()?.to_owned())
    };
    match text(VERSION_KEY) {
        Some(version) if version == VERSION => {}
        Some(version) => {
            let message = format!("version {} of a prompt cache", apr_core::Escaped(&version));
            return Err(Error::version(message).in_file(name).into());
        }
        None => return Err(Error::format("the file is not a prompt cache").in_file(name).into()),
    }
    if text(MODEL).as_deref() != Some(identity) {
        return Err(RunError::request(format!(
            "{name}: the prompt cache belongs to another model, or to another part, task, \
             arithmetic or cache type; remove it to create a new one"
        )));
    }
    let in_file = |error: Error| error.in_file(name);
    let arrays = arrays_of(&reader).map_err(in_file)?;
    let mut digest = TensorDigest::new();
    arrays.iter().for_each(|(_, tensor)| digest.update(&little_endian(tensor.data())));
    if text(DIGEST) != Some(hex(digest.value())) {
        return Err(Error::checksum("the digest of the elements").in_file(name).into());
    }
    let mut arrays: std::collections::BTreeMap<String, Tensor> = arrays.into_iter().collect();
    let missing = || Error::format("missing token ids").for_tensor(TOKENS);
    let tokens = arrays.remove(TOKENS).ok_or_else(missing).map_err(in_file)?;
    let tokens = tokens.values::<i64>().map_err(in_file)?.to_vec();
    Ok(language.restored(tokens, |name| arrays.remove(name)).map_err(in_file)?)
}
