//! Rotary positions: pairs of elements turned by the angle of their place.

use apr_core::{Error, Result};

use super::gather::position;
use crate::call::Call;
use crate::operator::{Operator, computes};
use crate::shape::count;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] =
    &[computes("RotaryEmbedding", onnx), computes("com.microsoft::RotaryEmbedding", microsoft)];

/// Tables of cosines and sines, with a row for each position.
pub(super) struct Rotation<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    /// Number of pairs. The elements after them are unchanged.
    pairs: usize,
    /// `true` if the elements of a pair are neighbours, `false` if they are half a row apart.
    interleaved: bool,
}

impl<'a> Rotation<'a> {
    /// Tables for rows of `size` elements, of which the first `turned` are turned.
    pub(super) fn new(
        cos: &'a Tensor,
        sin: &'a Tensor,
        (size, turned): (usize, usize),
        interleaved: bool,
    ) -> Result<Self> {
        let pairs = turned / 2;
        if turned > size || cos.shape() != sin.shape() || cos.shape().last() != Some(&pairs) {
            return Err(Error::format(format!(
                "tables of {:?} do not fit rows of {size}",
                cos.shape()
            )));
        }
        Ok(Self { cos: cos.values()?, sin: sin.values()?, pairs, interleaved })
    }

    /// Number of positions that have angles.
    pub(super) fn rows(&self) -> usize {
        self.cos.len().checked_div(self.pairs).unwrap_or(0)
    }

    /// Turns a row by the angles in row `position` of the tables.
    pub(super) fn turn(&self, row: &mut [f32], position: usize) {
        let angles = position * self.pairs..(position + 1) * self.pairs;
        for (pair, (cos, sin)) in self.cos[angles.clone()].iter().zip(&self.sin[angles]).enumerate()
        {
            let (a, b) =
                if self.interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + self.pairs) };
            let (x, y) = (row[a], row[b]);
            row[a] = cos * x - sin * y;
            row[b] = sin * x + cos * y;
        }
    }
}

/// Rows of heads at positions: `[batch, heads, length, size]`, or `[batch, length, heads * size]`.
struct HeadRows {
    batch: usize,
    len: usize,
    size: usize,
    heads: usize,
    /// `true` if the rows of one head are adjacent, `false` if the rows of one position are.
    by_head: bool,
}

impl HeadRows {
    /// Returns the layout of a shape. `heads` is used if the shape does not contain it.
    fn of(shape: &[usize], heads: i64) -> Result<Self> {
        match *shape {
            [batch, heads, len, size] if size > 0 => {
                Ok(Self { batch, len, size, heads, by_head: true })
            }
            [batch, len, width] => {
                let heads = usize::try_from(heads).unwrap_or(0);
                if heads == 0 || width == 0 || width % heads != 0 {
                    return Err(Error::format(format!(
                        "{width} columns are not cut into {heads} heads"
                    )));
                }
                Ok(Self { batch, len, size: width / heads, heads, by_head: false })
            }
            _ => Err(Error::format(format!("{shape:?} has neither three nor four dimensions"))),
        }
    }

    /// Rotates all rows. `positions` has the position of each place of each batch.
    fn turn(&self, x: &Tensor, rotation: &Rotation<'_>, positions: &[usize]) -> Result<Tensor> {
        if positions.len() != self.batch * self.len {
            let message =
                format!("{} positions do not fit {} x {}", positions.len(), self.batch, self.len);
            return Err(Error::format(message));
        }
        let mut values = x.values::<f32>()?.to_vec();
        for (number, row) in values.chunks_exact_mut(self.size).enumerate() {
            let batch = number / (self.heads * self.len);
            let at = if self.by_head { number % self.len } else { number / self.heads % self.len };
            rotation.turn(row, positions[batch * self.len + at]);
        }
        Tensor::new(x.shape().to_vec(), values)
    }
}

/// Inputs: x, cosines, sines, positions. Without positions, the tables have a row for each place.
fn onnx(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, cos, sin) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let layout = HeadRows::of(x.shape(), call.int("num_heads", 0))?;
    let rotation =
        Rotation::new(cos, sin, (layout.size, turned(call, layout.size)), interleaved(call))?;
    let rows = rotation.rows();
    let positions: Vec<usize> = match call.optional(3)? {
        Some(ids) => {
            ids.integers()?.into_iter().map(|id| position(id, rows)).collect::<Result<_>>()?
        }
        None => (0..rows).collect(),
    };
    Ok(vec![layout.turn(x, &rotation, &positions)?.into()])
}

/// Computes `com.microsoft::RotaryEmbedding`. Inputs: x, positions, cosines, sines. A single
/// position is the position of the first place of every batch.
fn microsoft(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, ids, cos, sin) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?, call.tensor(3)?);

    // Where the heads are not named, they are as wide as the tables say.
    let width = count(&x.shape()[2.min(x.rank())..]);
    let table = 2 * cos.shape().last().copied().unwrap_or(0);
    let implied = width.checked_div(table).map_or(0, |heads| heads as i64);
    let named = Some(call.int("num_heads", 0)).filter(|&heads| heads > 0);
    let layout = HeadRows::of(x.shape(), named.unwrap_or(implied))?;
    let rotation =
        Rotation::new(cos, sin, (layout.size, turned(call, layout.size)), interleaved(call))?;
    let rows = rotation.rows();
    let ids = ids.integers()?;
    let of = |place: usize| match ids[..] {
        [first] => position(first.saturating_add((place % layout.len.max(1)) as i64), rows),
        _ => position(ids[place], rows),
    };
    if ids.len() != 1 && ids.len() != layout.batch * layout.len {
        return Err(Error::format(format!("{} positions do not fit {:?}", ids.len(), x.shape())));
    }

    let positions = (0..layout.batch * layout.len).map(of).collect::<Result<Vec<_>>>()?;
    Ok(vec![layout.turn(x, &rotation, &positions)?.into()])
}

/// Elements of a row that are turned.
fn turned(call: &Call<'_>, size: usize) -> usize {
    match usize::try_from(call.int("rotary_embedding_dim", 0)) {
        Ok(0) | Err(_) => size,
        Ok(turned) => turned,
    }
}

fn interleaved(call: &Call<'_>) -> bool {
    call.flag("interleaved", false)
}
