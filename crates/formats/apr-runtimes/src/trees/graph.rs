//! What a model computes: trees as one operator of `ai.onnx.ml`, and the objective.

use apr_core::{CheckpointReader, DType, Error, Limits, Result};
use apr_graph::{
    AttributeValue, Dim, ElementType, Graph, GraphBuilder, Meaning, Op, ValueId, ValueType,
};
use serde_json::{Map, Value};

use crate::trees::numbers::{count, single, whole};
use crate::trees::objective::Transform;
use crate::trees::{lightgbm, xgboost};

/// The version of ONNX's operators, and of those of `ai.onnx.ml`.
const OPSET: i64 = 18;
const ML_OPSET: i64 = 3;
const ML: &str = "ai.onnx.ml";

/// Trees as the operator has them.
#[derive(Default)]
struct Forest {
    trees: Vec<i64>,
    nodes: Vec<i64>,
    features: Vec<i64>,
    /// The comparison of a node; empty for a leaf.
    modes: Vec<Vec<u8>>,
    values: Vec<f32>,
    yes: Vec<i64>,
    no: Vec<i64>,
    missing: Vec<i64>,
    leaf_trees: Vec<i64>,
    leaf_nodes: Vec<i64>,
    leaf_groups: Vec<i64>,
    leaf_values: Vec<f32>,
}

/// A model, as far as ONNX has it.
struct Model {
    forest: Forest,
    features: Option<u64>,
    groups: u64,
    base: Vec<f32>,
    /// Factor of the sums, for a mean of trees.
    factor: Option<f32>,
    transform: Transform,
}

/// A model, or what of it ONNX has no operator for.
type Made = Result<std::result::Result<Model, String>>;

/// Returns the graph of the XGBoost or LightGBM model that a checkpoint was imported from.
///
/// Returns `None` if the checkpoint has no such model. A model that ONNX has no operators for is
/// one node, whose name says what is missing.
///
/// # Errors
/// E002 for lists that contradict each other, E007 when reading fails, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let lists = Lists { reader, limits };
    let metadata = reader.metadata();
    let (domain, made) = if let Some(fields) = metadata.object(xgboost::FORMAT.id) {
        (xgboost::FORMAT.id, of_xgboost(&lists, fields)?)
    } else if let Some(fields) = metadata.object(lightgbm::FORMAT.id) {
        (lightgbm::FORMAT.id, of_lightgbm(&lists, fields)?)
    } else {
        return Ok(None);
    };
    let graph = match made {
        Ok(model) => written(model),
        Err(missing) => unknown(domain, &missing),
    };
    Ok(Some(vec![("model".to_owned(), graph)]))
}

/// Lists that a graph is made of; others describe the training.
const IN_GRAPH: [&str; 18] = [
    "trees/decision_type",
    "trees/default_left",
    "trees/groups",
    "trees/is_linear",
    "trees/leaf_sizes",
    "trees/leaf_value",
    "trees/leaves",
    "trees/left_child",
    "trees/left_children",
    "trees/nodes",
    "trees/right_child",
    "trees/right_children",
    "trees/split_conditions",
    "trees/split_feature",
    "trees/split_indices",
    "trees/split_type",
    "trees/threshold",
    "weight_drop",
];

/// Returns `true` for a list whose numbers are in the graph.
///
/// ```
/// assert!(apr_runtimes::trees::is_in_graph("trees/threshold"));
/// assert!(!apr_runtimes::trees::is_in_graph("trees/sum_hessian"));
/// ```
#[must_use]
pub fn is_in_graph(tensor: &str) -> bool {
    IN_GRAPH.contains(&tensor)
}

/// The tensors of a checkpoint.
struct Lists<'r> {
    reader: &'r dyn CheckpointReader,
    limits: &'r Limits,
}

impl Lists<'_> {
    /// Returns the numbers of a tensor, or none if the model does not have it.
    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let tensors = self.reader.tensors();
        let Some(at) = tensors.iter().position(|info| info.name == name) else {
            return Ok(Vec::new());
        };
        let len = tensors[at].byte_len()?;
        self.limits.check_index(len)?;
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        self.reader.read_tensor(at, 0, &mut bytes)?;
        let dtype = tensors[at].dtype;
        let numbers = match dtype {
            DType::U8 | DType::BOOL => bytes.iter().map(|byte| f64::from(*byte)).collect(),
            DType::I32 => words(&bytes).map(|word| f64::from(i32::from_le_bytes(word))).collect(),
            DType::I64 => words(&bytes).map(|word| i64::from_le_bytes(word) as f64).collect(),
            DType::F32 => words(&bytes).map(|word| f64::from(f32::from_le_bytes(word))).collect(),
            DType::F64 => words(&bytes).map(f64::from_le_bytes).collect(),
            _ => {
                let message = format!("the list has elements of type {dtype}, which no trees have");
                return Err(Error::corrupt(message).for_tensor(name));
            }
        };
        Ok(numbers)
    }

    fn ints(&self, name: &str) -> Result<Vec<i64>> {
        let whole =
            |number| whole(number).ok_or_else(|| contradictory("a number of a node is not whole"));
        self.numbers(name)?.into_iter().map(whole).collect()
    }
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

/// An entry of the metadata at a path of keys, as a text or a number.
fn entry<'m>(fields: &'m Map<String, Value>, path: &[&str]) -> Option<&'m Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(fields.get(*first)?, |value, key| value.get(key))
}

fn number(value: Option<&Value>) -> Option<f64> {
    match value? {
        Value::String(text) => text.trim_ascii().parse().ok(),
        value => value.as_f64(),
    }
}

fn contradictory(what: &str) -> Error {
    Error::corrupt(format!("the lists of the trees contradict each other: {what}"))
}

fn of_xgboost(lists: &Lists<'_>, fields: &Map<String, Value>) -> Made {
    let learner = |path: &[&str]| entry(fields, &[&["learner"], path].concat());
    let booster = learner(&["gradient_booster", "name"]).and_then(Value::as_str);
    let is_dart = match booster {
        Some("gbtree") | None => false,
        Some("dart") => true,
        Some(other) => return Ok(Err(format!("booster {other}"))),
    };
    let objective = learner(&["objective", "name"]).and_then(Value::as_str).unwrap_or_default();
    let Some(transform) = Transform::of_xgboost(objective) else {
        return Ok(Err(format!("objective {objective}")));
    };
    let param = |name: &str| number(learner(&["learner_model_param", name])).unwrap_or_default();
    let targets = param("num_target").max(1.0);
    let groups = count(param("num_class").max(1.0) * targets);
    let groups = groups.ok_or_else(|| contradictory("the number of classes is none"))?;
    let counts = lists.ints("trees/nodes")?;
    if lists.numbers("trees/leaf_sizes")?.iter().any(|size| *size > 1.0) {
        return Ok(Err("several targets at a leaf".to_owned()));
    }
    if lists.ints("trees/split_type")?.iter().any(|kind| *kind != 0) {
        return Ok(Err("splits by categories".to_owned()));
    }
    let (left, right) = (lists.ints("trees/left_children")?, lists.ints("trees/right_children")?);
    let (features, values) =
        (lists.ints("trees/split_indices")?, lists.numbers("trees/split_conditions")?);
    let missing = lists.ints("trees/default_left")?;
    let tree_groups = lists.ints("trees/groups")?;
    let dropped = if is_dart { lists.numbers("weight_drop")? } else { Vec::new() };
    let all =
        counts.iter().try_fold(0_i64, |all, count| all.checked_add(*count).filter(|_| *count > 0));
    let all = all.and_then(|all| usize::try_from(all).ok());
    let lens = [left.len(), right.len(), features.len(), values.len(), missing.len()];
    if lens.iter().any(|len| Some(*len) != all) || tree_groups.len() != counts.len() {
        return Err(contradictory("they have different lengths"));
    }
    if is_dart && dropped.len() != counts.len() {
        return Err(contradictory("there is a weight for each tree of a dart"));
    }

    let mut forest = Forest::default();
    let mut start = 0;
    for (tree, count) in counts.iter().enumerate() {
        let group = tree_groups[tree];
        if group < 0 || group as u64 >= groups {
            return Err(contradictory("a tree is of a group that the model does not have"));
        }
        for node in 0..*count {
            let at = start + usize::try_from(node).unwrap_or_default();
            let is_leaf = left[at] < 0;
            if !is_leaf && (left[at] >= *count || !(0..*count).contains(&right[at])) {
                return Err(contradictory("a node has a child that its tree does not have"));
            }
            let mode = if is_leaf { "LEAF" } else { "BRANCH_LT" };
            let children = if is_leaf { (0, 0) } else { (left[at], right[at]) };
            let feature = if is_leaf { 0 } else { features[at] };
            let value = if is_leaf { 0.0 } else { single(values[at]) };
            let is_left = !is_leaf && missing[at] != 0;
            forest.node((tree as i64, node), feature, (mode, value), children, is_left);
            if is_leaf {
                let factor = single(dropped.get(tree).copied().unwrap_or(1.0));
                forest.leaf((tree as i64, node), group, single(values[at]) * factor);
            }
        }
        start += usize::try_from(*count).unwrap_or_default();
    }
    let base = base_scores(learner(&["learner_model_param", "base_score"]), groups)
        .ok_or_else(|| contradictory("the base score is not a number for each group"))?;
    let base = base.into_iter().map(|base| Transform::margin(objective, base)).collect();
    let features = count(param("num_feature")).filter(|count| *count > 0);
    Ok(Ok(Model { forest, features, groups, base, factor: None, transform }))
}

/// Base scores: one, or one for each group; since version 3.1 a list.
fn base_scores(value: Option<&Value>, groups: u64) -> Option<Vec<f32>> {
    let groups = usize::try_from(groups).ok().filter(|groups| *groups <= 1 << 20)?;
    let text = match value {
        None => "0.5",
        Some(value) => value.as_str()?,
    };
    let list = text.trim_ascii().trim_start_matches('[').trim_end_matches(']').split(',');
    let scores: Option<Vec<f32>> = list.map(|one| one.trim_ascii().parse().ok()).collect();
    match scores?.as_slice() {
        [one] => Some(vec![*one; groups]),
        several if several.len() == groups => Some(several.to_vec()),
        _ => None,
    }
}

fn of_lightgbm(lists: &Lists<'_>, fields: &Map<String, Value>) -> Made {
    /// Bits of the type of a decision.
    const CATEGORICAL: i64 = 1;
    const DEFAULT_LEFT: i64 = 2;
    /// Values that count as missing, in the bits above.
    const ZERO: i64 = 1;
    const NAN: i64 = 2;

    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let objective = text("objective").unwrap_or_default();
    let Some(transform) = Transform::of_lightgbm(objective) else {
        return Ok(Err(format!("objective {objective}")));
    };
    let groups = number(fields.get("num_tree_per_iteration")).and_then(count).unwrap_or(1).max(1);
    if lists.ints("trees/is_linear")?.iter().any(|one| *one != 0) {
        return Ok(Err("linear leaves".to_owned()));
    }
    let leaves = lists.ints("trees/leaves")?;
    let kinds = lists.ints("trees/decision_type")?;
    let (left, right) = (lists.ints("trees/left_child")?, lists.ints("trees/right_child")?);
    let features = lists.ints("trees/split_feature")?;
    let (thresholds, values) =
        (lists.numbers("trees/threshold")?, lists.numbers("trees/leaf_value")?);
    if kinds.iter().any(|kind| kind & CATEGORICAL != 0) {
        return Ok(Err("splits by categories".to_owned()));
    }
    let all =
        leaves.iter().try_fold(0_i64, |all, count| all.checked_add(*count).filter(|_| *count > 0));
    let all = all.and_then(|all| usize::try_from(all).ok());
    let inner = all.map(|all| all - leaves.len());
    let lens = [kinds.len(), left.len(), right.len(), features.len(), thresholds.len()];
    if lens.iter().any(|len| Some(*len) != inner) || Some(values.len()) != all {
        return Err(contradictory("they have different lengths"));
    }

    let mut forest = Forest::default();
    let (mut start, mut leaf_start) = (0, 0);
    for (tree, leaf_count) in leaves.iter().enumerate() {
        let (id, inner) = (tree as i64, leaf_count - 1);
        // Leaves follow the other nodes; a child that is a leaf is negative in the file.
        let child = |child: i64| {
            let node = if child < 0 { inner + !child } else { child };
            let is_there = if child < 0 { !child < *leaf_count } else { child < inner };
            match is_there {
                true => Ok(node),
                false => Err(contradictory("a node has a child that its tree does not have")),
            }
        };
        for node in 0..inner {
            let at = start + usize::try_from(node).unwrap_or_default();
            let children = (child(left[at])?, child(right[at])?);
            let is_left = kinds[at] & DEFAULT_LEFT != 0;
            // Without a value of its own, NaN is 0.
            let zero_is_left = thresholds[at] >= 0.0;
            let missing_is_left = match kinds[at] >> 2 & 3 {
                NAN => is_left,
                ZERO if is_left != zero_is_left => {
                    return Ok(Err("zeros that stand for missing values".to_owned()));
                }
                _ => zero_is_left,
            };
            let value = below(thresholds[at]);
            forest.node((id, node), features[at], ("BRANCH_LEQ", value), children, missing_is_left);
        }
        for leaf in 0..*leaf_count {
            let value = values[leaf_start + usize::try_from(leaf).unwrap_or_default()];
            let value = single(value);
            forest.node((id, inner + leaf), 0, ("LEAF", 0.0), (0, 0), false);
            forest.leaf((id, inner + leaf), id % groups.cast_signed(), value);
        }
        start += usize::try_from(inner).unwrap_or_default();
        leaf_start += usize::try_from(*leaf_count).unwrap_or_default();
    }
    let is_average = fields.get("average_output") == Some(&Value::Bool(true));
    if groups > leaves.len().max(1) as u64 {
        return Err(contradictory("there are fewer trees than a round has"));
    }
    let rounds = leaves.len() as u64 / groups;
    let factor = (is_average && rounds > 0).then(|| 1.0 / rounds as f32);
    let features = number(fields.get("max_feature_idx")).and_then(count).map(|last| last + 1);
    Ok(Ok(Model { forest, features, groups, base: Vec::new(), factor, transform }))
}

/// The largest number in single precision that is not above a number: it decides alike.
fn below(number: f64) -> f32 {
    let near = single(number);
    if f64::from(near) > number { near.next_down() } else { near }
}

impl Forest {
    fn node(
        &mut self,
        (tree, node): (i64, i64),
        feature: i64,
        (mode, value): (&str, f32),
        (yes, no): (i64, i64),
        missing_is_yes: bool,
    ) {
        self.trees.push(tree);
        self.nodes.push(node);
        self.features.push(feature);
        self.modes.push(mode.as_bytes().to_vec());
        self.values.push(value);
        self.yes.push(yes);
        self.no.push(no);
        self.missing.push(missing_is_yes.into());
    }

    fn leaf(&mut self, (tree, node): (i64, i64), group: i64, value: f32) {
        self.leaf_trees.push(tree);
        self.leaf_nodes.push(node);
        self.leaf_groups.push(group);
        self.leaf_values.push(value);
    }
}

fn input(graph: &mut GraphBuilder, features: Option<u64>) -> ValueId {
    let width = features.map_or(Dim::symbol("features"), Dim::fixed);
    let kind = ValueType::tensor(ElementType::F32, [Dim::symbol("batch"), width]);
    graph.body().input_of("input", kind, Meaning::Unknown)
}

fn written(model: Model) -> Graph {
    let mut graph = GraphBuilder::new(OPSET);
    graph.opset(ML, ML_OPSET);
    let x = input(&mut graph, model.features);
    let body = graph.body();
    let Forest { trees, nodes, features, modes, values, yes, no, missing, .. } = model.forest;
    let Forest { leaf_trees, leaf_nodes, leaf_groups, leaf_values, .. } = model.forest;
    let node = body
        .call(&Op::new(ML, "TreeEnsembleRegressor"), [x])
        .attribute("n_targets", model.groups.cast_signed())
        .attribute("aggregate_function", "SUM")
        .attribute("post_transform", "NONE")
        .attribute("nodes_treeids", trees)
        .attribute("nodes_nodeids", nodes)
        .attribute("nodes_featureids", features)
        .attribute("nodes_modes", AttributeValue::Texts(modes))
        .attribute("nodes_values", AttributeValue::Floats(values))
        .attribute("nodes_truenodeids", yes)
        .attribute("nodes_falsenodeids", no)
        .attribute("nodes_missing_value_tracks_true", missing)
        .attribute("target_treeids", leaf_trees)
        .attribute("target_nodeids", leaf_nodes)
        .attribute("target_ids", leaf_groups)
        .attribute("target_weights", AttributeValue::Floats(leaf_values));
    let node = match model.base.is_empty() {
        true => node,
        false => node.attribute("base_values", AttributeValue::Floats(model.base)),
    };
    let sums = node.output("sums");
    let mean = match model.factor {
        Some(factor) => {
            let factor = body.float(factor);
            body.op("Mul", [sums, factor]).output("mean")
        }
        None => sums,
    };
    let made = model.transform.write(body, mean);
    body.output("margin", sums, Meaning::Unknown);
    body.output("prediction", made, Meaning::Unknown);
    graph.finish()
}

/// A graph of one node, of the program's own domain.
fn unknown(domain: &str, missing: &str) -> Graph {
    let mut graph = GraphBuilder::new(OPSET);
    graph.opset(domain, 1);
    let x = input(&mut graph, None);
    let body = graph.body();
    let made = body.call(&Op::new(domain, missing), [x]).output("trees");
    body.output("prediction", made, Meaning::Unknown);
    graph.finish()
}
