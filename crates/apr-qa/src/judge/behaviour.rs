//! Points 36, 39, 43 to 47, 49 and 100: what the model computes.

use apr_core::counted;
use apr_run::{InputKind, Remedy, RunError};
use apr_trace::{AnomalyKind, Payload, TraceOptions};

use crate::bench::Bench;
use crate::judgement::{Judgement, absent, failed, passed};

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
    let limits = ran.found.not_judged.iter().filter(|limit| limit.starts_with("dead neurons"));
    let limits: Vec<String> = limits.map(|limit| format!("; not judged: {limit}")).collect();
    passed(format!("none in {}{}", steps(ran), limits.concat()))
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
    passed(format!("none in {}", steps(ran)))
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
    let found = match ran.on_noise(bench) {
        None => return absent("the model takes neither sounds nor pictures"),
        Some(Err(not_run)) => return not_run.judgement(),
        Some(Ok(found)) => found,
    };
    let sure = found.anomalies.into_iter().find_map(|anomaly| match anomaly.kind {
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
