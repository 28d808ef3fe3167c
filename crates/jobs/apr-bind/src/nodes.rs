//! Nodes that make of stored tensors what a graph looks at.

use apr_core::Strided;
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ElementType, Node, Op, ValueId, ValueOrigin,
    ValueType, View as Look, WeightRef,
};
use apr_registry::{Error, Result, TensorInfo};
use apr_view::TensorOrigin;

use crate::{Binding, is_held, typed};

impl Binding<'_, '_> {
    /// Returns the value of a whole tensor, in the type that the graph computes with.
    pub(crate) fn whole(
        &mut self,
        body: &mut Body,
        position: usize,
        element: Option<ElementType>,
    ) -> Result<ValueId> {
        if let Some(known) = self.whole.get(&(position, element)) {
            return Ok(*known);
        }
        let made = match self.of_blocks(body, position)? {
            Some(value) if element.is_none_or(|element| element == ElementType::F32) => value,
            Some(value) => self.cast_anew(body, value, element),
            None => self.of_tensor(body, position, element),
        };
        self.whole.insert((position, element), made);
        Ok(made)
    }

    /// Returns a tensor in its stored type, with a cast if the graph computes with another type.
    fn of_tensor(
        &mut self,
        body: &mut Body,
        position: usize,
        element: Option<ElementType>,
    ) -> ValueId {
        let info = self.binder.base.tensors()[position].clone();
        let stored = self.binder.stored(position);
        let kind = typed(ElementType::from_dtype(stored), info.shape.dims());
        let raw = match self.raw.get(&position) {
            Some(raw) => *raw,
            None => {
                self.binder.note_dequantized(&info);
                let raw = self.stored_value(
                    body,
                    &info.name.clone(),
                    info,
                    TensorOrigin::Base(position),
                    stored,
                    kind,
                );
                self.raw.insert(position, raw);
                raw
            }
        };

        if is_held(stored, element) { raw } else { self.cast_anew(body, raw, element) }
    }

    /// A value that is a tensor of the list.
    pub(crate) fn stored_value(
        &mut self,
        body: &mut Body,
        name: &str,
        info: TensorInfo,
        origin: TensorOrigin,
        stored: apr_registry::DType,
        kind: ValueType,
    ) -> ValueId {
        let tensor = self.binder.add(name, info, origin, stored);
        let name = self.names.unique(name);
        body.add_value(name, kind, ValueOrigin::Weight(WeightRef::whole(tensor)))
    }

    /// Adds nodes that apply a view to a value of these sizes; returns the result and its sizes.
    pub(crate) fn look(
        &mut self,
        body: &mut Body,
        value: ValueId,
        dims: &[u64],
        look: &Look,
        element: Option<ElementType>,
        tensor: &str,
    ) -> Result<(ValueId, Vec<u64>)> {
        let of_tensor = |error: Error| error.for_tensor(tensor);
        let mut shown = Strided::contiguous(dims);
        match look {
            Look::Transposed(order) => {
                shown.transpose(order).map_err(of_tensor)?;
                let order = order.iter().map(|&axis| signed(axis as u64)).collect::<Vec<_>>();
                let value =
                    self.make(body, "Transpose", value, &[value], vec![attribute("perm", order)]);
                Ok((value, shown.dims().to_vec()))
            }
            Look::Slice { axis, start, len } => {
                shown.slice(*axis, *start, *len).map_err(of_tensor)?;

                // Since opset 10 these are inputs of `Slice`, and no attributes.
                let numbers = [*start, *start + *len, *axis as u64];
                let numbers = numbers
                    .map(|number| self.constant(body, value, Constant::ints(&[signed(number)])));
                let inputs = [&[value], numbers.as_slice()].concat();
                Ok((self.make(body, "Slice", value, &inputs, Vec::new()), shown.dims().to_vec()))
            }
            Look::Reshaped(shape) => {
                shown.reshape(shape).map_err(of_tensor)?;
                Ok((self.reshaped(body, value, shape), shape.clone()))
            }
            Look::Plus(number) => {
                let constant =
                    self.constant(body, value, number_of(*number, element).map_err(of_tensor)?);
                Ok((self.make(body, "Add", value, &[value, constant], Vec::new()), dims.to_vec()))
            }
            Look::Joined { axis, with } => self.joined(body, (value, dims), *axis, with, element),
            Look::Stacked(with) => {
                let rows = [&[1], dims].concat();
                let first = self.reshaped(body, value, &rows);
                self.stacked(body, (first, &rows), with, element)
            }
        }
    }

    fn joined(
        &mut self,
        body: &mut Body,
        (first, dims): (ValueId, &[u64]),
        axis: usize,
        with: &[String],
        element: Option<ElementType>,
    ) -> Result<(ValueId, Vec<u64>)> {
        let (mut inputs, mut joined) = (vec![first], dims.to_vec());
        for tensor in with {
            let (value, other) = self.other(body, tensor, element)?;
            let fits = other.len() == dims.len()
                && other
                    .iter()
                    .zip(dims)
                    .enumerate()
                    .all(|(at, (other, dim))| at == axis || other == dim);
            if !fits || axis >= dims.len() {
                let message =
                    format!("the graph joins its {other:?} to {dims:?} along dimension {axis}");
                return Err(Error::format(message).for_tensor(tensor));
            }

            joined[axis] += other[axis];
            inputs.push(value);
        }

        let axis = attribute("axis", signed(axis as u64));
        Ok((self.make(body, "Concat", first, &inputs, vec![axis]), joined))
    }

    fn stacked(
        &mut self,
        body: &mut Body,
        (first, rows): (ValueId, &[u64]),
        with: &[String],
        element: Option<ElementType>,
    ) -> Result<(ValueId, Vec<u64>)> {
        let mut inputs = vec![first];
        for tensor in with {
            let (value, other) = self.other(body, tensor, element)?;
            if other != rows[1..] {
                let message = format!("the graph stacks its {other:?} on {:?}", &rows[1..]);
                return Err(Error::format(message).for_tensor(tensor));
            }
            inputs.push(self.reshaped(body, value, rows));
        }
        let mut dims = rows.to_vec();
        dims[0] = inputs.len() as u64;
        let value = self.make(body, "Concat", first, &inputs, vec![attribute("axis", 0)]);
        Ok((value, dims))
    }

    /// Another tensor that a look names.
    fn other(
        &mut self,
        body: &mut Body,
        tensor: &str,
        element: Option<ElementType>,
    ) -> Result<(ValueId, Vec<u64>)> {
        let position = self.binder.position(tensor)?;
        self.binder.used[position] = true;
        let dims = self.binder.base.tensors()[position].shape.dims().to_vec();
        Ok((self.whole(body, position, element)?, dims))
    }

    pub(crate) fn reshaped(&mut self, body: &mut Body, value: ValueId, shape: &[u64]) -> ValueId {
        let shape: Vec<i64> = shape.iter().map(|&dim| signed(dim)).collect();
        let shape = self.constant(body, value, Constant::ints(&shape));
        self.make(body, "Reshape", value, &[value, shape], Vec::new())
    }

    /// A constant for a node that looks at a value.
    pub(crate) fn constant(&mut self, body: &mut Body, of: ValueId, constant: Constant) -> ValueId {
        let name = self.names.unique(format!("{}/constant", body.value(of).name));
        let kind = typed(Some(constant.element), &constant.shape);
        body.add_value(name, kind, ValueOrigin::Constant(constant))
    }

    /// A node with one output, called after a value.
    pub(crate) fn make(
        &mut self,
        body: &mut Body,
        op: &str,
        of: ValueId,
        inputs: &[ValueId],
        attributes: Vec<Attribute>,
    ) -> ValueId {
        let name = self.names.unique(format!("{}/{}", body.value(of).name, op.to_lowercase()));
        let output = body.add_value(name, ValueType::Unknown, ValueOrigin::Missing);
        self.push(body, Op::onnx(op), inputs, output, attributes);
        output
    }

    /// A node that makes a value which is there.
    pub(crate) fn push(
        &mut self,
        body: &Body,
        op: Op,
        inputs: &[ValueId],
        output: ValueId,
        attributes: Vec<Attribute>,
    ) {
        self.nodes.push(Node {
            name: body.value(output).name.clone(),
            op,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
            attributes,
            doc: String::new(),
        });
    }

    /// Makes a value of another one by a cast.
    pub(crate) fn cast(
        &mut self,
        body: &Body,
        from: ValueId,
        to: ValueId,
        element: Option<ElementType>,
    ) {
        let code = element.map_or(1, ElementType::onnx_code);
        self.push(body, Op::onnx("Cast"), &[from], to, vec![attribute("to", i64::from(code))]);
    }

    pub(crate) fn cast_anew(
        &mut self,
        body: &mut Body,
        from: ValueId,
        element: Option<ElementType>,
    ) -> ValueId {
        let name = self.names.unique(format!("{}/cast", body.value(from).name));
        let kind = match (&body.value(from).kind, element) {
            (ValueType::Tensor(tensor), element) => {
                ValueType::Tensor(apr_graph::TensorType { element, shape: tensor.shape.clone() })
            }
            _ => ValueType::Unknown,
        };
        let to = body.add_value(name, kind, ValueOrigin::Missing);
        self.cast(body, from, to, element);
        to
    }

    /// Lets a value be what another one is. A node that made the other for this one alone makes it
    /// now.
    pub(crate) fn alias(&mut self, body: &Body, of: ValueId, value: ValueId) {
        let is_shared = self.whole.values().chain(self.raw.values()).any(|known| *known == of)
            || self.nodes.iter().any(|node| node.inputs.contains(&Some(of)));
        match self.nodes.iter_mut().rfind(|node| node.outputs == [Some(of)]) {
            Some(node) if !is_shared => {
                node.outputs = vec![Some(value)];
                node.name.clone_from(&body.value(value).name);
            }
            _ => self.push(body, Op::onnx("Identity"), &[of], value, Vec::new()),
        }
    }
}

pub(crate) fn attribute(name: &str, value: impl Into<AttributeValue>) -> Attribute {
    Attribute { name: name.into(), value: value.into() }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// One number in the type that the graph computes with.
fn number_of(number: i32, element: Option<ElementType>) -> Result<Constant> {
    match element {
        None | Some(ElementType::F32) => Ok(Constant::float(number as f32)),
        Some(other) => {
            Err(Error::format(format!("the graph adds {number} to elements of {other}")))
        }
    }
}
