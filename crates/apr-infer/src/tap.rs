//! Looking at a run from outside.

use apr_graph::Node;

use crate::Value;

/// What is known of a node when it has run.
#[derive(Debug)]
#[non_exhaustive]
pub struct Step<'a> {
    /// Where the node is: names of calls and nodes, `layers.3/attention/scores`.
    pub path: &'a str,
    /// The node.
    pub node: &'a Node,
    /// What it made, in the order of its outputs. They live until the call returns.
    pub outputs: &'a [Value],
    /// Bytes of all values that are alive.
    pub live_bytes: u64,
}

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Flow {
    /// With the next node.
    Continue,
    /// No further; the run ends without outputs.
    Stop,
}

/// Something that looks at the values of a run. Clocks belong to it, not to the engine.
pub trait Tap {
    /// Whether [`before`](Self::before) and [`after`](Self::after) are called for a node.
    fn wants(&mut self, path: &str, node: &Node) -> bool;

    /// A node is about to run.
    fn before(&mut self, path: &str, node: &Node);

    /// What an operator is about to read, in the order of its inputs; functions are not asked for.
    /// Weights may be undecoded ([`Value::Weight`]).
    fn reads(&mut self, path: &str, node: &Node, inputs: &[Option<Value>]) {
        let _ = (path, node, inputs);
    }

    /// A node has run.
    fn after(&mut self, step: &Step<'_>) -> Flow;

    /// Whether a node's own value has to be there, so that it is not computed as one with the nodes
    /// around it, which would take less time and memory. Asked for nodes that may be fused, which
    /// [`wants`](Self::wants) then does not hear of.
    fn splits(&mut self, path: &str, node: &Node) -> bool {
        self.wants(path, node)
    }

    /// Values to go on with instead of a watched node's outputs, as many and of the same types;
    /// `None` for its own. Asked before [`after`](Self::after), which then sees these.
    fn replacement(&mut self, path: &str, node: &Node, outputs: &[Value]) -> Option<Vec<Value>> {
        let _ = (path, node, outputs);
        None
    }
}

/// Looks at nothing.
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
