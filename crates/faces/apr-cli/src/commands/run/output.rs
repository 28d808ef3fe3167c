//! What comes out, as a file of arrays.

use std::path::Path;

use apr_infer::{Tensor, Value};
use apr_io::{AtomicOutput, Target};
use apr_run::ArrayFile;

use crate::args::RunArgs;
use crate::commands::beside::write_text;
use crate::failure::{Failure, Outcome};
use crate::printer::Printer;

/// Destination of arrays.
pub(super) struct Output<'a> {
    path: &'a Path,
    kind: ArrayFile,
    overwrite: bool,
    printer: &'a Printer,
}

impl<'a> Output<'a> {
    /// Returns the output that `--output` requests.
    ///
    /// A file that already exists, or whose type is unknown, is rejected before anything runs.
    pub(super) fn of(args: &'a RunArgs, printer: &'a Printer) -> Outcome<Option<Self>> {
        let Some(path) = args.output.as_deref() else { return Ok(None) };
        let extension =
            path.extension().map(|extension| extension.to_string_lossy()).unwrap_or_default();
        let kind = ArrayFile::by_extension(&extension).ok_or_else(|| {
            let name = path.display();
            Failure::Usage(format!(
                "{name}: arrays are written as .npy, .npz, .safetensors or .json"
            ))
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();

        // Dropped at once: this only asks whether the file may be written.
        AtomicOutput::create(Target::File(path.to_path_buf()), args.overwrite, [&*name])?;
        Ok(Some(Self { path, kind, overwrite: args.overwrite, printer }))
    }

    /// Writes arrays: all of them or none.
    pub(super) fn write(&self, arrays: &[(String, Tensor)]) -> Outcome {
        let value = |(name, array): &(String, Tensor)| (name.clone(), array.clone().into());
        self.write_values(&arrays.iter().map(value).collect::<Vec<_>>())
    }

    /// Writes the outputs of a graph: all of them or none.
    pub(super) fn write_values(&self, arrays: &[(String, Value)]) -> Outcome {
        write_text(self.path, &self.kind.bytes(arrays)?, self.overwrite, self.printer)?;
        self.printer.wrote(self.path);
        Ok(())
    }
}
