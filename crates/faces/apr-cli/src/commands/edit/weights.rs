//! `apr edit` on files of tensors: GGUF, safetensors, and what apr writes besides.

use std::path::Path;

use apr::job::Output;
use apr_core::Table;
use apr_io::{AtomicOutput, FileSource, LockedFile, Target, io_error};
use apr_ops::job::{Job, Planned};
use apr_registry::apr2::Revision;
use apr_registry::gguf::{self, KeyValues, PairEdits};
use apr_registry::safetensors::{self, with_texts};
use apr_registry::{ByteSource, CheckpointReader, Error, IoCause, Metadata, PlanOptions};
use apr_view::View;

use super::asked::{check_loss, tensor_edits};
use super::report::{EditReport, render};
use crate::args::EditArgs;
use crate::commands::tensor_edits::pairs_of;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::progress::Bar;
use crate::text_file::read_text;
use crate::{revise, signals};

/// Edits a file.
pub(super) fn run(path: &Path, args: &EditArgs, context: &Context) -> Outcome {
    let (lock, source) = open_to_edit(path, args.output.as_deref(), context)?;
    let name = path.display().to_string();
    let file = OpenedFile::new(source.clone(), &name, context)?;
    let reader = file.reader();
    let edits = tensor_edits(args, context)?;
    let dropped = edits.dropped(reader)?;
    check_loss(args, dropped, reader.tensors().len())?;
    let moves = dropped > 0 || edits.adds_any();
    let mut view = View::new(reader);
    *view.metadata_mut() = file.metadata(args)?;
    let renames = edits.renames(reader, path)?;
    edits.apply(&mut view, &renames)?;
    let changed = view.tensors() != reader.tensors() || view.metadata() != reader.metadata();
    if args.output.is_none() && view.tensors() != reader.tensors() {
        check_index(path)?;
    }
    let front = match &lock {
        Some(_) if !moves && args.output.is_none() => file.front_in_place(&view)?,
        _ => None,
    };

    let written = changed || args.output.is_some();
    let report = EditReport {
        changed,
        written,
        in_place: written && front.is_some(),
        dropped_tensors: dropped,
        ..EditReport::of(path, args.output.as_deref())
    };

    match (front, lock) {
        _ if !written => {}
        (Some(front), Some(lock)) => replace_front(front, &source, &lock, context)?,
        (_, lock) => rewrite(&view, path, lock, args, context)?,
    }

    context.printer.report(&report, render)
}

/// A file that is edited.
enum OpenedFile {
    Gguf(Table),
    Safetensors(Table),
    /// File whose metadata apr does not write.
    Other(Box<dyn CheckpointReader>),
}

impl OpenedFile {
    fn new(source: FileSource, name: &str, context: &Context) -> Outcome<Self> {
        let mut head = [0; 16];
        let len = usize::try_from(source.len().min(16)).unwrap_or_default();
        source.read_at(0, &mut head[..len])?;
        let limits = &context.options.limits;
        if (gguf::FORMAT.recognises)(&head[..len]) {
            let reader = gguf::open(source, name, limits)?;
            let pairs = gguf::key_values(reader.metadata())?.unwrap_or_default();
            check_whole(&pairs, name)?;
            return Ok(Self::Gguf(reader));
        }
        let reader = apr_registry::open(source.clone(), name, &context.options)?;
        let format = reader.format();
        if format == &safetensors::FORMAT {
            return Ok(Self::Safetensors(safetensors::open(source, name, limits)?));
        }
        if format.target.is_none() {
            let message = format!(
                "apr reads this format ({}) and does not write it; `apr convert` writes another",
                format.name
            );
            return Err(Error::format(message).in_file(name).into());
        }
        for what in reader.left_out() {
            context.printer.warn(&format!("not kept: {what}"));
        }
        Ok(Self::Other(reader))
    }

    fn reader(&self) -> &dyn CheckpointReader {
        match self {
            Self::Gguf(reader) => reader,
            Self::Safetensors(reader) => reader,
            Self::Other(reader) => &**reader,
        }
    }

    /// Returns the metadata after the edit.
    fn metadata(&self, args: &EditArgs) -> Outcome<Metadata> {
        let set = || pairs_of(&args.set, "--set KEY=VALUE");
        let template = args.chat_template.as_deref();
        match self {
            Self::Gguf(reader) => {
                let edits = PairEdits {
                    unset: args.unset.clone(),
                    set: set()?,
                    chat_template: template.map(read_text).transpose()?,
                };
                let pairs = gguf::key_values(reader.metadata())?.unwrap_or_default();
                let pairs = edits.apply(&pairs).map_err(Failure::Usage)?;
                Ok(gguf::with_pairs(reader.metadata(), pairs))
            }
            Self::Safetensors(reader) => {
                no_template(args, "a safetensors file")?;
                if args.unset.is_empty() && args.set.is_empty() {
                    return Ok(reader.metadata().clone());
                }
                let changed = with_texts(reader.metadata(), &args.unset, &set()?);
                changed.map_err(|error| Failure::Usage(error.message().to_owned()))
            }
            Self::Other(reader) => {
                let name = reader.format().name;
                no_template(args, &format!("a file of {name}"))?;
                if args.unset.is_empty() && args.set.is_empty() {
                    return Ok(reader.metadata().clone());
                }
                let message = format!("--set and --unset: {name} does not store metadata");
                Err(Failure::Usage(message))
            }
        }
    }

    /// Returns the new front of the file, or `None` if tensors would move.
    fn front_in_place(&self, view: &View<'_>) -> Outcome<Option<Vec<u8>>> {
        Ok(match self {
            Self::Gguf(table) => gguf::front_in_place(table, view.tensors(), view.metadata())?,
            Self::Safetensors(table) => {
                safetensors::front_in_place(table, view.tensors(), view.metadata())?
            }
            Self::Other(_) => None,
        })
    }
}

/// Rejects a chat template for a format that cannot store one.
pub(super) fn no_template(args: &EditArgs, what: &str) -> Outcome {
    match &args.chat_template {
        None => Ok(()),
        // A folder does have one, in a file of its own.
        Some(_) if args.model.is_dir() => Err(Failure::Usage(
            "--chat-template can't edit a folder: edit its chat_template.jinja or \
             tokenizer_config.json"
                .to_owned(),
        )),
        Some(_) => Err(Failure::Usage(format!(
            "--chat-template: {what} has no chat template; it is in chat_template.jinja or \
             tokenizer_config.json next to it"
        ))),
    }
}

/// Opens the file, and locks it if the edit replaces it.
pub(super) fn open_to_edit(
    path: &Path,
    output: Option<&Path>,
    context: &Context,
) -> Outcome<(Option<LockedFile>, FileSource)> {
    if output.is_none_or(|output| revise::is_same(path, output)) {
        // Before the file is read, since a change that was interrupted is undone first.
        let lock = revise::lock(path, context)?;
        let source = lock.source()?;
        return Ok((Some(lock), source));
    }
    Ok((None, context.sources.open_file(path)?))
}

/// Creates the output of an edit that does not change the file in place: a replacement or another
/// file.
pub(super) fn output_of(
    path: &Path,
    lock: Option<LockedFile>,
    args: &EditArgs,
    context: &Context,
) -> Outcome<AtomicOutput> {
    signals::stop_cleanly(&context.interrupt)?;
    let exists = |path: &&std::path::PathBuf| !args.overwrite && path.symlink_metadata().is_ok();
    if let Some(output) = args.output.as_ref().filter(exists) {
        return Err(Error::io(IoCause::AlreadyExists, "the file already exists")
            .in_file(output.display())
            .into());
    }
    let output = args.output.as_deref().unwrap_or(path);
    Ok(match lock {
        Some(lock) => AtomicOutput::replacing(lock),
        None => AtomicOutput::create(Target::File(output.to_path_buf()), args.overwrite, [])?,
    })
}

/// Rejects a split file: its pairs describe its position, and only the first has the model's
/// metadata.
fn check_whole(pairs: &KeyValues, name: &str) -> Outcome {
    let count = pairs.get("split.count").and_then(|count| count.as_u64()).unwrap_or_default();
    if count > 1 {
        let message = format!("{name}: one of {count} splits of a model; `apr join` joins them");
        return Err(Failure::General(message));
    }
    Ok(())
}

/// An index lists the names of the tensors in each shard, and would be wrong after a change of
/// them.
fn check_index(path: &Path) -> Outcome {
    const INDEX: &str = ".safetensors.index.json";
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    let listed = format!("\"{name}\"");
    let files = apr_platform::list_folder(folder).map_err(|error| io_error(&error, folder))?;
    for file in files.iter().filter(|file| file.to_string_lossy().ends_with(INDEX)) {
        let index = folder.join(file);
        if std::fs::read(&index).is_ok_and(|text| contains(&text, listed.as_bytes())) {
            let message = format!(
                "{}: {} lists the tensors of this shard; `apr edit {} -o FOLDER` writes a copy \
                 with an index of its own",
                path.display(),
                index.display(),
                folder.display()
            );
            return Err(Failure::General(message));
        }
    }
    Ok(())
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Changes the front of the file in place; all tensors keep their offsets.
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
    path: &Path,
    lock: Option<LockedFile>,
    args: &EditArgs,
    context: &Context,
) -> Outcome {
    let sink = output_of(path, lock, args, context)?;
    let output = args.output.as_deref().unwrap_or(path);
    let name = output.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let target = PlanOptions::new(view.format(), name);
    write(view, &path.display().to_string(), target, |_| Ok(Output::from(sink)), context)
}

/// Writes the edited model that the view shows.
pub(super) fn write(
    view: &View<'_>,
    source: &str,
    target: PlanOptions,
    output: impl FnOnce(&Planned<'_>) -> Outcome<Output>,
    context: &Context,
) -> Outcome {
    let planned = Job::copy(target).plan(&context.source(view, source)?)?;
    planned.report().losses.iter().for_each(|loss| {
        context.printer.warn(&format!("lost: {}, {}: {}", loss.name, loss.what, loss.why));
    });
    context.printer.warn_new(&planned.report().warnings);
    let output = output(&planned)?;
    let bar = Bar::new(&context.printer, planned.report().bytes_in);
    let told = planned.report().warnings.len();
    let pipeline = context.pipeline()?;
    let done = output.write(planned, &context.sources, &pipeline, &bar)?;
    context.printer.converted(&done.conversion, told);
    Ok(())
}
