//! Prompts out of a text, that show as many of its tokens as so many prompts can.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use apr_registry::Result;

/// Characters of the longest prompt.
const LONGEST: usize = 400;

/// Lines of a text that were chosen as prompts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChosenPrompts {
    /// Prompts in the order of the tokens that they add, most first.
    pub prompts: Vec<String>,
    /// Different tokens in them.
    pub covered: usize,
    /// Different tokens of the text.
    pub tokens: usize,
}

/// Chooses up to `count` lines of a text, each of which adds the most tokens that no line before it
/// has. A line is cut at 400 characters.
///
/// Canaries that ask for one token twice find nothing new; exchanged rows of an embedding are found
/// where a prompt has one of their tokens.
///
/// ```
/// let letters = |line: &str| Ok(line.bytes().map(i64::from).collect());
/// let chosen = apr_quality::choose_prompts("aab\nabcd\nefg\n\n", 2, letters)?;
/// assert_eq!(chosen.prompts, ["abcd", "efg"]);
/// assert_eq!((chosen.covered, chosen.tokens), (7, 7));
/// # Ok::<(), apr_registry::Error>(())
/// ```
///
/// # Errors
/// What `encode` ends with.
pub fn choose_prompts(
    text: &str,
    count: usize,
    encode: impl Fn(&str) -> Result<Vec<i64>>,
) -> Result<ChosenPrompts> {
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let line = line.char_indices().nth(LONGEST).map_or(line, |(at, _)| &line[..at]);
        let ids: HashSet<i64> = encode(line)?.into_iter().collect();
        lines.push((line, ids));
    }
    let all: HashSet<i64> = lines.iter().flat_map(|(_, ids)| ids).copied().collect();

    // What a line adds only becomes less, so that one whose count is current is the best.
    let entry = |gain: usize, at: usize| (gain, Reverse(at));
    let mut waiting: BinaryHeap<_> =
        lines.iter().enumerate().map(|(at, (_, ids))| entry(ids.len(), at)).collect();
    let (mut covered, mut prompts) = (HashSet::new(), Vec::new());
    while prompts.len() < count
        && let Some((stated, Reverse(at))) = waiting.pop()
    {
        let (line, ids) = &lines[at];
        let gain = ids.difference(&covered).count();
        if gain == 0 {
            continue;
        }
        if gain < stated {
            waiting.push(entry(gain, at));
            continue;
        }
        covered.extend(ids);
        prompts.push((*line).to_owned());
    }
    Ok(ChosenPrompts { prompts, covered: covered.len(), tokens: all.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(text: &str, count: usize) -> ChosenPrompts {
        choose_prompts(text, count, |line| Ok(line.bytes().map(i64::from).collect())).unwrap()
    }

    #[test]
    fn lines_that_add_no_token_are_skipped() {
        let found = chosen("abc\nabc\ncba\nd\n", 20);
        assert_eq!(found.prompts, ["abc", "d"]);
        assert_eq!((found.covered, found.tokens), (4, 4));
    }

    #[test]
    fn the_tokens_that_a_line_adds_are_recounted() {
        // The second line has four letters, and adds one to the first.
        let found = chosen("abcde\nbcdf\nxyz\n", 2);
        assert_eq!(found.prompts, ["abcde", "xyz"]);
        assert_eq!((found.covered, found.tokens), (8, 9));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let found = chosen(&"ß".repeat(500), 1);
        assert_eq!(found.prompts[0].chars().count(), LONGEST);
        assert_eq!(chosen("\n \n", 3).prompts, Vec::<String>::new());
    }
}
