//! Reading: one file, or the parts of one model as if they were one.

use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, DType, FileInfo, KeyValues, Limits, Result, SharedSource,
    StoredRange, Table, TensorBytes, TensorDecoder, keys,
};
use serde_json::Map;

use crate::derived::derived;
use crate::open_file::{OpenFile, in_file_warning, is_tied};
use crate::part::SplitPart;
use crate::swap;
use crate::tail::TAIL;

/// Number of bytes of a big-endian tensor that are swapped together.
const TURNED: usize = 1 << 16;

/// Key of the byte order in the metadata, and the usual one.
const ENDIAN: &str = "endian";
const LITTLE: &str = "little";

/// Opens one file. Only the header is read; `name` appears in errors and in
/// [`CheckpointReader::files`], and may be empty.
///
/// A part of a split model is opened by itself, with a warning; [`open_split`](crate::open_split)
/// opens all of them.
///
/// Metadata hold all key-value pairs, typed and in order, under [`keys::GGUF`]
/// ([`key_values`](crate::key_values) returns them), and the result of
/// [`derived`](crate::derived()). Bytes of tensors are little-endian, whatever the file's order.
///
/// ```
/// use apr_core::{CheckpointReader, Code, Limits};
///
/// let mut file = b"GGUF\x03\0\0\0".to_vec();
/// file.extend(1_u64.to_le_bytes()); // tensors
/// file.extend(0_u64.to_le_bytes()); // key-value pairs
/// file.extend(5_u64.to_le_bytes());
/// file.extend(b"scale");
/// file.extend(1_u32.to_le_bytes()); // dimensions
/// file.extend(3_u64.to_le_bytes());
/// file.extend(24_u32.to_le_bytes()); // i8
/// file.extend(0_u64.to_le_bytes()); // offset
/// file.resize(64, 0);
/// file.extend([1, 2, 3]);
///
/// let reader = apr_gguf::open(file.clone(), "tiny.gguf", &Limits::default())?;
/// assert_eq!(reader.tensors()[0].name, "scale");
/// assert_eq!(reader.tensor_slice(0), Some(&[1, 2, 3][..]));
///
/// file.pop();
/// let error = apr_gguf::open(file, "tiny.gguf", &Limits::default()).unwrap_err();
/// assert_eq!(error.code(), Code::Corrupt);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a header that breaks the format, E002 where it contradicts the file's length or itself,
/// E003 for a newer version, a type that was removed from ggml, or a big-endian type without an
/// agreed order of bytes, E007 when reading fails, E008 for a header over the limits.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<Table> {
    alone(OpenFile::open(Arc::new(source), name, limits)?)
}

/// Returns the table of one file, which may be a part of a split model.
pub(crate) fn alone(file: OpenFile) -> Result<Table> {
    let part = SplitPart::of(&file).filter(|part| part.count > 1);
    let mut table = table(vec![file])?;
    if let Some(SplitPart { number, count }) = part {
        let number = number.saturating_add(1);
        let warning = format!(
            "this is part {number} of {count} alone; the others hold the rest of the model"
        );
        let warning = in_file_warning(&table.files()[0].name, &warning);
        table.warnings.push(warning);
    }
    Ok(table)
}

/// Returns the table of the files of a model, the one with its metadata first.
pub(crate) fn table(files: Vec<OpenFile>) -> Result<Table> {
    let header_size: u64 = files.iter().map(|file| file.header.end).sum();
    let mut table = Table::new(&crate::FORMAT);
    let mut first = None;
    let count = files.len();
    for (file, OpenFile { name, header, source, len, data_start, tail, warnings }) in
        files.into_iter().enumerate()
    {
        table.warnings.extend(warnings);
        table.add_file(FileInfo { name, len }, source);
        for entry in header.entries {
            let dtype = entry.info.dtype;
            // Lengths were checked when the file was opened.
            let len = dtype.stored_len(&entry.info.shape).unwrap_or_default();
            let range = StoredRange { file, offset: data_start + entry.offset, len };
            let is_turned = header.big_endian && swap::numbers(dtype) != Some(&[]);
            let bytes = match is_turned {
                true => TensorBytes::decoded(BigEndian { dtype, range }),
                false => TensorBytes::Plain(range),
            };
            table.add(entry.info, bytes)?;
        }
        let alignment = header.states_alignment.then_some(header.alignment);
        let tail = tail.filter(|_| count == 1);
        first.get_or_insert((
            header.version,
            alignment,
            header.alignment,
            header.big_endian,
            header.pairs,
            tail,
        ));
    }
    if let Some((version, stated, alignment, big_endian, pairs, tail)) = first {
        let endian = if big_endian { "big" } else { LITTLE };
        table.show("files", count);
        table.show("version", version);
        table.show("endian", endian);
        table.show("alignment", alignment);
        table.show("key_values", pairs.len());
        table.show("header_size", header_size);
        describe(&mut table, version, endian, stated, pairs);
        if let (Some(tail), Some(mut gguf)) = (tail, table.metadata.object(keys::GGUF).cloned()) {
            gguf.insert(TAIL.into(), tail.into_json());
            table.metadata.set(keys::GGUF, gguf);
        }
    }
    Ok(table)
}

fn describe(
    table: &mut Table,
    version: u32,
    endian: &str,
    alignment: Option<u64>,
    pairs: KeyValues,
) {
    table.metadata = derived(&pairs);
    // An importance matrix is no model, and has none.
    let is_model = pairs.text("general.type") != Some("imatrix");
    if is_model && table.metadata.get(keys::MODEL_TYPE).is_none() {
        let warning = "missing general.architecture; llama.cpp refuses such files";
        let warning = in_file_warning(&table.files()[0].name, warning);
        table.warnings.push(warning);
    }

    if is_tied(table.tensors()) {
        let architecture = table.metadata.object(keys::ARCHITECTURE).cloned();
        let mut architecture = architecture.unwrap_or_default();
        architecture.insert("tie_word_embeddings".into(), true.into());
        table.metadata.set(keys::ARCHITECTURE, architecture);
    }

    let mut gguf = Map::new();
    gguf.insert("version".into(), version.into());
    gguf.insert(ENDIAN.into(), endian.into());
    if let Some(alignment) = alignment {
        gguf.insert("alignment".into(), alignment.into());
    }

    table.metadata.set(keys::GGUF, gguf);
    table.metadata.set_key_values(pairs);
}

/// Returns `true` for the table of a single file whose numbers are little-endian.
pub(crate) fn is_one_little_endian_file(table: &Table) -> bool {
    let gguf = table.metadata.object(keys::GGUF);
    let endian = gguf.and_then(|gguf| gguf.get(ENDIAN)).and_then(|endian| endian.as_str());
    table.files().len() == 1 && endian == Some(LITTLE)
}

/// A tensor of numbers that the file stores in the other byte order.
struct BigEndian {
    dtype: DType,
    range: StoredRange,
}

impl TensorDecoder for BigEndian {
    fn range(&self) -> StoredRange {
        self.range
    }

    /// Reads whole blocks, whose numbers are turned little-endian on the way.
    fn read(&self, sources: &[SharedSource], offset: u64, buf: &mut [u8]) -> Result<()> {
        let Self { dtype, range } = self;
        let (block_len, numbers) = (dtype.block_bytes(), swap::numbers(*dtype).unwrap_or_default());
        let block = usize::try_from(block_len).unwrap_or(1);
        let end = offset + buf.len() as u64;
        let mut whole = Vec::new();
        let (mut rest, mut position) = (buf, offset);
        while position < end {
            let start = position - position % block_len;
            let piece =
                (end.next_multiple_of(block_len) - start).min((TURNED / block * block) as u64);
            whole.resize(usize::try_from(piece).unwrap_or(block), 0);
            sources[range.file].read_at(range.offset + start, &mut whole)?;
            swap::swap(&mut whole, block, numbers);

            let wanted = &whole[usize::try_from(position - start).unwrap_or_default()..];
            let (now, later) = rest.split_at_mut(wanted.len().min(rest.len()));
            now.copy_from_slice(&wanted[..now.len()]);
            position += now.len() as u64;
            rest = later;
        }

        Ok(())
    }
}
