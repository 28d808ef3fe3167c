//! Layers with a state that goes from one token to the next.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use crate::call::Call;
use crate::cast::from_doubles;
use crate::operator::{Operator, computes};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] =
    &[computes("LinearAttention", attention), computes("CausalConvWithState", convolution)];

/// Update rule of the state at each token.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rule {
    /// The state decays.
    gated: bool,
    /// The value written is the difference from the value that the state already returns.
    delta: bool,
}

/// Sizes of a linear attention.
struct Sizes {
    batch: usize,
    len: usize,
    heads: usize,
    kv_heads: usize,
    key: usize,
    value: usize,
}

impl Sizes {
    fn of(call: &Call<'_>) -> Result<Self> {
        let shape = |at: usize| -> Result<[usize; 3]> {
            let found = <[usize; 3]>::try_from(call.tensor(at)?.shape());
            found.map_err(|_| Error::format(format!("input {at} has not three dimensions")))
        };
        let ([batch, len, q], k, v) = (shape(0)?, shape(1)?, shape(2)?);
        let number = |name: &str| usize::try_from(call.int(name, 0)).unwrap_or(0);
        let (heads, kv_heads) = (number("q_num_heads"), number("kv_num_heads"));
        let fits = heads > 0
            && kv_heads > 0
            && heads.is_multiple_of(kv_heads)
            && q.is_multiple_of(heads)
            && k == [batch, len, q / heads * kv_heads]
            && v[..2] == [batch, len]
            && v[2].is_multiple_of(kv_heads);
        if !fits {
            return Err(Error::format("queries, keys, values and heads do not match"));
        }
        Ok(Self { batch, len, heads, kv_heads, key: q / heads, value: v[2] / kv_heads })
    }
}

/// An input with some numbers for each token: as many as one of two counts.
fn per_token(call: &Call<'_>, at: usize, sizes: &Sizes, counts: [usize; 2]) -> Result<Side> {
    let Some(tensor) = call.optional(at)? else {
        return Err(Error::format(format!("input {at} is missing")));
    };
    match *tensor.shape() {
        [batch, len, width]
            if [batch, len] == [sizes.batch, sizes.len] && counts.contains(&width) =>
        {
            Ok(Side { width, values: tensor.doubles()? })
        }
        _ => Err(Error::format(format!("input {at} of {:?} does not fit", tensor.shape()))),
    }
}

struct Side {
    width: usize,
    values: Vec<f64>,
}

impl Side {
    fn at(&self, token: usize, within: usize) -> f64 {
        self.values[token * self.width + within % self.width]
    }
}

/// Inputs: queries, keys, values, state, decay, rate.
fn attention(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let sizes = Sizes::of(call)?;
    let Sizes { batch, len, heads, kv_heads, key, value } = sizes;
    let name = call.text("update_rule", "gated_delta");
    let rule = match name.as_str() {
        "linear" => Rule { gated: false, delta: false },
        "gated" => Rule { gated: true, delta: false },
        "delta" => Rule { gated: false, delta: true },
        "gated_delta" => Rule { gated: true, delta: true },
        _ => return Err(Error::format(format!("unknown update_rule '{name}'"))),
    };
    let decay = rule.gated.then(|| per_token(call, 4, &sizes, [kv_heads * key, kv_heads]));
    let rate = rule.delta.then(|| per_token(call, 5, &sizes, [kv_heads, 1]));
    let (decay, rate) = (decay.transpose()?, rate.transpose()?);
    let scale = Some(f64::from(call.float("scale", 0.0))).filter(|&scale| scale != 0.0);
    let scale = scale.unwrap_or(1.0 / (key as f64).sqrt());

    let state_shape = vec![batch, kv_heads, key, value];
    let shape = vec![batch, len, heads * value];
    let mut out = vec![0.0; call.room(&shape, ElementType::F64)?];
    let room = call.room(&state_shape, ElementType::F64)?;
    let mut states = match call.optional(3)? {
        Some(past) if past.shape() == state_shape => past.doubles()?,
        Some(past) => return Err(Error::format(format!("a state of {:?}", past.shape()))),
        None => vec![0.0; room],
    };
    call.work(&[batch, len, kv_heads.saturating_mul(4).saturating_add(heads), key, value])?;

    let [q, k, v] = [0, 1, 2].map(|at| call.tensor(at).and_then(Tensor::doubles));
    let (q, k, v) = (q?, k?, v?);
    let group = heads / kv_heads;
    for (number, state) in states.chunks_exact_mut((key * value).max(1)).enumerate() {
        let (row, head) = (number / kv_heads, number % kv_heads);
        for token in row * len..(row + 1) * len {
            let keys = &k[(token * kv_heads + head) * key..][..key];
            let values = &v[(token * kv_heads + head) * value..][..value];
            if let Some(decay) = &decay {
                for (at, line) in state.chunks_exact_mut(value).enumerate() {
                    let within = if decay.width == kv_heads { head } else { head * key + at };
                    let factor = libm::exp(decay.at(token, within));
                    line.iter_mut().for_each(|cell| *cell *= factor);
                }
            }
            let rate = rate.as_ref().map_or(1.0, |rate| rate.at(token, head));
            write(state, keys, values, rate, rule.delta);
            for query in head * group..(head + 1) * group {
                let queries = &q[(token * heads + query) * key..][..key];
                let out = &mut out[(token * heads + query) * value..][..value];
                for (line, q) in state.chunks_exact(value).zip(queries) {
                    out.iter_mut().zip(line).for_each(|(out, cell)| *out += scale * q * cell);
                }
            }
        }
    }

    let element = call.tensor(0)?.element();
    Ok(vec![
        from_doubles(out, shape, element)?.into(),
        from_doubles(states, state_shape, element)?.into(),
    ])
}

/// Writes values under keys into a state.
fn write(state: &mut [f64], keys: &[f64], values: &[f64], rate: f64, delta: bool) {
    let mut written = values.to_vec();
    if delta {
        for (line, key) in state.chunks_exact(values.len()).zip(keys) {
            written.iter_mut().zip(line).for_each(|(value, cell)| *value -= key * cell);
        }
    }
    for (line, key) in state.chunks_exact_mut(values.len()).zip(keys) {
        line.iter_mut().zip(&written).for_each(|(cell, value)| *cell += rate * key * value);
    }
}

/// Computes a causal convolution. Inputs: x, a filter for each channel, bias, the preceding
/// elements.
fn convolution(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, filters) = (call.tensor(0)?, call.tensor(1)?);
    let (&[batch, channels, len], &[count, 1, size]) = (x.shape(), filters.shape()) else {
        return Err(Error::format("input and filters have three dimensions"));
    };
    let bias = call.optional(2)?.map(Tensor::doubles).transpose()?;
    if count != channels || size == 0 || bias.as_ref().is_some_and(|bias| bias.len() != channels) {
        return Err(Error::format("there is not a filter and a bias for each channel"));
    }
    let swish = match call.text("activation", "none").as_str() {
        "none" => false,
        "silu" | "swish" => true,
        other => return Err(Error::format(format!("unknown activation '{other}'"))),
    };

    let kept = size - 1;
    let state_shape = vec![batch, channels, kept];
    let shape = x.shape().to_vec();
    let mut out = Vec::with_capacity(call.room(&shape, ElementType::F64)?);
    let mut states = Vec::with_capacity(call.room(&state_shape, ElementType::F64)?);
    call.work(&[batch, channels, len, size])?;
    let past = match call.optional(3)? {
        Some(past) if past.shape() == state_shape => Some(past.doubles()?),
        Some(past) => return Err(Error::format(format!("a state of {:?}", past.shape()))),
        None => None,
    };
    let (values, weights) = (x.doubles()?, filters.doubles()?);
    for row in 0..batch * channels {
        let channel = row % channels;
        let weights = &weights[channel * size..][..size];
        let before = past.as_ref().map(|past| &past[row * kept..][..kept]);
        let mut line = before.map_or_else(|| vec![0.0; kept], <[f64]>::to_vec);
        line.extend(&values[row * len..][..len]);
        let bias = bias.as_ref().map_or(0.0, |bias| bias[channel]);
        for seen in line.windows(size) {
            let sum = bias + seen.iter().zip(weights).map(|(x, weight)| x * weight).sum::<f64>();
            out.push(if swish { sum / (1.0 + libm::exp(-sum)) } else { sum });
        }
        states.extend(&line[len..]);
    }

    let element = x.element();
    Ok(vec![
        from_doubles(out, shape, element)?.into(),
        from_doubles(states, state_shape, element)?.into(),
    ])
}
