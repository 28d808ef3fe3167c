//! Sounds: windows, Fourier transforms, mel filters.

use std::f64::consts::PI;

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::cast::element;
use crate::call::Call;
use crate::cast::from_doubles;
use crate::operator::{Operator, computes, moves};
use crate::shape::{around, axis};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    moves("HannWindow", |call| window(call, [0.5, 0.5, 0.0])),
    moves("HammingWindow", |call| window(call, [25.0 / 46.0, 1.0 - 25.0 / 46.0, 0.0])),
    moves("BlackmanWindow", |call| window(call, [0.42, 0.5, 0.08])),
    moves("MelWeightMatrix", mel),
    computes("DFT", dft),
    computes("STFT", stft),
];

/// A sum of cosines: constant, once and twice around the window.
fn window(call: &mut Call<'_>, parts: [f64; 3]) -> Result<Vec<Value>> {
    let size = call.tensor(0)?.integer()?;
    let size = usize::try_from(size).map_err(|_| Error::format("a window has a negative size"))?;
    let to = element(call.int("output_datatype", 1))?;
    call.room(&[size], ElementType::F64)?;
    let around = if call.flag("periodic", true) { size as f64 } else { size as f64 - 1.0 };
    let of = |at: usize| {
        let angle = 2.0 * PI * at as f64 / around;
        parts[0] - parts[1] * libm::cos(angle) + parts[2] * libm::cos(2.0 * angle)
    };
    Ok(vec![from_doubles((0..size).map(of).collect(), vec![size], to)?.into()])
}

/// Triangles over the frequencies, evenly spread over the mel scale.
fn mel(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let number = |position| call.tensor(position).and_then(Tensor::number);
    let (bins, length, rate) = (number(0)? as i64, number(1)? as i64, number(2)?);
    let (low, high) = (number(3)?, number(4)?);
    let to = element(call.int("output_datatype", 1))?;
    let (Ok(bins), Ok(length)) = (usize::try_from(bins), usize::try_from(length)) else {
        return Err(Error::format("sizes are negative"));
    };
    let spectrum = length / 2 + 1;
    let mut values = vec![0.0; call.room(&[spectrum, bins], ElementType::F64)?];
    let to_mel = |hertz: f64| 2595.0 * libm::log10(1.0 + hertz / 700.0);
    let (low, high) = (to_mel(low), to_mel(high));
    let step = (high - low) / (bins + 2) as f64;
    let place = |at: usize| {
        let hertz = 700.0 * (libm::pow(10.0, (low + step * at as f64) / 2595.0) - 1.0);
        ((length as f64 + 1.0) * hertz / rate).floor()
    };
    for bin in 0..bins {
        let corners = [place(bin), place(bin + 1), place(bin + 2)];

        // A corner past the last frequency would make a triangle without an end.
        if corners.iter().any(|corner| !(0.0..=spectrum as f64).contains(corner))
            || !corners.is_sorted()
        {
            return Err(Error::format(format!(
                "the edges of bin {bin} are not within the spectrum"
            )));
        }
        triangle(corners.map(|corner| corner as usize), |row, value| {
            if let Some(cell) = values.get_mut(row * bins + bin) {
                *cell = value;
            }
        });
    }

    Ok(vec![from_doubles(values, vec![spectrum, bins], to)?.into()])
}

/// Sets the rows of a triangle: from 0 on the left up to 1 at the centre, and down again on the
/// right.
fn triangle([left, centre, right]: [usize; 3], mut set: impl FnMut(usize, f64)) {
    if left == centre {
        set(centre, 1.0);
    } else {
        let width = (centre - left) as f64;
        (left..=centre).for_each(|row| set(row, (row - left) as f64 / width));
    }
    let width = (right - centre) as f64;
    (centre..right).for_each(|row| set(row, (right - row) as f64 / width));
}

/// Computes the Fourier transform of complex numbers: by halves if the length is even, by
/// definition otherwise.
fn transform(values: &[(f64, f64)], sign: f64) -> Vec<(f64, f64)> {
    let len = values.len();
    let turned = |(re, im): (f64, f64), angle: f64| {
        let (sin, cos) = libm::sincos(angle);
        (re * cos - im * sin, re * sin + im * cos)
    };

    // Each level halves the length, so that the recursion stays shallow.
    if len > 1 && len.is_multiple_of(2) {
        let half = |first: usize| {
            transform(&values.iter().skip(first).step_by(2).copied().collect::<Vec<_>>(), sign)
        };
        let (even, odd) = (half(0), half(1));
        let at = |k: usize| {
            let (even, odd) = (
                even[k % (len / 2)],
                turned(odd[k % (len / 2)], sign * 2.0 * PI * k as f64 / len as f64),
            );
            (even.0 + odd.0, even.1 + odd.1)
        };
        return (0..len).map(at).collect();
    }

    let at = |k: usize| {
        values.iter().enumerate().fold((0.0, 0.0), |sum, (n, value)| {
            // Within one turn, the angle keeps its precision.
            let (re, im) = turned(*value, sign * 2.0 * PI * (k * n % len) as f64 / len as f64);
            (sum.0 + re, sum.1 + im)
        })
    };

    (0..len).map(at).collect()
}

/// Counts transforms of a length, each step of which is a sine and a cosine.
fn count_transforms(call: &Call<'_>, lines: usize, length: usize) -> Result<()> {
    const SINE: usize = 20;

    // Halves, as long as they are even, then all pairs of what is left.
    let halves = length.max(1).trailing_zeros();
    call.work(&[lines, length, (length >> halves).saturating_add(halves as usize), SINE])
}

/// A signal's elements as complex numbers: its last dimension is 1 or 2.
fn complex(tensor: &Tensor) -> Result<Vec<(f64, f64)>> {
    let values = tensor.doubles()?;
    match tensor.shape().last() {
        Some(1) => Ok(values.into_iter().map(|re| (re, 0.0)).collect()),
        Some(2) => Ok(values.as_chunks::<2>().0.iter().map(|[re, im]| (*re, *im)).collect()),
        _ => Err(Error::format("the last dimension must be 1 or 2: real, imaginary")),
    }
}

fn flat(values: Vec<(f64, f64)>) -> Vec<f64> {
    values.into_iter().flat_map(|(re, im)| [re, im]).collect()
}

/// Parameters of a Fourier transform.
struct Transform {
    inverse: bool,
    /// `true` for one half only, which the other half mirrors: of the result, or of the input of an
    /// inverse.
    one_sided: bool,
    /// Elements before, at and after the axis.
    sizes: (usize, usize, usize),
    /// Elements of a line that is transformed.
    length: usize,
}

impl Transform {
    /// Returns `true` if the result has no imaginary parts.
    fn is_real(&self) -> bool {
        self.inverse && self.one_sided
    }

    /// Elements of a line that are results.
    fn kept(&self) -> usize {
        if self.one_sided && !self.inverse { self.length / 2 + 1 } else { self.length }
    }

    /// A line of the signal, cut or filled up with zeros, or with the half that mirrors the one
    /// that is given.
    fn line(&self, values: &[(f64, f64)], outer: usize, inner: usize) -> Vec<(f64, f64)> {
        let (_, size, after) = self.sizes;
        let of = |n: usize| match n < size {
            true => values[(outer * size + n) * after + inner],
            false if self.is_real() && self.length - n < size => {
                let (re, im) = values[(outer * size + self.length - n) * after + inner];
                (re, -im)
            }
            false => (0.0, 0.0),
        };
        (0..self.length).map(of).collect()
    }

    fn run(&self, values: &[(f64, f64)], out: &mut [(f64, f64)]) {
        let ((before, _, after), kept) = (self.sizes, self.kept());
        let (sign, scale) =
            if self.inverse { (1.0, 1.0 / self.length as f64) } else { (-1.0, 1.0) };
        for row in 0..before * after {
            let (outer, inner) = (row / after, row % after);
            let result = transform(&self.line(values, outer, inner), sign);
            for (n, (re, im)) in result.into_iter().take(kept).enumerate() {
                out[(outer * kept + n) * after + inner] = (re * scale, im * scale);
            }
        }
    }
}

/// Returns the axis of the transform, which is an input from version 20 on.
fn transform_axis(call: &Call<'_>) -> Result<i64> {
    match call.optional(2)? {
        Some(at) => at.integer(),
        None if call.opset < 20 => Ok(call.int("axis", 1)),
        None => Ok(-2),
    }
}

fn dft(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let (inverse, one_sided) = (call.flag("inverse", false), call.flag("onesided", false));
    let at = axis(transform_axis(call)?, x.rank())?;
    let outer = &x.shape()[..x.rank() - 1];
    if at >= outer.len() {
        return Err(Error::format("the axis is the one of real and imaginary parts"));
    }

    let sizes = around(outer, at);
    let length = match call.optional(1)? {
        Some(length) => usize::try_from(length.integer()?)
            .map_err(|_| Error::format("the length is negative"))?,
        // Half a spectrum does not say whether the samples were odd in number: it is taken as even.
        None if inverse && one_sided => sizes.1.saturating_sub(1) * 2,
        None => sizes.1,
    };

    let transform = Transform { inverse, one_sided, sizes, length };
    let mut shape = outer.to_vec();
    shape[at] = transform.kept();
    let mut out = vec![(0.0, 0.0); call.room(&shape, ElementType::C128)?];
    call.room(&[length], ElementType::C128)?;
    count_transforms(call, sizes.0.saturating_mul(sizes.2), length)?;
    transform.run(&complex(x)?, &mut out);
    shape.push(if transform.is_real() { 1 } else { 2 });
    let out =
        if transform.is_real() { out.into_iter().map(|(re, _)| re).collect() } else { flat(out) };
    Ok(vec![from_doubles(out, shape, x.element())?.into()])
}

fn stft(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = call.tensor(0)?;
    let &[batch, len, _] = x.shape() else {
        return Err(Error::format("a signal has three dimensions"));
    };
    let size = |tensor: &Tensor| {
        usize::try_from(tensor.integer()?).map_err(|_| Error::format("a size is negative"))
    };
    let step = size(call.tensor(1)?)?;
    let weights = call.optional(2)?.map(Tensor::doubles).transpose()?;
    let frame = match (call.optional(3)?, &weights) {
        (Some(frame), _) => size(frame)?,
        (None, Some(weights)) => weights.len(),
        (None, None) => {
            return Err(Error::format("missing window or frame length"));
        }
    };

    if step == 0
        || frame == 0
        || frame > len
        || weights.as_ref().is_some_and(|weights| weights.len() != frame)
    {
        return Err(Error::format(format!(
            "frames of {frame} every {step} do not fit {len} samples"
        )));
    }
    let frames = (len - frame) / step + 1;

    // The spectrum of real samples mirrors itself: one half says all.
    let kept = if call.flag("onesided", true) { frame / 2 + 1 } else { frame };
    let shape = vec![batch, frames, kept, 2];
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    count_transforms(call, batch.saturating_mul(frames), frame)?;
    let values = complex(x)?;
    for row in 0..batch * frames {
        let start = row / frames * len + row % frames * step;
        let weight = |at: usize| weights.as_ref().map_or(1.0, |weights| weights[at]);
        let line: Vec<_> = values[start..start + frame]
            .iter()
            .enumerate()
            .map(|(at, v)| (v.0 * weight(at), v.1 * weight(at)))
            .collect();
        out.extend(transform(&line, -1.0).into_iter().take(kept));
    }

    Ok(vec![from_doubles(flat(out), shape, x.element())?.into()])
}
