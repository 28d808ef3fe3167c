//! The dialect of whisper-apr 0.3 (`docs/format/older.md`, D).

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use apr_core::{
    ByteSource, DType, Error, Limits, Metadata, Result, Shape, TensorInfo, keys, read_vec,
};
use serde_json::{Map, Value, json};

use super::aprender;
use crate::older::{
    Codec, Encoding, Entry, Fields, Packed, Parts, Scale, Section, padded_name, read_front,
    used_dims,
};

/// Length of magic and header without the architecture, in bytes.
const HEADER_LEN: u64 = 24;
/// Length of an index entry, in bytes.
const ENTRY_LEN: u64 = 128;
/// Length of a name in it, in bytes.
const NAME_LEN: usize = 64;

/// Families by the header's number.
const FAMILIES: [(u8, &str); 5] =
    [(0, "whisper"), (1, "lfm2"), (2, "llama"), (3, "moonshine"), (255, "generic")];

/// Names of dtypes by number, in header and entries.
const DTYPES: [&str; 7] = ["f32", "f16", "bf16", "int8", "int4", "int4-awq", "int4-gptq"];

/// Fields of an architecture, in order: u32, but for `rope_theta`, an f32.
const ARCHITECTURE: [&str; 9] = [
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "rope_theta",
    "conv_dimension",
    "max_position_embeddings",
];
/// Length of an architecture without its layer types, in bytes.
const ARCHITECTURE_LEN: usize = 48;

/// Returns `true` if a file that starts with `APR\0` has this dialect: its header has no CRC, and
/// its entries fit.
///
/// # Errors
/// E007 when reading fails.
pub(super) fn is_one(source: &dyn ByteSource) -> Result<bool> {
    if source.len() < HEADER_LEN {
        return Ok(false);
    }

    let head = read_vec(source, 0, source.len().min(64))?;
    if aprender::has_header_crc(&head) {
        return Ok(false);
    }

    let Ok(header) = Header::decode(&head) else { return Ok(false) };

    // A damaged header of the other dialect does not have its CRC either; text is where this has
    // its entries.
    let Some(end) = header.index_end().filter(|&end| end <= source.len()) else { return Ok(false) };
    if header.tensors == 0 || header.architecture_len as usize == 0 {
        return Ok(end + 4 == source.len());
    }

    let entry = read_vec(source, header.index_start(), ENTRY_LEN)?;
    Ok(entry[80] <= 4
        && usize::from(entry[81]) < DTYPES.len()
        && entry[108..].iter().all(|&byte| byte == 0))
}

struct Header {
    version: u16,
    family: u8,
    tensors: u32,
    architecture_len: u32,
    method: u8,
    group_size: u32,
}

impl Header {
    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut fields = Fields::new(bytes, 0);
        fields.take(4, "the magic")?;
        let (version, family) = (fields.u16("the version")?, fields.u8("the family")?);
        if version != 2 {
            return Err(Error::version(format!(
                "unsupported version {version} of the format; 2 is supported"
            ))
            .at(4));
        }

        fields.u8("a reserved byte")?;
        let (tensors, architecture_len) =
            (fields.u32("the number of tensors")?, fields.u32("a length")?);
        let (method, group_size) = (fields.u8("the quantization")?, fields.u32("a group size")?);
        Ok(Self { version, family, tensors, architecture_len, method, group_size })
    }

    fn index_start(&self) -> u64 {
        HEADER_LEN + u64::from(self.architecture_len)
    }

    fn index_end(&self) -> Option<u64> {
        u64::from(self.tensors).checked_mul(ENTRY_LEN)?.checked_add(self.index_start())
    }
}

/// Reads everything but tensor data.
pub(super) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Parts> {
    let header = Header::decode(&read_front(source, HEADER_LEN)?)?;
    limits.check_metadata(header.architecture_len.into()).map_err(|error| error.at(12))?;
    let architecture = read_vec(source, HEADER_LEN, header.architecture_len.into())?;
    let index_len = u64::from(header.tensors) * ENTRY_LEN;
    limits.check_index(index_len).map_err(|error| error.at(8))?;
    let index = read_vec(source, header.index_start(), index_len)?;
    let data_start = header.index_start() + index_len;
    let entries = index.chunks_exact(128).zip((header.index_start()..).step_by(128));
    let tensors =
        entries.map(|(bytes, at)| read_entry(bytes, at, data_start)).collect::<Result<Vec<_>>>()?;

    let family =
        FAMILIES.iter().find(|(number, _)| *number == header.family).map(|(_, name)| *name);
    let method = DTYPES.get(usize::from(header.method)).copied();
    let mut metadata = Metadata::new();
    metadata.set(keys::MODEL_TYPE, family.unwrap_or("unknown"));
    metadata.set(keys::ARCHITECTURE, described(&architecture)?);
    Ok(Parts {
        format: &super::FORMAT,
        metadata,
        header: json!({
            "program": "whisper-apr 0.3",
            "version": header.version,
            "family": family.map_or_else(|| json!(header.family), Value::from),
            "quantization": method.map_or_else(|| json!(header.method), Value::from),
            "group_size": header.group_size,
            "index_offset": header.index_start(),
            "data_offset": data_start,
        }),
        warnings: warnings(&tensors),
        tensors,
        sections: vec![Section { offset: 0, len: data_start }],
        made: Vec::new(),
        alignment: 1,
    })
}

/// Returns the program's architecture numbers under Hugging Face's names. Any further fields are
/// unknown.
fn described(bytes: &[u8]) -> Result<Map<String, Value>> {
    let mut architecture = Map::new();
    if bytes.len() < ARCHITECTURE_LEN {
        return Ok(architecture);
    }
    let mut fields = Fields::new(bytes, HEADER_LEN);
    for name in ARCHITECTURE {
        let bits = fields.u32(name)?;
        let value = if name == "rope_theta" { json!(f32::from_bits(bits)) } else { json!(bits) };
        architecture.insert(name.into(), value);
    }
    Ok(architecture)
}

fn read_entry(bytes: &[u8], at: u64, data_start: u64) -> Result<Entry> {
    let mut fields = Fields::new(bytes, at);
    let name = padded_name(fields.take(NAME_LEN, "a name")?, at)?;
    let locate = |error: Error| error.for_tensor(&name).at(at);
    let mut slots = [0; 4];
    for slot in &mut slots {
        *slot = fields.u32("a dimension")?;
    }

    let (dims, code) = (fields.u8("the number of dimensions")?, fields.u8("a dtype")?);
    let shape = Shape::from(used_dims(slots, dims).map_err(locate)?);
    fields.take(2, "reserved bytes")?;
    let (offset, len) = (fields.u64("an offset")?, fields.u64("a size")?);
    let elements = fields.u64("a number of elements")?;
    if shape.elements() != Some(elements) {
        let message =
            format!("the shape {shape} does not have the {elements} elements of its entry");
        return Err(locate(Error::corrupt(message)));
    }

    let (dtype, encoding) = presented(code, &shape, elements, len).map_err(locate)?;
    let offset = data_start.checked_add(offset);
    let offset = offset.ok_or_else(|| locate(Error::corrupt("its offset exceeds 2^64")))?;
    Ok(Entry { info: TensorInfo { name: name.clone(), dtype, shape }, offset, len, encoding })
}

fn presented(code: u8, shape: &Shape, elements: u64, len: u64) -> Result<(DType, Encoding)> {
    let plain = match code {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::BF16,
        3 if len == elements && DType::I8_ROW.stored_len(shape).is_some() => {
            return Ok(scaled(shape));
        }
        3 => DType::I8,
        4 => return packed(shape, elements, len),
        _ => {
            let name = DTYPES.get(usize::from(code));
            let known =
                name.map(|name| format!("it is {name}, whose scales the format can't store"));
            return Err(Error::version(
                known.unwrap_or_else(|| format!("unknown dtype number {code}")),
            ));
        }
    };

    if plain.stored_len(shape) == Some(len) {
        return Ok((plain, Encoding::Plain));
    }

    Err(Error::corrupt(format!("{len} bytes are not the length of the shape {shape} in {plain}")))
}

/// Returns the encoding of integers of eight bits, which the program multiplies by one constant.
fn scaled(shape: &Shape) -> (DType, Encoding) {
    let scale = Scale::Given((1.0_f32 / 127.0).to_le_bytes());
    (DType::I8_ROW, Encoding::Scaled { scale, row_len: shape.row_len() })
}

/// Returns the encoding of integers of four bits, two per byte.
fn packed(shape: &Shape, elements: u64, len: u64) -> Result<(DType, Encoding)> {
    if len != elements.div_ceil(2) {
        return Err(Error::corrupt(format!(
            "{len} bytes are not the length of the shape {shape} in int4"
        )));
    }
    let row_bytes = DType::F32.stored_len(shape).unwrap_or_default();
    let packed = Packed { codec: Codec::Nibbles, blocks_per_row: len, row_bytes };
    Ok((DType::F32, if len == 0 { Encoding::Plain } else { Encoding::Packed(packed) }))
}

fn warnings(tensors: &[Entry]) -> Vec<String> {
    let quantized = tensors.iter().filter(|entry| entry.encoding != Encoding::Plain).count();
    let message = format!(
        "{quantized} quantized tensors are stored without scales: their program decoded them as \
         q / 127 or (q - 8) / 7"
    );
    if quantized > 0 { vec![message] } else { Vec::new() }
}
