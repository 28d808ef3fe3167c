//! Model cards and headers of what was made of other models.

use std::fmt::Write;

use apr_core::{Metadata, keys};
use serde_json::{Map, Value};

/// Returns the front matter of a model card, which hubs read: merged models, licence terms and
/// tags.
///
/// The terms are those of the main model's card.
#[must_use]
pub fn front_matter<'m>(
    models: impl Iterator<Item = &'m str>,
    main: Option<&[u8]>,
    tags: &[&str],
) -> String {
    let mut card = "---\nbase_model:\n".to_owned();
    for model in models {
        let _ = writeln!(card, "- {}", quoted(model));
    }
    card += "library_name: transformers\n";
    for line in main.map(terms).unwrap_or_default() {
        card += &line;
        card.push('\n');
    }
    card += "tags:\n";
    for tag in tags {
        let _ = writeln!(card, "- {tag}");
    }
    card += "---\n";
    card
}

/// Writes a record into the text of a safetensors header.
pub fn add_to_header(metadata: &mut Metadata, key: &str, record: &Value) {
    let mut header = metadata.object(keys::SAFETENSORS).cloned().unwrap_or_default();
    let entries = header.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(entries) = entries {
        entries.entry("format").or_insert_with(|| "pt".into());
        entries.insert(key.to_owned(), record.to_string().into());
    }
    metadata.set(keys::SAFETENSORS, header);
}

/// A name in code.
#[must_use]
pub fn code(name: &str) -> String {
    format!("`{}`", name.replace(['`', '\n', '\r'], "_"))
}

/// A name as a scalar of YAML.
fn quoted(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let starts_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
    if starts_plain && name.chars().all(is_plain) {
        return name.to_owned();
    }
    Value::from(name).to_string()
}

/// A fence that the text does not contain.
pub(crate) fn fence(text: &str) -> String {
    let mut fence = "```".to_owned();
    while text.contains(&fence) {
        fence.push('`');
    }
    fence
}

/// The lines about licences of a card's front matter.
fn terms(card: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(card);
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    if lines.next().map(str::trim_end) != Some("---") {
        return Vec::new();
    }
    lines
        .take_while(|line| line.trim_end() != "---")
        .filter(|line| line.starts_with("license"))
        .filter(|line| line.split_once(':').is_some_and(|(_, value)| !value.trim().is_empty()))
        .map(str::to_owned)
        .collect()
}
