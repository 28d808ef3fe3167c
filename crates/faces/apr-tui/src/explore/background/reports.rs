//! What requests are answered with: the reports of the commands.

use apr_graph::uses;
use apr_io::Threads;
use apr_ops::diff::{DiffOptions, DiffReport};
use apr_ops::elements::{Selection, ValuesReport};
use apr_ops::graph::{GraphOrigin, GraphReport, ReportOptions};
use apr_ops::inspect::InspectReport;
use apr_ops::lint::LintReport;
use apr_ops::session::{Beside, Judged, Session};
use apr_ops::tensors::{HistogramReport, TensorRow, TensorsOptions, TensorsReport};
use apr_ops::validate::{ValidateOptions, ValidateReport};
use apr_quality::ComparisonReport;
use apr_registry::{Error, Result};
use apr_run::RunResult;
use apr_scan::ScanSummary;
use apr_tokenizer::{Vocabulary, vocabulary};
use apr_trace::Trace;

use super::meter::Watch;
use super::request::Request;
use super::runs::{Ran, outputs, traced};
use crate::explore::Job;

/// Bins of a histogram, as `apr tensors --hist` has them.
const BINS: usize = 64;

/// Result of a request.
pub(crate) enum Report {
    List(TensorsReport),
    Inspect(Box<InspectReport>),
    Graph(GraphReport),
    Vocabulary(Option<Vocabulary>),
    Histogram(Judged<HistogramReport>),
    Distribution(HistogramReport),
    Values(ValuesReport),
    Uses(Vec<BoxUse>),
    AllUses(Vec<BoxUse>),
    Statistics(Judged<TensorRow>),
    Scan(Box<ScanSummary>),
    Checks(Box<Checks>),
    Compare(Box<DiffReport>),
    Scores(Box<[ValidateReport; 2]>),
    Outputs(Box<Ran<ComparisonReport>>),
    Trace(Box<Ran<Trace>>),
}

/// A node that reads a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BoxUse {
    /// Position of the tensor in the checkpoint.
    pub(crate) tensor: usize,
    /// Name of the box in the graph.
    pub(crate) name: String,
    /// Position of the part of the model.
    pub(crate) part: usize,
    /// Path of the node within the part's graph.
    pub(crate) node: String,
}

/// Reports of `apr validate` and `apr lint`.
pub(crate) struct Checks {
    pub(crate) validation: ValidateReport,
    pub(crate) lint: LintReport,
}

/// Models, with the facts about them that are computed only once.
pub(crate) struct Bench<'j> {
    pub(super) job: &'j Job<'j>,
    pub(super) model: Session<'j>,
    other: Option<Session<'j>>,
}

impl<'j> Bench<'j> {
    pub(crate) fn of(job: &'j Job<'_>) -> Self {
        let other = job.other.as_ref().map(|other| Session::of(other.source()));
        Self { job, model: Session::of(job.model.source()), other }
    }

    /// The second model, or the only one.
    pub(super) fn second(&self) -> &Session<'j> {
        self.other.as_ref().unwrap_or(&self.model)
    }

    /// Returns both models for a comparison.
    fn both(&self) -> Beside<'_, 'j> {
        self.model.beside(self.second())
    }
}

/// Computes the report for a request.
pub(crate) fn answer(
    request: &Request,
    bench: &Bench<'_>,
    threads: &Threads,
    watch: &Watch,
) -> RunResult<Report> {
    Ok(match request {
        Request::Scan => Report::Scan(Box::new(scanned(bench.job, watch)?)),
        Request::Checks => Report::Checks(Box::new(checks(bench, threads, watch)?)),
        Request::Compare => Report::Compare(Box::new(compared(bench, threads, watch)?)),
        Request::Scores => {
            let one = validated(&bench.model, threads, watch)?;
            Report::Scores(Box::new([one, validated(bench.second(), threads, watch)?]))
        }
        Request::Outputs => Report::Outputs(Box::new(outputs(bench, watch)?)),
        Request::Trace(prompt) => Report::Trace(Box::new(traced(bench, prompt.as_deref(), watch)?)),
        Request::Uses(tensor) => Report::Uses(used(bench, [*tensor], watch)?),
        Request::AllUses => {
            let tensors = 0..bench.model.reader().tensors().len();
            Report::AllUses(used(bench, tensors, watch)?)
        }
        look => looked(look, bench, threads, watch)?,
    })
}

/// Computes the report for a request of the screen.
fn looked(
    request: &Request,
    bench: &Bench<'_>,
    threads: &Threads,
    watch: &Watch,
) -> Result<Report> {
    let model = &bench.model;
    let (reader, progress) = (model.reader(), watch.meter());
    Ok(match request {
        Request::Inspect => Report::Inspect(Box::new(model.inspect()?)),
        Request::Graph => Report::Graph(model.graph(&ReportOptions::default())?),
        Request::Vocabulary => Report::Vocabulary(vocabulary(reader, usize::MAX)?),
        Request::Histogram(tensor) => {
            Report::Histogram(model.histogram(*tensor, BINS, threads, progress)?)
        }
        Request::Distribution { name, is_other } => {
            let found = bench.both().distribution(name, *is_other, BINS, threads, progress)?;
            let missing = || Error::format("the model has no such tensor").for_tensor(name);
            Report::Distribution(found.ok_or_else(missing)?)
        }
        Request::Values { tensor, ranges } => {
            let shape = &reader.tensors()[*tensor].shape;
            let selection = Selection::parse(ranges, shape)?;
            Report::Values(model.values(*tensor, &selection)?)
        }
        Request::Statistics(tensor) => {
            Report::Statistics(model.statistics(*tensor, threads, progress)?)
        }
        _ => Report::List(model.tensors(&TensorsOptions::default(), threads, progress)?),
    })
}

/// Returns the report of `apr scan` on the model's files.
fn scanned(job: &Job<'_>, watch: &Watch) -> Result<ScanSummary> {
    let Some(scan) = job.scan else {
        return Err(Error::format("no file of the model is known to be scanned"));
    };
    scan(watch)
}

/// The nodes that read tensors, part by part.
fn used(
    bench: &Bench<'_>,
    tensors: impl IntoIterator<Item = usize>,
    watch: &Watch,
) -> Result<Vec<BoxUse>> {
    /// A tensor that is used more often is a buffer that everything reads.
    const MOST: usize = 100;

    let graphs = bench.model.drawn()?;
    let is_own = graphs.origin == GraphOrigin::File;
    let family = bench.model.family()?.filter(|_| !is_own);
    let mut found = Vec::new();
    for tensor in tensors {
        watch.interrupt().check()?;
        let canonical = family.and_then(|family| family.canonical(tensor));
        let name = canonical.unwrap_or(&bench.model.reader().tensors()[tensor].name);
        for (part, graph) in graphs.parts.iter().enumerate() {
            let nodes = uses(&graph.graph, name, MOST).into_iter().map(|used| used.node);
            found.extend(nodes.map(|node| BoxUse { tensor, name: name.to_owned(), part, node }));
        }
    }
    Ok(found)
}

/// Returns the report of `apr diff`.
fn compared(bench: &Bench<'_>, threads: &Threads, watch: &Watch) -> Result<DiffReport> {
    bench.both().diff(&DiffOptions::default(), threads, watch.meter())
}

fn checks(bench: &Bench<'_>, threads: &Threads, watch: &Watch) -> Result<Checks> {
    let validation = validated(&bench.model, threads, watch)?;
    Ok(Checks { validation, lint: bench.model.lint()? })
}

/// Returns the report of `apr validate`.
fn validated(model: &Session<'_>, threads: &Threads, watch: &Watch) -> Result<ValidateReport> {
    model.validate(ValidateOptions::default(), threads, watch.meter())
}
