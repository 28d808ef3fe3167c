//! Tuples, lists, sets and dictionaries.

use apr_core::Result;

use super::Vm;
use crate::pickle::opcode as op;
use crate::pickle::value::{Id, Node};

impl Vm<'_> {
    pub(super) fn collect(&mut self) -> Result<()> {
        let items = self.pop_mark()?;
        let node = match self.opcode {
            op::TUPLE => Node::Tuple(items.into()),
            op::LIST => Node::List(items),
            op::FROZENSET => Node::Set(items),
            _ => Node::Dict(self.pairs(&items)?),
        };
        self.push_node(node)
    }

    fn pairs(&self, items: &[Id]) -> Result<Vec<(Id, Id)>> {
        if !items.len().is_multiple_of(2) {
            self.refuse("has a key without a value")?;
        }
        Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }

    pub(super) fn short_tuple(&mut self) -> Result<()> {
        let len = usize::from(self.opcode - op::TUPLE1) + 1;
        let mut items = (0..len).map(|_| self.pop()).collect::<Result<Vec<_>>>()?;
        items.reverse();
        self.push_node(Node::Tuple(items.into()))
    }

    pub(super) fn extend(&mut self) -> Result<()> {
        let items = match self.opcode {
            op::APPEND => vec![self.pop()?],
            op::SETITEM => {
                let value = self.pop()?;
                vec![self.pop()?, value]
            }
            _ => self.pop_mark()?,
        };

        let target = self.top()?;
        let keyed = matches!(self.opcode, op::SETITEM | op::SETITEMS);
        let pairs = if keyed { self.pairs(&items)? } else { Vec::new() };
        match (self.heap.get_mut(target), keyed) {
            (Node::Dict(dict), true) => dict.extend(pairs),
            (Node::List(list), false) if self.opcode != op::ADDITEMS => list.extend(items),
            (Node::Set(set), false) => set.extend(items),
            _ => self.refuse("adds to a value that is not a container for it")?,
        }

        Ok(())
    }
}
