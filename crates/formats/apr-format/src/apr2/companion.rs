//! Files that travel with the weights: short text in the metadata, the rest in U8 tensors
//! (`docs/format/apr2.md`, "Metadata").

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::{FromUtf8Error, String};
use alloc::vec::Vec;

use apr_core::{Companion, DType, Error, Escaped, Metadata, Result, TensorInfo, keys};
use serde_json::{Map, Value, json};

use super::index::IndexEntry;

/// Maximum size of a companion that is stored in the metadata, in bytes. Larger ones become
/// tensors.
const INLINE_COMPANION: usize = 1 << 20;

/// A file to carry along: configuration, tokenizer, model card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompanionFile {
    /// Plain name, `config.json` or `1_Pooling/config.json`.
    pub name: String,
    /// Contents of the file.
    pub bytes: Vec<u8>,
}

/// Location of the contents of a companion in an opened file.
pub(super) enum CompanionBytes {
    Text(String),
    /// The tensor at this position in the index.
    Tensor(usize, TensorInfo),
}

/// Puts companions into the metadata. Short text is stored directly. The rest become U8 tensors,
/// which are returned with their bytes.
///
/// # Errors
/// E001 for a name that is not plain or there twice.
pub(super) fn embed_companions(
    metadata: &mut Metadata,
    companions: Vec<CompanionFile>,
) -> Result<(Vec<TensorInfo>, Vec<Vec<u8>>)> {
    let mut files = Map::new();
    let (mut infos, mut contents) = (Vec::new(), Vec::new());
    for CompanionFile { name, bytes } in companions {
        check_name(&name)?;
        let value = match String::from_utf8(bytes) {
            Ok(text) if text.len() <= INLINE_COMPANION => Value::String(text),
            bytes => {
                let bytes = bytes.map_or_else(FromUtf8Error::into_bytes, String::into_bytes);
                let tensor = format!("files/{name}");
                let shape = [bytes.len() as u64].into();
                infos.push(TensorInfo { name: tensor.clone(), dtype: DType::U8, shape });
                contents.push(bytes);
                json!({ "tensor": tensor })
            }
        };

        if files.contains_key(&name) {
            return Err(Error::format(format!(
                "two companions have the name '{}'",
                Escaped::short(&name)
            )));
        }

        files.insert(name, value);
    }

    metadata.remove(keys::FILES);
    if !files.is_empty() {
        metadata.set(keys::FILES, files);
    }

    Ok((infos, contents))
}

/// The companions that the metadata lists, sorted by name.
///
/// # Errors
/// E001 for a name that is not plain and a value that is neither text nor a tensor, E002 when the
/// tensor is missing, is not U8, or is another companion's.
pub(super) fn find_companions(
    metadata: &Metadata,
    entries: &[IndexEntry],
) -> Result<(Vec<Companion>, Vec<CompanionBytes>)> {
    let (mut companions, mut contents) = (Vec::new(), Vec::new());
    let mut taken = BTreeSet::new();
    for (name, value) in metadata.object(keys::FILES).into_iter().flatten() {
        check_name(name)?;
        let (len, bytes) = match (value, value.get("tensor").and_then(Value::as_str)) {
            (Value::String(text), _) => (text.len() as u64, CompanionBytes::Text(text.clone())),
            (_, Some(tensor)) => {
                let at =
                    entries.binary_search_by(|entry| entry.info.name.as_str().cmp(tensor)).ok();
                let at =
                    at.filter(|&at| entries[at].info.dtype == DType::U8 && !entries[at].is_tied());
                let at = at.ok_or_else(|| {
                    Error::corrupt(format!(
                        "the companion '{}' is in no U8 tensor",
                        Escaped::short(name)
                    ))
                    .for_tensor(tensor)
                })?;
                if !taken.insert(at) {
                    return Err(
                        Error::corrupt("two companions are in one tensor").for_tensor(tensor)
                    );
                }
                let info = entries[at].info.clone();
                (info.byte_len()?, CompanionBytes::Tensor(at, info))
            }
            _ => {
                let name = Escaped::short(name);
                return Err(Error::format(format!(
                    "the companion '{name}' is neither text nor in a tensor"
                )));
            }
        };

        companions.push(Companion { name: name.clone(), len });
        contents.push(bytes);
    }

    Ok((companions, contents))
}

/// Checks the name of a companion. A companion becomes a file in the model's folder, so its name
/// must not lead elsewhere.
fn check_name(name: &str) -> Result<()> {
    let stray = |c: char| c.is_control() || matches!(c, '\\' | ':');
    if name.contains(stray) || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        let name = Escaped::short(name);
        return Err(Error::format(format!(
            "'{name}' is not a plain file name; companion files must be in the model's folder"
        )));
    }
    Ok(())
}
