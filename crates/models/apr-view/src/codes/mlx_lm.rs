//! Experts of mlx-lm's checkpoints: a tensor of all experts of a layer, in a module that other
//! libraries do not have.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Convention, Metadata, Result, TensorInfo, keys};
use serde_json::Value;

use crate::base::Base;
use crate::transform::Change;
use crate::view::{TensorOrigin, View};

/// The most experts of a layer that are taken apart; known models have some 500.
const MOST: u64 = 4096;

/// The module of a layer's experts, one after another.
const APART: &str = "experts";

/// Names of mlx-lm for the experts of some models.
struct Names {
    /// The module of all experts of a layer.
    module: &'static str,
    /// Matrices of a layer, with their names in the module of one expert.
    matrices: &'static [(&'static str, &'static str)],
}

const GATED: &[(&str, &str)] =
    &[("gate_proj", "gate_proj"), ("up_proj", "up_proj"), ("down_proj", "down_proj")];
const NUMBERED: &[(&str, &str)] = &[("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")];

impl Names {
    /// Returns the names for a checkpoint.
    fn of(metadata: &Metadata) -> Self {
        let architecture = metadata.object(keys::ARCHITECTURE);
        let stated = architecture.and_then(|of| of.get("model_type")?.as_str());
        match stated.or(metadata.get(keys::MODEL_TYPE).and_then(Value::as_str)) {
            Some("mixtral" | "phimoe" | "minimax" | "minimax_m2" | "lfm2_moe") => {
                Self { module: "switch_mlp", matrices: NUMBERED }
            }
            Some("nemotron_h") => {
                let matrices = &[("fc1", "up_proj"), ("fc2", "down_proj")];
                Self { module: "switch_mlp", matrices }
            }
            Some("dots1" | "afmoe" | "Klear") => Self { module: APART, matrices: GATED },
            _ => Self { module: "switch_mlp", matrices: GATED },
        }
    }

    /// The module of one expert's matrix, for the module of the matrices of all.
    fn apart(&self, module: &str, expert: u64) -> Option<String> {
        let (front, matrix) = module.rsplit_once('.')?;
        let front = front.strip_suffix(self.module)?;
        let is_module = front.is_empty() || front.ends_with('.');
        let own = self.matrices.iter().find(|(stacked, _)| *stacked == matrix)?.1;
        is_module.then(|| format!("{front}{APART}.{expert}.{own}"))
    }

    /// The module of the matrices of all experts, for the module of one expert's, with its number.
    fn stacked(&self, module: &str) -> Option<(String, u64)> {
        let (front, matrix) = module.rsplit_once('.')?;
        let (front, expert) = front.rsplit_once('.')?;
        let front = front.strip_suffix(APART)?;
        let is_module = front.is_empty() || front.ends_with('.');
        let stacked = self.matrices.iter().find(|(_, own)| *own == matrix)?.0;
        let expert = expert.parse().ok().filter(|_| is_module)?;
        Some((format!("{front}{}.{stacked}", self.module), expert))
    }
}

/// Returns the name that mlx-lm has for a module in a checkpoint with this metadata: for the matrix
/// of an expert, that of the matrices of all experts of the layer.
#[must_use]
pub fn module_of_mlx(metadata: &Metadata, module: &str) -> String {
    Names::of(metadata).stacked(module).map_or_else(|| module.to_owned(), |(stacked, _)| stacked)
}

/// Returns the module of the first expert's matrix, for the module of the matrices of all experts
/// of a layer.
pub(super) fn first_expert(metadata: &Metadata, module: &str) -> Option<String> {
    Names::of(metadata).apart(module, 0)
}

/// Returns the checkpoint with a tensor for each expert instead of mlx-lm's tensors of all experts
/// of a layer.
pub(super) fn taken_apart(base: Box<dyn CheckpointReader>) -> Box<dyn CheckpointReader> {
    if base.format().convention == Convention::LlamaCpp {
        return base;
    }
    let mut is_changed = false;
    let names = Names::of(base.metadata());
    let is_scale = |info: &TensorInfo| info.name.ends_with(".scales");
    if names.module == APART && !base.tensors().iter().any(is_scale) {
        // Tensors of other libraries have the same names.
        return base;
    }
    let mut tensors = Vec::with_capacity(base.tensors().len());
    for (position, info) in base.tensors().iter().enumerate() {
        match parts(&names, info, position) {
            Some(experts) => {
                tensors.extend(experts);
                is_changed = true;
            }
            None => tensors.push((info.clone(), TensorOrigin::Base(position))),
        }
    }
    if !is_changed {
        return base;
    }
    let mapping = View::of(&*base, tensors).into_mapping();
    Box::new(mapping.over(base))
}

/// The tensors of single experts in a tensor of all experts of a layer.
fn parts(
    names: &Names,
    info: &TensorInfo,
    position: usize,
) -> Option<Vec<(TensorInfo, TensorOrigin)>> {
    let (module, part) = info.name.rsplit_once('.')?;
    names.apart(module, 0)?;
    // Vectors of one expert have two dimensions here.
    let experts = *info.shape.dims().first().filter(|_| info.shape.dims().len() > 1)?;
    if experts == 0 || experts > MOST {
        return None;
    }
    let of = |expert: u64| {
        let name = format!("{}.{part}", names.apart(module, expert)?);
        let (info, change) = Change::part(info, position, expert, &name).ok()?;
        Some((info, TensorOrigin::Changed(change)))
    };
    (0..experts).map(of).collect()
}

/// Returns the checkpoint with one tensor for all experts of a layer instead of the tensors of
/// each, as mlx-lm has them. Also returns, for each tensor, the position of one of those that it is
/// made of.
///
/// Experts that are not alike stay apart.
///
/// # Errors
/// E002 for tensors of more bytes than a file can have.
pub fn stacked_for_mlx(base: Base<'_>) -> Result<(View<'_>, Vec<usize>)> {
    let names = Names::of(base.metadata());
    let mut stacks: BTreeMap<String, BTreeMap<u64, usize>> = BTreeMap::new();
    let mut stack_of = Vec::with_capacity(base.tensors().len());
    for (position, info) in base.tensors().iter().enumerate() {
        let found = info.name.rsplit_once('.').and_then(|(module, part)| {
            let (module, expert) = names.stacked(module)?;
            Some((format!("{module}.{part}"), expert))
        });
        stack_of.push(found.map(|(stack, expert)| {
            stacks.entry(stack.clone()).or_default().insert(expert, position);
            stack
        }));
    }
    let is_whole = |experts: &BTreeMap<u64, usize>| {
        let alike = |&position: &usize| {
            let [info, first] = [position, experts[&0]].map(|at| &base.tensors()[at]);
            (info.dtype, &info.shape) == (first.dtype, &first.shape)
        };
        experts.keys().copied().eq(0..experts.len() as u64) && experts.values().all(alike)
    };
    stacks.retain(|_, experts| is_whole(experts));

    let (mut tensors, mut origins) = (Vec::new(), Vec::new());
    for (position, (info, stack)) in base.tensors().iter().zip(stack_of).enumerate() {
        let stack = stack.and_then(|name| Some((stacks.get(&name)?, name)));
        match stack {
            None => {
                tensors.push((info.clone(), TensorOrigin::Base(position)));
                origins.push(position);
            }
            Some((experts, name)) if experts[&0] == position => {
                let experts: Vec<usize> = experts.values().copied().collect();
                let (info, change) = Change::stack(base.tensors(), &experts, &name)?;
                tensors.push((info, TensorOrigin::Changed(change)));
                origins.push(position);
            }
            Some(_) => {}
        }
    }
    let mapping = View::of(&*base, tensors).into_mapping();
    Ok((mapping.over(base), origins))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{folder, u16s, u32s};
    use super::*;
    use crate::Apart;

    const QWEN: &str = r#"{"model_type":"qwen3_moe","quantization":{"bits":4,"group_size":32,
        "model.layers.0.mlp.switch_mlp.up_proj":{"bits":8,"group_size":32}}}"#;

    fn metadata(model_type: &str) -> Metadata {
        let mut metadata = Metadata::default();
        metadata.set(keys::MODEL_TYPE, model_type);
        metadata
    }

    #[test]
    fn names_are_those_of_the_model_in_mlx_lm() {
        for (model_type, module, expected) in [
            (
                "qwen3_moe",
                "model.layers.3.mlp.experts.12.up_proj",
                "layers.3.mlp.switch_mlp.up_proj",
            ),
            ("mixtral", "layers.0.block_sparse_moe.experts.7.w2", ".switch_mlp.down_proj"),
            ("nemotron_h", "backbone.layers.1.mixer.experts.0.up_proj", ".mixer.switch_mlp.fc1"),
            ("dots1", "model.layers.1.mlp.experts.5.gate_proj", ".mlp.experts.gate_proj"),
        ] {
            let found = module_of_mlx(&metadata(model_type), module);
            assert!(found.ends_with(expected), "{found}");
            let (stacked, expert) = Names::of(&metadata(model_type)).stacked(module).expect("one");
            let apart = Names::of(&metadata(model_type)).apart(&stacked, expert);
            assert_eq!(apart.as_deref(), Some(module));
        }
        for module in ["model.layers.3.mlp.up_proj", "experts.x.up_proj", "my_experts.1.up_proj"] {
            assert_eq!(module_of_mlx(&metadata("qwen3_moe"), module), module);
        }
    }

    #[test]
    fn experts_are_taken_apart_with_their_codes_and_put_together_again() {
        let codes = u32s(&(0..24).map(|word| 0x0101_0101 * (word + 1)).collect::<Vec<_>>());
        let (scales, biases) = (u16s(&[0x3f80, 0x4000, 0x4080]), u16s(&[0, 0x3f80, 0]));
        let name = "model.layers.0.mlp.switch_mlp.up_proj";
        let [codes_of, scales_of, biases_of] =
            ["weight", "scales", "biases"].map(|part| format!("{name}.{part}"));
        let parts = [
            (&*codes_of, "U32", &[3, 1, 8][..], &codes[..]),
            (&*scales_of, "BF16", &[3, 1, 1], &scales[..]),
            (&*biases_of, "BF16", &[3, 1, 1], &biases[..]),
        ];
        let model = folder(&parts, QWEN);
        let names: Vec<&str> = model.tensors().iter().map(|info| info.name.as_str()).collect();
        let of = |expert| format!("model.layers.0.mlp.experts.{expert}.up_proj.weight");
        assert_eq!(names, [of(0), of(1), of(2)]);
        assert_eq!(model.tensors()[1].shape.dims(), [1, 32]);
        let mut bytes = [0; 4];
        model.read_tensor(1, 0, &mut bytes).expect("values");
        // The code of 9 by a scale of 2, and the bias of 1.
        assert_eq!(bytes, [0x98, 0x41, 0x98, 0x41]);

        let apart = Apart::new(Base::Borrowed(&*model)).expect("parts");
        assert_eq!(apart.tensors().len(), 9);
        let (stacked, origins) = stacked_for_mlx(Base::owning(apart)).expect("stacks");
        assert_eq!(origins, [0, 3, 6]);
        for (info, (name, _, shape, bytes)) in stacked.tensors().iter().zip(parts) {
            assert_eq!((&*info.name, info.shape.dims()), (name, shape));
            let position = stacked.tensors().iter().position(|other| other.name == info.name);
            let mut found = vec![0; bytes.len()];
            stacked.read_tensor(position.expect("it is there"), 0, &mut found).expect("bytes");
            assert_eq!(found, bytes, "{name}");
        }
    }

    #[test]
    fn experts_that_are_missing_or_differ_stay_apart() {
        let words = u32s(&[0; 8]);
        let names = [0, 2, 3].map(|expert| format!("mlp.experts.{expert}.up_proj.weight"));
        let parts = [
            (&*names[0], "U32", &[1, 4][..], &words[..16]),
            (&*names[1], "U32", &[1, 4], &words[..16]),
            (&*names[2], "U32", &[2, 4], &words[..]),
        ];
        let model = folder(&parts, r#"{"model_type":"qwen3_moe"}"#);
        let (view, origins) = stacked_for_mlx(Base::Borrowed(&*model)).expect("a view");
        assert_eq!(view.tensors(), model.tensors());
        assert_eq!(origins, [0, 1, 2]);
    }

    #[test]
    fn a_stack_of_more_experts_than_there_are_is_no_stack() {
        let words = u32s(&[0; 5000]);
        let name = "mlp.switch_mlp.up_proj.weight";
        let model = folder(&[(name, "U32", &[5000, 1], &words)], "{}");
        assert_eq!(model.tensors()[0].name, name);
    }
}
