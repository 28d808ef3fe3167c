//! Lists of tensors, which loops read and write: `TensorArray` in programs. A list is its items
//! along a new first dimension.

use apr_graph::{ElementType, Node, ValueId};
use apr_lower::Order;

use super::elementwise::element;
use super::{Lowering, Source};

/// A number of items or rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Known(i64),
    Made(ValueId),
}

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn tensor_list(&mut self, node: &Node) -> Option<()> {
        let (output, name) = self.output(node)?;
        match &*node.op.name {
            "TensorListReserve" => {
                let element = element(node.text("element_dtype")?)?;
                let (dims, count) = (self.ints(node, 0).unwrap_or_default(), self.count(node, 1)?);
                // -1 for a shape of which nothing is known.
                let is_known = self.rank(node, 0) == Some(1);
                let dims = is_known.then_some(dims);
                self.values[output.0 as usize] = Some(Source::List { count, element, dims });
                Some(())
            }
            "TensorListFromTensor" | "TensorListStack" => {
                let items = self.natural(node, 0)?;
                self.set(node, items, Order::Natural)
            }
            "TensorListGetItem" => {
                let ids = [self.natural(node, 0)?, self.natural(node, 1)?];
                self.plain(node, "Gather", &ids)
            }
            "TensorListSetItem" => {
                let (items, item) = (self.natural(node, 0)?, self.natural(node, 2)?);
                let index = self.longs(node, 1)?;
                let main = &mut self.out.main;
                let (shape, axis) = (main.ints(&[1, 1]), main.ints(&[0]));
                let index = main.op("Reshape", [index, shape]).output(&format!("{name}/index"));
                let item = main.op("Unsqueeze", [item, axis]).output(&format!("{name}/item"));
                self.plain(node, "ScatterND", &[items, index, item])
            }
            "TensorListLength" => {
                let items = self.natural(node, 0)?;
                let main = &mut self.out.main;
                let first = main.int(0);
                let shape = main.op("Shape", [items]).output(&format!("{name}/shape"));
                let count = main.op("Gather", [shape, first]).output(&format!("{name}/long"));
                let count = self.out.cast(count, ElementType::I32, &name);
                self.set(node, count, Order::Natural)
            }
            _ => None,
        }
    }

    /// A number of items or rounds.
    pub(super) fn count(&mut self, node: &Node, input: usize) -> Option<Count> {
        match self.ints(node, input).as_deref() {
            Some([known]) => Some(Count::Known(*known)),
            _ => self.natural(node, input).map(Count::Made),
        }
    }

    /// Returns a count as an integer of 64 bits.
    pub(super) fn counted(&mut self, count: Count, name: &str) -> ValueId {
        match count {
            Count::Known(known) => self.out.main.int(known),
            Count::Made(id) => self.out.cast(id, ElementType::I64, name),
        }
    }

    /// Creates a list of zeros before its items are set, if the sizes of the items are known.
    pub(super) fn zeros(
        &mut self,
        count: Count,
        element: ElementType,
        dims: Option<&[i64]>,
    ) -> Option<ValueId> {
        let dims = dims.filter(|dims| dims.iter().all(|size| *size >= 0))?;
        let count = self.counted(count, "items/count");
        let zero = self.out.main.int(0);
        let zero = self.out.cast(zero, element, "items/zero");
        let main = &mut self.out.main;
        let axis = main.ints(&[0]);
        let mut shape = main.op("Unsqueeze", [count, axis]).output("items/first");
        if !dims.is_empty() {
            let rest = main.ints(dims);
            let parts = main.op("Concat", [shape, rest]).attribute("axis", 0);
            shape = parts.output("items/shape");
        }
        Some(main.op("Expand", [zero, shape]).output("items"))
    }
}
