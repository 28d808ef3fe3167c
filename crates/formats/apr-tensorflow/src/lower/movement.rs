//! Operators that move elements, and those that make shapes.

use apr_graph::{ElementType, Node, ValueId};
use apr_lower::{Order, Placed, to_channels_first, to_natural};

use super::elementwise::element;
use super::{Lowering, Source};

impl Lowering<'_> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn movement(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "BroadcastTo" => self.with_longs(node, "Expand"),
            "Concat" => self.concat(node, 0),
            "ConcatV2" => self.concat(node, node.inputs.len().checked_sub(1)?),
            "ExpandDims" => self.expand_dims(node),
            "Fill" => {
                let ids = [self.natural(node, 1)?, self.longs(node, 0)?];
                self.plain(node, "Expand", &ids)
            }
            "OnesLike" => self.like(node, 1),
            "Pack" => self.pack(node),
            "Range" => {
                let ids = [self.natural(node, 0)?, self.natural(node, 1)?, self.natural(node, 2)?];
                self.plain(node, "Range", &ids)
            }
            "Rank" => {
                let rank = i32::try_from(self.rank(node, 0)?).ok()?;
                self.number(node, rank)
            }
            "Reshape" => self.reshape(node),
            "ReverseV2" => self.reverse(node),
            "Shape" => self.shape(node),
            "Size" => {
                let x = self.natural(node, 0)?;
                let (_, name) = self.output(node)?;
                let size = self.out.main.op("Size", [x]).output(&format!("{name}/long"));
                self.of_type(node, size)
            }
            "Squeeze" => self.squeeze(node),
            "Tile" => self.with_longs(node, "Tile"),
            "Transpose" => self.transpose(node),
            "ZerosLike" => self.like(node, 0),
            _ => None,
        }
    }

    /// An operator whose second input is a list of integers.
    fn with_longs(&mut self, node: &Node, op: &str) -> Option<()> {
        let ids = [self.natural(node, 0)?, self.longs(node, 1)?];
        self.plain(node, op, &ids)
    }

    fn reshape(&mut self, node: &Node) -> Option<()> {
        let x = self.natural(node, 0)?;
        let known = self.elements(node, 1);
        let count = known.iter().flatten().filter(|size| size.is_none_or(|size| size < 0)).count();
        let shape = match known {
            // One size that is not known is what is left; a size of 0 is one there, too.
            Some(sizes) if count <= 1 && !sizes.contains(&Some(0)) => {
                let sizes: Vec<i64> = sizes.iter().map(|size| size.unwrap_or(-1)).collect();
                self.out.main.ints(&sizes)
            }
            _ => self.longs(node, 1)?,
        };
        self.plain(node, "Reshape", &[x, shape])
    }

    fn squeeze(&mut self, node: &Node) -> Option<()> {
        let dims = self.dims(node, 0);
        let x = self.natural(node, 0)?;
        let mut axes = node.ints("squeeze_dims").unwrap_or_default().to_vec();
        if axes.is_empty() {
            let dims: Option<Vec<u64>> = dims?.into_iter().collect();
            axes = (0..).zip(dims?).filter(|(_, size)| *size == 1).map(|(axis, _)| axis).collect();
        }
        let axes = self.out.main.ints(&axes);
        self.plain(node, "Squeeze", &[x, axes])
    }

    fn expand_dims(&mut self, node: &Node) -> Option<()> {
        let axes = self.ints(node, 1)?;
        (axes.len() == 1).then_some(())?;
        let x = self.natural(node, 0)?;
        let axes = self.out.main.ints(&axes);
        self.plain(node, "Unsqueeze", &[x, axes])
    }

    fn transpose(&mut self, node: &Node) -> Option<()> {
        let perm = self.ints(node, 1)?;
        let order: Option<Vec<usize>> =
            perm.iter().map(|axis| usize::try_from(*axis).ok()).collect();
        let order = order?;
        // Images that the program turns around itself need no second transposition.
        if let Source::Made(placed) = *self.source(node, 0)?
            && order.len() >= 3
        {
            let turned = [
                (Order::ChannelsFirst, to_channels_first(order.len()), Order::Natural),
                (Order::Natural, to_natural(order.len()), Order::ChannelsFirst),
            ];
            for (from, own, to) in turned {
                if placed.order == from && order == own {
                    let id = node.outputs.first().copied().flatten()?;
                    let made = Placed { id: placed.id, order: to };
                    self.values[id.0 as usize] = Some(Source::Made(made));
                    return Some(());
                }
            }
        }
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let y = self.out.main.op("Transpose", [x]).attribute("perm", perm).output(&name);
        self.set(node, y, Order::Natural)
    }

    /// Lowers the concatenation of values along a dimension, which is itself an input.
    fn concat(&mut self, node: &Node, axis: usize) -> Option<()> {
        let along = *self.ints(node, axis)?.first()?;
        let parts: Vec<usize> = (0..node.inputs.len()).filter(|input| *input != axis).collect();
        let mut is_one_rank = true;
        let rank = self.rank(node, *parts.first()?);
        for part in &parts {
            is_one_rank &= self.rank(node, *part) == rank;
        }
        let (ids, order, name) = match (rank, is_one_rank) {
            (Some(_), true) => self.in_one_order(node, &parts)?,
            _ => {
                let ids: Option<Vec<ValueId>> =
                    parts.iter().map(|part| self.natural(node, *part)).collect();
                (ids?, Order::Natural, self.output(node)?.1)
            }
        };
        let along = match order {
            Order::Natural => along,
            Order::ChannelsFirst => {
                let placed = Placed { id: ids[0], order };
                i64::try_from(placed.axis(Self::position(along, rank?)?, rank?)).ok()?
            }
        };
        let y = self.out.main.op("Concat", ids).attribute("axis", along).output(&name);
        self.set(node, y, order)
    }

    fn pack(&mut self, node: &Node) -> Option<()> {
        let (_, name) = self.output(node)?;
        let rank = self.rank(node, 0)?;
        let axis = node.int("axis").unwrap_or_default();
        let axis = i64::try_from(Self::position(axis, rank.checked_add(1)?)?).ok()?;
        let axes = self.out.main.ints(&[axis]);
        let mut parts = Vec::with_capacity(node.inputs.len());
        for input in 0..node.inputs.len() {
            let x = self.natural(node, input)?;
            let name = format!("{name}/part{input}");
            parts.push(self.out.main.op("Unsqueeze", [x, axes]).output(&name));
        }
        let y = self.out.main.op("Concat", parts).attribute("axis", axis).output(&name);
        self.set(node, y, Order::Natural)
    }

    fn reverse(&mut self, node: &Node) -> Option<()> {
        let axes = self.ints(node, 1)?;
        let x = self.natural(node, 0)?;
        let all = |value: i64| vec![value; axes.len()];
        let main = &mut self.out.main;
        let inputs = [
            x,
            main.ints(&all(-1)),
            main.ints(&all(i64::MIN + 1)),
            main.ints(&axes),
            main.ints(&all(-1)),
        ];
        self.plain(node, "Slice", &inputs)
    }

    /// The sizes of a value, in the natural order.
    fn shape(&mut self, node: &Node) -> Option<()> {
        let (_, name) = self.output(node)?;
        let shape = match self.source(node, 0)?.clone() {
            Source::Made(placed) if placed.order == Order::ChannelsFirst => {
                let rank = self.out.rank(placed.id)?;
                let main = &mut self.out.main;
                let own = main.op("Shape", [placed.id]).output(&format!("{name}/own"));
                let order: Vec<i64> = to_natural(rank)
                    .into_iter()
                    .filter_map(|axis| i64::try_from(axis).ok())
                    .collect();
                let order = main.ints(&order);
                main.op("Gather", [own, order]).output(&format!("{name}/long"))
            }
            _ => {
                let x = self.natural(node, 0)?;
                self.out.main.op("Shape", [x]).output(&format!("{name}/long"))
            }
        };
        self.of_type(node, shape)
    }

    /// Integers of the type that a node is to return.
    fn of_type(&mut self, node: &Node, long: ValueId) -> Option<()> {
        let (_, name) = self.output(node)?;
        let to = element(node.text("out_type").unwrap_or("int32"))?;
        let y = self.out.cast(long, to, &name);
        self.set(node, y, Order::Natural)
    }

    /// One number as what a node returns.
    fn number(&mut self, node: &Node, value: i32) -> Option<()> {
        let data = apr_graph::ConstantData::Bytes(value.to_le_bytes().to_vec());
        let constant = apr_graph::Constant {
            name: String::new(),
            element: ElementType::I32,
            shape: Vec::new(),
            data,
        };
        let id = node.outputs.first().copied().flatten()?;
        self.values[id.0 as usize] = Some(Source::Constant(constant));
        Some(())
    }

    /// A value of the same shape that has one number everywhere.
    fn like(&mut self, node: &Node, value: i64) -> Option<()> {
        let to = self.element(node, 0)?;
        let x = self.natural(node, 0)?;
        let (_, name) = self.output(node)?;
        let shape = self.out.main.op("Shape", [x]).output(&format!("{name}/shape"));
        let number = self.out.main.int(value);
        let number = self.out.cast(number, to, &format!("{name}/number"));
        self.plain(node, "Expand", &[number, shape])
    }
}
