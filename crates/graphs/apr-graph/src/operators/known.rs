//! Contents of small tensors: what an operator makes of numbers that are known, with or without
//! symbols.
//!
//! Exporters compute shapes in the graph: `Shape`, `Gather`, `Concat`, `Reshape`. Following those
//! few numbers is what gives an exported transformer its shapes.

use super::call::{Call, Known, MAX_KNOWN, broadcast};
use crate::{Dim, ElementType};

type Step = fn(&Call<'_>) -> Option<Vec<Dim>>;

const STEPS: &[(&str, Step)] = &[
    ("Abs", |call| {
        each(call, |a| a.is_at_least(0).then(|| a.clone()).or_else(|| integer(a, i64::checked_abs)))
    }),
    ("Add", |call| pairs(call, |a, b| Some(a.plus(b)))),
    ("And", |call| pairs(call, |a, b| truth(a, b, |a, b| a != 0 && b != 0))),
    ("Cast", cast),
    ("CastLike", cast),
    ("Ceil", |call| each(call, |a| Some(a.clone()))),
    ("Div", |call| pairs(call, |a, b| divide(call, a, b))),
    ("Equal", |call| pairs(call, equal)),
    ("Expand", expand),
    ("Floor", |call| each(call, |a| Some(a.clone()))),
    ("Greater", |call| pairs(call, |a, b| at_least(a, &b.plus(&Dim::fixed(1))))),
    ("GreaterOrEqual", |call| pairs(call, at_least)),
    ("Less", |call| pairs(call, |a, b| at_least(b, &a.plus(&Dim::fixed(1))))),
    ("LessOrEqual", |call| pairs(call, |a, b| at_least(b, a))),
    ("Max", |call| {
        pairs(call, |a, b| greater(a, b).map(|first| if first { a } else { b }.clone()))
    }),
    ("Min", |call| {
        pairs(call, |a, b| greater(a, b).map(|first| if first { b } else { a }.clone()))
    }),
    ("Mod", |call| pairs(call, |a, b| remainder(call, a, b))),
    ("Mul", |call| pairs(call, |a, b| Some(a.times(b)))),
    ("Neg", |call| each(call, |a| Some(Dim::fixed(0).minus(a)))),
    ("Not", |call| each(call, |a| integer(a, |a| Some(i64::from(a == 0))))),
    ("Or", |call| pairs(call, |a, b| truth(a, b, |a, b| a != 0 || b != 0))),
    ("ReduceMax", |call| {
        all(call, |a, b| greater(a, b).map(|first| if first { a } else { b }.clone()))
    }),
    ("ReduceMin", |call| {
        all(call, |a, b| greater(a, b).map(|first| if first { b } else { a }.clone()))
    }),
    ("ReduceProd", |call| all(call, |a, b| Some(a.times(b)))),
    ("ReduceSum", |call| all(call, |a, b| Some(a.plus(b)))),
    ("Round", |call| each(call, |a| Some(a.clone()))),
    ("Squeeze", |call| call.dims(0).map(<[Dim]>::to_vec)),
    ("Sub", |call| pairs(call, |a, b| Some(a.minus(b)))),
    ("Tile", |call| call.shape(0).filter(|shape| shape.len() == 1).and_then(|_| repeat(call))),
    ("Transpose", transpose),
    ("Unsqueeze", |call| call.dims(0).map(<[Dim]>::to_vec)),
    ("Where", choose),
];

/// Fills in the known elements of the output, if the operator's rule did not.
pub(crate) fn fill(call: &mut Call<'_>) {
    let wanted =
        call.known.len() == 1 && call.known[0].is_none() && call.operator.domain.is_empty();
    if !wanted || call.inputs.iter().flatten().all(|input| input.known.is_none()) {
        return;
    }
    let Some((_, step)) = STEPS.iter().find(|(name, _)| *name == call.operator.name) else {
        return;
    };
    let known = step(call).map(|dims| Known::Ints(dims.into()));
    call.set_known(0, known);
}

fn integer(a: &Dim, compute: impl Fn(i64) -> Option<i64>) -> Option<Dim> {
    compute(a.as_integer()?).map(Dim::integer)
}

fn truth(a: &Dim, b: &Dim, compute: impl Fn(i64, i64) -> bool) -> Option<Dim> {
    Some(Dim::integer(i64::from(compute(a.as_integer()?, b.as_integer()?))))
}

/// Returns the numbers unchanged, except for numbers that the other type cannot represent.
fn cast(call: &Call<'_>) -> Option<Vec<Dim>> {
    let to = match call.operator.name {
        "Cast" => call.element_attribute("to").ok().flatten(),
        _ => call.element(1),
    };
    use ElementType as E;

    let range = match to? {
        E::I64 | E::F64 => i64::MIN..=i64::MAX,
        E::I32 => i64::from(i32::MIN)..=i64::from(i32::MAX),
        E::U32 => 0..=i64::from(u32::MAX),
        E::U64 => 0..=i64::MAX,
        // The whole numbers that floats of single precision hold, each by itself.
        E::F32 => -(1 << 24)..=1 << 24,
        _ => return None,
    };

    let fits = |dim: &Dim| {
        dim.as_integer().is_none_or(|number| range.contains(&number)).then(|| dim.clone())
    };
    Some(call.dims(0)?.iter().map(|dim| fits(dim).unwrap_or(Dim::Unknown)).collect())
}

fn each(call: &Call<'_>, compute: impl Fn(&Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
    call.dims(0)?.iter().map(compute).collect()
}

/// Two inputs, widened to one shape. One element that is not known leaves the others.
fn pairs(call: &Call<'_>, compute: impl Fn(&Dim, &Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
    if call.inputs.len() != 2 {
        return None;
    }
    let (a, b) = (call.dims(0)?, call.dims(1)?);
    let shape = sizes(&broadcast(call.shape(0)?, call.shape(1)?).ok()?)?;
    let (a, b) = (widened(a, call.shape(0)?, &shape)?, widened(b, call.shape(1)?, &shape)?);
    Some(a.iter().zip(&b).map(|(a, b)| compute(a, b).unwrap_or(Dim::Unknown)).collect())
}

/// Combines all elements of an input, if they are reduced along its only dimension.
fn all(call: &Call<'_>, compute: impl Fn(&Dim, &Dim) -> Option<Dim>) -> Option<Vec<Dim>> {
    let (first, others) = call.dims(0)?.split_first()?;
    if call.shape(0)?.len() != 1 {
        return None;
    }
    others.iter().try_fold(first.clone(), |all, next| compute(&all, next)).map(|all| vec![all])
}

fn sizes(shape: &[Dim]) -> Option<Vec<usize>> {
    let sizes: Vec<usize> =
        shape.iter().map(|dim| usize::try_from(dim.size()?).ok()).collect::<Option<_>>()?;
    let count = sizes.iter().try_fold(1_usize, |count, size| count.checked_mul(*size))?;
    (count <= MAX_KNOWN).then_some(sizes)
}

/// Returns the elements of a shape, repeated to fill a wider shape.
fn widened(from: &[Dim], shape: &[Dim], wide: &[usize]) -> Option<Vec<Dim>> {
    let narrow = sizes(shape)?;
    if from.len() != narrow.iter().product::<usize>() {
        return None;
    }

    let count = wide.iter().product();
    let mut elements = Vec::with_capacity(count);
    for flat in 0..count {
        let (mut rest, mut place, mut stride) = (flat, 0, 1);
        for (position, size) in wide.iter().enumerate().rev() {
            let coordinate = rest % size;
            rest /= size;
            let own =
                (position + narrow.len()).checked_sub(wide.len()).map_or(1, |own| narrow[own]);
            place += if own == 1 { 0 } else { coordinate * stride };
            stride *= own;
        }
        elements.push(from.get(place)?.clone());
    }

    Some(elements)
}

fn expand(call: &Call<'_>) -> Option<Vec<Dim>> {
    let wide = sizes(&broadcast(call.shape(0)?, call.dims(1)?).ok()?)?;
    widened(call.dims(0)?, call.shape(0)?, &wide)
}

fn repeat(call: &Call<'_>) -> Option<Vec<Dim>> {
    let times = usize::try_from(*call.ints(1)?.first()?).ok()?;
    let dims = call.dims(0)?;
    if dims.is_empty() {
        return Some(Vec::new());
    }
    (dims.len().checked_mul(times)? <= MAX_KNOWN).then(|| vec![dims; times].concat())
}

fn transpose(call: &Call<'_>) -> Option<Vec<Dim>> {
    let dims = call.dims(0)?;
    let [rows, columns] = sizes(call.shape(0)?)?.try_into().ok()?;
    let turned = call.list("perm").is_none_or(|order| order == [1, 0]);
    let at = |place: usize| dims.get(place % rows * columns + place / rows).cloned();
    if turned { (0..rows * columns).map(at).collect() } else { Some(dims.to_vec()) }
}

fn choose(call: &Call<'_>) -> Option<Vec<Dim>> {
    let (which, a, b) = (call.dims(0)?, call.dims(1)?, call.dims(2)?);
    let wide = broadcast(&broadcast(call.shape(0)?, call.shape(1)?).ok()?, call.shape(2)?).ok()?;
    let wide = sizes(&wide)?;
    let which = widened(which, call.shape(0)?, &wide)?;
    let (a, b) = (widened(a, call.shape(1)?, &wide)?, widened(b, call.shape(2)?, &wide)?);
    let pick = |((which, a), b): ((&Dim, Dim), Dim)| match which.as_integer() {
        Some(0) => b,
        Some(_) => a,
        None if a == b => a,
        None => Dim::Unknown,
    };
    Some(which.iter().zip(a).zip(b).map(pick).collect())
}

/// Integers are cut towards zero; floats keep a fraction, which is not followed.
fn divide(call: &Call<'_>, a: &Dim, b: &Dim) -> Option<Dim> {
    if let (Some(a), Some(b)) = (a.as_integer(), b.as_integer()) {
        let exact = a.checked_rem(b)? == 0;
        let whole = !call.element(0).is_some_and(ElementType::is_float);
        return (exact || whole).then(|| a.checked_div(b).map(Dim::integer)).flatten();
    }
    match call.element(0) {
        Some(element) if element.is_float() => a.exact_quotient(b),
        _ => Some(a.quotient(b)),
    }
}

/// Returns the remainder, with the sign of the divisor or, with `fmod`, the sign of the dividend.
fn remainder(call: &Call<'_>, a: &Dim, b: &Dim) -> Option<Dim> {
    let (a, b) = (a.as_integer()?, b.as_integer()?);
    let rest = a.checked_rem(b)?;
    let turns = !call.is_set("fmod") && rest != 0 && (rest < 0) != (b < 0);
    Some(Dim::integer(if turns { rest + b } else { rest }))
}

fn equal(a: &Dim, b: &Dim) -> Option<Dim> {
    // Two sizes that nobody knows may differ.
    if a == b && *a != Dim::Unknown {
        return Some(Dim::fixed(1));
    }
    let apart = a.minus(b).is_at_least(1) || b.minus(a).is_at_least(1);
    apart.then(|| Dim::fixed(0))
}

fn at_least(a: &Dim, b: &Dim) -> Option<Dim> {
    if a.minus(b).is_at_least(0) {
        return Some(Dim::fixed(1));
    }
    b.minus(a).is_at_least(1).then(|| Dim::fixed(0))
}

/// Returns `true` if `a` is greater than or equal to `b`, or `None` if the sizes do not tell.
fn greater(a: &Dim, b: &Dim) -> Option<bool> {
    if a.minus(b).is_at_least(0) {
        return Some(true);
    }
    b.minus(a).is_at_least(0).then_some(false)
}
