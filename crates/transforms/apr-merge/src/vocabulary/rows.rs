//! Models whose rows of embeddings lie by the ids of another vocabulary.

use std::ops::Range;
use std::sync::Arc;

use apr_core::{CheckpointReader, DType, Error, Result, TensorInfo};
use apr_tensor::cast::{can_cast, cast_float};
use apr_view::{Computation, Derived, Target, values};

/// Source of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Row {
    /// A row of the model itself.
    Own(u64),
    /// A row of a model, by its position among all.
    Of(usize, u64),
    /// The mean of rows of several models.
    Mean(Vec<(usize, u64)>),
    Zero,
}

/// A tensor with rows of tokens, which lie by the ids of another vocabulary.
pub(crate) struct Moved<'a> {
    models: Arc<[Arc<dyn CheckpointReader + 'a>]>,
    rows: Arc<[Row]>,
    /// Positions of the tensor in all models.
    positions: Vec<Option<usize>>,
}

/// Returns a model whose tensors of tokens, which have `before` rows, get `rows`.
///
/// # Errors
/// E001 where a model that gives rows lacks the tensor, or has rows of another length.
pub(crate) fn aligned<'a>(
    base: Arc<dyn CheckpointReader + 'a>,
    models: &Arc<[Arc<dyn CheckpointReader + 'a>]>,
    before: u64,
    rows: Vec<Row>,
) -> Result<Derived<'a, Moved<'a>>> {
    let (mut aligned, rows): (_, Arc<[Row]>) = (Derived::new(base), rows.into());
    let mut is_any = false;
    for tensor in 0..aligned.tensors().len() {
        let info = aligned.info_mut(tensor);
        if !is_of_tokens(info, before) {
            continue;
        }
        let alike = |reader: &Arc<dyn CheckpointReader + 'a>| {
            reader.tensors().iter().position(|other| {
                other.name == info.name && other.shape.dims()[1..] == info.shape.dims()[1..]
            })
        };
        let positions: Vec<Option<usize>> = models.iter().map(alike).collect();
        let lacks = |model: &usize| positions.get(*model).copied().flatten().is_none();
        let missing = rows.iter().any(|row| match row {
            Row::Of(model, _) => lacks(model),
            Row::Mean(rows) => rows.iter().any(|(model, _)| lacks(model)),
            Row::Own(_) | Row::Zero => false,
        });
        if missing {
            let message = "some of its rows are taken from another model, which does not have it";
            return Err(Error::format(message).for_tensor(&info.name));
        }
        let mut dims = info.shape.dims().to_vec();
        dims[0] = rows.len() as u64;
        info.shape = dims.into();
        if info.dtype != DType::F64 && !can_cast(DType::F64, info.dtype) {
            info.dtype = DType::F32;
        }
        let (models, rows) = (Arc::clone(models), Arc::clone(&rows));
        aligned.compute(tensor, Moved { models, rows, positions });
        is_any = true;
    }
    if !is_any {
        let message = format!("no tensor has {before} rows, one for each token");
        return Err(Error::format(message));
    }
    Ok(aligned)
}

impl Moved<'_> {
    /// Replaces `out` by the bytes of a row.
    fn row(&self, target: &Target<'_>, row: &Row, out: &mut Vec<u8>) -> Result<()> {
        let info = target.info;
        let columns = columns(info);
        let of = |model: usize, row: u64| {
            let position = self.positions.get(model).copied().flatten();
            let absent = || Error::corrupt("a row is of a model that does not have the tensor");
            let range = row * columns..(row + 1) * columns;
            values::read(&*self.models[model], position.ok_or_else(absent)?, range)
        };
        let found: Vec<f64> = match row {
            Row::Own(row) => {
                values::read(target.base, target.tensor, row * columns..(row + 1) * columns)?
            }
            Row::Of(model, row) => of(*model, *row)?,
            Row::Zero => vec![0.0; usize::try_from(columns).unwrap_or_default()],
            Row::Mean(rows) => {
                let mut sums = Vec::new();
                for (model, row) in rows {
                    let found = of(*model, *row)?;
                    sums.resize(found.len(), 0.0);
                    sums.iter_mut().zip(&found).for_each(|(sum, value)| *sum += value);
                }
                sums.iter().map(|sum| sum / rows.len() as f64).collect()
            }
        };
        let wide: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
        if info.dtype == DType::F64 {
            *out = wide;
        } else {
            cast_float(DType::F64, info.dtype, &wide, out);
        }
        Ok(())
    }

    /// The run of rows of the model itself that begins with one.
    fn run(&self, first: u64, last: u64) -> Option<Range<u64>> {
        let at = |row: u64| self.rows.get(usize::try_from(row).ok()?);
        let Some(Row::Own(own)) = at(first) else { return None };
        let follows = |row: &u64| at(*row) == Some(&Row::Own(own + (row - first)));
        let count = (first..last).take_while(follows).count() as u64;
        Some(*own..own + count)
    }
}

fn columns(info: &TensorInfo) -> u64 {
    let rows = info.shape.dims().first().copied().unwrap_or(1);
    info.shape.elements().unwrap_or_default().checked_div(rows).unwrap_or_default()
}

/// Returns `true` if a tensor has a row for each token: embeddings, output projections and their
/// biases.
fn is_of_tokens(info: &TensorInfo, rows: u64) -> bool {
    crate::layers::in_layer(&info.name).is_none()
        && info.shape.dims().first() == Some(&rows)
        && info.shape.dims().len() <= 2
        && (info.dtype.is_float() || info.dtype.is_quantized())
        && !info.name.contains("position")
}

impl Computation for Moved<'_> {
    fn read(&self, target: &Target<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let past = || Error::corrupt("the read ends past the tensor").at(offset);
        let (info, end) = (target.info, offset + buf.len() as u64);
        let width = (columns(info) * info.dtype.block_bytes()).max(1);
        let is_as_stored = target.source().dtype == info.dtype;
        let (mut at, mut bytes) = (offset, Vec::new());
        let mut rest = buf;
        while !rest.is_empty() {
            let (row, skip) = (at / width, at % width);
            let run = self.run(row, end.div_ceil(width)).filter(|_| is_as_stored);
            let rows = run.as_ref().map_or(1, |run| run.end - run.start);
            let len = (rows * width - skip).min(rest.len() as u64);
            let len = usize::try_from(len).map_err(|_| past())?;
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            match run {
                Some(run) => target.read_source(run.start * width + skip, now)?,
                None => {
                    let index = usize::try_from(row).map_err(|_| past())?;
                    let row = self.rows.get(index).ok_or_else(past)?;
                    self.row(target, row, &mut bytes)?;
                    let skip = usize::try_from(skip).map_err(|_| past())?;
                    let part = bytes.get(skip..skip + len).ok_or_else(past)?;
                    now.copy_from_slice(part);
                }
            }
            at += len as u64;
            rest = later;
        }
        Ok(())
    }
}
