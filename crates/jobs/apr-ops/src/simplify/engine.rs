//! Runs of graphs, to compute constants and to compare two graphs.

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{CheckpointReader, DType, Error, Escaped, Result};
use apr_graph::{Body, Dim, ElementType, Graph, ValueOrigin};
use apr_infer::{Alone, Engine, Outcome, RunLimits, Session, Tensor, Unwatched, Value};
use apr_tensor::cast::{can_cast, cast_float};
use apr_tensor::element::widen_f64;

use super::report::Compared;

/// This build can run graphs.
pub(super) const IS_BUILT: bool = true;

/// Sizes of open dimensions that are tried one after the other. A symbol gets the first number plus
/// its position times the second.
const SIZES: [(u64, u64); 9] =
    [(2, 1), (5, 2), (2, 0), (1, 0), (3, 0), (8, 0), (16, 0), (64, 0), (224, 0)];
/// Number of sizes for which outputs are compared.
const RUNS: usize = 2;
/// Relative difference up to which outputs are equal if weights were multiplied.
const TOLERANCE: f64 = 1e-5;
/// Maximum number of elements of all inputs.
const MOST_ELEMENTS: usize = 1 << 26;

/// Memory of a run that computes constants, beside four times the bytes of its tensors.
const MEMORY: u64 = 64 << 20;
/// Steps of such a run, for each byte and for each node.
const STEPS: (u64, u64) = (64, 1_000_000);
/// Maximum number of steps for nodes.
const MOST_STEPS: u64 = 100_000_000;

/// A computed tensor.
pub(super) struct Computed {
    pub(super) element: ElementType,
    pub(super) shape: Vec<u64>,
    /// Packed elements, little-endian.
    pub(super) bytes: Vec<u8>,
    /// The tensor has no NaN and no infinity.
    pub(super) is_finite: bool,
}

/// Computes the outputs of a graph without inputs, with tensors of `size` bytes and with `nodes`.
///
/// # Errors
/// E003 for operators that the engine does not support; E008 for more memory or work than the size
/// justifies; errors of the run.
pub(super) fn evaluate(
    graph: &Graph,
    weights: &dyn CheckpointReader,
    size: u64,
    nodes: u64,
) -> Result<Vec<Computed>> {
    let work = nodes.saturating_mul(STEPS.1).min(MOST_STEPS);
    let mut limits = RunLimits::default();
    limits.max_memory = size.saturating_mul(4).saturating_add(MEMORY);
    limits.max_work = Some(size.saturating_mul(STEPS.0).saturating_add(work));
    let session = Engine::prepare(graph, weights, limits)?;
    let Outcome { outputs, .. } = run(&session, &graph.body, Vec::new())?;
    outputs.iter().map(computed).collect()
}

fn run(session: &Session<'_>, body: &Body, inputs: Vec<(String, Value)>) -> Result<Outcome> {
    let wanted: Vec<&str> = body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect();
    session.run(inputs, &wanted, &Alone, &mut Unwatched)
}

fn computed(value: &Value) -> Result<Computed> {
    let tensor = value.tensor()?;
    let element = tensor.element();
    let bytes = tensor.pack().ok_or_else(|| Error::version("texts are not folded"))?;
    Ok(Computed {
        element,
        shape: tensor.shape().iter().map(|size| *size as u64).collect(),
        is_finite: floats(tensor).is_none_or(|values| values.iter().all(|each| each.is_finite())),
        bytes,
    })
}

/// Returns the elements of a tensor of floats.
fn floats(tensor: &Tensor) -> Option<Vec<f64>> {
    let dtype = tensor.element().dtype().filter(|dtype| dtype.is_float())?;
    let mut values = Vec::new();
    widen_f64(dtype, &tensor.pack()?, &mut values);
    Some(values)
}

/// Result of comparing two graphs with the same inputs and outputs.
pub(super) enum Comparison {
    /// The outputs are equal as far as required.
    Same(Compared),
    /// The outputs differ, with the reason.
    Different(String),
    /// The graph before can't run.
    NotRun(Error),
}

/// Compares the outputs of two graphs for the same random inputs: bit for bit if `is_exact`.
pub(super) fn compare(
    before: &Graph,
    after: &Graph,
    weights: &dyn CheckpointReader,
    is_exact: bool,
) -> Comparison {
    let runs = match expected(before, weights) {
        Ok(runs) => runs,
        Err(error) => return Comparison::NotRun(error),
    };
    let failed = |error: Error| Comparison::Different(format!("it does not run: {error}"));
    let session = match Engine::prepare(after, weights, RunLimits::default()) {
        Ok(session) => session,
        Err(error) => return failed(error),
    };
    let outputs = before.body.outputs.len() as u64;
    let mut compared = Compared { sizes: Vec::new(), outputs, identical: true, difference: 0.0 };
    for Expected { sizes, inputs, outputs } in runs {
        let found = match run(&session, &after.body, inputs) {
            Ok(outcome) => outcome.outputs,
            Err(error) => return failed(error),
        };
        for ((id, one), other) in before.body.outputs.iter().zip(&outputs).zip(&found) {
            let difference = difference(one, other);
            let most = if is_exact { 0.0 } else { TOLERANCE };
            let name = || Escaped::short(&before.body.value(*id).name);
            match difference {
                Some(difference) if difference <= most => {
                    compared.identical &= difference == 0.0;
                    compared.difference = compared.difference.max(difference);
                }
                Some(difference) => {
                    let message = format!("output '{}' differs by {difference:.1e}", name());
                    return Comparison::Different(message);
                }
                None => {
                    let message = "has another type or shape, or other elements";
                    return Comparison::Different(format!("output '{}' {message}", name()));
                }
            }
        }
        compared.sizes.push(sizes);
    }
    Comparison::Same(compared)
}

/// A run of the graph before.
struct Expected {
    sizes: BTreeMap<String, u64>,
    inputs: Vec<(String, Value)>,
    outputs: Vec<Value>,
}

/// Runs a graph for the first sizes that it supports.
fn expected(graph: &Graph, weights: &dyn CheckpointReader) -> Result<Vec<Expected>> {
    let session = Engine::prepare(graph, weights, RunLimits::default())?;
    let symbols = symbols(&graph.body);
    let has_open = !symbols.is_empty() || has_unknown(&graph.body);
    let (mut runs, mut first): (Vec<Expected>, _) = (Vec::new(), None);
    for (start, step) in SIZES {
        let sizes: BTreeMap<String, u64> =
            symbols.iter().cloned().zip((0..).map(|at| start + at * step)).collect();
        if runs.iter().any(|run| run.sizes == sizes && !has_unknown(&graph.body)) {
            continue;
        }
        let outcome = inputs(&graph.body, &sizes, start).and_then(|inputs| {
            let Outcome { outputs, .. } = run(&session, &graph.body, inputs.clone())?;
            Ok(Expected { sizes, inputs, outputs })
        });
        match outcome {
            Ok(expected) => runs.push(expected),
            Err(error) => _ = first.get_or_insert(error),
        }
        if !has_open || runs.len() == RUNS {
            break;
        }
    }
    match first {
        Some(error) if runs.is_empty() => Err(error),
        _ => Ok(runs),
    }
}

fn symbols(body: &Body) -> BTreeSet<String> {
    let shapes = body.inputs.iter().filter_map(|id| body.value(*id).shape());
    shapes.flatten().flat_map(Dim::symbols).map(|symbol| symbol.to_string()).collect()
}

fn has_unknown(body: &Body) -> bool {
    let mut shapes = body.inputs.iter().filter_map(|id| body.value(*id).shape());
    shapes.any(|shape| shape.contains(&Dim::Unknown))
}

/// Returns random values for the inputs that the caller must pass.
fn inputs(
    body: &Body,
    sizes: &BTreeMap<String, u64>,
    unknown: u64,
) -> Result<Vec<(String, Value)>> {
    let mut random = Random(0);
    let mut left = MOST_ELEMENTS;
    let ids = body.inputs.iter().map(|id| body.value(*id));
    let given = ids.filter(|value| value.origin == ValueOrigin::Input);
    given
        .map(|value| {
            let named = |what: &str| {
                let name = Escaped::short(&value.name);
                Error::version(format!("the input '{name}' {what}"))
            };
            let shape = value.shape().ok_or_else(|| named("has no stated shape"))?;
            let element = value.element().ok_or_else(|| named("has no stated type"))?;
            let size = |dim: &Dim| match dim {
                Dim::Unknown => Some(unknown),
                known => known.value(&|symbol| sizes.get(symbol).copied()),
            };
            let shape: Vec<usize> = shape
                .iter()
                .map(|dim| size(dim).and_then(|size| usize::try_from(size).ok()))
                .collect::<Option<_>>()
                .ok_or_else(|| named("has a size that can't be chosen"))?;
            let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size));
            left = count
                .and_then(|count| left.checked_sub(count))
                .ok_or_else(|| named("is too large to be tried"))?;
            let bytes = count.and_then(|count| random.bytes(element, count));
            let bytes = bytes.ok_or_else(|| named("does not have numbers"))?;
            Ok((value.name.clone(), Value::Tensor(Tensor::unpack(element, shape, &bytes)?)))
        })
        .collect()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns floats between -1 and 1, or integers that are 0 or 1, since they may be positions in
    /// any table.
    fn bytes(&mut self, element: ElementType, count: usize) -> Option<Vec<u8>> {
        let dtype = element.dtype()?;
        if !element.is_float() {
            let len = usize::try_from(element.stored_len(count as u64)?).ok()?;
            let width = usize::try_from(element.bits() / 8).ok()?.max(1);
            let mut bytes = vec![0; len];
            bytes.chunks_mut(width).for_each(|word| word[0] = (self.next() >> 63) as u8);
            return Some(bytes);
        }
        let float = |bits: u64| (bits >> 40) as f32 / (1_u32 << 23) as f32 - 1.0;
        let floats: Vec<f32> = (0..count).map(|_| float(self.next())).collect();
        match dtype {
            DType::F32 => Some(floats.iter().flat_map(|value| value.to_le_bytes()).collect()),
            DType::F64 => {
                Some(floats.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect())
            }
            _ if can_cast(DType::F32, dtype) => {
                let bytes: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
                let mut cast = Vec::new();
                cast_float(DType::F32, dtype, &bytes, &mut cast);
                Some(cast)
            }
            _ => None,
        }
    }
}

/// Returns the largest difference of two values, relative to the largest magnitude in them.
///
/// `None` if they have different types or shapes, or if integers or texts differ.
fn difference(one: &Value, other: &Value) -> Option<f64> {
    match (one, other) {
        (Value::Tensor(one), Value::Tensor(other)) => of_tensors(one, other),
        (Value::Sequence(one), Value::Sequence(other)) if one.len() == other.len() => {
            let mut pairs = one.iter().zip(other).map(|(one, other)| difference(one, other));
            pairs.try_fold(0_f64, |worst, each| Some(worst.max(each?)))
        }
        (Value::Map { keys, values }, Value::Map { keys: other_keys, values: other_values }) => {
            Some(of_tensors(keys, other_keys)?.max(of_tensors(values, other_values)?))
        }
        (Value::Optional(None), Value::Optional(None)) => Some(0.0),
        (Value::Optional(Some(one)), Value::Optional(Some(other))) => difference(one, other),
        _ => None,
    }
}

fn of_tensors(one: &Tensor, other: &Tensor) -> Option<f64> {
    if one.element() != other.element() || one.shape() != other.shape() {
        return None;
    }
    let Some((ones, others)) = floats(one).zip(floats(other)) else {
        return (one.data() == other.data()).then_some(0.0);
    };
    if one.pack() == other.pack() {
        return Some(0.0);
    }
    let finite = ones.iter().filter(|value| value.is_finite());
    let largest = finite.fold(f64::MIN_POSITIVE, |largest, value| largest.max(value.abs()));
    ones.iter().zip(&others).try_fold(0_f64, |worst, (one, other)| {
        match one == other || one.is_nan() && other.is_nan() {
            // A zero with another sign is not the same result.
            true if one.to_bits() == other.to_bits() || one.is_nan() => Some(worst),
            true => Some(worst.max(f64::MIN_POSITIVE)),
            false if one.is_finite() && other.is_finite() => {
                Some(worst.max((one - other).abs() / largest))
            }
            false => None,
        }
    })
}
