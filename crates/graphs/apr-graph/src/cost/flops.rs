//! Operations of a node.

use super::sizes::{Sizes, elements};
use crate::{Body, Node, TensorType, ValueOrigin};

/// Rule for counting the operations of an operator.
#[derive(Clone, Copy)]
enum Rule {
    /// Elements are moved, not computed.
    Moves,
    /// One for each element of the first input.
    Input,
    /// Products of matrices: two for each element of the output and each of the inner dimension.
    Product,
    /// Two for each element of the output and of the weight, over the output's channels.
    Convolution { weight: usize },
    /// Two for each element of the input and of the weight, over the input's channels.
    Transposed,
    /// Two for each step of a sequence and each element of the weights.
    Recurrent,
    /// Scores, a softmax and the weighted sum.
    Attention,
    /// Two for each combination of letters.
    Einsum,
}

const MOVES: &[&str] = &[
    "Cast",
    "CastLike",
    "BitCast",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "Constant",
    "ConstantOfShape",
    "DepthToSpace",
    "Expand",
    "EyeLike",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "NonZero",
    "OneHot",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "Pad",
    "Range",
    "Reshape",
    "ReverseSequence",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Squeeze",
    "TensorScatter",
    "Tile",
    "Transpose",
    "Trilu",
    "Unsqueeze",
];

/// Operators that read as many elements as they write, from an input that may be larger.
const READS_PART: &[&str] =
    &["Gather", "GatherElements", "GatherND", "Slice", "GatherBlockQuantized", "SequenceAt"];

/// Operators that only change the shape and need not touch elements, or that return data stored in
/// the graph.
const FREE: &[&str] =
    &["Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"];

const PRODUCTS: &[&str] = &[
    "DynamicQuantizeMatMul",
    "FusedGemm",
    "FusedMatMul",
    "Gemm",
    "MatMul",
    "MatMulBnb4",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QGemm",
    "QLinearMatMul",
];

const KINDS: &[(&str, Rule)] = &[
    ("Attention", Rule::Attention),
    ("Conv", Rule::Convolution { weight: 1 }),
    ("ConvInteger", Rule::Convolution { weight: 1 }),
    ("ConvTranspose", Rule::Transposed),
    ("DeformConv", Rule::Convolution { weight: 1 }),
    ("Einsum", Rule::Einsum),
    ("FusedConv", Rule::Convolution { weight: 1 }),
    ("GRU", Rule::Recurrent),
    ("GroupQueryAttention", Rule::Attention),
    ("LSTM", Rule::Recurrent),
    ("MultiHeadAttention", Rule::Attention),
    ("QLinearConv", Rule::Convolution { weight: 3 }),
    ("RNN", Rule::Recurrent),
];

/// `None`: one for each element that is made.
fn rule(node: &Node) -> Option<Rule> {
    let name = &*node.op.name;
    let kind = KINDS.iter().find(|(other, _)| *other == name).map(|(_, rule)| *rule);
    kind.or_else(|| PRODUCTS.contains(&name).then_some(Rule::Product))
        .or_else(|| MOVES.contains(&name).then_some(Rule::Moves))
        .or_else(|| reduces(name).then_some(Rule::Input))
}

fn reduces(name: &str) -> bool {
    name.starts_with("Reduce") || name.starts_with("Arg") || name.contains("Pool")
}

pub(super) fn is_free(node: &Node) -> bool {
    node.op.domain.is_empty() && FREE.contains(&&*node.op.name)
}

pub(super) fn reads_part(node: &Node) -> bool {
    READS_PART.contains(&&*node.op.name)
}

fn tensor<'a>(body: &'a Body, node: &Node, input: usize) -> Option<&'a TensorType> {
    body.value(node.input(input)?).tensor()
}

fn dim(tensor: &TensorType, position: usize, sizes: Sizes<'_>) -> Option<u64> {
    tensor.shape.as_ref()?.get(position)?.value(sizes)
}

/// Elements of the first output.
fn made(body: &Body, node: &Node, sizes: Sizes<'_>) -> Option<u64> {
    match node.outputs.iter().flatten().next() {
        Some(first) => elements(body.value(*first).tensor()?, sizes),
        None => Some(0),
    }
}

/// Returns the operations of a node, or `None` if they depend on an unknown size.
pub(super) fn flops(body: &Body, node: &Node, sizes: Sizes<'_>) -> Option<u64> {
    let count = |input: usize| elements(tensor(body, node, input)?, sizes);
    match rule(node) {
        Some(Rule::Moves) => Some(0),
        Some(Rule::Input) => count(0),
        Some(Rule::Product) => product(body, node, sizes),
        Some(Rule::Convolution { weight }) => {
            let channels = dim(tensor(body, node, weight)?, 0, sizes)?.max(1);
            Some(twice(made(body, node, sizes)?, count(weight)? / channels))
        }
        Some(Rule::Transposed) => {
            Some(twice(count(0)?, count(1)? / dim(tensor(body, node, 1)?, 0, sizes)?.max(1)))
        }
        Some(Rule::Recurrent) => {
            let x = tensor(body, node, 0)?;
            let steps = dim(x, 0, sizes)?.saturating_mul(dim(x, 1, sizes)?);
            Some(twice(steps, count(1)?.saturating_add(count(2)?)))
        }
        Some(Rule::Attention) => attention(body, node, sizes),
        Some(Rule::Einsum) => einsum(body, node, sizes),
        None => made(body, node, sizes),
    }
}

fn twice(a: u64, b: u64) -> u64 {
    a.saturating_mul(b).saturating_mul(2)
}

fn product(body: &Body, node: &Node, sizes: Sizes<'_>) -> Option<u64> {
    let shape = tensor(body, node, 0)?.shape.as_ref()?;
    let turned = node.int("transA").is_some_and(|turned| turned != 0);
    let inner = if turned { shape.len().checked_sub(2)? } else { shape.len().checked_sub(1)? };
    Some(twice(made(body, node, sizes)?, shape[inner].value(sizes)?))
}

/// Two products of `sequence x total x size` for each head, and one operation for each score.
/// Projections inside of `com.microsoft`'s own are products too.
fn attention(body: &Body, node: &Node, sizes: Sizes<'_>) -> Option<u64> {
    let query = tensor(body, node, 0)?;
    let shape = query.shape.as_ref()?;
    let heads_name = if node.op.domain.is_empty() { "q_num_heads" } else { "num_heads" };
    let (batch, heads, sequence) = match shape.as_slice() {
        [batch, heads, sequence, _] => {
            (batch.value(sizes)?, heads.value(sizes)?, sequence.value(sizes)?)
        }
        [batch, sequence, _] => {
            let heads = u64::try_from(node.int(heads_name)?).ok()?;
            (batch.value(sizes)?, heads, sequence.value(sizes)?)
        }
        _ => return None,
    };

    let packed = &*node.op.domain == "com.microsoft" && &*node.op.name == "Attention";
    let present = node.outputs.get(1).copied().flatten().and_then(|id| body.value(id).shape());
    let key = if packed {
        None
    } else {
        tensor(body, node, 1).and_then(|tensor| tensor.shape.as_deref())
    };
    // Present keys include those of earlier calls.
    let total = present
        .or(key)
        .map_or(Some(sequence), |shape| shape.get(shape.len().checked_sub(2)?)?.value(sizes))?;
    let output = made(body, node, sizes)?;
    let size = output / batch.saturating_mul(heads).saturating_mul(sequence).max(1);
    let scores = batch.saturating_mul(heads).saturating_mul(sequence).saturating_mul(total);
    let projected = if packed {
        twice(batch.saturating_mul(sequence), elements(tensor(body, node, 1)?, sizes)?)
    } else {
        0
    };
    Some(twice(scores, size.saturating_mul(2)).saturating_add(scores).saturating_add(projected))
}

fn einsum(body: &Body, node: &Node, sizes: Sizes<'_>) -> Option<u64> {
    let equation: String =
        node.text("equation")?.chars().filter(|letter| !letter.is_whitespace()).collect();
    let left = equation.split("->").next()?;
    if left.contains('.') {
        return made(body, node, sizes);
    }

    let mut letters: Vec<(char, u64)> = Vec::new();
    for (input, term) in left.split(',').enumerate() {
        for (position, letter) in term.chars().enumerate() {
            let size = dim(tensor(body, node, input)?, position, sizes)?;
            match letters.iter_mut().find(|(known, _)| *known == letter) {
                // A size of 1 is widened.
                Some((_, known)) => *known = size.max(*known),
                None => letters.push((letter, size)),
            }
        }
    }

    let all = letters.iter().fold(1_u64, |product, (_, size)| product.saturating_mul(*size));
    Some(if node.inputs.len() > 1 { twice(all, 1) } else { all })
}

/// Returns the number of iterations of a loop, if the graph contains it.
pub(super) fn times(body: &Body, node: &Node, sizes: Sizes<'_>) -> Option<u64> {
    if node.op.is("Loop") {
        let ValueOrigin::Constant(count) = &body.value(node.input(0)?).origin else { return None };
        return u64::try_from(*count.as_ints()?.first()?).ok();
    }
    let scanned = usize::try_from(node.int("num_scan_inputs")?).ok()?;
    let first = node.inputs.len().checked_sub(scanned)?;
    let along = node.ints("scan_input_axes").and_then(<[i64]>::first).copied().unwrap_or(0);
    let shape = tensor(body, node, first)?.shape.as_ref()?;
    shape.get(crate::operators::axis(along, shape.len()).ok()?)?.value(sizes)
}
