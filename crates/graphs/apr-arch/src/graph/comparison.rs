//! What two configurations make of a family's graph.

use serde::Serialize;
use serde_json::Value as Json;

use super::GraphSettings;

/// Maximum number of layers that are compared: patterns repeat long before.
const MAX_LAYERS: u64 = 256;

/// Options that change no number that a graph computes of given inputs.
const WITHOUT_NUMBERS: [&str; 7] =
    ["end_id", "mask_input", "max_positions", "padding_id", "rotary_config", "task", "tied"];

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

    /// Returns the options that another model of the family computes with other values, each with
    /// the first place where it does.
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
        names.filter_map(change).collect()
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
}
