//! Which operators there are.

use apr_graph::Op;

use crate::operator::Operator;
use crate::ops;

/// The operator that a node runs, at a version of its domain.
pub(crate) fn find(op: &Op, version: i64) -> Option<&'static Operator> {
    let of_domain = |operator: &&Operator| match operator.name.split_once("::") {
        None => op.domain.is_empty() && operator.name == &*op.name,
        Some((domain, name)) => domain == &*op.domain && name == &*op.name,
    };
    let known = ops::TABLES.iter().flat_map(|table| table.iter()).filter(of_domain);
    known.filter(|operator| operator.since <= version).max_by_key(|operator| operator.since)
}

/// Returns the sorted names of all supported operators. Names from other domains have the form
/// `domain::name`.
#[must_use]
pub fn operators() -> Vec<&'static str> {
    let mut names: Vec<_> =
        ops::TABLES.iter().flat_map(|table| table.iter()).map(|operator| operator.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}
