//! Router weights of a mixture of experts: without the feature `infer`, random ones alone.

use apr_merge::Model as Input;
use apr_merge::moe::{Gates, Recipe};

use crate::context::Context;
use crate::engine::absent;
use crate::failure::Outcome;

/// The router weights of the experts.
pub(super) fn gates(recipe: &Recipe, _base: &Input<'_>, _context: &Context) -> Outcome<Gates> {
    if recipe.gate.is_random() { Ok(Gates::random(recipe)?) } else { absent() }
}
