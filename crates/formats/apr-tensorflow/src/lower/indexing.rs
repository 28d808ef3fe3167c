//! Operators that take parts of a value.

use apr_graph::{ElementType, Node, ValueId, ValueOrigin};
use apr_lower::{Order, Placed};

use super::{Lowering, Source};

/// The selection of a strided slice along the dimensions of its input.
#[derive(Default)]
struct Strides {
    starts: Vec<i64>,
    ends: Vec<i64>,
    steps: Vec<i64>,
    axes: Vec<i64>,
    /// Dimensions of the input that are removed.
    gone: Vec<i64>,
    /// Dimensions of the output that are new.
    new: Vec<i64>,
    /// Dimensions of the output, of which one place is taken that the model computes: the number
    /// at this position of the starts.
    picked: Vec<(i64, i64)>,
}

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn indexing(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "Gather" | "ResourceGather" => self.gather(node, 0),
            "GatherV2" => {
                (node.int("batch_dims").unwrap_or_default() == 0).then_some(())?;
                let axis = *self.ints(node, 2)?.first()?;
                self.gather(node, axis)
            }
            "GatherNd" => {
                let ids = [self.natural(node, 0)?, self.longs(node, 1)?];
                self.plain(node, "GatherND", &ids)
            }
            "OneHot" => self.one_hot(node),
            "Slice" => self.slice(node),
            "Split" => self.split(node),
            "SplitV" => self.split_by_sizes(node),
            "StridedSlice" => self.strided_slice(node),
            "Unpack" => self.unpack(node),
            "Where" => self.positions(node),
            _ => None,
        }
    }

    fn gather(&mut self, node: &Node, axis: i64) -> Option<()> {
        let ids = [self.natural(node, 0)?, self.natural(node, 1)?];
        let (_, name) = self.output(node)?;
        let y = self.out.main.op("Gather", ids).attribute("axis", axis).output(&name);
        self.set(node, y, Order::Natural)
    }

    fn one_hot(&mut self, node: &Node) -> Option<()> {
        let (_, name) = self.output(node)?;
        let indices = self.natural(node, 0)?;
        // Runtimes have no integers of 32 bits there.
        let indices = self.out.cast(indices, ElementType::I64, &format!("{name}/indices"));
        let depth = *self.ints(node, 1)?.first()?;
        let (on, off) = (self.natural(node, 2)?, self.natural(node, 3)?);
        let main = &mut self.out.main;
        let (depth, axis) = (main.int(depth), main.ints(&[0]));
        let off = main.op("Unsqueeze", [off, axis]).output(&format!("{name}/off"));
        let on = main.op("Unsqueeze", [on, axis]).output(&format!("{name}/on"));
        let values = main.op("Concat", [off, on]).attribute("axis", 0);
        let values = values.output(&format!("{name}/values"));
        let axis = node.int("axis").unwrap_or(-1);
        let made = main.op("OneHot", [indices, depth, values]).attribute("axis", axis);
        let y = made.output(&name);
        self.set(node, y, Order::Natural)
    }

    /// Lowers `Where`: a row of positions for each element that is not 0.
    fn positions(&mut self, node: &Node) -> Option<()> {
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let made = self.out.main.op("NonZero", [x]).output(&format!("{name}/columns"));
        let y = self.out.main.op("Transpose", [made]).attribute("perm", [1, 0]).output(&name);
        self.set(node, y, Order::Natural)
    }

    fn slice(&mut self, node: &Node) -> Option<()> {
        let x = self.natural(node, 0)?;
        let (starts, sizes) = (self.ints(node, 1)?, self.ints(node, 2)?);
        (starts.len() == sizes.len()).then_some(())?;
        let end = |(start, size): (&i64, &i64)| match *size {
            ..0 => Some(i64::MAX),
            size => start.checked_add(size),
        };
        let ends: Option<Vec<i64>> = starts.iter().zip(&sizes).map(end).collect();
        let (starts, ends) = (self.out.main.ints(&starts), self.out.main.ints(&ends?));
        self.plain(node, "Slice", &[x, starts, ends])
    }

    fn split(&mut self, node: &Node) -> Option<()> {
        let axis = *self.ints(node, 0)?.first()?;
        let dims = self.dims(node, 1)?;
        let axis = Self::position(axis, dims.len())?;
        let count = u64::try_from(node.int("num_split")?).ok().filter(|count| *count > 0)?;
        let size = dims[axis]?;
        size.is_multiple_of(count).then_some(())?;
        let each = i64::try_from(size / count).ok()?;
        (node.outputs.len() as u64 <= count).then_some(())?;
        self.cut(node, 1, axis, &vec![each; node.outputs.len()])
    }

    fn split_by_sizes(&mut self, node: &Node) -> Option<()> {
        let axis = *self.ints(node, 2)?.first()?;
        let mut sizes = self.ints(node, 1)?;
        let dims = self.dims(node, 0)?;
        let axis = Self::position(axis, dims.len())?;
        if sizes.iter().any(|size| *size < 0) {
            // One may be what is left.
            let known = sizes
                .iter()
                .filter(|size| **size >= 0)
                .try_fold(0_i64, |sum, size| sum.checked_add(*size))?;
            let left = i64::try_from(dims[axis]?).ok()?.checked_sub(known)?;
            sizes.iter_mut().filter(|size| **size < 0).for_each(|size| *size = left);
        }
        (node.outputs.len() <= sizes.len()).then_some(())?;
        self.cut(node, 0, axis, &sizes)
    }

    /// Outputs that follow each other along a dimension.
    fn cut(&mut self, node: &Node, input: usize, axis: usize, sizes: &[i64]) -> Option<()> {
        let x = self.natural(node, input)?;
        let axes = self.out.main.ints(&[i64::try_from(axis).ok()?]);
        let mut start = 0_i64;
        for (output, size) in node.outputs.iter().zip(sizes) {
            let end = start.checked_add(*size).filter(|end| *end >= start)?;
            if let Some(output) = output {
                let name = self.from.value(*output).name.clone();
                let (first, last) = (self.out.main.ints(&[start]), self.out.main.ints(&[end]));
                let y = self.out.main.op("Slice", [x, first, last, axes]).output(&name);
                self.values[output.0 as usize] = Some(Source::Made(Placed::natural(y)));
            }
            start = end;
        }
        Some(())
    }

    fn unpack(&mut self, node: &Node) -> Option<()> {
        let axis = node.int("axis").unwrap_or_default();
        let x = self.natural(node, 0)?;
        for (number, output) in (0..).zip(&node.outputs) {
            let Some(output) = output else { continue };
            let name = self.from.value(*output).name.clone();
            let index = self.out.main.int(number);
            let y = self.out.main.op("Gather", [x, index]).attribute("axis", axis).output(&name);
            self.values[output.0 as usize] = Some(Source::Made(Placed::natural(y)));
        }
        Some(())
    }

    /// Returns a list of positions. Unknown ones, such as loop counters, are `None`.
    fn places(&mut self, node: &Node, input: usize) -> Option<Vec<Option<i64>>> {
        if let Some(known) = self.elements(node, input) {
            return Some(known);
        }
        let from = self.from;
        let ValueOrigin::Node(maker) = from.value(node.input(input)?).origin else { return None };
        let maker = from.node(maker);
        (&*maker.op.name == "Pack").then_some(())?;
        let known = (0..maker.inputs.len()).map(|at| match self.ints(maker, at).as_deref() {
            Some([one]) => Some(*one),
            _ => None,
        });
        Some(known.collect())
    }

    fn strided_slice(&mut self, node: &Node) -> Option<()> {
        let rank = self.rank(node, 0);
        let starts = self.places(node, 1)?;
        let steps = self.ints(node, 3)?;
        // The ends of places that are computed are, too.
        let ends = self.places(node, 2)?;
        let spec = [starts, ends, steps.into_iter().map(Some).collect()];
        let Strides { starts, ends, steps, axes, gone, new, picked } = strides(node, &spec, rank)?;
        let mut y = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let mut parts: Vec<(&str, Vec<ValueId>)> = Vec::new();
        if !axes.is_empty() {
            let lists = [starts, ends, axes, steps].map(|list| self.out.main.ints(&list));
            parts.push(("Slice", lists.to_vec()));
        }
        for (op, axes) in [("Squeeze", gone), ("Unsqueeze", new)] {
            if !axes.is_empty() {
                parts.push((op, vec![self.out.main.ints(&axes)]));
            }
        }
        let last = parts.len().checked_sub(1);
        for (number, (op, others)) in parts.into_iter().enumerate() {
            let name = match picked.is_empty() && last == Some(number) {
                true => name.clone(),
                false => format!("{name}/{}", op.to_lowercase()),
            };
            let inputs = [y].into_iter().chain(others);
            y = self.out.main.op(op, inputs).output(&name);
        }
        // From the last on, so that those before keep their places.
        for (number, (axis, position)) in picked.iter().enumerate().rev() {
            let starts = self.longs(node, 1)?;
            let main = &mut self.out.main;
            let position = main.int(*position);
            let place = main.op("Gather", [starts, position]).output(&format!("{name}/place"));
            let name = if number == 0 { name.clone() } else { format!("{name}/picked{number}") };
            y = main.op("Gather", [y, place]).attribute("axis", *axis).output(&name);
        }
        self.set(node, y, Order::Natural)
    }
}

/// Interprets the masks of a strided slice (`StridedSliceDenseSpec`).
fn strides(node: &Node, spec: &[Vec<Option<i64>>; 3], rank: Option<usize>) -> Option<Strides> {
    let [starts, ends, steps] = spec;
    let count = starts.len();
    (ends.len() == count && steps.len() == count && count < 64).then_some(())?;
    let mask = |name: &str| node.int(name).unwrap_or_default();
    let [begin, end, ellipsis, new, shrink] =
        ["begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"].map(mask);
    let is_set = |mask: i64, at: usize| mask >> at & 1 == 1;
    let named = (0..count).filter(|at| !is_set(ellipsis, *at) && !is_set(new, *at)).count();
    let mut found = Strides::default();
    // Dimensions of the input, and of the output.
    let (mut axis, mut out) = (0_i64, 0_i64);
    for at in 0..count {
        if is_set(ellipsis, at) {
            let skipped = i64::try_from(rank?.checked_sub(named)?).ok()?;
            axis += skipped;
            out += skipped;
            continue;
        }
        if is_set(new, at) {
            found.new.push(out);
            out += 1;
            continue;
        }
        if starts[at].is_none() && is_set(shrink, at) {
            found.picked.push((out, i64::try_from(at).ok()?));
            axis += 1;
            out += 1;
            continue;
        }
        let known = |list: &[Option<i64>], mask: i64| match is_set(mask, at) {
            true => Some(0),
            false => list[at],
        };
        let (mut first, mut last) = (known(starts, begin)?, known(ends, end | shrink)?);
        let mut step = steps[at].filter(|step| *step != 0)?;
        if is_set(shrink, at) {
            // One index, whose dimension goes.
            (first, last, step) =
                (first, if first == -1 { i64::MAX } else { first.checked_add(1)? }, 1);
            found.gone.push(axis);
        } else {
            if is_set(begin, at) {
                first = if step > 0 { 0 } else { i64::MAX };
            }
            if is_set(end, at) {
                last = if step > 0 { i64::MAX } else { i64::MIN + 1 };
            }
            out += 1;
        }
        if (first, last, step) != (0, i64::MAX, 1) {
            found.starts.push(first);
            found.ends.push(last);
            found.steps.push(step);
            found.axes.push(axis);
        }
        axis += 1;
    }
    Some(found)
}
