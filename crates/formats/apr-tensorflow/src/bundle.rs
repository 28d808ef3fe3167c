//! A checkpoint: an index of entries, and the shards that their bytes are in.

use std::collections::BTreeMap;

use apr_core::protobuf::{Message, Walker};
use apr_core::{ByteSource, Error, Escaped, Limits, Result};

use crate::dtype;
use crate::slices::{Extent, slice_of};
use crate::table;

/// Dimensions of a tensor.
const MAX_RANK: usize = 254;

/// The index entry of a tensor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dtype: u64,
    pub(crate) dims: Vec<u64>,
    pub(crate) shard: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// The masked checksum of the bytes.
    pub(crate) sum: u32,
    /// Extents of the parts of a partitioned variable.
    pub(crate) slices: Vec<Vec<Extent>>,
}

/// Index of a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Bundle {
    /// Files that the bytes are in.
    pub(crate) shards: u32,
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Parts of partitioned variables: the name, the extents of the part, and its entry.
    pub(crate) parts: Vec<(String, Vec<Extent>, Entry)>,
}

impl Bundle {
    /// Reads an index.
    ///
    /// # Errors
    /// E001 for what is none, E002 for a damaged one, E003 for big-endian ones and a later version,
    /// E004 for a wrong checksum, E007 when reading fails, E008 over the limit.
    pub(crate) fn read(source: &dyn ByteSource, limits: &Limits) -> Result<Self> {
        let mut bundle = Self::default();
        let mut has_header = false;
        for (key, value) in table::read(source, limits)? {
            let mut walker = Walker::new(&value, limits);
            let message = walker.message();
            if key.is_empty() {
                bundle.shards = header(&mut walker, message)?;
                has_header = true;
                continue;
            }
            let entry = entry(&mut walker, message);
            // The names of parts start with a number, which no other name does.
            if key.starts_with(&[0]) {
                let (name, extents) = slice_of(&key)?;
                bundle.parts.push((name, extents, entry?));
                continue;
            }
            let name = String::from_utf8(key)
                .map_err(|_| Error::format("the name of a variable is not UTF-8"))?;
            let entry = entry.map_err(|error| error.for_tensor(Escaped::short(&name)))?;
            bundle.entries.insert(name, entry);
        }
        if !has_header {
            return Err(Error::format("not the index of a checkpoint: it has no header"));
        }
        let mut entries = bundle.entries.iter();
        if let Some((name, entry)) = entries.find(|(_, entry)| entry.shard >= bundle.shards) {
            let message = format!("it is in shard {} of {}", entry.shard, bundle.shards);
            return Err(Error::corrupt(message).for_tensor(Escaped::short(name)));
        }
        Ok(bundle)
    }
}

/// The number of shards.
fn header(walker: &mut Walker<'_>, mut message: Message) -> Result<u32> {
    let mut shards = 0;
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => shards = field.integer()?,
            2 if field.integer()? != 0 => {
                return Err(Error::version("big-endian checkpoints are not supported"));
            }
            _ => {}
        }
    }
    let shards = u32::try_from(shards).ok().filter(|shards| (1..=100_000).contains(shards));
    shards.ok_or_else(|| Error::corrupt("the index has an impossible number of shards"))
}

fn entry(walker: &mut Walker<'_>, mut message: Message) -> Result<Entry> {
    let mut entry = Entry::default();
    while let Some(field) = message.next(walker)? {
        match field.number {
            1 => entry.dtype = field.integer()?,
            2 => entry.dims = dims(walker, field.message()?)?,
            3 => entry.shard = u32::try_from(field.integer()?).unwrap_or(u32::MAX),
            4 => entry.offset = field.integer()?,
            5 => entry.len = field.integer()?,
            6 => {
                if let apr_core::protobuf::Value::Fixed32(sum) = field.value {
                    entry.sum = sum;
                }
            }
            7 => entry.slices.push(extents(walker, field.message()?)?),
            _ => {}
        }
    }
    let known = dtype::dtype(entry.dtype).ok();
    let elements = entry.dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    let len = elements.and_then(|count| count.checked_mul(known?.block_bytes()));
    // The whole of a partitioned variable has no bytes of its own.
    let is_whole = entry.slices.is_empty();
    if elements.is_none() || known.is_some() && is_whole && len != Some(entry.len) {
        let message = format!(
            "{} bytes are declared for {} elements of shape {:?}",
            entry.len,
            dtype::name(entry.dtype),
            entry.dims
        );
        return Err(Error::corrupt(message));
    }
    Ok(entry)
}

/// Sizes of the dimensions of a `TensorShapeProto`.
///
/// # Errors
/// E001 for a shape that is not known.
pub(crate) fn dims(walker: &mut Walker<'_>, mut message: Message) -> Result<Vec<u64>> {
    let mut dims = Vec::new();
    while let Some(field) = message.next(walker)? {
        match field.number {
            2 => {
                let mut dim = field.message()?;
                let mut size = 0;
                while let Some(field) = dim.next(walker)? {
                    if field.number == 1 {
                        size = field.signed()?;
                    }
                }
                let size = u64::try_from(size).ok().filter(|_| dims.len() < MAX_RANK);
                let message = "a shape has sizes below zero, or too many of them";
                dims.push(size.ok_or_else(|| Error::corrupt(message))?);
            }
            3 if field.integer()? != 0 => return Err(Error::corrupt("a shape is not known")),
            _ => {}
        }
    }
    Ok(dims)
}

/// A `TensorSliceProto`: start and length in each dimension.
fn extents(walker: &mut Walker<'_>, mut message: Message) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    while let Some(field) = message.next(walker)? {
        if field.number != 1 {
            continue;
        }
        let mut extent = Extent { start: 0, len: None };
        let mut inner = field.message()?;
        while let Some(field) = inner.next(walker)? {
            match field.number {
                1 => extent.start = field.integer()?,
                2 => extent.len = Some(field.integer()?),
                _ => {}
            }
        }
        extents.push(extent);
    }
    Ok(extents)
}
