//! A model that runs: the tasks of [`run`](crate::run), a call each.

use std::num::NonZeroUsize;
use std::path::Path;

use apr_io::{Interrupt, NativeHost, io_error};
use apr_run::{
    Facts, GenerateOptions, Generator, Prompt, Ranking, Remedy, Reranker, RunError, RunOptions,
    RunResult, Runner, TextEncoder, TextTask, Transcriber, TranscriptionOptions, with_runner,
};

use apr_trace::{Payload, Subject, Trace, TraceDiff, TraceOptions};

use crate::Model;

impl Model {
    /// Runs a payload through the model, and returns what every step takes and makes; `warn`
    /// receives warnings.
    ///
    /// ```
    /// use apr::run::RunOptions;
    /// use apr::trace::{Payload, TraceOptions};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let model = apr::Model::open(path)?;
    /// let options = TraceOptions::new(RunOptions::reading());
    /// let trace = model.trace(&Payload::Tokens(vec![1, 5, 20]), &options, |_, _| {})?;
    /// assert!(trace.steps().any(|(_, step)| step.path == "layers.1/attention"));
    /// # Ok::<(), apr::run::RunError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`run_with`](Self::run_with), and of running the model.
    pub fn trace(
        &self,
        payload: &Payload,
        options: &TraceOptions,
        warn: impl Fn(&str, Option<Remedy>) + Sync,
    ) -> RunResult<Trace> {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let host = NativeHost::new(threads, Interrupt::default(), warn);
        let source = self.source();
        let facts = Facts::of_source(&source)?;
        let subject = Subject { source: &source, facts: &facts };
        let traced = apr_trace::trace(subject, payload, options, &host, None);
        self.check_unchanged()?;
        traced
    }

    /// Runs a payload through this model and another one, and compares them value by value.
    ///
    /// Returns the point of divergence and the weights that can cause it; `warn` receives warnings.
    /// `blame` is the number of weights of the other model that are replaced by this model's
    /// weights, one at a time.
    ///
    /// ```
    /// use apr::run::RunOptions;
    /// use apr::trace::{Payload, TraceOptions};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let (model, other) = (apr::Model::open(path)?, apr::Model::open(path)?);
    /// let options = TraceOptions::new(RunOptions::reading());
    /// let payload = Payload::Tokens(vec![1, 5, 20]);
    /// let diff = model.trace_diff(&other, &payload, &options, 0, |_, _| {})?;
    /// assert!(diff.is_equal() && diff.divergence().is_none());
    /// # Ok::<(), apr::run::RunError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`trace`](Self::trace), and a request error if the models split a text
    /// into different tokens, or have no part or value in common.
    pub fn trace_diff(
        &self,
        other: &Self,
        payload: &Payload,
        options: &TraceOptions,
        blame: usize,
        warn: impl Fn(&str, Option<Remedy>) + Sync,
    ) -> RunResult<TraceDiff> {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let host = NativeHost::new(threads, Interrupt::default(), warn);
        let (facts, their_facts) = (Facts::of(self.reader())?, Facts::of(other.reader())?);
        let (source, theirs) = (self.source(), other.source());
        let subjects = [
            Subject { source: &source, facts: &facts },
            Subject { source: &theirs, facts: &their_facts },
        ];
        let compared = apr_trace::diff(subjects, payload, options, blame, &host);
        self.check_unchanged()?;
        other.check_unchanged()?;
        compared
    }

    /// Prepares the model for running, and calls `then` with it; `warn` receives warnings. What
    /// runs several times, such as a chat, belongs into one call.
    ///
    /// ```
    /// use apr::run::{GenerateOptions, Generator, Prompt, RunError, RunOptions};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let model = apr::Model::open(path)?;
    /// let warn = |message: &str, _| eprintln!("warning: {message}");
    /// let answers = model.run_with(&RunOptions::default(), warn, |runner| {
    ///     let mut generator = Generator::of(runner, GenerateOptions::default())?;
    ///     let mut answer = |prompt| generator.generate(Prompt::Text(prompt), &mut |_| Ok(()));
    ///     Ok([answer("12+34=")?, answer("20+22=")?])
    /// })?;
    /// assert_eq!(answers.map(|answer| answer.text.unwrap_or_default()), ["46\n", "42\n"]);
    /// # Ok::<(), RunError>(())
    /// ```
    ///
    /// A chat of a file has messages, tools and documents, and its answer is taken apart:
    ///
    /// ```no_run
    /// use apr::run::{ChatFile, GenerateOptions, Generator, Prompt, RunError, RunOptions};
    ///
    /// let model = apr::Model::open("chat.gguf")?;
    /// let chat = ChatFile::from_json(r#"[{"role": "user", "content": "What is a llama?"}]"#)?;
    /// let mut options = GenerateOptions::default();
    /// options.template.tools = chat.tools;
    /// let made = model.run_with(&RunOptions::default(), |_, _| {}, |runner| {
    ///     let prompt = Prompt::Messages(&chat.messages);
    ///     Generator::of(runner, options.clone())?.generate(prompt, &mut |_| Ok(()))
    /// })?;
    /// for call in made.answer.unwrap_or_default().tool_calls {
    ///     println!("{} {:?}", call.name, call.arguments.get("city"));
    /// }
    /// # Ok::<(), RunError>(())
    /// ```
    ///
    /// With the feature `grammar`, a text keeps to a JSON schema, a regular expression or a
    /// grammar:
    ///
    /// ```
    /// # #[cfg(feature = "grammar")] {
    /// use apr::run::{GenerateOptions, Generator, Grammar, Prompt, RunOptions};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let model = apr::Model::open(path)?;
    /// let grammar = Some(Grammar::regex("[0-9]{3}"));
    /// let options = GenerateOptions { grammar, ..GenerateOptions::default() };
    /// let made = model.run_with(&RunOptions::default(), |_, _| {}, |runner| {
    ///     Generator::of(runner, options)?.generate(Prompt::Text("12+34="), &mut |_| Ok(()))
    /// })?;
    /// let text = made.text.unwrap_or_default();
    /// assert!(text.len() == 3 && text.bytes().all(|digit| digit.is_ascii_digit()), "{text}");
    /// assert!(made.grammar.is_some_and(|kept| kept.complete));
    /// # }
    /// # Ok::<(), apr::run::RunError>(())
    /// ```
    ///
    /// A [`Conversation`](apr_run::Conversation) keeps its history, and what was read of it:
    ///
    /// ```no_run
    /// use apr::run::{Conversation, GenerateOptions, Generator, RunError, RunOptions};
    ///
    /// let model = apr::Model::open("chat.gguf")?;
    /// model.run_with(&RunOptions::default(), |_, _| {}, |runner| {
    ///     let generator = Generator::of(runner, GenerateOptions::default())?;
    ///     let mut chat = Conversation::new(generator, Some("Be brief.".to_owned()))?;
    ///     for message in ["What is a llama?", "And an alpaca?"] {
    ///         let answer = chat.turn(message, &mut |piece| Ok(print!("{piece}")))?;
    ///         eprintln!("{} tokens were read before", answer.reused.unwrap_or_default());
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), RunError>(())
    /// ```
    ///
    /// # Errors
    /// E003 where the model has no graph and its family is not known, what reading its files ends
    /// with, and what `then` ends with.
    pub fn run_with<R>(
        &self,
        options: &RunOptions,
        warn: impl Fn(&str, Option<Remedy>) + Sync,
        then: impl FnOnce(&Runner<'_>) -> RunResult<R>,
    ) -> RunResult<R> {
        self.run_until(options, Interrupt::default(), warn, then)
    }

    /// Runs [`run_with`](Self::run_with) until `interrupt` is cancelled, which is checked before
    /// every operator.
    ///
    /// # Errors
    /// Returns the errors of [`run_with`](Self::run_with); E007 once it is cancelled.
    pub fn run_until<R>(
        &self,
        options: &RunOptions,
        interrupt: Interrupt,
        warn: impl Fn(&str, Option<Remedy>) + Sync,
        then: impl FnOnce(&Runner<'_>) -> RunResult<R>,
    ) -> RunResult<R> {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let host = NativeHost::new(threads, interrupt, warn);
        let source = self.source();
        let facts = Facts::of_source(&source)?;
        let done = with_runner(&source, &facts, options, &host, then);
        self.check_unchanged()?;
        done
    }

    /// Generates the completion of a prompt, with the model's own settings.
    ///
    /// Warnings are dropped; use [`run_with`](Self::run_with) to receive them.
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    /// let model = apr::Model::open(path)?;
    /// assert_eq!(model.generate("12+34=")?, "46\n");
    /// # Ok::<(), apr::run::RunError>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Generator::generate`].
    pub fn generate(&self, prompt: &str) -> RunResult<String> {
        self.run_with(
            &RunOptions::default(),
            |_, _| {},
            |runner| {
                let mut generator = Generator::of(runner, GenerateOptions::default())?;
                let completion = generator.generate(Prompt::Text(prompt), &mut |_| Ok(()))?;
                Ok(completion.text.unwrap_or_default())
            },
        )
    }

    /// Runs the model on whole texts. Depending on its head, returns embeddings, labels or
    /// fill-mask tokens.
    ///
    /// Warnings are dropped; use [`run_with`](Self::run_with) to receive them.
    ///
    /// # Errors
    /// Returns the errors of [`TextEncoder::read`].
    pub fn read_texts<T: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> RunResult<Vec<TextTask>> {
        let options = RunOptions::reading();
        self.run_with(
            &options,
            |_, _| {},
            |runner| {
                let texts: Vec<T> = texts.into_iter().collect();
                TextEncoder::of_part(runner.prepare()?)?.read_all(&texts)
            },
        )
    }

    /// One vector for each text, as the model pools and normalizes. Warnings are dropped:
    /// [`run_with`](Self::run_with) hands them on.
    ///
    /// ```no_run
    /// let model = apr::Model::open("all-MiniLM-L6-v2")?;
    /// let vectors = model.embed(["a text", "another one"])?;
    /// assert_eq!(vectors[0].len(), 384);
    /// # Ok::<(), apr::run::RunError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`TextEncoder::read`], and [`RunError::Request`] where its head makes no
    /// embeddings.
    pub fn embed<T: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> RunResult<Vec<Vec<f32>>> {
        let refusal = || RunError::request("the model's head does not return embeddings");
        self.run_with(
            &RunOptions::reading(),
            |_, _| {},
            |runner| {
                let encoder = TextEncoder::of_part(runner.prepare()?)?;
                if !encoder.embeds() {
                    return Err(refusal());
                }
                let vector = |made| match made {
                    TextTask::Embedding { vector, .. } => Ok(vector),
                    _ => Err(refusal()),
                };
                let texts: Vec<T> = texts.into_iter().collect();
                encoder.read_all(&texts)?.into_iter().map(vector).collect()
            },
        )
    }

    /// Scores documents by how well they match a query, with a reranker: the best first, `most` of
    /// them at most. Warnings are dropped: [`run_with`](Self::run_with) hands them on.
    ///
    /// ```no_run
    /// let model = apr::Model::open("bge-reranker-v2-m3")?;
    /// let ranking = model.rank("what is a llama?", &["an animal", "a hat"], None)?;
    /// println!("{}: {:?}", ranking.documents[0].document, ranking.documents[0].score);
    /// # Ok::<(), apr::run::RunError>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Reranker::of_part`] and [`Reranker::rank`].
    pub fn rank<T: AsRef<str>>(
        &self,
        query: &str,
        documents: &[T],
        most: Option<usize>,
    ) -> RunResult<Ranking> {
        let mut options = RunOptions::default();
        // A language model that scores reads the pair as it would to continue it.
        options.keeps_past = options.generates(&Facts::of_source(&self.source())?);
        self.run_with(
            &options,
            |_, _| {},
            |runner| Reranker::of_part(runner.prepare()?)?.rank(query, documents, most),
        )
    }

    /// Transcribes an audio file with a Whisper. Warnings are dropped:
    /// [`run_with`](Self::run_with) hands them on.
    ///
    /// # Errors
    /// E007 when the file can't be read, otherwise those of [`Transcriber::transcribe`].
    pub fn transcribe(&self, audio: impl AsRef<Path>) -> RunResult<String> {
        let path = audio.as_ref();
        let bytes = std::fs::read(path).map_err(|error| io_error(&error, path))?;
        self.run_with(
            &RunOptions::default(),
            |_, _| {},
            |runner| {
                let transcriber = Transcriber::of(runner, TranscriptionOptions::default())?;
                Ok(transcriber.transcribe(&path.display().to_string(), bytes)?.text)
            },
        )
    }
}
