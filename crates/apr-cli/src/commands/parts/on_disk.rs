//! A plan and the results of its parts, as files.

use std::path::{Path, PathBuf};

use apr::{ByteSource, Error, Sink, read_vec};
use apr_io::{AtomicOutput, FileSource, Target};
use apr_ops::parts::{PartResult, PartsPlan};

use crate::args::Cli;
use crate::context::Context;
use crate::failure::{Failure, Outcome, quoted};

use super::words::parsed;

/// The version that all parts of a plan are done with.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A plan that was read.
pub(super) struct OpenPlan {
    pub(super) plan: PartsPlan,
    /// As the user wrote it.
    path: PathBuf,
    /// Tells it apart from other plans.
    pub(super) digest: String,
}

impl OpenPlan {
    /// Reads a plan.
    pub(super) fn read(path: &Path, context: &Context) -> Outcome<Self> {
        let bytes = read(path, context)?;
        let plan = PartsPlan::parse(&bytes, &path.display().to_string(), &context.options.limits)?;
        if plan.apr != VERSION {
            let made = apr::Escaped::short(&plan.apr).to_string();
            let message = format!(
                "the plan was made by apr {made}, and this is {VERSION}; all parts are done by one \
                 version, or their bytes may differ"
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
        let context = context.of_job(&cli.global, &cli.remote);
        Ok((cli, context))
    }

    /// The file of a part's result.
    pub(super) fn result_path(&self, part: usize) -> PathBuf {
        self.path.with_extension("parts").join(format!("{part:05}.json"))
    }

    /// The result of a part, where there is one of this plan.
    pub(super) fn result(&self, part: usize, context: &Context) -> Option<PartResult> {
        let path = self.result_path(part);
        let bytes = read(&path, context).ok()?;
        let result =
            PartResult::parse(&bytes, &path.display().to_string(), &context.options.limits).ok()?;
        (result.plan == self.digest && result.part == part).then_some(result)
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
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut output =
        AtomicOutput::create(Target::File(path.to_path_buf()), replace, [name.as_str()])?;
    output.write_all(bytes)?;
    context.printer.warn_all(output.commit()?.warnings());
    Ok(())
}
