//! What the points come to.

use serde::Serialize;

use crate::points::{Category, Heading, Judged, POINTS, Point};

/// Version of the report.
const VERSION: u32 = 1;

/// Percent of the points from which on a model has each rating.
const RATINGS: [(usize, &str); 3] = [(90, "EXCELLENT"), (75, "GOOD"), (50, "FAIR")];
/// The rating of the others.
const LOWEST: &str = "POOR";

/// What became of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The claim holds, and what contradicts it is found where the point says so.
    Passed,
    /// It does not.
    Failed,
    /// It can't be judged of this model or by this program. Not counted as passed.
    NotApplicable,
}

/// A point that was judged.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct PointReport {
    /// From 1 to 100.
    pub number: u8,
    /// The name in the quality plan.
    pub name: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// The category of the quality plan.
    pub category: Category,
    /// The heading of the score.
    pub heading: Heading,
    /// What was judged.
    pub judged: Judged,
    /// What became of it.
    pub verdict: Verdict,
    /// What was done and seen, or why it does not apply.
    pub seen: String,
}

/// How many points of a heading passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Score {
    /// The heading.
    pub heading: Heading,
    /// Points that passed.
    pub passed: usize,
    /// Points that failed.
    pub failed: usize,
    /// Points that do not apply.
    pub not_applicable: usize,
    /// All of them.
    pub points: usize,
}

/// The points of a model.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Assessment {
    /// Version of this report: 1.
    pub version: u32,
    /// The model.
    pub path: String,
    /// The only category that was judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// The score: points that passed.
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
    /// The score in a word.
    pub rating: &'static str,
    /// The score that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_score: Option<usize>,
    /// The headings, in the order of the report.
    pub headings: Vec<Score>,
    /// The points, by number; none where only the score was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointReport>,
}

impl Assessment {
    pub(crate) fn of(file: &str, category: Option<Category>, points: Vec<PointReport>) -> Self {
        let count = |heading: Option<Heading>, verdict: Option<Verdict>| {
            let counts = |point: &&PointReport| {
                heading.is_none_or(|heading| point.heading == heading)
                    && verdict.is_none_or(|verdict| point.verdict == verdict)
            };
            points.iter().filter(counts).count()
        };
        let score = |heading: Heading| Score {
            heading,
            passed: count(Some(heading), Some(Verdict::Passed)),
            failed: count(Some(heading), Some(Verdict::Failed)),
            not_applicable: count(Some(heading), Some(Verdict::NotApplicable)),
            points: count(Some(heading), None),
        };
        let headings: Vec<Score> =
            Heading::ALL.into_iter().map(score).filter(|score| score.points > 0).collect();
        let (passed, total) = (count(None, Some(Verdict::Passed)), points.len());
        let elsewhere = points.iter().filter(|point| point.judged == Judged::Elsewhere).count();
        let percent = passed * 100 / total.max(1);
        let rating = RATINGS.iter().find(|(least, _)| percent >= *least);
        Self {
            version: VERSION,
            path: file.to_owned(),
            category,
            passed,
            failed: count(None, Some(Verdict::Failed)),
            not_applicable: count(None, Some(Verdict::NotApplicable)),
            total,
            attainable: total - elsewhere,
            rating: rating.map_or(LOWEST, |(_, word)| word),
            min_score: None,
            headings,
            points,
        }
    }

    /// The same with the score that is asked for.
    #[must_use]
    pub fn with_minimum(self, min_score: Option<usize>) -> Self {
        Self { min_score, ..self }
    }

    /// The same without the single points.
    #[must_use]
    pub fn without_points(self) -> Self {
        Self { points: Vec::new(), ..self }
    }

    /// Whether as many points passed as were asked for.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        self.min_score.is_none_or(|least| self.passed >= least)
    }
}

/// The points of a category, or all.
pub(crate) fn chosen(category: Option<Category>) -> impl Iterator<Item = &'static Point> {
    POINTS.iter().filter(move |point| category.is_none_or(|wanted| point.category() == wanted))
}
