//! From the messages of a model to a graph.

mod attributes;
mod bodies;
mod meaning;
mod small;
mod types;

use std::collections::HashSet;
use std::sync::Arc;

use apr_core::Result;
use apr_core::protobuf::{Span, Walker};
use apr_graph::{Function, Graph, Name, Op, Opset};

use crate::proto;
use crate::reader::{OnnxReader, Scope};
use bodies::Frames;
use small::SmallTensors;

impl OnnxReader {
    /// What the model computes. Weights are those of the checkpoint, by name; small tensors of integers, and those of
    /// attributes, are in the graph itself. `None` where the file is a tensor alone.
    ///
    /// Values that nothing makes, names that are made twice and operators that nobody knows are kept: a check of the
    /// graph reports them.
    ///
    /// # Errors
    /// E007 when reading fails, E008 over the limits.
    pub fn graph(&self) -> Result<Option<Graph>> {
        let Some(model) = self.model() else { return Ok(None) };
        let mut converter = Converter::new(self);
        let graph = converter.model(model);
        graph.map(Some).map_err(|error| self.in_own_file(error))
    }
}

/// What the parts of a conversion share.
pub(crate) struct Converter<'a> {
    walker: Walker<'a>,
    small: SmallTensors<'a>,
    /// Operators, domains, attributes: few names, used by many nodes.
    names: HashSet<Name>,
}

impl<'a> Converter<'a> {
    fn new(reader: &'a OnnxReader) -> Self {
        let walker = Walker::new(&reader.sources()[0], reader.limits());
        Self { walker, small: SmallTensors::new(reader), names: HashSet::new() }
    }

    fn model(&mut self, model: &proto::Model) -> Result<Graph> {
        let mut graph = Graph { opsets: self.opsets(&model.opsets), ..Graph::default() };
        for function in &model.functions {
            graph.functions.push(self.function(function)?);
        }
        if let Some(main) = &model.graph {
            let mut frames = Frames::default();
            graph.body = self.body(main, &Scope::default(), &mut frames)?;
            meaning::find(&mut graph.body);
        }
        Ok(graph)
    }

    fn function(&mut self, function: &proto::Function) -> Result<Function> {
        let scope = Scope::function(function);
        let mut defaults = Vec::new();
        for attribute in &function.defaults {
            let mut frames = Frames::default();
            defaults.push(self.attribute(&proto::Node::default(), attribute, &scope, &mut frames)?);
        }
        Ok(Function {
            op: self.op(&function.domain, &function.name, &function.overload),
            opsets: self.opsets(&function.opsets),
            required: function.attributes.iter().map(|name| self.name(name)).collect(),
            defaults,
            body: self.function_body(function, &scope)?,
            doc: self.doc(function.doc)?,
        })
    }

    fn opsets(&mut self, opsets: &[proto::OperatorSet]) -> Vec<Opset> {
        let own = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_owned() };
        opsets.iter().map(|set| Opset { domain: self.name(&own(&set.domain)), version: set.version }).collect()
    }

    fn op(&mut self, domain: &str, name: &str, overload: &str) -> Op {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        Op { domain: self.name(domain), name: self.name(name), overload: self.name(overload) }
    }

    /// The name, once in memory however many use it.
    fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return Arc::clone(name);
        }
        let name: Name = text.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    fn doc(&mut self, span: Option<Span>) -> Result<String> {
        match span {
            Some(span) => Ok(String::from_utf8_lossy(&self.walker.bytes(span)?).into_owned()),
            None => Ok(String::new()),
        }
    }
}
