//! An adapter: which modules of its base it changes, and by which of its tensors.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use apr_core::{CheckpointReader, Error, Escaped, Result};

use crate::configuration::{Configuration, Writer};
use crate::matrix::Matrix;

/// Prefix of all names that PEFT writes.
pub(crate) const PREFIX: &str = "base_model.model.";

/// Name part of a weight of the base, which PEFT stores beside the matrices that change it.
pub(crate) const BASE_LAYER: &str = ".base_layer";

/// Name parts that PEFT inserts between the names of modules.
const WRAPPERS: [&str; 4] =
    [BASE_LAYER, ".modules_to_save.default", ".original_module", ".ln_tuning_layers"];

/// Open adapter with its weight in the merge.
#[derive(Clone)]
pub struct Adapter<'a> {
    /// Name in errors and reports.
    pub name: String,
    /// Reader of the adapter's matrices.
    pub reader: Arc<dyn CheckpointReader + 'a>,
    /// Factor of everything that it adds, beside its own scale; below 0 it is subtracted.
    pub weight: f64,
}

/// Part of a module's change, identified by the tensor name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    LoraA,
    LoraB,
    LoraBias,
    EmbeddingA,
    EmbeddingB,
    Magnitude,
    Hada1A,
    Hada1B,
    Hada2A,
    Hada2B,
    /// Cores of kernels that were factored in their sizes, too: of LoHa, LoKr and LoRA.
    Hada1Core,
    Hada2Core,
    Kron2Core,
    LoraCore,
    /// A number: the scale of the module times its rank.
    Alpha,
    Kron1,
    Kron1A,
    Kron1B,
    Kron2,
    Kron2A,
    Kron2B,
    TokenRows,
    /// Factors of rows or columns (IA3).
    Factors,
    /// Factors of the rank (AdaLoRA).
    LoraE,
    VeraA,
    VeraB,
    VeraLambdaB,
    VeraLambdaD,
    VectorBank,
    LogitsA,
    LogitsB,
    IndicesA,
    IndicesB,
    WeightsA,
    WeightsB,
    /// Vectors of reflections (HRA).
    Vectors,
    /// Elements of rotations (OFT).
    Rotations,
    /// MiSS's matrix.
    Block,
    /// Numbers of chosen frequencies (FourierFT).
    Spectrum,
}

const PARTS: [(&str, Part); 40] = [
    ("lora_A", Part::LoraA),
    ("lora_B", Part::LoraB),
    ("lora_a", Part::LoraA),
    ("lora_b", Part::LoraB),
    ("m", Part::Magnitude),
    ("lora_embedding_A", Part::EmbeddingA),
    ("lora_embedding_B", Part::EmbeddingB),
    ("lora_magnitude_vector", Part::Magnitude),
    ("hada_w1_a", Part::Hada1A),
    ("hada_w1_b", Part::Hada1B),
    ("hada_w2_a", Part::Hada2A),
    ("hada_w2_b", Part::Hada2B),
    ("lokr_w1", Part::Kron1),
    ("lokr_w1_a", Part::Kron1A),
    ("lokr_w1_b", Part::Kron1B),
    ("lokr_w2", Part::Kron2),
    ("lokr_w2_a", Part::Kron2A),
    ("lokr_w2_b", Part::Kron2B),
    ("trainable_tokens_delta", Part::TokenRows),
    ("ia3_l", Part::Factors),
    ("lora_E", Part::LoraE),
    ("vera_lambda_b", Part::VeraLambdaB),
    ("vera_lambda_d", Part::VeraLambdaD),
    ("vblora_logits_A", Part::LogitsA),
    ("vblora_logits_B", Part::LogitsB),
    ("vblora_logits_A_topk_indices", Part::IndicesA),
    ("vblora_logits_B_topk_indices", Part::IndicesB),
    ("vblora_logits_A_topk_weights", Part::WeightsA),
    ("vblora_logits_B_topk_weights", Part::WeightsB),
    ("hra_u", Part::Vectors),
    ("oft_R", Part::Rotations),
    ("miss_block", Part::Block),
    ("fourierft_spectrum", Part::Spectrum),
    ("hada_t1", Part::Hada1Core),
    ("hada_t2", Part::Hada2Core),
    ("lokr_t2", Part::Kron2Core),
    ("lora_down", Part::LoraA),
    ("lora_up", Part::LoraB),
    ("lora_mid", Part::LoraCore),
    ("alpha", Part::Alpha),
];

/// Tensors that all modules of an adapter share, which PEFT names after the model.
const SHARED: [(&str, Part); 3] = [
    ("base_model.vera_A", Part::VeraA),
    ("base_model.vera_B", Part::VeraB),
    ("base_model.vblora_vector_bank", Part::VectorBank),
];

/// Parts of image models' adapters that are known and not supported.
const UNSUPPORTED: [(&str, &str); 8] = [
    ("dora_scale", "DoRA of LyCORIS"),
    ("diff", "whole differences of LyCORIS"),
    ("diff_b", "whole differences of LyCORIS"),
    ("set_weight", "whole weights of LyCORIS"),
    ("a1", "GLoRA"),
    ("w_norm", "norms of LyCORIS"),
    ("b_norm", "norms of LyCORIS"),
    ("oft_blocks", "OFT of LyCORIS"),
];

/// Positions of an adapter's tensors for one module.
pub(crate) type Parts = BTreeMap<Part, usize>;

/// Tensors of an adapter, by the modules that they change.
pub(crate) struct Contents {
    pub(crate) configuration: Configuration,
    /// Parts by module: the module name in PEFT or MLX, or the tensor name in a GGUF file.
    pub(crate) modules: BTreeMap<String, Parts>,
    /// Tensors that take the place of others, by their names.
    pub(crate) replaced: BTreeMap<String, usize>,
}

impl Contents {
    /// Sorts the tensors of an adapter.
    ///
    /// # Errors
    /// E001 for an adapter that can't be merged, or with two tensors for one purpose; E007 and E008
    /// when its configuration can't be read.
    pub(crate) fn read(reader: &dyn CheckpointReader) -> Result<Self> {
        let configuration = Configuration::read(reader)?;
        let (mut modules, mut replaced) = (BTreeMap::<String, Parts>::new(), BTreeMap::new());
        let mut shared = Parts::new();
        for (position, info) in reader.tensors().iter().enumerate() {
            let twice = || Error::format("two tensors are for one purpose").for_tensor(&info.name);
            let name = info.name.strip_prefix(PREFIX).unwrap_or(&info.name);
            let name = &*match configuration.writer {
                Writer::Images => spelled_alike(name),
                _ => name.into(),
            };
            if let Some((_, part)) = SHARED.iter().find(|(known, _)| *known == info.name) {
                shared.insert(*part, position);
                continue;
            }
            match part(name, configuration.writer).map_err(|error| error.for_tensor(&info.name))? {
                Some((module, part)) => {
                    let parts = modules.entry(module.to_owned()).or_default();
                    if parts.insert(part, position).is_some() {
                        return Err(twice());
                    }
                }
                None if configuration.writer == Writer::Images => {
                    let message = "not a part of an adapter that can be merged";
                    return Err(Error::format(message).for_tensor(&info.name));
                }
                None => {
                    let mut name = name.to_owned();
                    for wrapper in WRAPPERS {
                        name = name.replace(wrapper, "");
                    }
                    if replaced.insert(name, position).is_some() {
                        return Err(twice());
                    }
                }
            }
        }
        modules.values_mut().for_each(|parts| parts.extend(shared.clone()));
        if modules.is_empty() && replaced.is_empty() {
            return Err(Error::format("the adapter does not contain tensors"));
        }
        Ok(Self { configuration, modules, replaced })
    }

    /// Returns the scale of a module's matrices of this rank.
    ///
    /// # Errors
    /// E001 if the configuration states another rank, or a number of the adapter is none; E002 and
    /// E007 when it can't be read.
    pub(crate) fn scale(
        &self,
        reader: &dyn CheckpointReader,
        module: &str,
        rank: Option<u64>,
    ) -> Result<f64> {
        let parts = self.modules.get(module);
        if self.configuration.writer != Writer::Images {
            return self.configuration.scale(module, rank);
        }
        let position = |part: Part| parts.and_then(|parts| parts.get(&part)).copied();
        let alpha = position(Part::Alpha).map(|alpha| number(reader, alpha)).transpose()?;
        // A Kronecker product of whole matrices has no rank, and no scale.
        let of_kronecker = || {
            let inner = position(Part::Kron2B).or_else(|| position(Part::Kron1B))?;
            reader.tensors()[inner].shape.dims().first().copied()
        };
        Ok(self.configuration.scale_of_image(module, alpha, rank.or_else(of_kronecker)))
    }
}

fn number(reader: &dyn CheckpointReader, tensor: usize) -> Result<f64> {
    let info = &reader.tensors()[tensor];
    if info.shape.elements() != Some(1) {
        return Err(Error::format("expected one number").for_tensor(&info.name));
    }
    Ok(Matrix::read(reader, tensor)?.values.first().copied().map_or(0.0, f64::from))
}

/// Returns the name of a tensor as today's programs write it: diffusers had names of its own for
/// the matrices, and before that for the modules of attention.
fn spelled_alike(name: &str) -> Cow<'_, str> {
    let halves = |name: &str, dot: &str| {
        name.replace(&format!("{dot}lora.down."), ".lora_down.")
            .replace(&format!("{dot}lora.up."), ".lora_up.")
    };
    if name.contains(".processor.to_") && name.contains("_lora.") {
        let name = name.replace(".processor.", ".").replace(".to_out_lora.", ".to_out.0_lora.");
        return halves(&name, "_").into();
    }
    match name.contains(".lora.") {
        true => halves(name, ".").into(),
        false => name.into(),
    }
}

/// The module that a tensor is a part of the change of, and which part.
fn part(name: &str, writer: Writer) -> Result<Option<(&str, Part)>> {
    let segments = || {
        name.split('.').scan(0, |at, segment| {
            let start = *at;
            *at += segment.len() + 1;
            Some((start, segment))
        })
    };
    let unsupported =
        |segment: &str| UNSUPPORTED.iter().find(|(known, _)| *known == segment).copied();
    if writer == Writer::Images
        && let Some((segment, why)) = segments().find_map(|(_, segment)| unsupported(segment))
    {
        return Err(Error::format(format!("{why} ('{segment}') can't be merged")));
    }
    let found = segments().find_map(|(start, segment)| {
        let (known, part) = PARTS.iter().find(|(known, _)| *known == segment)?;
        // A module may have the one letter of MLX's magnitudes for a name, or be an alpha.
        let is_one = match part {
            Part::Magnitude if *known == "m" => writer == Writer::Mlx && name.ends_with(".m"),
            Part::Alpha => writer == Writer::Images && name.ends_with(".alpha"),
            _ => true,
        };
        is_one.then_some((start, segment, *part))
    });
    let Some((start, segment, part)) = found.filter(|(start, ..)| *start > 0) else {
        return Ok(None);
    };
    let module = &name[..start - 1];
    let module = module.strip_suffix(".token_adapter").unwrap_or(module);
    let part = match (part, name[start + segment.len()..].ends_with(".bias")) {
        (Part::LoraB, true) => Part::LoraBias,
        (_, true) => {
            let segment = Escaped::short(segment);
            return Err(Error::format(format!("a bias of '{segment}' can't be merged")));
        }
        (part, false) => part,
    };
    Ok(Some((module, part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_writer_lead_to_module_and_part() {
        for (name, writer, module, expected) in [
            ("a.q_proj.lora_A.weight", Writer::Peft, "a.q_proj", Part::LoraA),
            ("a.q_proj.lora_B.default.weight", Writer::Peft, "a.q_proj", Part::LoraB),
            ("a.q_proj.lora_B.bias", Writer::Peft, "a.q_proj", Part::LoraBias),
            ("e.lora_embedding_B", Writer::Peft, "e", Part::EmbeddingB),
            ("q.lora_magnitude_vector", Writer::Peft, "q", Part::Magnitude),
            ("q.lora_magnitude_vector.weight", Writer::Peft, "q", Part::Magnitude),
            ("q.hada_w1_a", Writer::Peft, "q", Part::Hada1A),
            ("q.lokr_w2", Writer::Peft, "q", Part::Kron2),
            ("e.token_adapter.trainable_tokens_delta", Writer::Peft, "e", Part::TokenRows),
            ("a.q_proj.lora_a", Writer::Mlx, "a.q_proj", Part::LoraA),
            ("a.q_proj.m", Writer::Mlx, "a.q_proj", Part::Magnitude),
            ("blk.0.attn_q.weight.lora_b", Writer::LlamaCpp, "blk.0.attn_q.weight", Part::LoraB),
        ] {
            assert_eq!(part(name, writer).expect(name), Some((module, expected)), "{name}");
        }
        assert_eq!(part("lm_head.weight", Writer::Peft).expect("valid"), None);
        assert_eq!(part("m.m.weight", Writer::Peft).expect("valid"), None);
        let module = "lora_unet_conv_in";
        for (end, expected) in [
            ("lora_down.weight", Part::LoraA),
            ("lora_mid.weight", Part::LoraCore),
            ("alpha", Part::Alpha),
            ("lokr_t2", Part::Kron2Core),
        ] {
            let found =
                part(&format!("{module}.{end}"), Writer::Images).map(|it| it.map(|it| it.1));
            assert_eq!(found.expect(end), Some(expected), "{end}");
        }
        assert_eq!(part("a.alpha", Writer::Peft).expect("a parameter"), None);
        part("lora_unet_conv_in.dora_scale", Writer::Images).expect_err("unsupported");
        for (name, expected) in [
            ("unet.a.to_q.lora.down.weight", "unet.a.to_q.lora_down.weight"),
            ("unet.a.processor.to_out_lora.up.weight", "unet.a.to_out.0.lora_up.weight"),
            ("unet.a.to_q.lora_A.weight", "unet.a.to_q.lora_A.weight"),
        ] {
            assert_eq!(spelled_alike(name), expected);
        }
    }
}
