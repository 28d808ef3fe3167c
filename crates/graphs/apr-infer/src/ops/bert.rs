//! What ONNX Runtime fuses the layers of BERT and GPT-2 into.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::attention::{Given, Heads, Mask, Rules, Shown, attend, heads_together};
use super::binary::{Sum, join};
use super::gather::position;
use super::matmul::multiplied;
use super::microsoft::{Padding, positive, unsupported};
use super::norm::normalise_rows;
use crate::call::Call;
use crate::moving::{part, stacked};
use crate::operator::{Operator, computes};
use crate::shape::sizes;
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[
    computes("com.microsoft::Attention", attention),
    computes("com.microsoft::EmbedLayerNormalization", embed),
];

/// Queries, keys and values of one product, one beside the other.
fn projections(call: &Call<'_>, heads: usize) -> Result<[Heads; 3]> {
    let (x, weights) = (call.tensor(0)?, call.tensor(1)?);
    let mut projected = multiplied(call, x, weights)?;
    if let Some(bias) = call.optional(2)? {
        projected = join(call, &projected, bias, Sum)?;
    }
    let &[_, _, width] = projected.shape() else {
        return Err(Error::format("the input has three dimensions"));
    };
    let widths = match call.ints("qkv_hidden_sizes") {
        Some(list) => sizes(&list)?,
        None => vec![width / 3; 3],
    };
    let &[q, k, v] = &widths[..] else {
        return Err(Error::format("qkv_hidden_sizes has three sizes"));
    };
    let ends = [q, q.saturating_add(k), q.saturating_add(k).saturating_add(v)];
    if ends[2] != width || projected.shape() != [x.shape()[0], x.shape()[1], width] {
        return Err(Error::format(format!(
            "{widths:?} are not the {width} columns of the weights"
        )));
    }
    let cut =
        |start: usize, len: usize| Heads::of(&part(&projected, 2, start, len)?, Some(heads as i64));
    Ok([cut(0, q)?, cut(ends[0], k)?, cut(ends[1], v)?])
}

/// Inputs: x, weights, bias, padding mask, past keys and values, what is added to scores.
fn attention(call: &mut Call<'_>) -> Result<Vec<Value>> {
    for name in ["do_rotary", "past_present_share_buffer"] {
        if call.flag(name, false) {
            return Err(unsupported(&format!("attention with {name}")));
        }
    }

    let heads = positive(call, "num_heads")?;
    let [q, mut k, mut v] = projections(call, heads)?;
    let mut past_len = 0;
    if let Some(past) = call.optional(4)? {
        let &[2, batch, own, len, size] = past.shape() else {
            return Err(Error::format("past keys and values have five dimensions"));
        };
        past_len = len;
        let half = |at: usize| part(past, 0, at, 1)?.reshaped(vec![batch, own, len, size]);
        (k, v) = (k.after(Some(&half(0)?))?, v.after(Some(&half(1)?))?);
    }

    let padding = match call.optional(3)? {
        Some(mask) => Some(Padding::bounded(mask, q.batch, q.len, k.len)?),
        None => None,
    };
    let masked = call.float("mask_filter_value", -10000.0);
    let mask = Mask {
        given: Given::new(call.optional(5)?, [q.batch, q.heads, q.len])?,
        causal: call.flag("unidirectional", false),
        window: (-1, -1),
        offsets: vec![past_len as i64; q.batch],
        valid: None,
    };
    let scale = Some(call.float("scale", 0.0)).filter(|&scale| scale != 0.0);
    let rules = Rules {
        scale: scale.unwrap_or(1.0 / (q.size as f32).sqrt()),
        softcap: 0.0,
        mask: &|batch, head, query, row| {
            mask.apply(batch, head, query, row);
            if let Some(padding) = &padding {
                padding.add(batch, query, masked, row);
            }
        },
        shown: Shown::Nothing,
    };

    let (y, _) = attend(call, &q, &k, &v, &rules)?;
    let mut outputs = vec![heads_together(&y)?.into()];
    if call.outputs() > 1 {
        outputs.push(stacked(&[k.tensor, v.tensor], 0)?.into());
    }
    Ok(outputs)
}

/// A row of a table for each id.
struct Table<'a> {
    rows: usize,
    width: usize,
    values: &'a [f32],
}

impl<'a> Table<'a> {
    fn of(tensor: &'a Tensor) -> Result<Self> {
        let &[rows, width] = tensor.shape() else {
            return Err(Error::format("a table of embeddings has two dimensions"));
        };
        Ok(Self { rows, width, values: tensor.values()? })
    }

    fn add(&self, id: i64, out: &mut [f32]) -> Result<()> {
        let at = position(id, self.rows)?;
        let row = &self.values[at * self.width..][..self.width];
        out.iter_mut().zip(row).for_each(|(out, value)| *out += value);
        Ok(())
    }
}

/// Inputs: ids, segments, tables of words, positions and segments, scale, shift, mask, positions.
fn embed(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let ids = call.tensor(0)?;
    let &[batch, len] = ids.shape() else {
        return Err(Error::format("ids have two dimensions"));
    };
    let (words, places) = (Table::of(call.tensor(2)?)?, Table::of(call.tensor(3)?)?);
    let segments = call.optional(4)?.map(Table::of).transpose()?;
    let (scale, shift) = (call.tensor(5)?.values::<f32>()?, call.tensor(6)?.values::<f32>()?);
    let width = words.width;
    if places.width != width
        || segments.as_ref().is_some_and(|table| table.width != width)
        || [scale.len(), shift.len()] != [width; 2]
    {
        return Err(Error::format("the tables of embeddings are not as wide as each other"));
    }

    let shape = vec![batch, len, width];
    let mut values = vec![0.0; call.room(&shape, ElementType::F32)?];
    let segment_ids = call.optional(1)?.map(Tensor::integers).transpose()?;
    let position_ids = call.optional(8)?.map(Tensor::integers).transpose()?;
    if segment_ids.as_ref().is_some_and(|ids| ids.len() != batch * len)
        || position_ids.as_ref().is_some_and(|ids| ids.len() != len && ids.len() != batch * len)
    {
        return Err(Error::format("segments or positions are not as many as ids"));
    }
    for (at, (id, row)) in
        ids.integers()?.into_iter().zip(values.chunks_exact_mut(width.max(1))).enumerate()
    {
        words.add(id, row)?;
        let place = position_ids.as_ref().map_or((at % len) as i64, |ids| ids[at % ids.len()]);
        places.add(place, row)?;
        if let Some(table) = &segments {
            table.add(segment_ids.as_ref().map_or(0, |ids| ids[at]), row)?;
        }
    }

    let sum = Tensor::new(shape.clone(), values.clone())?;
    let epsilon = f64::from(call.float("epsilon", 1e-12));
    normalise_rows(call, &mut values, width, epsilon, true, |row| {
        row.iter_mut().zip(scale).for_each(|(value, scale)| *value *= scale);
        row.iter_mut().zip(shift).for_each(|(value, shift)| *value += shift);
    })?;
    let counts = match call.optional(7)? {
        Some(mask) if mask.len() == batch * len => {
            let mask = mask.integers()?;
            let count = |row: &[i64]| row.iter().filter(|&&is| is == 1).count() as i32;
            mask.chunks(len.max(1)).map(count).collect()
        }
        Some(_) => return Err(Error::format("the mask is not as large as the ids")),
        None => vec![0; batch],
    };
    Ok(vec![Tensor::new(shape, values)?.into(), Tensor::row(counts).into(), sum.into()])
}
