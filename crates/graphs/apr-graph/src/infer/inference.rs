//! What the types of a graph are found to be.

use crate::{Body, Findings, FunctionId};

/// Maximum nesting of bodies and calls that is followed. Protobuf's own readers have a similar
/// limit.
pub const MAX_DEPTH: usize = 64;

/// Result of [`crate::infer`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Inference {
    /// Contradictions, and parts of the graph that were not followed.
    pub findings: Findings,
    /// For each call of a function in the main body and the bodies in it, in the order in which
    /// they are met: its place in `signatures`; `None` where it was not followed.
    pub calls: Vec<Option<usize>>,
    /// Functions with the types of a call; calls with the same types share one.
    pub signatures: Vec<Signature>,
}

/// Function with the argument types of one kind of call.
#[derive(Debug)]
#[non_exhaustive]
pub struct Signature {
    /// Id of the function.
    pub function: FunctionId,
    /// Body of the function, with the types for these calls.
    pub body: Body,
    /// The calls in it, as in [`Inference::calls`].
    pub calls: Vec<Option<usize>>,
}
