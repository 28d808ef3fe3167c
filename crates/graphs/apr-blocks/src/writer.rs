//! Bodies being written: weights by name, scopes, and bodies that are called.

use apr_core::{Error, Result};
use apr_graph::{
    Body, BodyBuilder, ElementType, Function, Meaning, NodeBuilder, Op, ValueId, View,
};

use crate::model::Model;

/// Domain of the functions that a graph has.
const DOMAIN: &str = "apr";

/// A weight of a function, and the tensor that it is in the call being written.
struct Slot {
    tensor: String,
    views: Vec<View>,
    shape: Vec<u64>,
    parameter: ValueId,
}

/// Body that is being written: the body of a graph or of a function.
pub(crate) struct Writer<'m> {
    pub(crate) model: &'m Model<'m>,
    body: BodyBuilder,
    /// Weights of a function, which are its parameters; `None` outside of functions.
    slots: Option<Vec<Slot>>,
}

impl<'m> Writer<'m> {
    /// The main body of a graph.
    pub(crate) fn new(model: &'m Model<'m>) -> Self {
        Self { model, body: BodyBuilder::default(), slots: None }
    }

    pub(crate) fn body(&mut self) -> &mut BodyBuilder {
        &mut self.body
    }

    pub(crate) fn finish(self) -> Body {
        self.body.finish()
    }

    /// Writes under a name: nodes are then called `name/...`.
    pub(crate) fn scope<T>(&mut self, name: &str, write: impl FnOnce(&mut Self) -> T) -> T {
        // The builder has a scope of its own; it is lent back to this writer for as long as that
        // lasts.
        let mut body = std::mem::take(&mut self.body);
        let result = body.scope(name, |inner| {
            std::mem::swap(&mut self.body, inner);
            let result = write(self);
            std::mem::swap(&mut self.body, inner);
            result
        });
        self.body = body;
        result
    }

    /// A node with an operator of ONNX.
    pub(crate) fn op(
        &mut self,
        name: &str,
        inputs: impl IntoIterator<Item = ValueId>,
    ) -> NodeBuilder<'_> {
        self.body.op(name, inputs)
    }

    /// A node with an operator and one output.
    pub(crate) fn make(
        &mut self,
        op: &str,
        name: &str,
        inputs: impl IntoIterator<Item = ValueId>,
    ) -> ValueId {
        self.body.op(op, inputs).output(name)
    }

    /// The product with a number.
    pub(crate) fn scaled(&mut self, name: &str, x: ValueId, factor: f64) -> ValueId {
        let factor = self.float(factor);
        self.make("Mul", name, [x, factor])
    }

    #[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
    pub(crate) fn float(&mut self, value: f64) -> ValueId {
        self.body.float(value as f32)
    }

    pub(crate) fn int(&mut self, value: i64) -> ValueId {
        self.body.int(value)
    }

    pub(crate) fn ints(&mut self, values: &[i64]) -> ValueId {
        self.body.ints(values)
    }

    /// Reshapes a value: a dimension of 0 keeps its size, -1 stands for the remaining elements.
    pub(crate) fn reshape(&mut self, name: &str, x: ValueId, shape: &[i64]) -> ValueId {
        let shape = self.ints(shape);
        self.make("Reshape", name, [x, shape])
    }

    pub(crate) fn unsqueeze(&mut self, name: &str, x: ValueId, axes: &[i64]) -> ValueId {
        let axes = self.ints(axes);
        self.make("Unsqueeze", name, [x, axes])
    }

    pub(crate) fn transpose<const N: usize>(
        &mut self,
        name: &str,
        x: ValueId,
        order: [i64; N],
    ) -> ValueId {
        self.op("Transpose", [x]).attribute("perm", order).output(name)
    }

    pub(crate) fn concat(&mut self, name: &str, parts: &[ValueId], axis: i64) -> ValueId {
        self.op("Concat", parts.iter().copied()).attribute("axis", axis).output(name)
    }

    /// Parts of these lengths along an axis.
    pub(crate) fn split<const N: usize>(
        &mut self,
        name: &str,
        x: ValueId,
        axis: i64,
        lengths: [u64; N],
    ) -> [ValueId; N] {
        let lengths: Vec<i64> = lengths.iter().map(|length| signed(*length)).collect();
        let lengths = self.ints(&lengths);
        self.op("Split", [x, lengths]).attribute("axis", axis).outputs(name)
    }

    /// The elements from `start` to before `end` along an axis.
    pub(crate) fn slice(
        &mut self,
        name: &str,
        x: ValueId,
        axis: i64,
        start: i64,
        end: i64,
    ) -> ValueId {
        let (start, end, axis) = (self.ints(&[start]), self.ints(&[end]), self.ints(&[axis]));
        self.make("Slice", name, [x, start, end, axis])
    }

    /// Returns the mean over the last axis, which is kept with length 1.
    ///
    /// Until opset 17 the axis was an attribute.
    pub(crate) fn mean(&mut self, name: &str, x: ValueId) -> ValueId {
        if self.model.opset < 18 {
            return self.op("ReduceMean", [x]).attribute("axes", [-1]).output(name);
        }
        let axes = self.ints(&[-1]);
        self.make("ReduceMean", name, [x, axes])
    }

    /// The largest of each row, `[rows, 1]`. Until opset 17 the axis was an attribute.
    pub(crate) fn largest_of_rows(&mut self, name: &str, x: ValueId) -> ValueId {
        if self.model.opset < 18 {
            return self.op("ReduceMax", [x]).attribute("axes", [1]).output(name);
        }
        let axes = self.ints(&[1]);
        self.make("ReduceMax", name, [x, axes])
    }

    /// Returns the sum over an axis, which is kept with length 1.
    pub(crate) fn sum(&mut self, name: &str, x: ValueId, axis: i64) -> ValueId {
        // ReduceSum has its axes as an input since opset 13, before the other reductions.
        let axes = self.ints(&[axis]);
        self.make("ReduceSum", name, [x, axes])
    }

    /// The length of an axis, as a tensor of one element.
    pub(crate) fn length(&mut self, name: &str, x: ValueId, axis: i64) -> ValueId {
        // Since opset 15, Shape gives a part of the sizes.
        self.op("Shape", [x]).attribute("start", axis).attribute("end", axis + 1).output(name)
    }

    /// Casts a value to another element type.
    pub(crate) fn cast(&mut self, name: &str, x: ValueId, to: ElementType) -> ValueId {
        self.op("Cast", [x]).attribute("to", i64::from(to.onnx_code())).output(name)
    }

    /// Returns a tensor of the checkpoint without any change.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<ValueId> {
        let shape = self.model.using(name)?;
        self.viewed(name, Vec::new(), shape)
    }

    /// Returns a tensor of the checkpoint, read through views. `shape` is the shape of the result.
    pub(crate) fn viewed(
        &mut self,
        name: &str,
        views: Vec<View>,
        shape: Vec<u64>,
    ) -> Result<ValueId> {
        self.model.using(name)?;
        let Some(slots) = &mut self.slots else {
            return Ok(self.body.viewed(name, views, ElementType::F32, shape));
        };

        // A weight that a layer uses twice is one parameter.
        if let Some(known) = slots.iter().find(|slot| slot.tensor == name && slot.views == views) {
            return Ok(known.parameter);
        }
        let parameter = self.body.parameter(&local_name(name));
        slots.push(Slot { tensor: name.to_owned(), views, shape, parameter });
        Ok(parameter)
    }

    /// A matrix of a linear layer, `[inputs, outputs]`. Checkpoints have `[outputs, inputs]`,
    /// unless `is_turned`.
    pub(crate) fn matrix(&mut self, name: &str, is_turned: bool) -> Result<ValueId> {
        let dims = self.model.using(name)?;
        let &[rows, columns] = dims.as_slice() else {
            return Err(
                Error::format("the weight of a linear layer must be a matrix").for_tensor(name)
            );
        };
        if is_turned {
            return self.viewed(name, Vec::new(), dims);
        }
        self.viewed(name, vec![View::Transposed(vec![1, 0])], vec![columns, rows])
    }

    /// Calls a function whose body `write` writes. Equal bodies share one function.
    ///
    /// `write` receives the parameters and returns the results with their names: one, two, three or
    /// five of them.
    pub(crate) fn call<const IN: usize>(
        &mut self,
        function: &str,
        node: &str,
        inputs: [(&str, Option<ValueId>); IN],
        write: impl FnOnce(
            &mut Writer<'m>,
            [Option<ValueId>; IN],
        ) -> Result<Vec<(&'static str, ValueId)>>,
    ) -> Result<Vec<ValueId>> {
        let mut inner =
            Writer { model: self.model, body: BodyBuilder::default(), slots: Some(Vec::new()) };
        let parameters = inputs.map(|(name, value)| value.map(|_| inner.body.parameter(name)));
        let results = write(&mut inner, parameters)?;
        for (name, value) in &results {
            inner.body.output(name, *value, Meaning::Unknown);
        }

        let slots = inner.slots.take().unwrap_or_default();
        let op = self.function(function, inner.finish());
        let mut arguments: Vec<ValueId> =
            inputs.into_iter().filter_map(|(_, value)| value).collect();
        for Slot { tensor, views, shape, .. } in slots {
            arguments.push(self.viewed(&tensor, views, shape)?);
        }

        let call = self.body.call(&op, arguments);
        Ok(match results.len() {
            1 => call.outputs::<1>(node).to_vec(),
            2 => call.outputs::<2>(node).to_vec(),
            3 => call.outputs::<3>(node).to_vec(),
            _ => call.outputs::<5>(node).to_vec(),
        })
    }

    /// Returns the function with this body, and adds it if it does not exist yet.
    fn function(&self, name: &str, body: Body) -> Op {
        let mut functions = self.model.functions.borrow_mut();
        let is_same = |function: &&Function| {
            // The body's name is the function's own, and says nothing of what is computed.
            let Body { values, nodes, inputs, outputs, .. } = &function.body;
            (nodes, values, inputs, outputs)
                == (&body.nodes, &body.values, &body.inputs, &body.outputs)
        };
        if let Some(known) = functions.iter().find(is_same) {
            return known.op.clone();
        }

        // The first has no number; others under its name count from 2 on.
        let alike = functions
            .iter()
            .filter(|function| function.op.name.trim_end_matches(char::is_numeric) == name);
        let op = match alike.count() {
            0 => Op::new(DOMAIN, name),
            count => Op::new(DOMAIN, &format!("{name}{}", count + 1)),
        };
        functions.push(Function {
            op: op.clone(),
            opsets: Vec::new(),
            required: Vec::new(),
            defaults: Vec::new(),
            body: Body { name: op.name.to_string(), ..body },
            doc: String::new(),
        });
        op
    }
}

/// Returns the name of a weight in a function: its name without the number of the layer and
/// everything before it.
fn local_name(tensor: &str) -> String {
    let parts: Vec<&str> = tensor.split('.').collect();
    let last = parts.iter().rposition(|part| part.parse::<u64>().is_ok());
    let first = last.map_or(0, |last| last + 1);
    if first < parts.len() { parts[first..].join(".") } else { tensor.to_owned() }
}

/// A size as attributes and shapes have it.
pub(crate) fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
