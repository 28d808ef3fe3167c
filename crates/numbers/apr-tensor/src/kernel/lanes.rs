//! What is kept side by side while a block is gone through.

/// Independent sums, for four AVX2 registers of `f64`: enough to hide the latency of an addition.
pub(crate) const LANES: usize = 16;

/// Running sums and extremes of each lane of a block.
#[derive(Clone, Copy)]
pub(super) struct MomentLanes<V> {
    pub(super) min: [V; LANES],
    pub(super) max: [V; LANES],
    pub(super) zeros: [u32; LANES],
    pub(super) sums: [f64; LANES],
    pub(super) squares: [f64; LANES],
}

/// Running sums and maxima of each lane of a comparison.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct DriftLanes {
    pub(crate) squared_error: [f64; LANES],
    pub(crate) squares: [f64; LANES],
    pub(crate) squares_new: [f64; LANES],
    pub(crate) max_error: [f32; LANES],
}

impl DriftLanes {
    #[inline(always)]
    #[expect(clippy::needless_range_loop, reason = "a lane is a place in several arrays")]
    pub(crate) fn add(&mut self, original: &[f32; LANES], new: &[f32; LANES]) {
        // Loops of one sum each: the compiler finds no vector instructions for a common one.
        let mut error = [0.0_f32; LANES];
        for lane in 0..LANES {
            error[lane] = original[lane] - new[lane];
        }

        for lane in 0..LANES {
            let distance = error[lane].abs();
            self.max_error[lane] =
                if distance > self.max_error[lane] { distance } else { self.max_error[lane] };
        }

        for (sum, value) in self.squared_error.iter_mut().zip(error) {
            *sum += f64::from(value) * f64::from(value);
        }

        for (sum, &value) in self.squares.iter_mut().zip(original) {
            *sum += f64::from(value) * f64::from(value);
        }

        for (sum, &value) in self.squares_new.iter_mut().zip(new) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
}

/// Adds the halves, then the quarters, and so on.
#[inline(always)]
pub(crate) fn total(mut lanes: [f64; LANES]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}
