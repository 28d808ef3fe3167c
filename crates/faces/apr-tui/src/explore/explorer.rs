//! The state of the screen, and what is asked for.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use apr_ops::diff::DiffReport;
use apr_ops::elements::ValuesReport;
use apr_ops::graph::GraphReport;
use apr_ops::inspect::InspectReport;
use apr_ops::session::Judged;
use apr_ops::tensors::{HistogramReport, TensorRow, TensorsReport};
use apr_ops::validate::ValidateReport;
use apr_quality::ComparisonReport;
use apr_scan::ScanSummary;
use apr_tokenizer::Vocabulary;
use ratatui::buffer::{Buffer, Cell};

use super::background::reports::{BoxUse, Checks};
use super::background::request::Request;
use super::background::{Answer, Desk};
use super::views::graph::GraphPlace;
use super::views::list::Cursor;
use super::views::values::Corner;
use super::views::{compare, stats, tensors, vocabulary};
use super::{Asks, Job, Loaded, View};
use crate::palette::Palette;
use crate::prompt::Prompt;
use crate::screen::{Screen, ScreenOptions, drawn};
use crate::trace::Walk;
use crate::zones::Zones;

/// Sleep interval of a wait for the background threads.
const PAUSE: Duration = Duration::from_millis(2);

/// Screen that explores a model.
pub(crate) struct Explorer<'m> {
    pub(super) job: &'m Job<'m>,
    pub(super) desk: &'m Desk,
    pub(super) answers: Receiver<Answer>,
    pub(super) options: ScreenOptions<'m>,
    pub(super) palette: Palette,
    pub(super) view: View,
    /// The list that a tensor was chosen from.
    pub(super) origin: View,
    pub(super) shows_help: bool,
    pub(super) prompt: Option<(Asks, Prompt)>,
    pub(super) message: Option<String>,
    /// Location of another model to compare this one with.
    pub(super) wanted: Option<String>,
    /// Rows of the list on the screen when it was drawn last.
    pub(super) rows: usize,
    /// Columns of the screen then.
    pub(super) columns: usize,
    /// Columns and rows of the whole screen then.
    pub(super) size: (u16, u16),
    /// `true` if the screen is drawn for a file, which does not need keys.
    pub(super) is_for_file: bool,
    /// Clickable areas of the last drawn screen.
    pub(super) zones: Zones,

    pub(super) list: Loaded<TensorsReport>,
    pub(super) order: tensors::Order,
    pub(super) cursor: Cursor,

    pub(super) inspect: Loaded<Box<InspectReport>>,
    pub(super) statistics: HashMap<usize, Judged<TensorRow>>,
    pub(super) statistics_failed: Option<String>,
    pub(super) measures: bool,
    /// Rows whose tensors are measured before the others.
    pub(super) preferred: std::ops::Range<usize>,
    pub(super) stats: stats::Rows,

    pub(super) histogram: Loaded<Judged<HistogramReport>>,
    pub(super) values: Loaded<ValuesReport>,
    pub(super) corner: Corner,

    pub(super) graph: Loaded<GraphReport>,
    pub(super) graph_place: GraphPlace,
    /// The tensor whose path through the graph is marked.
    pub(super) marked: Option<usize>,
    pub(super) uses: Loaded<Vec<BoxUse>>,
    /// Uses of all tensors.
    pub(super) all_uses: Loaded<Vec<BoxUse>>,

    pub(super) diff: Loaded<Box<DiffReport>>,
    pub(super) compare: compare::Pairs,
    pub(super) scores: Loaded<Box<[ValidateReport; 2]>>,
    pub(super) outputs: Loaded<ComparisonReport>,
    pub(super) scan: Loaded<Box<ScanSummary>>,
    pub(super) checks: Loaded<Box<Checks>>,
    pub(super) checks_at: Cursor,

    pub(super) vocabulary: Loaded<Option<Vocabulary>>,
    pub(super) tokens: vocabulary::Tokens,

    pub(super) trace: Loaded<Box<Walk>>,
}

impl<'m> Explorer<'m> {
    pub(crate) fn new(
        job: &'m Job<'m>,
        desk: &'m Desk,
        answers: Receiver<Answer>,
        options: ScreenOptions<'m>,
    ) -> Self {
        let mut explorer = Self {
            job,
            desk,
            answers,
            options,
            palette: options.palette,
            view: View::Tensors,
            origin: View::Tensors,
            shows_help: false,
            prompt: None,
            message: None,
            wanted: None,
            rows: 1,
            columns: 80,
            size: (80, 24),
            is_for_file: false,
            zones: Zones::default(),
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
            marked: None,
            uses: Loaded::Nothing,
            all_uses: Loaded::Nothing,
            diff: Loaded::Nothing,
            compare: compare::Pairs::default(),
            scores: Loaded::Nothing,
            outputs: Loaded::Nothing,
            scan: Loaded::Nothing,
            checks: Loaded::Nothing,
            checks_at: Cursor::default(),
            vocabulary: Loaded::Nothing,
            tokens: vocabulary::Tokens::default(),
            trace: Loaded::Nothing,
        };
        let compares = job.other.is_some() || job.refused.is_some();
        let first = if compares { View::Compare } else { View::Tensors };
        explorer.ask(Request::List);
        explorer.open(first);
        explorer.message.clone_from(&job.refused);
        explorer
    }

    /// Waits until no request is running or waiting.
    pub(crate) fn settle(&mut self) {
        while self.desk.is_busy() {
            self.tick();
            thread::sleep(PAUSE);
        }
        self.tick();
    }

    /// Returns the screen after all requests for it are answered.
    pub(crate) fn settled(&mut self, size: (u16, u16)) -> Buffer {
        // A view that asks for as much as fits knows so once it was drawn.
        let _ = drawn(self, size);
        self.settle();
        drawn(self, size)
    }

    /// Returns the same screen as text.
    pub(crate) fn picture(&mut self, size: (u16, u16)) -> String {
        let buffer = self.settled(size);
        let rows = buffer.content().chunks(usize::from(size.0).max(1));
        let rows = rows.map(|row| row.iter().map(Cell::symbol).collect::<String>());
        rows.collect::<Vec<_>>().join("\n")
    }

    /// A message of a library in the words of the front end.
    pub(crate) fn worded(&self, message: &str) -> String {
        self.options.wording.message(message)
    }

    /// The tensor that the views of one tensor show.
    pub(crate) fn tensor(&self) -> Option<usize> {
        self.order.tensor(self.cursor.at)
    }

    pub(crate) fn ask(&mut self, request: Request) {
        match &request {
            Request::List => self.list = Loaded::Waiting,
            Request::Inspect => self.inspect = Loaded::Waiting,
            Request::Graph => self.graph = Loaded::Waiting,
            Request::Vocabulary => self.vocabulary = Loaded::Waiting,
            Request::Histogram(_) => self.histogram = Loaded::Waiting,
            Request::Checks => self.checks = Loaded::Waiting,
            Request::Compare => self.diff = Loaded::Waiting,
            Request::Scan => self.scan = Loaded::Waiting,
            Request::Scores => self.scores = Loaded::Waiting,
            Request::Outputs => self.outputs = Loaded::Waiting,
            Request::Trace(_) => self.trace = Loaded::Waiting,
            Request::Uses(_) => self.uses = Loaded::Waiting,
            Request::AllUses => self.all_uses = Loaded::Waiting,
            Request::Distribution { .. } | Request::Values { .. } | Request::Statistics(_) => {}
        }
        self.desk.ask(request);
    }

    /// Cancels the reads that are only for this view.
    pub(crate) fn leave(&mut self) {
        self.desk.cancel_looks();
        self.histogram.give_up();
        self.all_uses.give_up();
        self.compare.distributions.iter_mut().for_each(Loaded::give_up);
    }

    /// Shows a view, and requests its data.
    pub(crate) fn open(&mut self, view: View) {
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
            View::Checks if self.checks.is_nothing() => self.check(),
            View::Trace => self.open_trace(),
            View::Vocabulary if self.vocabulary.is_nothing() => self.ask(Request::Vocabulary),
            View::Graph | View::Compare | View::Checks | View::Vocabulary => {}
        }
    }

    /// Requests the statistics of all tensors that have none yet.
    pub(crate) fn measure(&mut self) {
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
}
