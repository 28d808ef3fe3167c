//! Types of elements, by the table: parameters with one label have one type.

use super::{Call, Parameter};
use crate::{ElementType, TensorType, ValueType};

/// Checks the types of the inputs, and gives the outputs theirs.
pub(crate) fn apply(call: &mut Call<'_>) -> Result<(), String> {
    let (bound, problem) = bind(call);
    for position in 0..call.outputs.len() {
        let Some(parameter) = call.operator.output(position) else { continue };
        let element = element(parameter, &bound);
        match &mut call.outputs[position] {
            ValueType::Tensor(tensor) if tensor.element.is_none() => tensor.element = element,
            output @ ValueType::Unknown if element.is_some() && parameter.alike => {
                *output = ValueType::Tensor(TensorType { element, shape: None });
            }
            _ => {}
        }
    }

    // A contradiction is reported, and the outputs have their types all the same.
    problem.map_or(Ok(()), Err)
}

fn element(parameter: &Parameter, bound: &[(&str, ElementType)]) -> Option<ElementType> {
    let by_label =
        bound.iter().find(|(label, _)| *label == parameter.label).map(|(_, element)| *element);
    by_label.filter(|_| parameter.types.tensor != 0).or_else(|| parameter.types.only())
}

/// Element types by label.
type Bound = Vec<(&'static str, ElementType)>;

/// Returns the element type of each label, derived from the inputs, and the first contradiction.
fn bind(call: &Call<'_>) -> (Bound, Option<String>) {
    let mut bound = Bound::new();
    let mut problem = None;
    for position in 0..call.inputs.len() {
        let Some(parameter) = call.operator.input(position) else { continue };
        let kind = call.kind(position);
        if !parameter.types.allows(kind) {
            let kind = kind.described();
            let (name, version) = (call.operator.name, call.operator.since);
            let input = call.name_of(position);
            problem.get_or_insert(format!(
                "{input} is {kind}, which {name} of version {version} does not support"
            ));
        }

        let Some(element) = call.element(position) else { continue };
        if parameter.label.is_empty() || !parameter.alike {
            continue;
        }

        match bound.iter().find(|(label, _)| *label == parameter.label) {
            None => bound.push((parameter.label, element)),
            Some((_, other)) if *other != element => {
                let input = call.name_of(position);
                problem.get_or_insert(format!(
                    "{input} is of {element}, and an earlier input of {other}"
                ));
            }
            Some(_) => {}
        }
    }

    (bound, problem)
}
