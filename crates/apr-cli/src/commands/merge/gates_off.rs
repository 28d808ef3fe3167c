//! Without the feature `infer` experts are chosen by random vectors alone.

use apr_merge::Model as Input;
use apr_merge::moe::{Gates, Recipe};

use crate::context::Context;
use crate::engine::absent;
use crate::failure::Outcome;

/// The vectors of the experts.
pub(super) fn gates(recipe: &Recipe, _base: &Input<'_>, _context: &Context) -> Outcome<Gates> {
    if recipe.gate.is_random() { Ok(Gates::random(recipe)?) } else { absent() }
}
