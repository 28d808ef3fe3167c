//! `apr run`.

mod answers;
mod arrays;
mod features;
mod generation;
mod given;
mod job;
mod output;
mod pictures;
mod sounds;
mod spans;
mod text;
mod texts;
pub(super) mod tokenize;
mod tokens;
mod transcription;
mod writing;

use apr_blocks::{GraphOptions, class_for};
use apr_graph::{Body, Meaning};
use apr_infer::Session;
use apr_io::Crew;
use apr_ops::run::{Facts, Runnable, with_graphs};
use apr_ops::tied::with_untied;
use apr_source::Source;

use self::given::Given;
use self::job::{Job, meaning};
use self::writing::Parts;
use crate::args::RunArgs;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;

/// What head has which class of transformers, as far as it decides what is done with the logits.
const GENERATES: &str = "CausalLM";

/// Runs a model.
pub(super) fn run(args: &RunArgs, context: &Context) -> Outcome {
    let model = model::open_with_companions(&args.model, context)?;
    model.reader.warnings().iter().for_each(|warning| context.printer.warn(warning));
    let facts = Facts::of(&*model.reader)?;
    let architecture = context.architecture()?;
    let source = Source::new(&*model.reader, context.families()?)
        .named(&model.name)
        .taken_for(&architecture);
    let own = facts.task();
    let asked = args.task.as_deref().map(|task| class_for(task, own.as_deref()).into_owned());
    let task = asked.or_else(|| own.clone());
    let job = Job {
        args,
        context,
        reader: &*model.reader,
        name: &model.name,
        facts: &facts,
        workers: Crew::new(context.threads()),
    };

    check_tokens(&job)?;
    let given = Given::of(&job)?;
    let media = !(given.sounds.is_empty() && given.pictures.is_empty());
    if media && !args.want.is_empty() && !features::are_wanted(args) {
        let message = "--want is for arrays and texts: give the sound or picture as an array \
            (--want features -o FILE makes one)";
        return Err(Failure::Usage(message.to_owned()));
    }

    // A head that is no language model's reads a text once, so that nothing is kept.
    let writes = task
        .as_deref()
        .is_none_or(|task| task == GENERATES || task.ends_with("ConditionalGeneration"));
    let goes_on = !(given.texts.is_empty() && given.sounds.is_empty() && args.tokens.is_empty());
    let past = writes && goes_on && args.want.is_empty();
    let options = GraphOptions { past, task: args.task.clone(), ..GraphOptions::default() };
    let (options, warnings) = with_untied(&source, &options)?;
    warnings.iter().for_each(|warning| context.printer.warn(warning));
    with_graphs(&source, &options, |weights, parts| {
        if features::are_wanted(args) && !features::is_a_value(parts, args) {
            return features::run(&job, given, parts);
        }
        if args.part.is_none()
            && goes_on
            && args.want.is_empty()
            && let Some(parts) = Parts::of(&job, parts, weights)?
        {
            let hears = !given.sounds.is_empty();
            check_options(args, hears, !hears)?;
            return match hears {
                true => transcription::run(&job, &given.sounds, &parts),
                false if parts.reads_text() => text::answer(&job, &given.texts, &parts),
                false => Err(takes_no("text", parts.encoder.0)),
            };
        }
        let part = chosen(parts, args.part.as_deref())?;
        let session = job.session(part, weights)?;
        dispatch(&job, given, task.as_deref(), part, &session)
    })
}

/// Does with what is given what the model is for.
fn dispatch(
    job: &Job<'_>,
    given: Given,
    task: Option<&str>,
    part: &Runnable,
    session: &Session<'_>,
) -> Outcome {
    let body = &part.graph.body;
    let reads = |what| meaning(body, &body.inputs, what).is_some();
    let generates = task.map_or_else(
        || reads(Meaning::PastKey) || reads(Meaning::PastState),
        |task| task == GENERATES,
    );
    let has_logits = meaning(body, &body.outputs, Meaning::Logits).is_some();
    let has_text =
        !(given.texts.is_empty() && job.args.tokens.is_empty()) && given.pictures.is_empty();
    let writes = has_text && ((generates && has_logits) || given.texts.is_empty());
    let wants = !job.args.want.is_empty();
    check_options(job.args, false, writes && !wants)?;
    let has_answers = writes && !wants || !given.sounds.is_empty();
    if job.args.separator.is_some() && !has_answers {
        let message = "--separator is for what a model writes, and this one writes nothing";
        return Err(Failure::Usage(message.to_owned()));
    }
    if !given.sounds.is_empty() {
        let hears = reads(Meaning::Waveform) || sounds::detects_speech(body);
        return if hears {
            sounds::run(job, &given.sounds, part, session)
        } else {
            Err(takes_no("sound", body))
        };
    }

    if !given.pictures.is_empty() {
        return pictures::run(job, &given.pictures, &given.texts, part, session);
    }
    if !has_text {
        return arrays::run(job, given.arrays, part, session);
    }

    match reads(Meaning::TokenIds) {
        false => Err(takes_no("text", body)),
        true if spans::answers(body) && !wants => spans::run(job, &given.texts, part, session),
        true if job.args.context.is_some() => {
            let message = "--context is for models that answer questions about a text, and this \
                           one does not";
            Err(Failure::Usage(message.to_owned()))
        }
        true if wants => arrays::of_text(job, &given.texts, part, session),
        true if writes => text::run(job, &given.texts, session),
        true => texts::run(job, &given.texts, part, session),
    }
}

fn takes_no(what: &str, body: &Body) -> Failure {
    Failure::Usage(format!("the model takes no {what}; {}", arrays::inputs_of(body)))
}

/// Refuses options that would do nothing.
fn check_options(args: &RunArgs, transcribes: bool, writes: bool) -> Outcome {
    let of_speech = args.language.is_some() || args.translate || args.timestamps;
    if of_speech && !transcribes {
        let message = "--language, --translate and --timestamps are for models that write speech \
            down, such as Whisper";
        return Err(Failure::Usage(message.to_owned()));
    }

    let of_texts = args.chat || !args.stop.is_empty() || args.logprobs.is_some();
    let of_generation = [args.max_tokens, args.top_k].iter().any(Option::is_some)
        || args.seed.is_some()
        || [args.temperature, args.top_p, args.min_p, args.repeat_penalty, args.presence_penalty]
            .iter()
            .any(Option::is_some);
    let writes_nothing = !(writes || transcribes);
    if of_texts && !writes || of_generation && writes_nothing {
        let why = match args.want.is_empty() {
            true => "are for models that go on with texts, and this one gets none",
            false => "are for going on with a text, and --want reads it only",
        };
        let message = format!(
            "--chat, --stop, --logprobs, --max-tokens and the options of sampling, such as \
             --temperature, {why}"
        );
        return Err(Failure::Usage(message));
    }

    Ok(())
}

/// Refuses tokens that the model does not have.
fn check_tokens(job: &Job<'_>) -> Outcome {
    let Some(size) = job.facts.vocabulary() else { return Ok(()) };
    let is_beyond = |token: &&i64| usize::try_from(**token).map_or(true, |token| token >= size);
    match job.args.tokens.iter().find(is_beyond) {
        Some(token) => Err(Failure::Usage(format!(
            "--tokens: {token} is beyond the model's vocabulary of {size} tokens, 0 to {}",
            size - 1
        ))),
        None => Ok(()),
    }
}

/// The part that runs.
fn chosen<'p>(parts: &'p [Runnable], name: Option<&str>) -> Outcome<&'p Runnable> {
    let names = || parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>();
    match (name, parts) {
        (None, [part]) => Ok(part),
        (None, _) => Err(Failure::Usage(format!(
            "the model has several parts; choose one: --part {}",
            names().join(" or --part ")
        ))),
        (Some(name), parts) => parts.iter().find(|part| part.name == name).ok_or_else(|| {
            let name = apr::Escaped(name);
            Failure::Usage(format!("the model has no part '{name}'; it has {}", names().join(", ")))
        }),
    }
}
