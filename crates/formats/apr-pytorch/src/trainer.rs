//! Checkpoints that trainers and training scripts write: the weights under one key, and beside them
//! what training goes on with.
//!
//! Trainers are told by keys of their own. What scripts write is told by its shape: a dictionary
//! with weights under one of the keys of [`WEIGHTS`], and no other tensor than those that training
//! goes on with. A dictionary with tensors under further keys is a model of several parts, and is
//! read as it is.

use apr_core::{Escaped, TensorInfo, counted};

use crate::flatten::PickledTensor;
use crate::pickle::{Heap, Id, Node};

/// A trainer's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trainer {
    /// Name of the kind of checkpoint for people.
    pub(crate) name: &'static str,
    /// Key of the weights; empty if all tensors belong to the optimizer.
    weights: &'static str,
    /// Keys that identify the trainer. All of them must be present.
    keys: &'static [&'static str],
}

/// Name of the checkpoints in which DeepSpeed saves the model.
const MODEL_STATES: &str = "DeepSpeed model states";

/// The first whose keys are there.
const TRAINERS: &[Trainer] = &[
    Trainer {
        name: "Lightning checkpoint",
        weights: "state_dict",
        keys: &["state_dict", "pytorch-lightning_version"],
    },
    Trainer { name: MODEL_STATES, weights: "module", keys: &["module", "ds_version"] },
    Trainer {
        name: MODEL_STATES,
        weights: "module",
        keys: &["module", "dp_world_size", "mp_world_size"],
    },
    Trainer {
        name: "DeepSpeed optimizer states",
        weights: "",
        keys: &["optimizer_state_dict", "ds_version"],
    },
    Trainer {
        name: "DeepSpeed optimizer states",
        weights: "",
        keys: &["optimizer_state_dict", "ds_config"],
    },
];

/// Warning for DeepSpeed's optimizer states, and for its model states with ZeRO 3.
const PARTITIONS: &str = "the parameters are partitioned by DeepSpeed: join them with \
                          `zero_to_fp32.py`, which DeepSpeed saves next to the checkpoint";

/// Keys under which scripts keep the weights. If several have tensors, the first is read.
const WEIGHTS: [&str; 4] = ["state_dict", "model_state_dict", "model_state", "model"];

/// Words in keys of training state, as in `lr_scheduler` and `ema_state_dict`.
const OF_TRAINING: [&str; 18] = [
    "amp",
    "best",
    "callbacks",
    "ema",
    "epoch",
    "epochs",
    "iter",
    "iteration",
    "iterations",
    "loops",
    "loss",
    "losses",
    "opt",
    "rng",
    "scaler",
    "step",
    "steps",
    "swa",
];
/// Beginnings of such words.
const BEGINNINGS_OF_TRAINING: [&str; 2] = ["optim", "sched"];

/// The weights of a checkpoint, and a summary of its other content.
pub(crate) struct Weights {
    /// Kind of the checkpoint for people; `None` if it consists of the weights alone.
    pub(crate) kind: Option<&'static str>,
    /// The key that was taken off the names of the weights.
    pub(crate) key: Option<&'static str>,
    /// The weights under the names that the model has.
    pub(crate) tensors: Vec<(String, PickledTensor)>,
    /// Omitted tensors: each key with the number of its tensors.
    pub(crate) left_out: Vec<String>,
    /// Warning about a choice between several sets of weights, or about partitioned parameters.
    pub(crate) warning: Option<String>,
}

/// Selects the weights among the tensors of a pickle.
///
/// All tensors are kept if the key has no weights, because a trainer may keep them elsewhere.
pub(crate) fn weights(heap: &Heap, root: Id, tensors: Vec<(String, PickledTensor)>) -> Weights {
    let trainer = recognise(heap, root);
    let kind = trainer.map(|trainer| trainer.name);
    match trainer {
        Some(Trainer { weights, .. })
            if tensors.iter().any(|(name, _)| is_under(name, weights)) =>
        {
            taken_out(kind, weights, tensors)
        }
        Some(Trainer { weights: "", .. }) => {
            Weights { kind, warning: Some(PARTITIONS.to_owned()), ..as_it_is(tensors) }
        }
        Some(_) => Weights { kind, ..as_it_is(tensors) },
        None => of_script(heap, root, tensors),
    }
}

/// Detects the trainer from the keys of a checkpoint.
pub(crate) fn recognise(heap: &Heap, root: Id) -> Option<Trainer> {
    let has = |key: &&str| heap.entry(root, key).is_some();
    TRAINERS.iter().find(|trainer| trainer.keys.iter().all(has)).copied()
}

/// Returns a warning for DeepSpeed model states without elements.
///
/// With ZeRO 3, the model states have only the names of the weights.
pub(crate) fn without_elements(kind: Option<&str>, tensors: &[TensorInfo]) -> Option<String> {
    let is_empty = |info: &TensorInfo| info.shape.elements() == Some(0);
    let is_odd = kind == Some(MODEL_STATES) && !tensors.is_empty() && tensors.iter().all(is_empty);
    is_odd.then(|| format!("no tensor has an element, as with ZeRO 3: {PARTITIONS}"))
}

/// The weights of a checkpoint that no known trainer wrote.
fn of_script(heap: &Heap, root: Id, tensors: Vec<(String, PickledTensor)>) -> Weights {
    let has_weights = |key: &&&str| {
        let value = heap.entry(root, key).map(|value| heap.get(value));
        matches!(value, Some(Node::Dict(_) | Node::Object(_)))
            && tensors.iter().any(|(name, _)| is_under(name, key))
    };
    let sets: Vec<&'static str> = WEIGHTS.iter().filter(has_weights).copied().collect();
    let is_known =
        |name: &str| sets.iter().any(|key| is_under(name, key)) || is_of_training(key_of(name));
    let Some((&first, others)) = sets.split_first() else { return as_it_is(tensors) };
    if !tensors.iter().all(|(name, _)| is_known(name)) {
        return as_it_is(tensors);
    }

    let warning = others.first().map(|other| {
        let others: Vec<String> = others.iter().map(|key| format!("'{key}'")).collect();
        format!(
            "the checkpoint has weights under '{first}' and {}: only '{first}' is read; the \
             prefix '{other}.' reads the others",
            others.join(", ")
        )
    });
    Weights { warning, ..taken_out(Some("training checkpoint"), first, tensors) }
}

fn as_it_is(tensors: Vec<(String, PickledTensor)>) -> Weights {
    Weights { kind: None, key: None, tensors, left_out: Vec::new(), warning: None }
}

/// The tensors under a key without it, and the keys of the others.
fn taken_out(
    kind: Option<&'static str>,
    key: &'static str,
    tensors: Vec<(String, PickledTensor)>,
) -> Weights {
    let (own, others): (Vec<_>, Vec<_>) =
        tensors.into_iter().partition(|(name, _)| is_under(name, key));
    let without = |(name, tensor): (String, PickledTensor)| {
        (name.get(key.len() + 1..).unwrap_or_default().to_owned(), tensor)
    };

    let mut counts: Vec<(&str, u64)> = Vec::new();
    for (name, _) in &others {
        match counts.iter_mut().find(|(key, _)| *key == key_of(name)) {
            Some((_, count)) => *count += 1,
            None => counts.push((key_of(name), 1)),
        }
    }
    let named = counts
        .iter()
        .map(|(key, count)| format!("{} ({})", Escaped::short(key), counted(*count, "tensor")));
    Weights {
        kind,
        key: Some(key),
        left_out: named.collect(),
        tensors: own.into_iter().map(without).collect(),
        warning: None,
    }
}

/// Returns `true` for the path of a tensor under a key of the outermost dictionary.
fn is_under(name: &str, key: &str) -> bool {
    let rest = name.strip_prefix(key).and_then(|rest| rest.strip_prefix('.'));
    !key.is_empty() && rest.is_some_and(|rest| !rest.is_empty())
}

/// The outermost key of a path.
fn key_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns `true` if the words of a key show that it holds training state.
fn is_of_training(key: &str) -> bool {
    let lower = key.to_ascii_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphanumeric());
    words.any(|word| {
        OF_TRAINING.contains(&word)
            || BEGINNINGS_OF_TRAINING.iter().any(|beginning| word.starts_with(beginning))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_training_state_are_detected_by_their_words() {
        for key in ["optimizer", "optim_g", "lr_schedulers", "model_ema", "opt", "cuda_rng_state"] {
            assert!(is_of_training(key), "{key}");
        }
        for key in ["criterion", "discriminator", "schema", "head", "adaptive", "stepper"] {
            assert!(!is_of_training(key), "{key}");
        }
    }
}
