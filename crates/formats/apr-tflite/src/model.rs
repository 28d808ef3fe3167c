//! The tables of a model: which tensors are weights, and where their bytes are.

use std::collections::HashMap;

use apr_core::{DType, Error, Result, StoredRange, UniqueNames};
use serde_json::{Map, Value, json};

use crate::flatbuffer::Table;

/// Fields by their numbers in the schema.
mod field {
    pub(super) const VERSION: u64 = 0;
    pub(crate) const SUBGRAPHS: u64 = 2;
    pub(super) const BUFFERS: u64 = 4;

    pub(super) const BUFFER_DATA: u64 = 0;
    pub(super) const BUFFER_OFFSET: u64 = 1;
    pub(super) const BUFFER_SIZE: u64 = 2;

    pub(super) const SUBGRAPH_TENSORS: u64 = 0;
    pub(super) const SUBGRAPH_NAME: u64 = 4;

    pub(super) const SHAPE: u64 = 0;
    pub(super) const TYPE: u64 = 1;
    pub(super) const BUFFER: u64 = 2;
    pub(super) const NAME: u64 = 3;
    pub(super) const QUANTIZATION: u64 = 4;
    pub(super) const SPARSITY: u64 = 6;

    pub(super) const SCALE: u64 = 2;
    pub(super) const ZERO_POINT: u64 = 3;
    pub(super) const DETAILS_TYPE: u64 = 4;
    pub(super) const DETAILS: u64 = 5;
    pub(super) const QUANTIZED_DIMENSION: u64 = 6;

    pub(super) const BLOCK_SCALES: u64 = 0;
    pub(super) const BLOCK_ZERO_POINTS: u64 = 1;
    pub(super) const BLOCK_SIZE: u64 = 2;
}

pub(crate) use field::SUBGRAPHS;

/// The version of the schema that there is.
const VERSION: u32 = 3;

/// `BlockwiseQuantization` in the union of details.
const BLOCKWISE: u8 = 2;

/// Name of a tensor's elements, and the dtype that they are read as.
const TYPES: [(&str, Option<DType>); 19] = [
    ("float32", Some(DType::F32)),
    ("float16", Some(DType::F16)),
    ("int32", Some(DType::I32)),
    ("uint8", Some(DType::U8)),
    ("int64", Some(DType::I64)),
    ("string", None),
    ("bool", Some(DType::BOOL)),
    ("int16", Some(DType::I16)),
    ("complex64", Some(DType::C64)),
    ("int8", Some(DType::I8)),
    ("float64", Some(DType::F64)),
    ("complex128", None),
    ("uint64", Some(DType::U64)),
    ("resource", None),
    ("variant", None),
    ("uint32", Some(DType::U32)),
    ("uint16", Some(DType::U16)),
    (INT4, Some(DType::I8)),
    ("bfloat16", Some(DType::BF16)),
];
const INT4: &str = "int4";

/// Returns the name of an element type, or its number for types of later versions.
pub(crate) fn type_name(number: u8) -> String {
    TYPES.get(usize::from(number)).map_or(format!("type {number}"), |(name, _)| (*name).to_owned())
}

/// A weight, or numbers that belong to one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) range: StoredRange,
    /// `true` if each byte has two elements, the even one in the lower half.
    pub(crate) is_packed: bool,
}

/// Content of a model's tables.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    pub(crate) list: Vec<Weight>,
    /// Quantization of the quantized tensors, by their names.
    pub(crate) quantized: Map<String, Value>,
    /// Errors for the weights that cannot be read.
    pub(crate) refused: Vec<Error>,
    /// Tensors with bytes, by the numbers of their subgraph and their own: the name, and the
    /// position in the list where they can be read.
    tensors: HashMap<(usize, u32), (String, Option<usize>)>,
    /// Ranges of all buffers.
    pub(crate) buffers: Vec<StoredRange>,
}

impl Weights {
    /// Lists the weights of all subgraphs.
    ///
    /// # Errors
    /// E002 for a damaged file, E003 for a version that does not exist, E007 when reading fails,
    /// E008 over a limit.
    pub(crate) fn of(model: &Table<'_>, file_len: u64) -> Result<Self> {
        let version = model.u32(field::VERSION)?;
        if version != VERSION {
            let message = format!("version {version} of the schema; there is {VERSION} only");
            return Err(Error::version(message));
        }
        let buffers = buffers(model, file_len)?;
        let mut weights =
            Self { buffers: buffers.iter().flatten().copied().collect(), ..Self::default() };
        let mut names = UniqueNames::of_tensors();
        for (number, subgraph) in model.tables(field::SUBGRAPHS)?.enumerate() {
            let subgraph = subgraph?;
            let prefix = match number {
                0 => String::new(),
                _ => format!("{}/", subgraph_name(&subgraph, number)?),
            };
            weights.add_subgraph((number, &subgraph), &prefix, &buffers, &mut names)?;
        }
        Ok(weights)
    }

    /// Returns the name of a tensor that has data, and its weight if it can be read.
    pub(crate) fn of_tensor(
        &self,
        subgraph: usize,
        tensor: u32,
    ) -> Option<(&str, Option<&Weight>)> {
        let (name, position) = self.tensors.get(&(subgraph, tensor))?;
        Some((name, position.and_then(|position| self.list.get(position))))
    }

    fn add_subgraph(
        &mut self,
        (position, subgraph): (usize, &Table<'_>),
        prefix: &str,
        buffers: &[Option<StoredRange>],
        names: &mut UniqueNames,
    ) -> Result<()> {
        // Scales of blocks are tensors, known by their numbers.
        let mut blocks: Vec<(String, [u32; 3])> = Vec::new();
        for (number, tensor) in (0..).zip(subgraph.tables(field::SUBGRAPH_TENSORS)?) {
            let tensor = tensor?;
            let buffer = usize::try_from(tensor.u32(field::BUFFER)?).unwrap_or(usize::MAX);
            let Some(range) = buffers.get(buffer) else {
                let message = format!("tensor {number} has buffer {buffer} of {}", buffers.len());
                return Err(Error::corrupt(message));
            };
            let Some(range) = *range else { continue };
            let name = tensor.text(field::NAME)?.filter(|name| !name.is_empty());
            let name = name.unwrap_or_else(|| format!("tensor{number}"));
            let name = names.unique(format!("{prefix}{name}"));
            self.tensors.insert((position, number), (name.clone(), None));
            let weight = match weight(&tensor, &name, range)? {
                Ok(weight) => weight,
                Err(refused) => {
                    self.refused.push(refused.for_tensor(&name));
                    continue;
                }
            };
            self.tensors.insert((position, number), (name.clone(), Some(self.list.len())));
            self.list.push(weight);
            if let Some(quantization) = tensor.table(field::QUANTIZATION)? {
                blocks.extend(self.add_scales(&name, &quantization, names)?);
            }
        }
        let named = |number: u32| {
            let (name, _) = self.of_tensor(position, number).filter(|(_, info)| info.is_some())?;
            Some(Value::from(name))
        };
        let mut named_blocks = Vec::with_capacity(blocks.len());
        for (name, [scales, zero_points, size]) in blocks {
            let mut entry = json!({ "block_size": size, "scales": named(scales) });
            if let Some(zero_points) = named(zero_points) {
                entry["zero_points"] = zero_points;
            }
            named_blocks.push((name, entry));
        }
        self.quantized.extend(named_blocks);
        Ok(())
    }

    /// Adds the scales and zero points of a weight; returns the numbers of the tensors that hold
    /// them, where it is quantized by blocks, and the elements of a block.
    fn add_scales(
        &mut self,
        name: &str,
        quantization: &Table<'_>,
        names: &mut UniqueNames,
    ) -> Result<Option<(String, [u32; 3])>> {
        if quantization.u8(field::DETAILS_TYPE)? == BLOCKWISE {
            let Some(details) = quantization.table(field::DETAILS)? else { return Ok(None) };
            let numbers = [field::BLOCK_SCALES, field::BLOCK_ZERO_POINTS, field::BLOCK_SIZE];
            let [scales, zero_points, size] = numbers.map(|number| details.u32(number));
            return Ok(Some((name.to_owned(), [scales?, zero_points?, size?])));
        }

        let scales = quantization.list(field::SCALE, 4)?;
        if scales.len == 0 {
            return Ok(None);
        }
        let zero_points = quantization.list(field::ZERO_POINT, 8)?;
        let mut entry = Map::new();
        if scales.len > 1 {
            entry.insert("axis".into(), quantization.u32(field::QUANTIZED_DIMENSION)?.into());
        }
        let mut add = |key: &str, dtype: DType, at: u64, len: u64| {
            let name = names.unique(format!("{name}.{key}"));
            let range = StoredRange { file: 0, offset: at, len: len * dtype.block_bytes() };
            entry.insert(key.to_owned(), name.clone().into());
            self.list.push(Weight { name, dtype, dims: vec![len], range, is_packed: false });
        };
        add("scales", DType::F32, scales.at, scales.len);
        if zero_points.len > 0 && !zero_points.are_zero()? {
            add("zero_points", DType::I64, zero_points.at, zero_points.len);
        }
        self.quantized.insert(name.to_owned(), entry.into());
        Ok(None)
    }
}

/// Returns the name of a subgraph.
///
/// # Errors
/// The errors of reading.
pub(crate) fn subgraph_name(subgraph: &Table<'_>, number: usize) -> Result<String> {
    let name = subgraph.text(field::SUBGRAPH_NAME)?.filter(|name| !name.is_empty());
    Ok(name.unwrap_or_else(|| format!("subgraph{number}")))
}

/// Returns the range of each buffer, or `None` for an empty one.
fn buffers(model: &Table<'_>, file_len: u64) -> Result<Vec<Option<StoredRange>>> {
    let range = |buffer: Result<Table<'_>>| {
        let buffer = buffer?;
        let data = buffer.list(field::BUFFER_DATA, 1)?;
        // Data over 2 GB lie behind the flatbuffer; an offset of 0 or 1 is a placeholder.
        let outside = buffer.u64(field::BUFFER_OFFSET)?;
        let (offset, len) = match outside {
            0 | 1 => (data.at, data.len),
            _ => (outside, buffer.u64(field::BUFFER_SIZE)?),
        };
        if offset.checked_add(len).is_none_or(|end| end > file_len) {
            let message = format!("a buffer of {len} bytes ends past the file's end");
            return Err(Error::corrupt(message).at(offset));
        }
        Ok((len > 0).then_some(StoredRange { file: 0, offset, len }))
    };
    model.tables(field::BUFFERS)?.map(range).collect()
}

/// Reads a tensor with data.
///
/// The inner error is the reason why it cannot be read, which does not affect other tensors.
fn weight(
    tensor: &Table<'_>,
    name: &str,
    range: StoredRange,
) -> Result<std::result::Result<Weight, Error>> {
    let number = tensor.u8(field::TYPE)?;
    let known = TYPES.get(usize::from(number)).and_then(|(name, dtype)| Some((*name, (*dtype)?)));
    let Some((type_name, dtype)) = known else {
        let message = format!("no format here holds elements of {}", type_name(number));
        return Ok(Err(Error::version(message)));
    };
    if tensor.table(field::SPARSITY)?.is_some() {
        return Ok(Err(Error::version("sparse tensors are not supported")));
    }
    let dims: Option<Vec<u64>> =
        tensor.list(field::SHAPE, 4)?.i32s()?.iter().map(|&dim| u64::try_from(dim).ok()).collect();
    let elements = dims
        .as_ref()
        .and_then(|dims| dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim)));
    let (Some(dims), Some(elements)) = (dims, elements) else {
        return Err(Error::corrupt("a weight has an impossible shape").for_tensor(name));
    };

    let is_packed = type_name == INT4;
    let needed = if is_packed {
        Some(elements.div_ceil(2))
    } else {
        elements.checked_mul(dtype.block_bytes())
    };
    if needed != Some(range.len) {
        let message = format!(
            "its {type_name} elements of shape {dims:?} do not fill its buffer of {} bytes",
            range.len
        );
        return Err(Error::corrupt(message).for_tensor(name).at(range.offset));
    }
    Ok(Ok(Weight { name: name.to_owned(), dtype, dims, range, is_packed }))
}
