//! What arrives from the background.

use super::background::Answer;
use super::background::reports::Report;
use super::background::request::Request;
use super::{Explorer, Loaded};

impl Explorer<'_> {
    pub(crate) fn receive(&mut self, Answer { request, result }: Answer) {
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
            (request, Err(error)) => self.fail(&request, error.to_string()),
            // No request is answered by the report of another.
            (_, Ok(Report::Distribution(_) | Report::Statistics(_))) => {}
        }
    }

    pub(crate) fn fail(&mut self, request: &Request, error: String) {
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
            Request::Checks => self.checks = Loaded::Failed(error),
            Request::Compare => self.diff = Loaded::Failed(error),
            Request::Statistics(_) => self.statistics_failed = Some(error),
        }
    }

    /// Gives up what runs.
    pub(crate) fn cancel(&mut self) {
        self.desk.cancel_passes();
        self.measures = false;
        self.message = Some("stopped".to_owned());
        self.checks.give_up();
        self.diff.give_up();
    }
}
