//! What the elements of datasets and attributes are, and how many there are.

use apr_core::{DType, Error, Result};

use super::bytes::Bytes;

/// Types within types.
const MAX_DEPTH: u32 = 16;

/// Dimensions of a dataspace.
const MAX_RANK: u8 = 32;

/// The type of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Datatype {
    /// A number of a dtype that there is.
    Number { dtype: DType, is_big_endian: bool },
    /// Text of a fixed number of bytes.
    FixedText(u32),
    /// Text in a global heap.
    Text,
    /// Bytes of any meaning.
    Opaque(u32),
    /// A type that no tensor has: its name, and its size in bytes.
    Other(&'static str, u32),
}

impl Datatype {
    /// Bytes of an element in the file.
    pub(crate) fn size(&self, offset_size: u8) -> u64 {
        match self {
            Self::Number { dtype, .. } => dtype.block_bytes(),
            Self::FixedText(size) | Self::Opaque(size) | Self::Other(_, size) => (*size).into(),
            Self::Text => 8 + u64::from(offset_size),
        }
    }

    /// Returns the name of the type in messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Number { dtype, .. } => dtype.name(),
            Self::FixedText(_) | Self::Text => "string",
            Self::Opaque(_) => "opaque bytes",
            Self::Other(name, _) => name,
        }
    }

    /// Reads a datatype message (section IV.A.2.d of the format's specification).
    ///
    /// # Errors
    /// E002 for a damaged one.
    pub(crate) fn read(bytes: &mut Bytes<'_>) -> Result<Self> {
        Self::read_within(bytes, 0)
    }

    fn read_within(bytes: &mut Bytes<'_>, depth: u32) -> Result<Self> {
        if depth > MAX_DEPTH {
            return Err(Error::corrupt("datatypes are nested too deep").at(bytes.at()));
        }
        let kind = bytes.u8()?;
        let (version, class) = (kind >> 4, kind & 15);
        let bits = bytes.integer(3)?;
        let size = bytes.u32()?;
        let is_big_endian = bits & 1 != 0;
        let number = |dtype| Self::Number { dtype, is_big_endian };
        Ok(match class {
            0 => {
                let (start, precision) = (bytes.u16()?, bytes.u16()?);
                let dtype = match (size, bits & 8 != 0) {
                    _ if start != 0 || u32::from(precision) != size.saturating_mul(8) => None,
                    (1, true) => Some(DType::I8),
                    (2, true) => Some(DType::I16),
                    (4, true) => Some(DType::I32),
                    (8, true) => Some(DType::I64),
                    (1, false) => Some(DType::U8),
                    (2, false) => Some(DType::U16),
                    (4, false) => Some(DType::U32),
                    (8, false) => Some(DType::U64),
                    _ => None,
                };
                dtype.map_or(Self::Other("integers of an unusual width", size), number)
            }
            1 => {
                let format = bytes.take(12)?;
                // Bit offset and precision; exponent's place and width, mantissa's, bias.
                let dtype = match (size, format) {
                    (2, [0, 0, 16, 0, 10, 5, 0, 10, 15, 0, 0, 0]) => Some(DType::F16),
                    (2, [0, 0, 16, 0, 7, 8, 0, 7, 127, 0, 0, 0]) => Some(DType::BF16),
                    (4, [0, 0, 32, 0, 23, 8, 0, 23, 127, 0, 0, 0]) => Some(DType::F32),
                    (8, [0, 0, 64, 0, 52, 11, 0, 52, 255, 3, 0, 0]) => Some(DType::F64),
                    _ => None,
                };
                // The order of VAX has another bit set.
                let dtype = dtype.filter(|_| bits & 0x40 == 0);
                dtype.map_or(Self::Other("floats of an unusual format", size), number)
            }
            2 => Self::Other("times", size),
            3 => Self::FixedText(size),
            4 => Self::Other("bit fields", size),
            5 => Self::Opaque(size),
            6 => Self::compound(bytes, (version, bits, size), depth)?,
            7 => Self::Other("references", size),
            8 => Self::enumeration(bytes, (version, bits, size), depth)?,
            9 if bits & 15 == 1 => Self::Text,
            9 => Self::Other("lists of varying length", size),
            10 => Self::Other("arrays", size),
            _ => Self::Other("elements of an unknown class", size),
        })
    }

    /// A record: two floats called `r` and `i` are a complex number, as h5py writes them.
    fn compound(
        bytes: &mut Bytes<'_>,
        (version, bits, size): (u8, u64, u32),
        depth: u32,
    ) -> Result<Self> {
        let mut members = Vec::new();
        for _ in 0..(bits & 0xffff).min(3) {
            let name = member_name(bytes, version)?;
            let offset = match version {
                1 | 2 => u64::from(bytes.u32()?),
                _ => bytes.integer(offset_width(size))?,
            };
            bytes.skip(if version == 1 { 28 } else { 0 })?;
            members.push((name, offset, Self::read_within(bytes, depth + 1)?));
        }
        let float = |is_big_endian| Self::Number { dtype: DType::F32, is_big_endian };
        Ok(match members.as_slice() {
            [(real, 0, one), (imaginary, 4, other)]
                if (*real, *imaginary) == (b"r", b"i") && one == other && size == 8 =>
            {
                let is_big_endian = *one == float(true);
                if *one == float(is_big_endian) {
                    Self::Number { dtype: DType::C64, is_big_endian }
                } else {
                    Self::Other("records", size)
                }
            }
            [(real, ..), (imaginary, ..)] if (*real, *imaginary) == (b"r", b"i") => {
                Self::Other("complex numbers of an unusual width", size)
            }
            _ => Self::Other("records", size),
        })
    }

    /// Names of numbers: 0 for `FALSE` and 1 for `TRUE` are h5py's booleans.
    fn enumeration(
        bytes: &mut Bytes<'_>,
        (version, bits, size): (u8, u64, u32),
        depth: u32,
    ) -> Result<Self> {
        let base = Self::read_within(bytes, depth + 1)?;
        let Self::Number { dtype, is_big_endian } = base else {
            return Ok(Self::Other("enumerations", size));
        };
        if bits & 0xffff != 2 || dtype != DType::I8 {
            return Ok(Self::Number { dtype, is_big_endian });
        }
        let names = [member_name(bytes, version)?, member_name(bytes, version)?];
        let is_bool = names == [&b"FALSE"[..], b"TRUE"] && bytes.take(2)? == [0, 1];
        let dtype = if is_bool { DType::BOOL } else { dtype };
        Ok(Self::Number { dtype, is_big_endian })
    }
}

/// The name of a member, padded to eight bytes before version 3.
fn member_name<'a>(bytes: &mut Bytes<'a>, version: u8) -> Result<&'a [u8]> {
    let name = bytes.until_nul();
    if version < 3 {
        let padding = (name.len() + 1).next_multiple_of(8) - (name.len() + 1);
        bytes.skip(padding)?;
    }
    Ok(name)
}

/// Bytes that hold an offset into an element of this size.
fn offset_width(size: u32) -> usize {
    match size {
        0..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x100_0000 => 3,
        _ => 4,
    }
}

/// Reads the dimensions of a dataset, or returns `None` if it has no values at all.
///
/// # Errors
/// E002 for a damaged message, E003 for a version that is not known.
pub(crate) fn read_dims(bytes: &mut Bytes<'_>) -> Result<Option<Vec<u64>>> {
    let at = bytes.at();
    let (version, rank, _flags) = (bytes.u8()?, bytes.u8()?, bytes.u8()?);
    let is_null = match version {
        1 => {
            bytes.skip(5)?;
            false
        }
        2 => bytes.u8()? == 2,
        _ => return Err(Error::version("a dataspace has an unknown version").at(at)),
    };
    if rank > MAX_RANK {
        return Err(Error::corrupt(format!("{rank} dimensions are too many")).at(at));
    }
    let dims: Vec<u64> = (0..rank).map(|_| bytes.length()).collect::<Result<_>>()?;
    Ok((!is_null).then_some(dims))
}
