//! What llama.cpp computes otherwise than the configuration says.
//!
//! Two configurations are compared by what the family's graph makes of them: the model's own, and
//! the one that the file's keys lead back to, which is what llama.cpp computes.

use std::collections::BTreeSet;

use apr_arch::{Families, FamilyModel, OptionSource, OptionValues, are_alike};
use apr_core::json::entries;
use apr_registry::{Metadata, keys};
use serde_json::{Map, Value};

use crate::hyperparameters::normalised;

/// Options that change no number, have a warning of their own (activations), are sizes that the
/// tensors have, have a key that matters for images alone (`rotary_sections`), or are in the other
/// file of a model with two (`image_token`).
const ELSEWHERE: [&str; 28] = [
    "activation",
    "end_id",
    "experts",
    "head",
    "head_activation",
    "head_dim",
    "heads",
    "hidden",
    "image_token",
    "intermediate",
    "kv_heads",
    "latent_dim",
    "layers",
    "mask_input",
    "max_positions",
    "padding_id",
    "pool",
    "pooler_activation",
    "relative_buckets",
    "rotary_config",
    "rotary_sections",
    "rotary_share",
    "nope_dim",
    "task",
    "tied",
    "token_type_input",
    "rope_dim",
    "value_dim",
];

/// The configuration of a part for images.
const PART: &str = "vision_config";

/// Settings of rotary positions, with their defaults.
const ROTARY: [(&str, Option<f64>); 8] = [
    ("factor", None),
    ("original_max_position_embeddings", None),
    ("attention_factor", None),
    ("beta_fast", Some(32.0)),
    ("beta_slow", Some(1.0)),
    ("mscale", None),
    ("mscale_all_dim", None),
    ("truncate", Some(1.0)),
];

/// Returns a warning for each entry of the configuration that llama.cpp does not follow. `config`
/// has one name for each entry, as in the result of [`normalised`]. `held` is the configuration
/// that the file's keys lead back to.
pub(super) fn computed_otherwise(
    families: &Families,
    model: &FamilyModel<'_>,
    config: &Map<String, Value>,
    held: &Map<String, Value>,
) -> Vec<String> {
    let comparison = Comparison { families, model, held };
    if model.family().is_for_images() {
        // The type is the language model's in one, and the whole model's in the other.
        let mut config = config.clone();
        config.extend(held.get("model_type").map(|it| ("model_type".to_owned(), it.clone())));
        return comparison.options(&config);
    }
    let mut warnings = comparison.options(config);
    warnings.extend(rotary_settings(config, held));
    warnings
}

struct Comparison<'c> {
    families: &'c Families,
    model: &'c FamilyModel<'c>,
    held: &'c Map<String, Value>,
}

impl Comparison<'_> {
    fn options(&self, config: &Map<String, Value>) -> Vec<String> {
        let Some(names) = self.names() else { return Vec::new() };
        let computed = self.all(self.held, &names, OptionSource::LlamaCpp);
        let own = self.all(config, &names, OptionSource::Configuration);
        let mut entries = BTreeSet::new();
        let mut warnings = Vec::new();
        for (place, name) in names.iter().enumerate() {
            if are_alike(&own[place], &computed[place]) {
                continue;
            }

            let causes = self.causes(config, name, (&own[place], &computed[place]));
            if causes.is_empty() {
                warnings.push(format!(
                    "llama.cpp computes with another '{name}' than the configuration states, and \
                     GGUF has no key for it in this architecture: results will differ"
                ));
            }
            entries.extend(causes);
        }

        let said = entries.into_iter().map(|entry| self.sentence(config, &entry));
        said.chain(warnings).collect()
    }

    /// Returns an entry as the keys of the file lead back to it.
    fn held(&self, entry: &str) -> Option<&Value> {
        stated(self.held, entry)
    }

    fn sentence(&self, config: &Map<String, Value>, entry: &str) -> String {
        let stated = stated(config, entry);
        let own = stated.map_or_else(|| "absent".to_owned(), short);
        let instead = match self.held(entry).filter(|held| !held.is_null()) {
            Some(held) if Some(held) != stated => format!("with {}", short(held)),
            _ => "as if it were not there".to_owned(),
        };
        format!(
            "config.json's '{entry}' is {own}, but llama.cpp computes {instead}, and GGUF has no \
             key for it in this architecture: results will differ"
        )
    }

    /// Returns the names of the options to compare, or `None` if the family has no graph.
    fn names(&self) -> Option<Vec<String>> {
        let settings = self.model.graph_settings(None)?;
        let (options, _) = settings.names();
        let compared = options.into_iter().filter(|name| !ELSEWHERE.contains(name));
        Some(compared.map(str::to_owned).collect())
    }

    /// The values of all these options.
    fn all(
        &self,
        config: &Map<String, Value>,
        names: &[String],
        source: OptionSource,
    ) -> Vec<OptionValues> {
        let mut metadata = Metadata::new();
        let family = self.model.family().name();
        let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or(family);
        metadata.set(keys::MODEL_TYPE, model_type);
        metadata.set(keys::ARCHITECTURE, config.clone());

        // Dimensions that the configuration leaves open are the same for both.
        let Ok(model) = self.families.apply(family, &[], &metadata) else { return Vec::new() };
        let Some(settings) = model.graph_settings(None) else { return Vec::new() };
        names.iter().map(|name| settings.values(name, source)).collect()
    }

    /// Returns the entries of the configuration that make the option differ from llama.cpp's. Each
    /// of them, if removed or replaced by the held value, is enough to make it equal. If no single
    /// entry is enough, returns the entries that change the option at all.
    fn causes(
        &self,
        config: &Map<String, Value>,
        name: &str,
        (own, computed): (&OptionValues, &OptionValues),
    ) -> Vec<String> {
        let names = [name.to_owned()];
        let part = config.get(PART).and_then(Value::as_object);
        let of_part =
            part.into_iter().flat_map(entries).map(|(entry, _)| format!("{PART}.{entry}"));
        let whole = entries(config).map(|(entry, _)| entry.clone()).filter(|entry| entry != PART);
        let changed = whole.chain(of_part).filter_map(|entry| {
            let held = self.held(&entry).filter(|held| Some(*held) != stated(config, &entry));
            let mut changed = config.clone();
            let (object, key) = match entry.split_once('.') {
                Some((object, key)) => (changed.get_mut(object)?.as_object_mut()?, key),
                None => (&mut changed, &*entry),
            };
            match held {
                Some(held) => object.insert(key.to_owned(), held.clone()),
                None => object.remove(key),
            };
            let values = self.all(&changed, &names, OptionSource::Configuration);
            Some((entry, values.into_iter().next()?))
        });
        let changed: Vec<(String, OptionValues)> = changed.collect();
        let those = |is_cause: &dyn Fn(&OptionValues) -> bool| -> Vec<String> {
            let causes = changed.iter().filter(|(_, values)| is_cause(values));
            causes.map(|(entry, _)| entry.clone()).collect()
        };
        let enough = those(&|values| are_alike(values, computed));
        // Without some entries nothing can be computed any more, which explains nothing.
        let is_involved =
            |values: &OptionValues| values.len() == own.len() && !are_alike(values, own);
        if enough.is_empty() { those(&is_involved) } else { enough }
    }
}

/// Returns an entry, also of the configuration of the part for images.
fn stated<'c>(config: &'c Map<String, Value>, entry: &str) -> Option<&'c Value> {
    match entry.split_once('.') {
        Some((object, key)) => config.get(object)?.get(key),
        None => config.get(entry),
    }
}

/// A value as one line that a sentence can hold.
fn short(value: &Value) -> String {
    /// Lists of layers are longer.
    const LONGEST: usize = 60;
    let text = apr_core::json::text(value);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Returns warnings about settings of scaled positions that differ, if both are scaled in the same
/// way.
fn rotary_settings(config: &Map<String, Value>, held: &Map<String, Value>) -> Vec<String> {
    let held = normalised(held.clone());
    let object = |config: &Map<String, Value>| config.get("rope_scaling")?.as_object().cloned();
    let (Some(own), Some(mut held)) = (object(config), object(&held)) else { return Vec::new() };
    // ggml rounds the bounds of YaRN's ramp to whole dimensions, whatever the model does.
    held.insert("truncate".to_owned(), true.into());
    let kind = own.get("rope_type").and_then(Value::as_str).unwrap_or("default");
    if kind == "default" || held.get("rope_type").and_then(Value::as_str) != Some(kind) {
        return Vec::new();
    }

    let number = |rope: &Map<String, Value>, key: &str, usual: Option<f64>| match rope.get(key) {
        Some(Value::Bool(truth)) => Some(f64::from(u8::from(*truth))),
        Some(value) => value.as_f64(),
        None => usual,
    };
    let differs = |key: &str, usual: Option<f64>| {
        // transformers takes 0 for nothing, and one of the two alone for none.
        let both = ["mscale", "mscale_all_dim"];
        if both.contains(&key) && both.iter().any(|key| number(&own, key, Some(0.0)) == Some(0.0)) {
            return false;
        }
        match (number(&own, key, usual), number(&held, key, usual)) {
            (Some(a), Some(b)) => (a - b).abs() > 1e-6 * a.abs().max(b.abs()),
            (Some(_), None) => own.contains_key(key),
            _ => false,
        }
    };

    let differing = ROTARY.iter().filter(|(key, usual)| differs(key, *usual));
    let sentence = |(key, _): &(&str, Option<f64>)| {
        let own = own.get(*key).map_or_else(|| "absent".to_owned(), short);
        let instead = held.get(*key).map_or_else(
            || "as if it were not there".to_owned(),
            |held| format!("with {}", short(held)),
        );
        format!(
            "config.json's '{key}' of rotary positions is {own}, but llama.cpp computes {instead}, \
             and GGUF has no key for it in this architecture: results will differ"
        )
    };
    differing.map(sentence).collect()
}
