//! What lies in layers, and what ties it to the layers beside it.

/// A box or a bend in a layer.
#[derive(Debug, Clone)]
pub(super) struct Vertex {
    pub(super) layer: usize,
    pub(super) width: f64,
    pub(super) is_bend: bool,
    /// What is above it, and where each edge leaves that and enters this, from the left sides.
    pub(super) above: Vec<Link>,
    pub(super) below: Vec<Link>,
}

/// An edge between neighbouring layers, seen from one side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) other: usize,
    /// Where it touches this vertex, from its left side.
    pub(super) here: f64,
    /// Where it touches the other.
    pub(super) there: f64,
}
