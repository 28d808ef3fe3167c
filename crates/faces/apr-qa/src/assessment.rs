//! What the points come to.

use serde::Serialize;

use crate::points::{Category, Heading, Judged, LEARNT, POINTS, Point};

/// Scores from which on a model has each rating.
const RATINGS: [(usize, &str); 3] = [(90, "EXCELLENT"), (75, "GOOD"), (50, "FAIR")];
/// The rating of the others.
const LOWEST: &str = "POOR";

/// Points whose failure makes a model unfit, whatever else passes, and the most that it scores
/// then.
const CRITICAL: [(u8, usize); 18] = [
    // Damaged files.
    (4, 10),
    (9, 10),
    (14, 10),
    // NaN and infinity, in weights and in what they compute.
    (26, 20),
    (27, 20),
    (41, 20),
    (44, 20),
    // Weights that are not those of the model.
    (32, 30),
    (36, 40),
    (28, 50),
    (33, 50),
    (38, 50),
    (39, 50),
    // Weights that learnt nothing, or are not in their place.
    (101, 60),
    (102, 60),
    (103, 60),
    (104, 60),
    (105, 60),
];

/// Points whose failure is no damage: alignment, the repetition of tokens that the likeliest
/// continuation of a text often ends in, and the licence.
const ADVICE: [u8; 3] = [6, 45, 52];

/// Weights in the score of a point of [`ADVICE`], a critical one, and the others.
const WEIGHTS: [usize; 3] = [1, 12, 3];

/// Verdict on a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The claim holds, and counterexamples are detected if the point requires it.
    Passed,
    /// The claim does not hold.
    Failed,
    /// The point does not apply to this model, or this program can't check it. It does not count as
    /// passed.
    NotApplicable,
}

/// A point that was judged.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PointReport {
    /// Number of the point from 1 to 100, or from 101 for points beyond the plan.
    pub number: u8,
    /// The name in the quality plan.
    pub name: &'static str,
    /// Claim of the point.
    pub claim: &'static str,
    /// The category of the quality plan.
    pub category: Category,
    /// The heading of the score.
    pub heading: Heading,
    /// Subject of the point.
    pub judged: Judged,
    /// Verdict on the point.
    pub verdict: Verdict,
    /// Observation, or the reason why the point does not apply.
    pub seen: String,
}

/// A critical point that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Critical {
    /// Number of the point from 1 to 100, or from 101 for points beyond the plan.
    pub number: u8,
    /// The name in the quality plan.
    pub name: &'static str,
    /// The most that a model scores with it.
    pub cap: usize,
    /// Observation at the point.
    pub seen: String,
}

/// Number of points of a heading that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Score {
    /// Heading of the points.
    pub heading: Heading,
    /// Points that passed.
    pub passed: usize,
    /// Points that failed.
    pub failed: usize,
    /// Points that do not apply.
    pub not_applicable: usize,
    /// Number of all points.
    #[serde(rename = "point_count")]
    pub points: usize,
}

/// The points of a model.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Assessment {
    /// Path of the model.
    pub path: String,
    /// The only category that was judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// The model's score, from 0 to 100: the share of the points that it can fail and passed,
    /// critical ones with four times the weight of others, and advice with a third. It is no more
    /// than the failed critical points allow.
    /// `None` where no point that was judged is about the model.
    pub score: Option<usize>,
    /// The score in a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rating: Option<&'static str>,
    /// Critical points that failed, the worst first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub critical: Vec<Critical>,
    /// Points that passed, of the model and of the program.
    pub passed: usize,
    /// Points that failed.
    pub failed: usize,
    /// Points that do not apply.
    pub not_applicable: usize,
    /// All points that were judged: 100, or 25 of a category.
    pub total: usize,
    /// The most of them that can pass: the others take another program, or what this version does
    /// not have.
    pub attainable: usize,
    /// Required score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_score: Option<usize>,
    /// Required number of passed points.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_points: Option<usize>,
    /// The headings, in the order of the report.
    pub headings: Vec<Score>,
    /// Points by number; empty if only the score was requested.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointReport>,
    /// Points on what the model learnt. They are beyond the plan and count only for the score.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learnt: Vec<PointReport>,
}

impl Assessment {
    pub(crate) fn of(file: &str, category: Option<Category>, judged: Vec<PointReport>) -> Self {
        let critical = critical(&judged);
        let score = score_of(&judged)
            .map(|score| critical.iter().fold(score, |score, critical| score.min(critical.cap)));
        let is_of_plan = |point: &PointReport| usize::from(point.number) <= POINTS.len();
        let (points, learnt): (Vec<_>, Vec<_>) = judged.into_iter().partition(is_of_plan);
        let count = |heading: Option<Heading>, verdict: Option<Verdict>| {
            let counts = |point: &&PointReport| {
                heading.is_none_or(|heading| point.heading == heading)
                    && verdict.is_none_or(|verdict| point.verdict == verdict)
            };
            points.iter().filter(counts).count()
        };
        let of_heading = |heading: Heading| Score {
            heading,
            passed: count(Some(heading), Some(Verdict::Passed)),
            failed: count(Some(heading), Some(Verdict::Failed)),
            not_applicable: count(Some(heading), Some(Verdict::NotApplicable)),
            points: count(Some(heading), None),
        };
        let headings: Vec<Score> =
            Heading::ALL.into_iter().map(of_heading).filter(|score| score.points > 0).collect();
        let (passed, total) = (count(None, Some(Verdict::Passed)), points.len());
        let elsewhere = points.iter().filter(|point| point.judged == Judged::Elsewhere).count();
        let rating = |score: usize| {
            let rating = RATINGS.iter().find(|(least, _)| score >= *least);
            rating.map_or(LOWEST, |(_, word)| word)
        };
        Self {
            path: file.to_owned(),
            category,
            score,
            rating: score.map(rating),
            critical,
            passed,
            failed: count(None, Some(Verdict::Failed)),
            not_applicable: count(None, Some(Verdict::NotApplicable)),
            total,
            attainable: total - elsewhere,
            min_score: None,
            min_points: None,
            headings,
            points,
            learnt,
        }
    }

    /// Sets the required score.
    #[must_use]
    pub fn with_minimum(self, min_score: Option<usize>) -> Self {
        Self { min_score, ..self }
    }

    /// Sets the number of points that must pass.
    #[must_use]
    pub fn with_minimum_of_points(self, min_points: Option<usize>) -> Self {
        Self { min_points, ..self }
    }

    /// Removes the single points from the assessment.
    #[must_use]
    pub fn without_points(self) -> Self {
        Self { points: Vec::new(), learnt: Vec::new(), ..self }
    }

    /// Returns `true` if the score and the number of passed points meet the requirements.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.min_score.is_none_or(|least| self.score.is_some_and(|score| score >= least))
            && self.min_points.is_none_or(|least| self.passed >= least)
    }
}

/// The critical points that failed, the worst first.
fn critical(points: &[PointReport]) -> Vec<Critical> {
    let failed = points.iter().filter(|point| point.verdict == Verdict::Failed);
    let mut found: Vec<Critical> = failed
        .filter_map(|point| {
            let (_, cap) = CRITICAL.iter().find(|(number, _)| *number == point.number)?;
            let (number, name, seen) = (point.number, point.name, point.seen.clone());
            Some(Critical { number, name, cap: *cap, seen })
        })
        .collect();
    found.sort_by_key(|critical| (critical.cap, critical.number));
    found
}

/// Returns the share of passed points in percent, among the points that depend on the model.
///
/// These are the points about the model, and failed points about the program, since some of them
/// also examine the model.
fn score_of(points: &[PointReport]) -> Option<usize> {
    let weight = |point: &&PointReport| {
        let is_critical = CRITICAL.iter().any(|(number, _)| *number == point.number);
        let [advice, critical, usual] = WEIGHTS;
        match point.number {
            number if ADVICE.contains(&number) => advice,
            _ if is_critical => critical,
            _ => usual,
        }
    };
    let sum = |verdict: Verdict| -> usize {
        let is_such = |point: &&PointReport| point.verdict == verdict;
        let is_of_model = |point: &&PointReport| {
            matches!(point.judged, Judged::Model | Judged::Run) || verdict == Verdict::Failed
        };
        points.iter().filter(is_such).filter(is_of_model).map(|point| weight(&point)).sum()
    };
    let (passed, failed) = (sum(Verdict::Passed), sum(Verdict::Failed));
    (passed * 100).checked_div(passed + failed)
}

/// The points of a category, or all, by number.
pub(crate) fn chosen(category: Option<Category>) -> impl Iterator<Item = &'static Point> {
    POINTS
        .iter()
        .chain(&LEARNT)
        .filter(move |point| category.is_none_or(|wanted| point.category() == wanted))
}
