//! What goes along with the tensors: configuration, model card, record.

use std::fmt::Write;

use apr_core::json::{from_python, to_python};
use apr_core::{CheckpointReader, Convention, Format, Metadata, Result, TensorInfo, keys};
use apr_merge::card;
use serde_json::{Map, Value, json};

use crate::report::AdaptReport;

/// The companion with the hyperparameters.
pub(crate) const CONFIG: &str = "config.json";

/// The model card.
pub(crate) const CARD: &str = "README.md";

/// The metadata key of the record.
const ADAPTERS: &str = "adapters";

const TIED: &str = "tie_word_embeddings";
const VOCABULARY: &str = "vocab_size";

/// Files that a tokenizer consists of.
const TOKENIZER: [&str; 8] = [
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

pub(crate) fn is_of_tokenizer(name: &str) -> bool {
    TOKENIZER.contains(&name)
}

/// Returns what the configuration states of whether the input embedding is also the output
/// projection.
///
/// # Errors
/// E007 and E008 when the configuration can't be read.
pub(crate) fn ties(base: &dyn CheckpointReader) -> Result<Option<bool>> {
    if let Some(tied) = base.metadata().object(keys::ARCHITECTURE).and_then(|map| map.get(TIED)) {
        return Ok(tied.as_bool());
    }
    let position = base.companions().iter().position(|file| file.name == CONFIG);
    let bytes = position.map(|position| base.read_companion(position)).transpose()?;
    let config: Option<Map<String, Value>> = bytes.and_then(|bytes| from_python(&bytes).ok());
    Ok(config.and_then(|config| config.get(TIED)?.as_bool()))
}

/// Returns the number of tokens before and after, or `None` if it is unchanged.
///
/// It is the number of rows of a replaced tensor.
pub(crate) fn vocabulary(base: &[TensorInfo], tensors: &[TensorInfo]) -> Option<(u64, u64)> {
    base.iter().zip(tensors).find_map(|(before, after)| {
        let rows = |info: &TensorInfo| info.shape.dims().first().copied();
        let (before, after) = (rows(before)?, rows(after)?);
        (before != after).then_some((before, after))
    })
}

fn fit_object(config: &mut Map<String, Value>, is_untied: bool, rows: Option<(u64, u64)>) {
    if is_untied {
        config.insert(TIED.to_owned(), false.into());
    }
    if let Some((before, after)) = rows
        && config.get(VOCABULARY).and_then(Value::as_u64) == Some(before)
    {
        config.insert(VOCABULARY.to_owned(), after.into());
    }
}

/// Adapts a configuration to the result. Returns `None` if it is not a JSON object.
pub(crate) fn fit(bytes: &[u8], is_untied: bool, rows: Option<(u64, u64)>) -> Option<Vec<u8>> {
    let mut config: Map<String, Value> = from_python(bytes).ok()?;
    fit_object(&mut config, is_untied, rows);
    Some(to_python(&config))
}

/// Adapts the configuration in the metadata of the native container to the result.
pub(crate) fn fit_metadata(metadata: &mut Metadata, is_untied: bool, rows: Option<(u64, u64)>) {
    if let Some(mut architecture) = metadata.object(keys::ARCHITECTURE).cloned() {
        fit_object(&mut architecture, is_untied, rows);
        metadata.set(keys::ARCHITECTURE, architecture);
    }
}

/// Records the merge in the metadata, in the form of the output format.
pub(crate) fn record(metadata: &mut Metadata, report: &AdaptReport, format: &Format) {
    let record = json!({
        "base": report.base,
        "adapters": report.adapters,
        "tool": concat!("apr ", env!("CARGO_PKG_VERSION")),
    });
    match format.convention {
        Convention::Canonical => metadata.set(ADAPTERS, record),
        Convention::Framework => card::add_to_header(metadata, ADAPTERS, &record),
        _ => {}
    }
}

/// Returns the model card, with front matter for hubs. The licence terms are those of the base's
/// card.
pub(crate) fn card(report: &AdaptReport, title: &str, base: Option<&[u8]>) -> String {
    let models = std::iter::once(report.base.as_str());
    let mut card = card::front_matter(models, base, &["merge", "lora"]);
    let _ = writeln!(
        card,
        "# {title}\n\n{} with adapters merged in, made with apr.\n",
        card::code(&report.base)
    );
    card += "## Adapters\n\n| adapter | kind | times | ranks | modules |\n|---|---|---|---|---|\n";
    for adapter in &report.adapters {
        let ranks: Vec<String> = adapter.ranks.iter().map(u64::to_string).collect();
        let _ = writeln!(
            card,
            "| {} | {} | {} | {} | {} |",
            card::code(&adapter.name),
            adapter.kind,
            adapter.weight,
            ranks.join(", "),
            adapter.modules
        );
    }
    card
}
