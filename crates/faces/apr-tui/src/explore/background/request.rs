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
    /// Nodes of the graphs that read a tensor.
    Uses(usize),
    /// Uses of all tensors.
    AllUses,
    /// Statistics of a tensor.
    Statistics(usize),
    Scan,
    Checks,
    Compare,
    /// Validation of both models.
    Scores,
    /// Comparison of both models' outputs for the same inputs.
    Outputs,
    /// Trace of a run with this prompt, or with the payload from the front end.
    Trace(Option<String>),
}

impl Request {
    /// Returns `true` if the request requires a pass over a model.
    pub(crate) fn is_pass(&self) -> bool {
        matches!(
            self,
            Self::Statistics(_)
                | Self::Scan
                | Self::Checks
                | Self::Compare
                | Self::Scores
                | Self::Outputs
                | Self::Trace(_)
        )
    }

    /// Returns `true` if the request is for one view only, so that it is cancelled when the view is
    /// closed.
    pub(crate) fn is_for_one_view(&self) -> bool {
        matches!(
            self,
            Self::Histogram(_) | Self::Distribution { .. } | Self::Values { .. } | Self::AllUses
        )
    }

    /// Returns `true` if this request is obsolete once the other one is made.
    pub(crate) fn is_replaced_by(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Distribution { is_other: one, .. },
                Self::Distribution { is_other: two, .. },
            ) => one == two,
            (Self::Histogram(_), Self::Histogram(_)) => true,
            (Self::Values { .. }, Self::Values { .. }) => true,
            (Self::Uses(_), Self::Uses(_)) | (Self::Trace(_), Self::Trace(_)) => true,
            _ => self == other,
        }
    }

    /// Returns a verb that describes the running request.
    pub(crate) fn activity(&self) -> &'static str {
        match self {
            Self::Scan => "scanning",
            Self::Checks | Self::Scores => "validating",
            Self::Compare => "comparing",
            Self::Outputs => "running both models",
            Self::Trace(_) => "running the model",
            _ => "reading",
        }
    }
}
