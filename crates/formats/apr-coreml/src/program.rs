//! Programs: functions of operations, of which constants are the weights.
//!
//! ```text
//! Program     1: version  2: function (1: name, 2: Function)
//! Function    2: opset  3: block for an opset (1: opset, 2: Block)
//! Block       3: Operation
//! Operation   1: type  2: input (1: name, 2: Argument)  3: output (1: name)  4: Block
//!             5: attribute (1: name, 2: Value)
//! Argument    1: binding (1: name, or 2: Value)
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use apr_core::protobuf::{Field, Message, Walker};
use apr_core::{Code, DType, Error, Escaped, Limits, Result};
use serde_json::Value;

use crate::blob::Files;
use crate::constexpr::{Bound, Operands, PREFIX};
use crate::model::Found;
use crate::tensor::Tensor;
use crate::value::{Constant, list_of};

/// Name of a program's only function.
const MAIN: &str = "main";

/// The operation of a classifier, and its input with the classes.
const CLASSIFY: &str = "classify";
const CLASSES: &str = "classes";

/// Content of a program.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub(crate) weights: Vec<Found>,
    /// Number of operations of each type.
    pub(crate) operations: BTreeMap<String, u64>,
    /// Names of constants that are numbers, texts or shapes.
    pub(crate) settings: Vec<String>,
    /// Constants that can't be read, and why.
    pub(crate) refused: Vec<Error>,
    /// Class labels of the function without a prefix: texts or integers.
    pub(crate) labels: Vec<Value>,
}

/// A function that is being read.
#[derive(Default)]
struct Scope {
    bound: HashMap<String, Bound>,
    /// Constants in their order, each with the `constexpr_` operation that computes it.
    order: Vec<(String, Option<String>)>,
    /// Constants that others are computed from.
    parts: HashSet<String>,
    /// Names of the operands that are not constants.
    used: HashSet<String>,
}

/// An operation, not read but for its names.
#[derive(Default)]
struct Operation {
    kind: String,
    inputs: Vec<Message>,
    outputs: Vec<String>,
    blocks: Vec<Message>,
    attributes: Vec<Message>,
}

/// Context for reading a program.
pub(crate) struct Context<'w, 's, 'f, 'a> {
    pub(crate) walker: &'w mut Walker<'s>,
    pub(crate) files: &'f mut Files<'a>,
    pub(crate) limits: &'f Limits,
}

impl Program {
    /// Reads a program. `default` is the function whose constants have no prefix.
    ///
    /// # Errors
    /// E001 for a file that is not a program, E002 for a damaged one, E003 for an older schema,
    /// E007 when reading fails, E008 over the limit.
    pub(crate) fn read(
        context: &mut Context<'_, '_, '_, '_>,
        mut message: Message,
        default: &str,
    ) -> Result<Self> {
        let mut functions = Vec::new();
        while let Some(field) = message.next(context.walker)? {
            if field.number == 2 {
                context.walker.keep(size_of::<(String, Message)>() as u64)?;
                functions.push(entry(context.walker, field.message()?)?);
            }
        }
        if functions.is_empty() {
            let message = "the program has no function: it is of an older schema, or damaged";
            return Err(Error::version(message));
        }
        let mut program = Self::default();
        let default = if default.is_empty() { MAIN } else { default };
        let is_only = functions.len() == 1;
        for (name, function) in functions {
            let prefix =
                if is_only || name == default { String::new() } else { format!("{name}/") };
            program.add_function(context, function, &prefix)?;
        }
        Ok(program)
    }

    fn add_function(
        &mut self,
        context: &mut Context<'_, '_, '_, '_>,
        function: Option<Message>,
        prefix: &str,
    ) -> Result<()> {
        let (mut opset, mut blocks) = (String::new(), Vec::new());
        let Some(mut function) = function else { return Ok(()) };
        while let Some(field) = function.next(context.walker)? {
            match field.number {
                2 => opset = field.text(context.walker)?,
                3 => blocks.push(entry(context.walker, field.message()?)?),
                _ => {}
            }
        }
        // A block for another version of the operations computes the same.
        let own = blocks.iter().position(|(name, _)| *name == opset).unwrap_or(0);
        let Some((_, Some(block))) = blocks.get(own) else {
            let message = "a function has no operations: it is of an older schema, or damaged";
            return Err(Error::version(message));
        };
        let mut scope = Scope::default();
        self.add_block(context, *block, prefix, &mut scope)?;
        self.add_constants(scope, prefix, context.walker)
    }

    fn add_block(
        &mut self,
        context: &mut Context<'_, '_, '_, '_>,
        mut block: Message,
        prefix: &str,
        scope: &mut Scope,
    ) -> Result<()> {
        while let Some(field) = block.next(context.walker)? {
            if field.number == 3 {
                let operation = Operation::read(context.walker, field.message()?)?;
                if operation.kind == "const" || operation.kind.starts_with(PREFIX) {
                    self.add_constant(context, &operation, prefix, scope)?;
                } else {
                    for input in operation.inputs {
                        let (input, bindings) = bindings(context.walker, input)?;
                        let has_labels = operation.kind == CLASSIFY && input == CLASSES;
                        for binding in bindings {
                            match binding {
                                Binding::Name(name) => {
                                    scope.used.insert(name);
                                }
                                Binding::Value(value) if has_labels && prefix.is_empty() => {
                                    self.labels = list_of(context.walker, value)?;
                                }
                                Binding::Value(_) => {}
                            }
                        }
                    }
                    for block in operation.blocks {
                        self.add_block(context, block, prefix, scope)?;
                    }
                }
                *self.operations.entry(operation.kind).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Binds the outputs of a constant operation.
    fn add_constant(
        &mut self,
        context: &mut Context<'_, '_, '_, '_>,
        operation: &Operation,
        prefix: &str,
        scope: &mut Scope,
    ) -> Result<()> {
        let name = operation.outputs.first().cloned().unwrap_or_default();
        let shown = format!("{prefix}{name}");
        match operation.bound(context, scope) {
            Ok(bound) => {
                let made_by = Some(&operation.kind).filter(|kind| *kind != "const");
                for (name, bound) in operation.outputs.iter().zip(bound) {
                    context.walker.keep((name.len() + size_of::<(Bound, Tensor)>()) as u64)?;
                    scope.order.push((name.clone(), made_by.cloned()));
                    scope.bound.insert(name.clone(), bound);
                }
                Ok(())
            }
            Err(error) if error.code() == Code::Version => {
                for name in &operation.outputs {
                    scope.bound.insert(name.clone(), Bound::Other);
                }
                self.refused.push(error.for_tensor(Escaped::short(&shown)));
                Ok(())
            }
            Err(error) => Err(error.for_tensor(Escaped::short(&shown))),
        }
    }

    /// Adds the constants of a function that others are not computed from.
    fn add_constants(&mut self, scope: Scope, prefix: &str, walker: &mut Walker<'_>) -> Result<()> {
        for (name, made_by) in scope.order {
            let is_part = scope.parts.contains(&name) && !scope.used.contains(&name);
            let Some(bound) = scope.bound.get(&name).filter(|_| !is_part) else { continue };
            walker.keep((prefix.len() + name.len() + size_of::<Found>()) as u64)?;
            let name = format!("{prefix}{name}");
            match bound {
                Bound::Tensor(tensor) if made_by.is_some() || is_weight(tensor) => {
                    self.weights.push(Found { name, tensor: Arc::clone(tensor), made_by });
                }
                Bound::Tensor(_) | Bound::Text(_) => self.settings.push(name),
                Bound::Sparse(dense) => {
                    self.weights.push(Found { name, tensor: Arc::clone(dense), made_by });
                }
                Bound::Other if made_by.is_none() => self.settings.push(name),
                Bound::Other => {}
            }
        }
        Ok(())
    }
}

/// Returns `true` if a constant is a weight, not a number, a shape or an option of an operation.
///
/// Weights are floats with at least one dimension, and constants in a weights file.
fn is_weight(tensor: &Tensor) -> bool {
    let is_float = matches!(
        tensor.dtype,
        DType::F32 | DType::F16 | DType::BF16 | DType::F64 | DType::F8_E4M3 | DType::F8_E5M2
    );
    tensor.range().file > 0 || (is_float && !tensor.dims.is_empty())
}

/// Argument of an input.
enum Binding {
    Name(String),
    Value(Message),
}

/// Returns the name of an input and its arguments.
fn bindings(walker: &mut Walker<'_>, input: Message) -> Result<(String, Vec<Binding>)> {
    let (name, argument) = entry(walker, input)?;
    let mut bindings = Vec::new();
    let Some(mut argument) = argument else { return Ok((name, bindings)) };
    while let Some(field) = argument.next(walker)? {
        if field.number != 1 {
            continue;
        }
        let mut binding = field.message()?;
        while let Some(field) = binding.next(walker)? {
            walker.keep(size_of::<Binding>() as u64)?;
            match field.number {
                1 => bindings.push(Binding::Name(field.text(walker)?)),
                2 => bindings.push(Binding::Value(field.message()?)),
                _ => {}
            }
        }
    }
    Ok((name, bindings))
}

impl Operation {
    fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        let mut operation = Self::default();
        while let Some(field) = message.next(walker)? {
            let to = match field.number {
                1 => {
                    operation.kind = field.text(walker)?;
                    continue;
                }
                3 => {
                    operation.outputs.push(first_text(walker, &field)?);
                    continue;
                }
                2 => &mut operation.inputs,
                4 => &mut operation.blocks,
                5 => &mut operation.attributes,
                _ => continue,
            };
            walker.keep(size_of::<Message>() as u64)?;
            to.push(field.message()?);
        }
        Ok(operation)
    }

    /// Returns the outputs of a constant operation.
    fn bound(
        &self,
        context: &mut Context<'_, '_, '_, '_>,
        scope: &mut Scope,
    ) -> Result<Vec<Bound>> {
        let mut bound = HashMap::new();
        for attribute in &self.attributes {
            let (name, value) = entry(context.walker, *attribute)?;
            if let Some(value) = value.filter(|_| name != "name") {
                bound.insert(name, constant(context, value)?);
            }
        }
        if self.kind == "const" {
            let value = bound.remove("val").unwrap_or(Bound::Other);
            return Ok(vec![value]);
        }

        let mut parts = Vec::new();
        for input in &self.inputs {
            let (name, bindings) = bindings(context.walker, *input)?;
            let value = match bindings.into_iter().next() {
                Some(Binding::Value(value)) => constant(context, value)?,
                Some(Binding::Name(of)) => {
                    let value = scope.bound.get(&of).cloned().unwrap_or(Bound::Other);
                    parts.push(of);
                    value
                }
                None => continue,
            };
            bound.insert(name, value);
        }
        let operands = Operands { bound: &bound, files: context.files, limits: context.limits };
        let computed = operands.compute(&self.kind)?;
        // Where it can't be computed, what it is made of stays listed.
        scope.parts.extend(parts);
        Ok(computed)
    }
}

fn constant(context: &mut Context<'_, '_, '_, '_>, value: Message) -> Result<Bound> {
    Ok(match Constant::read(context.walker, value, context.files)? {
        Constant::Tensor(tensor) => Bound::Tensor(Arc::new(tensor)),
        Constant::Text(text) => Bound::Text(text),
        Constant::Other => Bound::Other,
    })
}

/// The key and the message of an entry of a map.
fn entry(walker: &mut Walker<'_>, mut message: Message) -> Result<(String, Option<Message>)> {
    let (mut key, mut value) = (String::new(), None);
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => key = field.text(walker)?,
            2 => value = Some(field.message()?),
            _ => {}
        }
    }
    Ok((key, value))
}

/// The text that is the first field of a message.
fn first_text(walker: &mut Walker<'_>, field: &Field) -> Result<String> {
    let mut message = field.message()?;
    let mut text = String::new();
    while let Some(field) = message.next(walker)? {
        if field.number == 1 {
            text = field.text(walker)?;
        }
    }
    Ok(text)
}
