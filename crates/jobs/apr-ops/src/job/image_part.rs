//! The part for images of a vision-language model, as a model by itself.

use apr_arch::{FamilyModel, IMAGES};
use apr_core::json;
use apr_registry::{CheckpointReader, Error, Result, TensorInfo, keys};
use apr_source::Source;
use apr_view::{Change, TensorOrigin, View};
use serde_json::Value;

/// Name of the vector of the token behind each row of an image.
const BREAK: &str = "image_break";

/// Name of the table of tokens in GGUF files, by which it is found.
const TOKENS: &str = "token_embd.weight";

/// Returns the tower and the projector of a model.
///
/// Some models have a token behind each row of an image. Its vector, a row of the language model's
/// table, is added as `image_break`: llama.cpp reads it with the tower.
///
/// # Errors
/// E003 if no table describes such a part of the model; E001, E002 and E007 if the tokenizer is
/// malformed or can't be read.
pub(super) fn part_for_images<'a>(source: &Source<'a>) -> Result<View<'a>> {
    let reader = source.reader();
    let model = source.family()?;
    let part = model.and_then(FamilyModel::vision).ok_or_else(|| {
        let why = "the model has no part for images, or one that is not known";
        match model.map(|model| model.family().name()) {
            Some(family) => Error::version(format!("{why} (family {family})")),
            None => Error::version(why),
        }
    })?;
    let tensors = reader.tensors().iter().cloned().enumerate();
    let mut kept: Vec<(TensorInfo, TensorOrigin)> = tensors
        .filter(|(position, _)| part.canonical(*position).is_some())
        .map(|(position, info)| (info, TensorOrigin::Base(position)))
        .collect();
    if let Some(model) = model
        && let Some(token) = model.image_text().and_then(|text| text.row_break)
    {
        kept.extend(vector_of(reader, model, token)?);
    }
    let mut view = View::of(reader, kept);
    view.metadata_mut().set(keys::PART, IMAGES);
    Ok(view)
}

/// Returns the row of a special token in the table of tokens, if the tokenizer has such a token.
fn vector_of(
    reader: &dyn CheckpointReader,
    model: &FamilyModel<'_>,
    token: &str,
) -> Result<Option<(TensorInfo, TensorOrigin)>> {
    let is_table = |position: &usize| {
        let canonical = model.canonical(*position);
        canonical.and_then(|name| model.gguf_name(name)).as_deref() == Some(TOKENS)
    };
    let table = (0..reader.tensors().len()).find(is_table);
    let (Some(table), Some(id)) = (table, id_of(reader, token)?) else { return Ok(None) };
    let mut info = reader.tensors()[table].clone();
    let change = Change::some_rows(&mut info, table, id, 1)?;
    let width = info.shape.elements().unwrap_or_default();
    Change::reshape(&mut info, [width].into())?;
    info.name = BREAK.to_owned();
    Ok(Some((info, TensorOrigin::Changed(change))))
}

/// Returns the id of a special token.
fn id_of(reader: &dyn CheckpointReader, token: &str) -> Result<Option<i64>> {
    const TOKENIZER: &str = "tokenizer.json";

    let file = reader.companions().iter().position(|companion| companion.name == TOKENIZER);
    let Some(file) = file else { return Ok(None) };
    let tokenizer: Value = json::from_python(&reader.read_companion(file)?)
        .map_err(|error| Error::format(error.to_string()).in_file(TOKENIZER))?;
    let added = tokenizer.get("added_tokens").and_then(Value::as_array);
    let named = added.into_iter().flatten().find(|added| added["content"] == token);
    Ok(named.and_then(|added| added["id"].as_i64()))
}
