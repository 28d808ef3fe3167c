//! Integers that become the floats that they stand for, by what the metadata say of them.

use std::collections::{HashMap, HashSet};

use apr_core::counted;
use apr_registry::{CheckpointReader, DType, Error, Result, keys};
use apr_view::{AffineQuantization, AffineUnit, Change, View};
use serde_json::Value;

use super::description::Job;

impl Job {
    /// Returns the warning about integers that become floats.
    pub(super) fn dequantized(&self, reader: &dyn CheckpointReader) -> Option<String> {
        let dtype = self.weights.dequantize?;
        let count = reader.metadata().object(keys::AFFINE)?.len() as u64;
        let tensors = counted(count, "tensor");
        Some(format!("integers dequantized to {dtype}: {tensors}; the scales are left out"))
    }
}

/// Decodes integers in the view to floats if the metadata of its base `reader` state scales.
///
/// Their scales and zero points are removed from the view.
///
/// # Errors
/// E001 when scales are missing or do not fit the tensor.
pub(super) fn dequantize(
    view: &mut View<'_>,
    reader: &dyn CheckpointReader,
    dtype: DType,
) -> Result<()> {
    let Some(entries) = reader.metadata().object(keys::AFFINE) else { return Ok(()) };
    let names = reader.tensors().iter().enumerate();
    let positions: HashMap<&str, usize> =
        names.map(|(at, info)| (info.name.as_str(), at)).collect();
    let mut helpers = HashSet::new();
    let mut found = HashMap::new();
    for (name, entry) in entries {
        let Some(&quants) = positions.get(name.as_str()) else { continue };
        let bad = |what: &str| Error::format(what.to_owned()).for_tensor(name);
        let position = |key: &str| match entry.get(key) {
            None => Ok(None),
            Some(text) => {
                let position = text.as_str().and_then(|text| positions.get(text).copied());
                position.map(Some).ok_or_else(|| bad("its scales or zero points are missing"))
            }
        };
        let scales = position("scales")?.ok_or_else(|| bad("missing name of its scales"))?;
        let zero_points = position("zero_points")?;
        let number = |key: &str| entry.get(key).and_then(Value::as_u64);
        let unit = match (number("axis"), number("block_size")) {
            (Some(axis), _) => AffineUnit::Axis(usize::try_from(axis).unwrap_or(usize::MAX)),
            (None, Some(size)) => AffineUnit::Block(size),
            (None, None) => AffineUnit::Tensor,
        };
        helpers.extend([scales].into_iter().chain(zero_points));
        found.insert(quants, AffineQuantization { quants, scales, zero_points, unit });
    }
    view.change(|position, info| {
        let Some(quantization) = found.get(&position) else { return Ok(None) };
        let (changed, by) = Change::dequantized(reader.tensors(), *quantization, dtype)?;
        Ok(Some((apr_registry::TensorInfo { name: info.name.clone(), ..changed }, by)))
    })?;
    let helpers: HashSet<&str> =
        helpers.iter().map(|&position| reader.tensors()[position].name.as_str()).collect();
    view.drop_tensors(|name| helpers.contains(name));
    view.metadata_mut().remove(keys::AFFINE);
    Ok(())
}
