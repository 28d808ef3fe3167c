//! Random numbers that depend on seed, tensor, model and position alone, so that a merge gives the
//! same bytes whatever the number of threads or the size of blocks.

/// Numbers of one tensor of one model.
#[derive(Debug, Clone, Copy)]
pub struct Draws {
    key: u64,
}

/// The increments of SplitMix64: the fraction of the golden ratio, in 64 bits.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit depends on every other.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Draws {
    /// Creates the random numbers of a tensor in one model of the merge.
    ///
    /// `tensor` is the name in the output, `model` is the position in the merge.
    #[must_use]
    pub fn of(seed: u64, tensor: &str, model: usize) -> Self {
        // FNV-1a, in which no byte of a name is lost.
        let name = tensor.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let model = (model as u64 + 1).wrapping_mul(STEP);
        Self { key: mix(mix(seed ^ STEP).wrapping_add(name)) ^ mix(model) }
    }

    /// A number from 0 up to 1, which is not included, for the element at this position.
    #[inline]
    #[must_use]
    pub fn at(&self, position: u64) -> f64 {
        let bits = mix(self.key.wrapping_add(position.wrapping_add(1).wrapping_mul(STEP)));
        (bits >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_uniform_and_independent() {
        const COUNT: u64 = 1_000_000;

        let (a, b) = (Draws::of(0, "w", 0), Draws::of(0, "w", 1));
        let (mut sum, mut product, mut bins) = (0.0, 0.0, [0_u64; 16]);
        for position in 0..COUNT {
            let (x, y) = (a.at(position), b.at(position));
            sum += x;
            product += (x - 0.5) * (y - 0.5);
            let bin = (1..16).take_while(|edge| x >= f64::from(*edge) / 16.0).count();
            bins[bin] += 1;
        }
        let n = COUNT as f64;
        // Five standard deviations each.
        assert!((sum / n - 0.5).abs() < 5.0 * (1.0 / 12.0 / n).sqrt(), "{sum}");
        assert!((product / n).abs() < 5.0 / 12.0 / n.sqrt(), "{product}");
        let chi: f64 = bins.iter().map(|&bin| (bin as f64 - n / 16.0).powi(2) / (n / 16.0)).sum();
        assert!(chi < 15.0 + 5.0 * 30.0_f64.sqrt(), "{chi}");
    }

    #[test]
    fn seed_tensor_and_model_each_change_all_numbers() {
        let first = Draws::of(0, "w", 0);
        for other in [Draws::of(1, "w", 0), Draws::of(0, "v", 0), Draws::of(0, "w", 1)] {
            let equal = (0..1000).filter(|&at| first.at(at) == other.at(at)).count();
            assert_eq!(equal, 0);
        }
    }
}
