//! Gradients beside finite differences: each operator by itself, and functions.

use apr_core::{CheckpointReader, Limits};
use apr_graph::{
    BodyBuilder, Constant, Dim, ElementType, Graph, GraphBuilder, Intermediates, Meaning, ValueId,
    gradient,
};
use apr_infer::{Alone, Engine, RunLimits, Tensor, Unwatched, Value};
use apr_testkit::apr2::Apr2Builder;

/// A tensor that is given: shape and elements.
type Given = (Vec<usize>, Vec<f32>);

fn nothing() -> impl CheckpointReader {
    let file = Apr2Builder::new().metadata("{}").build();
    apr_format::apr2::open(file, "empty.apr", &Limits::default()).expect("a model")
}

/// Returns numbers that are not integers, not near 0, and all different.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let number = |n: usize| ((n * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    (0..count).map(number).map(|x| x + 0.3_f32.copysign(x)).collect()
}

fn positive(count: usize, seed: usize) -> Vec<f32> {
    numbers(count, seed).into_iter().map(f32::abs).collect()
}

fn run(graph: &Graph, inputs: &[(String, Tensor)], wanted: &[&str]) -> Vec<Vec<f32>> {
    let reader = nothing();
    let session = Engine::prepare(graph, &reader, RunLimits::default()).expect("it is ready");
    let inputs = inputs.iter().map(|(name, tensor)| (name.clone(), Value::from(tensor.clone())));
    let outcome = session.run(inputs.collect(), wanted, &Alone, &mut Unwatched).expect("it runs");
    let values =
        |value: &Value| value.tensor().expect("a tensor").values::<f32>().expect("floats").to_vec();
    outcome.outputs.iter().map(values).collect()
}

/// A graph of inputs `x0`, `x1`, ..., whose output is made of them by `write`; the sizes of
/// `x0` that are asked for are symbols. The loss weighs each element of the output by another
/// number.
struct Case {
    graph: Graph,
    given: Vec<Given>,
    output_len: usize,
}

impl Case {
    fn new(
        given: Vec<Given>,
        open: &[usize],
        write: impl Fn(&mut GraphBuilder, &[ValueId]) -> ValueId,
    ) -> Self {
        let mut builder = GraphBuilder::new(17);
        let mut ids = Vec::new();
        for (at, (shape, _)) in given.iter().enumerate() {
            let dims = shape.iter().enumerate().map(|(place, size)| match place {
                place if at == 0 && open.contains(&place) => Dim::symbol(&format!("size{place}")),
                _ => Dim::fixed(*size as u64),
            });
            let name = format!("x{at}");
            let dims: Vec<Dim> = dims.collect();
            ids.push(builder.body().input(&name, ElementType::F32, dims, Meaning::Unknown));
        }
        let output = write(&mut builder, &ids);
        builder.body().output("y", output, Meaning::Unknown);
        let mut case = Self { graph: builder.finish(), given, output_len: 0 };
        case.output_len = run(&case.graph, &case.inputs(&case.given), &["y"])[0].len();
        case
    }

    fn inputs(&self, given: &[Given]) -> Vec<(String, Tensor)> {
        let tensor = |(at, (shape, values)): (usize, &Given)| {
            (format!("x{at}"), Tensor::new(shape.clone(), values.clone()).expect("it fits"))
        };
        given.iter().enumerate().map(tensor).collect()
    }

    /// Returns the weights of the output's elements in the loss.
    fn weights(&self) -> Vec<f32> {
        numbers(self.output_len, 5)
    }

    fn loss(&self, given: &[Given]) -> f64 {
        let y = &run(&self.graph, &self.inputs(given), &["y"])[0];
        y.iter().zip(self.weights()).map(|(y, weight)| f64::from(*y) * f64::from(weight)).sum()
    }

    /// Compares the gradients of some inputs with differences.
    fn check(&self, wanted: &[usize]) {
        for intermediates in [Intermediates::Kept, Intermediates::Recomputed] {
            self.check_with(wanted, intermediates);
        }
    }

    fn check_with(&self, wanted: &[usize], intermediates: Intermediates) {
        let names: Vec<String> = wanted.iter().map(|at| format!("x{at}")).collect();
        let parameters: Vec<&str> = names.iter().map(String::as_str).collect();
        let made = gradient(&self.graph, &["y"], &parameters, intermediates).expect("it fits");
        assert_eq!(made.unreached, Vec::<String>::new());
        let mut findings = apr_graph::check(&made.graph);
        findings.append(apr_graph::infer(&mut made.graph.clone()).findings);
        assert_eq!(findings.errors().count(), 0, "{:?}", findings.errors().collect::<Vec<_>>());

        let mut inputs = self.inputs(&self.given);
        let shape = self.output_shape();
        let seed = Tensor::new(shape, self.weights()).expect("it fits");
        inputs.push(("y/gradient".to_owned(), seed));
        let outputs: Vec<String> = names.iter().map(|name| format!("{name}/gradient")).collect();
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let gradients = run(&made.graph, &inputs, &outputs);

        for (at, gradient) in wanted.iter().zip(gradients) {
            assert_eq!(gradient.len(), self.given[*at].1.len(), "shape of the gradient of x{at}");
            for (place, found) in gradient.iter().enumerate() {
                let step = 1e-2_f32;
                let moved = |by: f32| {
                    let mut given = self.given.clone();
                    given[*at].1[place] += by;
                    // What is added in single precision is not quite the step.
                    (self.loss(&given), f64::from(given[*at].1[place]))
                };
                let ((above, high), (below, low)) = (moved(step), moved(-step));
                let expected = (above - below) / (high - low);
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error <= 4e-3 * expected.abs().max(1.0),
                    "x{at}[{place}]: {found}, and by differences {expected}"
                );
            }
        }
    }

    fn output_shape(&self) -> Vec<usize> {
        let reader = nothing();
        let session = Engine::prepare(&self.graph, &reader, RunLimits::default()).expect("it fits");
        let inputs = self.inputs(&self.given).into_iter();
        let inputs = inputs.map(|(name, tensor)| (name, Value::from(tensor))).collect();
        let outcome = session.run(inputs, &["y"], &Alone, &mut Unwatched).expect("it fits");
        outcome.outputs[0].tensor().expect("it fits").shape().to_vec()
    }
}

/// One operator on numbers of some shapes, with a batch of any size and of this one.
fn operator(
    shapes: &[&[usize]],
    wanted: &[usize],
    write: impl Fn(&mut BodyBuilder, &[ValueId]) -> ValueId,
) {
    for open in [&[][..], &[0]] {
        operator_with(shapes, open, wanted, &write);
    }
}

/// One operator on numbers of some shapes.
fn operator_with(
    shapes: &[&[usize]],
    open: &[usize],
    wanted: &[usize],
    write: impl Fn(&mut BodyBuilder, &[ValueId]) -> ValueId,
) {
    let given = |make: fn(usize, usize) -> Vec<f32>| -> Vec<Given> {
        let each = |(seed, shape): (usize, &&[usize])| {
            (shape.to_vec(), make(shape.iter().product(), seed + 1))
        };
        shapes.iter().enumerate().map(each).collect()
    };
    Case::new(given(numbers), open, |graph, ids| write(graph.body(), ids)).check(wanted);
}

#[test]
fn operators_of_one_number() {
    let plain = [
        "Abs",
        "Cos",
        "Erf",
        "Exp",
        "Identity",
        "LeakyRelu",
        "Neg",
        "Reciprocal",
        "Relu",
        "Sigmoid",
        "Sin",
        "Softplus",
        "Tanh",
    ];
    for name in plain {
        operator(&[&[2, 3]], &[0], |body, ids| body.op(name, [ids[0]]).output("made"));
    }
    for name in ["Log", "Sqrt"] {
        let given = vec![(vec![5], positive(5, 1))];
        Case::new(given, &[], |graph, ids| graph.body().op(name, [ids[0]]).output("made"))
            .check(&[0]);
    }
}

#[test]
fn operators_of_two_numbers_of_shapes_that_are_widened() {
    for name in ["Add", "Sub", "Mul", "Div", "Max", "Min"] {
        let shapes: [[&[usize]; 2]; 4] =
            [[&[2, 3], &[2, 3]], [&[2, 3], &[3]], [&[2, 1, 3], &[4, 1]], [&[2, 3], &[]]];
        for shapes in shapes {
            operator(&shapes, &[0, 1], |body, ids| body.op(name, [ids[0], ids[1]]).output("made"));
        }
        // The same value twice.
        operator(&[&[4]], &[0], |body, ids| body.op(name, [ids[0], ids[0]]).output("made"));
    }
}

#[test]
fn powers_and_choices() {
    operator(&[&[2, 3]], &[0], |body, ids| {
        let three = body.float(3.0);
        body.op("Pow", [ids[0], three]).output("made")
    });
    operator(&[&[2, 3], &[3]], &[0, 1], |body, ids| {
        let zero = body.float(0.0);
        let which = body.op("Greater", [ids[0], zero]).output("which");
        body.op("Where", [which, ids[0], ids[1]]).output("made")
    });
    operator(&[&[6]], &[0], |body, ids| {
        let (low, high) = (body.float(-0.7), body.float(0.9));
        body.op("Clip", [ids[0], low, high]).output("made")
    });
    operator(&[&[6]], &[0], |body, ids| {
        body.op("Cast", [ids[0]]).attribute("to", 1).output("made")
    });
}

#[test]
fn softmax_along_any_dimension() {
    for name in ["Softmax", "LogSoftmax"] {
        for axis in [-1, 0, 1] {
            operator(&[&[2, 3, 2]], &[0], |body, ids| {
                body.op(name, [ids[0]]).attribute("axis", axis).output("made")
            });
        }
    }
}

#[test]
fn products_of_matrices() {
    let shapes: [[&[usize]; 2]; 6] = [
        [&[2, 3], &[3, 4]],
        [&[2, 2, 3], &[3, 4]],
        [&[2, 2, 3], &[2, 3, 2]],
        [&[2, 1, 2, 3], &[3, 3, 2]],
        [&[2, 3], &[2, 3, 2]],
        [&[2, 3, 2, 3], &[1, 3, 3, 1]],
    ];
    for shapes in shapes {
        operator(&shapes, &[0, 1], |body, ids| body.op("MatMul", [ids[0], ids[1]]).output("made"));
    }
    for (turn_a, turn_b) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
        let a: &[usize] = if turn_a == 1 { &[3, 2] } else { &[2, 3] };
        let b: &[usize] = if turn_b == 1 { &[4, 3] } else { &[3, 4] };
        let given = [a, b, &[4]].map(|shape| (shape.to_vec(), numbers(shape.iter().product(), 3)));
        Case::new(given.to_vec(), &[], |graph, ids| {
            let gemm = graph.body().op("Gemm", ids.iter().copied());
            let gemm = gemm.attribute("transA", turn_a).attribute("transB", turn_b);
            gemm.attribute("alpha", 0.5_f32).attribute("beta", 2.0_f32).output("made")
        })
        .check(&[0, 1, 2]);
    }
}

#[test]
fn operators_that_move_elements() {
    operator(&[&[2, 3, 4]], &[0], |body, ids| {
        let shape = body.ints(&[0, 12]);
        body.op("Reshape", [ids[0], shape]).output("made")
    });
    operator(&[&[2, 3, 4]], &[0], |body, ids| {
        body.op("Transpose", [ids[0]]).attribute("perm", [1, 2, 0]).output("made")
    });
    operator(&[&[2, 3]], &[0], |body, ids| {
        let axes = body.ints(&[1]);
        let more = body.op("Unsqueeze", [ids[0], axes]).output("more");
        let less = body.op("Squeeze", [more, axes]).output("less");
        body.op("Flatten", [less]).output("made")
    });
    operator(&[&[2, 3], &[2, 2]], &[0, 1], |body, ids| {
        body.op("Concat", [ids[0], ids[1], ids[0]]).attribute("axis", 1).output("made")
    });
    operator(&[&[2, 1], &[3]], &[0, 1], |body, ids| {
        let shape = body.ints(&[2, 2, 3]);
        let a = body.op("Expand", [ids[0], shape]).output("a");
        let b = body.op("Expand", [ids[1], shape]).output("b");
        body.op("Mul", [a, b]).output("made")
    });
    operator(&[&[2, 3]], &[0], |body, ids| {
        let pads = body.ints(&[0, 1, 2, 0]);
        body.op("Pad", [ids[0], pads]).output("made")
    });
    // Of one output nothing is used.
    operator(&[&[2, 6]], &[0], |body, ids| {
        let sizes = body.ints(&[1, 3, 2]);
        let split = body.op("Split", [ids[0], sizes]).attribute("axis", 1);
        let [first, _, last] = split.outputs("parts");
        body.op("Concat", [last, first]).attribute("axis", 1).output("made")
    });
    operator(&[&[3, 4]], &[0], |body, ids| {
        let (starts, ends, axes) =
            (body.ints(&[0, 1]), body.ints(&[-1, i64::MAX]), body.ints(&[0, 1]));
        body.op("Slice", [ids[0], starts, ends, axes]).output("made")
    });
    let cuts = [[0, i64::MAX, 1, 2], [1, 7, 1, 3], [-1, i64::MIN, 0, -1], [-1, 2, 0, 1]];
    for [start, end, axis, width] in cuts {
        operator(&[&[2, 7]], &[0], |body, ids| {
            let [start, end, axis, width] = [start, end, axis, width].map(|it| body.ints(&[it]));
            body.op("Slice", [ids[0], start, end, axis, width]).output("made")
        });
    }
    operator(&[&[2, 3]], &[0], |body, ids| {
        let ratio = body.float(0.0);
        body.op("Dropout", [ids[0], ratio]).output("made")
    });
}

#[test]
fn operators_that_read_at_places() {
    let places = |body: &mut BodyBuilder, shape: &[i64], values: &[i64]| {
        let (all, shape) = (body.ints(values), body.ints(shape));
        body.op("Reshape", [all, shape]).output("places")
    };
    for axis in [0, 1] {
        operator(&[&[3, 4]], &[0], |body, ids| {
            let at = places(body, &[2, 2], &[0, 2, 2, 1]);
            body.op("Gather", [ids[0], at]).attribute("axis", axis).output("made")
        });
    }
    operator(&[&[2, 3, 2]], &[0], |body, ids| {
        let one = body.int(1);
        body.op("Gather", [ids[0], one]).attribute("axis", 1).output("made")
    });
    operator(&[&[2, 3]], &[0], |body, ids| {
        let at = places(body, &[2, 2], &[0, 0, 1, 2]);
        body.op("GatherElements", [ids[0], at]).attribute("axis", 1).output("made")
    });
    operator(&[&[2, 3, 2]], &[0], |body, ids| {
        let at = places(body, &[3, 2], &[0, 1, 1, 2, 0, 1]);
        body.op("GatherND", [ids[0], at]).output("made")
    });
    operator(&[&[2, 3, 2]], &[0], |body, ids| {
        let at = places(body, &[2, 1], &[2, 1]);
        body.op("GatherND", [ids[0], at]).attribute("batch_dims", 1).output("made")
    });
    for reduction in ["none", "add"] {
        operator(&[&[4, 3], &[2, 3]], &[0, 1], |body, ids| {
            let at = places(body, &[2, 1], &[2, 0]);
            let node = body.op("ScatterND", [ids[0], at, ids[1]]);
            node.attribute("reduction", reduction).output("made")
        });
        operator(&[&[2, 4], &[2, 2]], &[0, 1], |body, ids| {
            let at = places(body, &[2, 2], &[3, 0, 1, 2]);
            let node = body.op("ScatterElements", [ids[0], at, ids[1]]).attribute("axis", 1);
            node.attribute("reduction", reduction).output("made")
        });
    }
}

#[test]
fn the_largest_elements() {
    for axis in [0, -1] {
        operator(&[&[3, 4]], &[0], |body, ids| {
            let count = body.ints(&[2]);
            let node = body.op("TopK", [ids[0], count]).attribute("axis", axis);
            let [values, _] = node.outputs("top");
            values
        });
    }
}

#[test]
fn maxima_of_windows() {
    operator(&[&[2, 2, 5, 6]], &[0], |body, ids| {
        let node = body.op("MaxPool", [ids[0]]).attribute("kernel_shape", [3, 2]);
        node.attribute("strides", [2, 1]).attribute("pads", [1, 0, 1, 1]).output("made")
    });
}

#[test]
fn sums_and_means() {
    for name in ["ReduceMean", "ReduceL2", "ReduceSumSquare"] {
        for keep in [0, 1] {
            operator(&[&[2, 3, 2]], &[0], |body, ids| {
                let node = body.op(name, [ids[0]]).attribute("axes", [-1, 0]);
                node.attribute("keepdims", keep).output("made")
            });
        }
        operator(&[&[2, 3]], &[0], |body, ids| body.op(name, [ids[0]]).output("made"));
    }
    operator(&[&[2, 3, 2]], &[0], |body, ids| {
        let axes = body.ints(&[1]);
        body.op("ReduceSum", [ids[0], axes]).attribute("keepdims", 0).output("made")
    });
}

#[test]
fn normalisations() {
    operator(&[&[2, 3, 4], &[4], &[4]], &[0, 1, 2], |body, ids| {
        body.op("LayerNormalization", ids.iter().copied()).output("made")
    });
    operator(&[&[2, 3, 4], &[3, 4]], &[0, 1], |body, ids| {
        body.op("LayerNormalization", ids.iter().copied()).attribute("axis", 1).output("made")
    });
    operator_with(&[&[2, 3, 4], &[3], &[3]], &[0, 2], &[0, 1, 2], |body, ids| {
        body.op("InstanceNormalization", ids.iter().copied()).output("made")
    });
    operator(&[&[2, 3, 4], &[3], &[3]], &[0, 1, 2], |body, ids| {
        body.op("InstanceNormalization", ids.iter().copied()).output("made")
    });
    operator(&[&[2, 3, 4], &[3], &[3]], &[0, 1, 2], |body, ids| {
        let mean = body.constant(Constant::floats(&[0.1, -0.2, 0.3]));
        let variance = body.constant(Constant::floats(&[0.5, 1.5, 2.5]));
        let inputs = [ids[0], ids[1], ids[2], mean, variance];
        body.op("BatchNormalization", inputs).output("made")
    });
}

#[test]
fn convolutions_of_any_stride_dilation_and_padding() {
    for (stride, dilation, pads) in [(1, 1, [0, 0]), (2, 1, [1, 1]), (1, 2, [2, 1]), (3, 2, [0, 2])]
    {
        let sizes: [&[usize]; 3] = [&[2, 3, 9], &[2, 3, 3], &[2]];
        let write = |body: &mut BodyBuilder, ids: &[ValueId]| {
            let node = body.op("Conv", ids.iter().copied());
            let node = node.attribute("strides", [stride]).attribute("dilations", [dilation]);
            node.attribute("pads", pads).output("made")
        };
        for open in [&[][..], &[0], &[0, 2]] {
            operator_with(&sizes, open, &[0, 1, 2], write);
        }
    }
    operator(&[&[1, 2, 5, 6], &[3, 2, 2, 3]], &[0, 1], |body, ids| {
        let node = body.op("Conv", ids.iter().copied()).attribute("strides", [2, 2]);
        node.attribute("pads", [0, 1, 1, 0]).output("made")
    });
    operator(&[&[2, 4, 5], &[6, 2, 2]], &[0, 1], |body, ids| {
        body.op("Conv", ids.iter().copied()).attribute("group", 2).output("made")
    });
    operator(&[&[2, 3, 4, 5], &[3, 1, 3, 2]], &[0, 1], |body, ids| {
        let node = body.op("Conv", ids.iter().copied()).attribute("group", 3);
        node.attribute("pads", [1, 1, 1, 0]).output("made")
    });
    operator(&[&[2, 3, 4, 5]], &[0], |body, ids| {
        body.op("GlobalAveragePool", [ids[0]]).output("made")
    });
}

/// A layer that is a function of a value and a weight, which calls another one.
fn layers(graph: &mut GraphBuilder, x: ValueId, weights: &[ValueId]) -> ValueId {
    let mut inner = BodyBuilder::default();
    let value = inner.parameter("value");
    let gate = inner.op("Sigmoid", [value]).output("gate");
    let product = inner.op("Mul", [value, gate]).output("product");
    inner.output("activated", product, Meaning::Unknown);
    let activation = graph.function("blocks", "activation", inner);

    let mut layer = BodyBuilder::default();
    let (value, weight) = (layer.parameter("value"), layer.parameter("weight"));
    let product = layer.op("MatMul", [value, weight]).output("product");
    let activated = layer.call(&activation, [product]).output("activation");
    let sum = layer.op("Add", [value, activated]).output("sum");
    layer.output("result", sum, Meaning::Unknown);
    let layer = graph.function("blocks", "layer", layer);
    let body = graph.body();
    weights
        .iter()
        .enumerate()
        .fold(x, |x, (at, weight)| body.call(&layer, [x, *weight]).output(&format!("layers.{at}")))
}

#[test]
fn a_layer_that_is_called_twice_has_one_gradient_function() {
    let shapes: [&[usize]; 3] = [&[2, 3], &[3, 3], &[3, 3]];
    let given: Vec<Given> = shapes
        .iter()
        .enumerate()
        .map(|(seed, shape)| (shape.to_vec(), numbers(shape.iter().product(), seed + 1)))
        .collect();
    let case = Case::new(given, &[0], |graph, ids| layers(graph, ids[0], &ids[1..]));
    case.check(&[0, 1, 2]);
    case.check(&[1, 2]);

    let names = |intermediates| {
        let made = gradient(&case.graph, &["y"], &["x0", "x1", "x2"], intermediates).unwrap();
        let functions = made.graph.functions.iter();
        functions.map(|function| function.op.name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        names(Intermediates::Recomputed),
        ["activation", "layer", "activation_gradient", "layer_gradient"]
    );
    assert_eq!(
        names(Intermediates::Kept),
        [
            "activation",
            "layer",
            "activation_kept",
            "activation_gradient",
            "layer_kept",
            "layer_gradient",
        ]
    );
}

#[test]
fn a_graph_with_gradients_computes_what_it_computed() {
    let given = vec![(vec![2, 3], numbers(6, 1)), (vec![3, 3], numbers(9, 2))];
    let case = Case::new(given, &[], |graph, ids| layers(graph, ids[0], &ids[1..]));
    let made = gradient(&case.graph, &["y"], &["x1"], Intermediates::Kept).unwrap();
    let inputs = case.inputs(&case.given);
    assert_eq!(run(&made.graph, &inputs, &["y"]), run(&case.graph, &inputs, &["y"]));
}

#[test]
fn operators_without_a_gradient_are_rejected_by_name() {
    let case = |write: fn(&mut BodyBuilder, ValueId) -> ValueId| {
        let mut graph = GraphBuilder::new(17);
        let body = graph.body();
        let x = body.input("x", ElementType::F32, [Dim::fixed(3)], Meaning::Unknown);
        let y = body.scope("layers.3", |body| write(body, x));
        body.output("y", y, Meaning::Unknown);
        gradient(&graph.finish(), &["y"], &["x"], Intermediates::Kept)
    };
    let error = case(|body, x| body.op("CumSum", [x, x]).output("running")).unwrap_err();
    assert_eq!(
        error.message(),
        "no gradient through CumSum (node 'layers.3/running'): its gradient is not supported"
    );

    let made = case(|body, x| {
        let shape = body.op("Shape", [x]).output("shape");
        body.op("ConstantOfShape", [shape]).output("zeros")
    });
    assert_eq!(made.unwrap().unreached, ["x"]);

    let none = gradient(&Graph::default(), &["y"], &[], Intermediates::Kept);
    assert_eq!(none.unwrap_err().message(), "no value 'y' in the model");
}
