//! Rows that are cut out of a tensor.

/// Which rows of a tensor are cut out, where its rows stand in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Groups of rows, each of which is cut alike.
    pub groups: u64,
    /// The first row in a group.
    pub first: u64,
    /// How far the next row is.
    pub step: u64,
    /// How many rows.
    pub count: u64,
    /// Where rows are columns.
    pub turned: Turned,
}

/// Where rows are columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turned {
    /// In neither.
    No,
    /// In the tensor that is cut.
    Before,
    /// In what is cut out.
    After,
}
