//! `apr edit` on `.apr`: metadata, names, the chat template.

use std::path::Path;
use std::sync::Arc;

use apr::job::Output;
use apr_core::json::{from_python, to_python};
use apr_ops::job::Job;
use apr_registry::apr2::{Apr2Reader, Changes};
use apr_registry::gguf::KeyValue;
use apr_registry::{CheckpointReader, Metadata, PlanOptions, keys};
use apr_view::View;
use serde_json::{Map, Value};

use super::asked::{check_loss, tensor_edits};
use super::report::{EditReport, render};
use crate::args::EditArgs;
use crate::commands::tensor_edits::{TensorEdits, split};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;
use crate::revise::{self, Changing};
use crate::secrets;
use crate::text_file::read_text;

/// The file that holds a chat template of its own.
const TEMPLATE_FILE: &str = "chat_template.jinja";

/// The file that may hold one among other things.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Metadata key of the chat template that an import found.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Edits an `.apr` file.
pub(super) fn run(path: &Path, args: &EditArgs, context: &Context) -> Outcome {
    let file = revise::open_to_change(path, args.output.as_deref(), context)?;
    let edits = tensor_edits(args, context)?;
    let changes = changes(&file.reader, &edits, path, args)?;
    let dropped = edits.dropped(&file.reader)?;
    check_loss(args, dropped, file.reader.tensors().len())?;
    let moves = dropped > 0 || edits.adds_any();
    let mut report = EditReport {
        changed: moves || changes.metadata.is_some() || !changes.renames.is_empty(),
        written: true,
        dropped_tensors: dropped,
        ..EditReport::of(path, args.output.as_deref())
    };

    if !report.changed && args.output.is_none() {
        // Signatures and licence hold for the file as it is.
        report.written = false;
        return context.printer.report(&report, render);
    }

    match if moves { None } else { file.reader.revise(&changes)? } {
        Some(revision) => {
            report.in_place = args.output.is_none();
            report.unverified =
                file.write(args.output.as_deref(), args.overwrite, &revision, context)?;
            (report.dropped_signatures, report.dropped_licence) =
                (revision.dropped_signatures, revision.dropped_licence);
        }
        None => {
            (report.dropped_signatures, report.dropped_licence) =
                seals_to_drop(&file.reader, path)?;
            rewrite(file, path, args, &changes, edits, context)?;
        }
    }

    warn_of_dropped_seals(&report, context);
    context.printer.report(&report, render)
}

fn warn_of_dropped_seals(report: &EditReport, context: &Context) {
    if report.dropped_signatures > 0 {
        let what = apr_core::counted(report.dropped_signatures as u64, "signature");
        context.printer.warn(&format!("{what} dropped, because the model changed: sign it again"));
    }
    if report.dropped_licence {
        context.printer.warn("licence dropped, because the model changed: issue it again");
    }
}

/// Returns the number of signatures, and whether there is a licence, that a rewritten file drops.
fn seals_to_drop(reader: &Apr2Reader, path: &Path) -> Outcome<(usize, bool)> {
    if reader.header().flags.contains(apr_registry::apr2::Flags::ENCRYPTED) {
        let message = "names and encrypted metadata of an encrypted model can't be edited; `apr \
                       decrypt` it first";
        return Err(Failure::General(format!("{}: {message}", path.display())));
    }
    let seals = reader.container().signed()?;
    let signatures = seals.as_ref().map_or(0, |seals| signature_count(seals.signatures.as_deref()));
    Ok((signatures, seals.is_some_and(|seals| seals.licence.is_some())))
}

fn signature_count(block: Option<&[u8]>) -> usize {
    block.map_or(0, secrets::signature_count)
}

fn changes(
    reader: &Apr2Reader,
    edits: &TensorEdits,
    path: &Path,
    args: &EditArgs,
) -> Outcome<Changes> {
    let mut metadata = reader.metadata().clone();
    for pair in &args.set {
        let (key, value) = split(pair, "--set KEY=VALUE")?;
        // What is a text stays one, though it looks like a number.
        let is_text = key == keys::MODEL_TYPE || find(&metadata, key).is_some_and(Value::is_string);
        let parsed = serde_json::from_str(value)
            .ok()
            .filter(|parsed: &Value| parsed.is_string() || !is_text);
        set(&mut metadata, key, parsed.unwrap_or_else(|| Value::String(value.to_owned())))?;
    }

    for key in &args.unset {
        unset(&mut metadata, key)?;
    }

    if let Some(path) = &args.chat_template {
        replace_template(&mut metadata, &read_text(path)?)?;
    }

    let renames = edits.renames(reader, path)?;
    let metadata = (metadata != *reader.metadata()).then_some(metadata);
    Ok(Changes { metadata, renames, ..Changes::default() })
}

/// Rejects keys that describe how the file is read, because an edit would break the file.
fn check_key(key: &str) -> Outcome {
    if [keys::APR_VERSION, keys::TIED, keys::FILES].contains(&key) {
        return Err(Failure::Usage(format!("'{key}' describes the file itself and is not edited")));
    }
    Ok(())
}

/// Returns the value that [`set`] would replace.
fn find<'a>(metadata: &'a Metadata, key: &str) -> Option<&'a Value> {
    metadata.get(key).or_else(|| {
        let (top, field) = key.split_once('.')?;
        metadata.object(top)?.get(field)
    })
}

/// Sets a key, or the field of an object that a path such as `architecture.n_layer` leads to. Keys
/// that have dots in them, as `tokenizer.vocab_size`, are themselves first.
fn set(metadata: &mut Metadata, key: &str, value: Value) -> Outcome {
    check_key(key)?;
    let Some((top, field)) = key
        .split_once('.')
        .filter(|(top, _)| metadata.get(key).is_none() && metadata.object(top).is_some())
    else {
        metadata.set(key, value);
        return Ok(());
    };
    check_key(top)?;
    let mut object = metadata.object(top).cloned().unwrap_or_default();
    set_field(&mut object, field, value);
    metadata.set(top, object);
    Ok(())
}

fn set_field(object: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.').filter(|(head, _)| object.get(*head).is_some_and(Value::is_object)) {
        Some((head, rest)) => {
            if let Some(Value::Object(inner)) = object.get_mut(head) {
                set_field(inner, rest, value);
            }
        }
        None => drop(object.insert(path.to_owned(), value)),
    }
}

fn unset(metadata: &mut Metadata, key: &str) -> Outcome {
    check_key(key)?;
    if metadata.remove(key).is_some() {
        return Ok(());
    }
    let removed = key.split_once('.').and_then(|(top, field)| {
        let mut object = metadata.object(top)?.clone();
        object.remove(field)?;
        metadata.set(top, object);
        Some(())
    });
    removed.ok_or_else(|| Failure::Usage(format!("no metadata key '{key}'")))
}

/// Replaces every copy of the chat template.
///
/// Copies can be in the companion files, in the GGUF key-value pairs, and in the metadata that the
/// import derived from them.
fn replace_template(metadata: &mut Metadata, text: &str) -> Outcome {
    let mut files = metadata.object(keys::FILES).cloned().unwrap_or_default();
    let in_config = files.get(TOKENIZER_CONFIG).and_then(Value::as_str).and_then(|config| {
        let mut config: Map<String, Value> = from_python(config.as_bytes()).ok()?;
        config
            .contains_key("chat_template")
            .then(|| config.insert("chat_template".to_owned(), text.into()))?;
        String::from_utf8(to_python(&config)).ok()
    });

    let has_config = in_config.is_some();
    if let Some(config) = in_config {
        files.insert(TOKENIZER_CONFIG.to_owned(), config.into());
    }

    match files.get(TEMPLATE_FILE) {
        // Where the configuration has the template, no second file is made for it.
        Some(Value::String(_)) | None if files.contains_key(TEMPLATE_FILE) || !has_config => {
            files.insert(TEMPLATE_FILE.to_owned(), text.into());
        }
        Some(Value::Object(_)) => {
            let message = "the chat template in the file is too long to be replaced; import the \
                           model again with the new one";
            return Err(Failure::General(message.to_owned()));
        }
        _ => {}
    }

    metadata.set(keys::FILES, files);
    metadata.set(TEMPLATE_KEY, text);
    if let Some(pairs) = metadata.key_values()?.filter(|pairs| pairs.find(TEMPLATE_KEY).is_some()) {
        let mut pairs = Arc::unwrap_or_clone(pairs);
        pairs.set(&KeyValue::new(TEMPLATE_KEY, text))?;
        metadata.set_key_values(pairs);
    }

    Ok(())
}

/// Streams a new file, for edits that move the tensors.
fn rewrite(
    mut file: Changing,
    path: &Path,
    args: &EditArgs,
    changes: &Changes,
    edits: TensorEdits,
    context: &Context,
) -> Outcome {
    let sink = file.output(args.output.as_deref(), args.overwrite, context)?;
    let reader = &file.reader;
    let mut view = View::new(reader);
    if let Some(metadata) = &changes.metadata {
        *view.metadata_mut() = metadata.clone();
        for (name, text) in metadata.object(keys::FILES).into_iter().flatten() {
            let before = reader.metadata().object(keys::FILES).and_then(|files| files.get(name));
            if let Some(text) = text.as_str().filter(|_| before != Some(text)) {
                view.add_companion(name, text.as_bytes().to_vec());
            }
        }
    }

    edits.apply(&mut view, &changes.renames)?;
    let output = args.output.as_deref().unwrap_or(path);
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut target = PlanOptions::new(&apr_registry::apr2::FORMAT, name);
    target.alignment = u32::try_from(reader.header().flags.alignment()).ok();
    let source = path.display().to_string();
    let planned = Job::copy(target).plan(&context.source(&view, &source)?)?;
    let bar = Bar::new(&context.printer, planned.report().bytes_in);
    let told = planned.report().warnings.len();
    let pipeline = context.pipeline()?;
    let done = Output::from(sink).write(planned, &context.sources, &pipeline, &bar)?;
    context.printer.converted(&done.conversion, told);
    Ok(())
}
