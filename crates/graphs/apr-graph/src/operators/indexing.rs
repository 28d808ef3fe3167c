//! Operators that take or put elements by their places.

use super::call::{Call, Known, MAX_KNOWN, Rule, axes, axis, show};
use super::elementwise::like_first;
use super::movement::zeros;
use crate::gradient::{Rule as Gradient, Step, index};
use crate::{AttributeValue, Dim, ValueId};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Compress", compress),
    ("Gather", gather),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("NonMaxSuppression", non_max_suppression),
    ("NonZero", non_zero),
    ("OneHot", one_hot),
    ("Scatter", like_first),
    ("ScatterElements", like_first),
    ("ScatterND", like_first),
    ("Slice", slice),
    ("Unique", unique),
];

/// Gradient rules of the operators.
pub(super) const GRADIENTS: &[(&str, Gradient)] = &[
    ("Gather", gather_gradient),
    ("GatherElements", gather_elements_gradient),
    ("GatherND", gather_nd_gradient),
    ("ScatterElements", scatter_elements_gradient),
    ("ScatterND", scatter_nd_gradient),
    ("Slice", slice_gradient),
];

fn gather(call: &mut Call<'_>) -> Result<(), String> {
    let (Some(data), Some(places)) = (call.shape(0), call.shape(1)) else { return Ok(()) };
    let along = axis(call.int("axis").unwrap_or(0), data.len())?;
    call.set_shape(0, [&data[..along], places, &data[along + 1..]].concat());
    if let (1, Some(known), Some(places)) =
        (data.len(), call.dims(0), call.ints(1).filter(|places| places.len() <= MAX_KNOWN))
    {
        let picked: Result<Vec<_>, String> =
            places.iter().map(|place| Ok(known[axis(*place, known.len())?].clone())).collect();
        call.set_known(0, Some(Known::Ints(picked?.into())));
    }
    Ok(())
}

fn gather_elements(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(data), Some(places)) = (call.shape(0), call.shape(1))
        && data.len() != places.len()
    {
        return Err(format!("{} and {} have not as many dimensions", show(data), show(places)));
    }
    if let Some(places) = call.shape(1) {
        call.set_shape(0, places.to_vec());
    }
    Ok(())
}

fn gather_nd(call: &mut Call<'_>) -> Result<(), String> {
    let (Some(data), Some(places)) = (call.shape(0), call.shape(1)) else { return Ok(()) };
    let batch = usize::try_from(call.int("batch_dims").unwrap_or(0)).unwrap_or(usize::MAX);
    let Some((coordinates, outer)) = places.split_last() else {
        return Err("the indices have no dimensions".to_owned());
    };
    let Some(coordinates) = coordinates.size().and_then(|count| usize::try_from(count).ok()) else {
        return Ok(());
    };
    let from = batch.saturating_add(coordinates);
    if from > data.len() || batch > outer.len() {
        return Err(format!(
            "{coordinates} coordinates after {batch} dimensions do not fit {}",
            show(data)
        ));
    }

    call.set_shape(0, [outer, &data[from..]].concat());
    Ok(())
}

fn compress(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let shape = match call.int("axis") {
        None => vec![Dim::Unknown],
        Some(along) => {
            let mut shape = shape.to_vec();
            let along = axis(along, shape.len())?;
            shape[along] = Dim::Unknown;
            shape
        }
    };
    call.set_shape(0, shape);
    Ok(())
}

fn non_zero(call: &mut Call<'_>) -> Result<(), String> {
    let rank = call.shape(0).map_or(Dim::Unknown, |shape| Dim::fixed(shape.len() as u64));
    call.set_shape(0, vec![rank, Dim::Unknown]);
    Ok(())
}

fn non_max_suppression(call: &mut Call<'_>) -> Result<(), String> {
    call.expect_rank(0, 3)?;
    call.expect_rank(1, 3)?;
    call.set_shape(0, vec![Dim::Unknown, Dim::fixed(3)]);
    Ok(())
}

fn one_hot(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let mut shape = shape.to_vec();
    let along = axis(call.int("axis").unwrap_or(-1), shape.len() + 1)?;
    shape.insert(along, call.scalar(1).unwrap_or(Dim::Unknown));
    call.set_shape(0, shape);
    Ok(())
}

fn unique(call: &mut Call<'_>) -> Result<(), String> {
    for output in 1..4 {
        call.set_shape(output, vec![Dim::Unknown]);
    }

    let Some(shape) = call.shape(0) else { return Ok(()) };
    let shape = match call.int("axis") {
        None => vec![Dim::Unknown],
        Some(along) => {
            let mut shape = shape.to_vec();
            let along = axis(along, shape.len())?;
            shape[along] = Dim::Unknown;
            shape
        }
    };

    call.set_shape(0, shape);
    Ok(())
}

/// One dimension's part of a slice.
struct Cut {
    axis: usize,
    start: Dim,
    end: Dim,
    step: i64,
}

fn slice(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let Some(cuts) = cuts(call, shape.len())? else {
        call.set_shape(0, cut_somewhere(call, shape)?);
        return Ok(());
    };
    let mut sizes = shape.to_vec();
    for cut in &cuts {
        if cut.step == 0 {
            return Err("a step is 0".to_owned());
        }
        sizes[cut.axis] = cut_size(&shape[cut.axis], cut);
    }

    if let ([dim], [cut]) = (shape, cuts.as_slice()) {
        let known = call.dims(0).filter(|known| dim.size() == Some(known.len() as u64));
        let part = known.and_then(|known| cut_known(known, cut));
        call.set_known(0, part.map(|part| Known::Ints(part.into())));
    }

    call.set_shape(0, sizes);
    Ok(())
}

/// A list that is an attribute before version 10 and an input since.
struct List<'c, 'a> {
    call: &'c Call<'a>,
    name: &'static str,
    position: usize,
}

impl List<'_, '_> {
    fn is_attribute(&self) -> bool {
        self.call.operator.setting(self.name).is_some()
    }

    /// Returns the elements of the list; if only their number is known, as many unknown elements.
    fn dims(&self) -> Option<Vec<Dim>> {
        if self.is_attribute() {
            return Some(self.call.list(self.name)?.iter().copied().map(Dim::integer).collect());
        }
        if let Some(dims) = self.call.dims(self.position) {
            return Some(dims.to_vec());
        }
        let [length] = self.call.shape(self.position)? else { return None };
        let length = length
            .size()
            .and_then(|length| usize::try_from(length).ok())
            .filter(|length| *length <= 64)?;
        Some(vec![Dim::Unknown; length])
    }

    /// Returns the elements of the list as numbers, or `default` if the list is omitted.
    fn numbers(&self, default: impl FnOnce() -> Vec<i64>) -> Option<Vec<i64>> {
        if self.is_attribute() {
            return Some(self.call.list(self.name).map_or_else(default, <[i64]>::to_vec));
        }
        if self.call.has(self.position) { self.call.ints(self.position) } else { Some(default()) }
    }
}

/// Returns the slices, if everything except single starts and ends is known.
fn cuts(call: &Call<'_>, rank: usize) -> Result<Option<Vec<Cut>>, String> {
    let list = |name: &'static str, position: usize| List { call, name, position };
    let (Some(starts), Some(ends)) = (list("starts", 1).dims(), list("ends", 2).dims()) else {
        return Ok(None);
    };
    let count = starts.len();

    // Without axes, ONNX cuts the first dimensions.
    let first = || (0..count).filter_map(|axis| i64::try_from(axis).ok()).collect();
    let along = list("axes", 3).numbers(first);
    let steps = list("steps", 4).numbers(|| vec![1; count]);
    let (Some(along), Some(steps)) = (along, steps) else { return Ok(None) };
    if [ends.len(), along.len(), steps.len()].iter().any(|other| *other != count) {
        return Err("starts, ends, axes and steps are not equally many".to_owned());
    }

    let along = axes(&along, rank)?;
    let bounds = along.into_iter().zip(starts).zip(ends).zip(steps);
    Ok(Some(bounds.map(|(((axis, start), end), step)| Cut { axis, start, end, step }).collect()))
}

/// Returns the shape for slices that are not known: sizes along the known axes, or all sizes, are
/// unknown.
fn cut_somewhere(call: &Call<'_>, shape: &[Dim]) -> Result<Vec<Dim>, String> {
    let mut sizes = shape.to_vec();
    match call.ints(3) {
        Some(list) => axes(&list, shape.len())?
            .into_iter()
            .for_each(|position| sizes[position] = Dim::Unknown),
        None => sizes.fill(Dim::Unknown),
    }
    Ok(sizes)
}

/// Returns the number of elements that a slice keeps of a dimension.
fn cut_size(size: &Dim, cut: &Cut) -> Dim {
    let bounds = (size.as_integer(), cut.start.as_integer(), cut.end.as_integer());
    if let (Some(size), Some(start), Some(end)) = bounds {
        let (start, end) = (clamp(start, size, cut.step), clamp(end, size, cut.step));
        let span = if cut.step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
        // The least i64 has no opposite.
        let width = i64::try_from(cut.step.unsigned_abs()).unwrap_or(i64::MAX);
        let count = if span <= 0 { 0 } else { (span - 1) / width + 1 };
        return Dim::integer(count);
    }

    let (Some(start), Some(end)) =
        (from_start(&cut.start, size, cut.step), from_start(&cut.end, size, cut.step))
    else {
        return Dim::Unknown;
    };
    let span = if cut.step > 0 { end.minus(&start) } else { start.minus(&end) };
    let width = Dim::integer(cut.step.saturating_abs());
    span.plus(&width).minus(&Dim::fixed(1)).quotient(&width)
}

/// A bound as ONNX clamps it.
fn clamp(bound: i64, size: i64, step: i64) -> i64 {
    let bound = if bound < 0 { bound.saturating_add(size) } else { bound };
    let size = size.max(0);
    // Backwards, the end may lie before the first element.
    if step > 0 { bound.clamp(0, size) } else { bound.clamp(-1, size - 1) }
}

/// Numbers from here on mean "to the end".
const END: i64 = i32::MAX as i64;

/// Returns a bound counted from the start of a dimension with a symbolic size, if it surely is
/// within it.
fn from_start(bound: &Dim, size: &Dim, step: i64) -> Option<Dim> {
    match bound.as_integer() {
        Some(bound) if bound.saturating_abs() >= END => Some(an_end(bound, size, step)),
        Some(0) => Some(Dim::fixed(0)),
        // The last elements: there must be as many, or the model was not meant for this size.
        Some(bound) if bound < 0 => Some(size.plus(&Dim::integer(bound))),
        Some(bound) => size.is_at_least(bound).then(|| Dim::integer(bound)),
        None => within(bound, size),
    }
}

/// The end that a very large or very small number means.
fn an_end(bound: i64, size: &Dim, step: i64) -> Dim {
    match (bound > 0, step > 0) {
        (true, true) => size.clone(),
        (true, false) => size.minus(&Dim::fixed(1)),
        (false, true) => Dim::fixed(0),
        (false, false) => Dim::integer(-1),
    }
}

/// A bound with symbols that is not past the end. A dimension that is a number is taken to be a
/// table with room for what the model was made for, such as a causal mask; sizes with symbols must
/// prove it.
fn within(bound: &Dim, size: &Dim) -> Option<Dim> {
    let room = size.as_integer().is_some() || size.minus(bound).is_at_least(0);
    (room && bound.is_at_least(0)).then(|| bound.clone())
}

fn cut_known(known: &[Dim], cut: &Cut) -> Option<Vec<Dim>> {
    let size = i64::try_from(known.len()).ok()?;
    let start = clamp(cut.start.as_integer()?, size, cut.step);
    let end = clamp(cut.end.as_integer()?, size, cut.step);
    let mut part = Vec::new();
    let mut place = start;
    while part.len() <= MAX_KNOWN
        && ((cut.step > 0 && place < end) || (cut.step < 0 && place > end))
    {
        part.push(known.get(usize::try_from(place).ok()?)?.clone());
        place = place.checked_add(cut.step)?;
    }
    (part.len() <= MAX_KNOWN).then_some(part)
}

/// Sums at the places that were read: rows of a table, or along another dimension.
fn gather_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, table, places) = (step.gradient()?, step.input(0)?, step.input(1)?);
    let along = axis(step.int("axis")?.unwrap_or(0), step.rank(table)?)?;
    let places_rank = step.rank(places)?;
    let sums = summed_at(step, (table, along), (places, places_rank), gradient)?;
    step.give(0, sums);
    Ok(())
}

/// Zeros of a table's shape, to which a gradient is added at places along a dimension.
fn summed_at(
    step: &mut Step<'_>,
    (table, along): (ValueId, usize),
    (places, places_rank): (ValueId, usize),
    gradient: ValueId,
) -> Result<ValueId, String> {
    let rank = step.rank(table)?;

    // The dimension that is read comes first, for `ScatterND` to take its places.
    let mut to_front: Vec<i64> = (along..along + places_rank).map(index).collect();
    to_front.extend((0..along).map(index));
    to_front.extend((along + places_rank..rank - 1 + places_rank).map(index));
    let turned = along > 0;
    let updates = if turned {
        step.with("Transpose", &[gradient], &[("perm", to_front.into())])
    } else {
        gradient
    };
    let mut order: Vec<i64> = vec![index(along)];
    order.extend((0..along).chain(along + 1..rank).map(index));
    let like = if turned {
        step.with("Transpose", &[table], &[("perm", order.clone().into())])
    } else {
        table
    };
    let zeros = if turned { step.op("Sub", &[like, like]) } else { zeros(step, like)? };

    let last = step.ints(&[-1]);
    let places = step.op("Unsqueeze", &[places, last]);
    let sums = scattered(step, "ScatterND", &[zeros, places, updates], &[]);
    if !turned {
        return Ok(sums);
    }
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(at, from)| {
        back[usize::try_from(*from).unwrap_or(0)] = index(at);
    });
    Ok(step.with("Transpose", &[sums], &[("perm", back.into())]))
}

fn gather_elements_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, table, places) = (step.gradient()?, step.input(0)?, step.input(1)?);
    let along = step.int("axis")?.unwrap_or(0);
    let zeros = zeros(step, table)?;
    let sums = scattered(step, "ScatterElements", &[zeros, places, gradient], &[("axis", along)]);
    step.give(0, sums);
    Ok(())
}

fn gather_nd_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, table, mut places) = (step.gradient()?, step.input(0)?, step.input(1)?);
    match step.int("batch_dims")?.unwrap_or(0) {
        0 => {}
        1 => places = with_batch(step, places)?,
        _ => return Err("it has several 'batch_dims'".to_owned()),
    }
    let zeros = zeros(step, table)?;
    let sums = scattered(step, "ScatterND", &[zeros, places, gradient], &[]);
    step.give(0, sums);
    Ok(())
}

fn scattered(
    step: &mut Step<'_>,
    operator: &str,
    inputs: &[ValueId],
    more: &[(&str, i64)],
) -> ValueId {
    let mut attributes = vec![("reduction", "add".into())];
    attributes.extend(more.iter().map(|(name, value)| (*name, (*value).into())));
    step.with(operator, inputs, &attributes)
}

/// Zeros around the part.
fn slice_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let shape = step.shape(x)?;
    let starts = step.list_or_input("starts", 1)?.ok_or("its starts are not known")?;
    let ends = step.list_or_input("ends", 2)?.ok_or("its ends are not known")?;
    let along = match step.list_or_input("axes", 3)? {
        Some(list) => axes(&list, shape.len())?,
        None => (0..starts.len()).collect(),
    };
    if along.len() != starts.len() || along.len() != ends.len() {
        return Err("its axes do not fit".to_owned());
    }
    let steps = step.list_or_input("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    // From the front and from the back, as far as that needs no size.
    let is_clear = |at: &usize, start: i64, end: i64| {
        let is_known = shape.get(*at).is_some_and(|size| size.as_integer().is_some());
        is_known || start >= 0 && (end < 0 || end >= i64::from(i32::MAX))
    };
    let bounds = || along.iter().zip(starts.iter().zip(&ends));
    let is_padded = steps.iter().all(|step| *step == 1)
        && bounds().all(|(at, (start, end))| is_clear(at, *start, *end));
    if !is_padded {
        let ([start], [end], [along], [width]) = (&*starts, &*ends, &*along, &*steps) else {
            return Err("it cuts several dimensions, uses steps, or cuts a dimension of unknown \
                        size"
                .to_owned());
        };
        return placed_gradient(step, *along, [*start, *end, *width]);
    }

    let mut pads = vec![0; 2 * shape.len()];
    for ((start, end), at) in starts.into_iter().zip(ends).zip(along) {
        let size = shape.get(at).ok_or("its axes do not fit")?.as_integer();
        let before = match size {
            Some(size) if start < 0 => start.saturating_add(size).max(0),
            Some(size) => start.min(size),
            None => start,
        };
        let after = match size {
            Some(size) if end < 0 => end.saturating_neg().min(size),
            Some(size) => (size - end).max(0),
            None => end.saturating_neg().max(0),
        };
        (pads[at], pads[shape.len() + at]) = (before, after);
    }
    let pads = step.ints(&pads);
    let gradient = step.op("Pad", &[gradient, pads]);
    step.give(0, gradient);
    Ok(())
}

/// Writes the gradient of a slice: zeros at the positions that the slice did not take.
///
/// The same slice of the range of all positions gives the positions that it took.
fn placed_gradient(
    step: &mut Step<'_>,
    along: usize,
    [start, end, width]: [i64; 3],
) -> Result<(), String> {
    let (gradient, x) = (step.gradient()?, step.input(0)?);
    let shape = step.op("Shape", &[x]);
    let which = step.int_scalar(index(along));
    let size = step.op("Gather", &[shape, which]);
    let (first, one) = (step.int_scalar(0), step.int_scalar(1));
    let all = step.op("Range", &[first, size, one]);
    let cut = [start, end, 0, width].map(|number| step.ints(&[number]));
    let places = step.op("Slice", &[all, cut[0], cut[1], cut[2], cut[3]]);
    let sums = summed_at(step, (x, along), (places, 1), gradient)?;
    step.give(0, sums);
    Ok(())
}

/// Places with the number of their batch before them.
fn with_batch(step: &mut Step<'_>, places: ValueId) -> Result<ValueId, String> {
    let rank = step.rank(places)?;
    let shape = step.op("Shape", &[places]);
    let (zero, first, last) = (step.ints(&[0]), step.ints(&[1]), step.ints(&[-1]));
    let batch = step.op("Slice", &[shape, zero, first]);
    let axes = step.ints(&[0]);
    let count = step.op("Squeeze", &[batch, axes]);
    let (start, one) = (step.int_scalar(0), step.int_scalar(1));
    let numbers = step.op("Range", &[start, count, one]);
    let ones: Vec<i64> = std::iter::once(-1).chain(std::iter::repeat_n(1, rank - 1)).collect();
    let column = step.ints(&ones);
    let numbers = step.op("Reshape", &[numbers, column]);
    let outer = step.op("Slice", &[shape, zero, last]);
    let sizes = step.with("Concat", &[outer, first], &[("axis", 0.into())]);
    let numbers = step.op("Expand", &[numbers, sizes]);
    Ok(step.with("Concat", &[numbers, places], &[("axis", (-1).into())]))
}

fn scatter_nd_gradient(step: &mut Step<'_>) -> Result<(), String> {
    put_gradient(step, "ScatterND", "GatherND", &[])
}

fn scatter_elements_gradient(step: &mut Step<'_>) -> Result<(), String> {
    let along = step.int("axis")?.unwrap_or(0);
    put_gradient(step, "ScatterElements", "GatherElements", &[("axis", along.into())])
}

/// Writes the gradients of a scatter: overwritten elements have no gradient unless the update was
/// added to them.
///
/// The updates receive the gradient at their positions.
fn put_gradient(
    step: &mut Step<'_>,
    scatter: &str,
    gather: &str,
    attributes: &[(&str, AttributeValue)],
) -> Result<(), String> {
    let (gradient, places) = (step.gradient()?, step.input(1)?);
    let adds = match step.text("reduction")? {
        None | Some("none") => false,
        Some("add") => true,
        Some(other) => return Err(format!("it combines by '{other}'")),
    };
    if step.wants(0) {
        let kept = if adds {
            gradient
        } else {
            let updates = step.input(2)?;
            let zeros = zeros(step, updates)?;
            step.with(scatter, &[gradient, places, zeros], attributes)
        };
        step.give(0, kept);
    }
    if step.wants(2) {
        let of_updates = step.with(gather, &[gradient, places], attributes);
        step.give(2, of_updates);
    }
    Ok(())
}
