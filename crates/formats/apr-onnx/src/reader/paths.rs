//! What tensors are called in the checkpoint, and in which order they come.

use apr_core::{Error, Result};

use crate::proto::{Attribute, Function, Graph, Model, Node, SparseTensor, Tensor};

/// Longest path of a graph inside others. Real ones have some hundred bytes; every tensor in the
/// graph repeats it.
const MAX_PREFIX: usize = 4096;

/// A tensor of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ModelTensor<'m> {
    /// Dense tensor.
    Dense(&'m Tensor),
    /// Sparse tensor.
    Sparse(&'m SparseTensor),
}

/// Owner of a tensor in the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// An initializer of the model's graph.
    Main,
    /// A `Constant` node of the model's graph makes it.
    MainConstant,
    /// An initializer of another graph.
    Inner,
    /// A `Constant` node of another graph makes it.
    InnerConstant,
    /// A setting of an operator.
    Setting,
    /// One of several tensors in a setting of an operator.
    List,
}

/// The graph or function that contains a node. Its path is part of the names of its tensors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scope {
    prefix: String,
}

impl Scope {
    /// Inside a function.
    pub(crate) fn function(function: &Function) -> Self {
        let Function { name, overload, .. } = function;
        Self {
            prefix: if overload.is_empty() {
                format!("{name}/")
            } else {
                format!("{name}:{overload}/")
            },
        }
    }

    /// Returns the scope of the graph in an attribute.
    ///
    /// `position` is its index if the attribute has several.
    ///
    /// # Errors
    /// E008 if the path is too long to be repeated.
    pub(crate) fn inner(
        &self,
        node: &Node,
        attribute: &Attribute,
        position: Option<usize>,
    ) -> Result<Self> {
        if self.prefix.len() + label(node).len() + attribute.name.len() > MAX_PREFIX {
            return Err(Error::memory(format!(
                "the path of a graph inside others is longer than {MAX_PREFIX} bytes"
            )));
        }
        Ok(Self { prefix: format!("{}/", self.of_attribute(node, attribute, position)) })
    }

    /// An initializer.
    pub(crate) fn initializer(&self, name: &str, position: usize) -> String {
        let Self { prefix } = self;
        if name.is_empty() {
            format!("{prefix}initializer.{position}")
        } else {
            format!("{prefix}{name}")
        }
    }

    /// Returns the name of a tensor in an attribute.
    ///
    /// For a `Constant` node, it is the name of the output.
    pub(crate) fn tensor(
        &self,
        node: &Node,
        attribute: &Attribute,
        position: Option<usize>,
    ) -> String {
        let is_constant = node.op_type == "Constant"
            && matches!(attribute.name.as_str(), "value" | "sparse_value");
        match node.outputs.first() {
            Some(output) if is_constant && !output.is_empty() => format!("{}{output}", self.prefix),
            _ => self.of_attribute(node, attribute, position),
        }
    }

    /// Returns the owner of a tensor in an attribute.
    fn owner(&self, node: &Node, attribute: &Attribute) -> Owner {
        let is_constant = node.op_type == "Constant"
            && matches!(attribute.name.as_str(), "value" | "sparse_value");
        match (is_constant, self.prefix.is_empty()) {
            (true, true) => Owner::MainConstant,
            (true, false) => Owner::InnerConstant,
            (false, _) => Owner::Setting,
        }
    }

    fn of_attribute(&self, node: &Node, attribute: &Attribute, position: Option<usize>) -> String {
        let (Self { prefix }, own, name) = (self, label(node), &attribute.name);
        match position {
            Some(position) => format!("{prefix}{own}/{name}.{position}"),
            None => format!("{prefix}{own}/{name}"),
        }
    }
}

/// Returns the label of a node: its name, the name of its first output, or else its operator.
pub(crate) fn label(node: &Node) -> &str {
    let output = || {
        node.outputs
            .iter()
            .find(|output| !output.is_empty())
            .map_or(node.op_type.as_str(), String::as_str)
    };
    if node.name.is_empty() { output() } else { &node.name }
}

/// Callback for each tensor with its name and owner.
pub(crate) type Take<'t, 'm> = &'t mut dyn FnMut(String, ModelTensor<'m>, Owner) -> Result<()>;

/// Calls `take` for each tensor of a model with its name.
pub(crate) fn tensors<'m>(model: &'m Model, take: Take<'_, 'm>) -> Result<()> {
    if let Some(graph) = &model.graph {
        in_graph(&Scope::default(), graph, take)?;
    }
    for function in &model.functions {
        in_nodes(&Scope::function(function), &function.nodes, take)?;
    }
    Ok(())
}

/// Calls `take` for each dense tensor, including the values and indices of sparse tensors.
pub(crate) fn each_tensor(
    model: &Model,
    take: &mut dyn FnMut(String, &Tensor) -> Result<()>,
) -> Result<()> {
    tensors(model, &mut |name, found, _| match found {
        ModelTensor::Dense(tensor) => take(name, tensor),
        ModelTensor::Sparse(tensor) => {
            take(name.clone(), &tensor.values)?;
            take(name, &tensor.indices)
        }
    })
}

fn in_graph<'m>(scope: &Scope, graph: &'m Graph, take: Take<'_, 'm>) -> Result<()> {
    let owner = if scope.prefix.is_empty() { Owner::Main } else { Owner::Inner };
    for (position, tensor) in graph.initializers.iter().enumerate() {
        take(scope.initializer(&tensor.name, position), ModelTensor::Dense(tensor), owner)?;
    }
    for (tensor, position) in graph.sparse_initializers.iter().zip(graph.initializers.len()..) {
        take(scope.initializer(&tensor.values.name, position), ModelTensor::Sparse(tensor), owner)?;
    }
    in_nodes(scope, &graph.nodes, take)
}

fn in_nodes<'m>(scope: &Scope, nodes: &'m [Node], take: Take<'_, 'm>) -> Result<()> {
    for node in nodes {
        for attribute in &node.attributes {
            in_attribute(scope, node, attribute, take)?;
        }
    }
    Ok(())
}

fn in_attribute<'m>(
    scope: &Scope,
    node: &Node,
    attribute: &'m Attribute,
    take: Take<'_, 'm>,
) -> Result<()> {
    let owner = scope.owner(node, attribute);
    if let Some(tensor) = &attribute.tensor {
        take(scope.tensor(node, attribute, None), ModelTensor::Dense(tensor), owner)?;
    }
    if let Some(tensor) = &attribute.sparse_tensor {
        take(scope.tensor(node, attribute, None), ModelTensor::Sparse(tensor), owner)?;
    }

    for (position, tensor) in attribute.tensors.iter().enumerate() {
        take(
            scope.tensor(node, attribute, Some(position)),
            ModelTensor::Dense(tensor),
            Owner::List,
        )?;
    }

    for (position, tensor) in attribute.sparse_tensors.iter().enumerate() {
        take(
            scope.tensor(node, attribute, Some(position)),
            ModelTensor::Sparse(tensor),
            Owner::List,
        )?;
    }

    // The reader takes at most 100 messages inside each other, so this ends.
    if let Some(graph) = &attribute.graph {
        in_graph(&scope.inner(node, attribute, None)?, graph, take)?;
    }

    for (position, graph) in attribute.graphs.iter().enumerate() {
        in_graph(&scope.inner(node, attribute, Some(position))?, graph, take)?;
    }

    Ok(())
}

/// Returns the paths of lists in attributes of ai.onnx.ml operators: trees, coefficients, words.
///
/// These models store their parameters in lists instead of tensors.
pub(crate) fn lists_of_learnt_models(model: &Model) -> Vec<String> {
    let nodes = model.graph.iter().flat_map(|graph| &graph.nodes);
    let learnt = nodes.filter(|node| node.domain == "ai.onnx.ml");
    let is_list = |attribute: &&Attribute| {
        let Attribute { floats, integers, texts, .. } = attribute;
        floats.len().max(integers.len()).max(texts.len()) > 0
    };
    let lists = learnt.flat_map(|node| {
        let lists = node.attributes.iter().filter(is_list);
        lists.map(|list| Scope::default().of_attribute(node, list, None))
    });
    lists.collect()
}
