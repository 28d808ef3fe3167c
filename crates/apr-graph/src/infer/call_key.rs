//! By what the calls of functions are told apart.

use crate::ValueType;
use crate::operators::Known;

/// What tells calls apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    pub(super) function: usize,
    /// `None` where an input is left out; those at the end are not here.
    pub(super) inputs: Vec<Option<(ValueType, Option<Known>)>>,
    /// The call's own attributes as text; calls with attributes are few.
    pub(super) attributes: String,
}
