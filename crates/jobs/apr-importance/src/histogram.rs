//! Ranges of activations from histograms, with the arithmetic of onnxruntime's calibrators.

use apr_ops::products::Range;

/// Bins of a histogram, as PyTorch's and TensorRT's quantizers have them.
const BINS: usize = 2048;
/// Bins of integers that entropy compares with.
const QUANTIZED_BINS: usize = 128;

/// Smallest and largest element, and smallest and largest magnitude.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Extremes {
    pub(crate) range: Range,
    pub(crate) magnitudes: Range,
}

impl Extremes {
    /// Returns the extremes of elements, or `None` without elements.
    pub(crate) fn of(values: &[f32]) -> Option<Self> {
        let first = *values.first()?;
        let mut range = Range { min: first, max: first };
        let mut magnitudes = Range { min: first.abs(), max: first.abs() };
        for value in values {
            range = range.with(Range { min: *value, max: *value });
            magnitudes = magnitudes.with(Range { min: value.abs(), max: value.abs() });
        }
        Some(Self { range, magnitudes })
    }

    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            range: self.range.with(other.range),
            magnitudes: self.magnitudes.with(other.magnitudes),
        }
    }
}

/// Counts of elements in equal bins.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    extremes: Extremes,
    /// Magnitudes are counted, instead of signed elements.
    of_magnitudes: bool,
    edges: Vec<f32>,
    counts: Vec<u64>,
}

impl Histogram {
    /// Creates the histogram for entropy: symmetric around 0.
    pub(crate) fn signed(extremes: Extremes) -> Self {
        let largest = extremes.magnitudes.max;
        Self::new(extremes, false, (-largest, largest))
    }

    /// Creates the histogram of magnitudes for percentiles.
    pub(crate) fn of_magnitudes(extremes: Extremes) -> Self {
        let Range { min, max } = extremes.magnitudes;
        Self::new(extremes, true, (min, max))
    }

    #[expect(clippy::cast_precision_loss, reason = "bin numbers are small")]
    fn new(extremes: Extremes, of_magnitudes: bool, (mut first, mut last): (f32, f32)) -> Self {
        if first == last {
            (first, last) = (first - 0.5, last + 0.5);
        }
        let step = (last - first) / BINS as f32;
        let mut edges: Vec<f32> = (0..=BINS).map(|bin| bin as f32 * step + first).collect();
        edges[BINS] = last;
        Self { extremes, of_magnitudes, edges, counts: vec![0; BINS] }
    }

    /// Counts elements. They are within the extremes.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the position is within the bins, and corrected by the edges"
    )]
    pub(crate) fn add(&mut self, values: &[f32]) {
        let (first, last) = (self.edges[0], self.edges[BINS]);
        let width = last - first;
        for value in values {
            let value = if self.of_magnitudes { value.abs() } else { *value };
            if !(first..=last).contains(&value) {
                continue;
            }
            let mut bin = (((value - first) / width * BINS as f32) as usize).min(BINS - 1);
            if value < self.edges[bin] {
                bin -= 1;
            } else if value >= self.edges[bin + 1] && bin + 1 < BINS {
                bin += 1;
            }
            self.counts[bin] += 1;
        }
    }

    /// Returns the range in which a share of the magnitudes lies, in percent.
    #[expect(clippy::cast_precision_loss, reason = "counts of elements")]
    pub(crate) fn percentile(&self, percent: f64) -> Range {
        let total = self.counts.iter().sum::<u64>() as f64;
        let mut sum = 0.0;
        let found = self.counts.iter().position(|count| {
            sum += *count as f64 / total;
            sum >= percent / 100.0
        });
        let limit = self.edges[found.unwrap_or(BINS)];
        self.within(Range { min: -limit, max: limit })
    }

    /// Returns the range whose elements, rounded to few bins, differ least from the histogram by
    /// relative entropy.
    pub(crate) fn entropy(&self) -> Range {
        let (zero, half) = (BINS / 2, QUANTIZED_BINS / 2);
        let mut best = (f64::INFINITY, half);
        for reach in half..=zero {
            let (start, end) = (zero - reach, (zero + reach + 1).min(BINS));
            let divergence = divergence(&self.counts, start, end);
            if divergence < best.0 {
                best = (divergence, reach);
            }
        }
        let (start, end) = (zero - best.1, (zero + best.1 + 1).min(BINS));
        self.within(Range { min: self.edges[start], max: self.edges[end] })
    }

    /// Returns a range without what no element reaches.
    fn within(&self, range: Range) -> Range {
        let Range { min, max } = self.extremes.range;
        Range { min: range.min.max(min), max: range.max.min(max) }
    }
}

/// Returns the relative entropy of the counts from `start` to `end`, with all counts beyond added
/// to the outermost, and the same counts rounded to few bins.
fn divergence(counts: &[u64], start: usize, end: usize) -> f64 {
    let slice = &counts[start..end];
    let mut reference = slice.to_vec();
    reference[0] += counts[..start].iter().sum::<u64>();
    if let Some(last) = reference.last_mut() {
        *last += counts[end..].iter().sum::<u64>();
    }
    let merged = slice.len() / QUANTIZED_BINS;
    let mut rounded = vec![0_u64; slice.len()];
    for bin in 0..QUANTIZED_BINS {
        let place = bin * merged..(bin + 1) * merged;
        let mut sum = slice[place.clone()].iter().sum::<u64>();
        if bin + 1 == QUANTIZED_BINS {
            sum += slice[place.end..].iter().sum::<u64>();
        }
        let used = reference[place.clone()].iter().filter(|count| **count != 0).count() as u64;
        if let Some(share) = sum.checked_div(used) {
            rounded[place].fill(share);
        }
    }
    match (smooth(&reference), smooth(&rounded)) {
        (Some(reference), Some(rounded)) => relative_entropy(&reference, &rounded),
        _ => f64::INFINITY,
    }
}

/// Returns counts without zeros: each gets a little, which the others give.
#[expect(clippy::cast_precision_loss, reason = "counts of elements")]
fn smooth(counts: &[u64]) -> Option<Vec<f64>> {
    const LITTLE: f64 = 0.0001;
    let zeros = counts.iter().filter(|count| **count == 0).count();
    let others = counts.len() - zeros;
    let given = LITTLE * zeros as f64 / others as f64;
    let smoothed =
        counts.iter().map(|&count| if count == 0 { LITTLE } else { count as f64 - given });
    (others > 0).then(|| smoothed.collect())
}

fn relative_entropy(one: &[f64], other: &[f64]) -> f64 {
    let (one_sum, other_sum) = (one.iter().sum::<f64>(), other.iter().sum::<f64>());
    let shares = one.iter().zip(other);
    shares.map(|(p, q)| p / one_sum * (p / one_sum * other_sum / q).ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTROPY: (f32, f32) = (-0.530_273_44, 0.533_203_1);
    const PERCENTILES: [(f64, (f32, f32)); 3] = [
        (99.999, (-2.5, 2.998_535_2)),
        (99.9, (-0.213_867_19, 0.213_867_19)),
        (95.0, (-0.165_527_34, 0.165_527_34)),
    ];

    /// Elements that NumPy and Rust compute alike: a few far from many.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn elements() -> Vec<f32> {
        let many = (0..20_000_u32).map(|at| {
            let place = (at.wrapping_mul(2_654_435_761) >> 8) as f32 / 16_777_216.0;
            (place - 0.4) * (place - 0.4) * (place - 0.4)
        });
        many.chain([3.0, -2.5, 2.75]).collect()
    }

    fn filled(make: fn(Extremes) -> Histogram) -> Histogram {
        let elements = elements();
        let mut histogram = make(Extremes::of(&elements).expect("elements"));
        histogram.add(&elements[..7000]);
        histogram.add(&elements[7000..]);
        histogram
    }

    #[test]
    fn ranges_are_those_of_onnxruntimes_calibrators() {
        // `HistogramCollector` of onnxruntime 1.32 on the same elements: entropy with
        // `num_bins=2048`, percentile with its defaults.
        let entropy = filled(Histogram::signed).entropy();
        assert_eq!((entropy.min, entropy.max), ENTROPY);
        let magnitudes = filled(Histogram::of_magnitudes);
        for (percent, expected) in PERCENTILES {
            let range = magnitudes.percentile(percent);
            assert_eq!((range.min, range.max), expected, "{percent} %");
        }
    }

    #[test]
    fn elements_that_are_all_the_same_have_a_range() {
        let mut histogram = Histogram::signed(Extremes::of(&[0.0; 8]).expect("elements"));
        histogram.add(&[0.0; 8]);
        assert_eq!(histogram.entropy(), Range { min: 0.0, max: 0.0 });
        let mut histogram = Histogram::of_magnitudes(Extremes::of(&[2.0; 8]).expect("elements"));
        histogram.add(&[2.0; 8]);
        assert_eq!(histogram.percentile(99.9).max, 2.0);
    }
}
