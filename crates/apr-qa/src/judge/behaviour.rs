//! Points 36, 39, 43 to 47, 49 and 100: what the model computes.

use apr_core::counted;
use apr_run::{InputKind, Remedy, RunError};
use apr_trace::{AnomalyKind, Payload, TraceOptions, anomalies};

use crate::made::Llama;

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};

/// Anomalies of the made model with a changed weight.
fn of_made(
    bench: &Bench<'_>,
    name: &str,
    change: impl FnOnce(&mut [f32]),
) -> Result<Vec<AnomalyKind>, Fault> {
    let folder = bench.folder()?;
    Llama::new().with(name, |weights| change(&mut weights.values)).write(&folder)?;
    let mut options = TraceOptions::new(bench.run_options());
    options.payload = true;
    let payload = Payload::Tokens(vec![3, 14, 15, 9, 26, 5]);
    let trace = apr::Model::open(&folder)?.trace(&payload, &options, |_, _| {})?;
    Ok(anomalies(&trace).anomalies.into_iter().map(|anomaly| anomaly.kind).collect())
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

/// The same of a run whose values are all finite.
macro_rules! finite {
    ($bench:expr) => {{
        let ran = ran!($bench);
        if let Some(text) = ran.not_finite() {
            return absent(format!("{text}, so nothing behind them can be judged"));
        }
        ran
    }};
}

fn steps(ran: &crate::ran::Ran) -> String {
    let steps = counted(ran.found.steps as u64, "step");
    format!("{steps} of a run on {}", ran.trace.input.trim())
}

pub(crate) fn softmax(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
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
        0 => absent("the model has no attention whose probabilities are seen"),
        _ => {
            passed(format!("all {rows} rows of attention in {} sum to 1", counted(layers, "layer")))
        }
    }
}

pub(crate) fn tokens(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let Some(written) = &ran.trace.generated else {
        return absent("the model generates no tokens");
    };
    let Some(size) = bench.facts().vocabulary() else {
        return absent("the model does not say how large its vocabulary is");
    };
    let beyond = |id: &&i64| usize::try_from(**id).map_or(true, |id| id >= size);
    match written.added.iter().find(beyond) {
        Some(id) => failed(format!("token {id} was generated, and the vocabulary has {size}")),
        None => {
            let most = written.added.iter().max().copied().unwrap_or_default();
            let count = counted(written.added.len() as u64, "token");
            passed(format!("{count} generated, ids up to {most}; the vocabulary has {size}"))
        }
    }
}

pub(crate) fn dead_neurons(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let dead = ran.anomaly(|kind| matches!(kind, AnomalyKind::DeadNeurons { .. }));
    if let Some((anomaly, AnomalyKind::DeadNeurons { dead, of, inputs })) =
        dead.map(|anomaly| (anomaly, &anomaly.kind))
    {
        let path = &anomaly.path;
        return failed(format!("{dead} of {of} outputs of {path} are 0 for {inputs} positions"));
    }
    let seen = of_made(bench, "model.layers.0.mlp.down_proj.weight", |values| {
        let half = values.len() / 2;
        values[..half].fill(0.0);
    })?;
    let is_dead = |kind: &&AnomalyKind| matches!(kind, AnomalyKind::DeadNeurons { .. });
    ensure(seen.iter().any(|kind| is_dead(&kind)), "half of a made layer is dead, unnoticed")?;
    let limits = ran.found.not_judged.iter().filter(|limit| limit.starts_with("dead neurons"));
    let limits: Vec<String> = limits.map(|limit| format!("; not judged: {limit}")).collect();
    let limits = limits.concat();
    passed(format!("none in {}{limits}; half of a made layer is found", steps(ran)))
}

pub(crate) fn explosions(bench: &Bench<'_>) -> Judgement {
    let ran = ran!(bench);
    if let Some(text) = ran.not_finite() {
        return failed(text);
    }
    let explosion = ran.anomaly(|kind| matches!(kind, AnomalyKind::Explosion { .. }));
    if let Some((anomaly, AnomalyKind::Explosion { max, usual, .. })) =
        explosion.map(|anomaly| (anomaly, &anomaly.kind))
    {
        let path = &anomaly.path;
        return failed(format!("values of {path} reach {max:.3e}, where {usual:.3e} is usual"));
    }
    let seen = of_made(bench, "model.layers.0.mlp.up_proj.weight", |values| {
        values.iter_mut().for_each(|value| *value *= 1e12);
    })?;
    let largest = seen.iter().find_map(|kind| match kind {
        AnomalyKind::Explosion { max, .. } => Some(*max),
        _ => None,
    });
    match largest {
        Some(max) => passed(format!("none in {}; in a made layer: up to {max:.1e}", steps(ran))),
        None => failed("a made layer that explodes goes unnoticed"),
    }
}

pub(crate) fn repetition(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let Some(written) = &ran.trace.generated else {
        return absent("the model generates no tokens");
    };
    let repeats = ran.anomaly(|kind| matches!(kind, AnomalyKind::Repetition { .. }));
    if let Some(AnomalyKind::Repetition { phrase, times }) = repeats.map(|anomaly| &anomaly.kind) {
        return failed(format!("tokens {phrase:?} were generated {times} times in a row"));
    }
    let count = counted(written.added.len() as u64, "token");
    passed(format!("{count} generated, and no phrase more than five times in a row"))
}

pub(crate) fn silence(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    if !ran.transcribes {
        return absent("the model transcribes no sound");
    }
    let found = match ran.on_silence(bench) {
        Ok(found) => found,
        Err(not_run) => return not_run.judgement(),
    };
    let words = found.anomalies.into_iter().find_map(|anomaly| match anomaly.kind {
        AnomalyKind::WordsInSilence { text } => Some(text),
        _ => None,
    });
    match words {
        Some(text) => failed(format!("a second of silence became \"{}\"", text.trim())),
        None => passed("a second of silence became no words"),
    }
}

pub(crate) fn noise(bench: &Bench<'_>) -> Judgement {
    let ran = finite!(bench);
    let trace = match ran.on_noise(bench) {
        None => return absent("the model takes neither sounds nor pictures"),
        Some(Err(not_run)) => return not_run.judgement(),
        Some(Ok(trace)) => trace,
    };
    if trace.classes().is_none() {
        return absent("the model gives no classes, of which one could be sure");
    }
    if !trace.is_of_noise() {
        return absent("the noise is none after the model's preprocessing");
    }
    let sure = anomalies(&trace).anomalies.into_iter().find_map(|anomaly| match anomaly.kind {
        AnomalyKind::ConfidentOnNoise { class, probability } => Some((class, probability)),
        _ => None,
    });
    match sure {
        Some((class, probability)) => failed(format!("noise is '{class}' by {probability:.3}")),
        None => passed("noise gets no answer with a probability above 0.9"),
    }
}

pub(crate) fn context(bench: &Bench<'_>) -> Judgement {
    let ran = ran!(bench);
    if ran.kind != InputKind::Text {
        return absent("the model reads no text by itself");
    }
    let Some(context) = bench.facts().context() else {
        return absent("the model does not say how much text it takes");
    };
    let options = TraceOptions::new(bench.run_options());
    let subject = apr_trace::Subject { source: bench.source(), facts: bench.facts() };
    let payload = Payload::Tokens(vec![1; context + 1]);
    match apr_trace::trace(subject, &payload, &options, bench.host(), None) {
        Err(RunError::Request { message, remedy: Some(Remedy::Truncate) }) => {
            passed(format!("{} given: {message}", counted(context as u64 + 1, "token")))
        }
        Err(error) => failed(format!("{} tokens given: {error}", context + 1)),
        Ok(_) => failed(format!("{} tokens were read, the context has {context}", context + 1)),
    }
}

pub(crate) fn golden(_: &Bench<'_>) -> Judgement {
    absent(
        "no trace of another program is known of this model; those of fixtures/golden_traces are \
         compared by the tests",
    )
}
