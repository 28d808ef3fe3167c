//! `apr debug`: for files that may not open.

use std::io::{self, Write};

use apr_core::counted;
use apr_core::json::{entries, text};
use apr_ops::debug::{FoundString, HEX_ROW, HexRow, hex, strings};
use apr_ops::session::Session;
use apr_ops::tensors::find;
use apr_ops::validate::{Level, ValidateOptions, ValidateReport, bytes_to_read};
use apr_registry::{ByteSource, CheckpointReader, Error, Escaped, HEAD_LEN, recognise};
use serde::Serialize;
use serde_json::Value;

use super::tensors::unknown_tensor;
use crate::args::DebugArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::options::in_options;
use crate::printer::BOLD;
use crate::progress::Bar;
use crate::{human, model};

/// Shortest run of printable characters that counts as a string.
const SHORTEST_STRING: usize = 4;
/// Strings shown by default.
const STRING_LIMIT: usize = 100;

/// Shows a file from below.
pub(super) fn run(args: &DebugArgs, context: &Context) -> Outcome {
    if args.limit.is_some() && !args.hex && !args.strings {
        return Err(Failure::Usage("--limit applies to --hex and --strings".to_owned()));
    }
    if args.hex {
        return show_hex(args, context);
    }

    if args.strings {
        let (source, _spool) = model::open_bytes(&args.file, context)?;
        let strings = strings(&source, SHORTEST_STRING, args.limit.unwrap_or(STRING_LIMIT))?;
        return context.printer.report(&Strings { path: args.path(), strings }, |out, found| {
            render_strings(out, &found.strings)
        });
    }

    let play = Play::stage(args, context)?;
    let drama = args.drama || context.config.debug.drama_mode;
    context.printer.report(&play, if drama { render_drama } else { render_plain })?;
    match play.failure {
        Some(error) => Err(Failure::Reported(error)),
        None if play.validation.as_ref().is_some_and(|report| !report.valid) => {
            Err(Failure::Validation)
        }
        None => Ok(()),
    }
}

fn show_hex(args: &DebugArgs, context: &Context) -> Outcome {
    let limit = args.limit.unwrap_or(context.config.debug.hex_limit);
    let rows = match &args.tensor {
        None => {
            let (source, _spool) = model::open_bytes(&args.file, context)?;
            hex(&source, 0, limit)?
        }
        Some(name) => {
            let model = model::open(&args.file, context)?;
            let tensor =
                find(&*model.reader, name).map_err(|similar| unknown_tensor(name, &similar))?;
            hex(&TensorBytes::new(&*model.reader, tensor)?, 0, limit)?
        }
    };

    let dump = HexDump { path: args.path(), tensor: args.tensor.clone(), rows };
    context.printer.report(&dump, |out, dump| render_hex(out, &dump.rows))
}

/// The report of `--strings`.
#[derive(Serialize)]
struct Strings {
    /// Path or location of the file, as given.
    path: String,
    /// Runs of printable characters, in the order of the file.
    strings: Vec<FoundString>,
}

impl Document for Strings {
    const SCHEMA: &'static str = "debug.strings";
}

/// The report of `--hex`.
#[derive(Serialize)]
struct HexDump {
    /// Path or location of the file, as given.
    path: String,
    /// Tensor whose bytes are shown, if they are not those of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    /// Rows of 16 bytes.
    #[serde(rename = "lines")]
    rows: Vec<HexRow>,
}

impl Document for HexDump {
    const SCHEMA: &'static str = "debug.hex";
}

/// Bytes of one tensor as a source; offsets count from its first byte.
struct TensorBytes<'a> {
    reader: &'a dyn CheckpointReader,
    tensor: usize,
    len: u64,
}

impl<'a> TensorBytes<'a> {
    fn new(reader: &'a dyn CheckpointReader, tensor: usize) -> apr_registry::Result<Self> {
        Ok(Self { reader, tensor, len: reader.tensors()[tensor].byte_len()? })
    }
}

impl ByteSource for TensorBytes<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> apr_registry::Result<()> {
        self.reader.read_tensor(self.tensor, offset, buf)
    }
}

/// Results of examining a file.
#[derive(Default, Serialize)]
struct Play {
    /// Path or location of the file, as given.
    path: String,
    /// Size of the file, or of all files of a model.
    bytes: u64,
    /// First four bytes: as text if they are printable, and otherwise in hexadecimal.
    magic: String,
    /// Name of the format, or `None` if it is unknown.
    format: Option<&'static str>,
    /// Fields of the format's header.
    header: Value,
    /// Elements of all tensors, if the file opens.
    parameters: Option<u64>,
    /// Number of tensors, if the file opens.
    tensor_count: Option<usize>,
    /// Report of `apr validate`, if the file opens.
    validation: Option<ValidateReport>,
    /// Reason for which the file does not open.
    #[serde(serialize_with = "as_text")]
    failure: Option<Error>,
}

impl Document for Play {
    const SCHEMA: &'static str = "debug";
}

fn as_text<S: serde::Serializer>(error: &Option<Error>, serializer: S) -> Result<S::Ok, S::Error> {
    error.as_ref().map(ToString::to_string).serialize(serializer)
}

impl Play {
    fn stage(args: &DebugArgs, context: &Context) -> Outcome<Self> {
        let mut play = Self { path: args.path(), ..Self::default() };
        if model::is_set(&args.file, context)? {
            let model = model::open(&args.file, context)?;
            play.bytes = model.reader.files().iter().map(|file| file.len).sum();
            play.tell(&*model.reader, context)?;
            return Ok(play);
        }

        let (source, _spool) = model::open_bytes(&args.file, context)?;
        let mut head = vec![0; usize::try_from(source.len().min(HEAD_LEN)).unwrap_or_default()];
        source.read_at(0, &mut head)?;
        play.bytes = source.len();
        play.magic = magic(&head);
        play.format = recognise(&head).map(|format| format.name);
        match apr_registry::open(source, &play.path, &context.options) {
            Ok(reader) => play.tell(&*reader, context)?,
            Err(error) => play.failure = Some(error),
        }

        Ok(play)
    }

    fn tell(&mut self, reader: &dyn CheckpointReader, context: &Context) -> Outcome {
        self.format = Some(reader.format().name);
        self.header = reader.container().header_fields();
        self.tensor_count = Some(reader.tensors().len());
        let elements =
            reader.tensors().iter().map(|info| info.shape.elements().unwrap_or_default());
        self.parameters = Some(elements.fold(0, u64::saturating_add));
        let bar = Bar::new(&context.printer, bytes_to_read(reader));
        let session = Session::of(context.source(reader, &self.path)?);
        match session.validate(ValidateOptions::default(), &context.pipeline()?, &bar) {
            Ok(report) => self.validation = Some(report),
            Err(error) => self.failure = Some(error),
        }

        Ok(())
    }

    fn version(&self) -> Option<&str> {
        self.header.get("version").and_then(Value::as_str)
    }
}

/// Returns the first four bytes as text if they are printable ASCII, and otherwise in hexadecimal.
fn magic(head: &[u8]) -> String {
    let start = &head[..head.len().min(4)];
    match str::from_utf8(start).map(|text| text.trim_end_matches('\0')) {
        Ok(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            text.to_owned()
        }
        _ => start.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "),
    }
}

fn render_plain(out: &mut dyn Write, play: &Play) -> io::Result<()> {
    writeln!(out, "{BOLD}=== {} ==={BOLD:#}", Escaped(&play.path))?;
    let mut line =
        |label: &str, value: &str| writeln!(out, "{:<16} {}", format!("{label}:"), Escaped(value));
    line("Size", &format!("{} ({} bytes)", human::bytes(play.bytes), human::count(play.bytes)))?;
    if !play.magic.is_empty() {
        line("Magic", &play.magic)?;
    }

    line("Format", play.format.unwrap_or("unknown"))?;
    if let (Some(tensors), Some(parameters)) = (play.tensor_count, play.parameters) {
        line("Tensors", &human::count(tensors as u64))?;
        line("Parameters", &human::count(parameters))?;
    }

    for (key, value) in play.header.as_object().into_iter().flat_map(entries) {
        line(key, &value.as_str().map_or_else(|| text(value), str::to_owned))?;
    }

    match &play.validation {
        Some(report) if report.valid => line("Health", &format!("valid, {}", findings(report))),
        Some(report) => line("Health", &format!("INVALID, {}", findings(report))),
        None => line("Health", "it does not open"),
    }
}

fn findings(report: &ValidateReport) -> String {
    counted(report.findings.len() as u64, "finding")
}

fn render_drama(out: &mut dyn Write, play: &Play) -> io::Result<()> {
    writeln!(out, "{BOLD}====[ DRAMA: {} ]===={BOLD:#}", Escaped(&play.path))?;
    writeln!(out, "\nACT I: THE HEADER")?;
    let known = if play.format.is_some() { "applause!" } else { "gasps from the gallery..." };
    match (play.magic.as_str(), play.format) {
        ("", _) => writeln!(out, "  Scene 1: A cast of several files... ({known})")?,
        (magic, Some("safetensors")) => {
            writeln!(out, "  Scene 1: No magic, but {magic} and then JSON... ({known})")?;
        }
        (magic, _) => writeln!(out, "  Scene 1: Magic bytes... {magic} ({known})")?,
    }

    if let Some(version) = play.version() {
        writeln!(out, "  Scene 2: Version check... {version} (standing ovation!)")?;
    }

    if let (Some(tensors), Some(parameters)) = (play.tensor_count, play.parameters) {
        writeln!(out, "\nACT II: THE METADATA")?;
        writeln!(
            out,
            "  Scene 1: Parameters... {} ({})",
            human::count(parameters),
            cast(parameters)
        )?;
        writeln!(out, "  Scene 2: Tensors... {}", human::count(tensors as u64))?;
    }

    writeln!(out, "\nACT III: THE VERDICT")?;
    match (&play.validation, &play.failure) {
        (Some(report), _) => writeln!(out, "  {}", curtain(report)),
        (None, Some(error)) => writeln!(out, "  TRAGEDY: {}", in_options(&error.to_string())),
        (None, None) => Ok(()),
    }
}

/// Returns the last line of the play for a model that opens.
fn curtain(report: &ValidateReport) -> String {
    if report.valid && report.findings.is_empty() {
        return "CURTAIN CALL: Model is PRODUCTION READY!".to_owned();
    }
    if report.valid {
        return format!("CURTAIN CALL: Model plays on, under a cloud: {}", findings(report));
    }
    let error = report.findings.iter().find(|finding| finding.level == Level::Error);
    let Some(finding) = error.or(report.findings.first()) else {
        return "TRAGEDY: the model falls".to_owned();
    };
    let tensor = finding.tensor.as_deref().unwrap_or("the model");
    format!("TRAGEDY: {} falls: {}", Escaped::short(tensor), Escaped(&finding.message))
}

fn cast(parameters: u64) -> &'static str {
    match parameters {
        1_000_000_000.. => "a cast of billions!",
        1_000_000.. => "a cast of millions!",
        1000.. => "a cast of thousands!",
        _ => "a chamber play!",
    }
}

fn render_hex(out: &mut dyn Write, rows: &[HexRow]) -> io::Result<()> {
    let width = HEX_ROW * 3 - 1;
    rows.iter().try_for_each(|row| {
        writeln!(out, "{:08x}  {:<width$}  {}", row.offset, row.hex.join(" "), row.ascii)
    })
}

fn render_strings(out: &mut dyn Write, found: &[FoundString]) -> io::Result<()> {
    found.iter().try_for_each(|string| writeln!(out, "{:08x}  {}", string.offset, string.text))
}
