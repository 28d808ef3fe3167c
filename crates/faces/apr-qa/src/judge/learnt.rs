//! Points 101, 102 and 104: what the model learnt.

use apr_core::counted;
use apr_quality::{LayerTrials, PassageScore, Subject};
use apr_run::{InputKind, RunResult, with_runner};

use crate::bench::Bench;
use crate::judgement::{Judgement, absent, failed, passed};
use crate::ran::{NotRun, Ran};

/// Nats of a token that the order of a text saves at least.
const GAIN: f64 = 0.5;
/// Nats of a token that a change of the layers of a sound model saves at most.
const SAVED: f64 = 0.15;
/// Nats of a sentence that a change of the layers of a sound model saves at most, and the largest
/// share of its loss.
///
/// The bound is about twice the most that a change saves in trained models: 0.043 of 0.05 nats in
/// all-mpnet-base-v2, and 0.030 of 0.05 in all-MiniLM-L6-v2.
const SAVED_OF_SENTENCE: (f64, f64) = (0.1, 0.5);
/// Sentences of which the meaning has to be found, of eight.
const MEANINGS: usize = 6;

/// Measures the model. Returns the reason if the model can't be run.
fn measured<T>(
    bench: &Bench<'_>,
    measure: impl FnOnce(&Subject<'_>) -> RunResult<T>,
) -> Result<T, NotRun> {
    with_runner(bench.source(), bench.facts(), &bench.run_options(), bench.host(), |runner| {
        Ok(measure(&Subject::of(runner)?)?)
    })
}

/// Evaluates to the run of the model.
///
/// Returns a judgement from the function if the model does not read or write text, or its values
/// are not finite.
macro_rules! read_text {
    ($bench:expr) => {{
        let ran = match $bench.ran() {
            Ok(ran) => ran,
            Err(not_run) => return not_run.judgement(),
        };
        if ran.kind != InputKind::Text && !ran.transcribes {
            return absent("the model accepts no text");
        }
        if let Some(text) = ran.not_finite() {
            return absent(format!("{text}, so nothing after them can be judged"));
        }
        ran
    }};
}

pub(crate) fn passages(bench: &Bench<'_>) -> Judgement {
    if !continues_text(read_text!(bench)) {
        return absent("the model does not generate text");
    }
    let scores = measured(bench, |model| apr_quality::passages(model, GAIN));
    let scores = match scores {
        Ok(scores) => scores,
        Err(not_run) => return not_run.judgement(),
    };
    // The one that is learnt was the last to be read.
    let learnt = scores.last().filter(|score| score.is_learnt(GAIN));
    let gains = |one: &&PassageScore, other: &&PassageScore| one.gain().total_cmp(&other.gain());
    let Some(best) = learnt.or_else(|| scores.iter().max_by(gains)) else {
        return absent("the model's tokenizer cannot encode the built-in texts");
    };
    let PassageScore { name, scored, loss, shuffled, guess, .. } = best;
    let seen = format!(
        "{name}: {loss:.2} nats per token over {scored}, {shuffled:.2} with the tokens in another \
         order, {guess:.2} by guessing"
    );
    if best.is_learnt(GAIN) {
        return passed(seen);
    }
    failed(format!("{}; {seen}", not_learnt(best, scores.len())))
}

/// Returns the condition that the best of `count` texts does not meet.
fn not_learnt(best: &PassageScore, count: usize) -> String {
    let texts = counted(count as u64, "built-in text");
    if best.gain() >= GAIN && best.loss >= best.guess {
        return format!("the best predicted of {texts} is less likely than by guessing");
    }
    if best.gain() >= GAIN {
        return format!(
            "{:.2} nats per byte in the best of {texts}; an undamaged model has at most {}",
            best.per_byte(),
            best.most_per_byte()
        );
    }
    format!(
        "the order of the tokens saves {:.2} nats per token in the best of {texts}; a model that \
         learnt a language saves {GAIN}",
        best.gain()
    )
}

/// Returns `true` if the model predicts the next token of a text: a language model, or a decoder
/// that writes what it hears.
fn continues_text(ran: &Ran) -> bool {
    ran.trace.generated.is_some() || ran.transcribes
}

pub(crate) fn blocks(bench: &Bench<'_>) -> Judgement {
    let is_of_text = continues_text(read_text!(bench));
    let trials = measured(bench, |model| match is_of_text {
        true => apr_quality::layer_trials(model, GAIN),
        false => apr_quality::sentence_trials(model),
    });
    let trials = match trials {
        Ok(Some(trials)) => trials,
        Ok(None) if is_of_text => {
            return absent("the model has no layers, or did not learn a built-in text");
        }
        Ok(None) => return absent("the model neither generates nor embeds text"),
        Err(not_run) => return not_run.judgement(),
    };
    let LayerTrials { loss, tried, of, ref best, .. } = trials;
    let gain = trials.gain();
    let (least, share) = if is_of_text { (SAVED, 0.0) } else { SAVED_OF_SENTENCE };
    let unit = if is_of_text { "token" } else { "sentence" };
    if gain >= least && gain >= share * loss {
        return failed(format!(
            "{}, the model saves {gain:.2} of {loss:.2} nats per {unit} ({tried} of {of} changes \
             tried)",
            best.0
        ));
    }
    passed(format!(
        "{tried} of {of} changes of layers tried; none saves {least} of {loss:.2} nats per {unit}; \
         the best: {gain:+.3} {}",
        best.0
    ))
}

pub(crate) fn meanings(bench: &Bench<'_>) -> Judgement {
    read_text!(bench);
    let score = match measured(bench, apr_quality::meanings) {
        Ok(Some(score)) => score,
        Ok(None) => return absent("the model does not embed text"),
        Err(not_run) => return not_run.judgement(),
    };
    let seen = format!(
        "{} of {} sentences are nearer to one of their meaning than to one of their words",
        score.right, score.of
    );
    if score.right >= MEANINGS { passed(seen) } else { failed(seen) }
}
