//! Planning: order, shards, headers and offsets from names, dtypes and shapes alone.

use std::cmp::Reverse;

use apr_core::{
    Error, FileInfo, Layout, Loss, Metadata, PlannedTensor, Result, TensorInfo, check_file_name,
    keys, shard_units,
};
use serde_json::Value;

use crate::dtype::rank;
use crate::header::{Header, MAX_DIMS};
use crate::index;
use crate::names::{check_tensor_name, duplicate};
use crate::text::Text;
use crate::writer::{SafetensorsPlan, SafetensorsWriter};

/// Order of the tensors within a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// The order in which they are passed to [`plan`]. A file that was read keeps its order.
    #[default]
    AsGiven,
    /// The order of the reference library: by dtype, widest first, then by name.
    Canonical,
}

/// Options for writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Name of the file, `model.safetensors`; the names of shards and index are derived from it.
    pub file_name: String,
    /// Maximum number of bytes of tensors in a file; a larger model is split into shards. `None`
    /// means one file.
    pub shard_size: Option<u64>,
    /// Order of the tensors within a file.
    pub order: Order,
    /// `true` if a single file is also announced to [`Sink::next_file`](apr_core::Sink::next_file),
    /// as folders require. Shards always are.
    pub named_files: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            file_name: "model.safetensors".into(),
            shard_size: None,
            order: Order::AsGiven,
            named_files: false,
        }
    }
}

/// Plans a checkpoint as one file, or as shards and their index if `shard_size` requires it.
///
/// Shards are split as transformers splits them: tensors in the given order while they fit. A
/// tensor that exceeds the limit alone gets a shard of its own. `__metadata__` is read from
/// [`keys::SAFETENSORS`]. Checkpoints from other formats lack that key and get `{"format": "pt"}`.
///
/// ```
/// use apr_core::{CheckpointWriter, DType, MemoryFolder, Metadata, Notes, Shape, TensorInfo};
/// use apr_safetensors::{WriteOptions, plan};
///
/// let tensor =
///     |name: &str| TensorInfo { name: name.into(), dtype: DType::U8, shape: Shape::from([4]) };
/// let options = WriteOptions { shard_size: Some(4), ..WriteOptions::default() };
/// let mut writer = plan(&[tensor("a"), tensor("b")], &Metadata::new(), &options)?;
///
/// let mut folder = MemoryFolder::default();
/// writer.begin(&mut folder)?;
/// writer.write_chunk(&mut folder, b"aaaa", None)?;
/// writer.write_chunk(&mut folder, b"bbbb", None)?;
/// writer.finish(&mut folder, &Notes::default())?;
/// let names: Vec<_> = folder.files().keys().collect();
/// assert_eq!(
///     names,
///     [
///         "model-00001-of-00002.safetensors",
///         "model-00002-of-00002.safetensors",
///         "model.safetensors.index.json",
///     ]
/// );
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a dtype, name or shape that the format can't hold, `__metadata__` that is not text, or
/// a `shard_size` of 0; E008 for a header over 100,000,000 bytes or tensors over 2^64 bytes.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    options: &WriteOptions,
) -> Result<SafetensorsWriter> {
    let lens = tensors.iter().map(check_tensor).collect::<Result<Vec<_>>>()?;
    if let Some(name) = duplicate(tensors.iter().map(|tensor| tensor.name.as_str())) {
        return Err(Error::format("two tensors have this name").for_tensor(name));
    }

    let total = lens.iter().try_fold(0_u64, |total, &len| total.checked_add(len));
    let total = total.ok_or_else(|| Error::memory("the tensors exceed 2^64 bytes"))?;
    let text = Text::from_metadata(metadata)?;
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    let shards = split(names, &lens, options.shard_size)?;
    let sharded = shards.len() > 1;
    let named = sharded || options.named_files;
    if named {
        check_file_name(&options.file_name)?;
    }

    let mut layout = Layout { losses: losses(metadata, text.as_ref()), ..Layout::default() };
    let mut headers = Vec::with_capacity(shards.len());
    let stem = options.file_name.strip_suffix(".safetensors").unwrap_or(&options.file_name);
    let count = shards.len();
    for (file, mut members) in shards.into_iter().enumerate() {
        if options.order == Order::Canonical {
            members.sort_by_key(|&i| (Reverse(rank(tensors[i].dtype)), &tensors[i].name));
        }

        let entries: Vec<_> = members.iter().map(|&i| (&tensors[i], lens[i])).collect();
        let header = Header::encode(text.as_ref(), &entries)?;
        let mut offset = header.len() as u64;
        for source in members {
            layout.tensors.push(PlannedTensor { source, file, offset, len: lens[source] });
            let end = offset.checked_add(lens[source]);
            offset = end.ok_or_else(|| Error::memory("header and tensors exceed 2^64 bytes"))?;
        }

        let name = match sharded {
            true => format!("{stem}-{:05}-of-{count:05}.safetensors", file + 1),
            false => options.file_name.clone(),
        };
        layout.files.push(FileInfo { name, len: offset });
        headers.push(header);
    }

    let index = sharded.then(|| {
        let weight = |planned: &PlannedTensor| {
            (tensors[planned.source].name.as_str(), layout.files[planned.file].name.as_str())
        };
        index::encode(total, &layout.tensors.iter().map(weight).collect())
    });

    if let Some(index) = &index {
        layout.files.push(FileInfo {
            name: format!("{stem}.safetensors.index.json"),
            len: index.len() as u64,
        });
    }

    let names = layout.tensors.iter().map(|planned| tensors[planned.source].name.clone()).collect();
    Ok(SafetensorsWriter::new(SafetensorsPlan { layout, names, headers, index, named }))
}

/// Rejects a tensor that our own reader would reject, and returns its length.
fn check_tensor(tensor: &TensorInfo) -> Result<u64> {
    check_tensor_name(&tensor.name)?;
    let dims = tensor.shape.dims().len();
    if dims > MAX_DIMS {
        return Err(Error::format(format!("{dims} dimensions; {MAX_DIMS} is the limit"))
            .for_tensor(&tensor.name));
    }
    tensor.byte_len()
}

/// Returns the positions of the tensors of each shard.
fn split<'n>(
    names: impl Iterator<Item = &'n str>,
    lens: &[u64],
    shard_size: Option<u64>,
) -> Result<Vec<Vec<usize>>> {
    let limit = match shard_size {
        Some(0) => return Err(Error::format("the shard size must be 1 byte or more")),
        Some(limit) => limit,
        None => return Ok(vec![(0..lens.len()).collect()]),
    };
    let (mut shards, mut current, mut size) = (Vec::new(), Vec::new(), 0_u64);
    for unit in shard_units(names.zip(lens.iter().copied()), limit) {
        let len: u64 = unit.iter().map(|&tensor| lens[tensor]).sum();
        if len > limit {
            // It takes its number at once; the shard being filled goes on after it.
            shards.push(unit);
            continue;
        }
        if len > limit - size {
            shards.push(std::mem::take(&mut current));
            size = 0;
        }
        current.extend(unit);
        size += len;
    }

    if !current.is_empty() || shards.is_empty() {
        shards.push(current);
    }
    shards.iter_mut().for_each(|shard| shard.sort_unstable());

    Ok(shards)
}

fn losses(metadata: &Metadata, text: Option<&Text>) -> Vec<Loss> {
    // The first keys say what the format implies or what its header keeps; the others the caller
    // stores elsewhere.
    const CARED_FOR: [&str; 8] = [
        keys::APR_VERSION,
        keys::MODEL_TYPE,
        keys::ARCHITECTURE,
        keys::SOURCE,
        keys::LOSS,
        keys::SAFETENSORS,
        keys::FILES,
        keys::TIED,
    ];

    let is_text =
        |key: &str| text.is_some_and(|Text(pairs)| pairs.iter().any(|(own, _)| own == key));
    let lost = metadata.iter().filter(|(key, _)| !CARED_FOR.contains(key) && !is_text(key));
    // Texts would fit, but no reader of the format looks for them there, and a file that went
    // through another format would not become the same file again.
    let loss = |(key, value): (&str, &Value)| Loss {
        name: key.into(),
        what: "metadata".into(),
        why: match value.is_string() {
            true => "the safetensors format defines no key for it",
            false => "__metadata__ of a safetensors header holds text only",
        }
        .into(),
    };
    lost.map(loss).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_cut_as_transformers_cuts_them() {
        let names = ["a", "b", "c", "d", "e", "f"];
        let cut =
            |lens: &[u64], limit| split(names.into_iter(), lens, limit).expect("a limit above 0");
        // The example of the library's documentation.
        assert_eq!(cut(&[6, 6, 2, 6, 2, 2], Some(10)), [vec![0], vec![1, 2], vec![3, 4, 5]]);
        assert_eq!(cut(&[1, 20, 1, 0], Some(10)), [vec![1], vec![0, 2, 3]]);
        assert_eq!(cut(&[5, 5], Some(10)), [vec![0, 1]]);
        assert_eq!(cut(&[u64::MAX, 1], Some(u64::MAX)), [vec![0], vec![1]]);
        assert_eq!(cut(&[20], Some(10)), [vec![0]]);
        assert_eq!(cut(&[], Some(10)), [Vec::<usize>::new()]);
        assert_eq!(cut(&[5, 5], None), [vec![0, 1]]);
        assert!(split(names.into_iter(), &[1], Some(0)).is_err());
    }

    #[test]
    fn parts_of_a_weight_are_in_one_shard_in_the_given_order() {
        let names = ["a.qweight", "n.weight", "b.qweight", "a.scales", "b.scales"];
        let cut = |limit| split(names.into_iter(), &[4, 1, 4, 1, 1], Some(limit));
        assert_eq!(cut(6), Ok(vec![vec![0, 1, 3], vec![2, 4]]));
        assert_eq!(cut(5), Ok(vec![vec![0, 3], vec![1], vec![2, 4]]));
        assert_eq!(cut(4), Ok(vec![vec![0], vec![1], vec![2], vec![3, 4]]));
    }
}
