//! Layouts of a family's table as changes of tensors.

use apr_arch::{GgufArrangement, GgufCut, GgufFactors, GgufTurned};
use apr_core::Shape;
use apr_registry::{DType, Error, Result, TensorInfo};
use apr_view::{Change, Cut, Deal, Formula, Turned};

/// The rows that a family's table names.
pub(crate) fn rows_of(cut: &GgufCut) -> Result<Cut> {
    let &GgufCut { groups, first, step, count, turned, .. } = cut;
    let turned = match turned {
        GgufTurned::No => Turned::No,
        GgufTurned::Before => Turned::Before,
        GgufTurned::After => Turned::After,
        _ => return Err(Error::format("its layout is not known to this version")),
    };
    Ok(Cut { groups, first, step, count, turned })
}

/// The same rows if those of all groups make one matrix.
pub(crate) fn deal(cut: &GgufCut) -> Option<Deal> {
    cut.flat.then(|| deal_of(cut))
}

/// Returns `true` if whole rows are cut out, all of them next to each other in their group.
pub(crate) fn is_of_rows(cut: &GgufCut) -> bool {
    cut.step == 1 && cut.turned == GgufTurned::No
}

/// The same rows as ranges of each group, one or several.
pub(crate) fn deal_of(cut: &GgufCut) -> Deal {
    let ranges = std::iter::once((cut.first, cut.count)).chain(cut.more.iter().copied());
    Deal { groups: cut.groups, ranges: ranges.collect() }
}

/// Changes a tensor at `position` of Hugging Face's model to GGUF's.
pub(crate) fn arranged(
    info: &mut TensorInfo,
    position: usize,
    arranged: GgufArrangement,
) -> Result<Change> {
    let mut change = match arranged.swap {
        Some(order) => Change::moved(info, position, order, arranged.from, arranged.width)?,
        None => Change::whole(info, position)?,
    };
    if arranged.fading {
        change = change.mapped(info, Formula::NegativeExponential, DType::F32)?;
    }
    if let Some(shape) = arranged.shape {
        Change::reshape(info, Shape::from(shape))?;
    }
    Ok(change)
}

/// The opposite of [`arranged`], to the tensor's own shape if it is known. `info` is of GGUF's
/// tensor, with the dtype in which it is read.
pub(crate) fn arranged_back(
    info: &mut TensorInfo,
    position: usize,
    arranged: GgufArrangement,
    own: Option<Shape>,
) -> Result<Change> {
    if arranged.shape.is_some() {
        let unknown = || Error::format("the keys do not state its shape").for_tensor(&info.name);
        let own = own.ok_or_else(unknown)?;
        Change::reshape(info, own)?;
    }
    let mut change = match arranged.swap {
        // GGUF has the two sizes in the other order.
        Some([outer, a, b, inner]) => {
            Change::moved(info, position, [outer, b, a, inner], arranged.from, arranged.width)?
        }
        None => Change::whole(info, position)?,
    };
    if arranged.fading {
        change = change.mapped(info, Formula::LogarithmOfNegative, DType::F32)?;
    }
    Ok(change)
}

/// Returns `true` if blocks of the dtype can be moved as [`arranged`] moves values.
pub(crate) fn moves_blocks(arranged: &GgufArrangement, dtype: DType) -> bool {
    let width = arranged.width.unwrap_or(0);
    !arranged.fading && arranged.shape.is_none() && Change::moves_blocks(dtype, width)
}

/// Multiplies a tensor with factors, in single precision; its dtype stays.
pub(crate) fn scaled(
    info: &mut TensorInfo,
    position: usize,
    factors: GgufFactors,
) -> Result<Change> {
    let rows = info.shape.dims().first().copied().unwrap_or(1);
    let row = info.shape.elements().unwrap_or(0).checked_div(rows).unwrap_or(0);
    let mut runs = Vec::with_capacity(factors.rows.len());
    for (rows, factor) in &factors.rows {
        let elements = rows.saturating_mul(row);
        runs.push((elements, [&factors.all[..], &[*factor]].concat()));
    }
    if runs.is_empty() {
        runs.push((u64::MAX, factors.all));
    }
    let is_one = runs.iter().all(|(_, factors)| factors.iter().all(|factor| *factor == 1.0));
    let whole = Change::whole(info, position)?;
    if is_one {
        return Ok(whole);
    }
    let dtype = info.dtype;
    whole.mapped(info, Formula::Product(runs), dtype)
}
