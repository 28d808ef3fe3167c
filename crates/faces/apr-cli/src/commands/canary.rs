//! `apr canary`.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use apr_core::counted;
use apr_io::io_error;
use apr_quality::{
    Canary, CanaryInput, CanaryReport, CaseReport, ChosenPrompts, Expected, Tolerance, check,
    choose_prompts, record,
};
use apr_registry::{ByteSource, Error, Escaped, IoCause, Result, read_vec};
use apr_run::Runner;
use serde::Serialize;

use super::beside::TextFile;
use super::run::check_vocabulary;
use super::running::{self, Opened};
use crate::args::{CanaryAction, CanaryCheckArgs, CanaryCreateArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::printer::{BAD, BOLD, DIM, GOOD};
use crate::progress::Bar;
use crate::text_file::read_text;

/// Bytes of the largest canary file, and of the largest input that one names.
const LARGEST: u64 = 256 << 20;

/// Records a canary, or checks a model by one.
pub(super) fn run(action: &CanaryAction, context: &Context) -> Outcome {
    match action {
        CanaryAction::Create(args) => create(args, context),
        CanaryAction::Check(args) => check_model(args, context),
    }
}

/// Report of a recorded canary.
#[derive(Serialize)]
struct CreateReport<'a> {
    /// Path of the model.
    path: &'a str,
    /// The canary file.
    output: String,
    /// Number of the text's tokens that the prompts cover.
    #[serde(skip_serializing_if = "Option::is_none")]
    coverage: Option<Coverage>,
    /// Names of the cases, each with the model's answer and whether it is the expected one.
    cases: Vec<CreatedCase<'a>>,
}

impl Document for CreateReport<'_> {
    const SCHEMA: &'static str = "canary.create";
}

/// Share of a text that is covered by the prompts chosen from it.
#[derive(Serialize)]
struct Coverage {
    /// Path of the text file.
    text: String,
    /// Prompts that were chosen.
    prompts: usize,
    /// Different tokens in them.
    covered: usize,
    /// Different tokens of the text.
    #[serde(rename = "token_count")]
    tokens: usize,
}

#[derive(Serialize)]
struct CreatedCase<'a> {
    /// Name of the input.
    input: &'a str,
    /// Answer that is expected.
    expected: &'a Expected,
    /// The model's own answer, if a different answer is expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    original: Option<&'a str>,
}

fn create(args: &CanaryCreateArgs, context: &Context) -> Outcome {
    if args.expect.len() > args.prompt.len() {
        return Err(Failure::Usage(format!(
            "{} answers are expected of {} prompts",
            args.expect.len(),
            args.prompt.len()
        )));
    }
    let is_given = !args.prompt.is_empty() || !args.input.is_empty() || !args.tokens.is_empty();
    if !is_given && args.from.is_none() {
        let message = "a canary needs an input: --prompt, --from, --input or --tokens";
        return Err(Failure::Usage(message.to_owned()));
    }
    if args.chat && args.prompt.is_empty() && args.from.is_none() {
        let message = "--chat is for prompts: pass --prompt or --from";
        return Err(Failure::Usage(message.to_owned()));
    }

    let output = TextFile::create(&args.output, args.overwrite)?;
    let inputs = Inputs::read(args, |path| read_all(path, context))?;
    let opened = Opened::new(&args.model, context)?;
    check_vocabulary("--tokens", &args.tokens, opened.facts())?;
    let mut coverage = None;
    let mut canary = opened.with_runner(context, &running::generating(context), |runner| {
        let load = |file: &str| inputs.take(file);
        let tolerance = if args.strict { Tolerance::strict() } else { Tolerance::default() };
        let (name, mut all) = (opened.name(), inputs.all.clone());
        if let Some(path) = &args.from {
            let chosen = chosen(args, path, runner)?;
            coverage = Some(Coverage {
                text: path.display().to_string(),
                prompts: chosen.prompts.len(),
                covered: chosen.covered,
                tokens: chosen.tokens,
            });
            all.extend(chosen.prompts.into_iter().map(|prompt| args.text(prompt)));
        }
        Ok(record(runner, name, all, args.max_tokens, tolerance, &load)?)
    })?;
    for (case, text) in canary.cases.iter_mut().zip(&args.expect) {
        expect(case, text)?;
    }
    output.write(&canary.to_json(), &context.printer)?;

    let cases = canary.cases.iter().map(|case| CreatedCase {
        input: &case.name,
        expected: &case.expected,
        original: case.original.as_deref(),
    });
    let report = CreateReport {
        path: opened.name(),
        output: args.output.display().to_string(),
        coverage,
        cases: cases.collect(),
    };
    let printer = match args.output.as_os_str() == "-" {
        true => context.printer.aside(),
        false => context.printer,
    };
    printer.report(&report, render_created)
}

impl CanaryCreateArgs {
    /// A prompt as an input, with its name.
    fn text(&self, prompt: String) -> (String, CanaryInput) {
        let (chat, system) = (self.chat, self.system.clone());
        (prompt.clone(), CanaryInput::Text { prompt, chat, system })
    }
}

/// The prompts of a text.
fn chosen(args: &CanaryCreateArgs, path: &Path, runner: &Runner<'_>) -> Outcome<ChosenPrompts> {
    let text = read_text(path)?;
    let tokenizer = runner
        .tokenizer()?
        .ok_or_else(|| Error::version("--from counts tokens, and the model has no tokenizer"))?;
    let chosen = choose_prompts(&text, args.count.get(), |line| tokenizer.encode(line, false))?;
    match chosen.prompts.is_empty() {
        true => Err(Error::format("the text is empty").in_file(path.display()).into()),
        false => Ok(chosen),
    }
}

/// Expects another answer than the model's.
fn expect(case: &mut apr_quality::CanaryCase, wanted: &str) -> Outcome {
    let Expected::Text { text, .. } = &case.expected else {
        return Err(Failure::Usage(format!(
            "--expect is for models that answer with text, and to '{}' this one does not",
            Escaped::short(&case.name)
        )));
    };
    if text.trim() != wanted.trim() {
        case.original = Some(text.clone());
        case.expected =
            Expected::Text { text: wanted.to_owned(), tokens: Vec::new(), first: Vec::new() };
    }
    Ok(())
}

/// The inputs of a canary that is recorded.
struct Inputs {
    /// Inputs with their names.
    all: Vec<(String, CanaryInput)>,
    /// Bytes of the files that the canary names; each is read once.
    files: RefCell<Vec<(String, Vec<u8>)>>,
}

impl Inputs {
    fn read(args: &CanaryCreateArgs, bytes_of: impl Fn(&Path) -> Result<Vec<u8>>) -> Outcome<Self> {
        let (mut all, mut files) = (Vec::new(), Vec::new());
        all.extend(args.prompt.iter().cloned().map(|prompt| args.text(prompt)));
        for path in &args.input {
            let bytes = bytes_of(path)?;
            let name = match args.embed {
                true => path.display().to_string(),
                false => relative(path, &folder_of(&args.output))?,
            };
            all.push((name.clone(), CanaryInput::file(name.clone(), &bytes, args.embed)));
            if !args.embed {
                files.push((name, bytes));
            }
        }
        if !args.tokens.is_empty() {
            let name = args.tokens.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
            all.push((name, CanaryInput::Tokens { ids: args.tokens.clone() }));
        }
        Ok(Self { all, files: RefCell::new(files) })
    }

    /// The bytes of a file, which no other input needs.
    fn take(&self, file: &str) -> Result<Vec<u8>> {
        let mut files = self.files.borrow_mut();
        let at = files.iter().position(|(name, _)| name == file);
        let at = at.ok_or_else(|| {
            Error::io(IoCause::NotFound, "it is not an input of this canary").in_file(file)
        })?;
        Ok(files.swap_remove(at).1)
    }
}

/// A path from a folder to a file, as the canary file in the folder names it.
fn relative(path: &Path, folder: &Path) -> Outcome<String> {
    let whole =
        |path: &Path| apr_platform::canonicalize(path).map_err(|error| io_error(&error, path));
    let (whole_path, folder) = (whole(path)?, whole(folder)?);
    let both = whole_path.components().zip(folder.components());
    let shared = both.take_while(|(one, other)| one == other).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    let found: PathBuf = up.chain(whole_path.components().skip(shared)).collect();
    apr_platform::portable(&found).ok_or_else(|| {
        let message =
            "--input: the path is not UTF-8, so that a canary can't name it: pass --embed";
        Failure::Usage(format!("{}: {message}", path.display()))
    })
}

fn folder_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn check_model(args: &CanaryCheckArgs, context: &Context) -> Outcome {
    let canary = CanaryFile::read(&args.canary, context)?;
    let report = canary.check(&Opened::new(&args.model, context)?, context)?;
    context.printer.in_markdown(&args.markdown).judge(&report, render, report.passed)
}

/// A canary file that was read.
pub(in crate::commands) struct CanaryFile {
    canary: Canary,
    /// Folder of the files that the canary names.
    folder: PathBuf,
}

impl CanaryFile {
    /// Reads a canary file.
    pub(in crate::commands) fn read(path: &Path, context: &Context) -> Outcome<Self> {
        let canary = Canary::from_json(&read_all(path, context)?);
        let canary = canary.map_err(|error| error.in_file(path.display()))?;
        Ok(Self { canary, folder: folder_of(path) })
    }

    /// Checks a model by it.
    fn check(&self, opened: &Opened, context: &Context) -> Outcome<CanaryReport> {
        // Nothing of a file is shown unless its SHA-256 is the recorded one.
        let load = |file: &str| read_all(&self.folder.join(file), context);
        opened.with_runner(context, &running::generating(context), |runner| {
            let cases = self.canary.cases.len() as u64;
            let bar = Bar::counting(&context.printer, cases);
            let mut done = |case: usize| bar.reached(case as u64);
            Ok(check(runner, opened.name(), &self.canary, &load, &mut done)?)
        })
    }

    /// Checks an output by it before that appears.
    pub(in crate::commands) fn check_written(
        &self,
        model: Model,
        context: &Context,
    ) -> Outcome<CanaryReport> {
        self.check(&Opened::of(model, context)?, context)
    }
}

impl Document for CanaryReport {
    const SCHEMA: &'static str = "canary.check";
}

/// Describes the answers of an output that differ.
pub(in crate::commands) fn failures(report: &CanaryReport) -> Vec<String> {
    report.cases.iter().filter(|case| !case.passed()).map(failure).collect()
}

/// Describes the difference of an answer, in the words of seed 001 §4.8.4.
fn failure(case: &CaseReport) -> String {
    let differs = match case.expected == case.found {
        true => case.failures.join(", "),
        false => format!("expected \"{}\" got \"{}\"", case.expected, case.found),
    };
    format!("Canary \"{}\" failed: {differs}", case.input)
}

fn read_all(path: &Path, context: &Context) -> Result<Vec<u8>> {
    // A pipe or a device that a canary names could be read for ever.
    let file = context.sources.open_file(path)?;
    let len = file.len();
    if len > LARGEST {
        let message = format!("the file has {len} bytes, and {LARGEST} are read");
        return Err(Error::memory(message).in_file(path.display()));
    }
    read_vec(&file, 0, len).map_err(|error| error.in_file(path.display()))
}

fn render_created(out: &mut dyn Write, report: &CreateReport<'_>) -> io::Result<()> {
    writeln!(out, "{} -> {}", Escaped(report.path), Escaped(&report.output))?;
    if let Some(Coverage { text, prompts, covered, tokens }) = &report.coverage {
        let prompts = counted(*prompts as u64, "prompt");
        let text = Escaped(text);
        writeln!(out, "{prompts} from {text}, with {covered} of its {tokens} different tokens")?;
    }
    for case in &report.cases {
        writeln!(out, "  {}", Escaped::short(case.input))?;
        if let Some(original) = case.original {
            let original = Escaped(original);
            writeln!(out, "    the model answers \"{original}\", which is not expected")?;
        }
    }
    Ok(())
}

/// The layout of seed 001 §4.8.4.
pub(in crate::commands) fn render(out: &mut dyn Write, report: &CanaryReport) -> io::Result<()> {
    writeln!(out, "{BOLD}Canary Test Results:{BOLD:#}")?;
    for case in &report.cases {
        render_case(out, case)?;
    }
    let failed = report.cases.iter().filter(|case| !case.passed()).count();
    match failed {
        0 => writeln!(out, "\n{GOOD}PASS{GOOD:#}  {} of {0}", report.cases.len()),
        _ => writeln!(out, "\n{BAD}FAIL{BAD:#}  {failed} of {}", report.cases.len()),
    }
}

/// Writes the result of a canary gate as one line of the report on an output.
pub(in crate::commands) fn render_line(
    out: &mut dyn Write,
    report: &CanaryReport,
) -> io::Result<()> {
    let (count, failed) =
        (report.cases.len(), report.cases.iter().filter(|case| !case.passed()).count());
    match failed {
        0 => writeln!(out, "  canary: {count} of {count} answers as expected"),
        _ => writeln!(out, "  {BAD}canary: {failed} of {count} answers differ{BAD:#}"),
    }
}

fn render_case(out: &mut dyn Write, case: &CaseReport) -> io::Result<()> {
    let mark = |ok: bool| if ok { (GOOD, "✓") } else { (BAD, "✗") };
    writeln!(out, "\nInput:     {}", Escaped::short(&case.input))?;
    writeln!(out, "Expected:  \"{}\"", Escaped(&case.expected))?;
    for (title, answer, ok) in [
        ("Original: ", &case.original, case.original == case.expected),
        ("Optimized:", &case.found, case.passed()),
    ] {
        let (style, mark) = mark(ok);
        writeln!(out, "{title} \"{}\" {style}{mark}{style:#}", Escaped(answer))?;
    }

    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    let figures = [
        ("Token-level accuracy", case.token_accuracy.map(percent)),
        ("Character error rate", case.character_error_rate.map(percent)),
        ("Probability change", case.probability_change.map(|change| format!("{change:+.4}"))),
        ("Log probability change", case.logprob_change.map(|change| format!("{change:.4}"))),
        ("Cosine similarity", case.cosine.map(|cosine| format!("{cosine:.6}"))),
        ("Relative L2 distance", case.relative_l2.map(|distance| format!("{distance:.6}"))),
    ];
    for (title, figure) in figures {
        if let Some(figure) = figure {
            writeln!(out, "{title}: {figure}")?;
        }
    }
    case.failures.iter().try_for_each(|failure| writeln!(out, "  {DIM}{}{DIM:#}", Escaped(failure)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use apr_testkit::locate;

    use super::*;

    #[test]
    fn each_input_is_read_once() {
        let input = locate::fixture("quality/sums.txt");
        let args = CanaryCreateArgs {
            model: PathBuf::from("model"),
            prompt: Vec::new(),
            from: None,
            count: std::num::NonZeroUsize::MIN,
            expect: Vec::new(),
            input: vec![input.clone(), input],
            tokens: Vec::new(),
            chat: false,
            system: None,
            max_tokens: None,
            strict: false,
            embed: false,
            output: locate::fixture("tiny-llama/canary.json"),
            overwrite: false,
        };
        let reads = Cell::new(0);
        let inputs = Inputs::read(&args, |_| {
            reads.set(reads.get() + 1);
            Ok(b"1+1=".to_vec())
        });
        let inputs = inputs.unwrap();
        for (name, _) in &inputs.all {
            assert_eq!(
                (name.as_str(), inputs.take(name).unwrap()),
                ("../quality/sums.txt", b"1+1=".to_vec())
            );
        }
        assert!(inputs.take("../quality/sums.txt").is_err());
        assert_eq!(reads.get(), 2);
    }
}
