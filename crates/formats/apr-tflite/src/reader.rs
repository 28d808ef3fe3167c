//! A model as a checkpoint.

use std::fmt;
use std::sync::Arc;

use apr_core::{
    ByteSource, CheckpointReader, Companion, ContainerFacts, Error, FileInfo, Format, Limits,
    Metadata, Result, Shape, Stored, TensorInfo, check_range, counted, has_own, keys,
};
use apr_skeleton::Cut;
use serde_json::{Value, json};

use crate::associated::{Associated, Shared};
use crate::description::Description;
use crate::flatbuffer::Flatbuffer;
use crate::model::{Weight, Weights, left_out};
use crate::{FORMAT, METADATA};

/// A model opened for reading; [`open`] makes it.
pub struct TfliteReader {
    source: Shared,
    files: Vec<FileInfo>,
    tensors: Vec<TensorInfo>,
    /// One for each tensor.
    weights: Vec<Weight>,
    metadata: Metadata,
    fields: Value,
    /// File around the weights, if it can be stored with them.
    cut: Option<Cut>,
    /// Companion files. The skeleton is first, if there is one.
    companions: Vec<Companion>,
    associated: Option<Associated>,
    left_out: Vec<String>,
    warnings: Vec<String>,
}

/// Opens a model. Tables are read, no weights.
///
/// # Errors
/// E001 for what is no model, E002 for a damaged file, E003 for one whose weights no format here
/// holds, E007 when reading fails, E008 over a limit.
pub fn open<S: ByteSource + 'static>(
    source: S,
    name: &str,
    limits: &Limits,
) -> Result<TfliteReader> {
    open_shared(Arc::new(source), name, limits).map_err(|error| error.in_file(name))
}

fn open_shared(source: Shared, name: &str, limits: &Limits) -> Result<TfliteReader> {
    let mut head = [0; 8];
    let is_model = source.read_at(0, &mut head).is_ok() && (FORMAT.recognises)(&head);
    if !is_model {
        return Err(Error::format("not a TensorFlow Lite model"));
    }

    let (weights, description) = {
        let flatbuffer = Flatbuffer::new(&*source, limits);
        let model = flatbuffer.root()?;
        (Weights::of(&model, source.len())?, Description::of(&model)?)
    };
    let Weights { list, quantized, mut refused, buffers, .. } = weights;
    if list.is_empty() && !refused.is_empty() {
        return Err(refused.swap_remove(0));
    }

    let mut skipped: Vec<String> = refused.iter().map(left_out).collect();
    skipped.extend(description.buffers.iter().map(|name| format!("metadata '{name}'")));
    let mut warnings = Vec::new();
    let associated = match Associated::find(&source, limits) {
        Ok(found) => found,
        Err(error) => {
            warnings.push(format!("the associated files can't be read: {}", error.message()));
            None
        }
    };
    skipped.extend(associated.iter().flat_map(|files| files.left_out.iter().cloned()));

    let len = source.len();
    let archive = associated.iter().map(|files| (files.start, len.saturating_sub(files.start)));
    let data = buffers.iter().map(|range| (range.offset, range.len)).chain(archive);
    let cut = Cut::new(FORMAT.id, name, len, data);
    let (cut, mut companions) = match cut.companion(limits) {
        Ok(companion) => (Some(cut), vec![companion]),
        Err(_) => {
            skipped.push(format!("the graph of {}", counted(description.operators, "operator")));
            (None, Vec::new())
        }
    };
    companions.extend(associated.iter().flat_map(|files| files.companions.iter().cloned()));
    let mut metadata = Metadata::new();
    metadata.set(METADATA, description.fields.clone());
    if !quantized.is_empty() {
        metadata.set(keys::AFFINE, quantized);
    }
    let mut fields = json!({ "container": "tflite" });
    fields.as_object_mut().into_iter().for_each(|all| all.extend(description.fields.clone()));
    let info = |weight: &Weight| TensorInfo {
        name: weight.name.clone(),
        dtype: weight.dtype,
        shape: Shape::from(weight.dims.clone()),
    };
    Ok(TfliteReader {
        files: vec![FileInfo { name: name.to_owned(), len: source.len() }],
        tensors: list.iter().map(info).collect(),
        weights: list,
        metadata,
        fields,
        cut,
        companions,
        associated,
        left_out: skipped,
        warnings,
        source,
    })
}

impl TfliteReader {
    fn locate(&self, tensor: usize, error: Error) -> Error {
        error.for_tensor(&self.tensors[tensor].name).in_file(&self.files[0].name)
    }

    /// Widens integers of four bits, from element `first` on.
    fn widen(&self, weight: &Weight, first: u64, buf: &mut [u8]) -> Result<()> {
        // As many bytes as two for each element, at most.
        let start = first / 2;
        let end = (first + buf.len() as u64).div_ceil(2);
        let mut packed = vec![0; usize::try_from(end - start).unwrap_or_default()];
        self.source.read_at(weight.range.offset + start, &mut packed)?;
        for (at, out) in (first..).zip(buf) {
            let byte = packed[usize::try_from(at / 2 - start).unwrap_or_default()];
            let nibble = if at.is_multiple_of(2) { byte << 4 } else { byte };
            *out = (nibble.cast_signed() >> 4).cast_unsigned();
        }
        Ok(())
    }
}

impl ContainerFacts for TfliteReader {
    fn header_fields(&self) -> Value {
        self.fields.clone()
    }
}

impl CheckpointReader for TfliteReader {
    has_own!(metadata, tensors, container, files, left_out, warnings);

    fn format(&self) -> &'static Format {
        &FORMAT
    }

    fn stored(&self, tensor: usize) -> Stored<'_> {
        let weight = &self.weights[tensor];
        if weight.is_packed { Stored::derived(weight.range) } else { Stored::plain(weight.range) }
    }

    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> Result<()> {
        let available = self.tensors[tensor].byte_len()?;
        check_range(offset, buf.len(), available).map_err(|error| self.locate(tensor, error))?;
        let weight = &self.weights[tensor];
        let read = match weight.is_packed {
            true => self.widen(weight, offset, buf),
            false => self.source.read_at(weight.range.offset + offset, buf),
        };
        read.map_err(|error| self.locate(tensor, error))
    }

    fn tensor_slice(&self, tensor: usize) -> Option<&[u8]> {
        let weight = self.weights.get(tensor).filter(|weight| !weight.is_packed)?;
        self.source.slice_at(weight.range.offset, weight.range.len)
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn read_companion(&self, companion: usize) -> Result<Vec<u8>> {
        let located = |error: Error| error.in_file(&self.files[0].name);
        let other = match &self.cut {
            Some(cut) if companion == 0 => return cut.read(&self.source).map_err(located),
            cut => companion - usize::from(cut.is_some()),
        };
        let files = self.associated.as_ref().ok_or_else(|| Companion::absent(companion))?;
        files.read(other).map_err(located)
    }
}

impl fmt::Debug for TfliteReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TfliteReader")
            .field("files", &self.files)
            .field("tensors", &self.tensors)
            .finish_non_exhaustive()
    }
}
