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

/// Returns `true` if whole rows are cut out, all of them next to each other in their group.
pub(crate) fn is_of_rows(cut: &GgufCut) -> bool {
    cut.step == 1 && cut.turned == GgufTurned::No
}

/// Returns a tensor as the matrix whose rows are dealt to the tensors that are cut out of it.
///
/// `cut` states the shape of a tensor whose rows are not those of a matrix.
pub(crate) fn as_rows(info: &TensorInfo, cut: &GgufCut) -> Option<TensorInfo> {
    let rows = cut.groups.checked_mul(cut.count)?;
    let inner = cut.shape.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim))?;
    let inner = inner.checked_div(rows).filter(|inner| *inner > 0)?;
    let elements = info.shape.elements()?;
    let shape = Shape::from([elements / inner, inner]);
    (elements % inner == 0).then(|| TensorInfo { shape, ..info.clone() })
}

/// Deals rows of a tensor to another, as a family's table states.
pub(crate) fn dealt(
    info: &TensorInfo,
    position: usize,
    cut: &GgufCut,
    name: &str,
) -> Result<(TensorInfo, Change)> {
    if cut.shape.is_empty() {
        return Change::dealt(info, position, &deal_of(cut), name);
    }
    let unfit = || {
        let shape = &info.shape;
        Error::format(format!("its shape {shape} does not have the frames that GGUF keeps apart"))
            .for_tensor(&info.name)
    };
    let rows = as_rows(info, cut).ok_or_else(unfit)?;
    let (mut dealt, change) = Change::dealt(&rows, position, &deal_of(cut), name)?;
    Change::reshape(&mut dealt, cut.shape.clone().into())?;
    Ok((dealt, change))
}

/// Gathers the tensor that parts were [dealt] from.
pub(crate) fn gathered_in(
    parts: &[(TensorInfo, usize, GgufCut)],
    shape: &Shape,
    name: &str,
) -> Result<(TensorInfo, Change)> {
    let whole = TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: shape.clone() };
    let mut rows_of_whole = shape.clone();
    let mut dealt = Vec::with_capacity(parts.len());
    for (part, position, cut) in parts {
        let mut part = part.clone();
        if !cut.shape.is_empty() {
            let rows = as_rows(&part, cut).zip(as_rows(&whole, cut));
            let (own, all) = rows.ok_or_else(|| {
                let why = format!("its shape {} is not the shape of a part of {name}", part.shape);
                Error::format(why).for_tensor(&part.name)
            })?;
            (part, rows_of_whole) = (own, all.shape);
        }
        dealt.push((part, *position, deal_of(cut)));
    }
    let (mut info, change) = Change::gathered_in(&dealt, &rows_of_whole, name)?;
    if rows_of_whole != *shape {
        Change::reshape(&mut info, shape.clone())?;
    }
    Ok((info, change))
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
