//! From the messages of a model to a graph.

mod attributes;
mod bodies;
mod converter;
mod meaning;
mod small;
mod types;

use apr_core::Result;
use apr_graph::{Function, Graph};

use crate::proto;
use crate::reader::{OnnxReader, Scope};
use bodies::Frames;
use converter::Converter;

impl OnnxReader {
    /// Returns the computation graph of the model, or `None` if the file is a single tensor.
    ///
    /// Weights are referenced by the names of the checkpoint's tensors. Small integer tensors and
    /// the tensors of attributes are stored in the graph itself.
    ///
    /// The graph keeps values without a producer, names with two producers and unknown operators. A
    /// check of the graph reports them.
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

impl Converter<'_> {
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
            defaults.push(self.attribute(
                &proto::Node::default(),
                attribute,
                &scope,
                &mut frames,
            )?);
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
}
