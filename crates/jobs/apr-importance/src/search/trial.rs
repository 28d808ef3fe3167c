//! A model with some tensors of other types, beside the model as it is.

use apr_core::{CheckpointReader, Error};
use apr_quality::{Predictions, Subject, Thresholds, Windows, compare};
use apr_quantize::{Imatrix, TensorType};
use apr_run::{Facts, Host, RunOptions, RunResult, Runner, with_runner};
use apr_source::Source;
use apr_view::{TensorOrigin, View};

use super::SearchData;
use super::member::Encoded;
use super::units::{Unit, check_not_cancelled};
use crate::measure::{Inputs, MeasureOptions, measure};

/// Data that all trials share.
pub(crate) struct Trials<'t, 's> {
    source: &'t Source<'s>,
    facts: Facts,
    data: SearchData<'t>,
    options: RunOptions,
    host: &'t dyn Host,
}

/// Temperature that softens predictions.
const TEMPERATURE: f64 = 2.0;

/// Effect of a change on the outputs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effect {
    /// Value to minimize.
    pub(crate) objective: f64,
    /// KL divergence, of a text.
    pub(crate) divergence: Option<f64>,
}

/// Measures what it does to store tensors as these types.
pub(crate) type Measure<'e> = dyn Fn(&[(&Unit, TensorType)]) -> RunResult<Effect> + 'e;
/// Same as [`Measure`], for a function that counts its calls.
pub(crate) type CountedMeasure<'e> = dyn FnMut(&[(&Unit, TensorType)]) -> RunResult<Effect> + 'e;

impl<'t, 's> Trials<'t, 's> {
    pub(crate) fn new(
        source: &'t Source<'s>,
        data: SearchData<'t>,
        options: &RunOptions,
        host: &'t dyn Host,
    ) -> RunResult<Self> {
        let facts = Facts::of(source.reader())?;
        // The model is there twice, and what it predicts once.
        let mut options = options.clone();
        options.max_memory /= 3;
        Ok(Self { source, facts, data, options, host })
    }

    /// Refuses more predictions than are kept in memory, before anything is measured.
    fn check_predictions(&self, windows: &Windows) -> RunResult<()> {
        let vocabulary = self.facts.vocabulary().unwrap_or_default() as u64;
        let needed = (windows.tokens().len() as u64).saturating_mul(vocabulary).saturating_mul(4);
        if needed <= self.options.max_memory {
            return Ok(());
        }
        Err(Error::memory(format!(
            "predictions of {} windows of {} tokens take {} MiB, more than a third of the memory \
             limit, {} MiB: use fewer or shorter windows, or raise the limit",
            windows.len(),
            windows.context(),
            needed >> 20,
            self.options.max_memory >> 20
        ))
        .into())
    }

    fn windows(&self, runner: &Runner<'_>) -> RunResult<Option<Windows>> {
        match self.data {
            SearchData::Text { text, options } => {
                Windows::of_text(text, &[runner], options).map(Some)
            }
            SearchData::Samples(_) => Ok(None),
        }
    }

    /// The importance of all weights.
    ///
    /// # Errors
    /// E008 where what the model predicts, which is kept later, takes too much memory.
    pub(crate) fn importance(&self, dataset: &str) -> RunResult<Imatrix> {
        with_runner(self.source, &self.facts, &self.options, self.host, |runner| {
            let windows = self.windows(runner)?;
            if let Some(windows) = &windows {
                self.check_predictions(windows)?;
            }
            let inputs = match (&windows, self.data) {
                (Some(windows), _) => Inputs::Windows(windows),
                (None, SearchData::Samples(samples)) => Inputs::Samples(samples),
                (None, SearchData::Text { .. }) => Inputs::Samples(&[]),
            };
            let (subject, options) = (Subject::of(runner)?, MeasureOptions::default());
            let options = options.with_output(true);
            let family = self.source.family()?;
            let found = measure(&subject, family, inputs, dataset, options, &mut |_| ())?;
            Ok(found.sums.means()?)
        })
    }

    /// Calls `then` with a function that compares the model to variants with other types for some
    /// of its tensors.
    pub(crate) fn with_effect<R>(
        &self,
        then: impl FnOnce(&Measure<'_>) -> RunResult<R>,
    ) -> RunResult<R> {
        with_runner(self.source, &self.facts, &self.options, self.host, |runner| {
            let subject = Subject::of(runner)?;
            match (self.windows(runner)?, self.data) {
                (Some(windows), _) => {
                    let most = self.options.max_memory;
                    let base = Predictions::of(first(&subject)?, &windows, most)?;
                    then(&|types| {
                        self.with_types(types, |other| {
                            let part = first(other)?;
                            let distance = base.distance(part, &windows, TEMPERATURE)?;
                            let divergence = Some(distance.divergence);
                            Ok(Effect { objective: distance.softened, divergence })
                        })
                    })
                }
                (None, SearchData::Samples(samples)) => then(&|types| {
                    self.with_types(types, |other| {
                        let limits = Thresholds::default();
                        let found = compare(&subject, other, samples, limits, &mut |_| ())?;
                        let squares = found.results.iter().map(|one| one.l2.powi(2));
                        let objective = squares.sum::<f64>() / found.results.len().max(1) as f64;
                        Ok(Effect { objective, divergence: None })
                    })
                }),
                (None, SearchData::Text { .. }) => then(&|_| Ok(Effect::default())),
            }
        })
    }

    /// Measures the model with some of its tensors as other types.
    fn with_types(
        &self,
        types: &[(&Unit, TensorType)],
        measure: impl FnOnce(&Subject<'_>) -> RunResult<Effect>,
    ) -> RunResult<Effect> {
        let view = stored_as(self.source.reader(), types, self.host)?;
        let other = self.source.through(&view);
        with_runner(&other, &self.facts, &self.options, self.host, |runner| {
            let mut effect = measure(&Subject::of(runner)?)?;
            if !effect.objective.is_finite() {
                effect.objective = f64::MAX;
            }
            Ok(effect)
        })
    }
}

fn first<'s, 'p>(subject: &'s Subject<'p>) -> RunResult<&'s apr_run::Prepared<'p>> {
    let missing = || Error::version("the model has no graph to run");
    Ok(subject.parts().first().ok_or_else(missing)?)
}

/// A model with tensors stored as other types.
fn stored_as<'a>(
    base: &'a dyn CheckpointReader,
    types: &[(&Unit, TensorType)],
    host: &dyn Host,
) -> RunResult<View<'a>> {
    let infos = base.tensors().iter().cloned().enumerate();
    let mut tensors: Vec<_> =
        infos.map(|(position, info)| (info, TensorOrigin::Base(position))).collect();
    for (unit, wanted) in types {
        for encoded in unit.as_type(base, *wanted) {
            check_not_cancelled(host)?;
            let (position, Encoded { dtype, bytes }) = encoded?;
            let (info, origin) = &mut tensors[position];
            info.dtype = dtype;
            *origin = TensorOrigin::Own(bytes);
        }
    }
    Ok(View::of(base, tensors))
}
