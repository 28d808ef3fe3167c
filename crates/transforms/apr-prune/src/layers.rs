//! Layers that go: the rest moves up, and the configuration counts anew.

use std::collections::{BTreeMap, BTreeSet};

use apr_arch::{FamilyModel, LayerStack};
use apr_core::{CheckpointReader, Convention, Error, Result, TensorInfo};
use apr_source::Source;
use apr_view::{TensorOrigin, View, check_decodable};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::configuration::{Configuration, counted};

/// Entries of a configuration that count the layers of a single stack.
const COUNTS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
/// Configuration keys with the number of layers of a decoder behind an encoder, first T5's.
const DECODER_COUNTS: [&str; 3] = ["num_decoder_layers", "decoder_layers", "n_text_layer"];
/// Configuration key with T5's number of encoder layers, which also counts for a decoder without a
/// key.
const ENCODER_COUNT: &str = "num_layers";
/// The companion of settings for generation, and its entry that names heads of Whisper's decoder as
/// pairs of layer and head.
const GENERATION: &str = "generation_config.json";
const ALIGNMENT_HEADS: &str = "alignment_heads";

/// Entries that name layers by their numbers, or by rules about them.
const NUMBERED: [&str; 9] = [
    "mlp_only_layers",
    "moe_layers",
    "decoder_sparse_step",
    "first_k_dense_replace",
    "moe_layer_freq",
    "max_window_layers",
    "cross_attention_layers",
    "global_attn_every_n_layers",
    "attn_layer_indices",
];

/// Selection of the layers to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerChoice {
    /// Number of layers before the last one.
    ///
    /// The deeper layers of language models do least, except for the last one (Gromov et al. 2024,
    /// arXiv:2403.17887).
    Count(usize),
    /// These, from 0 on.
    Listed(Vec<u64>),
}

/// Report on the removed layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LayerReport {
    /// `true` if the layers belong to a decoder whose encoder keeps all layers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub of_decoder: bool,
    /// Layers of the source.
    #[serde(rename = "layer_count")]
    pub layers: u64,
    /// Removed layers, by their numbers in the source.
    pub dropped: Vec<u64>,
    /// Tensors that went with them.
    pub tensor_count: usize,
    /// Bytes of those tensors.
    pub bytes: u64,
    /// Entries of the configuration that were changed.
    pub configuration: Vec<String>,
    /// Influence of each source layer on its input, if it determined the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub influence: Option<Vec<f64>>,
}

/// A checkpoint without some of its layers.
#[derive(Debug, Clone)]
#[must_use = "nothing is dropped until it is applied"]
pub struct LayerPlan {
    /// Tensors that are kept, under their new names.
    tensors: Vec<(usize, String)>,
    report: LayerReport,
}

/// Decides which layers of a model to remove.
///
/// For an encoder and a decoder, the layers are the decoder's. The decoder takes most of the time,
/// since it runs once per token, and works with fewer layers (Distil-Whisper, Gandhi et al. 2023,
/// arXiv:2311.00430).
///
/// # Errors
/// E001 for a model of an unknown family, one of several towers, a layer that it does not have, all
/// layers, a first layer that has what the others use, a GGUF file, and a configuration that refers
/// to layers by their numbers; E003 for weights in codes that can't be decoded.
pub fn plan_layers(source: &Source<'_>, choice: &LayerChoice) -> Result<LayerPlan> {
    let reader = source.reader();
    check_decodable(reader)?;
    let Some(model) = source.family()? else {
        return Err(Error::format("the model's family is unknown, and so are its layers"));
    };
    let (family, title) = (model.family(), model.family().title());
    if reader.format().convention == Convention::LlamaCpp {
        return Err(Error::format(
            "layers of GGUF files can't be dropped: convert the model to safetensors or .apr first",
        ));
    }
    let Some((stack, layers)) = layers_of(model) else {
        return Err(Error::format(format!(
            "{title} models have neither one stack of layers nor a decoder behind an encoder"
        )));
    };
    let dropped = dropped(choice, layers)?;
    if let Some(key) = numbered(reader, layers)? {
        return Err(Error::format(format!(
            "the configuration names layers by number in '{key}', which would name others"
        )));
    }

    // What an import added goes along as it is.
    let auxiliary = reader.metadata().auxiliary_tensor();
    let mut tensors = Vec::new();
    let (mut gone, mut bytes) = (0, 0_u64);
    for (position, info) in reader.tensors().iter().enumerate() {
        let Some(canonical) = model.canonical(position) else {
            if auxiliary == Some(info.name.as_str()) {
                tensors.push((position, info.name.clone()));
                continue;
            }
            return Err(Error::format(format!(
                "{title} models have no such tensor, so its layer is \
                                              unknown"
            ))
            .for_tensor(&info.name));
        };
        let Some(layer) = family.layer_of(stack, canonical) else {
            tensors.push((position, info.name.clone()));
            continue;
        };
        if dropped.binary_search(&layer).is_ok() {
            gone += 1;
            bytes = bytes.saturating_add(info.byte_len()?);
            continue;
        }
        let new = layer - dropped.partition_point(|other| *other < layer) as u64;
        let name = family.in_layer(stack, canonical, new);
        let name = name.and_then(|name| family.source_name(&name, model.naming()));
        let name = name.ok_or_else(|| {
            Error::format("it has no name in another layer").for_tensor(&info.name)
        })?;
        tensors.push((position, name));
    }

    if gone == 0 {
        return Err(Error::format(format!(
            "the file does not contain tensors of the {title}'s \
                                          layers"
        )));
    }
    check_first(model, stack, reader.tensors().len(), &dropped)?;
    let report = LayerReport {
        of_decoder: stack == LayerStack::Decoder,
        layers,
        dropped,
        tensor_count: gone,
        bytes,
        configuration: Vec::new(),
        influence: None,
    };
    Ok(LayerPlan { tensors, report })
}

/// Returns the stack whose layers can be removed, and its number of layers.
fn layers_of(model: &FamilyModel<'_>) -> Option<(LayerStack, u64)> {
    let stack = model.layer_stack()?;
    let layers = model.dimension(stack.dimension())?;
    (layers > 0).then_some((stack, layers))
}

/// Refuses to drop a first layer that has what the others use, such as the biases of positions of
/// T5.
fn check_first(
    model: &FamilyModel<'_>,
    stack: LayerStack,
    tensors: usize,
    dropped: &[u64],
) -> Result<()> {
    let family = model.family();
    let Some(first) = (0..).find(|layer| !dropped.contains(layer)).filter(|first| *first > 0)
    else {
        return Ok(());
    };
    // All as they are called in the first layer.
    let of_layer = |wanted: u64| -> BTreeSet<String> {
        let names = (0..tensors).filter_map(|position| model.canonical(position));
        let names = names.filter(|name| family.layer_of(stack, name) == Some(wanted));
        names.filter_map(|name| family.in_layer(stack, name, 0)).collect()
    };
    match of_layer(0).difference(&of_layer(first)).next() {
        Some(name) => Err(Error::format(
            "layer 0 can't be dropped: it has tensors that later layers use or do not have",
        )
        .for_tensor(name)),
        None => Ok(()),
    }
}

/// Returns the `count` layers that change their input least. Among equal layers, later ones come
/// first.
///
/// # Errors
/// E001 if `count` is 0 or not less than the number of layers.
pub fn least_influential(influence: &[f64], count: usize) -> Result<LayerChoice> {
    if count == 0 || count >= influence.len() {
        let layers = influence.len();
        return Err(Error::format(format!("{count} of {layers} layers can't be dropped")));
    }
    let mut order: Vec<usize> = (0..influence.len()).collect();
    order.sort_by(|a, b| influence[*a].total_cmp(&influence[*b]).then(b.cmp(a)));
    Ok(LayerChoice::Listed(order[..count].iter().map(|layer| *layer as u64).collect()))
}

/// Returns the layers to remove, in order.
fn dropped(choice: &LayerChoice, layers: u64) -> Result<Vec<u64>> {
    let dropped: BTreeSet<u64> = match choice {
        LayerChoice::Count(count) => {
            let count = *count as u64;
            let last = layers - 1;
            if count > last {
                BTreeSet::from_iter(0..layers)
            } else {
                (last - count..last).collect()
            }
        }
        LayerChoice::Listed(listed) => listed.iter().copied().collect(),
    };
    if let Some(absent) = dropped.iter().find(|layer| **layer >= layers) {
        return Err(Error::format(format!(
            "unknown layer {absent}: the model has {layers}, from 0 to {}",
            layers - 1
        )));
    }
    match dropped.len() as u64 {
        0 => Err(Error::format("no layer is to be dropped")),
        all if all == layers => Err(Error::format("no layer would be left")),
        _ => Ok(dropped.into_iter().collect()),
    }
}

/// Returns a configuration key that refers to layers by number and would become wrong, if there is
/// one.
fn numbered(reader: &dyn CheckpointReader, layers: u64) -> Result<Option<String>> {
    let config = Configuration::of(reader)?;
    let matters = |key: &&&str| match config.get(**key) {
        None | Some(Value::Null | Value::Bool(_)) => false,
        Some(Value::Array(entries)) => !entries.is_empty() && entries.len() as u64 != layers,
        // A step of 1 is every layer, and 0 is none.
        Some(number) => number.as_u64().is_none_or(|number| number > 1 && number < layers),
    };
    Ok(NUMBERED.iter().find(matters).map(|key| (*key).to_owned()))
}

/// Updates the number of decoder layers, and returns the changed keys.
fn count_decoder_anew(config: &mut Map<String, Value>, layers: u64, left: u64) -> Vec<String> {
    let mut changed = counted(config, &DECODER_COUNTS, layers, left);
    let says_nothing = !DECODER_COUNTS.iter().any(|key| config.contains_key(*key));
    if says_nothing && config.get(ENCODER_COUNT).and_then(Value::as_u64) == Some(layers) {
        let key = DECODER_COUNTS[0].to_owned();
        config.insert(key.clone(), left.into());
        changed.push(key);
    }
    changed
}

/// Updates the alignment heads to the new numbers of the kept layers.
fn number_anew(settings: &mut Map<String, Value>, dropped: &[u64]) -> Vec<String> {
    let Some(Value::Array(heads)) = settings.get_mut(ALIGNMENT_HEADS) else { return Vec::new() };
    let layer_of = |head: &Value| head.get(0).and_then(Value::as_u64);
    heads.retain(|head| layer_of(head).is_none_or(|layer| !dropped.contains(&layer)));
    for head in &mut *heads {
        if let Some(layer) = layer_of(head) {
            head[0] = (layer - dropped.partition_point(|other| *other < layer) as u64).into();
        }
    }
    // None at all would be read as heads that align nothing.
    if heads.is_empty() {
        settings.remove(ALIGNMENT_HEADS);
    }
    vec![ALIGNMENT_HEADS.to_owned()]
}

/// Updates the number of layers, and returns the changed keys.
fn count_anew(config: &mut Map<String, Value>, layers: u64, dropped: &[u64]) -> Vec<String> {
    let mut changed = counted(config, &COUNTS, layers, layers - dropped.len() as u64);
    config.sort_keys();
    for (key, value) in config.iter_mut() {
        if let Value::Array(entries) = value
            && entries.len() as u64 == layers
            && (key.contains("layer") || key.contains("window"))
        {
            let mut places = 0..;
            entries.retain(|_| !dropped.contains(&places.next().unwrap_or_default()));
            changed.push(key.clone());
        }
    }
    changed
}

impl LayerPlan {
    /// Adds the influence that determined the choice to the report.
    pub fn with_influence(mut self, influence: Vec<f64>) -> Self {
        self.report.influence = Some(influence);
        self
    }

    /// Drops the layers of the checkpoint that was planned for.
    ///
    /// # Errors
    /// E001 for a configuration that is no JSON object or counts no layers, E007 when it can't be
    /// read.
    pub fn apply<'b>(
        self,
        base: Box<dyn CheckpointReader + 'b>,
    ) -> Result<(Box<dyn CheckpointReader + 'b>, LayerReport)> {
        let Self { tensors, mut report } = self;
        let LayerReport { layers, ref dropped, of_decoder, .. } = report;
        let names: BTreeMap<usize, &str> =
            tensors.iter().map(|(position, name)| (*position, name.as_str())).collect();
        let mut view = View::new(&*base);
        view.rename(|position, _| names.get(&position).map(|name| (*name).to_owned()));
        let mut metadata = view.metadata().clone();
        drop(view);
        let change = |config: &mut Map<String, Value>| match of_decoder {
            true => count_decoder_anew(config, layers, layers - dropped.len() as u64),
            false => count_anew(config, layers, dropped),
        };
        let (mut configuration, mut changed) =
            Configuration::changed(&*base, &mut metadata, change)?;
        if changed.is_empty() {
            return Err(Error::format("no configuration states the number of layers"));
        }
        if of_decoder {
            let change = |settings: &mut Map<String, Value>| number_anew(settings, dropped);
            changed.extend(configuration.change_file(&*base, GENERATION, change)?);
        }
        report.configuration = changed;
        let kept = tensors.iter().map(|(position, name)| {
            let info = TensorInfo { name: name.clone(), ..base.tensors()[*position].clone() };
            (info, TensorOrigin::Base(*position))
        });
        let mut shortened = View::of(&*base, kept.collect());
        *shortened.metadata_mut() = metadata;
        for (companion, bytes) in configuration.into_files() {
            shortened.companions_mut().set(companion, bytes);
        }
        let shortened = shortened.into_mapping().over(base);
        Ok((Box::new(shortened), report))
    }
}
