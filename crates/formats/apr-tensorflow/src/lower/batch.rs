//! Blocks of images as rows of a larger batch, which convolutions with gaps are written with.
//!
//! Sizes are computed by the graph, which inference follows where they are known.

use apr_graph::{Node, ValueId};

use super::Lowering;

impl Lowering<'_> {
    pub(super) fn batch(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "SpaceToBatchND" => self.space_to_batch(node),
            _ => self.batch_to_space(node),
        }
    }

    /// The input, the sizes of its blocks, and the number of its dimensions.
    fn block_input(&mut self, node: &Node) -> Option<(ValueId, Vec<i64>, usize)> {
        let blocks = self.ints(node, 1)?;
        let rank = self.rank(node, 0)?;
        let is_plain = !blocks.is_empty() && blocks.iter().all(|size| *size > 0);
        (is_plain && rank > blocks.len()).then_some(())?;
        Some((self.natural(node, 0)?, blocks, rank))
    }

    /// A list of integers from here to there.
    fn part(&mut self, list: ValueId, from: usize, to: Option<usize>, name: &str) -> ValueId {
        let main = &mut self.out.main;
        let (from, to) = (main.ints(&[long(from)]), main.ints(&[to.map_or(i64::MAX, long)]));
        main.op("Slice", [list, from, to]).output(name)
    }

    /// Lists of integers one after the other.
    fn list(&mut self, parts: Vec<ValueId>, name: &str) -> ValueId {
        self.out.main.op("Concat", parts).attribute("axis", 0).output(name)
    }

    /// The first or the last numbers of pairs, which are rows of an input.
    fn column(&mut self, node: &Node, input: usize, column: i64, name: &str) -> Option<ValueId> {
        if let Some(pairs) = self.ints(node, input) {
            let skip = usize::try_from(column).ok()?;
            let own: Vec<i64> = pairs.into_iter().skip(skip).step_by(2).collect();
            return Some(self.out.main.ints(&own));
        }
        let pairs = self.longs(node, input)?;
        let main = &mut self.out.main;
        let index = main.int(column);
        Some(main.op("Gather", [pairs, index]).attribute("axis", 1).output(name))
    }

    fn space_to_batch(&mut self, node: &Node) -> Option<()> {
        let (x, blocks, rank) = self.block_input(node)?;
        let count = blocks.len();
        let (_, name) = self.output(node)?;
        let before = self.column(node, 2, 0, &format!("{name}/before"))?;
        let after = self.column(node, 2, 1, &format!("{name}/after"))?;
        let (zero, rest) = (self.out.main.ints(&[0]), vec![0; rank - 1 - count]);
        let rest = self.out.main.ints(&rest);
        let pads = vec![zero, before, rest, zero, after, rest];
        let pads = self.list(pads, &format!("{name}/pads"));
        let padded = self.out.main.op("Pad", [x, pads]).output(&format!("{name}/padded"));

        // [batch, n1, b1, n2, b2, ...] to [b1, b2, batch, n1, n2, ...].
        let sizes = self.out.main.op("Shape", [padded]).output(&format!("{name}/sizes"));
        let mut shape = vec![self.part(sizes, 0, Some(1), &format!("{name}/rows"))];
        let mut target = vec![self.out.main.ints(&[-1])];
        for (axis, block) in blocks.iter().enumerate() {
            let size = self.part(sizes, axis + 1, Some(axis + 2), &format!("{name}/size{axis}"));
            let block = self.out.main.ints(&[*block]);
            let each = self.out.main.op("Div", [size, block]).output(&format!("{name}/each{axis}"));
            shape.extend([each, block]);
            target.push(each);
        }
        let rest = self.part(sizes, count + 1, None, &format!("{name}/rest"));
        shape.push(rest);
        target.push(rest);
        let mut perm: Vec<i64> = (0..count).map(|axis| long(2 + 2 * axis)).collect();
        perm.push(0);
        perm.extend((0..count).map(|axis| long(1 + 2 * axis)));
        perm.extend((1 + 2 * count..rank + count).map(long));
        let turned = self.turned_blocks(padded, shape, perm, &name);
        let target = self.list(target, &format!("{name}/target"));
        self.plain(node, "Reshape", &[turned, target])
    }

    /// Lowers the reverse of `SpaceToBatchND`, with crops at the ends.
    fn batch_to_space(&mut self, node: &Node) -> Option<()> {
        let (x, blocks, rank) = self.block_input(node)?;
        let count = blocks.len();
        let (_, name) = self.output(node)?;
        // [b1, b2, batch, n1, n2, ...] to [batch, n1, b1, n2, b2, ...].
        let sizes = self.out.main.op("Shape", [x]).output(&format!("{name}/sizes"));
        let mut shape = vec![self.out.main.ints(&blocks), self.out.main.ints(&[-1])];
        shape.push(self.part(sizes, 1, None, &format!("{name}/own")));
        let mut whole = Vec::with_capacity(count);
        for (axis, block) in blocks.iter().enumerate() {
            let size = self.part(sizes, axis + 1, Some(axis + 2), &format!("{name}/size{axis}"));
            let block = self.out.main.ints(&[*block]);
            let main = &mut self.out.main;
            whole.push(main.op("Mul", [size, block]).output(&format!("{name}/whole{axis}")));
        }
        let mut target = vec![self.out.main.ints(&[-1])];
        target.extend(&whole);
        target.push(self.part(sizes, count + 1, None, &format!("{name}/rest")));
        let mut perm = vec![long(count)];
        perm.extend((0..count).flat_map(|axis| [long(count + 1 + axis), long(axis)]));
        perm.extend((2 * count + 1..rank + count).map(long));
        let turned = self.turned_blocks(x, shape, perm, &name);
        let target = self.list(target, &format!("{name}/target"));
        let joined =
            self.out.main.op("Reshape", [turned, target]).output(&format!("{name}/joined"));

        let before = self.column(node, 2, 0, &format!("{name}/before"))?;
        let after = self.column(node, 2, 1, &format!("{name}/after"))?;
        let whole = self.list(whole, &format!("{name}/whole"));
        let ends = self.out.main.op("Sub", [whole, after]).output(&format!("{name}/ends"));
        let axes: Vec<i64> = (1..=count).map(long).collect();
        let axes = self.out.main.ints(&axes);
        self.plain(node, "Slice", &[joined, before, ends, axes])
    }

    /// A value in a shape that is a list of parts, with its dimensions in another order.
    fn turned_blocks(
        &mut self,
        x: ValueId,
        shape: Vec<ValueId>,
        perm: Vec<i64>,
        name: &str,
    ) -> ValueId {
        let shape = self.list(shape, &format!("{name}/shape"));
        let main = &mut self.out.main;
        let blocks = main.op("Reshape", [x, shape]).output(&format!("{name}/blocks"));
        let turned = main.op("Transpose", [blocks]).attribute("perm", perm);
        turned.output(&format!("{name}/turned"))
    }
}

/// A position that a value of at most [`apr_graph::MAX_RANK`] dimensions has.
fn long(position: usize) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}
