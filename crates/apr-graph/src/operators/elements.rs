//! Types of elements, by the table: parameters with one label have one type.

use super::{Call, Parameter};
use crate::{ElementType, TensorType, ValueType};

/// Checks the types of the inputs, and gives the outputs theirs.
pub(crate) fn apply(call: &mut Call<'_>) -> Result<(), String> {
    let bound = bind(call)?;
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
    Ok(())
}

fn element(parameter: &Parameter, bound: &[(&str, ElementType)]) -> Option<ElementType> {
    let by_label = bound.iter().find(|(label, _)| *label == parameter.label).map(|(_, element)| *element);
    by_label.filter(|_| parameter.types.tensor != 0).or_else(|| parameter.types.only())
}

/// The element type of each label, from the inputs.
fn bind(call: &Call<'_>) -> Result<Vec<(&'static str, ElementType)>, String> {
    let mut bound: Vec<(&'static str, ElementType)> = Vec::new();
    for position in 0..call.inputs.len() {
        let Some(parameter) = call.operator.input(position) else { continue };
        let kind = call.kind(position);
        if !parameter.types.allows(kind) {
            let kind = crate::infer::kind_text(kind);
            let (name, version) = (call.operator.name, call.operator.since);
            return Err(format!(
                "{} is {kind}, which {name} of version {version} does not take",
                call.name_of(position)
            ));
        }
        let Some(element) = call.element(position) else { continue };
        if parameter.label.is_empty() || !parameter.alike {
            continue;
        }
        match bound.iter().find(|(label, _)| *label == parameter.label) {
            None => bound.push((parameter.label, element)),
            Some((_, other)) if *other != element => {
                return Err(format!("{} is of {element}, and an earlier input of {other}", call.name_of(position)));
            }
            Some(_) => {}
        }
    }
    Ok(bound)
}
