//! Writing an APR1 file in one pass, as whisper-apr 0.1 laid it out.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use apr_core::digest::{ChunkSums, Crc32};
use apr_core::{
    CheckpointWriter, DType, Due, Error, FileInfo, Layout, Loss, Metadata, Notes, PlannedTensor,
    Result, Sink, TensorInfo, keys,
};
use serde_json::Value;

use super::hyperparameters::{Hyperparameters, METADATA_KEY};
use super::vocabulary::{MERGES, VOCAB_SIZE, VOCABULARY, VOCABULARY_ENCODING, Vocabulary};
use super::whisper::{
    ENTRY_LEN, HAS_FILTERBANK, HAS_VOCABULARY, HEADER_LEN, Header, NAME_LEN, VERSION,
};
use crate::apr2::CompanionFile;

/// Options of the file layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Name of the file in the layout.
    pub file_name: String,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { file_name: "model.apr".into() }
    }
}

/// An APR1 file being written; see [`plan`].
pub struct Apr1Writer {
    layout: Layout,
    /// Names of the tensors, by position in the layout.
    names: Vec<String>,
    /// Magic, header, index.
    front: Vec<u8>,
    /// Bytes between the weights and the filterbank, or the checksum.
    middle: Vec<u8>,
    /// Number of weights before `middle`.
    weights: usize,
    /// Set once `middle` is written.
    past_middle: bool,
    due: Due,
    crc: Crc32,
}

/// Plans a file: tensors are stored in the order given; the mel filterbank, which is the F32 matrix
/// [`keys::MEL_FILTERBANK_TENSOR`], and the vocabulary of the metadata get their sections. Merges
/// that the metadata lack are looked for in the `merges.txt` of `companions`, of which nothing else
/// is kept.
///
/// # Errors
/// E001 for a tensor that the format can't hold (a name over 48 bytes, over 4 dimensions, a
/// dimension over 2^32 - 1, a dtype other than F32 or F16, or both of these in one file), two of
/// one name, over 65,535 tensors, metadata without the hyperparameters of a Whisper model, and
/// sections over 4 GiB.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    companions: &[CompanionFile],
    options: &WriteOptions,
) -> Result<Apr1Writer> {
    let filterbank = tensors.iter().position(is_filterbank);
    let weights: Vec<usize> = (0..tensors.len()).filter(|&at| Some(at) != filterbank).collect();
    // First, since no cast makes another model a Whisper.
    let hyperparameters = Hyperparameters::of(metadata)?;
    let quantization = quantization(weights.iter().map(|&at| &tensors[at]))?;
    let vocabulary = Vocabulary::of(metadata, || merges_of(companions));
    let count = u16::try_from(weights.len()).map_err(|_| {
        Error::format(format!("{} tensors; APR1 holds {}", weights.len(), u16::MAX))
    })?;
    let has = |flag: u8, is_there: bool| if is_there { flag } else { 0 };
    let header = Header {
        version: VERSION,
        quantization,
        compressed: 0,
        tensors: count,
        flags: has(HAS_VOCABULARY, vocabulary.is_some())
            | has(HAS_FILTERBANK, filterbank.is_some()),
        hyperparameters,
    };

    let mut front = header.encode();
    let data_start = 4 + HEADER_LEN + ENTRY_LEN * u64::from(count);
    let mut planned = Vec::with_capacity(tensors.len());
    let mut end = data_start;
    let mut taken = BTreeSet::new();
    for &source in &weights {
        let info = &tensors[source];
        if !taken.insert(info.name.as_str()) {
            return Err(Error::format("two tensors have this name").for_tensor(&info.name));
        }
        let len = encode_entry(info, end - data_start, &mut front)
            .map_err(|error| error.for_tensor(&info.name))?;
        planned.push(PlannedTensor { source, file: 0, offset: end, len });
        end = add(end, len)?;
    }

    let mut middle = Vec::new();
    if let Some(vocabulary) = &vocabulary {
        let bytes = vocabulary.encode()?;
        middle.extend(section_len(bytes.len() as u64, "the vocabulary")?);
        middle.extend(bytes);
    }

    if let Some(source) = filterbank {
        let len = tensors[source].byte_len()?;
        middle.extend(section_len(len.saturating_add(8), "the mel filterbank")?);
        for &dim in tensors[source].shape.dims() {
            middle.extend(
                narrow(dim)
                    .map_err(|error| error.for_tensor(keys::MEL_FILTERBANK_TENSOR))?
                    .to_le_bytes(),
            );
        }
        let offset = add(end, middle.len() as u64)?;
        planned.push(PlannedTensor { source, file: 0, offset, len });
        end = add(end, len)?;
    }

    let len = add(end, middle.len() as u64 + 4)?;
    let names = planned.iter().map(|tensor| tensors[tensor.source].name.clone()).collect();
    let files = vec![FileInfo { name: options.file_name.clone(), len }];
    let losses = losses(metadata, vocabulary.is_some());
    Ok(Apr1Writer {
        layout: Layout { files, tensors: planned, losses },
        names,
        front,
        middle,
        weights: weights.len(),
        past_middle: false,
        due: Due::default(),
        crc: Crc32::new(),
    })
}

/// Returns `true` for the mel filterbank. Filterbanks of another dtype or rank do not fit the
/// section and stay ordinary weights.
fn is_filterbank(info: &TensorInfo) -> bool {
    info.name == keys::MEL_FILTERBANK_TENSOR
        && info.dtype == DType::F32
        && info.shape.dims().len() == 2
}

/// Returns the header's number for the dtype of all tensors.
fn quantization<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> Result<u8> {
    let mut first: Option<&TensorInfo> = None;
    for info in tensors {
        if ![DType::F32, DType::F16].contains(&info.dtype) {
            let message = format!(
                "APR1 holds f32 and f16, not {}; `precision` fp32 casts floats",
                info.dtype
            );
            return Err(Error::format(message).for_tensor(&info.name));
        }

        let first = *first.get_or_insert(info);
        if first.dtype != info.dtype {
            let message = format!(
                "it is {}, but '{}' is {}, and an APR1 file has one dtype; `precision` casts",
                info.dtype, first.name, first.dtype
            );
            return Err(Error::format(message).for_tensor(&info.name));
        }
    }

    Ok(u8::from(first.is_some_and(|first| first.dtype == DType::F16)))
}

/// Appends an index entry, and returns the tensor's length in bytes.
fn encode_entry(info: &TensorInfo, offset: u64, index: &mut Vec<u8>) -> Result<u64> {
    let name = info.name.as_bytes();
    if name.len() > NAME_LEN || name.contains(&0) || name.is_empty() {
        let message =
            format!("a name of {} bytes; APR1 holds 1 to {NAME_LEN}, without zeros", name.len());
        return Err(Error::format(message));
    }

    let dims = info.shape.dims();
    let count = u8::try_from(dims.len()).ok().filter(|&count| count <= 4);
    let count =
        count.ok_or_else(|| Error::format(format!("{} dimensions; APR1 holds 4", dims.len())))?;
    let len = info.byte_len()?;
    let start = index.len();
    index.extend(name);
    index.resize(start + NAME_LEN, 0);
    for number in [offset, len, info.shape.elements().unwrap_or_default()] {
        index.extend(number.to_le_bytes());
    }

    for at in 0..4 {
        index.extend(narrow(dims.get(at).copied().unwrap_or_default())?.to_le_bytes());
    }

    index.push(count);
    index.extend([0; 7]);
    Ok(len)
}

fn narrow(dim: u64) -> Result<u32> {
    u32::try_from(dim).map_err(|_| Error::format(format!("the dimension {dim} exceeds 2^32 - 1")))
}

fn section_len(len: u64, what: &str) -> Result<[u8; 4]> {
    let len = u32::try_from(len)
        .map_err(|_| Error::format(format!("{what} takes {len} bytes; APR1 holds 4 GiB")))?;
    Ok(len.to_le_bytes())
}

fn add(end: u64, len: u64) -> Result<u64> {
    end.checked_add(len).ok_or_else(|| Error::format("the file would exceed 2^64 bytes"))
}

/// Returns the merges of the `merges.txt` that Whisper models include.
fn merges_of(companions: &[CompanionFile]) -> Vec<String> {
    let file = companions.iter().find(|file| file.name == "merges.txt");
    let text = file.and_then(|file| core::str::from_utf8(&file.bytes).ok()).unwrap_or_default();
    text.lines()
        .filter(|line| !line.starts_with("#version") && line.contains(' '))
        .map(ToString::to_string)
        .collect()
}

fn losses(metadata: &Metadata, has_vocabulary: bool) -> Vec<Loss> {
    // The first keys say what the format implies or what its header keeps; the others the caller
    // stores elsewhere.
    const CARED_FOR: [&str; 11] = [
        keys::APR_VERSION,
        keys::MODEL_TYPE,
        keys::ARCHITECTURE,
        keys::SOURCE,
        keys::LOSS,
        keys::FILES,
        keys::TIED,
        keys::MEL_FILTERBANK,
        keys::MEL_FILTERBANK_SHAPE,
        METADATA_KEY,
        "names",
    ];

    let in_vocabulary = |key: &str| {
        has_vocabulary && [VOCABULARY, VOCABULARY_ENCODING, VOCAB_SIZE, MERGES].contains(&key)
    };
    let says_something = |value: &Value| *value != Value::Null;
    let lost = metadata.iter().filter(|(key, value)| {
        !CARED_FOR.contains(key) && !in_vocabulary(key) && says_something(value)
    });
    let loss = |(key, _): (&str, &Value)| Loss {
        name: key.into(),
        what: "metadata".into(),
        why: "an APR1 header holds only ten hyperparameters, a vocabulary and a mel filterbank"
            .into(),
    };

    lost.map(loss).collect()
}

impl Apr1Writer {
    fn write(&mut self, sink: &mut dyn Sink, bytes: &[u8]) -> Result<()> {
        self.crc.update(bytes);
        sink.write_all(bytes)
    }

    /// Completes tensors that have all their bytes, and writes the bytes before the next tensor.
    fn settle(&mut self, sink: &mut dyn Sink) -> Result<()> {
        loop {
            if !self.past_middle && self.due.position() == self.weights {
                self.past_middle = true;
                let middle = core::mem::take(&mut self.middle);
                self.write(sink, &middle)?;
            }
            if self.due.complete(&self.layout).is_none() {
                return Ok(());
            }
        }
    }
}

impl CheckpointWriter for Apr1Writer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<()> {
        let front = core::mem::take(&mut self.front);
        self.write(sink, &front)?;
        self.settle(sink)
    }

    fn write_chunk(
        &mut self,
        sink: &mut dyn Sink,
        bytes: &[u8],
        _: Option<ChunkSums>,
    ) -> Result<()> {
        self.due.take(&self.layout, &self.names, bytes.len() as u64)?;
        self.write(sink, bytes)?;
        self.settle(sink)
    }

    fn finish(&mut self, sink: &mut dyn Sink, _: &Notes) -> Result<()> {
        self.due.finish(&self.layout, &self.names)?;
        sink.write_all(&self.crc.value().to_le_bytes())
    }
}

impl fmt::Debug for Apr1Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apr1Writer").field("layout", &self.layout).finish_non_exhaustive()
    }
}
