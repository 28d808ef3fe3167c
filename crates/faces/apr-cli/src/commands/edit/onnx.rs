//! `apr edit` on ONNX: the properties of a model (`metadata_props`).

use std::path::Path;

use apr_core::Sink;
use apr_io::AtomicOutput;
use apr_registry::onnx::scan::scan;
use apr_registry::onnx::{EditedPiece, PropertyEdits, edited};
use apr_registry::{ByteSource, Error};

use super::asked::changes_tensors;
use super::report::{EditReport, render};
use super::weights::{no_template, open_to_edit, output_of};
use crate::args::EditArgs;
use crate::commands::tensor_edits::pairs_of;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::signals;

/// Edits an ONNX file; its graph is copied unchanged.
pub(super) fn run(path: &Path, args: &EditArgs, context: &Context) -> Outcome {
    no_template(args, "an ONNX file")?;
    if changes_tensors(args) {
        let message = "--rename, --drop, --keep and --add: the graph of an ONNX file refers to \
                       its tensors by name; --set and --unset edit its properties, and `apr \
                       convert MODEL --rename OLD=NEW -o OUT` renames values and tensors";
        return Err(Failure::Usage(message.to_owned()));
    }
    let edits =
        PropertyEdits { unset: args.unset.clone(), set: pairs_of(&args.set, "--set KEY=VALUE")? };
    let (lock, source) = open_to_edit(path, args.output.as_deref(), context)?;
    let limits = &context.options.limits;
    let located = |error: Error| error.in_file(path.display());
    check_place(&source, path, args, context)?;
    let pieces = edited(&source, &edits, limits).map_err(located)?;
    let changed = is_changed(&source, &pieces).map_err(located)?;
    let written = changed || args.output.is_some();
    if written {
        let mut sink = output_of(path, lock, args, context)?;
        copy(&source, &pieces, &mut sink, context)?;
        context.sources.check_unchanged()?;
        context.printer.committed(&sink.commit()?);
    }
    let report = EditReport { changed, written, ..EditReport::of(path, args.output.as_deref()) };
    context.printer.report(&report, render)
}

/// Rejects a copy in another folder if the model's weights are in files next to it.
fn check_place(
    source: &dyn ByteSource,
    path: &Path,
    args: &EditArgs,
    context: &Context,
) -> Outcome {
    let folder = |path: &Path| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new(".")).canonicalize().ok()
    };
    let Some(output) = args.output.as_deref().filter(|output| folder(output) != folder(path))
    else {
        return Ok(());
    };
    let found = scan(source, &context.options.limits);
    let found = found.map_err(|error| error.in_file(path.display()))?;
    match found.data.first() {
        None => Ok(()),
        Some(file) => Err(Failure::General(format!(
            "{}: its weights are in files next to it, such as '{}'; a copy in another folder \
             ({}) would not find them: use `apr convert`",
            path.display(),
            apr_registry::Escaped(file),
            output.display()
        ))),
    }
}

/// Returns `true` if the pieces differ from the bytes of the file.
fn is_changed(source: &dyn ByteSource, pieces: &[EditedPiece]) -> apr_registry::Result<bool> {
    let mut at = 0;
    for piece in pieces {
        let len = match piece {
            EditedPiece::Kept(span) if span.offset == at => span.len,
            EditedPiece::New(bytes) if at + bytes.len() as u64 <= source.len() => {
                let mut old = vec![0; bytes.len()];
                source.read_at(at, &mut old)?;
                if old != *bytes {
                    return Ok(true);
                }
                bytes.len() as u64
            }
            _ => return Ok(true),
        };
        at += len;
    }
    Ok(at != source.len())
}

fn copy(
    source: &dyn ByteSource,
    pieces: &[EditedPiece],
    sink: &mut AtomicOutput,
    context: &Context,
) -> Outcome {
    signals::stop_cleanly(&context.interrupt)?;
    let mut buffer = vec![0; 1 << 20];
    for piece in pieces {
        match piece {
            EditedPiece::New(bytes) => sink.write_all(bytes)?,
            EditedPiece::Kept(span) => {
                let mut at = span.offset;
                while at < span.end() {
                    context.interrupt.check()?;
                    let left = usize::try_from(span.end() - at).unwrap_or(usize::MAX);
                    let len = left.min(buffer.len());
                    source.read_at(at, &mut buffer[..len])?;
                    sink.write_all(&buffer[..len])?;
                    at += len as u64;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
