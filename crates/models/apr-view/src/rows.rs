//! Rows that are cut out of a tensor.

/// Rows to cut out of a tensor whose rows are in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Groups of rows, each of which is cut alike.
    pub groups: u64,
    /// The first row in a group.
    pub first: u64,
    /// Distance to the next row.
    pub step: u64,
    /// Number of rows.
    pub count: u64,
    /// Tensor in which rows are stored as columns.
    pub turned: Turned,
}

/// Tensor in which rows are stored as columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turned {
    /// Neither tensor.
    No,
    /// The tensor that is cut.
    Before,
    /// The result of the cut.
    After,
}
