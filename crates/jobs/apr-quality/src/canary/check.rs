//! Giving the inputs of a canary to a model, and judging its answers.

use apr_core::{Error, Escaped};
use apr_run::{RunError, RunResult, Runner};
use serde::Serialize;

use super::answer::{Respondent, tokens_of};
use super::{
    Canary, CanaryCase, CanaryInput, CanaryModel, Expected, Load, Numbers, TokenProbability,
    Tolerance,
};
use crate::distance::l2_and_cosine;
use crate::error_rates::{edits, ratio};
use crate::perplexity::Done;

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CanaryReport {
    /// The model that was checked.
    pub path: String,
    /// The model that the answers were recorded with.
    pub recorded_with: String,
    /// Cases in the order of the canary file.
    pub cases: Vec<CaseReport>,
    /// `true` if all cases passed.
    pub passed: bool,
}

/// Answer of a model to one input.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct CaseReport {
    /// Input of the case.
    pub input: String,
    /// The expected answer, in words.
    pub expected: String,
    /// The answer when the case was recorded.
    pub original: String,
    /// The answer now.
    pub found: String,
    /// Share of the expected tokens that were generated, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_accuracy: Option<f64>,
    /// Insertions, deletions and changes of characters, divided by the expected characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub character_error_rate: Option<f64>,
    /// Largest change of a token's probability at the first position, or the change of the
    /// expected label's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability_change: Option<f64>,
    /// Largest change of the natural logarithm of a token's probability at the first position,
    /// where the tolerance has a bound of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob_change: Option<f64>,
    /// Least cosine similarity of the arrays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cosine: Option<f64>,
    /// Largest relative L2 distance of the arrays; infinite if one contains NaN or infinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relative_l2: Option<f64>,
    /// Failures; empty if the case passed.
    pub failures: Vec<String>,
}

impl CaseReport {
    /// Returns `true` if the answer matches the expected one within the tolerance.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Gives a model each input of a canary.
///
/// # Errors
/// [`RunError::Request`] for a model of another type or vocabulary than the canary's; E001 for
/// tokens that the vocabulary does not have; what loading the files and running the model end with.
pub fn check(
    runner: &Runner<'_>,
    file: &str,
    canary: &Canary,
    load: &Load<'_>,
    done: &mut Done<'_>,
) -> RunResult<CanaryReport> {
    check_model(&canary.model, &CanaryModel::of(file, runner.facts()))?;
    check_tokens(canary, runner.facts().vocabulary())?;
    let tokenizer = runner.tokenizer()?;
    let mut model = Respondent::of(runner);
    let mut cases = Vec::with_capacity(canary.cases.len());
    for (at, case) in canary.cases.iter().enumerate() {
        let sample = case.input.sample(&case.name, load)?;
        let found = model.answer(&case.input, &sample, case.max_tokens)?;
        let mut report = judge(case, &found);
        let input_tokens = tokens_of(tokenizer.as_ref(), &case.input)?;
        report.failures.extend(other_tokens(&case.input_tokens, &input_tokens));
        cases.push(report);
        done(at + 1);
    }
    let passed = cases.iter().all(CaseReport::passed);
    Ok(CanaryReport {
        path: file.to_owned(),
        recorded_with: canary.model.file.clone(),
        cases,
        passed,
    })
}

/// Refuses tokens that the vocabulary does not have: a canary file may name any.
fn check_tokens(canary: &Canary, vocabulary: Option<usize>) -> RunResult<()> {
    let Some(size) = vocabulary else { return Ok(()) };
    for case in &canary.cases {
        let CanaryInput::Tokens { ids } = &case.input else { continue };
        let beyond = |id: &&i64| usize::try_from(**id).map_or(true, |id| id >= size);
        if let Some(id) = ids.iter().find(beyond) {
            return Err(Error::format(format!(
                "the canary '{}' has token {id}, and the vocabulary has {size}",
                Escaped::short(&case.name)
            ))
            .into());
        }
    }
    Ok(())
}

/// Refuses a model that the canary was not made for.
fn check_model(recorded: &CanaryModel, found: &CanaryModel) -> RunResult<()> {
    if let (Some(recorded), Some(found)) = (&recorded.model_type, &found.model_type)
        && recorded != found
    {
        return Err(RunError::request(format!(
            "the canary was recorded with a model of type '{}', and this one is '{}'",
            Escaped(recorded),
            Escaped(found)
        )));
    }
    if let (Some(recorded), Some(found)) = (recorded.vocab_size, found.vocab_size)
        && recorded != found
    {
        return Err(RunError::request(format!(
            "the canary was recorded with a vocabulary of {recorded} tokens, but this model has \
             {found}"
        )));
    }
    Ok(())
}

/// Returns the failure of a tokenizer that makes other tokens of the input.
fn other_tokens(recorded: &[i64], found: &[i64]) -> Option<String> {
    if recorded.is_empty() || found.is_empty() || recorded == found {
        return None;
    }
    let differ = |at: &usize| recorded.get(*at) != found.get(*at);
    let at = (0..recorded.len().max(found.len())).find(differ)?;
    let [was, is] = [recorded, found]
        .map(|ids| ids.get(at).map_or_else(|| "no token".to_owned(), |id| format!("token {id}")));
    Some(format!("the tokenizer reads the input differently: {was} at position {at} is now {is}"))
}

fn judge(case: &CanaryCase, found: &Expected) -> CaseReport {
    let mut report = CaseReport {
        input: case.name.clone(),
        expected: in_words(&case.expected),
        original: case.original.clone().unwrap_or_else(|| in_words(&case.expected)),
        found: in_words(found),
        ..CaseReport::default()
    };
    let tolerance = case.tolerance;
    match (&case.expected, found) {
        (Expected::Text { .. }, Expected::Text { .. }) => {
            judge_text(&mut report, &case.expected, found, tolerance);
        }
        (Expected::Labels { labels: expected }, Expected::Labels { labels }) => {
            let Some(best) = expected.first() else { return report };
            let score = labels.iter().find(|one| one.label == best.label).map(|one| one.score);
            let change = score.unwrap_or(0.0) - best.score;
            report.probability_change = Some(change);
            if labels.first().is_none_or(|first| first.label != best.label) {
                report.failures.push("the likeliest label differs".to_owned());
            }
            within(&mut report, "the probability of the label", change, tolerance);
        }
        (Expected::Tokens { tokens: expected }, Expected::Tokens { tokens }) => {
            let accuracy = accuracy(expected, tokens);
            report.token_accuracy = Some(accuracy);
            if expected != tokens {
                report.failures.push("the tokens differ".to_owned());
            }
        }
        (Expected::Arrays { arrays: expected }, Expected::Arrays { arrays }) => {
            judge_arrays(&mut report, expected, arrays, tolerance);
        }
        _ => report.failures.push("the answer is of another kind".to_owned()),
    }
    report
}

/// Adds a failure if a change is larger than the tolerance, or NaN.
fn within(report: &mut CaseReport, what: &str, change: f64, tolerance: Tolerance) {
    let most = tolerance.probability;
    if change.is_nan() || change.abs() > most {
        report.failures.push(format!("{what} changed by {change:+.4}, and {most} is allowed"));
    }
}

fn judge_text(report: &mut CaseReport, expected: &Expected, found: &Expected, most: Tolerance) {
    let Expected::Text { text: expected, tokens: expected_tokens, first: expected_first } =
        expected
    else {
        return;
    };
    let Expected::Text { text, tokens, first } = found else { return };

    // Models differ in the spaces and line breaks that they end with, which nobody reads.
    let rate = error_rate(expected.trim(), text.trim());
    report.character_error_rate = Some(rate);
    if rate > most.character_error_rate {
        report.failures.push(format!(
            "the character error rate is {:.1} %, and {:.1} % is allowed",
            100.0 * rate,
            100.0 * most.character_error_rate
        ));
    }
    if !expected_tokens.is_empty() {
        report.token_accuracy = Some(accuracy(expected_tokens, tokens));
    }
    if expected_first.is_empty() || first.is_empty() {
        return;
    }

    // A token that the model does not list is at most as likely as the last that it lists.
    let least = least_logprob(first);
    let change = |one: &TokenProbability| {
        let other = first.iter().find(|other| other.id == one.id);
        let at_most = || least.min(one.logprob);
        other.map_or_else(at_most, |other| other.logprob).exp() - one.logprob.exp()
    };
    let changes = expected_first.iter().map(change);
    let worst = changes.max_by(|one, other| one.abs().total_cmp(&other.abs())).unwrap_or(0.0);
    report.probability_change = Some(worst);
    within(report, "a probability at the first position", worst, most);
    if let Some(allowed) = most.logprob {
        judge_logprobs(report, expected_first, first, allowed);
    }
    let same = |lists: [&[TokenProbability]; 2]| {
        let [left, right] = lists.map(|list| list.first().map(|one| one.id));
        left == right
    };
    if !same([expected_first, first]) {
        report.failures.push("the likeliest first token differs".to_owned());
    }
}

/// Returns the log probability of the least likely token of a list.
fn least_logprob(list: &[TokenProbability]) -> f64 {
    list.iter().map(|one| one.logprob).fold(f64::INFINITY, f64::min)
}

/// Adds a failure if the logarithm of a probability changed by more than `allowed`.
///
/// For a token in only one of the lists, the other model's value is at most that of its last token.
fn judge_logprobs(
    report: &mut CaseReport,
    expected: &[TokenProbability],
    found: &[TokenProbability],
    allowed: f64,
) {
    let least = least_logprob(found);
    let change = |one: &TokenProbability| {
        let other = found.iter().find(|other| other.id == one.id);
        other.map_or((one.logprob - least).max(0.0), |other| (other.logprob - one.logprob).abs())
    };
    let worst = expected.iter().map(change).fold(0.0, f64::max);
    report.logprob_change = Some(worst);
    if worst > allowed {
        report.failures.push(format!(
            "a log probability at the first position changed by {worst:.4}; the limit is \
             {allowed}"
        ));
    }
}

fn judge_arrays(report: &mut CaseReport, expected: &[Numbers], found: &[Numbers], most: Tolerance) {
    for array in expected {
        let Some(other) = found.iter().find(|other| other.name == array.name) else {
            report.failures.push(format!("output '{}' is missing", Escaped::short(&array.name)));
            continue;
        };
        if other.shape != array.shape {
            report.failures.push(format!(
                "output '{}' has shape {:?} and not {:?}",
                Escaped::short(&array.name),
                other.shape,
                array.shape
            ));
            continue;
        }
        let (l2, cosine) = l2_and_cosine(&array.values, &other.values);
        report.cosine = Some(report.cosine.map_or(cosine, |least| least.min(cosine)));
        report.relative_l2 = Some(report.relative_l2.map_or(l2, |most| most.max(l2)));
        if l2 > most.relative_l2 {
            report.failures.push(format!(
                "the relative L2 distance of '{}' is {l2:.4}, and {} is allowed",
                Escaped::short(&array.name),
                most.relative_l2
            ));
        }
        if cosine.is_nan() || cosine < most.cosine {
            report.failures.push(format!(
                "the cosine similarity of '{}' is {cosine:.4}, and {} is required",
                Escaped::short(&array.name),
                most.cosine
            ));
        }
    }
}

/// Returns the character error rate: edits divided by the number of expected characters.
///
/// If no characters are expected, this is the number of edits.
fn error_rate(expected: &str, found: &str) -> f64 {
    let [expected, found] = [expected, found].map(|text| text.chars().collect::<Vec<_>>());
    edit_rate(&expected, &found)
}

/// Returns the share of the expected items that were found: 1 minus the edit rate, at least 0.
fn accuracy<T: PartialEq>(expected: &[T], found: &[T]) -> f64 {
    (1.0 - edit_rate(expected, found)).max(0.0)
}

/// Returns the number of edits divided by the number of expected items.
///
/// If no items are expected, this is the number of edits.
fn edit_rate<T: PartialEq>(expected: &[T], found: &[T]) -> f64 {
    ratio(edits(expected, found), expected.len().max(1))
}

/// An answer as a line of text.
fn in_words(answer: &Expected) -> String {
    match answer {
        Expected::Text { text, .. } => text.clone(),
        Expected::Labels { labels } => labels
            .first()
            .map(|one| format!("{} ({:.1} %)", one.label, 100.0 * one.score))
            .unwrap_or_default(),
        Expected::Tokens { tokens } => tokens.join(" "),
        Expected::Arrays { arrays } => arrays
            .iter()
            .map(|array| format!("{} {:?}", array.name, array.shape))
            .collect::<Vec<_>>()
            .join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CanaryInput, LabelScore, TokenProbability};
    use super::*;

    fn case(expected: Expected) -> CanaryCase {
        CanaryCase {
            name: "one".to_owned(),
            input: CanaryInput::text("x"),
            input_tokens: Vec::new(),
            max_tokens: None,
            original: None,
            expected,
            tolerance: Tolerance::default(),
        }
    }

    fn text(text: &str, first: &[(i64, f64)]) -> Expected {
        let first = first.iter().map(|&(id, logprob)| TokenProbability { id, logprob }).collect();
        let tokens = text.bytes().map(i64::from).collect();
        Expected::Text { text: text.to_owned(), tokens, first }
    }

    #[test]
    fn tokens_of_the_input_are_compared_if_both_are_known() {
        assert_eq!(other_tokens(&[1, 2], &[1, 2]), None);
        assert_eq!(other_tokens(&[], &[1, 2]), None, "an older file");
        assert_eq!(other_tokens(&[1, 2], &[]), None, "no tokenizer");
        let said = |recorded: &[i64], found: &[i64]| other_tokens(recorded, found).unwrap();
        let exchanged = "the tokenizer reads the input differently: token 2 at position 1 is now ";
        assert_eq!(said(&[1, 2], &[1, 3]), format!("{exchanged}token 3"));
        assert_eq!(said(&[1, 2], &[1]), format!("{exchanged}no token"));
    }

    #[test]
    fn a_text_is_judged_by_its_characters() {
        let expected = case(text("kitten", &[(1, -0.1), (2, -3.0)]));
        let same = judge(&expected, &text("kitten", &[(1, -0.2), (3, -3.0)]));
        assert!(same.passed() && same.token_accuracy == Some(1.0), "{same:?}");

        // jiwer.cer("kitten", "sitting") == 0.5
        let other = judge(&expected, &text("sitting", &[(2, -0.1), (1, -3.0)]));
        assert_eq!(other.character_error_rate, Some(0.5));
        assert_eq!(other.failures.len(), 3, "{other:?}");
    }

    #[test]
    fn a_token_that_is_no_longer_listed_is_at_most_as_likely_as_the_last() {
        // Probabilities of 1.0 and 0.0002 became at most 0.0001 and 0.0004.
        let expected = case(text("4", &[(1, 0.0), (2, -8.517)]));
        let found = judge(&expected, &text("4", &[(3, -0.001), (2, -7.824), (4, -9.210)]));
        let change = found.probability_change.unwrap();
        assert!((change + 0.9999).abs() < 1e-4, "{change}");
        assert!(found.failures.iter().any(|it| it.contains("first position changed by -0.9999")));
        // The last of A may be as likely as the last of B.
        let found = judge(&expected, &text("4", &[(1, 0.0), (3, -8.5)]));
        assert_eq!((found.probability_change, found.failures.len()), (Some(0.0), 0));
    }

    #[test]
    fn a_strict_canary_accepts_only_rounding() {
        let mut expected = case(text("six", &[(1, -0.1), (2, -3.0), (3, -5.0)]));
        let found = |third: (i64, f64)| text("six", &[(1, -0.1001), (2, -3.0), third]);
        assert!(judge(&expected, &found((3, -5.5))).passed(), "far below what is usual");
        expected.tolerance = Tolerance::strict();
        assert!(judge(&expected, &found((3, -5.001))).passed());
        assert!(judge(&expected, &found((4, -4.999))).passed(), "the third is as likely");
        let changed = judge(&expected, &found((3, -5.0625)));
        assert_eq!(
            (changed.logprob_change, changed.failures.len()),
            (Some(0.0625), 1),
            "{changed:?}"
        );
        assert!(!judge(&expected, &found((4, -5.5))).passed(), "the third is less likely");
    }

    #[test]
    fn a_label_is_judged_by_its_name_and_its_probability() {
        let of = |label: &str, score| LabelScore { label: label.to_owned(), score };
        let expected = case(Expected::Labels { labels: vec![of("a", 0.9), of("b", 0.1)] });
        let found = |a, b| Expected::Labels {
            labels: if a > b { vec![of("a", a), of("b", b)] } else { vec![of("b", b), of("a", a)] },
        };
        assert!(judge(&expected, &found(0.85, 0.15)).passed());
        assert_eq!(judge(&expected, &found(0.7, 0.3)).failures.len(), 1);
        assert_eq!(judge(&expected, &found(0.2, 0.8)).failures.len(), 2);
        assert!(!judge(&expected, &text("a", &[])).passed(), "another kind");
    }

    #[test]
    fn arrays_are_judged_by_their_direction_and_their_length() {
        let array = |values: &[f32]| Expected::Arrays {
            arrays: vec![Numbers {
                name: "embedding".to_owned(),
                shape: vec![values.len()],
                values: values.to_vec(),
            }],
        };
        let expected = case(array(&[1.0, 0.0]));
        assert!(judge(&expected, &array(&[0.99, 0.05])).passed());
        assert!(!judge(&expected, &array(&[0.5, 0.5])).passed());
        let longer = judge(&expected, &array(&[1.2, 0.0]));
        assert!(!longer.passed() && longer.cosine == Some(1.0), "{longer:?}");
        let mut lenient = expected.clone();
        lenient.tolerance.relative_l2 = 0.25;
        assert!(judge(&lenient, &array(&[1.2, 0.0])).passed());
        assert!(!judge(&expected, &array(&[f32::NAN, 0.5])).passed());
        assert!(!judge(&expected, &array(&[1.0])).passed(), "another shape");
    }
}
