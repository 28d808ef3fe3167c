//! What lies in layers, and what ties it to the layers beside it.

/// A box or a bend in a layer.
#[derive(Debug, Clone)]
pub(super) struct Vertex {
    pub(super) layer: usize,
    pub(super) width: f64,
    pub(super) is_bend: bool,
    /// Edges to the layer above, with the positions at which they leave the upper and enter this
    /// vertex.
    ///
    /// Positions are measured from the left sides.
    pub(super) above: Vec<Link>,
    pub(super) below: Vec<Link>,
}

/// An edge between neighbouring layers, seen from one side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) other: usize,
    /// Position at which the edge touches this vertex, measured from its left side.
    pub(super) here: f64,
    /// Position at which the edge touches the other vertex.
    pub(super) there: f64,
}
