//! What requests are answered with: the reports of the commands.

use std::cell::OnceCell;

use apr_arch::FamilyModel;
use apr_blocks::GraphOptions;
use apr_core::Progress;
use apr_io::Threads;
use apr_ops::diff::{Alike, DiffOptions, DiffReport, Side, alike, diff};
use apr_ops::elements::{Selection, ValuesReport, elements};
use apr_ops::graph::{GraphReport, computed, of_file, report};
use apr_ops::inspect::{InspectReport, inspect};
use apr_ops::lint::{LintReport, lint};
use apr_ops::physics::{Level, Physics, expectation};
use apr_ops::shards::validate_all;
use apr_ops::tensors::{
    HistogramReport, TensorRow, TensorsOptions, TensorsReport, find, histogram, list, measured,
};
use apr_ops::validate::{ValidateOptions, ValidateReport};
use apr_registry::{CheckpointReader, Error, Result};
use apr_source::Source;
use apr_tokenizer::{Vocabulary, vocabulary};

use super::request::Request;
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
    Statistics(Measured<TensorRow>),
    Checks(Box<Checks>),
    Compare(Box<DiffReport>),
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

/// What both check.
pub(crate) struct Checks {
    pub(crate) validation: ValidateReport,
    pub(crate) lint: LintReport,
}

/// The models with what is found out about them once.
pub(crate) struct Bench<'j> {
    model: &'j Subject<'j>,
    source: Source<'j>,
    other: Option<(&'j Subject<'j>, Source<'j>)>,
    sides: OnceCell<Alike<'j>>,
}

impl<'j> Bench<'j> {
    pub(crate) fn of(job: &'j Job<'_>) -> Self {
        let other = job.other.as_ref().map(|other| (other, other.source()));
        Self { model: &job.model, source: job.model.source(), other, sides: OnceCell::new() }
    }

    /// The second model, or the only one.
    fn second(&self) -> (&'j Subject<'j>, &Source<'j>) {
        match &self.other {
            Some((other, source)) => (other, source),
            None => (self.model, &self.source),
        }
    }

    /// Both models in one layout.
    fn sides(&self) -> &Alike<'j> {
        self.sides.get_or_init(|| alike(&self.source, self.second().1))
    }
}

/// Makes a report.
pub(crate) fn answer(
    request: &Request,
    bench: &Bench<'_>,
    threads: &Threads,
    progress: &dyn Progress,
) -> Result<Report> {
    let Bench { model, source, .. } = bench;
    let reader = model.reader;
    let family = || source.family();
    Ok(match request {
        Request::List => {
            Report::List(list(reader, model.name, &TensorsOptions::default(), threads, progress)?)
        }
        Request::Inspect => Report::Inspect(Box::new(inspect(reader, model.name, family()?))),
        Request::Graph => {
            let options = GraphOptions { past: false, ..GraphOptions::default() };
            let graphs = computed(source, &options)?;
            Report::Graph(report(source, &graphs, true, &Default::default()))
        }
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
        Request::Checks => Report::Checks(Box::new(checks(bench, threads, progress)?)),
        Request::Compare => Report::Compare(Box::new(compared(bench, threads, progress)?)),
    })
}

/// What `apr diff` reports.
fn compared(bench: &Bench<'_>, threads: &Threads, progress: &dyn Progress) -> Result<DiffReport> {
    let sides = bench.sides();
    let (other, second) = bench.second();
    let sources = [bench.source.through(&sides.left), second.through(&sides.right)];
    let left = Side { reader: &sides.left, name: bench.model.name, model: sources[0].family()? };
    let right = Side { reader: &sides.right, name: other.name, model: sources[1].family()? };
    let report = diff(left, right, &DiffOptions::default(), threads, progress)?;
    let graphs = [&bench.source, second].map(|source| computed(source, &GraphOptions::default()));
    Ok(match graphs {
        [Ok(left), Ok(right)] => report.with_graphs(&left, &right),
        _ => report,
    })
}

fn checks(bench: &Bench<'_>, threads: &Threads, progress: &dyn Progress) -> Result<Checks> {
    let Bench { model: Subject { name, reader, families, .. }, source, .. } = bench;
    let (reader, name, families) = (*reader, *name, *families);
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
    let family = source.family()?;
    let validation = validate_all(reader, name, (family, families), options, threads, progress)?;
    Ok(Checks { validation, lint: lint(reader, name, family)? })
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
