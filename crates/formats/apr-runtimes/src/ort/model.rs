//! The tables of a model: its initializers, and what it says of itself.

use std::collections::BTreeMap;

use apr_core::{DType, Error, Result, StoredRange, UniqueNames};
use apr_tflite::flatbuffer::Table;
use serde_json::{Map, Value, json};

/// Maximum nesting of graphs.
pub(crate) const MAX_DEPTH: u32 = 16;

/// Fields by their numbers in the schema.
mod field {
    pub(super) const ORT_VERSION: u64 = 0;
    pub(super) const MODEL: u64 = 1;

    pub(super) const IR_VERSION: u64 = 0;
    pub(super) const OPERATOR_SETS: u64 = 1;
    pub(super) const PRODUCER: u64 = 2;
    pub(super) const TEXT: u64 = 6;
    pub(super) const GRAPH: u64 = 7;
    pub(super) const PROPERTIES: u64 = 9;

    pub(super) const INITIALIZERS: u64 = 0;
    pub(super) const NODES: u64 = 2;
    pub(super) const INPUTS: u64 = 5;
    pub(super) const OUTPUTS: u64 = 6;
    pub(super) const SPARSE: u64 = 7;

    pub(super) const NAME: u64 = 0;
    pub(super) const DIMS: u64 = 2;
    pub(super) const TYPE: u64 = 3;
    pub(super) const BYTES: u64 = 4;
    pub(super) const PLACE_OUTSIDE: u64 = 6;

    pub(super) const OPERATOR: u64 = 5;
    pub(super) const DOMAIN: u64 = 2;
    pub(super) const ATTRIBUTES: u64 = 10;
    pub(super) const ATTRIBUTE_GRAPH: u64 = 7;

    pub(super) const FIRST: u64 = 0;
    pub(super) const SECOND: u64 = 1;
}

/// An initializer.
#[derive(Debug)]
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) range: StoredRange,
}

/// Content of a model.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) weights: Vec<Weight>,
    /// For the metadata.
    pub(crate) fields: Map<String, Value>,
    /// Number of nodes of each operator.
    pub(crate) operators: BTreeMap<String, u64>,
    /// Initializers that can't be read, and why.
    pub(crate) refused: Vec<Error>,
    /// Names of all initializers with their dtypes, in order.
    pub(crate) initializers: Vec<(String, Option<DType>)>,
    names: UniqueNames,
}

impl Model {
    /// Reads the tables below the first.
    ///
    /// # Errors
    /// E001 for graphs that are too deep, E002 for a damaged file, E007 when reading fails, E008
    /// over the limit.
    pub(crate) fn read(session: &Table<'_>) -> Result<Self> {
        let mut model = Self { names: UniqueNames::of_tensors(), ..Self::default() };
        model.text("version", session.text(field::ORT_VERSION)?);
        let Some(table) = session.table(field::MODEL)? else {
            return Err(Error::corrupt("the file has no model"));
        };
        model.fields.insert("ir_version".into(), table.u64(field::IR_VERSION)?.into());
        model.text("producer", table.text(field::PRODUCER)?);
        model.text("description", table.text(field::TEXT)?);
        let mut sets = Map::new();
        for set in table.tables(field::OPERATOR_SETS)? {
            let set = set?;
            let domain = set.text(field::FIRST)?.unwrap_or_default();
            sets.insert(domain, set.u64(field::SECOND)?.into());
        }
        model.fields.insert("operator_sets".into(), sets.into());
        let mut properties = Map::new();
        for property in table.tables(field::PROPERTIES)? {
            let property = property?;
            let key = property.text(field::FIRST)?.unwrap_or_default();
            properties.insert(key, property.text(field::SECOND)?.unwrap_or_default().into());
        }
        if !properties.is_empty() {
            model.fields.insert("properties".into(), properties.into());
        }
        if let Some(graph) = table.table(field::GRAPH)? {
            model.fields.insert("inputs".into(), graph.texts(field::INPUTS)?.into());
            model.fields.insert("outputs".into(), graph.texts(field::OUTPUTS)?.into());
            model.add_graph(&graph, "", 0)?;
        }
        model.fields.insert("operators".into(), json!(model.operators));
        Ok(model)
    }

    fn text(&mut self, key: &str, text: Option<String>) {
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            self.fields.insert(key.to_owned(), text.into());
        }
    }

    fn add_graph(&mut self, graph: &Table<'_>, prefix: &str, depth: u32) -> Result<()> {
        if depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} graphs are in each other");
            return Err(Error::format(message));
        }
        for tensor in graph.tables(field::INITIALIZERS)? {
            let tensor = tensor?;
            let name = tensor.text(field::NAME)?.unwrap_or_default();
            let name = self.names.unique(format!("{prefix}{name}"));
            let found = weight(&tensor, &name);
            let dtype = found.as_ref().ok().map(|weight| weight.dtype);
            self.initializers.push((name.clone(), dtype));
            match found {
                Ok(weight) => self.weights.push(weight),
                Err(error) if error.code() == apr_core::Code::Version => {
                    self.refused.push(error.for_tensor(&name));
                }
                Err(error) => return Err(error.for_tensor(&name)),
            }
        }
        for (number, _) in graph.tables(field::SPARSE)?.enumerate() {
            let error = Error::version("sparse initializers are not supported");
            self.refused.push(error.for_tensor(format!("{prefix}sparse{number}")));
        }
        for node in graph.tables(field::NODES)? {
            let node = node?;
            let operator = node.text(field::OPERATOR)?.unwrap_or_default();
            let operator = match node.text(field::DOMAIN)?.filter(|domain| !domain.is_empty()) {
                Some(domain) => format!("{domain}::{operator}"),
                None => operator,
            };
            *self.operators.entry(operator).or_default() += 1;
            for attribute in node.tables(field::ATTRIBUTES)? {
                let attribute = attribute?;
                if let Some(graph) = attribute.table(field::ATTRIBUTE_GRAPH)? {
                    let name = node.text(field::NAME)?.unwrap_or_default();
                    let branch = attribute.text(field::NAME)?.unwrap_or_default();
                    self.add_graph(&graph, &format!("{prefix}{name}/{branch}/"), depth + 1)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the dtype for a type number, which is the same as in ONNX.
fn dtype(number: u32) -> Result<DType> {
    Ok(match number {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::BOOL,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        14 => DType::C64,
        16 => DType::BF16,
        17 => DType::F8_E4M3,
        18 => DType::F8_E4M3FNUZ,
        19 => DType::F8_E5M2,
        20 => DType::F8_E5M2FNUZ,
        8 => return Err(Error::version("no format here holds texts")),
        _ => return Err(Error::version(format!("no format here holds elements of type {number}"))),
    })
}

fn weight(tensor: &Table<'_>, name: &str) -> Result<Weight> {
    let dtype = dtype(tensor.u32(field::TYPE)?)?;
    // -1, the default, stands for none, and is not written.
    if tensor.has(field::PLACE_OUTSIDE)? && tensor.u64(field::PLACE_OUTSIDE)? != u64::MAX {
        return Err(Error::version("its bytes are in another file, which is not supported"));
    }
    let dims = tensor.list(field::DIMS, 8)?.i64s()?;
    let dims: Option<Vec<u64>> = dims.into_iter().map(|dim| u64::try_from(dim).ok()).collect();
    let elements = dims
        .as_ref()
        .and_then(|dims| dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim)));
    let needed = elements.and_then(|elements| elements.checked_mul(dtype.block_bytes()));
    let (Some(dims), Some(needed)) = (dims, needed) else {
        return Err(Error::corrupt("an initializer has an impossible shape"));
    };
    let bytes = tensor.list(field::BYTES, 1)?;
    if bytes.len != needed {
        let len = bytes.len;
        let message = format!("its {dtype} elements of shape {dims:?} do not take {len} bytes");
        return Err(Error::corrupt(message).at(bytes.at));
    }
    let range = StoredRange { file: 0, offset: bytes.at, len: bytes.len };
    Ok(Weight { name: name.to_owned(), dtype, dims, range })
}
