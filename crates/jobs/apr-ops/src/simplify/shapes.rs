//! New shapes of inputs.

use std::collections::BTreeMap;

use apr_core::Escaped;
use apr_graph::{Body, Dim, Graph, TensorType, ValueOrigin, ValueType, check, infer};

use super::edit::bodies_mut;

/// An input of a model and its new shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedShape {
    /// Name of the input.
    pub input: String,
    /// Numbers, or names of sizes that the caller chooses.
    pub dims: Vec<Dim>,
}

impl NamedShape {
    /// Parses `NAME=1,3,224,224` or `NAME=batch,3,height,width`. `NAME=` is the shape of a scalar.
    ///
    /// # Errors
    /// A message if the text has another form.
    pub fn parse(text: &str) -> Result<Self, String> {
        let form = "expected NAME=1,3,224,224, with a number or a name for each dimension";
        let (input, dims) = text.rsplit_once('=').ok_or(form)?;
        if input.is_empty() {
            return Err(form.to_owned());
        }
        let dim = |text: &str| {
            let text = text.trim();
            if let Ok(size) = text.parse::<u64>() {
                return Ok(Dim::fixed(size));
            }
            let is_name = text.starts_with(|first: char| first.is_alphabetic() || first == '_')
                && text.chars().all(|each| each.is_alphanumeric() || "_.".contains(each));
            if is_name { Ok(Dim::symbol(text)) } else { Err(form.to_owned()) }
        };
        let dims = match dims.trim() {
            "" => Vec::new(),
            dims => dims.split(',').map(dim).collect::<Result<_, _>>()?,
        };
        Ok(Self { input: input.to_owned(), dims })
    }
}

/// Sets the shapes of inputs of a graph without function calls, and infers all other shapes.
///
/// A name that gets a number has that number in the other inputs too. Removes the shapes of this
/// graph's inputs from `asked`.
///
/// # Errors
/// A message if the shapes do not fit the graph.
pub(crate) fn set_shapes(graph: &mut Graph, asked: &mut Vec<NamedShape>) -> Result<(), String> {
    let errors_before = errors(&mut graph.clone()).len();
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    let mut set = Vec::new();
    for id in graph.body.inputs.clone() {
        let value = graph.body.value_mut(id);
        let Some(at) = asked.iter().position(|asked| asked.input == value.name) else { continue };
        let NamedShape { input, dims } = asked.remove(at);
        let name = Escaped::short(&input);
        if value.origin != ValueOrigin::Input {
            return Err(format!("the shape of '{name}' is that of the tensor in the file"));
        }
        let element = value.element();
        if let Some(shape) = value.shape() {
            if shape.len() != dims.len() {
                return Err(format!(
                    "the input '{name}' has {} dimensions, not {}",
                    shape.len(),
                    dims.len()
                ));
            }
            for (old, new) in shape.iter().zip(&dims) {
                if let ([symbol], Some(size)) = (&old.symbols()[..], new.size())
                    && *old == Dim::symbol(symbol)
                {
                    sizes.entry(symbol.to_string()).or_insert(size);
                }
            }
        }
        value.kind = ValueType::Tensor(TensorType { element, shape: Some(dims) });
        set.push(id);
    }
    if set.is_empty() {
        return Ok(());
    }

    for id in graph.body.inputs.clone() {
        let value = graph.body.value_mut(id);
        if set.contains(&id) || value.origin != ValueOrigin::Input {
            continue;
        }
        if let ValueType::Tensor(TensorType { shape: Some(shape), .. }) = &mut value.kind {
            for dim in shape {
                let size = |symbol: &str| sizes.get(symbol).copied();
                if let Some(size) = dim.value(&size) {
                    *dim = Dim::fixed(size);
                }
            }
        }
    }
    forget(&mut graph.body);
    let errors = errors(graph);
    match errors.first().filter(|_| errors.len() > errors_before) {
        Some(error) => Err(format!("with these shapes the graph is not valid: {error}")),
        None => Ok(()),
    }
}

/// Infers the types of a graph, and returns its errors.
fn errors(graph: &mut Graph) -> Vec<String> {
    let inferred = infer(graph).findings;
    let checked = check(graph);
    checked.errors().chain(inferred.errors()).map(ToString::to_string).collect()
}

/// Removes the sizes of values that nodes make, because they may follow from others now.
fn forget(body: &mut Body) {
    for value in &mut body.values {
        if let (ValueOrigin::Node(_), ValueType::Tensor(TensorType { shape: Some(shape), .. })) =
            (&value.origin, &mut value.kind)
        {
            shape.fill(Dim::Unknown);
        }
    }
    body.nodes.iter_mut().flat_map(bodies_mut).for_each(forget);
}
