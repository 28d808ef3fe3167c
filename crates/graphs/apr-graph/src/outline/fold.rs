//! Equal neighbours become one.

/// Longest pattern of neighbours that is looked for.
const LONGEST: usize = 8;

/// A stretch of neighbours that becomes one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// Position of the first.
    pub(super) start: usize,
    /// Length of the pattern.
    pub(super) period: usize,
    /// Number of repetitions.
    pub(super) times: usize,
}

/// Splits neighbours into runs of repeated patterns.
///
/// Neighbours are equal if their signatures are equal; `None` does not equal anything.
pub(super) fn runs(signatures: &[Option<u64>]) -> Vec<Run> {
    let mut runs = Vec::new();
    let mut start = 0;
    while start < signatures.len() {
        let run = best(signatures, start);
        start += run.period * run.times;
        runs.push(run);
    }
    runs
}

/// The pattern from `start` on that covers most; the shortest of those.
fn best(signatures: &[Option<u64>], start: usize) -> Run {
    let mut best = Run { start, period: 1, times: 1 };
    // The pattern has to fit twice.
    for period in 1..=LONGEST.min((signatures.len() - start) / 2) {
        let pattern = &signatures[start..start + period];
        if pattern.contains(&None) {
            break;
        }
        let times =
            signatures[start..].chunks_exact(period).take_while(|chunk| *chunk == pattern).count();
        if times > 1 && period * times > best.period * best.times {
            best = Run { start, period, times };
        }
    }
    best
}

/// Splits a name at its last number: `layers.3` becomes `layers.`, 3 and an empty rest.
pub(super) fn numbered(name: &str) -> Option<(&str, u64, &str)> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end]
        .rfind(|c: char| !c.is_ascii_digit())
        .map_or(0, |before| before + name[before..].chars().next().map_or(1, char::len_utf8));
    Some((&name[..start], name[start..end].parse().ok()?, &name[end..]))
}

/// The name of neighbours from one to another: `layers.0-79`.
pub(super) fn range(first: &str, last: &str) -> String {
    match (numbered(first), numbered(last)) {
        (Some((before, from, after)), Some((same_before, to, same_after)))
            if (before, after) == (same_before, same_after) && from != to =>
        {
            format!("{before}{from}-{to}{after}")
        }
        _ if first == last => first.to_owned(),
        _ => format!("{first}-{last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(text: &str) -> Vec<Option<u64>> {
        text.bytes().map(|byte| (byte != b'.').then_some(u64::from(byte))).collect()
    }

    fn shown(text: &str) -> Vec<(usize, usize, usize)> {
        runs(&signed(text)).iter().map(|run| (run.start, run.period, run.times)).collect()
    }

    #[test]
    fn equal_neighbours_are_one_run() {
        assert_eq!(shown("aaab"), [(0, 1, 3), (3, 1, 1)]);
        assert_eq!(shown("..aa"), [(0, 1, 1), (1, 1, 1), (2, 1, 2)]);
    }

    #[test]
    fn a_pattern_that_comes_again_is_one_run() {
        assert_eq!(shown("aaabaaabaaab"), [(0, 4, 3)]);
        assert_eq!(shown("ababc"), [(0, 2, 2), (4, 1, 1)]);
    }

    #[test]
    fn names_with_numbers_make_a_range() {
        assert_eq!(range("layers.0", "layers.79"), "layers.0-79");
        assert_eq!(range("present.0.key", "present.3.key"), "present.0-3.key");
        assert_eq!(range("a", "b"), "a-b");
        assert_eq!(numbered("ß12"), Some(("ß", 12, "")));
        assert_eq!(numbered("none"), None);
    }
}
