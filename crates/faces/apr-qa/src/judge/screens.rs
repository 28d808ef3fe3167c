//! Points 54 and 55: what the screens of models show, drawn without a terminal.

use apr_arch::Families;
use apr_core::human::statistic;
use apr_core::{CheckpointReader, Serial};
use apr_ops::tensors::{TensorRow, TensorsOptions, list};
use apr_registry::{OpenOptions, open};
use apr_source::Architecture;
use apr_testkit::onnx::cyclic;
use apr_tui::{Job, Subject, picture};

use super::tooling::{model, scaled};
use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, ensure, failed, passed};
use crate::made::Made;

/// Columns and rows that the whole test model fits on.
const SIZE: (u16, u16) = (160, 100);

fn shown(bench: &Bench<'_>, reader: &dyn CheckpointReader, keys: &str) -> String {
    let unchanged = || Ok(());
    let families = Families::builtin();
    let model =
        Subject { name: "test", reader, families: &families, architecture: Architecture::Auto };
    let job = Job {
        model,
        other: None,
        refused: None,
        payload: None,
        scan: None,
        threads: bench.subject.threads,
        max_memory: bench.subject.max_memory,
        unchanged: &unchanged,
    };
    picture(&job, keys, SIZE)
}

pub(crate) fn graph(bench: &Bench<'_>) -> Judgement {
    const CYCLE: &str = "first -> second -> first";

    let made = model(bench, &Made::llama())?;
    let screen = shown(bench, made.reader(), "g");
    for name in ["embeddings/tokens", "layers.0", "final_norm", "head/logits"] {
        ensure(screen.contains(name), format!("the graph of a test model lacks the box {name}"))?;
    }
    ensure(!screen.contains(CYCLE), "a cycle was reported in a graph without one")?;
    let reader = open(cyclic(), "cyclic.onnx", OpenOptions::default())?;
    let screen = shown(bench, &*reader, "g");
    ensure(screen.contains(CYCLE), "a cycle of nodes was not reported")?;
    passed("the boxes of a test model are drawn, and the cycle of a test graph is reported")
}

/// The first tensor whose statistics are not on the screen of a model.
fn missing(screen: &str, reader: &dyn CheckpointReader) -> Result<Option<String>, Fault> {
    let options = TensorsOptions { stats: true, ..TensorsOptions::default() };
    let report = list(reader, "test", &options, &Serial, &())?;
    let is_shown = |row: &TensorRow| {
        let line = screen.lines().find(|line| line.contains(&format!(" {} ", row.name)));
        let stats = row.stats.as_ref();
        let numbers = [stats.and_then(|stats| stats.mean), stats.and_then(|stats| stats.std)];
        line.is_some_and(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            numbers.into_iter().flatten().all(|number| words.contains(&&*statistic(number)))
        })
    };
    Ok(report.tensors.iter().find(|row| !is_shown(row)).map(|row| row.name.clone()))
}

pub(crate) fn statistics(bench: &Bench<'_>) -> Judgement {
    let made = model(bench, &Made::llama())?;
    let screen = shown(bench, made.reader(), "sa");
    if let Some(name) = missing(&screen, made.reader())? {
        return failed(format!("the screen lacks the statistics of {name}"));
    }
    let other = model(bench, &scaled())?;
    let Some(name) = missing(&screen, other.reader())? else {
        return failed("the screen shows statistics of another model");
    };
    let count = made.reader().tensors().len();
    passed(format!(
        "mean and deviation of the {count} tensors of a test model, as in the report; those of \
         {name}, scaled, are others"
    ))
}
