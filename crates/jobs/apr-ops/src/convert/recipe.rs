//! How each tensor becomes what it is to be.

use apr_core::StoredForm;
use apr_quantize::TensorTarget;
use apr_quantize::recode::{self, Recode};
use apr_registry::{CheckpointReader, DType, Error, PlanOptions, Result};
use apr_tensor::cast::can_cast;

use super::ConvertOptions;

/// A tensor's way.
pub(super) enum Recipe {
    /// The bytes are unchanged.
    Keep,
    /// The bytes are unchanged and stay compressed as stored.
    Stored(StoredForm),
    /// Cast from one float dtype to another.
    Cast(DType),
    /// Recode from blocks, to blocks or both.
    Recode(Recode),
}

impl Recipe {
    /// Returns `true` if the bytes are written as they are read.
    pub(super) fn keeps_bytes(&self) -> bool {
        matches!(self, Self::Keep | Self::Stored(_))
    }
}

/// Returns the recipe that converts a tensor to its target.
pub(super) fn recipe(
    reader: &dyn CheckpointReader,
    tensor: usize,
    target: &TensorTarget,
) -> Result<Recipe> {
    let info = &reader.tensors()[tensor];
    if info.dtype == target.dtype {
        return Ok(Recipe::Keep);
    }
    if let Some(recode) = recode::needed(reader, tensor, target)? {
        return Ok(Recipe::Recode(recode));
    }
    if can_cast(info.dtype, target.dtype) {
        return Ok(Recipe::Cast(target.dtype));
    }
    Err(Error::format(format!("{} can't be converted to {}", info.dtype, target.dtype))
        .for_tensor(&info.name))
}

/// Keeps the stored form of compressed and sparse tensors and factors.
///
/// Their bytes must be unchanged, and the target must support the form. Tensors that have a layout
/// only can be compressed again, and need no decompression.
pub(super) fn keep_forms(
    reader: &dyn CheckpointReader,
    recipes: Vec<Recipe>,
    options: &ConvertOptions,
    target: &mut PlanOptions,
) -> Vec<Recipe> {
    if !target.format.target.is_some_and(|target| target.seals) {
        return recipes;
    }
    let keeps_codec = !options.decompress && !target.apr2.compresses();
    let is_kept = |form: &StoredForm| {
        let is_dense = form.flags & StoredForm::LAYOUT == 0;
        (keeps_codec || form.flags & StoredForm::CODEC == 0) && (is_dense || !options.dense)
    };
    let kept = recipes.into_iter().enumerate().map(|(tensor, recipe)| {
        match (recipe, reader.stored(tensor).form().filter(is_kept)) {
            (Recipe::Keep, Some(form)) => Recipe::Stored(form),
            (recipe, _) => recipe,
        }
    });

    let kept: Vec<_> = kept.collect();
    let form = |recipe: &Recipe| if let Recipe::Stored(form) = recipe { Some(*form) } else { None };
    target.apr2.forms = kept.iter().map(form).collect();
    kept
}
