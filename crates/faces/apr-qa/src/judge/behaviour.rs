//! Points 36, 39, 43 to 47, 49 and 100: what the model computes.

use apr_core::counted;
use apr_infer::Tensor;
use apr_run::{InputKind, Remedy, RunError};
use apr_trace::{AnomalyKind, AttentionPattern, Payload, Trace, TraceOptions, Written, anomalies};

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{Made, REPEATED};

/// Number of consecutive occurrences that make a phrase a repetition.
const REPETITION: usize = 6;
/// Positions for which a neuron has to be zero to be dead.
const POSITIONS: usize = 100;

/// Runs a test model on enough tokens to detect dead neurons, and generates `generated` tokens.
fn made_run(bench: &Bench<'_>, made: &Made, generated: usize) -> Result<Trace, Fault> {
    let mut options = TraceOptions::new(bench.run_options());
    options.payload = true;
    options.max_tokens = Some(generated);
    let given = i64::try_from(POSITIONS).unwrap_or(0);
    let payload = Payload::Tokens((0..given).map(|at| 3 + at * 7 % 61).collect());
    Ok(apr::Model::open(bench.folder_of(made)?)?.trace(&payload, &options, |_, _| {})?)
}

fn kinds(trace: &Trace) -> Vec<AnomalyKind> {
    anomalies(trace).anomalies.into_iter().map(|anomaly| anomaly.kind).collect()
}

/// Anomalies of the made model with a changed weight, and none of that kind without the change.
fn of_made(
    bench: &Bench<'_>,
    wanted: impl Fn(&AnomalyKind) -> bool,
    name: &str,
    change: impl FnOnce(&mut [f32]),
) -> Result<AnomalyKind, Fault> {
    let sound = kinds(&made_run(bench, &Made::llama(), 0)?);
    ensure(!sound.iter().any(&wanted), "the undamaged test model has the anomaly")?;
    let broken = Made::llama().with(name, |weights| change(&mut weights.values));
    let found = kinds(&made_run(bench, &broken, 0)?).into_iter().find(wanted);
    found.ok_or_else(|| Fault::new("the anomaly of a test model was not reported"))
}

/// The model's run, or what becomes of the point without one.
macro_rules! ran {
    ($bench:expr) => {
        match $bench.ran() {
            Ok(ran) => ran,
            Err(not_run) => return not_run.judgement(),
        }
    };
}

/// Returns the run of a model if all its values are finite, or ends the point.
macro_rules! finite {
    ($bench:expr) => {{
        let ran = ran!($bench);
        if let Some(text) = ran.not_finite() {
            return absent(format!("{text}, so nothing after them can be judged"));
        }
        ran
    }};
}

fn steps(ran: &crate::ran::Ran) -> String {
    let steps = counted(ran.found.steps as u64, "step");
    format!("{steps} of a run on {}", ran.trace.input.trim())
}

/// Returns `true` if the check finds that rows of attention sum to 1.
fn rows_sum(rows: [f32; 4]) -> Result<bool, Fault> {
    let value = Tensor::new(vec![1, 2, 2], rows.to_vec())?.into();
    let pattern = AttentionPattern::of("made", &value);
    Ok(pattern.ok_or_else(|| Fault::new("test attention was not recognized"))?.sums_to_one)
}

pub(crate) fn softmax(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    ensure(rows_sum([1.0, 0.0, 0.25, 0.75])?, "rows that sum to 1 were reported")?;
    ensure(!rows_sum([1.0, 0.0, 0.25, 0.7])?, "a row that sums to 0.95 was not reported")?;
    let all = ran.trace.steps().filter_map(|(_, step)| Some((step, step.attention.as_ref()?)));
    let (mut layers, mut rows) = (0_u64, 0);
    for (step, attention) in all {
        if !attention.sums_to_one {
            return failed(format!("rows of attention at {} do not sum to 1", step.path));
        }
        layers += 1;
        rows += attention.heads * attention.queries;
    }
    match layers {
        0 => absent("the model has no attention with visible probabilities"),
        _ => passed(format!(
            "all {rows} rows of attention in {} sum to 1; a test row that sums to 0.95 is found",
            counted(layers, "layer")
        )),
    }
}

/// The first token that a vocabulary of a size does not have.
fn stranger(tokens: &[i64], size: usize) -> Option<i64> {
    tokens.iter().copied().find(|id| usize::try_from(*id).map_or(true, |id| id >= size))
}

/// The tokens that a trace generated first.
fn added(trace: &Trace) -> &[i64] {
    trace.generated.as_ref().map_or(&[], |written| &written.added)
}

pub(crate) fn tokens(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let Some(written) = &ran.trace.generated else {
        return absent("the model generates no tokens");
    };
    let Some(size) = bench.facts().vocabulary() else {
        return absent("the model does not state the size of its vocabulary");
    };
    let made = made_run(bench, &Made::repeating(), 1)?;
    let id = i64::try_from(REPEATED)?;
    ensure(added(&made) == [id], format!("a test model generates {:?}", added(&made)))?;
    let found = stranger(added(&made), REPEATED) == Some(id);
    ensure(found, format!("token {id} was counted into a vocabulary of {REPEATED}"))?;
    match stranger(&written.added, size) {
        Some(id) => failed(format!("token {id} was generated, and the vocabulary has {size}")),
        None => {
            let most = written.added.iter().max().copied().unwrap_or_default();
            let count = counted(written.added.len() as u64, "token");
            passed(format!(
                "{count} generated, ids up to {most}; the vocabulary has {size}; token {id} of a \
                 test model is found to be beyond a vocabulary of {REPEATED}"
            ))
        }
    }
}

/// Returns the maximum number of positions in a step with channel statistics.
///
/// Values with more than three dimensions are skipped, since their last dimension is not always the
/// channels.
fn positions(trace: &Trace) -> usize {
    let values = trace.steps().filter_map(|(_, step)| step.value.as_ref());
    let rows =
        values.filter(|value| value.statistics.is_some()).map(|value| match value.shape[..] {
            [rows, _] => rows,
            [batch, rows, _] => batch.saturating_mul(rows),
            _ => 0,
        });
    rows.max().unwrap_or(0)
}

pub(crate) fn dead_neurons(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let many = match ran.on_many(bench) {
        Some(Err(not_run)) => return not_run.judgement(),
        Some(Ok(trace)) => Some(trace),
        None => None,
    };
    let trace = many.as_ref().unwrap_or(&ran.trace);
    let is_dead = |kind: &AnomalyKind| matches!(kind, AnomalyKind::DeadNeurons { .. });
    let report = anomalies(trace);
    let own = ran.found.anomalies.iter().chain(&report.anomalies).find(|it| is_dead(&it.kind));
    if let Some((anomaly, AnomalyKind::DeadNeurons { dead, of, inputs })) =
        own.map(|anomaly| (anomaly, &anomaly.kind))
    {
        let path = &anomaly.path;
        return failed(format!("{dead} of {of} outputs of {path} are 0 for {inputs} positions"));
    }
    let positions = positions(trace);
    if positions < POSITIONS {
        return absent(format!(
            "channels were looked at for {}, and a neuron is dead that is 0 for {POSITIONS}",
            counted(positions as u64, "position")
        ));
    }
    of_made(bench, is_dead, "model.layers.0.mlp.down_proj.weight", |values| {
        let half = values.len() / 2;
        values[..half].fill(0.0);
    })?;
    passed(format!(
        "none for {positions} positions in {}; half of a test layer is found",
        counted(report.steps as u64, "step")
    ))
}

pub(crate) fn explosions(bench: &Bench<'_>) -> Judgement {
    let ran = ran!(bench);
    if let Some(text) = ran.not_finite() {
        return failed(text);
    }
    let is_explosion = |kind: &AnomalyKind| matches!(kind, AnomalyKind::Explosion { .. });
    let explosion = ran.anomaly(is_explosion);
    if let Some((anomaly, AnomalyKind::Explosion { max, usual, .. })) =
        explosion.map(|anomaly| (anomaly, &anomaly.kind))
    {
        let path = &anomaly.path;
        return failed(format!("values of {path} reach {max:.3e}; {usual:.3e} is usual"));
    }
    let seen = of_made(bench, is_explosion, "model.layers.0.mlp.up_proj.weight", |values| {
        values.iter_mut().for_each(|value| *value *= 1e12);
    })?;
    match seen {
        AnomalyKind::Explosion { max, .. } => {
            passed(format!("none in {}; in a test layer: up to {max:.1e}", steps(ran)))
        }
        _ => failed("a test layer that explodes was not reported"),
    }
}

pub(crate) fn repetition(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let Some(written) = &ran.trace.generated else {
        return absent("the model generates no tokens");
    };
    let is_repetition = |kind: &AnomalyKind| matches!(kind, AnomalyKind::Repetition { .. });
    let repeats = ran.anomaly(is_repetition);
    if let Some(AnomalyKind::Repetition { phrase, times }) = repeats.map(|anomaly| &anomaly.kind) {
        return failed(format!("tokens {phrase:?} were generated {times} times in a row"));
    }
    let count = counted(written.added.len() as u64, "token");
    if written.added.len() < REPETITION {
        return absent(format!("{count} generated, and a repetition takes {REPETITION}"));
    }
    let made = made_run(bench, &Made::repeating(), REPETITION)?;
    let found = kinds(&made).iter().any(is_repetition);
    ensure(found, format!("a test model generates {:?}, not reported", added(&made)))?;
    passed(format!(
        "{count} generated, and no phrase more than five times in a row; a test model that repeats \
         a token is found"
    ))
}

pub(crate) fn silence(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    if !ran.transcribes {
        return absent("the model does not transcribe audio");
    }
    let mut trace = match ran.on_silence(bench) {
        Ok(trace) => trace,
        Err(not_run) => return not_run.judgement(),
    };
    let words_in = |trace: &Trace| {
        kinds(trace).into_iter().find_map(|kind| match kind {
            AnomalyKind::WordsInSilence { text } => Some(text),
            _ => None,
        })
    };
    if let Some(text) = words_in(&trace) {
        return failed(format!("a second of silence became \"{}\"", text.trim()));
    }
    let mut written = Written::default();
    written.text = Some("words".to_owned());
    trace.generated = Some(written);
    ensure(words_in(&trace).is_some(), "words in the same silence would not be reported")?;
    passed("a second of silence became no words; with words inserted, the same run is reported")
}

pub(crate) fn noise(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let mut trace = match ran.on_noise(bench) {
        None => return absent("the model accepts neither audio nor images"),
        Some(Err(not_run)) => return not_run.judgement(),
        Some(Ok(trace)) => trace,
    };
    if trace.classes().is_none() {
        return absent("the model does not classify");
    }
    if !trace.is_of_noise() {
        return absent("the model's preprocessing removes the noise");
    }
    let sure = |trace: &Trace| {
        kinds(trace).into_iter().find_map(|kind| match kind {
            AnomalyKind::ConfidentOnNoise { class, probability } => Some((class, probability)),
            _ => None,
        })
    };
    if let Some((class, probability)) = sure(&trace) {
        return failed(format!("noise is '{class}' by {probability:.3}"));
    }
    let classes = trace.predictions.iter_mut().filter(|found| found.position.is_none());
    classes.flat_map(|found| found.top.first_mut()).for_each(|first| first.probability = 0.99);
    ensure(sure(&trace).is_some(), "a confident class for the same noise would not be reported")?;
    passed(
        "noise gets no answer with a probability above 0.9; with one of 0.99 put in, the same run \
         is found",
    )
}

pub(crate) fn context(bench: &Bench<'_>) -> Judgement {
    let ran = ran!(bench);
    if ran.kind != InputKind::Text {
        return absent("the model accepts no text by itself");
    }
    let Some(context) = bench.facts().context() else {
        return absent("the model does not state its context length");
    };
    // The number comes from the model's file.
    let size = size_of::<i64>() as u64;
    let most = usize::try_from(bench.subject.max_memory / size).unwrap_or(usize::MAX);
    let Some(count) = context.checked_add(1).filter(|count| *count <= most) else {
        return absent(format!("a text beyond a context of {context} exceeds the memory limit"));
    };
    let options = TraceOptions::new(bench.run_options());
    let subject = apr_trace::Subject { source: bench.source(), facts: bench.facts() };
    let payload = Payload::Tokens(vec![1; count]);
    match apr_trace::trace(subject, &payload, &options, bench.host(), None) {
        Err(RunError::Request { message, remedy: Some(Remedy::Truncate) }) => {
            passed(format!("{} given: {message}", counted(count as u64, "token")))
        }
        Err(error) => failed(format!("{count} tokens given: {error}")),
        Ok(_) => failed(format!("{count} tokens were read, the context has {context}")),
    }
}

pub(crate) fn golden(_: &Bench<'_>) -> Judgement {
    absent(
        "this program has no traces of transformers to compare with; `cargo test qa_100` compares \
         those of fixtures/golden_traces",
    )
}
