//! One graph that computes as either of two, by an input that says which.

use std::collections::{HashMap, HashSet};

use apr_core::{Error, Result};

use crate::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Graph, Meaning,
    Node, Op, Value, ValueId, ValueOrigin, ValueType, WeightRef,
};

/// Returns a graph that computes `then` if the input `condition` is true, or else `otherwise`.
///
/// The input `condition` is a boolean tensor of shape `[1]`. Both graphs become branches of one
/// `If`, and weights that they share are stored once. Inputs and outputs of the same name are
/// shared. An output that only `otherwise` has is empty if `then` is computed: the first of its
/// sizes that are not fixed is 0 and the others are 1.
///
/// # Errors
/// E001 if a graph has functions, if the graphs use different operator versions, or if `then` has
/// an output that `otherwise` does not have.
pub fn either(condition: &str, then: &Graph, otherwise: &Graph) -> Result<Graph> {
    if let Some(function) = then.functions.iter().chain(&otherwise.functions).next() {
        return Err(Error::format(format!(
            "the graph still has functions, such as {}",
            function.op
        )));
    }
    let mut opsets = otherwise.opsets.clone();
    for opset in &then.opsets {
        match opsets.iter().find(|known| known.domain == opset.domain) {
            Some(known) if known.version != opset.version => {
                return Err(Error::format("the two graphs have operators of other versions"));
            }
            Some(_) => {}
            None => opsets.push(opset.clone()),
        }
    }

    let mut around = Around::default();
    let without = around.branch(&otherwise.body, &otherwise.body)?;
    let with = around.branch(&then.body, &otherwise.body)?;
    let truth = ValueType::tensor(ElementType::Bool, [Dim::fixed(1)]);
    let condition = around.input(condition, truth, Meaning::Unknown);
    let mut body = around.body;
    let mut outputs = Vec::new();
    for &output in &otherwise.body.outputs {
        let Value { name, kind, meaning, .. } = otherwise.body.value(output);
        let id = body.add_value(name.clone(), kind.clone(), ValueOrigin::Missing);
        body.value_mut(id).meaning = *meaning;
        outputs.push(id);
    }

    let branch = |name: &str, body: Body| Attribute {
        name: name.into(),
        value: AttributeValue::Body(Box::new(body)),
    };
    body.add_node(Node {
        name: "either".to_owned(),
        op: Op::new("", "If"),
        inputs: vec![Some(condition)],
        outputs: outputs.iter().copied().map(Some).collect(),
        attributes: vec![branch("then_branch", with), branch("else_branch", without)],
        doc: String::new(),
    });
    body.outputs = outputs;
    Ok(Graph { opsets, functions: Vec::new(), body })
}

/// Body around the branches, with the values that both branches read.
#[derive(Default)]
struct Around {
    body: Body,
    inputs: HashMap<String, ValueId>,
    weights: HashMap<(WeightRef, Option<ElementType>), ValueId>,
    names: HashSet<String>,
}

impl Around {
    /// The branch that a body becomes, which gives out what `like` does.
    fn branch(&mut self, from: &Body, like: &Body) -> Result<Body> {
        let mut branch = from.clone();
        for value in &mut branch.values {
            let outer = match &value.origin {
                ValueOrigin::Input => self.input(&value.name, value.kind.clone(), value.meaning),
                ValueOrigin::Weight(weight) => self.weight(value, weight.clone()),
                _ => continue,
            };
            value.origin = ValueOrigin::Outer(outer);
            value.meaning = Meaning::Unknown;
        }
        branch.inputs.clear();

        let names = |body: &Body| -> Vec<String> {
            body.outputs.iter().map(|output| body.value(*output).name.clone()).collect()
        };
        let (own, wanted) = (names(from), names(like));
        if let Some(more) = own.iter().find(|name| !wanted.contains(name)) {
            return Err(Error::format(format!(
                "only one of the two graphs has the output '{more}'"
            )));
        }

        let mut outputs = Vec::with_capacity(wanted.len());
        for (name, of) in wanted.iter().zip(&like.outputs) {
            let known = own.iter().position(|own| own == name).map(|at| from.outputs[at]);
            outputs.push(match known {
                Some(output) => given(&mut branch, output),
                None => empty(&mut branch, like.value(*of))?,
            });
        }
        branch.outputs = outputs;
        Ok(branch)
    }

    fn input(&mut self, name: &str, kind: ValueType, meaning: Meaning) -> ValueId {
        if let Some(id) = self.inputs.get(name) {
            return *id;
        }
        let id = self.body.add_value(name, kind, ValueOrigin::Input);
        self.body.value_mut(id).meaning = meaning;
        self.body.inputs.push(id);
        self.names.insert(name.to_owned());
        self.inputs.insert(name.to_owned(), id);
        id
    }

    fn weight(&mut self, value: &Value, weight: WeightRef) -> ValueId {
        let key = (weight.clone(), value.element());
        if let Some(id) = self.weights.get(&key) {
            return *id;
        }
        let numbered = (1_u64..).map(|number| format!("{}_{number}", value.name));
        let mut names = std::iter::once(value.name.clone()).chain(numbered);
        let name = names.find(|name| self.names.insert(name.clone())).unwrap_or_default();
        let id = self.body.add_value(name, value.kind.clone(), ValueOrigin::Weight(weight));
        self.weights.insert(key, id);
        id
    }
}

/// An output of a branch, which a node has to make.
fn given(branch: &mut Body, output: ValueId) -> ValueId {
    let Value { name, kind, origin, .. } = branch.value(output).clone();
    if matches!(origin, ValueOrigin::Node(_)) {
        return output;
    }
    let copy = branch.add_value(format!("{name}/given"), kind, ValueOrigin::Missing);
    branch.add_node(Node {
        name: format!("{name}/given"),
        op: Op::new("", "Identity"),
        inputs: vec![Some(output)],
        outputs: vec![Some(copy)],
        attributes: Vec::new(),
        doc: String::new(),
    });
    copy
}

/// Adds an empty output in place of an output that only the other branch has.
fn empty(branch: &mut Body, like: &Value) -> Result<ValueId> {
    let unknown = || Error::format(format!("unknown type of '{}'", like.name));
    let (element, dims) = like.element().zip(like.shape()).ok_or_else(unknown)?;
    let mut is_first = true;
    let shape: Vec<u64> = dims
        .iter()
        .map(|dim| {
            dim.size().unwrap_or_else(|| u64::from(!std::mem::replace(&mut is_first, false)))
        })
        .collect();
    if is_first {
        return Err(Error::format(format!("'{}' has no size that could be 0", like.name)));
    }

    let kind = ValueType::tensor(element, shape.iter().copied().map(Dim::fixed));
    let data = ConstantData::Bytes(Vec::new());
    let nothing = Constant { name: String::new(), element, shape, data };
    let output = branch.add_value(like.name.clone(), kind, ValueOrigin::Missing);
    branch.add_node(Node {
        name: format!("{}/nothing", like.name),
        op: Op::new("", "Constant"),
        inputs: Vec::new(),
        outputs: vec![Some(output)],
        attributes: vec![Attribute {
            name: "value".into(),
            value: AttributeValue::Tensor(nothing),
        }],
        doc: String::new(),
    });
    Ok(output)
}
