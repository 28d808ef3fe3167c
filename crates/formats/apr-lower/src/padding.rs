//! What convolutions and pools put around their input.

use apr_graph::NodeBuilder;

/// Window of a convolution or a pool along a dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Elements that it looks at.
    pub size: i64,
    /// Steps between two looks.
    pub stride: i64,
    /// Steps between the elements of one look.
    pub dilation: i64,
}

impl Window {
    /// Returns the distance from the first to the last element, plus 1, or `None` if it overflows.
    fn reach(self) -> Option<i64> {
        self.size.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)
    }
}

/// Padding around an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Padding {
    /// No padding.
    Valid,
    /// Padding for an output of size `input / stride`, for input sizes that are not known yet.
    Same,
    /// At the start of each dimension, and then at the end of each.
    Explicit(Vec<i64>),
}

impl Padding {
    /// Returns TensorFlow's `SAME` padding: as much as an output of `input / stride` needs.
    ///
    /// If the amount is odd, there is more padding at the end. Returns `None` for sizes that no
    /// input can have.
    #[must_use]
    pub fn same(lens: &[Option<u64>], windows: &[Window]) -> Option<Self> {
        let mut pads = vec![0; 2 * windows.len()];
        for (axis, (len, window)) in lens.iter().zip(windows).enumerate() {
            let Some(len) = len else { return Some(Self::Same) };
            let len = i64::try_from(*len).ok().filter(|len| *len > 0)?;
            let stride = Some(window.stride).filter(|stride| *stride > 0)?;
            let last = (len.checked_add(stride - 1)? / stride - 1).checked_mul(stride)?;
            let all = last.checked_add(window.reach()?)?.checked_sub(len)?.max(0);
            pads[axis] = all / 2;
            pads[axis + windows.len()] = all - all / 2;
        }
        Some(Self::Explicit(pads))
    }

    /// Returns padding at the start, so that an output does not depend on later inputs.
    ///
    /// Returns `None` for sizes that no kernel can have.
    #[must_use]
    pub fn causal(windows: &[Window]) -> Option<Self> {
        let starts = windows.iter().map(|window| Some(window.reach()? - 1));
        let ends = windows.iter().map(|_| Some(0));
        starts.chain(ends).collect::<Option<_>>().map(Self::Explicit)
    }

    /// Adds the setting to a convolution or a pool.
    pub fn add<'b>(&self, node: NodeBuilder<'b>) -> NodeBuilder<'b> {
        match self {
            Self::Valid => node,
            Self::Same => node.attribute("auto_pad", "SAME_UPPER"),
            Self::Explicit(pads) => node.attribute("pads", pads.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_padding_has_more_at_the_end() {
        let window = |size, stride, dilation| Window { size, stride, dilation };
        let pads = |len, window| Padding::same(&[Some(len)], &[window]);
        assert_eq!(pads(7, window(3, 2, 1)), Some(Padding::Explicit(vec![1, 1])));
        assert_eq!(pads(6, window(3, 2, 1)), Some(Padding::Explicit(vec![0, 1])));
        assert_eq!(pads(6, window(3, 1, 2)), Some(Padding::Explicit(vec![2, 2])));
        assert_eq!(pads(6, window(1, 2, 1)), Some(Padding::Explicit(vec![0, 0])));
        assert_eq!(Padding::same(&[None], &[window(3, 1, 1)]), Some(Padding::Same));
        assert_eq!(pads(6, window(i64::MAX, 2, i64::MAX)), None);
        assert_eq!(pads(6, window(3, 0, 1)), None);
        let causal = Padding::causal(&[window(3, 1, 2)]);
        assert_eq!(causal, Some(Padding::Explicit(vec![4, 0])));
    }
}
