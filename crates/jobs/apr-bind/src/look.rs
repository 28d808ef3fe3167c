//! Where the elements lie that a graph looks at.

use apr_core::Strided;
use apr_graph::View as Look;
use apr_registry::{Result, TensorInfo};
use apr_view::{Change, TensorOrigin};

/// The elements of a tensor that a graph looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    elements: Strided,
    /// `true` if the view is the whole tensor in its order.
    is_whole: bool,
}

impl Shown {
    /// Returns the elements that these views of a tensor select.
    ///
    /// Returns `None` if strides can't describe them, or if they have too many dimensions to be
    /// gathered.
    ///
    /// # Errors
    /// E001 for a view that does not fit the tensor's shape.
    pub(crate) fn of(info: &TensorInfo, looks: &[Look]) -> Result<Option<Self>> {
        let mut elements = Strided::contiguous(info.shape.dims());
        for look in looks {
            if !apply(&mut elements, look).map_err(|error| error.for_tensor(&info.name))? {
                return Ok(None);
            }
        }
        let is_whole = looks.is_empty();
        Ok((is_whole || Change::can_gather(&elements)).then_some(Self { elements, is_whole }))
    }

    /// Sizes of the result.
    pub(crate) fn dims(&self) -> &[u64] {
        self.elements.dims()
    }

    /// Number of elements.
    pub(crate) fn elements(&self) -> u64 {
        self.elements.elements()
    }

    /// Returns `true` if adjacent elements of the view are not adjacent in the tensor.
    pub(crate) fn is_turned(&self) -> bool {
        !self.is_whole && self.elements.joined().strides().last().is_some_and(|&last| last != 1)
    }

    /// Returns `true` unless the view has all elements of a tensor of `elements` elements in its
    /// order.
    pub(crate) fn is_other(&self, elements: u64) -> bool {
        let is_all = self.elements.is_contiguous() && self.elements() == elements;
        !(self.is_whole || is_all)
    }

    /// Returns the origin of the bytes in the tensor at this position.
    ///
    /// # Errors
    /// E001 if elements of this dtype can't be gathered.
    pub(crate) fn origin(&self, info: &TensorInfo, position: usize) -> Result<TensorOrigin> {
        if self.is_whole {
            return Ok(TensorOrigin::Base(position));
        }
        Change::gathered(info, position, &self.elements).map(TensorOrigin::Changed)
    }
}

/// Applies a view to strides; returns `false` if strides can't describe the result.
fn apply(elements: &mut Strided, look: &Look) -> Result<bool> {
    match look {
        Look::Transposed(order) => elements.transpose(order).map(|()| true),
        Look::Slice { axis, start, len } => elements.slice(*axis, *start, *len).map(|()| true),
        Look::Reshaped(dims) => elements.reshape(dims),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use apr_registry::DType;

    use super::*;

    fn shown(dims: &[u64], looks: &[Look]) -> Result<Option<Shown>> {
        Shown::of(
            &TensorInfo { name: "w".into(), dtype: DType::F32, shape: dims.to_vec().into() },
            looks,
        )
    }

    #[test]
    fn strides_follow_the_looks() {
        let slice = Look::Slice { axis: 0, start: 2, len: 3 };
        let turned = Look::Transposed(vec![1, 0]);
        let whole = shown(&[5, 4], &[]).unwrap().unwrap();
        assert!(!whole.is_turned() && !whole.is_other(20));
        let some = shown(&[5, 4], &[slice.clone(), turned.clone()]).unwrap().unwrap();
        assert_eq!((some.dims(), some.is_turned(), some.is_other(20)), (&[4, 3][..], true, true));
        let part = shown(&[5, 4], std::slice::from_ref(&slice)).unwrap().unwrap();
        assert_eq!((part.elements(), part.is_turned(), part.is_other(20)), (12, false, true));
        let flat = shown(&[5, 4], &[Look::Reshaped(vec![20])]).unwrap().unwrap();
        assert!(!flat.is_turned() && !flat.is_other(20));
        assert_eq!(shown(&[5, 4], &[turned, Look::Reshaped(vec![20])]).unwrap(), None);
        assert_eq!(
            shown(&[2, 3, 4], &[Look::Transposed(vec![2, 1, 0])]).unwrap(),
            None,
            "nothing lies together"
        );
        assert_eq!(shown(&[2], &[Look::Plus(1)]).unwrap(), None);
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
            let error = shown(&[5, 4], std::slice::from_ref(&look)).unwrap_err();
            assert_eq!(
                (error.code(), error.tensor()),
                (apr_registry::Code::Format, Some("w")),
                "{look:?}"
            );
        }
    }
}
