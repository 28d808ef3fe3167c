//! Arrays in, arrays out, whatever the graph computes.

use std::io::{self, Write};

use apr_graph::{Body, Graph, Meaning};
use apr_infer::Value;
use apr_registry::Escaped;
use apr_run::{
    ArrayReport, AssumedInput, GivenArray, Prepared, RunReport, Tokenizer, array_inputs, assumed,
    has_chat_template, known_inputs, report, token_inputs,
};

use super::host;
use super::job::{Job, outputs};
use super::output::Output;
use super::timing::WithMemory;
use crate::args::RunArgs;
use crate::commands::nearby;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::printer::{BOLD, DIM};

/// Inputs that an error lists.
const LISTED: usize = 20;

/// Elements of an output that fit the terminal.
const SHOWN: usize = 12;

impl Document for WithMemory<RunReport> {
    const SCHEMA: &'static str = "run.arrays";
}

pub(super) fn run(job: &Job<'_>, arrays: &[GivenArray], part: &Prepared<'_>) -> Outcome {
    let inputs = inputs(job, arrays, part.graph())?;
    show(job, inputs, part)
}

/// Shows the requested values for a text or for tokens.
pub(super) fn of_text(job: &Job<'_>, texts: &[String], part: &Prepared<'_>) -> Outcome {
    let ids = text_ids(job, texts)?;
    show(job, known_inputs(&part.graph().body, &ids)?, part)
}

/// A text, or tokens, as the inputs of a graph.
pub(super) fn text_inputs(
    job: &Job<'_>,
    texts: &[String],
    body: &Body,
) -> Outcome<Vec<(String, Value)>> {
    Ok(token_inputs(body, &text_ids(job, texts)?)?)
}

fn text_ids(job: &Job<'_>, texts: &[String]) -> Outcome<Vec<i64>> {
    match texts {
        [] => Ok(job.runner.token_ids(job.args.tokens.clone())?),
        [text] => {
            let host = host(job.context);
            Ok(job.runner.text_ids(&Tokenizer::of(job.runner.reader(), &host)?, text)?)
        }
        _ => Err(Failure::Usage("--want supports one text at a time".to_owned())),
    }
}

/// Runs a graph, and shows what is wanted.
fn show(job: &Job<'_>, mut inputs: Vec<(String, Value)>, part: &Prepared<'_>) -> Outcome {
    let output = Output::of(job.args, &job.context.printer)?;
    let session = part.session();
    let want = &job.args.want;
    let wanted =
        if want.is_empty() { outputs(part) } else { want.iter().map(String::as_str).collect() };
    if let Some(name) = wanted.iter().find(|name| !session.has(name)) {
        return Err(nearby::unknown(nearby::VALUE, name, std::iter::once(part.graph())));
    }

    let absent = session.absent(&inputs, &wanted)?;
    let (assumed, values): (Vec<_>, Vec<_>) =
        assumed(&part.graph().body, &inputs, &absent)?.into_iter().unzip();
    inputs.extend(assumed.iter().map(|input| input.name.clone()).zip(values));

    let missing = session.missing(&inputs, &wanted)?;
    if !missing.is_empty() {
        let takes_texts = part.takes(Meaning::TokenIds);
        if takes_texts && has_no_input(job.args) {
            return Err(missing_prompt(job, part));
        }
        let texts = if takes_texts { ", or a text with --prompt TEXT" } else { "" };
        let more = missing.len().saturating_sub(LISTED);
        let mut missing = missing[..missing.len() - more].join(", ");
        if more > 0 {
            missing.push_str(&format!(" and {more} more"));
        }
        let message = format!("missing inputs: {missing}: pass --input NAME=FILE{texts}");
        return Err(Failure::Usage(message));
    }

    let outcome = part.run(inputs, &wanted)?;
    if let Some(output) = output {
        let named = |(name, value): (&&str, &Value)| ((*name).to_owned(), value.clone());
        output.write_values(&wanted.iter().zip(&outcome.outputs).map(named).collect::<Vec<_>>())?;
    }

    let report = RunReport { assumed, ..report(job.name, part.name(), &wanted, &outcome)? };
    job.context.printer.report(&WithMemory::of(report), |out, WithMemory { report, .. }| {
        render_assumed(out, &report.assumed)?;
        report.outputs.iter().try_for_each(|output| render(out, output))?;
        writeln!(out, "{DIM}peak memory of values {}{DIM:#}", human::bytes(report.peak_bytes))
    })
}

fn has_no_input(args: &RunArgs) -> bool {
    args.prompt.is_empty() && args.input.is_empty() && args.tokens.is_empty()
}

/// Returns the error for a model of texts that is run without any input.
fn missing_prompt(job: &Job<'_>, part: &Prepared<'_>) -> Failure {
    let message = match (part.generates(), has_chat_template(job.runner)) {
        (true, true) => "missing prompt: pass --prompt TEXT, or --chat to hold a conversation",
        (true, false) => {
            "missing prompt: pass --prompt TEXT; for a conversation (--chat), the model needs a \
             chat template"
        }
        (false, _) => "missing text: pass --prompt TEXT",
    };
    Failure::Usage(message.to_owned())
}

/// The arrays of all files, each as the type that the graph expects.
pub(super) fn inputs(
    job: &Job<'_>,
    found: &[GivenArray],
    graph: &Graph,
) -> Outcome<Vec<(String, Value)>> {
    Ok(array_inputs(&graph.body, found, job.args.input.len() == 1)?)
}

/// Renders the values assumed for inputs; inputs with the same assumed value share a line.
fn render_assumed(out: &mut dyn Write, assumed: &[AssumedInput]) -> io::Result<()> {
    let alike = |one: &AssumedInput, other: &AssumedInput| {
        one.value == other.value && one.shape == other.shape
    };
    for group in assumed.chunk_by(alike) {
        let AssumedInput { name, shape, value } = &group[0];
        let more = match group.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let name = Escaped(name);
        writeln!(out, "{DIM}default: {name}{more} = {value} {shape:?}{DIM:#}")?;
    }
    Ok(())
}

pub(super) fn render(out: &mut dyn Write, output: &ArrayReport) -> io::Result<()> {
    let shape: Vec<String> = output.shape.iter().map(ToString::to_string).collect();
    writeln!(
        out,
        "{BOLD}{}{BOLD:#}  {DIM}{}[{}]{DIM:#}",
        Escaped(&output.name),
        output.element,
        shape.join(", ")
    )?;
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
    let more = if more > 0 {
        format!(" {DIM}and {} more{DIM:#}", apr_core::grouped(more as u64))
    } else {
        String::new()
    };
    writeln!(out, "  {}{more}", shown.join(" "))
}
