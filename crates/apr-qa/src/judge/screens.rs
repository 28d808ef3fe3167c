//! Points 54 and 55: what the screens of models show, drawn without a terminal.

use apr_arch::Families;
use apr_core::human::statistic;
use apr_core::{CheckpointReader, Serial};
use apr_ops::tensors::{TensorsOptions, list};
use apr_registry::{OpenOptions, open};
use apr_source::Architecture;
use apr_testkit::onnx::cyclic;
use apr_tui::{Job, Subject, picture};

use super::tooling::model;
use crate::bench::Bench;
use crate::judgement::{Judgement, ensure, passed};
use crate::made::Made;

/// Columns and rows that the whole made model fits on.
const SIZE: (u16, u16) = (160, 100);

fn shown(bench: &Bench<'_>, reader: &dyn CheckpointReader, keys: &str) -> String {
    let unchanged = || Ok(());
    let families = Families::builtin();
    let model =
        Subject { name: "made", reader, families: &families, architecture: Architecture::Auto };
    let job = Job {
        model,
        other: None,
        threads: bench.subject.threads,
        max_memory: bench.subject.max_memory,
        unchanged: &unchanged,
    };
    picture(&job, keys, SIZE)
}

pub(crate) fn graph(bench: &Bench<'_>) -> Judgement {
    let made = model(bench, &Made::llama())?;
    let screen = shown(bench, made.reader(), "g");
    for name in ["embeddings/tokens", "layers.0", "final_norm", "head/logits"] {
        ensure(screen.contains(name), format!("the graph of a made model has no box {name}"))?;
    }
    let reader = open(cyclic(), "cyclic.onnx", OpenOptions::default())?;
    let screen = shown(bench, &*reader, "g");
    ensure(screen.contains("first -> second -> first"), "a cycle of nodes was not named")?;
    passed("the boxes of a made model, and a made graph whose nodes wait for each other: named")
}

pub(crate) fn statistics(bench: &Bench<'_>) -> Judgement {
    let made = model(bench, &Made::llama())?;
    let screen = shown(bench, made.reader(), "sa");
    let options = TensorsOptions { stats: true, ..TensorsOptions::default() };
    let report = list(made.reader(), "made", &options, &Serial, &())?;
    for row in &report.tensors {
        let name = &row.name;
        let line = screen.lines().find(|line| line.contains(&format!(" {name} ")));
        let stats = row.stats.as_ref();
        let numbers = [stats.and_then(|stats| stats.mean), stats.and_then(|stats| stats.std)];
        let is_shown = line.is_some_and(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            numbers.into_iter().flatten().all(|number| words.contains(&&*statistic(number)))
        });
        ensure(is_shown, format!("the statistics of {name} are not on the screen"))?;
    }
    let count = report.tensors.len();
    passed(format!("mean and deviation of the {count} tensors of a made model, as in the report"))
}
