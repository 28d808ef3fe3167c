//! Names like the one that was typed.

/// Returns the candidates that may be meant by `name`, as [`nearest`](nearest()) does, or if there
/// is none, the least unlike candidates.
pub fn closest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let near = nearest(name, candidates.iter().copied(), count);
    if !near.is_empty() {
        return near;
    }
    let mut scored: Vec<_> =
        candidates.into_iter().map(|candidate| (similarity(name, candidate), candidate)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// The candidates most like `name`, best first, at most `count`; none that are too far off to be
/// meant.
///
/// ```
/// let names = ["encoder.conv1.weight", "decoder.norm.bias"];
/// assert_eq!(apr_view::nearest("encoder.conv.weight", names, 3), ["encoder.conv1.weight"]);
/// ```
pub fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    /// Similarity below which a name was not meant; 1 is equal.
    const LEAST: f64 = 0.6;
    let mut scored: Vec<_> = candidates
        .into_iter()
        .map(|candidate| (similarity(name, candidate), candidate))
        .filter(|&(score, candidate)| {
            score >= LEAST || (name.len() > 2 && candidate.contains(name))
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// Returns the end of a message about an unknown name: the names that are similar to it, or all
/// known names.
///
/// ```
/// use apr_view::meant;
///
/// assert_eq!(meant("linaer", &["linear", "ties"]), "did you mean linear?");
/// assert_eq!(meant("x", &["linear", "ties"]), "one of: linear, ties");
/// ```
#[must_use]
pub fn meant(name: &str, known: &[&str]) -> String {
    match &*nearest(name, known.iter().copied(), 3) {
        [] => format!("one of: {}", known.join(", ")),
        similar => format!("did you mean {}?", similar.join(", ")),
    }
}

/// Returns the similarity of two names, ignoring case; 1 means equal.
///
/// Very long names are only tested for equality, because the full comparison takes time
/// proportional to the product of the lengths.
fn similarity(name: &str, candidate: &str) -> f64 {
    const LONGEST: usize = 300;
    match name.len().max(candidate.len()) > LONGEST {
        true => f64::from(u8::from(name == candidate)),
        false => {
            let (name, candidate) = (name.to_lowercase(), candidate.to_lowercase());
            strsim::normalized_damerau_levenshtein(&name, &candidate)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_is_ignored() {
        assert_eq!(nearest("TINY/lama", ["tiny/llama", "org/bert"], 3), ["tiny/llama"]);
    }

    #[test]
    fn names_of_megabytes_are_compared_quickly() {
        let (left, right) = ("a".repeat(4 << 20), "b".repeat(4 << 20));
        assert_eq!(nearest(&left, [right.as_str(), left.as_str()], 3), [left.as_str()]);
        assert_eq!(closest(&left, [right.as_str()], 1).len(), 1);
    }
}
