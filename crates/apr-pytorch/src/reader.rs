//! A checkpoint as its users see it.

use std::collections::HashMap;
use std::fmt;

use apr_core::{
    ByteSource, CheckpointReader, Error, Escaped, FileInfo, FormatId, Limits, Metadata, Result, Shape, StoredRange,
    TensorInfo, keys, read_vec,
};
use serde_json::{Map, Value};

use crate::contents::Contents;
use crate::flatten::{Flat, flatten};
use crate::options::OpenOptions;
use crate::view::View;
use crate::{archive, legacy, scan, tar};

/// Key of the plain values in the metadata: path to value.
const VALUES: &str = "pytorch";

/// Bytes of all tensors together: so much from any file, and so many times its length. Views of one storage, expanded
/// ones above all, may claim any size.
const FREE_BYTES: u64 = 1 << 30;
const MAX_GROWTH: u64 = 16;

/// Bytes that tell the containers apart: a TAR header.
const HEAD_LEN: u64 = 512;

/// Opens a checkpoint. Only its pickle is read; `name` appears in errors and in [`CheckpointReader::files`].
///
/// # Errors
/// E001 for what is no PyTorch file or wants to import anything unknown, E002 for a truncated or contradictory one,
/// E003 for big-endian, compressed, quantized and sparse ones, E004 for a pickle whose checksum is wrong, E007 when
/// reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(source: S, name: &str, limits: &Limits) -> Result<PytorchReader> {
    open_with(source, name, limits, &OpenOptions::default())
}

/// Opens a checkpoint, or a part of one.
///
/// # Errors
/// Those of [`open`]; E001 when no tensor has the prefix.
pub fn open_with<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
    options: &OpenOptions,
) -> Result<PytorchReader> {
    let reader = read(Box::new(source), name, limits, options);
    reader.map_err(|error| if name.is_empty() { error } else { error.in_file(name) })
}

fn read(source: Box<dyn ByteSource>, name: &str, limits: &Limits, options: &OpenOptions) -> Result<PytorchReader> {
    let head = read_vec(&*source, 0, source.len().min(HEAD_LEN))?;
    let contents = if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        archive::read(&*source, options, limits)?
    } else if tar::recognise(&head) {
        tar::read(&*source, options, limits)?
    } else if head.starts_with(&[0x80]) {
        legacy::read(&*source, options, limits)?
    } else {
        // Protocols 0 and 1 have no mark of their own; PyTorch never used them for a file, attackers do.
        scan::check_rest(&*source, 0, source.len(), limits)?;
        return Err(
            Error::format("this is no PyTorch file: neither ZIP, TAR nor a pickle of protocol 2 or later").at(0)
        );
    };
    PytorchReader::new(source, name, contents, options, limits)
}

/// A PyTorch checkpoint opened for reading; [`open`] makes it.
///
/// Tensors are named by their path, in order of appearance. Metadata holds `pytorch`, the plain values by their path,
/// and [`keys::TIED`], which maps each tensor that is another one under a second name to the first. Tensor positions
/// given to its methods must be below the number of [`tensors`](CheckpointReader::tensors).
pub struct PytorchReader {
    source: Box<dyn ByteSource>,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    views: Vec<View>,
    metadata: Metadata,
    header_fields: Map<String, Value>,
    warnings: Vec<String>,
}

impl PytorchReader {
    fn new(
        source: Box<dyn ByteSource>,
        name: &str,
        mut contents: Contents,
        options: &OpenOptions,
        limits: &Limits,
    ) -> Result<Self> {
        let Flat { tensors: mut paths, values, dropped } = flatten(&contents.heap, contents.root, limits)?;
        let mut warnings = std::mem::take(&mut contents.warnings);
        if let Some(prefix) = &options.prefix {
            let all = paths.len();
            paths = strip(paths, prefix)?;
            if paths.len() < all {
                warnings.push(format!(
                    "{} tensors outside '{}' are not read",
                    all - paths.len(),
                    Escaped::short(prefix)
                ));
            }
        }
        if dropped > 0 {
            warnings.push(format!("{dropped} values of the pickle are too many or too long to be kept as metadata"));
        }
        let (mut tensors, mut views): (Vec<TensorInfo>, Vec<View>) = (Vec::new(), Vec::new());
        let mut metadata = Metadata::new();
        let mut tied = Map::new();
        let mut first = HashMap::new();
        let mut names = HashMap::new();
        let mut budget = source.len().saturating_mul(MAX_GROWTH).saturating_add(FREE_BYTES);
        for (name, position) in paths {
            let tensor = &contents.heap.tensors[position as usize];
            let view = contents.locate(&contents.heap.storages[tensor.storage as usize]);
            let view = view.and_then(|range| View::new(tensor, range)).map_err(|error| error.for_tensor(&name))?;
            if names.insert(name.clone(), tensors.len()).is_some() {
                return Err(Error::format("the checkpoint has two tensors of this name").for_tensor(name));
            }
            budget = budget.checked_sub(view.len).ok_or_else(|| {
                let message = "the tensors up to this one take more than 16 times the file's length, and over 1 GiB";
                Error::memory(message).for_tensor(&name)
            })?;
            let info = TensorInfo { name, dtype: tensor.dtype, shape: Shape::from(tensor.shape.clone()) };
            if view.len > 0 {
                let same = (view.clone(), info.dtype, info.shape.clone());
                let at = *first.entry(same).or_insert(tensors.len());
                if at < tensors.len() {
                    tied.insert(info.name.clone(), tensors[at].name.clone().into());
                }
            }
            tensors.push(info);
            views.push(view);
        }
        if !values.is_empty() {
            metadata.set(VALUES, values);
        }
        if !tied.is_empty() {
            metadata.set(keys::TIED, tied);
        }
        let files = vec![FileInfo { name: name.to_owned(), len: source.len() }];
        let header_fields = contents.header_fields;
        Ok(Self { source, files, tensors, views, metadata, header_fields, warnings })
    }
}

/// The tensors under a prefix, without it.
fn strip(paths: Vec<(String, u32)>, prefix: &str) -> Result<Vec<(String, u32)>> {
    let example = paths.first().map(|(name, _)| name.clone());
    let kept: Vec<_> = paths
        .into_iter()
        .filter_map(|(name, tensor)| {
            let rest = name.strip_prefix(prefix).filter(|rest| !rest.is_empty())?;
            Some((rest.to_owned(), tensor))
        })
        .collect();
    match example {
        Some(example) if kept.is_empty() => {
            let (prefix, example) = (Escaped::short(prefix), Escaped::short(&example));
            Err(Error::format(format!("no tensor's name starts with '{prefix}'; the first one is '{example}'")))
        }
        _ => Ok(kept),
    }
}

impl CheckpointReader for PytorchReader {
    fn format(&self) -> FormatId {
        FormatId::Pytorch
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// For a tensor that does not lie flat, the range from its first element to its last.
    fn stored(&self, tensor: usize) -> StoredRange {
        let view = &self.views[tensor];
        StoredRange { file: 0, offset: view.offset, len: view.span }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let view = &self.views[tensor];
        let locate = |error: Error| {
            let error = error.for_tensor(&self.tensors[tensor].name);
            if self.files[0].name.is_empty() { error } else { error.in_file(&self.files[0].name) }
        };
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > view.len) {
            let message = format!("{} bytes from byte {offset} on, but it has {}", buf.len(), view.len);
            return Err(locate(Error::corrupt(message)));
        }
        view.read(&*self.source, offset, buf).map_err(locate)
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let view = self.views.get(tensor).filter(|view| view.is_flat())?;
        self.source.slice_at(view.offset, view.len)
    }

    fn header_fields(&self) -> Value {
        Value::Object(self.header_fields.clone())
    }

    fn files(&self) -> &[FileInfo] {
        &self.files
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl fmt::Debug for PytorchReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PytorchReader");
        debug.field("files", &self.files).field("tensors", &self.tensors).field("metadata", &self.metadata);
        debug.finish_non_exhaustive()
    }
}
