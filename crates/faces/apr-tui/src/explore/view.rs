//! The views of a model.

/// The views, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Tensors,
    Stats,
    Histogram,
    Values,
    Graph,
    Compare,
    Checks,
    Vocabulary,
    Trace,
}

impl View {
    const ALL: [Self; 9] = [
        Self::Tensors,
        Self::Stats,
        Self::Histogram,
        Self::Values,
        Self::Graph,
        Self::Compare,
        Self::Checks,
        Self::Vocabulary,
        Self::Trace,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Tensors => "Tensors View",
            Self::Stats => "Stats View",
            Self::Histogram => "Histogram",
            Self::Values => "Values",
            Self::Graph => "Graph View",
            Self::Compare => "Compare View",
            Self::Checks => "Checks",
            Self::Vocabulary => "Vocabulary",
            Self::Trace => "Trace View",
        }
    }

    /// The view of a letter or a number.
    pub(crate) fn of(key: char) -> Option<Self> {
        let by_number = || {
            let number = usize::try_from(key.to_digit(10)?).ok()?;
            Self::ALL.get(number.checked_sub(1)?).copied()
        };
        let by_letter = match key {
            't' => Self::Tensors,
            's' => Self::Stats,
            'h' => Self::Histogram,
            'v' => Self::Values,
            'g' => Self::Graph,
            'c' => Self::Compare,
            'x' => Self::Checks,
            'b' => Self::Vocabulary,
            'i' => Self::Trace,
            _ => return by_number(),
        };
        Some(by_letter)
    }

    /// Files that `e` offers to write: the reports of the view, then its picture.
    pub(crate) fn files(self) -> Vec<&'static str> {
        match self {
            Self::Tensors => vec!["tensors.json", "tensors.svg"],
            Self::Stats => vec!["stats.json", "stats.svg"],
            Self::Histogram => vec!["histogram.json", "histogram.svg"],
            Self::Values => vec!["values.json", "values.svg"],
            Self::Graph => vec!["graph.json", "graph.svg"],
            Self::Compare => vec!["diff.json", "scores.json", "quality.json", "compare.svg"],
            Self::Checks => vec!["validate.json", "scan.json", "lint.json", "checks.svg"],
            Self::Vocabulary => vec!["vocabulary.json", "vocabulary.svg"],
            Self::Trace => vec!["trace.json", "trace.svg"],
        }
    }
}
