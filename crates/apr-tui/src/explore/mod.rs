//! A model, looked at by keys (seed 001 §4.13).
//!
//! What a view shows is the report of a command, made by one of two threads in the background
//! (`work.rs`) as `reports.rs` says. Drawing only looks at what is there.

mod checks;
mod compare;
mod filter;
mod graph;
mod histogram;
mod list;
mod reports;
mod request;
mod stats;
mod tensors;
mod values;
mod vocabulary;
mod work;

use std::collections::HashMap;
use std::io;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use apr_arch::Families;
use apr_core::human::bytes;
use apr_io::Interrupt;
use apr_ops::diff::DiffReport;
use apr_ops::elements::ValuesReport;
use apr_ops::graph::GraphReport;
use apr_ops::inspect::InspectReport;
use apr_ops::tensors::{HistogramReport, TensorRow, TensorsReport};
use apr_registry::{CheckpointReader, Result};
use apr_source::{Architecture, Source};
use apr_tokenizer::Vocabulary;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};
use ratatui::{Frame, Terminal};

use self::graph::GraphPlace;
use self::list::Cursor;
use self::reports::{Checks, Measured, Report};
use self::request::Request;
use self::values::Corner;
use self::work::{Answer, Desk, work};
use crate::export::export;
use crate::palette::Palette;
use crate::prompt::{Prompt, Typed};
use crate::screen::{Flow, Frames, Key, Screen, help, key_line};
use crate::terminal::{End, show};
use crate::text::{clean, fit};

/// A model to look at.
#[derive(Clone)]
pub struct Subject<'m> {
    /// What the user calls it.
    pub name: &'m str,
    /// The model.
    pub reader: &'m dyn CheckpointReader,
    /// The families that are known.
    pub families: &'m Families,
    /// The family that it is taken for.
    pub architecture: Architecture,
}

impl<'m> Subject<'m> {
    fn source(&self) -> Source<'m> {
        Source::new(self.reader, self.families).named(self.name).taken_for(&self.architecture)
    }
}

/// What is looked at, and with what.
pub struct Job<'m> {
    /// The model.
    pub model: Subject<'m>,
    /// Another one to compare it with.
    pub other: Option<Subject<'m>>,
    /// Threads that may work.
    pub threads: NonZeroUsize,
    /// Bytes that the work may take.
    pub max_memory: u64,
    /// Whether the files are still what they were.
    pub unchanged: &'m (dyn Fn() -> Result<()> + Sync),
}

/// Shows a model until a key or a signal ends it.
///
/// # Errors
/// What drawing on the terminal or reading keys ends with.
pub fn explore(job: &Job<'_>, palette: Palette, interrupt: &Interrupt) -> io::Result<End> {
    let desk = Desk::default();
    with_explorer(job, &desk, palette, |explorer| show(explorer, interrupt))
}

/// What the screen of a model shows after some keys, as rows of text: for whoever has no terminal.
/// It waits for what the keys ask for.
#[must_use]
pub fn picture(job: &Job<'_>, keys: &str, (columns, rows): (u16, u16)) -> String {
    let desk = Desk::default();
    with_explorer(job, &desk, Palette::new(false), |explorer| {
        explorer.settle();
        for key in keys.chars() {
            explorer.key(KeyEvent::from(KeyCode::Char(key)));
            explorer.settle();
        }
        explorer.picture((columns, rows))
    })
}

/// Calls `then` with a screen whose requests are answered.
fn with_explorer<R>(
    job: &Job<'_>,
    desk: &Desk,
    palette: Palette,
    then: impl FnOnce(&mut Explorer<'_>) -> R,
) -> R {
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        for takes_passes in [false, true] {
            let sender = sender.clone();
            scope.spawn(move || work(desk, job, takes_passes, &sender));
        }
        // Closed when this is dropped, by a panic too, so that the threads end.
        let closing = Closing(desk);
        let done = then(&mut Explorer::new(job, desk, answers, palette));
        drop(closing);
        done
    })
}

struct Closing<'d>(&'d Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The views, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    Tensors,
    Stats,
    Histogram,
    Values,
    Graph,
    Compare,
    Checks,
    Vocabulary,
}

impl View {
    const ALL: [Self; 8] = [
        Self::Tensors,
        Self::Stats,
        Self::Histogram,
        Self::Values,
        Self::Graph,
        Self::Compare,
        Self::Checks,
        Self::Vocabulary,
    ];

    fn title(self) -> &'static str {
        match self {
            Self::Tensors => "Tensors View",
            Self::Stats => "Stats View",
            Self::Histogram => "Histogram",
            Self::Values => "Values",
            Self::Graph => "Graph View",
            Self::Compare => "Compare View",
            Self::Checks => "Checks",
            Self::Vocabulary => "Vocabulary",
        }
    }

    /// The view of a letter or a number.
    fn of(key: char) -> Option<Self> {
        let by_number = || {
            let number = usize::try_from(key.to_digit(10)?).ok()?;
            Self::ALL.get(number.checked_sub(1)?).copied()
        };
        let by_letter = match key {
            't' => Self::Tensors,
            's' => Self::Stats,
            'h' => Self::Histogram,
            'v' => Self::Values,
            'g' => Self::Graph,
            'c' => Self::Compare,
            'x' => Self::Checks,
            'b' => Self::Vocabulary,
            _ => return by_number(),
        };
        Some(by_letter)
    }

    /// The file that its report is written to.
    fn file(self) -> &'static str {
        match self {
            Self::Tensors => "tensors.json",
            Self::Stats => "stats.json",
            Self::Histogram => "histogram.json",
            Self::Values => "values.json",
            Self::Graph => "graph.json",
            Self::Compare => "diff.json",
            Self::Checks => "validate.json",
            Self::Vocabulary => "vocabulary.json",
        }
    }
}

/// How long something that waits for the background sleeps.
const PAUSE: Duration = Duration::from_millis(2);

/// The keys that every view has.
const VIEW_KEYS: [Key; 8] = [
    ("t", "tensors"),
    ("s", "stats"),
    ("h", "hist"),
    ("v", "values"),
    ("g", "graph"),
    ("c", "compare"),
    ("x", "check"),
    ("b", "vocabulary"),
];

/// Something that was asked for.
#[derive(Debug, Clone, Default, PartialEq)]
enum Loaded<T> {
    #[default]
    Nothing,
    Waiting,
    Ready(T),
    Failed(String),
}

impl<T> Loaded<T> {
    fn ready(&self) -> Option<&T> {
        match self {
            Self::Ready(report) => Some(report),
            _ => None,
        }
    }

    fn is_nothing(&self) -> bool {
        matches!(self, Self::Nothing)
    }

    fn take(&mut self, result: Result<T>) {
        *self = match result {
            Ok(report) => Self::Ready(report),
            Err(error) => Self::Failed(error.to_string()),
        };
    }
}

/// What a typed line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Filter,
    Find,
    Export,
}

/// The screen.
struct Explorer<'m> {
    job: &'m Job<'m>,
    desk: &'m Desk,
    answers: Receiver<Answer>,
    palette: Palette,
    view: View,
    /// The list that a tensor was chosen from.
    origin: View,
    shows_help: bool,
    prompt: Option<(Asks, Prompt)>,
    message: Option<String>,
    /// Rows of the list on the screen when it was drawn last.
    rows: usize,
    /// Columns of the screen then.
    columns: usize,

    list: Loaded<TensorsReport>,
    order: tensors::Order,
    cursor: Cursor,

    inspect: Loaded<Box<InspectReport>>,
    statistics: HashMap<usize, Measured<TensorRow>>,
    statistics_failed: Option<String>,
    measures: bool,
    /// Rows whose tensors are measured before the others.
    preferred: std::ops::Range<usize>,
    stats: stats::Rows,

    histogram: Loaded<Measured<HistogramReport>>,
    values: Loaded<ValuesReport>,
    corner: Corner,

    graph: Loaded<GraphReport>,
    graph_place: GraphPlace,

    diff: Loaded<Box<DiffReport>>,
    compare: compare::Pairs,
    checks: Loaded<Box<Checks>>,
    checks_at: Cursor,

    vocabulary: Loaded<Option<Vocabulary>>,
    tokens: vocabulary::Tokens,
}

impl<'m> Explorer<'m> {
    fn new(job: &'m Job<'m>, desk: &'m Desk, answers: Receiver<Answer>, palette: Palette) -> Self {
        let mut explorer = Self {
            job,
            desk,
            answers,
            palette,
            view: View::Tensors,
            origin: View::Tensors,
            shows_help: false,
            prompt: None,
            message: None,
            rows: 1,
            columns: 80,
            list: Loaded::Nothing,
            order: tensors::Order::default(),
            cursor: Cursor::default(),
            inspect: Loaded::Nothing,
            statistics: HashMap::new(),
            statistics_failed: None,
            measures: false,
            preferred: 0..0,
            stats: stats::Rows::default(),
            histogram: Loaded::Nothing,
            values: Loaded::Nothing,
            corner: Corner::default(),
            graph: Loaded::Nothing,
            graph_place: GraphPlace::default(),
            diff: Loaded::Nothing,
            compare: compare::Pairs::default(),
            checks: Loaded::Nothing,
            checks_at: Cursor::default(),
            vocabulary: Loaded::Nothing,
            tokens: vocabulary::Tokens::default(),
        };
        let first = if job.other.is_some() { View::Compare } else { View::Tensors };
        explorer.ask(Request::List);
        explorer.open(first);
        explorer
    }

    /// Waits until nothing is computed any more.
    fn settle(&mut self) {
        while self.desk.is_busy() {
            self.tick();
            thread::sleep(PAUSE);
        }
        self.tick();
    }

    /// The screen as text.
    fn picture(&mut self, (columns, rows): (u16, u16)) -> String {
        let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
        // A view that asks for as much as fits knows so once it was drawn.
        let Ok(_) = terminal.draw(|frame| self.draw(frame));
        self.settle();
        let Ok(_) = terminal.draw(|frame| self.draw(frame));
        let cells = terminal.backend().buffer().content();
        let rows = cells.chunks(usize::from(columns).max(1));
        let rows = rows.map(|row| row.iter().map(Cell::symbol).collect::<String>());
        rows.collect::<Vec<_>>().join("\n")
    }

    /// The tensor that the views of one tensor show.
    fn tensor(&self) -> Option<usize> {
        self.order.tensor(self.cursor.at)
    }

    fn ask(&mut self, request: Request) {
        match &request {
            Request::List => self.list = Loaded::Waiting,
            Request::Inspect => self.inspect = Loaded::Waiting,
            Request::Graph => self.graph = Loaded::Waiting,
            Request::Vocabulary => self.vocabulary = Loaded::Waiting,
            Request::Histogram(_) => self.histogram = Loaded::Waiting,
            Request::Checks => self.checks = Loaded::Waiting,
            Request::Compare => self.diff = Loaded::Waiting,
            Request::Distribution { .. } | Request::Values { .. } | Request::Statistics(_) => {}
        }
        self.desk.ask(request);
    }

    /// Gives up what is read for the view alone.
    fn leave(&mut self) {
        self.desk.cancel_looks();
        if matches!(self.histogram, Loaded::Waiting) {
            self.histogram = Loaded::Nothing;
        }
        for loaded in &mut self.compare.distributions {
            if matches!(loaded, Loaded::Waiting) {
                *loaded = Loaded::Nothing;
            }
        }
    }

    /// Shows a view, and asks for what it needs.
    fn open(&mut self, view: View) {
        if view != self.view {
            self.leave();
        }
        if matches!(self.view, View::Tensors | View::Stats) {
            self.origin = self.view;
        }
        self.view = view;
        match view {
            View::Tensors => {}
            View::Stats => {
                if self.inspect.is_nothing() {
                    self.ask(Request::Inspect);
                }
                self.measure();
            }
            View::Histogram => self.ask_histogram(),
            View::Values => self.ask_values(),
            View::Graph if self.graph.is_nothing() => self.ask(Request::Graph),
            View::Compare if self.diff.is_nothing() && self.job.other.is_some() => {
                self.ask(Request::Compare);
            }
            View::Compare if self.compare.distributions[0].is_nothing() => {
                self.ask_distributions();
            }
            View::Checks if self.checks.is_nothing() => self.ask(Request::Checks),
            View::Vocabulary if self.vocabulary.is_nothing() => self.ask(Request::Vocabulary),
            View::Graph | View::Compare | View::Checks | View::Vocabulary => {}
        }
    }

    /// Has the statistics of all tensors computed, those without any yet.
    fn measure(&mut self) {
        if self.measures {
            return;
        }
        self.measures = true;
        self.statistics_failed = None;
        // The last one is measured first: norms are small, and the screen fills at once.
        let tensors = self.job.model.reader.tensors();
        let unknown = (0..tensors.len()).filter(|tensor| !self.statistics.contains_key(tensor));
        let mut unknown: Vec<usize> = unknown.collect();
        let len = |tensor: &usize| tensors[*tensor].byte_len().unwrap_or(u64::MAX);
        unknown.sort_by_key(|tensor| std::cmp::Reverse((len(tensor), *tensor)));
        self.desk.measure(unknown);
    }

    fn receive(&mut self, Answer { request, result }: Answer) {
        match (request, result) {
            (_, Ok(Report::List(report))) => {
                self.order.list(&report);
                self.list = Loaded::Ready(report);
                // A view of one tensor may have waited for it.
                self.open(self.view);
            }
            (_, Ok(Report::Inspect(report))) => self.inspect = Loaded::Ready(report),
            (_, Ok(Report::Graph(report))) => {
                self.graph_place.open(&report);
                self.graph = Loaded::Ready(report);
            }
            (_, Ok(Report::Vocabulary(report))) => {
                self.tokens.list(report.as_ref());
                self.vocabulary = Loaded::Ready(report);
            }
            (_, Ok(Report::Histogram(report))) => self.histogram = Loaded::Ready(report),
            (Request::Distribution { is_other, .. }, Ok(Report::Distribution(report))) => {
                self.compare.distributions[usize::from(is_other)] = Loaded::Ready(report);
            }
            (_, Ok(Report::Values(report))) => self.values = Loaded::Ready(report),
            (Request::Statistics(tensor), Ok(Report::Statistics(row))) => {
                self.stats.add(tensor, &row);
                self.statistics.insert(tensor, row);
            }
            (_, Ok(Report::Checks(report))) => self.checks = Loaded::Ready(report),
            (_, Ok(Report::Compare(report))) => {
                self.compare.list(&report);
                self.diff = Loaded::Ready(report);
                self.ask_distributions();
            }
            (request, Err(error)) => self.fail(&request, error),
            // No request is answered by the report of another.
            (_, Ok(Report::Distribution(_) | Report::Statistics(_))) => {}
        }
    }

    fn fail(&mut self, request: &Request, error: apr_registry::Error) {
        match request {
            Request::List => self.list.take(Err(error)),
            Request::Inspect => self.inspect.take(Err(error)),
            Request::Graph => self.graph.take(Err(error)),
            Request::Vocabulary => self.vocabulary.take(Err(error)),
            Request::Distribution { is_other, .. } => {
                self.compare.distributions[usize::from(*is_other)].take(Err(error));
            }
            Request::Histogram(_) => self.histogram.take(Err(error)),
            Request::Values { .. } => self.values.take(Err(error)),
            Request::Checks => self.checks.take(Err(error)),
            Request::Compare => self.diff.take(Err(error)),
            Request::Statistics(_) => self.statistics_failed = Some(error.to_string()),
        }
    }

    /// Gives up what runs.
    fn cancel(&mut self) {
        self.desk.cancel_passes();
        self.measures = false;
        self.message = Some("stopped".to_owned());
        if matches!(self.checks, Loaded::Waiting) {
            self.checks = Loaded::Nothing;
        }
        if matches!(self.diff, Loaded::Waiting) {
            self.diff = Loaded::Nothing;
        }
    }

    fn keys(&self, columns: usize) -> Line<'static> {
        if let Some((_, prompt)) = &self.prompt {
            return prompt.line(columns, self.palette);
        }
        if let Some(message) = &self.message {
            let text = fit(&clean(message), columns.saturating_sub(1));
            return Line::styled(format!(" {text}"), self.palette.odd());
        }
        let keys: Vec<Key> = self
            .view_keys()
            .iter()
            .copied()
            .chain([("?", "help")])
            .chain(VIEW_KEYS.iter().copied().filter(|(key, _)| {
                View::of(key.chars().next().unwrap_or_default()) != Some(self.view)
            }))
            .chain([("q", "quit")])
            .collect();
        key_line(&keys, columns, self.palette)
    }

    /// The keys of the view that one should know first.
    fn view_keys(&self) -> &'static [Key] {
        match self.view {
            View::Tensors => &[("Enter", "hist"), ("/", "filter"), ("o", "order")],
            View::Stats => &[("a", "all"), ("Enter", "hist")],
            View::Histogram => &[("←/→", "tensor")],
            View::Values => &[("↑↓←→", "move"), ("n/p", "tensor")],
            View::Graph => &[("Enter", "open"), ("Esc", "back"), ("/", "find")],
            View::Compare => &[("↑/↓", "tensor")],
            View::Checks => &[("r", "run"), ("Esc", "cancel")],
            View::Vocabulary => &[("/", "filter")],
        }
    }

    fn help_lines(&self) -> Vec<Key> {
        let mut lines: Vec<Key> = match self.view {
            View::Tensors => tensors::HELP.to_vec(),
            View::Stats => stats::HELP.to_vec(),
            View::Histogram => histogram::HELP.to_vec(),
            View::Values => values::HELP.to_vec(),
            View::Graph => graph::HELP.to_vec(),
            View::Compare => compare::HELP.to_vec(),
            View::Checks => checks::HELP.to_vec(),
            View::Vocabulary => vocabulary::HELP.to_vec(),
        };
        lines.extend([
            ("t s h v  1-4", "tensors, stats, histogram, values"),
            ("g c x b  5-8", "graph, compare, checks, vocabulary"),
            ("e", "write the view's report as JSON"),
            ("Ctrl-Z", "suspend; fg returns"),
            ("q  Ctrl-C", "quit"),
        ]);
        lines
    }

    fn place(&self) -> String {
        let of = |at: usize, len: usize| match len {
            0 => "0/0".to_owned(),
            len => format!("{}/{}", at.min(len - 1) + 1, len),
        };
        match self.view {
            View::Tensors | View::Histogram | View::Values => of(self.cursor.at, self.order.len()),
            View::Stats => of(self.stats.cursor.at, self.stats.len()),
            View::Graph => self.graph_place.place(),
            View::Compare => of(self.compare.cursor.at, self.compare.len()),
            View::Checks => String::new(),
            View::Vocabulary => of(self.tokens.cursor.at, self.tokens.len()),
        }
    }

    fn key_of_view(&mut self, key: KeyEvent) {
        match self.view {
            View::Tensors => self.key_of_tensors(key),
            View::Stats => self.key_of_stats(key),
            View::Histogram => self.key_of_histogram(key),
            View::Values => self.key_of_values(key),
            View::Graph => self.key_of_graph(key),
            View::Compare => self.key_of_compare(key),
            View::Checks => self.key_of_checks(key),
            View::Vocabulary => self.key_of_vocabulary(key),
        }
    }

    fn ask_line(&mut self, asks: Asks, label: &'static str, text: &str) {
        self.prompt = Some((asks, Prompt::new(label, text)));
    }

    /// What a line that is being typed, or is complete, means.
    fn typed(&mut self, asks: Asks, text: &str, is_done: bool) {
        match (asks, self.view) {
            (Asks::Filter, View::Vocabulary) => {
                let found = self.vocabulary.ready().and_then(Option::as_ref);
                self.tokens.filter(found, text);
            }
            (Asks::Filter, _) => {
                if let Loaded::Ready(list) = &self.list {
                    self.order.filter(list, text);
                    self.cursor.at = 0;
                }
            }
            (Asks::Find, _) if is_done => self.find_in_graph(text),
            (Asks::Export, _) if is_done => {
                let written = self.write(Path::new(text));
                self.message = Some(written.unwrap_or_else(|error| error));
            }
            (Asks::Find | Asks::Export, _) => {}
        }
    }

    /// Writes the report of the view.
    fn write(&self, path: &Path) -> std::result::Result<String, String> {
        const NOT_THERE: &str = "there is no report yet";
        let done = match self.view {
            View::Tensors => self.list.ready().map(|report| export(path, report)),
            View::Stats => return self.write_stats(path),
            View::Histogram => self.histogram.ready().map(|it| export(path, &it.report)),
            View::Values => self.values.ready().map(|report| export(path, report)),
            View::Graph => self.graph.ready().map(|report| export(path, report)),
            View::Compare => self.diff.ready().map(|report| export(path, report)),
            View::Checks => self.checks.ready().map(|report| export(path, &report.validation)),
            View::Vocabulary => {
                self.vocabulary.ready().and_then(Option::as_ref).map(|report| export(path, report))
            }
        };
        done.ok_or(NOT_THERE)?.map_err(|error| error.to_string())
    }

    /// A text where a report is not there: why, or how far it is.
    fn draw_waiting<T>(&self, frame: &mut Frame<'_>, area: Rect, loaded: &Loaded<T>) {
        let line = match loaded {
            Loaded::Nothing => Line::styled(" nothing was computed", self.palette.faint()),
            Loaded::Waiting => Line::styled(format!(" {}", self.progress()), self.palette.faint()),
            Loaded::Failed(error) => Line::styled(format!(" {}", clean(error)), self.palette.bad()),
            Loaded::Ready(_) => return,
        };
        frame.render_widget(Paragraph::new(line).wrap(Wrap { trim: false }), area);
    }

    /// How far what the view waits for is.
    fn progress(&self) -> String {
        let is_pass = matches!(self.view, View::Checks)
            || self.view == View::Compare && matches!(self.diff, Loaded::Waiting);
        let (done, total) = self.desk.meter(is_pass).bytes();
        if total == 0 {
            return "reading...".to_owned();
        }
        let percent = u128::from(done.min(total)) * 100 / u128::from(total);
        let stop = if is_pass { "; Esc stops" } else { "" };
        format!("{percent} %  {} of {}{stop}", bytes(done), bytes(total))
    }
}

impl Screen for Explorer<'_> {
    fn draw(&mut self, frame: &mut Frame<'_>) {
        let name = clean(self.job.model.name);
        let title = match &self.job.other {
            Some(other) if self.view == View::Compare => {
                format!("Comparing: {name} vs {}", clean(other.name))
            }
            _ => format!("Model: {name}"),
        };
        let about = title.find(": ").map_or("", |at| &title[..at + 2]).to_owned();
        let place = self.place();
        let columns = usize::from(frame.area().width).saturating_sub(place.len() + 4);
        let frames = Frames {
            title: &title,
            about: &about,
            kind: self.view.title(),
            keys: self.keys(columns),
            place,
        };
        let Some(area) = frames.draw(frame, self.palette) else { return };
        match self.view {
            View::Tensors => self.draw_tensors(frame, area),
            View::Stats => self.draw_stats(frame, area),
            View::Histogram => self.draw_histogram(frame, area),
            View::Values => self.draw_values(frame, area),
            View::Graph => self.draw_graph(frame, area),
            View::Compare => self.draw_compare(frame, area),
            View::Checks => self.draw_checks(frame, area),
            View::Vocabulary => self.draw_vocabulary(frame, area),
        }
        if self.shows_help {
            help(frame, self.view.title(), &self.help_lines(), self.palette);
        }
    }

    fn key(&mut self, key: KeyEvent) -> Flow {
        self.message = None;
        if self.shows_help {
            self.shows_help = false;
            return Flow::Stay;
        }
        if let Some((asks, mut prompt)) = self.prompt.take() {
            match prompt.key(key) {
                Typed::Done(text) => self.typed(asks, &text, true),
                Typed::Cancelled => self.typed(asks, "", false),
                Typed::More => {
                    self.typed(asks, prompt.text(), false);
                    self.prompt = Some((asks, prompt));
                }
            }
            return Flow::Stay;
        }
        let is_plain = key.modifiers.is_empty();
        match key.code {
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('?') => self.shows_help = true,
            KeyCode::Char('e') if is_plain => {
                self.ask_line(Asks::Export, "write to", self.view.file());
            }
            KeyCode::Char(letter) if is_plain => match View::of(letter) {
                Some(view) => self.open(view),
                None => self.key_of_view(key),
            },
            _ => self.key_of_view(key),
        }
        Flow::Stay
    }

    fn tick(&mut self) -> bool {
        let mut is_new = self.desk.is_running();
        while let Ok(answer) = self.answers.try_recv() {
            self.receive(answer);
            is_new = true;
        }
        is_new
    }
}

#[cfg(test)]
mod tests;
