//! Models in several files, as `llama-gguf-split` cuts them.
//!
//! Parts are called `NAME-00001-of-00003.gguf`. Each is a complete file with some of the tensors,
//! and states its number, the number of parts, and how many tensors all of them hold; the first has
//! the metadata of the model besides.

use std::collections::HashMap;
use std::sync::Arc;

use apr_core::{
    ByteSource, Code, Error, Escaped, IoCause, Limits, Pair, Result, SourceSet, Table, Value,
};

use crate::open_file::{OpenFile, in_file_warning};
use crate::part::{COUNT, NUMBER, SplitPart, TENSORS, is_split_key, parse_name, part_name};
use crate::reader::{alone, table};

/// Opens a file of a folder. If it is a part of a split model, opens all parts as one model.
///
/// Any of the parts may be named. Metadata are read from the first part, without the `split.*`
/// keys. Tensors are listed part by part. A part whose name does not reveal the names of the others
/// is opened alone, with a warning.
///
/// # Errors
/// As [`open`](crate::open) for each part; E002 if parts and names disagree on number, count or
/// tensors, E007 for an absent part.
pub fn open_split(set: &dyn SourceSet, name: &str, limits: &Limits) -> Result<Table> {
    let open = |name: &str| -> Result<OpenFile> {
        let source = set.open(name).map_err(|error| error.in_file(name))?;
        OpenFile::open(source.into(), name, limits)
    };
    let named = open(name)?;
    let part = SplitPart::of(&named).filter(|part| part.count > 1);
    let (Some(part), Some((stem, number, count))) = (part, parse_name(name)) else {
        return alone(named);
    };
    check_part(part, number, count).map_err(|error| error.in_file(name))?;

    let mut named = Some(named);
    let mut files = Vec::new();
    for position in 1..=count {
        let file = match named.take_if(|_| position == number) {
            Some(named) => named,
            None => {
                let part = part_name(stem, position, count);
                open(&part).map_err(|error| asked_for(error, &part, name))?
            }
        };
        let part = SplitPart::of(&file)
            .ok_or_else(|| Error::corrupt(format!("it has no {COUNT}, which '{name}' requires")));
        part.and_then(|part| check_part(part, position, count))
            .map_err(|error| error.in_file(&file.name))?;
        files.push(file);
    }

    check_tensors(&files)?;
    join(files)
}

/// Opens a part of a split model for a caller that opens the other parts as well.
///
/// Also returns the number of tensors of all parts, if the part states it.
///
/// # Errors
/// As [`open`](crate::open); E002 if the part and its name disagree on number or count.
pub fn open_part(
    source: impl ByteSource + 'static,
    name: &str,
    limits: &Limits,
) -> Result<(Table, Option<u64>)> {
    let mut file = OpenFile::open(Arc::new(source), name, limits)?;
    if let (Some(part), Some((_, number, count))) = (SplitPart::of(&file), parse_name(name)) {
        check_part(part, number, count).map_err(|error| error.in_file(name))?;
    }
    let tensors = file.pair(TENSORS).as_ref().and_then(Value::as_u64);
    file.header.pairs.retain(|key| !is_split_key(key));
    Ok((table(vec![file])?, tensors))
}

/// Returns the names of all parts of a split model, by the name of one of them.
///
/// ```
/// let names = apr_gguf::part_names("llama-00002-of-00003.gguf").expect("a part");
/// assert_eq!(names[2], "llama-00003-of-00003.gguf");
/// assert_eq!(apr_gguf::part_names("llama.gguf"), None);
/// ```
#[must_use]
pub fn part_names(name: &str) -> Option<Vec<String>> {
    let (stem, _, count) = parse_name(name)?;
    Some((1..=count).map(|number| part_name(stem, number, count)).collect())
}

/// Returns the error of opening a part, with the part `by` whose name led to it.
#[must_use]
pub fn asked_for(error: Error, part: &str, by: &str) -> Error {
    match error.cause() {
        Some(cause @ IoCause::NotFound) if error.code() == Code::Io => {
            let message = format!(
                "'{}' is another part of the same model: {}",
                Escaped::short(by),
                error.message()
            );
            Error::io(cause, message).in_file(error.file().unwrap_or(part))
        }
        _ => error.in_file(part),
    }
}

fn check_part(part: SplitPart, number: usize, count: usize) -> Result<()> {
    if part == (SplitPart { number: (number as u64).wrapping_sub(1), count: count as u64 }) {
        return Ok(());
    }
    let (named, counted) = (number, count);
    let SplitPart { number, count } = part;
    Err(Error::corrupt(format!(
        "the file name states part {named} of {counted}, but {NUMBER} and {COUNT} state part {} \
         of {count}",
        number.saturating_add(1)
    )))
}

fn check_tensors(files: &[OpenFile]) -> Result<()> {
    let mut places = HashMap::new();
    for (file, name) in files
        .iter()
        .flat_map(|file| file.header.entries.iter().map(move |it| (file, &it.info.name)))
    {
        if let Some(other) = places.insert(name, file) {
            let message =
                format!("'{}' also has a tensor of this name", Escaped::short(&other.name));
            return Err(Error::corrupt(message).in_file(&file.name).for_tensor(name));
        }
    }
    let held = places.len() as u64;
    for file in files {
        if let Some(stated) =
            file.pair(TENSORS).as_ref().and_then(Value::as_u64).filter(|&stated| stated != held)
        {
            let message =
                format!("{TENSORS} is {stated}, but all parts together hold {held} tensors");
            return Err(Error::corrupt(message).in_file(&file.name));
        }
    }

    Ok(())
}

/// Joins parts that fit together into one model.
fn join(mut files: Vec<OpenFile>) -> Result<Table> {
    let mut warnings = Vec::new();
    let (first, others) =
        files.split_first_mut().ok_or_else(|| Error::corrupt("a model of no parts"))?;
    for other in others {
        let held = |key: &str| first.header.pairs.find(key).map(|pair| pair.encoded_value());
        let is_new = |pair: &Pair<'_>| {
            !is_split_key(pair.key) && held(pair.key) != Some(pair.encoded_value())
        };

        // Every part has an alignment of its own.
        let lost = other
            .header
            .pairs
            .iter()
            .filter(is_new)
            .find(|pair| pair.key != crate::header::ALIGNMENT);
        if let Some(pair) = lost {
            let warning = format!(
                "'{}' is not read; only the first part's metadata are",
                Escaped::short(pair.key)
            );
            warnings.push(in_file_warning(&other.name, &warning));
        }
    }

    first.header.pairs.retain(|key| !is_split_key(key));
    let mut table = table(files)?;
    table.warnings.extend(warnings);
    Ok(table)
}
