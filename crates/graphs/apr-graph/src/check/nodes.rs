//! Whether a node has what its operator takes.

use std::collections::HashSet;

use super::{BodyPosition, Checker};
use crate::finding::shown_path;
use crate::{AttributeKind, AttributeValue, Findings, Node, Occurs, Operator, Severity, foreign};

impl Checker<'_> {
    pub(super) fn node(&mut self, node: &Node, position: usize, place: &BodyPosition<'_>) {
        // A path may be long, and most nodes need none.
        let path = || shown_path(&place.prefix, position, node);
        let mut problems = repeated_attributes(node);
        problems.extend(branches_with_inputs(node));
        problems.extend(references(node, place));
        if let Some(function) = self.functions.get(&node.op) {
            problems.extend(call_problems(node, function));
        } else if let Some(program) = foreign(&node.op.domain) {
            let domain = &node.op.domain;
            let message =
                format!("operators of {program} (domain '{domain}') are shown and not checked");
            self.once(Severity::Notice, &String::new, message);
        } else if !Operator::knows_domain(&node.op.domain) {
            let message = format!("unknown operator domain '{}'", node.op.domain);
            self.once(Severity::Notice, &path, message);
        } else {
            problems.extend(self.operator_problems(node, &path, place));
        }

        for problem in problems {
            self.findings.add(Severity::Error, path(), problem);
        }
    }

    fn operator_problems(
        &mut self,
        node: &Node,
        path: &dyn Fn() -> String,
        place: &BodyPosition<'_>,
    ) -> Vec<String> {
        let domain = &*node.op.domain;
        let stated = place.opsets.of(domain);
        let named = if domain.is_empty() { "ai.onnx" } else { domain };
        let Some(version) = stated else {
            let message = format!("missing opset import of {named}");
            self.once(Severity::Error, path, message);
            return Vec::new();
        };

        match Operator::of(&node.op, version) {
            Some(operator) if operator.deprecated => {
                vec![format!(
                    "'{}' is gone since version {} of {named}",
                    node.op.name, operator.since
                )]
            }
            Some(operator) => counts(node, operator).chain(attributes(node, operator)).collect(),
            None => match Operator::versions(domain, &node.op.name).first() {
                Some(first) => {
                    vec![format!(
                        "'{}' was added in version {} of {named}, and this is {version}",
                        node.op.name, first.since
                    )]
                }
                // The table of another vendor's operators has those that models contain.
                None if !domain.is_empty() => {
                    let message = format!("unknown operator '{}'", node.op);
                    self.once(Severity::Notice, path, message);
                    Vec::new()
                }
                None => vec![format!("no operator '{}'", node.op.name)],
            },
        }
    }
}

fn repeated_attributes(node: &Node) -> Vec<String> {
    let mut seen = HashSet::new();
    let again = node.attributes.iter().filter(|attribute| !seen.insert(&attribute.name));
    again.map(|attribute| format!("attribute '{}' is given twice", attribute.name)).collect()
}

/// Reports a branch with inputs. A branch reads values of the enclosing body and must not have
/// inputs.
fn branches_with_inputs(node: &Node) -> Option<String> {
    let inputs = node
        .bodies()
        .map(|body| body.inputs.len())
        .max()
        .filter(|inputs| *inputs > 0 && node.op.is("If"))?;
    Some(format!("a branch has {inputs} inputs, and gets none"))
}

/// Attributes that are the call's, outside of a function.
fn references(node: &Node, place: &BodyPosition<'_>) -> Option<String> {
    let reference = node
        .attributes
        .iter()
        .find(|attribute| matches!(attribute.value, AttributeValue::OfCall(_)))?;
    let outside = place.function.is_none();
    outside.then(|| {
        format!(
            "attribute '{}' refers to a function's attribute, outside of a function",
            reference.name
        )
    })
}

fn call_problems(node: &Node, function: &crate::Function) -> Vec<String> {
    let mut problems = Vec::new();
    let (inputs, outputs) = (function.body.inputs.len(), function.body.outputs.len());
    if node.inputs.len() > inputs {
        problems.push(format!(
            "it is called with {} inputs, and the function has {inputs}",
            node.inputs.len()
        ));
    }

    if node.outputs.len() > outputs {
        problems.push(format!("it has {} outputs, and the function {outputs}", node.outputs.len()));
    }

    let given: HashSet<_> = node.attributes.iter().map(|attribute| &attribute.name).collect();
    // A list that repeats its names is gone through as far as different ones would go.
    let required = function.required.iter().take(given.len() + Findings::MOST);
    let missing = required.filter(|name| !given.contains(name));
    problems.extend(missing.map(|name| format!("the function needs the attribute '{name}'")));

    problems
}

fn counts(node: &Node, operator: &Operator) -> impl Iterator<Item = String> {
    let inputs = count("inputs", node.inputs.len(), operator.input_count(), operator);
    let outputs = count("outputs", node.outputs.len(), operator.output_count(), operator);
    let left_out = operator.inputs.iter().zip(&node.inputs).find_map(|(parameter, input)| {
        let needed = parameter.occurs == Occurs::Once && input.is_none();
        needed.then(|| {
            format!("input '{}' is left out, and {} needs it", parameter.name, operator.name)
        })
    });
    inputs.into_iter().chain(outputs).chain(left_out)
}

fn count(
    what: &str,
    given: usize,
    (fewest, most): (usize, Option<usize>),
    operator: &Operator,
) -> Option<String> {
    let fits = given >= fewest && most.is_none_or(|most| given <= most);
    let wanted = match most {
        None => format!("{fewest} or more"),
        Some(most) if most == fewest => fewest.to_string(),
        Some(most) => format!("{fewest} to {most}"),
    };
    let (name, since) = (operator.name, operator.since);
    (!fits).then(|| format!("it has {given} {what}, and {name} of version {since} has {wanted}"))
}

fn attributes(node: &Node, operator: &Operator) -> impl Iterator<Item = String> {
    let given = node.attributes.iter().filter_map(|attribute| {
        let (name, version) = (operator.name, operator.since);
        let Some(setting) = operator.setting(&attribute.name) else {
            return Some(format!(
                "{name} of version {version}: unknown attribute '{}'",
                attribute.name
            ));
        };
        let kind = AttributeKind::of(&attribute.value).filter(|kind| *kind != setting.kind)?;
        Some(format!(
            "attribute '{}' is {kind}, but {name} of version {version} expects {}",
            attribute.name, setting.kind
        ))
    });

    let needed = operator
        .attributes
        .iter()
        .filter(|setting| setting.required && node.attribute(setting.name).is_none());
    given.chain(
        needed.map(|setting| format!("{} needs the attribute '{}'", operator.name, setting.name)),
    )
}
