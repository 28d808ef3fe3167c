//! `apr edit`: metadata, names, tensors, the chat template.

mod apr2;
mod asked;
mod folder;
mod onnx;
mod report;
mod weights;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use apr_core::HEAD_LEN;
use apr_io::{LockedFile, io_error};
use apr_registry::{Format, apr2 as native, onnx as onnx_format, recognise_file};

use crate::args::EditArgs;
use crate::context::Context;
use crate::failure::Outcome;

/// Edits a model.
pub(super) fn run(args: &EditArgs, context: &Context) -> Outcome {
    if !asked::is_any(args) {
        return undo_interrupted(args, context);
    }
    if args.model.is_dir() {
        return folder::run(args, context);
    }
    edit_file(&args.model, args, context)
}

/// Edits a file: the model that was named, or the only one of a folder.
fn edit_file(path: &Path, args: &EditArgs, context: &Context) -> Outcome {
    let head = head(path)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    match recognise_file(&head, extension) {
        Some(format) if format == &onnx_format::FORMAT => onnx::run(path, args, context),
        Some(format) if is_apr(format) => apr2::run(path, args, context),
        // The manifest of a sharded model.
        None if head.starts_with(b"{") => apr2::run(path, args, context),
        _ => weights::run(path, args, context),
    }
}

/// Returns `true` if a format is apr's own, including older versions.
fn is_apr(format: &Format) -> bool {
    format == &native::FORMAT || format.successor.is_some()
}

/// Reads the first bytes of a file, which identify the format.
///
/// A file in which a change was interrupted has these bytes, too. A path that is not a file gives
/// no bytes: the function that opens it for editing reports the error.
fn head(path: &Path) -> Outcome<Vec<u8>> {
    let mut head = Vec::new();
    if path.is_file() {
        let mut read = || File::open(path)?.take(HEAD_LEN).read_to_end(&mut head);
        read().map_err(|error| io_error(&error, path))?;
    }
    Ok(head)
}

/// Undoes an interrupted change, which is all that an edit without options does.
fn undo_interrupted(args: &EditArgs, context: &Context) -> Outcome {
    if args.output.is_some() || !LockedFile::undo_interrupted(&args.model)? {
        return Err(asked::nothing());
    }
    context.printer.report(&report::EditReport::undone(&args.model), report::render)
}
