//! What arrives from the background.

use super::background::Answer;
use super::background::reports::Report;
use super::background::request::Request;
use super::background::runs::Warnings;
use super::{Explorer, Loaded};
use crate::trace::{TraceView, Walk};
use crate::wording::{of_run, with_remedy};

impl Explorer<'_> {
    pub(crate) fn receive(&mut self, Answer { request, result }: Answer) {
        match result {
            Ok(report) => self.show(request, report),
            Err(error) => self.fail(&request, of_run(self.options.wording, &error)),
        }
    }

    fn show(&mut self, request: Request, report: Report) {
        match (request, report) {
            (_, Report::List(report)) => {
                self.order.list(&report);
                self.list = Loaded::Ready(report);
                // A view of one tensor may have waited for it.
                self.open(self.view);
            }
            (_, Report::Inspect(report)) => self.inspect = Loaded::Ready(report),
            (_, Report::Graph(report)) => {
                self.graph_place.open(&report);
                self.graph = Loaded::Ready(report);
                self.mark();
            }
            (_, Report::Uses(uses)) => {
                self.uses = Loaded::Ready(uses);
                self.mark();
            }
            (_, Report::AllUses(uses)) => {
                self.all_uses = Loaded::Ready(uses);
                self.list_of_box();
            }
            (_, Report::Vocabulary(report)) => {
                self.tokens.list(report.as_ref());
                self.vocabulary = Loaded::Ready(report);
            }
            (_, Report::Histogram(report)) => self.histogram = Loaded::Ready(report),
            (Request::Distribution { is_other, .. }, Report::Distribution(report)) => {
                self.compare.distributions[usize::from(is_other)] = Loaded::Ready(report);
            }
            (_, Report::Values(report)) => self.values = Loaded::Ready(report),
            (Request::Statistics(tensor), Report::Statistics(row)) => {
                self.stats.add(tensor, &row);
                self.statistics.insert(tensor, row);
            }
            (_, Report::Scan(report)) => self.scan = Loaded::Ready(report),
            (_, Report::Checks(report)) => self.checks = Loaded::Ready(report),
            (_, Report::Compare(report)) => {
                self.compare.list(&report);
                self.diff = Loaded::Ready(report);
                self.ask_distributions();
                self.ask(Request::Scores);
            }
            (_, Report::Scores(reports)) => self.scores = Loaded::Ready(reports),
            (_, Report::Outputs(ran)) => {
                self.outputs = Loaded::Ready(ran.report);
                self.warn(&ran.warnings);
            }
            (_, Report::Trace(ran)) => {
                let view = TraceView { trace: ran.report, diff: None };
                self.trace = Loaded::Ready(Box::new(Walk::new(view, self.palette)));
                self.warn(&ran.warnings);
            }
            // No request is answered by the report of another.
            (_, Report::Distribution(_) | Report::Statistics(_)) => {}
        }
    }

    /// Shows what a run warned of until the next key.
    fn warn(&mut self, warnings: &Warnings) {
        let wording = self.options.wording;
        let texts = warnings.iter().map(|(text, remedy)| with_remedy(wording, text, *remedy));
        let texts: Vec<String> = texts.collect();
        if !texts.is_empty() {
            self.message = Some(format!("warning: {}", texts.join("; ")));
        }
    }

    fn fail(&mut self, request: &Request, error: String) {
        match request {
            Request::List => self.list = Loaded::Failed(error),
            Request::Inspect => self.inspect = Loaded::Failed(error),
            Request::Graph => self.graph = Loaded::Failed(error),
            Request::Vocabulary => self.vocabulary = Loaded::Failed(error),
            Request::Distribution { is_other, .. } => {
                self.compare.distributions[usize::from(*is_other)] = Loaded::Failed(error);
            }
            Request::Histogram(_) => self.histogram = Loaded::Failed(error),
            Request::Values { .. } => self.values = Loaded::Failed(error),
            Request::Scan => self.scan = Loaded::Failed(error),
            Request::Checks => self.checks = Loaded::Failed(error),
            Request::Compare => self.diff = Loaded::Failed(error),
            Request::Scores => self.scores = Loaded::Failed(error),
            Request::Outputs => self.outputs = Loaded::Failed(error),
            Request::Trace(_) => self.trace = Loaded::Failed(error),
            Request::Statistics(_) => self.statistics_failed = Some(error),
            Request::Uses(_) => {
                self.message = Some(error.clone());
                self.uses = Loaded::Failed(error);
            }
            Request::AllUses => {
                self.message = Some(error.clone());
                self.all_uses = Loaded::Failed(error);
            }
        }
    }

    /// Cancels the running work.
    pub(crate) fn cancel(&mut self) {
        if self.desk.cancel_passes() {
            self.message = Some("stopped".to_owned());
        }
        self.measures = false;
        self.checks.give_up();
        self.scan.give_up();
        self.diff.give_up();
        self.scores.give_up();
        self.outputs.give_up();
        self.trace.give_up();
    }
}
