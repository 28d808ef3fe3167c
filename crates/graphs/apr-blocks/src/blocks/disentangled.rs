//! Attention to contents and to distances apart (DeBERTa: He et al. 2020,
//! <https://arxiv.org/abs/2006.03654>).

use apr_core::{Error, Result};
use apr_graph::{ElementType, ValueId};

use super::heads::Heads;
use super::mask::Field;
use super::norm::Norm;
use crate::model::BlockPosition;
use crate::writer::{Writer, signed};

/// Distances between tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Distances {
    /// A vector for each distance, `[2 span, hidden]`.
    pub(crate) vectors: ValueId,
    /// The row of each pair of a query and a key, `[queries, keys]`.
    pub(crate) rows: ValueId,
}

impl Writer<'_> {
    /// Returns the vectors of the table `distances` and the row of each pair of tokens.
    ///
    /// The vectors pass through the norm `distance_norm` if option `distances_normed` is true.
    /// Returns `None` if attention does not use distances or the checkpoint has no table. Options:
    /// `distance_limit`, the largest distance, and `distance_buckets`: 0, or half the number of
    /// rows; each row of the outer half represents more and more distances.
    pub(crate) fn distances(
        &mut self,
        place: BlockPosition<'_>,
        field: Option<Field>,
    ) -> Result<Option<Distances>> {
        let (Some(table), Some(field)) = (place.tensor_or_none("distances"), field) else {
            return Ok(None);
        };
        if !place.truth("content_to_position")? && !place.truth("position_to_content")? {
            return Ok(None);
        }

        let limit = place.size("distance_limit")?;
        let buckets = place.size_or_none("distance_buckets")?.unwrap_or(0);
        let span = if buckets > 0 { buckets } else { limit };
        if self.model.using(&table)?.first() != Some(&span.saturating_mul(2)) {
            let message = format!("distances up to {span} need {} rows", span.saturating_mul(2));
            return Err(Error::format(message).for_tensor(&table));
        }
        let is_normed = place.truth("distances_normed")?;
        let module = is_normed.then(|| place.module("distance_norm")).transpose()?;
        let norm = (Norm::of(place)?, module);
        self.scope("distances", |w| {
            let vectors = w.tensor(&table)?;
            let vectors = w.norm_part(norm.0, "norm", vectors, norm.1)?;
            let distance = w.make("Sub", "distance", [field.queries, field.keys]);
            let bucket =
                if buckets > 0 { w.distance_buckets(distance, buckets, limit)? } else { distance };
            let (middle, zero, last) = (w.int(signed(span)), w.int(0), w.int(signed(2 * span - 1)));
            let row = w.make("Add", "row", [bucket, middle]);
            let row = w.make("Max", "row_from_zero", [row, zero]);
            let rows = w.make("Min", "rows", [row, last]);
            Ok(Some(Distances { vectors, rows }))
        })
    }

    /// `d` up to half of the buckets, `m`, else `m + ceil(log(d / m) / log((limit - 1) / m) (m -
    /// 1))`, with the sign of the distance.
    fn distance_buckets(&mut self, distance: ValueId, buckets: u64, limit: u64) -> Result<ValueId> {
        let middle = buckets / 2;
        if middle == 0 || limit <= middle + 1 {
            return Err(Error::format(format!(
                "{buckets} buckets can't divide distances up to {limit}"
            )));
        }

        Ok(self.scope("buckets", |w| {
            let sign = w.make("Sign", "sign", [distance]);
            let size = w.make("Abs", "size", [distance]);
            let exact = w.int(signed(middle));
            // The logarithm of what is near is not used, but it has to be a number.
            let far = w.make("Max", "far", [size, exact]);
            let far = w.cast("far_as_float", far, ElementType::F32);
            let exact_float = w.float(middle as f64);
            let ratio = w.make("Div", "ratio", [far, exact_float]);
            let log = w.make("Log", "log", [ratio]);
            // By the same operator, so that the last bucket is hit exactly.
            let whole = w.float((limit - 1) as f64 / middle as f64);
            let whole = w.make("Log", "whole", [whole]);
            let share = w.make("Div", "share", [log, whole]);
            let steps = w.scaled("steps", share, (middle - 1) as f64);
            let steps = w.make("Ceil", "whole_steps", [steps]);
            let steps = w.cast("steps_as_number", steps, ElementType::I64);
            let wide = w.make("Add", "wide", [steps, exact]);
            let wide = w.make("Mul", "signed", [wide, sign]);
            let is_near = w.make("LessOrEqual", "is_near", [size, exact]);
            w.make("Where", "bucket", [is_near, distance, wide])
        }))
    }

    /// The mask plus the scores between contents and distances: of each query with the vector of
    /// its distance to each key (option `content_to_position`, module `position_key`), and of each
    /// key with that of its distance to each query (`position_to_content`, `position_query`).
    pub(crate) fn with_distances(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        query: ValueId,
        key: ValueId,
        mask: Option<ValueId>,
        distances: Distances,
    ) -> Result<Option<ValueId>> {
        self.scope("distances", |w| {
            let mut terms: Vec<ValueId> = Vec::new();
            if place.truth("content_to_position")? {
                terms.push(w.by_distance(place, heads, query, distances, "position_key")?);
            }
            if place.truth("position_to_content")? {
                let rows = w.transpose("rows_transposed", distances.rows, [1, 0]);
                let transposed = Distances { rows, ..distances };
                let scores = w.by_distance(place, heads, key, transposed, "position_query")?;
                terms.push(w.transpose("by_query", scores, [0, 1, 3, 2]));
            }
            let scores = match *terms.as_slice() {
                [] => return Ok(mask),
                [one] => one,
                [one, other, ..] => w.make("Add", "both", [one, other]),
            };
            let scores = w.scaled("scores", scores, heads.scale);
            Ok(Some(match mask {
                Some(mask) => w.make("Add", "masked_scores", [scores, mask]),
                None => scores,
            }))
        })
    }

    /// Products of `x`, `[batch, heads, tokens, head_dim]`, with the vectors of distances through a
    /// linear layer, one for each row: `[batch, heads, tokens, others]`.
    fn by_distance(
        &mut self,
        place: BlockPosition<'_>,
        heads: &Heads,
        x: ValueId,
        distances: Distances,
        part: &str,
    ) -> Result<ValueId> {
        let vectors = self.linear_part(place, part, distances.vectors)?;
        self.scope(part, |w| {
            let shape = [-1, signed(heads.heads), signed(heads.head_dim)];
            let vectors = w.reshape("heads", vectors, &shape);
            let vectors = w.transpose("vectors_transposed", vectors, [1, 2, 0]);
            let products = w.make("MatMul", "products", [x, vectors]);
            let shape = w.make("Shape", "shape", [x]);
            let front = w.slice("front", shape, 0, 0, 2);
            let rows = w.make("Shape", "rows_shape", [distances.rows]);
            let shape = w.concat("all_shape", &[front, rows], 0);
            let rows = w.make("Expand", "rows", [distances.rows, shape]);
            let chosen = w.op("GatherElements", [products, rows]).attribute("axis", 3);
            Ok(chosen.output("chosen"))
        })
    }
}
