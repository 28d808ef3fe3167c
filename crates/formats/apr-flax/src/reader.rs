//! A file as a checkpoint.

use std::fmt;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, ContainerFacts, Error, Escaped, FileInfo, Format, Limits,
    Metadata, Result, Shape, Stored, StoredRange, TensorInfo, UniqueNames, check_range, counted,
    has_no, has_own,
};
use serde_json::{Value, json};

use crate::FORMAT;
use crate::messagepack::Cursor;
use crate::tree::Tree;

/// Flax's weights opened for reading; [`open`] makes it.
pub struct FlaxReader {
    source: Arc<dyn ByteSource>,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// Pieces of each tensor, one after the other.
    parts: Vec<Vec<StoredRange>>,
    metadata: Metadata,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

/// Opens a file. Its tree is read, no weights.
///
/// # Errors
/// E001 for what is no map of variables, E002 for a damaged file, E003 for one whose values no
/// format here holds, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<FlaxReader> {
    open_shared(Arc::new(source), name, limits).map_err(|error| error.in_file(name))
}

fn open_shared(source: Arc<dyn ByteSource>, name: &str, limits: &Limits) -> Result<FlaxReader> {
    let mut cursor = Cursor::new(&*source, limits);
    let Tree { mut arrays, mut refused } = Tree::read(&mut cursor)?;
    let mut warnings = Vec::new();
    if cursor.at() < source.len() {
        let rest = source.len() - cursor.at();
        warnings.push(format!("{rest} bytes follow the variables"));
    }
    if arrays.is_empty() && !refused.is_empty() {
        return Err(refused.swap_remove(0));
    }

    // A training state has the optimizer's beside the parameters.
    let mut left_out = Vec::new();
    if arrays.iter().any(|array| array.path.starts_with("params/")) {
        let before = arrays.len();
        arrays.retain(|array| !array.path.starts_with("opt_state/"));
        if before > arrays.len() {
            let count = counted((before - arrays.len()) as u64, "array");
            left_out.push(format!("the optimizer's state ({count})"));
        }
    }
    left_out.extend(refused.iter().map(|error| {
        let name = Escaped::short(error.tensor().unwrap_or_default());
        format!("{name} ({})", error.message())
    }));
    // A map may have a key twice.
    UniqueNames::tell_apart(arrays.iter_mut().map(|array| &mut array.path));
    Ok(FlaxReader {
        files: vec![FileInfo { name: name.to_owned(), len: source.len() }],
        tensors: arrays
            .iter()
            .map(|array| TensorInfo {
                name: array.path.clone(),
                dtype: array.dtype,
                shape: Shape::from(array.dims.clone()),
            })
            .collect(),
        parts: arrays.into_iter().map(|array| array.parts).collect(),
        metadata: Metadata::new(),
        left_out,
        warnings,
        source,
    })
}

impl FlaxReader {
    fn locate(&self, tensor: usize, error: Error) -> Error {
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
    }

    fn read(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (mut start, mut at, mut rest) = (0, offset, buf);
        for part in &self.parts[tensor] {
            let end = start + part.len;
            if at < end && !rest.is_empty() {
                let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(rest.len());
                let (head, tail) = rest.split_at_mut(count);
                self.source.read_at(part.offset + (at - start), head)?;
                at += count as u64;
                rest = tail;
            }
            start = end;
        }
        Ok(())
    }
}

impl ContainerFacts for FlaxReader {
    fn header_fields(&self) -> Value {
        json!({ "container": FORMAT.id })
    }
}

impl CheckpointReader for FlaxReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);
    has_no!(companions);

    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        match self.parts[tensor].as_slice() {
            [part] => Stored::plain(*part),
            parts => {
                let none = StoredRange { file: 0, offset: 0, len: 0 };
                Stored::derived(parts.first().copied().unwrap_or(none))
            }
        }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available)
            .and_then(|()| self.read(tensor, offset, buf))
            .map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        match self.parts.get(tensor)?.as_slice() {
            [part] => self.source.slice_at(part.offset, part.len),
            _ => None,
        }
    }
}

impl fmt::Debug for FlaxReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlaxReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
