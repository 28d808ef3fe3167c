//! Datasets: where their values are.

use apr_core::{Error, Result};

use super::chunks::Index;
use super::datatype::{Datatype, read_dims};
use super::file::File;
use super::object::{Message, Object, kind};

/// Maximum ratio of a dataset's length to the file's, if the file does not store all bytes.
///
/// This is the maximum compression ratio of DEFLATE.
const MAX_RATIO: u64 = 1032;

/// Bytes of a chunk that has to be decoded as a whole.
const MAX_CHUNK: u64 = 64 << 20;

/// A filter that is applied when a chunk is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Compression as a zlib stream.
    Deflate,
    /// The first bytes of all elements, then the second ones.
    Shuffle,
    /// A checksum of four bytes at the end.
    Fletcher32,
}

/// Location of values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Side by side in the file, from this byte on.
    Flat(u64),
    /// No location: all elements have the fill value.
    Nowhere,
    /// Chunks of one shape.
    Chunked(Chunks),
}

/// Values in chunks of one shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunks {
    /// Elements of a chunk in each dimension.
    pub(crate) shape: Vec<u64>,
    pub(crate) index: Index,
    /// Filters of a chunk, in order of application.
    pub(crate) filters: Vec<Filter>,
}

/// A dataset whose values can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dataset {
    pub(crate) datatype: Datatype,
    pub(crate) dims: Vec<u64>,
    pub(crate) place: Place,
    /// The bytes of an element that was never written.
    pub(crate) fill: Vec<u8>,
}

impl Dataset {
    /// Reads the description of a dataset.
    ///
    /// The inner error is the reason why its values cannot be read, which does not affect other
    /// datasets.
    ///
    /// # Errors
    /// E002 for a damaged one, E007 when reading fails, E008 over the budget.
    pub(crate) fn read(
        file: &File<'_>,
        object: &Object,
    ) -> Result<std::result::Result<Self, Error>> {
        match Self::read_strictly(file, object) {
            Ok(dataset) => Ok(Ok(dataset)),
            Err(error) if error.code() == apr_core::Code::Version => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    fn read_strictly(file: &File<'_>, object: &Object) -> Result<Self> {
        let message = |kind| {
            let message: Option<&Message> = object.find(kind);
            message.ok_or_else(|| Error::corrupt("a dataset lacks a description of itself"))
        };
        let bytes = |message: &'_ Message| (message.address, message.data.clone());
        let (at, data) = bytes(message(kind::DATASPACE)?);
        let dims = read_dims(&mut file.bytes(&data, at))?;
        let dims = dims.ok_or_else(|| Error::version("it has no values"))?;
        let (at, data) = bytes(message(kind::DATATYPE)?);
        let datatype = Datatype::read(&mut file.bytes(&data, at))?;
        if !matches!(datatype, Datatype::Number { .. } | Datatype::Opaque(2)) {
            let message = format!("no format here holds elements of {}", datatype.name());
            return Err(Error::version(message));
        }
        if object.find(kind::EXTERNAL).is_some() {
            return Err(Error::version("its values are in other files, which are never opened"));
        }

        let element = datatype.size(file.offset_size());
        let elements = dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
        let len = elements.and_then(|elements| elements.checked_mul(element));
        let len = len.ok_or_else(|| Error::corrupt(format!("its shape {dims:?} is impossible")))?;
        let filters = match object.find(kind::FILTERS) {
            Some(message) => read_filters(file, message)?,
            None => Vec::new(),
        };
        let fill = fill_value(file, object, element)?;
        let place = layout(file, message(kind::LAYOUT)?, (&dims, element, len), filters)?;
        let held = match place {
            Place::Flat(_) => u64::MAX,
            _ => file.source.len().saturating_mul(MAX_RATIO),
        };
        if len > held {
            return Err(Error::memory(format!(
                "its {len} bytes are more than a file of {} bytes can hold",
                file.source.len()
            )));
        }
        Ok(Self { datatype, dims, place, fill })
    }
}

/// Returns the location of the values from the layout message.
///
/// It is described in section IV.A.2.i of the format's specification.
fn layout(
    file: &File<'_>,
    message: &Message,
    (dims, element, len): (&[u64], u64, u64),
    filters: Vec<Filter>,
) -> Result<Place> {
    let mut bytes = file.bytes(&message.data, message.address);
    let (at, version) = (bytes.at(), bytes.u8()?);
    let (class, rank) = match version {
        1 | 2 => {
            let (rank, class) = (bytes.u8()?, bytes.u8()?);
            bytes.skip(5)?;
            (class, usize::from(rank))
        }
        3 | 4 => (bytes.u8()?, 0),
        _ => return Err(Error::version(format!("version {version} of a layout is not supported"))),
    };
    let flat = |place: u64, stored: u64| {
        let end = place.checked_add(len);
        if stored < len || end.is_none_or(|end| end > file.source.len()) {
            let message = format!(
                "{stored} bytes are declared for its {len}, and the file has {}",
                file.source.len()
            );
            return Err(Error::corrupt(message).at(place));
        }
        Ok(Place::Flat(place))
    };

    match (version, class) {
        (1 | 2, 0) => {
            bytes.skip(4 * rank)?;
            let size = u64::from(bytes.u32()?);
            flat(bytes.at(), size.min(bytes.len() as u64))
        }
        (3.., 0) => {
            let size = u64::from(bytes.u16()?);
            flat(bytes.at(), size.min(bytes.len() as u64))
        }
        (_, 1) => {
            let address = bytes.address()?;
            // The first versions say how long by the dimensions.
            let stored = if version < 3 { len } else { bytes.length()? };
            match address {
                Some(_) if len == 0 => Ok(Place::Nowhere),
                Some(address) => flat(file.place(address)?, stored),
                None => Ok(Place::Nowhere),
            }
        }
        (_, 2) => {
            let (index, shape) = if version < 4 {
                let rank = if version == 3 { usize::from(bytes.u8()?) } else { rank };
                let address = bytes.address()?;
                let shape = (0..rank).map(|_| bytes.u32().map(u64::from)).collect::<Result<_>>()?;
                (Index::Tree(address), shape)
            } else {
                Index::read(&mut bytes)?
            };
            chunked((shape, index, filters), (dims, element), file, at)
        }
        (4, 3) => Err(Error::version("it is a virtual dataset, made of other files or datasets")),
        _ => Err(Error::corrupt("a layout has an unknown class").at(at)),
    }
}

/// Checks chunks before anything is made of them.
fn chunked(
    (mut shape, index, filters): (Vec<u64>, Index, Vec<Filter>),
    (dims, element): (&[u64], u64),
    file: &File<'_>,
    at: u64,
) -> Result<Place> {
    // The last number is the size of an element.
    let last = shape.pop();
    if last != Some(element) || shape.len() != dims.len() || shape.contains(&0) {
        let message = format!("chunks of shape {shape:?} do not divide a shape of {dims:?}");
        return Err(Error::corrupt(message).at(at));
    }
    let len = shape.iter().try_fold(element, |product, &dim| product.checked_mul(dim));
    let most = MAX_CHUNK.max(file.source.len());
    match len {
        // Without filters, any part of a chunk is read where it is.
        Some(_) if filters.is_empty() => {}
        Some(len) if len <= most => {}
        _ => {
            let message = format!("a chunk of shape {shape:?} takes more than {most} bytes");
            return Err(Error::memory(message).at(at));
        }
    }
    Ok(Place::Chunked(Chunks { shape, index, filters }))
}

/// The steps of the filter message (section IV.A.2.l).
fn read_filters(file: &File<'_>, message: &Message) -> Result<Vec<Filter>> {
    let mut bytes = file.bytes(&message.data, message.address);
    let (version, count) = (bytes.u8()?, bytes.u8()?);
    bytes.skip(if version == 1 { 6 } else { 0 })?;
    let mut filters = Vec::new();
    for _ in 0..count {
        let id = bytes.u16()?;
        let name_len = if version == 1 || id >= 256 { usize::from(bytes.u16()?) } else { 0 };
        let (_flags, values) = (bytes.u16()?, usize::from(bytes.u16()?));
        bytes.skip(if version == 1 { name_len.next_multiple_of(8) } else { name_len })?;
        let is_padded = version == 1 && !values.is_multiple_of(2);
        bytes.skip(4 * (values + usize::from(is_padded)))?;
        filters.push(match id {
            1 => Filter::Deflate,
            2 => Filter::Shuffle,
            3 => Filter::Fletcher32,
            _ => {
                let name = match id {
                    4 => "szip",
                    5 => "nbit",
                    6 => "scale-offset",
                    32000 => "LZF",
                    32001 => "Blosc",
                    32004 => "LZ4",
                    32015 => "Zstandard",
                    _ => "unknown",
                };
                let message = format!("its chunks have the filter {id} ({name})");
                return Err(Error::version(message));
            }
        });
    }
    Ok(filters)
}

/// Returns the bytes of an element that was never written. Default: zeros.
fn fill_value(file: &File<'_>, object: &Object, element: u64) -> Result<Vec<u8>> {
    let zeros = || vec![0; usize::try_from(element).unwrap_or_default()];
    let fill = match (object.find(kind::FILL), object.find(kind::FILL_OLD)) {
        (Some(message), _) => {
            let mut bytes = file.bytes(&message.data, message.address);
            let version = bytes.u8()?;
            let is_defined = if version < 3 {
                bytes.skip(2)?;
                bytes.u8()? != 0
            } else {
                bytes.u8()? & 0x20 != 0
            };
            if !is_defined {
                return Ok(zeros());
            }
            let len = bytes.u32()?;
            bytes.take(usize::try_from(len).unwrap_or(usize::MAX))?
        }
        (None, Some(message)) => {
            let mut bytes = file.bytes(&message.data, message.address);
            let len = bytes.u32()?;
            bytes.take(usize::try_from(len).unwrap_or(usize::MAX))?
        }
        (None, None) => &[],
    };
    Ok(if fill.len() as u64 == element { fill.to_vec() } else { zeros() })
}
