//! How each tensor becomes what it is to be.

use apr_core::StoredForm;
use apr_quantize::TensorTarget;
use apr_quantize::recode::{self, Recode};
use apr_registry::{CheckpointReader, DType, Error, PlanOptions, Result};
use apr_tensor::cast::can_cast;

/// A tensor's way.
pub(super) enum Recipe {
    /// Its bytes stay.
    Keep,
    /// They stay, and compressed as they are.
    Stored(StoredForm),
    /// From float to float.
    Cast(DType),
    /// From or to blocks.
    Recode(Recode),
}

impl Recipe {
    /// Whether what is written is what is read.
    pub(super) fn keeps_bytes(&self) -> bool {
        matches!(self, Self::Keep | Self::Stored(_))
    }
}

/// How a tensor becomes what it is to be.
pub(super) fn recipe(
    reader: &dyn CheckpointReader,
    tensor: usize,
    target: &TensorTarget,
    gated: bool,
) -> Result<Recipe> {
    let info = &reader.tensors()[tensor];
    if info.dtype == target.dtype {
        return Ok(Recipe::Keep);
    }
    if let Some(recode) = recode::needed(reader, tensor, target, gated)? {
        return Ok(Recipe::Recode(recode));
    }
    if can_cast(info.dtype, target.dtype) {
        return Ok(Recipe::Cast(target.dtype));
    }
    Err(Error::format(format!("{} can't be converted to {}", info.dtype, target.dtype))
        .for_tensor(&info.name))
}

/// Leaves compressed tensors as they are where their bytes stay and the target is of their kind.
pub(super) fn keep_forms(
    reader: &dyn CheckpointReader,
    recipes: Vec<Recipe>,
    decompress: bool,
    target: &mut PlanOptions,
) -> Vec<Recipe> {
    if !target.format.target.is_some_and(|target| target.seals)
        || decompress
        || target.apr2.compresses()
    {
        return recipes;
    }
    let kept = recipes.into_iter().enumerate().map(|(tensor, recipe)| {
        match (recipe, reader.stored(tensor).form()) {
            (Recipe::Keep, Some(form)) => Recipe::Stored(form),
            (recipe, _) => recipe,
        }
    });

    let kept: Vec<_> = kept.collect();
    let form = |recipe: &Recipe| if let Recipe::Stored(form) = recipe { Some(*form) } else { None };
    target.apr2.forms = kept.iter().map(form).collect();
    kept
}
