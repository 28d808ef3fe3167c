//! Attention, positions that rotate, and states that are carried on.

use super::call::{Call, Rule, show};
use super::elementwise::like_first;
use crate::Dim;

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Attention", attention),
    ("CausalConvWithState", convolution_with_state),
    ("LinearAttention", linear_attention),
    ("RotaryEmbedding", like_first),
];

/// Sizes of heads, whether the input has them as a dimension or side by side in the last.
struct Heads {
    batch: Dim,
    heads: Dim,
    sequence: Dim,
    size: Dim,
    /// `[batch, heads, sequence, size]`, not `[batch, sequence, heads * size]`.
    apart: bool,
}

impl Heads {
    fn of(call: &Call<'_>, position: usize, heads: &str) -> Result<Option<Self>, String> {
        let heads = call.int(heads).filter(|heads| *heads > 0).map(Dim::integer);
        Ok(match call.shape(position) {
            None => None,
            Some([batch, heads, sequence, size]) => Some(Self {
                batch: batch.clone(),
                heads: heads.clone(),
                sequence: sequence.clone(),
                size: size.clone(),
                apart: true,
            }),
            Some([batch, sequence, hidden]) => {
                let heads = heads.ok_or("inputs of three dimensions need the number of heads")?;
                let size = hidden.quotient(&heads);
                Some(Self {
                    batch: batch.clone(),
                    heads,
                    sequence: sequence.clone(),
                    size,
                    apart: false,
                })
            }
            Some(shape) => return Err(format!("{} is {}", call.name_of(position), show(shape))),
        })
    }
}

fn attention(call: &mut Call<'_>) -> Result<(), String> {
    let query = Heads::of(call, 0, "q_num_heads")?;
    let key = Heads::of(call, 1, "kv_num_heads")?;
    let value = Heads::of(call, 2, "kv_num_heads")?;
    let (Some(query), Some(key), Some(value)) = (query, key, value) else { return Ok(()) };
    let output = if query.apart {
        vec![query.batch.clone(), query.heads.clone(), query.sequence.clone(), value.size.clone()]
    } else {
        vec![query.batch.clone(), query.sequence.clone(), query.heads.times(&value.size)]
    };
    // Input 4 has the keys of earlier tokens.
    let total = past_length(call, 4).plus(&key.sequence);
    call.set_shape(0, output);
    call.set_shape(1, vec![key.batch.clone(), key.heads.clone(), total.clone(), key.size]);
    call.set_shape(2, vec![key.batch, key.heads, total.clone(), value.size]);
    call.set_shape(3, vec![query.batch, query.heads, query.sequence, total]);
    Ok(())
}

/// Returns the number of tokens in a cache of `[batch, heads, past, size]`; 0 if the cache is
/// omitted.
pub(super) fn past_length(call: &Call<'_>, position: usize) -> Dim {
    match (call.has(position), call.shape(position)) {
        (false, _) => Dim::fixed(0),
        (true, Some([_, _, past, _])) => past.clone(),
        _ => Dim::Unknown,
    }
}

/// A state of `[batch, heads, key size, value size]` instead of a cache.
fn linear_attention(call: &mut Call<'_>) -> Result<(), String> {
    let query = Heads::of(call, 0, "q_num_heads")?;
    let key = Heads::of(call, 1, "kv_num_heads")?;
    let value = Heads::of(call, 2, "kv_num_heads")?;
    let (Some(query), Some(key), Some(value)) = (query, key, value) else { return Ok(()) };
    let heads = match (query.heads.size(), value.heads.size()) {
        (Some(queries), Some(values)) => Dim::fixed(queries.max(values)),
        _ => query.heads.clone(),
    };
    call.set_shape(0, vec![query.batch, query.sequence, heads.times(&value.size)]);
    // The state has a type of its own, which only a state that is given says.
    call.set_element(1, call.element(3).or(call.element(0)));
    call.set_shape(1, vec![value.batch, value.heads, key.size, value.size]);
    Ok(())
}

/// `[batch, channels, length]`; the state is the last `kernel - 1` elements.
fn convolution_with_state(call: &mut Call<'_>) -> Result<(), String> {
    let kernel = call.shape(1).and_then(<[Dim]>::last).cloned();
    if let (Some([batch, channels, ..]), Some(kernel)) = (call.shape(0), kernel) {
        call.set_shape(1, vec![batch.clone(), channels.clone(), kernel.minus(&Dim::fixed(1))]);
    }
    like_first(call)
}
