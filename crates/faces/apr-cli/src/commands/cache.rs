//! `apr cache`: what was downloaded, and what piped models were copied to.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use apr_core::counted;
use apr_io::io_error;
use apr_registry::Escaped;
use serde::Serialize;

use crate::args::CacheAction;
use crate::config::cache_folder;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::printer::{BAD, BOLD, DIM};
use crate::progress::Bar;
use crate::remote::{self, Model};

#[derive(Serialize)]
struct CacheReport {
    /// Folder of apr's own cache.
    folder: PathBuf,
    /// Hugging Face's cache folder, which its own programs share.
    #[serde(skip_serializing_if = "Option::is_none")]
    hub: Option<PathBuf>,
    /// Number of files of all models.
    file_count: u64,
    /// Size of all files.
    bytes: u64,
    /// `true` if the models were removed.
    cleared: bool,
    /// `true` if nothing was removed because of `--dry-run`.
    dry_run: bool,
    /// Models in the cache, or removed from it.
    models: Vec<Model>,
    /// Models that are being fetched, so that they were kept.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_use: Vec<String>,
    /// Models that were kept, wholly or in part, because another program fetched them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<String>,
}

impl Document for CacheReport {
    const SCHEMA: &'static str = "cache";
}

/// Extent of the removal.
struct Extent {
    dry_run: bool,
    /// `true` to also remove models that other programs fetched.
    all_hub: bool,
    /// `true` to remove without asking.
    yes: bool,
}

#[derive(Serialize)]
struct VerifyReport {
    /// Number of models that were verified.
    model_count: u64,
    /// Size of all files that were read.
    bytes: u64,
    /// `true` if no file is damaged; otherwise the exit code is 5.
    valid: bool,
    /// Files whose bytes are not what they should be.
    damaged: Vec<PathBuf>,
}

impl Document for VerifyReport {
    const SCHEMA: &'static str = "cache.verify";
}

/// Shows, clears or verifies the cache.
pub(super) fn run(action: &CacheAction, context: &Context) -> Outcome {
    match action {
        CacheAction::Info => show(context),
        CacheAction::Clear { model, older, dry_run, all_hub, yes } => {
            let extent = Extent { dry_run: *dry_run, all_hub: *all_hub, yes: *yes };
            clear(model.as_deref(), *older, &extent, context)
        }
        CacheAction::Verify { model } => verify(model.as_deref(), context),
    }
}

fn show(context: &Context) -> Outcome {
    let mut report = begin(remote::models(None)?)?;
    spooled(&mut report, false)?;
    context.printer.report(&report, render)
}

fn begin(models: Vec<Model>) -> Outcome<CacheReport> {
    Ok(CacheReport {
        folder: cache_folder()?,
        hub: remote::hub_folder()?,
        file_count: models.iter().map(|model| model.file_count).sum(),
        bytes: models.iter().map(|model| model.bytes + model.partial).sum(),
        cleared: false,
        dry_run: false,
        models,
        in_use: Vec::new(),
        kept: Vec::new(),
    })
}

fn clear(model: Option<&str>, older: Option<u64>, extent: &Extent, context: &Context) -> Outcome {
    let mut models = remote::models(model)?;
    models.retain(|model| older.is_none_or(|days| model.days.is_some_and(|unused| unused >= days)));
    if models.is_empty()
        && let Some(name) = model
        && older.is_none()
    {
        return Err(Failure::General(format!(
            "'{name}' is not in the cache; `apr cache info` lists the contents"
        )));
    }
    let mut kept = Vec::new();
    if extent.all_hub {
        confirm(&models, extent)?;
    } else {
        kept = models.iter().filter(|model| model.shared).map(|model| model.name.clone()).collect();
        models.retain(|model| !model.shared || model.own.1 > 0);
        // Counted is what is removed.
        for model in models.iter_mut().filter(|model| model.shared) {
            (model.file_count, model.bytes) = model.own;
            model.partial = 0;
        }
        if let (true, Some(name)) = (models.is_empty() && !kept.is_empty(), model) {
            return Err(Failure::General(format!(
                "'{name}' was fetched by another program; --all-hub removes it nevertheless"
            )));
        }
    }
    let (dry_run, mut in_use) = (extent.dry_run, Vec::new());
    if !dry_run {
        in_use = remote::clear(&models, extent.all_hub)?;
        models.retain(|model| !in_use.contains(&model.name));
    }

    let mut report = CacheReport { cleared: true, dry_run, in_use, kept, ..begin(models)? };

    // Copies of pipes belong to no model.
    if model.is_none() && older.is_none() {
        spooled(&mut report, !dry_run)?;
    }

    context.printer.report(&report, render)
}

/// Lists the models that other programs fetched, and asks whether to remove them.
fn confirm(models: &[Model], extent: &Extent) -> Outcome {
    let shared: Vec<&Model> = models.iter().filter(|model| model.shared).collect();
    if shared.is_empty() || extent.dry_run || extent.yes {
        return Ok(());
    }
    let mut err = anstream::stderr().lock();
    writeln!(err, "Another program, such as Hugging Face's Python client, fetched")?;
    for model in &shared {
        let bytes = human::bytes(model.bytes + model.partial);
        writeln!(err, "{bytes:>10}  {}", Escaped(&model.name))?;
    }
    if !io::stdin().is_terminal() {
        let message = "--all-hub removes these after a question: answer it with --yes";
        return Err(Failure::Usage(message.to_owned()));
    }

    write!(err, "Remove {}? [y/N] ", counted(shared.len() as u64, "model"))?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::General("nothing was removed".to_owned())),
    }
}

fn verify(model: Option<&str>, context: &Context) -> Outcome {
    let models = remote::models(model)?;
    let bytes = models.iter().map(|model| model.bytes).sum();
    let damaged = remote::verify(&models, &Bar::new(&context.printer, bytes), &context.interrupt)?;
    let report = VerifyReport {
        model_count: models.len() as u64,
        bytes,
        valid: damaged.is_empty(),
        damaged,
    };
    let render = |out: &mut dyn Write, report: &VerifyReport| {
        for path in &report.damaged {
            writeln!(out, "{BAD}damaged{BAD:#}: {}", Escaped(&path.display().to_string()))?;
        }
        if report.model_count == 0 {
            return writeln!(out, "the cache has no models to verify");
        }
        let verdict = if report.valid { "all digests match" } else { "remove the damaged files" };
        writeln!(
            out,
            "{}, {}: {verdict}",
            counted(report.model_count, "model"),
            human::bytes(report.bytes)
        )
    };
    context.printer.judge(&report, render, report.valid)
}

/// Counts the copies of piped input; removes them if `clears` is set.
fn spooled(report: &mut CacheReport, clears: bool) -> Outcome {
    let spool = report.folder.join("spool");
    if spool.is_dir() {
        visit(&spool, report, clears).map_err(|error| io_error(&error, &spool))?;
    }
    Ok(())
}

/// Counts only the files that the cache created, not other files in the same folder.
fn visit(spool: &Path, report: &mut CacheReport, clears: bool) -> io::Result<()> {
    for name in apr_platform::list_folder(spool)? {
        let path = spool.join(name);
        let len = path.symlink_metadata()?.len();
        if clears {
            // A locked file is in use by a command that is still running.
            if File::open(&path)?.try_lock().is_err() {
                continue;
            }
            std::fs::remove_file(path)?;
        }
        report.file_count += 1;
        report.bytes += len;
    }

    Ok(())
}

fn render(out: &mut dyn Write, report: &CacheReport) -> io::Result<()> {
    if !report.models.is_empty() {
        writeln!(out, "{BOLD}{:>10}  {:>6}  {:<12}  Model{BOLD:#}", "Size", "Files", "Last used")?;
    }

    for model in &report.models {
        let used = match model.days {
            None => "?".to_owned(),
            Some(0) => "today".to_owned(),
            Some(days) => format!("{} ago", counted(days, "day")),
        };
        let partial = match model.partial {
            0 => String::new(),
            partial => format!(" {DIM}and {} incomplete{DIM:#}", human::bytes(partial)),
        };
        let (bytes, files) = (human::bytes(model.bytes), human::count(model.file_count));
        writeln!(out, "{bytes:>10}  {files:>6}  {used:<12}  {}{partial}", Escaped(&model.name))?;
    }

    for name in &report.in_use {
        writeln!(out, "kept, because a download is in progress: {}", Escaped(name))?;
    }

    for name in &report.kept {
        writeln!(out, "kept, because another program fetched it (--all-hub): {}", Escaped(name))?;
    }

    let (files, bytes) = (counted(report.file_count, "file"), human::bytes(report.bytes));
    let what = match (report.cleared, report.dry_run) {
        (true, true) => "would clear",
        (true, false) => "cleared",
        _ => "holds",
    };
    writeln!(out, "{}: {what} {files}, {bytes}", Escaped(&report.folder.display().to_string()))?;
    match report.hub.as_ref().filter(|_| !report.models.is_empty()) {
        Some(hub) => {
            let hub = hub.display().to_string();
            writeln!(
                out,
                "models of Hugging Face are in {}, shared with its Python client",
                Escaped(&hub)
            )
        }
        None => Ok(()),
    }
}
