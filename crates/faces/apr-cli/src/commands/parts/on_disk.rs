//! A plan and the results of its parts, as files.

use std::path::{Path, PathBuf};

use apr_io::{AtomicOutput, FileSource, Target, io_error};
use apr_ops::parts::{PartResult, PartsPlan};
use apr_registry::{ByteSource, Error, IoCause, Sink, read_vec};

use crate::args::Cli;
use crate::context::Context;
use crate::failure::{Failure, Outcome, quoted};

use super::words::parsed;

/// The version that all parts of a plan are done with.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A plan that was read.
pub(super) struct OpenPlan {
    pub(super) plan: PartsPlan,
    /// Path of the plan as the user wrote it.
    path: PathBuf,
    /// Digest that identifies the plan.
    pub(super) digest: String,
}

impl OpenPlan {
    /// Reads a plan.
    pub(super) fn read(path: &Path, context: &Context) -> Outcome<Self> {
        let bytes = read(path, context)?;
        let plan = PartsPlan::parse(&bytes, &path.display().to_string(), &context.options.limits)?;
        if plan.apr != VERSION {
            let made = apr_registry::Escaped::short(&plan.apr).to_string();
            let message = format!(
                "the plan was made by apr {made}, but this is apr {VERSION}: use one version for \
                 all parts"
            );
            return Err(Error::version(message).in_file(path.display()).into());
        }
        let digest = plan.digest();
        Ok(Self { plan, path: path.to_path_buf(), digest })
    }

    /// The folder of the plan, as the user wrote it.
    pub(super) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// The job, and the settings that it was planned with.
    pub(super) fn job(&self, context: &Context) -> Outcome<(Cli, Context)> {
        let cli = parsed(&self.plan.job, self.folder()).map_err(|failure| match failure {
            Failure::Model(error) => error.in_file(self.path.display()).into(),
            other => other,
        })?;
        let context = context.of_job(&cli);
        Ok((cli, context))
    }

    /// The file of a part's result.
    pub(super) fn result_path(&self, part: usize) -> PathBuf {
        self.path.with_extension("parts").join(format!("{part:05}.json"))
    }

    /// Returns the result of a part, if there is a result for this plan.
    pub(super) fn result(&self, part: usize, context: &Context) -> Option<PartResult> {
        let path = self.result_path(part);
        let bytes = read(&path, context).ok()?;
        let result =
            PartResult::parse(&bytes, &path.display().to_string(), &context.options.limits).ok()?;
        (result.plan == self.digest && result.part == part).then_some(result)
    }

    /// Rejects an output path that links lead out of the plan's folder.
    ///
    /// A plan and the files beside it can come from an untrusted source.
    ///
    /// # Errors
    /// E007.
    pub(super) fn check_inside(&self, path: &Path) -> Outcome {
        let folder = Path::new(".").join(self.folder());
        let real =
            |path: &Path| apr_platform::canonicalize(path).map_err(|error| io_error(&error, path));
        let root = real(&folder)?;
        let path = Path::new(".").join(path);
        let existing = path.ancestors().find(|path| path.symlink_metadata().is_ok());

        // A link that leads nowhere would be followed as soon as its target is there.
        if existing.is_some_and(|existing| real(existing).is_ok_and(|at| at.starts_with(root))) {
            return Ok(());
        }
        let message = "a link leads out of the plan's folder, and parts write only below it";
        Err(Error::io(IoCause::Other, message).in_file(path.display()).into())
    }

    /// The command that does a part.
    pub(super) fn command(&self, part: usize) -> String {
        let plan = self.path.display().to_string();
        format!("apr run-part {} {part}", quoted(&plan).unwrap_or(plan))
    }
}

fn read(path: &Path, context: &Context) -> Outcome<Vec<u8>> {
    let file = FileSource::open(path)?;
    context
        .options
        .limits
        .check_metadata(file.len())
        .map_err(|error| error.in_file(path.display()))?;
    Ok(read_vec(&file, 0, file.len())?)
}

/// Writes a small file, which appears when it is complete.
pub(super) fn write(path: &Path, bytes: &[u8], replace: bool, context: &Context) -> Outcome {
    context.printer.committed(&prepare(path, bytes, replace)?.commit()?);
    Ok(())
}

/// A small file that is complete, before it appears.
pub(super) fn prepare(path: &Path, bytes: &[u8], replace: bool) -> Outcome<AtomicOutput> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut output =
        AtomicOutput::create(Target::File(path.to_path_buf()), replace, [name.as_str()])?;
    output.write_all(bytes)?;
    Ok(output)
}
