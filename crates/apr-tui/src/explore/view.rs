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
}

impl View {
    const ALL: [Self; 8] = [
        Self::Tensors,
        Self::Stats,
        Self::Histogram,
        Self::Values,
        Self::Graph,
        Self::Compare,
        Self::Checks,
        Self::Vocabulary,
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
            _ => return by_number(),
        };
        Some(by_letter)
    }

    /// The file that its report is written to.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Tensors => "tensors.json",
            Self::Stats => "stats.json",
            Self::Histogram => "histogram.json",
            Self::Values => "values.json",
            Self::Graph => "graph.json",
            Self::Compare => "diff.json",
            Self::Checks => "validate.json",
            Self::Vocabulary => "vocabulary.json",
        }
    }
}
