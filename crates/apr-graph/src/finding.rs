//! What is found in a graph, and where.

use std::fmt;

use serde::Serialize;

/// How bad a finding is.
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
    /// How bad it is.
    pub severity: Severity,
    /// Path of the node, through calls and bodies: `layers.3/attention/scores`. Empty: the graph
    /// itself.
    pub node: String,
    /// What is wrong there.
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

/// What was found, in the order of the nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Findings {
    /// The first [`Findings::MOST`].
    pub list: Vec<Finding>,
    /// How many more there are.
    pub omitted: u64,
}

impl Findings {
    /// Most findings that are kept.
    pub const MOST: usize = 200;

    /// Adds one, or counts it where there are too many.
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

    /// How many there are now, for [`Self::rewind`] and [`Self::soften`].
    pub(crate) fn mark(&self) -> Mark {
        Mark { kept: self.list.len(), omitted: self.omitted }
    }

    /// Takes back what came after a mark.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.list.truncate(mark.kept);
        self.omitted = mark.omitted;
    }

    /// Makes errors that came after a mark warnings.
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

    /// Whether there is none.
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

/// The path of a node for findings, where a long one is cut: each node in a body has the path of
/// all around it in its own.
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

/// The path of a node: its name, or its operator and place where it has none.
pub(crate) fn node_path(prefix: &str, position: usize, node: &crate::Node) -> String {
    if node.name.is_empty() {
        format!("{prefix}{}_{position}", node.op.name)
    } else {
        format!("{prefix}{}", node.name)
    }
}
