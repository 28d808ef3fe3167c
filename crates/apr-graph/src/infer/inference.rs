//! What the types of a graph are found to be.

use crate::{Body, Findings, FunctionId};

/// Deepest nesting of bodies and calls that is followed. Protobuf's own readers stop near it too.
pub const MAX_DEPTH: usize = 64;

/// What [`crate::infer`] found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Inference {
    /// Contradictions, and what was not followed.
    pub findings: Findings,
    /// For each call of a function in the main body and the bodies in it, in the order in which
    /// they are met: its place in `signatures`; `None` where it was not followed.
    pub calls: Vec<Option<usize>>,
    /// Functions with the types of a call; calls with the same types share one.
    pub signatures: Vec<Signature>,
}

/// A function as it is called with certain types.
#[derive(Debug)]
#[non_exhaustive]
pub struct Signature {
    /// Which function.
    pub function: FunctionId,
    /// Its body, with the types of these calls.
    pub body: Body,
    /// The calls in it, as in [`Inference::calls`].
    pub calls: Vec<Option<usize>>,
}
