//! `apr tensors --output`: tensors as NumPy's files.

use std::collections::BTreeSet;
use std::io::{self, Write};

use apr_core::counted;
use apr_io::{AtomicOutput, Target};
use apr_ops::arrays::{ArrayRow, has_array, write_arrays};
use apr_registry::{CheckpointReader, Escaped};
use serde::Serialize;

use super::filter;
use crate::args::TensorsArgs;
use crate::commands::file_name::component;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::model::Model;
use crate::printer::{DIM, ODD};
use crate::progress::Bar;
use crate::signals;

/// Report of the written arrays.
#[derive(Serialize)]
pub(super) struct ArraysReport {
    /// Path or location of the model, as given.
    path: String,
    /// The written folder.
    output: String,
    /// Arrays that were written.
    arrays: Vec<ArrayRow>,
    /// Tensors that were not written because an array cannot hold their elements.
    not_written: Vec<String>,
}

/// Writes the requested tensors: all of them or none.
pub(super) fn write(model: &Model, args: &TensorsArgs, context: &Context) -> Outcome<ArraysReport> {
    let folder = args.output.clone().unwrap_or_default();
    let source = context.source(&*model.reader, &model.name)?;
    let verified = source.verified();
    let reader: &dyn CheckpointReader = match &verified {
        Some(verified) => verified,
        None => source.reader(),
    };
    let filter = filter(args)?;
    let tensors = reader.tensors();
    let is_wanted =
        |at: &usize| filter.as_ref().is_none_or(|filter| filter.is_match(&tensors[*at].name));
    let wanted = (0..tensors.len()).filter(is_wanted);
    let (wanted, others): (Vec<usize>, Vec<usize>) =
        wanted.partition(|at| has_array(tensors[*at].dtype));
    if wanted.is_empty() {
        let what = match args.filter {
            Some(_) if others.is_empty() => "no tensor matches --filter",
            _ => "no tensor to write as an array",
        };
        let message = format!("{}: {what}", model.name);
        return Err(Failure::General(message));
    }

    let mut taken = BTreeSet::new();
    let chosen = wanted.into_iter().map(|at| (at, file_of(&tensors[at].name, &mut taken)));
    let chosen: Vec<(usize, String)> = chosen.collect();
    signals::stop_cleanly(&context.interrupt)?;
    let names = chosen.iter().map(|(_, file)| file.as_str());
    let mut output = AtomicOutput::create(Target::Folder(folder.clone()), args.overwrite, names)?;
    output.made_from(&context.sources);
    let total = chosen.iter().filter_map(|(at, _)| tensors[*at].byte_len().ok()).sum();
    let bar = Bar::new(&context.printer, total);
    let arrays = write_arrays(reader, &chosen, &mut output, &context.pipeline()?, &bar)?;
    drop(bar);
    context.sources.check_unchanged()?;
    context.printer.committed(&output.commit()?);
    Ok(ArraysReport {
        path: model.name.clone(),
        output: folder.display().to_string(),
        arrays,
        not_written: others.iter().map(|at| tensors[*at].name.clone()).collect(),
    })
}

/// Returns an unused file name for a tensor, unique on case-insensitive file systems, too.
fn file_of(name: &str, taken: &mut BTreeSet<String>) -> String {
    let stem = component(name);
    let numbered = |number: u32| match number {
        1 => format!("{stem}.npy"),
        _ => format!("{stem}#{number}.npy"),
    };
    let free = (1..).map(numbered).find(|file| taken.insert(file.to_lowercase()));
    free.unwrap_or_default()
}

pub(super) fn render(out: &mut dyn Write, report: &ArraysReport) -> io::Result<()> {
    let bytes = report.arrays.iter().map(|row| row.bytes).sum();
    let arrays = counted(report.arrays.len() as u64, "array");
    writeln!(out, "{}: {arrays}, {}", Escaped(&report.output), human::bytes(bytes))?;
    let decoded = report.arrays.iter().filter(|row| row.dtype != row.array_dtype);
    let mut kinds: Vec<&str> = decoded.map(|row| row.dtype.name()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    if !kinds.is_empty() {
        writeln!(out, "{DIM}decoded to f32: {}{DIM:#}", kinds.join(", "))?;
    }
    match report.not_written.first() {
        None => Ok(()),
        Some(first) => {
            let count = counted(report.not_written.len() as u64, "tensor");
            let first = Escaped::short(first);
            writeln!(
                out,
                "{ODD}not written{ODD:#}: {count} without an array type, such as \
                           '{first}'"
            )
        }
    }
}
