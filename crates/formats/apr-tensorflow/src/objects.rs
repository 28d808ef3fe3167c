//! The graph of objects that a program saved: the names that its variables had there.

use std::collections::BTreeMap;

use apr_core::protobuf::{Message, Walker, decode_varint};
use apr_core::{Limits, Result};

/// The entry of a checkpoint that has it.
pub(crate) const KEY: &str = "_CHECKPOINTABLE_OBJECT_GRAPH";

/// The name in the program of each variable, by its key in the checkpoint.
///
/// # Errors
/// E001 and E002 for a damaged graph.
pub(crate) fn full_names(bytes: &[u8], limits: &Limits) -> Result<BTreeMap<String, String>> {
    let mut walker = Walker::new(&bytes, limits);
    let mut names = BTreeMap::new();
    let mut graph = walker.message();
    while let Some(field) = graph.next(&mut walker)? {
        if field.number != 1 {
            continue;
        }
        let mut node = field.message()?;
        while let Some(field) = node.next(&mut walker)? {
            if field.number == 2
                && let Some((key, name)) = attribute(&mut walker, field.message()?)?
            {
                names.insert(key, name);
            }
        }
    }
    Ok(names)
}

/// The key and the name of an attribute that was saved.
fn attribute(walker: &mut Walker<'_>, mut message: Message) -> Result<Option<(String, String)>> {
    let (mut key, mut name) = (String::new(), String::new());
    while let Some(field) = message.next(walker)? {
        match field.number {
            2 => name = field.text(walker)?,
            3 => key = field.text(walker)?,
            _ => {}
        }
    }
    Ok((!key.is_empty() && !name.is_empty()).then_some((key, name)))
}

/// The only text of a tensor of texts: its length, a checksum of the length, and its bytes.
pub(crate) fn only_text(bytes: &[u8]) -> Option<&[u8]> {
    let (len, used) = decode_varint(bytes)?;
    let start = usize::try_from(used).ok()?.checked_add(4)?;
    bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
}
