//! Operators that change a shape and no element, or put elements elsewhere.

use super::call::{Call, Known, MAX_KNOWN, Rule, axes, axis, product, same, show};
use super::creation::from_sizes;
use crate::gradient::{Rule as Gradient, Step, index};
use crate::{Dim, ValueId, ValueType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("CenterCropPad", center_crop_pad),
    ("Concat", concat),
    ("DepthToSpace", depth_to_space),
    ("Expand", expand),
    ("Flatten", flatten),
    ("Identity", identity),
    ("Pad", pad),
    ("Reshape", reshape),
    ("SpaceToDepth", space_to_depth),
    ("Split", split),
    ("Squeeze", squeeze),
    ("Tile", tile),
    ("Transpose", transpose),
    ("Unsqueeze", unsqueeze),
];

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] = &[
    ("Concat", concat_gradient),
    ("Expand", expand_gradient),
    ("Flatten", reshape_gradient),
    ("Identity", same_gradient),
    ("Pad", pad_gradient),
    ("Reshape", reshape_gradient),
    ("Split", split_gradient),
    ("Squeeze", reshape_gradient),
    ("Transpose", transpose_gradient),
    ("Unsqueeze", reshape_gradient),
];

fn identity(call: &mut Call<'_>) -> Result<(), String> {
    call.set_kind(0, call.kind(0).clone());
    let known = call.inputs.first().copied().flatten().and_then(|input| input.known.cloned());
    call.set_known(0, known);
    Ok(())
}

fn concat(call: &mut Call<'_>) -> Result<(), String> {
    let shapes: Option<Vec<_>> =
        (0..call.inputs.len()).map(|position| call.shape(position)).collect();
    let Some(shapes) = shapes else { return Ok(()) };
    let Some(first) = shapes.first() else { return Ok(()) };
    // Version 1 has this default; later ones require the axis.
    let along = axis(call.int("axis").unwrap_or(1), first.len())?;
    call.set_shape(0, joined(&shapes, along)?);
    if first.len() == 1 {
        let parts: Option<Vec<_>> =
            (0..call.inputs.len()).map(|position| call.dims(position)).collect();
        let short =
            |parts: &Vec<&[Dim]>| parts.iter().map(|part| part.len()).sum::<usize>() <= MAX_KNOWN;
        call.set_known(0, parts.filter(short).map(|parts| Known::Ints(parts.concat().into())));
    }

    Ok(())
}

/// The shape of tensors one after the other along a dimension.
pub(super) fn joined(shapes: &[&[Dim]], along: usize) -> Result<Vec<Dim>, String> {
    let mut shape = shapes[0].to_vec();
    for (position, other) in shapes.iter().enumerate().skip(1) {
        let problem = |error: &str| {
            format!("inputs 0 and {position}, {} and {}: {error}", show(&shape), show(other))
        };
        if other.len() != shape.len() {
            return Err(problem("they have not as many dimensions"));
        }

        let mut next = Vec::with_capacity(shape.len());
        for (dim, (a, b)) in shape.iter().zip(*other).enumerate() {
            next.push(if dim == along {
                a.plus(b)
            } else {
                same(a, b).map_err(|error| problem(&error))?
            });
        }

        shape = next;
    }

    Ok(shape)
}

fn split(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let along = axis(call.int("axis").unwrap_or(0), shape.len())?;
    let outputs = call.outputs.len() as u64;
    let total = &shape[along];
    let given = if call.operator.setting("split").is_some() {
        call.list("split").map(|list| list.iter().copied().map(Dim::integer).collect::<Vec<_>>())
    } else if call.has(1) {
        Some(call.dims(1).map_or_else(|| vec![Dim::Unknown; call.outputs.len()], <[Dim]>::to_vec))
    } else {
        None
    };

    let sizes = match given {
        Some(sizes) => sizes,
        None => even_parts(total, outputs, call.since() >= 18)?,
    };
    if sizes.len() as u64 != outputs {
        return Err(format!("it splits into {} parts, and has {outputs} outputs", sizes.len()));
    }

    let sum = sizes.iter().fold(Dim::fixed(0), |sum, size| sum.plus(size));
    same(&sum, total).map_err(|_| {
        format!("the parts are {sum} together, and the input has {total} along the axis")
    })?;
    for (output, size) in sizes.into_iter().enumerate() {
        let mut part = shape.to_vec();
        part[along] = size;
        call.set_shape(output, part);
    }

    Ok(())
}

/// Parts of one size; since version 18 the last may be smaller.
fn even_parts(total: &Dim, parts: u64, uneven: bool) -> Result<Vec<Dim>, String> {
    if parts == 0 {
        return Ok(Vec::new());
    }
    let count = usize::try_from(parts).unwrap_or(usize::MAX);
    let number = Dim::fixed(parts);
    if let Some(part) = total.exact_quotient(&number) {
        return Ok(vec![part; count]);
    }
    if !uneven && total.as_integer().is_some() {
        return Err(format!("{total} elements do not split into {parts} equal parts"));
    }

    let Some(total) = total.size() else { return Ok(vec![Dim::Unknown; count]) };
    let part = total.div_ceil(parts);
    let last = total.saturating_sub(part.saturating_mul(parts - 1));
    let mut sizes = vec![Dim::fixed(part); count];
    if let Some(size) = sizes.last_mut() {
        *size = Dim::fixed(last);
    }

    Ok(sizes)
}

fn reshape(call: &mut Call<'_>) -> Result<(), String> {
    let target = match call.list("shape") {
        Some(list) => Some(list.iter().copied().map(Dim::integer).collect::<Vec<_>>()),
        None => call.dims(1).map(<[Dim]>::to_vec),
    };
    let Some(target) = target else {
        if let Some([rank]) = call.shape(1)
            && let Some(rank) = rank.size().filter(|rank| *rank <= 64)
        {
            call.set_shape(0, (0..rank).map(|_| Dim::Unknown).collect());
        }
        return Ok(());
    };

    let shape = reshaped(call.shape(0), &target, call.is_set("allowzero"))?;
    call.set_shape(0, shape);
    let known = call.inputs.first().copied().flatten().and_then(|input| input.known.cloned());
    call.set_known(0, known);
    Ok(())
}

/// Returns the shape after a reshape: 0 represents the input's size at that position, -1 the rest.
fn reshaped(from: Option<&[Dim]>, target: &[Dim], zero_is_zero: bool) -> Result<Vec<Dim>, String> {
    let mut shape = Vec::with_capacity(target.len());
    let mut open = None;
    for (position, dim) in target.iter().enumerate() {
        let dim = match dim.as_integer() {
            Some(0) if !zero_is_zero => taken_over(from, position)?,
            Some(-1) => {
                if open.replace(position).is_some() {
                    return Err("two sizes are -1".to_owned());
                }
                Dim::Unknown
            }
            Some(size) if size < 0 => return Err(format!("invalid size {size}")),
            _ => dim.clone(),
        };
        shape.push(dim);
    }

    let Some(from) = from else { return Ok(shape) };
    let total = product(from);
    match open {
        Some(open) => {
            let others: Vec<_> = shape
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != open)
                .map(|(_, dim)| dim)
                .collect();
            shape[open] = what_is_left(from, &others).map_err(|error| {
                format!("{} does not become {}: {error}", show(from), show(target))
            })?;
        }
        None => {
            same(&total, &product(&shape)).map_err(|_| {
                format!("{} does not become {}: it has {total} elements", show(from), show(&shape))
            })?;
        }
    }

    Ok(shape)
}

/// The size of the input at the same place.
fn taken_over(from: Option<&[Dim]>, position: usize) -> Result<Dim, String> {
    let Some(from) = from else { return Ok(Dim::Unknown) };
    let missing = || format!("size {position} is taken from an input of {} dimensions", from.len());
    from.get(position).cloned().ok_or_else(missing)
}

/// Returns the product of the sizes in `from`, divided by the product of the others.
///
/// A factor that is not known may occur on both sides.
fn what_is_left(from: &[Dim], others: &[&Dim]) -> Result<Dim, String> {
    let mut left: Vec<_> = from.iter().collect();
    let mut divisor = Dim::fixed(1);
    for other in others {
        let twin = left
            .iter()
            .position(|dim| dim == other && **dim != Dim::Unknown && dim.as_integer().is_none());
        match twin {
            Some(twin) => {
                left.remove(twin);
            }
            None => divisor = divisor.times(other),
        }
    }

    let dividend = left.into_iter().fold(Dim::fixed(1), |product, dim| product.times(dim));
    if let (Some(a), Some(b)) = (dividend.as_integer(), divisor.as_integer()) {
        return match (a, b) {
            (0, _) => Ok(Dim::fixed(0)),
            (_, 0) => Err("it has elements".to_owned()),
            (a, b) if a.checked_rem(b) == Some(0) => Ok(Dim::integer(a / b)),
            _ => Err(format!("{a} elements are not a multiple of {b}")),
        };
    }

    // A size that is no multiple would fail when the model runs: so what is written is exact.
    Ok(dividend.quotient(&divisor))
}

fn transpose(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let order = match call.list("perm") {
        Some(order) if order.len() == shape.len() => axes(order, shape.len())?,
        Some(order) => {
            return Err(format!(
                "'perm' has {} entries, but the input has {} dimensions",
                order.len(),
                shape.len()
            ));
        }
        None => (0..shape.len()).rev().collect(),
    };

    call.set_shape(0, order.into_iter().map(|position| shape[position].clone()).collect());
    Ok(())
}

fn squeeze(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let Ok(list) = call.list_or_input("axes", 1) else { return Ok(()) };
    let mut gone = vec![false; shape.len()];
    match list {
        Some(list) => {
            for position in axes(&list, shape.len())? {
                if shape[position].as_integer().is_some_and(|size| size != 1) {
                    return Err(format!("size {position} of {} is not 1", show(shape)));
                }
                gone[position] = true;
            }
        }
        // Without a list, what is 1 goes: all sizes must be known.
        None if shape.iter().all(|dim| dim.as_integer().is_some()) => {
            gone = shape.iter().map(|dim| dim.as_integer() == Some(1)).collect();
        }
        None => return Ok(()),
    }

    call.set_shape(
        0,
        shape.iter().zip(gone).filter(|(_, gone)| !gone).map(|(dim, _)| dim.clone()).collect(),
    );
    Ok(())
}

fn unsqueeze(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let Ok(Some(list)) = call.list_or_input("axes", 1) else { return Ok(()) };
    let rank = shape.len() + list.len();
    let mut new = vec![false; rank];
    for position in axes(&list, rank)? {
        new[position] = true;
    }
    let mut old = shape.iter();
    let next = |new: bool| if new { Some(Dim::fixed(1)) } else { old.next().cloned() };
    let shape = new.into_iter().filter_map(next).collect();
    call.set_shape(0, shape);
    Ok(())
}

fn flatten(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };

    // The axis may stand behind the last dimension here.
    let given = call.int("axis").unwrap_or(1);
    let end = i64::try_from(shape.len()) == Ok(given);
    let at = if end { shape.len() } else { axis(given, shape.len())? };
    call.set_shape(0, vec![product(&shape[..at]), product(&shape[at..])]);
    Ok(())
}

fn expand(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let Some(target) = from_sizes(call, 1)? else { return Ok(()) };
    // ONNX widens both ways: a 1 in the target keeps the input's size.
    let wide = super::call::broadcast(shape, &target)
        .map_err(|error| format!("shapes {} and {}: {error}", show(shape), show(&target)))?;
    call.set_shape(0, wide);
    Ok(())
}

fn tile(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    // Version 1 repeats along one axis, by other inputs.
    if call.operator.setting("tiles").is_some() || call.inputs.len() == 3 {
        return Ok(());
    }
    let Some(times) = call.dims(1) else {
        call.set_shape(0, vec![Dim::Unknown; shape.len()]);
        return Ok(());
    };
    if times.len() != shape.len() {
        return Err(format!("there are {} repeats for {} dimensions", times.len(), shape.len()));
    }
    call.set_shape(0, shape.iter().zip(times).map(|(dim, times)| dim.times(times)).collect());
    Ok(())
}

/// Returns the dimensions in the input `axes`; all if it is omitted, `None` if it is not known.
fn chosen(call: &Call<'_>, position: usize, rank: usize) -> Result<Option<Vec<usize>>, String> {
    if !call.has(position) {
        return Ok(Some((0..rank).collect()));
    }
    call.ints(position).map(|list| axes(&list, rank)).transpose()
}

pub(super) fn pad(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let rank = shape.len();

    // Version 1 says `paddings`.
    let widths = match call.list("pads").or_else(|| call.list("paddings")) {
        Some(list) => Some(list.iter().copied().map(Dim::integer).collect::<Vec<_>>()),
        None => call.dims(1).map(<[Dim]>::to_vec),
    };
    let (Some(widths), Some(along)) = (widths, chosen(call, 3, rank)?) else {
        call.set_shape(0, vec![Dim::Unknown; rank]);
        return Ok(());
    };
    if widths.len() != 2 * along.len() {
        return Err(format!("there are {} widths for {} dimensions", widths.len(), along.len()));
    }

    let mut padded = shape.to_vec();
    for (at, position) in along.iter().enumerate() {
        padded[*position] = padded[*position].plus(&widths[at]).plus(&widths[at + along.len()]);
    }

    if let Some(size) = padded.iter().filter_map(Dim::as_integer).find(|size| *size < 0) {
        return Err(format!("more is cut off than there is: a size is {size}"));
    }

    call.set_shape(0, padded);
    Ok(())
}

fn center_crop_pad(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let along = match call.list("axes") {
        Some(list) => axes(list, shape.len())?,
        None => (0..shape.len()).collect(),
    };
    let mut cut = shape.to_vec();
    match call.dims(1) {
        Some(sizes) if sizes.len() == along.len() => {
            for (position, size) in along.into_iter().zip(sizes) {
                cut[position] = size.clone();
            }
        }
        Some(sizes) => {
            return Err(format!("there are {} sizes for {} axes", sizes.len(), along.len()));
        }
        None => along.into_iter().for_each(|position| cut[position] = Dim::Unknown),
    }

    call.set_shape(0, cut);
    Ok(())
}

fn depth_to_space(call: &mut Call<'_>) -> Result<(), String> {
    blocks(call, super::super::dim::Dim::times, super::super::dim::Dim::quotient)
}

fn space_to_depth(call: &mut Call<'_>) -> Result<(), String> {
    blocks(call, super::super::dim::Dim::quotient, super::super::dim::Dim::times)
}

/// Blocks of pixels become channels, or the other way.
fn blocks(
    call: &mut Call<'_>,
    space: impl Fn(&Dim, &Dim) -> Dim,
    depth: impl Fn(&Dim, &Dim) -> Dim,
) -> Result<(), String> {
    let size = call.int("blocksize").unwrap_or(1);
    if size < 1 {
        return Err(format!("the block's size is {size}"));
    }
    call.expect_rank(0, 4)?;
    let Some([batch, channels, height, width]) = call.shape(0) else { return Ok(()) };
    let block = Dim::integer(size);
    let both = block.times(&block);
    let shape =
        vec![batch.clone(), depth(channels, &both), space(height, &block), space(width, &block)];
    call.set_shape(0, shape);
    Ok(())
}

/// The type of the elements of a sequence.
pub(super) fn inner(kind: &ValueType) -> Option<&ValueType> {
    match kind {
        ValueType::Sequence(inner) | ValueType::Optional(inner) => Some(inner),
        _ => None,
    }
}

/// The elements in the order that they had.
fn reshape_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let gradient = step.reshaped(gradient, x)?;
    step.give(0, gradient);
    Ok(())
}

/// The order that takes back what another one did.
fn transpose_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let rank = step.rank(x)?;
    let order = match step.list("perm")? {
        Some(order) => axes(&order, rank)?,
        None => (0..rank).rev().collect(),
    };
    if order.len() != rank {
        return Err("its 'perm' does not fit".to_owned());
    }
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(at, from)| back[*from] = index(at));
    let gradient = step.with("Transpose", &[gradient], &[("perm", back.into())]);
    step.give(0, gradient);
    Ok(())
}

/// The part that each input is.
fn concat_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, output) = (step.gradient()?, step.output(0)?);
    let along = axis(step.int("axis")?.unwrap_or(1), step.rank(output)?)?;
    let axes = step.ints(&[index(along)]);
    let mut start = step.ints(&[0]);
    let mut known = Some(0);
    for position in 0..step.inputs() {
        let input = step.input(position)?;
        let size = step.shape(input)?[along].as_integer();
        let end = match (known, size) {
            (Some(start), Some(size)) => step.ints(&[start + size]),
            _ => {
                let range = [("start", index(along).into()), ("end", index(along + 1).into())];
                let size = step.with("Shape", &[input], &range);
                step.op("Add", &[start, size])
            }
        };
        known = known.zip(size).map(|(start, size)| start + size);
        if step.wants(position) {
            let part = step.op("Slice", &[gradient, start, end, axes]);
            step.give(position, part);
        }
        start = end;
    }
    Ok(())
}

/// The parts one after the other; those without a gradient are zeros.
fn split_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let along = step.int("axis")?.unwrap_or(0);
    let mut parts: Vec<ValueId> = Vec::new();
    for position in 0..step.outputs() {
        let part = match step.gradient_of(position) {
            Some(gradient) => gradient,
            None => {
                let output = step.output(position)?;
                zeros(step, output)?
            }
        };
        parts.push(part);
    }
    let gradient = step.with("Concat", &parts, &[("axis", along.into())]);
    step.give(0, gradient);
    Ok(())
}

/// Zeros of the shape of a value.
pub(super) fn zeros(step: &mut Step<'_>, like: ValueId) -> Result<ValueId, String> {
    let shape = step.shape(like)?;
    let sizes: Option<Vec<i64>> = shape.iter().map(Dim::as_integer).collect();
    let sizes = match sizes {
        Some(sizes) => step.ints(&sizes),
        None => step.op("Shape", &[like]),
    };
    Ok(step.op("ConstantOfShape", &[sizes]))
}

fn expand_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, output, x) = (step.gradient()?, step.output(0)?, step.input(0)?);
    let gradient = step.narrowed(gradient, output, x)?;
    step.give(0, gradient);
    Ok(())
}

/// Writes the gradient of a padding: the part of the output's gradient that is not padding.
///
/// Padding that repeats elements would need sums and is not supported.
fn pad_gradient(step: &mut Step<'_>) -> Result<(), String> {
    if step.text("mode")?.is_some_and(|mode| mode != "constant") || step.inputs() > 3 {
        return Err("it pads with other elements, or only some dimensions".to_owned());
    }
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let pads = step.list_or_input("pads", 1)?.ok_or("its pads are not known")?;
    let rank = step.rank(x)?;
    if pads.len() != 2 * rank || pads.iter().any(|pad| *pad < 0) {
        return Err("its pads cut, or do not fit".to_owned());
    }
    let starts: Vec<i64> = pads[..rank].to_vec();
    let ends: Vec<i64> =
        pads[rank..].iter().map(|pad| if *pad == 0 { i64::MAX } else { -pad }).collect();
    let (starts, ends) = (step.ints(&starts), step.ints(&ends));
    let gradient = step.op("Slice", &[gradient, starts, ends]);
    step.give(0, gradient);
    Ok(())
}

fn same_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let gradient = step.gradient()?;
    step.give(0, gradient);
    Ok(())
}
