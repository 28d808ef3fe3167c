//! What requests are answered with: the reports of the commands.

use std::cell::OnceCell;

use apr_arch::FamilyModel;
use apr_blocks::GraphOptions;
use apr_graph::uses;
use apr_io::Threads;
use apr_ops::diff::{Alike, DiffOptions, DiffReport, Side, alike, diff};
use apr_ops::elements::{Selection, ValuesReport, elements};
use apr_ops::graph::{
    Computed, GraphOrigin, GraphReport, ReportOptions, computed, of_file, report,
};
use apr_ops::inspect::{InspectReport, inspect};
use apr_ops::lint::{LintReport, lint};
use apr_ops::physics::{Level, Physics, expectation};
use apr_ops::shards::validate_all;
use apr_ops::tensors::{
    HistogramReport, TensorRow, TensorsOptions, TensorsReport, find, histogram, list, measured,
};
use apr_ops::validate::{ValidateOptions, ValidateReport};
use apr_quality::ComparisonReport;
use apr_registry::{CheckpointReader, Error, Result};
use apr_run::RunResult;
use apr_scan::ScanSummary;
use apr_source::Source;
use apr_tokenizer::{Vocabulary, vocabulary};
use apr_trace::Trace;

use super::meter::Watch;
use super::request::Request;
use super::runs::{Ran, outputs, traced};
use crate::explore::{Job, Subject};

/// Bins of a histogram, as `apr tensors --hist` has them.
const BINS: usize = 64;

/// What came of a request.
pub(crate) enum Report {
    List(TensorsReport),
    Inspect(Box<InspectReport>),
    Graph(GraphReport),
    Vocabulary(Option<Vocabulary>),
    Histogram(Measured<HistogramReport>),
    Distribution(HistogramReport),
    Values(ValuesReport),
    Uses(Vec<BoxUse>),
    AllUses(Vec<BoxUse>),
    Statistics(Measured<TensorRow>),
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
    /// What the graph calls it.
    pub(crate) name: String,
    /// Position of the part of the model.
    pub(crate) part: usize,
    /// Path of the node within the part's graph.
    pub(crate) node: String,
}

/// A report on a tensor, beside what is expected of one of its kind.
#[derive(Debug, Clone)]
pub(crate) struct Measured<R> {
    pub(crate) report: R,
    /// What people call the kind, where it is known.
    pub(crate) kind: Option<&'static str>,
    /// Whether it scales a norm.
    pub(crate) is_norm: bool,
    /// What the values violate, worst first.
    pub(crate) violations: Vec<(Level, String)>,
}

/// What `apr validate` and `apr lint` report.
pub(crate) struct Checks {
    pub(crate) validation: ValidateReport,
    pub(crate) lint: LintReport,
}

/// The models with what is found out about them once.
pub(crate) struct Bench<'j> {
    pub(super) job: &'j Job<'j>,
    model: &'j Subject<'j>,
    pub(super) source: Source<'j>,
    other: Option<(&'j Subject<'j>, Source<'j>)>,
    sides: OnceCell<Alike<'j>>,
    graphs: OnceCell<Computed>,
}

impl<'j> Bench<'j> {
    pub(crate) fn of(job: &'j Job<'_>) -> Self {
        let other = job.other.as_ref().map(|other| (other, other.source()));
        Self {
            job,
            model: &job.model,
            source: job.model.source(),
            other,
            sides: OnceCell::new(),
            graphs: OnceCell::new(),
        }
    }

    /// The second model, or the only one.
    pub(super) fn second(&self) -> (&'j Subject<'j>, &Source<'j>) {
        match &self.other {
            Some((other, source)) => (other, source),
            None => (self.model, &self.source),
        }
    }

    /// Both models in one layout.
    fn sides(&self) -> &Alike<'j> {
        self.sides.get_or_init(|| alike(&self.source, self.second().1))
    }

    /// What the model computes, without keys and values that are kept.
    fn graphs(&self) -> Result<&Computed> {
        if self.graphs.get().is_none() {
            let options = GraphOptions { past: false, ..GraphOptions::default() };
            let found = computed(&self.source, &options)?;
            return Ok(self.graphs.get_or_init(|| found));
        }
        self.graphs.get().ok_or_else(|| Error::format("the graph was not built"))
    }
}

/// Makes a report.
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
            let [one, two] = [(bench.model, &bench.source), bench.second()];
            let one = validated(one, threads, watch)?;
            Report::Scores(Box::new([one, validated(two, threads, watch)?]))
        }
        Request::Outputs => Report::Outputs(Box::new(outputs(bench, watch)?)),
        Request::Trace(prompt) => Report::Trace(Box::new(traced(bench, prompt.as_deref(), watch)?)),
        Request::Uses(tensor) => Report::Uses(used(bench, [*tensor], watch)?),
        Request::AllUses => {
            let tensors = 0..bench.model.reader.tensors().len();
            Report::AllUses(used(bench, tensors, watch)?)
        }
        look => looked(look, bench, threads, watch)?,
    })
}

/// Answers what is on the screen.
fn looked(
    request: &Request,
    bench: &Bench<'_>,
    threads: &Threads,
    watch: &Watch,
) -> Result<Report> {
    let Bench { model, source, .. } = bench;
    let (reader, progress) = (model.reader, watch.meter());
    let family = || source.family();
    Ok(match request {
        Request::Inspect => Report::Inspect(Box::new(inspect(reader, model.name, family()?))),
        Request::Graph => Report::Graph(report(source, bench.graphs()?, &ReportOptions::default())),
        Request::Vocabulary => Report::Vocabulary(vocabulary(reader, usize::MAX)?),
        Request::Histogram(tensor) => {
            let report = histogram(reader, *tensor, BINS, threads, progress)?;
            let row = report.tensor.clone();
            Report::Histogram(judged(report, &row, reader, *tensor, family()?))
        }
        Request::Distribution { name, is_other } => {
            let sides = bench.sides();
            let side = if *is_other { &sides.right } else { &sides.left };
            let Ok(tensor) = find(side, name) else {
                return Err(Error::format("the tensor is not there").for_tensor(name));
            };
            Report::Distribution(histogram(side, tensor, BINS, threads, progress)?)
        }
        Request::Values { tensor, ranges } => {
            let shape = &reader.tensors()[*tensor].shape;
            let selection = Selection::parse(ranges, shape)?;
            Report::Values(elements(reader, *tensor, &selection)?)
        }
        Request::Statistics(tensor) => {
            let row = measured(reader, *tensor, threads, progress)?;
            Report::Statistics(judged(row.clone(), &row, reader, *tensor, family()?))
        }
        _ => Report::List(list(reader, model.name, &TensorsOptions::default(), threads, progress)?),
    })
}

/// What `apr scan` reports on the model's files.
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

    let graphs = bench.graphs()?;
    let is_own = graphs.origin == GraphOrigin::File;
    let family = bench.source.family()?.filter(|_| !is_own);
    let mut found = Vec::new();
    for tensor in tensors {
        watch.interrupt().check()?;
        let canonical = family.and_then(|family| family.canonical(tensor));
        let name = canonical.unwrap_or(&bench.model.reader.tensors()[tensor].name);
        for (part, graph) in graphs.parts.iter().enumerate() {
            let nodes = uses(&graph.graph, name, MOST).into_iter().map(|used| used.node);
            found.extend(nodes.map(|node| BoxUse { tensor, name: name.to_owned(), part, node }));
        }
    }
    Ok(found)
}

/// What `apr diff` reports.
fn compared(bench: &Bench<'_>, threads: &Threads, watch: &Watch) -> Result<DiffReport> {
    let sides = bench.sides();
    let (other, second) = bench.second();
    let sources = [bench.source.through(&sides.left), second.through(&sides.right)];
    let left = Side { reader: &sides.left, name: bench.model.name, model: sources[0].family()? };
    let right = Side { reader: &sides.right, name: other.name, model: sources[1].family()? };
    let report = diff(left, right, &DiffOptions::default(), threads, watch.meter())?;
    let graphs = [&bench.source, second].map(|source| computed(source, &GraphOptions::default()));
    Ok(match graphs {
        [Ok(left), Ok(right)] => report.with_graphs(&left, &right),
        _ => report,
    })
}

fn checks(bench: &Bench<'_>, threads: &Threads, watch: &Watch) -> Result<Checks> {
    let Bench { model, source, .. } = bench;
    let validation = validated((model, source), threads, watch)?;
    Ok(Checks { validation, lint: lint(model.reader, model.name, source.family()?)? })
}

/// What `apr validate` reports.
fn validated(
    (model, source): (&Subject<'_>, &Source<'_>),
    threads: &Threads,
    watch: &Watch,
) -> Result<ValidateReport> {
    let Subject { name, reader, families, .. } = *model;
    let graphs = of_file(source)?;
    let options = ValidateOptions {
        checksum: true,
        nan: true,
        zero: true,
        shapes: true,
        physics: true,
        strict: false,
        require_signature: false,
        trusted: &[],
        families: Some(families),
        graphs: graphs.as_ref(),
    };
    let family = (source.family()?, families);
    validate_all(reader, name, family, options, threads, watch.meter())
}

/// A report on a tensor with what its statistics violate.
fn judged<R>(
    report: R,
    row: &TensorRow,
    reader: &dyn CheckpointReader,
    tensor: usize,
    family: Option<&FamilyModel<'_>>,
) -> Measured<R> {
    let info = &reader.tensors()[tensor];
    let expected = expectation(family, tensor, info);
    let violations = row.stats.as_ref().map(|stats| {
        let found = Physics::ALL.violations(&info.name, stats, expected);
        found.iter().map(|violation| (violation.level(), violation.to_string())).collect()
    });
    let kind = expected.map(|expected| expected.kind);
    Measured {
        report,
        kind: kind.map(apr_arch::TensorKind::name),
        is_norm: kind == Some(apr_arch::TensorKind::NormGamma),
        violations: violations.unwrap_or_default(),
    }
}
