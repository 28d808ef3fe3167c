//! A model that is opened once and asked many times.
//!
//! What a report consists of (passes, graphs, shards, companions, defaults) is put together here
//! and nowhere else: the command, the library, Python, the page and the terminal view call a
//! [`Session`] and render what it returns.

use std::ops::Range;
use std::sync::OnceLock;

use apr_arch::{FamilyModel, TensorKind};
use apr_blocks::GraphOptions;
use apr_core::{Progress, StoredRange};
use apr_registry::{CheckpointReader, Error, Pipeline, Result};
use apr_source::Source;
use serde::Serialize;

use crate::diff::{
    self, Alike, DiffOptions, DiffReport, PartOfDiff, Side, alike, diff_in_parts, diff_part,
    diff_units,
};
use crate::elements::{Selection, ValuesReport, elements};
use crate::explain::{ModelExplanation, TensorExplanation, explain_model, explain_tensor};
use crate::graph::{Computed, GraphReport, ReportOptions, computed, of_file_or_damage, report};
use crate::inspect::{InspectReport, inspect, plain_name};
use crate::lint::{LintReport, lint};
use crate::physics::{Physics, Violation, expectation};
use crate::shards;
use crate::tensors::{
    HistogramReport, TensorRow, TensorsOptions, TensorsReport, find, histogram, list, measured,
};
use crate::validate::{Known, PartFindings, ValidateOptions, ValidateReport};

/// Graphs of a model, for all the [`Session`]s that are made of it.
#[derive(Debug, Default)]
pub struct Graphs {
    own: OnceLock<Result<Option<Computed>>>,
    run: OnceLock<Computed>,
    drawn: OnceLock<Computed>,
}

impl Graphs {
    /// Returns the graphs of the model's file or of its family, as `apr run` runs them.
    ///
    /// They use the KV cache. All calls must pass the same model as `source`.
    ///
    /// # Errors
    /// Returns the same errors as [`computed`].
    pub fn run(&self, source: &Source<'_>) -> Result<&Computed> {
        kept(&self.run, || computed(source, &GraphOptions::default()))
    }

    /// Returns the graphs as `apr graph` draws them.
    ///
    /// Graphs of a family have no keys and values of past tokens.
    ///
    /// # Errors
    /// Those of [`computed`].
    pub fn drawn(&self, source: &Source<'_>) -> Result<&Computed> {
        let options = GraphOptions { past: false, ..GraphOptions::default() };
        kept(&self.drawn, || computed(source, &options))
    }

    /// Returns the graphs of a model's file, or the error in them.
    ///
    /// Returns `None` if the file has no graphs.
    ///
    /// # Errors
    /// E007 when reading fails, E008 over the limits.
    fn own(&self, source: &Source<'_>) -> Result<Option<Result<&Computed, &Error>>> {
        Ok(match kept(&self.own, || of_file_or_damage(source))? {
            Ok(graphs) => graphs.as_ref().map(Ok),
            Err(error) => Some(Err(error)),
        })
    }
}

/// Returns the cached value, or computes and caches it.
fn kept<T>(cell: &OnceLock<T>, find: impl FnOnce() -> Result<T>) -> Result<&T> {
    match cell.get() {
        Some(found) => Ok(found),
        None => {
            let found = find()?;
            Ok(cell.get_or_init(|| found))
        }
    }
}

/// A model and the reports on it.
///
/// Its family, the facts from its companions and its graphs are determined when a report first
/// needs them, and then cached.
///
/// ```
/// use apr_arch::Families;
/// use apr_ops::session::Session;
/// use apr_source::Source;
///
/// let header = br#"{"fc.bias":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
/// let mut file = (header.len() as u64).to_le_bytes().to_vec();
/// file.extend_from_slice(header);
/// file.extend_from_slice(&1.0_f32.to_le_bytes());
/// let model = apr_registry::open(file, "model.safetensors", &apr_core::Limits::default())?;
///
/// let families = Families::builtin();
/// let session = Session::of(Source::new(&*model, &families).named("model.safetensors"));
/// assert_eq!(session.inspect()?.parameters, 1);
/// assert!(session.validate(Default::default(), &apr_core::Serial, &())?.valid);
/// # Ok::<(), apr_core::Error>(())
/// ```
pub struct Session<'a> {
    source: Source<'a>,
    kept: Graphs,
    shared: Option<&'a Graphs>,
}

/// A report on a tensor, beside what is expected of one of its kind.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Judged<R> {
    /// Report on the tensor.
    #[serde(flatten)]
    pub report: R,
    /// Kind of the tensor, if it is known.
    #[serde(serialize_with = "as_name")]
    pub kind: Option<TensorKind>,
    /// Violations in the values, worst first.
    #[serde(serialize_with = "as_messages")]
    pub violations: Vec<Violation>,
}

fn as_name<S: serde::Serializer>(kind: &Option<TensorKind>, to: S) -> Result<S::Ok, S::Error> {
    kind.map(TensorKind::name).serialize(to)
}

fn as_messages<S: serde::Serializer>(list: &[Violation], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(list.iter().map(ToString::to_string))
}

impl<'a> Session<'a> {
    /// A session on a model.
    #[must_use]
    pub fn of(source: Source<'a>) -> Self {
        Self { source, kept: Graphs::default(), shared: None }
    }

    /// Shares cached graphs with other sessions on the same reader, families and architecture.
    #[must_use]
    pub fn sharing(self, graphs: &'a Graphs) -> Self {
        Self { shared: Some(graphs), ..self }
    }

    /// Returns the model of the session.
    #[must_use]
    pub fn source(&self) -> &Source<'a> {
        &self.source
    }

    /// Returns the reader of the model.
    #[must_use]
    pub fn reader(&self) -> &'a dyn CheckpointReader {
        self.source.reader()
    }

    /// Returns the model's name in reports.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.source.name()
    }

    /// Returns the model's family.
    ///
    /// # Errors
    /// E001 when the requested family is not known.
    pub fn family(&self) -> Result<Option<&FamilyModel<'a>>> {
        self.source.family()
    }

    /// Returns the model's graphs as `apr run` runs them.
    ///
    /// `apr inspect`, `diff` and `explain` report these graphs.
    ///
    /// # Errors
    /// Returns the same errors as [`computed`].
    pub fn graphs(&self) -> Result<&Computed> {
        self.kept().run(&self.source)
    }

    /// Returns the model's graphs as `apr graph` draws them.
    ///
    /// # Errors
    /// Returns the same errors as [`computed`].
    pub fn drawn(&self) -> Result<&Computed> {
        self.kept().drawn(&self.source)
    }

    fn kept(&self) -> &Graphs {
        self.shared.unwrap_or(&self.kept)
    }

    /// Returns the report of `apr inspect` without reading weights.
    ///
    /// # Errors
    /// E001 when the requested family is not known.
    pub fn inspect(&self) -> Result<InspectReport> {
        let report = inspect(self.reader(), self.name(), self.family()?);
        // What is not known of its graph is no reason to say nothing of the rest.
        Ok(match self.graphs() {
            Ok(graphs) => report.with_graphs(graphs),
            Err(_) => report,
        })
    }

    /// The report of `apr tensors`.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read, E004 when they don't match a checksum of the source.
    pub fn tensors<P: Pipeline>(
        &self,
        options: &TensorsOptions,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<TensorsReport> {
        let mut report = list(self.reader(), self.name(), options, pipeline, progress)?;
        report.tensors.iter_mut().for_each(|row| self.name_file(row));
        Ok(report)
    }

    /// Statistics of the tensor at a position, judged.
    ///
    /// # Errors
    /// Those of [`tensors`](Self::tensors).
    pub fn statistics<P: Pipeline>(
        &self,
        tensor: usize,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Judged<TensorRow>> {
        let mut row = measured(self.reader(), tensor, pipeline, progress)?;
        self.name_file(&mut row);
        self.judged(row.clone(), &row, tensor)
    }

    /// Statistics and the distribution of the tensor at a position, judged.
    ///
    /// # Errors
    /// Those of [`tensors`](Self::tensors).
    pub fn histogram<P: Pipeline>(
        &self,
        tensor: usize,
        bins: usize,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Judged<HistogramReport>> {
        let mut report = histogram(self.reader(), self.name(), tensor, bins, pipeline, progress)?;
        self.name_file(&mut report.tensor);
        let row = report.tensor.clone();
        self.judged(report, &row, tensor)
    }

    /// The report of `apr tensors --values`: a part of the tensor at a position.
    ///
    /// # Errors
    /// E001 for a dtype whose elements are no real numbers, E002 and E007 when bytes can't be read,
    /// E008 for more than a million values.
    pub fn values(&self, tensor: usize, selection: &Selection) -> Result<ValuesReport> {
        let mut report = elements(self.reader(), self.name(), tensor, selection)?;
        self.name_file(&mut report.tensor);
        Ok(report)
    }

    fn name_file(&self, row: &mut TensorRow) {
        row.file = plain_name(self.name(), &row.file);
    }

    fn judged<R>(&self, report: R, row: &TensorRow, tensor: usize) -> Result<Judged<R>> {
        let info = &self.reader().tensors()[tensor];
        let expected = expectation(self.family()?, tensor, info);
        let violations =
            row.stats.as_ref().map(|stats| Physics::ALL.violations(&info.name, stats, expected));
        Ok(Judged {
            report,
            kind: expected.map(|expected| expected.kind),
            violations: violations.unwrap_or_default(),
        })
    }

    /// The report of `apr validate`: one read of every file of the model.
    ///
    /// # Errors
    /// E002 and E007 when bytes can't be read; what is wrong with bytes that can is in the report.
    pub fn validate<P: Pipeline>(
        &self,
        options: ValidateOptions<'_>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<ValidateReport> {
        let (known, options) = (self.known()?, options.complete());
        shards::validate_all(self.reader(), self.name(), known, options, pipeline, progress)
    }

    /// The pieces that a validation can be cut into, each as the ranges of its bytes.
    ///
    /// # Errors
    /// E001 when dtype and shape of a tensor do not go together.
    pub fn validate_units(&self, options: ValidateOptions<'_>) -> Result<Vec<Vec<StoredRange>>> {
        shards::units(self.reader(), options.complete())
    }

    /// A part of a validation: some of its [`validate_units`](Self::validate_units).
    ///
    /// # Errors
    /// Those of [`validate`](Self::validate); E001 for missing units.
    pub fn validate_part<P: Pipeline>(
        &self,
        options: ValidateOptions<'_>,
        wanted: Range<usize>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<PartFindings> {
        let (of_part, options) = ((self.name(), self.known()?), options.complete());
        shards::validate_units_of(self.reader(), of_part, options, wanted, pipeline, progress)
    }

    /// Builds the report of [`validate`](Self::validate) from the ordered findings of the parts.
    ///
    /// # Errors
    /// Returns the same errors as [`validate`](Self::validate); E001 when the parts have not
    /// checked everything.
    pub fn validated_in_parts<P: Pipeline>(
        &self,
        options: ValidateOptions<'_>,
        parts: Vec<PartFindings>,
        pipeline: &P,
    ) -> Result<ValidateReport> {
        let (of_parts, options) = ((self.name(), self.known()?), options.complete());
        shards::validated_in_parts(self.reader(), of_parts, options, parts, pipeline)
    }

    fn known(&self) -> Result<Known<'_>> {
        Ok(Known {
            model: self.family()?,
            families: self.source.families(),
            graphs: self.kept().own(&self.source)?,
        })
    }

    /// Returns the report of `apr lint` without reading weights.
    ///
    /// # Errors
    /// E002 and E007 when padding can't be read.
    pub fn lint(&self) -> Result<LintReport> {
        lint(self.reader(), self.name(), self.family()?)
    }

    /// Returns the report of `apr explain` without reading weights.
    ///
    /// # Errors
    /// E001 when the requested family is not known.
    pub fn explain(&self) -> Result<ModelExplanation> {
        let families = self.source().families();
        Ok(explain_model(self.reader(), self.name(), self.family()?, families))
    }

    /// The report of `apr explain --tensor` on the tensor called `name`, by the checkpoint or
    /// canonically; the names most like it where there is none.
    ///
    /// # Errors
    /// E002 and E007 when its bytes can't be read.
    pub fn explain_tensor<P: Pipeline>(
        &self,
        name: &str,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Result<TensorExplanation, Vec<String>>> {
        let graphs = self.graphs().ok();
        let of = (self.reader(), self.name());
        explain_tensor(of, self.family()?, graphs, name, pipeline, progress)
    }

    /// The report of `apr graph`.
    ///
    /// # Errors
    /// Those of [`drawn`](Self::drawn).
    pub fn graph(&self, options: &ReportOptions) -> Result<GraphReport> {
        Ok(report(&self.source, self.drawn()?, options))
    }

    /// This model and another one, seen in one layout.
    #[must_use]
    pub fn beside<'s>(&'s self, other: &'s Self) -> Beside<'s, 'a> {
        Beside { sessions: [self, other], views: alike(&self.source, &other.source) }
    }
}

/// Two models that are compared.
pub struct Beside<'s, 'a> {
    sessions: [&'s Session<'a>; 2],
    views: Alike<'a>,
}

impl Beside<'_, '_> {
    /// Returns the reasons for comparing a model in its stored layout instead of another one.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.views.warnings
    }

    /// Returns the report of `apr diff`: differences of weights, vocabularies, metadata and graphs.
    ///
    /// # Errors
    /// E001 when the mapping names a tensor that does not exist, E002 and E007 when bytes can't be
    /// read.
    pub fn diff<P: Pipeline>(
        &self,
        options: &DiffOptions,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<DiffReport> {
        let report =
            self.sides(|left, right| diff::diff(left, right, options, pipeline, progress))?;
        Ok(self.with_graphs(report))
    }

    /// The pairs of tensors to compare, each as the ranges of its bytes on both sides.
    ///
    /// # Errors
    /// Those of [`diff`](Self::diff).
    pub fn diff_units<P: Pipeline>(
        &self,
        options: &DiffOptions,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Vec<[Vec<StoredRange>; 2]>> {
        self.sides(|left, right| diff_units(left, right, options, pipeline, progress))
    }

    /// A part of a comparison: some of its [`diff_units`](Self::diff_units).
    ///
    /// # Errors
    /// Those of [`diff`](Self::diff); E001 for missing pairs.
    pub fn diff_part<P: Pipeline>(
        &self,
        options: &DiffOptions,
        wanted: Range<usize>,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<PartOfDiff> {
        self.sides(|left, right| diff_part(left, right, options, wanted, pipeline, progress))
    }

    /// Builds the report of [`diff`](Self::diff) from the ordered results of the parts.
    ///
    /// # Errors
    /// Returns the same errors as [`diff`](Self::diff); E001 when the parts have not compared all
    /// pairs.
    pub fn diff_in_parts<P: Pipeline>(
        &self,
        options: &DiffOptions,
        parts: Vec<PartOfDiff>,
        pipeline: &P,
    ) -> Result<DiffReport> {
        let report =
            self.sides(|left, right| diff_in_parts(left, right, options, parts, pipeline))?;
        Ok(self.with_graphs(report))
    }

    /// The distribution of the tensor with a name in the first model, or in the second one; `None`
    /// where that has none of this name.
    ///
    /// # Errors
    /// E002, E004 and E007 when its bytes can't be read or are damaged.
    pub fn distribution<P: Pipeline>(
        &self,
        name: &str,
        in_second: bool,
        bins: usize,
        pipeline: &P,
        progress: &dyn Progress,
    ) -> Result<Option<HistogramReport>> {
        let view = if in_second { &self.views.right } else { &self.views.left };
        let Ok(tensor) = find(view, name) else { return Ok(None) };
        let path = self.sessions[usize::from(in_second)].name();
        histogram(view, path, tensor, bins, pipeline, progress).map(Some)
    }

    fn sides<R>(&self, then: impl FnOnce(Side<'_>, Side<'_>) -> Result<R>) -> Result<R> {
        let [left, right] = self.sessions;
        left.reader().container().check_shards()?;
        right.reader().container().check_shards()?;
        let (one, other) = (&self.views.left, &self.views.right);
        let families = (left.source.family_in(one)?, right.source.family_in(other)?);
        let (one, other) = (
            Side {
                reader: one,
                original: left.source.reader(),
                name: left.name(),
                model: families.0.as_ref(),
            },
            Side {
                reader: other,
                original: right.source.reader(),
                name: right.name(),
                model: families.1.as_ref(),
            },
        );
        then(one, other)
    }

    /// Models of equal weights may compute different things.
    fn with_graphs(&self, mut report: DiffReport) -> DiffReport {
        report.warnings.splice(0..0, self.views.warnings.iter().cloned());
        match self.sessions.map(Session::graphs) {
            [Ok(left), Ok(right)] => report.with_graphs(left, right),
            _ => report,
        }
    }
}
