//! Operations whose inputs are constants, and their outputs too: compressed weights.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use apr_core::{DType, Error, Limits, Result};

use crate::blob::Files;
use crate::grid::Grid;
use crate::tensor::{ByBlock, Bytes, Elements, Encoding, Linear, Tensor, Vectors, element_count};
use crate::value::integers;

/// Prefix of the names of these operations.
pub(crate) const PREFIX: &str = "constexpr_";

/// Maximum number of chained operations.
const MAX_DEPTH: u32 = 8;

/// A constant that has a name.
#[derive(Debug, Clone)]
pub(crate) enum Bound {
    Tensor(Arc<Tensor>),
    Text(String),
    /// The elements that a mask sets, with the other elements between them.
    Sparse(Arc<Tensor>),
    Other,
}

/// The inputs and attributes of an operation.
pub(crate) struct Operands<'a, 'f> {
    pub(crate) bound: &'a HashMap<String, Bound>,
    pub(crate) files: &'a Files<'f>,
    pub(crate) limits: &'a Limits,
}

impl Operands<'_, '_> {
    /// The outputs of an operation.
    ///
    /// # Errors
    /// E002 for operands that don't fit, E003 for an operation that is not known, E008 over a
    /// limit.
    pub(crate) fn compute(&self, operation: &str) -> Result<Vec<Bound>> {
        let of_one = |tensor: Tensor| Ok(vec![Bound::Tensor(Arc::new(tensor))]);
        match operation {
            "constexpr_affine_dequantize" => of_one(self.affine()?),
            "constexpr_blockwise_shift_scale" => of_one(self.blockwise(self.quants("data")?)?),
            "constexpr_lut_to_dense" if self.bound.contains_key("shape") => of_one(self.palette()?),
            "constexpr_lut_to_dense" => {
                let indices = self.quants("indices")?;
                let vectors = self.vectors(&indices.dims)?;
                of_one(self.look_up(indices, vectors)?)
            }
            "constexpr_sparse_to_dense" => of_one(self.sparse()?),
            "constexpr_lut_to_sparse" => {
                let mask = self.quants("indices_mask")?;
                let vectors = self.vectors(&mask.dims)?;
                let indices = self.placed("indices_nonzero_data", &mask)?;
                let dense = Arc::new(self.look_up(indices, vectors)?);
                let mask = match vectors {
                    Some(vectors) => {
                        let depth = self.depth(&[&mask])?;
                        let elements = Elements::Repeated { of: mask, vectors };
                        let dims = dense.dims.clone();
                        Arc::new(Tensor::computed(DType::U8, dims, elements, depth))
                    }
                    None => mask,
                };
                Ok(vec![Bound::Tensor(mask), Bound::Sparse(dense)])
            }
            "constexpr_sparse_blockwise_shift_scale" => {
                let mask = self.quants("data_mask")?;
                let data = self.placed("nonzero_data", &mask)?;
                let dense = Arc::new(self.blockwise(data)?);
                Ok(vec![Bound::Tensor(mask), Bound::Sparse(dense)])
            }
            "constexpr_cast" => {
                let of = self.quants("source_val")?;
                if !matches!(self.bound.get("output_dtype"), Some(Bound::Text(to)) if to == "fp32")
                {
                    return Err(Error::version("a cast to something other than fp32"));
                }
                let depth = self.depth(&[&of])?;
                let dims = of.dims.clone();
                of_one(Tensor::computed(DType::F32, dims, Elements::Cast { of }, depth))
            }
            other => Err(Error::version(format!("the operation {other} is not known"))),
        }
    }

    fn operand(&self, name: &str) -> Result<Option<&Arc<Tensor>>> {
        match self.bound.get(name) {
            None => Ok(None),
            Some(Bound::Tensor(tensor)) => Ok(Some(tensor)),
            Some(_) => Err(Error::version(format!("{name} must be a tensor"))),
        }
    }

    fn tensor(&self, name: &str) -> Result<&Arc<Tensor>> {
        self.operand(name)?.ok_or_else(|| Error::corrupt(format!("it has no {name}")))
    }

    /// A tensor whose elements are small integers, or floats.
    fn quants(&self, name: &str) -> Result<Arc<Tensor>> {
        checked(self.tensor(name)?, name).map(Arc::clone)
    }

    fn depth(&self, of: &[&Arc<Tensor>]) -> Result<u32> {
        let depth = of.iter().map(|tensor| tensor.depth).max().unwrap_or_default() + 1;
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} compressed constants on each other");
            return Err(Error::version(message));
        }
        Ok(depth)
    }

    /// Returns the number of a dimension in an operand; negative numbers count from the end.
    fn axis(&self, name: &str, rank: usize) -> Result<Option<usize>> {
        let Some(axis) = self.operand(name)? else { return Ok(None) };
        let axis = integers(axis, self.files)?.first().copied().unwrap_or_default();
        let rank = i64::try_from(rank).unwrap_or(i64::MAX);
        let axis = if axis < 0 { axis + rank } else { axis };
        let axis = usize::try_from(axis).ok().filter(|_| axis < rank);
        axis.map(Some).ok_or_else(|| Error::corrupt(format!("it has no such {name}")))
    }

    /// Values by blocks of a tensor.
    fn by_block(&self, of: &Tensor, values: &Arc<Tensor>, blocks: &[u64]) -> Result<ByBlock> {
        values.check_values(self.limits)?;
        Ok(ByBlock { values: Arc::clone(values), grid: Grid::new(&of.dims, blocks)? })
    }

    fn affine(&self) -> Result<Tensor> {
        let quants = self.quants("quantized_data")?;
        let rank = quants.dims.len();
        let axis = self.axis("axis", rank)?.unwrap_or_default();
        let along = |values: &Arc<Tensor>| {
            let mut blocks = vec![1; rank];
            match values.dims.as_slice() {
                [] => {}
                [len] if Some(len) == quants.dims.get(axis) => blocks[axis] = *len,
                dims => {
                    let message = format!(
                        "its scales or zero points of shape {dims:?} do not match dimension {axis} \
                         of {:?}",
                        quants.dims
                    );
                    return Err(Error::corrupt(message));
                }
            }
            self.by_block(&quants, values, &blocks)
        };
        let scale = self.quants("scale")?;
        let zero_point = self.operand("zero_point")?.map(|of| checked(of, "zero_point"));
        let offsets = zero_point.transpose()?.map(along).transpose()?;
        self.scaled(Arc::clone(&quants), along(&scale)?, offsets, Linear::Affine)
    }

    fn blockwise(&self, data: Arc<Tensor>) -> Result<Tensor> {
        let scale = self.quants("scale")?;
        let scales = self.by_block(&data, &scale, &scale.dims)?;
        let offset = self.operand("offset")?.map(|of| checked(of, "offset")).transpose()?;
        let offsets = offset.map(|of| self.by_block(&data, of, &of.dims)).transpose()?;
        self.scaled(data, scales, offsets, Linear::Blockwise)
    }

    fn scaled(
        &self,
        quants: Arc<Tensor>,
        scales: ByBlock,
        offsets: Option<ByBlock>,
        rule: Linear,
    ) -> Result<Tensor> {
        let dtype = scales.values.dtype;
        if !matches!(dtype, DType::F32 | DType::F16) {
            return Err(Error::version(format!("its scales are {dtype}")));
        }
        let offset = offsets.as_ref().map(|offsets| &offsets.values);
        let of: Vec<_> = [&quants, &scales.values].into_iter().chain(offset).collect();
        let depth = self.depth(&of)?;
        let dims = quants.dims.clone();
        let elements = Elements::Scaled { quants, scales, offsets, rule };
        Ok(Tensor::computed(dtype, dims, elements, depth))
    }

    /// Indices in bytes, and one table: before iOS 18.
    fn palette(&self) -> Result<Tensor> {
        let tables = self.quants("lut")?;
        let entries = tables.len();
        if !entries.is_power_of_two() || !(2..=256).contains(&entries) {
            return Err(Error::corrupt(format!("its table has {entries} entries")));
        }
        let indices = Arc::new(self.packed("indices", entries.ilog2())?);
        let blocks = vec![1; indices.dims.len()];
        let depth = self.depth(&[&indices, &tables])?;
        let (dtype, dims) = (tables.dtype, indices.dims.clone());
        let tables = self.by_block(&indices, &tables, &blocks)?;
        let elements = Elements::Looked { indices, tables, entries, vectors: None };
        Ok(Tensor::computed(dtype, dims, elements, depth))
    }

    /// Returns integers of `bits` bits from a list of bytes, in the shape of the operand `shape`.
    fn packed(&self, name: &str, bits: u32) -> Result<Tensor> {
        let shape = integers(self.tensor("shape")?, self.files)?;
        let dims: Option<Vec<u64>> = shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
        let dims = dims.ok_or_else(|| Error::corrupt("it has a negative size"))?;
        let list = self.tensor(name)?;
        let Elements::Stored { bytes, encoding: Encoding::Whole(DType::U8) } = &list.elements
        else {
            return Err(Error::version(format!("{name} must be bytes")));
        };
        // Bytes in memory were written one by one, which no program does for these.
        let Bytes::File(range) = bytes else {
            return Err(Error::version(format!("its {name} are written one by one")));
        };
        Tensor::stored(Bytes::File(*range), Encoding::bits(bits, false), dims)
    }

    /// Reads `vector_axis`. Returns `None` if the entries of the table are single elements.
    fn vectors(&self, dims: &[u64]) -> Result<Option<Vectors>> {
        let len = self.tensor("lut")?.dims.last().copied().unwrap_or_default();
        if len == 1 {
            return Ok(None);
        }
        let axis = self.axis("vector_axis", dims.len())?;
        let axis = axis.ok_or_else(|| Error::corrupt("it has no vector_axis"))?;
        if len == 0 {
            return Err(Error::corrupt("its table has empty entries"));
        }
        Ok(Some(Vectors { len, inner: element_count(&dims[axis + 1..])? }))
    }

    fn look_up(&self, indices: Arc<Tensor>, vectors: Option<Vectors>) -> Result<Tensor> {
        let tables = self.quants("lut")?;
        let rank = indices.dims.len();
        if tables.dims.len() != rank + 2 {
            let message = format!("a table of shape {:?} for indices of {rank}", tables.dims);
            return Err(Error::corrupt(message));
        }
        let entries = tables.dims[rank];
        let depth = self.depth(&[&indices, &tables])?;
        let (dtype, mut dims) = (tables.dtype, indices.dims.clone());
        let blocks = tables.dims[..rank].to_vec();
        if let (Some(Vectors { len, .. }), Some(axis)) = (vectors, self.axis("vector_axis", rank)?)
        {
            dims[axis] = dims[axis].saturating_mul(len);
            element_count(&dims)?;
        }
        let tables = self.by_block(&indices, &tables, &blocks)?;
        let elements = Elements::Looked { indices, tables, entries, vectors };
        Ok(Tensor::computed(dtype, dims, elements, depth))
    }

    fn sparse(&self) -> Result<Tensor> {
        if self.bound.contains_key("shape") {
            let mask = Arc::new(self.packed("mask", 1)?);
            return self.scattered(self.quants("nonzero_data")?, mask);
        }
        let mask = self.quants("mask")?;
        if let Some(Bound::Sparse(dense)) = self.bound.get("nonzero_data") {
            return self.masked(Arc::clone(dense), mask);
        }
        self.scattered(self.quants("nonzero_data")?, mask)
    }

    /// Elements that a mask sets, at their places.
    fn placed(&self, name: &str, mask: &Arc<Tensor>) -> Result<Arc<Tensor>> {
        let placed = match self.bound.get(name) {
            Some(Bound::Sparse(dense)) => self.masked(Arc::clone(dense), Arc::clone(mask)),
            _ => self.scattered(self.quants(name)?, Arc::clone(mask)),
        };
        placed.map(Arc::new)
    }

    fn masked(&self, dense: Arc<Tensor>, mask: Arc<Tensor>) -> Result<Tensor> {
        if dense.dims != mask.dims {
            let message = format!("a mask of shape {:?} for {:?}", mask.dims, dense.dims);
            return Err(Error::corrupt(message));
        }
        let depth = self.depth(&[&dense, &mask])?;
        let (dtype, dims) = (dense.dtype, dense.dims.clone());
        Ok(Tensor::computed(dtype, dims, Elements::Masked { dense, mask }, depth))
    }

    fn scattered(&self, listed: Arc<Tensor>, mask: Arc<Tensor>) -> Result<Tensor> {
        let depth = self.depth(&[&listed, &mask])?;
        let (dtype, dims) = (listed.dtype, mask.dims.clone());
        let elements = Elements::Scattered { listed, mask, ranks: OnceLock::new() };
        Ok(Tensor::computed(dtype, dims, elements, depth))
    }
}

/// Refuses elements that these operations don't take, and that single precision may not hold.
fn checked<'t>(tensor: &'t Arc<Tensor>, name: &str) -> Result<&'t Arc<Tensor>> {
    let dtype = tensor.dtype;
    if !matches!(dtype, DType::F32 | DType::F16 | DType::I8 | DType::U8) {
        return Err(Error::version(format!("its {name} is of {dtype} elements")));
    }
    Ok(tensor)
}
