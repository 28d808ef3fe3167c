//! `apr upload`: files of this machine become a commit of a repository on a hub.

use std::io::{self, Write};
use std::path::Path;

use apr::scan::target_outside;
use apr_core::counted;
use apr_hub::{LocalFile, Location, PlannedFile, UploadOptions, Visibility};
use apr_registry::{Error, Escaped};
use serde::Serialize;

use super::chosen_files::{choice, chosen, inner, warn_if_idle};
use crate::args::{CreatedAs, UploadArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::BOLD;
use crate::progress::Bar;
use crate::{human, signals};

/// Folders of other programs, which hubs' own programs leave out, too.
const NOT_UPLOADED: [&str; 2] = [".git", ".cache"];

/// Report of an upload.
#[derive(Serialize)]
struct UploadReport {
    /// File or folder, as given.
    path: String,
    /// The repository.
    location: String,
    /// `true` if nothing was sent, as `--dry-run` asks.
    dry_run: bool,
    /// `true` if the repository did not exist: it was created, or would be.
    created: bool,
    /// All files.
    files: Vec<UploadedFile>,
    /// Bytes of the files that the repository lacked.
    bytes: u64,
    /// Number of files that `--include` and `--exclude` leave out, and of `.git` and `.cache`.
    excluded: usize,
    /// The commit; absent if the repository had all files.
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<String>,
    /// Address of the pull request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pull_request: Option<String>,
}

impl Document for UploadReport {
    const SCHEMA: &'static str = "upload";
}

/// A file of the upload.
#[derive(Serialize)]
struct UploadedFile {
    /// Name in the repository.
    name: String,
    /// Size of the file.
    bytes: u64,
    /// `sent`, `stored` (the hub's store had the bytes), `unchanged` (the repository had the file),
    /// or `ignored` (by the repository's `.gitignore`).
    state: &'static str,
}

impl From<&PlannedFile> for UploadedFile {
    fn from(file: &PlannedFile) -> Self {
        Self { name: file.name.clone(), bytes: file.len, state: file.state.name() }
    }
}

/// Uploads a file or folder.
pub(super) fn run(args: &UploadArgs, context: &Context) -> Outcome {
    signals::stop_cleanly(&context.interrupt)?;
    let given = [("--file", context.hub.hub_file.is_some()), ("--no-cache", context.hub.no_cache)];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        return Err(Failure::Usage(format!("{option} has no use for an upload")));
    }
    let shown = args.location.display().to_string();
    let location = Location::parse(&shown).ok_or_else(|| {
        Failure::Usage(format!("{shown} is not a repository of a hub: expected hf://ORG/NAME"))
    })??;
    let (files, excluded) = to_upload(&args.path, context)?;

    let mut options = UploadOptions::default();
    options.summary = args.message.clone().unwrap_or_else(|| {
        let name =
            args.path.file_name().map_or_else(|| "files".into(), |name| name.to_string_lossy());
        format!("Upload {name} with apr")
    });
    options.pull_request = args.pull_request;
    options.create = args.create.map(|created| match created {
        CreatedAs::Private => Visibility::Private,
        CreatedAs::Public => Visibility::Public,
    });
    let hub = context.sources.hub()?;
    let bar = Bar::new(&context.printer, 0);
    let mut plan = hub.plan_upload(&location, &files, options, &bar)?;
    let created = plan.creates();
    if args.create.is_some() && !created {
        context.printer.warn("--create has no effect: the repository exists");
    }

    let mut report = UploadReport {
        path: args.path.display().to_string(),
        location: location.to_string(),
        dry_run: args.dry_run,
        created,
        files: Vec::new(),
        bytes: 0,
        excluded,
        commit: None,
        pull_request: None,
    };
    if args.dry_run {
        drop(bar);
        report.bytes = plan.bytes();
        report.files = plan.files().iter().map(UploadedFile::from).collect();
        return context.printer.report(&report, render);
    }
    plan.create(&bar)?;
    drop(bar);

    report.bytes = plan.bytes();
    let bar = Bar::new(&context.printer, plan.bytes());
    let uploaded = plan.send(&bar)?;
    drop(bar);
    report.files = uploaded.files.iter().map(UploadedFile::from).collect();
    (report.commit, report.pull_request) = (uploaded.commit, uploaded.pull_request);
    context.printer.report(&report, render)
}

/// Returns the files to upload, and the number of those that are left out.
fn to_upload(path: &Path, context: &Context) -> Outcome<(Vec<LocalFile>, usize)> {
    let names = choice(context)?;
    let (chosen, mut excluded) = chosen(path, &names)?;
    let is_all_excluded = chosen.is_empty() && excluded > 0;
    if !is_all_excluded {
        warn_if_idle(&names, excluded, context);
    }
    let mut files = Vec::new();
    for file in chosen {
        let parts: Option<Vec<&str>> =
            inner(&file, path).iter().map(|part| part.to_str()).collect();
        let parts = parts.ok_or_else(|| {
            Error::format("a name in a repository is UTF-8").in_file(file.display())
        })?;
        if parts.iter().any(|part| NOT_UPLOADED.contains(part)) {
            excluded += 1;
            continue;
        }
        // Whoever packed the folder would have a file of this machine uploaded.
        if let Some(target) = target_outside(&file, &[path.to_owned()]) {
            let message = format!(
                "a link to '{}', outside of the folder, is not uploaded: --exclude leaves it out",
                target.display()
            );
            return Err(Error::format(message).in_file(file.display()).into());
        }
        files.push(LocalFile { name: parts.join("/"), path: file });
    }
    if files.is_empty() {
        let message = match (excluded, is_all_excluded) {
            (0, _) => "has no files",
            (_, true) => "has no file that --include and --exclude let through",
            (_, false) => "has files of .git and .cache only",
        };
        return Err(Failure::Usage(format!("{} {message}", path.display())));
    }
    Ok((files, excluded))
}

fn render(out: &mut dyn Write, report: &UploadReport) -> io::Result<()> {
    let (from, to) = (Escaped(&report.path), Escaped(&report.location));
    writeln!(out, "{BOLD}=== {from} -> {to} ==={BOLD:#}")?;
    if report.created {
        let how = if report.dry_run { "would be created" } else { "created" };
        writeln!(out, "Repository:  {how}")?;
    }
    for file in &report.files {
        let state = match (report.dry_run, file.state) {
            (true, "sent") => "new",
            (_, state) => state,
        };
        writeln!(out, "{:>10}  {state:<9}  {}", human::bytes(file.bytes), Escaped(&file.name))?;
    }

    let count = |state: &str| report.files.iter().filter(|file| file.state == state).count();
    let new = count("sent") + count("stored");
    let mut parts = vec![format!(
        "{} {}, {}",
        counted(new as u64, "file"),
        if report.dry_run { "to upload" } else { "uploaded" },
        human::bytes(report.bytes)
    )];
    for (number, what) in [
        (count("unchanged"), "unchanged"),
        (count("ignored"), "ignored by .gitignore"),
        (report.excluded, "left out"),
    ] {
        if number > 0 {
            parts.push(format!("{number} {what}"));
        }
    }
    writeln!(out, "{}", parts.join("; "))?;
    match (&report.commit, &report.pull_request) {
        (_, Some(address)) => writeln!(out, "Pull request: {}", Escaped(address)),
        (Some(commit), None) => writeln!(out, "Commit:      {commit}"),
        (None, None) if report.dry_run => Ok(()),
        (None, None) => writeln!(out, "no commit: the repository has all files"),
    }
}
