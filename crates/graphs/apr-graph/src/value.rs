//! Values: what flows between nodes.

use std::fmt;

use crate::{Dim, ElementType, Meaning, NodeId, ValueId};

/// Something that nodes read or make.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name, unique within the body.
    pub name: String,
    /// Type of the value, as far as known.
    pub kind: ValueType,
    /// Origin of the value.
    pub origin: ValueOrigin,
    /// Purpose of the value, if it is an input or an output of the model.
    pub meaning: Meaning,
}

impl Value {
    /// Returns the tensor type, if the value is a tensor.
    #[must_use]
    pub fn tensor(&self) -> Option<&TensorType> {
        match &self.kind {
            ValueType::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Returns the shape, if the value is a tensor of known rank.
    #[must_use]
    pub fn shape(&self) -> Option<&[Dim]> {
        self.tensor()?.shape.as_deref()
    }

    /// Returns the element type, if the value is a tensor of known element type.
    #[must_use]
    pub fn element(&self) -> Option<ElementType> {
        self.tensor()?.element
    }
}

/// Origin of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum ValueOrigin {
    /// The caller of the body gives it.
    Input,
    /// A node makes it.
    Node(NodeId),
    /// Tensor of the checkpoint. If it is also an input of the body, the caller may pass another
    /// tensor.
    Weight(WeightRef),
    /// Constant in the graph.
    Constant(Constant),
    /// Value of the enclosing body.
    Outer(ValueId),
    /// Name that the file uses, but that no node produces. A check reports an error.
    Missing,
}

/// A tensor of the checkpoint, and how the graph looks at it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightRef {
    /// Name of the tensor.
    pub tensor: String,
    /// Views applied to the tensor before use, in order.
    ///
    /// If empty, the tensor is used unchanged. It is dequantized or cast if its stored type differs
    /// from the value's type.
    pub views: Vec<View>,
}

impl WeightRef {
    /// Creates a reference to a tensor without views.
    #[must_use]
    pub fn whole(tensor: impl Into<String>) -> Self {
        Self { tensor: tensor.into(), views: Vec::new() }
    }
}

/// View of a tensor that requires no computation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum View {
    /// Dimension `i` of the result is dimension `order[i]` of the tensor.
    Transposed(Vec<usize>),
    /// The part of `len` elements from `start` on, along a dimension.
    Slice {
        /// Dimension; 0 is the outermost.
        axis: usize,
        /// Number of the first element.
        start: u64,
        /// Number of elements.
        len: u64,
    },
    /// Elements in the same order, with other dimensions.
    Reshaped(Vec<u64>),
    /// Several tensors, one after the other along a dimension: the one so far, then these.
    Joined {
        /// Dimension; 0 is the outermost.
        axis: usize,
        /// Names of the tensors that follow.
        with: Vec<String>,
    },
    /// Several tensors of one shape under a new outermost dimension: the one so far, then these.
    Stacked(Vec<String>),
    /// Each element plus this: how GGUF stores Gemma's norms.
    Plus(i32),
}

/// Type of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ValueType {
    /// Type not known yet.
    #[default]
    Unknown,
    /// Tensor of an element type and a shape.
    Tensor(TensorType),
    /// A tensor of which most elements are zero.
    SparseTensor(TensorType),
    /// Any number of values of one type.
    Sequence(Box<ValueType>),
    /// A value, or none.
    Optional(Box<ValueType>),
    /// Values by keys.
    Map(ElementType, Box<ValueType>),
}

impl ValueType {
    /// A tensor of known type and rank.
    #[must_use]
    pub fn tensor(element: ElementType, shape: impl IntoIterator<Item = Dim>) -> Self {
        Self::Tensor(TensorType {
            element: Some(element),
            shape: Some(shape.into_iter().collect()),
        })
    }

    /// Returns the name of the type for messages.
    pub(crate) fn described(&self) -> String {
        match self {
            Self::Unknown => "nothing".to_owned(),
            Self::Tensor(tensor) => tensor.to_string(),
            Self::SparseTensor(tensor) => format!("a sparse {tensor}"),
            Self::Sequence(_) => "a sequence".to_owned(),
            Self::Optional(_) => "an optional value".to_owned(),
            Self::Map(..) => "a map".to_owned(),
        }
    }
}

/// Maximum number of dimensions of a tensor, as in NumPy and PyTorch.
///
/// Real files have up to eight. A file could declare thousands, and a chain of nodes could make
/// millions.
pub const MAX_RANK: usize = 64;

/// The type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TensorType {
    /// Element type, if known.
    pub element: Option<ElementType>,
    /// Dimensions, outermost first, if their number is known.
    pub shape: Option<Vec<Dim>>,
}

impl fmt::Display for TensorType {
    /// Formats the type as `f32[batch, sequence, 320]`, with `?` for unknown parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.element {
            Some(element) => write!(f, "{element}")?,
            None => f.write_str("?")?,
        }

        match &self.shape {
            None => f.write_str("[?]"),
            Some(shape) => {
                f.write_str("[")?;
                for (position, dim) in shape.iter().enumerate() {
                    if position > 0 {
                        f.write_str(", ")?;
                    }
                    write!(f, "{dim}")?;
                }
                f.write_str("]")
            }
        }
    }
}

/// A small tensor that is in the graph itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant {
    /// Name that the file gives it; mostly empty.
    pub name: String,
    /// Type of the elements.
    pub element: ElementType,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Elements of the constant.
    pub data: ConstantData,
}

/// The elements of a constant.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstantData {
    /// Little-endian, packed as in `raw_data` of an ONNX file.
    Bytes(Vec<u8>),
    /// List of texts.
    Texts(Vec<Vec<u8>>),
}

impl Constant {
    /// Integers in a row.
    #[must_use]
    pub fn ints(values: &[i64]) -> Self {
        Self {
            name: String::new(),
            element: ElementType::I64,
            shape: vec![values.len() as u64],
            data: ConstantData::Bytes(
                values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
        }
    }

    /// One integer, without dimensions.
    #[must_use]
    pub fn int(value: i64) -> Self {
        Self { shape: Vec::new(), ..Self::ints(&[value]) }
    }

    /// Floats of single precision in a row.
    #[must_use]
    pub fn floats(values: &[f32]) -> Self {
        Self {
            name: String::new(),
            element: ElementType::F32,
            shape: vec![values.len() as u64],
            data: ConstantData::Bytes(
                values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ),
        }
    }

    /// One float of single precision, without dimensions.
    #[must_use]
    pub fn float(value: f32) -> Self {
        Self { shape: Vec::new(), ..Self::floats(&[value]) }
    }

    /// Returns the elements as integers, if they are booleans or integers of 32 or 64 bits.
    #[must_use]
    pub fn as_ints(&self) -> Option<Vec<i64>> {
        let ConstantData::Bytes(bytes) = &self.data else { return None };
        match self.element {
            ElementType::I64 => {
                let (words, _) = bytes.as_chunks::<8>();
                Some(words.iter().map(|word| i64::from_le_bytes(*word)).collect())
            }
            ElementType::I32 => {
                let (words, _) = bytes.as_chunks::<4>();
                Some(words.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect())
            }
            ElementType::Bool => Some(bytes.iter().map(|byte| i64::from(*byte != 0)).collect()),
            _ => None,
        }
    }

    /// Returns the elements as floats, if they are `f32`.
    #[must_use]
    pub fn as_floats(&self) -> Option<Vec<f32>> {
        match (&self.data, self.element) {
            (ConstantData::Bytes(bytes), ElementType::F32) => {
                let (words, _) = bytes.as_chunks::<4>();
                Some(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_reads_as_people_write_it() {
        let kind = TensorType {
            element: Some(ElementType::F32),
            shape: Some(vec![Dim::symbol("batch"), Dim::Unknown, Dim::fixed(320)]),
        };
        assert_eq!(kind.to_string(), "f32[batch, ?, 320]");
        assert_eq!(TensorType::default().to_string(), "?[?]");
    }

    #[test]
    fn constants_give_their_numbers() {
        assert_eq!(Constant::ints(&[1, -2]).as_ints(), Some(vec![1, -2]));
        assert_eq!(Constant::float(0.5).as_floats(), Some(vec![0.5]));
        assert_eq!(Constant::float(0.5).as_ints(), None);
    }
}
