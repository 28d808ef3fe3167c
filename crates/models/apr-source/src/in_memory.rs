//! Names of weights in memory, where transformers 5 names them other than in files.
//!
//! Adapters have the names of modules in memory. transformers renames the weights of some models
//! when it reads them, and back when it saves them.

use std::borrow::Cow;

/// Names of a file, and the names of the same weights in memory.
///
/// A name with `^` replaces the beginning of a name, other names replace any part.
struct Dialect {
    /// Parts that names of files have, each at least once.
    marks: &'static [&'static str],
    /// Pairs of a part in files and in memory. Of the beginnings, the first that fits counts.
    pairs: &'static [(&'static str, &'static str)],
}

const DIALECTS: [Dialect; 5] = [
    // LLaVA, Gemma 3, Mistral 3, InternVL, PaliGemma.
    Dialect {
        marks: &["^language_model.model."],
        pairs: &[
            ("^language_model.model.", "^model.language_model."),
            ("^language_model.lm_head.", "^lm_head."),
            ("^vision_tower.", "^model.vision_tower."),
            ("^multi_modal_projector.", "^model.multi_modal_projector."),
        ],
    },
    // Qwen2-VL, Qwen2.5-VL.
    Dialect {
        marks: &["^visual.", "^model.layers."],
        pairs: &[("^visual.", "^model.visual."), ("^model.", "^model.language_model.")],
    },
    Dialect {
        marks: &["^vit.encoder.layer."],
        pairs: &[
            ("^vit.encoder.layer.", "^vit.layers."),
            (".attention.attention.query.", ".attention.q_proj."),
            (".attention.attention.key.", ".attention.k_proj."),
            (".attention.attention.value.", ".attention.v_proj."),
            (".attention.output.dense.", ".attention.o_proj."),
            (".intermediate.dense.", ".mlp.fc1."),
            (".output.dense.", ".mlp.fc2."),
        ],
    },
    // Mixtral, MiniMax.
    Dialect {
        marks: &[".block_sparse_moe.gate."],
        pairs: &[(".block_sparse_moe.gate.", ".mlp.gate.")],
    },
    // GPT-NeoX.
    Dialect { marks: &["^embed_out."], pairs: &[("^embed_out.", "^lm_head.")] },
];

/// Parts of names that wrappers around modules add in memory.
const WRAPPERS: [&str; 3] = ["_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod."];

/// How the weights of a model are named in memory.
///
/// ```
/// use apr_source::MemoryNames;
///
/// let names = MemoryNames::of(["visual.merger.weight", "model.layers.0.mlp.up_proj.weight"]);
/// let in_memory = names.in_memory("model.layers.0.mlp.up_proj.weight");
/// assert_eq!(in_memory, "model.language_model.layers.0.mlp.up_proj.weight");
/// assert_eq!(names.in_file(&in_memory), "model.layers.0.mlp.up_proj.weight");
/// ```
#[derive(Debug, Clone, Default)]
pub struct MemoryNames {
    pairs: Vec<(&'static str, &'static str)>,
}

impl MemoryNames {
    /// Returns the renamings of a model whose file has weights of these names.
    pub fn of<'n>(names: impl IntoIterator<Item = &'n str>) -> Self {
        let mut missing: Vec<Vec<&str>> =
            DIALECTS.iter().map(|dialect| dialect.marks.to_vec()).collect();
        for name in names {
            missing.iter_mut().for_each(|marks| marks.retain(|mark| !has(name, mark)));
        }
        let spoken = DIALECTS.iter().zip(&missing).filter(|(_, marks)| marks.is_empty());
        Self { pairs: spoken.flat_map(|(dialect, _)| dialect.pairs).copied().collect() }
    }

    /// Returns the name in memory of a weight with this name in the file.
    #[must_use]
    pub fn in_memory<'n>(&self, name: &'n str) -> Cow<'n, str> {
        renamed(name, self.pairs.iter().copied())
    }

    /// Returns the name in memory of a module with this name in the file.
    #[must_use]
    pub fn module_in_memory(&self, module: &str) -> String {
        let weight = format!("{module}.weight");
        let weight = self.in_memory(&weight);
        weight.strip_suffix(".weight").unwrap_or(module).to_owned()
    }

    /// Returns the name in the file of a weight with this name in memory.
    #[must_use]
    pub fn in_file<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let wrapped = WRAPPERS.iter().any(|wrapper| name.contains(wrapper));
        let pairs = self.pairs.iter().rev().map(|(file, memory)| (*memory, *file));
        // Of beginnings, the first in the table counts; the reverse order suits the other parts.
        let begins = |(from, _): &(&str, &str)| from.starts_with('^');
        let beginnings = self.pairs.iter().map(|(file, memory)| (*memory, *file)).filter(begins);
        let parts = pairs.filter(|pair| !begins(pair));
        if !wrapped {
            return renamed(name, beginnings.chain(parts));
        }
        let bare = WRAPPERS.iter().fold(name.to_owned(), |name, part| name.replace(part, ""));
        Cow::Owned(renamed(&bare, beginnings.chain(parts)).into_owned())
    }
}

fn has(name: &str, part: &str) -> bool {
    match part.strip_prefix('^') {
        Some(beginning) => name.starts_with(beginning),
        None => name.contains(part),
    }
}

fn renamed<'n>(
    name: &'n str,
    pairs: impl Iterator<Item = (&'static str, &'static str)>,
) -> Cow<'n, str> {
    let (mut result, mut is_begun) = (Cow::Borrowed(name), false);
    for (from, to) in pairs {
        if !has(&result, from) {
            continue;
        }
        match (from.strip_prefix('^'), to.strip_prefix('^')) {
            (Some(_), _) if is_begun => {}
            (Some(from), Some(to)) => {
                result = Cow::Owned([to, &result[from.len()..]].concat());
                is_begun = true;
            }
            _ => result = Cow::Owned(result.replace(from, to)),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_memory_and_back() {
        for (file, memory) in [
            (
                "language_model.model.layers.0.mlp.up_proj.weight",
                "model.language_model.layers.0.mlp.up_proj.weight",
            ),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("multi_modal_projector.linear_1.bias", "model.multi_modal_projector.linear_1.bias"),
        ] {
            let names = MemoryNames::of(["language_model.model.norm.weight"]);
            assert_eq!(names.in_memory(file), memory);
            assert_eq!(names.in_file(memory), file);
        }
        let names = MemoryNames::of(["visual.a", "model.layers.0.b"]);
        assert_eq!(names.in_memory("visual.merger.weight"), "model.visual.merger.weight");
        assert_eq!(names.in_file("model.visual.merger.weight"), "visual.merger.weight");
        assert_eq!(names.in_file("model.language_model.norm.weight"), "model.norm.weight");
        assert_eq!(names.in_memory("lm_head.weight"), "lm_head.weight");

        let names = MemoryNames::of(["vit.encoder.layer.0.output.dense.weight"]);
        for (file, memory) in [
            (
                "vit.encoder.layer.3.attention.attention.query.weight",
                "vit.layers.3.attention.q_proj.weight",
            ),
            (
                "vit.encoder.layer.3.attention.output.dense.weight",
                "vit.layers.3.attention.o_proj.weight",
            ),
            ("vit.encoder.layer.3.output.dense.bias", "vit.layers.3.mlp.fc2.bias"),
        ] {
            assert_eq!(names.in_memory(file), memory);
            assert_eq!(names.in_file(memory), file);
        }
    }

    #[test]
    fn wrappers_are_removed_and_other_names_stay() {
        let names = MemoryNames::of(["model.layers.0.mlp.up_proj.weight"]);
        let wrapped = "model.layers.0._checkpoint_wrapped_module.mlp.up_proj.weight";
        assert_eq!(names.in_file(wrapped), "model.layers.0.mlp.up_proj.weight");
        assert_eq!(names.in_file("model.norm.weight"), "model.norm.weight");
    }
}
