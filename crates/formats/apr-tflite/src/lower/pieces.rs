//! Operators that take values apart and put them together.

use apr_graph::{Node, ValueId};

use apr_lower::Order;

use super::layout::Lowering;

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn pieces(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "SLICE" => self.slice(node),
            "STRIDED_SLICE" => self.strided_slice(node),
            "SPLIT" => self.split(node),
            "SPLIT_V" => self.split_by_sizes(node),
            "PACK" => self.pack(node),
            "UNPACK" => self.unpack(node),
            "GATHER" => self.gather(node),
            "TILE" => self.with_ints(node, "Tile"),
            "BROADCAST_TO" => self.with_ints(node, "Expand"),
            "SELECT" | "SELECT_V2" => self.select(node),
            _ => None,
        }
    }

    fn slice(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let (starts, sizes) = (self.ints(node, 1)?, self.ints(node, 2)?);
        (starts.len() == sizes.len()).then_some(())?;
        let end = |(start, size): (&i64, &i64)| {
            if *size < 0 { Some(i64::MAX) } else { start.checked_add(*size) }
        };
        let ends: Option<Vec<i64>> = starts.iter().zip(&sizes).map(end).collect();
        let (starts, ends) = (self.out.main.ints(&starts), self.out.main.ints(&ends?));
        let y = self.out.main.op("Slice", [x, starts, ends]).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn strided_slice(&mut self, node: &Node) -> Option<()> {
        let flag = |name: &str| node.int(name).unwrap_or_default();
        let is_plain =
            ["ellipsis_mask", "new_axis_mask", "offset"].iter().all(|name| flag(name) == 0);
        is_plain.then_some(())?;
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let (mut starts, mut ends) = (self.ints(node, 1)?, self.ints(node, 2)?);
        let mut steps = self.ints(node, 3)?;
        (starts.len() == ends.len() && ends.len() == steps.len() && ends.len() < 32)
            .then_some(())?;
        let mut gone = Vec::new();
        for axis in 0..starts.len() {
            let is_set = |name: &str| flag(name) >> axis & 1 == 1;
            let is_forward = steps[axis] > 0;
            if is_set("shrink_axis_mask") {
                // One index, whose dimension goes.
                steps[axis] = 1;
                ends[axis] =
                    if starts[axis] == -1 { i64::MAX } else { starts[axis].checked_add(1)? };
                gone.push(i64::try_from(axis).ok()?);
                continue;
            }
            if is_set("begin_mask") {
                starts[axis] = if is_forward { 0 } else { i64::MAX };
            }
            if is_set("end_mask") {
                ends[axis] = if is_forward { i64::MAX } else { i64::MIN + 1 };
            }
        }
        let axes: Vec<i64> = (0..).take(starts.len()).collect();
        let [starts, ends, axes, steps] =
            [starts, ends, axes, steps].map(|list| self.out.main.ints(&list));
        let inputs = [x, starts, ends, axes, steps];
        let y = if gone.is_empty() {
            self.out.main.op("Slice", inputs).output(&name)
        } else {
            let cut = self.out.main.op("Slice", inputs).output(&format!("{name}/slice"));
            let gone = self.out.main.ints(&gone);
            self.out.main.op("Squeeze", [cut, gone]).output(&name)
        };
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn split(&mut self, node: &Node) -> Option<()> {
        let input = node.input(1)?;
        let axis = self.position(*self.ints(node, 0)?.first()?, input)?;
        let count = u64::try_from(node.outputs.len()).ok().filter(|count| *count > 0)?;
        let size = self.size(input, axis)?;
        size.is_multiple_of(count).then_some(())?;
        let each = i64::try_from(size / count).ok()?;
        self.cut(node, input, axis, &vec![each; node.outputs.len()])
    }

    fn split_by_sizes(&mut self, node: &Node) -> Option<()> {
        let input = node.input(0)?;
        let axis = self.position(*self.ints(node, 2)?.first()?, input)?;
        let mut sizes = self.ints(node, 1)?;
        let known = sizes
            .iter()
            .filter(|size| **size >= 0)
            .try_fold(0_i64, |sum, size| sum.checked_add(*size))?;
        let whole = i64::try_from(self.size(input, axis)?).ok()?;
        // One may be what is left.
        sizes.iter_mut().filter(|size| **size < 0).for_each(|size| *size = whole - known);
        self.cut(node, input, axis, &sizes)
    }

    /// Outputs that follow each other along a dimension.
    fn cut(&mut self, node: &Node, input: ValueId, axis: usize, sizes: &[i64]) -> Option<()> {
        (sizes.len() == node.outputs.len()).then_some(())?;
        let x = self.value(input, Order::Natural)?;
        let axes = self.out.main.ints(&[i64::try_from(axis).ok()?]);
        let mut start = 0_i64;
        for (output, size) in node.outputs.iter().zip(sizes) {
            let end = start.checked_add(*size).filter(|end| *end >= start)?;
            if let Some(output) = output {
                let name = self.from.value(*output).name.clone();
                let (first, last) = (self.out.main.ints(&[start]), self.out.main.ints(&[end]));
                let y = self.out.main.op("Slice", [x, first, last, axes]).output(&name);
                self.set(*output, y, Order::Natural);
            }
            start = end;
        }
        Some(())
    }

    fn pack(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let axis = self.position(node.int("axis")?, output)?;
        let axis = i64::try_from(axis).ok()?;
        let axes = self.out.main.ints(&[axis]);
        let mut parts = Vec::with_capacity(node.inputs.len());
        for (number, input) in node.inputs.iter().enumerate() {
            let x = self.value((*input)?, Order::Natural)?;
            let name = format!("{name}/part{number}");
            parts.push(self.out.main.op("Unsqueeze", [x, axes]).output(&name));
        }
        let y = self.out.main.op("Concat", parts).attribute("axis", axis).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn unpack(&mut self, node: &Node) -> Option<()> {
        let input = node.input(0)?;
        let axis = i64::try_from(self.position(node.int("axis")?, input)?).ok()?;
        let x = self.value(input, Order::Natural)?;
        for (number, output) in (0..).zip(&node.outputs) {
            let Some(output) = output else { continue };
            let name = self.from.value(*output).name.clone();
            let index = self.out.main.int(number);
            let y = self.out.main.op("Gather", [x, index]).attribute("axis", axis).output(&name);
            self.set(*output, y, Order::Natural);
        }
        Some(())
    }

    fn gather(&mut self, node: &Node) -> Option<()> {
        (node.int("batch_dims").unwrap_or_default() == 0).then_some(())?;
        let (output, name) = self.output(node)?;
        let input = node.input(0)?;
        let axis = i64::try_from(self.position(node.int("axis")?, input)?).ok()?;
        let x = self.value(input, Order::Natural)?;
        let indices = self.value(node.input(1)?, Order::Natural)?;
        let y = self.out.main.op("Gather", [x, indices]).attribute("axis", axis).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    /// An operator whose second input is a list of integers.
    fn with_ints(&mut self, node: &Node, op: &str) -> Option<()> {
        let (output, name) = self.output(node)?;
        let x = self.value(node.input(0)?, Order::Natural)?;
        let list = self.ints(node, 1)?;
        let list = self.out.main.ints(&list);
        let y = self.out.main.op(op, [x, list]).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    fn select(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        let rank = self.rank(node.input(0)?)?;
        // The older one takes a row of conditions, for whole rows.
        let is_plain = &*node.op.name == "SELECT_V2" || self.rank(node.input(1)?)? == rank;
        is_plain.then_some(())?;
        let condition = self.value(node.input(0)?, Order::Natural)?;
        let a = self.value(node.input(1)?, Order::Natural)?;
        let b = self.value(node.input(2)?, Order::Natural)?;
        let y = self.out.main.op("Where", [condition, a, b]).output(&name);
        self.set(output, y, Order::Natural);
        Some(())
    }

    /// Returns the position of an axis of a value. Negative axes count from the end.
    fn position(&self, axis: i64, id: ValueId) -> Option<usize> {
        let axis = self.axis(axis, self.rank(id)?, Order::Natural)?;
        usize::try_from(axis).ok()
    }
}
