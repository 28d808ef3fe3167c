//! Attention whose scores and shares are changed by graphs.

use apr_core::{Error, Result};
use apr_graph::ElementType;

use super::binary::{Product, join};
use super::cast::element_of;
use super::gather::along;
use super::matmul::multiplied;
use super::softmax::softmax;
use crate::call::Call;
use crate::cast::from_doubles;
use crate::moving::transposed;
use crate::operator::{Operator, computes};
use crate::{Tensor, Value};

pub(super) const TABLE: &[Operator] = &[computes("ai.onnx.preview::FlexAttention", attention)];

fn attention(call: &mut Call<'_>) -> Result<Vec<Value>> {
    let (q, k, v) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (&[_, heads, _, size], &[_, kv_heads, _, _], &[_, value_heads, _, _]) =
        (q.shape(), k.shape(), v.shape())
    else {
        return Err(Error::format("queries, keys and values have four dimensions"));
    };
    if kv_heads == 0 || value_heads != kv_heads || !heads.is_multiple_of(kv_heads) {
        return Err(Error::format(format!("{heads} heads do not share {kv_heads}")));
    }

    // Queries that lie together share a head of keys and values.
    let of: Vec<usize> = (0..heads).map(|head| head / (heads / kv_heads)).collect();
    let shared = |tensor: &Tensor| -> Result<Tensor> {
        let mut shape = tensor.shape().to_vec();
        shape[1] = heads;
        call.room_like(&shape, tensor)?;
        along(tensor, 1, &of, &[heads])
    };
    let keys = transposed(&shared(k)?, &[0, 1, 3, 2])?;
    let values = shared(v)?;
    let element = q.element();
    let scale = f64::from(call.float("scale", 1.0 / (size as f32).sqrt()));
    let factor = from_doubles(vec![scale], Vec::new(), element)?;
    let scores = join(call, &multiplied(call, q, &keys)?, &factor, Product)?;

    let default = if element == ElementType::F64 { element } else { ElementType::F32 };
    let precision = element_of(call, "softmax_precision", default)?;
    let scores = changed(call, "score_mod", scores.cast(precision)?)?;
    let shares = softmax(call, scores.widened()?)?.cast(precision)?;
    let shares = changed(call, "prob_mod", shares)?.cast(element)?;
    Ok(vec![multiplied(call, &shares, &values)?.into()])
}

/// Applies the graph of an attribute to a tensor. The graph must keep the tensor's shape and type.
fn changed(call: &mut Call<'_>, name: &str, tensor: Tensor) -> Result<Tensor> {
    if call.attribute(name).is_none() {
        return Ok(tensor);
    }
    let (shape, element) = (tensor.shape().to_vec(), tensor.element());
    let body = call.body(name)?;
    let outputs = call.environment.run_body(body, vec![tensor.into()])?;
    match &outputs[..] {
        [Value::Tensor(made)] if made.shape() == shape && made.element() == element => {
            Ok(made.clone())
        }
        _ => Err(Error::format(format!("{name} must keep the shape and type of its input"))),
    }
}
