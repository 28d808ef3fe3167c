//! Where a command writes: a file, a folder, standard output.

use std::io::IsTerminal;
use std::path::Path;

use apr::{FileInfo, Format, PlanOptions, Sink};
use apr_io::{AtomicOutput, StreamSink, Target};

use crate::Outcome;
use crate::context::Context;
use crate::failure::Failure;

/// An output that is being written.
pub(crate) enum Output {
    Files(AtomicOutput),
    Stream(StreamSink),
}

impl Output {
    /// Whether this path means standard output.
    pub(crate) fn is_stdout(path: &Path) -> bool {
        path.as_os_str() == "-" || path == Path::new("/dev/stdout")
    }

    /// Layout options for a path: a safetensors path without the extension is a folder.
    pub(crate) fn plan_options(format: &'static Format, path: Option<&Path>) -> PlanOptions {
        let target = format.target.as_ref();
        let default = target.map_or("model", |target| target.file_name);
        let Some(path) = path.filter(|path| !Self::is_stdout(path)) else { return PlanOptions::new(format, default) };
        let extension = path.extension().and_then(|extension| extension.to_str());
        let named_so = target.is_some_and(|target| extension.is_some_and(|known| target.extensions.contains(&known)));
        let is_file = (named_so && !path.is_dir()) || StreamSink::is_for(path);
        if target.is_some_and(|target| target.folder) && !is_file {
            return PlanOptions { folder: true, ..PlanOptions::new(format, default) };
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        PlanOptions::new(format, name)
    }

    /// Prepares to write; refuses files that exist unless `force`, and a folder where the format is one file.
    pub(crate) fn create(
        path: &Path,
        options: &PlanOptions,
        files: &[FileInfo],
        force: bool,
        context: &Context,
    ) -> Outcome<Self> {
        let stdout = Self::is_stdout(path);
        if stdout || StreamSink::is_for(path) {
            if stdout && std::io::stdout().is_terminal() {
                return Err(Failure::Usage("a model would garble the terminal; redirect standard output".to_owned()));
            }
            if files.len() > 1 {
                return Err(Failure::Usage("several files do not fit a stream; name a file or a folder".to_owned()));
            }
            let interrupt = &context.interrupt;
            return Ok(Self::Stream(if stdout {
                StreamSink::stdout(interrupt)
            } else {
                StreamSink::open(path, interrupt)?
            }));
        }
        if !options.folder && (path.is_dir() || ends_in_separator(path)) {
            let default = Self::plan_options(options.format, None).file_name;
            let (folder, file) = (path.display(), path.join(default));
            let message =
                format!("'{folder}' is a folder, but the output is one file; name it, such as '{}'", file.display());
            return Err(Failure::Usage(message));
        }
        let target = if options.folder { Target::Folder(path.into()) } else { Target::File(path.into()) };
        let names = files.iter().map(|file| file.name.as_str());
        Ok(Self::Files(AtomicOutput::create(target, force, names)?))
    }

    /// Whether what is written may end up where reports are printed.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    pub(crate) fn sink(&mut self) -> &mut dyn Sink {
        match self {
            Self::Files(files) => files,
            Self::Stream(stream) => stream,
        }
    }

    /// Puts everything in place, if nothing of what it was made of changed meanwhile.
    pub(crate) fn commit(self, context: &Context) -> Outcome {
        context.sources.check_unchanged()?;
        match self {
            Self::Files(files) => files.commit()?,
            Self::Stream(mut stream) => stream.flush()?,
        }
        Ok(())
    }
}

/// Whether a path says that it is a folder's, whatever is there.
fn ends_in_separator(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().last().is_some_and(|&last| std::path::is_separator(char::from(last)))
}
