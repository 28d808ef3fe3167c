//! What the readers of APR1 and of the v2 dialects share: fields, places, elements in layouts of
//! their own.

mod fields;
mod packed;
mod place;
mod reader;

pub(crate) use fields::{Fields, read_front};
pub(crate) use packed::{Codec, Encoding, Packed, Scale};
pub(crate) use place::{Entry, Parts, Section};
pub(crate) use reader::table;

use alloc::format;
use alloc::string::String;

use apr_core::{Error, Metadata, Result, json, keys};

/// Dimensions that an index entry of four slots uses, outermost first.
///
/// # Errors
/// E001 for more than four.
pub(crate) fn used_dims(slots: [u32; 4], count: u8) -> Result<alloc::vec::Vec<u64>> {
    let used = slots.get(..count.into());
    let used =
        used.ok_or_else(|| Error::format(format!("{count} dimensions; an index entry holds 4")))?;
    Ok(used.iter().copied().map(u64::from).collect())
}

/// The name in a field that zeros fill up.
///
/// # Errors
/// E001 when it is empty or not UTF-8.
pub(crate) fn padded_name(field: &[u8], at: u64) -> Result<String> {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    checked_name(&field[..end], at)
}

/// A tensor's name.
///
/// # Errors
/// E001 when it is empty or not UTF-8.
pub(crate) fn checked_name(bytes: &[u8], at: u64) -> Result<String> {
    let name = json::utf8(bytes, "a tensor's name", at)?;
    if name.is_empty() {
        Err(Error::format("a tensor has no name").at(at))
    } else {
        Ok(name.into())
    }
}

/// Renames metadata that would mean something to this project that their program did not mean.
pub(crate) fn disarm(metadata: &mut Metadata) {
    let ours = [
        keys::APR_VERSION,
        keys::FILES,
        keys::GGUF,
        keys::LOSS,
        keys::SAFETENSORS,
        keys::TIED,
        keys::VIOLATIONS,
        "names",
    ];
    for key in ours {
        if let Some(value) = metadata.remove(key) {
            metadata.set(&format!("original.{key}"), value);
        }
    }
}
