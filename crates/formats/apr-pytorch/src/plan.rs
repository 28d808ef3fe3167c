//! Planning: the pickle and every offset, from names, dtypes and shapes alone.

use std::collections::{HashMap, HashSet};

use apr_core::{
    DType, Error, FileInfo, Layout, Loss, Metadata, PlannedTensor, Result, TensorInfo,
    check_file_name, keys,
};
use serde_json::{Map, Value};

use crate::flatten::MAX_NAME;
use crate::pickle::build::MAX_DIMS;
use crate::pickle::encode::{self, ElementKind, Item, Object};
use crate::pickle::globals::{storage_class, untyped_name};
use crate::record::{END_RECORDS_LEN, Record};
use crate::script::ScriptModule;
use crate::writer::{BYTE_ORDER, PytorchWriter, StateDictPlan, VERSION};

/// Longest name of the folder that all entries are in; PyTorch's ZIP library stops at 512 bytes for
/// the whole.
const MAX_FOLDER: usize = 255;

/// Options for writing a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// Name of the file, `model.pt`. Without its extension it is also the folder inside the
    /// archive, as PyTorch has it.
    pub file_name: String,
    /// `true` to announce the file to [`Sink::next_file`](apr_core::Sink::next_file), for folders.
    pub named_files: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { file_name: "model.pt".into(), named_files: false }
    }
}

/// Plans a state dict: the file that `torch.save` would write of an `OrderedDict` of these tensors,
/// in this order, with the `byteorder` entry that it has since 2.1. `torch.load` with
/// `weights_only=True` reads it from 1.13 on; with 8-bit floats from 2.1, with unsigned integers of
/// 16 to 64 bits from 2.3, with `f8_e8m0` from 2.7 on.
///
/// [`keys::TIED`] maps a tensor to the one whose bytes it has. Where both are here with the same
/// dtype and shape they get one storage, and [`Layout::tensors`] has only the second, whose bytes
/// are written.
///
/// ```
/// use apr_core::{
///     CheckpointReader, CheckpointWriter, DType, Limits, Metadata, Notes, Shape, TensorInfo,
/// };
/// use apr_pytorch::{WriteOptions, open, plan};
///
/// let weight =
///     TensorInfo { name: "fc.weight".into(), dtype: DType::F16, shape: Shape::from([2, 1]) };
/// let mut writer = plan(&[weight.clone()], &Metadata::new(), &WriteOptions::default())?;
/// let mut file = Vec::new();
/// writer.begin(&mut file)?;
/// writer.write_chunk(&mut file, &[0, 60, 0, 64], None)?;
/// writer.finish(&mut file, &Notes::default())?;
///
/// assert_eq!(file.len() as u64, writer.layout().total_len());
/// assert_eq!(open(file, "model.pt", &Limits::default())?.tensors(), [weight]);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E001 for a dtype, name or shape that a state dict can't hold, or an invalid file name; E008 for
/// tensors over 2^64 bytes.
pub fn plan(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    options: &WriteOptions,
) -> Result<PytorchWriter> {
    if options.named_files {
        check_file_name(&options.file_name)?;
    }
    let storages = Storages::of(tensors, metadata)?;
    let pickle = encode::state_dict(&storages.items(tensors)?);
    let front = vec![("data.pkl", pickle), ("byteorder", BYTE_ORDER.to_vec())];
    archive(tensors, &storages, front, losses(metadata), options)
}

/// Plans a TorchScript archive: the tensors as parameters of modules, beside the source of their
/// classes, for `torch.jit.load`. `apr-torchscript` writes the source.
///
/// # Errors
/// Those of [`plan`].
pub fn plan_script(
    tensors: &[TensorInfo],
    metadata: &Metadata,
    root: &ScriptModule,
    source: String,
    options: &WriteOptions,
) -> Result<PytorchWriter> {
    if options.named_files {
        check_file_name(&options.file_name)?;
    }

    let storages = Storages::of(tensors, metadata)?;
    let mut items: Vec<Option<Item<'_>>> = storages.items(tensors)?.into_iter().map(Some).collect();
    if let Some(item) =
        items.iter().flatten().find(|item| matches!(item.kind, ElementKind::Untyped(_)))
    {
        return Err(Error::format(
            "TorchScript has no type for its elements; a state dict (.pt) has",
        )
        .for_tensor(item.name));
    }

    let pickle = encode::module(&object(root, &mut items));
    let front = vec![
        ("data.pkl", pickle),
        ("byteorder", BYTE_ORDER.to_vec()),
        // `torch.jit.load` reads it even where there are no constants.
        ("constants.pkl", encode::nothing()),
        ("code/__torch__.py", source.into_bytes()),
    ];
    archive(tensors, &storages, front, losses(metadata), options)
}

/// Returns a module in the form in which it is pickled. Each item belongs to one module.
fn object<'a>(module: &'a ScriptModule, items: &mut [Option<Item<'a>>]) -> Object<'a> {
    let tensors = module
        .tensors
        .iter()
        .filter_map(|(name, position)| Some((name.as_str(), items[*position].take()?)));
    let tensors = tensors.collect();
    let objects =
        module.modules.iter().map(|(name, inner)| (name.as_str(), object(inner, items))).collect();
    Object { class: &module.class, tensors, objects }
}

/// The storages of tensors.
struct Storages {
    /// Lengths of the tensors in bytes.
    lens: Vec<u64>,
    /// For each tensor the one whose storage it has.
    owners: Vec<usize>,
    /// The tensors whose bytes are written.
    streamed: Vec<usize>,
    /// For each tensor the number of its storage.
    numbers: Vec<usize>,
}

impl Storages {
    fn of(tensors: &[TensorInfo], metadata: &Metadata) -> Result<Self> {
        let lens = tensors.iter().map(check_tensor).collect::<Result<Vec<_>>>()?;
        check_unique(tensors)?;
        let owners = owners(tensors, &lens, metadata);
        let (streamed, numbers) = number_storages(&owners);
        Ok(Self { lens, owners, streamed, numbers })
    }

    fn items<'a>(&self, tensors: &'a [TensorInfo]) -> Result<Vec<Item<'a>>> {
        tensors
            .iter()
            .zip(&self.owners)
            .map(|(tensor, &owner)| item(tensor, self.numbers[owner]))
            .collect()
    }
}

/// Plans the archive: the entries with known content, the storages and the version.
fn archive(
    tensors: &[TensorInfo],
    storages: &Storages,
    front: Vec<(&str, Vec<u8>)>,
    losses: Vec<Loss>,
    options: &WriteOptions,
) -> Result<PytorchWriter> {
    let folder = folder(&options.file_name);

    // The order of the entries is that of `torch.save`.
    let mut records = Vec::with_capacity(storages.streamed.len() + front.len() + 1);
    for (name, content) in &front {
        push(&mut records, format!("{folder}/{name}"), content.len() as u64)?;
    }

    let mut layout = Layout { losses, ..Layout::default() };
    for (key, &source) in storages.streamed.iter().enumerate() {
        let len = storages.lens[source];
        let offset = push(&mut records, format!("{folder}/data/{key}"), len)
            .map_err(|error| error.for_tensor(&tensors[source].name))?;
        layout.tensors.push(PlannedTensor { source, file: 0, offset, len });
    }

    push(&mut records, format!("{folder}/version"), VERSION.len() as u64)?;

    let directory = records.last().map_or(0, |record| record.end);
    let directory_len: u64 = records.iter().map(Record::central_len).sum();
    let len = directory.checked_add(directory_len).and_then(|end| end.checked_add(END_RECORDS_LEN));
    let len = len.ok_or_else(|| Error::memory("the archive exceeds 2^64 bytes"))?;
    layout.files.push(FileInfo { name: options.file_name.clone(), len });
    let names = storages.streamed.iter().map(|&source| tensors[source].name.clone()).collect();
    let front = front.into_iter().map(|(_, content)| content).collect();
    Ok(PytorchWriter::new(StateDictPlan {
        layout,
        names,
        records,
        front,
        named: options.named_files,
    }))
}

/// Appends an entry; gives the offset of its content.
fn push(records: &mut Vec<Record>, name: String, len: u64) -> Result<u64> {
    let record = Record::new(name, len, records.last().map_or(0, |before| before.end))?;
    let offset = record.offset;
    records.push(record);
    Ok(offset)
}

/// Refuses what our own reader would refuse, and gives the tensor's length.
fn check_tensor(tensor: &TensorInfo) -> Result<u64> {
    let TensorInfo { name, dtype, shape } = tensor;
    let dims = shape.dims().len();
    let problem = if name.is_empty() {
        "a tensor has an empty name".to_owned()
    } else if name.len() > MAX_NAME {
        format!("the tensor's name is {} bytes long; {MAX_NAME} is the limit", name.len())
    } else if dims > MAX_DIMS {
        format!("{dims} dimensions; {MAX_DIMS} is the limit")
    } else if kind(*dtype).is_some() {
        return tensor.byte_len();
    } else if dtype.is_quantized() {
        format!("a state dict does not support {dtype}; `dequantize` f16 writes floats")
    } else {
        format!("PyTorch does not support {dtype}; cast the tensor first, or write safetensors")
    };

    Err(Error::format(problem).for_tensor(name))
}

fn check_unique(tensors: &[TensorInfo]) -> Result<()> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        Some(tensor) => Err(Error::format("two tensors have this name").for_tensor(&tensor.name)),
        None => Ok(()),
    }
}

/// For each tensor the position of the one whose storage it shares, which is its own for most.
fn owners(tensors: &[TensorInfo], lens: &[u64], metadata: &Metadata) -> Vec<usize> {
    let none = Map::new();
    let tied = metadata.object(keys::TIED).unwrap_or(&none);
    let mut positions = HashMap::new();
    if !tied.is_empty() {
        positions.extend(
            tensors.iter().enumerate().map(|(position, tensor)| (tensor.name.as_str(), position)),
        );
    }

    let owner = |(position, tensor): (usize, &TensorInfo)| {
        // An owner that is tied itself would make chains, or a circle that nobody's bytes are
        // written for.
        let name =
            tied.get(&tensor.name).and_then(Value::as_str).filter(|name| !tied.contains_key(*name));
        let owner = name.and_then(|name| positions.get(name)).copied().filter(|&owner| {
            lens[position] > 0
                && tensors[owner].dtype == tensor.dtype
                && tensors[owner].shape == tensor.shape
        });
        owner.unwrap_or(position)
    };

    tensors.iter().enumerate().map(owner).collect()
}

/// The tensors whose bytes are written, and for each of all tensors the number of its owner's
/// storage.
fn number_storages(owners: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let (mut streamed, mut storages) = (Vec::new(), vec![0; owners.len()]);
    for (position, _) in owners.iter().enumerate().filter(|(position, owner)| position == *owner) {
        storages[position] = streamed.len();
        streamed.push(position);
    }
    (streamed, storages)
}

fn item(tensor: &TensorInfo, storage: usize) -> Result<Item<'_>> {
    let TensorInfo { name, dtype, shape } = tensor;
    let too_large =
        || Error::format(format!("PyTorch can't count the elements of {shape}")).for_tensor(name);
    let kind = kind(*dtype).ok_or_else(too_large)?;
    let (elements, strides) = shape.elements().zip(strides(shape.dims())).ok_or_else(too_large)?;
    let elements = match kind {
        ElementKind::Typed(_) => elements,
        ElementKind::Untyped(_) => {
            elements.checked_mul(dtype.block_bytes()).ok_or_else(too_large)?
        }
    };
    Ok(Item { name, kind, storage, elements, shape: shape.dims(), strides })
}

/// Returns the form in which PyTorch pickles tensors of a dtype, or `None` if it has no such dtype.
fn kind(dtype: DType) -> Option<ElementKind> {
    storage_class(dtype)
        .map(ElementKind::Typed)
        .or_else(|| untyped_name(dtype).map(ElementKind::Untyped))
}

/// Strides of a contiguous tensor, in which PyTorch counts a dimension of 0 as 1. It has 63 bits
/// for each number.
fn strides(dims: &[u64]) -> Option<Vec<u64>> {
    let fits = |number: &u64| i64::try_from(*number).is_ok();
    let mut stride = 1_u64;
    let mut strides = vec![0; dims.len()];
    for (slot, dim) in strides.iter_mut().zip(dims).rev() {
        *slot = stride;
        stride = stride.checked_mul((*dim).max(1)).filter(fits)?;
    }
    Some(strides)
}

/// Returns the folder in the archive: the file stem if it is a plain name, or `archive`.
fn folder(file_name: &str) -> &str {
    let base = file_name.rsplit(['/', '\\']).next().unwrap_or_default();
    let stem = base.rsplit_once('.').map_or(base, |(stem, _)| stem);
    if stem.len() <= MAX_FOLDER && check_file_name(stem).is_ok() { stem } else { "archive" }
}

fn losses(metadata: &Metadata) -> Vec<Loss> {
    // These say what the format implies, or the caller stores them elsewhere.
    const CARED_FOR: [&str; 7] = [
        keys::APR_VERSION,
        keys::MODEL_TYPE,
        keys::ARCHITECTURE,
        keys::SOURCE,
        keys::LOSS,
        keys::FILES,
        keys::TIED,
    ];

    let lost = |(key, value): &(&str, &Value)| {
        !(CARED_FOR.contains(key) || *key == keys::SAFETENSORS && is_format(value))
    };
    let loss = |(key, _): (&str, &Value)| Loss {
        name: key.into(),
        what: "metadata".into(),
        why: "a state dict holds tensors only".into(),
    };
    metadata.iter().filter(lost).map(loss).collect()
}

/// Returns `true` if the text of a safetensors header has no key other than `format`.
fn is_format(safetensors: &Value) -> bool {
    let text = safetensors.get("metadata").and_then(Value::as_object);
    text.is_none_or(|text| text.keys().all(|key| key == "format"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_match_pytorch() {
        assert_eq!(strides(&[]), Some(vec![]));
        assert_eq!(strides(&[2, 3, 4]), Some(vec![12, 4, 1]));
        assert_eq!(strides(&[2, 0, 3]), Some(vec![3, 3, 1]));
        assert_eq!(strides(&[1 << 62]), Some(vec![1]));
        assert_eq!(strides(&[0, 1 << 62, 2]), None);
        assert_eq!(strides(&[1 << 63]), None);
    }

    #[test]
    fn the_folder_is_a_plain_name() {
        for (file, expected) in [
            ("model.pt", "model"),
            ("a.b.pth", "a.b"),
            ("dir/m.bin", "m"),
            ("", "archive"),
            (".pt", "archive"),
            ("..pt", "archive"),
            ("c:x.pt", "archive"),
            ("größe", "größe"),
        ] {
            assert_eq!(folder(file), expected, "{file}");
        }
        assert_eq!(folder(&"n".repeat(300)), "archive");
    }
}
