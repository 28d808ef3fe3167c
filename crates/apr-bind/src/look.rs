//! Where the elements lie that a graph looks at.

use apr_graph::View as Look;
use apr_registry::{Error, Result, TensorInfo};

/// Elements of a tensor, each index so many elements apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Strides {
    start: u64,
    dims: Vec<u64>,
    strides: Vec<u64>,
    /// Whether it is the whole tensor in its order.
    is_whole: bool,
}

/// Start, dimensions and distances, as a [`Change`](apr_view::Change) takes them.
type Flat = (u64, [u64; 3], [u64; 3]);

impl Strides {
    /// What these looks at a tensor show, where that is a matter of places, and of few enough
    /// dimensions.
    ///
    /// # Errors
    /// E001 for a look that the tensor's shape does not have.
    pub(crate) fn of(info: &TensorInfo, looks: &[Look]) -> Result<Option<Self>> {
        let dims = info.shape.dims().to_vec();
        let mut strides =
            Self { start: 0, strides: row_major(&dims), dims, is_whole: looks.is_empty() };
        for look in looks {
            if !strides.apply(look).map_err(|error| error.for_tensor(&info.name))? {
                return Ok(None);
            }
        }
        if strides.elements() == 0 {
            return Ok(strides.is_whole.then_some(strides));
        }
        Ok((strides.is_whole || strides.flat().is_some()).then_some(strides))
    }

    /// Sizes of the result.
    pub(crate) fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Whether neighbours in it are none in the tensor.
    pub(crate) fn is_turned(&self) -> bool {
        self.flat().is_some_and(|(_, _, [_, _, column])| column != 1)
    }

    /// Whether it has other elements than a tensor of so many, or has them in another order.
    pub(crate) fn is_other(&self, elements: u64) -> bool {
        let in_order = |(start, [groups, rows, columns], [.., column]): Flat| {
            start == 0 && groups == 1 && rows == 1 && column == 1 && columns == elements
        };
        self.flat().is_some_and(|flat| !in_order(flat))
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> u64 {
        self.dims.iter().fold(1, |product, &dim| product.saturating_mul(dim))
    }

    /// Takes a look; false where places do not say what it shows.
    fn apply(&mut self, look: &Look) -> Result<bool> {
        match look {
            Look::Transposed(order) => {
                check_order(order, self.dims.len())?;
                self.dims = order.iter().map(|&axis| self.dims[axis]).collect();
                self.strides = order.iter().map(|&axis| self.strides[axis]).collect();
            }
            Look::Slice { axis, start, len } => {
                check_slice(&self.dims, *axis, *start, *len)?;

                // The slice lies within the tensor, and so does its first element.
                self.start += start * self.strides[*axis];
                self.dims[*axis] = *len;
            }
            Look::Reshaped(dims) => {
                check_reshape(&self.dims, dims)?;

                // Elements in another order would have to be moved.
                if self.strides != row_major(&self.dims) {
                    return Ok(false);
                }
                self.dims.clone_from(dims);
                self.strides = row_major(dims);
            }
            _ => return Ok(false),
        }

        Ok(true)
    }

    /// As three dimensions, of which rows or columns lie together; `None` for the whole tensor, and
    /// for what has more.
    pub(crate) fn flat(&self) -> Option<Flat> {
        if self.is_whole {
            return None;
        }

        let mut joined: Vec<(u64, u64)> = Vec::new();
        for (&dim, &stride) in self.dims.iter().zip(&self.strides).filter(|(dim, _)| **dim != 1) {
            match joined.last_mut() {
                Some((outer, distance)) if *distance == dim * stride => {
                    *outer *= dim;
                    *distance = stride;
                }
                _ => joined.push((dim, stride)),
            }
        }

        while joined.len() < 3 {
            let all = joined.iter().map(|(dim, _)| dim).product::<u64>();
            // The innermost of one element has nothing next to it.
            if joined.is_empty() { joined.push((1, 1)) } else { joined.insert(0, (1, all)) }
        }

        let &[(groups, between), (rows, row), (columns, column)] = joined.as_slice() else {
            return None;
        };
        (row == 1 || column == 1).then_some((
            self.start,
            [groups, rows, columns],
            [between, row, column],
        ))
    }
}

/// Distances in a tensor whose last dimension is the innermost.
fn row_major(dims: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; dims.len()];
    for axis in (0..dims.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * dims[axis + 1];
    }
    strides
}

/// Refuses what is no order of so many dimensions.
pub(crate) fn check_order(order: &[usize], rank: usize) -> Result<()> {
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..rank) {
        return Ok(());
    }
    Err(Error::format(format!(
        "the graph transposes it by {order:?}, but it has {rank} dimensions"
    )))
}

/// Refuses a part that goes past the end.
pub(crate) fn check_slice(dims: &[u64], axis: usize, start: u64, len: u64) -> Result<()> {
    let end = start.checked_add(len);
    if dims.get(axis).zip(end).is_some_and(|(&dim, end)| end <= dim) {
        return Ok(());
    }
    let message = format!(
        "the graph takes {len} from {start} on along dimension {axis}, and it has {dims:?}"
    );
    Err(Error::format(message))
}

/// Refuses dimensions of other elements.
pub(crate) fn check_reshape(from: &[u64], to: &[u64]) -> Result<()> {
    let elements =
        |dims: &[u64]| dims.iter().try_fold(1_u64, |product, &dim| product.checked_mul(dim));
    if elements(from).is_some() && elements(from) == elements(to) {
        return Ok(());
    }
    Err(Error::format(format!("the graph gives its {from:?} the shape {to:?}")))
}

#[cfg(test)]
mod tests {
    use apr_registry::DType;

    use super::*;

    fn strides(dims: &[u64], looks: &[Look]) -> Result<Option<Strides>> {
        Strides::of(
            &TensorInfo { name: "w".into(), dtype: DType::F32, shape: dims.to_vec().into() },
            looks,
        )
    }

    #[test]
    fn places_follow_the_looks() {
        let slice = Look::Slice { axis: 0, start: 2, len: 3 };
        let turned = Look::Transposed(vec![1, 0]);
        let whole = strides(&[5, 4], &[]).unwrap().unwrap();
        assert_eq!((whole.flat(), whole.dims()), (None, &[5, 4][..]));
        let some = strides(&[5, 4], &[slice.clone(), turned.clone()]).unwrap().unwrap();
        assert_eq!((some.flat(), some.dims()), (Some((8, [1, 4, 3], [12, 1, 4])), &[4, 3][..]));
        let part = strides(&[5, 4], std::slice::from_ref(&slice)).unwrap().unwrap();
        assert_eq!(part.flat(), Some((8, [1, 1, 12], [12, 12, 1])));
        let experts = strides(&[6, 5, 4], &[Look::Transposed(vec![0, 2, 1])]).unwrap().unwrap();
        assert_eq!(experts.flat(), Some((0, [6, 4, 5], [20, 1, 4])));
        assert_eq!(strides(&[5, 4], &[turned, Look::Reshaped(vec![20])]).unwrap(), None);
        assert_eq!(
            strides(&[2, 3, 4], &[Look::Transposed(vec![2, 1, 0])]).unwrap(),
            None,
            "nothing lies together"
        );
        assert_eq!(strides(&[2], &[Look::Plus(1)]).unwrap(), None);
    }

    #[test]
    fn looks_past_the_shape_are_refused() {
        for look in [
            Look::Slice { axis: 0, start: 4, len: 2 },
            Look::Slice { axis: 2, start: 0, len: 1 },
            Look::Slice { axis: 0, start: u64::MAX, len: 2 },
            Look::Transposed(vec![0, 0]),
            Look::Transposed(vec![1]),
            Look::Reshaped(vec![3, 7]),
        ] {
            let error = strides(&[5, 4], std::slice::from_ref(&look)).unwrap_err();
            assert_eq!(
                (error.code(), error.tensor()),
                (apr_registry::Code::Format, Some("w")),
                "{look:?}"
            );
        }
    }
}
