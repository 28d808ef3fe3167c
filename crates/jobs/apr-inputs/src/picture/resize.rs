//! Other sizes, as Pillow 13 makes them.
//!
//! Each row, then each column, is a weighted sum of the pixels under a filter that is as wide as
//! the change of size asks for. Weights are whole numbers of 22 bits behind the point, and sums are
//! rounded to 8 bits in between. Where a picture loses far more rows than columns, columns come
//! first; before Pillow 13, they never did.

use std::f64::consts::PI;

use apr_core::{Error, Result};

use super::{MAX_PIXELS, Picture};

/// Bits of a weight behind the point.
const PRECISION: u32 = 22;

/// Filter that weights pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// The pixel that is nearest.
    Nearest,
    /// All pixels under the new one alike.
    Box,
    /// A triangle over two pixels.
    Bilinear,
    /// Half of a Hamming window.
    Hamming,
    /// A cubic over four pixels, with a = -0.5 (Keys 1981).
    Bicubic,
    /// A sinc over six pixels.
    Lanczos,
}

impl Filter {
    /// Returns the filter with this number in Pillow, as in `resample` of a preprocessor.
    #[must_use]
    pub const fn by_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Nearest,
            1 => Self::Lanczos,
            2 => Self::Bilinear,
            3 => Self::Bicubic,
            4 => Self::Box,
            5 => Self::Hamming,
            _ => return None,
        })
    }

    const fn reach(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Self::Nearest | Self::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Self::Bilinear => (1.0 - x.abs()).max(0.0),
            Self::Hamming => hamming(x.abs()),
            Self::Bicubic => bicubic(x.abs()),
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Lanczos => 0.0,
        }
    }
}

fn hamming(x: f64) -> f64 {
    if x >= 1.0 { 0.0 } else { sinc(x) * (0.54 + 0.46 * (x * PI).cos()) }
}

fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;

    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    let angle = x * PI;
    if angle == 0.0 { 1.0 } else { angle.sin() / angle }
}

/// The pixels that make a new one: the first, and the weight of each.
struct Weights {
    first: usize,
    weights: Vec<i64>,
}

fn weights(from: usize, to: usize, filter: Filter) -> Vec<Weights> {
    let scale = from as f64 / to as f64;
    let wide = scale.max(1.0);
    let reach = filter.reach() * wide;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "places inside of the picture"
    )]
    let place = |number: f64| number.max(0.0) as usize;
    (0..to)
        .map(|at| {
            let centre = (at as f64 + 0.5) * scale;
            let (first, end) = (place(centre - reach + 0.5), place(centre + reach + 0.5).min(from));
            let weight = |x: usize| filter.weight((x as f64 - centre + 0.5) / wide);
            let weights: Vec<f64> = (first..end).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            let sum = if sum == 0.0 { 1.0 } else { sum };
            #[expect(clippy::cast_possible_truncation, reason = "weights are around 1")]
            let whole = |weight: &f64| (weight / sum * f64::from(1 << PRECISION)).round() as i64;
            Weights { first, weights: weights.iter().map(whole).collect() }
        })
        .collect()
}

impl Picture {
    /// The picture in another size.
    ///
    /// # Errors
    /// E001 for a size without pixels, or of a picture without pixels; E008 for one of more than
    /// 2^25 pixels.
    pub fn resized(&self, width: usize, height: usize, filter: Filter) -> Result<Self> {
        const MAX_SIDE: usize = 1 << 16;

        if [width, height].iter().any(|side| !(1..=MAX_SIDE).contains(side))
            || self.pixels.is_empty()
        {
            let (old_width, old_height) = (self.width, self.height);
            return Err(Error::format(format!(
                "can't resize an image of {old_width} x {old_height} to {width} x {height}"
            )));
        }
        // It is made wide first, then high. Otherwise, it has fewer pixels in between than it had.
        if width.saturating_mul(height.max(self.height)) > MAX_PIXELS {
            return Err(Error::memory(format!("an image of {width} x {height} is too large")));
        }
        if filter == Filter::Nearest {
            return Ok(self.nearest(width, height));
        }

        let lost = |before: usize, after: usize| before as i64 - after as i64;
        let (rows, columns) = (lost(self.height, height), lost(self.width, width));
        if rows > 0 && columns != 0 && rows > 2 * columns {
            return Ok(self.heightened(height, filter).widened(width, filter));
        }
        let wide = if width == self.width { self.clone() } else { self.widened(width, filter) };
        Ok(if height == self.height { wide } else { wide.heightened(height, filter) })
    }

    fn nearest(&self, width: usize, height: usize) -> Self {
        let mut pixels = Vec::with_capacity(3 * width * height);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "places inside of the picture"
        )]
        let place = |at: usize, from: usize, to: usize| {
            (((at as f64 + 0.5) * (from as f64 / to as f64)) as usize).min(from - 1)
        };
        for y in 0..height {
            let row = place(y, self.height, height) * self.width;
            for x in 0..width {
                let at = 3 * (row + place(x, self.width, width));
                pixels.extend_from_slice(&self.pixels[at..at + 3]);
            }
        }

        Self { width, height, pixels }
    }

    fn widened(&self, width: usize, filter: Filter) -> Self {
        let weights = weights(self.width, width, filter);
        let mut pixels = Vec::with_capacity(3 * width * self.height);
        for row in self.pixels.chunks_exact(3 * self.width) {
            for Weights { first, weights } in &weights {
                pixels.extend(sum(weights, |at| 3 * (first + at), row));
            }
        }
        Self { width, height: self.height, pixels }
    }

    fn heightened(&self, height: usize, filter: Filter) -> Self {
        let mut pixels = Vec::with_capacity(3 * self.width * height);
        for Weights { first, weights } in weights(self.height, height, filter) {
            for x in 0..self.width {
                pixels.extend(sum(
                    &weights,
                    |at| 3 * ((first + at) * self.width + x),
                    &self.pixels,
                ));
            }
        }
        Self { width: self.width, height, pixels }
    }
}

/// The weighted sum of pixels, in 8 bits.
fn sum(weights: &[i64], place: impl Fn(usize) -> usize, pixels: &[u8]) -> [u8; 3] {
    let mut sums = [1_i64 << (PRECISION - 1); 3];
    for (at, weight) in weights.iter().enumerate() {
        let start = place(at);
        for (sum, value) in sums.iter_mut().zip(&pixels[start..start + 3]) {
            *sum += weight * i64::from(*value);
        }
    }
    // A sum is a number of 8 bits then.
    sums.map(|sum| (sum >> PRECISION).clamp(0, 255) as u8)
}
