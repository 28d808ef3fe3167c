//! What the file says besides its weights: for reports and for metadata.

use std::collections::BTreeMap;

use apr_core::{ByteSource, Error, Limits, Result};
use serde_json::{Map, Value, json};

use crate::flatbuffer::{Flatbuffer, Table};
use crate::model::{subgraph_name, type_name};

/// Names of the operators, by their numbers: `BuiltinOperator` of the schema.
const OPERATORS: &str = include_str!("operators.txt");

/// Number of a custom operator, which has a name.
const CUSTOM: u32 = 32;

/// Fields by their numbers in the schema.
mod field {
    pub(super) const OPERATOR_CODES: u64 = 1;
    pub(super) const SUBGRAPHS: u64 = 2;
    pub(super) const DESCRIPTION: u64 = 3;
    pub(super) const METADATA: u64 = 6;
    pub(super) const SIGNATURES: u64 = 7;

    pub(super) const OLD_CODE: u64 = 0;
    pub(super) const CUSTOM_CODE: u64 = 1;
    pub(super) const CODE: u64 = 3;

    pub(super) const TENSORS: u64 = 0;
    pub(super) const INPUTS: u64 = 1;
    pub(super) const OUTPUTS: u64 = 2;
    pub(super) const SUBGRAPH_OPERATORS: u64 = 3;

    pub(super) const OPCODE: u64 = 0;

    pub(super) const SHAPE: u64 = 0;
    pub(super) const TYPE: u64 = 1;
    pub(super) const NAME: u64 = 3;
    pub(super) const SIGNATURE: u64 = 7;

    pub(super) const METADATA_NAME: u64 = 0;

    pub(super) const SIGNATURE_INPUTS: u64 = 0;
    pub(super) const SIGNATURE_OUTPUTS: u64 = 1;
    pub(super) const SIGNATURE_KEY: u64 = 2;
    pub(super) const TENSOR_NAME: u64 = 0;
}

/// A model described, without its weights.
#[derive(Debug, Default)]
pub(crate) struct Description {
    /// For the metadata.
    pub(crate) fields: Map<String, Value>,
    /// Operators of all subgraphs.
    pub(crate) operators: u64,
    /// Names of the metadata's buffers.
    pub(crate) buffers: Vec<String>,
}

impl Description {
    /// Describes subgraphs, signatures and operators.
    ///
    /// # Errors
    /// E002 for a damaged file, E007 when reading fails, E008 over a limit.
    pub(crate) fn of(model: &Table<'_>) -> Result<Self> {
        let mut fields = Map::new();
        if let Some(text) = model.text(field::DESCRIPTION)?.filter(|text| !text.is_empty()) {
            fields.insert("description".into(), text.into());
        }
        let codes = operator_names(model)?;
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let mut subgraphs = Vec::new();
        for (number, subgraph) in model.tables(field::SUBGRAPHS)?.enumerate() {
            let subgraph = subgraph?;
            for operator in subgraph.tables(field::SUBGRAPH_OPERATORS)? {
                let code = operator?.u32(field::OPCODE)?;
                let name = usize::try_from(code).ok().and_then(|code| codes.get(code));
                let name = name.ok_or_else(|| {
                    Error::corrupt(format!("an operator has code {code} of {}", codes.len()))
                })?;
                *counts.entry(name).or_default() += 1;
            }
            subgraphs.push(json!({
                "name": subgraph_name(&subgraph, number)?,
                "inputs": ends(&subgraph, field::INPUTS)?,
                "outputs": ends(&subgraph, field::OUTPUTS)?,
            }));
        }
        let operators = counts.values().sum();
        fields.insert("subgraphs".into(), subgraphs.into());
        fields.insert("operators".into(), json!(counts));
        let signatures = signatures(model)?;
        if !signatures.is_empty() {
            fields.insert("signatures".into(), signatures.into());
        }
        let names = model.tables(field::METADATA)?;
        let names = names.map(|entry| Ok(entry?.text(field::METADATA_NAME)?.unwrap_or_default()));
        Ok(Self { fields, operators, buffers: names.collect::<Result<_>>()? })
    }
}

/// Returns the names of a model's custom operators, which TensorFlow Lite does not define.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tflite/kinds.tflite");
/// # let file = std::fs::read(path).expect("the fixture");
/// let names = apr_tflite::custom_operators(&file, &apr_core::Limits::default())?;
/// assert_eq!(names, ["Mine"]);
/// # Ok::<(), apr_core::Error>(())
/// ```
///
/// # Errors
/// E002 for a damaged file, E007 when reading fails, E008 over a limit.
pub fn custom_operators(source: &dyn ByteSource, limits: &Limits) -> Result<Vec<String>> {
    let flatbuffer = Flatbuffer::new(source, limits);
    let mut names = Vec::new();
    for code in flatbuffer.root()?.tables(field::OPERATOR_CODES)? {
        names.extend(code?.text(field::CUSTOM_CODE)?.filter(|name| !name.is_empty()));
    }
    Ok(names)
}

/// Returns the operator names of all operator codes.
pub(crate) fn operator_names(model: &Table<'_>) -> Result<Vec<String>> {
    let known: Vec<&str> = OPERATORS.lines().collect();
    let name = |code: Result<Table<'_>>| {
        let code = code?;
        // The old field has room for 127; both are written while the number fits.
        let number = u32::from(code.u8(field::OLD_CODE)?).max(code.u32(field::CODE)?);
        if number == CUSTOM {
            return Ok(code.text(field::CUSTOM_CODE)?.unwrap_or_else(|| "CUSTOM".to_owned()));
        }
        let name = usize::try_from(number).ok().and_then(|number| known.get(number));
        Ok(name.map_or_else(|| format!("operator {number}"), |name| (*name).to_owned()))
    };
    model.tables(field::OPERATOR_CODES)?.map(name).collect()
}

/// The inputs or outputs of a subgraph.
fn ends(subgraph: &Table<'_>, number: u64) -> Result<Vec<Value>> {
    let tensors = subgraph.list(field::TENSORS, 4)?;
    let mut ends = Vec::new();
    for index in subgraph.list(number, 4)?.i32s()? {
        let at = u64::try_from(index).ok().filter(|at| *at < tensors.len);
        let at = at.ok_or_else(|| {
            Error::corrupt(format!("an input or output is tensor {index} of {}", tensors.len))
        })?;
        let tensor = tensors.table(at)?;
        // -1 stands for a dimension that is not known.
        let signature = tensor.list(field::SIGNATURE, 4)?.i32s()?;
        let shape =
            if signature.is_empty() { tensor.list(field::SHAPE, 4)?.i32s()? } else { signature };
        ends.push(json!({
            "name": tensor.text(field::NAME)?.unwrap_or_default(),
            "dtype": type_name(tensor.u8(field::TYPE)?),
            "shape": shape,
        }));
    }
    Ok(ends)
}

/// Inputs and outputs by the names that a program calls them.
fn signatures(model: &Table<'_>) -> Result<Map<String, Value>> {
    let names = |signature: &Table<'_>, number: u64| {
        let entries = signature.tables(number)?;
        let name =
            |entry: Result<Table<'_>>| Ok(entry?.text(field::TENSOR_NAME)?.unwrap_or_default());
        entries.map(name).collect::<Result<Vec<String>>>()
    };
    let mut signatures = Map::new();
    for signature in model.tables(field::SIGNATURES)? {
        let signature = signature?;
        let key = signature.text(field::SIGNATURE_KEY)?.unwrap_or_default();
        let entry = json!({
            "inputs": names(&signature, field::SIGNATURE_INPUTS)?,
            "outputs": names(&signature, field::SIGNATURE_OUTPUTS)?,
        });
        signatures.insert(key, entry);
    }
    Ok(signatures)
}
