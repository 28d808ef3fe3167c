//! Planning: pairs, parts, headers and offsets from names, dtypes, shapes and metadata alone.

use std::sync::Arc;

use apr_core::{
    Error, FileInfo, KeyValue, KeyValues, Layout, Metadata, PlannedTensor, Result, TensorInfo,
    Value, check_file_name, keys, shard_units,
};

use crate::encode;
use crate::header::{ALIGNMENT, DEFAULT_ALIGNMENT, duplicate, stated_alignment};
use crate::losses::losses;
use crate::part::{self, is_part, is_split_key, part_name};
use crate::tail::{Tail, still_follows};
use crate::writer::{GgufPlan, GgufWriter};

/// Largest alignment that is written: a number in a file must not make its copy a thousand times
/// larger.
const MAX_ALIGNMENT: u64 = 1 << 16;

/// Options for writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Name of the file, `model.gguf`; the names of parts are derived from it.
    pub file_name: String,
    /// Alignment of the tensors' data in bytes, a power of two; `None` for the source's, or 32.
    pub alignment: Option<u32>,
    /// Maximum number of bytes of tensors in a file, including padding; a larger model is split
    /// into parts. `None` means one file.
    pub shard_size: Option<u64>,
    /// `true` if a single file is also announced to [`Sink::next_file`](apr_core::Sink::next_file),
    /// as folders require. Parts always are.
    pub named_files: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            file_name: "model.gguf".into(),
            alignment: None,
            shard_size: None,
            named_files: false,
        }
    }
}

/// Plans a checkpoint as one file, or as parts if `shard_size` requires it.
///
/// Key-value pairs are read from [`keys::GGUF`]. Checkpoints from other formats lack that key and
/// get `general.architecture` and `general.name`, as far as known. Tensors are stored in the given
/// order. Parts are split as `llama-gguf-split --split-max-size` splits them.
///
/// Dtypes that GGUF lacks are rejected, not converted: a bool as an i8, or an unsigned integer as a
/// signed one, would be another tensor to its reader.
///
/// ```
/// use apr_core::{
///     CheckpointReader, CheckpointWriter, DType, Limits, Metadata, Notes, Shape, TensorInfo,
/// };
/// use apr_gguf::{WriteOptions, open, plan};
///
/// let tensors = [TensorInfo { name: "bias".into(), dtype: DType::F32, shape: Shape::from([2]) }];
/// let mut metadata = Metadata::new();
/// metadata.set("model_type", "llama");
/// let mut writer = plan(&tensors, &metadata, &WriteOptions::default())?;
/// let mut file = Vec::new();
/// writer.begin(&mut file)?;
/// writer.write_chunk(&mut file, &[0, 0, 128, 63, 0, 0, 0, 64], None)?;
/// writer.finish(&mut file, &Notes::default())?;
///
/// let reader = open(file, "model.gguf", &Limits::default())?;
/// assert_eq!(reader.metadata().text("model_type"), Some("llama"));
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a dtype, name or shape that GGUF or llama.cpp can't take, pairs that are malformed, an
/// impossible alignment, or a `shard_size` that needs more than 65,535 parts; E008 for more than
/// 2^64 bytes.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    options: &WriteOptions,
) -> Result<GgufWriter> {
    let lens = tensors.iter().map(check_tensor).collect::<Result<Vec<_>>>()?;
    if let Some(name) = duplicate(tensors.iter().map(|tensor| tensor.name.as_str())) {
        return Err(Error::format("two tensors have this name").for_tensor(name));
    }

    let mut pairs = pairs(metadata)?;
    let alignment = align(&mut pairs, options.alignment)?;
    let names = tensors.iter().map(|info| info.name.as_str());
    let parts = cut(names, &lens, alignment, options.shard_size)?;
    let count = parts.len();

    // The pairs may be those of a part of another split.
    if is_part(&pairs) || count > 1 {
        Arc::make_mut(&mut pairs).retain(|key| !is_split_key(key));
    }

    let tail = Tail::from_metadata(metadata)?;
    let named = count > 1 || options.named_files;
    if named {
        check_file_name(&options.file_name)?;
    }

    let mut layout = Layout { losses: losses(metadata, &pairs, tensors), ..Layout::default() };
    let mut headers = Vec::with_capacity(count);
    let stem = options.file_name.strip_suffix(".gguf").unwrap_or(&options.file_name);
    for (file, members) in parts.into_iter().enumerate() {
        if count > 1 {
            make_part(Arc::make_mut(&mut pairs), file, count, tensors.len())?;
        }

        let offsets = offsets(members.iter().map(|&tensor| lens[tensor]), alignment)?;
        let entries: Vec<_> =
            members.iter().map(|&tensor| &tensors[tensor]).zip(offsets.iter().copied()).collect();
        let header = aligned_header(&pairs, &entries, alignment)?;
        let start = header.len() as u64;
        let placed = |offset: u64| start.checked_add(offset).ok_or_else(too_large);
        for (&source, &offset) in members.iter().zip(&offsets) {
            layout.tensors.push(PlannedTensor {
                source,
                file,
                offset: placed(offset)?,
                len: lens[source],
            });
        }

        let name =
            if count > 1 { part_name(stem, file + 1, count) } else { options.file_name.clone() };
        layout
            .files
            .push(FileInfo { name, len: placed(offsets.last().copied().unwrap_or_default())? });
        headers.push(header);
    }

    let tail = tail.and_then(|tail| place_tail(tail, &mut layout, &headers, tensors));
    let names = layout.tensors.iter().map(|planned| tensors[planned.source].name.clone()).collect();
    Ok(GgufWriter::new(GgufPlan { layout, names, headers, alignment, tail, named }))
}

/// Turns the pairs of the previous part into the pairs of this one.
fn make_part(pairs: &mut KeyValues, file: usize, count: usize, tensors: usize) -> Result<()> {
    if file > 0 {
        // All metadata are in the first part, but the alignment is each file's own.
        pairs.retain(|key| key == ALIGNMENT);
    }
    part_pairs(file, count, tensors)?.iter().try_for_each(|pair| pairs.push(pair))
}

/// Returns the header, padded up to the data section.
fn aligned_header(
    pairs: &KeyValues,
    entries: &[(&TensorInfo, u64)],
    alignment: u64,
) -> Result<Vec<u8>> {
    let mut header = encode::header(pairs, entries)?;
    // A vocabulary without tensors has no data section to align.
    if !entries.is_empty() {
        let aligned = header.len().next_multiple_of(usize::try_from(alignment).unwrap_or(1));
        header.resize(aligned, 0);
    }
    Ok(header)
}

/// Returns the bytes after the last tensor of a single file, which replace its padding. Bytes that
/// no longer have a place are added to the losses.
fn place_tail(
    tail: Tail,
    layout: &mut Layout,
    headers: &[Vec<u8>],
    tensors: &[TensorInfo],
) -> Option<Vec<u8>> {
    let last = layout.tensors.last()?;
    let in_data = last.offset - headers.last().map_or(0, |header| header.len() as u64);
    if headers.len() != 1 || !still_follows(&tail, tensors.get(last.source), in_data) {
        layout.losses.extend(tail.loss());
        return None;
    }
    layout.files[0].len = last.offset + last.len + tail.bytes.len() as u64;
    Some(tail.bytes)
}

fn too_large() -> Error {
    Error::memory("header and tensors exceed 2^64 bytes")
}

/// Rejects a tensor that our own reader or llama.cpp would reject, and returns its length.
fn check_tensor(tensor: &TensorInfo) -> Result<u64> {
    encode::check_tensor(tensor)?;
    let len = tensor.byte_len()?;

    // One without elements has a length whatever its rows are, and yet no reader takes it.
    let (row, block) = (tensor.shape.row_len(), tensor.dtype.block_len());
    if !row.is_multiple_of(block) {
        let message = format!(
            "rows of {row} elements are not a multiple of the {block} in a block of {}",
            tensor.dtype
        );
        return Err(Error::format(message).for_tensor(&tensor.name));
    }

    Ok(len)
}

/// Returns the pairs of the source, or the few that identify the model.
fn pairs(metadata: &Metadata) -> Result<Arc<KeyValues>> {
    if let Some(pairs) = metadata.key_values()? {
        return Ok(pairs);
    }
    let known =
        |key: &str| metadata.text(key).filter(|text| !text.is_empty() && *text != "unknown");
    let general =
        [("general.architecture", known(keys::MODEL_TYPE)), ("general.name", known("model_name"))];
    Ok(Arc::new(
        general.into_iter().filter_map(|(key, text)| Some(KeyValue::new(key, text?))).collect(),
    ))
}

/// Returns the alignment to write with, and states it in the pairs unless it is the default.
fn align(pairs: &mut Arc<KeyValues>, wanted: Option<u32>) -> Result<u64> {
    let stated = stated_alignment(pairs)?;
    let alignment = wanted.map(u64::from).or(stated).unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        let message = format!(
            "an alignment of {alignment} bytes; it must be a power of two up to {MAX_ALIGNMENT}"
        );
        return Err(Error::format(message));
    }
    if let Some(wanted) = wanted.filter(|_| alignment != stated.unwrap_or(DEFAULT_ALIGNMENT)) {
        Arc::make_mut(pairs).set(&KeyValue::new(ALIGNMENT, Value::U32(wanted)))?;
    }
    Ok(alignment)
}

/// Returns the positions of the tensors of each part: as many in a row as fit with their padding,
/// and at least one, with all parts of its weight.
fn cut<'n>(
    names: impl Iterator<Item = &'n str>,
    lens: &[u64],
    alignment: u64,
    shard_size: Option<u64>,
) -> Result<Vec<Vec<usize>>> {
    let limit = match shard_size {
        Some(0) => return Err(Error::format("the shard size must be 1 byte or more")),
        Some(limit) => limit,
        None => return Ok(vec![(0..lens.len()).collect()]),
    };
    let (mut parts, mut current, mut size) = (Vec::new(), Vec::new(), 0_u64);
    let padded = lens.iter().map(|len| len.checked_next_multiple_of(alignment));
    let padded = padded.collect::<Option<Vec<u64>>>().ok_or_else(too_large)?;
    for unit in shard_units(names.zip(padded.iter().copied()), limit) {
        let len = unit.iter().fold(0, |len: u64, &tensor| len.saturating_add(padded[tensor]));
        if !current.is_empty() && size.checked_add(len).is_none_or(|size| size > limit) {
            parts.push(std::mem::take(&mut current));
            size = 0;
        }
        current.extend(unit);
        size = size.saturating_add(len);
    }

    parts.push(current);
    parts.iter_mut().for_each(|part| part.sort_unstable());
    if u16::try_from(parts.len()).is_err() {
        return Err(Error::format(format!(
            "a shard size of {limit} makes {} parts; 65,535 is the limit",
            parts.len()
        )));
    }

    Ok(parts)
}

/// Returns the pairs that describe a part, in the order of `llama-gguf-split`.
fn part_pairs(file: usize, count: usize, tensors: usize) -> Result<[KeyValue; 3]> {
    let narrow =
        |number: usize| u16::try_from(number).map_err(|_| Error::format("more than 65,535 parts"));
    let tensors = i32::try_from(tensors)
        .map_err(|_| Error::format("a split model of 2^31 tensors or more"))?;
    Ok([
        KeyValue::new(part::NUMBER, narrow(file)?),
        KeyValue::new(part::TENSORS, tensors),
        KeyValue::new(part::COUNT, narrow(count)?),
    ])
}

/// Returns the offset of each tensor in the data section, and the end of the data section. Each
/// tensor is padded, including the last.
fn offsets(lens: impl Iterator<Item = u64>, alignment: u64) -> Result<Vec<u64>> {
    let mut offsets = vec![0_u64];
    let mut end = 0_u64;
    for len in lens {
        let padded = end.checked_add(len).and_then(|end| end.checked_next_multiple_of(alignment));
        end = padded.ok_or_else(too_large)?;
        offsets.push(end);
    }
    Ok(offsets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_hold_as_much_as_fits_with_its_padding() {
        let cut = |lens: &[u64], limit| {
            let names = (0..lens.len()).map(|at| ["a", "b", "c"][at]);
            cut(names, lens, 32, limit).expect("a limit above 0")
        };
        assert_eq!(cut(&[1, 32, 33], Some(64)), [vec![0, 1], vec![2]]);
        assert_eq!(cut(&[1, 32, 33], Some(63)), [vec![0], vec![1], vec![2]]);
        assert_eq!(cut(&[100, 0, 1], Some(10)), [vec![0], vec![1], vec![2]]);
        assert_eq!(cut(&[100, 1], Some(u64::MAX)), [vec![0, 1]]);
        assert_eq!(cut(&[100, 1], None), [vec![0, 1]]);
        assert_eq!(cut(&[], Some(1)), [Vec::<usize>::new()]);
        assert!(super::cut(["a"].into_iter(), &[1], 32, Some(0)).is_err());
        let names: Vec<String> = (0..65_536).map(|at| at.to_string()).collect();
        let names = names.iter().map(String::as_str);
        assert!(super::cut(names, &vec![1; 65_536], 32, Some(1)).is_err());
    }
}
