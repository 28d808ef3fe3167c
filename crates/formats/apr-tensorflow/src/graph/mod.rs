//! What a model computes: its operators as nodes of the domain `tensorflow`.
//!
//! Constants are weights, or where no tensor of the checkpoint has them, constants of the graph. A
//! variable's node reads the weight that it is. Functions of the library are functions; a node that
//! calls one (`PartitionedCall`) is a call. Control inputs are the attribute `control_inputs`. The
//! way back of a loop of TensorFlow 1, from `NextIteration` to `Merge`, is an attribute too, so
//! that nodes have an order.

mod attributes;
mod body;
mod nodes;
mod restored;

use std::collections::{BTreeMap, HashMap, HashSet};

use apr_core::json::entries;
use apr_core::protobuf::{Message, Walker};
use apr_core::{ByteSource, CheckpointReader, Error, Limits, Result};
use apr_graph::{Function, Graph, Op, Opset};
use apr_skeleton::Skeleton;
use serde_json::Value;

use crate::saved_model::SavedModel;
use crate::{GRAPH, METADATA, SAVED_MODEL};
use body::Builder;
use nodes::{FunctionDef, NodeDef};

/// The domain of the operators.
pub const DOMAIN: &str = "tensorflow";

/// Version of the domain. Files do not declare a meaningful one.
const VERSION: i64 = 1;

/// The operators that are variables.
const VARIABLES: [&str; 4] = ["VarHandleOp", "Variable", "VariableV2", "AutoReloadVariable"];

/// Returns the graph of the TensorFlow model that a checkpoint was imported from.
///
/// Returns `None` if the checkpoint has no TensorFlow graph or SavedModel. Weights have the names
/// of that model's tensors.
///
/// # Errors
/// E002 for a damaged companion or file, E007 when reading fails, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let formats = [GRAPH.id, SAVED_MODEL.id];
    let Some(skeleton) = Skeleton::of(reader, &formats, limits)? else { return Ok(None) };
    let is_saved = skeleton.format() == SAVED_MODEL.id;
    let graph = read(skeleton.source(), is_saved, reader, &skeleton.limits(limits));
    let graph = graph.map_err(|error| error.in_file(skeleton.file()))?;
    Ok(Some(vec![("model".to_owned(), graph)]))
}

fn read(
    source: &dyn ByteSource,
    is_saved: bool,
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Graph> {
    let mut walker = Walker::new(source, limits);
    let (message, signatures) = if is_saved {
        let (message, fields) = SavedModel::graph_message(&mut walker)?;
        (message, ends(&fields))
    } else {
        (walker.message(), Vec::new())
    };
    let (nodes, functions) = definitions(&mut walker, message)?;
    let mut weights = Weights::new(reader);
    weights.restored = restored::restored(&mut walker, &nodes, &functions)?;
    let names: HashSet<&str> = functions.iter().map(|function| function.name.as_str()).collect();
    let mut graph = Graph {
        opsets: vec![Opset { domain: DOMAIN.into(), version: VERSION }],
        ..Graph::default()
    };
    for function in &functions {
        let prefix = format!("{}/", function.name);
        let builder = Builder::new(&mut walker, &weights, &names, limits, &prefix);
        graph.functions.push(Function {
            op: Op::new(DOMAIN, &function.name),
            opsets: Vec::new(),
            required: Vec::new(),
            defaults: Vec::new(),
            body: builder.function(function)?,
            doc: String::new(),
        });
    }
    graph.body =
        Builder::new(&mut walker, &weights, &names, limits, "").main(&nodes, &signatures)?;
    Ok(graph)
}

/// Names of the values that the signatures of a SavedModel return.
fn ends(fields: &serde_json::Map<String, Value>) -> Vec<String> {
    let signatures =
        fields.get("signatures").and_then(Value::as_object).into_iter().flat_map(entries);
    let outputs = signatures
        .filter(|(name, _)| !name.starts_with("__"))
        .filter_map(|(_, entry)| entry.get("outputs").and_then(Value::as_object));
    let names = outputs.flat_map(entries);
    names.filter_map(|(_, info)| info.get("name")?.as_str().map(str::to_owned)).collect()
}

/// The nodes of a `GraphDef`, and the functions of its library.
fn definitions(
    walker: &mut Walker<'_>,
    mut message: Message,
) -> Result<(Vec<NodeDef>, Vec<FunctionDef>)> {
    let (mut nodes, mut functions) = (Vec::new(), Vec::new());
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => nodes.push(NodeDef::read(walker, field.message()?)?),
            2 => {
                let mut library = field.message()?;
                while let Some(field) = library.next(walker)? {
                    if field.number == 1 {
                        functions.push(FunctionDef::read(walker, field.message()?)?);
                    }
                }
            }
            _ => {}
        }
    }
    if nodes.is_empty() && functions.is_empty() {
        return Err(Error::corrupt("the graph has no nodes"));
    }
    Ok((nodes, functions))
}

/// The constants and variables that are tensors of the checkpoint.
struct Weights {
    /// Tensors by the nodes of their variables, if a function defines how they are restored.
    restored: HashMap<String, String>,
    /// Names that variables have in the program, and their tensors; `None` for the name of several.
    variables: BTreeMap<String, Option<String>>,
    /// Names of the checkpoint's tensors.
    tensors: HashSet<String>,
}

impl Weights {
    fn new(reader: &dyn CheckpointReader) -> Self {
        let names = reader.metadata().object(METADATA).and_then(|own| own.get("full_names"));
        let names = names.and_then(Value::as_object).into_iter().flatten();
        let mut variables: BTreeMap<String, Option<String>> = BTreeMap::new();
        for (key, name) in names {
            let Some(name) = name.as_str() else { continue };
            let entry = variables.entry(name.to_owned());
            entry.and_modify(|several| *several = None).or_insert(Some(key.clone()));
        }
        Self {
            restored: HashMap::new(),
            variables,
            tensors: reader.tensors().iter().map(|info| info.name.clone()).collect(),
        }
    }

    /// The tensor that a variable of a name is.
    fn variable(&self, name: &str) -> Option<&str> {
        match self.variables.get(name) {
            Some(key) => key.as_deref(),
            None => self.tensors.get(name).map(String::as_str),
        }
    }

    /// The tensor that is restored to the variable of a node.
    fn restored(&self, node: &str) -> Option<&str> {
        let key = self.restored.get(node)?;
        self.tensors.get(key).map(String::as_str)
    }
}

/// Positions of nodes by their names; of several with one name the first counts.
fn positions(nodes: &[NodeDef]) -> HashMap<&str, usize> {
    let mut positions = HashMap::with_capacity(nodes.len());
    for (position, node) in nodes.iter().enumerate() {
        positions.entry(node.name.as_str()).or_insert(position);
    }
    positions
}
