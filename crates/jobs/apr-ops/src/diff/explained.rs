//! Tensors that one model alone has, and that are no difference between the two.
//!
//! Exporters to ONNX leave out what nothing reads, write a tied matrix once more, transposed, and
//! put what shapes depend on among the weights.

use std::collections::HashMap;

use apr_arch::is_path_of_module;
use apr_core::Progress;
use apr_registry::onnx::METADATA;
use apr_registry::{CheckpointReader, DType, Pipeline, Result, TensorInfo};
use serde::Serialize;

use super::options::Side;
use super::pairing::Pairing;
use super::positional::described;

/// Modules and parameters that `transformers` gives every model, and that only a head or training
/// reads.
const IDLE: [&str; 3] = ["pooler", "masked_spec_embed", "mask_token"];

/// Bytes that show whether a tensor has one value everywhere.
const SAMPLE: u64 = 4 << 10;

/// Bytes of a vector that is looked at as a whole.
const VECTOR: usize = 1 << 20;

/// A tensor that only one model has, and the reason why it is not a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// Name of the tensor.
    pub name: String,
    /// `left` or `right`: the model that has it.
    pub side: &'static str,
    /// Reason why the tensor does not count as a difference.
    pub why: String,
}

/// Moves unmatched tensors that are not a difference to the explained ones.
///
/// # Errors
/// E002 and E007 when bytes can't be read.
pub(super) fn explain<P: Pipeline>(
    pairing: &mut Pairing,
    [left, right]: [Side<'_>; 2],
    read: bool,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<()> {
    // Only what an exporter wrote is explained.
    if is_exported(left) == is_exported(right) {
        return Ok(());
    }

    let positions = [left, right].map(|side| {
        let names = side.reader.tensors().iter().map(|info| info.name.as_str());
        names.zip(0..).collect::<HashMap<&str, usize>>()
    });
    for (own, side) in [(left, "left"), (right, "right")] {
        let is_left = side == "left";
        let lonely = std::mem::take(pairing.lonely_names(is_left));
        for name in lonely {
            let tensors = own.reader.tensors();
            let position = positions[usize::from(!is_left)].get(name.as_str()).copied();
            let why = match position {
                Some(position) if is_exported(own) => {
                    match copied(pairing, own, (position, is_left), read, pipeline, progress)? {
                        Some(original) => Some(format!("a copy of {original}")),
                        None => of_graph(own, position).map(str::to_owned),
                    }
                }
                Some(position) => idle(own, position).map(str::to_owned),
                None => None,
            };
            match (why, position) {
                (Some(why), Some(position)) => {
                    let elements = tensors[position].shape.elements().unwrap_or_default();
                    pairing.lonely_elements = pairing.lonely_elements.saturating_sub(elements);
                    pairing.explained.push(Explained { name, side, why });
                }
                _ => pairing.lonely_names(is_left).push(name),
            }
        }
    }
    explain_unnamed(pairing, [left, right], [&positions[0], &positions[1]])
}

/// Explains tensors that only the graph has, if every weight of the checkpoint has a counterpart.
///
/// These are positional encodings and zero biases of norms without a bias. Every other tensor may
/// be a weight of an added module.
fn explain_unnamed(
    pairing: &mut Pairing,
    [left, right]: [Side<'_>; 2],
    positions: [&HashMap<&str, usize>; 2],
) -> Result<()> {
    let (own, is_left) = if is_exported(left) { (left, true) } else { (right, false) };
    let Some(model) = own.model.filter(|_| pairing.lonely_names(!is_left).is_empty()) else {
        return Ok(());
    };

    for name in std::mem::take(pairing.lonely_names(is_left)) {
        let at = positions[usize::from(!is_left)].get(name.as_str()).copied();
        let why = match at {
            Some(at) if name.ends_with(".bias") && is_zero(own.reader, at)? => {
                Some("zeros, for a bias that the module does not have")
            }
            Some(at) if model.canonical(at).is_none() => described(own.reader, at)?,
            _ => None,
        };
        let (Some(why), Some(at)) = (why, at) else {
            pairing.lonely_names(is_left).push(name);
            continue;
        };

        let elements = own.reader.tensors()[at].shape.elements().unwrap_or_default();
        pairing.lonely_elements = pairing.lonely_elements.saturating_sub(elements);
        let side = if is_left { "left" } else { "right" };
        pairing.explained.push(Explained { name, side, why: why.to_owned() });
    }
    Ok(())
}

/// Returns `true` if all elements of a vector are 0.
fn is_zero(reader: &dyn CheckpointReader, tensor: usize) -> Result<bool> {
    let Ok(len @ ..=VECTOR) = usize::try_from(reader.tensors()[tensor].byte_len()?) else {
        return Ok(false);
    };
    let mut bytes = vec![0; len];
    reader.read_tensor(tensor, 0, &mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0))
}

/// Returns `true` if a model was read from ONNX.
fn is_exported(side: Side<'_>) -> bool {
    side.reader.metadata().object(METADATA).is_some()
}

/// Returns the name of the matrix that a matrix of the same model is a copy of.
///
/// Returns `None` if that matrix has no counterpart.
fn copied<P: Pipeline>(
    pairing: &mut Pairing,
    own: Side<'_>,
    (position, is_left): (usize, bool),
    read: bool,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<Option<String>> {
    let tensors = own.reader.tensors();
    let info = &tensors[position];
    let is_matrix =
        info.dtype.is_float() && info.shape.dims().iter().filter(|d| **d > 1).count() > 1;
    if !is_matrix || is_constant(own.reader, position, info)? {
        return Ok(None);
    }

    let paired = pairing.pairs.iter().map(|pair| if is_left { pair.left } else { pair.right });
    let alike = |at: &usize| tensors[*at].dtype == info.dtype && tensors[*at].shape == info.shape;
    let candidates: Vec<usize> = paired.filter(alike).collect();
    if candidates.is_empty() {
        return Ok(None);
    }
    let digest = pairing.digest(own.reader, position, read, pipeline, progress)?;
    for other in candidates {
        if pairing.digest(own.reader, other, read, pipeline, progress)? == digest {
            return Ok(Some(tensors[other].name.clone()));
        }
    }
    Ok(None)
}

/// Returns `true` if all sampled elements at the beginning of a tensor are equal.
///
/// Tensors equal to such a tensor may be equal by chance.
fn is_constant(reader: &dyn CheckpointReader, tensor: usize, info: &TensorInfo) -> Result<bool> {
    let len = usize::try_from(info.byte_len()?.min(SAMPLE)).unwrap_or_default();
    let mut bytes = vec![0; len];
    reader.read_tensor(tensor, 0, &mut bytes)?;
    let mut elements = bytes.chunks(usize::try_from(info.dtype.block_bytes()).unwrap_or(1).max(1));
    let first = elements.next();
    Ok(elements.all(|element| Some(element) == first))
}

/// Returns why a tensor that no module of the family has is not one of its weights.
fn of_graph(own: Side<'_>, position: usize) -> Option<&'static str> {
    let TensorInfo { name, dtype, shape } = &own.reader.tensors()[position];
    if own.model.is_none_or(|model| model.canonical(position).is_some()) {
        return None;
    }
    match dtype {
        DType::I64 | DType::I32 | DType::BOOL => Some("integer constants of the graph"),
        _ if shape.elements() == Some(1) => Some("a constant of the graph"),
        // A weight whose module the graph does not reveal is called by its operator.
        _ => (!is_path_of_module(name) && !name.starts_with("onnx::"))
            .then_some("a value that the exporter computed"),
    }
}

/// Returns why an exporter leaves out a tensor, or `None` if it does not.
fn idle(own: Side<'_>, position: usize) -> Option<&'static str> {
    let name = &own.reader.tensors()[position].name;
    let is_idle = name.split('.').any(|part| IDLE.contains(&part));
    is_idle.then_some("no output of the ONNX graph depends on it")
}

#[cfg(test)]
mod tests {
    use apr_arch::Families;
    use apr_registry::onnx::TENSORS;
    use apr_registry::{Limits, Serial};
    use apr_view::View;
    use serde_json::{Map, json};

    use super::*;
    use crate::diff::{DiffOptions, DiffReport, diff};

    /// A model of matrices of two by two.
    fn model(tensors: &[(&str, [f32; 4])]) -> Box<dyn CheckpointReader> {
        let (mut header, mut bytes) = (Map::new(), Vec::new());
        for (name, values) in tensors {
            let place = [bytes.len(), bytes.len() + 16];
            let entry = json!({ "dtype": "F32", "shape": [2, 2], "data_offsets": place });
            header.insert((*name).to_owned(), entry);
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        let header = json!(header).to_string().into_bytes();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat();
        apr_registry::open(file, "m.safetensors", &Limits::default()).expect("a sound file")
    }

    fn compared(left: &dyn CheckpointReader, right: &dyn CheckpointReader) -> DiffReport {
        let side = |reader| Side { reader, original: reader, name: "", model: None };
        diff(side(left), side(right), &DiffOptions::default(), &Serial, &()).expect("a report")
    }

    #[test]
    fn tensors_that_an_exporter_adds_or_leaves_out_are_no_difference() {
        let (table, dense) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]);
        let left = model(&[("table", table), ("head", table)]);
        let right = model(&[("table", table), ("bert.pooler.dense.weight", dense)]);
        let whole = compared(&*left, &*right);
        assert!(!whole.same && whole.explained.is_empty(), "neither came from ONNX");

        let mut exported = View::new(&*left);
        exported.metadata_mut().set(METADATA, Map::new());
        for (left, right) in [(&exported as &dyn CheckpointReader, &*right), (&*right, &exported)] {
            let report = compared(left, right);
            assert!(report.same && report.added.is_empty() && report.removed.is_empty());
            let why: Vec<_> = report.explained.iter().map(|one| one.why.as_str()).collect();
            assert!(why.contains(&"a copy of table"), "{why:?}");
            assert!((report.similarity - 100.0).abs() < 1e-9);
        }
    }

    /// The difference of an ONNX file of a family, with its entry in the metadata, and a folder.
    fn of_family(
        (family, entry): (&str, serde_json::Value),
        file: &dyn CheckpointReader,
        folder: &dyn CheckpointReader,
    ) -> DiffReport {
        let mut exported = View::new(file);
        exported.metadata_mut().set(METADATA, entry);
        exported.metadata_mut().set("model_type", family);
        let metadata = exported.metadata().clone();
        let families = Families::builtin();
        let model = families.identify(exported.tensors(), &metadata).expect("by its type");
        let left = Side { reader: &exported, original: &exported, name: "", model: Some(&model) };
        let right = Side { reader: folder, original: folder, name: "", model: None };
        diff(left, right, &DiffOptions::default(), &Serial, &()).expect("a report")
    }

    /// torch's exporter computes masks and rotary factors for a length that is fixed.
    #[test]
    fn tensors_that_an_exporter_computed_are_no_difference_for_a_known_family() {
        let layer = |at: usize| {
            let module = ["attention.self.query", "attention.self.key", "attention.output.dense"];
            module.map(|module| (format!("encoder.layer.{at}.{module}.weight"), [at as f32; 4]))
        };
        let weights: Vec<_> = [layer(1), layer(2)].concat();
        let named = |more: &[(&str, [f32; 4])]| {
            let own = weights.iter().map(|(name, values)| (name.as_str(), *values));
            model(&own.chain(more.iter().copied()).collect::<Vec<_>>())
        };
        let folder = named(&[]);
        for (name, same) in [("where", true), ("onnx::MatMul_9", false), ("net.weight", false)] {
            let file = named(&[(name, [8.0, 9.0, 10.0, 11.0])]);
            let report = of_family(("bert", json!({})), &*file, &*folder);
            assert_eq!(report.same, same, "{name}: {:?}", report.explained);
        }
    }

    #[test]
    fn tensors_of_no_module_are_no_difference_if_all_weights_are_paired() {
        let layer = |at: usize| {
            let module = ["Wqkv", "Wo"].map(|module| format!("layers.{at}.attn.{module}.weight"));
            module.map(|name| (name, [at as f32 + 1.0; 4]))
        };
        let weights: Vec<_> = [layer(0), layer(1)].concat();
        let bias = |value: f32| ("final_norm.bias", "/final_norm/Constant_output_0", [value; 4]);
        for (name, stored, values, same) in [
            ("sines.weight", "onnx::Expand_7", [0.0, 1.0, 0.6, 0.8], true),
            ("onnx::Expand_7", "onnx::Expand_7", [0.0, 1.0, 0.6, 0.8], true),
            ("scales.weight", "onnx::Mul_7", [8.0, 9.0, 10.0, 11.0], false),
            ("onnx::Add_7", "onnx::Add_7", [8.0, 9.0, 10.0, 11.0], false),
            ("onnx::MatMul_7", "onnx::MatMul_7", [8.0, 9.0, 10.0, 11.0], false),
            (bias(0.0).0, bias(0.0).1, bias(0.0).2, true),
            (bias(1.0).0, bias(1.0).1, bias(1.0).2, false),
        ] {
            let own = || weights.iter().map(|(name, values)| (name.as_str(), *values));
            let file = model(&own().chain([(name, values)]).collect::<Vec<_>>());
            let folder = model(&own().collect::<Vec<_>>());
            let entry = json!({ TENSORS: { name: { "name": stored } } });
            let report = of_family(("modernbert", entry), &*file, &*folder);
            assert_eq!(report.same, same, "{name}: {:?}", report.explained);
        }
    }

    #[test]
    fn a_matrix_of_its_own_or_of_one_value_is_a_difference() {
        let (zeros, table) = ([0.0; 4], [1.0, 2.0, 3.0, 4.0]);
        let left = model(&[
            ("zeros", zeros),
            ("table", table),
            ("more", zeros),
            ("head", [9.0, 2.0, 3.0, 4.0]),
        ]);
        let right = model(&[("zeros", zeros), ("table", table), ("proj.weight", table)]);
        let mut exported = View::new(&*left);
        exported.metadata_mut().set(METADATA, Map::new());
        let report = compared(&exported, &*right);
        assert!(!report.same && report.explained.is_empty());
        assert_eq!(report.removed, ["more", "head"]);
        assert_eq!(report.added, ["proj.weight"]);
    }
}
