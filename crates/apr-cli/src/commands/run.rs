//! `apr run`.

mod text;

use std::io::{self, Write};
use std::path::Path;

use apr::Escaped;
use apr_blocks::GraphOptions;
use apr_graph::{Graph, Node, Origin, Value as GraphValue};
use apr_infer::{Engine, Flow, RunLimits, Session, Step, Tap, Tensor, Value};
use apr_io::{Crew, Interrupt, io_error};
use apr_ops::run::{ArrayReport, Runnable, arrays_of, from_json, report, with_graphs};
use apr_source::Source;

use crate::args::RunArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::printer::{BOLD, DIM};
use crate::{human, model};

/// Elements of an output that fit the terminal.
const SHOWN: usize = 12;

/// Stops a run when the user does.
struct UntilInterrupted(Interrupt);

impl Tap for UntilInterrupted {
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        true
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, _: &Step<'_>) -> Flow {
        if self.0.0.load(std::sync::atomic::Ordering::Relaxed) { Flow::Stop } else { Flow::Continue }
    }
}

/// Runs a model.
pub(super) fn run(args: &RunArgs, context: &Context) -> Outcome {
    let model = model::open_with_companions(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let architecture = context.architecture()?;
    let source = Source::new(&*model.reader, context.families()?).named(&model.name).taken_for(&architecture);
    let continues = args.prompt.is_some() || !args.tokens.is_empty();
    let options = GraphOptions { past: continues, task: args.task.clone(), ..GraphOptions::default() };
    with_graphs(&source, &options, |reader, parts| {
        let part = chosen(parts, args.part.as_deref())?;
        let mut limits = RunLimits::default();
        limits.max_memory = context.max_memory();
        let session = Engine::prepare(&part.graph, reader, limits)?;
        let workers = Crew::new(context.threads());
        if continues {
            return text::run(args, context, &*model.reader, &session, workers);
        }
        run_arrays(args, context, &model.name, part, &session, workers)
    })
}

/// The part that runs.
fn chosen<'p>(parts: &'p [Runnable], name: Option<&str>) -> Outcome<&'p Runnable> {
    let names = || parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>();
    match (name, parts) {
        (None, [part]) => Ok(part),
        (None, _) => Err(Failure::Usage(format!(
            "the model has several parts; choose one: --part {}",
            names().join(" or --part ")
        ))),
        (Some(name), parts) => parts.iter().find(|part| part.name == name).ok_or_else(|| {
            Failure::Usage(format!("the model has no part '{}'; it has {}", Escaped(name), names().join(", ")))
        }),
    }
}

fn run_arrays(
    args: &RunArgs,
    context: &Context,
    file: &str,
    part: &Runnable,
    session: &Session<'_>,
    workers: Crew,
) -> Outcome {
    let inputs = inputs(args, context, &part.graph)?;
    let body = &part.graph.body;
    let outputs = || body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect::<Vec<_>>();
    let wanted = if args.want.is_empty() { outputs() } else { args.want.iter().map(String::as_str).collect() };
    let mut tap = UntilInterrupted(context.interrupt.clone());
    let outcome = session.run(inputs, &wanted, &workers, &mut tap)?;
    if outcome.stopped {
        return Err(apr::Error::io(apr::IoCause::Interrupted, "interrupted").into());
    }
    let report = report(file, &part.name, &wanted, &outcome)?;
    context.printer.report(&report, |out, report| {
        report.outputs.iter().try_for_each(|output| render(out, output))?;
        writeln!(out, "{DIM}{} of values at most{DIM:#}", human::bytes(report.peak_bytes))
    })
}

/// The arrays of all files, each as the type that the graph expects.
fn inputs(args: &RunArgs, context: &Context, graph: &Graph) -> Outcome<Vec<(String, Value)>> {
    let mut found: Vec<(Option<String>, Tensor)> = Vec::new();
    for (name, path) in &args.input {
        let mut arrays = read_arrays(path, context)?;
        if let Some(name) = name {
            let [(own, _)] = arrays.as_mut_slice() else {
                let message = format!("{} has {} arrays, so it is not one input", path.display(), arrays.len());
                return Err(Failure::Usage(message));
            };
            *own = Some(name.clone());
        }
        found.extend(arrays);
    }
    let body = &graph.body;
    let open: Vec<&GraphValue> = body.inputs.iter().map(|id| body.value(*id)).collect();
    let named = |name: &str| open.iter().find(|value| value.name == name).copied();
    let needed: Vec<_> = open.iter().filter(|value| value.origin == Origin::Input).collect();
    let mut inputs = Vec::with_capacity(found.len());
    for (name, tensor) in found {
        let value = match &name {
            Some(name) => named(name).or_else(|| only(&needed).filter(|_| args.input.len() == 1 && name == "array")),
            None => only(&needed),
        };
        let Some(value) = value else { return Err(no_such_input(name.as_deref(), &needed)) };
        let expected = value.element().unwrap_or(tensor.element());
        let message = |error: apr::Error| Failure::Model(error.for_tensor(&value.name));
        inputs.push((value.name.clone(), Value::Tensor(tensor.cast(expected).map_err(message)?)));
    }
    Ok(inputs)
}

/// The only input that a model needs.
fn only<'v>(needed: &[&&'v GraphValue]) -> Option<&'v GraphValue> {
    match needed {
        [value] => Some(value),
        _ => None,
    }
}

fn no_such_input(name: Option<&str>, needed: &[&&GraphValue]) -> Failure {
    let list: Vec<String> = needed.iter().map(|value| Escaped(&value.name).to_string()).collect();
    let has = format!("the model has the inputs {}", list.join(", "));
    Failure::Usage(match name {
        Some(name) => {
            format!("there is no input '{}'; {has}. --input NAME=FILE says which one a file is for", Escaped(name))
        }
        None => format!("which input is it? {has}: --input NAME=FILE"),
    })
}

fn read_arrays(path: &Path, context: &Context) -> Outcome<Vec<(Option<String>, Tensor)>> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        let text = std::fs::read_to_string(path).map_err(|error| io_error(&error, path))?;
        return Ok(from_json(&text).map_err(|error| error.in_file(path.display()))?);
    }
    let reader = model::open_plain(path, context)?.reader;
    let arrays = arrays_of(&*reader).map_err(|error| error.in_file(path.display()))?;
    Ok(arrays.into_iter().map(|(name, tensor)| (Some(name), tensor)).collect())
}

fn render(out: &mut dyn Write, output: &ArrayReport) -> io::Result<()> {
    let shape: Vec<String> = output.shape.iter().map(ToString::to_string).collect();
    writeln!(out, "{BOLD}{}{BOLD:#}  {DIM}{}[{}]{DIM:#}", Escaped(&output.name), output.element, shape.join(", "))?;
    output.items.iter().try_for_each(|item| render(out, item))?;
    if output.values.is_empty() {
        return Ok(());
    }
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Escaped(text).to_string(),
        other => other.to_string(),
    };
    let shown: Vec<String> = output.values.iter().take(SHOWN).map(text).collect();
    let more = output.values.len() + output.omitted - shown.len();
    let more =
        if more > 0 { format!(" {DIM}and {} more{DIM:#}", apr_core::grouped(more as u64)) } else { String::new() };
    writeln!(out, "  {}{more}", shown.join(" "))
}
