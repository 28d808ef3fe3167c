//! Operators of a version of ONNX, in the words of another one.

mod edit;
mod lower;
mod steps;

use std::collections::HashSet;

use apr_core::{Error, Result};

use self::edit::Edit;
use crate::finding::{cut, shown_path};
use crate::{AttributeValue, Body, Graph, MAX_DEPTH, Operator, Opset};

/// Converts a graph to the operators of another ONNX version; other domains stay unchanged.
///
/// A version older than the graph's must be 11 or later.
///
/// Some conversions need types: run [`crate::infer`] before. Added values have no types yet. Types
/// that an older version does not support are not detected here; check the result.
///
/// # Errors
/// E003 if the version is too old or not known, or if an operator can't be converted; the error
/// contains the names of the operator and the node.
pub fn upgrade(graph: &Graph, to: i64) -> Result<Graph> {
    let from = graph.opset("").ok_or_else(|| Error::version("missing opset import of ONNX"))?;
    let (oldest, newest) = (lower::OLDEST.min(from), Operator::newest());
    if !(oldest..=newest).contains(&to) {
        return Err(Error::version(format!(
            "operators of version {from} can be converted to versions {oldest} to {newest}, not \
             {to}"
        )));
    }

    let mut graph = graph.clone();
    set_version(&mut graph.opsets, to);
    Upgrade { from, to }.body(&mut graph.body, "", 0)?;
    for function in &mut graph.functions {
        let own = function
            .opsets
            .iter()
            .find(|set| set.domain.is_empty())
            .map_or(from, |set| set.version);
        set_version(&mut function.opsets, to);
        Upgrade { from: own, to }.body(&mut function.body, &format!("{}/", function.op), 0)?;
    }

    Ok(graph)
}

fn set_version(opsets: &mut [Opset], to: i64) {
    opsets.iter_mut().filter(|set| set.domain.is_empty()).for_each(|set| set.version = to);
}

#[derive(Clone, Copy)]
struct Upgrade {
    from: i64,
    to: i64,
}

impl Upgrade {
    fn body(self, body: &mut Body, prefix: &str, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::format(format!("bodies are nested more than {MAX_DEPTH} deep")));
        }

        let nodes = std::mem::take(&mut body.nodes);
        let outputs: HashSet<_> = body.outputs.iter().copied().collect();
        for (position, mut node) in nodes.into_iter().enumerate() {
            let path = shown_path(prefix, position, &node);
            for attribute in &mut node.attributes {
                let prefix = format!("{path}/{}/", cut(&attribute.name));
                match &mut attribute.value {
                    AttributeValue::Body(inner) => self.body(inner, &prefix, depth + 1)?,
                    AttributeValue::Bodies(inner) => {
                        inner
                            .iter_mut()
                            .try_for_each(|inner| self.body(inner, &prefix, depth + 1))?;
                    }
                    _ => {}
                }
            }

            let op = node.op.clone();
            let mut edit =
                Edit { body, outputs: &outputs, node, before: Vec::new(), after: Vec::new() };
            self.node(&mut edit).map_err(|problem| {
                Error::version(format!(
                    "node '{path}': {op} can't be converted to version {}: {problem}",
                    self.to
                ))
            })?;
            let Edit { node, before, after, .. } = edit;
            before.into_iter().chain([node]).chain(after).for_each(|node| {
                body.add_node(node);
            });
        }

        Ok(())
    }

    /// Takes a node from version to version.
    fn node(self, edit: &mut Edit<'_>) -> Result<(), String> {
        if self.to < self.from {
            return lower::node(edit, self.from, self.to);
        }
        let mut version = self.from;
        while edit.node.op.domain.is_empty() {
            let versions = Operator::versions("", &edit.node.op.name);
            let Some(next) =
                versions.iter().find(|next| next.since > version && next.since <= self.to)
            else {
                break;
            };
            let old = Operator::of(&edit.node.op, version);
            // Each round goes on to a later version, so this ends.
            version = next.since;
            let Some(old) = old else { continue };
            match steps::step(old.name, next.since) {
                Some(step) => step(edit)?,
                None if next.deprecated => {
                    return Err(format!("it is gone since version {version}"));
                }
                None => edit.keep_meaning(old, next),
            }

            // The step may have made another operator of it.
            let Some(now) = Operator::of(&edit.node.op, version) else { continue };
            edit.fits(now)?;
        }

        Ok(())
    }
}

#[cfg(test)]
mod tests;
