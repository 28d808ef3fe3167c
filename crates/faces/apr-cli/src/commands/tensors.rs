//! `apr tensors`.

mod arrays;

use std::io::{self, Write};
use std::path::Path;

use apr_core::counted;
use apr_ops::elements::{Selection, ValuesReport};
use apr_ops::manifest;
use apr_ops::tensors::{HistogramReport, SortBy, TensorRow, TensorsOptions, TensorsReport, find};
use apr_registry::Escaped;
use apr_view::{NamePattern, parse_search};
use serde::Serialize;

use self::arrays::ArraysReport;
use super::{left_out, nearby, several};
use crate::args::{Sort, TensorsArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::human::number;
use crate::model::{self, Model};
use crate::printer::{self, BAD, BOLD, DIM, columns};
use crate::progress::Bar;

/// Columns of a histogram at most.
const BINS: usize = 64;
/// Width of a line of values that is not shown on a terminal, in characters.
const LINE: usize = 100;
/// Width of the index before a line of values.
const INDEX: usize = 8;
/// Width of a value.
const CELL: usize = 10;
/// Width of a size in a list of tensors.
const SIZE: usize = 8;
/// Width of an offset in a list of tensors.
const OFFSET: usize = 14;
/// Rows of a histogram.
const BIN_HEIGHT: u64 = 10;

/// Lists the tensors of models, or shows the distribution or values of one.
pub(super) fn run(args: &TensorsArgs, context: &Context) -> Outcome {
    if (args.output.is_some() || args.digest) && args.models.len() > 1 {
        let option = if args.digest { "--digest" } else { "--output" };
        return Err(Failure::Usage(format!("{option} takes the tensors of one model")));
    }
    let titled = args.models.len() > 1;
    several::each(
        &args.models,
        context,
        |path| look(path, args, context),
        |out, report| {
            if titled {
                writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&report.file))?;
            }
            match &report.found {
                FoundTensors::List(list) if args.digest => render_digests(out, list),
                FoundTensors::List(list) => render(out, list, args),
                FoundTensors::Arrays(arrays) => arrays::render(out, arrays),
                FoundTensors::Histogram(histogram) => render_histogram(out, histogram),
                FoundTensors::Values(values) => render_values(out, values),
            }
        },
    )
}

/// Tensors of a model, as the report lists them.
#[derive(Serialize)]
struct ModelTensors {
    /// A heading, if there are several models.
    #[serde(skip)]
    file: String,
    #[serde(flatten)]
    found: FoundTensors,
}

impl Document for ModelTensors {
    const SCHEMA: &'static str = "tensors";
}

#[derive(Serialize)]
#[serde(untagged)]
enum FoundTensors {
    List(TensorsReport),
    Histogram(HistogramReport),
    Values(ValuesReport),
    Arrays(ArraysReport),
}

fn look(path: &Path, args: &TensorsArgs, context: &Context) -> Outcome<ModelTensors> {
    let reads_values = args.stats
        || args.digest
        || args.hist.is_some()
        || args.values.is_some()
        || args.output.is_some();
    // Files beside the weights are looked at, so that those that are not read are named.
    let open = if reads_values { model::open_with_companions } else { model::look_with_companions };
    let model = open(path, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let found = match (&args.hist, &args.values) {
        (Some(name), _) => FoundTensors::Histogram(distribution(&model, path, name, context)?),
        (None, Some(part)) => FoundTensors::Values(values(&model, part, context)?),
        (None, None) if args.output.is_some() => {
            FoundTensors::Arrays(arrays::write(&model, args, context)?)
        }
        (None, None) => FoundTensors::List(listed(&model, path, args, context)?),
    };
    Ok(ModelTensors { file: model.name, found })
}

fn listed(
    model: &Model,
    path: &Path,
    args: &TensorsArgs,
    context: &Context,
) -> Outcome<TensorsReport> {
    let options = TensorsOptions {
        filter: filter(args)?,
        sort: match args.sort {
            Sort::Offset => SortBy::Offset,
            Sort::Name => SortBy::Name,
            Sort::Size => SortBy::Size,
            Sort::Dtype => SortBy::DType,
        },
        stats: args.stats,
        digests: args.digest,
    };

    let tensors = model.reader.tensors();
    let total = tensors.iter().filter_map(|info| info.byte_len().ok()).sum();
    match &options.filter {
        _ if !args.stats && !args.digest => {}
        None => context.sources.read_whole(),
        Some(filter) => {
            let wanted =
                (0..tensors.len()).filter(|&tensor| filter.is_match(&tensors[tensor].name));
            context.sources.expect_tensors(path, &*model.reader, wanted);
        }
    }

    let bar = Bar::new(&context.printer, total);
    Ok(context.session(model)?.tensors(&options, &context.pipeline()?, &bar)?)
}

/// Returns the pattern of the requested names.
fn filter(args: &TensorsArgs) -> Outcome<Option<NamePattern>> {
    let filter = args.filter.as_deref().map(parse_search).transpose();
    filter.map_err(|error| Failure::Usage(error.message().to_owned()))
}

/// Renders the lines of a manifest. Data that are not tensors have no digest and are listed in
/// comments.
fn render_digests(out: &mut dyn Write, report: &TensorsReport) -> io::Result<()> {
    let lines = report.left_out.lines("--json lists them all");
    lines.iter().try_for_each(|line| writeln!(out, "# {}", Escaped(line)))?;
    report.tensors.iter().try_for_each(|row| {
        writeln!(out, "{}", manifest::line(row.sha256.as_deref().unwrap_or_default(), &row.name))
    })
}

fn distribution(
    model: &Model,
    path: &Path,
    name: &str,
    context: &Context,
) -> Outcome<HistogramReport> {
    let reader = &*model.reader;
    let tensor = find(reader, name).map_err(|similar| unknown_tensor(name, &similar))?;
    context.sources.expect_tensors(path, reader, [tensor]);
    let bar = Bar::new(&context.printer, reader.tensors()[tensor].byte_len()?);
    Ok(context.session(model)?.histogram(tensor, BINS, &context.pipeline()?, &bar)?.report)
}

/// Returns the values that `NAME` or `NAME[RANGES]` selects. A name can itself end with a bracket.
fn values(model: &Model, part: &str, context: &Context) -> Outcome<ValuesReport> {
    let reader = &*model.reader;
    let whole = find(reader, part);
    let (name, ranges) = match part.strip_suffix(']').and_then(|part| part.rsplit_once('[')) {
        Some((name, ranges)) if whole.is_err() => (name, Some(ranges)),
        _ => (part, None),
    };
    let tensor = find(reader, name).map_err(|similar| unknown_tensor(name, &similar))?;
    let shape = &reader.tensors()[tensor].shape;
    let selection = match ranges {
        Some(ranges) => {
            if Selection::exceeds(ranges, shape) {
                let message =
                    format!("[{ranges}] is longer than the tensor, whose shape is {shape}");
                context.printer.warn(&Escaped(&message).to_string());
            }
            Selection::parse(ranges, shape)
                .map_err(|error| Failure::Usage(error.message().to_owned()))?
        }
        None => Selection::corner(shape),
    };
    Ok(context.session(model)?.values(tensor, &selection)?)
}

/// The failure for a name that no tensor has, with the names that may have been meant.
pub(super) fn unknown_tensor(name: &str, similar: &[&str]) -> Failure {
    nearby::failure("tensor", name, similar)
}

/// Columns beside the name, as wide as their widest cell.
struct Columns {
    name: usize,
    /// `true` to shorten longer names in the middle.
    shortens: bool,
    dtype: usize,
    shape: usize,
    /// Width of the codec, if tensors are compressed.
    codec: Option<usize>,
}

impl Columns {
    /// Returns the columns; names get the width that the other columns leave on a terminal.
    fn of(report: &TensorsReport, args: &TensorsArgs) -> Self {
        /// Minimum characters of a name for it to be recognizable.
        const LEAST: usize = 8;
        /// Maximum characters to which a column is padded; longer cells exceed the column.
        const WIDEST: usize = 80;

        let widest = |text: fn(&TensorRow) -> String, label: &str| {
            let widths = report.tensors.iter().map(|row| text(row).chars().count());
            widths.chain([label.len()]).max().unwrap_or_default().min(WIDEST)
        };
        let dtype = widest(|row| row.dtype.to_string(), "Dtype");
        let shape = widest(|row| row.shape.to_string(), "Shape");
        let is_compressed = report.tensors.iter().any(|row| row.codec.is_some());
        let codec = is_compressed.then(|| widest(|row| codec_of(row).to_owned(), "Codec"));
        let stored = codec.map_or(0, |codec| 2 + SIZE + 2 + codec);
        let offset = if args.offset { 2 + OFFSET } else { 0 };
        let others = 2 + dtype + 2 + shape + 2 + SIZE + stored + offset;
        let name = widest(|row| Escaped(&row.name).to_string(), "Name");
        let room = columns().map(|columns| columns.saturating_sub(others).max(LEAST));
        Self { name: name.min(room.unwrap_or(name)), shortens: room.is_some(), dtype, shape, codec }
    }
}

fn render(out: &mut dyn Write, report: &TensorsReport, args: &TensorsArgs) -> io::Result<()> {
    let columns = Columns::of(report, args);

    // Where statistics don't fit beside it, they stand below.
    let is_narrow = printer::columns()
        .is_some_and(|width| width < columns.name + columns.dtype + columns.shape + 14 + 60);
    render_heading(out, &columns, args, is_narrow)?;
    let names: Vec<String> =
        report.tensors.iter().map(|row| Escaped(&row.name).to_string()).collect();
    let names = if columns.shortens { human::shortened_apart(&names, columns.name) } else { names };
    for (row, name) in report.tensors.iter().zip(&names) {
        render_row(out, (row, name), &columns, args)?;
        if args.stats {
            if is_narrow {
                writeln!(out)?;
            }
            render_stats(out, row)?;
        }
        writeln!(out)?;
    }

    let bytes: u64 = report.tensors.iter().map(|row| row.bytes).sum();
    let total = counted(report.tensor_count as u64, "tensor");
    let shown = report.tensors.len();
    let of = if shown < report.tensor_count {
        format!("{} of ", human::count(shown as u64))
    } else {
        String::new()
    };
    writeln!(out, "{DIM}{of}{total}, {}{DIM:#}", human::bytes(bytes))?;
    left_out::render(out, &report.left_out)
}

fn render_heading(
    out: &mut dyn Write,
    columns: &Columns,
    args: &TensorsArgs,
    is_narrow: bool,
) -> io::Result<()> {
    let &Columns { name, dtype, shape, codec, .. } = columns;
    write!(
        out,
        "{BOLD}{:<name$}  {:<dtype$}  {:<shape$}  {:>SIZE$}",
        "Name", "Dtype", "Shape", "Size"
    )?;
    if let Some(codec) = codec {
        write!(out, "  {:>SIZE$}  {:<codec$}", "Stored", "Codec")?;
    }
    if args.offset {
        write!(out, "  {:>OFFSET$}", "Offset")?;
    }

    if args.stats {
        if is_narrow {
            writeln!(out)?;
        }
        for label in ["Min", "Max", "Mean", "Std", "L2", "Zeros"] {
            write!(out, " {label:>9}")?;
        }
    }

    writeln!(out, "{BOLD:#}")
}

fn render_row(
    out: &mut dyn Write,
    (row, shown): (&TensorRow, &str),
    columns: &Columns,
    args: &TensorsArgs,
) -> io::Result<()> {
    let &Columns { name, dtype, shape, codec, .. } = columns;
    let (dims, size) = (row.shape.to_string(), human::bytes(row.bytes));
    write!(out, "{shown:<name$}  {:<dtype$}  {dims:<shape$}  {size:>SIZE$}", row.dtype)?;
    if let Some(codec) = codec {
        let stored = human::bytes(row.stored_bytes.unwrap_or(row.bytes));
        write!(out, "  {stored:>SIZE$}  {:<codec$}", codec_of(row))?;
    }
    if args.offset {
        write!(out, "  {:>OFFSET$}", row.offset)?;
    }
    Ok(())
}

/// Returns the codec of a tensor, or a dash if it is not compressed.
fn codec_of(row: &TensorRow) -> &str {
    row.codec.as_deref().unwrap_or("-")
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

/// Renders rows of the last dimension, each after its index. Long rows are wrapped; the index of a
/// line then ends with the position of its first value.
fn render_values(out: &mut dyn Write, report: &ValuesReport) -> io::Result<()> {
    let TensorRow { name, dtype, shape, .. } = &report.tensor;
    let ranges: Vec<String> =
        report.ranges.iter().map(|[start, end]| format!("{start}:{end}")).collect();
    let is_whole = report.ranges.iter().zip(shape.dims()).all(|(&range, &dim)| range == [0, dim]);
    let ranges = ranges.join(", ");
    let part = if is_whole { String::new() } else { format!(", of which [{ranges}]") };
    writeln!(out, "{BOLD}{}{BOLD:#} ({dtype} {shape}{part})", Escaped(name))?;
    let Some((columns, outer)) = report.ranges.split_last() else {
        return report.values.iter().try_for_each(|value| writeln!(out, "{}", exact(*value)));
    };
    let row_len = usize::try_from(columns[1] - columns[0]).unwrap_or(usize::MAX).max(1);
    let line_len = printer::columns().unwrap_or(LINE).saturating_sub(INDEX + 1) / (CELL + 1);
    for (number, row) in report.values.chunks(row_len).enumerate() {
        let outer = row_index(number as u64, outer);
        let is_wrapped = row.len() > line_len.max(1);
        for (start, line) in
            (columns[0]..).step_by(line_len.max(1)).zip(row.chunks(line_len.max(1)))
        {
            let start = if is_wrapped { start.to_string() } else { String::new() };
            let index: Vec<&str> =
                [outer.as_str(), &start].into_iter().filter(|part| !part.is_empty()).collect();
            if !index.is_empty() {
                write!(out, "{DIM}{:>INDEX$}{DIM:#} ", index.join(","))?;
            }
            let cells: Vec<String> =
                line.iter().map(|&value| format!("{:>CELL$}", exact(value))).collect();
            writeln!(out, "{}", cells.join(" "))?;
        }
    }

    if report.values.is_empty() {
        writeln!(out, "No values.")?;
    }

    Ok(())
}

/// The indices before the last one, of the row of this number.
fn row_index(mut number: u64, outer: &[[u64; 2]]) -> String {
    let mut index = Vec::with_capacity(outer.len());
    for [start, end] in outer.iter().rev() {
        let count = (end - start).max(1);
        index.push((start + number % count).to_string());
        number /= count;
    }
    index.reverse();
    index.join(",")
}

/// Returns a value with five digits, or all digits of an integer.
fn exact(value: f64) -> String {
    let magnitude = value.abs();
    match magnitude {
        0.0..1e15 if value.fract() == 0.0 => format!("{value}"),
        1e-3..1e6 => {
            let places = (4.0 - magnitude.log10().floor()).max(0.0);
            // Between 0 and 7.
            #[allow(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "small and not negative"
            )]
            let places = places as usize;
            format!("{value:.places$}")
        }
        _ if value.is_finite() => format!("{value:.4e}"),
        _ => format!("{value}"),
    }
}

fn render_histogram(out: &mut dyn Write, report: &HistogramReport) -> io::Result<()> {
    let TensorRow { name, shape, stats, .. } = &report.tensor;
    writeln!(out, "{BOLD}Distribution: {}{BOLD:#} (shape: {shape})", Escaped(name))?;
    if let Some(stats) = stats {
        let cell = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
        let (min, max) = (cell(stats.min), cell(stats.max));
        writeln!(
            out,
            "Min: {min}  Max: {max}  Mean: {}  Std: {}",
            cell(stats.mean),
            cell(stats.std)
        )?;
        if stats.nan + stats.inf > 0 {
            writeln!(
                out,
                "{BAD}NaN: {}  Inf: {}{BAD:#}",
                human::count(stats.nan),
                human::count(stats.inf)
            )?;
        }
    }

    let Some(&peak) = report.counts.iter().max() else {
        return writeln!(out, "No finite values.");
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
