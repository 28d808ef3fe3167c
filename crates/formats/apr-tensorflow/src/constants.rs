//! Constants of a graph: nodes that hold a tensor.
//!
//! ```text
//! GraphDef   1: NodeDef  2: FunctionDefLibrary      NodeDef      1: name  2: op  5: attribute
//! library    1: FunctionDef                         TensorProto  1: dtype 2: shape
//! function   1: signature (1: name)  3: NodeDef                  4: bytes 5..: values by type
//! ```

use std::collections::BTreeMap;

use apr_core::protobuf::{Field, Message, Span, Walker};
use apr_core::{DType, Error, Escaped, Limits, Result};

use crate::bundle;
use crate::dtype;

/// Values of a constant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Values {
    /// Side by side in the file.
    Flat(Span),
    /// These bytes, of which the last element repeats.
    Repeated(Vec<u8>),
}

/// Constant of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) dims: Vec<u64>,
    pub(crate) values: Values,
    /// `true` for a number, or a list of integers such as a shape.
    ///
    /// Such a constant may be a setting of a program whose weights are in other files.
    pub(crate) is_setting: bool,
}

/// Content of a graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) constants: Vec<Constant>,
    /// Number of nodes of each operator.
    pub(crate) operators: BTreeMap<String, u64>,
    /// Names of constants that are texts.
    pub(crate) texts: Vec<String>,
    /// Constants that can't be read, and why.
    pub(crate) refused: Vec<Error>,
}

impl Graph {
    /// Reads a `GraphDef`, and the functions in its library.
    ///
    /// # Errors
    /// E001 for what is none, E002 for a damaged one, E007 when reading fails, E008 over the limit.
    pub(crate) fn read(
        walker: &mut Walker<'_>,
        mut message: Message,
        limits: &Limits,
    ) -> Result<Self> {
        let mut graph = Self::default();
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => graph.add_node(walker, field.message()?, "", limits)?,
                2 => {
                    let mut library = field.message()?;
                    while let Some(field) = library.next(walker)? {
                        if field.number == 1 {
                            graph.add_function(walker, &field, limits)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(graph)
    }

    fn add_function(
        &mut self,
        walker: &mut Walker<'_>,
        function: &Field,
        limits: &Limits,
    ) -> Result<()> {
        let (mut name, mut nodes) = (String::new(), Vec::new());
        let mut message = function.message()?;
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => {
                    let mut signature = field.message()?;
                    while let Some(field) = signature.next(walker)? {
                        if field.number == 1 {
                            name = field.text(walker)?;
                        }
                    }
                }
                3 => {
                    walker.keep(size_of::<Message>() as u64)?;
                    nodes.push(field.message()?);
                }
                _ => {}
            }
        }
        let prefix = format!("{name}/");
        nodes.into_iter().try_for_each(|node| self.add_node(walker, node, &prefix, limits))
    }

    fn add_node(
        &mut self,
        walker: &mut Walker<'_>,
        mut node: Message,
        prefix: &str,
        limits: &Limits,
    ) -> Result<()> {
        let (mut name, mut operator, mut value) = (String::new(), String::new(), None);
        while let Some(field) = node.next(walker)? {
            match field.number {
                1 => name = field.text(walker)?,
                2 => operator = field.text(walker)?,
                5 => value = value.or(tensor_attribute(walker, field.message()?)?),
                _ => {}
            }
        }
        if let Some(tensor) = value.filter(|_| operator == "Const") {
            walker.keep((prefix.len() + size_of::<Constant>()) as u64)?;
            let name = format!("{prefix}{name}");
            let proto = TensorProto::read(walker, tensor);
            let located = |error: Error| error.for_tensor(Escaped::short(&name));
            let proto = proto.map_err(located)?;
            if proto.dtype == dtype::STRING {
                self.texts.push(name);
            } else {
                match proto.constant(walker, limits) {
                    Ok((dtype, values)) => {
                        let is_setting = proto.dims.is_empty()
                            || !matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64);
                        let dims = proto.dims;
                        self.constants.push(Constant { name, dtype, dims, values, is_setting });
                    }
                    Err(error) if error.code() == apr_core::Code::Corrupt => {
                        return Err(located(error));
                    }
                    Err(error) => self.refused.push(located(error)),
                }
            }
        }
        if !operator.is_empty() {
            *self.operators.entry(operator).or_default() += 1;
        }
        Ok(())
    }
}

/// The tensor of the attribute `value`.
fn tensor_attribute(walker: &mut Walker<'_>, mut entry: Message) -> Result<Option<Message>> {
    let (mut is_value, mut tensor) = (false, None);
    while let Some(field) = entry.next(walker)? {
        match field.number {
            1 => is_value = field.range()?.len == 5 && field.bytes(walker)? == b"value",
            2 => {
                let mut value = field.message()?;
                while let Some(field) = value.next(walker)? {
                    if field.number == 8 {
                        tensor = Some(field.message()?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(tensor.filter(|_| is_value))
}

/// A `TensorProto`. Its values are read only if they are a few bytes of varints.
#[derive(Default)]
pub(crate) struct TensorProto {
    dtype: u64,
    dims: Vec<u64>,
    content: Option<Span>,
    /// Fields of values.
    fields: Vec<Field>,
}

impl TensorProto {
    pub(crate) fn read(walker: &mut Walker<'_>, mut message: Message) -> Result<Self> {
        let mut proto = Self::default();
        while let Some(field) = message.next(walker)? {
            match field.number {
                1 => proto.dtype = field.integer()?,
                2 => proto.dims = bundle::dims(walker, field.message()?)?,
                4 => proto.content = Some(field.range()?).filter(|span| span.len > 0),
                5..=18 => {
                    walker.keep(size_of::<Field>() as u64)?;
                    proto.fields.push(field);
                }
                _ => {}
            }
        }
        Ok(proto)
    }

    /// Returns the dimensions of the tensor.
    pub(crate) fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Texts, in order.
    ///
    /// # Errors
    /// E007 when reading fails, E008 over the limit.
    pub(crate) fn texts(&self, walker: &mut Walker<'_>) -> Result<Vec<Vec<u8>>> {
        let texts = self.fields.iter().filter(|field| field.number == 8);
        texts.map(|field| field.bytes(walker)).collect()
    }

    /// The values, as little-endian bytes.
    pub(crate) fn constant(
        &self,
        walker: &mut Walker<'_>,
        limits: &Limits,
    ) -> Result<(DType, Values)> {
        let dtype = dtype::dtype(self.dtype)?;
        let elements = self.dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
        let len = elements.and_then(|count| count.checked_mul(dtype.block_bytes()));
        let len = len.ok_or_else(|| {
            Error::corrupt(format!("a constant has an impossible shape {:?}", self.dims))
        })?;
        if let Some(span) = self.content {
            if span.len == len {
                return Ok((dtype, Values::Flat(span)));
            }
            // Fewer bytes are one element, which stands for all.
            if span.len != dtype.block_bytes() || len == 0 {
                let message = format!("found {} bytes for a constant of {len}", span.len);
                return Err(Error::corrupt(message).at(span.offset));
            }
            limits.check_index(len)?;
            return Ok((dtype, Values::Repeated(walker.bytes(span)?)));
        }
        let number = value_field(dtype);
        if let [field] = self.fields.as_slice()
            && field.number == number
            && matches!(dtype, DType::F32 | DType::F64 | DType::C64)
            && let Ok(span) = field.range()
            && span.len == len
        {
            return Ok((dtype, Values::Flat(span)));
        }

        let mut bytes = Vec::new();
        for field in self.fields.iter().filter(|field| field.number == number) {
            push_values(walker, field, dtype, &mut bytes)?;
        }
        if bytes.len() as u64 > len || !(bytes.len() as u64).is_multiple_of(dtype.block_bytes()) {
            return Err(Error::corrupt("a constant has other values than its shape"));
        }
        // What repeats takes no room in the file, and all of it elsewhere.
        if (bytes.len() as u64) < len {
            limits.check_index(len)?;
        }
        if bytes.is_empty() {
            bytes.resize(usize::try_from(dtype.block_bytes()).unwrap_or(8), 0);
        }
        Ok((dtype, Values::Repeated(bytes)))
    }
}

/// The field that values of a dtype are in.
fn value_field(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 5,
        DType::F64 => 6,
        DType::C64 => 9,
        DType::I64 => 10,
        DType::BOOL => 11,
        DType::F16 | DType::BF16 => 13,
        DType::U32 => 16,
        DType::U64 => 17,
        DType::F8_E4M3 | DType::F8_E5M2 | DType::F8_E4M3FNUZ | DType::F8_E5M2FNUZ => 18,
        _ => 7,
    }
}

fn push_values(
    walker: &mut Walker<'_>,
    field: &Field,
    dtype: DType,
    bytes: &mut Vec<u8>,
) -> Result<()> {
    use apr_core::protobuf::Value;

    match (dtype, field.value) {
        (DType::F32 | DType::C64, Value::Fixed32(bits)) => {
            walker.keep(4)?;
            bytes.extend(bits.to_le_bytes());
        }
        (DType::F64, Value::Fixed64(bits)) => {
            walker.keep(8)?;
            bytes.extend(bits.to_le_bytes());
        }
        (DType::F32 | DType::C64 | DType::F64, _) => {
            let packed = field.bytes(walker)?;
            if !packed.len().is_multiple_of(if dtype == DType::F64 { 8 } else { 4 }) {
                return Err(Error::corrupt("a value is cut off").at(field.span.offset));
            }
            bytes.extend(packed);
        }
        (_, Value::Bytes(span)) if value_field(dtype) == 18 => bytes.extend(walker.bytes(span)?),
        _ => {
            let width = usize::try_from(dtype.block_bytes()).unwrap_or(8);
            let mut numbers = Vec::new();
            field.integers(walker, &mut numbers)?;
            bytes.extend(
                numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width)),
            );
        }
    }
    Ok(())
}
