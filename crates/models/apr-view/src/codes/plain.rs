//! Weights in plain floats, where tensors or the configuration speak of a quantization.
//!
//! | what is there | meaning |
//! |---|---|
//! | scales, and a configuration that the weights aren't quantized yet (`frozen`) | scales to come, which are kept and not applied |
//! | scales of a cache or of activations, and a configuration | kept and not applied |
//! | scales alone | unknown: E001 |
//! | a transform of the layer's inputs | the weight alone is not what the layer computes with: E003 |

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{CheckpointReader, DType, Error, Result};

use super::find::{Decode, Found, Kind, Tensors, Weight};
use super::read::{Tile, floats_of};
use super::refused;
use super::stated::Stated;
use super::zero::Scaling;

/// The kind of plain weights with tensors beside them that are not applied.
const ID: &str = "not-applied";

pub(super) const KIND: Kind = Kind { id: ID, find };

/// States of a compressed-tensors model whose weights are floats, whatever lies beside them.
const BEFORE: [&str; 4] = ["initialized", "calibration", "frozen", "decompressed"];

/// Suffixes, after the layer's name, of the tensors that only codes are decoded with.
const OF_CODES: [&str; 15] = [
    ".weight_scale",
    ".weight_scale_inv",
    ".weight_scale_2",
    ".weight_global_scale",
    ".weight_scales",
    ".weight_zero_point",
    ".weight_g_idx",
    ".weight.absmax",
    ".weight._scale",
    ".scale_weight",
    ".qscale_weight",
    ".scales",
    ".qzeros",
    ".absmax",
    ".SCB",
];

/// Suffix of the factors of a layer's inputs.
pub(super) const FACTORS: &str = ".pre_quant_scale";

/// Returns `true` if plain weights may have a tensor of this name beside them.
pub(super) fn is_beside(name: &str) -> bool {
    OF_CODES.iter().chain([&FACTORS]).any(|end| name.ends_with(end))
}

fn find(tensors: &Tensors<'_>, stated: &Stated, weight: usize) -> Option<Result<Weight>> {
    let stem = stem(tensors, weight)?;
    if !stated.text("quantization_status").is_some_and(|status| BEFORE.contains(&status)) {
        return None;
    }
    let beside = OF_CODES.iter().filter_map(|end| tensors.beside(stem, &[end]));
    let beside: Vec<usize> = beside.chain(tensors.of_activations(stem)).collect();
    (!beside.is_empty()).then(|| Ok(with(tensors, weight, beside)))
}

/// The layer's name, if this is a weight in floats.
fn stem<'a>(tensors: &Tensors<'a>, weight: usize) -> Option<&'a str> {
    let is_float = matches!(tensors.info(weight).dtype, DType::F32 | DType::F16 | DType::BF16);
    tensors.stem(weight, ".weight").filter(|_| is_float)
}

/// A plain weight with tensors beside it that are not applied.
fn with(tensors: &Tensors<'_>, weight: usize, beside: Vec<usize>) -> Weight {
    let info = tensors.info(weight).clone();
    Weight {
        description: format!("plain {}, with scales that are not applied", info.dtype),
        info,
        parts: [weight].into_iter().chain(beside).collect(),
        decode: Box::new(Plain(weight)),
    }
}

/// Adds to `found` a plain weight of each layer that scales of its cache belong to, and returns the
/// scales for which there is none.
///
/// Without a configuration of a quantization, a scale of this name may be anything.
pub(super) fn give(
    tensors: &Tensors<'_>,
    stated: &Stated,
    scales: Vec<(usize, String)>,
    found: &mut Vec<Found>,
    taken: &mut BTreeSet<usize>,
) {
    if scales.is_empty() || !stated.is_any() {
        return;
    }
    let weights = (0..tensors.all().len()).filter(|at| !taken.contains(at));
    let weights = weights.filter(|at| stem(tensors, *at).is_some());
    let weights: BTreeMap<&str, usize> =
        weights.map(|at| (tensors.info(at).name.as_str(), at)).collect();
    let mut beside: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (scale, layer) in scales {
        let first = weights.range(&*layer..).next();
        if let Some((_, weight)) = first.filter(|(name, _)| name.starts_with(&layer)) {
            beside.entry(*weight).or_default().push(scale);
        }
    }
    for (weight, scales) in beside {
        let weight = with(tensors, weight, scales);
        taken.extend(&weight.parts);
        found.push(Found::Weight(ID, Box::new(weight)));
    }
}

/// Refuses the remaining plain weights that are not what their layers compute with.
pub(super) fn refuse(
    tensors: &Tensors<'_>,
    stated: &Stated,
    found: &mut Vec<Found>,
    taken: &mut BTreeSet<usize>,
) {
    let online = refused::online_transform(stated);
    for at in 0..tensors.all().len() {
        let Some(stem) = stem(tensors, at).filter(|_| !taken.contains(&at)) else { continue };
        let info = tensors.info(at);
        let is_matrix = info.shape.dims().len() > 1;
        let beside: Vec<usize> =
            OF_CODES.iter().filter_map(|end| tensors.beside(stem, &[end])).collect();
        let beside = beside.into_iter().find(|part| !taken.contains(part));
        let (mut parts, error) = if let Some(message) = online.as_ref().filter(|_| is_matrix) {
            (vec![at], Error::version(message.clone()))
        } else if let Some(factors) = tensors.beside(stem, &[FACTORS]) {
            (vec![at, factors], refused::factors(&tensors.info(factors).name))
        } else if let Some(scales) = beside {
            let scale = &tensors.info(scales).name;
            let message = format!(
                "'{scale}' looks like a part of its codes, but the weight is plain {}: nothing \
                 states whether it is applied",
                info.dtype
            );
            (vec![at, scales], Error::format(message))
        } else {
            continue;
        };
        parts.retain(|part| !taken.contains(part));
        taken.extend(&parts);
        found.push(Found::Refused(parts, error.for_tensor(&info.name)));
    }
    refuse_alone(tensors, stated, found, taken);
}

/// Adds the scales of modules without any other tensor: the codes are missing.
fn refuse_alone(
    tensors: &Tensors<'_>,
    stated: &Stated,
    found: &mut Vec<Found>,
    taken: &mut BTreeSet<usize>,
) {
    if !stated.is_any() || tensors.is_shard_alone() {
        return;
    }
    let is_left = |at: &usize| !taken.contains(at);
    let stem = |at: usize| OF_CODES.iter().find_map(|end| tensors.stem(at, end));
    let scales = (0..tensors.all().len()).filter(is_left);
    let scales: Vec<(usize, &str)> = scales.filter_map(|at| Some((at, stem(at)?))).collect();
    if scales.is_empty() {
        return;
    }
    let others = tensors.all().iter().filter(|info| !is_beside(&info.name));
    let modules: BTreeSet<&str> =
        others.filter_map(|info| Some(info.name.rsplit_once('.')?.0)).collect();
    for (scale, stem) in scales.into_iter().filter(|(_, stem)| !modules.contains(stem)) {
        let name = &tensors.info(scale).name;
        let message = format!("its codes are missing: '{name}' is a part of them");
        let error = Error::format(message).for_tensor(format!("{stem}.weight"));
        taken.insert(scale);
        found.push(Found::Refused(vec![scale], error));
    }
}

/// A tensor that is read as it is.
struct Plain(usize);

impl Decode for Plain {
    fn decode(&self, base: &dyn CheckpointReader, tile: Tile, out: &mut [f32]) -> Result<()> {
        let first = tile.row * base.tensors()[self.0].shape.row_len() + tile.column;
        out.copy_from_slice(&floats_of(base, self.0, first..first + out.len() as u64)?);
        Ok(())
    }

    fn scaling(&self) -> Vec<Scaling> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Part, f32s, folder};

    /// Reads `up.weight`, of the values 1 and 2, beside another tensor.
    fn beside(other: &str, config: &str) -> (Vec<String>, Result<Vec<u8>, String>) {
        let (values, scale) = (f32s(&[1.0, 2.0]), f32s(&[4.0]));
        let parts: [Part<'_>; 3] = [
            ("up.weight", "F32", &[1, 2], &values),
            (other, "F32", &[1], &scale),
            ("norm.weight", "F32", &[1], &scale),
        ];
        let model = folder(&parts, config);
        let names = model.tensors().iter().map(|info| info.name.clone()).collect();
        let mut bytes = [0; 8];
        let read = model.read_tensor(0, 0, &mut bytes).map(|()| bytes.to_vec());
        (names, read.map_err(|error| format!("{:?} {error}", error.code())))
    }

    fn status(status: &str) -> String {
        let quantized = serde_json::json!({
            "quant_method": "compressed-tensors", "quantization_status": status,
        });
        serde_json::json!({ "quantization_config": quantized }).to_string()
    }

    #[test]
    fn scales_of_weights_that_are_not_quantized_yet_are_not_applied() {
        for stated in ["initialized", "frozen"] {
            for other in ["up.weight_scale", "up.input_scale", "up.weight_zero_point"] {
                let (names, read) = beside(other, &status(stated));
                assert_eq!(names, ["up.weight", "norm.weight"], "{other}");
                assert_eq!(read, Ok(f32s(&[1.0, 2.0])));
            }
        }
    }

    #[test]
    fn scales_of_a_cache_are_kept_and_not_applied() {
        let (names, read) = beside("up.k_scale", &status("compressed"));
        assert_eq!(names, ["up.weight", "norm.weight"]);
        assert_eq!(read, Ok(f32s(&[1.0, 2.0])));
        // Nothing states that this is one.
        assert_eq!(beside("up.k_scale", "").0.len(), 3);
    }

    #[test]
    fn scales_of_plain_weights_are_refused() {
        for other in ["weight_scale", "scales", "absmax", "SCB", "qzeros", "weight_scale_inv"] {
            let name = format!("up.{other}");
            for config in [String::new(), status("compressed")] {
                let (names, read) = beside(&name, &config);
                assert_eq!(names.len(), 3);
                let error = read.expect_err("a stray scale");
                assert!(error.contains("E001") && error.contains(&format!("'{name}'")), "{error}");
                assert!(error.contains("up.weight"), "{error}");
            }
        }
        assert_eq!(beside("up.bias", "").1, Ok(f32s(&[1.0, 2.0])));
        // Scales of another layer, without its weight, are nobody's.
        assert_eq!(beside("down.scales", "").1, Ok(f32s(&[1.0, 2.0])));
    }

    #[test]
    fn plain_weights_whose_inputs_are_transformed_are_refused() {
        let (_, read) = beside("up.pre_quant_scale", "");
        assert!(read.expect_err("factors").contains("'up.pre_quant_scale'"));
        let apply = serde_json::json!([{"targets": ["Linear"], "location": "input"}]);
        let quantized = |status| {
            serde_json::json!({"quantization_config": {
                "quant_method": "compressed-tensors", "quantization_status": status,
                "transform_config": {"config_groups": {"u": {"type": "hadamard", "apply": apply}}},
            }})
        };
        for status in ["frozen", "compressed"] {
            let config = quantized(status).to_string();
            for other in ["up.bias", "up.weight_scale"] {
                let error = beside(other, &config).1.expect_err("a transform");
                assert!(error.contains("E003") && error.contains("at 'input'"), "{error}");
            }
        }
        let quartets = r#"{"quantization_config":{"quant_method":"fp_quant"}}"#;
        let error = beside("up.bias", quartets).1.expect_err("a transform");
        assert!(error.contains("E003") && error.contains("FP-Quant"), "{error}");
        let values = f32s(&[1.0]);
        let vector: [Part<'_>; 1] = [("norm.weight", "F32", &[1], &values)];
        let model = folder(&vector, &quantized("frozen").to_string());
        assert_eq!(model.read_tensor(0, 0, &mut [0; 4]), Ok(()));
    }
}
