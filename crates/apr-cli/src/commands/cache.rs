//! `apr cache`: the folder that `APR_CACHE` names, where piped models are copied to.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr_io::io_error;
use serde::Serialize;

use crate::Outcome;
use crate::args::CacheAction;
use crate::config::cache_folder;
use crate::context::Context;
use crate::human;

#[derive(Serialize)]
struct CacheReport {
    folder: PathBuf,
    files: u64,
    bytes: u64,
    cleared: bool,
}

/// Shows or clears the cache.
pub(super) fn run(action: &CacheAction, context: &Context) -> Outcome {
    let folder = cache_folder()?;
    let mut report = CacheReport { folder, files: 0, bytes: 0, cleared: matches!(action, CacheAction::Clear) };
    if report.folder.is_dir() {
        let folder = report.folder.clone();
        visit(&folder, &mut report).map_err(|error| io_error(&error, &folder))?;
        let spool = folder.join("spool");
        if report.cleared && spool.is_dir() {
            std::fs::remove_dir_all(&spool).map_err(|error| io_error(&error, &spool))?;
        }
    }
    context.printer.report(&report, render)
}

/// Counts what the cache put there, and nothing that happens to be in the same folder.
fn visit(folder: &Path, report: &mut CacheReport) -> io::Result<()> {
    let spool = folder.join("spool");
    if !spool.is_dir() {
        return Ok(());
    }
    for entry in spool.read_dir()? {
        report.files += 1;
        report.bytes += entry?.metadata()?.len();
    }
    Ok(())
}

fn render(out: &mut dyn Write, report: &CacheReport) -> io::Result<()> {
    let (files, bytes) = (human::count(report.files), human::bytes(report.bytes));
    let what = if report.cleared { "cleared" } else { "holds" };
    writeln!(out, "{}: {what} {files} files, {bytes}", report.folder.display())
}
