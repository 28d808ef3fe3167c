//! What a model computes: the operators of ONNX, as its tables have them.

use std::collections::HashMap;

use apr_core::{ByteSource, CheckpointReader, DType, Error, Limits, Result};
use apr_graph::{
    Attribute, AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Graph, Node, Op,
    Opset, TensorType, ValueId, ValueOrigin, ValueType, WeightRef,
};
use apr_skeleton::Skeleton;
use apr_tflite::flatbuffer::{Flatbuffer, Table};

use crate::ort::FORMAT;
use crate::ort::model::{MAX_DEPTH, Model};

/// Fields by their numbers in the schema.
mod field {
    pub(super) const MODEL: u64 = 1;
    pub(super) const OPERATOR_SETS: u64 = 1;
    pub(super) const GRAPH: u64 = 7;

    pub(super) const INITIALIZERS: u64 = 0;
    pub(super) const VALUES: u64 = 1;
    pub(super) const NODES: u64 = 2;
    pub(super) const INPUTS: u64 = 5;
    pub(super) const OUTPUTS: u64 = 6;

    pub(super) const NAME: u64 = 0;
    pub(super) const DOC: u64 = 1;
    pub(super) const VALUE_TYPE: u64 = 2;

    pub(super) const KIND: u64 = 1;
    pub(super) const OF_KIND: u64 = 2;
    pub(super) const ELEMENT: u64 = 0;
    pub(super) const SHAPE: u64 = 1;
    pub(super) const DIMENSIONS: u64 = 0;
    pub(super) const DIMENSION: u64 = 0;
    pub(super) const DIMENSION_KIND: u64 = 0;
    pub(super) const SIZE: u64 = 1;
    pub(super) const SYMBOL: u64 = 2;

    pub(super) const DOMAIN: u64 = 2;
    pub(super) const OPERATOR: u64 = 5;
    pub(super) const NODE_INPUTS: u64 = 8;
    pub(super) const NODE_OUTPUTS: u64 = 9;
    pub(super) const ATTRIBUTES: u64 = 10;

    pub(super) const ATTRIBUTE_KIND: u64 = 2;
    pub(super) const FLOAT: u64 = 3;
    pub(super) const INT: u64 = 4;
    pub(super) const TEXT: u64 = 5;
    pub(super) const TENSOR: u64 = 6;
    pub(super) const INNER: u64 = 7;
    pub(super) const FLOATS: u64 = 8;
    pub(super) const INTS: u64 = 9;
    pub(super) const TEXTS: u64 = 10;

    pub(super) const DIMS: u64 = 2;
    pub(super) const TYPE: u64 = 3;
    pub(super) const BYTES: u64 = 4;
}

/// Returns the graph of the `.ort` file that a checkpoint was imported from.
///
/// Returns `None` if the checkpoint has no `.ort` file. Weights have the names of that model's
/// tensors.
///
/// # Errors
/// E001 for graphs that are too deep, E002 for a damaged companion or file, E003 for attributes of
/// several graphs or tensors, E007 when reading fails, E008 over the limits.
pub fn graphs_of(
    reader: &dyn CheckpointReader,
    limits: &Limits,
) -> Result<Option<Vec<(String, Graph)>>> {
    let Some(skeleton) = Skeleton::of(reader, &[FORMAT.id], limits)? else { return Ok(None) };
    let graph = read(skeleton.source(), &skeleton.limits(limits));
    let graph = graph.map_err(|error| error.in_file(skeleton.file()))?;
    Ok(Some(vec![("model".to_owned(), graph)]))
}

fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Graph> {
    let flatbuffer = Flatbuffer::new(source, limits);
    let session = flatbuffer.root()?;
    let model = Model::read(&session)?;
    let table = session.table(field::MODEL)?;
    let table = table.ok_or_else(|| Error::corrupt("the file has no model"))?;
    let mut graph = Graph::default();
    for set in table.tables(field::OPERATOR_SETS)? {
        let set = set?;
        let domain = set.text(field::NAME)?.unwrap_or_default();
        let domain = if domain == "ai.onnx" { String::new() } else { domain };
        let version = set.u64(1)?.cast_signed();
        graph.opsets.push(Opset { domain: domain.as_str().into(), version });
    }
    if let Some(main) = table.table(field::GRAPH)? {
        let names = model.initializers.into_iter();
        let mut bodies = Bodies { names, frames: Vec::new() };
        graph.body = bodies.body(&main)?;
    }
    Ok(graph)
}

/// Makes bodies of graphs.
struct Bodies {
    /// Names of the checkpoint's tensors, in the order of the initializers.
    names: std::vec::IntoIter<(String, Option<DType>)>,
    /// The bodies around the one that is being made, and that one last.
    frames: Vec<Frame>,
}

#[derive(Default)]
struct Frame {
    body: Body,
    names: HashMap<String, ValueId>,
    types: HashMap<String, ValueType>,
}

impl Bodies {
    fn body(&mut self, graph: &Table<'_>) -> Result<Body> {
        if self.frames.len() > MAX_DEPTH as usize {
            let message = format!("more than {MAX_DEPTH} graphs are in each other");
            return Err(Error::format(message));
        }
        self.frames.push(Frame::default());
        let made = self.fill(graph);
        let frame = self.frames.pop().unwrap_or_default();
        made.map(|()| frame.body)
    }

    fn fill(&mut self, graph: &Table<'_>) -> Result<()> {
        let mut types = HashMap::new();
        for value in graph.tables(field::VALUES)? {
            let value = value?;
            if let Some(kind) = value.table(field::VALUE_TYPE)? {
                types.insert(value.text(field::NAME)?.unwrap_or_default(), value_type(&kind)?);
            }
        }
        self.innermost().types = types;

        for tensor in graph.tables(field::INITIALIZERS)? {
            let tensor = tensor?;
            let name = tensor.text(field::NAME)?.unwrap_or_default();
            let (own, dtype) = self.names.next().unwrap_or_else(|| (name.clone(), None));
            let element = dtype.and_then(ElementType::from_dtype);
            let dims = tensor.list(field::DIMS, 8)?.i64s()?;
            let shape =
                dims.iter().map(|size| u64::try_from(*size).map_or(Dim::Unknown, Dim::fixed));
            let kind = ValueType::Tensor(TensorType { element, shape: Some(shape.collect()) });
            self.innermost().add(&name, kind, ValueOrigin::Weight(WeightRef::whole(own)));
        }
        for name in graph.texts(field::INPUTS)? {
            let frame = self.innermost();
            // Old files list their weights among the inputs.
            let id = match frame.names.get(&name) {
                Some(id) => *id,
                None => {
                    let kind = frame.types.get(&name).cloned().unwrap_or_default();
                    frame.add(&name, kind, ValueOrigin::Input)
                }
            };
            frame.body.inputs.push(id);
        }
        for node in graph.tables(field::NODES)? {
            self.node(&node?)?;
        }
        for name in graph.texts(field::OUTPUTS)? {
            let id = self.find(&name);
            self.innermost().body.outputs.push(id);
        }
        // Nodes lie in the order of their numbers, which need not be the one in which they run.
        self.innermost().body.sort_nodes();
        Ok(())
    }

    fn node(&mut self, node: &Table<'_>) -> Result<()> {
        let mut attributes = Vec::new();
        for attribute in node.tables(field::ATTRIBUTES)? {
            let attribute = attribute?;
            let name = attribute.text(field::NAME)?.unwrap_or_default();
            let value = self.value(&attribute, &name)?;
            attributes.push(Attribute { name: name.as_str().into(), value });
        }
        let named = |name: String| if name.is_empty() { None } else { Some(name) };
        let inputs: Vec<Option<ValueId>> = node
            .texts(field::NODE_INPUTS)?
            .into_iter()
            .map(|name| named(name).map(|name| self.find(&name)))
            .collect();
        let mut outputs = Vec::new();
        for name in node.texts(field::NODE_OUTPUTS)? {
            let frame = self.innermost();
            outputs.push(named(name).map(|name| match frame.names.get(&name) {
                // A node that comes before reads it.
                Some(id) if frame.body.value(*id).origin == ValueOrigin::Missing => *id,
                _ => {
                    let kind = frame.types.get(&name).cloned().unwrap_or_default();
                    frame.add(&name, kind, ValueOrigin::Missing)
                }
            }));
        }
        let domain = node.text(field::DOMAIN)?.unwrap_or_default();
        let operator = node.text(field::OPERATOR)?.unwrap_or_default();
        let name = node.text(field::NAME)?.unwrap_or_default();
        self.innermost().body.add_node(Node {
            name,
            op: Op::new(&domain, &operator),
            inputs,
            outputs,
            attributes,
            doc: node.text(field::DOC)?.unwrap_or_default(),
        });
        Ok(())
    }

    fn value(&mut self, attribute: &Table<'_>, name: &str) -> Result<AttributeValue> {
        let bits = |bits: i32| f32::from_bits(bits.cast_unsigned());
        Ok(match attribute.u32(field::ATTRIBUTE_KIND)? {
            1 => AttributeValue::Float(f32::from_bits(attribute.u32(field::FLOAT)?)),
            2 => AttributeValue::Int(attribute.u64(field::INT)?.cast_signed()),
            3 => {
                AttributeValue::Text(attribute.text(field::TEXT)?.unwrap_or_default().into_bytes())
            }
            4 if let Some(tensor) = attribute.table(field::TENSOR)? => {
                AttributeValue::Tensor(constant(&tensor)?)
            }
            5 if let Some(graph) = attribute.table(field::INNER)? => self.body(&graph)?.into(),
            6 => {
                let floats = attribute.list(field::FLOATS, 4)?.i32s()?;
                AttributeValue::Floats(floats.into_iter().map(bits).collect())
            }
            7 => AttributeValue::Ints(attribute.list(field::INTS, 8)?.i64s()?),
            8 => {
                let texts = attribute.texts(field::TEXTS)?;
                AttributeValue::Texts(texts.into_iter().map(String::into_bytes).collect())
            }
            kind => {
                let name = apr_core::Escaped::short(name).to_string();
                let message = format!(
                    "attribute '{name}' is of kind {kind}, which this version does not read"
                );
                return Err(Error::version(message));
            }
        })
    }

    /// Returns the value of a name, in this body or an enclosing one.
    ///
    /// A missing value has no origin.
    fn find(&mut self, name: &str) -> ValueId {
        let innermost = self.frames.len() - 1;
        let holder = (0..=innermost).rev().find(|at| self.frames[*at].names.contains_key(name));
        let Some(holder) = holder else {
            let frame = self.innermost();
            let kind = frame.types.get(name).cloned().unwrap_or_default();
            return frame.add(name, kind, ValueOrigin::Missing);
        };
        let mut id = self.frames[holder].names[name];
        // A body refers only to the one right around it, so all between hand the value on.
        for at in holder + 1..=innermost {
            let kind = self.frames[at - 1].body.value(id).kind.clone();
            id = self.frames[at].add(name, kind, ValueOrigin::Outer(id));
        }
        id
    }

    fn innermost(&mut self) -> &mut Frame {
        if self.frames.is_empty() {
            self.frames.push(Frame::default());
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }
}

impl Frame {
    fn add(&mut self, name: &str, kind: ValueType, origin: ValueOrigin) -> ValueId {
        let id = self.body.add_value(name, kind, origin);
        self.names.insert(name.to_owned(), id);
        id
    }
}

/// A tensor of an attribute.
fn constant(tensor: &Table<'_>) -> Result<Constant> {
    let number = i32::try_from(tensor.u32(field::TYPE)?).unwrap_or_default();
    let element = ElementType::from_onnx_code(number);
    let element = element.filter(|element| *element != ElementType::Text);
    let element = element
        .ok_or_else(|| Error::version(format!("a constant has elements of type {number}")))?;
    let dims = tensor.list(field::DIMS, 8)?.i64s()?;
    let shape: Option<Vec<u64>> = dims.into_iter().map(|dim| u64::try_from(dim).ok()).collect();
    let shape = shape.ok_or_else(|| Error::corrupt("a constant has an impossible shape"))?;
    let data = ConstantData::Bytes(tensor.list(field::BYTES, 1)?.u8s()?);
    let name = tensor.text(field::NAME)?.unwrap_or_default();
    Ok(Constant { name, element, shape, data })
}

/// Returns a tensor type, or an unknown type for other kinds.
fn value_type(kind: &Table<'_>) -> Result<ValueType> {
    const TENSOR: u8 = 1;

    if kind.u8(field::KIND)? != TENSOR {
        return Ok(ValueType::Unknown);
    }
    let Some(tensor) = kind.table(field::OF_KIND)? else { return Ok(ValueType::Unknown) };
    let number = i32::try_from(tensor.u32(field::ELEMENT)?).unwrap_or_default();
    let mut shape = None;
    if let Some(table) = tensor.table(field::SHAPE)? {
        let mut dims = Vec::new();
        for dimension in table.tables(field::DIMENSIONS)? {
            let value = dimension?.table(field::DIMENSION)?;
            dims.push(value.map_or(Ok(Dim::Unknown), |value| dim(&value))?);
        }
        shape = Some(dims);
    }
    Ok(ValueType::Tensor(TensorType { element: ElementType::from_onnx_code(number), shape }))
}

fn dim(value: &Table<'_>) -> Result<Dim> {
    const SIZE: u8 = 1;
    const SYMBOL: u8 = 2;

    Ok(match value.u8(field::DIMENSION_KIND)? {
        SIZE => {
            let size = value.u64(field::SIZE)?.cast_signed();
            u64::try_from(size).map_or(Dim::Unknown, Dim::fixed)
        }
        SYMBOL => match value.text(field::SYMBOL)? {
            Some(name) if !name.is_empty() => Dim::parse(&name),
            _ => Dim::Unknown,
        },
        _ => Dim::Unknown,
    })
}
