//! Runs a model's graph several times on made-up inputs, to measure it from outside:
//! `xtask/bench/infer.py`.
//!
//! `cargo run --profile dist -p apr-cli --example run_speed -- MODEL RUNS THREADS [past] [taps]
//! input_ids=1x128 ...`
//!
//! Each `NAME=SHAPE` is an input, `NAME*=SHAPE` all whose names begin so. Integers are 1, elements
//! of floats small numbers in a pattern. `past` asks for the graph with a cache, `taps` sums up
//! every value.

use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use apr_arch::Families;
use apr_blocks::GraphOptions;
use apr_core::{Error, Result};
use apr_graph::{ElementType, Graph, Node};
use apr_infer::{Data, Engine, Flow, RunLimits, Step, Tap, Tensor, Unwatched, Value};
use apr_io::{Crew, open_model_with_companions};
use apr_ops::graph::with_graphs;
use apr_registry::OpenOptions;
use apr_source::Source;
use apr_tensor::stats::{Moments, Scratch};

/// Moments of every value, as a tap of statistics has them.
#[derive(Default)]
struct Statistics {
    scratch: Scratch,
    sum: f64,
}

impl Tap for Statistics {
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        true
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, step: &Step<'_>) -> Flow {
        for output in step.outputs {
            if let Ok(values) = output.tensor().and_then(Tensor::values::<f32>) {
                self.sum +=
                    Moments::of_values(values, &mut self.scratch).finish().mean.unwrap_or(0.0);
            }
        }
        Flow::Continue
    }
}

fn tensor(element: ElementType, shape: Vec<usize>) -> Result<Tensor> {
    let count = shape.iter().product();
    if element.is_float() {
        let values = (0..count).map(|at: usize| (at * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
        return Tensor::new(shape, values)?.cast(element);
    }
    Tensor::with_type(ElementType::I64, shape, Data::I64(vec![1; count]))?.cast(element)
}

/// The inputs that the arguments name.
fn inputs(graph: &Graph, arguments: &[String]) -> Result<Vec<(String, Value)>> {
    let mut inputs = Vec::new();
    for (pattern, shape) in arguments.iter().filter_map(|argument| argument.split_once('=')) {
        let shape: Vec<usize> = shape.split('x').filter_map(|size| size.parse().ok()).collect();
        for id in &graph.body.inputs {
            let value = graph.body.value(*id);
            let chosen = match pattern.strip_suffix('*') {
                Some(start) => value.name.starts_with(start),
                None => value.name == pattern,
            };
            if chosen {
                let element = value.element().unwrap_or(ElementType::F32);
                inputs.push((value.name.clone(), tensor(element, shape.clone())?.into()));
            }
        }
    }
    Ok(inputs)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, runs, threads, rest @ ..] = &arguments[..] else {
        return Err(Error::format("run_speed MODEL RUNS THREADS [past] [taps] NAME=SHAPE ..."));
    };
    let number = |text: &String| {
        text.parse::<usize>().map_err(|_| Error::format(format!("'{text}' is no number")))
    };
    let (runs, threads) =
        (number(runs)?, NonZeroUsize::new(number(threads)?).unwrap_or(NonZeroUsize::MIN));
    let has = |word: &str| rest.iter().any(|argument| argument == word);
    let reader = open_model_with_companions(Path::new(path), &OpenOptions::default())?;
    let families = Families::builtin();
    let source = Source::new(&*reader, &families).named(path);
    let options = GraphOptions { past: has("past"), ..GraphOptions::default() };
    with_graphs(&source, &options, |reader, parts| {
        let graph = &parts[0].graph;
        let session = Engine::prepare(graph, reader, RunLimits::default())?;
        let wanted: Vec<_> =
            graph.body.outputs.iter().map(|id| graph.body.value(*id).name.as_str()).collect();
        let (crew, given) = (Crew::new(threads), inputs(graph, rest)?);
        // The first run reads the weights.
        session.run(given.clone(), &wanted, &crew, &mut Unwatched)?;
        let (mut statistics, mut peak, mut least) = (Statistics::default(), 0, f64::INFINITY);
        for _ in 0..runs {
            let tap: &mut dyn Tap = if has("taps") { &mut statistics } else { &mut Unwatched };
            let (given, start) = (given.clone(), Instant::now());
            let outcome = session.run(given, &wanted, &crew, tap)?;
            least = least.min(start.elapsed().as_secs_f64() * 1e3);
            peak = outcome.peak_bytes;
        }
        println!("{least:.3} ms by the fastest run, {peak} bytes of values");
        Ok(())
    })
}
