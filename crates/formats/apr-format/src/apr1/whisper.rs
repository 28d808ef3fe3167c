//! The layout of whisper-apr 0.1 and 0.2 (`docs/format/older.md`, C).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use apr_core::{
    ByteSource, DType, Error, Limits, Metadata, Result, Shape, TensorInfo, keys, read_vec,
};
use serde_json::json;

use super::format::MAGIC;
use super::hyperparameters::{Hyperparameters, METADATA_KEY};
use super::vocabulary::Vocabulary;
use crate::older::{
    Encoding, Entry, Fields, Parts, Scale, Section, padded_name, read_front, used_dims,
};

/// Length of the header after the magic, in bytes.
pub(super) const HEADER_LEN: u64 = 48;
/// Length of the header in files of whisper-apr 0.2, in bytes.
const HEADER_LEN_0_2: u64 = 64;
/// Length of an index entry, in bytes.
pub(super) const ENTRY_LEN: u64 = 96;
/// Length of a name in an index entry, in bytes.
pub(super) const NAME_LEN: usize = 48;
/// The version that is known.
pub(super) const VERSION: u16 = 1;

/// Header flags.
pub(super) const HAS_VOCABULARY: u8 = 1;
pub(super) const HAS_FILTERBANK: u8 = 2;

/// Names of the header's quantizations.
const QUANTIZATIONS: [&str; 4] = ["f32", "f16", "int8", "int4"];
const INT8: u8 = 2;
const INT4: u8 = 3;

/// The header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u16,
    /// Quantization, an index into [`QUANTIZATIONS`].
    pub(super) quantization: u8,
    pub(super) compressed: u8,
    pub(super) tensors: u16,
    pub(super) flags: u8,
    pub(super) hyperparameters: Hyperparameters,
}

impl Header {
    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(bytes, 4);
        let version = fields.u16("the version")?;
        if version != VERSION {
            // There never was another: it is some other format under this magic.
            return Err(Error::format(format!(
                "this is not an APR1 file: its version is {version}, not {VERSION}"
            ))
            .at(4));
        }

        let (size, quantization) = (fields.u8("the model type")?, fields.u8("the quantization")?);
        if usize::from(quantization) >= QUANTIZATIONS.len() {
            return Err(Error::format(format!(
                "the quantization {quantization} is not one of APR1's 4"
            ))
            .at(7));
        }

        let compressed = fields.u8("the compression")?;
        let (tensors, flags) = (fields.u16("the number of tensors")?, fields.u8("the flags")?);
        let hyperparameters = Hyperparameters::read(size, &mut fields)?;
        Ok(Self { version, quantization, compressed, tensors, flags, hyperparameters })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend([self.hyperparameters.size, self.quantization, self.compressed]);
        bytes.extend(self.tensors.to_le_bytes());
        bytes.push(self.flags);
        bytes.extend(self.hyperparameters.encode());
        bytes
    }
}

/// Reads everything but tensor data.
pub(super) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Parts> {
    let mut magic = [0; 4];
    source.read_at(0, &mut magic)?;
    let (header_len, program) = if magic == MAGIC {
        (HEADER_LEN, "whisper-apr 0.1")
    } else {
        (HEADER_LEN_0_2, "whisper-apr 0.2")
    };
    let front = read_front(source, 4 + header_len)?;
    let header = Header::decode(&front[4..])?;
    let index_start = 4 + header_len;
    let index_len = ENTRY_LEN * u64::from(header.tensors);
    limits.check_index(index_len).map_err(|error| error.at(9))?;
    let index = read_vec(source, index_start, index_len)?;
    let scales_len = if header.quantization == INT8 { 4 * u64::from(header.tensors) } else { 0 };
    let scales = read_vec(source, index_start + index_len, scales_len)?;
    let data_start = index_start + index_len + scales_len;

    let mut notes = Oddities::default();
    let mut tensors = Vec::new();
    for (at, entry) in index.chunks_exact(96).enumerate() {
        let entry_start = index_start + at as u64 * ENTRY_LEN;
        let scale = scales.chunks_exact(4).nth(at).and_then(|bytes| bytes.try_into().ok());
        tensors.push(read_entry(entry, entry_start, data_start, &header, scale, &mut notes)?);
    }

    let mut ends = tensors.iter().map(|entry: &Entry| entry.offset.checked_add(entry.len));
    let data_end = ends.try_fold(data_start, |most, end| Some(most.max(end?)));
    let data_end =
        data_end.ok_or_else(|| Error::corrupt("tensors end past 2^64").at(index_start))?;

    let mut metadata = Metadata::new();
    header.hyperparameters.describe(&mut metadata);
    metadata.set(METADATA_KEY, header.hyperparameters.record(program, header.version));
    let mut sections = vec![Section { offset: 0, len: data_start }];
    let mut next = data_end;
    if header.flags & HAS_VOCABULARY != 0 {
        next = read_vocabulary(source, next, limits, &mut metadata, &mut sections)?;
    }
    if header.flags & HAS_FILTERBANK != 0 {
        tensors.push(read_filterbank(source, next, &mut metadata, &mut sections)?);
    }

    let quantization = QUANTIZATIONS[usize::from(header.quantization)];
    Ok(Parts {
        format: &super::FORMAT,
        metadata,
        tensors,
        header: json!({
            "program": program,
            "version": header.version,
            "model_type": header.hyperparameters.size_name(),
            "quantization": quantization,
            "compressed": header.compressed != 0,
            "vocabulary": header.flags & HAS_VOCABULARY != 0,
            "filterbank": header.flags & HAS_FILTERBANK != 0,
            "hyperparameters": header.hyperparameters.named(),
        }),
        warnings: notes.warnings(&header, quantization),
        sections,
        made: Vec::new(),
        alignment: 1,
    })
}

/// Contradictions between the header and the tensors.
#[derive(Debug, Default)]
struct Oddities {
    /// Number of tensors that are f32 although the header states another dtype.
    floats: usize,
    /// Names that were cut and have been completed.
    completed: Vec<String>,
}

impl Oddities {
    fn warnings(self, header: &Header, quantization: &str) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.floats > 0 {
            warnings.push(format!(
                "{} tensors are f32 by their length, but the header states {quantization}",
                self.floats
            ));
        }

        if header.compressed != 0 {
            warnings.push(
                "the header states compressed tensors, but their lengths are uncompressed"
                    .to_string(),
            );
        }

        if let Some(name) = self.completed.first() {
            let count = self.completed.len();
            warnings.push(format!(
                "{count} names were cut to 47 bytes when written and are completed, as '{name}'"
            ));
        }

        let unknown = header.flags & !(HAS_VOCABULARY | HAS_FILTERBANK);
        if unknown != 0 {
            warnings.push(format!("the header has unknown flags: {unknown:#04x}"));
        }

        warnings
    }
}

fn read_entry(
    bytes: &[u8],
    at: u64,
    data_start: u64,
    header: &Header,
    scale: Option<[u8; 4]>,
    notes: &mut Oddities,
) -> Result<Entry> {
    let mut fields = Fields::new(bytes, at);
    let mut name = padded_name(fields.take(NAME_LEN, "a name")?, at)?;

    // The program cut names to 47 bytes: of Whisper's, those of the second ten decoder layers lose
    // the last letter.
    if name.len() == NAME_LEN - 1 && name.ends_with(".weigh") {
        name.push('t');
        notes.completed.push(name.clone());
    }

    let (offset, len) = (fields.u64("an offset")?, fields.u64("a size")?);
    let elements = fields.u64("a number of elements")?;
    let mut slots = [0; 4];
    for slot in &mut slots {
        *slot = fields.u32("a dimension")?;
    }

    let locate = |error: Error| error.for_tensor(&name).at(at);
    let shape =
        Shape::from(used_dims(slots, fields.u8("the number of dimensions")?).map_err(locate)?);
    if shape.elements() != Some(elements) {
        let message =
            format!("the shape {shape} does not have the {elements} elements of its entry");
        return Err(locate(Error::corrupt(message)));
    }

    let (dtype, encoding) = stored_as(header, len, &shape, scale).map_err(locate)?;
    notes.floats += usize::from(dtype == DType::F32 && header.quantization != 0 && elements > 0);
    let offset = data_start.checked_add(offset);
    let offset = offset.ok_or_else(|| locate(Error::corrupt("its offset exceeds 2^64")))?;
    Ok(Entry { info: TensorInfo { name, dtype, shape }, offset, len, encoding })
}

/// Returns the dtype and encoding that the length of a tensor implies. The program wrote floats
/// under any header except int8.
fn stored_as(
    header: &Header,
    len: u64,
    shape: &Shape,
    scale: Option<[u8; 4]>,
) -> Result<(DType, Encoding)> {
    let takes = |dtype: DType| dtype.stored_len(shape) == Some(len);
    match (header.quantization, scale) {
        (INT8, Some(scale)) if takes(DType::I8) => {
            let encoding =
                Encoding::Scaled { scale: Scale::Given(scale), row_len: shape.row_len() };
            return Ok((DType::I8_ROW, encoding));
        }
        (INT8, _) => {}
        (1, _) if takes(DType::F16) => return Ok((DType::F16, Encoding::Plain)),
        _ if takes(DType::F32) => return Ok((DType::F32, Encoding::Plain)),
        _ => {}
    }

    if header.compressed != 0 {
        let message = "it is compressed with LZ4 in a layout that APR1 does not define and no \
            published program wrote";
        return Err(Error::version(message));
    }

    if header.quantization == INT4 {
        return Err(Error::version(
            "it is packed int4, whose layout APR1 does not define and no published program wrote",
        ));
    }

    let quantization = QUANTIZATIONS[usize::from(header.quantization)];
    Err(Error::corrupt(format!(
        "{len} bytes are not the length of the shape {shape} in {quantization}"
    )))
}

/// Returns the start of the content of the section at `at`, and its length, in bytes.
fn section(
    source: &dyn ByteSource,
    at: u64,
    what: &str,
    sections: &mut Vec<Section>,
) -> Result<(u64, u64)> {
    let mut len = [0; 4];
    let absent =
        || Error::corrupt(format!("the header states {what}, but the file ends before it")).at(at);
    let start = at.checked_add(4).filter(|&start| start <= source.len()).ok_or_else(absent)?;
    source.read_at(at, &mut len)?;
    let len = u64::from(u32::from_le_bytes(len));
    if start + len > source.len() {
        return Err(
            Error::corrupt(format!("{what} takes {len} bytes, but the file ends before")).at(at)
        );
    }

    sections.push(Section { offset: at, len: 4 + len });
    Ok((start, len))
}

fn read_vocabulary(
    source: &dyn ByteSource,
    at: u64,
    limits: &Limits,
    metadata: &mut Metadata,
    sections: &mut Vec<Section>,
) -> Result<u64> {
    let (start, len) = section(source, at, "a vocabulary", sections)?;
    limits.check_metadata(len).map_err(|error| error.at(at))?;
    Vocabulary::decode(&read_vec(source, start, len)?, start)?.describe(metadata);
    Ok(start + len)
}

fn read_filterbank(
    source: &dyn ByteSource,
    at: u64,
    metadata: &mut Metadata,
    sections: &mut Vec<Section>,
) -> Result<Entry> {
    let (start, len) = section(source, at, "a mel filterbank", sections)?;
    let head = read_vec(source, start, 8.min(len))?;
    let mut fields = Fields::new(&head, start);
    let (mels, freqs) =
        (fields.u32("the number of mels")?, fields.u32("the number of frequencies")?);
    let weights = u64::from(mels) * u64::from(freqs);
    let weights_len = weights.checked_mul(4).filter(|&weights_len| weights_len <= len - 8);
    let weights_len = weights_len.ok_or_else(|| {
        Error::corrupt(format!(
            "{mels} mels of {freqs} frequencies do not fit into its {len} bytes"
        ))
        .for_tensor(keys::MEL_FILTERBANK_TENSOR)
        .at(start)
    })?;

    // Structure are the lengths and what follows the weights, if anything.
    sections.pop();
    sections.push(Section { offset: at, len: 12 });
    let rest = len - 8 - weights_len;
    if rest > 0 {
        sections.push(Section { offset: start + 8 + weights_len, len: rest });
    }

    metadata.set(keys::MEL_FILTERBANK, json!({ "tensor": keys::MEL_FILTERBANK_TENSOR }));
    metadata.set(keys::MEL_FILTERBANK_SHAPE, json!([mels, freqs]));
    let shape = Shape::from([mels, freqs].map(u64::from));
    Ok(Entry {
        info: TensorInfo { name: keys::MEL_FILTERBANK_TENSOR.into(), dtype: DType::F32, shape },
        offset: start + 8,
        len: weights_len,
        encoding: Encoding::Plain,
    })
}
