//! Nodes that compute in halves, and the reasons of the others.

use std::collections::{BTreeSet, HashMap, HashSet};

use apr_core::CheckpointReader;
use apr_graph::{
    Body, ElementType, Graph, Node, Operator, Parameter, TensorType, ValueId, ValueOrigin,
    ValueType,
};

use super::Choices;

/// The block list of onnxruntime's converter.
const BLOCKED: [&str; 28] = [
    "ArrayFeatureExtractor",
    "Binarizer",
    "CastMap",
    "CategoryMapper",
    "CumSum",
    "DictVectorizer",
    "FeatureVectorizer",
    "Imputer",
    "LabelEncoder",
    "LinearClassifier",
    "LinearRegressor",
    "Max",
    "Min",
    "NonMaxSuppression",
    "Normalizer",
    "OneHotEncoder",
    "RandomUniformLike",
    "Range",
    "RoiAlign",
    "SVMClassifier",
    "SVMRegressor",
    "Scaler",
    "TopK",
    "TreeEnsemble",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
    "Upsample",
    "ZipMap",
];
/// Operators whose scales belong to integers.
const QUANTIZED: [&str; 3] = ["DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"];
/// Operators that add up many elements, whose sum can be larger than the largest half.
const SUMS: [&str; 3] = ["ReduceMean", "ReduceSum", "ReduceSumSquare"];
/// Operators between a mean of squares and the root or the quotient that is small again.
const AFTER_SUMS: [&str; 4] = ["Add", "Pow", "Reciprocal", "Sqrt"];
/// Maximum number of elements of a weight that belongs to positions and sizes.
const SMALL: u64 = 4096;

/// How a node computes.
#[derive(Debug)]
pub(super) enum Way {
    /// It reads and makes no floats of 32 bits.
    Neutral,
    /// In single precision, for this reason.
    Floats(&'static str),
    /// In halves, as far as the operator's parameters have these type labels.
    Halves(&'static Operator, BTreeSet<&'static str>),
}

pub(super) const BY_LIST: &str = "operators of the block list";
pub(super) const EXCLUDED: &str = "excluded";
pub(super) const NO_HALVES: &str = "operators without halves";
pub(super) const BODIES: &str = "branches and loops";
pub(super) const SCALES: &str = "quantized values and their products";
pub(super) const POSITIONS: &str = "positions and sizes, computed from integers";
pub(super) const SQUARES: &str = "sums of squares, which can be larger than the largest half";
pub(super) const MADE: &str = "nodes that make floats of other types";

/// Decides for the nodes of a graph.
pub(super) struct Rules<'g> {
    graph: &'g Graph,
    choices: Choices<'g>,
    /// Nodes of positions and sizes, by their places.
    positions: HashSet<usize>,
    /// Nodes of sums of squares.
    squares: HashSet<usize>,
}

impl<'g> Rules<'g> {
    pub(super) fn of(
        graph: &'g Graph,
        reader: &dyn CheckpointReader,
        choices: Choices<'g>,
    ) -> Self {
        let positions = positions(&graph.body, reader);
        Self { graph, choices, positions, squares: squares(&graph.body) }
    }

    /// Returns how each node computes.
    pub(super) fn ways(&self) -> Vec<Way> {
        self.graph.body.nodes.iter().enumerate().map(|(at, node)| self.way(at, node)).collect()
    }

    fn way(&self, at: usize, node: &Node) -> Way {
        let body = &self.graph.body;
        let values = || node.inputs.iter().chain(&node.outputs).flatten();
        if !values().any(|id| holds_floats(&body.value(*id).kind)) {
            return match node.bodies().next() {
                Some(_) => Way::Floats(BODIES),
                None => Way::Neutral,
            };
        }
        let Choices { exclude_ops, exclude_nodes, .. } = self.choices;
        let name = &*node.op.name;
        if node.bodies().next().is_some() {
            return Way::Floats(BODIES);
        }
        let is_excluded = exclude_ops.iter().any(|op| **op == *name || **op == node.op.to_string())
            || exclude_nodes.iter().any(|pattern| pattern.is_match(&node.name));
        let whys = [
            (is_excluded, EXCLUDED),
            (BLOCKED.contains(&name), BY_LIST),
            (QUANTIZED.contains(&name) || reads_integers(body, node), SCALES),
            (self.positions.contains(&at), POSITIONS),
            (self.squares.contains(&at), SQUARES),
            (values().any(|id| !is_plain(&body.value(*id).kind)), NO_HALVES),
        ];
        if let Some((_, why)) = whys.iter().find(|(is_so, _)| *is_so) {
            return Way::Floats(why);
        }
        let version = self.graph.opset(&node.op.domain).unwrap_or(1);
        let Some(operator) = Operator::of(&node.op, version) else {
            return Way::Floats(NO_HALVES);
        };
        let reads_floats = node.inputs.iter().flatten().any(|id| is_float(body, *id));
        let labels = labels(body, node, operator);
        match labels.is_empty() {
            true if reads_floats => Way::Floats(NO_HALVES),
            true => Way::Floats(MADE),
            false => Way::Halves(operator, labels),
        }
    }
}

/// Returns `true` for a node that reads dequantized values: runtimes multiply the integers instead.
fn reads_integers(body: &Body, node: &Node) -> bool {
    let mut makers = node.inputs.iter().flatten().filter_map(|id| match body.value(*id).origin {
        ValueOrigin::Node(maker) => Some(body.node(maker)),
        _ => None,
    });
    makers.any(|maker| maker.op.is("DequantizeLinear"))
}

/// Returns the type labels of a node's inputs that become halves.
fn labels(body: &Body, node: &Node, operator: &'static Operator) -> BTreeSet<&'static str> {
    let mut fits: HashMap<&'static str, bool> = HashMap::new();
    for (position, id) in node.inputs.iter().enumerate() {
        let (Some(id), Some(parameter)) = (id, operator.input(position)) else { continue };
        if is_float(body, *id) && !parameter.label.is_empty() {
            *fits.entry(parameter.label).or_insert(true) &= takes_halves(parameter);
        }
    }
    // An output of the same type must take halves, too.
    for (position, id) in node.outputs.iter().enumerate() {
        let (Some(_), Some(parameter)) = (id, operator.output(position)) else { continue };
        if let Some(fits) = fits.get_mut(parameter.label) {
            *fits &= takes_halves(parameter);
        }
    }
    fits.into_iter().filter(|(_, fits)| *fits).map(|(label, _)| label).collect()
}

fn takes_halves(parameter: &Parameter) -> bool {
    let half = TensorType { element: Some(ElementType::F16), shape: None };
    parameter.types.allows(&ValueType::Tensor(half))
}

/// Returns `true` for a tensor of floats of 32 bits.
pub(super) fn is_float(body: &Body, id: ValueId) -> bool {
    body.value(id).element() == Some(ElementType::F32)
}

/// Returns `true` for a type that has floats of 32 bits in it, or may have.
fn holds_floats(kind: &ValueType) -> bool {
    match kind {
        ValueType::Unknown | ValueType::Map(..) => true,
        ValueType::Tensor(tensor) | ValueType::SparseTensor(tensor) => {
            tensor.element.is_none_or(|element| element == ElementType::F32)
        }
        ValueType::Sequence(inner) | ValueType::Optional(inner) => holds_floats(inner),
    }
}

/// Returns `true` for a tensor of known type.
fn is_plain(kind: &ValueType) -> bool {
    matches!(kind, ValueType::Tensor(tensor) if tensor.element.is_some())
}

/// Returns the nodes that compute from integers of 16 and more bits alone, which are positions and
/// sizes: halves hold integers up to 2,048 only.
fn positions(body: &Body, reader: &dyn CheckpointReader) -> HashSet<usize> {
    let lens: HashMap<&str, u64> = reader
        .tensors()
        .iter()
        .map(|info| (info.name.as_str(), info.shape.elements().unwrap_or(u64::MAX)))
        .collect();
    // Values that follow from integers, and small values that are the same in each run.
    let mut counted: HashSet<ValueId> = HashSet::new();
    let mut fixed: HashSet<ValueId> = (0..)
        .map(ValueId)
        .zip(&body.values)
        .filter(|(_, value)| match &value.origin {
            ValueOrigin::Constant(constant) => constant.shape.iter().product::<u64>() <= SMALL,
            ValueOrigin::Weight(weight) => {
                lens.get(weight.tensor.as_str()).is_some_and(|len| *len <= SMALL)
            }
            _ => false,
        })
        .map(|(id, _)| id)
        .collect();
    let mut found = HashSet::new();
    for (at, node) in body.nodes.iter().enumerate() {
        let floats: Vec<ValueId> =
            node.inputs.iter().flatten().copied().filter(|id| is_float(body, *id)).collect();
        let outputs = || node.outputs.iter().flatten().copied();
        let makes_floats = outputs().any(|id| is_float(body, id));
        if node.op.is("Cast") && makes_floats && node.input(0).is_some_and(|id| is_wide(body, id)) {
            counted.extend(outputs());
            found.insert(at);
            continue;
        }
        if floats.is_empty() || node.op.is("Conv") || node.op.is("Gemm") {
            continue;
        }
        if node.inputs.iter().flatten().all(|id| fixed.contains(id)) {
            fixed.extend(outputs());
            continue;
        }
        let is_counted = floats.iter().any(|id| counted.contains(id))
            && floats.iter().all(|id| counted.contains(id) || fixed.contains(id))
            && !floats.iter().any(|id| is_beyond(body, *id));
        if is_counted {
            found.insert(at);
            if !(node.op.is("Sin") || node.op.is("Cos")) {
                counted.extend(outputs());
            }
        }
    }
    found
}

/// Returns `true` for integers that halves do not hold.
fn is_wide(body: &Body, id: ValueId) -> bool {
    let element = body.value(id).element();
    element.is_some_and(|element| {
        !element.is_float() && element.bits() >= 16 && element != ElementType::Bool
    })
}

/// Returns `true` for a constant beyond the largest half, as masks have it.
fn is_beyond(body: &Body, id: ValueId) -> bool {
    match &body.value(id).origin {
        ValueOrigin::Constant(constant) => constant
            .as_floats()
            .is_some_and(|values| values.iter().any(|value| value.abs() > super::rewrite::LARGEST)),
        _ => false,
    }
}

/// Returns the nodes between squares of activations and the root of their sum.
fn squares(body: &Body) -> HashSet<usize> {
    let mut readers: HashMap<ValueId, Vec<usize>> = HashMap::new();
    for (at, node) in body.nodes.iter().enumerate() {
        node.inputs.iter().flatten().for_each(|id| readers.entry(*id).or_default().push(at));
    }
    let reads = |node: &Node| -> Vec<usize> {
        let outputs = node.outputs.iter().flatten();
        outputs.flat_map(|id| readers.get(id).into_iter().flatten().copied()).collect()
    };
    let is_one_of = |at: usize, names: &[&str]| {
        let node = &body.nodes[at];
        node.op.domain.is_empty() && names.contains(&&*node.op.name)
    };
    let mut found = HashSet::new();
    for (at, node) in body.nodes.iter().enumerate() {
        let is_square = node.op.is("Pow")
            || node.op.is("Mul") && node.inputs.len() == 2 && node.inputs[0] == node.inputs[1];
        let summed: Vec<usize> =
            reads(node).into_iter().filter(|reader| is_one_of(*reader, &SUMS)).collect();
        let is_sum = is_one_of(at, &["ReduceL2", "ReduceSumSquare"]);
        if !(is_square && !summed.is_empty() || is_sum) {
            continue;
        }
        found.insert(at);
        let mut open = if is_sum { vec![at] } else { summed };
        while let Some(sum) = open.pop() {
            if !found.insert(sum) && sum != at {
                continue;
            }
            if is_one_of(sum, &["Pow", "Reciprocal", "Sqrt"]) {
                continue;
            }
            open.extend(
                reads(&body.nodes[sum]).into_iter().filter(|at| is_one_of(*at, &AFTER_SUMS)),
            );
        }
    }
    found
}
