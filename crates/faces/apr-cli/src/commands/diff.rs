//! `apr diff`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;

use apr_core::counted;
use apr_io::io_error;
use apr_ops::diff::{
    DiffOptions, DiffReport, Explained, MetadataChange, RuleChange, TensorDiff, TokenChange,
    Verdict, VocabChanges,
};
use apr_ops::graph::{NodeChange, StructureDiff};
use apr_ops::session::Beside;
use apr_registry::{DType, Escaped};
use apr_view::parse_search;

use crate::args::DiffArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human::number;
use crate::model::Model;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::{human, model};

/// Differing tensors and names shown before the rest is only counted.
const SHOWN: usize = 20;

impl Document for DiffReport {
    const SCHEMA: &'static str = "diff";
}

/// Compares two models.
pub(super) fn run(args: &DiffArgs, context: &Context) -> Outcome {
    let models = open(args, context)?;
    let options = options(args)?;
    let total = models.iter().flat_map(|model| model.reader.files()).map(|file| file.len).sum();
    let bar = Bar::new(&context.printer, total);
    match &options.filter {
        None => context.sources.read_whole(),
        Some(filter) => {
            for (path, model) in [&args.left, &args.right].into_iter().zip(&models) {
                let tensors = model.reader.tensors();
                let wanted =
                    (0..tensors.len()).filter(|&tensor| filter.is_match(&tensors[tensor].name));
                context.sources.expect_tensors(path, &*model.reader, wanted);
            }
        }
    }

    let report = compare(&models, context, |models| {
        let report = models.diff(&options, &context.pipeline()?, &bar);

        // Where a file changed meanwhile, neither the report nor its error means anything.
        context.sources.check_unchanged()?;
        report.map_err(|error| match error.message().starts_with(DiffOptions::NOTHING) {
            true => Failure::Usage(error.message().to_owned()),
            false => error.into(),
        })
    })?;
    drop(bar);
    show(&report, args, &options, context)
}

/// Opens both models.
pub(super) fn open(args: &DiffArgs, context: &Context) -> Outcome<[Model; 2]> {
    let context = &context.sharing_memory(2);
    let left = model::open_with_companions(&args.left, context)?;
    Ok([left, model::open_with_companions(&args.right, context)?])
}

/// Returns the options of the comparison.
pub(super) fn options(args: &DiffArgs) -> Outcome<DiffOptions> {
    let filter = args.tensors.as_deref().map(parse_search).transpose();
    Ok(DiffOptions {
        tolerance: args.tolerance,
        filter: filter.map_err(|error| Failure::Usage(error.message().to_owned()))?,
        mapping: args.tensor_mapping.as_deref().map(read_mapping).transpose()?.unwrap_or_default(),
        read: args.read,
        max_l2: args.max_l2,
    })
}

/// Calls `then` with both models beside each other.
pub(super) fn compare<R>(
    [left, right]: &[Model; 2],
    context: &Context,
    then: impl FnOnce(&Beside<'_, '_>) -> Outcome<R>,
) -> Outcome<R> {
    let (left, right) = (context.session(left)?, context.session(right)?);
    let models = left.beside(&right);
    models.warnings().iter().for_each(|warning| context.printer.warn(warning));
    then(&models)
}

/// Prints a report.
pub(super) fn show(
    report: &DiffReport,
    args: &DiffArgs,
    options: &DiffOptions,
    context: &Context,
) -> Outcome {
    context.printer.warn_new(&report.warnings);
    let is_kept = report.l2_gate.is_none_or(|gate| gate.passed);
    let passes = (report.same || !args.exit_code) && is_kept;
    let render = |out: &mut dyn Write, report: &_| render(out, report, args, options);
    let printer = context.printer.in_markdown(&args.markdown);
    // Without a gate, a comparison has no verdict: differences may be what was wanted.
    let has_gate = args.exit_code || report.l2_gate.is_some();
    if has_gate { printer.judge(report, render, passes) } else { printer.report(report, render) }
}

fn read_mapping(path: &Path) -> Outcome<Vec<(String, String)>> {
    let text = std::fs::read(path).map_err(|error| io_error(&error, path))?;
    let names: Result<BTreeMap<String, String>, _> = serde_json::from_slice(&text);
    let names = names.map_err(|error| {
        Failure::Usage(format!(
            "{}: not a mapping of names: {}",
            path.display(),
            apr_core::foreign(&error)
        ))
    });
    Ok(names?.into_iter().collect())
}

fn render(
    out: &mut dyn Write,
    report: &DiffReport,
    args: &DiffArgs,
    options: &DiffOptions,
) -> io::Result<()> {
    // Rounded down, so that only models without a difference are 100 % alike.
    let similarity = (report.similarity * 100.0).floor() / 100.0;
    writeln!(out, "{BOLD}Similarity: {similarity}%{BOLD:#}")?;
    render_changes(out, report)?;
    let (listed, at_most) = listed(report, args, options);
    if !listed.is_empty() {
        writeln!(out)?;
    }

    listed
        .iter()
        .take(at_most)
        .try_for_each(|tensor| render_tensor(out, tensor, args.tolerance))?;
    render_more(out, listed.len(), at_most)?;
    for (names, label) in
        [(&report.removed, "only in the left model"), (&report.added, "only in the right model")]
    {
        render_names(out, names, label)?;
    }
    render_explained(out, &report.explained)?;
    report.metadata.iter().try_for_each(|change| render_change(out, change))?;
    render_rounded(out, report)?;
    report.structure.iter().try_for_each(|structure| render_structure(out, structure))?;
    render_verdict(out, report)
}

fn render_changes(out: &mut dyn Write, report: &DiffReport) -> io::Result<()> {
    let is_incomparable = |tensor: &TensorDiff| tensor.verdict == Verdict::Incomparable;
    let has_lonely = !(report.added.is_empty() && report.removed.is_empty());
    if report.tensors.is_empty() && has_lonely {
        writeln!(out, "Weight Changes: nothing to compare: the models have no tensor in common")?;
    } else if !report.tensors.is_empty() && report.tensors.iter().all(is_incomparable) {
        writeln!(out, "Weight Changes: nothing to compare: no tensor has the same shape in both")?;
    } else if !report.max_delta.is_finite() {
        writeln!(out, "Weight Changes: no distance, because values are NaN or infinite")?;
    } else {
        writeln!(
            out,
            "Weight Changes: Max delta {}, L2 distance {}",
            number(report.max_delta),
            number(report.l2)
        )?;
    }

    report.vocab.iter().try_for_each(|vocab| render_vocab(out, vocab))
}

/// Renders the differences between the tokenizers.
fn render_vocab(out: &mut dyn Write, vocab: &VocabChanges) -> io::Result<()> {
    let count = |tokens: usize| counted(tokens as u64, "token");
    let (added, removed) = (count(vocab.added), count(vocab.removed));
    writeln!(out, "Vocab Changes: Added {added}, Removed {removed}, Moved {}", count(vocab.moved))?;
    if vocab.moved > 0 {
        let example = |change: &TokenChange| {
            let ids = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join("+");
            let token = Escaped::short(&change.token);
            format!("'{token}' {} -> {}", ids(&change.ids), ids(&change.other_ids))
        };
        let examples: Vec<String> = vocab.examples.iter().map(example).collect();
        let more = if vocab.moved > examples.len() { ", ..." } else { "" };
        writeln!(out, "{BAD}tokens with other ids{BAD:#}: {}{more}", examples.join(", "))?;
    }
    for RuleChange { name, detail, .. } in &vocab.rules {
        writeln!(out, "{BAD}tokenizer differs{BAD:#}: {}: {detail}", Escaped::short(name))?;
    }
    Ok(())
}

/// Returns the tensors to list, and the number of them to show.
fn listed<'a>(
    report: &'a DiffReport,
    args: &DiffArgs,
    options: &DiffOptions,
) -> (Vec<&'a TensorDiff>, usize) {
    // What was asked for by name is listed whatever comes of it.
    let named: BTreeSet<&str> = options.mapping.iter().map(|(left, _)| left.as_str()).collect();
    let is_listed = |tensor: &&TensorDiff| {
        args.tensors.is_some() || named.contains(tensor.name.as_str()) || is_odd(tensor)
    };
    let mut listed: Vec<&TensorDiff> = report.tensors.iter().filter(is_listed).collect();
    let lists_all = args.tensors.is_some() || !named.is_empty();
    if !lists_all {
        // The worst first: those that can't be compared, then by how far they are.
        let distance = |tensor: &TensorDiff| tensor.max_delta.unwrap_or(f64::INFINITY);
        listed.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    }
    (listed, if lists_all { usize::MAX } else { SHOWN })
}

/// Renders the names that exist in one of the models only.
fn render_names(out: &mut dyn Write, names: &[String], label: &str) -> io::Result<()> {
    for name in names.iter().take(SHOWN) {
        writeln!(out, "{BAD}{label}{BAD:#}: {}", Escaped::short(name))?;
    }
    render_more(out, names.len(), SHOWN)
}

/// Renders the tensors that only one model has without a difference in effect, with the reasons.
fn render_explained(out: &mut dyn Write, explained: &[Explained]) -> io::Result<()> {
    for Explained { name, side, why } in explained.iter().take(SHOWN) {
        let (name, why) = (Escaped::short(name), Escaped::short(why));
        writeln!(out, "in the {side} model only, without effect: {name} ({why})")?;
    }
    render_more(out, explained.len(), SHOWN)
}

/// Renders the differences between the computations of the models.
fn render_structure(out: &mut dyn Write, structure: &StructureDiff) -> io::Result<()> {
    for NodeChange { node, left, right } in structure.changed.iter().take(SHOWN) {
        let (left, right) = (Escaped::short(left), Escaped::short(right));
        writeln!(
            out,
            "{BAD}computation differs{BAD:#}: {}: {left} -> {right}",
            Escaped::short(node)
        )?;
    }

    render_more(out, structure.changed.len(), SHOWN)?;
    for (names, label) in [
        (&structure.removed, "in the computation of the left model only"),
        (&structure.added, "in the computation of the right model only"),
    ] {
        render_names(out, names, label)?;
    }

    Ok(())
}

/// Renders the rounded tensors by dtypes, with their differences and the allowed differences.
fn render_rounded(out: &mut dyn Write, report: &DiffReport) -> io::Result<()> {
    let mut kinds: BTreeMap<[&str; 2], Vec<&TensorDiff>> = BTreeMap::new();
    for tensor in report.tensors.iter().filter(|tensor| tensor.verdict == Verdict::Rounded) {
        kinds.entry(tensor.dtypes.map(DType::name)).or_default().push(tensor);
    }

    if !kinds.is_empty() {
        writeln!(out)?;
    }

    for ([from, to], tensors) in kinds {
        let most = |of: fn(&TensorDiff) -> Option<f64>| {
            tensors.iter().filter_map(|tensor| of(tensor)).fold(0.0, f64::max)
        };
        let (off, room) = (most(|tensor| tensor.relative_error), most(|tensor| tensor.allowed));
        let count = counted(tensors.len() as u64, "tensor");
        writeln!(
            out,
            "{count} rounded, {from} and {to}: maximum error {}, within the types' {}",
            percent(off),
            percent(room)
        )?;
    }

    Ok(())
}

/// A share in two digits or more.
fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    match percent {
        1.0.. => format!("{percent:.1} %"),
        0.01.. => format!("{percent:.2} %"),
        _ => format!("{percent:.1e} %"),
    }
}

fn render_verdict(out: &mut dyn Write, report: &DiffReport) -> io::Result<()> {
    let count =
        |is: fn(&TensorDiff) -> bool| report.tensors.iter().filter(|tensor| is(tensor)).count();
    let (alike, rounded) = (count(matches), count(|tensor| tensor.verdict == Verdict::Rounded));
    let verb = if report.tensors.len() == 1 { "matches" } else { "match" };
    let mut verdict =
        format!("{alike} of {} {verb}", counted(report.tensors.len() as u64, "tensor"));
    if rounded > 0 {
        verdict.push_str(&format!(", {rounded} within the precision of their types"));
    }

    let read = human::bytes(report.bytes_read);
    let has_same_names = report.added.is_empty() && report.removed.is_empty();
    let computes_same = report.structure.as_ref().is_none_or(StructureDiff::is_empty);
    let reads_same = report.vocab.as_ref().is_none_or(VocabChanges::is_empty);
    let answers_same = !report.metadata.iter().any(|change| change.changes_answers);
    let is_alike = has_same_names && computes_same && reads_same && answers_same;
    let is_rounded = rounded > 0 && is_alike && alike + rounded == report.tensors.len();
    let (style, word) = match report.same {
        true => (GOOD, "SAME"),
        false if is_rounded => (ODD, "ROUNDED"),
        false => (BAD, "DIFFERENT"),
    };
    writeln!(out, "\n{style}{word}{style:#}: {verdict} {DIM}({read} read){DIM:#}")?;
    render_digests(out, count(|tensor| tensor.by_digest), count(|tensor| tensor.damaged))?;
    let Some(gate) = report.l2_gate else { return Ok(()) };
    let (style, word) = if gate.passed { (GOOD, "PASS") } else { (BAD, "FAIL") };
    let l2 = if report.l2.is_finite() { number(report.l2) } else { "none".to_owned() };
    writeln!(out, "L2 distance: {l2} (limit: {}) {style}{word}{style:#}", number(gate.limit))
}

/// Renders the number of tensors compared by digest only, and the number with wrong digests.
fn render_digests(out: &mut dyn Write, unread: usize, damaged: usize) -> io::Result<()> {
    if unread > 0 {
        let tensors = counted(unread as u64, "tensor");
        writeln!(out, "{tensors} equal by digest, not read; --read compares the bytes")?;
    }

    if damaged > 0 {
        let tensors = counted(damaged as u64, "tensor");
        let differ = if damaged == 1 { "differs" } else { "differ" };
        writeln!(
            out,
            "{BAD}{tensors} {differ} although the digests are equal{BAD:#}; `apr validate` finds \
             the damaged file"
        )?;
    }

    Ok(())
}

fn matches(tensor: &TensorDiff) -> bool {
    matches!(tensor.verdict, Verdict::Identical | Verdict::Match)
}

/// Returns `true` if the pair has a difference to report.
fn is_odd(tensor: &TensorDiff) -> bool {
    tensor.renamed || !(matches(tensor) || tensor.verdict == Verdict::Rounded)
}

fn render_tensor(out: &mut dyn Write, tensor: &TensorDiff, tolerance: f64) -> io::Result<()> {
    write!(out, "{}", Escaped::short(&tensor.name))?;
    if let Some(other) = &tensor.other_name {
        write!(out, " = {}", Escaped::short(other))?;
    }

    write!(out, ": ")?;
    let delta = number(tensor.max_delta.unwrap_or_default());
    match tensor.verdict {
        Verdict::Identical if tensor.by_digest => {
            writeln!(out, "{GOOD}MATCH{GOOD:#} (equal by digest, not read)")
        }
        Verdict::Identical => writeln!(out, "{GOOD}MATCH{GOOD:#} (same bytes)"),
        Verdict::Match => {
            writeln!(out, "{GOOD}MATCH{GOOD:#} (delta = {delta}, within {tolerance:e})")
        }
        Verdict::Rounded => {
            let ([from, to], off) =
                (tensor.dtypes, percent(tensor.relative_error.unwrap_or_default()));
            let room = percent(tensor.allowed.unwrap_or_default());
            writeln!(
                out,
                "{ODD}ROUNDED{ODD:#} ({from} and {to}, error {off}, within the types' {room})"
            )
        }
        Verdict::Drift if tensor.max_delta.is_some_and(|delta| !delta.is_finite()) => {
            writeln!(out, "{BAD}DRIFT{BAD:#} (NaN or infinity in one of the two) !!!")
        }
        Verdict::Drift => {
            let cosine =
                tensor.cosine.map_or_else(String::new, |cosine| format!(", cosine {cosine:.6}"));
            writeln!(out, "{BAD}DRIFT{BAD:#} (delta = {delta}{cosine}) !!!")
        }
        Verdict::Reshaped => {
            let [left, right] = &tensor.shapes;
            let how = if tensor.by_digest { "equal by digest" } else { "same bytes" };
            writeln!(out, "{ODD}RESHAPED{ODD:#} ({left} to {right}, {how})")
        }
        Verdict::Incomparable => {
            let ([left, right], [from, to]) = (&tensor.shapes, tensor.dtypes);
            writeln!(out, "{BAD}INCOMPARABLE{BAD:#} ({from} {left} and {to} {right}) !!!")
        }
    }
}

fn render_change(out: &mut dyn Write, change: &MetadataChange) -> io::Result<()> {
    /// Characters of a value that are shown.
    const WIDTH: usize = 60;
    /// Characters that two long values have in common and that are shown before the first that
    /// differs.
    const BEFORE: usize = 12;

    let text = |value: &Option<serde_json::Value>| -> Vec<char> {
        value.as_ref().map_or_else(|| "(absent)".to_owned(), ToString::to_string).chars().collect()
    };
    let (left, right) = (text(&change.left), text(&change.right));
    let common = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
    let skipped = if common < WIDTH / 2 || left.len().max(right.len()) <= WIDTH {
        0
    } else {
        // `common` is at least half of `WIDTH`, and so above `BEFORE`.
        common - BEFORE
    };
    let shown = |text: &[char]| {
        let piece: String = text.iter().skip(skipped).take(WIDTH).collect();
        let (before, after) = (skipped > 0, text.len() > skipped + WIDTH);
        format!(
            "{}{}{}",
            if before { "…" } else { "" },
            Escaped(&piece),
            if after { "…" } else { "" }
        )
    };

    let (left, right) = (shown(&left), shown(&right));
    let (style, what) =
        if change.changes_answers { (BAD, "answers differ") } else { (ODD, "metadata") };
    writeln!(out, "{style}{what}{style:#}: {}: {left} -> {right}", Escaped::short(&change.key))
}

fn render_more(out: &mut dyn Write, total: usize, shown: usize) -> io::Result<()> {
    if total > shown {
        writeln!(
            out,
            "{DIM}and {} more; --json lists them all{DIM:#}",
            human::count((total - shown) as u64)
        )?;
    }
    Ok(())
}
