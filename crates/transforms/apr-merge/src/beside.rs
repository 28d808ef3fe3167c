//! What goes along with the tensors: configuration, model card, record of the merge.

use std::fmt::Write;

use apr_core::json::{from_python, to_python};
use apr_core::{Convention, DType, Format, Metadata, keys, state_dtype};
use serde_json::{Map, Value, json};

use crate::card::{add_to_header, code, fence, front_matter};
use crate::recipe::Recipe;
use crate::report::MergedModel;
use crate::vocabulary::Changed;

/// The companion with the hyperparameters.
pub(crate) const CONFIG: &str = "config.json";

/// Name of the companion file with the generation settings.
pub(crate) const GENERATION: &str = "generation_config.json";

/// The model card.
pub(crate) const CARD: &str = "README.md";

/// The metadata key of the record.
const MERGE: &str = "merge";

/// Keys for the number of layers.
const COUNTS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];

/// Adapts a configuration to the result.
///
/// Returns `None` if the configuration already fits, or is not JSON.
pub(crate) fn configuration(
    bytes: &[u8],
    layers: Option<&[u64]>,
    dtype: Option<DType>,
    vocabulary: Option<&Changed>,
) -> Option<Vec<u8>> {
    let before: Map<String, Value> = from_python(bytes).ok()?;
    let mut config = before.clone();
    if let Some(layers) = layers {
        relayer(&mut config, layers);
    }
    if let Some(vocabulary) = vocabulary {
        vocabulary.fit(&mut config);
    }
    if let Some(dtype) = dtype {
        state_dtype(&mut config, dtype);
    }
    if config == before {
        return None;
    }
    Some(to_python(&config))
}

/// The number of layers, and the lists that have an entry for each.
fn relayer(config: &mut Map<String, Value>, layers: &[u64]) {
    let count =
        |config: &Map<String, Value>| COUNTS.iter().find_map(|key| config.get(*key)?.as_u64());
    let Some(before) = count(config) else { return };
    for key in COUNTS {
        if config.get(key).and_then(Value::as_u64) == Some(before) {
            config.insert(key.to_owned(), json!(layers.len()));
        }
    }
    for value in config.values_mut() {
        let Value::Array(values) = value else { continue };
        if values.len() as u64 == before && before > 0 {
            let of = |layer: &u64| values.get(usize::try_from(*layer).ok()?).cloned();
            if let Some(chosen) = layers.iter().map(of).collect::<Option<Vec<Value>>>() {
                *value = Value::Array(chosen);
            }
        }
    }
}

/// The number of layers and the vocabulary in the metadata.
pub(crate) fn fit_metadata(
    metadata: &mut Metadata,
    layers: Option<&[u64]>,
    vocabulary: Option<&Changed>,
) {
    if let Some(mut architecture) = metadata.object(keys::ARCHITECTURE).cloned() {
        if let Some(layers) = layers {
            relayer(&mut architecture, layers);
        }
        if let Some(vocabulary) = vocabulary {
            vocabulary.fit(&mut architecture);
        }
        metadata.set(keys::ARCHITECTURE, architecture);
    }
}

/// Records the merge in the metadata, in the form of the output format.
pub(crate) fn record(
    metadata: &mut Metadata,
    recipe: &Recipe,
    models: &[MergedModel],
    format: &Format,
) {
    let record = json!({
        "method": recipe.method,
        "models": models,
        "seed": recipe.seed,
        "configuration": recipe.text,
        "tool": concat!("apr ", env!("CARGO_PKG_VERSION")),
    });
    if format.convention == Convention::Canonical {
        metadata.set(MERGE, record);
        return;
    }
    if format.convention != Convention::Framework {
        return;
    }
    add_to_header(metadata, MERGE, &record);
}

/// Returns the model card. Its front matter lists the merged models and tags, for hubs.
///
/// The licence terms are those of the main model's card.
pub(crate) fn card(recipe: &Recipe, models: &[&str], title: &str, main: Option<&[u8]>) -> String {
    let mut card = front_matter(models.iter().copied(), main, &["mergekit", "merge"]);
    let _ = writeln!(card, "# {title}\n\nA merge of {} models, made with apr.\n", models.len());
    card += "## Merge Details\n### Merge Method\n\n";
    let name = recipe.method.title();
    let method = match recipe.method.reference() {
        Some(url) => format!("[{name}]({url})"),
        None => name.to_owned(),
    };
    match &recipe.base {
        Some(base) => {
            let _ = writeln!(card, "{method}, with {} as the base.\n", code(base));
        }
        None => {
            let _ = writeln!(card, "{method}.\n");
        }
    }
    card += "### Models Merged\n\n";
    for model in models.iter().filter(|model| recipe.base.as_deref() != Some(model)) {
        let _ = writeln!(card, "* {}", code(model));
    }
    card += "\n### Configuration\n\n";
    let fence = fence(&recipe.text);
    let _ = writeln!(card, "{fence}yaml\n{}\n{fence}", recipe.text.trim_end());
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_follow_layers_and_dtype() {
        let config = br#"{"num_hidden_layers": 2, "layer_types": ["x", "y"],
            "torch_dtype": "float32", "sizes": [1, 2, 3]}"#;
        let bytes =
            configuration(config, Some(&[0, 1, 1]), Some(DType::BF16), None).expect("changed");
        let found: Value = serde_json::from_slice(&bytes).expect("JSON");
        let expected = json!({
            "num_hidden_layers": 3, "layer_types": ["x", "y", "y"], "torch_dtype": "bfloat16",
            "sizes": [1, 2, 3],
        });
        assert_eq!(found, expected);
        assert_eq!(configuration(config, None, Some(DType::F32), None), None);
        assert_eq!(configuration(b"[", Some(&[0]), None, None), None);
    }

    #[test]
    fn the_card_keeps_terms_and_quotes_what_it_shows() {
        let recipe =
            Recipe { text: "a: '```'\n".into(), ..Recipe::new(crate::Method::Ties, Vec::new()) };
        let main = b"---\nlicense: mit\ntags:\n- x\nlicense_link: \n---\n# A\nlicense: no\n";
        let card = card(&recipe, &["org/a", "b: c\n"], "merged", Some(main));
        assert!(card.starts_with("---\nbase_model:\n- org/a\n- \"b: c\\n\"\n"), "{card}");
        assert!(card.contains("\nlicense: mit\ntags:"), "{card}");
        assert!(card.contains("\n````yaml\na: '```'\n````\n"), "{card}");
        assert!(card.contains("* `b: c_`"), "{card}");
    }
}
