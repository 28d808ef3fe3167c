//! What each option of a job in parts is: declared here, once, or refused.

use crate::failure::{Failure, Outcome};

/// Step of a job in parts to which an option belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The run of a part: the option is passed there and is not stored in the plan.
    Run,
    /// Each part of the job.
    Part,
    /// The end: the whole output is judged when it is put together.
    Finish,
    /// A process that runs the whole job at once, with advice for a job in parts.
    Whole(&'static str),
}

/// Kind of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// A path.
    Path,
    /// The path of a file that every part reads: the plan has its digest.
    Setting,
}

/// Option of a command, with its scope and kind.
#[derive(Debug, Clone, Copy)]
struct Declared {
    /// Commands that have it so; empty: all others that have it.
    of: &'static [&'static str],
    key: &'static str,
    scope: Scope,
    kind: Kind,
}

const fn run(key: &'static str) -> Declared {
    Declared { of: &[], key, scope: Scope::Run, kind: Kind::Plain }
}

const fn part(key: &'static str) -> Declared {
    Declared { of: &[], key, scope: Scope::Part, kind: Kind::Plain }
}

const fn path(key: &'static str) -> Declared {
    Declared { kind: Kind::Path, ..part(key) }
}

const fn setting(key: &'static str) -> Declared {
    Declared { kind: Kind::Setting, ..part(key) }
}

const fn finish(key: &'static str) -> Declared {
    Declared { scope: Scope::Finish, ..part(key) }
}

const fn whole(key: &'static str, advice: &'static str) -> Declared {
    Declared { scope: Scope::Whole(advice), ..part(key) }
}

const fn of(of: &'static [&'static str], declared: Declared) -> Declared {
    Declared { of, ..declared }
}

const TRAINS: &str = "distillation can't be split: run `apr distill` first, then plan the \
    conversion of its output";
const SEARCHES: &str = "types are chosen by running the model, which parts do not do";
const RUNS: &str = "parts do not run the model: run `apr validate` in one process for that";

/// All options of the commands that are done in parts.
const OPTIONS: &[Declared] = &[
    run("json"),
    run("quiet"),
    run("verbose"),
    run("color"),
    run("threads"),
    run("max-memory"),
    run("no-verify"),
    run("key"),
    run("password-file"),
    run("offline"),
    run("no-cache"),
    run("insecure"),
    run("timeout"),
    part("max-metadata"),
    part("pickle-class"),
    part("arch"),
    setting("arch-file"),
    setting("config"),
    part("file"),
    part("include"),
    part("exclude"),
    path("model"),
    path("models"),
    path("left"),
    path("right"),
    path("output"),
    part("overwrite"),
    part("relaxed"),
    part("force"),
    part("precision"),
    finish("quality-check"),
    finish("max-drift"),
    Declared { kind: Kind::Path, ..finish("canary") },
    whole("dry-run", "`apr plan` writes only the plan"),
    part("prefix"),
    part("mmproj"),
    part("rename"),
    part("drop"),
    part("keep"),
    part("format"),
    of(&["import"], part("from")),
    part("license"),
    part("shard-size"),
    part("align"),
    part("streaming"),
    whole("analyze-source", "its output can't be split"),
    whole("sha256", "the plan records digests"),
    part("quantize"),
    part("type"),
    part("dequantize"),
    part("keep-quantization"),
    part("embedding-type"),
    part("output-type"),
    part("tensor-type"),
    part("pure"),
    part("requantize"),
    setting("imatrix"),
    setting("calibration"),
    whole("search", SEARCHES),
    whole("bits-per-weight", SEARCHES),
    whole("max-size", SEARCHES),
    of(&["quantize"], whole("context", SEARCHES)),
    of(&["quantize"], whole("chunks", SEARCHES)),
    part("prune"),
    part("prune-scope"),
    whole("prune-method", "each part would prune the whole model"),
    part("prune-nm"),
    part("prune-threshold"),
    part("threshold"),
    part("prune-layers"),
    part("prune-heads"),
    part("prune-neurons"),
    part("sparse"),
    part("target"),
    part("lowrank"),
    part("rank"),
    part("energy"),
    part("dense"),
    whole("distill", TRAINS),
    whole("distill-layers", TRAINS),
    whole("distill-by", TRAINS),
    whole("data", TRAINS),
    whole("temperature", TRAINS),
    whole("alpha", TRAINS),
    whole("hidden-loss", TRAINS),
    whole("epochs", TRAINS),
    whole("steps", TRAINS),
    whole("batch", TRAINS),
    whole("lr", TRAINS),
    whole("warmup", TRAINS),
    whole("seed", TRAINS),
    whole("held-out", TRAINS),
    whole("checkpoint", TRAINS),
    whole("resume", TRAINS),
    path("lora"),
    part("strategy"),
    path("base"),
    part("weights"),
    part("density"),
    part("t"),
    part("lambda"),
    part("normalize"),
    path("tokenizer"),
    of(&["merge"], part("seed")),
    part("parameter"),
    path("models-dir"),
    part("opset"),
    whole("simplify", "run `apr convert --simplify` on the output"),
    part("shape"),
    part("from"),
    part("to"),
    part("keep-io"),
    part("exclude-op"),
    part("exclude-node"),
    setting("calibration-method"),
    part("external-data"),
    part("with-past"),
    part("merged"),
    part("latent-cache"),
    part("task"),
    part("matmul-nbits"),
    part("compress"),
    part("encrypt"),
    path("recipient"),
    part("password"),
    whole("encrypt-metadata", "the manifest of shards repeats the metadata"),
    whole("sign", "sign the manifest with `apr sign` after `apr finish`"),
    part("checksum"),
    part("nan-check"),
    part("zero-check"),
    part("shapes"),
    part("physics"),
    part("signature"),
    path("trusted"),
    part("strict"),
    whole("manifest", "run `apr validate --manifest` for that"),
    whole("source", "run `apr validate --source` for that"),
    whole("sarif", "`apr finish` prints the report, with --json as JSON"),
    whole("markdown", "`apr finish` prints the report, with --json as JSON"),
    whole("other", RUNS),
    whole("quality", RUNS),
    whole("min-score", RUNS),
    whole("text", RUNS),
    whole("context", RUNS),
    whole("chunks", RUNS),
    whole("input", RUNS),
    of(&["validate"], whole("max-drift", RUNS)),
    setting("tensor-mapping"),
    part("tolerance"),
    part("read"),
    part("exit-code"),
    part("max-l2"),
    part("tensors"),
];

/// Values of `--tokenizer` that are not paths.
const VOCABULARIES: [&str; 2] = ["union", "base"];

/// Returns the declaration of a command's option; one for that command precedes one for all
/// commands.
fn declared(command: &str, key: &str) -> Option<&'static Declared> {
    let named = |of: &[&str]| OPTIONS.iter().find(|one| one.key == key && one.of == of);
    let own = OPTIONS.iter().find(|one| one.key == key && one.of.contains(&command));
    own.or_else(|| named(&[]))
}

/// Rejects options that a job in parts does not support.
///
/// # Errors
/// [`Failure::Usage`], with what to do instead.
pub(super) fn check(command: &str, key: &str) -> Outcome {
    let advice = match declared(command, key).map(|one| one.scope) {
        Some(Scope::Part | Scope::Finish) => return Ok(()),
        Some(Scope::Run) => {
            return Err(Failure::Usage(format!(
                "--{key} is an option of the run, not of the job: pass it to `apr plan` before \
                 the job, and to `apr run-part`"
            )));
        }
        Some(Scope::Whole(advice)) => advice,
        None => "run the command in one process",
    };
    Err(Failure::Usage(format!("`apr {command} --{key}` is not supported in parts: {advice}")))
}

/// Returns `true` if an option is a gate, which is evaluated when the output is finished.
pub(super) fn judges(command: &str, key: &str) -> bool {
    declared(command, key).is_some_and(|one| one.scope == Scope::Finish)
}

/// Returns `true` if a value of an option is a path.
pub(super) fn is_path(command: &str, key: &str, text: &str) -> bool {
    let has_path = declared(command, key).is_some_and(|one| one.kind != Kind::Plain);
    has_path && !(key == "tokenizer" && VOCABULARIES.contains(&text))
}

/// Options with files that every part reads.
pub(super) fn settings() -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().filter(|one| one.kind == Kind::Setting).map(|one| one.key)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::super::words::{COMMANDS, arguments, key_of};
    use super::*;
    use crate::args::Cli;

    /// An option that a command has and `OPTIONS` does not declare would be lost in parts, or
    /// rejected on its first use.
    #[test]
    fn every_option_of_a_job_is_declared_once_and_no_other_is() {
        let mut command = Cli::command();
        command.build();
        let mut used = BTreeSet::new();
        for name in COMMANDS {
            for arg in arguments(&command, name) {
                let key = key_of(arg);
                let found = declared(name, &key);
                assert!(found.is_some(), "`apr {name} --{key}` is not declared");
                used.extend(found.map(|one| (one.of, one.key)));
            }
        }
        let all: Vec<_> = OPTIONS.iter().map(|one| (one.of, one.key)).collect();
        let once: BTreeSet<_> = all.iter().copied().collect();
        assert_eq!(all.len(), once.len(), "declared twice");
        assert_eq!(once, used, "declared, and of no command");
    }
}
