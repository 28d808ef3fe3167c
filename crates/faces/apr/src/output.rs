//! Where a job writes: a file, a folder, a stream.

use std::path::Path;

use apr_core::Progress;
use apr_io::{AtomicOutput, Interrupt, Sources, StreamSink, Target};
use apr_ops::diff::DriftReport;
use apr_ops::job::{Gate, JobError, JobReport, Planned};
use apr_registry::{CheckpointReader, FileInfo, Format, OpenOptions, Pipeline, PlanOptions, Sink};
use apr_view::Coded;

/// Output before anything is written to it.
#[must_use = "the job still has to run"]
pub struct Output {
    kind: OutputKind,
    /// The path as the user wrote it; `None` for files that have one elsewhere.
    path: Option<String>,
}

enum OutputKind {
    /// Files that appear when they are complete.
    Files(Box<AtomicOutput>),
    /// A pipe, a device or standard output.
    Stream(StreamSink),
}

impl From<AtomicOutput> for Output {
    fn from(files: AtomicOutput) -> Self {
        Self { kind: OutputKind::Files(Box::new(files)), path: None }
    }
}

impl Output {
    /// Returns `true` if this path means standard output.
    #[must_use]
    pub fn is_stdout(path: &Path) -> bool {
        path.as_os_str() == "-" || path == Path::new("/dev/stdout")
    }

    /// Returns `true` if a path is standard output, a pipe or a device.
    #[must_use]
    pub fn is_stream_at(path: &Path) -> bool {
        Self::is_stdout(path) || StreamSink::is_for(path)
    }

    /// Returns the layout for a path.
    ///
    /// If the format has folders, a path without the format's extension is a folder. Without a
    /// path, the layout is a file with the format's usual name.
    #[must_use]
    pub fn layout(format: &'static Format, path: Option<&Path>) -> PlanOptions {
        let target = format.target.as_ref();
        let usual = target.map_or("model", |target| target.file_name);
        let Some(path) = path.filter(|path| !Self::is_stdout(path)) else {
            return PlanOptions::new(format, usual);
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        let is_named = target.is_some_and(|target| {
            extension.is_some_and(|known| target.extensions.contains(&known))
        });
        let is_file = (is_named && !path.is_dir()) || StreamSink::is_for(path);
        if target.is_some_and(|target| target.folder) && !is_file {
            return PlanOptions { folder: true, ..PlanOptions::new(format, usual) };
        }

        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        PlanOptions::new(format, name)
    }

    /// Prepares to write these files of a layout.
    ///
    /// # Errors
    /// [`JobError::Request`] for several files and a stream, or one file where a folder is; E007
    /// for files that exist, unless `replace`, and where the path can't be written.
    pub fn create(
        path: &Path,
        layout: &PlanOptions,
        files: &[FileInfo],
        replace: bool,
        interrupt: &Interrupt,
    ) -> Result<Self, JobError> {
        let is_stdout = Self::is_stdout(path);
        if is_stdout || StreamSink::is_for(path) {
            if files.len() > 1 {
                let message = "several files do not fit a stream; name a file or a folder";
                return Err(JobError::Request(message.to_owned()));
            }
            let stream = if is_stdout {
                StreamSink::stdout(interrupt)
            } else {
                StreamSink::open(path, interrupt)?
            };
            return Ok(Self { kind: OutputKind::Stream(stream), path: Some(written(path)) });
        }

        if !layout.folder && (path.is_dir() || ends_in_separator(path)) {
            let usual = Self::layout(layout.format, None).file_name;
            let (folder, file) = (path.display(), path.join(usual));
            let message = format!(
                "'{folder}' is a folder, but the output is one file; name it, such as '{}'",
                file.display()
            );
            return Err(JobError::Request(message));
        }

        let target = if layout.folder {
            Target::ModelFolder(path.into())
        } else {
            Target::Model(path.into())
        };
        let names = files.iter().map(|file| file.name.as_str());
        let files = Box::new(AtomicOutput::create(target, replace, names)?);
        Ok(Self { kind: OutputKind::Files(files), path: Some(written(path)) })
    }

    /// Returns `true` if the output is a stream, which can be the place where reports are printed.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        matches!(self.kind, OutputKind::Stream(_))
    }

    /// Runs a job and puts its output in place, if none of the files in `sources` was changed
    /// meanwhile.
    ///
    /// # Errors
    /// Those of [`Planned::run`] and [`Written::commit`], and E007 where a source was changed or
    /// the output can't be put in place, and E004 where what was downloaded is not what its server
    /// has. Files are then as they were before; a stream may have got a part.
    pub fn write<P: Pipeline>(
        self,
        planned: Planned<'_>,
        sources: &Sources,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<JobReport, JobError> {
        self.run(planned, sources, pipeline, progress)?.commit()
    }

    /// Runs a job, and keeps its output hidden until it is put in place.
    ///
    /// # Errors
    /// Returns those errors of [`write`](Self::write) that occur before the output is put in place.
    pub fn run<P: Pipeline>(
        mut self,
        planned: Planned<'_>,
        sources: &Sources,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Written, JobError> {
        if let OutputKind::Files(files) = &mut self.kind {
            files.made_from(sources);
        }
        let sink: &mut dyn Sink = match &mut self.kind {
            OutputKind::Files(files) => &mut **files,
            OutputKind::Stream(stream) => stream,
        };
        sources.keep_whole();
        let is_gated = planned.is_gated();
        let report = planned.run(sink, pipeline, progress);

        // What was read in two states may look damaged.
        sources.check_unchanged()?;
        let report = report?;
        sources.finish()?;
        Ok(Written { output: self, report, is_gated })
    }
}

/// The complete output of a job, before it appears. Dropped without [`commit`](Self::commit), files
/// vanish.
pub struct Written {
    output: Output,
    report: JobReport,
    /// `true` if a quality gate must judge the output before it is put in place.
    is_gated: bool,
}

impl Written {
    /// Opens the model as it will be opened when it is in place, with its companions.
    ///
    /// # Errors
    /// [`JobError::Request`] for a stream, else those of
    /// [`PendingFiles::open_model`](apr_io::PendingFiles::open_model).
    pub fn open(&self, options: &OpenOptions) -> Result<Box<dyn CheckpointReader>, JobError> {
        match &self.output.kind {
            OutputKind::Files(files) => Ok(Coded::over(files.pending()?.open_model(options)?)),
            OutputKind::Stream(_) => {
                Err(JobError::Request("a stream can't be read back: name a file".to_owned()))
            }
        }
    }

    /// Returns the report of the job.
    #[must_use]
    pub fn report(&self) -> &JobReport {
        &self.report
    }

    /// Reads the output back, and has the gate of its job judge it.
    ///
    /// # Errors
    /// [`JobError::Gate`] where it is further from its source than the gate lets pass, and those of
    /// [`open`](Self::open) and [`Gate::judge`].
    pub fn judge<P: Pipeline>(
        &mut self,
        gate: &Gate<'_>,
        options: &OpenOptions,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<(), JobError> {
        let (report, failures) = gate.judge(&*self.open(options)?, pipeline, progress)?;
        if failures.is_empty() || gate.only_tells() {
            self.judged(Some(report), failures);
            return Ok(());
        }
        Err(JobError::Gate { failures, report: Box::new(report) })
    }

    /// Records the result of a quality gate, with warnings about an accepted output.
    pub fn judged(&mut self, drift: Option<DriftReport>, warnings: Vec<String>) {
        self.is_gated = false;
        self.report.drift = drift;
        self.report.conversion.warnings.extend(warnings);
    }

    /// Puts the output in place.
    ///
    /// # Errors
    /// E007 where it can't be; [`JobError::Request`] where its job has a gate that nobody asked.
    /// Files are then as they were before.
    pub fn commit(self) -> Result<JobReport, JobError> {
        if self.is_gated {
            let message = "the output was not judged by the gate of its job";
            return Err(JobError::Request(message.to_owned()));
        }
        let mut report = self.report;
        report.output = self.output.path;
        match self.output.kind {
            OutputKind::Files(files) => {
                let committed = files.commit()?;
                report.conversion.warnings.extend(committed.warnings());
                let made = committed.made_folders().iter().map(|made| made.display().to_string());
                report.conversion.made_folders = made.collect();
            }
            OutputKind::Stream(mut stream) => stream.flush()?,
        }
        Ok(report)
    }
}

/// Returns a path as reports have it.
fn written(path: &Path) -> String {
    path.display().to_string()
}

/// Returns `true` if a path ends in a separator, so that it means a folder.
fn ends_in_separator(path: &Path) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .last()
        .is_some_and(|&last| std::path::is_separator(char::from(last)))
}
