//! Whether each layer of a model does its work: the model without a block of it, or with two layers
//! exchanged, predicts a text no better, and recognizes the meaning of sentences no better.
//!
//! A trained model is at a minimum of its loss, and each of these changes takes it away from there.
//! A model that was damaged is not: without the block that has a turned, exchanged or scaled
//! weight, or with the layers back in their order, it predicts better.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use apr_core::{CheckpointReader, Code, DType, Escaped, TensorInfo};
use apr_run::{Prepared, RunError, RunResult};
use apr_view::{Change, TensorOrigin, View};

use crate::learnt::{Known, known};
use crate::sentences::Sentences;
use crate::subject::Subject;
use crate::text_part::TextPart;

/// Texts that a change is measured on, at most.
const TEXTS: usize = 2;
/// Changes that are measured on the whole texts: those that cost the beginning of one least.
const FINALISTS: usize = 6;
/// Products of all trials together. With 8e11, scoring SmolLM2 135M took more than twice as long as
/// without them.
const MOST_WORK: f64 = 3e11;

/// Ends of the names of weights whose results are added to the states of a model, without
/// `.weight`.
const WRITERS: [&str; 20] = [
    "o_proj",
    "out_proj",
    "down_proj",
    "c_proj",
    "output.dense",
    "attention.dense",
    "self_attention.dense",
    "dense_4h_to_h",
    "attn_output",
    "ffn_down",
    "fc2",
    "fc_out",
    "out_lin",
    "lin2",
    "wo",
    "w2",
    "attn.out",
    "attn.o",
    "weights_out",
    "mixer.out",
];

/// A change of the layers of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerChange {
    /// The block adds nothing to the states.
    LeftOut {
        /// Common part of the names of its weights.
        block: String,
    },
    /// Two adjacent layers are in each other's place.
    Exchanged {
        /// Number of the first.
        layer: u64,
    },
    /// A square weight is transposed.
    Transposed {
        /// Name of the weight.
        tensor: String,
    },
}

impl fmt::Display for LayerChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut { block } => write!(f, "without {}", Escaped(block)),
            Self::Exchanged { layer } => {
                write!(f, "with layers {layer} and {} exchanged", layer + 1)
            }
            Self::Transposed { tensor } => write!(f, "with {} transposed", Escaped(tensor)),
        }
    }
}

/// Losses of a model with changed layers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LayerTrials {
    /// Mean negative log-likelihood in nats, as the model is: of a token, or of the sentence with
    /// the same meaning.
    pub loss: f64,
    /// Number of changes that were tried.
    pub tried: usize,
    /// Number of changes that there are.
    pub of: usize,
    /// The change with the least loss, and this loss.
    pub best: (LayerChange, f64),
}

impl LayerTrials {
    /// The trials with these losses, the least first; `None` without any.
    fn of(loss: f64, tried: usize, of: usize, best: &[(&LayerChange, f64)]) -> Option<Self> {
        let (change, least) = best.first()?;
        Some(Self { loss, tried, of, best: ((*change).clone(), *least) })
    }

    /// Returns the nats that the best change saves; negative if every change costs some.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.loss - self.best.1
    }
}

/// Tries the changes of a model's layers, on built-in passages that the model knows.
///
/// All are tried on the beginning of one text, and the best of them on other tokens: the rest of
/// that text, and another text. The best of many by few tokens is often so by chance.
///
/// A large model gets some of the changes, which are spread over its layers. Returns `None` for a
/// model that knows no passage, or whose weights are in no layers. The decoder of a speech model is
/// tested without its encoder.
///
/// # Errors
/// Those of [`passages`](crate::passages).
pub fn layer_trials(model: &Subject<'_>, enough: f64) -> RunResult<Option<LayerTrials>> {
    let Some(text) = TextPart::of(model)? else { return Ok(None) };
    let part = text.part;
    let tensors = of_part(part, text.beside.states.is_some());
    let changes = changes(&tensors);
    let texts = known(&text, enough, TEXTS)?;
    let Some(first) = texts.first().filter(|_| !changes.is_empty()) else { return Ok(None) };
    let tokens: usize = texts.iter().map(Known::tokens).sum();
    let most = affordable(&tensors, tokens * (FINALISTS + 1), first.tokens_of_beginning());
    let chosen = chosen(&changes, most);
    let mut best = measured(part, chosen.into_iter(), |part| first.loss_of_beginning(part))?;
    let tried = best.len();
    best.truncate(FINALISTS);

    let loss = mean_loss(part, &texts)?;
    let finalists = best.into_iter().map(|(change, _)| change);
    let best = measured(part, finalists, |part| mean_loss(part, &texts))?;
    Ok(LayerTrials::of(loss, tried, changes.len(), &best))
}

/// Tries the changes of the layers of a model that makes vectors of texts, on the built-in
/// sentences.
///
/// Returns `None` for other models, and for a model whose weights are in no layers.
///
/// # Errors
/// Those of [`meanings`](crate::meanings).
pub fn sentence_trials(model: &Subject<'_>) -> RunResult<Option<LayerTrials>> {
    let (Some(sentences), [part]) = (Sentences::of(model)?, model.parts()) else {
        return Ok(None);
    };
    let loss = |part: &Prepared<'_>| {
        let score = sentences.score(model, part)?;
        Ok(score.map_or(f64::INFINITY, |score| score.loss))
    };
    let tensors = of_part(part, false);
    let mut changes = changes(&tensors);
    // Rows and columns show a transposed weight without a run.
    changes.retain(|change| !matches!(change, LayerChange::Transposed { .. }));
    if changes.is_empty() {
        return Ok(None);
    }
    let tokens = sentences.tokens();
    let chosen = chosen(&changes, affordable(&tensors, tokens, tokens));
    let best = measured(part, chosen.into_iter(), loss)?;
    Ok(LayerTrials::of(loss(part)?, best.len(), changes.len(), &best))
}

/// Tensors in which layers are looked for: all of the model, or those that one of its parts reads.
fn of_part(part: &Prepared<'_>, is_one_of_several: bool) -> Vec<TensorInfo> {
    let body = &part.graph().body;
    let read: HashSet<&str> = body.weights().map(|(_, weight)| weight.tensor.as_str()).collect();
    let tensors = part.runner().weights().tensors().iter();
    tensors.filter(|info| !is_one_of_several || read.contains(&*info.name)).cloned().collect()
}

/// Chooses up to `most` changes, spread over the layers. Transposed weights are tried with what is
/// left: there are most of them, and each finds a single damage.
fn chosen(changes: &[LayerChange], most: usize) -> Vec<&LayerChange> {
    let is_transposed = |change: &&LayerChange| matches!(change, LayerChange::Transposed { .. });
    let (transposed, others): (Vec<_>, Vec<_>) = changes.iter().partition(is_transposed);
    let mut chosen = spread(&others, most);
    chosen.extend(spread(&transposed, most - chosen.len()));
    chosen
}

/// Up to `most` of all items, in equal steps.
fn spread<T: Copy>(all: &[T], most: usize) -> Vec<T> {
    let most = most.min(all.len());
    (0..most).map(|at| all[at * all.len() / most]).collect()
}

/// Measures the loss of a model with each of the changes, and returns the least first.
///
/// Changes that can't be made, or make values overflow, are left out.
fn measured<'c>(
    part: &Prepared<'_>,
    changes: impl Iterator<Item = &'c LayerChange>,
    loss: impl Fn(&Prepared<'_>) -> RunResult<f64>,
) -> RunResult<Vec<(&'c LayerChange, f64)>> {
    let weights = part.runner().weights();
    let mut losses = Vec::new();
    for change in changes {
        let Some(changed) = changed(weights, change)? else { continue };
        let other = part.runner().prepared_with(part.runnable(), &changed)?;
        match loss(&other) {
            Ok(loss) => losses.push((change, loss)),
            Err(RunError::Model(error)) if error.code() == Code::Format => {}
            Err(error) => return Err(error),
        }
    }
    losses.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    Ok(losses)
}

/// Mean of the losses on texts.
fn mean_loss(part: &Prepared<'_>, texts: &[Known]) -> RunResult<f64> {
    let losses = texts.iter().map(|text| text.loss(part)).collect::<RunResult<Vec<f64>>>()?;
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let count = losses.len() as f64;
    Ok(losses.iter().sum::<f64>() / count)
}

/// Number of trials of `tokens` each that stay within [`MOST_WORK`] if `reserved` tokens are read
/// beside them; one at least.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate"
)]
fn affordable(tensors: &[TensorInfo], reserved: usize, tokens: usize) -> usize {
    let matrices = tensors.iter().filter(|info| info.shape.dims().len() > 1);
    let values: f64 = matrices.map(|info| info.shape.elements().unwrap_or(u64::MAX) as f64).sum();
    let rest = MOST_WORK / values.max(1.0) - reserved as f64;
    ((rest / tokens.max(1) as f64) as usize).max(1)
}

/// A tensor's place in its layer.
struct Place<'t> {
    before: &'t str,
    layer: u64,
    behind: &'t str,
}

impl<'t> Place<'t> {
    /// The place that a name states by the first number in it.
    fn of(name: &'t str) -> Option<Self> {
        let mut start = 0;
        for piece in name.split('.') {
            let end = start + piece.len();
            if let Ok(layer) = piece.parse() {
                let behind = name.get(end + 1..)?;
                return Some(Self { before: &name[..start], layer, behind });
            }
            start = end + 1;
        }
        None
    }

    /// Returns the block that a weight writes the result of: all before the last component, or
    /// all before a single one.
    fn block(&self) -> Option<String> {
        let module = self.behind.strip_suffix(".weight")?;
        let is_writer = |end: &&str| {
            module.strip_suffix(*end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        if !WRITERS.iter().any(is_writer) {
            return None;
        }
        let block = module.split_once('.').map_or(module, |(block, _)| block);
        Some(format!("{}{}.{block}", self.before, self.layer))
    }
}

/// Lists the changes of layers with these tensors, in the order of the layers.
fn changes(tensors: &[TensorInfo]) -> Vec<LayerChange> {
    let mut found: BTreeMap<u64, Vec<LayerChange>> = BTreeMap::new();
    let mut stacks: BTreeMap<&str, u64> = BTreeMap::new();
    for info in tensors {
        let Some(place) = Place::of(&info.name) else { continue };
        let last = stacks.entry(place.before).or_default();
        *last = place.layer.max(*last);
        let of_layer = found.entry(place.layer).or_default();
        if let Some(block) = place.block() {
            let change = LayerChange::LeftOut { block };
            if !of_layer.contains(&change) {
                of_layer.push(change);
            }
        }
        if let [rows, columns] = *info.shape.dims()
            && rows == columns
            && info.name.ends_with(".weight")
        {
            of_layer.push(LayerChange::Transposed { tensor: info.name.clone() });
        }
    }
    // Layers of several stacks have no common order.
    if let [last] = stacks.values().copied().collect::<Vec<_>>()[..] {
        for layer in 0..last {
            let exchanged = LayerChange::Exchanged { layer };
            found.entry(layer).or_default().insert(0, exchanged);
        }
    }
    found.into_values().flatten().collect()
}

/// Returns the changed weights, or `None` if they can't be changed like that.
fn changed<'w>(
    weights: &'w dyn CheckpointReader,
    change: &LayerChange,
) -> RunResult<Option<View<'w>>> {
    let infos = weights.tensors();
    let base = |(at, info): (usize, &TensorInfo)| (info.clone(), TensorOrigin::Base(at));
    let mut tensors: Vec<_> = infos.iter().enumerate().map(base).collect();
    let position = |name: &str| infos.iter().position(|info| info.name == name);
    match change {
        LayerChange::LeftOut { block } => {
            for (info, origin) in &mut tensors {
                let writes = Place::of(&info.name).and_then(|place| place.block());
                if writes.as_deref() == Some(block.as_str()) {
                    let count = info.shape.elements().and_then(|count| count.checked_mul(2));
                    let Some(len) = count.and_then(|len| usize::try_from(len).ok()) else {
                        return Ok(None);
                    };
                    info.dtype = DType::BF16;
                    *origin = TensorOrigin::Own(vec![0; len]);
                }
            }
        }
        LayerChange::Exchanged { layer } => {
            for (info, origin) in &mut tensors {
                let Some(Place { before, layer: own, behind }) = Place::of(&info.name) else {
                    continue;
                };
                let other = match own {
                    own if own == *layer => layer + 1,
                    own if own == layer + 1 => *layer,
                    _ => continue,
                };
                let Some(from) = position(&format!("{before}{other}.{behind}")) else {
                    return Ok(None);
                };
                if infos[from].shape != info.shape {
                    return Ok(None);
                }
                (info.dtype, *origin) = (infos[from].dtype, TensorOrigin::Base(from));
            }
        }
        LayerChange::Transposed { tensor } => {
            let Some(at) = position(tensor) else { return Ok(None) };
            let (info, origin) = &mut tensors[at];
            let Ok(change) = Change::transposed(info, at) else { return Ok(None) };
            *origin = TensorOrigin::Changed(change);
        }
    }
    Ok(Some(View::of(weights, tensors)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, dims: &[u64]) -> TensorInfo {
        TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: dims.to_vec().into() }
    }

    #[test]
    fn blocks_are_named_by_what_writes_their_results() {
        let block = |name: &str| Place::of(name).and_then(|place| place.block());
        let found = |name: &str| block(name).unwrap_or_default();
        assert_eq!(found("model.layers.3.self_attn.o_proj.weight"), "model.layers.3.self_attn");
        assert_eq!(found("layers.3.mlp.down_proj.weight"), "layers.3.mlp");
        assert_eq!(found("encoder.layer.0.output.dense.weight"), "encoder.layer.0.output");
        assert_eq!(found("h.1.mlp.c_proj.weight"), "h.1.mlp");
        for name in ["layers.3.attn.q_proj.weight", "lm_head.weight", "layers.3.mlp.down_proj.bias"]
        {
            assert_eq!(block(name), None, "{name}");
        }
    }

    #[test]
    fn changes_are_listed_by_layer() {
        let of_layer = |layer: u64| {
            [
                info(&format!("layers.{layer}.attn.q_proj.weight"), &[4, 4]),
                info(&format!("layers.{layer}.attn.o_proj.weight"), &[4, 6]),
                info(&format!("layers.{layer}.mlp.down_proj.weight"), &[4, 8]),
            ]
        };
        let tensors: Vec<TensorInfo> = (0..2).flat_map(of_layer).collect();
        let said: Vec<String> = changes(&tensors).iter().map(ToString::to_string).collect();
        let expected = [
            "with layers 0 and 1 exchanged",
            "with layers.0.attn.q_proj.weight transposed",
            "without layers.0.attn",
            "without layers.0.mlp",
            "with layers.1.attn.q_proj.weight transposed",
            "without layers.1.attn",
            "without layers.1.mlp",
        ];
        assert_eq!(said, expected);

        let chosen = |most: usize| -> Vec<String> {
            chosen(&changes(&tensors), most).iter().map(ToString::to_string).collect()
        };
        assert_eq!(chosen(2), ["with layers 0 and 1 exchanged", "without layers.0.mlp"]);
        assert_eq!(chosen(6)[5], "with layers.0.attn.q_proj.weight transposed");
        assert_eq!(chosen(99).len(), expected.len());
    }
}
