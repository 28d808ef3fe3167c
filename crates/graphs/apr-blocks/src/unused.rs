//! Tensors of a checkpoint that its graphs do not use.
//!
//! A tensor that is left out changes what the model computes, unless it is known why it may be
//! there: it is a buffer, a head of another task, a copy, or what the family's table lists
//! (`[[graph.unused]]`). Every graph of a family is judged by this rule where it is bound to a
//! checkpoint to be run or written.

use std::collections::{BTreeMap, BTreeSet};

use apr_arch::without_numbers;
use apr_core::{Error, Escaped, Result, TensorInfo, counted};

use crate::Graphs;
use crate::model::Model;

/// Parts of heads: other tasks have others.
const HEAD_PARTS: [&str; 9] = [
    "head",
    "head_bias",
    "head_dense",
    "head_norm",
    "head_projection",
    "layer_weights",
    "pooler",
    "score",
    "second_score",
];

/// Names that a message lists.
const SHOWN: usize = 6;

/// A tensor of the checkpoint that no graph uses.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnusedTensor {
    /// Canonical name, or the name in the checkpoint if the family does not have the tensor.
    pub name: String,
    /// Reason why the tensor may be left out; `None` if the model's outputs depend on it.
    pub why: Option<String>,
    /// `true` if the tensor belongs to a part that the family does not have, such as a custom head.
    is_extra: bool,
}

impl Model<'_> {
    /// Returns the tensors that no graph has used so far.
    ///
    /// `is_chosen` is true if the user requested the task, and so chose to leave out other heads.
    /// `vision` is the part for images, if the graphs compute it.
    pub(crate) fn unused(
        &self,
        tensors: &[TensorInfo],
        is_chosen: bool,
        vision: Option<&Model<'_>>,
    ) -> Vec<UnusedTensor> {
        let family = self.family();
        let used = self.used();
        let heads = self.unused_heads(&used);
        let is_extra = family.is_extra();
        let mut seen = BTreeSet::new();
        let mut unused = Vec::new();
        for (position, info) in tensors.iter().enumerate() {
            let Some(name) = family.canonical(position) else {
                if let Some(vision) = vision.filter(|_| family.is_of_other_part(&info.name)) {
                    unused.extend(vision.unused_image_tensor(position, info));
                    continue;
                }
                let is_extra = is_extra(&info.name);
                let why = match family.is_of_other_part(&info.name) {
                    true => Some("for images, video or audio; only text is supported"),
                    false if is_chosen && is_extra => Some("parts that the family does not have"),
                    false => None,
                };
                let why = why.map(str::to_owned);
                if !family.is_auxiliary(&info.name) {
                    unused.push(UnusedTensor { name: info.name.clone(), why, is_extra });
                }
                continue;
            };
            let (name, why) = if !seen.insert(name) {
                // Which of the two counts is anybody's guess.
                (&*info.name, None)
            } else if !used.contains(name) {
                let head = || heads.iter().find(|(head, _)| is_of(name, head)).map(|(_, why)| *why);
                (name, self.settings.may_be_unused(position).or_else(head))
            } else {
                continue;
            };
            let why = why.map(str::to_owned);
            unused.push(UnusedTensor { name: name.to_owned(), why, is_extra: false });
        }
        unused.sort_by(|one, other| one.name.cmp(&other.name));
        unused
    }

    /// Returns the tensor at this position, if the graph of a part for images does not use it.
    fn unused_image_tensor(&self, position: usize, info: &TensorInfo) -> Option<UnusedTensor> {
        let name = self.family().canonical(position);
        if name.is_some_and(|name| self.used.borrow().contains(name)) {
            return None;
        }
        let why = name.and_then(|_| self.settings.may_be_unused(position)).map(str::to_owned);
        Some(UnusedTensor { name: info.name.clone(), why, is_extra: false })
    }

    /// Modules and tensors of heads that no graph uses at all, and why.
    fn unused_heads(&self, used: &BTreeSet<String>) -> Vec<(String, &'static str)> {
        let mut heads = Vec::new();
        for stack in std::iter::once("").chain(self.settings.stacks()) {
            let is_tied = self.place(stack).truth("tied").unwrap_or(false);
            let module = self.place(stack).name("head");
            let has_bias = module.is_some_and(|head| used.contains(&format!("{head}.bias")));
            for part in HEAD_PARTS {
                for name in self.settings.weights(stack, part, &[]) {
                    if !used.iter().any(|tensor| is_of(tensor, &name)) {
                        let is_copy = part == "head" && is_tied || part == "head_bias" && has_bias;
                        let why = match is_copy {
                            true => "copies of tied tensors",
                            false => "heads of other tasks",
                        };
                        heads.push((name, why));
                    }
                }
            }
        }
        heads
    }
}

/// Returns `true` if a tensor has this name or belongs to the module with this name.
fn is_of(tensor: &str, name: &str) -> bool {
    tensor.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl Graphs {
    /// Checks that the graphs use every tensor that the model's outputs depend on.
    ///
    /// # Errors
    /// E001 with the names of those that they leave out.
    pub fn check_complete(&self) -> Result<()> {
        let left_out: Vec<_> = self.unused.iter().filter(|tensor| tensor.why.is_none()).collect();
        let Some(first) = left_out.first() else { return Ok(()) };
        let names: Vec<&str> = left_out.iter().map(|tensor| tensor.name.as_str()).collect();
        let remedy = match left_out.iter().all(|tensor| tensor.is_extra) {
            true => "`task` NAME leaves out what another task adds",
            false => {
                "a table of your own (`family_table` FILE) can list under [[graph.unused]] tensors \
                 that do not affect the outputs"
            }
        };
        let count = counted(names.len() as u64, "tensor");
        let message = format!(
            "the family's graph does not use {count} of the checkpoint, so its outputs would \
             differ from the model's: {}; {remedy}",
            listed(&names)
        );
        Err(Error::format(message).for_tensor(&first.name))
    }

    /// The tensors that the graphs may leave out and do, in a sentence; `None` without any.
    #[must_use]
    pub fn left_out(&self) -> Option<String> {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for tensor in &self.unused {
            let Some(why) = &tensor.why else { continue };
            reasons.entry(why).or_default().push(&tensor.name);
        }
        let of_reason = |(why, names): (&&str, &Vec<&str>)| format!("{} ({why})", listed(names));
        let all: Vec<String> = reasons.iter().map(of_reason).collect();
        (!all.is_empty())
            .then(|| format!("tensors without a part in the outputs: {}", all.join("; ")))
    }
}

/// Returns a list of names, in which the names of layers are listed once with their number.
fn listed(names: &[&str]) -> String {
    let mut kinds: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for name in names {
        kinds.entry(without_numbers(name)).or_default().push(name);
    }

    let shown = kinds.iter().take(SHOWN).map(|(kind, names)| match names[..] {
        [name] => Escaped::short(name).to_string(),
        _ => format!("{} ({})", Escaped::short(kind), names.len()),
    });
    let mut shown: Vec<String> = shown.collect();
    let more: usize = kinds.values().skip(SHOWN).map(Vec::len).sum();
    shown.extend((more > 0).then(|| format!("{more} more")));
    shown.join(", ")
}
