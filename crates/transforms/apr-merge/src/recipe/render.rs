//! A recipe as mergekit's YAML, for the record of merges that no file described.

use std::fmt::Write;

use serde_json::Value;

use super::{Parts, Recipe, Setting, Settings, Tokenizer};
use crate::method::Method;

impl Recipe {
    /// Returns the mergekit configuration of a merge of whole models.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        // mergekit has no name for it, but for what it is.
        let is_average = self.method == Method::Average;
        let method = if is_average { Method::Linear } else { self.method };
        let mut text = format!("merge_method: {method}\n");
        if let Some(base) = &self.base {
            let _ = writeln!(text, "base_model: {}", Value::from(base.as_str()));
        }
        if let Parts::Models(sources) = &self.parts {
            text += "models:\n";
            for source in sources {
                let _ = writeln!(text, "- model: {}", Value::from(source.model.as_str()));
                settings(&mut text, &source.settings, "  ");
                if is_average {
                    text += "  parameters:\n    weight: 1\n";
                }
            }
        }
        settings(&mut text, &self.settings, "");
        if let Some(source) = &self.tokenizer {
            let source = match source {
                Tokenizer::Union => "union",
                Tokenizer::Base => "base",
                Tokenizer::Model(name) => name,
            };
            let _ = writeln!(text, "tokenizer_source: {}", Value::from(source));
        }
        text
    }
}

fn settings(text: &mut String, settings: &Settings, indent: &str) {
    if settings.is_empty() {
        return;
    }
    let _ = writeln!(text, "{indent}parameters:");
    for (name, Setting(choices)) in settings {
        let values = choices.first().map(|choice| choice.values.as_slice()).unwrap_or_default();
        let value = match values {
            [one] => format!("{one}"),
            several => format!("{several:?}"),
        };
        let _ = writeln!(text, "{indent}  {name}: {value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Source, parse};

    #[test]
    fn rendered_configurations_parse_to_the_same_recipe() {
        let source = |model: &str, weight: f64| Source {
            model: model.to_owned(),
            settings: Settings::from([("weight".to_owned(), weight.into())]),
            ..Source::default()
        };
        let mut recipe = Recipe::new(
            Method::Ties,
            vec![source("a: '\"b", 0.5), source("c", -1e-7), source("d", 2.0)],
        );
        recipe.base = Some("c".to_owned());
        recipe.settings = Settings::from([("lambda".to_owned(), 1.5.into())]);
        let text = recipe.to_yaml();
        let read = parse(&text).expect("valid");
        assert_eq!(read, [Recipe { text, ..recipe }]);
    }
}
