//! Rows that become columns.

/// Stripes that are written together, so that a line of the cache is written once.
pub(crate) const TOGETHER: usize = 16;

/// Parts of a tensor's rows, each of which becomes a column.
#[derive(Clone, Copy)]
pub(crate) struct Stripes<'a> {
    /// Bytes from the first element of the first stripe on.
    pub(crate) bytes: &'a [u8],
    /// Number of stripes.
    pub(crate) count: usize,
    /// Elements from the beginning of one to the beginning of the next.
    pub(crate) apart: usize,
    /// Elements of a stripe from one that is taken to the next.
    pub(crate) step: usize,
}

/// Writes stripes as columns of `out`, whose rows have `columns` elements, from column `first` on.
/// `element` is the number of bytes of an element.
pub(crate) fn turn(
    element: u64,
    stripes: Stripes<'_>,
    out: &mut [u8],
    columns: usize,
    first: usize,
) {
    match element {
        1 => turn_elements::<1>(stripes, out, columns, first),
        2 => turn_elements::<2>(stripes, out, columns, first),
        4 => turn_elements::<4>(stripes, out, columns, first),
        _ => turn_elements::<8>(stripes, out, columns, first),
    }
}

fn turn_elements<const E: usize>(
    stripes: Stripes<'_>,
    out: &mut [u8],
    columns: usize,
    first: usize,
) {
    let Stripes { bytes, count, apart, step } = stripes;
    let (input, out) = (bytes.as_chunks::<E>().0, out.as_chunks_mut::<E>().0);
    let len = (out.len() / columns).saturating_sub(1) * step + 1;

    for start in (0..count).step_by(TOGETHER) {
        let last = count.min(start + TOGETHER) - 1;
        // Where there are fewer, nothing is taken of those that repeat the last one.
        let together: [_; TOGETHER] =
            std::array::from_fn(|at| &input[last.min(start + at) * apart..][..len]);
        for (row, line) in out.chunks_exact_mut(columns).enumerate() {
            let line = &mut line[first + start..=first + last];
            for (place, stripe) in line.iter_mut().zip(together) {
                *place = stripe[row * step];
            }
        }
    }
}
