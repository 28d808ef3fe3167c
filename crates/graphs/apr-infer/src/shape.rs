//! Arithmetic of shapes: axes, strides, broadcasting.

use apr_core::{Error, Result};

use crate::tensor::elements;

/// An axis counted from the front; negative ones count from the back.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let position = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(position)
        .ok()
        .filter(|&position| position < rank)
        .ok_or_else(|| Error::format(format!("axis {axis} is not one of {rank} dimensions")))
}

/// Several axes, in ascending order, each once.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>> {
    let mut found = list.iter().map(|&one| axis(one, rank)).collect::<Result<Vec<_>>>()?;
    found.sort_unstable();
    if found.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::format(format!("an axis is there twice: {list:?}")));
    }
    Ok(found)
}

/// Returns the distance of neighbours along each dimension, in elements.
pub(crate) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1_usize; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(shape[dim]);
    }
    strides
}

/// The shape that several shapes are stretched to, by NumPy's rule.
pub(crate) fn broadcast(shapes: &[&[usize]]) -> Result<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut result = vec![1; rank];
    for shape in shapes {
        for (target, &size) in result[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*target, size) {
                (_, 1) => {}
                (1, _) => *target = size,
                (a, b) if a == b => {}
                _ => {
                    return Err(Error::format(format!("the shapes {shapes:?} can't be broadcast")));
                }
            }
        }
    }
    Ok(result)
}

/// Returns the strides to read a tensor of `shape` as one of `target`: 0 for stretched dimensions.
pub(crate) fn stretched(shape: &[usize], target: &[usize]) -> Vec<usize> {
    let own = strides(shape);
    let offset = target.len() - shape.len();
    (0..target.len())
        .map(|dim| if dim < offset || shape[dim - offset] == 1 { 0 } else { own[dim - offset] })
        .collect()
}

/// The product of sizes, known not to overflow because a tensor of that shape exists. Beside a size
/// of 0, the others may be any.
pub(crate) fn count(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { elements(shape).unwrap_or(usize::MAX) }
}

/// Sizes before, at and after an axis.
pub(crate) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (count(&shape[..axis]), shape[axis], count(&shape[axis + 1..]))
}

/// Sizes as numbers of a graph.
pub(crate) fn sizes(list: &[i64]) -> Result<Vec<usize>> {
    list.iter()
        .map(|&size| {
            usize::try_from(size).map_err(|_| Error::format(format!("a dimension is {size}")))
        })
        .collect()
}

/// Calls `visit` with the offsets of every element of `shape`, in order, in each of several
/// stridings.
pub(crate) fn walk<const N: usize>(
    shape: &[usize],
    strides: [&[usize]; N],
    mut visit: impl FnMut([usize; N]),
) {
    let total = count(shape);
    if total == 0 {
        return;
    }

    let (outer, inner) = shape.split_at(shape.len().saturating_sub(1));
    let length = inner.first().copied().unwrap_or(1);
    let step: [usize; N] = std::array::from_fn(|n| strides[n].last().copied().unwrap_or(0));
    let mut position = vec![0; outer.len()];
    let mut base = [0; N];
    for _ in 0..total / length {
        let mut at = base;
        for _ in 0..length {
            visit(at);
            at = std::array::from_fn(|n| at[n] + step[n]);
        }

        for dim in (0..outer.len()).rev() {
            position[dim] += 1;
            for n in 0..N {
                base[n] += strides[n][dim];
            }
            if position[dim] < outer[dim] {
                break;
            }
            for n in 0..N {
                base[n] -= strides[n][dim] * outer[dim];
            }
            position[dim] = 0;
        }
    }
}

/// Drops dimensions of size 1 and joins neighbours that are adjacent in all stridings, so that
/// walks have long rows.
pub(crate) fn joined(shape: &[usize], strides: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut sizes: Vec<usize> = Vec::new();
    let mut steps: Vec<Vec<usize>> = vec![Vec::new(); strides.len()];
    for dim in 0..shape.len() {
        if shape[dim] == 1 {
            continue;
        }

        let together = !sizes.is_empty()
            && steps
                .iter()
                .zip(strides)
                .all(|(step, own)| step.last() == Some(&(own[dim] * shape[dim])));
        if together {
            *sizes.last_mut().unwrap_or_else(|| unreachable!("there is one")) *= shape[dim];
            for (step, own) in steps.iter_mut().zip(strides) {
                step.pop();
                step.push(own[dim]);
            }
        } else {
            sizes.push(shape[dim]);
            for (step, own) in steps.iter_mut().zip(strides) {
                step.push(own[dim]);
            }
        }
    }

    (sizes, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_stretched_as_in_numpy() {
        assert_eq!(broadcast(&[&[2, 1, 4], &[3, 1]]).unwrap(), [2, 3, 4]);
        assert_eq!(broadcast(&[&[0], &[1]]).unwrap(), [0]);
        assert!(broadcast(&[&[2], &[3]]).is_err());
        assert_eq!(stretched(&[3, 1], &[2, 3, 4]), [0, 1, 0]);
    }

    #[test]
    fn a_walk_meets_every_element_in_order() {
        let mut met = Vec::new();
        walk(&[2, 3], [&[1, 2]], |[at]| met.push(at));
        assert_eq!(met, [0, 2, 4, 1, 3, 5]);
        let mut scalar = 0;
        walk(&[], [&[]], |[at]| scalar += at + 1);
        assert_eq!(scalar, 1);
    }

    #[test]
    fn dimensions_that_lie_together_are_joined() {
        let (sizes, steps) = joined(&[2, 1, 3, 4], &[vec![12, 12, 4, 1], vec![4, 0, 0, 1]]);
        assert_eq!(sizes, [2, 3, 4]);
        assert_eq!(steps, [[12, 4, 1], [4, 0, 1]]);
    }

    #[test]
    fn axes_count_from_both_ends() {
        assert_eq!(axis(-1, 3).unwrap(), 2);
        assert!(axis(3, 3).is_err() && axis(-4, 3).is_err() && axis(i64::MIN, 3).is_err());
        assert!(axes(&[0, -3], 3).is_err());
    }
}
