//! Scans for code that loading a file would execute.

use std::io;
use std::path::{Path, PathBuf};

use apr_core::{Error, Escaped, IoCause, Limits, Result};
use apr_io::{Sources, io_error};
use apr_platform::list_folder;
pub use apr_scan::{FileVerdict, Finding, ScanReport, ScanSummary, Verdict, scan_file};

/// Folders in each other that are gone into.
const MAX_DEPTH: usize = 64;

/// Lists what loading a file, or any file of a folder and of those below, would execute, as `apr
/// scan` reports it. Nothing is executed.
///
/// ```
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
/// let summary = apr::scan::scan(folder)?;
/// assert_eq!(summary.dangerous, 0);
/// # Ok::<(), apr::Error>(())
/// ```
///
/// # Errors
/// E007 when a folder, or the only file, can't be read; one of several files that can't be read is
/// in the report.
pub fn scan(path: impl AsRef<Path>) -> Result<ScanSummary> {
    let paths = [path.as_ref().to_owned()];
    let (files, sources) = (files_below(&paths)?, Sources::default());
    let scan = |path: &PathBuf| {
        let name = path.display().to_string();
        let mut report = scan_file(sources.open_file(path)?, &name, &Limits::default())?;
        sources.check_unchanged()?;
        check_link(path, &paths, &mut report);
        Ok(report)
    };
    scan_each(&files, |path| path.display().to_string(), scan, unreadable)
}

/// Returns the files to scan: the given files, and the files in given folders and below, in order.
///
/// Links to files are followed, links to folders are not: one that leads elsewhere is listed as a
/// file, which can't be read.
///
/// # Errors
/// E007 when a folder can't be read.
pub fn files_below(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() { list(path, path, 0, &mut files)? } else { files.push(path.clone()) }
    }
    Ok(files)
}

/// Adds findings on links to the report of a file: on one that leads out of the scanned folder, and
/// on a file of its tensors that is a link out of the model's folder. Reading the model reads the
/// file that a link leads to. Links of a Hugging Face cache lead to its own blobs.
pub fn check_link(path: &Path, folders: &[PathBuf], report: &mut ScanReport) {
    check_data(path, report);
    if let Some(target) = target_outside(path, folders) {
        let target = Escaped::short(&target.display().to_string()).to_string();
        let message = format!("it is a link to '{target}', outside the folder that is scanned");
        report.add(FileVerdict::Suspicious, message);
    }
}

/// Returns the file that a link leads to, if it is outside of that of the folders that the link is
/// in. Links of a Hugging Face cache lead to its own blobs, which are not outside.
#[must_use]
pub fn target_outside(path: &Path, folders: &[PathBuf]) -> Option<PathBuf> {
    if !path.is_symlink() {
        return None;
    }
    let target = path.canonicalize().ok()?;
    let folder = folders.iter().find(|folder| path.starts_with(folder) && *folder != path)?;
    let folder = folder.canonicalize().ok()?;
    leaves(&target, &folder).then_some(target)
}

/// Adds a finding to the report of a model whose tensors are in a file that a link leads to,
/// outside of the model's folder.
fn check_data(path: &Path, report: &mut ScanReport) {
    /// Files that are followed.
    const MOST: usize = 1000;

    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let Ok(folder) = parent.canonicalize() else { return };
    let outside = report.data().iter().take(MOST).find_map(|name| {
        let target = parent.join(name).canonicalize().ok()?;
        leaves(&target, &folder).then(|| (name.clone(), target))
    });
    if let Some((name, target)) = outside {
        let target = Escaped::short(&target.display().to_string()).to_string();
        let name = Escaped::short(&name).to_string();
        let message = format!("its tensors are in '{name}', a link to '{target}'");
        report.add(FileVerdict::Dangerous, message);
    }
}

/// Returns `true` if a resolved path is outside a resolved folder, and not a blob of the Hugging
/// Face cache that the folder belongs to.
fn leaves(target: &Path, folder: &Path) -> bool {
    let is_blob = target.parent().is_some_and(|parent| {
        parent.file_name().is_some_and(|name| name == "blobs")
            && parent.parent().is_some_and(|cache| folder.starts_with(cache))
    });
    !target.starts_with(folder) && !is_blob
}

/// Scans files one after the other. One of several that can't be read is a finding, in the words of
/// `told`, the only one an error.
///
/// # Errors
/// That of the only file, and one for which `told` has no words.
pub fn scan_each<F, E>(
    files: &[F],
    name: impl Fn(&F) -> String,
    mut scan: impl FnMut(&F) -> Result<ScanReport, E>,
    told: impl Fn(&E) -> Option<String>,
) -> Result<ScanSummary, E> {
    let is_only = files.len() == 1;
    let reports = files.iter().map(|file| {
        scan(file).or_else(|error| match told(&error) {
            Some(why) if !is_only => Ok(ScanReport::unreadable(&name(file), "file", why)),
            _ => Err(error),
        })
    });
    Ok(ScanSummary::of(reports.collect::<Result<_, E>>()?))
}

/// Returns the reason why a file can't be read, or `None` if the scan was interrupted.
#[must_use]
pub fn unreadable(error: &Error) -> Option<String> {
    (error.cause() != Some(IoCause::Interrupted)).then(|| error.to_string())
}

/// Returns `true` for a link to a folder that is listed anyway, because it is within `root`.
fn is_link_within(path: &Path, root: &Path) -> bool {
    let target = path.canonicalize().ok().filter(|target| target.is_dir());
    let is_below = |root: PathBuf| target.is_some_and(|target| target.starts_with(root));
    root.canonicalize().is_ok_and(is_below)
}

fn list(root: &Path, folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    if depth == MAX_DEPTH {
        let message = format!("folders are nested more than {MAX_DEPTH} deep");
        return Err(Error::io(IoCause::Other, message).in_file(folder.display()));
    }

    let failed = |error: io::Error| io_error(&error, folder);
    let mut names = match list_folder(folder) {
        // The report lists a folder below that can't be read.
        Err(_) if depth > 0 => {
            files.push(folder.to_owned());
            return Ok(());
        }
        names => names.map_err(failed)?,
    };
    names.sort_unstable();
    for name in names {
        let path = folder.join(name);
        if path.symlink_metadata().map_err(failed)?.is_dir() {
            list(root, &path, depth + 1, files)?;
        } else if !is_link_within(&path, root) {
            // A link to nothing, a pipe and the like are in the report as unreadable.
            files.push(path);
        }
    }

    Ok(())
}
