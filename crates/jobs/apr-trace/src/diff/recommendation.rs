//! What to look at, in a sentence (§4.8.5).

use apr_arch::OptionChange;
use apr_core::counted;
use apr_core::json::text;
use serde_json::Value;

use super::moved_layers::described;
use super::{Divergence, TraceDiff};

/// The recommendation for a comparison.
pub(super) fn recommended(diff: &TraceDiff) -> String {
    if let Some(path) = diff.passes.iter().find_map(|pass| pass.nan_in_original.as_ref()) {
        return format!("The first model computes NaN from {path} on and can't be a reference");
    }
    if let Some(change) = diff.settings.first() {
        return of_setting(change, diff.settings.len() - 1);
    }
    if let Some(moved) = described(&diff.moved_layers) {
        return format!("Check the order of the layers: {moved}");
    }
    if let Some(found) = diff.divergence() {
        return of_divergence(found);
    }

    let steps = || diff.passes.iter().flat_map(|pass| &pass.steps);
    let other_shape =
        steps().find(|step| step.drift.as_ref().is_some_and(|drift| !drift.is_measured()));
    if let Some(step) = other_shape {
        return format!("The models compute other shapes from {} on", step.path);
    }
    let unmatched = diff.passes.iter().flat_map(|pass| &pass.only_original).next();
    match (diff.is_equal(), unmatched) {
        _ if steps().all(|step| step.drift.is_none()) => "No value of both is a float".to_owned(),
        (true, None) => "Nothing to do: no value differs".to_owned(),
        (true, Some(_)) => "Nothing to do: no value that both have differs".to_owned(),
        (false, _) => "No divergence: no step adds more drift than rounding explains".to_owned(),
    }
}

/// Returns the recommendation for a changed setting.
///
/// The configuration is checked before the weights, because the same weights compute something else
/// with it.
fn of_setting(change: &OptionChange, more: usize) -> String {
    let value = |value: &Option<Value>| value.as_ref().map_or("none".to_owned(), text);
    let place = match change.at.as_str() {
        "" => String::new(),
        at => format!(" of {at}"),
    };
    let more = match more {
        0 => String::new(),
        more => format!("; also {}", counted(more as u64, "other setting")),
    };
    format!(
        "Check the configuration before the weights: {}{place} is {} in the first model and {} in \
         the second{more}",
        change.option,
        value(&change.value),
        value(&change.other_value)
    )
}

fn of_divergence(found: &Divergence) -> String {
    let path = &found.path;
    let Some(weight) = found.weights.first().filter(|weight| weight.relative_l2 > 0.0) else {
        return match (found.weights.first(), found.not_compared.first()) {
            (_, Some(first)) => format!("Check the weights that {path} reads: {first}"),
            (Some(_), None) => format!("Check the graph before {path}: its weights are equal"),
            (None, None) => format!("Check the graph before {path}: it does not read weights"),
        };
    };
    let (name, dtype) = (&weight.tensor, weight.other_dtype);
    let kind = kind_of(path, name);
    match (weight.change.is_damage(), weight.dtype == dtype) {
        (false, false) => format!("Check {kind} quantization: {name} is {dtype}"),
        _ => format!("Check {kind} {name}: {}", weight.change.described()),
    }
}

/// Returns the usual name of a kind of weight, by the path and name of the weight.
fn kind_of(path: &str, name: &str) -> &'static str {
    let has = |word: &str| path.contains(word) || name.contains(word);
    if has("norm") {
        "layer norm weight"
    } else if has("embed") {
        "embedding weight"
    } else if has("attn") || has("attention") {
        "attention weight"
    } else if has("mlp") || has("ffn") {
        "MLP weight"
    } else if has("conv") {
        "convolution weight"
    } else {
        "weight"
    }
}
