//! Links of a group: names of objects.

use apr_core::{Error, Result};

use super::bytes::Bytes;
use super::file::{File, Followed};
use super::heap::{FractalHeap, LocalHeap};
use super::object::{Object, kind};
use super::tree;

/// Target of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// The object with the header at this address.
    Hard(u64),
    /// Another path of the file.
    Soft(String),
    /// An object of another file.
    External { file: String, object: String },
}

/// A name in a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) target: Target,
}

/// The links of a group, in the order that they are stored in.
///
/// # Errors
/// E002 for a damaged group, E003 for what is not supported, E007 when reading fails, E008 over the
/// budget.
pub(crate) fn links(file: &File<'_>, group: &Object) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    for message in group.all(kind::SYMBOL_TABLE) {
        let mut bytes = file.bytes(&message.data, message.address);
        if let (Some(tree), Some(heap)) = (bytes.address()?, bytes.address()?) {
            symbols(file, (tree, heap), &mut links)?;
        }
    }
    for message in group.all(kind::LINK) {
        links.push(link(&mut file.bytes(&message.data, message.address))?);
    }
    for message in group.all(kind::LINK_INFO) {
        let mut bytes = file.bytes(&message.data, message.address);
        let (_version, flags) = (bytes.u8()?, bytes.u8()?);
        bytes.skip(if flags & 1 == 0 { 0 } else { 8 })?;
        let (heap, names) = (bytes.address()?, bytes.address()?);
        if let (Some(heap), Some(names)) = (heap, names) {
            let heap = FractalHeap::read(file, heap)?;
            for record in tree::records(file, names)? {
                // A hash of the name, and where the link is in the heap.
                let id = record.get(4..).unwrap_or_default();
                let (object, at) = heap.object(file, id, names)?;
                links.push(link(&mut file.bytes(&object, at))?);
            }
        }
    }
    Ok(links)
}

/// The links of a group of the older form: a tree of nodes of symbols, and a heap of their names.
fn symbols(file: &File<'_>, (tree, heap): (u64, u64), links: &mut Vec<Link>) -> Result<()> {
    let heap = LocalHeap::read(file, heap)?;
    let mut followed = Followed::default();
    let key_len = usize::from(file.length_size());
    tree::each_entry(file, tree, (0, key_len), &mut |_, node| {
        followed.follow(node)?;
        let head = file.read(node, 8)?;
        let mut bytes = file.bytes(&head, node);
        bytes.signature(b"SNOD")?;
        bytes.skip(2)?;
        let count = u64::from(bytes.u16()?);
        let entry = 24 + 2 * u64::from(file.offset_size());
        let symbols = file.read(node + 8, count * entry)?;
        let mut bytes = file.bytes(&symbols, node + 8);
        for _ in 0..count {
            let (name, object) = (bytes.integer(file.offset_size().into())?, bytes.address()?);
            let cached = bytes.u32()?;
            bytes.skip(4)?;
            let mut scratch = bytes.part(16)?;
            let name = heap.name(file, name)?;
            let target = match object {
                // A symbol with a cache of this kind is a soft link.
                _ if cached == 2 => Target::Soft(heap.name(file, scratch.u32()?.into())?),
                Some(address) => Target::Hard(address),
                None => return Err(Error::corrupt("a symbol has no object").at(node)),
            };
            links.push(Link { name, target });
        }
        Ok(())
    })
}

/// A link message.
fn link(bytes: &mut Bytes<'_>) -> Result<Link> {
    let at = bytes.at();
    let (version, flags) = (bytes.u8()?, bytes.u8()?);
    if version != 1 {
        return Err(Error::version("a link has an unknown version").at(at));
    }
    let kind = if flags & 8 == 0 { 0 } else { bytes.u8()? };
    bytes.skip(if flags & 4 == 0 { 0 } else { 8 })?;
    bytes.skip(if flags & 0x10 == 0 { 0 } else { 1 })?;
    let len = bytes.integer(1 << (flags & 3))?;
    let name = bytes.take(usize::try_from(len).unwrap_or(usize::MAX))?;
    let name = String::from_utf8_lossy(name).into_owned();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let target = match kind {
        0 => {
            let address = bytes.address()?;
            Target::Hard(address.ok_or_else(|| Error::corrupt("a link has no object").at(at))?)
        }
        1 => {
            let len = bytes.u16()?;
            Target::Soft(text(bytes.take(len.into())?))
        }
        64 => {
            let len = bytes.u16()?;
            let mut value = bytes.part(len.into())?;
            value.skip(1)?;
            let (file, object) = (value.until_nul(), value.until_nul());
            Target::External { file: text(file), object: text(object) }
        }
        _ => return Err(Error::version(format!("links of kind {kind} are not known")).at(at)),
    };
    Ok(Link { name, target })
}
