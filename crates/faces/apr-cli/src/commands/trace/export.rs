//! Traces and activations as files.

use std::fs;
use std::path::{Path, PathBuf};

use apr_infer::Value;
use apr_io::{AtomicOutput, Target, create_folders, io_error};
use apr_platform::list_folder;
use apr_registry::{Error, IoCause};
use apr_run::ArrayFile;
use apr_trace::{Trace, perfetto};
use tempfile::TempDir;

use crate::args::TraceArgs;
use crate::commands::beside::write_text;
use crate::commands::file_name::component;
use crate::commands::run::WithMemory;
use crate::commands::temporary::temporary_folder;
use crate::failure::{Failure, Outcome};
use crate::printer::{Printer, write_document};

/// Format of a trace file.
#[derive(Clone, Copy)]
enum TraceFormat {
    Json,
    Perfetto,
}

/// Destination of a trace.
pub(super) struct Export<'a> {
    path: &'a Path,
    kind: TraceFormat,
    overwrite: bool,
}

impl<'a> Export<'a> {
    /// Returns the export that `--export` requests.
    ///
    /// A file that already exists, or whose type is unknown, is rejected before anything runs.
    pub(super) fn of(args: &'a TraceArgs) -> Outcome<Option<Self>> {
        let Some(path) = args.export.as_deref() else { return Ok(None) };
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        let kind = match extension.to_ascii_lowercase().as_str() {
            "json" => TraceFormat::Json,
            "perfetto" | "pftrace" => TraceFormat::Perfetto,
            _ => {
                let name = path.display();
                let message = format!("{name}: a trace is written as .json or .perfetto");
                return Err(Failure::Usage(message));
            }
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();

        // Dropped at once: this only asks whether the file may be written.
        AtomicOutput::create(Target::File(path.to_path_buf()), args.overwrite, [&*name])?;
        Ok(Some(Self { path, kind, overwrite: args.overwrite }))
    }

    /// Writes the trace, either completely or not at all.
    pub(super) fn write(&self, trace: &WithMemory<Trace>, printer: &Printer) -> Outcome {
        let bytes = match self.kind {
            TraceFormat::Perfetto => perfetto(&trace.report),
            TraceFormat::Json => {
                let mut bytes = Vec::new();
                write_document(&mut bytes, trace, false)?;
                bytes
            }
        };
        write_text(self.path, &bytes, self.overwrite, printer)?;
        printer.wrote(self.path);
        Ok(())
    }
}

/// Activations on their way into a folder, which gets them when all are there.
pub(super) struct Activations {
    target: PathBuf,
    /// Temporary folder on the target's file system, so that files can be moved there.
    made: TempDir,
    written: Vec<PathBuf>,
    /// Values that are not arrays.
    left_out: Vec<String>,
}

impl Activations {
    /// Returns the dump that `--dump-activations` requests.
    ///
    /// A folder that exists and is not empty is rejected before anything runs.
    pub(super) fn of(args: &TraceArgs) -> Outcome<Option<Self>> {
        let Some(target) = args.dump_activations.clone() else { return Ok(None) };
        let wrong = |error: std::io::Error| io_error(&error, &target);
        if target.exists() {
            let is_empty = list_folder(&target).map_err(wrong)?.is_empty();
            if !is_empty && !args.overwrite {
                let error = Error::io(IoCause::AlreadyExists, "the folder is not empty");
                return Err(error.in_file(target.display()).into());
            }
        }
        let made = temporary_folder(&target, ".activations-")?;
        Ok(Some(Self { target, made, written: Vec::new(), left_out: Vec::new() }))
    }

    /// Writes a value.
    pub(super) fn write(
        &mut self,
        part: &str,
        path: &str,
        value: &Value,
    ) -> apr_registry::Result<()> {
        let named = [("array".to_owned(), value.clone())];
        let Ok(bytes) = ArrayFile::Npy.bytes(&named) else {
            self.left_out.push(path.to_owned());
            return Ok(());
        };
        let place = self.free(Path::new(&component(part)).join(place_of(path)));
        let file = self.made.path().join(&place);
        let folder = file.parent().unwrap_or(self.made.path());
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&file, bytes))
            .map_err(|error| io_error(&error, &self.target.join(&place)))?;
        self.written.push(place);
        Ok(())
    }

    /// Returns a path that no other value has, because different names can map to the same file.
    fn free(&self, wanted: PathBuf) -> PathBuf {
        let stem = wanted.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let numbered = |number: u32| wanted.with_file_name(format!("{stem}#{number}.npy"));
        let candidates = std::iter::once(wanted.clone()).chain((2..).map(numbered));
        let is_free = |place: &PathBuf| !self.made.path().join(place).exists();
        candidates.into_iter().find(is_free).unwrap_or(wanted)
    }

    /// Moves all of them into the folder.
    pub(super) fn finish(self, printer: &Printer) -> Outcome {
        let held = count_files(&self.target);
        let mut made = Vec::new();
        for place in &self.written {
            let target = self.target.join(place);
            let folder = target.parent().unwrap_or(&self.target);
            made.extend(create_folders(folder)?);
            fs::rename(self.made.path().join(place), &target)
                .map_err(|error| io_error(&error, &target))?;
        }
        made.retain(|folder| !folder.starts_with(&self.target));
        let made: Vec<String> = made.iter().map(|folder| folder.display().to_string()).collect();
        printer.made(&made);
        printer.wrote(&self.target);
        let stayed = count_files(&self.target).saturating_sub(self.written.len());
        if held > 0 && stayed > 0 {
            printer.warn(&format!(
                "{} has {stayed} files that this trace did not write",
                self.target.display()
            ));
        }
        if !self.left_out.is_empty() {
            let (count, first) = (self.left_out.len(), &self.left_out[0]);
            printer.warn(&format!(
                "{count} values have no .npy type and are not written, such as {first}"
            ));
        }
        Ok(())
    }
}

/// Files in a folder and in those within it.
fn count_files(folder: &Path) -> usize {
    let count = |path: PathBuf| match path.symlink_metadata() {
        Ok(found) if found.is_dir() => count_files(&path),
        _ => 1,
    };
    list_folder(folder).unwrap_or_default().iter().map(|name| count(folder.join(name))).sum()
}

/// Returns the path of a value's file within a folder.
///
/// The names come from the model file, so no component may lead out of the folder.
fn place_of(path: &str) -> PathBuf {
    let mut place: PathBuf =
        path.split('/').filter(|part| !part.is_empty()).map(component).collect();
    let name = place.file_name().map_or_else(|| "value".into(), std::ffi::OsStr::to_os_string);
    let mut name = name.to_string_lossy().into_owned();
    name.push_str(".npy");
    place.set_file_name(name);
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out_of_the_folder() {
        for (path, place) in [
            ("layers.3/attention/query", "layers.3/attention/query.npy"),
            ("/bert/encoder/Add_1", "bert/encoder/Add_1.npy"),
            ("../../etc/passwd", "__/__/etc/passwd.npy"),
            ("onnx::MatMul_12", "onnx__MatMul_12.npy"),
            ("a\\..\\b", "a_.._b.npy"),
            ("", "value.npy"),
        ] {
            assert_eq!(place_of(path), Path::new(place), "{path}");
        }
    }

    #[test]
    fn values_whose_names_map_to_one_file_get_separate_files() {
        let made = TempDir::new().unwrap();
        let target = made.path().join("dump");
        let folder = TempDir::new().unwrap();
        let mut activations =
            Activations { target, made: folder, written: Vec::new(), left_out: Vec::new() };
        let value: Value = apr_infer::Tensor::new(vec![1], vec![1.0_f32]).unwrap().into();
        for path in ["a:b", "a_b", "a?b"] {
            activations.write("model", path, &value).unwrap();
        }
        let places = ["model/a_b.npy", "model/a_b#2.npy", "model/a_b#3.npy"].map(PathBuf::from);
        assert_eq!(activations.written, places);
    }
}
