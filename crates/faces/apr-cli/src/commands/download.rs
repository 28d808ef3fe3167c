//! `apr download`, and `apr ls` of what is on a hub.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use apr_core::{Sink, counted};
use apr_hub::{Downloaded, ResolvedLocation};
use apr_io::{AtomicOutput, FileSource, Target};
use apr_registry::{ByteSource, Error, Escaped};
use apr_view::chunks::pieces;
use serde::Serialize;

use crate::args::{DownloadArgs, TensorsArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};
use crate::progress::Bar;
use crate::remote::notes_without_choice;
use crate::{human, signals};

#[derive(Serialize)]
struct DownloadReport {
    /// Location of the model, as given.
    path: String,
    /// The repository's commit.
    revision: Option<String>,
    /// Reason for choosing this one of several models.
    why: Option<String>,
    /// Folder that contains the files under their own names.
    folder: Option<PathBuf>,
    /// Files of the model.
    files: Vec<FetchedFile>,
    /// Size of all files.
    bytes: u64,
    /// Bytes received over the network.
    fetched: u64,
}

impl Document for DownloadReport {
    const SCHEMA: &'static str = "download";
}

#[derive(Serialize)]
struct FetchedFile {
    /// Name in the repository.
    name: String,
    /// Path of the file in the cache.
    path: PathBuf,
    /// Size of the file.
    bytes: u64,
    /// Bytes received over the network; 0 for a cached file.
    fetched: u64,
}

impl From<Downloaded> for FetchedFile {
    fn from(file: Downloaded) -> Self {
        Self { name: file.name, path: file.path, bytes: file.len, fetched: file.fetched }
    }
}

/// Fetches models into the cache.
pub(super) fn run(args: &DownloadArgs, context: &Context) -> Outcome {
    signals::stop_cleanly(&context.interrupt)?;
    super::several::each(&args.models, context, |path| fetch(path, args, context), render)
}

fn fetch(path: &Path, args: &DownloadArgs, context: &Context) -> Outcome<DownloadReport> {
    if !apr_io::is_remote(path) {
        let message = format!(
            "{} is not a remote location: expected hf://, https:// or s3://",
            path.display()
        );
        return Err(Failure::Usage(message));
    }

    let folder = context.sources.place(path)?;
    let place = folder.place();
    let names = wanted(place, args.all);
    if names.is_empty() {
        let message = "no file matches --include and --exclude; --all chooses among all files";
        return Err(Failure::Usage(format!("{}: {message}", path.display())));
    }
    let len = |name: &String| {
        place.files().iter().find(|file| file.name == *name).and_then(|file| file.len)
    };
    let bar = Bar::new(&context.printer, names.iter().filter_map(len).sum());
    let files = place.download(&names, &bar);
    drop(bar);

    // What is in the report already is not said twice. After a download that failed, too: the notes
    // may say why.
    notes_without_choice(place).iter().for_each(|note| context.printer.warn(note));
    let mut files: Vec<FetchedFile> = files?.into_iter().map(FetchedFile::from).collect();
    if let Some(folder) = &args.local_dir {
        files.iter_mut().try_for_each(|file| copy(file, folder, args.overwrite, context))?;
    }
    Ok(DownloadReport {
        path: place.location().to_string(),
        revision: place.repository().map(|repository| repository.commit.clone()),
        why: place.chosen().why.clone(),
        folder: args.local_dir.clone().or_else(|| place.snapshot()),
        bytes: files.iter().map(|file| file.bytes).sum(),
        fetched: files.iter().map(|file| file.fetched).sum(),
        files,
    })
}

/// The file that the location names, the files of one model, or all of them.
fn wanted(place: &ResolvedLocation, all: bool) -> Vec<String> {
    if all {
        return place.matching().into_iter().map(|file| file.name.clone()).collect();
    }
    if place.repository().is_none() {
        return place.files().iter().map(|file| file.name.clone()).collect();
    }
    let chosen = place.chosen();
    if let Some(file) = place.file().filter(|file| *file == place.location().file_name()) {
        // With the other shards, where it is one.
        let shards = chosen.weights.iter().filter(|name| *name != file).cloned();
        return [file.to_owned()].into_iter().chain(shards).collect();
    }
    chosen.weights.iter().chain(&chosen.companions).cloned().collect()
}

/// Copies a file out of the cache, under its own name in a folder. One that is there with the same
/// bytes stays.
fn copy(file: &mut FetchedFile, folder: &Path, overwrite: bool, context: &Context) -> Outcome {
    let target = folder.join(relative(&file.name)?);
    let source = context.sources.open_file(&file.path)?;
    if target.is_file() && is_same(&source, &FileSource::open(&target)?)? {
        file.path = target;
        return Ok(());
    }
    let mut output = AtomicOutput::create(Target::File(target.clone()), overwrite, [])?;
    let mut buffer = vec![0; PIECE];
    for piece in pieces(source.len(), PIECE) {
        context.interrupt.check()?;
        source.read_at(piece.offset, &mut buffer[..piece.len])?;
        output.write_all(&buffer[..piece.len])?;
    }
    context.printer.committed(&output.commit()?);
    file.path = target;
    Ok(())
}

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;

/// Returns the path for a name on a server, which must not lead out of the folder.
fn relative(name: &str) -> Outcome<PathBuf> {
    let is_plain =
        |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':', '\0']);
    if !name.split('/').all(is_plain) {
        let message = "the name of this file leads out of a folder; it is not copied";
        return Err(Error::format(message).in_file(name).into());
    }
    Ok(name.split('/').collect())
}

/// Returns `true` if two files have the same bytes.
fn is_same(a: &FileSource, b: &FileSource) -> Outcome<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    let mut buffers = [vec![0; PIECE], vec![0; PIECE]];
    for piece in pieces(a.len(), PIECE) {
        let [left, right] = &mut buffers;
        let (left, right) = (&mut left[..piece.len], &mut right[..piece.len]);
        a.read_at(piece.offset, left)?;
        b.read_at(piece.offset, right)?;
        if left != right {
            return Ok(false);
        }
    }
    Ok(true)
}

fn render(out: &mut dyn Write, report: &DownloadReport) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&report.path))?;
    if let Some(revision) = &report.revision {
        writeln!(out, "Revision:    {revision}")?;
    }
    if let Some(why) = &report.why {
        writeln!(out, "Chosen:      {}", Escaped(why))?;
    }

    for file in &report.files {
        let how = if file.fetched == 0 { "was there" } else { "fetched" };
        writeln!(out, "{:>10}  {how:<9}  {}", human::bytes(file.bytes), Escaped(&file.name))?;
    }

    let (files, bytes, fetched) = (
        counted(report.files.len() as u64, "file"),
        human::bytes(report.bytes),
        human::bytes(report.fetched),
    );
    writeln!(out, "{files}, {bytes}; {fetched} downloaded")?;
    let folder = report.folder.as_deref().or_else(|| report.files.first()?.path.parent());
    match folder {
        Some(folder) => writeln!(out, "{DIM}in {}{DIM:#}", Escaped(&folder.display().to_string())),
        None => Ok(()),
    }
}

#[derive(Serialize)]
struct ListReport {
    /// Location of the repository, as given.
    path: String,
    /// The repository's commit.
    revision: Option<String>,
    /// Licence that the repository states.
    license: Option<String>,
    /// Reason for choosing this one of several models.
    why: Option<String>,
    /// Files of the repository.
    files: Vec<ListedFile>,
}

impl Document for ListReport {
    const SCHEMA: &'static str = "download.list";
}

#[derive(Serialize)]
struct ListedFile {
    /// Name in the repository.
    name: String,
    /// Size of the file.
    bytes: Option<u64>,
    /// Kind of the file: `weights`, `index`, `companion`, `other weights`, `other`.
    kind: &'static str,
    /// `true` if the file is in the cache.
    cached: bool,
    /// SHA-256 digest that the server states.
    sha256: Option<String>,
}

/// Lists the files of hub repositories, or the tensors of other models.
pub(super) fn list(args: &TensorsArgs, context: &Context) -> Outcome {
    let is_set = |path: &PathBuf| -> Outcome<bool> {
        Ok(apr_io::is_remote(path) && context.sources.place(path)?.place().file().is_none())
    };
    for path in &args.models {
        if !is_set(path)? {
            return super::tensors::run(args, context);
        }
    }
    super::several::each(&args.models, context, |path| listed(path, context), render_list)
}

fn listed(path: &Path, context: &Context) -> Outcome<ListReport> {
    let folder = context.sources.place(path)?;
    let place = folder.place();
    let repository = place.repository();

    let files = place.files().iter().map(|file| ListedFile {
        name: file.name.clone(),
        bytes: file.len,
        kind: place.kind_of(&file.name),
        cached: place.is_cached(file),
        sha256: place.sha256_of(file),
    });

    Ok(ListReport {
        path: place.location().to_string(),
        revision: repository.map(|repository| repository.commit.clone()),
        license: repository.and_then(|repository| repository.license.clone()),
        why: place.chosen().why.clone(),
        files: files.collect(),
    })
}

fn render_list(out: &mut dyn Write, report: &ListReport) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&report.path))?;
    for (label, value) in
        [("Revision:", &report.revision), ("Licence:", &report.license), ("Chosen:", &report.why)]
    {
        if let Some(value) = value {
            writeln!(out, "{label:<12} {}", Escaped(value))?;
        }
    }
    writeln!(out, "{BOLD}{:>10}  {:<13}  {:<6}  File{BOLD:#}", "Size", "What", "Cached")?;
    for file in &report.files {
        let (bytes, cached) = (
            file.bytes.map_or_else(|| "?".to_owned(), human::bytes),
            if file.cached { "yes" } else { "" },
        );
        writeln!(out, "{bytes:>10}  {:<13}  {cached:<6}  {}", file.kind, Escaped(&file.name))?;
    }

    let total = report.files.iter().filter_map(|file| file.bytes).sum();
    writeln!(out, "{}, {}", counted(report.files.len() as u64, "file"), human::bytes(total))
}
