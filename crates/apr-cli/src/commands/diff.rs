//! `apr diff`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use apr::Escaped;
use apr_core::counted;
use apr_io::io_error;
use apr_ops::diff::{DiffOptions, DiffReport, MetadataChange, Side, TensorDiff, Verdict, alike, diff};
use apr_view::parse_filter;

use crate::args::DiffArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::human::number;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::{Outcome, human, model};

/// Differing tensors and names shown before the rest is only counted.
const SHOWN: usize = 20;

/// Compares two models.
pub(super) fn run(args: &DiffArgs, context: &Context) -> Outcome {
    let left = model::open_with_companions(&args.left, context)?;
    let right = model::open_with_companions(&args.right, context)?;
    let filter = args.tensors.as_deref().map(parse_filter).transpose();
    let options = DiffOptions {
        tolerance: args.tolerance,
        filter: filter.map_err(|error| Failure::Usage(error.message().to_owned()))?,
        mapping: args.tensor_mapping.as_deref().map(read_mapping).transpose()?.unwrap_or_default(),
    };
    let total = [&left, &right].iter().flat_map(|model| model.reader.files()).map(|file| file.len).sum();
    let bar = Bar::new(&context.printer, total);
    let sources = (context.source(&*left.reader, &left.name)?, context.source(&*right.reader, &right.name)?);
    let views = alike(&sources.0, &sources.1);
    views.warnings.iter().for_each(|warning| context.printer.warn(warning));
    let families = (context.family(&views.left)?, context.family(&views.right)?);
    let left = Side { reader: &views.left, name: &left.name, model: families.0.as_ref() };
    let right = Side { reader: &views.right, name: &right.name, model: families.1.as_ref() };
    let report = diff(left, right, &options, &context.pipeline()?, &bar);
    context.sources.check_unchanged()?;
    let report = report?;
    drop(bar);
    context.printer.report(&report, |out, report| render(out, report, args))?;
    if args.exit_code && !report.same { Err(Failure::Validation) } else { Ok(()) }
}

fn read_mapping(path: &Path) -> Outcome<Vec<(String, String)>> {
    let text = std::fs::read(path).map_err(|error| io_error(&error, path))?;
    let names: Result<BTreeMap<String, String>, _> = serde_json::from_slice(&text);
    let names = names.map_err(|error| Failure::Usage(format!("{}: not a mapping of names: {error}", path.display())));
    Ok(names?.into_iter().collect())
}

fn render(out: &mut dyn Write, report: &DiffReport, args: &DiffArgs) -> io::Result<()> {
    // Rounded down, so that only models without a difference are 100 % alike.
    let similarity = (report.similarity * 100.0).floor() / 100.0;
    writeln!(out, "{BOLD}Similarity: {similarity}%{BOLD:#}")?;
    if report.tensors.is_empty() && !(report.added.is_empty() && report.removed.is_empty()) {
        writeln!(out, "Weight Changes: nothing to compare, no tensor of one model is in the other")?;
    } else {
        writeln!(out, "Weight Changes: Max delta {}, L2 distance {}", number(report.max_delta), number(report.l2))?;
    }
    if let Some(vocab) = report.vocab {
        let count = |tokens: usize| counted(tokens as u64, "token");
        writeln!(out, "Vocab Changes: Added {}, Removed {}", count(vocab.added), count(vocab.removed))?;
    }
    let mut listed: Vec<&TensorDiff> =
        report.tensors.iter().filter(|tensor| args.tensors.is_some() || is_odd(tensor)).collect();
    if args.tensors.is_none() {
        // The worst first: those that can't be compared, then by how far they are.
        let distance = |tensor: &TensorDiff| tensor.max_delta.unwrap_or(f64::INFINITY);
        listed.sort_by(|a, b| distance(b).total_cmp(&distance(a)));
    }
    if !listed.is_empty() {
        writeln!(out)?;
    }
    let at_most = if args.tensors.is_some() { usize::MAX } else { SHOWN };
    listed.iter().take(at_most).try_for_each(|tensor| render_tensor(out, tensor, args.tolerance))?;
    render_more(out, listed.len(), at_most)?;
    for (names, label) in [(&report.removed, "only in the left model"), (&report.added, "only in the right model")] {
        for name in names.iter().take(SHOWN) {
            writeln!(out, "{BAD}{label}{BAD:#}: {}", Escaped::short(name))?;
        }
        render_more(out, names.len(), SHOWN)?;
    }
    report.metadata.iter().try_for_each(|change| render_change(out, change))?;
    let alike = report.tensors.iter().filter(|tensor| matches(tensor)).count();
    let verdict = format!("{alike} of {} match", counted(report.tensors.len() as u64, "tensor"));
    let read = human::bytes(report.bytes_read);
    let (style, word) = if report.same { (GOOD, "SAME") } else { (BAD, "DIFFERENT") };
    writeln!(out, "\n{style}{word}{style:#}: {verdict} {DIM}({read} read){DIM:#}")
}

fn matches(tensor: &TensorDiff) -> bool {
    matches!(tensor.verdict, Verdict::Identical | Verdict::Match)
}

/// Whether there is something to report about the pair.
fn is_odd(tensor: &TensorDiff) -> bool {
    tensor.renamed || !matches(tensor)
}

fn render_tensor(out: &mut dyn Write, tensor: &TensorDiff, tolerance: f64) -> io::Result<()> {
    write!(out, "{}", Escaped::short(&tensor.name))?;
    if let Some(other) = &tensor.other_name {
        write!(out, " = {}", Escaped::short(other))?;
    }
    write!(out, ": ")?;
    let delta = number(tensor.max_delta.unwrap_or_default());
    match tensor.verdict {
        Verdict::Identical => writeln!(out, "{GOOD}MATCH{GOOD:#} (same bytes)"),
        Verdict::Match => writeln!(out, "{GOOD}MATCH{GOOD:#} (delta = {delta}, within {tolerance:e})"),
        Verdict::Drift => {
            let cosine = tensor.cosine.map_or_else(String::new, |cosine| format!(", cosine {cosine:.6}"));
            writeln!(out, "{BAD}DRIFT{BAD:#} (delta = {delta}{cosine}) !!!")
        }
        Verdict::Reshaped => {
            let [left, right] = &tensor.shapes;
            writeln!(out, "{ODD}RESHAPED{ODD:#} ({left} to {right}, same bytes)")
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
    /// Characters that two long values have in common and that are shown before the first that differs.
    const BEFORE: usize = 12;
    let text = |value: &Option<serde_json::Value>| -> Vec<char> {
        value.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string).chars().collect()
    };
    let (left, right) = (text(&change.left), text(&change.right));
    let common = left.iter().zip(&right).take_while(|(left, right)| left == right).count();
    let skipped = if common < WIDTH / 2 || left.len().max(right.len()) <= WIDTH { 0 } else { common - BEFORE };
    let shown = |text: &[char]| {
        let piece: String = text.iter().skip(skipped).take(WIDTH).collect();
        let (before, after) = (skipped > 0, text.len() > skipped + WIDTH);
        format!("{}{}{}", if before { "…" } else { "" }, Escaped(&piece), if after { "…" } else { "" })
    };
    let (left, right) = (shown(&left), shown(&right));
    writeln!(out, "{ODD}metadata{ODD:#}: {}: {left} to {right}", Escaped::short(&change.key))
}

fn render_more(out: &mut dyn Write, total: usize, shown: usize) -> io::Result<()> {
    if total > shown {
        writeln!(out, "{DIM}and {} more; --json lists them all{DIM:#}", human::count((total - shown) as u64))?;
    }
    Ok(())
}
