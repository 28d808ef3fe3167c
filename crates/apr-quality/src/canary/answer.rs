//! What a model answers to an input.

use apr_graph::Meaning;
use apr_registry::Result;
use apr_run::{
    AudioEncoder, AudioTask, Facts, GenerateOptions, GenerationOptions, Generator, ImageEncoder,
    ImageTask, Label, Prepared, Prompt, QuestionAnswering, RunError, RunResult, Runner,
    TextEncoder, TextTask, Transcriber, TranscriptionOptions,
};

use super::{
    Canary, CanaryCase, CanaryInput, CanaryModel, Expected, LabelScore, Load, Numbers,
    TokenProbability, Tolerance,
};
use crate::samples::Sample;
use crate::subject::{Subject, floats};

/// Tokens that are recorded at the first position.
const FIRST: usize = 5;

/// Records what a model answers to inputs, each with its name; generation is greedy, and has
/// `max_tokens` at most.
///
/// # Errors
/// E001 for an answer that is no reference, as it has NaN or is too long; what loading the files
/// and running the model end with.
pub fn record(
    runner: &Runner<'_>,
    file: &str,
    inputs: Vec<(String, CanaryInput)>,
    max_tokens: Option<usize>,
    load: &Load<'_>,
) -> RunResult<Canary> {
    let mut cases = Vec::with_capacity(inputs.len());
    for (name, input) in inputs {
        let sample = input.sample(&name, load)?;
        let expected = answer(runner, &input, sample, max_tokens)?;
        let tolerance = Tolerance::default();
        cases.push(CanaryCase { name, input, max_tokens, original: None, expected, tolerance });
    }
    let canary = Canary::new(CanaryModel::of(file, runner.facts()), cases);
    canary.check()?;
    Ok(canary)
}

impl CanaryModel {
    /// By a model's configuration.
    pub(crate) fn of(file: &str, facts: &Facts) -> Self {
        let text = |key: &str| facts.config(key)?.as_str().map(str::to_owned);
        Self {
            file: file.to_owned(),
            model_type: text("model_type"),
            vocab_size: facts.vocabulary().map(|size| size as u64),
        }
    }
}

/// The answer to one input, as `apr run` gives it.
pub(super) fn answer(
    runner: &Runner<'_>,
    input: &CanaryInput,
    sample: Sample,
    max_tokens: Option<usize>,
) -> RunResult<Expected> {
    let greedy = GenerationOptions { temperature: Some(0.0), max_tokens, ..Default::default() };
    if runner.options().part.is_none() && runner.has_decoder() && sample.arrays.is_empty() {
        return match sample.audio {
            Some(audio) => transcription(runner, &sample.name, audio, greedy),
            None => completion(Generator::of(runner, options(greedy))?, input, &sample),
        };
    }

    let part = match runner.parts() {
        [_] => runner.prepare()?,
        _ if runner.options().part.is_some() => runner.prepare()?,
        _ => return arrays(runner, &sample),
    };
    if let Some(audio) = sample.audio.clone() {
        return match part.takes_waveforms() {
            true => audio_task(part, &sample.name, audio),
            false => arrays(runner, &sample),
        };
    }
    if let Some(image) = &sample.image {
        let made = ImageEncoder::of_part(part, &[])?.read(&sample.name, image)?.made;
        return Ok(match made {
            ImageTask::Classification { labels } => Expected::Labels { labels: scores(labels) },
            ImageTask::Embedding { vector } => embedding(vector),
            _ => return arrays(runner, &sample),
        });
    }

    let has_text = sample.text.is_some() || !sample.tokens.is_empty();
    if !sample.arrays.is_empty() || !has_text || !part.takes(Meaning::TokenIds) {
        return arrays(runner, &sample);
    }
    if part.generates() {
        return completion(Generator::of_part(part, options(greedy))?, input, &sample);
    }
    match &sample.text {
        None => arrays(runner, &sample),
        Some(text) => text_task(part, text),
    }
}

fn options(sampling: GenerationOptions) -> GenerateOptions {
    GenerateOptions { sampling, logprobs: Some(FIRST), ..Default::default() }
}

fn completion(
    mut generator: Generator<'_>,
    input: &CanaryInput,
    sample: &Sample,
) -> RunResult<Expected> {
    let prompt = match (input, &sample.text) {
        (CanaryInput::Text { prompt, chat: true, system }, _) => {
            Prompt::Chat { system: system.as_deref(), message: prompt }
        }
        (_, Some(text)) => Prompt::Text(text),
        _ => Prompt::Tokens(&sample.tokens),
    };
    let mut written = String::new();
    let mut sink = |piece: &str| -> Result<()> {
        written.push_str(piece);
        Ok(())
    };
    let made = generator.generate(prompt, &mut sink)?;
    let first = made.logprobs.and_then(|all| all.into_iter().next());
    let first = first.map(|first| first.top).unwrap_or_default();
    Ok(Expected::Text {
        text: made.text.unwrap_or(written),
        tokens: made.added,
        first: first
            .into_iter()
            .filter(|one| one.logprob != f64::NEG_INFINITY)
            .map(|one| TokenProbability { id: one.id, logprob: one.logprob })
            .collect(),
    })
}

fn transcription(
    runner: &Runner<'_>,
    name: &str,
    audio: Vec<u8>,
    sampling: GenerationOptions,
) -> RunResult<Expected> {
    if !Transcriber::fits(runner) {
        return Err(RunError::request("the model takes no audio"));
    }
    let options = TranscriptionOptions { sampling, ..Default::default() };
    let made = Transcriber::of(runner, options)?.transcribe(name, audio)?;
    Ok(Expected::Text { text: made.text, tokens: made.tokens, first: Vec::new() })
}

fn audio_task(part: Prepared<'_>, name: &str, audio: Vec<u8>) -> RunResult<Expected> {
    let made = AudioEncoder::of_part(part)?.read(name, audio)?.made;
    Ok(match made {
        AudioTask::Transcription { text } => {
            Expected::Text { text, tokens: Vec::new(), first: Vec::new() }
        }
        AudioTask::Classification { labels } => Expected::Labels { labels: scores(labels) },
        AudioTask::Embedding { vector } => embedding(vector),
        AudioTask::SpeechDetection { probabilities, .. } => Expected::Arrays {
            arrays: vec![numbers("probabilities", vec![probabilities.len()], probabilities)],
        },
        _ => return Err(RunError::request("the model's answer to audio is of an unknown kind")),
    })
}

fn text_task(part: Prepared<'_>, text: &str) -> RunResult<Expected> {
    if part.answers_questions() {
        let made = QuestionAnswering::of_part(part, text)?.answer(text)?;
        let text = made.answers.into_iter().next().map(|one| one.answer).unwrap_or_default();
        return Ok(Expected::Text { text, tokens: Vec::new(), first: Vec::new() });
    }
    Ok(match TextEncoder::of_part(part)?.read(text)? {
        TextTask::Embedding { vector, .. } => embedding(vector),
        TextTask::Classification { labels } => Expected::Labels { labels: scores(labels) },
        TextTask::TokenLabels { tokens } => {
            Expected::Tokens { tokens: tokens.into_iter().map(|one| one.label.label).collect() }
        }
        TextTask::FillMask { gaps } => {
            let best = |gap: Vec<apr_run::MaskToken>| gap.into_iter().next().map(|one| one.token);
            Expected::Tokens { tokens: gaps.into_iter().filter_map(best).collect() }
        }
        _ => return Err(RunError::request("the model's answer to a text is of an unknown kind")),
    })
}

/// The outputs of the graph.
fn arrays(runner: &Runner<'_>, sample: &Sample) -> RunResult<Expected> {
    let subject = Subject::of(runner)?;
    let mut reading = subject.reading();
    reading.pooling = None;
    let made = subject.made(sample, reading)?.outputs;
    let array = |output: &crate::subject::Output| {
        Ok(numbers(&output.name, output.tensor.shape().to_vec(), floats(output)?))
    };
    Ok(Expected::Arrays { arrays: made.iter().map(array).collect::<RunResult<_>>()? })
}

fn numbers(name: &str, shape: Vec<usize>, values: Vec<f32>) -> Numbers {
    Numbers { name: name.to_owned(), shape, values }
}

fn embedding(vector: Vec<f32>) -> Expected {
    Expected::Arrays { arrays: vec![numbers("embedding", vec![vector.len()], vector)] }
}

fn scores(labels: Vec<Label>) -> Vec<LabelScore> {
    labels.into_iter().map(|one| LabelScore { label: one.label, score: one.score }).collect()
}
