//! Finding the reading that is right.

use apr_core::{ByteSource, Error, Limits, Result};

use super::cursor::Cursor;
use super::layout::{GgmlLayout, LAYOUTS, architectures};
use super::walk::{Attempt, Container, Failure, Reached, Reading};

/// Reads a file as the family that `arch` names, or as the only one that it can be of.
pub(super) fn read(
    source: &dyn ByteSource,
    limits: &Limits,
    arch: Option<&str>,
) -> Result<Reading> {
    // Asked for once: offsets must hold even where a source changes its mind.
    let len = source.len();
    let container = Container::read(&mut Cursor::new(source, len))?;
    let attempts = attempts(container, arch, limits)?;
    let (mut found, mut failures): (Vec<Reading>, Vec<(&GgmlLayout, Failure)>) =
        (Vec::new(), Vec::new());
    for attempt in attempts {
        match attempt.run(source, len) {
            Ok(reading) => found.push(reading),
            Err(failure) => failures.push((attempt.layout, failure)),
        }
    }

    // Without tokens it does not matter whether they have scores.
    found
        .dedup_by(|one, other| std::ptr::eq(one.layout, other.layout) && one.vocabulary.len() == 0);
    match found.len() {
        0 if arch.is_none() && is_parakeet(source, len)? => Err(Error::format(PARAKEET).at(0)),
        0 => Err(explain(failures, container, arch)),
        1 => found.pop().ok_or_else(|| unknown(container)),
        _ => Err(ambiguous(&found, container)),
    }
}

/// Returns all attempts to read the file as the family that `arch` names, or as any family.
fn attempts<'a>(
    container: Container,
    arch: Option<&str>,
    limits: &'a Limits,
) -> Result<Vec<Attempt<'a>>> {
    let wanted =
        |layout: &&GgmlLayout| arch.map_or(layout.detected, |name| layout.answers_to(name));
    let layouts: Vec<&'static GgmlLayout> = LAYOUTS.iter().filter(wanted).collect();
    if let (Some(name), []) = (arch, &*layouts) {
        return Err(Error::format(format!(
            "'{name}' is not an architecture known for GGML files; {}",
            advice()
        )));
    }

    // A family that is named is believed, but which of its layouts it is must still be found.
    let (named, plausible) = (arch.is_none(), layouts.len() > 1);
    let mut attempts = Vec::new();
    for layout in layouts.into_iter().filter(|&layout| container.goes_with(layout)) {
        let attempt =
            |&scored: &bool| Attempt { container, layout, scored, plausible, named, limits };
        attempts.extend(scores(container, layout).iter().map(attempt));
    }

    Ok(attempts)
}

/// Returns the possible answers to whether tokens have scores.
///
/// LLaMA's tokens have scores in every container with a version. Files of other families with such
/// a container were written by other programs, with or without scores.
fn scores(container: Container, layout: &GgmlLayout) -> &'static [bool] {
    match (container.version, layout.name) {
        (None, _) | (_, "rwkv") => &[false],
        (_, "llama") => &[true],
        _ => &[true, false],
    }
}

fn advice() -> String {
    let names: Vec<_> = architectures().collect();
    format!("name it with `architecture` NAME, one of {}", names.join(", "))
}

fn unknown(container: Container) -> Error {
    let origin = container.origin();
    Error::format(format!("{origin}: unknown hyperparameters; {}", advice())).at(container.len())
}

fn ambiguous(found: &[Reading], container: Container) -> Error {
    let mut names: Vec<_> = found.iter().map(|reading| reading.layout.name).collect();
    names.dedup();
    let message = format!(
        "this may be a file of {}; name it with `architecture` NAME",
        names.join(" or of ")
    );
    Error::format(message).at(container.len())
}

/// The error message for a file of whisper.cpp whose layout is not supported.
const PARAKEET: &str = "whisper.cpp's Parakeet files are not supported: use the .nemo archive \
                        that it was made from";

/// Returns `true` if the hyperparameters are Parakeet's (`convert-parakeet-to-ggml.py` of
/// whisper.cpp). They state the two lengths of the mel filterbank that follows them.
fn is_parakeet(source: &dyn ByteSource, len: u64) -> Result<bool> {
    /// Magic, fourteen hyperparameters, mels and frequencies of the filterbank.
    const WORDS: usize = 17;
    let mut head = [0; 4 * WORDS];
    if len < head.len() as u64 {
        return Ok(false);
    }
    source.read_at(0, &mut head)?;
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(head.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let (mels, fft) = (words[6], words[8]);
    Ok(mels > 0 && fft > 1 && words[15] == mels && words[16] == fft / 2 + 1)
}

/// Returns the error of the attempt that read furthest, if its hyperparameters made sense.
fn explain(
    failures: Vec<(&GgmlLayout, Failure)>,
    container: Container,
    arch: Option<&str>,
) -> Error {
    // Of those that came equally far, the one whose tensor it is; else the first.
    let rank = |(layout, failure): &(&GgmlLayout, Failure)| {
        (failure.reached, failure.error.tensor().is_some_and(|name| layout.has_tensor(name)))
    };
    let furthest = failures.into_iter().rev().max_by_key(rank);
    match (furthest, arch) {
        (Some((_, failure)), Some(_)) => failure.error,
        (Some((layout, failure)), None) if failure.reached > Reached::Start => {
            let (name, reason) = (layout.name, failure.error.message());
            let message = match failure.reached {
                Reached::Tensors(_) => format!("read as a file of {name}: {reason}"),
                // It came to the tensors, and one of them is wrong.
                _ if failure.error.tensor().is_some() => {
                    format!("read as a file of {name}: {reason}")
                }
                _ => format!(
                    "this is a file of {} whose model is not recognized; as one of {name}, \
                     {reason}. If you know what it is, {}",
                    container.origin(),
                    advice()
                ),
            };
            let mut error = Error::new(failure.error.code(), message);
            if let Some(tensor) = failure.error.tensor() {
                error = error.for_tensor(tensor);
            }
            if let Some(offset) = failure.error.offset() {
                error = error.at(offset);
            }
            error
        }
        (None, Some(name)) => {
            let message = format!("files of {name} are not stored as {}", container.origin());
            Error::format(message).at(0)
        }
        _ => unknown(container),
    }
}
