//! What a judge says of a point.

use std::fmt::Display;

use crate::assessment::Verdict;

/// Verdict with its observation. An unexpected error counts as a failure.
pub(crate) type Judgement = Result<Seen, Fault>;

/// Verdict with its observation.
pub(crate) struct Seen {
    pub(crate) verdict: Verdict,
    pub(crate) text: String,
}

/// Contradiction to the claim of a point.
pub(crate) struct Fault(pub(crate) String);

impl Fault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl<E: std::error::Error> From<E> for Fault {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn passed(text: impl Into<String>) -> Judgement {
    Ok(Seen { verdict: Verdict::Passed, text: text.into() })
}

pub(crate) fn failed(text: impl Into<String>) -> Judgement {
    Ok(Seen { verdict: Verdict::Failed, text: text.into() })
}

/// Does not apply to this model, or can't be judged by this program.
pub(crate) fn absent(text: impl Into<String>) -> Judgement {
    Ok(Seen { verdict: Verdict::NotApplicable, text: text.into() })
}

/// Fails the point if a condition does not hold.
pub(crate) fn ensure(holds: bool, otherwise: impl Display) -> Result<(), Fault> {
    if holds { Ok(()) } else { Err(Fault(otherwise.to_string())) }
}
