//! `apr inspect`.

mod filters;

use std::io::{self, Write};
use std::path::Path;

use anstyle::Style;
use apr_arch::Description;
use apr_core::json::{entries, text};
use apr_core::{counted, number};
use apr_ops::graph::{EndReport, PartSummary};
use apr_ops::inspect::{InspectReport, LONGEST_ARRAY, QuantizedType};
use apr_registry::gguf::{self, Pair};
use apr_registry::{CheckpointReader, Escaped, Metadata};
use apr_tokenizer::{Vocabulary, unreadable_vocabulary, vocabulary};
use serde::Serialize;
use serde_json::{Map, Value};

use self::filters::{Filters, filters, render_filters};
use super::graph::{cost_text, sizes_text};
use super::imatrix_statistics::{self, ImatrixStatistics};
use super::{estimate, left_out, several};
use crate::args::InspectArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::engine::MemoryEstimate;
use crate::failure::Outcome;
use crate::options::in_options;
use crate::printer::{BOLD, DIM, ODD, columns};
use crate::{human, model};

/// Companions and metadata keys shown without `--full`.
const BRIEF: usize = 12;
/// Characters of a metadata value shown without `--full`.
const BRIEF_VALUE: usize = 60;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    inspect: InspectReport,
    /// Tokens of the model, with `--vocab` or `--full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    vocabulary: Option<Vocabulary>,
    /// Warnings about tokenizer files, if the vocabulary is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vocabulary_warnings: Vec<String>,
    /// Preprocessing of audio and images, with `--filters` or `--full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    filters: Option<Filters>,
    /// Estimated memory of a run, with `--memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryEstimate>,
    /// Statistics, if the file is an importance matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    imatrix: Option<ImatrixStatistics>,
}

impl Document for Report {
    const SCHEMA: &'static str = "inspect";
}

/// Describes models.
pub(super) fn run(args: &InspectArgs, context: &Context) -> Outcome {
    several::each(
        &args.models,
        context,
        |path| describe(path, args, context),
        |out, report| {
            render(out, &report.inspect, args)?;
            match &report.vocabulary {
                Some(vocabulary) => render_vocabulary(out, vocabulary, &report.inspect.metadata)?,
                None if args.vocab => {
                    render_missing_vocabulary(out, &report.vocabulary_warnings)?;
                }
                None => {}
            }
            match &report.filters {
                Some(filters) => render_filters(out, filters)?,
                None if args.filters => writeln!(
                    out,
                    "\nThe model contains no filterbank and no preprocessing configuration."
                )?,
                None => {}
            }
            if let Some(found) = &report.imatrix {
                imatrix_statistics::render(out, found, args.full)?;
            }
            report.memory.as_ref().map_or(Ok(()), |memory| estimate::render(out, memory))
        },
    )
}

fn describe(path: &Path, args: &InspectArgs, context: &Context) -> Outcome<Report> {
    let model = model::look_with_companions(path, context)?;
    let reader: &dyn CheckpointReader = &*model.reader;
    let settings = &context.config.inspect;
    let vocabulary = if args.vocab || args.full || settings.show_vocab {
        vocabulary(reader, if args.full { usize::MAX } else { settings.max_tokens_display })?
    } else {
        None
    };
    let vocabulary_warnings = match args.vocab && vocabulary.is_none() {
        true => unreadable_vocabulary(reader)?,
        false => Vec::new(),
    };
    let filters = if args.filters || args.full { filters(reader, context)? } else { None };
    let memory = args.memory.then(|| estimate::of(&model, args, context)).transpose()?;
    let inspect = context.session(&model)?.inspect()?;
    let imatrix = imatrix_statistics::of(reader)?;
    Ok(Report { inspect, vocabulary, vocabulary_warnings, filters, memory, imatrix })
}

fn render(out: &mut dyn Write, report: &InspectReport, args: &InspectArgs) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&report.path))?;
    summary(report)
        .into_iter()
        .try_for_each(|(label, value)| writeln!(out, "{label:<12} {value}"))?;
    render_header_summary(out, &report.header)?;
    render_compression(out, report)?;
    render_signers(out, &report.signed_by)?;
    render_dtypes(out, report)?;
    if args.quantization || args.full {
        render_quantization(out, report)?;
    }

    render_computes(out, &report.computes, args.full)?;
    if args.header || args.full {
        writeln!(out, "\n{BOLD}Header{BOLD:#}")?;
        render_object(out, &report.header, usize::MAX, usize::MAX)?;
    }

    let (rows, width) = if args.full { (usize::MAX, usize::MAX) } else { (BRIEF, BRIEF_VALUE) };
    render_metadata(out, report, rows, width)?;
    render_shards_and_companions(out, report, rows)?;
    if !report.left_out.is_empty() {
        writeln!(out)?;
        left_out::render(out, &report.left_out)?;
    }
    if !report.warnings.is_empty() {
        writeln!(out)?;
    }

    report.warnings.iter().try_for_each(|warning| {
        writeln!(out, "{ODD}warning{ODD:#}: {}", Escaped(&in_options(warning)))
    })
}

/// Returns the description of the model as labels and values.
fn summary(report: &InspectReport) -> Vec<(&'static str, String)> {
    let adapter = report.adapter.as_ref();
    let told = report
        .model_type
        .as_deref()
        .map_or_else(|| "unknown".to_owned(), |kind| Escaped(kind).to_string());
    let told = if adapter.is_some() { "adapter".to_owned() } else { told };
    let known = |label, value: Option<String>| value.map(|value| (label, value));
    let lines = [
        known("Type:", Some(report.family.as_ref().map_or(told, family_name))),
        known("Adapter:", adapter.map(|adapter| Escaped(&adapter.to_string()).to_string())),
        known("Pairs:", adapter.map(|adapter| human::count(adapter.pairs as u64))),
        known("Format:", Some(report.format.name.to_owned())),
        known("Kind:", report.kind.clone()),
        known("Version:", report.version.clone()),
        known("Size:", Some(size(report))),
        known("Parameters:", Some(human::count(report.parameters))),
        known("Tensors:", Some(human::count(report.tensor_count as u64))),
        known("Vocab Size:", report.vocab_size.map(human::count)),
    ];
    lines.into_iter().flatten().collect()
}

fn render_shards_and_companions(
    out: &mut dyn Write,
    report: &InspectReport,
    rows: usize,
) -> io::Result<()> {
    if report.files.len() > 1 {
        // A manifest lists itself beside its shards.
        let title =
            if report.header.get("shards").is_some() { "Manifest and shards" } else { "Shards" };
        writeln!(out, "\n{BOLD}{title}{BOLD:#}")?;
        let shards = report.files.iter().map(|file| (file.name.as_str(), file.len));
        render_files(out, shards, report.files.len(), rows)?;
    }

    if !report.companions.is_empty() {
        writeln!(out, "\n{BOLD}Companion files{BOLD:#}")?;
        let files = report.companions.iter().map(|file| (file.name.as_str(), file.len));
        render_files(out, files, report.companions.len(), rows)?;
    }

    Ok(())
}

/// Returns the size of the model; for compressed models, the decoded size and the stored size.
fn size(report: &InspectReport) -> String {
    let saved = report
        .compression
        .iter()
        .map(|share| share.bytes.saturating_sub(share.stored))
        .sum::<u64>();
    match saved {
        0 => format!(
            "{} ({} of tensors)",
            human::bytes(report.bytes),
            human::bytes(report.tensor_bytes)
        ),
        saved => {
            format!(
                "{} (compressed: {})",
                human::bytes(report.bytes.saturating_add(saved)),
                human::bytes(report.bytes)
            )
        }
    }
}

/// Renders the block length, bits per weight, original type and tensor count of each quantized
/// type.
fn render_quantization(out: &mut dyn Write, report: &InspectReport) -> io::Result<()> {
    writeln!(out, "\n{BOLD}Quantization{BOLD:#}")?;
    let Some(quantization) = &report.quantization else { return writeln!(out, "  none") };
    if let Some(scheme) = &quantization.scheme {
        writeln!(out, "  Scheme: {}", Escaped(scheme))?;
    }

    let original = quantization.original.as_deref().unwrap_or("not recorded");
    for QuantizedType { dtype, block_size, bits_per_weight, tensor_count: tensors, .. } in
        &quantization.types
    {
        let block = block_size.map_or_else(|| "row".to_owned(), |size| size.to_string());
        let bits = bits_per_weight.unwrap_or_default();
        let (name, tensors) = (dtype.name().to_uppercase(), counted(*tensors as u64, "tensor"));
        let original = Escaped(original);
        writeln!(
            out,
            "  Type: {name}, Block size: {block}, Bits/weight: {}, Original: {original} \
             ({tensors})",
            number(bits)
        )?;
    }

    if let Some(calibration) = &quantization.calibration {
        writeln!(out, "  Calibration: {}", Escaped(calibration))?;
    }

    match quantization.degradation {
        Some(error) => {
            writeln!(out, "  {ODD}Degradation{ODD:#}: relative error {:.1} %", 100.0 * error)
        }
        None => Ok(()),
    }
}

/// Renders the flags and the checksum, which only the native container has.
fn render_header_summary(out: &mut dyn Write, header: &Value) -> io::Result<()> {
    if let Some(flags) = header.get("flags").and_then(Value::as_array) {
        let flags: Vec<_> = flags.iter().filter_map(Value::as_str).collect();
        writeln!(
            out,
            "{:<12} {}",
            "Flags:",
            if flags.is_empty() { "none".to_owned() } else { flags.join(" | ") }
        )?;
    }
    if let Some(crc32) = header.get("crc32").and_then(Value::as_str) {
        writeln!(out, "{:<12} {crc32} (`apr validate` checks it)", "Checksum:")?;
    }
    Ok(())
}

fn render_compression(out: &mut dyn Write, report: &InspectReport) -> io::Result<()> {
    let codecs = report.compression.iter().map(|share| {
        let percent = share.stored as f64 * 100.0 / share.bytes.max(1) as f64;
        let tensors = apr_core::counted(share.tensor_count as u64, "tensor");
        format!("{} ({tensors}, {percent:.1} % of their bytes)", share.codec)
    });
    let codecs: Vec<String> = codecs.collect();
    if codecs.is_empty() {
        Ok(())
    } else {
        writeln!(out, "{:<12} {}", "Compression:", codecs.join(", "))
    }
}

fn render_signers(out: &mut dyn Write, signers: &[String]) -> io::Result<()> {
    if signers.is_empty() {
        return Ok(());
    }
    writeln!(out, "{:<12} {} (`apr verify` checks it)", "Signed by:", signers.join(", "))
}

fn render_dtypes(out: &mut dyn Write, report: &InspectReport) -> io::Result<()> {
    /// Widths of the columns, unless a dtype is longer or the terminal is narrower.
    const USUAL: [usize; 5] = [12, 8, 16, 10, 12];

    if report.dtypes.is_empty() {
        return Ok(());
    }

    let bits = |bits: Option<f64>| bits.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.2}"));
    let row = |name: &str, tensors: u64, elements: u64, bytes: u64, per_weight: Option<f64>| {
        let (tensors, elements) = (human::count(tensors), human::count(elements));
        [name.to_owned(), tensors, elements, human::bytes(bytes), bits(per_weight)]
    };
    let mut rows = vec![["Dtype", "Tensors", "Elements", "Size", "Bits/weight"].map(str::to_owned)];
    rows.extend(report.dtypes.iter().map(|share| {
        let count = share.tensor_count as u64;
        row(&share.name(), count, share.elements, share.bytes, share.bits_per_weight)
    }));
    if report.dtypes.len() > 1 {
        let count = report.tensor_count as u64;
        let (elements, bytes) = (report.parameters, report.tensor_bytes);
        rows.push(row("total", count, elements, bytes, report.bits_per_weight));
    }

    let widest = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let mut widths = USUAL;
    widths[0] = widest(0).max(widths[0]);
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + widths.len() - 1;
    if columns().is_some_and(|columns| total(&widths) > columns) {
        widths = std::array::from_fn(widest);
    }
    let [name, tensors, elements, size, per_weight] = widths;
    writeln!(out)?;
    for (at, [a, b, c, d, e]) in rows.iter().enumerate() {
        let style = if at == 0 { BOLD } else { Style::new() };
        writeln!(
            out,
            "{style}{a:<name$} {b:>tensors$} {c:>elements$} {d:>size$} {e:>per_weight$}{style:#}"
        )?;
    }

    Ok(())
}

fn render_metadata(
    out: &mut dyn Write,
    report: &InspectReport,
    rows: usize,
    width: usize,
) -> io::Result<()> {
    let architecture = report
        .metadata
        .get("architecture")
        .filter(|value| value.as_object().is_some_and(|o| !o.is_empty()));
    if let Some(architecture) = architecture {
        writeln!(out, "\n{BOLD}Architecture{BOLD:#}")?;
        render_object(out, architecture, rows.max(2 * BRIEF), width)?;
    }

    let rest: Map<String, Value> = report
        .metadata
        .iter()
        .filter(|(key, _)| !["architecture", "model_type", "apr_version", "gguf"].contains(key))
        .map(|(key, value)| (key.to_owned(), value.clone()))
        .filter(|(_, value)| value.as_object().is_none_or(|object| !object.is_empty()))
        .collect();
    if !rest.is_empty() {
        writeln!(out, "\n{BOLD}Metadata{BOLD:#}")?;
        render_object(out, &Value::Object(flatten(&rest)), rows, width)?;
    }

    render_pairs(out, &report.metadata, rows.max(2 * BRIEF), width)
}

/// The key-value pairs of a GGUF file, in its order.
fn render_pairs(
    out: &mut dyn Write,
    metadata: &Metadata,
    rows: usize,
    width: usize,
) -> io::Result<()> {
    let pairs = metadata.key_values().ok().flatten().unwrap_or_default();
    if pairs.is_empty() {
        return Ok(());
    }

    writeln!(out, "\n{BOLD}GGUF keys{BOLD:#}")?;
    let label = |pair: &Pair<'_>| Escaped(pair.key).to_string();
    let label_width =
        pairs.iter().map(|pair| label(&pair).chars().count()).max().unwrap_or_default().min(44);
    let width = fitting(width, label_width);
    for pair in pairs.iter().take(rows) {
        let value = match pair.items() {
            Some(count) if count > LONGEST_ARRAY => {
                let gguf::Value::Array(items) = pair.value() else { continue };
                format!("{} x {}", human::count(count), items.type_name())
            }
            _ => pair.text().map_or_else(|| pair.json().to_string(), str::to_owned),
        };
        writeln!(out, "  {:<label_width$}  {}", label(&pair), Escaped(&shortened(&value, width)))?;
    }

    render_more(out, pairs.len(), rows)
}

/// Returns the number of columns for a value beside a label, at most `width`.
fn fitting(width: usize, label: usize) -> usize {
    /// Minimum characters of a value for it to be useful.
    const LEAST: usize = 12;
    let room = columns().filter(|_| width < usize::MAX);
    room.map_or(width, |columns| width.min(columns.saturating_sub(label + 5).max(LEAST)))
}

fn shortened(text: &str, width: usize) -> String {
    let mut shown: String = text.chars().take(width).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// Objects within objects as dotted keys: `source.file`.
fn flatten(object: &Map<String, Value>) -> Map<String, Value> {
    let mut flat = Map::new();
    for (key, value) in object {
        match value {
            Value::Object(inner) => {
                flat.extend(
                    flatten(inner)
                        .into_iter()
                        .map(|(rest, value)| (format!("{key}.{rest}"), value)),
                );
            }
            value => {
                flat.insert(key.clone(), value.clone());
            }
        }
    }

    flat.sort_keys();
    flat
}

fn render_object(out: &mut dyn Write, object: &Value, rows: usize, width: usize) -> io::Result<()> {
    let Some(object) = object.as_object() else { return writeln!(out, "  none") };
    let label_width =
        object.keys().map(|key| key.chars().count()).max().unwrap_or_default().min(32);
    let width = fitting(width, label_width);
    for (key, value) in entries(object).take(rows) {
        let text = value.as_str().map_or_else(|| text(value), str::to_owned);
        writeln!(
            out,
            "  {:<label_width$}  {}",
            Escaped(key).to_string(),
            Escaped(&shortened(&text, width))
        )?;
    }

    render_more(out, object.len(), rows)
}

fn render_files<'a>(
    out: &mut dyn Write,
    files: impl Iterator<Item = (&'a str, u64)>,
    total: usize,
    rows: usize,
) -> io::Result<()> {
    for (name, len) in files.take(rows) {
        writeln!(out, "  {:>10}  {}", human::bytes(len), Escaped(name))?;
    }
    render_more(out, total, rows)
}

fn render_more(out: &mut dyn Write, total: usize, rows: usize) -> io::Result<()> {
    if total > rows {
        writeln!(out, "  {DIM}and {} more; --full shows them{DIM:#}", total - rows)?;
    }
    Ok(())
}

/// `Whisper (Tiny), Automatic Speech Recognition (ASR)`.
fn family_name(family: &Description) -> String {
    let size = family.size.as_ref().map_or_else(String::new, |size| format!(" ({size})"));
    let purpose =
        family.purpose.as_ref().map_or_else(String::new, |purpose| format!(", {purpose}"));
    let guessed = if family.guessed { " (guessed from tensor names)" } else { "" };
    Escaped(&format!("{}{size}{purpose}{guessed}", family.title)).to_string()
}

fn render_special_tokens(out: &mut dyn Write, metadata: &Metadata) -> io::Result<()> {
    let special: Map<String, Value> = metadata
        .iter()
        .filter_map(|(key, value)| {
            Some((key.strip_prefix("tokenizer.")?.to_owned(), value.clone()))
        })
        .filter(|(key, _)| key.ends_with("_token") || key.ends_with("_token_id"))
        .collect();
    if special.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}Special tokens{BOLD:#}")?;
    render_object(out, &Value::Object(special), usize::MAX, BRIEF_VALUE)
}

fn render_missing_vocabulary(out: &mut dyn Write, warnings: &[String]) -> io::Result<()> {
    match warnings {
        [] => writeln!(out, "\nThe model contains no vocabulary."),
        warnings => {
            writeln!(out, "\nThe vocabulary can't be read:")?;
            warnings.iter().try_for_each(|warning| writeln!(out, "  {}", Escaped(warning)))
        }
    }
}

fn render_vocabulary(
    out: &mut dyn Write,
    vocabulary: &Vocabulary,
    metadata: &Metadata,
) -> io::Result<()> {
    let (size, source) = (counted(vocabulary.size as u64, "token"), &vocabulary.source);
    writeln!(out, "\n{BOLD}Vocabulary{BOLD:#} ({size}, from {source})")?;
    vocabulary.tokens.iter().try_for_each(|token| {
        writeln!(out, "  {:>6}  {}", token.id, Escaped(&vocabulary.readable(token)))
    })?;
    match vocabulary.size - vocabulary.tokens.len() {
        0 => {}
        more => writeln!(out, "  {DIM}and {} more{DIM:#}", human::count(more as u64))?,
    }
    render_special_tokens(out, metadata)
}

/// Inputs and outputs of each graph, and the cost of a run.
fn render_computes(out: &mut dyn Write, parts: &[PartSummary], full: bool) -> io::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }

    writeln!(out, "\n{BOLD}Computes{BOLD:#}")?;
    for part in parts {
        let (nodes, operators) = (part.nodes, part.operators.len() as u64);
        let (nodes, operators) = (counted(nodes, "node"), counted(operators, "operator"));
        writeln!(out, "  {}: {nodes} of {operators}", Escaped(&part.name))?;
        writeln!(out, "    {DIM}in {DIM:#} {}", Escaped(&ends(&part.inputs, full)))?;
        writeln!(out, "    {DIM}out{DIM:#} {}", Escaped(&ends(&part.outputs, full)))?;
        writeln!(out, "    {DIM}run{DIM:#} {}", cost_text(&part.cost))?;
        if !part.cost.sizes.is_empty() {
            writeln!(out, "    {DIM}at {DIM:#} {}", sizes_text(&part.cost))?;
        }

        if full {
            let operators = part.operators.iter().map(|(op, count)| format!("{op} {count}"));
            writeln!(
                out,
                "    {DIM}ops{DIM:#} {}",
                Escaped(&operators.collect::<Vec<_>>().join(", "))
            )?;
        }
    }

    Ok(())
}

/// Names of inputs or outputs, the first of many.
fn ends(ends: &[EndReport], full: bool) -> String {
    const SHOWN: usize = 3;
    let most = if full { usize::MAX } else { SHOWN };
    let names: Vec<&str> = ends.iter().take(most).map(|end| end.name.as_str()).collect();
    let more = ends.len() - names.len();
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}
