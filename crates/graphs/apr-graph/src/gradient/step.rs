//! What the rule of an operator sees of a node, and the gradients that it gives.

use crate::operators::Known;
use crate::{AttributeValue, BodyBuilder, Dim, Node, Operator, ValueId, ValueOrigin};

/// Rule that writes the nodes which compute the gradients of an operator's inputs.
///
/// The nodes read the gradients of the operator's outputs. The error describes the part of the node
/// that has no gradient here.
pub(crate) type Rule = fn(&mut Step<'_>) -> Result<(), String>;

/// A node on the way back.
pub(crate) struct Step<'a> {
    pub(super) writer: &'a mut BodyBuilder,
    pub(super) node: &'a Node,
    pub(super) operator: &'static Operator,
    /// For each input, `true` if it depends on a parameter.
    pub(super) active: Vec<bool>,
    /// Gradients of the outputs.
    pub(super) gradients: Vec<Option<ValueId>>,
    /// Gradients of the inputs.
    pub(super) given: Vec<Option<ValueId>>,
}

impl Step<'_> {
    /// The operator's name.
    pub(crate) fn name(&self) -> &'static str {
        self.operator.name
    }

    /// The input at a position.
    pub(crate) fn input(&self, position: usize) -> Result<ValueId, String> {
        self.node.input(position).ok_or_else(|| format!("input {position} is left out"))
    }

    pub(crate) fn inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// The output at a position, as the forward pass made it.
    pub(crate) fn output(&self, position: usize) -> Result<ValueId, String> {
        let output = self.node.outputs.get(position).copied().flatten();
        output.ok_or_else(|| format!("output {position} is left out"))
    }

    pub(crate) fn outputs(&self) -> usize {
        self.node.outputs.len()
    }

    /// Returns the gradient of the first output. No other output may have a gradient.
    pub(crate) fn gradient(&self) -> Result<ValueId, String> {
        if self.gradients.iter().skip(1).any(Option::is_some) {
            return Err("more than its first output is used".to_owned());
        }
        self.gradient_of(0).ok_or_else(|| "its first output is not used".to_owned())
    }

    pub(crate) fn gradient_of(&self, position: usize) -> Option<ValueId> {
        self.gradients.get(position).copied().flatten()
    }

    /// Returns `true` if the gradient of an input is required.
    pub(crate) fn wants(&self, position: usize) -> bool {
        self.active.get(position).copied().unwrap_or(false)
    }

    /// Sets the gradient of an input.
    pub(crate) fn give(&mut self, position: usize, gradient: ValueId) {
        self.given[position] = Some(gradient);
    }

    /// An attribute that is a number, or its default.
    pub(crate) fn int(&self, name: &str) -> Result<Option<i64>, String> {
        Ok(match self.attribute(name)? {
            Some(AttributeValue::Int(value)) => Some(*value),
            _ => None,
        })
    }

    pub(crate) fn float(&self, name: &str) -> Result<Option<f32>, String> {
        Ok(match self.attribute(name)? {
            Some(AttributeValue::Float(value)) => Some(*value),
            _ => None,
        })
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<Vec<i64>>, String> {
        Ok(match self.attribute(name)? {
            Some(AttributeValue::Ints(values)) => Some(values.clone()),
            _ => None,
        })
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&str>, String> {
        Ok(match self.attribute(name)? {
            Some(AttributeValue::Text(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    }

    fn attribute(&self, name: &str) -> Result<Option<&AttributeValue>, String> {
        match self.node.attribute(name) {
            Some(AttributeValue::OfCall(_)) => {
                Err(format!("attribute '{name}' is one of the call's"))
            }
            Some(value) => Ok(Some(value)),
            None => Ok(self.operator.setting(name).and_then(|setting| setting.default.as_ref())),
        }
    }

    /// Returns a list that is an input in newer versions and an attribute in older ones, or `None`
    /// if it is not given.
    pub(crate) fn list_or_input(
        &self,
        name: &str,
        position: usize,
    ) -> Result<Option<Vec<i64>>, String> {
        if self.operator.setting(name).is_some() {
            return self.list(name);
        }
        let Some(id) = self.node.input(position) else { return Ok(None) };
        self.constant(id).map(Some).ok_or_else(|| format!("'{name}' is not a constant"))
    }

    /// The numbers of a constant.
    pub(crate) fn constant(&self, id: ValueId) -> Option<Vec<i64>> {
        let ValueOrigin::Constant(constant) = &self.writer.body().value(id).origin else {
            return None;
        };
        Known::of(constant)?.dims()?.iter().map(Dim::as_integer).collect()
    }

    /// Returns the shape of a value; single sizes may be unknown.
    pub(crate) fn shape(&self, id: ValueId) -> Result<Vec<Dim>, String> {
        let value = self.writer.body().value(id);
        let shape = value.shape().map(<[Dim]>::to_vec);
        shape.ok_or_else(|| format!("the rank of '{}' is not known", value.name))
    }

    pub(crate) fn rank(&self, id: ValueId) -> Result<usize, String> {
        self.shape(id).map(|shape| shape.len())
    }

    /// A node with attributes.
    pub(crate) fn with(
        &mut self,
        operator: &str,
        inputs: &[ValueId],
        attributes: &[(&str, AttributeValue)],
    ) -> ValueId {
        let mut node = self.writer.op(operator, inputs.iter().copied());
        for (name, value) in attributes {
            node = node.attribute(name, value.clone());
        }
        node.output(&operator.to_lowercase())
    }

    /// Adds the node again, with an output that the forward pass does not have.
    pub(crate) fn again<const OUTPUTS: usize>(&mut self) -> [ValueId; OUTPUTS] {
        let inputs = self.node.inputs.iter().copied().flatten();
        let mut node = self.writer.op(&self.node.op.name, inputs);
        for attribute in &self.node.attributes {
            node = node.attribute(&attribute.name, attribute.value.clone());
        }
        node.outputs(&self.node.op.name.to_lowercase())
    }

    pub(crate) fn op(&mut self, operator: &str, inputs: &[ValueId]) -> ValueId {
        self.with(operator, inputs, &[])
    }

    /// A constant number.
    pub(crate) fn number(&mut self, value: f32) -> ValueId {
        self.writer.float(value)
    }

    pub(crate) fn ints(&mut self, values: &[i64]) -> ValueId {
        self.writer.ints(values)
    }

    pub(crate) fn int_scalar(&mut self, value: i64) -> ValueId {
        self.writer.int(value)
    }

    pub(crate) fn times(&mut self, a: ValueId, b: ValueId) -> ValueId {
        self.op("Mul", &[a, b])
    }

    /// The sum along some dimensions, which are 1 afterwards or gone.
    pub(crate) fn sum(&mut self, value: ValueId, axes: &[i64], keep: bool) -> ValueId {
        let axes = self.ints(axes);
        self.with("ReduceSum", &[value, axes], &[("keepdims", i64::from(keep).into())])
    }

    /// A value of the shape of `like`, which has as many elements.
    pub(crate) fn reshaped(&mut self, value: ValueId, like: ValueId) -> Result<ValueId, String> {
        let shape = self.shape(like)?;
        let sizes = self.sizes(&shape, like);
        Ok(self.with("Reshape", &[value, sizes], &[("allowzero", 1.into())]))
    }

    /// Adds nodes that compute the number of elements in some dimensions of a value, as a float.
    pub(crate) fn elements(
        &mut self,
        of: ValueId,
        dimensions: &[usize],
    ) -> Result<ValueId, String> {
        let shape = self.shape(of)?;
        let sizes: Option<Vec<i64>> =
            dimensions.iter().map(|at| shape.get(*at)?.as_integer()).collect();
        if let Some(sizes) = sizes {
            #[expect(clippy::cast_precision_loss, reason = "a mean is rounded as much")]
            return Ok(self.number(sizes.iter().fold(1.0, |count, size| count * *size as f32)));
        }
        let places: Vec<i64> = dimensions.iter().copied().map(index).collect();
        let (all, places) = (self.op("Shape", &[of]), self.ints(&places));
        let sizes = self.op("Gather", &[all, places]);
        let count = self.with("ReduceProd", &[sizes], &[("keepdims", 0.into())]);
        Ok(self.op("CastLike", &[count, of]))
    }

    /// Returns a shape as a value: a constant if at most one size is not known.
    ///
    /// This avoids keeping a value in memory only for its shape.
    pub(crate) fn sizes(&mut self, shape: &[Dim], like: ValueId) -> ValueId {
        let known: Vec<Option<i64>> = shape.iter().map(Dim::as_integer).collect();
        let open = known.iter().filter(|size| size.is_none()).count();
        // Beside a size of 0, -1 would stand for any size.
        if open == 0 || open == 1 && !known.contains(&Some(0)) {
            let sizes: Vec<i64> = known.into_iter().map(|size| size.unwrap_or(-1)).collect();
            return self.ints(&sizes);
        }
        self.op("Shape", &[like])
    }

    /// The gradient of an operand that was widened to the shape of the result: sums along the
    /// dimensions in which it was.
    pub(crate) fn narrowed(
        &mut self,
        gradient: ValueId,
        result: ValueId,
        operand: ValueId,
    ) -> Result<ValueId, String> {
        let (wide, narrow) = (self.shape(result)?, self.shape(operand)?);
        self.narrowed_from(gradient, &wide, operand, &narrow)
    }

    /// Same as [`narrowed`](Self::narrowed), for a gradient of the shape `wide`.
    pub(crate) fn narrowed_from(
        &mut self,
        gradient: ValueId,
        wide: &[Dim],
        operand: ValueId,
        narrow: &[Dim],
    ) -> Result<ValueId, String> {
        let more = wide.len().saturating_sub(narrow.len());
        let mut kept = Vec::new();
        let mut is_clear = true;
        for (position, (wide, narrow)) in wide[more..].iter().zip(narrow).enumerate() {
            match (wide.as_integer(), narrow.as_integer()) {
                (Some(1), _) => {}
                (_, Some(1)) => kept.push(index(more + position)),
                _ if wide == narrow && *wide != Dim::Unknown => {}
                (None, Some(_)) => {}
                _ => is_clear = false,
            }
        }

        let gone: Vec<i64> = (0..more).map(index).collect();
        let mut gradient = gradient;
        if is_clear && !kept.is_empty() {
            gradient = self.sum(gradient, &kept, true);
        }
        if !gone.is_empty() {
            gradient = self.sum(gradient, &gone, false);
        }
        Ok(if is_clear { gradient } else { self.narrowed_by_sizes(gradient, operand) })
    }

    /// Sums along the dimensions in which sizes differ when the graph runs: a size that is a symbol
    /// may be 1.
    fn narrowed_by_sizes(&mut self, gradient: ValueId, operand: ValueId) -> ValueId {
        let wide = self.op("Shape", &[gradient]);
        let narrow = self.op("Shape", &[operand]);
        let same = self.op("Equal", &[wide, narrow]);
        let differs = self.op("Not", &[same]);
        let places = self.op("NonZero", &[differs]);
        let first = self.ints(&[0]);
        let axes = self.op("Squeeze", &[places, first]);
        self.with("ReduceSum", &[gradient, axes], &[("noop_with_empty_axes", 1.into())])
    }
}

/// A position as an axis.
pub(crate) fn index(position: usize) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}
