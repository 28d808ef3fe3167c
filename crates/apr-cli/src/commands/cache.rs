//! `apr cache`: the folder that `APR_CACHE` names, where piped models are copied to.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr::Escaped;
use apr_core::counted;
use apr_io::io_error;
use serde::Serialize;

use crate::args::CacheAction;
use crate::config::cache_folder;
use crate::context::Context;
use crate::failure::Outcome;
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
    let clear = matches!(action, CacheAction::Clear);
    let mut report = CacheReport { folder: cache_folder()?, files: 0, bytes: 0, cleared: clear };
    let spool = report.folder.join("spool");
    if spool.is_dir() {
        visit(&spool, &mut report).map_err(|error| io_error(&error, &spool))?;
    }
    context.printer.report(&report, render)
}

/// Counts what the cache put there, and nothing that happens to be in the same folder; clears it where asked to.
fn visit(spool: &Path, report: &mut CacheReport) -> io::Result<()> {
    for entry in spool.read_dir()? {
        let entry = entry?;
        let len = entry.metadata()?.len();
        if report.cleared {
            // A locked file is in use by a command that is still running.
            if File::open(entry.path())?.try_lock().is_err() {
                continue;
            }
            std::fs::remove_file(entry.path())?;
        }
        report.files += 1;
        report.bytes += len;
    }
    Ok(())
}

fn render(out: &mut dyn Write, report: &CacheReport) -> io::Result<()> {
    let folder = report.folder.display().to_string();
    let (files, bytes) = (counted(report.files, "file"), human::bytes(report.bytes));
    let what = if report.cleared { "cleared" } else { "holds" };
    writeln!(out, "{}: {what} {files}, {bytes}", Escaped(&folder))
}
