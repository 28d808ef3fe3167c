//! Models in several files, as `llama-gguf-split` cuts them.
//!
//! Parts are called `NAME-00001-of-00003.gguf`. Each is a complete file with some of the tensors, and states its number,
//! the number of parts, and how many tensors all of them hold; the first has the metadata of the model besides.

use std::collections::HashMap;

use apr_core::{Code, Error, Escaped, IoCause, KeyValues, Limits, Pair, Result, SourceSet, Value};

use crate::open_file::{OpenFile, in_file_warning};
use crate::reader::GgufReader;

/// Position of the part, from 0; u16.
pub(crate) const NUMBER: &str = "split.no";
/// Number of parts; u16. A model that was put together again has 0 there.
pub(crate) const COUNT: &str = "split.count";
/// Tensors in all parts; i32.
pub(crate) const TENSORS: &str = "split.tensors.count";

/// Which part a file is, as its pairs say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// From 0.
    pub(crate) number: u64,
    pub(crate) count: u64,
}

impl Part {
    pub(crate) fn of(file: &OpenFile) -> Option<Self> {
        let number = file.pair(NUMBER).and_then(|value| value.as_u64()).unwrap_or_default();
        Some(Self { number, count: file.pair(COUNT)?.as_u64()? })
    }
}

/// Whether pairs are those of a part of a split model.
pub(crate) fn is_part(pairs: &KeyValues) -> bool {
    pairs.get(COUNT).and_then(|count| count.as_u64()).is_some_and(|count| count > 1)
}

pub(crate) fn is_split_key(key: &str) -> bool {
    [NUMBER, COUNT, TENSORS].contains(&key)
}

/// Name of a part; `number` counts from 1.
pub(crate) fn part_name(stem: &str, number: usize, count: usize) -> String {
    format!("{stem}-{number:05}-of-{count:05}.gguf")
}

/// Stem, number from 1, and count of a name like `llama-00001-of-00003.gguf`.
fn parse_name(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse().ok().filter(|_| plain)
    };
    Some((stem, digits(number)?, digits(count)?))
}

/// Whether a file is called like a part of a split model, `NAME-00001-of-00003.gguf`.
///
/// ```
/// assert!(apr_gguf::is_part_name("llama-00002-of-00003.gguf"));
/// assert!(!apr_gguf::is_part_name("llama.gguf"));
/// ```
#[must_use]
pub fn is_part_name(name: &str) -> bool {
    parse_name(name).is_some()
}

/// Opens a file of a folder; where it is a part of a split model, all parts, as one model.
///
/// Any of the parts may be named. Metadata are those of the first part without the `split.*` keys; tensors come part by
/// part. A part whose name does not tell those of the others is opened alone, with a warning.
///
/// # Errors
/// As [`open`](crate::open) for each part; E002 where parts and names disagree on number, count or tensors, E007 for an
/// absent part.
pub fn open_split(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<GgufReader> {
    let open = |name: &str| -> Result<OpenFile> {
        let source = set.open(name).map_err(|error| error.in_file(name))?;
        OpenFile::open(source, name, limits)
    };
    let named = open(name)?;
    let part = Part::of(&named).filter(|part| part.count > 1);
    let (Some(part), Some((stem, number, count))) = (part, parse_name(name)) else {
        return Ok(GgufReader::alone(named));
    };
    check_part(part, number, count).map_err(|error| error.in_file(name))?;

    let mut named = Some(named);
    let mut files = Vec::new();
    for position in 1..=count {
        let file = match named.take_if(|_| position == number) {
            Some(named) => named,
            None => open(&part_name(stem, position, count)).map_err(|error| asked_for(error, name))?,
        };
        let part =
            Part::of(&file).ok_or_else(|| Error::corrupt(format!("it has no {COUNT}, but '{name}' counts on it")));
        part.and_then(|part| check_part(part, position, count)).map_err(|error| error.in_file(&file.name))?;
        files.push(file);
    }
    check_tensors(&files)?;
    join(files)
}

fn asked_for(error: Error, by: &str) -> Error {
    match error.cause() {
        Some(cause @ IoCause::NotFound) if error.code() == Code::Io => {
            let message = format!("'{}' is another part of the same model: {}", Escaped::short(by), error.message());
            Error::io(cause, message).in_file(error.file().unwrap_or_default())
        }
        _ => error,
    }
}

fn check_part(part: Part, number: usize, count: usize) -> Result<()> {
    if part == (Part { number: (number as u64).wrapping_sub(1), count: count as u64 }) {
        return Ok(());
    }
    let (named, counted) = (number, count);
    let Part { number, count } = part;
    Err(Error::corrupt(format!(
        "by its name this is part {named} of {counted}, by {NUMBER} and {COUNT} part {} of {count}",
        number.saturating_add(1)
    )))
}

fn check_tensors(files: &[OpenFile]) -> Result<()> {
    let mut places = HashMap::new();
    for (file, name) in files.iter().flat_map(|file| file.header.entries.iter().map(move |it| (file, &it.info.name))) {
        if let Some(other) = places.insert(name, file) {
            let message = format!("'{}' has a tensor of this name too", Escaped::short(&other.name));
            return Err(Error::corrupt(message).in_file(&file.name).for_tensor(name));
        }
    }
    let held = places.len() as u64;
    for file in files {
        if let Some(stated) = file.pair(TENSORS).as_ref().and_then(Value::as_u64).filter(|&stated| stated != held) {
            let message = format!("{TENSORS} is {stated}, but all parts together hold {held} tensors");
            return Err(Error::corrupt(message).in_file(&file.name));
        }
    }
    Ok(())
}

/// One model of parts that fit together.
fn join(mut files: Vec<OpenFile>) -> Result<GgufReader> {
    let mut warnings = Vec::new();
    let (first, others) = files.split_first_mut().ok_or_else(|| Error::corrupt("a model of no parts"))?;
    for other in others {
        let held = |key: &str| first.header.pairs.find(key).map(|pair| pair.encoded_value());
        let is_new = |pair: &Pair<'_>| !is_split_key(pair.key) && held(pair.key) != Some(pair.encoded_value());
        // Every part has an alignment of its own.
        let lost = other.header.pairs.iter().filter(is_new).find(|pair| pair.key != crate::header::ALIGNMENT);
        if let Some(pair) = lost {
            let warning = format!("'{}' is not read; only the first part's metadata are", Escaped::short(pair.key));
            warnings.push(in_file_warning(&other.name, &warning));
        }
    }
    first.header.pairs.retain(|key| !is_split_key(key));
    let mut reader = GgufReader::new(files);
    warnings.into_iter().for_each(|warning| reader.warn(warning));
    Ok(reader)
}
