//! By what the calls of functions are told apart.

use crate::ValueType;
use crate::operators::Known;

/// Key by which calls are distinguished.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CallKey {
    pub(super) function: usize,
    /// Types and contents of the inputs; `None` for omitted inputs. Omitted inputs at the end are
    /// not stored.
    pub(super) inputs: Vec<Option<(ValueType, Option<Known>)>>,
    /// The call's own attributes as text; calls with attributes are few.
    pub(super) attributes: String,
}
