//! Opening one file: its header, and whether the file can be as the header says.

use apr_core::{Error, Escaped, KeyValues, Limits, Result, SharedSource, TensorInfo, Value};

use crate::cursor::reserved;
use crate::header::{Entry, Header};
use crate::swap;
use crate::tail::Tail;

/// Name's length from which llama.cpp refuses a tensor (`GGML_MAX_NAME`, with the zero after it),
/// in bytes.
pub(crate) const MAX_NAME: usize = 64;

/// A file with its header parsed and its ranges checked.
pub(crate) struct OpenFile {
    pub(crate) name: String,
    pub(crate) header: Header,
    pub(crate) source: SharedSource,
    pub(crate) len: u64,
    /// Offset of the data section in the file.
    pub(crate) data_start: u64,
    /// Bytes after the last tensor, if they are not the usual padding.
    pub(crate) tail: Option<Tail>,
    pub(crate) warnings: Vec<String>,
}

impl OpenFile {
    /// Parses the header, and sorts the entries by the order of their data.
    pub(crate) fn open(source: SharedSource, name: &str, limits: &Limits) -> Result<Self> {
        let parse = || {
            // Asked for once: all checks must hold for the same length.
            let len = source.len();
            let mut header = Header::parse(&*source, len, limits)?;
            let data_start = header.end.checked_next_multiple_of(header.alignment);
            let data_start =
                data_start.ok_or_else(|| Error::corrupt("the header ends past 2^64 bytes"))?;
            let mut warnings = Vec::new();
            check_names(&header.entries, &mut warnings);
            check_tokens(&header.pairs, &mut warnings);
            check_ranges(&mut header, data_start, len, &mut warnings)?;
            let tail = Tail::read(&*source, &header, data_start, len, &mut warnings)?;
            Ok((header, data_start, len, tail, warnings))
        };

        let (header, data_start, len, tail, warnings) =
            parse().map_err(|error: Error| error.in_file(name))?;
        let warnings =
            warnings.into_iter().map(|warning| in_file_warning(name, &warning)).collect();
        Ok(Self { name: name.to_owned(), header, source, len, data_start, tail, warnings })
    }

    pub(crate) fn pair(&self, key: &str) -> Option<Value> {
        self.header.pairs.get(key)
    }
}

pub(crate) fn in_file_warning(name: &str, warning: &str) -> String {
    if name.is_empty() {
        warning.to_owned()
    } else {
        format!("{}: {warning}", Escaped::short(name))
    }
}

fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn check_names(entries: &[Entry], warnings: &mut Vec<String>) {
    let is_long = |entry: &&Entry| entry.info.name.len() >= MAX_NAME;
    if let Some(long) = entries.iter().find(is_long) {
        let count = entries.iter().filter(is_long).count();
        let name = Escaped::short(&long.info.name);
        let first = if count == 1 {
            format!("'{name}'")
        } else {
            format!("'{name}' is the first of {count}")
        };
        warnings.push(format!(
            "tensor names of {MAX_NAME} bytes or more, which llama.cpp refuses: {first}"
        ));
    }
}

/// Adds a warning if tokens, their scores and their types differ in number; they are parallel
/// arrays.
fn check_tokens(pairs: &KeyValues, warnings: &mut Vec<String>) {
    let len = |key: &str| pairs.find(key)?.items();
    let Some(tokens) = len("tokenizer.ggml.tokens") else { return };
    for key in ["tokenizer.ggml.scores", "tokenizer.ggml.token_type"] {
        if let Some(other) = len(key).filter(|&other| other != tokens) {
            let (items, tokens) = (counted(other, "item"), counted(tokens, "token"));
            warnings.push(format!("{key} has {items} for {tokens}"));
        }
    }
}

/// Sorts the entries by offset, and checks that each has its own part of the data section.
fn check_ranges(
    header: &mut Header,
    data_start: u64,
    file_len: u64,
    warnings: &mut Vec<String>,
) -> Result<()> {
    let Header { alignment, big_endian, .. } = *header;
    let mut ends = Vec::with_capacity(reserved(header.entries.len() as u64));
    for Entry { info, offset } in &header.entries {
        let end = check_entry(info, *offset, alignment, data_start, file_len, big_endian);
        ends.push(end.map_err(|error| error.for_tensor(&info.name))?);
    }

    let mut sorted: Vec<(Entry, u64)> =
        std::mem::take(&mut header.entries).into_iter().zip(ends).collect();
    let in_order = sorted.is_sorted_by_key(|(entry, end)| (entry.offset, *end));

    // An empty tensor comes before one that starts where it lies.
    sorted.sort_by_key(|(entry, end)| (entry.offset, *end));

    let (mut covered, mut holes) = (0, 0_u64);
    let mut previous: Option<&str> = None;
    for (Entry { info, offset }, end) in &sorted {
        // An empty tensor overlaps nothing.
        if *offset < covered && offset < end {
            let problem = format!(
                "its bytes overlap the bytes of '{}'",
                Escaped::short(previous.unwrap_or_default())
            );
            return Err(Error::corrupt(problem).for_tensor(&info.name).at(data_start + offset));
        }
        let due = covered.next_multiple_of(alignment);
        holes += offset.saturating_sub(due);
        if *end > covered {
            (covered, previous) = (*end, Some(info.name.as_str()));
        }
    }

    if holes > 0 {
        let bytes = counted(holes, "byte");
        warnings.push(format!(
            "{bytes} between tensors without an owner; llama.cpp refuses such files"
        ));
    } else if !in_order {
        warnings.push(
            "the tensors are not stored in the order of the header; llama.cpp refuses such files"
                .into(),
        );
    }

    let end = (data_start + covered).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    if file_len > end {
        warnings.push(format!("not read: {} after the data", counted(file_len - end, "byte")));
    }

    header.entries = sorted.into_iter().map(|(entry, _)| entry).collect();
    Ok(())
}

/// Checks an entry, and returns the end of its bytes in the data section.
fn check_entry(
    info: &TensorInfo,
    offset: u64,
    alignment: u64,
    data_start: u64,
    file_len: u64,
    big_endian: bool,
) -> Result<u64> {
    let len = info.byte_len()?;
    if big_endian && swap::numbers(info.dtype).is_none() {
        let message = format!(
            "{} has no defined byte order in big-endian files; convert the original model again",
            info.dtype
        );
        return Err(Error::version(message));
    }

    if !offset.is_multiple_of(alignment) {
        return Err(Error::format(format!(
            "its offset {offset} is not a multiple of the alignment of {alignment}"
        )));
    }

    let end = u128::from(data_start) + u128::from(offset) + u128::from(len);
    if end > u128::from(file_len) {
        let message =
            format!("its bytes reach to byte {end}, but the file is truncated to {file_len} bytes");
        return Err(Error::corrupt(message).at(data_start.saturating_add(offset)));
    }

    // It fits: with the data's start it is no more than the file's length.
    Ok(offset + len)
}

/// Returns `true` if the embedding also serves as output: llama.cpp uses the embedding if no output
/// is stored.
pub(crate) fn is_tied(tensors: &[TensorInfo]) -> bool {
    let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    has("token_embd.weight") && !has("output.weight")
}
