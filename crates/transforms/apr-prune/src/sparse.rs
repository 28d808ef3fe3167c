//! Tensors with many zeros, stored without them where that saves room.
//!
//! A tensor is shown in the [form](StoredForm) that the native container stores sparse ones in; a
//! writer of that container takes the form as it is. Nothing holds a whole tensor: what is kept of
//! one is where its rows begin.

use apr_core::{
    CheckpointReader, DType, Error, Phase, Pipeline, Progress, Result, Shape, StoredForm,
};
use apr_tensor::sparse::{Matrix, Sections, SparseLayout, encode};
use apr_view::values::decode;
use apr_view::{Computation, Derived, NamePattern, Target};
use serde::Serialize;

use crate::plan::Left;
use crate::weights::in_memory;

/// Maximum number of bytes of rows per read.
const STRIP: u64 = 1 << 20;

/// Maximum number of bytes of row pointers that are kept per tensor.
const ROW_POINTERS: u64 = 1 << 26;

/// Options for storing tensors without zeros.
#[derive(Debug, Clone)]
pub struct Sparsity {
    /// Layout of the entries: single elements or blocks.
    pub layout: SparseLayout,
    /// Tensors whose names match; all, without one.
    pub targets: Option<NamePattern>,
}

/// Report on tensors that are stored without zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SparseReport {
    /// `csr`, or `block:4` and the like.
    pub layout: String,
    /// Tensors that are smaller so.
    pub tensors: Vec<SparseTensor>,
    /// Tensors that stay dense, each with the reason.
    ///
    /// Tensors that would not be smaller are only counted.
    pub left: Vec<Left>,
    /// Tensors that would not be smaller.
    pub not_smaller: usize,
}

/// A tensor without its zeros.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SparseTensor {
    /// Name of the tensor.
    pub name: String,
    /// Elements or blocks that are stored.
    #[serde(rename = "entry_count")]
    pub entries: u64,
    /// Bytes of the dense tensor.
    pub bytes_before: u64,
    /// Bytes of the sparse tensor.
    pub bytes: u64,
}

/// A tensor of which the zeros are not shown.
struct Rows {
    matrix: Matrix,
    layout: SparseLayout,
    sections: Sections,
    form: StoredForm,
    /// Entries before each row of blocks, and all of them at the end.
    row_ptr: Vec<u64>,
}

/// Stores the tensors of a checkpoint without their zeros, if that saves space.
///
/// # Errors
/// E001 for a glob that does not match any tensor, E002 and E007 when a tensor can't be read.
pub fn sparsify<'b, P: Pipeline>(
    base: Box<dyn CheckpointReader + 'b>,
    sparsity: &Sparsity,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<(Box<dyn CheckpointReader + 'b>, SparseReport)> {
    let layout = sparsity.layout;
    let mut report = SparseReport {
        layout: match layout {
            SparseLayout::Csr => "csr".to_owned(),
            SparseLayout::Bsr { block } => format!("block:{block}"),
        },
        tensors: Vec::new(),
        left: Vec::new(),
        not_smaller: 0,
    };
    let (mut candidates, mut matches) = (Vec::new(), 0);
    for (position, info) in base.tensors().iter().enumerate() {
        if sparsity.targets.as_ref().is_some_and(|glob| !glob.is_match(&info.name)) {
            continue;
        }
        matches += 1;
        match candidate(&*base, position, layout) {
            Ok(Some(matrix)) => candidates.push((position, matrix)),
            Ok(None) => report.not_smaller += 1,
            Err(why) => report.left.push(Left { name: info.name.clone(), why }),
        }
    }
    if let (0, Some(glob)) = (matches, &sparsity.targets) {
        return Err(Error::format(format!("no tensor's name matches '{}'", glob.text())));
    }

    let counts = count(&*base, &candidates, layout, pipeline, progress)?;
    let mut sparse = Derived::new(base);
    for ((position, matrix), counted) in candidates.into_iter().zip(counts) {
        let Counted { row_ptr, is_healthy } = counted;
        if !is_healthy {
            // Dense, it is judged as every tensor that is written.
            let name = sparse.tensors()[position].name.clone();
            report.left.push(Left { name, why: "it has NaN or infinity".to_owned() });
            continue;
        }
        let entries = row_ptr.last().copied().unwrap_or_default();
        let sections = layout.sections(matrix, entries);
        let Some(sections) = sections.filter(|_| layout.is_worth(matrix, entries)) else {
            report.not_smaller += 1;
            continue;
        };
        let flags = match layout {
            SparseLayout::Csr => StoredForm::CSR,
            SparseLayout::Bsr { .. } => StoredForm::BSR,
        };
        let form = StoredForm { flags, raw_len: sections.end, len: sections.end };
        report.tensors.push(SparseTensor {
            name: sparse.tensors()[position].name.clone(),
            entries,
            bytes_before: matrix.dense_len(),
            bytes: sections.end,
        });
        sparse.compute(position, Rows { matrix, layout, sections, form, row_ptr });
    }
    Ok((Box::new(sparse), report))
}

/// Returns the matrix of a tensor that can be smaller without zeros, or `None` if it can't.
///
/// The error is the reason why a tensor is not examined.
fn candidate(
    base: &dyn CheckpointReader,
    position: usize,
    layout: SparseLayout,
) -> core::result::Result<Option<Matrix>, String> {
    let info = &base.tensors()[position];
    if let Some(form) = base.stored(position).form().filter(|form| form.flags & 0xf00 != 0) {
        return Err(match form.is_factors() {
            true => "it is stored as factors".to_owned(),
            false => "it is sparse already".to_owned(),
        });
    }
    let Ok(matrix) = Matrix::new(info.dtype, &info.shape) else {
        return match info.dtype.is_quantized() {
            true => Err(format!("its elements are {}", info.dtype)),
            false => Ok(None),
        };
    };
    if !layout.is_worth(matrix, 0) {
        return Ok(None);
    }
    let pointers = layout.sections(matrix, 0).map_or(u64::MAX, |sections| sections.columns);
    if pointers > ROW_POINTERS {
        return Err(format!("the pointers to its rows take {pointers} bytes"));
    }
    if matrix.row_bytes() > STRIP * 64 {
        return Err(format!("a row of it takes {} bytes", matrix.row_bytes()));
    }
    Ok(Some(matrix))
}

/// Returns the number of block rows per read.
fn strip(matrix: Matrix, layout: SparseLayout) -> u64 {
    (STRIP / matrix.row_bytes().saturating_mul(layout.block()).max(1)).max(1)
}

/// Result of the first read of a tensor.
struct Counted {
    /// Entries before each row of blocks, and all of them.
    row_ptr: Vec<u64>,
    /// `true` if no value is NaN or infinite.
    is_healthy: bool,
}

/// Counts the entries of each tensor.
fn count<P: Pipeline>(
    base: &dyn CheckpointReader,
    candidates: &[(usize, Matrix)],
    layout: SparseLayout,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Vec<Counted>> {
    let mut tasks = Vec::new();
    for (at, (_, matrix)) in candidates.iter().enumerate() {
        let step = strip(*matrix, layout);
        let rows = matrix.rows().div_ceil(layout.block());
        tasks.extend(
            (0..rows.div_ceil(step)).map(|task| (at, task * step..((task + 1) * step).min(rows))),
        );
    }
    progress.begin(
        Phase::Measuring,
        candidates.iter().map(|(_, matrix)| matrix.dense_len()).fold(0, u64::saturating_add),
    );
    let first = |_: &(usize, Matrix)| Counted { row_ptr: vec![0], is_healthy: true };
    let mut found: Vec<Counted> = candidates.iter().map(first).collect();
    pipeline.run(
        tasks.len(),
        |task, (counts, is_finite): &mut (Vec<u64>, bool)| {
            let (at, rows) = &tasks[task];
            let (position, matrix) = candidates[*at];
            let encoded = encode_rows(base, position, matrix, layout, rows.clone())?;
            *is_finite = encoded.is_finite(base.tensors()[position].dtype);
            *counts = encoded.row_ptr;
            Ok(())
        },
        |task, (counts, is_finite)| {
            let (at, rows) = &tasks[task];
            let Counted { row_ptr, is_healthy } = &mut found[*at];
            let before = row_ptr.last().copied().unwrap_or_default();
            row_ptr.extend(counts.iter().skip(1).map(|count| before + count));
            *is_healthy &= *is_finite;
            let (_, matrix) = candidates[*at];
            progress.advance((rows.end - rows.start) * layout.block() * matrix.row_bytes());
            Ok(())
        },
    )?;
    Ok(found)
}

/// Rows of blocks, without zeros.
struct EncodedRows {
    /// Row pointers, which start at 0.
    row_ptr: Vec<u64>,
    columns: Vec<u8>,
    values: Vec<u8>,
}

impl EncodedRows {
    /// Returns `true` if no value is NaN or infinite.
    fn is_finite(&self, dtype: DType) -> bool {
        let mut values = Vec::new();
        if dtype.is_float() {
            decode(dtype, &self.values, 1, &mut values);
        }
        values.iter().all(|value| value.is_finite())
    }
}

fn encode_rows(
    base: &dyn CheckpointReader,
    position: usize,
    matrix: Matrix,
    layout: SparseLayout,
    rows: core::ops::Range<u64>,
) -> Result<EncodedRows> {
    let info = &base.tensors()[position];
    let first = rows.start * layout.block();
    let count = (rows.end * layout.block()).min(matrix.rows()) - first;
    let mut dense = vec![0; in_memory(count * matrix.row_bytes())?];
    base.read_tensor(position, first * matrix.row_bytes(), &mut dense)?;
    let dims: Vec<u64> =
        std::iter::once(count).chain(info.shape.dims().iter().skip(1).copied()).collect();
    let part = Matrix::new(info.dtype, &Shape::from(dims))?;
    let mut stored = encode(part, layout, &dense)?;

    let header = layout.sections(part, 0).ok_or_else(|| Error::format("no block has that size"))?;
    let pointers = stored.get(in_memory(header.row_ptr)?..in_memory(header.columns)?);
    let row_ptr: Vec<u64> = pointers
        .unwrap_or_default()
        .as_chunks()
        .0
        .iter()
        .map(|pointer| u64::from_le_bytes(*pointer))
        .collect();
    let entries = row_ptr.last().copied().unwrap_or_default();
    let sections =
        layout.sections(part, entries).ok_or_else(|| Error::format("no block has that size"))?;
    let values = stored.split_off(in_memory(sections.values)?);
    let columns = stored.split_off(in_memory(sections.columns)?);
    Ok(EncodedRows { row_ptr, columns, values })
}

impl Rows {
    /// Fills `buf` with bytes of the stored form.
    fn read_rows(
        &self,
        base: &dyn CheckpointReader,
        position: usize,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let Sections { columns, values, block_bytes, .. } = self.sections;
        let end = offset + buf.len() as u64;
        if offset < columns {
            let head = self.head();
            let start = in_memory(offset)?;
            let count = buf.len().min(head.len() - start);
            buf[..count].copy_from_slice(&head[start..][..count]);
        }
        for (from, to, width) in
            [(columns, values, 4), (values, self.sections.end, block_bytes.max(1))]
        {
            let (first, last) = (offset.max(from), end.min(to));
            if first >= last {
                continue;
            }
            let (into, out) = (first - from, &mut buf[in_memory(first - offset)?..]);
            let out = &mut out[..in_memory(last - first)?];
            self.entries(base, position, (into, width), from == columns, out)?;
        }
        Ok(())
    }

    /// Returns the bytes before the columns.
    fn head(&self) -> Vec<u8> {
        let mut head = Vec::new();
        if let SparseLayout::Bsr { block } = self.layout {
            head.extend_from_slice(&block.to_le_bytes());
            head.extend_from_slice(&[0; 4]);
        }
        let entries = self.row_ptr.last().copied().unwrap_or_default();
        head.extend_from_slice(&entries.to_le_bytes());
        self.row_ptr.iter().for_each(|pointer| head.extend_from_slice(&pointer.to_le_bytes()));
        head
    }

    /// Fills `out` with columns, or values, of entries, `width` bytes each, from byte `into` on.
    fn entries(
        &self,
        base: &dyn CheckpointReader,
        position: usize,
        (into, width): (u64, u64),
        is_columns: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let end = into + out.len() as u64;
        // The row of blocks that has the first of them.
        let first = self.row_ptr.partition_point(|before| *before <= into / width);
        let mut row = (first as u64).saturating_sub(1);
        let rows = self.row_ptr.len() as u64 - 1;
        let step = strip(self.matrix, self.layout);
        while row < rows {
            let start = self.row_ptr[in_memory(row)?] * width;
            if start >= end {
                break;
            }
            let next = (row + step).min(rows);
            let found = encode_rows(base, position, self.matrix, self.layout, row..next)?;
            let bytes = if is_columns { found.columns } else { found.values };
            let (from, to) = (into.max(start), end.min(start + bytes.len() as u64));
            if from < to {
                let piece = &bytes[in_memory(from - start)?..in_memory(to - start)?];
                out[in_memory(from - into)?..][..piece.len()].copy_from_slice(piece);
            }
            row = next;
        }
        Ok(())
    }
}

impl Computation for Rows {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        target.read_source(offset, buf)
    }

    fn form(&self) -> Option<StoredForm> {
        Some(self.form)
    }

    fn read_form(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_rows(target.base, target.tensor, offset, buf)
    }
}
