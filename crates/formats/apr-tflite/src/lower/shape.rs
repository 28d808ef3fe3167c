//! Operators that move elements, and those that reduce dimensions.

use apr_graph::{ElementType, Node};

use apr_lower::{Order, with};

use super::layout::{Lowering, TO_CHANNELS_FIRST};

/// Operators that reduce dimensions.
const REDUCERS: [(&str, &str); 5] = [
    ("MEAN", "ReduceMean"),
    ("REDUCE_MAX", "ReduceMax"),
    ("REDUCE_MIN", "ReduceMin"),
    ("REDUCE_PROD", "ReduceProd"),
    ("SUM", "ReduceSum"),
];

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn shape(&mut self, node: &Node) -> Option<()> {
        if let Some((_, op)) = REDUCERS.iter().find(|(own, _)| *own == &*node.op.name) {
            return self.reduce(node, op);
        }
        match &*node.op.name {
            "RESHAPE" => self.reshape(node),
            "SQUEEZE" => self.squeeze(node),
            "EXPAND_DIMS" => self.expand_dims(node),
            "TRANSPOSE" => self.transpose(node),
            "CONCATENATION" => self.concatenation(node),
            "PAD" | "PADV2" => self.pad(node, "constant"),
            "MIRROR_PAD" => match node.text("mode")? {
                "REFLECT" => self.pad(node, "reflect"),
                _ => None,
            },
            "ARG_MAX" => self.arg(node, "ArgMax"),
            "ARG_MIN" => self.arg(node, "ArgMin"),
            "SHAPE" => self.shape_of(node),
            _ => None,
        }
    }

    fn reshape(&mut self, node: &Node) -> Option<()> {
        let given = self.ints(node, 1).or_else(|| node.ints("new_shape").map(<[i64]>::to_vec));
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let shape = match (given, node.input(1)) {
            (Some(given), _) => self.out.main.ints(&given),
            (None, Some(computed)) => {
                let computed = self.value(computed, Order::Natural)?;
                let to = i64::from(ElementType::I64.onnx_code());
                let name = format!("{name}/shape");
                self.out.main.op("Cast", [computed]).attribute("to", to).output(&name)
            }
            (None, None) => {
                let target = self.target(output)?;
                self.out.main.ints(&target)
            }
        };
        let y = self.out.main.op("Reshape", [x, shape]).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn squeeze(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let mut axes = node.ints("squeeze_dims").unwrap_or_default().to_vec();
        if axes.is_empty() {
            // All dimensions of one element, as the file has them.
            let shape = self.from.value(node.input(0)?).shape()?;
            axes = (0..)
                .zip(shape)
                .filter(|(_, dim)| dim.size() == Some(1))
                .map(|(at, _)| at)
                .collect();
        }
        let axes = self.out.main.ints(&axes);
        let y = self.out.main.op("Squeeze", [x, axes]).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn expand_dims(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let axes = self.ints(node, 1)?;
        let axes = self.out.main.ints(&axes);
        let y = self.out.main.op("Unsqueeze", [x, axes]).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn transpose(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let perm = self.ints(node, 1)?;
        let y = self.out.main.op("Transpose", [x]).attribute("perm", perm).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn concatenation(&mut self, node: &Node) -> Option<()> {
        let layout = self.order_of(node);
        let (output, _) = self.output(node)?;
        let rank = self.rank(output)?;
        let inputs: Option<Vec<_>> =
            (0..node.inputs.len()).map(|input| self.floats(node, input, layout)).collect();
        let axis = self.axis(node.int("axis")?, rank, layout)?;
        let name = self.name(node, layout)?;
        let y = self.out.main.op("Concat", inputs?).attribute("axis", axis).output(&name);
        self.end(node, y, layout)
    }

    /// Returns the position in an order of an axis of a value of this rank.
    ///
    /// Negative axes count from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize, layout: Order) -> Option<i64> {
        let rank = i64::try_from(rank).ok()?;
        let axis = if axis < 0 { axis + rank } else { axis };
        (0..rank).contains(&axis).then_some(())?;
        if layout == Order::Natural {
            return Some(axis);
        }
        let position = TO_CHANNELS_FIRST.iter().position(|dim| *dim as i64 == axis)?;
        i64::try_from(position).ok()
    }

    fn pad(&mut self, node: &Node, mode: &str) -> Option<()> {
        let id = node.input(0)?;
        let rank = self.rank(id)?;
        let given = self.ints(node, 1)?;
        (given.len() == 2 * rank).then_some(())?;
        // Only what is padded is of the image.
        let first = Node { inputs: node.inputs[..1].to_vec(), ..node.clone() };
        let layout = self.order_of(&first);
        let x = self.floats(node, 0, layout)?;
        let mut pads = vec![0; 2 * rank];
        for axis in 0..rank {
            let to = usize::try_from(self.axis(i64::try_from(axis).ok()?, rank, layout)?).ok()?;
            pads[to] = given[2 * axis];
            pads[rank + to] = given[2 * axis + 1];
        }
        let pads = self.out.main.ints(&pads);
        let value = match node.input(2) {
            Some(_) => Some(self.floats(node, 2, Order::Natural)?),
            None => None,
        };
        let name = self.name(node, layout)?;
        let pad = with(self.out.main.op("Pad", [x, pads]), value).attribute("mode", mode);
        let y = pad.output(&name);
        self.end_plain(node, y, layout)
    }

    fn reduce(&mut self, node: &Node, op: &str) -> Option<()> {
        let id = node.input(0)?;
        let rank = self.rank(id)?;
        let first = Node { inputs: node.inputs[..1].to_vec(), ..node.clone() };
        let keeps = node.int("keep_dims").unwrap_or_default();
        let given = self.ints(node, 1)?;
        // Without the channels in the result, the order of the others stays as it is.
        let over_image = {
            let axes: Option<Vec<i64>> =
                given.iter().map(|axis| self.axis(*axis, rank, Order::Natural)).collect();
            axes.is_some_and(|axes| axes == [1, 2])
        };
        let layout = match self.order_of(&first) {
            Order::ChannelsFirst if over_image || keeps != 0 => Order::ChannelsFirst,
            _ => Order::Natural,
        };
        let axes: Option<Vec<i64>> =
            given.iter().map(|axis| self.axis(*axis, rank, layout)).collect();
        let x = self.floats(node, 0, layout)?;
        let axes = self.out.main.ints(&axes?);
        let made = if keeps == 0 { Order::Natural } else { layout };
        let name = self.name(node, made)?;
        let y = self.out.main.op(op, [x, axes]).attribute("keepdims", keeps).output(&name);
        self.end_plain(node, y, made)
    }

    fn arg(&mut self, node: &Node, op: &str) -> Option<()> {
        let (output, name) = self.output(node)?;
        let rank = self.rank(node.input(0)?)?;
        let x = self.floats(node, 0, Order::Natural)?;
        let axis = self.axis(*self.ints(node, 1)?.first()?, rank, Order::Natural)?;
        let found = self.out.main.op(op, [x]).attribute("axis", axis).attribute("keepdims", 0);
        let found = found.output(&format!("{name}/i64"));
        let to = i64::from(self.from.value(output).element()?.onnx_code());
        let y = self.out.main.op("Cast", [found]).attribute("to", to).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn shape_of(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let shape = self.out.main.op("Shape", [x]).output(&format!("{name}/i64"));
        let to = i64::from(self.from.value(output).element()?.onnx_code());
        let y = self.out.main.op("Cast", [shape]).attribute("to", to).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }
}
