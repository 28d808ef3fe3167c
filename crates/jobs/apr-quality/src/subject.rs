//! A model under test, and its outputs for a sample.

use apr_core::Escaped;
use apr_graph::{Body, Meaning, ValueOrigin};
use apr_infer::{Tap, Tensor, Value};
use apr_registry::Error;
use apr_run::{
    AudioFeatures, ImageFeatures, InputKind, Prepared, Remedy, RunError, RunResult, Runner,
    SentenceHead, Tokenizer, assumed, inputs_of, known_inputs,
};

use crate::layers::{LayerTap, LayerValues, Layers};
use crate::samples::Sample;

/// Name of the decoder part that uses a KV cache, and computes the same as another part.
const WITH_PAST: &str = "decoder_with_past_model";

/// A model whose parts are ready to run one after the other.
pub struct Subject<'s> {
    runner: Runner<'s>,
    parts: Vec<Prepared<'s>>,
    layers: Vec<Layers>,
    tokenizer: Option<Tokenizer<'s>>,
    /// Pooling of a text's token states into its embedding, if the model defines it.
    head: Option<SentenceHead>,
}

/// Method of reading samples, which both models of a comparison share.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'r> {
    /// Pooling of a text's token states into its embedding.
    pub(crate) pooling: Option<&'r SentenceHead>,
    tokenizer: Option<&'r Tokenizer<'r>>,
    /// The token that a decoder behind an encoder begins with.
    decoder_start: Option<i64>,
    /// Maximum number of tokens in a text.
    context: usize,
}

impl Reading<'_> {
    /// Returns the reading for two models: A's values, or B's values if A does not define them.
    ///
    /// The context is the shorter of both.
    pub(crate) fn shared<'r>(a: &'r Subject<'_>, b: &'r Subject<'_>) -> Reading<'r> {
        let (a, b) = (a.reading(), b.reading());
        Reading {
            pooling: a.pooling.or(b.pooling),
            tokenizer: a.tokenizer.or(b.tokenizer),
            decoder_start: a.decoder_start.or(b.decoder_start),
            context: a.context.min(b.context),
        }
    }

    /// The tokens of a sample, as many as the model takes.
    pub(crate) fn ids(&self, sample: &Sample, is_decoder: bool) -> RunResult<Vec<i64>> {
        let mut ids = match (&sample.text, self.tokenizer) {
            (Some(text), Some(tokenizer)) => tokenizer.encode(text, !is_decoder)?,
            _ => sample.tokens.clone(),
        };
        if is_decoder && let Some(start) = self.decoder_start {
            ids.insert(0, start);
        }
        if ids.is_empty() {
            return Err(RunError::request(format!(
                "the model requires text, but the input {} does not contain text",
                Escaped::short(&sample.name)
            )));
        }
        ids.truncate(self.context);
        Ok(ids)
    }
}

/// Outputs of a model for a sample.
#[derive(Default)]
pub(crate) struct Made {
    pub(crate) outputs: Vec<Output>,
    pub(crate) layers: LayerValues,
}

/// An array that a model made.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// Name in the graph, prefixed with the part's name if there are several parts.
    pub(crate) name: String,
    pub(crate) meaning: Meaning,
    pub(crate) tensor: Tensor,
}

impl<'s> Subject<'s> {
    /// Prepares the part that [`RunOptions::part`](apr_run::RunOptions::part) names, or all.
    ///
    /// # Errors
    /// Those of [`Runner::prepared`], and what reading the tokenizer ends with.
    pub fn of(runner: &Runner<'s>) -> RunResult<Self> {
        let parts = match runner.options().part {
            Some(_) => vec![runner.prepare()?],
            None => {
                let parts = runner.parts().iter().filter(|part| part.name != WITH_PAST);
                parts.map(|part| runner.prepared(part)).collect::<RunResult<_>>()?
            }
        };
        Self::of_parts(*runner, parts)
    }

    /// One part alone.
    pub(crate) fn of_part(part: Prepared<'s>) -> RunResult<Self> {
        Self::of_parts(*part.runner(), vec![part])
    }

    fn of_parts(runner: Runner<'s>, parts: Vec<Prepared<'s>>) -> RunResult<Self> {
        let layers = |part: &Prepared<'s>| {
            let prefix = match parts.len() {
                1 => String::new(),
                _ => format!("{}/", part.name()),
            };
            Layers::of(part.graph(), &prefix)
        };
        let layers = parts.iter().map(layers).collect::<Result<_, _>>()?;
        let takes_tokens = parts.iter().any(|part| part.takes(Meaning::TokenIds));
        let tokenizer = if takes_tokens { runner.tokenizer()? } else { None };
        let sentence = runner.facts().sentence().filter(|_| parts.len() == 1 && takes_tokens);
        let head = sentence.map(|sentence| SentenceHead::new(&runner, sentence.clone()));
        Ok(Self { runner, parts, layers, tokenizer, head: head.transpose()? })
    }

    /// Returns the runner of the model.
    #[must_use]
    pub fn runner(&self) -> &Runner<'s> {
        &self.runner
    }

    /// Returns the parts of the model.
    #[must_use]
    pub fn parts(&self) -> &[Prepared<'s>] {
        &self.parts
    }

    /// Returns the tokenizer, or `None` if the model does not have one.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Tokenizer<'s>> {
        self.tokenizer.as_ref()
    }

    /// Returns descriptions of the inputs; empty if the inputs are arrays of unknown meaning.
    pub(crate) fn takes(&self) -> Vec<&'static str> {
        let kinds = [InputKind::Text, InputKind::Audio, InputKind::Image].into_iter();
        let taken = kinds.filter(|kind| self.parts.iter().any(|it| kind.fits(&it.graph().body)));
        taken.map(InputKind::name).collect()
    }

    /// Returns the model's own method of reading samples.
    pub(crate) fn reading(&self) -> Reading<'_> {
        let facts = self.runner.facts();
        Reading {
            pooling: self.head.as_ref(),
            tokenizer: self.tokenizer.as_ref(),
            decoder_start: facts.decoder_start(),
            context: facts.context().unwrap_or(usize::MAX),
        }
    }

    /// The outputs that [`made`](Self::made) returns, in its order.
    pub(crate) fn outputs(&self, pooling: Option<&SentenceHead>) -> Vec<(String, Meaning)> {
        let of_part = |part: &Prepared<'s>| {
            let wanted = wanted(&part.graph().body);
            let named = |(name, meaning)| (self.output_name(part, name, meaning, pooling), meaning);
            wanted.into_iter().map(named).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(of_part).collect()
    }

    /// Name of an output in reports.
    fn output_name(
        &self,
        part: &Prepared<'_>,
        name: &str,
        meaning: Meaning,
        pooling: Option<&SentenceHead>,
    ) -> String {
        match self.parts.len() {
            _ if pooling.is_some() && meaning == Meaning::HiddenStates => "embedding".to_owned(),
            1 => name.to_owned(),
            _ => format!("{}/{name}", part.name()),
        }
    }

    /// Runs the parts on a sample and returns the logits, or else states, or else all float
    /// outputs.
    ///
    /// With a pooling, the states of tokens become an embedding.
    pub(crate) fn made(&self, sample: &Sample, reading: Reading<'_>) -> RunResult<Made> {
        self.check_arrays(sample)?;
        let (mut made, mut states) = (Made::default(), None);
        // Both models of a comparison have their layers' values at once.
        let room = self.runner.options().max_memory / 4;
        for (part, layers) in self.parts.iter().zip(&self.layers) {
            let inputs = self.inputs(part, sample, reading, states.as_ref())?;
            let wanted = wanted(&part.graph().body);
            let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
            let left = room.saturating_sub(made.layers.bytes());
            let mut tap = LayerTap::new(layers, self.runner.host(), left);
            let values = part.run_watched(inputs, &names, &mut tap)?.outputs;
            made.layers.append(tap.values);
            for ((name, meaning), value) in wanted.into_iter().zip(values) {
                let mut tensor = value.tensor()?.clone();
                if matches!(meaning, Meaning::EncoderStates | Meaning::HiddenStates) {
                    states = Some(tensor.clone());
                }
                let name = self.output_name(part, name, meaning, reading.pooling);
                if let (Some(head), Meaning::HiddenStates) = (reading.pooling, meaning) {
                    let vector = head.vectors(&self.runner, tensor, 0)?.concat();
                    tensor = Tensor::new(vec![vector.len()], vector)?;
                }
                made.outputs.push(Output { name, meaning, tensor });
            }
        }
        Ok(made)
    }

    /// Refuses arrays that no part takes.
    fn check_arrays(&self, sample: &Sample) -> RunResult<()> {
        let bodies = || self.parts.iter().map(|part| &part.graph().body);
        let is_alone = sample.arrays.len() == 1;
        let is_taken =
            |name: Option<&str>| bodies().any(|body| input_for(body, name, is_alone).is_some());
        let names = sample.arrays.iter().map(|(name, _)| name.as_deref());
        let Some(name) = names.into_iter().find(|name| !is_taken(*name)) else { return Ok(()) };
        let array = name.map_or_else(
            || "the array without a name".to_owned(),
            |name| format!("the array '{}'", Escaped(name)),
        );
        let has = bodies().map(inputs_of).collect::<Vec<_>>().join("; ");
        let sample = Escaped(&sample.name);
        Err(RunError::request(format!("{sample}: {array} is for no input: {has}")))
    }

    fn inputs(
        &self,
        part: &Prepared<'_>,
        sample: &Sample,
        reading: Reading<'_>,
        states: Option<&Tensor>,
    ) -> RunResult<Vec<(String, Value)>> {
        let body = &part.graph().body;
        let takes = |what| part.takes(what);
        let mut inputs = given(body, sample)?;

        let is_decoder = takes(Meaning::EncoderStates);
        if takes(Meaning::TokenIds) && inputs.is_empty() {
            let ids = reading.ids(sample, is_decoder)?;
            inputs.extend(text_inputs(part, &ids, states)?);
        } else {
            inputs.extend(states_of(part, states));
        }

        if let Some(audio) = &sample.audio
            && (takes(Meaning::Mel) || part.takes_waveforms())
        {
            let features = AudioFeatures::of(&self.runner, body)?;
            for (name, value) in features.inputs(&sample.name, audio.clone())? {
                let value = first_window(body, &name, value)?;
                inputs.push((name, value));
            }
        }
        if let Some(image) = &sample.image
            && takes(Meaning::Pixels)
        {
            let features = ImageFeatures::of(&self.runner, body, &[])?;
            let known: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
            let pixels = features.inputs(&sample.name, image)?;
            inputs.extend(pixels.into_iter().filter(|(name, _)| !known.contains(name)));
        }
        completed(part, inputs)
    }

    /// Runs the parts on a sample, each watched by its tap.
    ///
    /// # Errors
    /// Those of [`Prepared::run_watched`], and [`RunError::Request`] for inputs that are missing.
    pub fn run_watched(&self, sample: &Sample, taps: &mut [&mut dyn Tap]) -> RunResult<()> {
        self.check_arrays(sample)?;
        let (reading, mut states) = (self.reading(), None);
        for (part, tap) in self.parts.iter().zip(taps) {
            let inputs = self.inputs(part, sample, reading, states.as_ref())?;
            let wanted = wanted(&part.graph().body);
            let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
            let values = part.run_watched(inputs, &names, &mut **tap)?.outputs;
            for ((_, meaning), value) in wanted.into_iter().zip(values) {
                if matches!(meaning, Meaning::EncoderStates | Meaning::HiddenStates) {
                    states = Some(value.tensor()?.clone());
                }
            }
        }
        Ok(())
    }

    /// Returns the states that the first part ends with for a sample, or `None` if it has none.
    pub(crate) fn encoded(&self, sample: &Sample) -> RunResult<Option<Tensor>> {
        let Some(part) = self.parts.first() else { return Ok(None) };
        states(part, self.inputs(part, sample, self.reading(), None)?)
    }

    /// Returns the embeddings of texts with equal numbers of tokens, by a part that can have other
    /// weights than the model's.
    ///
    /// Returns `None` if the model does not define an embedding.
    pub(crate) fn vectors(
        &self,
        part: &Prepared<'_>,
        rows: &[&[i64]],
    ) -> RunResult<Option<Vec<Vec<f32>>>> {
        match (&self.head, states(part, part.batch_inputs(rows)?)?) {
            (Some(head), Some(states)) => Ok(Some(head.vectors(&self.runner, states, 0)?)),
            _ => Ok(None),
        }
    }

    /// Runs the first part on tokens without changes to them.
    ///
    /// # Errors
    /// Returns the errors of [`Prepared::run_watched`], and [`RunError::Request`] for missing
    /// inputs.
    pub fn run_tokens(&self, ids: &[i64], tap: &mut dyn Tap) -> RunResult<()> {
        let Some(part) = self.parts.first() else { return Ok(()) };
        let body = &part.graph().body;
        let inputs = completed(part, known_inputs(body, ids)?)?;
        let wanted = wanted(body);
        let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
        part.run_watched(inputs, &names, tap)?;
        Ok(())
    }
}

/// Returns tokens as inputs of a part, with the states of an encoder if the part reads them.
pub(crate) fn text_inputs(
    part: &Prepared<'_>,
    ids: &[i64],
    states: Option<&Tensor>,
) -> RunResult<Vec<(String, Value)>> {
    let is_decoder = part.takes(Meaning::EncoderStates);
    // The mask of an encoder's states is as long as these.
    let is_own = |name: &str| !(is_decoder && name.starts_with("encoder_"));
    let tokens = known_inputs(&part.graph().body, ids)?;
    let tokens = tokens.into_iter().filter(|(name, _)| is_own(name));
    Ok(tokens.chain(states_of(part, states)).collect())
}

/// Returns the states of an encoder as an input of a part that reads them.
fn states_of(part: &Prepared<'_>, states: Option<&Tensor>) -> Option<(String, Value)> {
    let name = input_of(&part.graph().body, Meaning::EncoderStates)?;
    Some((name.to_owned(), states?.clone().into()))
}

/// Adds the inputs that follow from those given.
///
/// # Errors
/// [`RunError::Request`] where others are missing.
pub(crate) fn completed(
    part: &Prepared<'_>,
    mut inputs: Vec<(String, Value)>,
) -> RunResult<Vec<(String, Value)>> {
    let body = &part.graph().body;
    let is_given =
        |inputs: &[(String, Value)], name: &str| inputs.iter().any(|(given, _)| given == name);
    let needed = || {
        let values = body.inputs.iter().map(|id| body.value(*id));
        values.filter(|value| value.origin == ValueOrigin::Input).map(|value| value.name.as_str())
    };
    let missing: Vec<&str> = needed().filter(|name| !is_given(&inputs, name)).collect();
    let found = assumed(body, &inputs, &missing)?;
    inputs.extend(found.into_iter().map(|(input, value)| (input.name, value)));
    match needed().find(|name| !is_given(&inputs, name)) {
        Some(name) => {
            let message = format!("missing input '{}'", Escaped(name));
            Err(RunError::with_remedy(message, Remedy::Arrays))
        }
        None => Ok(inputs),
    }
}

/// The arrays of a sample that are inputs of a graph.
fn given(body: &Body, sample: &Sample) -> RunResult<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for (name, array) in &sample.arrays {
        if let Some(input) = input_for(body, name.as_deref(), sample.arrays.len() == 1) {
            let named = |error: Error| error.for_tensor(&input.name).in_file(&sample.name);
            found.push((input.name.clone(), array.value(&input.kind).map_err(named)?));
        }
    }
    Ok(found)
}

/// The input that an array is for: the one of its name, or the only one. An .npy file names no
/// array, and its reader calls it `array`.
fn input_for<'b>(
    body: &'b Body,
    name: Option<&str>,
    is_alone: bool,
) -> Option<&'b apr_graph::Value> {
    let inputs = || {
        let values = body.inputs.iter().map(|id| body.value(*id));
        values.filter(|value| value.origin == ValueOrigin::Input)
    };
    let named = inputs().find(|value| name == Some(&*value.name));
    let only = || inputs().next().filter(|_| inputs().count() == 1);
    let has_no_name = name.is_none() || is_alone && name == Some("array");
    named.or_else(|| only().filter(|_| has_no_name))
}

/// Returns the first part of a spectrogram that fits the graph's input.
fn first_window(body: &Body, name: &str, value: Value) -> RunResult<Value> {
    let input = body.inputs.iter().map(|id| body.value(*id)).find(|input| input.name == name);
    let input = input.filter(|input| input.meaning == Meaning::Mel);
    let most = input.and_then(|input| usize::try_from(input.shape()?.last()?.size()?).ok());
    let tensor = value.tensor()?;
    let (Some(most), [1, mels, frames]) = (most, tensor.shape()) else { return Ok(value) };
    if *frames <= most {
        return Ok(value);
    }
    let floats = tensor.floats()?;
    let rows = floats.chunks_exact(*frames).flat_map(|row| &row[..most]);
    Ok(Tensor::new(vec![1, *mels, most], rows.copied().collect::<Vec<f32>>())?.into())
}

fn input_of(body: &Body, what: Meaning) -> Option<&str> {
    let mut values = body.inputs.iter().map(|id| body.value(*id));
    values.find(|value| value.meaning == what).map(|value| value.name.as_str())
}

/// The outputs that are compared.
fn wanted(body: &Body) -> Vec<(&str, Meaning)> {
    let is_kept =
        |what| matches!(what, Meaning::PresentKey | Meaning::PresentValue | Meaning::PresentState);
    let outputs: Vec<_> = body
        .outputs
        .iter()
        .map(|id| body.value(*id))
        .filter(|value| !is_kept(value.meaning))
        .filter(|value| value.element().is_none_or(apr_graph::ElementType::is_float))
        .map(|value| (value.name.as_str(), value.meaning))
        .collect();
    let of = |what: &[Meaning]| {
        let found = outputs.iter().filter(|(_, meaning)| what.contains(meaning));
        found.copied().collect::<Vec<_>>()
    };

    let choices = [
        of(&[Meaning::Logits]),
        of(&[Meaning::HiddenStates, Meaning::EncoderStates]),
        of(&[Meaning::Pooled]),
    ];
    choices.into_iter().find(|choice| !choice.is_empty()).unwrap_or(outputs)
}

/// Runs a part and returns the states that it ends with, or `None` if it has no such output.
fn states(part: &Prepared<'_>, inputs: Vec<(String, Value)>) -> RunResult<Option<Tensor>> {
    let outputs = wanted(&part.graph().body);
    let is_states = |meaning| matches!(meaning, Meaning::EncoderStates | Meaning::HiddenStates);
    let Some((name, _)) = outputs.into_iter().find(|(_, meaning)| is_states(*meaning)) else {
        return Ok(None);
    };
    let values = part.run(inputs, &[name])?.outputs;
    Ok(values.first().map(Value::tensor).transpose()?.cloned())
}

/// The single-precision numbers of an output.
pub(crate) fn floats(output: &Output) -> RunResult<Vec<f32>> {
    Ok(output.tensor.floats().map_err(|error: Error| error.for_tensor(&output.name))?.into_owned())
}
