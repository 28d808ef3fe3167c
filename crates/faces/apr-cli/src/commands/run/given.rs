//! What the user gives: texts, and files of any kind.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use apr_io::io_error;
use apr_quality::{AUDIO_EXTENSIONS, IMAGE_EXTENSIONS};
use apr_registry::Error;
use apr_run::{Given as Array, GivenArray, InputKind, arrays_of};

use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::text_file::{bounded_text, read_text, utf8};

/// Empty lines that an error names.
const SHOWN: usize = 8;

/// Name of standard input in errors.
const PIPE: &str = "standard input";

/// All inputs, by kind.
#[derive(Default)]
pub(in crate::commands) struct Given {
    pub(in crate::commands) texts: Vec<String>,
    /// `true` if the messages of a chat are given, which excludes all other inputs.
    pub(in crate::commands) has_chat: bool,
    pub(in crate::commands) sounds: Vec<PathBuf>,
    pub(in crate::commands) pictures: Vec<PathBuf>,
    pub(in crate::commands) arrays: Vec<GivenArray>,
}

/// Inputs as typed on the command line.
pub(in crate::commands) struct Asked<'a> {
    pub(in crate::commands) files: &'a [(Option<String>, PathBuf)],
    pub(in crate::commands) prompts: &'a [String],
    pub(in crate::commands) tokens: &'a [i64],
    /// `true` if each line of a text is a text of its own.
    pub(in crate::commands) by_lines: bool,
    /// `true` if the model is read from standard input.
    pub(in crate::commands) is_stdin_taken: bool,
}

impl Asked<'_> {
    /// Returns a file's text, or its lines.
    ///
    /// Answers are matched to lines by their order, so an empty line is rejected and not skipped.
    fn texts_of(&self, text: String, path: &Path) -> Outcome<Vec<String>> {
        if !self.by_lines {
            return Ok(vec![text]);
        }
        let is_empty = |(line, _): &(&str, usize)| line.trim().is_empty();
        let empty: Vec<String> =
            text.lines().zip(1..).filter(is_empty).map(|(_, number)| number.to_string()).collect();
        if !empty.is_empty() {
            let shown = empty[..empty.len().min(SHOWN)].join(", ");
            let more = if empty.len() > SHOWN { ", ..." } else { "" };
            let message = format!("each line is a prompt, and these are empty: {shown}{more}");
            return Err(Error::format(message).in_file(path.display()).into());
        }
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.is_empty() {
            return Err(Error::format("the text is empty").in_file(path.display()).into());
        }
        Ok(lines)
    }
}

impl Given {
    pub(in crate::commands) fn of(asked: &Asked<'_>, context: &Context) -> Outcome<Self> {
        let mut given = Self { texts: asked.prompts.to_vec(), ..Self::default() };
        for (name, path) in asked.files {
            match (name, extension(path).as_str()) {
                (None, "txt") => given.texts.extend(asked.texts_of(read_text(path)?, path)?),
                (None, sound) if AUDIO_EXTENSIONS.contains(&sound) => {
                    given.sounds.push(path.clone());
                }
                (None, picture) if IMAGE_EXTENSIONS.contains(&picture) => {
                    given.pictures.push(path.clone());
                }
                (name, _) => {
                    let arrays = named_arrays(name.as_deref(), path, context)?;
                    let file = path.display().to_string();
                    let of_file = |(name, value)| GivenArray { name, value, file: file.clone() };
                    given.arrays.extend(arrays.into_iter().map(of_file));
                }
            }
        }

        let nothing = given.texts.is_empty() && asked.files.is_empty() && asked.tokens.is_empty();

        // Otherwise standard input is the model.
        if nothing && !asked.is_stdin_taken {
            let piped = piped_text()?.map(|text| asked.texts_of(text, Path::new(PIPE)));
            given.texts.extend(piped.transpose()?.into_iter().flatten());
        }

        given.check()?;
        Ok(given)
    }

    /// Returns `true` if there is a text or a chat to answer.
    pub(super) fn has_text(&self) -> bool {
        self.has_chat || !self.texts.is_empty()
    }

    /// Returns `true` if there are no inputs.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_text()
            && self.sounds.is_empty()
            && self.pictures.is_empty()
            && self.arrays.is_empty()
    }

    /// Returns the kind of the inputs; texts beside images belong to the images.
    pub(super) fn kind(&self) -> InputKind {
        if !self.sounds.is_empty() {
            InputKind::Audio
        } else if !self.pictures.is_empty() {
            InputKind::Image
        } else if !self.arrays.is_empty() {
            InputKind::Arrays
        } else {
            InputKind::Text
        }
    }

    /// Rejects combinations of inputs that no model accepts.
    fn check(&self) -> Outcome {
        let alone = [
            !self.arrays.is_empty(),
            !self.sounds.is_empty(),
            !self.pictures.is_empty() || !self.texts.is_empty(),
        ];
        if alone.iter().filter(|given| **given).count() > 1 {
            let message = "inputs must be arrays, audio, or text and images, not several of these";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(())
    }
}

fn extension(path: &Path) -> String {
    path.extension()
        .map(|extension| extension.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default()
}

/// The bytes of an audio or image file, which must fit the memory limit.
pub(in crate::commands) fn read_media(path: &Path, context: &Context) -> Outcome<Vec<u8>> {
    bounded(path, context.max_memory())
}

/// Reads a file of at most `most` bytes; the length of a pipe or a device is not known in advance.
fn bounded(path: &Path, most: u64) -> Outcome<Vec<u8>> {
    let wrong = |error| io_error(&error, path);
    let file = std::fs::File::open(path).map_err(wrong)?;
    let len = file.metadata().map_err(wrong)?.len();
    let mut bytes = Vec::new();
    if len <= most {
        // One byte more tells a file that is too long.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(wrong)?;
    }
    if len.max(bytes.len() as u64) > most {
        let message =
            format!("the file exceeds the memory limit ({most} bytes): raise --max-memory");
        return Err(Error::memory(message).in_file(path.display()).into());
    }
    Ok(bytes)
}

/// Reads a text from a pipe, without the line break that `echo` adds at its end.
///
/// Returns `None` if there is no pipe, or if the pipe is empty.
pub(super) fn piped_text() -> Outcome<Option<String>> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Ok(None);
    }
    let mut text = bounded_text(stdin.lock(), Path::new(PIPE))?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// The arrays of a file, under their own names or the one that the user gave.
fn named_arrays(
    name: Option<&str>,
    path: &Path,
    context: &Context,
) -> Outcome<Vec<(Option<String>, Array)>> {
    let mut arrays = read_arrays(path, context)?;
    if let Some(name) = name {
        let [(own, _)] = arrays.as_mut_slice() else {
            let message =
                format!("{} has {} arrays, so it is not one input", path.display(), arrays.len());
            return Err(Failure::Usage(message));
        };
        *own = Some(name.to_owned());
    }
    Ok(arrays)
}

fn read_arrays(path: &Path, context: &Context) -> Outcome<Vec<(Option<String>, Array)>> {
    match extension(path).as_str() {
        "json" => {
            let text = utf8(bounded(path, context.max_memory() / 2)?, path)?;
            return Ok(Array::from_json(&text).map_err(|error| error.in_file(path.display()))?);
        }
        "pb" => return Ok(vec![message(path, context)?]),
        _ => {}
    }
    let reader = model::open_plain(path, context)?.reader;
    let arrays = arrays_of(&*reader).map_err(|error| error.in_file(path.display()))?;
    Ok(arrays.into_iter().map(|(name, tensor)| (Some(name), Array::Array(tensor))).collect())
}

/// Reads an ONNX message, whose type depends on its input. A tensor has a name of its own.
fn message(path: &Path, context: &Context) -> Outcome<(Option<String>, Array)> {
    let bytes = bounded(path, context.max_memory() / 2)?;
    Ok(Array::from_protobuf(bytes))
}
