//! Subgraphs as bodies.

use std::collections::HashMap;

use apr_core::{Error, Result, UniqueNames};
use apr_graph::{
    Attribute, AttributeValue, Body, Dim, ElementType, Node, Op, ValueId, ValueOrigin, ValueType,
    WeightRef,
};

use super::options::Schema;
use super::{DOMAIN, subgraphs, types};
use crate::description::operator_names;
use crate::flatbuffer::{Table, Vector};
use crate::model::{Weight, Weights, subgraph_name};

/// Fields by their numbers in the schema.
mod field {
    pub(super) const TENSORS: u64 = 0;
    pub(super) const INPUTS: u64 = 1;
    pub(super) const OUTPUTS: u64 = 2;
    pub(super) const OPERATORS: u64 = 3;

    pub(super) const OPCODE: u64 = 0;
    pub(super) const OPERATOR_INPUTS: u64 = 1;
    pub(super) const OPERATOR_OUTPUTS: u64 = 2;
    pub(super) const OPTIONS_TYPE: u64 = 3;
    pub(super) const OPTIONS: u64 = 4;
    pub(super) const CUSTOM_OPTIONS: u64 = 5;
    pub(super) const OPTIONS_2_TYPE: u64 = 11;
    pub(super) const OPTIONS_2: u64 = 12;

    pub(super) const NAME: u64 = 3;
    pub(super) const IS_VARIABLE: u64 = 5;
}

/// Subgraphs that call each other this deep at most.
const MAX_DEPTH: usize = 32;

/// Maximum number of bytes of a custom operator's options that are shown.
const MOST_CUSTOM: u64 = 64 << 10;

/// Attributes that contain subgraph numbers, with the names of the attributes for the bodies.
const CALLS: [(&str, &str); 9] = [
    ("then_subgraph_index", "then_branch"),
    ("else_subgraph_index", "else_branch"),
    ("cond_subgraph_index", "cond"),
    ("body_subgraph_index", "body"),
    ("comparator_subgraph_index", "comparator"),
    ("decomposition_subgraph_index", "decomposition"),
    ("update_computation_subgraph_index", "update_computation"),
    ("init_subgraph_index", "init"),
    ("subgraph", "body"),
];

/// The bodies that a model's subgraphs become.
pub(super) struct Bodies<'m> {
    schema: Schema,
    operators: Vec<String>,
    subgraphs: Vec<Table<'m>>,
    weights: &'m Weights,
    names: UniqueNames,
    /// Numbers of the subgraphs that are being read, the outermost first.
    open: Vec<usize>,
    called: Vec<bool>,
}

/// A body that is being made.
struct Frame<'m> {
    body: Body,
    tensors: Vector<'m>,
    /// Current values of the tensors, by their numbers.
    values: HashMap<u32, ValueId>,
    number: usize,
}

impl<'m> Bodies<'m> {
    pub(super) fn new(model: &Table<'m>, weights: &'m Weights) -> Result<Self> {
        let subgraphs = subgraphs(model)?;
        Ok(Self {
            schema: Schema::new(),
            operators: operator_names(model)?,
            called: vec![false; subgraphs.len()],
            subgraphs,
            weights,
            names: UniqueNames::of_tensors(),
            open: Vec::new(),
        })
    }

    pub(super) fn count(&self) -> usize {
        self.subgraphs.len()
    }

    pub(super) fn is_called(&self, number: usize) -> bool {
        self.called.get(number).copied().unwrap_or_default()
    }

    /// A subgraph by its number.
    ///
    /// # Errors
    /// E002 where there is none.
    pub(super) fn subgraph(&self, number: usize) -> Result<&Table<'m>> {
        self.subgraphs.get(number).ok_or_else(|| {
            Error::corrupt(format!("subgraph {number} is called, of {}", self.subgraphs.len()))
        })
    }

    /// Returns the body of a subgraph, with the bodies that it calls.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over a limit.
    pub(super) fn body(&mut self, number: usize) -> Result<Body> {
        let subgraph = *self.subgraph(number)?;
        if self.open.contains(&number) || self.open.len() >= MAX_DEPTH {
            let name = subgraph_name(&subgraph, number)?;
            let message = format!("subgraph '{}' calls itself", apr_core::Escaped::short(&name));
            return Err(Error::corrupt(message));
        }
        self.open.push(number);
        let body = self.body_of(&subgraph, number);
        self.open.pop();
        body
    }

    fn body_of(&mut self, subgraph: &Table<'m>, number: usize) -> Result<Body> {
        let mut frame = Frame {
            body: Body { name: subgraph_name(subgraph, number)?, ..Body::default() },
            tensors: subgraph.list(field::TENSORS, 4)?,
            values: HashMap::new(),
            number,
        };
        for tensor in subgraph.list(field::INPUTS, 4)?.i32s()? {
            let (tensor, table) = frame.tensor(tensor)?;
            let name = self.names.unique(frame.name(tensor, &table)?);
            let kind = types::of_tensor(&table, true)?;
            let value = frame.body.add_value(name, kind, ValueOrigin::Input);
            frame.body.inputs.push(value);
            frame.values.insert(tensor, value);
        }
        for operator in subgraph.tables(field::OPERATORS)? {
            self.operator(&operator?, &mut frame)?;
        }
        for tensor in subgraph.list(field::OUTPUTS, 4)?.i32s()? {
            let output = self.value(tensor, &mut frame)?;
            frame.body.outputs.extend(output);
        }
        Ok(frame.body)
    }

    fn operator(&mut self, operator: &Table<'m>, frame: &mut Frame<'m>) -> Result<()> {
        let code = operator.u32(field::OPCODE)?;
        let name = usize::try_from(code).ok().and_then(|code| self.operators.get(code));
        let name = name.ok_or_else(|| {
            Error::corrupt(format!("an operator has code {code} of {}", self.operators.len()))
        })?;
        let op = Op::new(DOMAIN, name);
        let mut attributes = self.attributes(operator)?;
        let mut output_scales = Vec::new();
        let (mut inputs, mut input_scales) = (Vec::new(), Vec::new());
        for tensor in operator.list(field::OPERATOR_INPUTS, 4)?.i32s()? {
            let value = self.value(tensor, frame)?;
            inputs.push(value);
            input_scales.push(frame.scale(tensor, value)?);
        }
        let mut outputs = Vec::new();
        let mut node_name = None;
        for tensor in operator.list(field::OPERATOR_OUTPUTS, 4)?.i32s()? {
            if tensor < 0 {
                outputs.push(None);
                output_scales.push(None);
                continue;
            }
            let (tensor, table) = frame.tensor(tensor)?;
            let name = self.names.unique(frame.name(tensor, &table)?);
            // Converters join the names of what they fused by semicolons.
            let own = name.split(';').next().unwrap_or_default().to_owned();
            node_name.get_or_insert(own);
            let kind = types::of_tensor(&table, false)?;
            output_scales.push(types::scale_of(&table)?);
            let value = frame.body.add_value(name, kind, ValueOrigin::Missing);
            outputs.push(Some(value));
            frame.values.insert(tensor, value);
        }
        attributes.extend(scales("input", &input_scales));
        attributes.extend(scales("output", &output_scales));
        let name = node_name.unwrap_or_else(|| self.names.unique(op.name.to_string()));
        let doc = String::new();
        frame.body.add_node(Node { name, op, inputs, outputs, attributes, doc });
        Ok(())
    }

    /// Returns the value of a tensor, or `None` for an omitted one.
    fn value(&mut self, tensor: i32, frame: &mut Frame<'m>) -> Result<Option<ValueId>> {
        if tensor < 0 {
            return Ok(None);
        }
        let (tensor, table) = frame.tensor(tensor)?;
        if let Some(value) = frame.values.get(&tensor) {
            return Ok(Some(*value));
        }
        let made = match self.weights.of_tensor(frame.number, tensor) {
            Some((name, info)) => self.weight(&table, name, info, frame)?,
            None => {
                let name = self.names.unique(frame.name(tensor, &table)?);
                let kind = types::of_tensor(&table, false)?;
                let is_variable = table.u8(field::IS_VARIABLE)? != 0;
                let value = frame.body.add_value(name.clone(), kind, ValueOrigin::Missing);
                if is_variable {
                    let op = Op::new(DOMAIN, "VARIABLE");
                    let (inputs, outputs) = (Vec::new(), vec![Some(value)]);
                    let doc = "Kept between runs; zeros before the first.".to_owned();
                    let attributes = Vec::new();
                    frame.body.add_node(Node { name, op, inputs, outputs, attributes, doc });
                }
                value
            }
        };
        frame.values.insert(tensor, made);
        Ok(Some(made))
    }

    fn weight(
        &mut self,
        table: &Table<'m>,
        name: &str,
        info: Option<&Weight>,
        frame: &mut Frame<'m>,
    ) -> Result<ValueId> {
        let kind = match info {
            Some(info) => match ElementType::from_dtype(info.dtype) {
                Some(element) => {
                    ValueType::tensor(element, info.dims.iter().copied().map(Dim::fixed))
                }
                None => ValueType::Unknown,
            },
            // Texts and sparse tensors: no tensors of the checkpoint.
            None => types::of_tensor(table, false)?,
        };
        let origin = ValueOrigin::Weight(WeightRef::whole(name));
        Ok(frame.body.add_value(self.names.unique(name.to_owned()), kind, origin))
    }

    fn attributes(&mut self, operator: &Table<'m>) -> Result<Vec<Attribute>> {
        let mut attributes = Vec::new();
        let unions =
            [(field::OPTIONS_TYPE, field::OPTIONS), (field::OPTIONS_2_TYPE, field::OPTIONS_2)];
        for (second, (kind, options)) in unions.into_iter().enumerate() {
            let number = operator.u8(kind)?;
            if let Some(options) = operator.table(options)?.filter(|_| number > 0) {
                attributes.extend(self.schema.attributes(second == 1, number, &options)?);
            }
        }
        for attribute in &mut attributes {
            let call = CALLS.iter().find(|(number, _)| *number == &*attribute.name);
            let (Some((_, name)), &AttributeValue::Int(number)) = (call, &attribute.value) else {
                continue;
            };
            // Without a branch, and without a decomposition, there is a negative number.
            let Ok(number) = usize::try_from(number) else { continue };
            let body = self.body(number)?;
            self.called[number] = true;
            *attribute = Attribute { name: (*name).into(), value: body.into() };
        }
        let custom = operator.list(field::CUSTOM_OPTIONS, 1)?;
        if (1..=MOST_CUSTOM).contains(&custom.len) {
            let value = AttributeValue::Text(custom.u8s()?);
            attributes.push(Attribute { name: "custom_options".into(), value });
        }
        Ok(attributes)
    }
}

/// Returns the scales and zero points of an operator's inputs or outputs, with 0 for missing ones.
///
/// The list is empty if none of them has a scale.
fn scales(which: &str, found: &[Option<(f32, i64)>]) -> Vec<Attribute> {
    if found.iter().all(Option::is_none) {
        return Vec::new();
    }
    let scales = found.iter().map(|scale| scale.map_or(0.0, |(scale, _)| scale)).collect();
    let zero_points = found.iter().map(|scale| scale.map_or(0, |(_, point)| point)).collect();
    let named = |name, value| Attribute { name: format!("{which}_{name}").as_str().into(), value };
    vec![
        named("scale", AttributeValue::Floats(scales)),
        named("zero_point", AttributeValue::Ints(zero_points)),
    ]
}

impl<'m> Frame<'m> {
    /// Returns the scale and zero point of a tensor other than a weight.
    ///
    /// For weights, they are tensors.
    fn scale(&self, tensor: i32, value: Option<ValueId>) -> Result<Option<(f32, i64)>> {
        match value.map(|value| &self.body.value(value).origin) {
            None | Some(ValueOrigin::Weight(_)) => Ok(None),
            Some(_) => types::scale_of(&self.tensor(tensor)?.1),
        }
    }

    /// A tensor by its number.
    fn tensor(&self, number: i32) -> Result<(u32, Table<'m>)> {
        let number =
            u32::try_from(number).ok().filter(|number| u64::from(*number) < self.tensors.len);
        let number = number.ok_or_else(|| {
            Error::corrupt(format!(
                "an operator names a tensor beyond the {} that there are",
                self.tensors.len
            ))
        })?;
        Ok((number, self.tensors.table(number.into())?))
    }

    fn name(&self, number: u32, tensor: &Table<'m>) -> Result<String> {
        let name = tensor.text(field::NAME)?.filter(|name| !name.is_empty());
        Ok(name.unwrap_or_else(|| format!("tensor{number}")))
    }
}
