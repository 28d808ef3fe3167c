//! Names that may have been meant.

/// The names most like one that is not there, best first.
pub(crate) fn nearest<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str>,
    count: usize,
) -> Vec<String> {
    /// Below this, two names have nothing in common.
    const LEAST: f64 = 0.6;
    let lower = name.to_lowercase();
    let mut scored: Vec<(f64, &str)> =
        known.map(|known| (strsim::jaro_winkler(&lower, &known.to_lowercase()), known)).collect();
    scored.retain(|(score, _)| *score >= LEAST);
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(count).map(|(_, name)| name.to_owned()).collect()
}
