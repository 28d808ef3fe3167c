//! Adapters: small matrices that are added to those of a model that was trained before (LoRA), in
//! files of their own.
//!
//! | written by | files | names |
//! |---|---|---|
//! | peft | `adapter_model.safetensors`, `adapter_config.json` | `MODULE.lora_A.weight` `[rank, in]`, `MODULE.lora_B.weight` `[out, rank]` |
//! | MLX | `adapters.safetensors`, `adapter_config.json` | `MODULE.lora_a` `[in, rank]`, `MODULE.lora_b` `[rank, out]` |
//! | llama.cpp | GGUF, `general.type` = `adapter` | `TENSOR.lora_a` `[rank, in]`, `TENSOR.lora_b` `[out, rank]` |
//! | kohya | safetensors | `MODULE.lora_down.weight` `[rank, in]`, `MODULE.lora_up.weight` `[out, rank]` |

use std::collections::{BTreeMap, BTreeSet};

use apr_core::json::from_python;
use apr_core::{CheckpointReader, Convention, Result, TensorInfo};
use serde::Serialize;
use serde_json::{Map, Value};

/// Name of the configuration file of an adapter, in the folder of its weights.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// Names of the halves of a pair, and whether each is the half that is applied first.
const HALVES: [(&str, bool); 8] = [
    ("lora_A", true),
    ("lora_a", true),
    ("lora_down", true),
    ("lora_embedding_A", true),
    ("lora_B", false),
    ("lora_b", false),
    ("lora_up", false),
    ("lora_embedding_B", false),
];

/// Beginnings of the last parts of names, and the kinds of adapters that have them in files without
/// a configuration (LyCORIS).
const OTHER_KINDS: [(&str, &str); 2] = [("hada_", "LoHa"), ("lokr_", "LoKr")];

/// An adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Adapter {
    /// Kind of the adapter: `LoRA`, or the name of another kind in its configuration.
    pub kind: String,
    /// Base model, if the adapter names it.
    pub base: Option<String>,
    /// Ranks of the matrices, each once, in ascending order. Without matrices, the rank in the
    /// configuration.
    pub ranks: Vec<u64>,
    /// Factor of the product of the matrices, times the rank.
    pub alpha: Option<f64>,
    /// Modules that it changes.
    pub targets: Vec<String>,
    /// Pairs of matrices.
    pub pairs: usize,
    /// Contradictions between the tensors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<AdapterProblem>,
}

/// A tensor of an adapter that does not fit the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdapterProblem {
    /// Name of the tensor.
    pub tensor: String,
    /// Description of the problem.
    pub message: String,
}

impl std::fmt::Display for Adapter {
    /// Formats the adapter as `LoRA adapter for BASE: rank 16, alpha 32, on q_proj, v_proj`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} adapter", self.kind)?;
        if let Some(base) = &self.base {
            write!(f, " for {base}")?;
        }
        let ranks: Vec<String> = self.ranks.iter().map(u64::to_string).collect();
        let rank = (!ranks.is_empty()).then(|| format!("rank {}", ranks.join(", ")));
        let alpha = self.alpha.map(|alpha| format!("alpha {alpha}"));
        let targets = (!self.targets.is_empty()).then(|| format!("on {}", self.targets.join(", ")));
        let facts: Vec<String> = [rank, alpha, targets].into_iter().flatten().collect();
        if facts.is_empty() { Ok(()) } else { write!(f, ": {}", facts.join(", ")) }
    }
}

/// Returns `true` if most of these tensors are halves of pairs, as in an adapter's file.
#[must_use]
pub fn is_adapter(tensors: &[TensorInfo]) -> bool {
    let is_part = |name: &str| half_of(name).is_some() || other_kind(name).is_some();
    let parts = tensors.iter().filter(|info| is_part(&info.name)).count();
    parts > 0 && parts * 2 >= tensors.len()
}

/// Returns `true` if a tensor is the half of a pair that starts as zeros, so that an untrained
/// adapter has no effect.
#[must_use]
pub fn starts_at_zero(name: &str) -> bool {
    half_of(name).is_some_and(|(_, half, is_first)| match half {
        "lora_embedding_A" => true,
        "lora_embedding_B" => false,
        _ => !is_first,
    })
}

/// Returns the adapter in a checkpoint, if there is one.
///
/// # Errors
/// E007 and E008 when its configuration can't be read.
pub fn adapter_of(reader: &dyn CheckpointReader) -> Result<Option<Adapter>> {
    let position =
        reader.companions().iter().position(|companion| companion.name == ADAPTER_CONFIG);
    let config = position.map(|position| reader.read_companion(position)).transpose()?;
    let config = config.and_then(|bytes| from_python::<Map<String, Value>>(&bytes).ok());
    let pairs = reader.metadata().key_values()?;
    let is_told = pairs.as_ref().is_some_and(|pairs| pairs.text("general.type") == Some("adapter"));
    let says = |key: &str| config.as_ref().is_some_and(|config| config.contains_key(key));
    let is_configured = says("peft_type") || says("lora_parameters") || says("fine_tune_type");
    let is_small = is_configured && reader.tensors().len() < 2;
    let of_peft = |info: &&TensorInfo| info.name.starts_with("base_model.");
    let is_of_peft = says("peft_type")
        && reader.tensors().iter().filter(of_peft).count() * 2 > reader.tensors().len();
    if !(is_told || is_adapter(reader.tensors()) || is_small || is_of_peft) {
        return Ok(None);
    }

    let config = config.unwrap_or_default();
    let key = |key: &str| Some(pairs.as_ref()?.find(key)?.json());
    let is_turned = reader.format().convention != Convention::LlamaCpp && !is_told;
    let mut adapter = Adapter {
        kind: kind(&config, reader.tensors()),
        base: ["base_model_name_or_path", "model"]
            .iter()
            .find_map(|key| text(config.get(*key)?))
            .or_else(|| {
                ["general.base_model.0.repo_url", "general.base_model.0.name"]
                    .iter()
                    .find_map(|name| text(&key(name)?))
            }),
        ranks: Vec::new(),
        alpha: number(&config, "lora_alpha", "alpha")
            .or_else(|| key("adapter.lora.alpha")?.as_f64()),
        targets: targets(&config),
        pairs: 0,
        problems: Vec::new(),
    };

    adapter.hold_together(reader.tensors(), is_turned, &StatedRanks::of(&config));
    Ok(Some(adapter))
}

/// The rank that a configuration states, and the modules that may have others.
#[derive(Debug, Default)]
struct StatedRanks {
    /// The rank that pairs are compared with; `None` if modules have ranks of their own.
    rank: Option<f64>,
    /// The rank of all modules without one of their own.
    told: Option<f64>,
    /// Modules with adapters of their parameters, which have the rank for each of their experts.
    stacks: Vec<String>,
}

impl StatedRanks {
    fn of(config: &Map<String, Value>) -> Self {
        let pattern = config.get("rank_pattern").and_then(Value::as_object);
        let has_own = pattern.is_some_and(|pattern| !pattern.is_empty());
        let told = number(config, "r", "rank");
        let parameters = config.get("target_parameters").and_then(Value::as_array);
        let module = |parameter: &Value| {
            let (module, _) = parameter.as_str()?.rsplit_once('.')?;
            Some(module.to_owned())
        };
        let stacks = parameters.into_iter().flatten().filter_map(module).collect();
        Self { rank: told.filter(|_| !has_own), told, stacks }
    }

    /// Returns the stated rank that the rank of a module contradicts.
    fn contradicted(&self, module: &str, rank: u64) -> Option<f64> {
        let told = self.rank?;
        // PEFT wraps a module once for each parameter.
        let module = module.trim_end_matches(".base_layer");
        let is_stack = self.stacks.iter().any(|stack| {
            module.strip_suffix(&**stack).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        });
        let fits = told == rank as f64 || (is_stack && rank as f64 % told == 0.0);
        (!fits).then_some(told)
    }
}

impl Adapter {
    /// Puts the halves of pairs together, and takes ranks and targets from them.
    fn hold_together(&mut self, tensors: &[TensorInfo], is_turned: bool, stated: &StatedRanks) {
        let mut halves: BTreeMap<&str, [Option<&TensorInfo>; 2]> = BTreeMap::new();
        let mut ranks: BTreeSet<u64> = BTreeSet::new();
        for info in tensors {
            if let Some((stem, _)) = other_kind(&info.name) {
                halves.entry(stem).or_default();
            }
            if let Some((stem, half, is_first)) = half_of(&info.name) {
                halves.entry(stem).or_default()[usize::from(!is_first)] = Some(info);
                // MLX has inputs as rows.
                let turned = is_turned && ["lora_a", "lora_b"].contains(&half);
                ranks.extend(info.shape.dims().get(usize::from(is_first == turned)));
            }
        }

        for (stem, pair) in &halves {
            let problem = match pair {
                [Some(first), Some(second)] => {
                    self.pairs += 1;
                    unfit(first, second, is_turned, |rank| stated.contradicted(stem, rank))
                }
                [Some(alone), None] | [None, Some(alone)] => {
                    Some((*alone, "the other matrix of the pair is missing".to_owned()))
                }
                [None, None] => None,
            };

            let problem = problem
                .map(|(info, message)| AdapterProblem { tensor: info.name.clone(), message });
            self.problems.extend(problem);
            if halves.len() <= MAX_PAIRS {
                self.add_target(stem);
            }
        }

        self.ranks = ranks.into_iter().collect();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank is a small whole number"
        )]
        if self.ranks.is_empty() {
            self.ranks.extend(stated.told.map(|rank| rank as u64));
        }
    }

    /// Adds the module that a pair is for, once for all layers.
    fn add_target(&mut self, stem: &str) {
        let module = target(stem.strip_suffix(".weight").unwrap_or(stem));
        if !self.targets.iter().any(|known| known == module || stem.ends_with(known)) {
            self.targets.push(module.to_owned());
        }
    }
}

/// Returns the part of a module's name that is the same in all layers: what follows the last number
/// of a layer, between dots or, in kohya's names, between underscores.
fn target(module: &str) -> &str {
    let dot = if module.contains('.') { '.' } else { '_' };
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let Some((head, last)) = module.rsplit_once(dot) else { return module };
    match dot {
        // A module of a list, such as `to_out.0`.
        '.' if is_number(last) => {
            head.rsplit_once(dot).map_or(module, |(outer, _)| &module[outer.len() + 1..])
        }
        '.' => last,
        _ => {
            let mut numbers = module.match_indices('_').filter(|(at, _)| {
                let before = module[..*at].rsplit('_').next().unwrap_or_default();
                !before.is_empty() && is_number(before)
            });
            numbers.next_back().map_or(module, |(at, _)| &module[at + 1..])
        }
    }
}

/// Returns the module and the kind of a tensor of an adapter of another kind than LoRA.
fn other_kind(name: &str) -> Option<(&str, &'static str)> {
    let (module, part) = name.rsplit_once('.')?;
    let (_, kind) = OTHER_KINDS.iter().find(|(begin, _)| part.starts_with(begin))?;
    Some((module, kind))
}

/// Pairs whose modules are listed: with more, a file is not one that people look at.
const MAX_PAIRS: usize = 1 << 16;

/// Returns the half that does not fit the other one, and the reason.
fn unfit<'t>(
    first: &'t TensorInfo,
    second: &'t TensorInfo,
    is_turned: bool,
    contradicted: impl Fn(u64) -> Option<f64>,
) -> Option<(&'t TensorInfo, String)> {
    let turned = is_turned && half_of(&first.name).is_some_and(|(_, half, _)| half == "lora_a");
    let rank_of = |info: &TensorInfo, at: usize| info.shape.dims().get(at).copied();
    let (rank, other) =
        (rank_of(first, usize::from(turned)), rank_of(second, usize::from(!turned)));
    let (Some(rank), true) = (rank, rank == other) else {
        let (shape, other) = (&second.shape, &first.shape);
        return Some((
            second,
            format!("shape {shape} does not match {other} of the other matrix of the pair"),
        ));
    };
    let told = contradicted(rank)?;
    Some((first, format!("rank {rank}, but the configuration states {told}")))
}

/// Returns the module of a pair, the half that a tensor is, and whether that half is applied first.
fn half_of(name: &str) -> Option<(&str, &'static str, bool)> {
    let (half, is_first) =
        *HALVES.iter().find(|(half, _)| name.split('.').any(|part| part == *half))?;
    let (stem, _) = name.split_once(&format!(".{half}"))?;
    Some((stem, half, is_first))
}

fn kind(config: &Map<String, Value>, tensors: &[TensorInfo]) -> String {
    let told =
        config.get("peft_type").or_else(|| config.get("fine_tune_type")).and_then(Value::as_str);
    let has = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    match told {
        _ if has("use_dora") => "DoRA".to_owned(),
        None => {
            let of_tensors = tensors.iter().find_map(|info| other_kind(&info.name));
            of_tensors.map_or("LoRA", |(_, kind)| kind).to_owned()
        }
        Some(kind) if kind.eq_ignore_ascii_case("lora") => "LoRA".to_owned(),
        Some(kind) if kind.eq_ignore_ascii_case("dora") => "DoRA".to_owned(),
        Some(kind) => kind.to_owned(),
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// Returns a number in peft's configuration, or in MLX's, which has a separate part for it.
fn number(config: &Map<String, Value>, peft: &str, mlx: &str) -> Option<f64> {
    config.get(peft).or_else(|| config.get("lora_parameters")?.get(mlx)).and_then(Value::as_f64)
}

fn targets(config: &Map<String, Value>) -> Vec<String> {
    let told = config.get("target_modules").or_else(|| config.get("lora_parameters")?.get("keys"));
    let mut targets: Vec<String> = match told {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(several)) => several.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    targets.sort_unstable();
    targets
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;

    fn tensor(name: &str, shape: [u64; 2]) -> TensorInfo {
        TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: shape.into() }
    }

    fn held(tensors: &[TensorInfo], is_turned: bool, rank: Option<f64>) -> Adapter {
        let mut adapter = Adapter {
            kind: "LoRA".to_owned(),
            base: None,
            ranks: Vec::new(),
            alpha: None,
            targets: Vec::new(),
            pairs: 0,
            problems: Vec::new(),
        };
        let stated = StatedRanks { rank, told: rank, stacks: Vec::new() };
        adapter.hold_together(tensors, is_turned, &stated);
        adapter
    }

    #[test]
    fn modules_of_layers_have_one_target() {
        for (module, expected) in [
            ("model.layers.0.q_proj", "q_proj"),
            ("unet.down_blocks.0.attn1.to_out.0", "to_out.0"),
            ("lora_unet_down_blocks_0_attentions_1_proj_in", "proj_in"),
            ("lora_unet_up_blocks_1_attn2_to_out_0", "attn2_to_out_0"),
            ("lora_unet_conv_in", "lora_unet_conv_in"),
            ("0.1", "0.1"),
            ("q", "q"),
        ] {
            assert_eq!(target(module), expected, "{module}");
        }
    }

    #[test]
    fn matrices_of_lycoris_tell_their_kind() {
        for (part, kind) in [("hada_w1_a", "LoHa"), ("lokr_w1", "LoKr")] {
            let tensors = [tensor(&format!("lora_unet_conv_in.{part}"), [4, 4])];
            assert!(is_adapter(&tensors));
            assert_eq!(super::kind(&Map::new(), &tensors), kind);
        }
    }

    #[test]
    fn pairs_of_every_writer_have_a_rank_and_a_target() {
        for (a, b, turned, target) in [
            (
                "base_model.model.layers.0.q_proj.lora_A.weight",
                "base_model.model.layers.0.q_proj.lora_B.weight",
                false,
                "q_proj",
            ),
            (
                "layers.0.q_proj.lora_A.default.weight",
                "layers.0.q_proj.lora_B.default.weight",
                false,
                "q_proj",
            ),
            ("model.layers.0.q_proj.lora_a", "model.layers.0.q_proj.lora_b", true, "q_proj"),
            ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b", false, "attn_q"),
            (
                "lora_unet_down_blocks_0.lora_down.weight",
                "lora_unet_down_blocks_0.lora_up.weight",
                false,
                "lora_unet_down_blocks_0",
            ),
        ] {
            let shapes = if turned { ([32, 4], [4, 16]) } else { ([4, 32], [16, 4]) };
            let tensors = [tensor(a, shapes.0), tensor(b, shapes.1)];
            assert!(is_adapter(&tensors), "{a}");
            let adapter = held(&tensors, turned, Some(4.0));
            assert_eq!(
                (adapter.ranks, adapter.pairs, adapter.problems),
                (vec![4], 1, vec![]),
                "{a}"
            );
            assert_eq!(adapter.targets, [target]);
            assert!(starts_at_zero(b) && !starts_at_zero(a), "{a}");
        }
        assert!(starts_at_zero("e.lora_embedding_A") && !starts_at_zero("e.lora_embedding_B"));
        assert!(!is_adapter(&[tensor("model.layers.0.q_proj.weight", [4, 4])]) && !is_adapter(&[]));
    }

    #[test]
    fn stacks_of_experts_have_a_multiple_of_the_stated_rank() {
        let config = serde_json::json!({
            "r": 2, "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        });
        let stated = StatedRanks::of(config.as_object().expect("an object"));
        for (module, rank, contradicted) in [
            ("model.layers.0.mlp.experts", 8, None),
            ("model.layers.0.mlp.experts.base_layer", 8, None),
            ("mlp.experts", 2, None),
            ("model.layers.0.mlp.experts", 7, Some(2.0)),
            ("model.layers.0.self_attn.q_proj", 8, Some(2.0)),
            ("model.layers.0.other_mlp.experts", 8, Some(2.0)),
        ] {
            assert_eq!(stated.contradicted(module, rank), contradicted, "{module}, {rank}");
        }
    }

    #[test]
    fn halves_that_do_not_fit_together_are_reported() {
        let a = tensor("q_proj.lora_A.weight", [4, 32]);
        let alone = held(std::slice::from_ref(&a), false, None);
        assert_eq!(alone.problems[0].message, "the other matrix of the pair is missing");
        let other = held(&[a.clone(), tensor("q_proj.lora_B.weight", [16, 8])], false, None);
        assert!(other.problems[0].message.contains("does not match"), "{:?}", other.problems);
        let told = held(&[a, tensor("q_proj.lora_B.weight", [16, 4])], false, Some(8.0));
        assert_eq!(told.problems[0].message, "rank 4, but the configuration states 8");
    }
}
