//! The dialect of aprender 0.20 and of aprender and apr-cli 0.25 to 0.72 (`docs/format/older.md`,
//! A).

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use apr_core::digest::Crc32;
use apr_core::{
    ByteSource, DType, Error, Limits, Metadata, Result, Shape, TensorInfo, keys, read_vec,
};
use serde_json::{Value, json};

use super::format::MAGIC_0_20;
use super::{dtype, metadata};
use crate::older::{Entry, Fields, Parts, Section, checked_name, read_front};

/// Length of the header, in bytes.
const HEADER_LEN: u64 = 64;
/// Offset of the header's CRC-32, which covers all its other bytes.
const CRC_OFFSET: usize = 40;
/// Shortest index entry: the length of an empty name, dtype, number of dimensions, offset, size.
const SHORTEST_ENTRY: u64 = 20;
/// Sections and tensors start at multiples of this, in bytes.
const ALIGNMENT: u64 = 64;

const LZ4: u16 = 1;
const ZSTD: u16 = 2;
const ENCRYPTED: u16 = 4;
const SIGNED: u16 = 8;
const SHARDED: u16 = 0x10;
const QUANTIZED: u16 = 0x20;
const FILTERBANK: u16 = 0x40;
const VOCABULARY: u16 = 0x200;
const ROW_MAJOR: u16 = 0x400;
const COLUMN_MAJOR: u16 = 0x800;

/// Names of the flags, from the lowest bit on.
const FLAGS: [&str; 12] = [
    "LZ4",
    "ZSTD",
    "ENCRYPTED",
    "SIGNED",
    "SHARDED",
    "QUANTIZED",
    "FILTERBANK",
    "MODEL_CARD",
    "STREAMING",
    "VOCABULARY",
    "ROW_MAJOR",
    "COLUMN_MAJOR",
];

/// Returns `true` if these 64 bytes are a header with a valid CRC-32.
pub(super) fn has_header_crc(bytes: &[u8]) -> bool {
    let Some((before, [a, b, c, d, after @ ..])) = bytes.split_at_checked(CRC_OFFSET) else {
        return false;
    };
    let mut crc = Crc32::new();
    crc.update(before);
    crc.update(after);
    bytes.len() as u64 == HEADER_LEN && crc.value() == u32::from_le_bytes([*a, *b, *c, *d])
}

struct Header {
    is_0_20: bool,
    version: [u8; 2],
    flags: u16,
    tensors: u32,
    metadata_offset: u64,
    metadata_size: u32,
    index_offset: u64,
    data_offset: u64,
}

impl Header {
    fn decode(bytes: &[u8], file_len: u64) -> Result<Self> {
        if !has_header_crc(bytes) {
            return Err(
                Error::checksum("the header does not match its own CRC-32").at(CRC_OFFSET as u64)
            );
        }

        let is_0_20 = bytes.starts_with(&MAGIC_0_20);
        let mut fields = Fields::new(&bytes[4..], 4);
        let header = Self {
            is_0_20,
            version: [fields.u8("the version")?, fields.u8("the version")?],
            flags: fields.u16("the flags")?,
            tensors: fields.u32("the number of tensors")?,
            metadata_offset: fields.u64("an offset")?,
            metadata_size: fields.u32("a size")?,
            index_offset: fields.u64("an offset")?,
            data_offset: fields.u64("an offset")?,
        };

        header.check(file_len)?;
        Ok(header)
    }

    fn check(&self, file_len: u64) -> Result<()> {
        let [major, minor] = self.version;
        if major != 2 {
            return Err(Error::version(format!(
                "unsupported version {major}.{minor} of the format; 2 is supported"
            ))
            .at(4));
        }

        if self.flags & ENCRYPTED != 0 {
            let message = "the header declares encryption, which no published program writes: no \
                           key can open it";
            return Err(Error::version(message).at(6));
        }

        if self.flags & COLUMN_MAJOR != 0 {
            let message = "the header declares column-major matrices, which the format forbids: \
                           shapes can't be trusted";
            return Err(Error::version(message).at(6));
        }

        let metadata_end = self.metadata_offset.checked_add(self.metadata_size.into());
        let in_order = self.metadata_offset >= HEADER_LEN
            && metadata_end.is_some_and(|end| end <= self.index_offset)
            && self.index_offset <= self.data_offset;
        if !in_order {
            return Err(Error::corrupt(
                "header, metadata, index and data do not follow one another",
            )
            .at(12));
        }

        if self.data_offset > file_len {
            let message =
                format!("the data start at {}, but the file ends at {file_len}", self.data_offset);
            return Err(Error::corrupt(message).at(32));
        }

        Ok(())
    }

    fn flag_names(&self) -> Vec<String> {
        let named = FLAGS.iter().enumerate().filter(|(bit, _)| self.flags >> bit & 1 == 1);
        let unknown = self.flags >> FLAGS.len() << FLAGS.len();
        let unknown = (unknown != 0).then(|| format!("{unknown:#06x}"));
        named.map(|(_, name)| (*name).to_string()).chain(unknown).collect()
    }
}

/// Reads everything but tensor data.
pub(super) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Parts> {
    let header = Header::decode(&read_front(source, HEADER_LEN)?, source.len())?;
    limits.check_metadata(header.metadata_size.into()).map_err(|error| error.at(20))?;
    let index_len = header.data_offset - header.index_offset;
    limits.check_index(index_len).map_err(|error| error.at(24))?;
    if u64::from(header.tensors) * SHORTEST_ENTRY > index_len {
        let message =
            format!("an index of {index_len} bytes has no space for {} tensors", header.tensors);
        return Err(Error::corrupt(message).at(8));
    }

    let json = read_vec(source, header.metadata_offset, header.metadata_size.into())?;
    let metadata = Metadata::parse(&json).map_err(|error| error.at(header.metadata_offset))?;
    let index = read_vec(source, header.index_offset, index_len)?;
    let Index { tensors, end, warnings: index_warnings, quantized } = read_index(&index, &header)?;

    let mut warnings = flag_warnings(&header, &metadata, &tensors, quantized);
    warnings.extend(index_warnings);
    let metadata_end = header.metadata_offset + u64::from(header.metadata_size);
    Ok(Parts {
        format: &super::FORMAT,
        metadata: metadata::translated(metadata),
        tensors,
        header: json!({
            "program": if header.is_0_20 { "aprender 0.20" } else { "aprender or apr-cli 0.25 to \
                                                                     0.72" },
            "version": format!("{}.{}", header.version[0], header.version[1]),
            "flags": header.flag_names(),
            "metadata_offset": header.metadata_offset,
            "metadata_size": header.metadata_size,
            "index_offset": header.index_offset,
            "index_size": end,
            "data_offset": header.data_offset,
        }),
        warnings,
        sections: vec![
            Section { offset: 0, len: HEADER_LEN },
            Section { offset: header.metadata_offset, len: metadata_end - header.metadata_offset },
            Section { offset: header.index_offset, len: end },
            Section { offset: header.data_offset, len: 0 },
        ],
        made: Vec::new(),
        alignment: ALIGNMENT,
    })
}

struct Index {
    tensors: Vec<Entry>,
    /// Bytes of the entries.
    end: u64,
    warnings: Vec<String>,
    /// Tensors of quants with scales.
    quantized: usize,
}

fn read_index(bytes: &[u8], header: &Header) -> Result<Index> {
    let mut fields = Fields::new(bytes, header.index_offset);
    let mut index = Index { tensors: Vec::new(), end: 0, warnings: Vec::new(), quantized: 0 };
    let (mut unsorted, mut unaligned) = (0, 0);
    for _ in 0..header.tensors {
        let (entry, code) = read_entry(&mut fields, header)?;
        let ascends =
            index.tensors.last().is_none_or(|last: &Entry| last.info.name < entry.info.name);
        unsorted += usize::from(!ascends);
        unaligned += usize::from(!entry.offset.is_multiple_of(ALIGNMENT));
        index.quantized += usize::from(dtype::is_quantized(code));
        index.tensors.push(entry);
    }

    index.end = fields.position() - header.index_offset;
    if unsorted > 0 {
        index
            .warnings
            .push("the index is not sorted by name, which programs of this format require".into());
    }

    if unaligned > 0 {
        let of = index.tensors.len();
        index.warnings.push(format!(
            "{unaligned} of {of} tensors do not start at a multiple of {ALIGNMENT} bytes"
        ));
    }

    let decoded = index.tensors.iter().filter(|entry| {
        entry.info.dtype == DType::F32 && entry.encoding != crate::older::Encoding::Plain
    });
    let decoded = decoded.count();
    if decoded > 0 {
        let message = format!(
            "{decoded} quantized tensors have rows that are not whole blocks; they are read as \
             f32, with the same values"
        );
        index.warnings.push(message);
    }

    if fields.rest().iter().any(|&byte| byte != 0) {
        index
            .warnings
            .push(format!("after its {} tensors, the index has more bytes", index.tensors.len()));
    }

    Ok(index)
}

fn read_entry(fields: &mut Fields<'_>, header: &Header) -> Result<(Entry, u8)> {
    let at = fields.position();
    let name_len = fields.u16("the length of a name")?;
    let name = checked_name(fields.take(name_len.into(), "a name")?, at + 2)?;
    let locate = |error: Error| error.for_tensor(&name).at(at);
    let (code, dims) = (fields.u8("a dtype")?, fields.u8("the number of dimensions")?);
    if usize::from(dims) > Shape::MAX_DIMS {
        return Err(locate(Error::format(format!(
            "{dims} dimensions, more than the limit of {}",
            Shape::MAX_DIMS
        ))));
    }

    let dims =
        (0..dims).map(|_| fields.u64("a dimension")).collect::<Result<Vec<_>>>().map_err(locate)?;
    let (offset, len) =
        (fields.u64("an offset").map_err(locate)?, fields.u64("a size").map_err(locate)?);
    let shape = Shape::from(dims);
    let presented = dtype::presented(code, header.is_0_20, &shape, len).map_err(|error| {
        // Flags that say so are set by programs that compress nothing.
        match header.flags & (LZ4 | ZSTD) {
            0 => error,
            _ => Error::version(
                "the header states that it is compressed, which no published program writes",
            ),
        }
    });

    let (dtype, encoding) = presented.map_err(locate)?;
    let offset = header.data_offset.checked_add(offset);
    let offset = offset.ok_or_else(|| locate(Error::corrupt("its offset exceeds 2^64")))?;
    Ok((
        Entry { info: TensorInfo { name: name.clone(), dtype, shape }, offset, len, encoding },
        code,
    ))
}

/// Returns warnings about flags that contradict the rest of the file.
fn flag_warnings(
    header: &Header,
    metadata: &Metadata,
    tensors: &[Entry],
    quantized: usize,
) -> Vec<String> {
    let is_set = |flag: u16| header.flags & flag != 0;
    let has_vocabulary =
        ["tokenizer.vocabulary", "tokenizer.vocab"].iter().any(|key| metadata.get(key).is_some());
    let has_filterbank =
        metadata.get(keys::MEL_FILTERBANK).is_some_and(|value| *value != Value::Null)
            || tensors.iter().any(|entry| entry.info.name == keys::MEL_FILTERBANK_TENSOR);
    let mut warnings = Vec::new();
    for (flag, name, true_one) in [
        (QUANTIZED, "QUANTIZED", quantized > 0),
        (VOCABULARY, "VOCABULARY", has_vocabulary),
        (FILTERBANK, "FILTERBANK", has_filterbank),
    ] {
        match (is_set(flag), true_one) {
            (false, true) => {
                warnings.push(format!(
                    "the flag {name} is not set, but the file has the data that it declares"
                ));
            }
            (true, false) => {
                warnings.push(format!(
                    "the flag {name} is set, but the file does not have the data that it declares"
                ));
            }
            _ => {}
        }
    }

    if !is_set(ROW_MAJOR) && !header.is_0_20 {
        warnings.push("the flag ROW_MAJOR is not set; matrices are taken for row-major".into());
    }

    if is_set(LZ4 | ZSTD) {
        warnings.push(
            "the header states compressed tensors, but their lengths are uncompressed".into(),
        );
    }

    if is_set(SIGNED) {
        warnings.push(
            "the header states that the file is signed, but the format has no place for a signature"
                .into(),
        );
    }

    if is_set(SHARDED) {
        warnings.push(
            "this is one shard of several, by its header; only its own tensors are read".into(),
        );
    }

    warnings
}
