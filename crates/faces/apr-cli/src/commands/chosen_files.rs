//! Files of this machine that `--include` and `--exclude` choose.

use std::path::{Path, PathBuf};

use apr::scan::files_below;
use apr_view::NameChoice;

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Returns the choice that the options make.
pub(super) fn choice(context: &Context) -> Outcome<NameChoice> {
    NameChoice::parse(&context.hub.include, &context.hub.exclude)
        .map_err(|error| Failure::Usage(error.message().to_owned()))
}

/// Returns the chosen files of a path, which may be a file, and the number of the others.
pub(super) fn chosen(path: &Path, names: &NameChoice) -> Outcome<(Vec<PathBuf>, usize)> {
    let below = files_below(std::slice::from_ref(&path.to_owned()))?;
    let all = below.len();
    let is_wanted = |file: &PathBuf| {
        let parts = inner(file, path);
        let parts: Vec<_> = parts.iter().map(|part| part.to_string_lossy()).collect();
        names.is_wanted(&parts.join("/"))
    };
    let files: Vec<PathBuf> = below.into_iter().filter(is_wanted).collect();
    let excluded = all - files.len();
    Ok((files, excluded))
}

/// Returns the path of a file in the folder `root`, or its name if the file itself was named.
pub(super) fn inner<'f>(file: &'f Path, root: &Path) -> &'f Path {
    let inner = file.strip_prefix(root).ok().filter(|inner| !inner.as_os_str().is_empty());
    inner.or_else(|| file.file_name().map(Path::new)).unwrap_or(file)
}

/// Warns if the options leave out no file.
pub(super) fn warn_if_idle(names: &NameChoice, excluded: usize, context: &Context) {
    if excluded > 0 || names.is_everything() {
        return;
    }
    let options = match (context.hub.include.is_empty(), context.hub.exclude.is_empty()) {
        (false, false) => "--include with --exclude",
        (false, true) => "--include",
        _ => "--exclude",
    };
    context.printer.warn(&format!("{options} has no effect: no file is left out"));
}
