//! How far a model moved: each tensor of a source beside what became of it.

use std::collections::{HashMap, HashSet};

use apr_core::Progress;
use apr_quantize::{Quality, QualityGate};
use apr_registry::{CheckpointReader, DType, Pipeline, Result, Shape};
use serde::Serialize;

use super::compare::{Comparison, compare};
use super::options::{DiffOptions, Side};
use super::pairing::{Pair, pair};

/// Tensors that a report names as the worst.
const WORST: usize = 10;

/// Difference between a model and its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DriftReport {
    /// Tensors of the source.
    pub tensor_count: usize,
    /// Number of tensors of the source that changed or were removed.
    #[serde(rename = "changed_count")]
    pub changed: usize,
    /// Difference over all changed tensors together. Removed tensors count as zeros.
    #[serde(flatten)]
    pub total: Quality,
    /// Tensors that moved furthest, at most ten, the worst first.
    pub worst: Vec<TensorDrift>,
    /// Tensors of the source that the model does not have.
    pub removed: Vec<String>,
    /// Tensors of the source that the graph of the output does not use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unused: Vec<String>,
    /// Tensors that the source does not have.
    pub added: Vec<String>,
    /// Reasons why the two models could not be viewed in one layout.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl DriftReport {
    /// Returns `true` if no tensor changed, was removed or added.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.changed == 0 && self.removed.is_empty() && self.added.is_empty()
    }
}

/// A tensor of the source that changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct TensorDrift {
    /// Name of the tensor in the source, in the layout of the output.
    pub name: String,
    /// Current dtype, or `None` if the tensor was removed.
    pub dtype: Option<DType>,
    /// Reason why the values could not be compared. Such a tensor has a relative error of 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Difference between the values before and after.
    #[serde(flatten)]
    pub quality: Quality,
    #[serde(skip)]
    recoded: bool,
}

impl TensorDrift {
    /// Returns the name used in messages.
    fn label(&self) -> String {
        match (&self.why, self.dtype) {
            (Some(why), _) => format!("{}, {why}", self.name),
            (None, Some(dtype)) if self.recoded => format!("{} as {dtype}", self.name),
            _ => self.name.clone(),
        }
    }
}

impl DriftReport {
    /// Returns a message for each limit of the gate that is exceeded; empty if the report passes.
    ///
    /// A source without tensors never passes.
    #[must_use]
    pub fn failures(&self, gate: &QualityGate) -> Vec<String> {
        let tensors = self.worst.iter().map(|one| (one.label(), one.quality.relative_error));
        let mut failures = gate.failures(&self.total, tensors);
        if self.tensor_count == 0 {
            failures.push("nothing to compare: the source has no tensors".to_owned());
        }
        if !failures.is_empty() {
            failures.extend(self.warnings.iter().cloned());
        }
        failures
    }
}

/// Use of the source's tensors in a model with a graph.
#[derive(Debug, Clone, Default)]
pub struct OfGraph {
    /// Names of the tensors that the graph does not use: names of the source or canonical names.
    pub unused: HashSet<String>,
}

/// Measures the difference between a model and its source. Reads all bytes of both.
///
/// `graph`: the model has a graph, which gives some tensors other shapes.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub(crate) fn drift<P: Pipeline>(
    source: Side<'_>,
    model: Side<'_>,
    graph: Option<&OfGraph>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<DriftReport> {
    let options = DiffOptions { read: true, ..DiffOptions::default() };
    let mut pairing = pair(source, model, &options, pipeline, progress)?;
    let (left, right) = (source.reader, model.reader);
    let elements = |reader: &dyn CheckpointReader, at: usize| reader.tensors()[at].shape.elements();
    for pair in &mut pairing.pairs {
        pair.is_flat = graph.is_some() && elements(left, pair.left) == elements(right, pair.right);
    }
    let compared = compare(left, right, &pairing.pairs, true, pipeline, progress)?;

    let mut found = Found::default();
    let mut gone = Vec::new();
    for (pair, sums) in pairing.pairs.iter().zip(&compared) {
        if sums.incomparable {
            gone.push((pair.left, Some(pair.right)));
        } else if !sums.identical && sums.max_delta > 0.0 {
            let tensor = &right.tensors()[pair.right];
            let recoded = tensor.dtype != left.tensors()[pair.left].dtype;
            found.add(&left.tensors()[pair.left].name, Some(tensor.dtype), None, recoded, sums);
        }
    }

    let names: HashMap<&str, usize> =
        left.tensors().iter().map(|info| info.name.as_str()).zip(0..).collect();
    let is_unused = |name: &String| {
        let canonical = names.get(name.as_str()).and_then(|at| source.model?.canonical(*at));
        let is_named = |unused: &HashSet<String>| {
            unused.contains(name) || canonical.is_some_and(|name| unused.contains(name))
        };
        graph.is_some_and(|graph| is_named(&graph.unused))
    };
    let (unused, removed): (Vec<_>, Vec<_>) = pairing.removed.into_iter().partition(is_unused);
    let positions = removed.iter().filter_map(|name| names.get(name.as_str()).copied());
    gone.extend(positions.map(|position| (position, None)));
    found.add_gone([left, right], &gone, graph.is_some(), pipeline, progress)?;

    let Found { total, mut tensors } = found;
    tensors.sort_by(|a, b| b.quality.relative_error.total_cmp(&a.quality.relative_error));
    let changed = tensors.len();
    tensors.truncate(WORST);
    Ok(DriftReport {
        tensor_count: pairing.pairs.len() + removed.len(),
        changed,
        total: quality(&total),
        worst: tensors,
        removed,
        unused,
        added: pairing.added,
        warnings: Vec::new(),
    })
}

/// Changes found so far.
#[derive(Default)]
struct Found {
    total: Comparison,
    tensors: Vec<TensorDrift>,
}

impl Found {
    fn add(
        &mut self,
        name: &str,
        dtype: Option<DType>,
        why: Option<String>,
        recoded: bool,
        sums: &Comparison,
    ) {
        self.total.left += sums.left;
        self.total.right += sums.right;
        self.total.dot += sums.dot;
        self.total.difference += sums.difference;
        self.total.elements += sums.elements;
        self.total.max_delta = self.total.max_delta.max(sums.max_delta);
        let (name, quality) = (name.to_owned(), quality(sums));
        self.tensors.push(TensorDrift { name, dtype, why, quality, recoded });
    }

    /// Adds tensors whose values have no counterparts. Their whole norm counts as error.
    fn add_gone<P: Pipeline>(
        &mut self,
        [left, right]: [&dyn CheckpointReader; 2],
        gone: &[(usize, Option<usize>)],
        is_lowered: bool,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<()> {
        let own = |&(at, _): &(usize, _)| Pair {
            left: at,
            right: at,
            renamed: false,
            by_digest: false,
            is_flat: false,
        };
        let pairs: Vec<Pair> = gone.iter().map(own).collect();
        let norms = compare(left, left, &pairs, true, pipeline, progress)?;
        for ((at, counterpart), norm) in gone.iter().zip(norms) {
            let info = &left.tensors()[*at];
            let now = counterpart.map(|at| &right.tensors()[at]);
            let lost = match is_lowered {
                true => "which the graph has under no name of its own",
                false => "which was removed",
            };
            let why = now.map_or(lost.to_owned(), |now| {
                format!("whose shape was {} and is {}", dims(&info.shape), dims(&now.shape))
            });
            let (right, dot, difference) = (0.0, 0.0, norm.left);
            let sums = Comparison { right, dot, difference, max_delta: 0.0, ..norm };
            self.add(&info.name, now.map(|now| now.dtype), Some(why), false, &sums);
            if let Some(last) = self.tensors.last_mut() {
                // Zeros that are no more are missed all the same.
                last.quality.relative_error = last.quality.relative_error.max(1.0);
            }
        }
        Ok(())
    }
}

fn dims(shape: &Shape) -> String {
    let dims: Vec<String> = shape.dims().iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn quality(sums: &Comparison) -> Quality {
    // A value that is not a number any more is as far away as can be.
    let is_number = sums.max_delta.is_finite();
    let relative = match (sums.difference > 0.0, sums.left > 0.0) {
        _ if !is_number => f64::INFINITY,
        (false, _) => 0.0,
        (true, true) => (sums.difference / sums.left).sqrt(),
        (true, false) => f64::INFINITY,
    };
    let norms = (sums.left * sums.right).sqrt();
    let cosine = match norms > 0.0 {
        _ if !is_number => 0.0,
        true => (sums.dot / norms).clamp(-1.0, 1.0),
        false => f64::from(sums.difference == 0.0),
    };
    Quality {
        rmse: (sums.difference / sums.elements.max(1) as f64).sqrt(),
        relative_error: relative,
        max_error: sums.max_delta,
        cosine,
    }
}

#[cfg(test)]
mod tests {
    use apr_registry::{Limits, Serial};
    use serde_json::{Map, json};

    use super::*;

    fn model(tensors: &[(&str, &[f32])]) -> Box<dyn CheckpointReader> {
        let (mut header, mut bytes) = (Map::new(), Vec::new());
        for (name, values) in tensors {
            let place = [bytes.len(), bytes.len() + 4 * values.len()];
            let entry = json!({ "dtype": "F32", "shape": [values.len()], "data_offsets": place });
            header.insert((*name).to_owned(), entry);
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        let header = json!(header).to_string().into_bytes();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
        apr_registry::open(file, "m.safetensors", &Limits::default()).expect("a sound file")
    }

    fn drifted(source: &[(&str, &[f32])], written: &[(&str, &[f32])]) -> DriftReport {
        let (source, written) = (model(source), model(written));
        let side = |reader| Side { reader, original: reader, name: "", model: None };
        drift(side(&*source), side(&*written), None, &Serial, &()).expect("a report")
    }

    #[test]
    fn unchanged_tensors_add_no_error_and_pass_the_strictest_gate() {
        let report =
            drifted(&[("a", &[1.0, 2.0]), ("b", &[3.0])], &[("b", &[3.0]), ("a", &[1.0, 2.0])]);
        assert_eq!((report.tensor_count, report.changed), (2, 0));
        let strictest = QualityGate { max_drift: 0.0, max_tensor_drift: 0.0, min_cosine: 1.0 };
        assert!(report.failures(&strictest).is_empty(), "{report:?}");

        let report =
            drifted(&[("a", &[3.0, 4.0]), ("b", &[900.0])], &[("a", &[3.0, 3.0]), ("b", &[900.0])]);
        assert_eq!((report.changed, report.total.relative_error), (1, 0.2));
    }

    #[test]
    fn a_tensor_that_is_gone_or_has_another_shape_counts_as_wholly_wrong() {
        for (written, says) in [
            (&[("a", &[1.0_f32, 2.0][..])][..], "b, which was removed: 1.0000"),
            (
                &[("a", &[1.0, 2.0]), ("b", &[3.0, 3.0])],
                "b, whose shape was [1] and is [2]: 1.0000",
            ),
        ] {
            let report = drifted(&[("a", &[1.0, 2.0]), ("b", &[3.0])], written);
            assert_eq!((report.changed, report.total.relative_error), (1, 1.0));
            let failures = report.failures(&QualityGate::with_max_drift(0.1));
            assert!(failures.iter().any(|failure| failure.contains(says)), "{failures:?}");
        }
        // An error of 100 % of a tensor that was zero, too.
        let report = drifted(&[("a", &[1.0]), ("z", &[0.0])], &[("a", &[1.0])]);
        assert!(!report.failures(&QualityGate::with_max_drift(0.1)).is_empty());
    }

    #[test]
    fn a_gate_that_can_not_judge_fails() {
        let gate = QualityGate::with_max_drift(1e9);
        for (source, written) in [
            (&[("a", &[1.0_f32, 2.0][..])][..], &[("a", &[1.0_f32, f32::NAN][..])][..]),
            (&[("a", &[0.0, 0.0])], &[("a", &[0.0, 1.0])]),
            (&[], &[("a", &[1.0])]),
        ] {
            let failures = drifted(source, written).failures(&gate);
            assert!(!failures.is_empty(), "{source:?} {written:?}");
        }
    }
}
