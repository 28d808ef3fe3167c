//! Shapes of weights that are stored without one: those that the model's family computes from its
//! configuration.

use std::collections::HashMap;

use apr_arch::Families;
use apr_core::{CheckpointReader, Shape, TensorInfo, keys};

use super::coded::CONFIG;
use super::stated::companion;

/// The end of the name of codes that are stored without the shape of their weight, behind its name.
pub(super) const CODES: &str = "._data._data";

/// Suffixes of the names of tensors that belong to codes.
const BESIDE: [&str; 4] = ["._scale", "._shift", ".input_scale", ".output_scale"];

/// The shapes of all weights by name; none without a configuration or for an unknown family.
pub(super) fn shapes(base: &dyn CheckpointReader) -> HashMap<String, Shape> {
    let mut metadata = base.metadata().clone();
    if metadata.object(keys::ARCHITECTURE).is_none() {
        let Some(config) = companion(base, CONFIG) else { return HashMap::new() };
        if let Some(kind) = config.get("model_type").and_then(|kind| kind.as_str()) {
            metadata.set(keys::MODEL_TYPE, kind);
        }
        metadata.set(keys::ARCHITECTURE, config);
    }
    let is_weight = |info: &&TensorInfo| !BESIDE.iter().any(|end| info.name.ends_with(end));
    let weights: Vec<TensorInfo> = base
        .tensors()
        .iter()
        .filter(is_weight)
        .map(|info| {
            let name = info.name.strip_suffix(CODES).unwrap_or(&info.name).to_owned();
            TensorInfo { name, ..info.clone() }
        })
        .collect();
    let families = Families::builtin();
    let Some(model) = families.identify(&weights, &metadata) else { return HashMap::new() };
    let shape = |(position, info): (usize, &TensorInfo)| {
        let (shape, _) = model.expected_shape(position)?;
        Some((info.name.clone(), shape))
    };
    weights.iter().enumerate().filter_map(shape).collect()
}
