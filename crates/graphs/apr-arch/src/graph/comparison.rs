//! What two configurations make of a family's graph.

use serde::Serialize;
use serde_json::Value as Json;

use super::GraphSettings;

/// Maximum number of layers that are compared: patterns repeat long before.
const MAX_LAYERS: u64 = 256;

/// Options that change no number that a graph computes of given inputs.
const WITHOUT_NUMBERS: [&str; 7] =
    ["end_id", "mask_input", "max_positions", "padding_id", "rotary_config", "task", "tied"];

/// Kinds of scaled rotary positions that the configuration states alone. Factors of others can be
/// tensors, and GGUF does not name their kind.
const SCALINGS: [&str; 3] = ["linear", "dynamic", "yarn"];

/// The values of an option outside of layers and in each of them, by stack.
pub type OptionValues = Vec<Option<Json>>;

/// Basis on which an option is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionSource {
    /// The configuration.
    Configuration,
    /// The configuration, overridden by the values that llama.cpp always uses.
    LlamaCpp,
}

/// An option of the graph that differs between two models.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OptionChange {
    /// Name in the family's table: `rotary_theta`.
    pub option: String,
    /// Position of the first difference: a stack of layers and the number of the layer, if it is in
    /// a layer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub at: String,
    /// Value in the first model; `None` if it has no value.
    pub value: Option<Json>,
    /// Value in the second model.
    pub other_value: Option<Json>,
}

impl GraphSettings<'_> {
    /// Returns the values of an option in every stack, and outside of them.
    #[must_use]
    pub fn values(&self, name: &str, source: OptionSource) -> OptionValues {
        self.places(name, source).into_iter().map(|(_, value)| value).collect()
    }

    /// The values with the places that they are for.
    fn places(&self, name: &str, source: OptionSource) -> Vec<(String, Option<Json>)> {
        let stacks = self.stacks().chain(std::iter::once(""));
        stacks.flat_map(|stack| self.of_stack(stack, name, source)).collect()
    }

    fn of_stack(
        &self,
        stack: &str,
        name: &str,
        source: OptionSource,
    ) -> Vec<(String, Option<Json>)> {
        let number = |name: &str| self.option(stack, name, &[]).and_then(|value| value.as_u64());
        let layers = number("layers").unwrap_or_default().min(MAX_LAYERS);
        let longest = number("max_positions").unwrap_or(u64::MAX);
        let index = self.layer_index(stack);
        let read = |numbers: &[(&str, u64)]| {
            let value = match source {
                OptionSource::Configuration => self.option(stack, name, numbers),
                OptionSource::LlamaCpp => self.gguf_option(stack, name, numbers),
            };
            // No text reaches beyond such a window.
            let is_open = |value: &Json| value.as_u64().is_some_and(|window| window >= longest);
            value.filter(|value| name != "window" || !is_open(value))
        };
        let in_layer = |layer: u64| {
            let place = format!("{stack} {layer}").trim_start().to_owned();
            (place, read(&[(index, layer), ("layer", layer)]))
        };
        std::iter::once((stack.to_owned(), read(&[]))).chain((0..layers).map(in_layer)).collect()
    }

    /// Returns the kind and the factor of scaled rotary positions, such as `linear 4`.
    fn rotary_scaling(&self) -> Option<Json> {
        let stated = ["rope_scaling", "rope_parameters"].iter().filter_map(|key| self.stated(key));
        // Newer configurations have an entry for each kind of layer.
        let mut entries = stated.flat_map(|json| match json {
            Json::Object(entry) => {
                let nested = entry.values().filter(|value| value.is_object()).cloned();
                nested.chain(std::iter::once(Json::Object(entry.clone()))).collect()
            }
            _ => Vec::new(),
        });
        let scaling = |entry: Json| {
            let kind = entry.get("rope_type").or_else(|| entry.get("type"))?.as_str()?;
            let factor = entry.get("factor")?.as_f64()?;
            SCALINGS.contains(&kind).then(|| format!("{kind} {factor}").into())
        };
        entries.find_map(scaling)
    }

    /// Returns the options that another model of the family computes with other values, each with
    /// the first place where it does, and `rotary_scaling` if its kind or factor differs.
    #[must_use]
    pub fn changes(&self, other: &GraphSettings<'_>) -> Vec<OptionChange> {
        let (names, _) = self.names();
        let source = OptionSource::Configuration;
        let names = names.into_iter().filter(|name| !WITHOUT_NUMBERS.contains(name));
        let change = |name: &str| {
            let pairs = self.places(name, source).into_iter().zip(other.places(name, source));
            let mut differing = pairs.filter(|((_, own), (_, theirs))| !is_alike(own, theirs));
            let ((at, value), (_, other_value)) = differing.next()?;
            Some(OptionChange { option: name.to_owned(), at, value, other_value })
        };
        let [value, other_value] = [self, other].map(GraphSettings::rotary_scaling);
        let scaling = (value != other_value).then(|| OptionChange {
            option: "rotary_scaling".to_owned(),
            at: String::new(),
            value,
            other_value,
        });
        scaling.into_iter().chain(names.filter_map(change)).collect()
    }
}

/// Returns `true` if an option has the same values at all positions, in single precision.
#[must_use]
pub fn are_alike(own: &OptionValues, other: &OptionValues) -> bool {
    own.len() == other.len() && own.iter().zip(other).all(|(own, other)| is_alike(own, other))
}

/// Returns `true` if two values are equal in single precision. No value equals 0 and false.
fn is_alike(own: &Option<Json>, other: &Option<Json>) -> bool {
    const NEAR: f64 = 1e-6;
    let number = |value: &Option<Json>| match value {
        None => Some(0.0),
        Some(Json::Bool(truth)) => Some(f64::from(u8::from(*truth))),
        Some(value) => value.as_f64(),
    };
    match (number(own), number(other)) {
        (Some(a), Some(b)) => (a - b).abs() <= NEAR * a.abs().max(b.abs()),
        _ => own == other,
    }
}

#[cfg(test)]
mod tests {
    use apr_core::{Metadata, keys};
    use serde_json::json;

    use crate::Families;

    fn llama(theta: f64, epsilon: f64) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set(keys::MODEL_TYPE, "llama");
        metadata.set(
            keys::ARCHITECTURE,
            json!({
                "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8,
                "rope_theta": theta, "rms_norm_eps": epsilon,
            }),
        );
        metadata
    }

    #[test]
    fn another_base_of_rotary_positions_is_a_change() {
        let families = Families::builtin();
        let [a, b, c] = [(1e4, 1e-5), (5e5, 1e-5), (1e4, 1e-5 * (1.0 + 1e-9))]
            .map(|(theta, epsilon)| llama(theta, epsilon));
        let settings = [&a, &b, &c].map(|metadata| families.apply("llama", &[], metadata).unwrap());
        let [a, b, c] = settings.each_ref().map(|model| model.graph_settings(None).unwrap());
        let changes = a.changes(&b);
        let change = &changes[0];
        assert_eq!((changes.len(), change.option.as_str()), (1, "rotary_theta"));
        let values = [&change.value, &change.other_value].map(|value| value.as_ref()?.as_f64());
        assert_eq!(values, [Some(1e4), Some(5e5)]);
        assert_eq!(a.changes(&c), []);
    }

    #[test]
    fn another_scaling_of_rotary_positions_is_a_change() {
        let families = Families::builtin();
        let scaled = |scaling: serde_json::Value| {
            let mut metadata = llama(1e4, 1e-5);
            let mut config = metadata.object(keys::ARCHITECTURE).cloned().unwrap();
            config.insert("rope_scaling".to_owned(), scaling);
            metadata.set(keys::ARCHITECTURE, serde_json::Value::Object(config));
            metadata
        };
        let metadata = [
            scaled(json!(null)),
            scaled(json!({"rope_type": "linear", "factor": 4.0})),
            scaled(json!({"full_attention": {"rope_type": "linear", "factor": 4}})),
            scaled(json!({"rope_type": "llama3", "factor": 8.0})),
        ];
        let models =
            metadata.each_ref().map(|one| families.apply("llama", &[], one).expect("a model"));
        let [none, linear, nested, llama3] =
            models.each_ref().map(|model| model.graph_settings(None).expect("settings"));
        let changes = none.changes(&linear);
        assert_eq!((changes.len(), changes[0].option.as_str()), (1, "rotary_scaling"));
        assert_eq!((&changes[0].value, &changes[0].other_value), (&None, &Some(json!("linear 4"))));
        assert_eq!(linear.changes(&nested), []);
        assert_eq!(none.changes(&llama3), [], "GGUF has its factors in a tensor");
    }
}
