//! Windows that slide over images of any number of dimensions, for convolutions and pools.

use apr_core::{Error, Result};

use crate::call::Call;
use crate::shape::{count, sizes};

/// Maximum number of elements of a window. Each place of the window takes that many steps, even if
/// few elements are inside the image.
const MAX_WINDOW: usize = 1 << 26;

/// Positions of a sliding window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Windows {
    /// Sizes of the image.
    pub(super) input: Vec<usize>,
    /// Sizes of the window, before it is stretched.
    pub(super) kernel: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilations: Vec<usize>,
    /// Padding before the image along each dimension. `after` is the padding after it.
    pub(super) before: Vec<usize>,
    pub(super) after: Vec<usize>,
    /// Number of places of the window along each dimension.
    pub(super) output: Vec<usize>,
}

/// A list of positive sizes with a default.
pub(super) fn positive(
    call: &Call<'_>,
    name: &str,
    rank: usize,
    default: usize,
) -> Result<Vec<usize>> {
    let list = match call.ints(name) {
        Some(list) => sizes(&list)?,
        None => vec![default; rank],
    };
    if list.len() != rank || list.contains(&0) {
        return Err(Error::format(format!("{name} {list:?} does not fit {rank} dimensions")));
    }
    Ok(list)
}

impl Windows {
    /// Reads the attributes of a node.
    pub(super) fn of(call: &Call<'_>, input: &[usize], kernel: Vec<usize>) -> Result<Self> {
        let rank = input.len();
        if kernel.len() != rank || kernel.contains(&0) {
            return Err(Error::format(format!(
                "a window of {kernel:?} does not fit an image of {input:?}"
            )));
        }

        let (strides, dilations) =
            (positive(call, "strides", rank, 1)?, positive(call, "dilations", rank, 1)?);
        let pads = match call.ints("pads") {
            Some(pads) => sizes(&pads)?,
            None => vec![0; 2 * rank],
        };
        if pads.len() != 2 * rank {
            return Err(Error::format(format!("pads {pads:?} do not fit {rank} dimensions")));
        }

        let mut windows = Self {
            input: input.to_vec(),
            kernel,
            strides,
            dilations,
            before: pads[..rank].to_vec(),
            after: pads[rank..].to_vec(),
            output: vec![0; rank],
        };

        let auto = call.text("auto_pad", "NOTSET");
        let ceil = call.flag("ceil_mode", false);
        (0..rank).try_for_each(|dim| windows.fit(dim, &auto, ceil))?;
        if windows.window_len() > MAX_WINDOW {
            return Err(Error::format(format!(
                "a window of {:?} has more than {MAX_WINDOW} elements",
                windows.kernel
            )));
        }

        Ok(windows)
    }

    /// The size of the stretched window.
    pub(super) fn extent(&self, dim: usize) -> Result<usize> {
        let span = (self.kernel[dim] - 1)
            .checked_mul(self.dilations[dim])
            .and_then(|span| span.checked_add(1));
        span.ok_or_else(|| Error::format("the window is too large"))
    }

    fn fit(&mut self, dim: usize, auto: &str, ceil: bool) -> Result<()> {
        let (size, stride, extent) = (self.input[dim], self.strides[dim], self.extent(dim)?);
        match auto {
            "SAME_UPPER" | "SAME_LOWER" => {
                self.output[dim] = size.div_ceil(stride);

                // The last place begins within the image, so that the product is below its size.
                let needed = (self.output[dim].saturating_sub(1) * stride)
                    .saturating_add(extent)
                    .saturating_sub(size);
                let half = needed / 2;
                let small_first = auto == "SAME_UPPER";
                self.before[dim] = if small_first { half } else { needed - half };
                self.after[dim] = needed - self.before[dim];
                return Ok(());
            }
            "VALID" => (self.before[dim], self.after[dim]) = (0, 0),
            "NOTSET" | "" => {}
            other => return Err(Error::format(format!("unknown auto_pad '{other}'"))),
        }

        let padded =
            size.checked_add(self.before[dim]).and_then(|sum| sum.checked_add(self.after[dim]));
        let padded =
            padded.ok_or_else(|| Error::memory("the padded image does not fit the memory"))?;
        let Some(room) = padded.checked_sub(extent) else {
            return Err(Error::format(format!(
                "a window of {extent} does not fit {padded} elements"
            )));
        };
        self.output[dim] = room / stride + 1;

        // A window that would begin in the padding after the image is left out.
        if ceil
            && room % stride != 0
            && self.output[dim].saturating_mul(stride) < padded - self.after[dim]
        {
            self.output[dim] += 1;
        }

        Ok(())
    }

    /// Number of elements of a window.
    pub(super) fn window_len(&self) -> usize {
        count(&self.kernel)
    }

    /// Calls `visit` with the number of each place of the window, and the offset of each element of
    /// the image in it, with the element's number within the window.
    pub(super) fn at_place(&self, place: usize, visit: impl FnMut(usize, usize)) {
        self.elements(&self.place(place), visit);
    }

    /// Returns the start of a window along each dimension, padding included.
    pub(super) fn place(&self, place: usize) -> Vec<usize> {
        let mut rest = place;
        let mut start = vec![0; self.output.len()];
        for dim in (0..start.len()).rev() {
            start[dim] = rest % self.output[dim] * self.strides[dim];
            rest /= self.output[dim];
        }
        start
    }

    fn elements(&self, start: &[usize], mut visit: impl FnMut(usize, usize)) {
        let rank = start.len();
        let mut within = vec![0; rank];
        for number in 0..self.window_len() {
            let offset = (0..rank).try_fold(0_usize, |offset, dim| {
                let at = (start[dim] + within[dim] * self.dilations[dim])
                    .checked_sub(self.before[dim])?;
                (at < self.input[dim]).then(|| offset * self.input[dim] + at)
            });
            if let Some(offset) = offset {
                visit(number, offset);
            }

            for dim in (0..rank).rev() {
                within[dim] += 1;
                if within[dim] < self.kernel[dim] {
                    break;
                }
                within[dim] = 0;
            }
        }
    }

    /// Returns the number of elements of a window that are inside the image and its padding.
    pub(super) fn padded_len(&self, place: usize) -> usize {
        let start = self.place(place);
        let along = |dim: usize| {
            let end = self.before[dim] + self.input[dim] + self.after[dim];
            (0..self.kernel[dim]).filter(|at| start[dim] + at * self.dilations[dim] < end).count()
        };
        (0..start.len()).map(along).product()
    }

    /// Copies the elements of the image at one element of the window into a row, for a range of
    /// places. Elements outside of the image are 0.
    pub(super) fn row<T: Copy + Default>(
        &self,
        image: &[T],
        number: usize,
        places: std::ops::Range<usize>,
        row: &mut [T],
    ) {
        let rank = self.input.len();
        let (Some(&width), Some(&out_width)) = (self.input.last(), self.output.last()) else {
            row.fill(image[0]);
            return;
        };
        let last = rank - 1;
        let mut within = vec![0; rank];
        let mut rest = number;
        for dim in (0..rank).rev() {
            within[dim] = rest % self.kernel[dim] * self.dilations[dim];
            rest /= self.kernel[dim];
        }

        let mut at = places.start;
        let mut written = 0;
        while at < places.end {
            let (line, column) = (at / out_width, at % out_width);
            let len = (out_width - column).min(places.end - at);
            let target = &mut row[written..written + len];
            match self.line(line, &within) {
                Some(start) => {
                    let first = within[last] + column * self.strides[last];
                    copy_line(
                        &image[start..start + width],
                        first,
                        self.before[last],
                        self.strides[last],
                        target,
                    );
                }
                None => target.fill(T::default()),
            }

            at += len;
            written += len;
        }
    }

    /// Returns the offset of the image line under a line of places, or `None` if it is outside of
    /// the image.
    fn line(&self, line: usize, within: &[usize]) -> Option<usize> {
        let last = within.len() - 1;
        let mut rest = line;
        let mut places = vec![0; last];
        for dim in (0..last).rev() {
            places[dim] = rest % self.output[dim];
            rest /= self.output[dim];
        }
        let row = (0..last).try_fold(0_usize, |offset, dim| {
            let at =
                (places[dim] * self.strides[dim] + within[dim]).checked_sub(self.before[dim])?;
            (at < self.input[dim]).then(|| offset * self.input[dim] + at)
        })?;
        Some(row * self.input[last])
    }
}

/// Copies every `stride`-th element of a padded line from `first` on.
fn copy_line<T: Copy + Default>(
    line: &[T],
    first: usize,
    before: usize,
    stride: usize,
    target: &mut [T],
) {
    let padding = before.saturating_sub(first).div_ceil(stride).min(target.len());
    target[..padding].fill(T::default());
    let from = (first + padding * stride).saturating_sub(before);
    let inside = line.len().saturating_sub(from).div_ceil(stride).min(target.len() - padding);
    let (body, rest) = target[padding..].split_at_mut(inside);
    if stride == 1 {
        body.copy_from_slice(&line[from.min(line.len())..][..inside]);
    } else {
        body.iter_mut()
            .zip(line[from.min(line.len())..].iter().step_by(stride))
            .for_each(|(to, from)| *to = *from);
    }
    rest.fill(T::default());
}

#[cfg(test)]
mod tests {
    use super::copy_line;

    #[test]
    fn lines_are_padded_on_both_sides() {
        let mut out = [9; 5];
        copy_line(&[1, 2, 3], 0, 1, 1, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 0]);
        copy_line(&[1, 2, 3, 4], 0, 1, 2, &mut out);
        assert_eq!(out, [0, 2, 4, 0, 0]);
        copy_line(&[1], 7, 1, 1, &mut out);
        assert_eq!(out, [0; 5]);
    }
}
