//! A model that is ready to run, and its parts.

mod inputs;

use apr_arch::{FamilyModel, ImageText};
use apr_blocks::{GraphOptions, class_for};
use apr_core::Escaped;
use apr_graph::{Body, Graph, Meaning, Node, ValueId};
use apr_infer::{
    Arithmetic, CacheType, Engine, Flow, LanguageModel, Outcome, RunLimits, Session, Step, Tap,
    Tensor, Value,
};
use apr_ops::graph::{Runnable, with_graphs};
use apr_ops::tied::with_untied;
use apr_registry::{CheckpointReader, Error, IoCause};
use apr_source::Source;
use apr_source::sentence::PoolingMode;

pub use self::inputs::{InputKind, known_inputs, token_inputs};
use self::inputs::{all_inputs, known_batch};
use crate::error::{Remedy, RunError, RunResult};
use crate::facts::Facts;
use crate::host::Host;
use crate::recognised::{ENDS, PARTS, detects_speech};
use crate::tokens::Tokenizer;

/// The class of transformers whose head continues texts.
const GENERATES: &str = "CausalLM";

/// Options of a run, whatever its inputs are.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunOptions {
    /// Task of the head, such as `CausalLM` or `text-classification`. Default: the task in the
    /// configuration.
    pub task: Option<String>,
    /// `true` to use the graphs of the family, even if the file has one.
    pub family_graphs: bool,
    /// The part of a model that has several, such as `encoder_model`.
    pub part: Option<String>,
    /// Keys and values of earlier tokens are kept, so that a text is continued token by token.
    pub keeps_past: bool,
    /// Bytes of all values and weights in memory; 4 GiB by default.
    pub max_memory: u64,
    /// Steps of work for each run of a graph ([`apr_core::Work`]); by default as many as
    /// [`Session::run`] says.
    pub max_work: Option<u64>,
    /// Random seed; 0 by default.
    pub seed: u64,
    /// Leaves out the end of a text that is longer than the model's context, which is an error
    /// otherwise. A prompt to continue also leaves room for the answer: the requested maximum of
    /// tokens or a quarter of the context, and at most three quarters.
    pub truncate: bool,
    /// Pooling of token states to one vector. Default: the model's pooling, or else the mean.
    pub pooling: Option<PoolingMode>,
    /// The prompt of the model that is put before each text that becomes a vector, by its name; the
    /// model's default one, if it has one, where this is `None`.
    pub prompt_name: Option<String>,
    /// Number of elements of a vector that are kept, for models whose first elements contain most
    /// information (Matryoshka). Default: all.
    pub dimensions: Option<usize>,
    /// `true` to allow "no answer" as an answer to a question, as models of SQuAD 2.0 do.
    pub no_answer: bool,
    /// Number of labels, tokens or answers to return; 5 by default.
    pub top: usize,
    /// Arithmetic for weights in blocks. Default: exact.
    pub arithmetic: Arithmetic,
    /// Storage type of the keys and values of earlier tokens. Default: single precision. In
    /// decoders that follow an encoder, it applies to the decoder's own tokens.
    pub cache_type: CacheType,
    /// `true` to accept images in prompts.
    ///
    /// The graphs then include the model's part for images, and the decoder takes its vectors
    /// ([`Generator::with_images`](crate::Generator::with_images)).
    pub images: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            task: None,
            family_graphs: false,
            part: None,
            keeps_past: true,
            max_memory: 4 << 30,
            max_work: None,
            seed: 0,
            truncate: false,
            pooling: None,
            prompt_name: None,
            dimensions: None,
            no_answer: false,
            top: 5,
            arithmetic: Arithmetic::Exact,
            cache_type: CacheType::F32,
            images: false,
        }
    }
}

/// Calls `then` with a model that is ready to run. The first read of each tensor compares it with
/// the digest in its file, unless the source is set [otherwise](Source::verifying).
///
/// # Errors
/// E003 if the model has no graph and its family is unknown, E004 when a changed tensor is read.
/// Otherwise, returns the errors of reading its files and of `then`.
pub fn with_runner<R, E: From<Error>>(
    source: &Source<'_>,
    facts: &Facts,
    options: &RunOptions,
    host: &dyn Host,
    then: impl FnOnce(&Runner<'_>) -> Result<R, E>,
) -> Result<R, E> {
    match source.verified() {
        Some(verified) => with_weights(&source.read_by(&verified), facts, options, host, then),
        None => with_weights(source, facts, options, host, then),
    }
}

/// Returns the options of a model's graphs.
pub(crate) fn graph_options(facts: &Facts, options: &RunOptions) -> GraphOptions {
    let own_task =
        || facts.task().filter(|_| options.family_graphs || facts.module_task().is_some());
    GraphOptions {
        past: options.keeps_past,
        task: options.task.clone().or_else(own_task),
        is_own_task: options.task.is_none(),
        images: options.images,
        ..GraphOptions::default()
    }
}

/// Calls `then` like [`with_runner`], with weights that are used as they are read.
fn with_weights<R, E: From<Error>>(
    source: &Source<'_>,
    facts: &Facts,
    options: &RunOptions,
    host: &dyn Host,
    then: impl FnOnce(&Runner<'_>) -> Result<R, E>,
) -> Result<R, E> {
    source.reader().container().check_shards()?;
    let graph_options = graph_options(facts, options);
    let (graph_options, warnings) = with_untied(source, &graph_options)?;
    let opened = source.reader().warnings();
    let unreadable = facts.unreadable.iter().filter(|warning| !opened.contains(warning));
    unreadable.chain(&warnings).for_each(|warning| host.warn(warning, None));
    let family = source.family()?.filter(|_| options.images);
    let image_text = family.and_then(FamilyModel::image_text);
    with_graphs(source, &graph_options, |weights, parts| {
        let warnings = parts.iter().flat_map(|part| &part.warnings);
        warnings.for_each(|warning| host.warn(warning, None));
        let reader = source.reader();
        then(&Runner { host, options, reader, weights, parts, facts, image_text })
    })
}

/// A model with everything that its tasks need.
#[derive(Clone, Copy)]
pub struct Runner<'r> {
    pub(crate) host: &'r dyn Host,
    pub(crate) options: &'r RunOptions,
    /// The model as its file has it.
    pub(crate) reader: &'r dyn CheckpointReader,
    /// Tensors by the names that the graphs use.
    weights: &'r dyn CheckpointReader,
    parts: &'r [Runnable],
    pub(crate) facts: &'r Facts,
    /// Form of images in the model's prompts, if images were requested.
    pub(crate) image_text: Option<ImageText<'r>>,
}

impl<'r> Runner<'r> {
    /// Returns the graphs: one, or several if an encoder and a decoder run separately.
    #[must_use]
    pub fn parts(&self) -> &'r [Runnable] {
        self.parts
    }

    /// The model as its file has it.
    #[must_use]
    pub fn reader(&self) -> &'r dyn CheckpointReader {
        self.reader
    }

    /// Returns `true` if the model has an encoder, and a decoder that writes token by token.
    #[must_use]
    pub fn has_decoder(&self) -> bool {
        PARTS.iter().all(|name| self.parts.iter().any(|part| part.name == *name))
    }

    /// Returns the facts about the model.
    #[must_use]
    pub fn facts(&self) -> &'r Facts {
        self.facts
    }

    /// Returns the tensors by the names that the graphs use.
    #[must_use]
    pub fn weights(&self) -> &'r dyn CheckpointReader {
        self.weights
    }

    /// The surroundings of its runs.
    #[must_use]
    pub fn host(&self) -> &'r dyn Host {
        self.host
    }

    /// Returns the options of the run.
    #[must_use]
    pub fn options(&self) -> &'r RunOptions {
        self.options
    }

    /// The class of transformers that the head belongs to, without the family's name.
    pub(crate) fn task(&self) -> Option<String> {
        task_of(self.facts, self.options)
    }

    /// The part that [`RunOptions::part`] names, or the only one, ready to run.
    ///
    /// # Errors
    /// [`RunError::Request`] if the name is missing or unknown, otherwise the errors
    /// of [`Engine::prepare`].
    pub fn prepare(&self) -> RunResult<Prepared<'r>> {
        self.prepared(self.part()?)
    }

    /// The part that [`RunOptions::part`] names, or the only one.
    ///
    /// # Errors
    /// [`RunError::Request`] if the name is missing or unknown.
    pub fn part(&self) -> RunResult<&'r Runnable> {
        let names =
            || self.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ");
        match (self.options.part.as_deref(), self.parts) {
            (None, [part]) => Ok(part),
            (None, _) => Err(RunError::with_remedy(
                format!("the model has several parts: {}", names()),
                Remedy::Part,
            )),
            (Some(name), parts) => parts.iter().find(|part| part.name == name).ok_or_else(|| {
                let (name, names) = (Escaped(name), names());
                RunError::request(format!("unknown part '{name}'; the model has {names}"))
            }),
        }
    }

    /// The part that [`RunOptions::part`] names, or the first one that takes this kind of input.
    ///
    /// # Errors
    /// [`RunError::Request`] where there is none.
    pub fn part_taking(&self, kind: InputKind) -> RunResult<&'r Runnable> {
        if self.options.part.is_some() {
            return self.part();
        }
        self.parts
            .iter()
            .find(|part| kind.fits(&part.graph.body))
            .ok_or_else(|| RunError::request(format!("the model has no {} input", kind.name())))
    }

    /// A part, ready to run.
    ///
    /// # Errors
    /// Those of [`Engine::prepare`].
    pub fn prepared(&self, part: &'r Runnable) -> RunResult<Prepared<'r>> {
        self.prepared_with(part, self.weights)
    }

    /// A part with other weights of the same names and shapes, ready to run.
    ///
    /// # Errors
    /// Those of [`Engine::prepare`].
    pub fn prepared_with<'p>(
        &self,
        part: &'p Runnable,
        weights: &'p dyn CheckpointReader,
    ) -> RunResult<Prepared<'p>>
    where
        'r: 'p,
    {
        let mut limits = RunLimits::default();
        limits.max_memory = self.options.max_memory;
        limits.max_work = self.options.max_work;
        limits.seed = self.options.seed;
        limits.arithmetic = self.options.arithmetic;
        let session = Engine::prepare(&part.graph, weights, limits)?;
        Ok(Prepared { runner: *self, part, session })
    }

    /// Returns the model's tokenizer, or `None` if it has none.
    ///
    /// # Errors
    /// Returns the errors of [`Tokenizer::find`].
    pub fn tokenizer(&self) -> RunResult<Option<Tokenizer<'r>>> {
        Ok(Tokenizer::find(self.reader, self.host)?)
    }

    pub(crate) fn warn(&self, message: &str) {
        self.host.warn(message, None);
    }
}

/// Returns the class of the task in the options, or else the task of the model.
pub(crate) fn task_of(facts: &Facts, options: &RunOptions) -> Option<String> {
    let own = facts.task();
    let asked = options.task.as_deref().map(|task| class_for(task, own.as_deref()).into_owned());
    asked.or(own)
}

impl RunOptions {
    /// For texts that are read as a whole: no keys and values are kept.
    #[must_use]
    pub fn reading() -> Self {
        Self { keeps_past: false, ..Self::default() }
    }

    /// Returns `true` if the head generates text, so that keeping keys and values is worth it.
    #[must_use]
    pub fn generates(&self, facts: &Facts) -> bool {
        task_of(facts, self)
            .is_none_or(|task| task == GENERATES || task.ends_with("ConditionalGeneration"))
    }
}

/// A part of a model, ready to run any number of times.
pub struct Prepared<'p> {
    pub(crate) runner: Runner<'p>,
    part: &'p Runnable,
    pub(crate) session: Session<'p>,
}

impl<'p> Prepared<'p> {
    /// The part's name: `model`, `encoder_model`.
    #[must_use]
    pub fn name(&self) -> &'p str {
        &self.part.name
    }

    /// The model that it is a part of.
    #[must_use]
    pub fn runner(&self) -> &Runner<'p> {
        &self.runner
    }

    /// The part as the model has it.
    #[must_use]
    pub fn runnable(&self) -> &'p Runnable {
        self.part
    }

    /// Returns the graph of the part.
    #[must_use]
    pub fn graph(&self) -> &'p Graph {
        &self.part.graph
    }

    pub(crate) fn body(&self) -> &'p Body {
        &self.part.graph.body
    }

    /// The graph with its weights.
    #[must_use]
    pub fn session(&self) -> &Session<'p> {
        &self.session
    }

    /// Returns `true` if an input has this meaning.
    #[must_use]
    pub fn takes(&self, meaning: Meaning) -> bool {
        self.input(meaning).is_some()
    }

    /// Returns `true` if the part reads samples of audio, `false` if it reads a spectrum.
    #[must_use]
    pub fn takes_waveforms(&self) -> bool {
        self.takes(Meaning::Waveform) || detects_speech(self.body())
    }

    /// Returns `true` if the part continues texts, by its head or by the keys and values that it
    /// keeps.
    #[must_use]
    pub fn generates(&self) -> bool {
        let generates = self.runner.task().map_or_else(
            || self.takes(Meaning::PastKey) || self.takes(Meaning::PastState),
            |task| task == GENERATES,
        );
        generates && self.output(Meaning::Logits).is_some()
    }

    /// Returns `true` if the part predicts the start and the end of an answer to a question.
    #[must_use]
    pub fn answers_questions(&self) -> bool {
        let body = self.body();
        let names: Vec<&str> =
            body.outputs.iter().map(|id| body.value(*id).name.as_str()).collect();
        ENDS.iter().all(|end| names.contains(end))
    }

    /// Name of the input that means this.
    #[must_use]
    pub fn input(&self, what: Meaning) -> Option<&'p str> {
        meaning(self.body(), &self.body().inputs, what)
    }

    /// Name of the output that means this.
    #[must_use]
    pub fn output(&self, what: Meaning) -> Option<&'p str> {
        meaning(self.body(), &self.body().outputs, what)
    }

    /// Runs the graph: inputs by name in, the values called `wanted` out, in their order.
    ///
    /// # Errors
    /// Those of [`Session::run`]; E007 where the [`Host`] cancels it.
    pub fn run(&self, inputs: Vec<(String, Value)>, wanted: &[&str]) -> RunResult<Outcome> {
        self.run_watched(inputs, wanted, &mut UntilCancelled(self.runner.host))
    }

    /// Runs the part like [`run`](Self::run), with a tap that stops the run if the [`Host`] cancels
    /// it.
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run), and E007 if the tap stops the run.
    pub fn run_watched(
        &self,
        inputs: Vec<(String, Value)>,
        wanted: &[&str],
        tap: &mut dyn Tap,
    ) -> RunResult<Outcome> {
        let outcome = self.session.run(inputs, wanted, self.runner.host.workers(), tap)?;
        if outcome.stopped {
            return Err(Error::io(IoCause::Interrupted, "interrupted").into());
        }
        Ok(outcome)
    }

    /// Runs the part and returns one output array.
    pub(crate) fn one(&self, inputs: Vec<(String, Value)>, wanted: &str) -> RunResult<Tensor> {
        let outcome = self.run(inputs, &[wanted])?;
        let value =
            outcome.outputs.first().ok_or_else(|| Error::format("the graph has no output"))?;
        Ok(value.tensor()?.clone())
    }

    /// Returns the part as a language model, with keys and values stored as the options request.
    ///
    /// # Errors
    /// E003 if the graph does not continue texts, or does not support [`RunOptions::cache_type`].
    pub(crate) fn language(&self) -> Result<LanguageModel<'_, '_>, Error> {
        let language = LanguageModel::new(&self.session)?.with_switch(self.runner.facts.switch());
        language.with_cache_type(self.runner.options.cache_type)
    }

    /// Returns the logits after each of `tokens`, which follow `context`: `[1, tokens,
    /// vocabulary]`. The logits of `context` are not computed. Returns `None` if the graph keeps no
    /// keys and values to continue from.
    ///
    /// # Errors
    /// Returns the errors of [`run`](Self::run).
    pub fn logits_behind(&self, context: &[i64], tokens: &[i64]) -> RunResult<Option<Tensor>> {
        let Ok(language) = LanguageModel::new(&self.session) else { return Ok(None) };
        let language = language.with_switch(self.runner.facts.switch());
        let host = self.runner.host;
        let mut tap = UntilCancelled(host);
        Ok(language.logits_behind(context, tokens, host.workers(), &mut tap)?)
    }

    /// Returns tokens as the inputs of the graph: ids, and a mask, types and positions if it has
    /// such inputs.
    ///
    /// # Errors
    /// [`RunError::Request`] if the graph requires other inputs.
    pub fn token_inputs(&self, ids: &[i64]) -> RunResult<Vec<(String, Value)>> {
        token_inputs(self.body(), ids)
    }

    /// Returns tokens as the inputs of the graph, with a type for each token if the graph has such
    /// an input and the tokenizer returns types. Otherwise, all types are 0.
    pub(crate) fn typed_inputs(
        &self,
        ids: &[i64],
        types: &[i64],
    ) -> RunResult<Vec<(String, Value)>> {
        let mut inputs = self.token_inputs(ids)?;
        let name = self.input(Meaning::TokenTypes);
        let name = name.filter(|_| self.runner.facts.returns_token_types());
        if let Some((_, value)) = inputs.iter_mut().find(|(known, _)| Some(known.as_str()) == name)
        {
            let types = Tensor::new(vec![1, types.len()], types.to_vec())?;
            *value = Value::from(types.cast(value.tensor()?.element())?);
        }
        Ok(inputs)
    }

    /// Returns all inputs for texts with equal numbers of tokens.
    ///
    /// # Errors
    /// [`RunError::Request`] if the graph requires other inputs.
    pub fn batch_inputs(&self, rows: &[&[i64]]) -> RunResult<Vec<(String, Value)>> {
        all_inputs(self.body(), known_batch(self.body(), rows)?)
    }
}

/// Stops a run that the host cancels.
pub(crate) struct UntilCancelled<'h>(pub(crate) &'h dyn Host);

impl Tap for UntilCancelled<'_> {
    /// No node, until then: a run whose nodes are looked at is slower.
    fn wants(&mut self, _: &str, _: &Node) -> bool {
        self.0.is_cancelled()
    }

    fn before(&mut self, _: &str, _: &Node) {}

    fn after(&mut self, _: &Step<'_>) -> Flow {
        Flow::Stop
    }
}

/// Name of the input or output that means something.
pub(crate) fn meaning<'b>(body: &'b Body, list: &[ValueId], meaning: Meaning) -> Option<&'b str> {
    list.iter()
        .map(|id| body.value(*id))
        .find(|value| value.meaning == meaning)
        .map(|value| value.name.as_str())
}
