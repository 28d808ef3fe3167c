//! `apr scan`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anstyle::Style;
use apr::job::Output;
use apr::scan::{scan_each, unreadable};
use apr_core::counted;
use apr_ops::sarif;
use apr_ops::sbom::{self, BillFormat};
use apr_registry::Escaped;
use apr_scan::{
    Action, FileVerdict, Finding, PickleReport, Reached, Remark, ScanReport, ScanSummary, Verdict,
};
use serde_json::Value;

use super::baseline::Baseline;
use super::beside::{beside_log, write_json_beside};
use super::scan_targets::{Target, Targets};
use crate::args::{SbomFormat, ScanArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::options::in_options;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;

/// Findings of one file shown before the rest is only counted.
const SHOWN: usize = 20;

impl Document for ScanSummary {
    const SCHEMA: &'static str = "scan";
}

/// Lists what loading files would run.
pub(super) fn run(args: &ScanArgs, context: &Context) -> Outcome {
    check_outputs(args)?;
    let Targets { files, folders, excluded } = Targets::of(args, context)?;
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let mut new = args.write_baseline.as_ref().map(|_| Baseline::default());
    let mut digests = BTreeMap::new();
    let bar = Bar::counting(&context.printer, files.len() as u64);
    let mut scanned = 0;
    let mut summary = scan_each(
        &files,
        Target::name,
        |target| {
            let mut report = target.scan(&folders, context)?;
            let digest = || target.digest(context);
            if let Some(baseline) = &baseline {
                baseline.accept(&mut report, digest)?;
            }
            if let Some(new) = &mut new {
                new.add(&mut report, digest)?;
            }
            if args.sbom.is_some() {
                digests.insert(report.path.clone(), digest()?);
            }
            scanned += 1;
            bar.reached(scanned);
            Ok(report)
        },
        |failure| match failure {
            Failure::Model(error) => unreadable(error).map(|why| in_options(&why)),
            _ => None,
        },
    )?;
    drop(bar);
    summary.excluded = excluded;
    if let (Some(path), Some(new)) = (&args.write_baseline, &new) {
        new.write(path, context)?;
    }
    if let Some(path) = &args.sarif {
        write_json_beside(path, &sarif::of_scans(&summary), &context.printer)?;
    }
    if let Some(path) = &args.sbom {
        let bill = bill(args, path, &summary, &digests)?;
        write_json_beside(path, &bill, &context.printer)?;
    }

    let all = files.len() == 1 || context.printer.shows_detail();
    let logs = [args.sarif.as_deref(), args.sbom.as_deref()];
    let log = logs.into_iter().flatten().find(|log| Output::is_stdout(log));
    let printer = beside_log(log, context).in_markdown(&args.markdown);
    let passes = match summary.verdict {
        FileVerdict::Clean => summary.not_run == 0 || !args.strict,
        // An empty cache has nothing to load.
        FileVerdict::NotExamined if args.cache && summary.files.is_empty() => true,
        FileVerdict::NotRun | FileVerdict::NotExamined => args.allow_unexamined,
        _ => false,
    };
    printer.judge(&summary, |out, summary| render(out, summary, all), passes)
}

/// Rejects outputs that cannot be made.
///
/// Digests need a second read, and only one document can be written to standard output.
fn check_outputs(args: &ScanArgs) -> Outcome {
    let outputs = [
        ("--baseline", &args.baseline),
        ("--write-baseline", &args.write_baseline),
        ("--sbom", &args.sbom),
    ];
    let reads_twice = outputs.iter().find(|(_, file)| file.is_some());
    if let Some((option, _)) = reads_twice
        && args.paths.iter().any(|path| path.as_os_str() == "-")
    {
        let message =
            format!("{option} reads files a second time, which standard input does not allow");
        return Err(Failure::Usage(message));
    }
    let is_stdout = |file: &Option<PathBuf>| file.as_deref().is_some_and(Output::is_stdout);
    match is_stdout(&args.sarif) && is_stdout(&args.sbom) {
        true => Err(Failure::Usage(
            "--sarif and --sbom can't both be written to standard output".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Makes the bill of materials in the format of `--sbom-format`, or of the file's name.
fn bill(
    args: &ScanArgs,
    path: &Path,
    summary: &ScanSummary,
    digests: &BTreeMap<String, String>,
) -> Outcome<Value> {
    let named = path.to_string_lossy().to_ascii_lowercase();
    let is_named_spdx = [".spdx.json", ".spdx3.json"].iter().any(|end| named.ends_with(end));
    let format = args.sbom_format.unwrap_or(match is_named_spdx {
        true => SbomFormat::Spdx,
        false => SbomFormat::Cyclonedx,
    });
    let format = match format {
        SbomFormat::Cyclonedx => BillFormat::CycloneDx,
        SbomFormat::Spdx => BillFormat::Spdx { created: created()? },
    };
    Ok(sbom::of_scan(summary, digests, format))
}

/// Returns the seconds since 1970 that a document states as the time of its making.
fn created() -> Outcome<u64> {
    /// Variable by which builds are made reproducible.
    const VARIABLE: &str = "SOURCE_DATE_EPOCH";

    match std::env::var(VARIABLE) {
        Ok(text) => text.parse().map_err(|_| {
            Failure::Usage(format!("{VARIABLE} must be a number of seconds since 1970"))
        }),
        Err(_) => {
            let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            Ok(since.unwrap_or_default().as_secs())
        }
    }
}

fn render(out: &mut dyn Write, summary: &ScanSummary, all: bool) -> io::Result<()> {
    let matters = |file: &&ScanReport| file.verdict > FileVerdict::NotRun && !file.accepted;
    for file in summary.files.iter().filter(|file| all || matters(file)) {
        render_file(out, file)?;
    }

    if summary.files.len() == 1 && summary.excluded == 0 {
        return Ok(());
    }
    if !all {
        render_not_run(out, summary)?;
    }

    let counts = [
        (summary.dangerous, "dangerous"),
        (summary.unreadable, "unreadable"),
        (summary.suspicious, "suspicious"),
        (summary.not_examined, "not examined"),
        (summary.not_run, "not run"),
        (summary.accepted, "accepted"),
        (summary.clean, "clean"),
        (summary.excluded, "excluded"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let counts = if counts.is_empty() { "nothing to scan".to_owned() } else { counts.join(", ") };
    writeln!(out, "{BOLD}{}{BOLD:#}: {counts}", counted(summary.files.len() as u64, "file"))
}

/// The names of files that loading the model does not run, in one line.
fn render_not_run(out: &mut dyn Write, summary: &ScanSummary) -> io::Result<()> {
    /// Names that are shown.
    const NAMES: usize = 4;

    let files = || summary.files.iter().filter(|file| file.verdict == FileVerdict::NotRun);
    let mut names: Vec<String> =
        files().take(NAMES).map(|file| Escaped::short(&file.path).to_string()).collect();
    let more = files().count().saturating_sub(NAMES);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    if names.is_empty() {
        return Ok(());
    }
    let names = names.join(", ");
    writeln!(out, "{DIM}not run: {names} (loading a model does not run scripts){DIM:#}")
}

fn style_of(verdict: FileVerdict) -> Style {
    match verdict {
        FileVerdict::Clean => GOOD,
        FileVerdict::NotRun => DIM,
        FileVerdict::NotExamined | FileVerdict::Suspicious | FileVerdict::Unreadable => ODD,
        FileVerdict::Dangerous => BAD,
    }
}

fn render_file(out: &mut dyn Write, file: &ScanReport) -> io::Result<()> {
    let style = style_of(file.verdict);
    writeln!(
        out,
        "{style}{:<10}{style:#}  {}  {DIM}{}{DIM:#}",
        file.verdict.word(),
        Escaped(&file.path),
        file.kind
    )?;
    render_findings(out, file)?;
    for remark in file.remarks.iter().take(SHOWN) {
        render_remark(out, remark)?;
    }
    for warning in file.warnings.iter().take(SHOWN) {
        writeln!(out, "  {ODD}warning{ODD:#}    {}", Escaped(&in_options(warning)))?;
    }

    for note in file.notes.iter().take(SHOWN) {
        writeln!(out, "  {DIM}note       {}{DIM:#}", Escaped(&in_options(note)))?;
    }

    let broken = file.pickles.iter().filter_map(|pickle| {
        let problem = pickle.problem.as_ref()?;
        let at = if pickle.entry.is_empty() {
            String::new()
        } else {
            format!("'{}': ", Escaped::short(&pickle.entry))
        };
        Some(format!("{at}{problem}"))
    });

    for problem in file.problems.iter().cloned().chain(broken).take(SHOWN) {
        writeln!(out, "  {ODD}unread{ODD:#}     {}", Escaped(&in_options(&problem)))?;
    }

    Ok(())
}

fn render_remark(out: &mut dyn Write, remark: &Remark) -> io::Result<()> {
    let word = match remark.verdict {
        FileVerdict::Dangerous => "DANGEROUS",
        FileVerdict::NotExamined => "unknown",
        FileVerdict::NotRun => "note",
        _ => "warning",
    };
    let style = style_of(remark.verdict);
    write!(out, "  {style}{word:<9}{style:#}  ")?;
    if !remark.entry.is_empty() {
        write!(out, "'{}': ", Escaped::short(&remark.entry))?;
    }
    writeln!(out, "{}", Escaped(&remark.message))
}

/// The names that a file's pickles use; the harmless ones by their number.
pub(super) fn render_findings(out: &mut dyn Write, scan: &ScanReport) -> io::Result<()> {
    let findings = || {
        scan.pickles
            .iter()
            .flat_map(|pickle| pickle.findings.iter().map(move |found| (pickle, found)))
    };
    let odd = || findings().filter(|(_, finding)| finding.verdict != Verdict::Allowed);
    for (pickle, finding) in odd().take(SHOWN) {
        render_finding(out, pickle, finding)?;
    }

    let total = odd().count();
    if total > SHOWN {
        writeln!(out, "  {DIM}and {} more; --json lists them all{DIM:#}", total - SHOWN)?;
    }

    let harmless = findings().count() - total;
    if harmless > 0 {
        let names = counted(harmless as u64, "harmless use");
        writeln!(out, "  {DIM}{names} of allowed names; --json lists them{DIM:#}")?;
    }

    Ok(())
}

fn render_finding(out: &mut dyn Write, pickle: &PickleReport, finding: &Finding) -> io::Result<()> {
    let (style, verdict) = match finding.verdict {
        Verdict::Dangerous => (BAD, "DANGEROUS"),
        _ => (ODD, "unknown"),
    };
    let action = match finding.action {
        Action::Call => "call",
        Action::Import => "import",
        Action::Change => "change",
    };
    let name = format!("{}.{}", finding.module, finding.name);
    let (name, opcode, offset) = (Escaped::short(&name), finding.opcode, finding.offset);
    write!(out, "  {style}{verdict:<9}{style:#}  {action:<6}  {name}")?;
    if let Some(argument) = &finding.argument {
        write!(out, "{}", Escaped(argument))?;
    }

    write!(out, "  {DIM}{opcode} at byte {offset}")?;
    if !pickle.entry.is_empty() {
        write!(out, " of '{}'", Escaped::short(&pickle.entry))?;
    }
    if pickle.reached == Reached::Nobody {
        write!(out, ", not read by loaders of this archive")?;
    }

    writeln!(out, "{DIM:#}")
}
