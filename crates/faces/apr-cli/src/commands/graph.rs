//! `apr graph`.

use std::io::{self, Write};
use std::path::Path;

use anstream::adapter::strip_bytes;
use apr::job::Output;
use apr_graph::draw::{
    Branch, Depth, beyond_mermaid, cost_text as item_cost, dot, mermaid, parameters, svg, tree,
};
use apr_graph::outline::{AttributeView, Item, ItemKind, Scene, ValueEnd, ValueView};
use apr_graph::{Findings, Severity};
use apr_ops::graph::{
    Computed, CostReport, EndReport, GraphOrigin, GraphReport, NodeReport, PartReport,
    ReportOptions, computed, nodes, report,
};
use apr_registry::Escaped;
use apr_source::Source;
use clap::ValueEnum;
use serde::Serialize;

use super::beside::write_text;
use super::nearby;
use crate::args::{GraphArgs, GraphFormat};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BAD, BOLD, DIM, ODD, columns, write_document};
use crate::progress::Bar;
use crate::{human, model};

/// Rows of a tree that are still legible.
const ROWS: usize = 60;
/// Fewest characters of a shape that are legible.
const SHORTEST: usize = 8;
/// Heads of the columns of a cost: the share of all operations, and the cost of one run.
const COST_HEAD: &str = "share  operations, bytes moved";
/// Boxes of a picture that are still legible.
const BOXES: usize = 160;
/// Findings that are shown.
const FINDINGS: usize = 10;

impl Document for GraphReport {
    const SCHEMA: &'static str = "graph";
}

/// Shows what a model computes.
pub(super) fn run(args: &GraphArgs, context: &Context) -> Outcome {
    let format = args.format().ok_or_else(unknown_extension)?;
    let open =
        if args.node.is_some() { model::open_with_companions } else { model::look_with_companions };
    let model = open(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let source = context.source(&*model.reader, &model.name)?;
    let usual = apr_blocks::GraphOptions {
        past: args.with_past,
        task: args.task.clone(),
        ..Default::default()
    };
    let options = apr_blocks::GraphOptions { opset: args.opset.unwrap_or(usual.opset), ..usual };
    let mut found = computed(&source, &options)?;
    if found.origin == GraphOrigin::File {
        if let Some(opset) = args.opset {
            found = found.in_onnx(&source)?.upgraded(opset)?;
        }
        if args.with_past {
            context.printer.warn("--with-past has no effect: the file has its own graph");
        }
    }

    if let Some(name) = &args.part {
        found.parts = chosen(&found, name)?;
    }
    if let Some(name) = &args.node {
        return show_node(&source, &found, name, context);
    }

    let mut options = ReportOptions::default();
    options.fold = !args.unfold;
    options.costs = args.costs;
    options.sizes = args.size.iter().cloned().collect();
    let graph = report(&source, &found, &options);
    unknown_sizes(&graph, &args.size, context);
    if graph.parts.iter().any(|part| part.structure.is_partial) {
        context.printer.warn(
            "the graph with all function calls expanded is too large: groups are collapsed below \
             some depth",
        );
    }
    let drawn = drawn(&graph, format, args)?;
    if let Some(why) =
        drawn.as_deref().filter(|_| format == GraphFormat::Mermaid).and_then(beyond_mermaid)
    {
        let folded = |scene| beyond_mermaid(&mermaid(scene, &Depth::Levels(0))).is_none();
        let helps = graph.parts.first().is_some_and(|part| folded(&part.structure));
        context.printer.warn(&format!("{why}; {}", smaller(helps)));
    }
    match (drawn, &args.output) {
        (Some(text), path) => {
            let path = path.as_deref().unwrap_or(Path::new("-"));
            write_text(path, text.as_bytes(), args.overwrite, &context.printer)?;
            report_drawing(&graph, format, path, context)
        }
        (None, None) => context.printer.report(&graph, |out, graph| render(out, graph, args)),
        (None, Some(path)) => {
            let mut text = Vec::new();
            render(&mut text, &graph, args)?;

            // Files get no colours.
            let text: Vec<u8> = strip_bytes(&text).flatten().copied().collect();
            write_text(path, &text, args.overwrite, &context.printer)?;
            report_drawing(&graph, format, path, context)
        }
    }
}

/// Report of a graph that was drawn to a file.
#[derive(Serialize)]
struct DrawingReport {
    /// Path or location of the model, as given.
    path: String,
    /// The written file, or `-` for standard output.
    output: String,
    /// Format of the drawing: an option of `--format`.
    drawing: String,
}

impl Document for DrawingReport {
    const SCHEMA: &'static str = "graph.drawing";
}

/// Reports a drawing as JSON if that is requested; the text of a drawing is the drawing itself.
fn report_drawing(
    graph: &GraphReport,
    format: GraphFormat,
    output: &Path,
    context: &Context,
) -> Outcome {
    let is_stdout = Output::is_stdout(output);
    if !context.json || is_stdout && format == GraphFormat::Json {
        return Ok(());
    }
    let format = format.to_possible_value();
    let drawing = format.map(|format| format.get_name().to_owned()).unwrap_or_default();
    let report =
        DrawingReport { path: graph.path.clone(), output: output.display().to_string(), drawing };
    let printer = if is_stdout { context.printer.aside() } else { context.printer };
    printer.report(&report, |_, _| Ok(()))
}

/// Returns the error for an output whose extension is not that of a graph.
fn unknown_extension() -> Failure {
    let formats = GraphFormat::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    let mut names: Vec<String> = formats.map(|format| format.get_name().to_owned()).collect();
    let last = names.pop().unwrap_or_default();
    let message = format!(
        "no format for the output's extension: pass --format {} or {last}",
        names.join(", ")
    );
    Failure::Usage(message)
}

/// The part with a name.
fn chosen(found: &Computed, name: &str) -> Outcome<Vec<apr_ops::graph::GraphPart>> {
    if let Some(part) = found.parts.iter().find(|part| part.name == name) {
        return Ok(vec![part.clone()]);
    }
    let names: Vec<&str> = found.parts.iter().map(|part| part.name.as_str()).collect();
    Err(Failure::General(format!(
        "unknown part '{}'; the model has {}",
        Escaped(name),
        names.join(", ")
    )))
}

/// Returns the graph as text for a file or a pipe, or `None` if the report is shown.
fn drawn(graph: &GraphReport, format: GraphFormat, args: &GraphArgs) -> Outcome<Option<String>> {
    let text = match format {
        GraphFormat::Tree => return Ok(None),
        GraphFormat::Json => {
            let mut json = Vec::new();
            write_document(&mut json, graph, false)?;
            return Ok(Some(String::from_utf8_lossy(&json).into_owned()));
        }
        GraphFormat::Svg | GraphFormat::Dot | GraphFormat::Mermaid => &graph.parts,
    };

    let [part] = text.as_slice() else {
        let names: Vec<&str> = graph.parts.iter().map(|part| part.summary.name.as_str()).collect();
        let message = format!(
            "the model has several parts, and an image shows one: pass --part {}",
            names.join(" or --part ")
        );
        return Err(Failure::Usage(message));
    };

    let scene = &part.structure;
    let depth = args.depth.map_or_else(|| Depth::that_fits(scene, BOXES), Depth::Levels);
    Ok(Some(match format {
        GraphFormat::Dot => dot(scene, &depth),
        GraphFormat::Mermaid => mermaid(scene, &depth),
        _ => svg(scene, &depth).map_err(|error| {
            let helps = svg(scene, &Depth::Levels(0)).is_ok();
            Failure::Usage(format!("{error}; {}", smaller(helps)))
        })?,
    }))
}

/// Returns the advice for an image that is too large; `--depth` does not help graphs without
/// groups.
fn smaller(depth_helps: bool) -> &'static str {
    if depth_helps {
        "a smaller --depth helps, and --format dot has no such limit"
    } else {
        "--format dot has no such limit"
    }
}

fn show_node(source: &Source<'_>, found: &Computed, name: &str, context: &Context) -> Outcome {
    let bar = Bar::new(&context.printer, 0);
    let reports = nodes(source, found, name, &context.pipeline()?, &bar)?;
    drop(bar);
    if reports.is_empty() {
        return Err(nearby::unknown("node", name, found.parts.iter().map(|part| &part.graph)));
    }
    let report = Nodes { path: source.name().to_owned(), nodes: reports };
    context.printer.report(&report, |out, reports| {
        reports.nodes.iter().try_for_each(|report| render_node(out, report))
    })
}

/// The report of `--node`: nodes of several parts may have one name.
#[derive(Serialize)]
struct Nodes {
    /// Path or location of the model, as given.
    path: String,
    /// The nodes, in the order of the parts.
    nodes: Vec<NodeReport>,
}

impl Document for Nodes {
    const SCHEMA: &'static str = "graph.nodes";
}

fn render(out: &mut dyn Write, graph: &GraphReport, args: &GraphArgs) -> io::Result<()> {
    let origin = match &graph.origin {
        GraphOrigin::File => "from its file".to_owned(),
        GraphOrigin::Family(name) => format!("from the family {}", Escaped(name)),
    };
    writeln!(out, "Graph of {}, {origin}:", Escaped(&graph.path))?;
    graph.parts.iter().try_for_each(|part| render_part(out, part, args))?;
    if let [first, ..] = graph.unused_tensors.as_slice() {
        let count = apr_core::counted(graph.unused_tensors.len() as u64, "tensor");
        writeln!(out, "{ODD}{count} not used{ODD:#}, the first is '{}'", Escaped(first))?;
    }
    Ok(())
}

fn render_part(out: &mut dyn Write, part: &PartReport, args: &GraphArgs) -> io::Result<()> {
    let summary = &part.summary;
    let opsets =
        summary.opsets.iter().map(|(domain, version)| format!("{} {version}", Escaped(domain)));
    writeln!(
        out,
        "\n{BOLD}{}{BOLD:#}  {} parameters, {} nodes, opset {}",
        Escaped(&summary.name),
        parameters(summary.parameters),
        apr_core::grouped(summary.nodes),
        opsets.collect::<Vec<_>>().join(", ")
    )?;
    render_ends(out, "in ", &summary.inputs)?;
    render_ends(out, "out", &summary.outputs)?;
    writeln!(out, "  {DIM}run{DIM:#} {}", cost_text(&summary.cost))?;
    if !summary.cost.sizes.is_empty() {
        writeln!(out, "  {DIM}at {DIM:#} {}", sizes_text(&summary.cost))?;
    }

    let scene = &part.structure;
    let depth = args.depth.map_or_else(|| Depth::that_fits(scene, ROWS), Depth::Levels);
    render_tree(out, scene, &depth, &summary.cost)?;
    render_findings(out, &part.findings)
}

/// `1.2 GFLOP, peak activations 3.4 MB, KV cache 512 B per token`.
pub(super) fn cost_text(cost: &CostReport) -> String {
    let mut parts = vec![
        format!("{}FLOP", human::metric(cost.flops)),
        format!("peak activations {}", human::bytes(cost.peak_bytes)),
    ];
    if cost.cache_bytes_per_token > 0 {
        parts.push(format!("KV cache {} per token", human::bytes(cost.cache_bytes_per_token)));
    }
    if cost.unknown_nodes > 0 {
        let nodes = apr_core::counted(cost.unknown_nodes, "node");
        parts.push(format!("{nodes} of unknown cost not included"));
    }
    parts.join(", ")
}

/// Returns the sizes for which a cost is reported: `batch_size 1, sequence_length 128`.
pub(super) fn sizes_text(cost: &CostReport) -> String {
    cost.sizes
        .iter()
        .map(|(symbol, size)| format!("{} {size}", Escaped(symbol)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Warns about sizes that no input has.
fn unknown_sizes(graph: &GraphReport, sizes: &[(String, u64)], context: &Context) {
    let known =
        |symbol: &str| graph.parts.iter().any(|part| part.summary.cost.sizes.contains_key(symbol));
    for (symbol, _) in sizes.iter().filter(|(symbol, _)| !known(symbol)) {
        context.printer.warn(&format!("--size has no effect: no input has a dimension '{symbol}'"));
    }
}

/// Renders inputs or outputs; names that differ in a number only share one row of the structure.
fn render_ends(out: &mut dyn Write, label: &str, ends: &[EndReport]) -> io::Result<()> {
    const SHOWN: usize = 6;

    for end in ends.iter().take(SHOWN) {
        let kind = end.kind.as_deref().unwrap_or("?");
        writeln!(
            out,
            "  {DIM}{label}{DIM:#} {}  {DIM}{}{DIM:#}",
            Escaped(&end.name),
            Escaped(kind)
        )?;
    }

    match ends.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        Some(more) => writeln!(out, "  {DIM}{label} and {more} more{DIM:#}"),
        None => Ok(()),
    }
}

/// The rows; `whole` is what the graph costs, which shares are of.
fn render_tree(
    out: &mut dyn Write,
    scene: &Scene,
    depth: &Depth,
    whole: &CostReport,
) -> io::Result<()> {
    let rows = tree(scene, depth);
    let name = |row: &Branch<'_>| format!("{}{}", row.lines, Escaped(&row.item.name));
    let costs: Vec<String> = rows.iter().map(|row| cost(row.item, whole)).collect();
    let has_costs = costs.iter().any(|text| !text.is_empty());
    let heads = if has_costs { ["node", "operator", COST_HEAD] } else { [""; 3] };
    let widest = |texts: &mut dyn Iterator<Item = usize>, head: &str| {
        texts.max().unwrap_or(0).max(head.len())
    };
    let lengths = |row: &Branch<'_>| name(row).chars().count() + times(row.item).chars().count();
    let width = widest(&mut rows.iter().map(lengths), heads[0]);
    let op_width = widest(&mut rows.iter().map(|row| op(row.item).chars().count()), heads[1]);
    let cost_width = widest(&mut costs.iter().map(|text| text.chars().count()), heads[2]);
    if has_costs {
        let [node, op, cost] = heads;
        writeln!(
            out,
            "{DIM}{node:width$}  {op:op_width$}  weights  {cost:cost_width$}  output{DIM:#}"
        )?;
    }
    let before = width + op_width + 13 + if has_costs { cost_width + 2 } else { 0 };
    let room = columns().map(|columns| columns.saturating_sub(before));
    for (row, cost) in rows.iter().zip(costs) {
        let times = times(row.item);
        let name = name(row);
        let pad = " ".repeat(width - name.chars().count() - times.chars().count());
        let weights =
            if row.item.parameters > 0 { parameters(row.item.parameters) } else { String::new() };
        let output = Escaped(row.item.output.as_deref().unwrap_or_default()).to_string();
        let output = match room {
            Some(room) if room < SHORTEST && output.chars().count() > room => String::new(),
            Some(room) => human::shortened(&output, room),
            None => output,
        };
        let op = Escaped(&op(row.item)).to_string();
        let cost = if has_costs { format!("{cost:cost_width$}  ") } else { cost };
        let line = format!(
            "{name}{BOLD}{times}{BOLD:#}{pad}  {op:op_width$}  {weights:>7}  {cost}{DIM}{output}\
             {DIM:#}"
        );
        writeln!(out, "{}", line.trim_end())?;
    }

    Ok(())
}

fn times(item: &Item) -> String {
    if item.times > 1 { format!(" × {}", item.times) } else { String::new() }
}

/// Returns the share of all operations and the cost of an item: ` 41 %  1.07 GFLOP, 4.20 MB`.
fn cost(item: &Item, whole: &CostReport) -> String {
    let Some(cost) = &item.cost else { return String::new() };
    let share = (u128::from(cost.flops) * 100).checked_div(u128::from(whole.flops)).unwrap_or(0);
    let share = match (cost.flops, share) {
        (0, _) => String::new(),
        (_, 0) => "<1 %".to_owned(),
        (_, share) => format!("{share} %"),
    };
    format!("{share:>5}  {}", item_cost(cost))
}

fn op(item: &Item) -> String {
    match &item.kind {
        ItemKind::Node { op, .. } => op.clone(),
        ItemKind::Group { function: Some(function), .. } => function.clone(),
        _ => String::new(),
    }
}

fn render_findings(out: &mut dyn Write, findings: &Findings) -> io::Result<()> {
    for finding in findings.list.iter().take(FINDINGS) {
        let style = if finding.severity == Severity::Error { BAD } else { ODD };
        writeln!(out, "{style}{}{style:#}", Escaped(&finding.to_string()))?;
    }
    let shown = findings.list.len().min(FINDINGS);
    let more = (findings.list.len() - shown) as u64 + findings.omitted;
    if more > 0 { writeln!(out, "and {more} more findings; --json lists them") } else { Ok(()) }
}

fn render_node(out: &mut dyn Write, report: &NodeReport) -> io::Result<()> {
    let node = &report.node;
    let function =
        node.function.as_ref().map_or_else(String::new, |name| format!(" in {}", Escaped(name)));
    writeln!(out, "{BOLD}{}{BOLD:#}  {}{function}", Escaped(&node.name), Escaped(&node.op))?;
    node.inputs.iter().try_for_each(|value| render_value(out, "in ", value))?;
    node.outputs.iter().try_for_each(|value| render_value(out, "out", value))?;
    for AttributeView { name, value } in &node.attributes {
        writeln!(out, "  {DIM}set{DIM:#} {} = {}", Escaped(name), Escaped(value))?;
    }

    if !node.doc.is_empty() {
        writeln!(out, "  {}", Escaped(&node.doc))?;
    }

    for row in &report.weights {
        let figure = |value: Option<f64>| value.map_or_else(|| "none".to_owned(), apr_core::number);
        let stats = row.stats.as_ref().map_or_else(
            || "quantized, not dequantized".to_owned(),
            |stats| format!("mean {}, std {}", figure(stats.mean), figure(stats.std)),
        );
        writeln!(
            out,
            "  {DIM}weight{DIM:#} {}  {DIM}{}{}{DIM:#}  {stats}",
            Escaped(&row.name),
            row.dtype,
            row.shape
        )?;
    }

    Ok(())
}

fn render_value(out: &mut dyn Write, label: &str, value: &ValueView) -> io::Result<()> {
    let operand = value.operand.as_ref().map_or_else(String::new, |name| format!("{name}: "));
    let place = match &value.place {
        ValueEnd::LeftOut => {
            return writeln!(out, "  {DIM}{label} {}{DIM:#}(left out)", Escaped(&operand));
        }
        ValueEnd::Input => "an input".to_owned(),
        ValueEnd::Node(name) => format!("output of {name}"),
        ValueEnd::Weight(name) => format!("tensor {name}"),
        ValueEnd::Constant(text) => format!("constant {text}"),
        ValueEnd::Outer => "from the outer scope".to_owned(),
        ValueEnd::Missing => "no producer".to_owned(),
        ValueEnd::Readers(names) if names.is_empty() => "not used".to_owned(),
        ValueEnd::Readers(names) => format!("used by {}", names.join(", ")),
    };

    let kind = value.kind.as_deref().unwrap_or("?");
    writeln!(
        out,
        "  {DIM}{label} {}{DIM:#}{}  {DIM}{}{DIM:#}  {}",
        Escaped(&operand),
        Escaped(&value.name),
        Escaped(kind),
        Escaped(&place)
    )
}
