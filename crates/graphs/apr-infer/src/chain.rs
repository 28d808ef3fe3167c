//! Nodes that are run as one, where nobody looks at what is between them.

use apr_graph::{Body, Node, ValueId, ValueOrigin};

use crate::action::{Action, read_by_bodies};
use crate::operator::Operator;

/// Attention that a graph spells out: products of queries and keys, perhaps times or over a number,
/// perhaps plus a mask, their softmax, and its products with values. Where heads of queries share
/// keys, products have the rows of a group in one matrix, and scores have each head by itself. The
/// scores of all queries together may take more memory than everything else.
#[derive(Clone)]
pub(crate) struct Chain {
    /// The nodes in the order in which they run; the last one makes the result.
    pub(crate) links: Vec<Link>,
    /// Queries, keys as columns, values, the number, the mask and two shapes. The first shape is
    /// that of the scores, if it differs from the shape of the products. The second is the shape
    /// that probabilities get before they are multiplied.
    pub(crate) inputs: [Option<ValueId>; 7],
    /// Node that computes the probabilities.
    pub(crate) softmax: Link,
    /// `true` if products are divided by the number instead of multiplied.
    pub(crate) divides: bool,
}

/// A node of a chain.
#[derive(Clone, Copy)]
pub(crate) struct Link {
    /// Position in the body's nodes.
    pub(crate) node: usize,
    pub(crate) operator: &'static Operator,
    pub(crate) opset: i64,
}

impl Chain {
    /// Returns the chains of the needed nodes. `kept` values are needed after the run.
    pub(crate) fn all(
        body: &Body,
        actions: &[Action],
        needed: &[bool],
        kept: &[ValueId],
    ) -> Vec<Self> {
        let search = Search::new(body, actions, needed, kept);
        (0..body.nodes.len()).filter_map(|position| search.around(position)).collect()
    }

    /// The node that makes the result.
    pub(crate) fn last(&self) -> usize {
        self.links.last().map_or(0, |link| link.node)
    }
}

/// Products of queries and keys, perhaps times or over a number.
struct Scores {
    links: Vec<Link>,
    queries: Option<ValueId>,
    keys: Option<ValueId>,
    number: Option<ValueId>,
    divides: bool,
    shape: Option<ValueId>,
}

struct Search<'a> {
    body: &'a Body,
    actions: &'a [Action],
    needed: &'a [bool],
    /// Number of reads of each value, and the node that reads it last.
    reads: Vec<(u32, usize)>,
}

impl<'a> Search<'a> {
    fn new(body: &'a Body, actions: &'a [Action], needed: &'a [bool], kept: &[ValueId]) -> Self {
        let mut reads = vec![(0, 0); body.values.len()];
        let mut read = |id: ValueId, reader: usize| {
            let entry: &mut (u32, usize) = &mut reads[id.0 as usize];
            *entry = (entry.0 + 1, reader);
        };
        for (position, node) in
            body.nodes.iter().enumerate().filter(|(position, _)| needed[*position])
        {
            node.inputs.iter().flatten().for_each(|id| read(*id, position));
            // What a branch reads has to be there: it counts as read elsewhere too.
            read_by_bodies(node).into_iter().for_each(|id| (0..2).for_each(|_| read(id, position)));
        }

        // A value that somebody wants counts as read twice, so that no chain swallows it.
        kept.iter().for_each(|id| (0..2).for_each(|_| read(*id, 0)));
        Self { body, actions, needed, reads }
    }

    /// A node, if it is needed and runs that operator of ONNX.
    fn link(&self, node: usize, name: &str) -> Option<Link> {
        let op = &self.body.nodes[node].op;
        match self.actions[node] {
            Action::Operator { operator, opset }
                if op.domain.is_empty() && *op.name == *name && self.needed[node] =>
            {
                Some(Link { node, operator, opset })
            }
            _ => None,
        }
    }

    /// Returns the node that makes a value, if it is the named operator and the value is read only
    /// once.
    fn maker(&self, id: Option<ValueId>, name: &str) -> Option<Link> {
        let id = id?;
        let ValueOrigin::Node(node) = self.body.value(id).origin else { return None };
        let (reads, _) = self.reads[id.0 as usize];
        if reads == 1 { self.link(node.0 as usize, name) } else { None }
    }

    fn input(&self, link: Link, position: usize) -> Option<ValueId> {
        input(&self.body.nodes[link.node], position)
    }

    /// The chain around a softmax.
    fn around(&self, position: usize) -> Option<Chain> {
        let softmax = self.link(position, "Softmax")?;
        let probs = self.body.nodes[position].outputs.first().copied().flatten()?;
        // Probabilities that something else reads have to be there as a value.
        let grouping = self.reader(probs, "Reshape").filter(|link| self.is_plain(*link));
        let multiplied = match grouping {
            Some(link) => self.body.nodes[link.node].outputs.first().copied().flatten()?,
            None => probs,
        };
        let context = self.reader(multiplied, "MatMul")?;
        let (scores, mask) = self.masked(self.input(softmax, 0))?;
        let inputs = [
            scores.queries,
            scores.keys,
            self.input(context, 1),
            scores.number,
            mask,
            scores.shape,
            grouping.and_then(|link| self.input(link, 1)),
        ];
        let mut links = scores.links;
        links.push(softmax);
        links.extend(grouping);
        links.push(context);
        Some(Chain { links, inputs, softmax, divides: scores.divides })
    }

    /// The only node that reads a value, if it is that operator, and reads it as its first input.
    fn reader(&self, id: ValueId, name: &str) -> Option<Link> {
        let (1, reader) = self.reads[id.0 as usize] else { return None };
        self.link(reader, name).filter(|link| self.input(*link, 0) == Some(id))
    }

    /// Returns `true` if a `Reshape` reads its shape from an input and 0 in that shape keeps a
    /// size.
    fn is_plain(&self, link: Link) -> bool {
        self.input(link, 1).is_some() && self.body.nodes[link.node].attributes.is_empty()
    }

    /// Returns the scores, and the mask that is added to them, if any.
    fn masked(&self, id: Option<ValueId>) -> Option<(Scores, Option<ValueId>)> {
        let Some(sum) = self.maker(id, "Add") else { return Some((self.scores(id)?, None)) };
        let (first, second) = (self.input(sum, 0), self.input(sum, 1));
        let (mut scores, mask) = match self.scores(first) {
            Some(scores) => (scores, second),
            None => (self.scores(second)?, first),
        };
        scores.links.push(sum);
        Some((scores, mask))
    }

    fn scores(&self, id: Option<ValueId>) -> Option<Scores> {
        if let Some(scores) = self.products(id) {
            return Some(scores);
        }

        let (scaled, divides) = match self.maker(id, "Mul") {
            Some(times) => (times, false),
            None => (self.maker(id, "Div")?, true),
        };
        let (first, second) = (self.input(scaled, 0), self.input(scaled, 1));
        let (mut scores, number) = match self.products(first) {
            Some(scores) => (scores, second),
            // A number over the scores is no scaling.
            None if divides => return None,
            None => (self.products(second)?, first),
        };
        scores.links.push(scaled);
        Some(Scores { number, divides, ..scores })
    }

    fn products(&self, id: Option<ValueId>) -> Option<Scores> {
        let apart = self.maker(id, "Reshape").filter(|link| self.is_plain(*link));
        let (id, shape) = match apart {
            Some(link) => (self.input(link, 0), self.input(link, 1)),
            None => (id, None),
        };
        let link = self.maker(id, "MatMul")?;
        let (queries, keys) = (self.input(link, 0), self.input(link, 1));
        let links = [link].into_iter().chain(apart).collect();
        Some(Scores { links, queries, keys, number: None, divides: false, shape })
    }
}

fn input(node: &Node, position: usize) -> Option<ValueId> {
    node.inputs.get(position).copied().flatten()
}
