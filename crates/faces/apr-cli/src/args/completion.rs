//! What a word on the command line may become.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use apr_arch::{Families, Family};
use apr_quantize::Scheme;
use apr_registry::{Code, DType, OpenOptions};
use clap_complete::CompletionCandidate;
use clap_complete::engine::{PathCompleter, ValueCompleter};

/// Most names that are offered.
const MOST: usize = 1000;

/// The types that models are quantized to.
pub(super) fn schemes() -> Vec<CompletionCandidate> {
    Scheme::ALL.iter().map(|scheme| CompletionCandidate::new(scheme.name())).collect()
}

/// The types that tensors are given.
pub(super) fn dtypes() -> Vec<CompletionCandidate> {
    let names = DType::ALL.iter().map(|dtype| dtype.name());
    names
        .filter(|name| apr_quantize::parse_dtype(name).is_ok())
        .map(CompletionCandidate::new)
        .collect()
}

/// The families that are built in.
pub(super) fn families() -> Vec<CompletionCandidate> {
    let families = Families::builtin();
    families
        .iter()
        .map(|family: &Family| CompletionCandidate::new(family.name().to_owned()))
        .collect()
}

/// The error codes that `apr explain` explains, and the files that start with what was typed.
pub(super) fn subjects(typed: &OsStr) -> Vec<CompletionCandidate> {
    let shown = typed.to_string_lossy().to_uppercase();
    let codes = Code::ALL.iter().map(|code| code.id()).filter(|code| code.starts_with(&shown));
    let codes = codes.map(CompletionCandidate::new);
    PathCompleter::any().complete(typed).into_iter().chain(codes).collect()
}

/// Returns the jobs that can be planned, or after a job the files that start with the word.
pub(super) fn jobs(typed: &OsStr) -> Vec<CompletionCandidate> {
    let jobs = crate::commands::PLANNED;
    // The last word is the one that is completed.
    let words: Vec<OsString> = crate::arguments().skip_while(|arg| arg != "--").collect();
    let has_job = words.iter().rev().skip(1).any(|word| jobs.iter().any(|job| word == job));
    if has_job {
        return PathCompleter::any().complete(typed);
    }
    let shown = typed.to_string_lossy();
    let jobs = jobs.into_iter().filter(|job| job.starts_with(&*shown));
    jobs.map(CompletionCandidate::new).collect()
}

/// Names of tensors of the model that is on the line. Nothing but its header is read, and what does
/// not open has none.
pub(super) fn tensors(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let Some(model) = model_of(crate::arguments()) else { return Vec::new() };
    let Ok(reader) = apr_io::open_model(&model, &OpenOptions::default()) else { return Vec::new() };
    let names = reader.tensors().iter().map(|info| info.name.as_str());
    // What could steer a terminal is not offered.
    let names = names.filter(|name| {
        name.starts_with(&*typed) && apr_registry::Escaped(name).to_string() == *name
    });
    names.take(MOST).map(|name| CompletionCandidate::new(name.to_owned())).collect()
}

/// The first word after the command that names something that is there. A shell asks with
/// `apr -- apr COMMAND WORDS`.
fn model_of(args: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    let words = args.skip_while(|arg| arg != "--").skip(3);
    words.map(PathBuf::from).find(|word| Path::new(word).exists())
}
