//! What is found in a graph, and where.

use std::fmt;

use serde::Serialize;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something to know: a domain whose operators are not known.
    Notice,
    /// The graph may be right, but most programs do not take it.
    Warning,
    /// The graph is wrong.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Something found in a graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Path of the node, through calls and bodies: `layers.3/attention/scores`. Empty: the graph
    /// itself.
    pub node: String,
    /// Description of the problem.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.severity)?;
        if !self.node.is_empty() {
            write!(f, "node '{}': ", self.node)?;
        }
        f.write_str(&self.message)
    }
}

/// Findings of a check, in the order of the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Findings {
    /// The first [`Findings::MOST`].
    pub list: Vec<Finding>,
    /// Number of further findings that are not in the list.
    pub omitted: u64,
}

impl Findings {
    /// Maximum number of findings that are kept.
    pub const MOST: usize = 200;

    /// Adds a finding, or only counts it if the list is full.
    pub fn add(&mut self, severity: Severity, node: impl Into<String>, message: impl Into<String>) {
        if self.list.len() < Self::MOST {
            self.list.push(Finding { severity, node: node.into(), message: message.into() });
        } else {
            self.omitted += 1;
        }
    }

    /// Adds another's.
    pub fn append(&mut self, other: Self) {
        self.omitted += other.omitted;
        for finding in other.list {
            self.add(finding.severity, finding.node, finding.message);
        }
    }

    /// Returns the current position in the list, for [`Self::rewind`] and [`Self::soften`].
    pub(crate) fn mark(&self) -> Mark {
        Mark { kept: self.list.len(), omitted: self.omitted }
    }

    /// Removes the findings that were added after a mark.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.list.truncate(mark.kept);
        self.omitted = mark.omitted;
    }

    /// Turns the errors that were added after a mark into warnings.
    pub(crate) fn soften(&mut self, mark: Mark) {
        let errors = self
            .list
            .iter_mut()
            .skip(mark.kept)
            .filter(|finding| finding.severity == Severity::Error);
        errors.for_each(|finding| finding.severity = Severity::Warning);
    }

    /// The errors among them.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.list.iter().filter(|finding| finding.severity == Severity::Error)
    }

    /// Returns `true` if the list has no findings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// A place in [`Findings`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    kept: usize,
    omitted: u64,
}

/// Longest path that findings have, in bytes.
const MAX_PATH: usize = 1024;

/// Returns the path of a node for findings; a long path is truncated.
///
/// The path of a node in a body contains the paths of all enclosing nodes.
pub(crate) fn shown_path(prefix: &str, position: usize, node: &crate::Node) -> String {
    if prefix.len() + node.name.len() <= MAX_PATH {
        return node_path(prefix, position, node);
    }
    format!("{}{}", cut(prefix), cut(&node.name))
}

/// The front of a long name.
pub(crate) fn cut(name: &str) -> String {
    if name.len() <= MAX_PATH / 2 {
        return name.to_owned();
    }
    let end = name.floor_char_boundary(MAX_PATH / 2);
    format!("{}...", &name[..end])
}

/// Returns the path of a node: its name or, for a node without a name, its operator and position.
pub(crate) fn node_path(prefix: &str, position: usize, node: &crate::Node) -> String {
    if node.name.is_empty() {
        format!("{prefix}{}_{position}", node.op.name)
    } else {
        format!("{prefix}{}", node.name)
    }
}
