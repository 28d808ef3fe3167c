//! Batch normalizations of convolutions.

use apr_core::UniqueNames;
use apr_graph::{
    Attribute, Body, Constant, Dim, ElementType, Node, Op, ValueId, ValueOrigin, ValueType,
};

use super::edit::{maker, reads, set_origins};
use super::fold::{Folding, bytes, is_constant};

/// The first version of ONNX's operators in which arithmetic broadcasts.
const WITH_BROADCASTING: i64 = 7;
/// Bytes of the vectors that are computed for a convolution.
const SMALL_TENSORS: u64 = 64 << 10;

/// Applies normalizations to the weights of convolutions, and returns the number of convolutions.
///
/// The nodes that compute the weights are for [`Folding`]. With `w` and `b` of the convolution:
///
/// ```text
/// factor = scale / sqrt(variance + epsilon)
/// w'     = w * factor
/// b'     = (b - mean) * factor + bias
/// ```
pub(super) fn run(body: &mut Body, opset: i64, folding: &Folding, names: &mut UniqueNames) -> u64 {
    if opset < WITH_BROADCASTING {
        return 0;
    }
    let reads = reads(body);
    let mut found: Vec<(usize, Pair)> = (0..body.nodes.len())
        .filter_map(|position| Some((position, pair(body, &body.nodes[position], &reads)?)))
        .collect();
    // Weights that are not folded would be computed by each run.
    let mut total = 0_u64;
    found.retain(|(_, pair)| {
        let len = bytes(body.value(pair.weight)).unwrap_or(u64::MAX);
        let needed = total.saturating_add(len.saturating_add(SMALL_TENSORS));
        let fits = folding.can_hold(needed);
        total = if fits { needed } else { total };
        fits
    });
    let count = found.len() as u64;
    if count == 0 {
        return 0;
    }
    let mut found = found.into_iter().peekable();
    for (position, node) in std::mem::take(&mut body.nodes).into_iter().enumerate() {
        match found.next_if(|(at, _)| *at == position) {
            None => body.nodes.push(node),
            Some((_, pair)) => {
                let nodes = Writer { body: &mut *body, names: &mut *names, made: Vec::new() }
                    .folded(&pair, &node);
                body.nodes.extend(nodes);
            }
        }
    }
    set_origins(body);
    count
}

/// A convolution and its normalization.
struct Pair {
    convolution: Node,
    rank: usize,
    weight: ValueId,
    bias: Option<ValueId>,
    /// Scale, bias, mean and variance.
    norm: [ValueId; 4],
    epsilon: f32,
}

fn pair(body: &Body, node: &Node, reads: &[u32]) -> Option<Pair> {
    let is_trained = node.int("training_mode").unwrap_or_default() != 0;
    let is_split = node.int("spatial").is_some_and(|spatial| spatial == 0);
    let is_only = node.outputs.iter().skip(1).flatten().all(|id| reads[id.0 as usize] == 0);
    if !node.op.is("BatchNormalization") || is_trained || is_split || !is_only {
        return None;
    }
    let between = node.input(0)?;
    let convolution = maker(body, between).filter(|maker| maker.op.is("Conv"))?;
    let weight = convolution.input(1)?;
    let bias = convolution.input(2);
    let mut norm = [weight; 4];
    for (at, slot) in norm.iter_mut().enumerate() {
        *slot = node.input(at + 1)?;
    }
    let is_ready = |id: &ValueId| {
        is_constant(body, *id) && body.value(*id).element() == Some(ElementType::F32)
    };
    let is_ready = norm.iter().chain([&weight]).chain(bias.as_ref()).all(is_ready);
    let rank = body.value(weight).shape()?.len();
    (is_ready && rank >= 3 && reads[between.0 as usize] == 1).then(|| Pair {
        convolution: convolution.clone(),
        rank,
        weight,
        bias,
        norm,
        epsilon: node.float("epsilon").unwrap_or(1e-5),
    })
}

/// Writes the nodes that replace a normalization.
struct Writer<'b> {
    body: &'b mut Body,
    names: &'b mut UniqueNames,
    made: Vec<Node>,
}

impl Writer<'_> {
    fn folded(mut self, pair: &Pair, norm: &Node) -> Vec<Node> {
        let [scale, bias, mean, variance] = pair.norm;
        let epsilon = self.constant(Constant::float(pair.epsilon));
        let deviation = self.op("Add", &[variance, epsilon], "epsilon");
        let deviation = self.op("Sqrt", &[deviation], "deviation");
        let factor = self.op("Div", &[scale, deviation], "factor");

        let mut column = vec![1; pair.rank];
        column[0] = -1;
        let column = self.constant(Constant::ints(&column));
        let column = self.op("Reshape", &[factor, column], "column");
        let stem = self.body.value(pair.weight).name.clone();
        let weight = self.op("Mul", &[pair.weight, column], &format!("{stem}/folded"));

        let bias = match pair.bias {
            Some(own) => {
                let centred = self.op("Sub", &[own, mean], "centred");
                let scaled = self.op("Mul", &[centred, factor], "scaled");
                self.op("Add", &[scaled, bias], &format!("{stem}/folded_bias"))
            }
            None => {
                let scaled = self.op("Mul", &[mean, factor], "scaled");
                self.op("Sub", &[bias, scaled], &format!("{stem}/folded_bias"))
            }
        };

        // The convolution before is dead then.
        let input = pair.convolution.inputs[0];
        self.made.push(Node {
            inputs: vec![input, Some(weight), Some(bias)],
            outputs: norm.outputs[..1].to_vec(),
            ..pair.convolution.clone()
        });
        self.made
    }

    fn constant(&mut self, constant: Constant) -> ValueId {
        let shape = constant.shape.iter().copied().map(Dim::fixed);
        let kind = ValueType::tensor(constant.element, shape);
        self.body.add_value(self.names.unique("constant"), kind, ValueOrigin::Constant(constant))
    }

    fn op(&mut self, op: &str, inputs: &[ValueId], name: &str) -> ValueId {
        let name = self.names.unique(name);
        let output = self.body.add_value(name.clone(), ValueType::Unknown, ValueOrigin::Missing);
        self.made.push(Node {
            name,
            op: Op::onnx(op),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
            attributes: Vec::<Attribute>::new(),
            doc: String::new(),
        });
        output
    }
}
