//! Looking at a run from outside.

use apr_graph::Node;

use crate::Value;

/// State of a node after it has run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<'a> {
    /// Path of the node: names of calls and nodes, such as `layers.3/attention/scores`.
    pub path: &'a str,
    /// Node that has run.
    pub node: &'a Node,
    /// Outputs of the node, in order. They live until the call returns.
    pub outputs: &'a [Value],
    /// Bytes of all values that are alive.
    pub live_bytes: u64,
}

/// Decision to continue or to stop a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// Continues with the next node.
    Continue,
    /// No further; the run ends without outputs.
    Stop,
}

/// Something that looks at the values of a run. Clocks belong to it, not to the engine.
pub trait Tap {
    /// Returns `true` to watch a node with [`before`](Self::before) and [`after`](Self::after).
    fn wants(&mut self, path: &str, node: &Node) -> bool;

    /// A node is about to run.
    fn before(&mut self, path: &str, node: &Node);

    /// Receives the values that an operator is about to read, in the order of its inputs. It is not
    /// called for functions. Weights may be undecoded ([`Value::Weight`]).
    fn reads(&mut self, path: &str, node: &Node, inputs: &[Option<Value>]) {
        let _ = (path, node, inputs);
    }

    /// A node has run.
    fn after(&mut self, step: &Step<'_>) -> Flow;

    /// Returns `true` if a node's own value is needed, so that the node is not fused with the nodes
    /// around it.
    ///
    /// Fusing takes less time and memory. This is called for nodes that can be fused. If they are
    /// fused, [`wants`](Self::wants) is not called for them.
    fn splits(&mut self, path: &str, node: &Node) -> bool {
        self.wants(path, node)
    }

    /// Returns replacements for a watched node's outputs, as many and of the same types, or `None`
    /// to keep the outputs. It is called before [`after`](Self::after), which receives the
    /// replacements.
    fn replacement(&mut self, path: &str, node: &Node, outputs: &[Value]) -> Option<Vec<Value>> {
        let _ = (path, node, outputs);
        None
    }
}

/// Tap that watches no nodes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unwatched;

impl Tap for Unwatched {
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        false
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, _: &Step<'_>) -> Flow {
        Flow::Continue
    }
}
