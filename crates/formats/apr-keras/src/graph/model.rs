//! Models as bodies.

use std::collections::{BTreeMap, HashMap};

use apr_core::{CheckpointReader, Error, Escaped, Limits, Result, TensorInfo, UniqueNames};
use apr_graph::{
    Attribute, AttributeValue, Body, Dim, ElementType, Function, Graph, Node, Op, ValueId,
    ValueOrigin, ValueType, WeightRef,
};
use serde_json::Value;

use super::config::{self, Call, TensorRef};
use super::{ARGUMENTS, DOMAIN};

/// Models in each other, at most.
const MAX_DEPTH: usize = 16;

/// Memory charged for a call of a layer in bytes, besides its references.
const EACH: u64 = 256;

/// Makes the graph of a configuration.
pub(super) struct Builder<'r> {
    tensors: &'r [TensorInfo],
    /// Positions of tensors by the layer that their names begin with.
    by_layer: BTreeMap<&'r str, Vec<usize>>,
    functions: Vec<Function>,
    /// The weights that each function is called with, behind its other inputs.
    parameters: Vec<Vec<(String, ValueType)>>,
    /// Bytes that may still be kept.
    budget: u64,
}

/// A body that is being made.
#[derive(Default)]
struct Frame {
    body: Body,
    /// Values by the calls that make them.
    values: HashMap<TensorRef, ValueId>,
    weights: HashMap<String, ValueId>,
    /// The weights that are the function's parameters; `None` in the main body.
    parameters: Option<Vec<(String, ValueType)>>,
    names: UniqueNames,
}

impl<'r> Builder<'r> {
    pub(super) fn new(reader: &'r dyn CheckpointReader, limits: &Limits) -> Self {
        let tensors = reader.tensors();
        let mut by_layer: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (position, info) in tensors.iter().enumerate() {
            for (end, _) in info.name.match_indices('/').take(MAX_DEPTH) {
                by_layer.entry(&info.name[..end]).or_default().push(position);
            }
        }
        Self {
            tensors,
            by_layer,
            functions: Vec::new(),
            parameters: Vec::new(),
            budget: limits.max_index,
        }
    }

    /// The graph of a model.
    ///
    /// # Errors
    /// E002 for a configuration that contradicts itself, E008 over the limits.
    pub(super) fn graph(mut self, config: &Value) -> Result<Graph> {
        let (body, _) = self.model(config, "", 0)?;
        Ok(Graph { opsets: Vec::new(), functions: self.functions, body })
    }

    fn keep(&mut self, bytes: u64) -> Result<()> {
        self.budget = self.budget.checked_sub(bytes).ok_or_else(|| {
            Error::memory("the graph of the configuration exceeds the limit of the index")
        })?;
        Ok(())
    }

    /// Returns the body of a model, and the weights that a call passes if the model is a function.
    fn model(
        &mut self,
        config: &Value,
        prefix: &str,
        depth: usize,
    ) -> Result<(Body, Vec<(String, ValueType)>)> {
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} models are in each other");
            return Err(Error::corrupt(message));
        }
        let layers = config::layers(config)
            .ok_or_else(|| Error::corrupt("a model's configuration has no list of layers"))?;
        let parameters = (depth > 0).then(Vec::new);
        let mut frame = Frame { parameters, ..Frame::default() };
        config::name(config).clone_into(&mut frame.body.name);
        if config::is_sequential(config) {
            self.sequence(config, layers, prefix, depth, &mut frame)?;
        } else {
            self.network(config, layers, prefix, depth, &mut frame)?;
        }
        frame.body.sort_nodes();
        Ok((frame.body, frame.parameters.unwrap_or_default()))
    }

    /// Layers, each of which reads what the one before makes.
    fn sequence(
        &mut self,
        config: &Value,
        layers: &[Value],
        prefix: &str,
        depth: usize,
        frame: &mut Frame,
    ) -> Result<()> {
        let is_input = |layer: &Value| config::class(layer) == "InputLayer";
        let first = layers.first();
        let kind = first.map(config::input_type).unwrap_or_default();
        let name = first.filter(|layer| is_input(layer)).map_or("input", config::name);
        let mut last = frame.input(name, kind);
        let own = config.get("config");
        let built = own.and_then(|own| own.get("build_input_shape"));
        if let Some(sizes) = built.and_then(Value::as_array)
            && frame.body.value(last).shape().is_none()
            && sizes.len() <= apr_graph::MAX_RANK
        {
            let dims = sizes.iter().map(|size| size.as_u64().map_or(Dim::Unknown, Dim::fixed));
            frame.body.value_mut(last).kind = ValueType::tensor(ElementType::F32, dims);
        }
        for layer in layers.iter().filter(|layer| !is_input(layer)) {
            let value = frame.declare(config::name(layer), ValueType::Unknown);
            self.node(layer, vec![Some(last)], vec![Some(value)], prefix, depth, frame)?;
            last = value;
        }
        frame.body.outputs.push(last);
        Ok(())
    }

    /// Layers and the calls of them.
    fn network(
        &mut self,
        config: &Value,
        layers: &[Value],
        prefix: &str,
        depth: usize,
        frame: &mut Frame,
    ) -> Result<()> {
        let own = config.get("config").unwrap_or(&Value::Null);
        let ends = |key: &str| {
            let mut found = Vec::new();
            own.get(key).iter().for_each(|value| config::references(value, "", &mut found));
            found.into_iter().map(|end| end.tensor).collect::<Vec<_>>()
        };
        let outputs = ends("output_layers");
        let calls: Vec<_> = layers.iter().map(config::calls).collect();
        // What calls make comes first: the order of the layers need not be that of the calls.
        let mut wanted: BTreeMap<TensorRef, ValueType> = BTreeMap::new();
        for read in calls.iter().flatten().flat_map(|call| &call.reads) {
            self.keep(EACH + read.tensor.layer.len() as u64)?;
            let entry = wanted.entry(read.tensor.clone()).or_default();
            if let Some(kind) = &read.kind {
                entry.clone_from(kind);
            }
        }
        for output in &outputs {
            wanted.entry(output.clone()).or_default();
        }

        for input in ends("input_layers") {
            let layer = layers.iter().find(|layer| config::name(layer) == input.layer);
            let layer = layer.ok_or_else(|| missing(&input))?;
            let value = frame.input(&input.layer, config::input_type(layer));
            frame.values.insert(input, value);
        }
        // Nodes come once all values are there.
        let none = Call::default();
        let mut nodes = Vec::new();
        for (layer, calls) in layers.iter().zip(&calls) {
            let name = config::name(layer);
            for call in 0..calls.len().max(1) {
                self.keep(EACH)?;
                let first = TensorRef { layer: name.to_owned(), call: call as u64, output: 0 };
                if frame.values.contains_key(&first) {
                    continue;
                }
                if config::class(layer) == "InputLayer" {
                    let value = frame.input(name, config::input_type(layer));
                    frame.values.insert(first, value);
                    continue;
                }
                let last = TensorRef { output: u64::MAX, ..first.clone() };
                let others = wanted.range(&first..=&last).map(|(other, _)| other);
                let others = others.filter(|other| other.output > 0).cloned();
                let made: Vec<TensorRef> = [first.clone()].into_iter().chain(others).collect();
                let mut values = Vec::with_capacity(made.len());
                for reference in made {
                    let kind = wanted.get(&reference).cloned().unwrap_or_default();
                    let value = frame.declare(name, kind);
                    values.push(Some(value));
                    frame.values.insert(reference, value);
                }
                nodes.push((layer, calls.get(call).unwrap_or(&none), values));
            }
        }
        for (layer, call, values) in nodes {
            let is_model = config::is_model(layer);
            let reads = call.reads.iter();
            // A model within finds the masks of its inputs with them.
            let reads = reads.filter(|read| !(is_model && config::is_mask(read, layers)));
            let inputs = reads.map(|read| frame.find(&read.tensor).map(Some));
            let inputs = inputs.collect::<Result<_>>()?;
            self.node(layer, inputs, values, prefix, depth, frame)?;
            if !is_model {
                frame.set_arguments(call);
            }
        }
        for output in &outputs {
            let value = frame.find(output)?;
            frame.body.outputs.push(value);
        }
        Ok(())
    }

    /// Writes the call of a layer, or of a model among the layers.
    fn node(
        &mut self,
        layer: &Value,
        mut inputs: Vec<Option<ValueId>>,
        outputs: Vec<Option<ValueId>>,
        prefix: &str,
        depth: usize,
        frame: &mut Frame,
    ) -> Result<()> {
        self.keep(EACH)?;
        let layer_name = config::name(layer);
        let within = format!("{prefix}{layer_name}/");
        let (op, attributes) = if config::is_model(layer) {
            let (op, parameters) = self.function(layer, &within, depth)?;
            let weights = parameters.into_iter().map(|(name, kind)| frame.weight(&name, kind));
            inputs.extend(weights.map(Some));
            (op, Vec::new())
        } else {
            inputs.extend(self.weights(layer_name, prefix, frame)?.into_iter().map(Some));
            (Op::new(DOMAIN, config::class(layer)), config::attributes(layer))
        };
        let first = outputs.iter().flatten().next();
        let name = first.map_or(layer_name, |value| &frame.body.value(*value).name).to_owned();
        let doc = String::new();
        frame.body.add_node(Node { name, op, inputs, outputs, attributes, doc });
        Ok(())
    }

    /// The function that a model among the layers is; one for all of its calls.
    fn function(
        &mut self,
        model: &Value,
        prefix: &str,
        depth: usize,
    ) -> Result<(Op, Vec<(String, ValueType)>)> {
        let op = Op::new(DOMAIN, prefix.trim_end_matches('/'));
        if let Some(known) = self.functions.iter().position(|function| function.op == op) {
            return Ok((op, self.parameters[known].clone()));
        }
        let (body, parameters) = self.model(model, prefix, depth + 1)?;
        self.functions.push(Function {
            op: op.clone(),
            opsets: Vec::new(),
            required: Vec::new(),
            defaults: Vec::new(),
            body,
            doc: String::new(),
        });
        self.parameters.push(parameters.clone());
        Ok((op, parameters))
    }

    /// Adds the variables of a layer.
    ///
    /// In nested models, their names may start with the model's name.
    fn weights(&mut self, layer: &str, prefix: &str, frame: &mut Frame) -> Result<Vec<ValueId>> {
        let whole = format!("{prefix}{layer}");
        let own = self.by_layer.get(whole.as_str()).or_else(|| self.by_layer.get(layer));
        let own = own.cloned().unwrap_or_default();
        let mut values = Vec::with_capacity(own.len());
        for position in own {
            self.keep(EACH)?;
            let TensorInfo { name, dtype, shape } = &self.tensors[position];
            let kind = match ElementType::from_dtype(*dtype) {
                Some(element) => {
                    ValueType::tensor(element, shape.dims().iter().copied().map(Dim::fixed))
                }
                None => ValueType::Unknown,
            };
            values.push(frame.weight(name, kind));
        }
        Ok(values)
    }
}

impl Frame {
    fn input(&mut self, name: &str, kind: ValueType) -> ValueId {
        let name = self.names.unique(name);
        let value = self.body.add_value(name, kind, ValueOrigin::Input);
        self.body.inputs.push(value);
        value
    }

    /// Declares an output of a node that is not added yet.
    fn declare(&mut self, name: &str, kind: ValueType) -> ValueId {
        let name = self.names.unique(name);
        self.body.add_value(name, kind, ValueOrigin::Missing)
    }

    /// A weight; one value for all calls of a layer.
    fn weight(&mut self, tensor: &str, kind: ValueType) -> ValueId {
        if let Some(value) = self.weights.get(tensor) {
            return *value;
        }
        let name = self.names.unique(tensor);
        let value = match &mut self.parameters {
            None => {
                let origin = ValueOrigin::Weight(WeightRef::whole(tensor));
                self.body.add_value(name, kind, origin)
            }
            Some(parameters) => {
                parameters.push((tensor.to_owned(), kind.clone()));
                let value = self.body.add_value(name, kind, ValueOrigin::Input);
                self.body.inputs.push(value);
                value
            }
        };
        self.weights.insert(tensor.to_owned(), value);
        value
    }

    /// Sets the arguments of the last node's call.
    ///
    /// They are the names of the tensor arguments, in the order of the inputs, and the values of
    /// the other arguments.
    fn set_arguments(&mut self, call: &Call) {
        let Some(node) = self.body.nodes.last_mut() else { return };
        if call.reads.iter().any(|read| !read.argument.is_empty()) {
            let names = call.reads.iter().map(|read| read.argument.as_bytes().to_vec());
            let value = AttributeValue::Texts(names.collect());
            node.attributes.push(Attribute { name: ARGUMENTS.into(), value });
        }
        node.attributes.extend(call.settings.iter().cloned());
    }

    fn find(&self, reference: &TensorRef) -> Result<ValueId> {
        let found = self.values.get(reference).or_else(|| {
            // A model that was called before it was saved keeps the numbers of those calls.
            self.values.get(&TensorRef { call: 0, ..reference.clone() })
        });
        found.copied().ok_or_else(|| missing(reference))
    }
}

/// Returns the error for a reference to a missing layer.
fn missing(reference: &TensorRef) -> Error {
    let layer = Escaped::short(&reference.layer);
    Error::corrupt(format!("the configuration refers to a layer '{layer}' that it does not list"))
}
