//! What a student is before its training: which layers, heads and neurons of its teacher it has.

use apr_arch::LayerStack;
use apr_core::{Error, Result};
use apr_source::Source;
use serde_json::{Map, Value as Json};

/// Size of a student.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Size {
    /// Half of the layers.
    Small,
    /// A quarter of the layers, with half of the heads and neurons.
    Tiny,
    /// Sizes of this configuration, whose model has the same family and hidden size.
    Configured(Map<String, Json>),
    /// Number of layers, evenly spaced.
    Layers(u64),
    /// Layers of the teacher with these numbers.
    Listed(Vec<u64>),
}

/// Layers, heads and neurons that a student lacks compared to its teacher.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Cuts {
    /// Kept layers, by their numbers in the teacher; empty if all layers are kept.
    pub kept: Vec<u64>,
    /// Removed layers.
    pub dropped: Vec<u64>,
    /// Number of query heads removed from each layer.
    pub heads: u64,
    /// Number of neurons removed from each layer.
    pub neurons: u64,
}

/// Entries of configurations that a student may have less of.
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const DECODER_LAYERS: [&str; 2] = ["decoder_layers", "num_decoder_layers"];
const HEADS: [&str; 3] = ["num_attention_heads", "n_head", "n_heads"];
const NEURONS: [&str; 4] = ["intermediate_size", "hidden_dim", "ffn_dim", "n_inner"];
/// Entries that must be the teacher's.
const SAME: [&str; 7] = [
    "model_type",
    "hidden_size",
    "dim",
    "d_model",
    "n_embd",
    "vocab_size",
    "max_position_embeddings",
];

/// Additional entries that must equal the teacher's if only the decoder behind an encoder loses
/// layers.
const SAME_BESIDE_ENCODER: [&str; 9] = [
    "encoder_layers",
    "num_layers",
    "num_heads",
    "d_kv",
    "d_ff",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "decoder_attention_heads",
    "decoder_ffn_dim",
];

/// Returns what a student of this size lacks compared to its teacher.
///
/// `config` is the teacher's configuration. In a model with encoder and decoder, the layers are the
/// decoder's. The encoder does not change.
///
/// # Errors
/// E001 for a model of an unknown family, more layers, heads or neurons than the teacher has, a
/// configuration with other differences, and a student that equals the teacher.
pub fn cuts(source: &Source<'_>, config: &Map<String, Json>, size: &Size) -> Result<Cuts> {
    let model = source.family()?;
    let model = model
        .ok_or_else(|| Error::format("the model's family is unknown, and so are its layers"))?;
    let count = |what: &str| model.dimension(what).filter(|count| *count > 0);
    let has_encoder = model.has_encoder_and_decoder();
    let counted = if has_encoder { LayerStack::Decoder } else { LayerStack::Only };
    let layers = count(counted.dimension())
        .ok_or_else(|| Error::format("the configuration does not state the number of layers"))?;
    let own = |keys: &[&str]| keys.iter().find_map(|key| config.get(*key)?.as_u64());

    let mut cuts = Cuts::default();
    let kept = match size {
        Size::Small => kept_layers(layers, layers.div_ceil(2))?,
        Size::Tiny if has_encoder => {
            return Err(Error::format(
                "tiny is not supported for encoder-decoder models, whose students only have \
                 fewer decoder layers: use small, or a number of layers",
            ));
        }
        Size::Tiny => {
            let heads = count("heads").unwrap_or(1);
            let groups = count("kv_heads").unwrap_or(heads);
            cuts.heads = groups / 2 * (heads / groups.max(1));
            cuts.neurons = own(&NEURONS).unwrap_or(0) / 2;
            kept_layers(layers, layers.div_ceil(4))?
        }
        Size::Layers(kept) => kept_layers(layers, *kept)?,
        Size::Listed(kept) => {
            let absent = kept.iter().find(|layer| **layer >= layers);
            if let Some(absent) = absent {
                return Err(Error::format(format!(
                    "unknown layer {absent}: the teacher has {layers}, from 0 on"
                )));
            }
            kept.clone()
        }
        Size::Configured(asked) => {
            check_same(config, asked, &SAME)?;
            if has_encoder {
                check_same(config, asked, &SAME_BESIDE_ENCODER)?;
            }
            let less = |what: &str, keys: &[&str], own: Option<u64>| {
                let asked = keys.iter().find_map(|key| asked.get(*key)?.as_u64());
                match (own, asked) {
                    (Some(own), Some(asked)) if asked > own => Err(Error::format(format!(
                        "the student has {asked} {what}, and the teacher {own}: the student must \
                         be smaller"
                    ))),
                    (Some(own), Some(asked)) => Ok(own - asked),
                    _ => Ok(0),
                }
            };
            if has_encoder {
                kept_layers(layers, layers - less("layers", &DECODER_LAYERS, Some(layers))?)?
            } else {
                cuts.heads = less("heads", &HEADS, own(&HEADS))?;
                cuts.neurons = less("neurons", &NEURONS, own(&NEURONS))?;
                kept_layers(layers, layers - less("layers", &LAYERS, Some(layers))?)?
            }
        }
    };

    cuts.dropped = (0..layers).filter(|layer| !kept.contains(layer)).collect();
    if !cuts.dropped.is_empty() {
        cuts.kept = kept;
    }
    if cuts.dropped.is_empty() && cuts.heads == 0 && cuts.neurons == 0 {
        return Err(Error::format("the student would be as large as its teacher"));
    }
    Ok(cuts)
}

fn check_same(
    teacher: &Map<String, Json>,
    student: &Map<String, Json>,
    keys: &[&str],
) -> Result<()> {
    for key in keys {
        if let (Some(own), Some(asked)) = (teacher.get(*key), student.get(*key))
            && own != asked
        {
            return Err(Error::format(format!(
                "the student's '{key}' is {asked}, and the teacher's {own}: students have fewer \
                 layers, heads or neurons"
            )));
        }
    }
    Ok(())
}

/// Returns `kept` evenly spaced layers: the first, the last, and layers between them.
///
/// A single layer is the first one.
///
/// # Errors
/// E001 for 0 layers, or more than there are.
///
/// # Examples
/// ```
/// assert_eq!(apr_distill::kept_layers(6, 3)?, [0, 3, 5]);
/// assert_eq!(apr_distill::kept_layers(2, 1)?, [0]);
/// # Ok::<(), apr_core::Error>(())
/// ```
pub fn kept_layers(layers: u64, kept: u64) -> Result<Vec<u64>> {
    if kept == 0 || kept > layers {
        return Err(Error::format(format!(
            "a student of {kept} layers can't begin with the layers of a teacher of {layers}"
        )));
    }
    let (last, gaps) = (layers - 1, (kept - 1).max(1));
    Ok((0..kept).map(|at| (2 * at * last + gaps) / (2 * gaps)).collect())
}
