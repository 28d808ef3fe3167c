//! Modules of image models by the names of their adapters.
//!
//! One file can have adapters of several models of a pipeline, and names a module in one of three
//! ways: with dots (diffusers, ComfyUI: `unet.down_blocks.0.attentions.0.proj_in`), with
//! underscores (kohya, LyCORIS: `lora_unet_down_blocks_0_attentions_0_proj_in`), and in the UNet of
//! Stable Diffusion also by the blocks of its first implementation (`input_blocks.1.1.proj_in`).
//! The base can be the folder of one model, or a file with all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use apr_core::{Error, Result};

use crate::unet_names::other_names;

/// A model of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Component {
    /// The UNet, or the transformer in its place.
    Denoiser,
    /// The text encoder, by its number.
    Text(u8),
}

/// Beginnings of the names of modules in adapters, of which none is the beginning of another.
const IN_ADAPTERS: [(&str, Component); 13] = [
    ("lora_unet_", Component::Denoiser),
    ("lora_transformer_", Component::Denoiser),
    ("lora_te_", Component::Text(1)),
    ("lora_te1_", Component::Text(1)),
    ("lora_te2_", Component::Text(2)),
    ("lora_te3_", Component::Text(3)),
    ("lycoris_", Component::Denoiser),
    ("unet.", Component::Denoiser),
    ("transformer.", Component::Denoiser),
    ("diffusion_model.", Component::Denoiser),
    ("text_encoder.", Component::Text(1)),
    ("text_encoder_2.", Component::Text(2)),
    ("text_encoder_3.", Component::Text(3)),
];

/// Beginnings of the names of tensors in files of several models. A model by itself has none.
const IN_BASES: [(&str, Component); 13] = [
    ("model.diffusion_model.", Component::Denoiser),
    ("diffusion_model.", Component::Denoiser),
    ("unet.", Component::Denoiser),
    ("transformer.", Component::Denoiser),
    ("", Component::Denoiser),
    ("cond_stage_model.transformer.", Component::Text(1)),
    ("conditioner.embedders.0.transformer.", Component::Text(1)),
    ("text_encoders.clip_l.transformer.", Component::Text(1)),
    ("", Component::Text(1)),
    ("text_encoders.clip_g.transformer.", Component::Text(2)),
    ("", Component::Text(2)),
    ("text_encoders.t5xxl.transformer.", Component::Text(3)),
    ("", Component::Text(3)),
];

/// Returns `true` if a module is named as in adapters of image models.
pub(crate) fn is_image_module(module: &str) -> bool {
    component(module).is_some()
}

/// Returns the part of a module's name that names the model of the pipeline.
pub(crate) fn prefix(module: &str) -> Option<&'static str> {
    component(module).map(|(prefix, _)| prefix)
}

/// Spelling of the names of modules: the beginning that names their model, and for the blocks of a
/// UNet, `true` for the numbers of Stable Diffusion's first implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spelling {
    component: Component,
    pub(crate) prefix: &'static str,
    has_first_names: Option<bool>,
}

impl Spelling {
    /// Returns the spelling of a module's name, or `None` if it is not one of an image model.
    pub(crate) fn of(module: &str) -> Option<Self> {
        let (prefix, component) = component(module)?;
        let name = flat(&module[prefix.len()..]);
        let begins = |starts: [&str; 3]| starts.iter().any(|start| name.starts_with(start));
        let is_first = begins(["input_blocks_", "middle_block_", "output_blocks_"]);
        let is_later = begins(["down_blocks_", "mid_block_", "up_blocks_"]);
        let has_first_names = (is_first || is_later).then_some(is_first);
        Some(Self { component, prefix, has_first_names })
    }

    /// Returns `true` if both can't be the names of one model's modules in one adapter.
    pub(crate) fn conflicts_with(self, other: Self) -> bool {
        let differ =
            |pair: (Option<bool>, Option<bool>)| matches!(pair, (Some(a), Some(b)) if a != b);
        self.component == other.component
            && (self.prefix != other.prefix
                || differ((self.has_first_names, other.has_first_names)))
    }
}

fn component(module: &str) -> Option<(&'static str, Component)> {
    IN_ADAPTERS.into_iter().find(|(prefix, _)| module.starts_with(prefix))
}

/// Modules of an adapter, and the tensors of a base that they change.
pub(crate) struct ImageModules<'m> {
    slots: HashMap<&'m str, usize>,
    /// Beginnings of names of which the base has no module, with the number of their modules.
    pub(crate) absent: BTreeMap<&'static str, usize>,
}

impl<'m> ImageModules<'m> {
    /// Finds the modules of an adapter among the tensors of a base. `fits` returns `true` if the
    /// module's matrices have the shape of the tensor.
    ///
    /// # Errors
    /// E001 if two modules would change one tensor, of one model of a pipeline or of two.
    pub(crate) fn find(
        tensors: &[&str],
        modules: impl Iterator<Item = &'m str>,
        fits: impl Fn(&str, usize) -> bool,
    ) -> Result<Self> {
        let mut groups: BTreeMap<&'static str, (Component, Vec<&'m str>)> = BTreeMap::new();
        for module in modules {
            let Some((prefix, component)) = component(module) else { continue };
            groups.entry(prefix).or_insert((component, Vec::new())).1.push(module);
        }
        let mut candidates = Vec::new();
        for (prefix, (component, modules)) in groups {
            let bases = IN_BASES.into_iter().filter(|(_, of)| *of == component);
            let in_base = |(base, _): (&str, Component)| {
                let known = by_flat_name(tensors, base, component);
                let slot = |module: &&'m str| {
                    let slots = known.get(&flat(&module[prefix.len()..]))?;
                    let fitting = slots.iter().find(|slot| fits(module, **slot));
                    Some((*module, *fitting.or(slots.first())?, fitting.is_some()))
                };
                modules.iter().filter_map(slot).collect::<Vec<_>>()
            };
            let count = |found: &Vec<(_, _, bool)>| {
                (found.iter().filter(|(.., fits)| *fits).count(), found.len())
            };
            let best = bases.map(in_base).max_by_key(count).unwrap_or_default();
            let has_none = best.iter().all(|(.., fits)| !*fits);
            candidates.push((has_none, prefix, modules.len(), best));
        }
        // The tensors of one text encoder have the names of any other: the one that fits has them.
        candidates.sort_by_key(|(has_none, ..)| *has_none);
        let mut found = Self { slots: HashMap::new(), absent: BTreeMap::new() };
        let mut taken: BTreeMap<usize, &'static str> = BTreeMap::new();
        for (has_none, prefix, count, best) in candidates {
            let other = best.iter().find_map(|(_, slot, _)| Some((*slot, *taken.get(slot)?)));
            match other {
                _ if best.is_empty() => drop(found.absent.insert(prefix, count)),
                Some(_) if has_none => drop(found.absent.insert(prefix, count)),
                Some((slot, other)) => {
                    return Err(Error::format(format!(
                        "modules of '{other}' and of '{prefix}' are both of the base's size: merge \
                         into a file with all models of the pipeline"
                    ))
                    .for_tensor(tensors[slot]));
                }
                None => {
                    for (module, slot, _) in best {
                        if taken.insert(slot, prefix).is_some() {
                            let message = "the adapter has two modules for one weight";
                            return Err(Error::format(message).for_tensor(tensors[slot]));
                        }
                        found.slots.insert(module, slot);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Returns the position of the tensor that a module changes.
    pub(crate) fn slot(&self, module: &str) -> Option<usize> {
        self.slots.get(module).copied()
    }

    /// Returns `true` if the base has no module of the model that this module is of.
    pub(crate) fn is_absent(&self, module: &str) -> bool {
        prefix(module).is_some_and(|prefix| self.absent.contains_key(prefix))
    }
}

/// Returns the weights of a model by all names that adapters have for their modules, without dots.
fn by_flat_name(
    tensors: &[&str],
    base: &str,
    component: Component,
) -> HashMap<String, BTreeSet<usize>> {
    let module = |(at, name): (usize, &&'_ str)| {
        let module = name.strip_prefix(base)?.strip_suffix(".weight")?;
        Some((at, module.to_owned()))
    };
    let modules: Vec<(usize, String)> = tensors.iter().enumerate().filter_map(module).collect();
    let mut named: HashMap<String, BTreeSet<usize>> = HashMap::new();
    let mut add = |name: &str, at: usize| {
        named.entry(flat(name)).or_default().insert(at);
    };
    for (at, module) in &modules {
        add(module, *at);
        if component != Component::Denoiser {
            // transformers 5 saves a text model by itself without the name of the part.
            match module.strip_prefix("text_model.") {
                Some(inner) => add(inner, *at),
                None => add(&format!("text_model.{module}"), *at),
            }
        }
    }
    if component == Component::Denoiser {
        let names: Vec<&str> = modules.iter().map(|(_, module)| module.as_str()).collect();
        for ((at, _), other) in modules.iter().zip(other_names(&names)) {
            other.iter().for_each(|other| add(other, *at));
        }
    }
    named
}

fn flat(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNET: [&str; 4] = [
        "down_blocks.0.resnets.0.conv1.weight",
        "down_blocks.0.attentions.0.proj_in.weight",
        "down_blocks.0.downsamplers.0.conv.weight",
        "mid_block.resnets.0.conv1.weight",
    ];

    fn slots(tensors: &[&str], modules: &[&str]) -> Vec<Option<usize>> {
        let found = ImageModules::find(tensors, modules.iter().copied(), |_, _| true);
        let found = found.expect("one model");
        modules.iter().map(|module| found.slot(module)).collect()
    }

    #[test]
    fn every_spelling_of_a_module_is_found() {
        let modules = [
            "lora_unet_down_blocks_0_attentions_0_proj_in",
            "unet.down_blocks.0.attentions.0.proj_in",
            "lora_unet_input_blocks_1_1_proj_in",
            "diffusion_model.input_blocks.1.1.proj_in",
        ];
        for module in modules {
            assert_eq!(slots(&UNET, &[module]), [Some(1)], "{module}");
        }
        let single = "model.diffusion_model.input_blocks.1.1.proj_in.weight";
        for module in modules {
            let tensors = [single, "model.diffusion_model.input_blocks.1.0.in_layers.2.weight"];
            assert_eq!(slots(&tensors, &[module]), [Some(0)], "{module}");
        }
        let encoder = ["text_model.encoder.layers.0.mlp.fc1.weight"];
        let module = "lora_te_text_model_encoder_layers_0_mlp_fc1";
        assert_eq!(slots(&encoder, &[module]), [Some(0)]);
        assert_eq!(slots(&["encoder.layers.0.mlp.fc1.weight"], &[module]), [Some(0)]);
        let single = ["cond_stage_model.transformer.text_model.encoder.layers.0.mlp.fc1.weight"];
        assert_eq!(slots(&single, &[module]), [Some(0)]);
    }

    #[test]
    fn models_of_a_pipeline_are_kept_apart() {
        let modules = [
            "lora_te1_text_model_encoder_layers_0_mlp_fc1",
            "lora_te2_text_model_encoder_layers_0_mlp_fc1",
        ];
        let encoder = ["text_model.encoder.layers.0.mlp.fc1.weight"];
        let of_second = |module: &str, _| module.starts_with("lora_te2_");
        let found = ImageModules::find(&encoder, modules.into_iter(), of_second).expect("one fits");
        assert_eq!([found.slot(modules[0]), found.slot(modules[1])], [None, Some(0)]);
        assert_eq!(found.absent, BTreeMap::from([("lora_te1_", 1)]));
        assert!(found.is_absent(modules[0]) && !found.is_absent(modules[1]));

        // Both spellings of one module would be added twice.
        let twice =
            ["lora_unet_down_blocks_0_attentions_0_proj_in", "lora_unet_input_blocks_1_1_proj_in"];
        let error = ImageModules::find(&UNET, twice.into_iter(), |_, _| true).err().expect("twice");
        assert!(error.message().contains("two modules for one weight"), "{error}");

        let both = ImageModules::find(&encoder, modules.into_iter(), |_, _| true);
        let error = both.err().expect("two fit");
        assert!(error.message().contains("'lora_te1_' and of 'lora_te2_'"), "{error}");
    }
}
