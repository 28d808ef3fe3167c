//! What a model answers to an input.

use apr_graph::Meaning;
use apr_registry::Result;
use apr_run::{
    AudioEncoder, AudioTask, Facts, GenerateOptions, GenerationOptions, Generator, ImageEncoder,
    ImageTask, Label, Prompt, QuestionAnswering, RunError, RunResult, Runner, TextEncoder,
    TextTask, Tokenizer, Transcriber, TranscriptionOptions,
};

use super::{
    Canary, CanaryCase, CanaryInput, CanaryModel, Expected, LabelScore, Load, Numbers,
    TokenProbability, Tolerance,
};
use crate::samples::Sample;
use crate::subject::{Subject, floats};

/// Tokens that are recorded at the first position.
const FIRST: usize = 5;

/// Records a model's answers to named inputs, with the tolerance for later answers.
///
/// Generation is greedy and limited to `max_tokens`.
///
/// # Errors
/// E001 for an answer that can't be a reference because it contains NaN or is too long. Also the
/// errors of loading the files and running the model.
pub fn record(
    runner: &Runner<'_>,
    file: &str,
    inputs: Vec<(String, CanaryInput)>,
    max_tokens: Option<usize>,
    tolerance: Tolerance,
    load: &Load<'_>,
) -> RunResult<Canary> {
    let tokenizer = runner.tokenizer()?;
    let mut model = Respondent::of(runner);
    let mut cases = Vec::with_capacity(inputs.len());
    for (name, input) in inputs {
        let sample = input.sample(&name, load)?;
        let input_tokens = tokens_of(tokenizer.as_ref(), &input)?;
        let expected = model.answer(&input, &sample, max_tokens)?;
        let original = None;
        cases.push(CanaryCase {
            name,
            input,
            input_tokens,
            max_tokens,
            original,
            expected,
            tolerance,
        });
    }
    let canary = Canary::new(CanaryModel::of(file, runner.facts()), cases);
    canary.check()?;
    Ok(canary)
}

/// Returns the tokens of a text, without those that a template or the model adds; none for other
/// inputs, and without a tokenizer.
pub(super) fn tokens_of(
    tokenizer: Option<&Tokenizer<'_>>,
    input: &CanaryInput,
) -> RunResult<Vec<i64>> {
    match (tokenizer, input) {
        (Some(tokenizer), CanaryInput::Text { prompt, .. }) => Ok(tokenizer.encode(prompt, false)?),
        _ => Ok(Vec::new()),
    }
}

impl CanaryModel {
    /// Creates the description from a model's configuration.
    pub(crate) fn of(file: &str, facts: &Facts) -> Self {
        let text = |key: &str| facts.config(key)?.as_str().map(str::to_owned);
        Self {
            file: file.to_owned(),
            model_type: text("model_type"),
            vocab_size: facts.vocabulary().map(|size| size as u64),
        }
    }
}

/// A model that answers inputs as `apr run` does. It is prepared for the first input, and again
/// only where another one is of another form or has another maximum number of tokens.
pub(super) struct Respondent<'r> {
    runner: Runner<'r>,
    task: Option<(Form, Task<'r>)>,
}

/// Form of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Tokens,
    Audio,
    Image,
    Arrays,
}

/// A model, prepared for inputs of one form.
enum Task<'r> {
    /// Generator with the maximum number of tokens.
    Generation(Box<Generator<'r>>, Option<usize>),
    /// Transcriber with the maximum number of tokens.
    Transcription(Box<Transcriber<'r>>, Option<usize>),
    Audio(Box<AudioEncoder<'r>>),
    Image(Box<ImageEncoder<'r>>),
    Text(Box<TextEncoder<'r>>),
    /// Question answering. The answerer is prepared later, with the text that contains the answer.
    Questions,
    Arrays(Box<Subject<'r>>),
}

impl Form {
    fn of(sample: &Sample) -> Self {
        match sample {
            Sample { arrays, .. } if !arrays.is_empty() => Self::Arrays,
            Sample { audio: Some(_), .. } => Self::Audio,
            Sample { image: Some(_), .. } => Self::Image,
            Sample { text: Some(_), .. } => Self::Text,
            Sample { tokens, .. } if !tokens.is_empty() => Self::Tokens,
            _ => Self::Arrays,
        }
    }
}

impl<'r> Respondent<'r> {
    pub(super) fn of(runner: &Runner<'r>) -> Self {
        Self { runner: *runner, task: None }
    }

    /// The answer to one input.
    pub(super) fn answer(
        &mut self,
        input: &CanaryInput,
        sample: &Sample,
        max_tokens: Option<usize>,
    ) -> RunResult<Expected> {
        let form = Form::of(sample);
        let fits = |(known, task): &(Form, Task<'r>)| task.fits(*known, form, max_tokens);
        // What does not fit is dropped before its successor takes memory.
        let task = match self.task.take().filter(fits) {
            Some((_, task)) => task,
            None => Task::of(&self.runner, form, max_tokens)?,
        };
        let (_, task) = self.task.insert((form, task));
        if let Some(answer) = task.answer(&self.runner, input, sample)? {
            return Ok(answer);
        }
        self.task = None;
        let subject = Subject::of(&self.runner)?;
        let made = arrays(&subject, sample);
        self.task = Some((form, Task::Arrays(Box::new(subject))));
        made
    }
}

impl<'r> Task<'r> {
    fn of(runner: &Runner<'r>, form: Form, max_tokens: Option<usize>) -> RunResult<Self> {
        let greedy = GenerationOptions { temperature: Some(0.0), max_tokens, ..Default::default() };
        let is_whole = runner.options().part.is_none();
        if is_whole && runner.has_decoder() && form != Form::Arrays {
            return match form {
                Form::Audio if !Transcriber::fits(runner) => {
                    Err(RunError::request("the model does not take audio"))
                }
                Form::Audio => {
                    let options = TranscriptionOptions { sampling: greedy, ..Default::default() };
                    let transcriber = Box::new(Transcriber::of(runner, options)?);
                    Ok(Self::Transcription(transcriber, max_tokens))
                }
                _ => {
                    let generator = Box::new(Generator::of(runner, options(greedy))?);
                    Ok(Self::Generation(generator, max_tokens))
                }
            };
        }

        if is_whole && runner.parts().len() != 1 {
            return Ok(Self::Arrays(Box::new(Subject::of(runner)?)));
        }
        let part = runner.prepare()?;
        let reads = part.takes(Meaning::TokenIds);
        Ok(match form {
            Form::Audio if part.takes_waveforms() => {
                Self::Audio(Box::new(AudioEncoder::of_part(part)?))
            }
            Form::Image => Self::Image(Box::new(ImageEncoder::of_part(part, &[])?)),
            Form::Text | Form::Tokens if reads && part.generates() => {
                let generator = Box::new(Generator::of_part(part, options(greedy))?);
                Self::Generation(generator, max_tokens)
            }
            Form::Text if reads && part.answers_questions() => Self::Questions,
            Form::Text if reads => Self::Text(Box::new(TextEncoder::of_part(part)?)),
            _ => Self::Arrays(Box::new(Subject::of_part(part)?)),
        })
    }

    /// Returns `true` if a task for inputs of the form `known` also serves `form` and `max_tokens`.
    fn fits(&self, known: Form, form: Form, max_tokens: Option<usize>) -> bool {
        match self {
            Self::Generation(_, most) => {
                *most == max_tokens && matches!(form, Form::Text | Form::Tokens)
            }
            Self::Transcription(_, most) => *most == max_tokens && form == known,
            _ => form == known,
        }
    }

    /// Answers an input. Returns `None` if only the model's raw outputs can be recorded.
    fn answer(
        &mut self,
        runner: &Runner<'_>,
        input: &CanaryInput,
        sample: &Sample,
    ) -> RunResult<Option<Expected>> {
        let audio = || sample.audio.clone().unwrap_or_default();
        let text = sample.text.as_deref().unwrap_or_default();
        Ok(Some(match self {
            Self::Generation(generator, _) => completion(generator, input, sample)?,
            Self::Transcription(transcriber, _) => {
                let made = transcriber.transcribe(&sample.name, audio())?;
                Expected::Text { text: made.text, tokens: made.tokens, first: Vec::new() }
            }
            Self::Audio(encoder) => audio_task(encoder.read(&sample.name, audio())?.made)?,
            Self::Image(encoder) => {
                let image = sample.image.as_deref().unwrap_or_default();
                match encoder.read(&sample.name, image)?.made {
                    ImageTask::Classification { labels } => {
                        Expected::Labels { labels: scores(labels) }
                    }
                    ImageTask::Embedding { vector } => embedding(vector),
                    _ => return Ok(None),
                }
            }
            Self::Text(encoder) => text_task(encoder.read(text)?)?,
            Self::Questions => {
                let model = QuestionAnswering::of_part(runner.prepare()?, text)?;
                let best = model.answer(text)?.answers.into_iter().next();
                let text = best.map(|one| one.answer).unwrap_or_default();
                Expected::Text { text, tokens: Vec::new(), first: Vec::new() }
            }
            Self::Arrays(subject) => arrays(subject, sample)?,
        }))
    }
}

fn options(sampling: GenerationOptions) -> GenerateOptions {
    GenerateOptions { sampling, logprobs: Some(FIRST), ..Default::default() }
}

fn completion(
    generator: &mut Generator<'_>,
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

fn audio_task(made: AudioTask) -> RunResult<Expected> {
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

fn text_task(made: TextTask) -> RunResult<Expected> {
    Ok(match made {
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
fn arrays(subject: &Subject<'_>, sample: &Sample) -> RunResult<Expected> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use apr_arch::Families;
    use apr_registry::{ByteSource, Limits, SourceSet, open_folder};
    use apr_run::{NoHost, RunOptions, with_runner};
    use apr_source::Source;
    use apr_testkit::{CountingSource, locate};

    use super::*;

    /// tiny-llama, which counts what is read of it.
    struct Folder(BTreeMap<String, CountingSource<Vec<u8>>>);

    impl Folder {
        fn open() -> Self {
            let names = ["config.json", "model.safetensors", "tokenizer.json"];
            let file = |name: &str| {
                let bytes = fs::read(locate::fixture("tiny-llama").join(name)).unwrap();
                (name.to_owned(), CountingSource::new(bytes))
            };
            Self(names.map(file).into())
        }
    }

    impl SourceSet for Folder {
        fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
            let file = self.0.get(name).cloned();
            file.map(|file| Box::new(file) as _).ok_or_else(|| apr_registry::Error::format("none"))
        }

        fn list(&self) -> Result<Vec<String>> {
            Ok(self.0.keys().cloned().collect())
        }
    }

    /// Bytes of the weights that are read for these inputs, each with its maximum of tokens.
    fn read_for(inputs: &[(&CanaryInput, usize)]) -> u64 {
        let folder = Folder::open();
        let reader = open_folder(&folder, &Limits::default()).unwrap();
        let families = Families::builtin();
        let source = Source::new(&reader, &families);
        let facts = Facts::of(&reader).unwrap();
        let none = |_: &str| Err(apr_registry::Error::format("there are no files"));
        with_runner(&source, &facts, &RunOptions::default(), &NoHost, |runner| {
            let mut model = Respondent::of(runner);
            for (input, max_tokens) in inputs {
                let made = model.answer(input, &input.sample("one", &none)?, Some(*max_tokens))?;
                let Expected::Text { tokens, .. } = made else { panic!("{made:?}") };
                assert!(tokens.len() <= *max_tokens);
            }
            RunResult::Ok(folder.0["model.safetensors"].bytes_read())
        })
        .unwrap()
    }

    #[test]
    fn a_model_is_prepared_once_for_all_cases() {
        let tokens = CanaryInput::Tokens { ids: vec![1, 5, 20] };
        let text = CanaryInput::text("1+1=");
        let once = read_for(&[(&tokens, 2)]);
        assert_eq!(read_for(&[(&tokens, 2), (&text, 2), (&tokens, 2)]), once);
        assert!(
            read_for(&[(&text, 2), (&text, 3)]) > once,
            "another maximum is another generation"
        );
    }
}
