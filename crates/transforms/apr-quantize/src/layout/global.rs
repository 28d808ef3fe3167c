//! The scale of all scales, which weights that servers join share.

use std::collections::BTreeMap;

use apr_core::{CheckpointReader, Result, TensorInfo};
use apr_view::module_of_mlx;

use super::laid::finite_rows;
use super::{Layout, named};

/// Elements of rows that are read at a time.
pub(super) const AT_ONCE: u64 = 1 << 18;

/// Returns the factor for the scales of some weights, given by position, before they are stored.
///
/// # Errors
/// E001 for values that are not finite, E007 when the weights can't be read.
pub fn global_scale(
    reader: &dyn CheckpointReader,
    weights: impl IntoIterator<Item = usize>,
) -> Result<f32> {
    let mut largest = 0.0_f32;
    for tensor in weights {
        let info = &reader.tensors()[tensor];
        let rows = info.shape.dims().first().copied().unwrap_or(0);
        let mut first = 0;
        while first < rows {
            let count = at_once(info).min(rows - first);
            let values = finite_rows(reader, tensor, first, count)?;
            largest = values.iter().fold(largest, |largest, value| largest.max(value.abs()));
            first += count;
        }
    }
    let largest = if largest > 0.0 { largest } else { 1.0 };
    // A finite number, however small the largest is.
    Ok((448.0 * 6.0 / largest).min(f32::MAX))
}

/// Returns the number of rows of a weight that are read in one step.
pub(super) fn at_once(info: &TensorInfo) -> u64 {
    (AT_ONCE / info.shape.row_len().max(1)).max(1)
}

/// Returns a set number for each tensor. Weights with the same number need one layout: those that
/// servers fuse, and in MLX's layouts the experts of a layer.
///
/// `names` are what libraries call the tensors that have another name here, by position.
#[must_use]
pub fn joined(
    layout: Layout,
    reader: &dyn CheckpointReader,
    names: &BTreeMap<usize, String>,
) -> Vec<usize> {
    let mut named = named(reader.tensors(), names);
    if !matches!(layout, Layout::Mlx(_)) {
        return sets(&named);
    }
    for info in &mut named {
        if let Some(module) = info.name.strip_suffix(".weight") {
            info.name = module_of_mlx(reader.metadata(), module);
        }
    }
    numbers(named.into_iter().map(|info| info.name))
}

/// Returns the set numbers of tensors under the names that they have in libraries.
pub(super) fn sets(tensors: &[TensorInfo]) -> Vec<usize> {
    const JOINED: [(&str, &str); 5] = [
        ("q_proj.weight", "qkv"),
        ("k_proj.weight", "qkv"),
        ("v_proj.weight", "qkv"),
        ("gate_proj.weight", "gate_up"),
        ("up_proj.weight", "gate_up"),
    ];
    let joined = tensors.iter().map(|info| {
        let of = |(end, set): &(&str, &str)| Some([info.name.strip_suffix(end)?, set].concat());
        JOINED.iter().find_map(of).unwrap_or_else(|| info.name.clone())
    });
    numbers(joined)
}

/// Returns a number for each name, the same for the same name.
fn numbers(names: impl Iterator<Item = String>) -> Vec<usize> {
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let of = |name: String| {
        let next = numbers.len();
        *numbers.entry(name).or_insert(next)
    };
    names.map(of).collect()
}
