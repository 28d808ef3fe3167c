//! Tensors without their data.

use apr_core::protobuf::{Element, Field, Runs, Span, Walker};
use apr_core::{ByteSource, Error, Limits, Result};

use super::entries::Property;
use super::walk::{each, push, small};

/// A tensor and the location of its data, which are not read: `TensorProto`.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Tensor {
    /// Name; empty in attributes.
    pub name: String,
    /// Dimensions, outermost first, as the file has them.
    pub dims: Vec<i64>,
    /// Number of the element type.
    pub data_type: i32,
    /// The elements as little-endian bytes. `Some` even if the field is empty.
    pub raw: Option<Span>,
    /// The elements as numbers of the schema.
    pub typed: Typed,
    /// The elements of a tensor of texts, not read.
    pub texts: Vec<Span>,
    /// `true` if the message holds a segment of a larger tensor.
    ///
    /// No known program writes such messages.
    pub is_segment: bool,
    /// Location of the data outside the file: `location`, `offset`, `length`, `checksum`.
    pub external: Vec<Property>,
    /// Declared location of the data: 1 is outside the file.
    pub location: i32,
    /// The message without key and length. For a message in several pieces, the first piece.
    pub span: Span,
}

/// Elements as numbers, in the field of the schema that their element type requires.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Typed {
    /// Single precision, and both parts of complex numbers.
    pub floats: Runs,
    /// Everything of up to 32 bits that is not unsigned 32 bits or single precision; halves as
    /// their bits.
    pub int32: Runs,
    /// Signed 64-bit integers.
    pub int64: Runs,
    /// Double precision, and both parts of complex numbers.
    pub doubles: Runs,
    /// Unsigned integers of 32 and 64 bits.
    pub uint64: Runs,
}

impl Tensor {
    pub(crate) fn read(walker: &mut Walker<'_>, field: &Field) -> Result<Self> {
        let mut tensor = Self::default();
        tensor.merge(walker, field)?;
        Ok(tensor)
    }

    /// The tensor that a file is.
    ///
    /// # Errors
    /// E001 for what is no such message, E002 where it is cut off, E007 when reading fails, E008
    /// over the limits.
    pub fn read_file(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let mut walker = Walker::new(source, limits);
        let message = walker.message();
        let mut tensor = Self { span: Span { offset: 0, len: source.len() }, ..Self::default() };
        each(&mut walker, message, |walker, field| tensor.field(walker, field))?;
        Ok(tensor)
    }

    pub(crate) fn merge(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        if self.span == Span::default() {
            self.span = field.range()?;
        }
        each(walker, field.message()?, |walker, field| self.field(walker, field))
    }

    fn field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        match field.number {
            1 => return field.integers(walker, &mut self.dims),
            2 => self.data_type = small(field)?,
            3 => self.is_segment = true,
            8 => self.name = field.text(walker)?,
            9 => self.raw = Some(field.range()?),
            13 => {
                return push(walker, &mut self.external, |walker| {
                    Property::read(walker, field.message()?)
                });
            }
            14 => self.location = small(field)?,
            _ => return self.data_field(walker, field),
        }

        Ok(())
    }

    fn data_field(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        let typed = &mut self.typed;
        match field.number {
            4 => typed.floats.add(walker, field, Element::Fixed32),
            5 => typed.int32.add(walker, field, Element::Varint),
            6 => push(walker, &mut self.texts, |_| field.range()),
            7 => typed.int64.add(walker, field, Element::Varint),
            10 => typed.doubles.add(walker, field, Element::Fixed64),
            11 => typed.uint64.add(walker, field, Element::Varint),
            _ => Ok(()),
        }
    }

    /// Returns `true` if the data are in another file.
    #[must_use]
    pub fn is_outside(&self) -> bool {
        /// Value of `data_location` for data in another file.
        const EXTERNAL: i32 = 1;
        self.location == EXTERNAL
    }

    /// The dimensions.
    ///
    /// # Errors
    /// E001 for a negative one.
    pub fn shape(&self) -> Result<Vec<u64>> {
        shape(&self.dims).map_err(|error| error.at(self.span.offset))
    }
}

/// A sparse tensor: `SparseTensorProto`.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct SparseTensor {
    /// The non-zero elements as a vector. Its name is the name of the sparse tensor.
    pub values: Tensor,
    /// Positions of the elements in ascending order, of shape `[n]` or `[n, rank]`.
    ///
    /// They are linear, or have one index per dimension.
    pub indices: Tensor,
    /// Dimensions of the whole.
    pub dims: Vec<i64>,
}

impl SparseTensor {
    pub(crate) fn read(walker: &mut Walker<'_>, field: &Field) -> Result<Self> {
        let mut tensor = Self::default();
        tensor.merge(walker, field)?;
        Ok(tensor)
    }

    pub(crate) fn merge(&mut self, walker: &mut Walker<'_>, field: &Field) -> Result<()> {
        each(walker, field.message()?, |walker, field| match field.number {
            1 => self.values.merge(walker, field),
            2 => self.indices.merge(walker, field),
            3 => field.integers(walker, &mut self.dims),
            _ => Ok(()),
        })
    }
}

pub(crate) fn shape(dims: &[i64]) -> Result<Vec<u64>> {
    let negative = |dim: i64| Error::format(format!("a dimension is {dim}"));
    dims.iter().map(|&dim| u64::try_from(dim).map_err(|_| negative(dim))).collect()
}
