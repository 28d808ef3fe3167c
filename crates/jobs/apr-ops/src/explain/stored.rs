//! The method by which a model's weights are quantized, and the programs that load it.

use std::collections::BTreeMap;

use apr_core::Convention;
use apr_registry::CheckpointReader;
use apr_view::{MXFP4_EXPERTS, UNDECODABLE, stated_method};
use serde::Serialize;

use crate::inspect::DTypeShare;

/// Quantization of a model's weights in codes and scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StoredQuantization {
    /// The method that the configuration states: `gptq`.
    pub stated: Option<String>,
    /// Kinds of codes in the file, those of most bytes first; empty if all weights are floats.
    pub kinds: Vec<StoredKind>,
    /// Reason why weights can't be decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undecodable: Option<String>,
    /// Programs that load a folder of such weights, as far as is known.
    pub loaded_by: Vec<&'static str>,
}

/// A kind of codes and scales.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StoredKind {
    /// Short name of the method, as in `tensors`: `gptq`.
    pub method: &'static str,
    /// The kind in words: `GPTQ, 4 bits, groups of 128`.
    pub description: String,
    /// The number of weights.
    #[serde(rename = "weight_count")]
    pub weights: usize,
    /// Bits per weight, scales included.
    pub bits_per_weight: Option<f64>,
}

/// Programs that load weights of some kinds.
struct Loaders {
    kinds: &'static [&'static str],
    /// Methods that the configuration must state one of; empty for any.
    stated: &'static [&'static str],
    programs: &'static [&'static str],
}

/// Kinds of weights of experts that transformers 5.24 does not load, with what it loads of other
/// weights: it has no place for the global scale of `nvfp4`, and fails on `w8a8`.
const NOT_OF_EXPERTS: ([&str; 2], &str) = (["fp4", "int8"], "transformers with compressed-tensors");

/// Metadata marker of ComfyUI files, which have no configuration.
const COMFYUI: &str = "comfyui";

/// The first entry that fits a weight is its own.
const LOADERS: &[Loaders] = &[
    Loaders {
        kinds: &["gptq", "awq"],
        stated: &["auto-round", "auto_round"],
        programs: &["vLLM", "transformers with auto-round"],
    },
    Loaders {
        kinds: &["gptq"],
        stated: &["gptq"],
        programs: &[
            "vLLM",
            "transformers with GPTQModel",
            "llama.cpp's converter (2, 4 or 8 bits, with g_idx)",
        ],
    },
    Loaders {
        kinds: &["awq"],
        stated: &["awq"],
        programs: &["vLLM", "transformers with GPTQModel", "mlx-lm"],
    },
    Loaders {
        kinds: &["packed", "int8", "fp4"],
        stated: &["compressed-tensors"],
        programs: &["vLLM", "transformers with compressed-tensors", "llama.cpp's converter"],
    },
    Loaders {
        kinds: &["fp8"],
        stated: &["compressed-tensors"],
        programs: &[
            "vLLM",
            "transformers with compressed-tensors",
            "llama.cpp's converter (scales of rows or blocks)",
        ],
    },
    Loaders { kinds: &["sparse", "marlin24"], stated: &[], programs: &["compressed-tensors 0.12"] },
    Loaders {
        kinds: &["fp8", "fp4"],
        stated: &["modelopt"],
        programs: &["vLLM", "llama.cpp's converter"],
    },
    Loaders { kinds: &["fp8"], stated: &["fbgemm_fp8"], programs: &["transformers on a GPU"] },
    Loaders {
        kinds: &["fp8"],
        stated: &["fp8"],
        programs: &["vLLM", "transformers", "llama.cpp's converter"],
    },
    Loaders { kinds: &["fp8"], stated: &[COMFYUI], programs: &["ComfyUI"] },
    Loaders {
        kinds: &[MXFP4_EXPERTS],
        stated: &["mxfp4"],
        programs: &["vLLM", "transformers", "llama.cpp's converter", "mlx-lm"],
    },
    Loaders {
        kinds: &["bitsandbytes", "int8"],
        stated: &["bitsandbytes"],
        programs: &["vLLM", "transformers with bitsandbytes"],
    },
    Loaders {
        kinds: &["fp8", "int8"],
        stated: &["torchao"],
        programs: &["vLLM", "transformers with torchao"],
    },
    Loaders {
        kinds: &["quanto", "fp8", "int8"],
        stated: &["quanto"],
        programs: &["optimum-quanto"],
    },
    Loaders { kinds: &["hqq"], stated: &[], programs: &["HQQ"] },
    Loaders { kinds: &["bitnet", "bitnet-online"], stated: &[], programs: &["transformers"] },
    Loaders { kinds: &["eetq"], stated: &[], programs: &["transformers with EETQ on a GPU"] },
    Loaders { kinds: &["mlx"], stated: &[], programs: &["mlx-lm"] },
];

impl StoredQuantization {
    /// Returns the quantization of a checkpoint with these shares of dtypes; `None` if it stores no
    /// codes and its configuration states no method.
    pub(super) fn of(reader: &dyn CheckpointReader, shares: &[DTypeShare]) -> Option<Self> {
        let codings = (0..reader.tensors().len()).filter_map(|at| {
            let coding = reader.stored(at).coding()?;
            Some((at, coding))
        });
        let (mut methods, mut undecodable, mut base) = (BTreeMap::new(), None, None);
        let (mut is_of_comfyui, mut has_experts) = (false, false);
        for (at, coding) in codings {
            base.get_or_insert(coding.base);
            if coding.kind == UNDECODABLE {
                let error = || reader.read_tensor(at, 0, &mut []).err();
                undecodable = undecodable.or_else(|| error().map(|error| error.to_string()));
            } else {
                let is_of_expert = reader.tensors()[at].name.contains("experts.");
                has_experts |= is_of_expert && NOT_OF_EXPERTS.0.contains(&coding.kind);
                is_of_comfyui |= coding.names().any(|name| name.ends_with(".scale_weight"));
                methods.insert(coding.description.to_owned(), coding.kind);
            }
        }
        // What is above the codes has a configuration without the method.
        let stated = stated_method(base.unwrap_or(reader));
        if methods.is_empty() && undecodable.is_none() && stated.is_none() {
            return None;
        }

        let kinds: Vec<StoredKind> =
            shares.iter().filter_map(|share| kind(share, &methods)).collect();
        let is_for_libraries = reader.format().convention == Convention::Framework;
        let by = stated.as_deref().or(is_of_comfyui.then_some(COMFYUI));
        let is_whole = is_for_libraries && undecodable.is_none();
        let mut loaded_by = if is_whole { loaded_by(&kinds, by) } else { Vec::new() };
        loaded_by.retain(|program| !has_experts || *program != NOT_OF_EXPERTS.1);
        Some(Self { stated, kinds, undecodable, loaded_by })
    }
}

fn kind(share: &DTypeShare, methods: &BTreeMap<String, &'static str>) -> Option<StoredKind> {
    let description = share.stored.clone()?;
    Some(StoredKind {
        method: methods.get(&description)?,
        description,
        weights: share.tensor_count,
        bits_per_weight: share.bits_per_weight,
    })
}

/// The programs that load all kinds of a model, which is of this method.
fn loaded_by(kinds: &[StoredKind], by: Option<&str>) -> Vec<&'static str> {
    let programs = |kind: &StoredKind| {
        let fits = |loaders: &&Loaders| {
            let is_stated = || by.is_some_and(|by| loaders.stated.contains(&by));
            loaders.kinds.contains(&kind.method) && (loaders.stated.is_empty() || is_stated())
        };
        LOADERS.iter().find(fits).map_or(&[][..], |loaders| loaders.programs)
    };
    let mut of_kinds = kinds.iter().map(programs);
    let Some(first) = of_kinds.next() else { return Vec::new() };
    let rest: Vec<_> = of_kinds.collect();
    let loads_all = |program: &&&str| rest.iter().all(|programs| programs.contains(program));
    first.iter().filter(loads_all).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::{StoredKind, loaded_by};

    fn kind(method: &'static str) -> StoredKind {
        StoredKind { method, description: method.to_owned(), weights: 1, bits_per_weight: None }
    }

    #[test]
    fn programs_load_all_kinds_of_a_model() {
        let of = |kinds: &[&'static str], stated| {
            loaded_by(&kinds.iter().map(|method| kind(method)).collect::<Vec<_>>(), stated)
        };
        assert_eq!(of(&["mlx"], None), ["mlx-lm"]);
        assert_eq!(of(&["fp8"], None), [""; 0]);
        assert_eq!(of(&["fp8"], Some("fp8")).len(), 3);
        let both = of(&["fp8", "packed"], Some("compressed-tensors"));
        assert_eq!(both, ["vLLM", "transformers with compressed-tensors"]);
        assert_eq!(of(&["fp8", "mlx"], Some("fp8")), [""; 0]);
        assert_eq!(of(&[], Some("fp8")), [""; 0]);
    }
}
