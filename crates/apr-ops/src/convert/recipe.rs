//! How each tensor becomes what it is to be.

use apr_core::StoredForm;
use apr_quantize::TensorTarget;
use apr_quantize::recode::{self, Recode};
use apr_registry::{CheckpointReader, DType, Error, PlanOptions, Result};
use apr_tensor::cast::can_cast;

use super::ConvertOptions;

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

/// Leaves compressed and sparse tensors and factors as they are where their bytes stay and the
/// target is of their kind. What is in a layout alone can be compressed anew, and has nothing to
/// decompress.
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
