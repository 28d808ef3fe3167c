//! Values: what flows between nodes.

use std::fmt;

use crate::{Dim, ElementType, Meaning, NodeId, ValueId};

/// Something that nodes read or make.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name, unique within the body.
    pub name: String,
    /// What is known of its type.
    pub kind: ValueType,
    /// Where it comes from.
    pub origin: ValueOrigin,
    /// What it is for, where it is an input or an output of the model.
    pub meaning: Meaning,
}

impl Value {
    /// Its type, where it is a tensor.
    #[must_use]
    pub fn tensor(&self) -> Option<&TensorType> {
        match &self.kind {
            ValueType::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// Its shape, where it is a tensor whose rank is known.
    #[must_use]
    pub fn shape(&self) -> Option<&[Dim]> {
        self.tensor()?.shape.as_deref()
    }

    /// The type of its elements, where it is a tensor and that is known.
    #[must_use]
    pub fn element(&self) -> Option<ElementType> {
        self.tensor()?.element
    }
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum ValueOrigin {
    /// The caller of the body gives it.
    Input,
    /// A node makes it.
    Node(NodeId),
    /// It is a tensor of the checkpoint. Where it is also among the body's inputs, the caller may
    /// give another.
    Weight(WeightRef),
    /// It is in the graph itself.
    Constant(Constant),
    /// It is this value of the body around.
    Outer(ValueId),
    /// Nothing makes it: the file names it, and that is all. A check refuses it.
    Missing,
}

/// A tensor of the checkpoint, and how the graph looks at it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightRef {
    /// Name of the tensor.
    pub tensor: String,
    /// What is done to it before it is used, first things first. Empty: the tensor as it is,
    /// dequantized or cast where its stored type is not the value's.
    pub views: Vec<View>,
}

impl WeightRef {
    /// A tensor as it is.
    #[must_use]
    pub fn whole(tensor: impl Into<String>) -> Self {
        Self { tensor: tensor.into(), views: Vec::new() }
    }
}

/// A look at a tensor that computes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum View {
    /// Dimension `i` of the result is dimension `order[i]` of the tensor.
    Transposed(Vec<usize>),
    /// The part of `len` elements from `start` on, along a dimension.
    Slice {
        /// Which dimension, 0 is the outermost.
        axis: usize,
        /// First element.
        start: u64,
        /// Number of elements.
        len: u64,
    },
    /// The same elements in the same order, with other dimensions.
    Reshaped(Vec<u64>),
    /// Several tensors, one after the other along a dimension: the one so far, then these.
    Joined {
        /// Which dimension, 0 is the outermost.
        axis: usize,
        /// Names of the tensors that follow.
        with: Vec<String>,
    },
    /// Several tensors of one shape under a new outermost dimension: the one so far, then these.
    Stacked(Vec<String>),
    /// Each element plus this: how GGUF stores Gemma's norms.
    Plus(i32),
}

/// What a value is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum ValueType {
    /// Nothing is known yet.
    #[default]
    Unknown,
    /// A tensor.
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

    /// What messages call it.
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

/// Most dimensions of a tensor, as in NumPy and torch. Files have up to eight; a file could state
/// thousands, and a chain of nodes could make millions.
pub const MAX_RANK: usize = 64;

/// The type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TensorType {
    /// Type of the elements, where it is known.
    pub element: Option<ElementType>,
    /// Dimensions, outermost first, where their number is known.
    pub shape: Option<Vec<Dim>>,
}

impl fmt::Display for TensorType {
    /// `f32[batch, sequence, 320]`; `?` where something is not known.
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
    /// Its elements.
    pub data: ConstantData,
}

/// The elements of a constant.
#[derive(Debug, Clone, PartialEq)]
pub enum ConstantData {
    /// Little-endian, packed as in `raw_data` of an ONNX file.
    Bytes(Vec<u8>),
    /// Texts.
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

    /// The elements as integers, where they are of an integer type of 32 or 64 bits, or truth
    /// values.
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

    /// The elements as floats, where they are of single precision.
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
