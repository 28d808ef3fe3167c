//! `apr scan`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::slice;
use std::sync::Arc;

use anstyle::Style;
use apr::job::Output;
use apr::scan::{check_link, files_below, scan_each, unreadable};
use apr_core::counted;
use apr_io::Spool;
use apr_ops::{sarif, sbom, sha256};
use apr_registry::{ByteSource, Escaped, Serial};
use apr_scan::{
    Action, FileVerdict, Finding, PickleReport, Reached, Remark, ScanReport, ScanSummary, Verdict,
    scan_file,
};
use base16ct::lower::encode_string;

use super::baseline::Baseline;
use super::beside::{beside_log, write_json_beside};
use crate::args::ScanArgs;
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::options::in_options;
use crate::printer::{BAD, BOLD, DIM, GOOD, ODD};
use crate::progress::Bar;
use crate::remote::Repository;

/// Findings of one file shown before the rest is only counted.
const SHOWN: usize = 20;

impl Document for ScanSummary {
    const SCHEMA: &'static str = "scan";
}

/// Lists what loading files would run.
pub(super) fn run(args: &ScanArgs, context: &Context) -> Outcome {
    check_outputs(args)?;
    let mut files = Vec::new();
    for path in &args.paths {
        // Whoever trusts a repository loads any of its files.
        match Repository::at(path, &context.sources)? {
            Some(repository) => {
                let names = repository.names()?;
                repository.notes().iter().for_each(|note| context.printer.warn(note));
                let repository = Arc::new(repository);
                let file = |name| Target::Remote(Arc::clone(&repository), name);
                files.extend(names.into_iter().map(file));
            }
            None => files.extend(files_below(slice::from_ref(path))?.into_iter().map(Target::Path)),
        }
    }
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let mut new = args.write_baseline.as_ref().map(|_| Baseline::default());
    let mut digests = BTreeMap::new();
    let bar = Bar::counting(&context.printer, files.len() as u64);
    let mut scanned = 0;
    let summary = scan_each(
        &files,
        Target::name,
        |target| {
            let mut report = scan(target, &args.paths, context)?;
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
    if let (Some(path), Some(new)) = (&args.write_baseline, &new) {
        new.write(path, context)?;
    }
    if let Some(path) = &args.sarif {
        write_json_beside(path, &sarif::of_scans(&summary), &context.printer)?;
    }
    if let Some(path) = &args.sbom {
        write_json_beside(path, &sbom::of_scan(&summary, &digests), &context.printer)?;
    }

    let all = files.len() == 1 || context.printer.shows_detail();
    let logs = [args.sarif.as_deref(), args.sbom.as_deref()];
    let log = logs.into_iter().flatten().find(|log| Output::is_stdout(log));
    let printer = beside_log(log, context).in_markdown(&args.markdown);
    let passes = match summary.verdict {
        FileVerdict::Clean => summary.not_run == 0 || !args.strict,
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

/// Bytes of a file, and the spool file if they come from a pipe.
type Opened = (Box<dyn ByteSource>, Option<Spool>);

/// A file that is scanned.
enum Target {
    /// File that was named, or is in a named folder.
    Path(PathBuf),
    /// File of a repository, or of a folder in a repository.
    Remote(Arc<Repository>, String),
}

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Remote(repository, file) => format!("{}/{file}", repository.location()),
        }
    }

    /// Opens the target's bytes, with the spool file if they come from a pipe.
    fn open(&self, context: &Context) -> Outcome<Opened> {
        match self {
            Self::Path(path) => model::open_bytes(path, context),
            Self::Remote(repository, file) => Ok((repository.open(file)?, None)),
        }
    }

    /// Returns the SHA-256 digest in hexadecimal.
    fn digest(&self, context: &Context) -> Outcome<String> {
        let (source, _spool) = self.open(context)?;
        let digest = encode_string(&sha256(&source, &Serial, &())?);
        // A digest of other bytes than those that were scanned would accept them.
        context.sources.check_unchanged()?;
        Ok(digest)
    }
}

fn scan(target: &Target, folders: &[PathBuf], context: &Context) -> Outcome<ScanReport> {
    let (source, _spool) = target.open(context)?;
    let mut report = scan_file(source, &target.name(), &context.options.limits)?;
    context.sources.check_unchanged()?;
    if let Target::Path(path) = target {
        check_link(path, folders, &mut report);
    }
    Ok(report)
}

fn render(out: &mut dyn Write, summary: &ScanSummary, all: bool) -> io::Result<()> {
    let matters = |file: &&ScanReport| file.verdict > FileVerdict::NotRun && !file.accepted;
    for file in summary.files.iter().filter(|file| all || matters(file)) {
        render_file(out, file)?;
    }

    if summary.files.len() == 1 {
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
