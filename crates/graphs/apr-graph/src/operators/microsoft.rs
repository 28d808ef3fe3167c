//! Operators of `com.microsoft`, which onnxruntime's optimizer and exporters for it write.

use super::attention::past_length;
use super::call::{Call, Rule, axis, broadcast, same};
use super::convolution::{convolve, global_pool, pool};
use super::elementwise::{like_first, together};
use super::matrix::{gemm, product_shape};
use super::movement::{joined, pad};
use super::reduce::reduce;
use crate::{Dim, ElementType, TensorType};

pub(super) const RULES: &[(&str, Rule)] = &[
    ("Attention", attention),
    ("BiasAdd", like_first),
    ("BiasGelu", together),
    ("BiasSplitGelu", bias_split_gelu),
    ("DecoderMaskedMultiHeadAttention", multi_head_attention),
    ("DequantizeLinear", like_first),
    ("DynamicQuantizeMatMul", mat_mul),
    ("EmbedLayerNormalization", embed),
    ("FastGelu", like_first),
    ("FusedConv", fused_conv),
    ("FusedGemm", gemm),
    ("FusedMatMul", fused_mat_mul),
    ("FusedMatMulActivation", fused_mat_mul),
    ("GatherBlockQuantized", gather_block_quantized),
    ("Gelu", like_first),
    ("GroupNorm", like_first),
    ("GroupQueryAttention", group_query_attention),
    ("Inverse", like_first),
    ("LongformerAttention", like_first),
    ("MatMulBnb4", mat_mul_n_bits),
    ("MatMulInteger16", mat_mul),
    ("MatMulIntegerToFloat", mat_mul),
    ("MatMulNBits", mat_mul_n_bits),
    ("MoE", like_first),
    ("MultiHeadAttention", multi_head_attention),
    ("Pad", pad),
    ("QAttention", attention),
    ("QEmbedLayerNormalization", embed),
    ("QGemm", q_gemm),
    ("QLinearAdd", q_linear_pair),
    ("QLinearAveragePool", q_linear_average_pool),
    ("QLinearConcat", q_linear_concat),
    ("QLinearConv", q_linear_conv),
    ("QLinearGlobalAveragePool", q_linear_global_pool),
    ("QLinearLeakyRelu", like_first),
    ("QLinearMul", q_linear_pair),
    ("QLinearReduceMean", reduce),
    ("QLinearSigmoid", like_first),
    ("QLinearSoftmax", like_first),
    ("QLinearWhere", q_linear_where),
    ("QMoE", like_first),
    ("QuantizeLinear", like_first),
    ("QuickGelu", like_first),
    ("RelativePositionBias", relative_position_bias),
    ("RotaryEmbedding", like_first),
    ("SkipGroupNorm", skip_norm),
    ("SkipLayerNormalization", skip_norm),
    ("SkipSimplifiedLayerNormalization", skip_norm),
    ("Trilu", like_first),
];

/// Self-attention with the projections inside: `[batch, sequence, hidden]` in and out.
fn attention(call: &mut Call<'_>) -> Result<(), String> {
    call.expect_rank(0, 3)?;
    let Some([batch, sequence, _]) = call.shape(0) else { return Ok(()) };
    let sizes = call.list("qkv_hidden_sizes");
    let width = [1, 2].into_iter().find_map(|position| call.shape(position)?.last());
    let hidden = match (sizes, width) {
        (Some([_, _, value]), _) => Dim::integer(*value),
        // Queries, keys and values are side by side in the weight.
        (_, Some(width)) => width.quotient(&Dim::fixed(3)),
        _ => Dim::Unknown,
    };
    let heads = Dim::integer(call.int("num_heads").unwrap_or(1));

    // QAttention has scales and zero points in front of it.
    let past = if call.operator.name == "QAttention" { 8 } else { 4 };

    // The earlier keys and values are one tensor, `[2, batch, heads, past, size]`.
    let length = match (call.has(past), call.shape(past)) {
        (false, _) => Dim::fixed(0),
        (true, Some([_, _, _, length, _])) => length.clone(),
        _ => Dim::Unknown,
    };

    // A shared buffer has room for the longest text from the start.
    let shared = call.is_set("past_present_share_buffer");
    let total = if shared { length } else { length.plus(sequence) };
    let present = vec![Dim::fixed(2), batch.clone(), heads.clone(), total, hidden.quotient(&heads)];
    call.set_shape(0, vec![batch.clone(), sequence.clone(), hidden]);
    call.set_shape(1, present);
    Ok(())
}

fn multi_head_attention(call: &mut Call<'_>) -> Result<(), String> {
    let Some([batch, sequence, hidden]) = call.shape(0) else { return Ok(()) };
    let heads = Dim::integer(call.int("num_heads").unwrap_or(1));
    let (key_length, value_hidden) = match call.shape(2) {
        Some([_, length, hidden]) => (length.clone(), hidden.clone()),
        Some([_, heads, length, size]) => (length.clone(), heads.times(size)),
        _ => (sequence.clone(), hidden.clone()),
    };
    let at = if call.operator.name == "MultiHeadAttention" { 6 } else { 5 };
    let total = past_length(call, at).plus(&key_length);
    let total =
        if call.is_set("past_present_share_buffer") { past_length(call, at) } else { total };
    let state =
        |hidden: &Dim| vec![batch.clone(), heads.clone(), total.clone(), hidden.quotient(&heads)];
    let (keys, values) = (state(hidden), state(&value_hidden));
    call.set_shape(0, vec![batch.clone(), sequence.clone(), value_hidden]);
    call.set_shape(1, keys);
    call.set_shape(2, values);
    Ok(())
}

fn group_query_attention(call: &mut Call<'_>) -> Result<(), String> {
    let Some([batch, sequence, hidden]) = call.shape(0) else { return Ok(()) };
    let heads = Dim::integer(call.int("num_heads").unwrap_or(1));
    let groups = Dim::integer(call.int("kv_num_heads").unwrap_or(1));
    // Without a key of its own, the query holds keys and values as well.
    let packed = if call.has(1) { heads.clone() } else { heads.plus(&groups).plus(&groups) };
    let size = hidden.quotient(&packed);
    let total = call.scalar(6).unwrap_or(Dim::Unknown);
    call.set_shape(0, vec![batch.clone(), sequence.clone(), heads.times(&size)]);
    for output in 1..3 {
        call.set_shape(output, vec![batch.clone(), groups.clone(), total.clone(), size.clone()]);
    }
    Ok(())
}

/// Blocks of weights as small integers: `[..., K]` becomes `[..., N]`.
fn mat_mul_n_bits(call: &mut Call<'_>) -> Result<(), String> {
    let (Some(shape), Some(k), Some(n)) = (call.shape(0), call.int("K"), call.int("N")) else {
        return Ok(());
    };
    let Some((inner, rows)) = shape.split_last() else {
        return Err("the input has no dimensions".to_owned());
    };
    same(inner, &Dim::integer(k)).map_err(|error| format!("K: {error}"))?;
    call.set_shape(0, [rows, &[Dim::integer(n)]].concat());
    Ok(())
}

fn skip_norm(call: &mut Call<'_>) -> Result<(), String> {
    let Some(shape) = call.shape(0) else { return Ok(()) };
    let shape = shape.to_vec();

    // The sum of the inputs is the last output: the second of group norms, else the fourth.
    let sum = call.outputs.len().saturating_sub(1);
    if sum == 3 || call.operator.name == "SkipGroupNorm" {
        call.set_shape(sum, shape.clone());
    }

    if call.operator.name != "SkipGroupNorm" {
        let mut means = shape.clone();
        means.last_mut().into_iter().for_each(|last| *last = Dim::fixed(1));
        for output in 1..sum.min(3) {
            call.set(
                output,
                TensorType { element: Some(ElementType::F32), shape: Some(means.clone()) },
            );
        }
    }

    call.set_shape(0, shape);
    Ok(())
}

fn embed(call: &mut Call<'_>) -> Result<(), String> {
    let (Some([batch, sequence]), Some([_, hidden])) = (call.shape(0), call.shape(2)) else {
        return Ok(());
    };
    let shape = vec![batch.clone(), sequence.clone(), hidden.clone()];
    call.set_shape(2, shape.clone());
    call.set_shape(1, vec![batch.clone()]);
    call.set_shape(0, shape);
    Ok(())
}

fn mat_mul(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(a), Some(b)) = (call.shape(0), call.shape(1)) {
        call.set_shape(0, product_shape(a, b)?);
    }
    Ok(())
}

fn fused_mat_mul(call: &mut Call<'_>) -> Result<(), String> {
    if call.is_set("transBatchA") || call.is_set("transBatchB") {
        return Ok(());
    }

    let turned = |position: usize, name: &str| {
        let mut shape = call.shape(position)?.to_vec();
        let rank = shape.len();
        if call.is_set(name) && rank >= 2 {
            shape.swap(rank - 1, rank - 2);
        }
        Some(shape)
    };

    if let (Some(a), Some(b)) = (turned(0, "transA"), turned(1, "transB")) {
        call.set_shape(0, product_shape(&a, &b)?);
    }

    Ok(())
}

fn fused_conv(call: &mut Call<'_>) -> Result<(), String> {
    convolve(call, 1)
}

fn bias_split_gelu(call: &mut Call<'_>) -> Result<(), String> {
    if let Some(shape) = call.shape(0) {
        let mut shape = shape.to_vec();
        shape.last_mut().into_iter().for_each(|last| *last = last.quotient(&Dim::fixed(2)));
        call.set_shape(0, shape);
    }
    Ok(())
}

/// The data may hold two numbers of four bits in a byte.
fn gather_block_quantized(call: &mut Call<'_>) -> Result<(), String> {
    let (Some(data), Some(places)) = (call.shape(0), call.shape(1)) else { return Ok(()) };
    let mut data = data.to_vec();
    let along = axis(call.int("gather_axis").unwrap_or(0), data.len())?;
    if call.element(0) == Some(ElementType::U8) {
        let packed = Dim::integer(8 / call.int("bits").unwrap_or(4).clamp(1, 8));
        data.last_mut().into_iter().for_each(|last| *last = last.times(&packed));
    }
    call.set_shape(0, [&data[..along], places, &data[along + 1..]].concat());
    Ok(())
}

fn q_linear_pair(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(a), Some(b)) = (call.shape(0), call.shape(3)) {
        call.set_shape(0, broadcast(a, b)?);
    }
    Ok(())
}

fn q_linear_where(call: &mut Call<'_>) -> Result<(), String> {
    if let (Some(which), Some(a), Some(b)) = (call.shape(0), call.shape(1), call.shape(4)) {
        call.set_shape(0, broadcast(&broadcast(which, a)?, b)?);
    }
    Ok(())
}

/// Sets the output of a quantized concatenation.
///
/// The inputs are the scale and the zero point of the output, then each tensor with its own scale
/// and zero point.
fn q_linear_concat(call: &mut Call<'_>) -> Result<(), String> {
    let tensors = (2..call.inputs.len()).step_by(3);
    let shapes: Option<Vec<_>> = tensors.map(|position| call.shape(position)).collect();
    let Some(shapes) = shapes.filter(|shapes| !shapes.is_empty()) else { return Ok(()) };
    let along = axis(call.int("axis").unwrap_or(0), shapes[0].len())?;
    call.set_shape(0, joined(&shapes, along)?);
    Ok(())
}

fn q_linear_conv(call: &mut Call<'_>) -> Result<(), String> {
    if call.is_set("channels_last") { Ok(()) } else { convolve(call, 3) }
}

fn q_linear_average_pool(call: &mut Call<'_>) -> Result<(), String> {
    if call.is_set("channels_last") { Ok(()) } else { pool(call) }
}

fn q_linear_global_pool(call: &mut Call<'_>) -> Result<(), String> {
    if call.is_set("channels_last") { Ok(()) } else { global_pool(call) }
}

fn q_gemm(call: &mut Call<'_>) -> Result<(), String> {
    let turned = |position: usize, name: &str| match call.shape(position) {
        Some([a, b]) if call.is_set(name) => Some([b.clone(), a.clone()]),
        Some([a, b]) => Some([a.clone(), b.clone()]),
        _ => None,
    };
    let product = turned(0, "transA")
        .zip(turned(3, "transB"))
        .map(|(a, b)| product_shape(&a, &b))
        .transpose()?;
    // Without a zero point of its own the result is not quantized.
    let element = if call.has(8) { call.element(8) } else { Some(ElementType::F32) };
    call.set(0, TensorType { element, shape: product });
    Ok(())
}

fn relative_position_bias(call: &mut Call<'_>) -> Result<(), String> {
    let heads = call.shape(0).and_then(<[Dim]>::last).cloned().unwrap_or(Dim::Unknown);
    let length = |position: usize| call.scalar(position).unwrap_or(Dim::Unknown);
    let shape = vec![Dim::fixed(1), heads, length(1), length(2)];
    call.set_shape(0, shape);
    Ok(())
}
