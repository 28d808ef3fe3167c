//! What a head is for: by a class of transformers, or as Optimum names tasks.

use std::borrow::Cow;

use apr_arch::{FamilyModel, GraphSettings};
use apr_core::{Error, Result};

/// Ends the name of a task that takes earlier keys and values.
const WITH_PAST: &str = "-with-past";

/// A task as Optimum names it.
struct Task {
    name: &'static str,
    /// Ends of transformers class names after `For`, the usual one first; an empty text for no
    /// head.
    classes: &'static [&'static str],
    /// `true` if there is a variant of the task with earlier keys and values.
    goes_on: bool,
}

impl Task {
    /// Returns `true` if a family has a head of this class that fits the task.
    fn is_of(&self, model: &FamilyModel<'_>, class: &str) -> bool {
        has(model, class) && (self.name != COMPARES || takes_both(model, class))
    }
}

/// The task whose models compare texts and pictures.
const COMPARES: &str = "zero-shot-image-classification";

const fn task(name: &'static str, classes: &'static [&'static str], goes_on: bool) -> Task {
    Task { name, classes, goes_on }
}

const TASKS: [Task; 16] = [
    task("feature-extraction", &[""], true),
    task("text-generation", &["CausalLM"], true),
    task("text2text-generation", &["ConditionalGeneration"], true),
    task("fill-mask", &["MaskedLM"], false),
    task("text-classification", &["SequenceClassification"], false),
    task("token-classification", &["TokenClassification"], false),
    task("question-answering", &["QuestionAnswering"], false),
    task("multiple-choice", &["MultipleChoice"], false),
    task("image-classification", &["ImageClassification", "ImageClassificationWithTeacher"], false),
    task("object-detection", &["ObjectDetection"], false),
    task(COMPARES, &[""], false),
    task("automatic-speech-recognition", &["ConditionalGeneration", "CTC"], true),
    task("audio-classification", &["AudioClassification", "SequenceClassification"], false),
    task("audio-frame-classification", &["AudioFrameClassification"], false),
    task("audio-xvector", &["XVector"], false),
    task("image-to-text", &["ConditionalGeneration"], true),
];

/// Other names of tasks, each with the task's own name.
const SYNONYMS: [(&str, &str); 13] = [
    ("causal-lm", "text-generation"),
    ("default", "feature-extraction"),
    ("sentence-similarity", "feature-extraction"),
    ("image-feature-extraction", "feature-extraction"),
    ("masked-lm", "fill-mask"),
    ("sequence-classification", "text-classification"),
    ("zero-shot-classification", "text-classification"),
    ("seq2seq-lm", "text2text-generation"),
    ("summarization", "text2text-generation"),
    ("translation", "text2text-generation"),
    ("speech2seq-lm", "automatic-speech-recognition"),
    ("audio-ctc", "automatic-speech-recognition"),
    ("vision2seq-lm", "image-to-text"),
];

/// Returns the Optimum task with this name, and `true` if its name requests earlier keys and
/// values.
fn named(asked: &str) -> Option<(&'static Task, bool)> {
    let (name, past) = match asked.strip_suffix(WITH_PAST) {
        Some(name) => (name, true),
        None => (asked, false),
    };
    let usual = SYNONYMS.iter().find(|(other, _)| *other == name).map_or(name, |(_, usual)| usual);
    TASKS.iter().find(|task| task.name == usual && (task.goes_on || !past)).map(|task| (task, past))
}

/// Returns `true` if a task name requests earlier keys and values.
#[must_use]
pub fn task_asks_past(asked: &str) -> bool {
    named(asked).is_some_and(|(_, past)| past)
}

/// Returns the end of a transformers class name after `For`, for a task.
///
/// If a task has several classes, the model's `own` is used if it is one of them. A text that is
/// not a task of Optimum is taken as such an end itself.
///
/// ```
/// assert_eq!(apr_blocks::class_for("text-generation-with-past", None), "CausalLM");
/// assert_eq!(apr_blocks::class_for("automatic-speech-recognition", Some("CTC")), "CTC");
/// assert_eq!(apr_blocks::class_for("MaskedLM", None), "MaskedLM");
/// ```
#[must_use]
pub fn class_for<'a>(asked: &'a str, own: Option<&str>) -> Cow<'a, str> {
    let Some((task, _)) = named(asked) else { return Cow::Borrowed(asked) };
    let is_own = |class: &&&str| Some(**class) == own;
    let class = task.classes.iter().find(is_own).or(task.classes.first());
    Cow::Borrowed(class.copied().unwrap_or_default())
}

/// Checks that a text is a task of Optimum or can be the end of a class.
///
/// # Errors
/// E001 with the tasks that there are.
pub fn check_task(asked: &str) -> Result<()> {
    // Ends of classes are written with capitals, and no text is no head.
    let is_class = asked.is_empty() || asked.starts_with(|c: char| c.is_ascii_uppercase());
    if is_class || named(asked).is_some() {
        return Ok(());
    }
    let names = TASKS.map(|task| match task.goes_on {
        true => format!("{0}, {0}{WITH_PAST}", task.name),
        false => task.name.to_owned(),
    });
    let message = format!(
        "unknown task '{asked}'; tasks are {}, or the end of a class such as CausalLM",
        names.join(", ")
    );
    Err(Error::format(message))
}

/// The end of a class that a model of a family has for a task.
///
/// # Errors
/// E001 for a name that is neither a task of Optimum nor the end of a class, with those there are;
/// E003 for one that the family has no head for, with those that it has.
pub(crate) fn class_of<'a>(model: &FamilyModel<'_>, asked: &'a str) -> Result<Cow<'a, str>> {
    let Some((task, _)) = named(asked) else {
        check_task(asked)?;
        return has(model, asked)
            .then_some(Cow::Borrowed(asked))
            .ok_or_else(|| lacks(model, asked));
    };

    let own = model.graph_settings(None).map(|settings| settings.task().to_owned());
    let usual = class_for(asked, own.as_deref());
    if task.is_of(model, &usual) {
        return Ok(usual);
    }
    let other = task.classes.iter().find(|class| task.is_of(model, class));
    other.map(|class| Cow::Borrowed(*class)).ok_or_else(|| lacks(model, asked))
}

/// Returns the error for a task that the family has no graph for.
pub(crate) fn lacks(model: &FamilyModel<'_>, asked: &str) -> Error {
    let is_of = |task: &&Task| task.classes.iter().any(|class| task.is_of(model, class));
    let known: Vec<&str> = TASKS.iter().filter(is_of).map(|task| task.name).collect();
    let known = match known.as_slice() {
        [] => String::new(),
        known => format!("; it has {}", known.join(", ")),
    };
    let family = model.family().name();
    Error::version(format!("family {family} has no graph for the task '{asked}'{known}"))
}

/// Returns `true` if a family has a graph and a head for this end of a class name.
fn has(model: &FamilyModel<'_>, class: &str) -> bool {
    model.graph_settings(Some(class)).is_some_and(|settings| has_head(&settings))
}

/// Returns `true` if models of this class take texts and images.
fn takes_both(model: &FamilyModel<'_>, class: &str) -> bool {
    let kind = model.graph_settings(Some(class)).and_then(|settings| settings.kind());
    kind.is_some_and(|kind| kind == "text_and_vision")
}

/// Returns `true` if the graph has a head for its task, as far as the family's table shows.
fn has_head(settings: &GraphSettings<'_>) -> bool {
    let Some(kind) = settings.kind() else { return false };
    let stack = match kind.as_str() {
        "encoder_decoder" | "whole_encoder_decoder" => "decoder",
        "vision" | "spectrogram" => "vision",
        "encoder" | "mel" => "encoder",
        "decoder" | "sound" | "stages" | "windows" | "state_space" => "",
        // Those for two sides have states or a projection, and the side of pictures a classifier.
        other => {
            let head = settings.option("vision", "head", &[]);
            let classifies =
                other == "vision_side" && head.is_some_and(|head| head == "mean_patch");
            return settings.task().is_empty() || classifies;
        }
    };
    settings.option(stack, "head", &[]).is_some()
}
