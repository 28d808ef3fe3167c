//! What a version of an operator takes and makes.

use std::fmt;

use crate::{AttributeValue, ElementType, ValueType};

/// A version of an operator.
#[derive(Debug)]
#[non_exhaustive]
pub struct Operator {
    /// Domain of the operator; empty for ONNX.
    pub domain: &'static str,
    /// Name of the operator.
    pub name: &'static str,
    /// Version of the domain's operators that introduced this version.
    pub since: i64,
    /// `true` if the operator was removed in this version; it then has no inputs or outputs.
    pub deprecated: bool,
    /// Inputs of the operator.
    pub inputs: Vec<Parameter>,
    /// Outputs of the operator.
    pub outputs: Vec<Parameter>,
    /// Attributes of the operator.
    pub attributes: Vec<Setting>,
}

/// An input or an output of an operator.
#[derive(Debug)]
#[non_exhaustive]
pub struct Parameter {
    /// Name in the ONNX documentation.
    pub name: &'static str,
    /// Number of occurrences.
    pub occurs: Occurs,
    /// Type label; parameters with the same label have one type. Empty if the type is fixed.
    pub label: &'static str,
    /// `true` if all values of a repeated parameter have one type.
    pub alike: bool,
    /// Types that are allowed.
    pub types: TypeSet,
}

/// Number of occurrences of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occurs {
    /// Required parameter.
    Once,
    /// Optional parameter.
    Maybe,
    /// Last parameter, which occurs at least this many times.
    Many(usize),
}

/// Sets of element types as bits, by their numbers in ONNX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TypeSet {
    /// Element types of tensors.
    pub tensor: u32,
    /// Element types of sequences of tensors.
    pub sequence: u32,
    /// Element types of optional tensors.
    pub optional: u32,
    /// Element types of optional sequences of tensors.
    pub optional_sequence: u32,
    /// Non-zero if maps are allowed.
    pub map: u32,
}

impl TypeSet {
    /// Returns `true` if the set allows a type, as far as the type is known.
    #[must_use]
    pub fn allows(&self, kind: &ValueType) -> bool {
        match kind {
            ValueType::Unknown => true,
            ValueType::Tensor(tensor) | ValueType::SparseTensor(tensor) => {
                allows(self.tensor, tensor.element)
            }
            ValueType::Sequence(inner) => match &**inner {
                ValueType::Tensor(tensor) => allows(self.sequence, tensor.element),
                _ => self.sequence != 0 || self.map != 0,
            },
            ValueType::Optional(inner) => match &**inner {
                ValueType::Tensor(tensor) => allows(self.optional, tensor.element),
                _ => self.optional_sequence != 0 || self.optional != 0,
            },
            ValueType::Map(..) => self.map != 0,
        }
    }

    /// Returns the element type, if the set allows only tensors of this one type.
    #[must_use]
    pub fn only(&self) -> Option<ElementType> {
        let others = self.sequence | self.optional | self.optional_sequence | self.map;
        let one = self.tensor.is_power_of_two() && others == 0;
        let code = i32::try_from(self.tensor.trailing_zeros()).ok()?;
        one.then(|| ElementType::from_onnx_code(code)).flatten()
    }
}

/// The first version of ONNX's operators in which `Cast` reads and makes such elements.
///
/// ```
/// use apr_graph::{ElementType, first_cast};
///
/// assert_eq!(first_cast(ElementType::BF16), Some(13));
/// assert_eq!(first_cast(ElementType::F8E4M3), Some(19));
/// ```
#[must_use]
pub fn first_cast(element: ElementType) -> Option<i64> {
    let takes = |parameters: &[Parameter]| {
        parameters.iter().all(|one| allows(one.types.tensor, Some(element)))
    };
    let versions = Operator::versions("", "Cast").iter();
    let casts = versions.filter(|version| takes(&version.inputs) && takes(&version.outputs));
    casts.map(|version| version.since).min()
}

fn allows(mask: u32, element: Option<ElementType>) -> bool {
    match element {
        Some(element) => mask >> element.onnx_code() & 1 == 1,
        None => mask != 0,
    }
}

/// An attribute that an operator has.
#[derive(Debug)]
#[non_exhaustive]
pub struct Setting {
    /// Name of the attribute.
    pub name: &'static str,
    /// Kind of the value.
    pub kind: AttributeKind,
    /// `true` if the attribute is required.
    pub required: bool,
    /// Default value; `None` if there is none.
    pub default: Option<AttributeValue>,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $letter:literal, $name:literal;)*) => {
        /// Kind of an attribute's value, as in `AttributeProto.AttributeType`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum AttributeKind { $($(#[$doc])* $kind,)* }

        impl AttributeKind {
            pub(super) fn from_letter(letter: &str) -> Self {
                match letter { $($letter => Self::$kind,)* _ => Self::Opaque }
            }
        }

        impl fmt::Display for AttributeKind {
            /// The name in `onnx.proto`: `INTS`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$kind => $name,)* })
            }
        }
    };
}

kinds! {
    /// Integer.
    Int = "i", "INT";
    /// A number with a fraction.
    Float = "f", "FLOAT";
    /// Text.
    Text = "s", "STRING";
    /// Tensor.
    Tensor = "t", "TENSOR";
    /// Body that the node runs.
    Body = "g", "GRAPH";
    /// Type of a value.
    Type = "p", "TYPE_PROTO";
    /// List of integers.
    Ints = "I", "INTS";
    /// Numbers with fractions.
    Floats = "F", "FLOATS";
    /// List of texts.
    Texts = "S", "STRINGS";
    /// List of tensors.
    Tensors = "T", "TENSORS";
    /// List of bodies.
    Bodies = "G", "GRAPHS";
    /// List of types.
    Types = "P", "TYPE_PROTOS";
    /// Value that this crate stores without parsing.
    Opaque = "x", "SPARSE_TENSOR";
}

impl AttributeKind {
    /// The kind of a value; `None` for a reference to the call's attribute, which can be anything.
    #[must_use]
    pub fn of(value: &AttributeValue) -> Option<Self> {
        Some(match value {
            AttributeValue::Int(_) => Self::Int,
            AttributeValue::Float(_) => Self::Float,
            AttributeValue::Text(_) => Self::Text,
            AttributeValue::Tensor(_) | AttributeValue::Weight(_) => Self::Tensor,
            AttributeValue::Body(_) => Self::Body,
            AttributeValue::Type(_) => Self::Type,
            AttributeValue::Ints(_) => Self::Ints,
            AttributeValue::Floats(_) => Self::Floats,
            AttributeValue::Texts(_) => Self::Texts,
            AttributeValue::Tensors(_) => Self::Tensors,
            AttributeValue::Bodies(_) => Self::Bodies,
            AttributeValue::Types(_) => Self::Types,
            AttributeValue::Opaque(_) => Self::Opaque,
            AttributeValue::OfCall(_) => return None,
        })
    }
}

impl Operator {
    /// Returns the minimum number of inputs, and the maximum if there is one.
    #[must_use]
    pub fn input_count(&self) -> (usize, Option<usize>) {
        count(&self.inputs)
    }

    /// Returns the minimum number of outputs, and the maximum if there is one.
    #[must_use]
    pub fn output_count(&self) -> (usize, Option<usize>) {
        count(&self.outputs)
    }

    /// The input at a position.
    #[must_use]
    pub fn input(&self, position: usize) -> Option<&Parameter> {
        at(&self.inputs, position)
    }

    /// The output at a position.
    #[must_use]
    pub fn output(&self, position: usize) -> Option<&Parameter> {
        at(&self.outputs, position)
    }

    /// Returns the attribute with this name.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.attributes.iter().find(|setting| setting.name == name)
    }
}

/// The fewest are up to the last that must be there.
fn count(parameters: &[Parameter]) -> (usize, Option<usize>) {
    let mut fewest = 0;
    for (position, parameter) in parameters.iter().enumerate() {
        match parameter.occurs {
            Occurs::Once => fewest = position + 1,
            Occurs::Maybe => {}
            Occurs::Many(times) => return (position + times, None),
        }
    }
    (fewest, Some(parameters.len()))
}

/// The parameter at a position; the last may occur many times.
fn at(parameters: &[Parameter], position: usize) -> Option<&Parameter> {
    let last = parameters.last().filter(|last| matches!(last.occurs, Occurs::Many(_)));
    parameters.get(position).or(last)
}
