//! Models that were exported to ONNX: back to the names and the layout that tensors have in that
//! file.
//!
//! The reader of ONNX gives tensors the names and the layout of the modules they were in, and notes
//! in the metadata what the file has. See [`apr_registry::onnx`].

use apr_core::{CheckpointReader, DType, Result, keys};
use apr_registry::onnx::{METADATA, TENSORS};
use apr_view::{Change, TensorOrigin, View};
use serde_json::{Map, Value};

/// Returns the checkpoint with the names and the layout of its tensors in the ONNX file that it was
/// read from. Its tensors must have the names that they had before an import renamed them.
///
/// Transposed tensors that are quantized become single precision.
///
/// # Errors
/// E001 for a tensor that can't be transposed, because it is not a matrix.
pub fn as_stored(reader: &dyn CheckpointReader) -> Result<View<'_>> {
    let none = Map::new();
    let entry =
        reader.metadata().object(METADATA).and_then(|entry| entry.get(TENSORS)?.as_object());
    let places = entry.unwrap_or(&none);
    let mut tensors = Vec::with_capacity(reader.tensors().len());
    for (position, info) in reader.tensors().iter().enumerate() {
        let place = places.get(&info.name).and_then(Value::as_object);
        let mut stored = info.clone();
        let mut origin = TensorOrigin::Base(position);
        if place.is_some_and(|place| place.get("transposed") == Some(&Value::Bool(true))) {
            let is_decoded = stored.dtype.is_quantized();
            if is_decoded {
                stored.dtype = DType::F32;
            }
            let change = Change::transposed(&mut stored, position)?;
            origin = TensorOrigin::Changed(match is_decoded {
                true => change.of_decoded(DType::F32),
                false => change,
            });
        }
        if let Some(shape) = place.and_then(|place| shape_of(place.get("shape")?)) {
            // The elements are the same, so nothing of them changes.
            let dims: Option<u64> = shape.iter().try_fold(1_u64, |all, dim| all.checked_mul(*dim));
            if dims.is_some() && dims == stored.shape.elements() {
                stored.shape = shape.into();
            }
        }
        if let Some(name) = place.and_then(|place| place.get("name")?.as_str()) {
            name.clone_into(&mut stored.name);
        }
        tensors.push((stored, origin));
    }

    let mut view = View::of(reader, tensors);
    view.metadata_mut().remove(keys::TIED);
    Ok(view)
}

/// Returns the dimensions in a value of the metadata.
fn shape_of(value: &Value) -> Option<Vec<u64>> {
    value.as_array()?.iter().map(Value::as_u64).collect()
}
