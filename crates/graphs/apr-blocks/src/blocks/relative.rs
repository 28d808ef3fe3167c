//! Relative positions as a term of the scores (T5: Raffel et al. 2019,
//! <https://arxiv.org/abs/1910.10683>).

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId};

use super::heads::Heads;
use super::mask::{Field, Sight};
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

impl Writer<'_> {
    /// The bucket of each pair of a query and a key, `[queries, keys]`: one for each of the nearest
    /// distances, then ever wider ones up to `relative_distance`. Where all are seen, one half of
    /// the `relative_buckets` is for later keys.
    pub(crate) fn buckets(&mut self, place: BlockPosition<'_>, field: Field) -> Result<ValueId> {
        let count = place.size("relative_buckets")?;
        let far = place.number("relative_distance")?;
        let is_two_sided = field.sight == Sight::All;
        let count = if is_two_sided { count / 2 } else { count };
        let exact = count / 2;
        if exact == 0 || far <= exact as f64 {
            return Err(Error::format(format!(
                "{count} buckets can't divide distances up to {far}"
            )));
        }

        Ok(self.scope("buckets", |w| {
            let ahead = w.make("Sub", "ahead", [field.keys, field.queries]);
            let distance = if is_two_sided {
                w.make("Abs", "distance", [ahead])
            } else {
                let behind = w.make("Neg", "behind", [ahead]);
                let zero = w.int(0);
                w.make("Max", "distance", [behind, zero])
            };
            let bucket = w.one_sided_buckets(distance, count, exact, far);
            if !is_two_sided {
                return bucket;
            }
            let zero = w.int(0);
            let is_later = w.make("Greater", "is_later", [ahead, zero]);
            let is_later = w.cast("later", is_later, ElementType::I64);
            let half = w.int(signed(count));
            let start = w.make("Mul", "start", [is_later, half]);
            w.make("Add", "bucket", [start, bucket])
        }))
    }

    /// `d` below `exact`, else `exact + log(d / exact) / log(far / exact) * (count - exact)`, at
    /// most the last one.
    fn one_sided_buckets(
        &mut self,
        distance: ValueId,
        count: u64,
        exact: u64,
        far: f64,
    ) -> ValueId {
        let as_float = self.cast("as_float", distance, ElementType::F32);
        let exact_float = self.float(exact as f64);
        let ratio = self.make("Div", "ratio", [as_float, exact_float]);

        // The logarithm of nothing is not used, but it has to be a number.
        let one = self.float(1.0);
        let ratio = self.make("Max", "ratio_from_one", [ratio, one]);
        let log = self.make("Log", "log", [ratio]);
        let whole = self.float((far / exact as f64).ln());
        let share = self.make("Div", "share", [log, whole]);
        let steps = self.scaled("steps", share, (count - exact) as f64);
        let steps = self.cast("whole_steps", steps, ElementType::I64);
        let first = self.int(signed(exact));
        let wide = self.make("Add", "wide", [steps, first]);
        let last = self.int(signed(count - 1));
        let wide = self.make("Min", "wide_or_last", [wide, last]);
        let is_near = self.make("Less", "is_near", [distance, first]);
        self.make("Where", "one_sided", [is_near, distance, wide])
    }

    /// Returns the term of the scores times `a (b c - 1) + 2` (WavLM: Chen et al. 2021,
    /// <https://arxiv.org/abs/2110.13900>).
    ///
    /// A linear layer is applied to the part of `x` of each query. `a` and `b` are sigmoids, each
    /// of the sum of half of the layer's outputs. `c` is a number per head.
    pub(crate) fn gated_bias(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        x: ValueId,
        bias: ValueId,
        module: &str,
    ) -> Result<ValueId> {
        let weight = format!("{module}.weight");
        let rows = self.model.using(&weight)?.first().copied().unwrap_or(0);
        self.scope("relative_gate", |w| {
            let parts = w.heads_of("input", x, heads.heads, heads.head_dim);
            let both = w.outer_linear("dense", parts, module)?;
            let both = w.reshape("sides", both, &[0, 0, 0, 2, signed(rows / 2)]);
            let sums = w.sum("sums", both, -1);
            let axis = w.ints(&[-1]);
            let sums = w.make("Squeeze", "sum_of_side", [sums, axis]);
            let gates = w.make("Sigmoid", "gates", [sums]);
            let [update, reset] = w.split("gate", gates, -1, [1, 1]);
            let scale = w.tensor(&place.module("relative_gate_scale")?)?;
            let scaled = w.make("Mul", "reset_scaled", [reset, scale]);
            let (one, two) = (w.float(1.0), w.float(2.0));
            let less = w.make("Sub", "reset_less_one", [scaled, one]);
            let product = w.make("Mul", "product", [update, less]);
            let factor = w.make("Add", "factor", [product, two]);
            Ok(w.make("Mul", "bias", [factor, bias]))
        })
    }

    /// The term of each head, `[1, heads, queries, keys]`, from a table `[buckets, heads]`.
    pub(crate) fn relative_bias(&mut self, buckets: ValueId, table: &str) -> Result<ValueId> {
        let table = self.tensor(table)?;
        let by_pair = self.make("Gather", "bias_by_pair", [table, buckets]);
        let by_head = self.transpose("bias_by_head", by_pair, [2, 0, 1]);
        Ok(self.unsqueeze("bias", by_head, &[0]))
    }
}
