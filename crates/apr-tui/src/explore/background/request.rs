//! What views ask for.

/// Something that a view needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    List,
    Inspect,
    Graph,
    Vocabulary,
    Histogram(usize),
    /// The distribution of a tensor of one of two models that are compared.
    Distribution {
        name: String,
        is_other: bool,
    },
    Values {
        tensor: usize,
        ranges: String,
    },
    /// Statistics of a tensor.
    Statistics(usize),
    Checks,
    Compare,
}

impl Request {
    /// Whether it takes a pass over a model.
    pub(crate) fn is_pass(&self) -> bool {
        matches!(self, Self::Checks | Self::Compare | Self::Statistics(_))
    }

    /// Whether it reads the values of a tensor for one view.
    pub(crate) fn reads_values(&self) -> bool {
        matches!(self, Self::Histogram(_) | Self::Distribution { .. } | Self::Values { .. })
    }

    /// Whether this one is of no use any more where the other is wanted.
    pub(crate) fn is_replaced_by(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Distribution { is_other: one, .. },
                Self::Distribution { is_other: two, .. },
            ) => one == two,
            (Self::Histogram(_), Self::Histogram(_)) => true,
            (Self::Values { .. }, Self::Values { .. }) => true,
            _ => self == other,
        }
    }
}
