//! What of a trace is unlike a healthy model.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::payload::Written;
use crate::predictions::Predictions;
use crate::profile::Profile;
use crate::trace::{PassTrace, StepTrace, Trace};

/// Largest magnitude of a value; half precision ends at 65,504.
const LARGEST: f64 = 1e6;
/// Times the magnitude of the same step in other layers from which on a step explodes.
const EXPLOSION: f64 = 8.0;
/// Magnitude up to which a value is never an anomaly.
const MODEST: f64 = 1.0;
/// Minimum number of other steps of a kind that are needed to determine the usual magnitude.
const OTHERS: usize = 2;
/// Inputs for which a neuron has to be zero to be dead.
const INPUTS: usize = 100;
/// Minimum number of inputs for a value without an activation function, whose zeros are not due to
/// chance.
const FEW_INPUTS: usize = 4;
/// Minimum share of dead neurons that is reported.
const DEAD: f64 = 0.01;
/// Minimum share of dead neurons that is reported after an activation function.
///
/// Some of these neurons wait for rare inputs.
const DEAD_ACTIVATIONS: f64 = 0.1;
/// Keys from which on attention to a single one is worth telling.
const KEYS: usize = 8;
/// Entropy, as a share of the largest, below which attention has collapsed, and above which it is
/// the same everywhere.
const COLLAPSED: (f64, f64) = (0.02, 0.9999);
/// Tokens of a phrase that is looked for.
const PHRASE: usize = 16;
/// Maximum number of times that a phrase may repeat in a row.
const REPEATED: usize = 5;
/// Root mean square of silence.
const SILENCE: f64 = 1e-4;
/// Correlation of neighbours below which samples are noise.
const NOISE: f64 = 0.1;
/// Probability of a class from which on noise is answered with confidence.
const CONFIDENT: f64 = 0.9;

/// Anomalies of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct AnomalyReport {
    /// Path of the model.
    pub path: String,
    /// Input of the run.
    pub input: String,
    /// Steps that were looked at.
    #[serde(rename = "step_count")]
    pub steps: usize,
    /// Anomalies in the order of the steps; anomalies of the whole run are last.
    pub anomalies: Vec<Anomaly>,
    /// Checks that were not possible, with the reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_judged: Vec<String>,
}

/// Anomaly found in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Anomaly {
    /// Number of the step; `None` for the whole run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<usize>,
    /// Path of the step, or `output`.
    pub path: String,
    /// Kind of anomaly.
    #[serde(flatten)]
    pub kind: AnomalyKind,
    /// First and last affected position of the input, if not all are affected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<(usize, usize)>,
}

/// Kind of anomaly.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AnomalyKind {
    /// NaN or infinity, at the first operator that makes them.
    NotFinite {
        /// Path of the operator.
        operator: String,
        /// Elements that are not finite.
        count: u64,
    },
    /// A value far above the values of the same step in other layers, or above 10^6.
    Explosion {
        /// Root mean square of a typical position.
        magnitude: f64,
        /// Usual magnitude.
        usual: f64,
        /// The largest magnitude of an element.
        max: f64,
    },
    /// Channels that are zero for all inputs.
    DeadNeurons {
        /// Number of dead neurons.
        dead: usize,
        /// Number of all neurons.
        of: usize,
        /// Positions that were looked at.
        #[serde(rename = "input_count")]
        inputs: usize,
    },
    /// All heads attend to one and the same position, and it is not the first.
    OneKey {
        /// The largest probability, mean of heads and queries.
        peak: f64,
    },
    /// All heads attend to every position alike.
    EveryKey,
    /// Rows of attention do not sum to 1.
    Unnormalized,
    /// Generated tokens repeat a phrase.
    Repetition {
        /// Ids of its tokens.
        phrase: Vec<i64>,
        /// Number of repetitions in a row.
        times: usize,
    },
    /// Words for a silent input.
    WordsInSilence {
        /// Text that the model recognized.
        text: String,
    },
    /// A class with high probability for an input of noise.
    ConfidentOnNoise {
        /// Name of the class.
        class: String,
        /// Probability of the class.
        probability: f64,
    },
}

impl AnomalyKind {
    /// Returns the likely cause.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            Self::NotFinite { .. } => "NaN in a weight, or an overflow of half precision before",
            Self::Explosion { .. } => "weight corruption, or a scale that was applied twice",
            Self::DeadNeurons { .. } => "aggressive pruning, zeroed rows, or ReLU saturation",
            Self::OneKey { .. } => "keys or queries of one position dominate: weight corruption",
            Self::EveryKey => "queries or keys are zero: weight corruption or pruning",
            Self::Unnormalized => {
                "a mask that excludes everything, or a softmax along another dimension"
            }
            Self::Repetition { .. } => {
                "quantization that is too coarse, or a model without training"
            }
            Self::WordsInSilence { .. } => "hallucination: no voice activity is required",
            Self::ConfidentOnNoise { .. } => "a collapsed classifier: one class for every input",
        }
    }
}

/// Looks for anomalies in a trace with its payload (see
/// [`TraceOptions::payload`](crate::TraceOptions)), of blocks.
#[must_use]
pub fn anomalies(trace: &Trace) -> AnomalyReport {
    let mut report = AnomalyReport {
        path: trace.path.clone(),
        input: trace.input.clone(),
        steps: trace.steps().count(),
        anomalies: Vec::new(),
        not_judged: Vec::new(),
    };
    let mut is_broken = false;
    let usual: Vec<Usual> = trace.passes.iter().map(Usual::of).collect();
    for (pass, usual) in trace.passes.iter().zip(&usual) {
        for step in &pass.steps {
            // What follows from NaN is no finding of its own.
            if let Some(kind) = not_finite(pass, step).filter(|_| !is_broken) {
                is_broken = true;
                report.add(step, kind, None);
            }
            if !is_broken {
                of_step(step, usual, &mut report);
            }
        }
    }

    if let Some(written) = &trace.generated {
        report.whole(repetition(written));
    }
    report.whole(words_in_silence(trace));
    report.whole(confident_on_noise(trace));
    report.note_limits(trace, &usual);
    report
}

impl AnomalyReport {
    fn add(&mut self, step: &StepTrace, kind: AnomalyKind, positions: Option<(usize, usize)>) {
        let (step, path) = (Some(step.number), step.path.clone());
        self.anomalies.push(Anomaly { step, path, kind, positions });
    }

    fn whole(&mut self, kind: Option<AnomalyKind>) {
        let anomaly =
            |kind| Anomaly { step: None, path: "output".to_owned(), kind, positions: None };
        self.anomalies.extend(kind.map(anomaly));
    }

    fn note_limits(&mut self, trace: &Trace, usual: &[Usual]) {
        let activations = trace.steps().filter_map(|(_, step)| step.activations.as_ref());
        let most = activations.map(|found| found.inputs).max();
        if let Some(inputs) = most.filter(|inputs| *inputs < INPUTS) {
            self.not_judged.push(format!(
                "dead neurons behind activation functions: {inputs} positions are too few, \
                 {INPUTS} are required"
            ));
        }
        let layers = usual.iter().map(Usual::layers).max();
        if layers.is_none_or(|layers| layers <= OTHERS) {
            self.not_judged.push(
                "explosion relative to other layers: the model has too few layers, so only \
                 magnitudes above 10^6 count"
                    .to_owned(),
            );
        }
    }
}

fn not_finite(pass: &PassTrace, step: &StepTrace) -> Option<AnomalyKind> {
    let path = step.not_finite_at.as_ref()?;
    let operator = pass.operators.iter().find(|operator| operator.path == *path)?;
    let count = operator.not_finite?;

    // Masks are made of infinities. Exporters put them within attention, whose result has none.
    let result = step.value.as_ref().and_then(|value| value.statistics.as_ref());
    let is_masked = result.is_some_and(|found| {
        let is_mask = step.path.contains("mask");
        found.stats.nan == 0 && (is_mask || found.stats.inf == 0)
    });
    (!is_masked).then(|| AnomalyKind::NotFinite { operator: path.clone(), count })
}

fn of_step(step: &StepTrace, usual: &Usual, report: &mut AnomalyReport) {
    let value = step.value.as_ref();
    let profile = value.and_then(|value| value.profile.as_ref());
    let statistics = value.and_then(|value| value.statistics.as_ref());
    if let (Some(profile), Some(statistics)) = (profile, statistics) {
        let (magnitude, max) = (profile.typical(), statistics.magnitude());
        let usual = usual.without(step);
        let is_alone = magnitude > MODEST
            && usual.is_some_and(|usual| usual > 0.0 && magnitude > EXPLOSION * usual);
        let is_mask = step.path.contains("mask");
        if is_alone || max > LARGEST && max.is_finite() && !is_mask {
            let usual = usual.unwrap_or(LARGEST);
            let positions = profile.above(EXPLOSION * usual);
            let all = (0, profile.inputs().saturating_sub(1));
            let kind = AnomalyKind::Explosion { magnitude, usual, max };
            report.add(step, kind, positions.filter(|range| *range != all));
        }

        let share = profile.dead as f64 / profile.width.max(1) as f64;
        let is_value = !step.path.contains("mask") && !step.path.contains("rotary");
        if is_value && profile.inputs() >= FEW_INPUTS && share >= DEAD && profile.dead > 1 {
            let (dead, of, inputs) = (profile.dead, profile.width, profile.inputs());
            report.add(step, AnomalyKind::DeadNeurons { dead, of, inputs }, None);
        }
    }
    if let Some(found) = &step.activations {
        let share = found.dead as f64 / found.of.max(1) as f64;
        if found.inputs >= INPUTS && share >= DEAD_ACTIVATIONS {
            let (dead, of, inputs) = (found.dead, found.of, found.inputs);
            report.add(step, AnomalyKind::DeadNeurons { dead, of, inputs }, None);
        }
    }
    let Some(found) = &step.attention else { return };
    if !found.sums_to_one {
        report.add(step, AnomalyKind::Unnormalized, None);
    } else if found.keys >= KEYS {
        let highest = found.entropy.iter().copied().fold(0.0, f64::max);
        let lowest = found.entropy.iter().copied().fold(1.0, f64::min);
        let peak = found.peak.iter().sum::<f64>() / found.peak.len().max(1) as f64;
        let is_sink = found.focus.first().is_some_and(|(from, _)| *from == 0);
        if found.is_one_key && highest < COLLAPSED.0 && !is_sink {
            report.add(step, AnomalyKind::OneKey { peak }, None);
        } else if lowest > COLLAPSED.1 && !found.entropy.is_empty() {
            report.add(step, AnomalyKind::EveryKey, None);
        }
    }
}

/// Magnitudes of steps that layers have in common.
struct Usual {
    /// Magnitudes by the path without numbers.
    kinds: BTreeMap<String, Magnitudes>,
}

/// Magnitudes of steps of one kind.
#[derive(Default)]
struct Magnitudes {
    /// Layer by layer, number of the step and magnitude.
    layers: Vec<(usize, f64)>,
    /// Smallest first.
    sorted: Vec<f64>,
}

impl Usual {
    fn of(pass: &PassTrace) -> Self {
        let mut kinds: BTreeMap<String, Magnitudes> = BTreeMap::new();
        for step in &pass.steps {
            let profile = step.value.as_ref().and_then(|value| value.profile.as_ref());
            if let Some(magnitude) = profile.map(Profile::typical) {
                let found = kinds.entry(kind(&step.path)).or_default();
                found.layers.push((step.number, magnitude));
                found.sorted.push(magnitude);
            }
        }
        for found in kinds.values_mut() {
            found.layers.sort_by_key(|(number, _)| *number);
            found.sorted.sort_by(f64::total_cmp);
        }
        Self { kinds }
    }

    /// The most steps of a kind.
    fn layers(&self) -> usize {
        self.kinds.values().map(|found| found.layers.len()).max().unwrap_or_default()
    }

    /// Returns the usual magnitude for a step: the maximum of the median of its kind and the
    /// neighbouring layers.
    ///
    /// The neighbours are included because magnitudes grow from layer to layer.
    fn without(&self, step: &StepTrace) -> Option<f64> {
        let Magnitudes { layers, sorted } =
            self.kinds.get(&kind(&step.path)).filter(|found| found.layers.len() > OTHERS)?;
        let at = layers.binary_search_by_key(&step.number, |(number, _)| *number).ok()?;
        let beside = [at.checked_sub(1), Some(at + 1)];
        let beside = beside.into_iter().flatten().filter_map(|at| Some(layers.get(at)?.1));

        // The median of the others: those behind its own place move by one.
        let own = layers[at].1;
        let place = sorted.partition_point(|magnitude| magnitude.total_cmp(&own).is_lt());
        let middle = (sorted.len() - 1) / 2;
        let median = sorted[if place <= middle { middle + 1 } else { middle }];
        Some(beside.fold(median, f64::max))
    }
}

/// A path without its numbers.
fn kind(path: &str) -> String {
    path.chars().filter(|character| !character.is_ascii_digit()).collect()
}

/// Returns the anomaly if a phrase repeats more than five times in a row (QA 45).
fn repetition(written: &Written) -> Option<AnomalyKind> {
    let tokens = &written.added;
    (1..=PHRASE).find_map(|len| {
        (0..tokens.len()).find_map(|from| {
            let phrase = tokens.get(from..from + len)?;
            let rest = tokens[from..].chunks_exact(len);
            let times = rest.take_while(|chunk| *chunk == phrase).count();
            (times > REPEATED).then(|| AnomalyKind::Repetition { phrase: phrase.to_vec(), times })
        })
    })
}

/// Returns the anomaly if the model transcribes words from silent audio (QA 46).
fn words_in_silence(trace: &Trace) -> Option<AnomalyKind> {
    let sound = trace.passes.first()?.inputs.iter().find(|input| input.sound.is_some())?;
    let stats = &sound.value.statistics.as_ref()?.stats;
    let text = trace.generated.as_ref()?.text.as_ref()?;
    let rms = stats.l2 / (stats.count.max(1) as f64).sqrt();
    let has_words = text.chars().any(char::is_alphanumeric);
    (rms < SILENCE && has_words).then(|| AnomalyKind::WordsInSilence { text: text.clone() })
}

impl Trace {
    /// Returns `true` if the input is noise: neighbouring samples or pixels have little in common.
    #[must_use]
    pub fn is_of_noise(&self) -> bool {
        let inputs = self.passes.first().into_iter().flat_map(|pass| &pass.inputs);
        let correlations = inputs.filter_map(|input| input.value.correlation);
        let most = correlations.fold(None, |most, it| Some(it.abs().max(most.unwrap_or(0.0))));
        most.is_some_and(|most| most < NOISE)
    }

    /// The classes that are predicted of the input as a whole. Tokens are predicted at a position.
    #[must_use]
    pub fn classes(&self) -> Option<&Predictions> {
        self.predictions.iter().find(|found| found.position.is_none())
    }
}

/// Returns the anomaly if the model is confident of a class for an input of noise (QA 47).
fn confident_on_noise(trace: &Trace) -> Option<AnomalyKind> {
    let classes = trace.classes().filter(|_| trace.is_of_noise())?;
    let first = classes.top.first().filter(|it| it.probability > CONFIDENT)?;
    let class = first.text.clone().unwrap_or_else(|| first.id.to_string());
    Some(AnomalyKind::ConfidentOnNoise { class, probability: first.probability })
}
