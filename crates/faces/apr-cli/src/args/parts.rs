use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use super::completion;
use super::write::parse_shard_size;

fn parse_parts(text: &str) -> Result<usize, String> {
    let most = apr_ops::parts::MAX_PARTS;
    let parts = text.parse().ok().filter(|parts| (1..=most).contains(parts));
    parts.ok_or_else(|| format!("expected a number of parts from 1 to {most}"))
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Approximate number of parts; large tensors may make it smaller (this or --max-part)
    #[arg(long, value_name = "N", value_parser = parse_parts)]
    pub(crate) parts: Option<usize>,
    /// Maximum tensor bytes per part, such as 5GB; may raise the number of parts
    #[arg(long, value_name = "SIZE", value_parser = parse_shard_size)]
    pub(crate) max_part: Option<u64>,
    /// Output path of the plan; the job's output must be in its folder or below
    #[arg(short, long, value_name = "PLAN")]
    pub(crate) output: PathBuf,
    /// Overwrite an existing plan
    #[arg(short = 'f', long)]
    pub(crate) overwrite: bool,
    /// Identify inputs by size and modification time, without reading their weights
    #[arg(long)]
    pub(crate) no_digests: bool,
    /// The job and its options, as on a single machine: convert, prune, factorize, merge, import,
    /// quantize, encrypt, validate or diff
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "JOB",
        add = ArgValueCompleter::new(completion::jobs)
    )]
    pub(crate) job: Vec<String>,
}

impl PlanArgs {
    /// Removes `--json` from the words of the job, and returns `true` if it was among them.
    ///
    /// It is about the report of `plan`, wherever it stands.
    pub(crate) fn take_json(&mut self) -> bool {
        let mut words = self.job.iter().take_while(|word| *word != "--");
        let place = words.position(|word| word == "--json");
        place.map(|at| self.job.remove(at)).is_some()
    }
}

/// Arguments of `run-part`.
#[derive(Debug, Args)]
pub(crate) struct RunPartArgs {
    /// The plan
    pub(crate) plan: PathBuf,
    /// Part number, from 0
    pub(crate) part: usize,
}

/// Arguments of `finish`.
#[derive(Debug, Args)]
pub(crate) struct FinishArgs {
    /// The plan
    pub(crate) plan: PathBuf,
}
