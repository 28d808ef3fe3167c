//! The weights of a base that the modules of an adapter are.

use std::collections::BTreeMap;

use apr_core::{Error, Escaped, Result, TensorInfo};
use apr_source::MemoryNames;

/// Map from the modules of an adapter to the tensors of its base.
pub(crate) struct Targets<'t> {
    tensors: BTreeMap<&'t str, usize>,
    memory: MemoryNames,
    /// Prefix of the adapter's names that the base's names lack.
    extra: String,
    /// Prefix of the base's names that the adapter's names lack.
    missing: String,
}

impl<'t> Targets<'t> {
    /// Creates the map for a base and for modules with these names, in a model of this class.
    ///
    /// Modules are named as in the file or [as in memory](MemoryNames). If the base does not have
    /// any of the modules, the names can differ by one prefix. This is the case for adapters of a
    /// model with a head, applied to the same model without a head, and for adapters of a part of
    /// the base.
    ///
    /// # Errors
    /// E001 if the modules can be those of several parts of the base.
    pub(crate) fn new<'m>(
        tensors: &'t [TensorInfo],
        mut modules: impl Iterator<Item = &'m str> + Clone,
        class: Option<&str>,
    ) -> Result<Self> {
        let tensors: BTreeMap<&str, usize> =
            tensors.iter().enumerate().map(|(at, info)| (info.name.as_str(), at)).collect();
        let memory = MemoryNames::of(tensors.keys().copied());
        let mut targets = Self { tensors, memory, extra: String::new(), missing: String::new() };
        if modules.clone().any(|module| targets.weight(module).is_some()) {
            return Ok(targets);
        }
        let all = modules.clone();
        let Some(first) = modules.next() else { return Ok(targets) };
        let weight = format!("{first}.weight");
        let longer = targets.tensors.keys().filter_map(|name| name.strip_suffix(&weight));
        let prefixes: Vec<&str> = longer.filter(|prefix| prefix.ends_with('.')).collect();
        if !prefixes.is_empty() {
            targets.missing = targets.part(&prefixes, &all, class)?.to_owned();
            return Ok(targets);
        }
        let dots = first.match_indices('.').map(|(at, _)| at + 1);
        let extra = dots.clone().find(|&at| targets.tensors.contains_key(&weight[at..]));
        targets.extra = extra.map(|at| first[..at].to_owned()).unwrap_or_default();
        Ok(targets)
    }

    /// Returns the prefix under which the base has the most of the modules.
    ///
    /// Of several, the one that the class of the adapter's model names: `vision_model.` for
    /// `CLIPVisionModel`.
    fn part<'p, 'm>(
        &self,
        prefixes: &[&'p str],
        modules: &(impl Iterator<Item = &'m str> + Clone),
        class: Option<&str>,
    ) -> Result<&'p str> {
        let count = |prefix: &&str| {
            let has = |module: &&str| {
                self.tensors.contains_key(format!("{prefix}{module}.weight").as_str())
            };
            modules.clone().filter(has).count()
        };
        let counts: Vec<usize> = prefixes.iter().map(count).collect();
        let most = counts.iter().max().copied().unwrap_or_default();
        let fitting = prefixes.iter().zip(counts).filter(|(_, count)| *count == most);
        let mut fitting: Vec<&str> = fitting.map(|(prefix, _)| *prefix).collect();
        if let (true, Some(class)) = (fitting.len() > 1, class) {
            let class = class.to_ascii_lowercase();
            let is_named = |prefix: &&&str| {
                let last = prefix.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
                class.contains(last.split('_').next().unwrap_or_default())
            };
            let named: Vec<&str> = fitting.iter().filter(is_named).copied().collect();
            fitting = if named.len() == 1 { named } else { fitting };
        }
        match fitting[..] {
            [only] => Ok(only),
            _ => {
                let listed: Vec<String> =
                    fitting.iter().map(|prefix| Escaped::short(prefix).to_string()).collect();
                Err(Error::format(format!(
                    "the adapter's modules can be those of several parts of the base ({}): \
                     rename them to the base's names",
                    listed.join(", ")
                )))
            }
        }
    }

    /// The position of a tensor of the base, by the adapter's name of it.
    pub(crate) fn tensor(&self, name: &str) -> Option<usize> {
        let name = name.strip_prefix(self.extra.as_str())?;
        let found = match self.missing.as_str() {
            "" => self.tensors.get(name),
            missing => self.tensors.get(format!("{missing}{name}").as_str()),
        };
        found.or_else(|| self.tensors.get(&*self.memory.in_file(name))).copied()
    }

    /// The position of a module's weight; a module may be the parameter itself.
    pub(crate) fn weight(&self, module: &str) -> Option<usize> {
        self.tensor(&format!("{module}.weight")).or_else(|| self.tensor(module))
    }

    /// Returns the name that a missing tensor would have in the base.
    pub(crate) fn name(&self, name: &str) -> String {
        let name = name.strip_prefix(self.extra.as_str()).unwrap_or(name);
        format!("{}{}", self.missing, self.memory.in_file(name))
    }
}

#[cfg(test)]
mod tests {
    use apr_core::DType;

    use super::*;

    fn infos(names: &[&str]) -> Vec<TensorInfo> {
        let info = |name: &&str| TensorInfo {
            name: (*name).to_owned(),
            dtype: DType::F32,
            shape: [2, 2].into(),
        };
        names.iter().map(info).collect()
    }

    #[test]
    fn prefixes_of_models_with_and_without_a_head_are_seen() {
        let base = infos(&["layers.0.q.weight", "embed.weight"]);
        let modules = ["model.layers.0.q", "model.layers.1.q"];
        let targets = Targets::new(&base, modules.into_iter(), None).expect("one prefix");
        assert_eq!(targets.weight("model.layers.0.q"), Some(0));
        assert_eq!(targets.weight("model.layers.1.q"), None);
        assert_eq!(targets.tensor("model.embed.weight"), Some(1));

        let base = infos(&["model.layers.0.q.weight", "model.embed.weight"]);
        let targets = Targets::new(&base, ["layers.0.q"].into_iter(), None).expect("one prefix");
        assert_eq!(targets.weight("layers.0.q"), Some(0));
        assert_eq!(targets.name("layers.1.q.weight"), "model.layers.1.q.weight");
    }

    #[test]
    fn an_adapter_of_one_tower_is_not_merged_into_another() {
        let base = infos(&["text_model.layers.0.q.weight", "vision_model.layers.0.q.weight"]);
        let modules = ["layers.0.q"].into_iter();
        let of = |class| Targets::new(&base, modules.clone(), class);
        let vision = of(Some("CLIPVisionModel")).expect("its class names it");
        assert_eq!(vision.weight("layers.0.q"), Some(1));
        let text = of(Some("CLIPTextModel")).expect("its class names it");
        assert_eq!(text.weight("layers.0.q"), Some(0));
        for class in [None, Some("CLIPModel")] {
            let error = of(class).err().expect("ambiguous");
            assert!(error.message().contains("(text_model., vision_model.)"), "{error}");
        }

        // The parts differ in their modules.
        let base = infos(&["a.layers.0.q.weight", "b.layers.0.q.weight", "b.layers.1.q.weight"]);
        let modules = ["layers.0.q", "layers.1.q"].into_iter();
        let targets = Targets::new(&base, modules, None).expect("only one has both");
        assert_eq!(targets.weight("layers.0.q"), Some(1));
    }

    #[test]
    fn names_in_memory_are_those_in_files() {
        let base = infos(&["model.layers.0.block_sparse_moe.gate.weight", "lm_head.weight"]);
        let modules = ["model.layers.0.mlp.gate", "lm_head"].into_iter();
        let targets = Targets::new(&base, modules, None).expect("the names fit");
        assert_eq!(targets.weight("model.layers.0.mlp.gate"), Some(0));
        assert_eq!(targets.weight("lm_head"), Some(1));
    }
}
