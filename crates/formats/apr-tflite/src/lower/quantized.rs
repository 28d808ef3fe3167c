//! Integers that stand for floats, and activations that operators end with.

use apr_graph::{AttributeValue, Constant, ConstantData, ElementType, Node, ValueId, ValueOrigin};

use apr_lower::{Order, with};

use super::layout::{Lowering, TO_CHANNELS_FIRST};

/// Scale and zero point of integers.
struct Scale {
    scale: ValueId,
    zero_point: Option<ValueId>,
    axis: Option<usize>,
}

impl Lowering<'_> {
    /// Returns an input as floats if it is quantized, or else unchanged.
    pub(super) fn floats(&mut self, node: &Node, input: usize, layout: Order) -> Option<ValueId> {
        let id = node.input(input)?;
        let value = self.value(id, layout)?;
        let is_image = layout == Order::ChannelsFirst && self.rank(id) == Some(4);
        let turned = |axis: usize| match is_image {
            true => TO_CHANNELS_FIRST.iter().position(|dim| *dim == axis).unwrap_or(axis),
            false => axis,
        };
        self.dequantized(node, input, value, &turned)
    }

    /// Returns an input as floats. `value` is the input with its dimensions moved by `moved`.
    pub(super) fn dequantized(
        &mut self,
        node: &Node,
        input: usize,
        value: ValueId,
        moved: &dyn Fn(usize) -> usize,
    ) -> Option<ValueId> {
        let id = node.input(input)?;
        let element = self.from.value(id).element()?;
        let name = format!("{}/dequantized", self.out.main.body().value(value).name);
        if element == ElementType::F16 {
            let to = i64::from(ElementType::F32.onnx_code());
            return Some(self.out.main.op("Cast", [value]).attribute("to", to).output(&name));
        }
        let Some(Scale { scale, zero_point, axis }) = self.scale_of(node, input, element)? else {
            return Some(value);
        };
        if element == ElementType::I64 {
            // ONNX does not dequantize 64-bit integers, the biases beside 16-bit activations.
            (axis.is_none() || self.rank(id) == Some(1)).then_some(())?;
            let to = i64::from(ElementType::F32.onnx_code());
            let cast = self.out.main.op("Cast", [value]).attribute("to", to);
            let cast = cast.output(&format!("{name}/cast"));
            return Some(self.out.main.op("Mul", [cast, scale]).output(&name));
        }
        let made = with(self.out.main.op("DequantizeLinear", [value, scale]), zero_point);
        let made = match axis {
            Some(axis) => made.attribute("axis", moved(axis) as i64),
            None => made,
        };
        Some(made.output(&name))
    }

    /// Returns the quantization of an input. The outer `None` means that it cannot be lowered.
    fn scale_of(
        &mut self,
        node: &Node,
        input: usize,
        element: ElementType,
    ) -> Option<Option<Scale>> {
        if !matches!(
            element,
            ElementType::I8
                | ElementType::U8
                | ElementType::I16
                | ElementType::I32
                | ElementType::I64
        ) {
            return Some(None);
        }
        // Integers of 32 and 64 bits have the zero point 0.
        let is_bias = matches!(element, ElementType::I32 | ElementType::I64);
        if let ValueOrigin::Weight(weight) = &self.from.value(node.input(input)?).origin {
            let Some(affine) = self.weights.affine(&weight.tensor) else { return Some(None) };
            let scale = self.out.main.weight(&affine.scales, ElementType::F32, [affine.count]);
            let zero_point = match &affine.zero_points {
                Some(points) if !is_bias => {
                    Some(self.out.main.constant(integers(element, points, true)?))
                }
                _ => None,
            };
            let axis = (affine.count > 1).then_some(affine.axis);
            return Some(Some(Scale { scale, zero_point, axis }));
        }
        let Some((scale, zero_point)) = scale(node, "input", input) else { return Some(None) };
        let scale = self.out.main.float(scale);
        let zero_point = match is_bias {
            true => None,
            false => Some(self.out.main.constant(integers(element, &[zero_point], false)?)),
        };
        Some(Some(Scale { scale, zero_point, axis: None }))
    }

    /// Applies the activation of a node, quantizes the result if needed, and sets the output.
    pub(super) fn end(&mut self, node: &Node, value: ValueId, layout: Order) -> Option<()> {
        let activated = self.activated(node, value)?;
        self.end_plain(node, activated, layout)
    }

    /// Same as [`end`](Self::end), for an operator without an activation.
    pub(super) fn end_plain(&mut self, node: &Node, value: ValueId, layout: Order) -> Option<()> {
        let (id, name) = self.output(node)?;
        let element = self.from.value(id).element()?;
        let quantized = matches!(element, ElementType::I8 | ElementType::U8 | ElementType::I16);
        let made = match scale(node, "output", 0).filter(|_| quantized) {
            Some((scale, zero_point)) => {
                let scale = self.out.main.float(scale);
                let zero_point = self.out.main.constant(integers(element, &[zero_point], false)?);
                let name = format!("{name}/quantized");
                self.out.main.op("QuantizeLinear", [value, scale, zero_point]).output(&name)
            }
            None => value,
        };
        self.set(id, made, layout);
        Some(())
    }

    fn activated(&mut self, node: &Node, value: ValueId) -> Option<ValueId> {
        let name = format!("{}/activation", self.out.main.body().value(value).name);
        Some(match node.text("fused_activation_function").unwrap_or("NONE") {
            "NONE" => value,
            "RELU" => self.out.main.op("Relu", [value]).output(&name),
            "RELU6" => self.clipped(value, 0.0, 6.0, &name),
            "RELU_N1_TO_1" => self.clipped(value, -1.0, 1.0, &name),
            "TANH" => self.out.main.op("Tanh", [value]).output(&name),
            _ => return None,
        })
    }

    pub(super) fn clipped(&mut self, value: ValueId, low: f32, high: f32, name: &str) -> ValueId {
        let (low, high) = (self.out.main.float(low), self.out.main.float(high));
        self.out.main.op("Clip", [value, low, high]).output(name)
    }
}

/// Returns the scale and zero point of an input or output that is not a weight, from the graph.
fn scale(node: &Node, which: &str, position: usize) -> Option<(f32, i64)> {
    let Some(AttributeValue::Floats(scales)) = node.attribute(&format!("{which}_scale")) else {
        return None;
    };
    let scale = scales.get(position).copied().filter(|scale| *scale > 0.0)?;
    let zero_points = node.ints(&format!("{which}_zero_point")).unwrap_or_default();
    Some((scale, zero_points.get(position).copied().unwrap_or_default()))
}

/// Returns a constant of one integer or a list, or `None` if the values do not fit the type.
fn integers(element: ElementType, values: &[i64], is_list: bool) -> Option<Constant> {
    let mut bytes = Vec::with_capacity(values.len() * 2);
    for value in values {
        match element {
            ElementType::I8 => bytes.extend(i8::try_from(*value).ok()?.to_le_bytes()),
            ElementType::U8 => bytes.push(u8::try_from(*value).ok()?),
            ElementType::I16 => bytes.extend(i16::try_from(*value).ok()?.to_le_bytes()),
            _ => return None,
        }
    }
    let shape = if is_list { vec![values.len() as u64] } else { Vec::new() };
    Some(Constant { name: String::new(), element, shape, data: ConstantData::Bytes(bytes) })
}
