//! `apr edit` on GGUF: pairs, names, the chat template.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use apr::job::Output;
use apr_io::{AtomicOutput, FileSource, LockedFile, Target, io_error};
use apr_ops::job::Job;
use apr_registry::apr2::Revision;
use apr_registry::gguf::{self, GgufReader, KeyValues, PairEdits};
use apr_registry::{ByteSource, CheckpointReader, Error, IoCause, PlanOptions};
use apr_view::{View, parse_filter};

use super::asked::{check_loss, split};
use super::report::{EditReport, render};
use crate::args::EditArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;
use crate::{revise, signals};

/// Whether a path leads to a GGUF file, by its first bytes. What can't be read is reported by who
/// opens it to change it; a file in which a change was interrupted can be read here.
pub(super) fn is_one(path: &Path) -> bool {
    let mut head = Vec::new();
    let mut read = || File::open(path)?.take(4).read_to_end(&mut head);
    path.is_file() && read().is_ok() && (gguf::FORMAT.recognises)(&head)
}

/// Edits a GGUF file.
pub(super) fn run(args: &EditArgs, context: &Context) -> Outcome {
    let (lock, source) = open_to_edit(args, context)?;
    let name = args.model.display().to_string();
    let reader = gguf::open(source.clone(), &name, &context.options.limits)?;
    let pairs = gguf::key_values(reader.metadata())?.unwrap_or_default();
    check_whole(&pairs, &name)?;
    let view = changed(&reader, &pairs, args)?;
    let dropped = reader.tensors().len() - view.tensors().len();
    check_loss(args, dropped, reader.tensors().len())?;
    let changed = view.tensors() != reader.tensors() || view.metadata() != reader.metadata();
    let front = match &lock {
        Some(_) if dropped == 0 && args.output.is_none() => {
            reader.front_in_place(view.tensors(), view.metadata())?
        }
        _ => None,
    };

    let written = changed || args.output.is_some();
    let report = EditReport {
        path: args.output.as_ref().unwrap_or(&args.model).display().to_string(),
        changed,
        written,
        in_place: written && front.is_some(),
        dropped_tensors: dropped,
        dropped_signatures: 0,
        dropped_licence: false,
        undone: false,
    };

    match (front, lock) {
        _ if !written => {}
        (Some(front), Some(lock)) => replace_front(front, &source, &lock, context)?,
        (_, lock) => rewrite(&view, lock, args, context)?,
    }

    context.printer.report(&report, render)
}

/// The file, and its lock where the edit replaces it.
fn open_to_edit(args: &EditArgs, context: &Context) -> Outcome<(Option<LockedFile>, FileSource)> {
    if args.output.as_deref().is_none_or(|output| revise::is_same(&args.model, output)) {
        // Before the file is read, since a change that was interrupted is undone first.
        let lock = revise::lock(&args.model, context)?;
        let source = lock.source()?;
        return Ok((Some(lock), source));
    }
    Ok((None, context.sources.open_file(&args.model)?))
}

/// A part's pairs say where it belongs, and the model's metadata are in the first part alone.
fn check_whole(pairs: &KeyValues, name: &str) -> Outcome {
    let count = pairs.get("split.count").and_then(|count| count.as_u64()).unwrap_or_default();
    if count > 1 {
        let message = format!("{name}: one of {count} splits of a model; `apr join` joins them");
        return Err(Failure::General(message));
    }
    Ok(())
}

/// The model as it is to be.
fn changed<'a>(reader: &'a GgufReader, pairs: &KeyValues, args: &EditArgs) -> Outcome<View<'a>> {
    let edits = PairEdits {
        unset: args.unset.clone(),
        set: pairs_of(&args.set, "--set KEY=VALUE")?,
        chat_template: args.chat_template.as_deref().map(read_text).transpose()?,
    };
    let mut view = View::new(reader);
    *view.metadata_mut() =
        gguf::with_pairs(reader.metadata(), edits.apply(pairs).map_err(Failure::Usage)?);
    let drops =
        args.drop.iter().map(|glob| Ok(parse_filter(glob)?)).collect::<Outcome<Vec<_>>>()?;
    view.drop_tensors(|name| drops.iter().any(|drop| drop.is_match(name)));
    if !drops.is_empty() && view.tensors().len() == reader.tensors().len() {
        return Err(Failure::Usage("no tensor matches --drop".to_owned()));
    }

    let renames = pairs_of(&args.rename, "--rename OLD=NEW")?;
    for (old, _) in &renames {
        let names: Vec<&str> = view.tensors().iter().map(|info| info.name.as_str()).collect();
        if !names.contains(&old.as_str()) {
            let similar = apr_view::nearest(old, names, 3);
            let hint = if similar.is_empty() {
                String::new()
            } else {
                format!("; do you mean {}?", similar.join(", "))
            };
            let message = format!("no such tensor{hint}");
            return Err(Error::format(message)
                .for_tensor(old)
                .in_file(args.model.display())
                .into());
        }
    }

    view.rename(|_, name| renames.iter().find(|(old, _)| old == name).map(|(_, new)| new.clone()));
    Ok(view)
}

fn pairs_of(arguments: &[String], usage: &str) -> Outcome<Vec<(String, String)>> {
    arguments
        .iter()
        .map(|pair| split(pair, usage).map(|(key, value)| (key.to_owned(), value.to_owned())))
        .collect()
}

fn read_text(path: &Path) -> Outcome<String> {
    Ok(std::fs::read_to_string(path).map_err(|error| io_error(&error, path))?)
}

/// Changes the file itself; every tensor stays where it is.
fn replace_front(
    front: Vec<u8>,
    source: &dyn ByteSource,
    lock: &LockedFile,
    context: &Context,
) -> Outcome {
    // If the write is interrupted, these undo it.
    let mut old_front = vec![0; front.len()];
    source.read_at(0, &mut old_front)?;
    let revision = Revision {
        front,
        tail_offset: source.len(),
        tail: Vec::new(),
        old_front,
        old_tail: Vec::new(),
        signatures: 0,
        dropped_signatures: 0,
        dropped_licence: false,
    };

    // From here on Ctrl-C comes too late.
    signals::stop_cleanly(&context.interrupt)?;
    Ok(lock.replace_ends(&revision)?)
}

/// Streams a new file, which takes the old one's place or another.
fn rewrite(
    view: &View<'_>,
    lock: Option<LockedFile>,
    args: &EditArgs,
    context: &Context,
) -> Outcome {
    signals::stop_cleanly(&context.interrupt)?;
    let exists = |path: &&std::path::PathBuf| !args.overwrite && path.symlink_metadata().is_ok();
    if let Some(output) = args.output.as_ref().filter(exists) {
        return Err(Error::io(IoCause::AlreadyExists, "the file exists already")
            .in_file(output.display())
            .into());
    }

    let output = args.output.as_ref().unwrap_or(&args.model);
    let sink = match lock {
        Some(lock) => AtomicOutput::replacing(lock),
        None => AtomicOutput::create(Target::File(output.clone()), args.overwrite, [])?,
    };
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let source = args.model.display().to_string();
    let job = Job::copy(PlanOptions::new(&gguf::FORMAT, name));
    let planned = job.plan(&context.source(view, &source)?)?;
    planned.report().losses.iter().for_each(|loss| {
        context.printer.warn(&format!("lost: {}, {}: {}", loss.name, loss.what, loss.why));
    });
    let bar = Bar::new(&context.printer, planned.report().bytes_in);
    let told = planned.report().warnings.len();
    let pipeline = context.pipeline()?;
    let done = Output::from(sink).write(planned, &context.sources, &pipeline, &bar)?;
    context.printer.converted(&done.conversion, told);
    Ok(())
}
