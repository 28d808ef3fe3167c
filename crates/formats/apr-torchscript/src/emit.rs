//! What statements are made of: variables, expressions, parameters.

use std::collections::HashMap;
use std::rc::Rc;

use apr_core::{Error, Result, TensorInfo, Work};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, Dim, ElementType, Node, ValueId, ValueOrigin, View,
    WeightRef,
};

use crate::modules::access;
use crate::text::{Variables, dtype, list, tensor};

/// Form of a graph's value in the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Form {
    /// A tensor: a variable, or an expression as short as one.
    Tensor(String),
    /// Integers, as expressions; one without a dimension, or several in a row.
    Ints(Vec<String>, bool),
}

/// Maximum length of an integer expression that is repeated at each use.
///
/// Longer expressions become variables. A value that is multiplied by itself sixty times would
/// otherwise have 2^60 factors.
const LONGEST: usize = 120;

/// Bytes of source allowed for any body, including copied bytes.
///
/// [`BYTES_EACH`] more are allowed for each node and value.
const FREE: u64 = 256 << 20;
const BYTES_EACH: u64 = 4096;

impl Form {
    /// Bytes of the source.
    fn len(&self) -> u64 {
        match self {
            Self::Tensor(expression) => expression.len() as u64,
            Self::Ints(items, _) => items.iter().map(|item| 16 + item.len() as u64).sum(),
        }
    }
}

/// A body on its way to a source.
pub(crate) struct Emitter<'a> {
    body: &'a Body,
    dtypes: Rc<HashMap<&'a str, Option<ElementType>>>,
    forms: HashMap<ValueId, Form>,
    variables: Variables,
    lines: String,
    work: Rc<Work>,
    /// Spaces in front of a statement.
    indent: usize,
}

impl<'a> Emitter<'a> {
    /// Creates an emitter for a body with these tensors as its weights.
    pub(crate) fn new(body: &'a Body, tensors: &'a [TensorInfo]) -> Self {
        let dtypes = tensors
            .iter()
            .map(|info| (info.name.as_str(), ElementType::from_dtype(info.dtype)))
            .collect();
        let size = (body.nodes.len() + body.values.len()) as u64;
        Self {
            work: Rc::new(Work::of_file(FREE.saturating_add(size.saturating_mul(BYTES_EACH)))),
            body,
            dtypes: Rc::new(dtypes),
            forms: HashMap::new(),
            variables: Variables::default(),
            lines: String::new(),
            indent: 4,
        }
    }

    /// Writes the body of a loop, which can access the values around it and their variables.
    pub(crate) fn within(
        &mut self,
        body: &Body,
        write: impl FnOnce(&mut Emitter<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut forms = HashMap::new();
        for (id, value) in (0..).map(ValueId).zip(&body.values) {
            if let ValueOrigin::Outer(outer) = value.origin {
                forms.insert(id, self.form(outer)?);
            }
        }
        let mut inner = Emitter {
            work: Rc::clone(&self.work),
            body,
            dtypes: Rc::clone(&self.dtypes),
            forms,
            variables: std::mem::take(&mut self.variables),
            lines: std::mem::take(&mut self.lines),
            indent: self.indent + 2,
        };
        let written = write(&mut inner);
        (self.variables, self.lines) = (inner.variables, inner.lines);
        written
    }

    /// Returns a new variable name that is similar to `like`.
    pub(crate) fn name(&mut self, like: &str) -> String {
        self.variables.of(like)
    }

    /// Writes a statement that gives a new variable, called like this, a value.
    pub(crate) fn variable(&mut self, like: &str, expression: &str) -> String {
        let variable = self.variables.of(like);
        self.line(&format!("{variable} = {expression}"));
        variable
    }

    /// Takes a variable for a value of the body.
    pub(crate) fn bind(&mut self, value: ValueId, variable: &str) {
        self.forms.insert(value, Form::Tensor(variable.to_owned()));
    }

    /// Writes a statement that makes a value of the body, a tensor.
    pub(crate) fn define(&mut self, value: ValueId, expression: &str) {
        let form = self.assign(&self.body.value(value).name.clone(), expression);
        self.forms.insert(value, form);
    }

    /// Writes a statement.
    pub(crate) fn line(&mut self, statement: &str) {
        self.lines.extend(std::iter::repeat_n(' ', self.indent));
        self.lines.push_str(statement);
        self.lines.push('\n');
    }

    /// Takes an input of the body as a tensor; returns its variable.
    pub(crate) fn take(&mut self, input: ValueId) -> String {
        let name = self.variables.of(&self.body.value(input).name);
        self.forms.insert(input, Form::Tensor(name.clone()));
        name
    }

    /// The statements.
    pub(crate) fn finish(self) -> String {
        self.lines
    }

    /// The number of dimensions of a value.
    pub(crate) fn rank(&self, value: ValueId) -> Result<usize> {
        let rank = self.body.value(value).shape().map(<[_]>::len);
        rank.ok_or_else(|| Error::version("unknown number of dimensions of its input"))
    }

    /// Returns the shape of a value, if it is known.
    pub(crate) fn shape_of(&self, value: ValueId) -> Option<&[Dim]> {
        self.body.value(value).shape()
    }

    /// Sizes of a value that are known.
    pub(crate) fn sizes(&self, value: ValueId) -> Option<Vec<u64>> {
        self.body.value(value).shape()?.iter().map(apr_graph::Dim::size).collect()
    }

    pub(crate) fn element(&self, value: ValueId) -> Option<ElementType> {
        self.body.value(value).element()
    }

    /// An input that must be there.
    pub(crate) fn input(&self, node: &Node, position: usize) -> Result<ValueId> {
        node.input(position).ok_or_else(|| Error::format(format!("input {position} is left out")))
    }

    /// An axis, counted from the front.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        let rank_signed = i64::try_from(rank).unwrap_or(i64::MAX);
        let counted = if axis < 0 { axis + rank_signed } else { axis };
        let counted = usize::try_from(counted).ok().filter(|axis| *axis < rank.max(1));
        counted.ok_or_else(|| Error::format(format!("no dimension {axis} of {rank}")))
    }

    /// A value as a tensor.
    pub(crate) fn tensor(&mut self, value: ValueId) -> Result<String> {
        match self.form(value)? {
            Form::Tensor(expression) => Ok(expression),
            // In TorchScript's source dtypes are numbers, and 4 is `int64`.
            Form::Ints(items, true) => Ok(format!("torch.tensor({}, dtype=4)", items.concat())),
            Form::Ints(items, false) if items.is_empty() => {
                Ok("torch.zeros([0], dtype=4)".to_owned())
            }
            Form::Ints(items, false) => Ok(format!("torch.tensor({}, dtype=4)", list(&items))),
        }
    }

    /// Returns a value as integers, if they are known one by one.
    pub(crate) fn ints(&mut self, value: ValueId) -> Result<Option<(Vec<String>, bool)>> {
        match self.form(value)? {
            Form::Ints(items, is_scalar) => Ok(Some((items, is_scalar))),
            Form::Tensor(expression) => Ok(self.elements(value, &expression)),
        }
    }

    /// The elements of a short row of integers that a tensor has.
    fn elements(&self, value: ValueId, expression: &str) -> Option<(Vec<String>, bool)> {
        const MOST: u64 = 16;
        let is_integer = matches!(self.element(value), Some(ElementType::I64 | ElementType::I32));
        match self.sizes(value)?.as_slice() {
            _ if !is_integer => None,
            [] => Some((vec![format!("int({expression})")], true)),
            &[len] if len <= MOST => Some((
                (0..len).map(|at| format!("int(torch.select({expression}, 0, {at}))")).collect(),
                false,
            )),
            _ => None,
        }
    }

    /// A value that must be integers: a shape, axes, starts.
    pub(crate) fn list(&mut self, value: ValueId) -> Result<Vec<String>> {
        let ints = self.ints(value)?;
        Ok(ints
            .ok_or_else(|| {
                Error::version("the number of sizes that it takes is only known when it runs")
            })?
            .0)
    }

    /// Numbers that are known now.
    pub(crate) fn numbers(&mut self, value: ValueId) -> Result<Vec<i64>> {
        let items = self.list(value)?;
        let numbers = items.iter().map(|item| item.parse().ok()).collect::<Option<Vec<i64>>>();
        numbers.ok_or_else(|| Error::version("it takes axes that are only known when it runs"))
    }

    fn form(&mut self, value: ValueId) -> Result<Form> {
        if let Some(form) = self.forms.get(&value) {
            self.work.spend(form.len())?;
            return Ok(form.clone());
        }

        let form = match &self.body.value(value).origin {
            ValueOrigin::Constant(constant) => constant_form(constant)?,
            ValueOrigin::Weight(weight) => {
                let expression = self.weight(weight, self.element(value))?;
                self.assign(&self.body.value(value).name.clone(), &expression)
            }
            _ => {
                return Err(Error::format(format!(
                    "no producer of '{}'",
                    self.body.value(value).name
                )));
            }
        };

        self.forms.insert(value, form.clone());
        Ok(form)
    }

    /// A tensor of the model, as the graph looks at it.
    pub(crate) fn weight(
        &self,
        weight: &WeightRef,
        element: Option<ElementType>,
    ) -> Result<String> {
        let mut expression = self.parameter(&weight.tensor, element)?;
        for view in &weight.views {
            expression = match view {
                View::Transposed(order) => format!("torch.permute({expression}, {order:?})"),
                View::Slice { axis, start, len } => {
                    format!(
                        "torch.slice({expression}, {axis}, {start}, {}, 1)",
                        start.saturating_add(*len)
                    )
                }
                View::Reshaped(dims) => format!("torch.reshape({expression}, {dims:?})"),
                View::Plus(number) => format!("torch.add({expression}, {number})"),
                View::Joined { axis, with } => {
                    format!("torch.cat({}, {axis})", self.parameters(expression, with, element)?)
                }
                View::Stacked(with) => {
                    format!("torch.stack({}, 0)", self.parameters(expression, with, element)?)
                }
            };
        }

        Ok(expression)
    }

    fn parameters(
        &self,
        first: String,
        with: &[String],
        element: Option<ElementType>,
    ) -> Result<String> {
        let others = with.iter().map(|tensor| self.parameter(tensor, element));
        Ok(list(&std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>>>()?))
    }

    fn parameter(&self, tensor: &str, element: Option<ElementType>) -> Result<String> {
        let Some(stored) = self.dtypes.get(tensor) else {
            let message = "the graph uses this tensor, and the model does not have it";
            return Err(Error::format(message).for_tensor(tensor));
        };
        let expression = access(tensor)?;
        match element.filter(|element| Some(*element) != *stored) {
            Some(element) => Ok(format!("torch.to({expression}, {})", dtype(element)?)),
            None => Ok(expression),
        }
    }

    /// Returns an integer expression for repeated use. A long expression is assigned to a variable.
    pub(crate) fn short(&mut self, expression: String) -> String {
        if expression.len() <= LONGEST {
            return expression;
        }
        self.variable("size", &expression)
    }

    /// Writes a statement that makes a tensor of this expression.
    fn assign(&mut self, name: &str, expression: &str) -> Form {
        Form::Tensor(self.variable(name, expression))
    }

    /// The node's one output is a tensor.
    pub(crate) fn set(&mut self, node: &Node, expression: &str) -> Result<()> {
        let &[Some(output)] = node.outputs.as_slice() else {
            return Err(Error::version("outputs after the first are not written"));
        };
        self.define(output, expression);
        Ok(())
    }

    /// The node's one output is this form.
    pub(crate) fn set_form(&mut self, node: &Node, form: Form) {
        if let Some(&Some(output)) = node.outputs.first() {
            self.forms.insert(output, form);
        }
    }

    /// The node's outputs are what the expression gives, in order.
    pub(crate) fn set_all(&mut self, node: &Node, expression: &str) {
        let mut targets = String::new();
        for output in &node.outputs {
            let name = output.map_or("unused", |output| &self.body.value(output).name).to_owned();
            let variable = self.variables.of(&name);
            targets.push_str(&format!("{variable}, "));
            if let Some(output) = output {
                self.forms.insert(*output, Form::Tensor(variable));
            }
        }
        self.line(&format!("{targets}= {expression}"));
    }
}

/// The error of an operator that is not written.
pub(crate) fn unknown() -> Error {
    Error::version("TorchScript's source is not written for this operator")
}

fn constant_form(constant: &Constant) -> Result<Form> {
    let is_integer = matches!(constant.element, ElementType::I64 | ElementType::I32);
    match constant.as_ints() {
        Some(ints)
            if is_integer && constant.element == ElementType::I64 && constant.shape.len() < 2 =>
        {
            Ok(Form::Ints(
                ints.iter().map(ToString::to_string).collect(),
                constant.shape.is_empty(),
            ))
        }
        _ => Ok(Form::Tensor(tensor(constant)?)),
    }
}

/// The first input, and the expression of its tensor.
pub(crate) fn first(emitter: &mut Emitter<'_>, node: &Node) -> Result<(ValueId, String)> {
    let x = emitter.input(node, 0)?;
    Ok((x, emitter.tensor(x)?))
}

/// Returns the value of a `Constant` node.
pub(crate) fn constant_node(emitter: &Emitter<'_>, node: &Node) -> Result<Form> {
    let [Attribute { name, value }] = node.attributes.as_slice() else { return Err(unknown()) };
    match (&**name, value) {
        ("value", AttributeValue::Tensor(constant)) => constant_form(constant),
        ("value", AttributeValue::Weight(weight)) => {
            Ok(Form::Tensor(emitter.weight(weight, None)?))
        }
        ("value_int", AttributeValue::Int(number)) => constant_form(&Constant::int(*number)),
        ("value_ints", AttributeValue::Ints(numbers)) => constant_form(&Constant::ints(numbers)),
        ("value_float", AttributeValue::Float(number)) => constant_form(&Constant::float(*number)),
        ("value_floats", AttributeValue::Floats(numbers)) => {
            constant_form(&Constant::floats(numbers))
        }
        _ => Err(unknown()),
    }
}
