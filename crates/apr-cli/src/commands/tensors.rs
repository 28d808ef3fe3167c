//! `apr tensors`.

use std::io::{self, Write};

use apr::Escaped;
use apr_core::counted;
use apr_ops::tensors::{HistogramReport, SortBy, TensorRow, TensorsOptions, TensorsReport, find, histogram, list};
use apr_view::parse_filter;

use crate::args::{Sort, TensorsArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::human::number;
use crate::model::{self, Model};
use crate::printer::{BAD, BOLD, DIM};
use crate::progress::Bar;
use crate::{Outcome, human};

/// Most characters that a column is padded to; longer names are shown in full.
const WIDEST: usize = 80;
/// Columns of a histogram at most.
const BINS: usize = 64;
/// Rows of a histogram.
const BIN_HEIGHT: u64 = 10;

/// Lists the tensors, or shows one's distribution.
pub(super) fn run(args: &TensorsArgs, context: &Context) -> Outcome {
    let reads_values = args.stats || args.hist.is_some();
    let open = if reads_values { model::open } else { model::open_to_look };
    let model = open(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    if let Some(name) = &args.hist {
        return show_histogram(&model, name, context);
    }
    let filter = args.filter.as_deref().map(parse_filter).transpose();
    let options = TensorsOptions {
        filter: filter.map_err(|error| Failure::Usage(error.message().to_owned()))?,
        sort: match args.sort {
            Sort::Offset => SortBy::Offset,
            Sort::Name => SortBy::Name,
            Sort::Size => SortBy::Size,
            Sort::Dtype => SortBy::DType,
        },
        stats: args.stats,
    };
    let total = model.reader.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
    let bar = Bar::new(&context.printer, total);
    let report = list(&*model.reader, &model.name, &options, &context.pipeline()?, &bar)?;
    drop(bar);
    context.printer.report(&report, |out, report| render(out, report, args))
}

fn show_histogram(model: &Model, name: &str, context: &Context) -> Outcome {
    let reader = &*model.reader;
    let tensor = find(reader, name).map_err(|similar| unknown_tensor(name, &similar))?;
    let bar = Bar::new(&context.printer, reader.tensors()[tensor].byte_len()?);
    let report = histogram(reader, tensor, BINS, &context.pipeline()?, &bar)?;
    drop(bar);
    context.printer.report(&report, render_histogram)
}

/// The failure for a name that no tensor has, with the names that may have been meant.
pub(super) fn unknown_tensor(name: &str, similar: &[&str]) -> Failure {
    let mut message = format!("there is no tensor '{}'", Escaped(name));
    if !similar.is_empty() {
        message.push_str("; similar names:");
        for name in similar {
            message.push_str(&format!("\n  {}", Escaped(name)));
        }
    }
    Failure::General(message)
}

fn render(out: &mut dyn Write, report: &TensorsReport, args: &TensorsArgs) -> io::Result<()> {
    let names: Vec<String> = report.tensors.iter().map(|row| Escaped(&row.name).to_string()).collect();
    let shapes: Vec<String> = report.tensors.iter().map(|row| row.shape.to_string()).collect();
    let width = |texts: &[String], label: &str| {
        texts.iter().map(|text| text.chars().count()).chain([label.len()]).max().unwrap_or_default().min(WIDEST)
    };
    let dtypes: Vec<String> = report.tensors.iter().map(|row| row.dtype.to_string()).collect();
    let (name_width, dtype_width, shape_width) =
        (width(&names, "Name"), width(&dtypes, "Dtype"), width(&shapes, "Shape"));
    write!(out, "{BOLD}{:<name_width$}  {:<dtype_width$}  {:<shape_width$}  {:>8}", "Name", "Dtype", "Shape", "Size")?;
    let compressed = report.tensors.iter().any(|row| row.codec.is_some());
    if compressed {
        write!(out, "  {:>8}  {:<14}", "Stored", "Codec")?;
    }
    if args.offset {
        write!(out, "  {:>14}", "Offset")?;
    }
    if args.stats {
        for label in ["Min", "Max", "Mean", "Std", "L2", "Zeros"] {
            write!(out, " {label:>9}")?;
        }
    }
    writeln!(out, "{BOLD:#}")?;
    for ((row, name), shape) in report.tensors.iter().zip(&names).zip(&shapes) {
        let size = human::bytes(row.bytes);
        write!(out, "{name:<name_width$}  {:<dtype_width$}  {shape:<shape_width$}  {size:>8}", row.dtype)?;
        if compressed {
            let stored = human::bytes(row.stored_bytes.unwrap_or(row.bytes));
            write!(out, "  {stored:>8}  {:<14}", row.codec.as_deref().unwrap_or("-"))?;
        }
        if args.offset {
            write!(out, "  {:>14}", row.offset)?;
        }
        if args.stats {
            render_stats(out, row)?;
        }
        writeln!(out)?;
    }
    let bytes: u64 = report.tensors.iter().map(|row| row.bytes).sum();
    let total = counted(report.total as u64, "tensor");
    let shown = report.tensors.len();
    let of = if shown < report.total { format!("{} of ", human::count(shown as u64)) } else { String::new() };
    writeln!(out, "{DIM}{of}{total}, {}{DIM:#}", human::bytes(bytes))
}

fn render_stats(out: &mut dyn Write, row: &TensorRow) -> io::Result<()> {
    let Some(stats) = &row.stats else { return write!(out, "  {DIM}(quantized){DIM:#}") };
    let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    for value in [stats.min, stats.max, stats.mean, stats.std, Some(stats.l2)] {
        write!(out, " {:>9}", cell(value))?;
    }
    write!(out, " {:>9}", human::count(stats.zeros))?;
    for (count, what) in [(stats.nan, "NaN"), (stats.inf, "Inf")] {
        if count > 0 {
            write!(out, "  {BAD}{} {what}{BAD:#}", human::count(count))?;
        }
    }
    Ok(())
}

fn render_histogram(out: &mut dyn Write, report: &HistogramReport) -> io::Result<()> {
    let TensorRow { name, shape, stats, .. } = &report.tensor;
    writeln!(out, "{BOLD}Distribution: {}{BOLD:#} (shape: {shape})", Escaped(name))?;
    if let Some(stats) = stats {
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let (min, max) = (cell(stats.min), cell(stats.max));
        writeln!(out, "Min: {min}  Max: {max}  Mean: {}  Std: {}", cell(stats.mean), cell(stats.std))?;
        if stats.nan + stats.inf > 0 {
            writeln!(out, "{BAD}NaN: {}  Inf: {}{BAD:#}", human::count(stats.nan), human::count(stats.inf))?;
        }
    }
    let Some(&peak) = report.counts.iter().max() else {
        return writeln!(out, "There are no finite values.");
    };
    let label_width = human::count(peak).len();
    for row in (1..=BIN_HEIGHT).rev() {
        // A bin that holds anything shows at least its lowest mark.
        let mark = |&count: &u64| {
            let height = count.saturating_mul(BIN_HEIGHT).div_ceil(peak);
            if height >= row { '*' } else { ' ' }
        };
        let bars: String = report.counts.iter().map(mark).collect();
        let label = if row == BIN_HEIGHT { human::count(peak) } else { String::new() };
        writeln!(out, "{label:>label_width$} | {}", bars.trim_end())?;
    }
    writeln!(out, "{:>label_width$} +{}", 0, "-".repeat(report.counts.len() + 1))?;
    let end = report.start + report.width * report.counts.len() as f64;
    let (start, end) = (number(report.start), number(end));
    let gap = (report.counts.len() + 1).saturating_sub(start.len() + end.len()).max(2);
    writeln!(out, "{:>label_width$}  {start}{}{end}", "", " ".repeat(gap))?;
    let bins = counted(report.counts.len() as u64, "bin");
    writeln!(out, "{DIM}{bins} of width {}{DIM:#}", number(report.width))
}
