//! Attributes: small values that describe an object.

use apr_core::{Error, Result};

use super::bytes::Bytes;
use super::datatype::{Datatype, read_dims};
use super::file::File;
use super::heap::{FractalHeap, global_text};
use super::object::{Object, kind, shared};
use super::tree;

/// An attribute, its value not yet read.
#[derive(Debug, Clone)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    datatype: Datatype,
    /// Number of elements.
    count: u64,
    data: Vec<u8>,
    /// Offset of the data in the file.
    at: u64,
}

/// The attributes of an object.
///
/// # Errors
/// E002 for a damaged one, E003 for what is not supported, E007 when reading fails, E008 over the
/// budget.
pub(crate) fn attributes(file: &File<'_>, object: &Object) -> Result<Vec<Attribute>> {
    let mut found = Vec::new();
    for message in object.all(kind::ATTRIBUTE) {
        found.push(Attribute::read(file, &message.data, message.address)?);
    }
    for message in object.all(kind::ATTRIBUTE_INFO) {
        let mut bytes = file.bytes(&message.data, message.address);
        let (_version, flags) = (bytes.u8()?, bytes.u8()?);
        bytes.skip(if flags & 1 == 0 { 0 } else { 2 })?;
        let (heap, names) = (bytes.address()?, bytes.address()?);
        if let (Some(heap), Some(names)) = (heap, names) {
            let heap = FractalHeap::read(file, heap)?;
            for record in tree::records(file, names)? {
                let id = record.get(..8).unwrap_or(&record);
                let (object, at) = heap.object(file, id, names)?;
                found.push(Attribute::read(file, &object, at)?);
            }
        }
    }
    Ok(found)
}

impl Attribute {
    fn read(file: &File<'_>, message: &[u8], address: u64) -> Result<Self> {
        let mut bytes = file.bytes(message, address);
        let (at, version, flags) = (bytes.at(), bytes.u8()?, bytes.u8()?);
        let lens = [bytes.u16()?, bytes.u16()?, bytes.u16()?].map(usize::from);
        let padded = |len: usize| if version == 1 { len.next_multiple_of(8) } else { len };
        match version {
            1 | 2 => {}
            // The encoding of its name.
            3 => bytes.skip(1)?,
            _ => return Err(Error::version("an attribute has an unknown version").at(at)),
        }
        let flags = if version == 1 { 0 } else { flags };
        let name = bytes.part(padded(lens[0]))?.until_nul();
        let name = String::from_utf8_lossy(name).into_owned();

        let mut datatype = bytes.part(padded(lens[1]))?;
        let datatype = if flags & 1 == 0 {
            Datatype::read(&mut datatype)?
        } else {
            let message = shared(file, &mut datatype, kind::DATATYPE)?;
            Datatype::read(&mut file.bytes(&message.data, message.address))?
        };
        let mut dataspace = bytes.part(padded(lens[2]))?;
        let dims = if flags & 2 == 0 {
            read_dims(&mut dataspace)?
        } else {
            let message = shared(file, &mut dataspace, kind::DATASPACE)?;
            read_dims(&mut file.bytes(&message.data, message.address))?
        };
        let count = dims.map_or(Some(0), |dims| {
            dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim))
        });
        let count = count.ok_or_else(|| Error::corrupt("an attribute is too large").at(at))?;
        let at = bytes.at();
        let data = bytes.take(bytes.len())?.to_vec();
        Ok(Self { name, datatype, count, data, at })
    }

    /// Returns the texts of the attribute, or `None` if it has another type.
    ///
    /// # Errors
    /// E002 for a damaged one, E007 when reading fails, E008 over the budget.
    pub(crate) fn texts(&self, file: &File<'_>) -> Result<Option<Vec<Vec<u8>>>> {
        let size = match self.datatype {
            Datatype::FixedText(size) => u64::from(size),
            Datatype::Text => self.datatype.size(file.offset_size()),
            // What has no elements is a list of any type: a layer's weights where it has none.
            _ if self.count == 0 => return Ok(Some(Vec::new())),
            _ => return Ok(None),
        };
        let len = self.count.checked_mul(size).filter(|&len| len <= self.data.len() as u64);
        if len.is_none() || (size == 0 && self.count > 0) {
            return Err(Error::corrupt("an attribute ends before its last text").at(self.at));
        }
        let mut bytes = Bytes::new(&self.data, self.at, (file.offset_size(), file.length_size()));
        let mut texts = Vec::new();
        for _ in 0..self.count {
            texts.push(match self.datatype {
                Datatype::Text => global_text(file, &mut bytes)?,
                _ => {
                    let text = bytes.take(usize::try_from(size).unwrap_or(usize::MAX))?;
                    text.split(|&byte| byte == 0).next().unwrap_or_default().to_vec()
                }
            });
        }
        Ok(Some(texts))
    }
}
