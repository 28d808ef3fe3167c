//! A graph and the checkpoint that it looks at, brought together for a format that holds both.
//!
//! A graph says what it takes from a tensor: transposed, a part of it, in single precision. A file
//! stores tensors as they are used, as far as that is only a matter of order; what is left becomes
//! nodes at the place where the weight is used.
//!
//! | the graph looks at | the file has |
//! |---|---|
//! | a float of another width than it computes with | the tensor as it is, a `Cast`, and where it is transposed a `Transpose` |
//! | a transposed tensor, a part of one | the elements in that order |
//! | the same tensor in several ways | the tensor once, and nodes |
//! | blocks of integers and scales | integers and scales, and nodes that multiply them: the same values, bit for bit |
//! | other blocks | floats |
//!
//! ```
//! use apr_bind::{Binder, Storage};
//! use apr_registry::{CheckpointReader, Limits};
//! use apr_view::{Base, Unpacked};
//! # let header = br#"{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;
//! # let mut file = (header.len() as u64).to_le_bytes().to_vec();
//! # file.extend_from_slice(header);
//! # file.extend_from_slice(&[0; 24]);
//! # let mut body = apr_graph::GraphBuilder::new(17);
//! # let main = body.body();
//! # let rows = [apr_graph::Dim::symbol("rows"), apr_graph::Dim::fixed(2)];
//! # let x = main.input("x", apr_graph::ElementType::F32, rows, apr_graph::Meaning::Unknown);
//! # let w = main.weight("w", apr_graph::ElementType::F32, [2, 3]);
//! # let y = main.op("MatMul", [x, w]).output("y");
//! # main.output("y", y, apr_graph::Meaning::Unknown);
//! # let mut graph = body.finish();
//!
//! let model = apr_registry::open(file, "model.safetensors", &Limits::default())?;
//! let (unpacked, parts) = Unpacked::beside(Base::from(&*model));
//! let mut binder = Binder::new(&unpacked, &parts, Storage::default());
//! binder.bind(&mut graph)?;
//! let (bound, losses) = binder.finish();
//! assert_eq!(bound.tensors[0].0.name, "w");
//! assert!(losses.is_empty());
//! # Ok::<(), apr_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

mod blocks;
mod look;
mod nodes;
mod storage;

use std::collections::{BTreeSet, HashMap};

use apr_core::{UniqueNames, counted};
use apr_graph::{
    AttributeValue, Body, Dim, ElementType, Graph, Node, NodeId, Op, Value, ValueId, ValueOrigin,
    ValueType, View as Look, WeightRef,
};
use apr_quantize::TensorTarget;
use apr_registry::onnx::write::holds;
use apr_registry::{CheckpointReader, DType, Error, Loss, Result, TensorInfo};
use apr_tensor::cast::can_cast;
use apr_view::{Parts, TensorOrigin};

use look::Shown;
pub use storage::{Blocks, Storage};

/// Tensors that the weights of the bound graphs refer to. Each weight is a whole tensor.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Bound {
    /// Tensors, each with its origin in the checkpoint.
    pub tensors: Vec<(TensorInfo, TensorOrigin)>,
    /// Conversion targets of the tensors, by position.
    pub targets: Vec<Option<TensorTarget>>,
    /// Names of the matrices that are the transpose of the checkpoint's.
    pub transposed: Vec<String>,
    /// Warnings about the tensors.
    pub warnings: Vec<String>,
}

/// A checkpoint that graphs are bound to, one after the other.
pub struct Binder<'a> {
    base: &'a dyn CheckpointReader,
    /// Tensors of the base that count: the others are their parts.
    count: usize,
    parts: &'a [Option<Parts>],
    positions: HashMap<&'a str, usize>,
    storage: Storage,
    used: Vec<bool>,
    /// Names of tensors that keep their dtype.
    kept: BTreeSet<String>,
    names: UniqueNames,
    /// Dtypes of quantized tensors that are dequantized although this was not requested.
    dequantized: Vec<DType>,
    bound: Bound,
}

impl<'a> Binder<'a> {
    /// `base` is the checkpoint that [`Unpacked::beside`](apr_view::Unpacked::beside) made, with
    /// its parts.
    #[must_use]
    pub fn new(
        base: &'a dyn CheckpointReader,
        parts: &'a [Option<Parts>],
        storage: Storage,
    ) -> Self {
        let whole = base.tensors().iter().take(parts.len());
        let positions =
            whole.enumerate().map(|(position, info)| (info.name.as_str(), position)).collect();
        Self {
            base,
            count: parts.len(),
            parts,
            positions,
            storage,
            used: vec![false; parts.len()],
            kept: BTreeSet::new(),
            names: UniqueNames::of_values(),
            dequantized: Vec::new(),
            bound: Bound::default(),
        }
    }

    /// Keeps the dtype of these tensors, whatever the requested precision.
    #[must_use]
    pub fn keeping(self, kept: BTreeSet<String>) -> Self {
        Self { kept, ..self }
    }

    /// Binds a graph: its weights then name tensors of the list.
    ///
    /// # Errors
    /// E001 for a weight that the checkpoint does not have, or has in another shape.
    pub fn bind(&mut self, graph: &mut Graph) -> Result<()> {
        let opset = graph.opset("").unwrap_or_default();
        let mut domains = Vec::new();
        Binding::new(self, opset, &mut domains).body(&mut graph.body)?;
        for domain in domains {
            if graph.opset(domain).is_none() {
                graph.opsets.push(apr_graph::Opset { domain: domain.into(), version: 1 });
            }
        }
        Ok(())
    }

    /// Returns the tensors, and the losses: the tensors of the checkpoint that no graph uses.
    #[must_use]
    pub fn finish(mut self) -> (Bound, Vec<Loss>) {
        let unused =
            self.base.tensors().iter().take(self.count).zip(&self.used).filter(|(_, used)| !**used);
        let losses = unused.map(|(info, _)| Loss {
            name: info.name.clone(),
            what: "tensor".into(),
            why: "not used by the model's graph".into(),
        });
        let losses = losses.collect();

        // Only neighbours are put together.
        self.dequantized.sort();
        for group in self.dequantized.chunk_by(|a, b| a == b) {
            let count = counted(group.len() as u64, "tensor");
            let message = format!(
                "{count} of {} become f32: ONNX has no operator for this block type; \
                 `dequantize` f16 halves the size",
                group[0]
            );
            self.bound.warnings.push(message);
        }

        (self.bound, losses)
    }

    fn position(&self, tensor: &str) -> Result<usize> {
        self.positions
            .get(tensor)
            .copied()
            .ok_or_else(|| Error::format("missing from the checkpoint").for_tensor(tensor))
    }

    /// Returns the dtype in which a tensor of the base is stored.
    fn stored(&self, position: usize) -> DType {
        let info = &self.base.tensors()[position];
        let Storage { precision, dequantize, .. } = self.storage;
        if info.dtype.is_quantized() {
            return dequantize.unwrap_or(DType::F32);
        }

        if info.shape.elements().is_some_and(|elements| elements <= 1) {
            // A number of the computation, such as an epsilon, which half precision would make
            // zero.
            return info.dtype;
        }

        let is_coded = || self.base.stored(position).coding().is_some();
        let decoded = || dequantize.filter(|_| is_coded());
        // What ONNX has no type for.
        let precision = precision
            .or_else(decoded)
            .filter(|_| !self.kept.contains(&info.name))
            .or_else(|| ElementType::from_dtype(info.dtype).is_none().then_some(DType::F32));
        precision
            .filter(|&to| info.dtype.is_float() && can_cast(info.dtype, to))
            .unwrap_or(info.dtype)
    }

    /// Records that a tensor is dequantized although this was not requested.
    fn note_dequantized(&mut self, info: &TensorInfo) {
        if info.dtype.is_quantized() && self.storage.dequantize.is_none() {
            self.dequantized.push(info.dtype);
        }
    }

    /// Adds a tensor to the list; returns its name there.
    fn add(&mut self, name: &str, info: TensorInfo, origin: TensorOrigin, target: DType) -> String {
        let name = self.names.unique(name);
        self.bound.tensors.push((TensorInfo { name: name.clone(), ..info }, origin));
        self.bound.targets.push(Some(TensorTarget::from(target)));
        name
    }
}

/// A body being bound.
struct Binding<'b, 'a> {
    binder: &'b mut Binder<'a>,
    opset: i64,
    /// Domains of operators that were used.
    domains: &'b mut Vec<&'static str>,
    /// Nodes to insert before the nodes of the body.
    nodes: Vec<Node>,
    /// Names of the body's values.
    names: UniqueNames,
    /// Values with all of a tensor, in the type that the graph computes with.
    whole: HashMap<(usize, Option<ElementType>), ValueId>,
    /// Values of tensors in their stored type, by position in the base.
    raw: HashMap<usize, ValueId>,
}

/// A weight of a body.
struct Weight {
    value: ValueId,
    reference: WeightRef,
    position: usize,
    element: Option<ElementType>,
}

impl<'b, 'a> Binding<'b, 'a> {
    fn new(binder: &'b mut Binder<'a>, opset: i64, domains: &'b mut Vec<&'static str>) -> Self {
        Self {
            binder,
            opset,
            domains,
            nodes: Vec::new(),
            names: UniqueNames::of_values(),
            whole: HashMap::new(),
            raw: HashMap::new(),
        }
    }

    fn body(mut self, body: &mut Body) -> Result<()> {
        hold_constants(body);
        self.names = UniqueNames::of_values();
        body.values.iter().for_each(|value| _ = self.names.take(&value.name));
        let mut weights = self.weights(body)?;

        // What is looked at as it is comes first: other looks then start from it.
        weights.sort_by_key(|weight| !weight.reference.views.is_empty());
        let mut unread = Vec::new();
        let mut by_tensor: HashMap<usize, Vec<&Weight>> = HashMap::new();
        weights
            .iter()
            .for_each(|weight| by_tensor.entry(weight.position).or_default().push(weight));
        for weight in &weights {
            self.binder.used[weight.position] = true;
            let alike = &by_tensor[&weight.position];
            match self.apart(alike, weight)? {
                Some(strides) => self.store_part(body, weight, &strides)?,
                None if self.read_by_parts(body, weight) => unread.push(weight.value),
                None => self.look_with_nodes(body, weight)?,
            }
        }

        self.attributes(body)?;
        let mut nodes = std::mem::take(&mut self.nodes);
        nodes.append(&mut body.nodes);
        rebuild(body, nodes);
        self.inner(body)?;
        drop_values(body, &unread);
        Ok(())
    }

    fn weights(&self, body: &Body) -> Result<Vec<Weight>> {
        let values = (0..).map(ValueId).zip(&body.values);
        let weights = values.filter_map(|(id, value)| match &value.origin {
            ValueOrigin::Weight(reference) => Some((id, value.element(), reference.clone())),
            _ => None,
        });
        let weights = weights.map(|(value, element, reference)| {
            let position = self.binder.position(&reference.tensor)?;
            Ok(Weight { value, reference, position, element })
        });
        weights.collect()
    }

    /// Returns the elements of a weight within its tensor, if the weight can be stored by itself.
    ///
    /// This is possible if all views of the tensor in the body together have no more elements than
    /// the tensor.
    fn apart(&self, alike: &[&Weight], weight: &Weight) -> Result<Option<Shown>> {
        let info = &self.binder.base.tensors()[weight.position];
        if info.dtype.is_quantized() || info.dtype.block_len() != 1 {
            return Ok(None);
        }

        let shown = |weight: &Weight| Shown::of(info, &weight.reference.views);
        let parts = alike.iter().map(|weight| shown(weight)).collect::<Result<Option<Vec<_>>>>()?;
        let Some(parts) = parts else { return Ok(None) };

        // Where a node casts it anyway, another one turns it, and its bytes are copied as they lie.
        let stored = self.binder.stored(weight.position);
        let is_cast = |weight: &&Weight| !is_held(stored, weight.element);
        if parts.iter().any(Shown::is_turned) && alike.iter().any(is_cast) {
            return Ok(None);
        }

        let elements: u64 = parts.iter().map(Shown::elements).fold(0, u64::saturating_add);
        let fits = info.shape.elements().is_some_and(|all| elements <= all);
        Ok(if fits { shown(weight)? } else { None })
    }

    /// Stores what a weight looks at.
    fn store_part(&mut self, body: &mut Body, weight: &Weight, shown: &Shown) -> Result<()> {
        let Weight { value, position, element, .. } = *weight;
        let base = &self.binder.base.tensors()[position];
        check_shape(body, weight, shown.dims())?;
        let origin = shown.origin(base, position)?;

        let is_transposed = weight.reference.views == [Look::Transposed(vec![1, 0])];
        let is_part =
            !is_transposed && base.shape.elements().is_some_and(|all| shown.is_other(all));
        if is_part && body.value(value).name.starts_with(&base.name) {
            // Whoever reads the file must not take it for the tensor.
            let name = self.names.unique(format!("{}/part", base.name));
            body.value_mut(value).name = name;
        }
        let info = TensorInfo { shape: shown.dims().to_vec().into(), ..base.clone() };
        let stored = self.binder.stored(position);
        let name = body.value(value).name.clone();
        let tensor = self.binder.add(&name, info, origin, stored);
        if is_transposed {
            self.binder.bound.transposed.push(tensor.clone());
        }
        let origin = ValueOrigin::Weight(WeightRef::whole(tensor));
        if is_held(stored, element) {
            body.value_mut(value).origin = origin;
            return Ok(());
        }

        // The file's tensor keeps the name, and what is cast gets another.
        self.give_way(body, value, "cast");
        self.names.take(&name);
        let kind = typed(ElementType::from_dtype(stored), shown.dims());
        let raw = body.add_value(name, kind, origin);
        self.cast(body, raw, value, element);
        Ok(())
    }

    /// Renames a value so that what it is made of can have its name.
    fn give_way(&mut self, body: &mut Body, value: ValueId, what: &str) {
        let name = self.names.unique(format!("{}/{what}", body.value(value).name));
        let free = std::mem::replace(&mut body.value_mut(value).name, name);
        self.names.release(&free);
    }

    /// Stores all of a tensor, and makes of it by nodes what a weight looks at.
    fn look_with_nodes(&mut self, body: &mut Body, weight: &Weight) -> Result<()> {
        let Weight { value, ref reference, position, element } = *weight;
        let info = self.binder.base.tensors()[position].clone();
        let mut dims = info.shape.dims().to_vec();
        let stored = self.binder.stored(position);
        let is_stored = self.parts(position).is_none() && !self.raw.contains_key(&position);
        if is_stored && reference.views.is_empty() && is_held(stored, element) {
            check_shape(body, weight, &dims)?;
            self.store_as_it_is(body, weight, info);
            return Ok(());
        }

        // The tensor of the file gets this name.
        if body.value(value).name == info.name {
            self.give_way(body, value, "values");
        }

        let mut current = self.whole(body, position, element)?;
        for look in &reference.views {
            (current, dims) = self.look(body, current, &dims, look, element, &reference.tensor)?;
        }

        check_shape(body, weight, &dims)?;
        self.alias(body, current, value);
        Ok(())
    }

    /// Stores all of a tensor as the value that looks at it.
    fn store_as_it_is(&mut self, body: &mut Body, weight: &Weight, info: TensorInfo) {
        let Weight { value, position, element, .. } = *weight;
        let stored = self.binder.stored(position);
        self.binder.note_dequantized(&info);
        let name = body.value(value).name.clone();
        let tensor = self.binder.add(&name, info, TensorOrigin::Base(position), stored);
        body.value_mut(value).origin = ValueOrigin::Weight(WeightRef::whole(tensor));
        self.raw.insert(position, value);
        self.whole.insert((position, element), value);
    }

    /// Weights in settings of operators. They are as the operator takes them.
    fn attributes(&mut self, body: &mut Body) -> Result<()> {
        for node in &mut body.nodes {
            let name = node
                .outputs
                .iter()
                .flatten()
                .next()
                .map(|&output| body.values[output.0 as usize].name.clone());
            for attribute in &mut node.attributes {
                if let AttributeValue::Weight(reference) = &mut attribute.value {
                    let position = self.binder.position(&reference.tensor)?;
                    self.binder.used[position] = true;
                    let info = self.binder.base.tensors()[position].clone();
                    let dtype = info.dtype;
                    let name = name.clone().unwrap_or_else(|| reference.tensor.clone());
                    let tensor = self.binder.add(&name, info, TensorOrigin::Base(position), dtype);
                    *reference = WeightRef::whole(tensor);
                }
            }
        }

        Ok(())
    }

    /// The bodies in the nodes.
    fn inner(self, body: &mut Body) -> Result<()> {
        let Self { binder, opset, domains, .. } = self;
        for attribute in body.nodes.iter_mut().flat_map(|node| &mut node.attributes) {
            let bodies = match &mut attribute.value {
                AttributeValue::Body(body) => std::slice::from_mut(&mut **body),
                AttributeValue::Bodies(bodies) => bodies.as_mut_slice(),
                _ => continue,
            };
            for body in bodies {
                Binding::new(binder, opset, domains).body(body)?;
            }
        }
        Ok(())
    }
}

/// Turns the weights in `Constant` nodes into weights of the body.
///
/// A node can't store views and types, which must be applied to these weights.
pub fn hold_constants(body: &mut Body) {
    let nodes = std::mem::take(&mut body.nodes);
    let (mut held, mut rest) = (Vec::new(), Vec::with_capacity(nodes.len()));
    for node in nodes {
        let value = node.attribute("value");
        match (value, node.outputs.as_slice()) {
            (Some(AttributeValue::Weight(weight)), &[Some(output)]) if node.op.is("Constant") => {
                let weight = weight.clone();
                if body.outputs.contains(&output) {
                    // What a body gives back is made by a node.
                    let Value { name, kind, .. } = body.value(output).clone();
                    let held =
                        body.add_value(format!("{name}/held"), kind, ValueOrigin::Weight(weight));
                    let (inputs, attributes) = (vec![Some(held)], Vec::new());
                    rest.push(Node { op: Op::onnx("Identity"), inputs, attributes, ..node });
                } else {
                    held.push((output, weight));
                }
            }
            _ => rest.push(node),
        }
    }

    rebuild(body, rest);
    for (output, weight) in held {
        body.value_mut(output).origin = ValueOrigin::Weight(weight);
    }
}

/// Returns `true` if the stored elements have the type that the graph states, or if it states none.
fn is_held(stored: DType, element: Option<ElementType>) -> bool {
    element.is_none_or(|element| holds(stored, element))
}

/// Refuses a tensor whose shape is not the one that the graph counts on.
fn check_shape(body: &Body, weight: &Weight, dims: &[u64]) -> Result<()> {
    let Some(shape) = body.value(weight.value).shape() else { return Ok(()) };
    if shape.len() == dims.len()
        && shape.iter().zip(dims).all(|(dim, size)| dim.size().is_none_or(|dim| dim == *size))
    {
        return Ok(());
    }
    let kind = body.value(weight.value).tensor().map(ToString::to_string).unwrap_or_default();
    let message = format!("the graph expects {kind}, but the tensor has {dims:?}");
    Err(Error::format(message).for_tensor(&weight.reference.tensor))
}

/// The type of a tensor of these sizes.
fn typed(element: Option<ElementType>, dims: &[u64]) -> ValueType {
    let shape = dims.iter().copied().map(Dim::fixed).collect();
    ValueType::Tensor(apr_graph::TensorType { element, shape: Some(shape) })
}

/// Removes the origins of values that are no longer read. Their ids stay valid.
fn drop_values(body: &mut Body, unread: &[ValueId]) {
    for &value in unread {
        // It stays in its place, as the ids of the others do; a constant of nothing is not written.
        body.value_mut(value).origin = ValueOrigin::Missing;
    }
}

/// Gives a body these nodes, and its values their origins.
fn rebuild(body: &mut Body, nodes: Vec<Node>) {
    body.nodes = nodes;
    for (position, node) in (0..).zip(&body.nodes) {
        for output in node.outputs.iter().flatten() {
            body.values[output.0 as usize].origin = ValueOrigin::Node(NodeId(position));
        }
    }
}
