//! Parts of a split model: what they are called, and what their pairs say of them.

use apr_core::KeyValues;

use crate::open_file::OpenFile;

/// Position of the part, from 0; u16.
pub(crate) const NUMBER: &str = "split.no";
/// Number of parts; u16. A model that was put together again has 0 there.
pub(crate) const COUNT: &str = "split.count";
/// Tensors in all parts; i32.
pub(crate) const TENSORS: &str = "split.tensors.count";

/// Number of a part and of all parts, as the pairs of its file state them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitPart {
    /// Number of the part, from 0.
    pub(crate) number: u64,
    pub(crate) count: u64,
}

impl SplitPart {
    pub(crate) fn of(file: &OpenFile) -> Option<Self> {
        let number = file.pair(NUMBER).and_then(|value| value.as_u64()).unwrap_or_default();
        Some(Self { number, count: file.pair(COUNT)?.as_u64()? })
    }
}

/// Returns `true` if the pairs belong to a part of a split model.
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
pub(crate) fn parse_name(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        let plain = text.len() == 5 && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse().ok().filter(|_| plain)
    };
    Some((stem, digits(number)?, digits(count)?))
}

/// Returns `true` if a file has the name of a part of a split model, `NAME-00001-of-00003.gguf`.
///
/// ```
/// assert!(apr_gguf::is_part_name("llama-00002-of-00003.gguf"));
/// assert!(!apr_gguf::is_part_name("llama.gguf"));
/// ```
#[must_use]
pub fn is_part_name(name: &str) -> bool {
    parse_name(name).is_some()
}
