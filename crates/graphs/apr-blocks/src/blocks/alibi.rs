//! Positions as a slope of the scores (ALiBi: Press et al. 2021,
//! <https://arxiv.org/abs/2108.12409>).

use apr_core::{Error, Result};
use apr_graph::{Constant, ElementType, ValueId};

use super::mask::Field;
use crate::writer::{Writer, signed};

impl Writer<'_> {
    /// Returns the ALiBi term of the scores of each head, `[batch, heads, 1, keys]` (BLOOM).
    ///
    /// The term is the head's slope times the number of the key, starting at 0 and not counting
    /// padding. ALiBi's slope of the distance from the query differs from it by the same number for
    /// all keys of a query, which the softmax cancels.
    pub(crate) fn slopes(&mut self, field: Field, heads: u64) -> Result<ValueId> {
        let counts = field
            .counts
            .ok_or_else(|| Error::format("slopes of positions need to know what is padding"))?;
        Ok(self.scope("slopes", |w| {
            let counts = w.cast("counts", counts, ElementType::I64);
            let (axis, one) = (w.int(3), w.int(1));
            let so_far = w.make("CumSum", "so_far", [counts, axis]);
            let number = w.make("Sub", "number", [so_far, one]);
            let number = w.make("Mul", "number_or_padding", [number, counts]);
            let number = w.cast("as_float", number, ElementType::F32);
            let slopes = w.body().constant(Constant::floats(&slopes_of(heads)));
            let slopes = w.reshape("by_head", slopes, &[1, signed(heads), 1, 1]);
            w.make("Mul", "slope_by_key", [number, slopes])
        }))
    }
}

/// The slopes of the heads: powers of `2^(-8 / n)` for the largest power of two `n` that is not
/// more than there are heads, then every second power for twice that many.
#[expect(clippy::cast_possible_truncation, reason = "graphs compute in single precision")]
fn slopes_of(heads: u64) -> Vec<f32> {
    let whole = 1_u64 << heads.max(1).ilog2();
    // transformers rounds the base to single precision before it takes powers of it.
    let power = |base: f64, exponent: u64| f64::from(base as f32).powf(exponent as f64) as f32;
    let base = |count: u64| (-8.0 / count as f64).exp2();
    let rest = (0..heads - whole).map(|at| power(base(2 * whole), 2 * at + 1));
    (1..=whole).map(|exponent| power(base(whole), exponent)).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::slopes_of;

    /// Compares the slopes with the paper's own code, `get_slopes` of
    /// <https://github.com/ofirpress/attention_with_linear_biases>.
    #[test]
    fn slopes_match_the_code_of_the_paper() {
        assert_eq!(
            slopes_of(8),
            [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015_625, 0.007_812_5, 0.003_906_25]
        );
        assert_eq!(slopes_of(5), [0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5]);
        assert_eq!(slopes_of(1), [0.003_906_25]);
    }
}
