//! `apr run`.

mod answers;
mod arrays;
mod completion;
#[cfg(feature = "chat")]
mod conversation;
#[cfg(not(feature = "chat"))]
#[path = "conversation_off.rs"]
mod conversation;
mod features;
mod generation;
pub(super) mod given;
mod images;
mod job;
mod messages;
mod output;
mod pictures;
mod prompt_cache;
mod ranking;
pub(in crate::commands) mod remedy;
mod sounds;
mod spans;
mod texts;
mod timing;
pub(super) mod tokenize;
mod transcription;

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use apr_graph::{Body, Meaning};
use apr_io::NativeHost;
use apr_llama::{is_in_gguf_layout, with_images};
use apr_registry::{CheckpointReader, Error};
use apr_run::{
    Arithmetic, Facts, Host, Pooling, Prepared, RunOptions, Transcriber, inputs_of, with_runner,
};
use apr_source::Source;

pub(super) use self::given::read_media;
use self::given::{Asked, Given};
use self::job::Job;
use self::messages::Chat;
pub(super) use self::timing::WithMemory;
use crate::args::{PoolingWay, RunArgs};
use crate::commands::merge::with_adapted;
use crate::commands::running::warn_of_idle_exact;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::{self, Model};

/// Beginning of the errors about --regex.
const OF_REGEX: &str = "the regular expression: ";

/// Runs a model.
pub(super) fn run(args: &RunArgs, context: &Context) -> Outcome {
    let begun = Instant::now();
    let model = model::open_with_companions(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let part = args.mmproj.as_ref().map(|part| model::open(part, context)).transpose()?;
    let run = |text: &dyn CheckpointReader| match &part {
        Some(part) => run_joined(args, text, part, &model.name, begun, context),
        None => run_reader(args, text, &model.name, begun, context),
    };
    if args.lora.is_empty() {
        return run(&*model.reader);
    }
    with_adapted(&model, &args.lora, context, run)
}

/// Runs a language model together with its part for images.
fn run_joined(
    args: &RunArgs,
    text: &dyn CheckpointReader,
    part: &Model,
    name: &str,
    begun: Instant,
    context: &Context,
) -> Outcome {
    // With an adapter under the names of frameworks, the model has these names, too.
    if !args.lora.is_empty() && !is_in_gguf_layout(text) {
        let message = "--lora with --mmproj needs adapters in GGUF files: `apr lora convert` \
                       writes them";
        return Err(Failure::Usage(message.to_owned()));
    }
    let joined = with_images(text, &*part.reader, context.families()?, &context.architecture()?);
    let (joined, warnings) = joined.map_err(|error| error.in_file(name))?;
    warnings.iter().for_each(|warning| context.printer.warn(warning));
    run_reader(args, &joined, name, begun, context)
}

/// Runs the model of a reader.
fn run_reader(
    args: &RunArgs,
    reader: &dyn CheckpointReader,
    name: &str,
    begun: Instant,
    context: &Context,
) -> Outcome {
    let outcome = run_source(args, &context.source(reader, name)?, name, begun, context);
    let is_about = |error: &Error| {
        args.regex.is_some() && error.file().is_none() && error.message().starts_with(OF_REGEX)
    };
    match outcome {
        Err(Failure::Model(error)) if is_about(&error) => {
            let why = error.message().trim_start_matches(OF_REGEX);
            Err(Failure::Usage(format!("--regex: {why}")))
        }
        outcome => outcome,
    }
}

fn run_source(
    args: &RunArgs,
    source: &Source<'_>,
    name: &str,
    begun: Instant,
    context: &Context,
) -> Outcome {
    let reader = source.reader();
    let facts = Facts::of_source(source)?;

    check_vocabulary("--tokens", &args.tokens, &facts)?;
    check_vocabulary("--logit-bias", &args.sampling.biased_ids(), &facts)?;
    warn_of_idle_exact(args.exact, reader, context);
    let asked = Asked {
        files: &args.input,
        prompts: &args.prompt,
        tokens: &args.tokens,
        by_lines: args.lines,
        is_stdin_taken: args.model.as_os_str() == "-",
    };
    if let (Some(least), Some(most)) = (args.sampling.min_tokens, args.max_tokens)
        && least > most
    {
        return Err(Failure::Usage(format!("--min-tokens {least} exceeds --max-tokens {most}")));
    }
    let chat = Chat::of(args, context)?;
    let grammar = messages::grammar(args)?;
    let given = match chat.messages.is_some() {
        true => Given { has_chat: true, ..Given::default() },
        false => Given::of(&asked, context)?,
    };
    if args.lines && given.texts.len() == args.prompt.len() {
        let message = "--lines applies to text files and pipes, and none is given";
        return Err(Failure::Usage(message.to_owned()));
    }
    let media = !(given.sounds.is_empty() && given.pictures.is_empty());
    if media && !args.want.is_empty() && !features::are_wanted(args) {
        let message = "--want does not support audio and image files: pass an array (--want \
                       features -o FILE writes one)";
        return Err(Failure::Usage(message.to_owned()));
    }

    // A head that is no language model's reads a text once, so that nothing is kept.
    let converses =
        args.chat && given.is_empty() && args.image.is_empty() && std::io::stdin().is_terminal();
    let goes_on =
        converses || given.has_text() || !(given.sounds.is_empty() && args.tokens.is_empty());
    let mut options = options(args, context);
    if options.images {
        images::check(&given, source.family()?)?;
    }
    options.keeps_past = options.generates(&facts) && goes_on && args.want.is_empty();
    if options.keeps_past && !args.exact && args.query.is_none() {
        options.arithmetic = Arithmetic::Fast;
    }
    let host = host(context);
    with_runner(source, &facts, &options, &host, |runner| {
        let grammar = grammar.as_ref();
        let job = Job { args, context, runner, name, begun, chat: &chat, grammar };
        if options.images {
            check_options(args, false, true)?;
            check_vectors(args, false)?;
            return images::run(&job, &given.texts);
        }
        if converses {
            return conversation::run(&job);
        }
        if features::are_wanted(args) && !features::is_a_value(runner.parts(), args) {
            return features::run(&job, &given);
        }
        let is_pair = args.part.is_none() && runner.has_decoder() && args.query.is_none();
        if is_pair && goes_on && args.want.is_empty() {
            let transcribes = !given.sounds.is_empty();
            check_options(args, transcribes, !transcribes)?;
            check_vectors(args, false)?;
            return match (transcribes, Transcriber::fits(runner)) {
                (true, _) => transcription::run(&job, &given.sounds),
                (false, false) => completion::run_pair(&job, &given.texts),
                (false, true) => Err(Failure::Usage("the model has no text input".to_owned())),
            };
        }
        if let Some(query) = &args.query {
            return ranking::run(&job, query, &given, runner.prepare()?);
        }
        dispatch(&job, &given, runner.prepare()?)
    })
}

/// Returns the run options, independently of the inputs.
fn options(args: &RunArgs, context: &Context) -> RunOptions {
    let mut options = RunOptions::default();
    options.task.clone_from(&args.task);
    options.part.clone_from(&args.part);
    options.max_memory = context.max_memory();
    options.max_work = args.max_work;
    options.seed = args.seed.unwrap_or_default();
    options.truncate = args.truncate;
    options.pooling = args.pooling.map(Into::into);
    options.prompt_name.clone_from(&args.prompt_name);
    options.dimensions = args.dimensions.map(NonZeroUsize::get);
    options.no_answer = args.no_answer;
    options.top = args.top.unwrap_or(options.top);
    options.images = !args.image.is_empty();
    options.cache_type = args.cache_type.map(Into::into).unwrap_or_default();
    options
}

/// Threads, the interrupt, and warnings with the options that help.
pub(super) fn host(context: &Context) -> impl Host {
    host_with(context, context.threads())
}

/// Returns a host with this number of threads.
pub(super) fn host_with(context: &Context, threads: NonZeroUsize) -> impl Host {
    let printer = context.printer;
    NativeHost::new(threads, context.interrupt.clone(), move |message: &str, remedy| {
        printer.warn(&remedy::with_advice(message, remedy));
    })
}

/// Returns a host for many inputs of one model, which prints each warning once.
pub(super) fn terse_host(context: &Context) -> impl Host {
    let printer = context.printer;
    let told = Mutex::new(BTreeSet::new());
    NativeHost::new(context.threads(), context.interrupt.clone(), move |message: &str, remedy| {
        let is_new = |mut told: MutexGuard<'_, BTreeSet<String>>| told.insert(message.to_owned());
        if told.lock().map_or(true, is_new) {
            printer.warn(&remedy::with_advice(message, remedy));
        }
    })
}

/// Runs the task that suits the model and its inputs.
fn dispatch(job: &Job<'_>, given: &Given, part: Prepared<'_>) -> Outcome {
    let has_text = (given.has_text() || !job.args.tokens.is_empty()) && given.pictures.is_empty();
    let writes = has_text && (part.generates() || !given.has_text());
    let wants = !job.args.want.is_empty();
    check_options(job.args, false, writes && !wants)?;
    let is_read = has_text && given.sounds.is_empty() && !part.answers_questions();
    check_vectors(job.args, is_read && !writes && !wants)?;
    let has_answers = writes && !wants || !given.sounds.is_empty();
    if job.args.separator.is_some() && !has_answers {
        let message = "--separator applies to generated text, and this model generates none";
        return Err(Failure::Usage(message.to_owned()));
    }
    if job.args.top.is_some() && writes && !wants {
        let message = "--top applies to labels and ranked documents, and this model generates text";
        return Err(Failure::Usage(message.to_owned()));
    }
    let body = &part.graph().body;
    if !given.sounds.is_empty() {
        if part.takes_waveforms() {
            return sounds::run(job, &given.sounds, part);
        }
        return Err(takes_no("sound", body));
    }

    if !given.pictures.is_empty() {
        return pictures::run(job, &given.pictures, &given.texts, part);
    }
    if !has_text {
        return arrays::run(job, &given.arrays, &part);
    }

    match part.takes(Meaning::TokenIds) {
        false => Err(takes_no("text", body)),
        true if part.answers_questions() && !wants => spans::run(job, &given.texts, part),
        true if job.args.context.is_some() => {
            let message = "--context applies to extractive question answering, which is not this \
                           model's task";
            Err(Failure::Usage(message.to_owned()))
        }
        true if wants => arrays::of_text(job, &given.texts, &part),
        true if writes => completion::run_part(job, &given.texts, part),
        true => texts::run(job, &given.texts, part),
    }
}

fn takes_no(what: &str, body: &Body) -> Failure {
    Failure::Usage(format!("the model has no {what} input; {}", inputs_of(body)))
}

/// Rejects options that would have no effect.
fn check_options(args: &RunArgs, transcribes: bool, writes: bool) -> Outcome {
    let of_speech = args.language.is_some()
        || args.translate
        || args.timestamps
        || args.word_timestamps
        || args.subtitles.is_some()
        || args.fallback;
    if of_speech && !transcribes {
        let message = "--language, --translate, --timestamps, --word-timestamps, --subtitles and \
                       --fallback apply to speech recognition, such as Whisper";
        return Err(Failure::Usage(message.to_owned()));
    }

    let of_texts = args.chat
        || args.messages.is_some()
        || args.prompt_cache.is_some()
        || args.batch.is_some()
        || !args.stop.is_empty()
        || args.logprobs.is_some()
        || args.json_schema.is_some()
        || args.regex.is_some()
        || args.grammar.is_some();
    let of_generation = [args.max_tokens, args.top_k].iter().any(Option::is_some)
        || args.cache_type.is_some()
        || args.seed.is_some()
        || args.beams.is_some()
        || args.length_penalty.is_some()
        || args.sampling.are_given()
        || [args.temperature, args.top_p, args.min_p, args.repeat_penalty, args.presence_penalty]
            .iter()
            .any(Option::is_some);
    let writes_nothing = !(writes || transcribes);
    if of_texts && !writes || of_generation && writes_nothing {
        let why = match args.want.is_empty() {
            true => "apply to text generation, and no text is given",
            false => "apply to text generation, which --want does not do",
        };
        let message = format!(
            "--chat, --messages, --prompt-cache, --cache-type, --batch, --stop, --logprobs, \
             --json-schema, --regex, --grammar, --max-tokens, --beams and the options of sampling, \
             such as --temperature, {why}"
        );
        return Err(Failure::Usage(message));
    }

    Ok(())
}

/// Rejects options of embeddings if texts are not embedded.
fn check_vectors(args: &RunArgs, embeds: bool) -> Outcome {
    let is_asked =
        args.pooling.is_some() || args.prompt_name.is_some() || args.dimensions.is_some();
    match is_asked && !embeds {
        true => Err(Failure::Usage(
            "--pooling, --prompt-name and --dimensions apply to embeddings of texts".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Rejects tokens that the model does not have.
pub(super) fn check_vocabulary(option: &str, tokens: &[i64], facts: &Facts) -> Outcome {
    let Some(size) = facts.vocabulary() else { return Ok(()) };
    let is_beyond = |token: &&i64| usize::try_from(**token).map_or(true, |token| token >= size);
    match tokens.iter().find(is_beyond) {
        Some(token) => Err(Failure::Usage(format!(
            "{option}: {token} is not in the model's vocabulary of {size} tokens, 0 to {}",
            size - 1
        ))),
        None => Ok(()),
    }
}

impl From<PoolingWay> for Pooling {
    fn from(way: PoolingWay) -> Self {
        match way {
            PoolingWay::Mean => Self::Mean,
            PoolingWay::Cls => Self::First,
            PoolingWay::Max => Self::Max,
            PoolingWay::Last => Self::Last,
            PoolingWay::MeanSqrt => Self::MeanSqrt,
            PoolingWay::WeightedMean => Self::WeightedMean,
        }
    }
}
