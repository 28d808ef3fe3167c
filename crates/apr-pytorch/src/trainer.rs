//! Checkpoints that trainers write: the weights under one key, and beside them what training goes
//! on with.

use apr_core::counted;

use crate::flatten::PickledTensor;
use crate::pickle::{Heap, Id};

/// A trainer's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trainer {
    /// What it is, for people.
    pub(crate) name: &'static str,
    /// What the names of the weights start with; empty where all tensors are the optimizer's.
    pub(crate) prefix: &'static str,
    /// Keys that tell it, all of them.
    keys: &'static [&'static str],
}

/// The first whose keys are there.
const TRAINERS: &[Trainer] = &[
    Trainer {
        name: "Lightning checkpoint",
        prefix: "state_dict.",
        keys: &["state_dict", "pytorch-lightning_version"],
    },
    Trainer { name: "DeepSpeed model states", prefix: "module.", keys: &["module", "ds_version"] },
    Trainer {
        name: "DeepSpeed model states",
        prefix: "module.",
        keys: &["module", "dp_world_size", "mp_world_size"],
    },
    Trainer {
        name: "DeepSpeed optimizer states",
        prefix: "",
        keys: &["optimizer_state_dict", "ds_version"],
    },
    Trainer {
        name: "DeepSpeed optimizer states",
        prefix: "",
        keys: &["optimizer_state_dict", "ds_config"],
    },
];

/// The trainer whose checkpoint this is.
pub(crate) fn recognise(heap: &Heap, root: Id) -> Option<Trainer> {
    let has = |key: &&str| heap.entry(root, key).is_some();
    TRAINERS.iter().find(|trainer| trainer.keys.iter().all(has)).copied()
}

impl Trainer {
    /// The weights under the names that the model has, and a sentence on what is left out. All as
    /// it is where there are no weights under the key: a trainer may keep them elsewhere.
    pub(crate) fn weights(
        self,
        tensors: Vec<(String, PickledTensor)>,
    ) -> (Vec<(String, PickledTensor)>, Option<String>) {
        let own = |name: &str| name.strip_prefix(self.prefix).is_some_and(|rest| !rest.is_empty());
        if self.prefix.is_empty() || !tensors.iter().any(|(name, _)| own(name)) {
            return (tensors, None);
        }

        let all = tensors.len();
        let weights: Vec<_> = tensors
            .into_iter()
            .filter_map(|(name, found)| Some((name.strip_prefix(self.prefix)?.to_owned(), found)))
            .filter(|(name, _)| !name.is_empty())
            .collect();
        let others = (all - weights.len()) as u64;
        let left_out = (others > 0)
            .then(|| format!("optimizer states and others ({})", counted(others, "tensor")));
        (weights, left_out)
    }
}
