//! What the judges work with: the model, what one read of it showed, and room for files.

use std::cell::{Cell, OnceCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use apr_arch::FamilyModel;
use apr_core::{CheckpointReader, Pipeline, Progress, Result, keys};
use apr_io::{NativeHost, Threads, io_error};
use apr_ops::lint::LintReport;
use apr_ops::session::Session;
use apr_ops::validate::{Check, CheckOutcome, Finding, Status, ValidateOptions, ValidateReport};
use apr_registry::apr2;
use apr_run::{Facts, Host, RunOptions};
use apr_source::Source;
use tempfile::TempDir;

use crate::judgement::Fault;
use crate::made::Made;
use crate::points::Category;
use crate::ran::{NotRun, Ran};
use crate::subject::Subject;

/// Reason why a point about the command line does not apply.
pub(crate) const NO_PROGRAM: &str =
    "the program `apr` is not in the same folder, and the point is about its command line";

/// Model and the known facts about it.
pub(crate) struct Bench<'s> {
    pub(crate) subject: &'s Subject<'s>,
    host: Box<dyn Host + 's>,
    validation: Option<ValidateReport>,
    lint: LintReport,
    ran: OnceCell<std::result::Result<Ran, NotRun>>,
    folder: TempDir,
    made: Cell<u32>,
}

impl<'s> Bench<'s> {
    /// Creates the bench. Reads the model once if the points of a category require its weights.
    ///
    /// # Errors
    /// E002 and E007 when the model can't be read, E007 if there is no space for temporary files.
    pub(crate) fn new<P: Pipeline>(
        subject: &'s Subject<'s>,
        category: Option<Category>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let source = subject.source;
        let is_read =
            category.is_none_or(|only| matches!(only, Category::Format | Category::Physics));
        let validation = if is_read { Some(validate(source, pipeline, progress)?) } else { None };
        let folder = tempfile::Builder::new().prefix("apr-qa-").tempdir();
        let folder = folder.map_err(|error| io_error(&error, &std::env::temp_dir()))?;
        let host = NativeHost::new(subject.threads, subject.interrupt.clone(), |_: &str, _| {});
        Ok(Self {
            subject,
            host: Box::new(host),
            validation,
            lint: session_on(source).lint()?,
            ran: OnceCell::new(),
            folder,
            made: Cell::new(0),
        })
    }

    pub(crate) fn reader(&self) -> &'s dyn CheckpointReader {
        self.subject.source.reader()
    }

    pub(crate) fn source(&self) -> &'s Source<'s> {
        self.subject.source
    }

    /// The reports on the model.
    pub(crate) fn session(&self) -> Session<'s> {
        session_on(self.source())
    }

    pub(crate) fn family(&self) -> Option<&FamilyModel<'s>> {
        self.source().family().ok().flatten()
    }

    pub(crate) fn facts(&self) -> &'s Facts {
        self.subject.facts
    }

    /// A host that keeps warnings to itself.
    pub(crate) fn host(&self) -> &dyn Host {
        &*self.host
    }

    pub(crate) fn lint(&self) -> &LintReport {
        &self.lint
    }

    /// Returns `true` if the model is an APR2 file. Many points are about this container.
    pub(crate) fn is_apr2(&self) -> bool {
        self.reader().format() == &apr2::FORMAT
    }

    /// Returns the validation report of the single read of the model.
    pub(crate) fn validation(&self) -> std::result::Result<&ValidateReport, Fault> {
        self.validation.as_ref().ok_or_else(|| Fault::new("the model was not read"))
    }

    /// Returns the outcome of a validation check.
    pub(crate) fn check(&self, check: Check) -> std::result::Result<&CheckOutcome, Fault> {
        let found = self.validation()?.checks.iter().find(|outcome| outcome.check == check);
        found.ok_or_else(|| Fault::new("the check was not made"))
    }

    /// Returns the reason why a check was skipped, if it was.
    pub(crate) fn skipped(&self, check: Check) -> std::result::Result<Option<&str>, Fault> {
        let outcome = self.check(check)?;
        Ok((outcome.status == Status::Skipped).then_some(&*outcome.detail))
    }

    /// Returns the reason why the weights were not examined, if they were not.
    pub(crate) fn unread(&self) -> std::result::Result<Option<&str>, Fault> {
        self.skipped(Check::Finite)
    }

    /// Returns `true` if the model has a configuration that determines shapes and sizes.
    ///
    /// Without one, they are derived from the tensors, so a comparison would be meaningless.
    pub(crate) fn has_configuration(&self) -> bool {
        self.reader().metadata().object(keys::ARCHITECTURE).is_some_and(|it| !it.is_empty())
    }

    /// Findings that `wanted` picks.
    pub(crate) fn findings(
        &self,
        wanted: impl Fn(&Finding) -> bool,
    ) -> std::result::Result<Vec<&Finding>, Fault> {
        let findings = self.validation()?.findings.iter();
        Ok(findings.filter(|finding| wanted(finding)).collect())
    }

    /// Returns the run of the model on one input, which is made once.
    pub(crate) fn ran(&self) -> std::result::Result<&Ran, &NotRun> {
        self.ran.get_or_init(|| Ran::of(self)).as_ref()
    }

    /// Options for running a model that reads an input as a whole.
    pub(crate) fn run_options(&self) -> RunOptions {
        let mut options = RunOptions::reading();
        options.max_memory = self.subject.max_memory;
        options
    }

    /// A new folder for files.
    pub(crate) fn folder(&self) -> std::result::Result<PathBuf, Fault> {
        let number = self.made.get();
        self.made.set(number + 1);
        let folder = self.folder.path().join(number.to_string());
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    /// A folder with a made model.
    pub(crate) fn folder_of(&self, made: &Made) -> std::result::Result<PathBuf, Fault> {
        let folder = self.folder()?;
        made.write(&folder)?;
        Ok(folder)
    }

    /// Returns a pipeline for another read of the model.
    pub(crate) fn pipeline(&self) -> Result<Threads> {
        let Subject { threads, max_memory, ref interrupt, .. } = *self.subject;
        Threads::new(threads, max_memory, interrupt.clone())
    }

    /// Runs the program `apr` in a folder. Returns `None` without a program.
    pub(crate) fn apr(
        &self,
        folder: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> std::result::Result<Option<Output>, Fault> {
        let Some(program) = &self.subject.apr else { return Ok(None) };
        let mut command = Command::new(program);
        Ok(Some(isolated(command.args(arguments), folder, environment).output()?))
    }

    /// Runs a shell script in a folder, in which `$APR` is the program.
    ///
    /// Returns `None` if the program or the shell does not exist.
    pub(crate) fn shell(
        &self,
        folder: &Path,
        script: &str,
    ) -> std::result::Result<Option<Output>, Fault> {
        let Some(program) = &self.subject.apr else { return Ok(None) };
        let mut command = Command::new("sh");
        match isolated(command.args(["-c", script]).env("APR", program), folder, &[]).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            output => Ok(Some(output?)),
        }
    }
}

/// Isolates a command from the user's settings, which must not affect the result.
fn isolated<'c>(
    command: &'c mut Command,
    folder: &Path,
    environment: &[(&str, &str)],
) -> &'c mut Command {
    let own = std::env::vars_os().map(|(name, _)| name);
    for name in own.filter(|name| name.to_string_lossy().starts_with("APR_")) {
        command.env_remove(name);
    }
    command
        .current_dir(folder)
        .env("HOME", folder)
        .env("USERPROFILE", folder)
        .env("XDG_CONFIG_HOME", folder)
        .env("XDG_CACHE_HOME", folder)
        .envs(environment.iter().copied())
        .stdin(std::process::Stdio::null())
}

fn validate<P: Pipeline>(
    source: &Source<'_>,
    pipeline: &P,
    progress: &dyn Progress,
) -> Result<ValidateReport> {
    let options = ValidateOptions::default();
    session_on(source).validate(options, pipeline, progress)
}

fn session_on<'s>(source: &Source<'s>) -> Session<'s> {
    Session::of(source.through(source.reader()))
}
