//! A call of an operation: what its parameters are bound to.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use apr_graph::{AttributeValue, Body, Constant, ConstantData, Node, ValueId};

/// Argument of a parameter.
#[derive(Debug, Clone)]
pub(super) enum Argument<'g> {
    /// A value of the program's graph.
    Value(ValueId),
    /// A value in the call itself.
    Given(&'g AttributeValue),
}

/// A call that records which parameters were read.
///
/// A parameter that was not read means that the call has a feature that is not known here.
pub(super) struct Call<'g> {
    pub(super) op: &'g str,
    /// The name of the first output.
    pub(super) name: String,
    pub(super) outputs: &'g [Option<ValueId>],
    arguments: BTreeMap<&'g str, Vec<Argument<'g>>>,
    seen: RefCell<BTreeSet<String>>,
}

impl<'g> Call<'g> {
    /// Returns the call of a node, or `None` if its inputs have no names.
    pub(super) fn new(node: &'g Node, body: &Body) -> Option<Self> {
        let mut arguments: BTreeMap<&str, Vec<Argument<'_>>> = BTreeMap::new();
        let mut parameters: &[Vec<u8>] = &[];
        for attribute in &node.attributes {
            match &attribute.value {
                AttributeValue::Texts(texts) if &*attribute.name == PARAMETERS => {
                    parameters = texts;
                }
                value => arguments.entry(&attribute.name).or_default().push(Argument::Given(value)),
            }
        }
        (parameters.len() == node.inputs.len()).then_some(())?;
        for (parameter, input) in parameters.iter().zip(&node.inputs) {
            let parameter = std::str::from_utf8(parameter).ok()?;
            arguments.entry(parameter).or_default().push(Argument::Value((*input)?));
        }
        let first = node.outputs.first().copied().flatten()?;
        Some(Self {
            op: &node.op.name,
            name: body.value(first).name.clone(),
            outputs: &node.outputs,
            arguments,
            seen: RefCell::default(),
        })
    }

    pub(super) fn has(&self, parameter: &str) -> bool {
        self.arguments.contains_key(parameter)
    }

    /// Returns the arguments of a parameter; a list has several.
    pub(super) fn all(&self, parameter: &str) -> Option<&[Argument<'g>]> {
        self.seen.borrow_mut().insert(parameter.to_owned());
        self.arguments.get(parameter).map(Vec::as_slice)
    }

    /// Returns the argument of a parameter that is not a list.
    pub(super) fn one(&self, parameter: &str) -> Option<Argument<'g>> {
        match self.all(parameter)? {
            [one] => Some(one.clone()),
            _ => None,
        }
    }

    /// Lets a parameter be that does not change what an operation computes.
    pub(super) fn ignore(&self, parameter: &str) {
        self.seen.borrow_mut().insert(parameter.to_owned());
    }

    /// Returns `true` if every parameter was read.
    pub(super) fn is_understood(&self) -> bool {
        let seen = self.seen.borrow();
        self.arguments.keys().all(|parameter| seen.contains(*parameter))
    }

    /// A name for a step on the way to the first output.
    pub(super) fn step(&self, step: &str) -> String {
        format!("{}/{step}", self.name)
    }
}

/// Attribute of a node that lists the parameters of its inputs.
pub(super) const PARAMETERS: &str = "parameters";

/// Returns a value in a call as a constant, or `None` for a body or an unreadable value.
pub(super) fn given(value: &AttributeValue) -> Option<Constant> {
    Some(match value {
        AttributeValue::Int(int) => Constant::int(*int),
        AttributeValue::Ints(ints) => Constant::ints(ints),
        AttributeValue::Float(float) => Constant::float(*float),
        AttributeValue::Tensor(constant) => constant.clone(),
        AttributeValue::Text(text) => texts(Vec::new(), vec![text.clone()]),
        AttributeValue::Texts(list) => texts(vec![list.len() as u64], list.clone()),
        _ => return None,
    })
}

fn texts(shape: Vec<u64>, texts: Vec<Vec<u8>>) -> Constant {
    let element = apr_graph::ElementType::Text;
    Constant { name: String::new(), element, shape, data: ConstantData::Texts(texts) }
}
