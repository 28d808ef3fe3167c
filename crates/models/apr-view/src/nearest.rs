//! Names like the one that was typed.

/// Names of more bytes are compared for equality only: the comparison of two names takes time
/// proportional to the product of their lengths.
const LONGEST: usize = 300;

/// Returns the candidates that `name` may mean, best first, at most `count`: [`slips`] of the keys,
/// names that begin with it or contain it, and paths that end with a slip of it or have its words
/// in this order.
///
/// It returns nothing instead of names that are merely the least unlike.
///
/// ```
/// use apr_view::nearest;
///
/// let names = ["encoder.0.conv1.weight", "decoder.norm.bias"];
/// assert_eq!(nearest("encoder.0.conv.weight", names, 3), ["encoder.0.conv1.weight"]);
/// assert_eq!(nearest("conv1.weight", names, 3), ["encoder.0.conv1.weight"]);
/// assert_eq!(nearest("decoder.bias", names, 3), ["decoder.norm.bias"]);
/// assert_eq!(nearest("norm.bais", names, 3), ["decoder.norm.bias"]);
/// assert!(nearest("lm_head", names, 3).is_empty());
/// ```
pub fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    best(name, candidates, count, |candidate| {
        is_slip(name, candidate)
            || end(candidate, words(name).count()).is_some_and(|end| is_slip(name, end))
            || holds(name, candidate)
            || has_words(name, candidate)
    })
}

/// Returns the [`nearest`] candidates, or if none is near, the first ones as examples.
///
/// A reader who does not know what the names look like learns it from any of them.
///
/// ```
/// let names = ["lm_head.weight", "model.norm.weight"];
/// assert_eq!(apr_view::nearest_or_first("norm", names, 1), ["model.norm.weight"]);
/// assert_eq!(apr_view::nearest_or_first("zzz", names, 1), ["lm_head.weight"]);
/// ```
pub fn nearest_or_first<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let near = nearest(name, candidates.iter().copied(), count);
    if near.is_empty() { candidates.into_iter().take(count).collect() } else { near }
}

/// Returns the candidates that are `name` with a slip of the keys, best first, at most `count`.
///
/// A slip is one edit in three letters or more, or two in nine or more, that leaves the first
/// letter. Case, `_` and `-` do not count. Long paths, as of tensors, may differ more.
///
/// ```
/// use apr_view::slips;
///
/// assert_eq!(slips("percision", ["revision", "precision"], 3), ["precision"]);
/// assert_eq!(slips("top_k", ["top", "top-k"], 1), ["top-k"]);
/// assert!(slips("stats", ["steps", "status-only"], 3).is_empty());
/// ```
pub fn slips<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    best(name, candidates, count, |candidate| is_slip(name, candidate))
}

/// Returns the files that a path may mean, best first, at most `count`: another extension of its
/// name, a slip of the keys in the name, a name that goes on, or the name in another folder.
///
/// An extension that two files share makes them no more alike.
///
/// ```
/// use apr_view::nearest_files;
///
/// let names = ["model.safetensors", "one.safetensors"];
/// assert_eq!(nearest_files("modle.safetensors", names, 3), ["model.safetensors"]);
/// assert_eq!(nearest_files("model.gguf", names, 3), ["model.safetensors"]);
/// assert!(nearest_files("none.safetensors", names, 3).is_empty());
/// ```
pub fn nearest_files<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    let (stem, extension) = parts(name);
    best(name, candidates, count, |candidate| {
        let (other, its_extension) = parts(candidate);
        let is_same_kind = extension.eq_ignore_ascii_case(its_extension);
        let in_folder = candidate.strip_suffix(name).is_some_and(|folder| folder.ends_with('/'));
        folded(stem) == folded(other)
            || (is_same_kind && (is_slip(stem, other) || begins(stem, other)))
            || in_folder
    })
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

/// Returns the candidates that `is_near` accepts, most similar first.
fn best<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
    is_near: impl Fn(&str) -> bool,
) -> Vec<&'a str> {
    let near = candidates.into_iter().filter(|candidate| is_near(candidate));
    let mut scored: Vec<_> =
        near.map(|candidate| (similarity(name, candidate), candidate)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// Returns `true` if a slip of the keys makes one name of the other.
fn is_slip(name: &str, candidate: &str) -> bool {
    /// Words of two letters are all near each other.
    const SHORT: usize = 2;
    /// Letters from which two edits are still a slip.
    const LONG: usize = 9;
    /// Letters from which the edits of a path may be this share of it.
    const PATH: usize = 16;
    const SHARE: (usize, usize) = (2, 5);

    if name.len().max(candidate.len()) > LONGEST {
        return name == candidate;
    }
    let is_path = name.contains(['.', '/']);
    let (name, candidate) = (folded(name), folded(candidate));
    let len = name.chars().count();
    let is_short = len.min(candidate.chars().count()) <= SHORT;
    let is_long = is_path && len >= PATH;
    let most = match len {
        _ if is_short => 0,
        _ if is_long => len * SHARE.0 / SHARE.1,
        ..LONG => 1,
        _ => 2,
    };
    let begins_alike = name.chars().next() == candidate.chars().next();
    (begins_alike || is_long) && strsim::damerau_levenshtein(&name, &candidate) <= most
}

/// Returns `true` if a candidate begins with what was typed, or contains it.
fn holds(name: &str, candidate: &str) -> bool {
    begins(name, candidate) || (name.len() > 2 && candidate.contains(name))
}

/// Returns `true` if a candidate is a longer name than what was typed.
fn begins(name: &str, candidate: &str) -> bool {
    name.len() > 1 && folded(candidate).starts_with(&folded(name))
}

/// Returns `true` if a path has all words of another in their order.
fn has_words(name: &str, candidate: &str) -> bool {
    let mut theirs = words(candidate);
    words(name).count() > 1 && words(name).all(|word| theirs.any(|other| other == word))
}

fn words(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '/']).filter(|word| !word.is_empty())
}

/// Returns the last words of a path that has more of them.
fn end(path: &str, count: usize) -> Option<&str> {
    let mut separators = path.rmatch_indices(['.', '/']);
    let (at, _) = separators.nth(count.checked_sub(1)?)?;
    Some(&path[at + 1..])
}

/// Splits a path at the extension; numbers after a dot, as of versions, are none.
fn parts(path: &str) -> (&str, &str) {
    let is_extension = |end: &str| end.starts_with(|c: char| c.is_ascii_alphabetic());
    match path.rsplit_once('.') {
        Some((stem, end)) if !stem.is_empty() && is_extension(end) && !end.contains('/') => {
            (stem, end)
        }
        _ => (path, ""),
    }
}

/// Returns a name without what is easily mistaken in it: case, `_` and `-`.
fn folded(name: &str) -> String {
    name.chars().filter(|c| !['_', '-'].contains(c)).flat_map(char::to_lowercase).collect()
}

/// Returns the similarity of two names, ignoring case; 1 means equal.
fn similarity(name: &str, candidate: &str) -> f64 {
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
        assert!(slips(&left, [right.as_str()], 1).is_empty());
    }

    #[test]
    fn names_that_are_merely_the_least_unlike_are_not_meant() {
        let cases: [(&str, &[&str]); 7] = [
            ("revision", &["precision"]),
            ("filter", &["file"]),
            ("top", &["to"]),
            ("name", &["rename"]),
            ("scale", &["shape"]),
            ("foo", &["f16", "f32", "fp8", "model.norm.weight", "final_norm/root"]),
            ("zzz", &["lm_head.weight"]),
        ];
        for (typed, names) in cases {
            assert!(slips(typed, names.iter().copied(), 3).is_empty(), "{typed}");
        }
        for (typed, names) in [cases[5], cases[6]] {
            assert!(nearest(typed, names.iter().copied(), 3).is_empty(), "{typed}");
        }
    }

    #[test]
    fn an_extension_alone_makes_no_file_similar() {
        let names =
            ["one.safetensors", "di.apr", "bom.json", "p.json", "merged.apr", "Qwen2.5-0.5B"];
        for typed in ["none.safetensors", "wm.apr", "ids.json", "nope.json", "merge.yml"] {
            assert!(nearest_files(typed, names, 1).is_empty(), "{typed}");
        }
        for (typed, expected) in [
            ("merged.gguf", "merged.apr"),
            ("merge.apr", "merged.apr"),
            ("mergde.apr", "merged.apr"),
            ("Qwen2.5-05B", "Qwen2.5-0.5B"),
        ] {
            assert_eq!(nearest_files(typed, names, 1), [expected], "{typed}");
        }
        assert_eq!(nearest_files("model.onnx", ["onnx/model.onnx"], 1), ["onnx/model.onnx"]);
    }
}
