//! Every way in which a graph looks at a tensor, written to ONNX. NumPy says what it shows, and
//! onnxruntime what the file gives, in `cargo xtask interop`; the file that they agreed on is the
//! one that is written here.

use std::path::Path;
use std::process::Command;

use apr_bind::{Binder, Storage};
use apr_graph::{BodyBuilder, ElementType, Graph, GraphBuilder, Meaning, View as Look, infer};
use apr_ops::convert::{ConvertOptions, plan};
use apr_registry::onnx::write::Model;
use apr_registry::{DType, Limits, PlanOptions, Serial, TensorInfo};
use apr_testkit::locate;
use apr_testkit::peers::agreed;
use apr_view::{Unpacked, View};

use crate::support::{Sandbox, f32s, safetensors};

/// Single and half precision: `np.arange(n) / 8`.
fn model() -> Vec<u8> {
    let eighths = |count: u16| (0..count).map(|at| f32::from(at) / 8.0).collect::<Vec<_>>();
    // Eighths below 256 are exact in half precision: the upper bits of single precision, with
    // another bias.
    let halves = |values: Vec<f32>| -> Vec<u8> {
        let half = |value: f32| {
            let bits = value.to_bits();
            let exponent = if value == 0.0 { 0 } else { ((bits >> 23) - 112) << 10 };
            u16::try_from(exponent | (bits >> 13 & 0x3ff)).expect("a small number").to_le_bytes()
        };
        values.into_iter().flat_map(half).collect()
    };
    safetensors(&[
        ("a", "F32", &[4, 6], f32s(&eighths(24))),
        ("b", "F32", &[4, 6], f32s(&eighths(48)[24..])),
        ("c", "F32", &[4, 2], f32s(&eighths(8))),
        ("h", "F16", &[4, 6], halves(eighths(24))),
        ("t", "F32", &[2, 3, 4], f32s(&eighths(24))),
        ("norm", "F32", &[6], f32s(&eighths(6))),
    ])
}

/// ggml's Q8_0: rows of one block each, whose scales are 0.5, 1, 2, and whose quants count from
/// -16.
fn quantized(name: &str) -> (TensorInfo, Vec<u8>) {
    let rows = [0x3800_u16, 0x3c00, 0x4000].into_iter();
    let quants = || (0_i8..32).map(|at| (at - 16).to_le_bytes()[0]);
    let bytes = rows.flat_map(|scale| scale.to_le_bytes().into_iter().chain(quants())).collect();
    (TensorInfo { name: name.to_owned(), dtype: DType::Q8_0, shape: vec![3, 32].into() }, bytes)
}

/// A graph that gives out what it looks at; the outputs are called as `xtask/interop/looks.py`
/// calls them.
fn looks() -> Graph {
    let mut graph = GraphBuilder::new(21);
    let main = graph.body();
    let with = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let turned = Look::Transposed(vec![1, 0]);
    let show =
        |main: &mut BodyBuilder, name: &str, tensor: &str, views: Vec<Look>, shape: &[u64]| {
            let value = main.viewed(tensor, views, ElementType::F32, shape.iter().copied());
            let value = main.op("Identity", [value]).output(name);
            main.output(name, value, Meaning::Unknown);
        };
    show(main, "joined_rows", "a", vec![Look::Joined { axis: 0, with: with(&["b"]) }], &[8, 6]);
    show(
        main,
        "joined_columns",
        "a",
        vec![Look::Joined { axis: 1, with: with(&["c", "b"]) }],
        &[4, 14],
    );
    show(
        main,
        "joined_turned",
        "a",
        vec![Look::Joined { axis: 0, with: with(&["b"]) }, turned.clone()],
        &[6, 8],
    );
    show(main, "joined_halves", "h", vec![Look::Joined { axis: 0, with: with(&["a"]) }], &[8, 6]);
    show(main, "stacked", "a", vec![Look::Stacked(with(&["b", "a"]))], &[3, 4, 6]);
    show(
        main,
        "stacked_turned",
        "b",
        vec![Look::Stacked(with(&["a"])), Look::Transposed(vec![2, 0, 1])],
        &[6, 2, 4],
    );
    show(main, "plus", "norm", vec![Look::Plus(1)], &[6]);
    show(main, "halves_turned", "h", vec![turned.clone()], &[6, 4]);
    let middle = Look::Slice { axis: 1, start: 1, len: 2 };
    show(
        main,
        "sliced",
        "t",
        vec![middle, Look::Transposed(vec![2, 1, 0]), Look::Reshaped(vec![4, 4])],
        &[4, 4],
    );
    show(main, "blocks", "q", Vec::new(), &[3, 32]);
    show(
        main,
        "blocks_joined",
        "q",
        vec![Look::Joined { axis: 0, with: with(&["r"]) }, turned],
        &[32, 6],
    );
    show(main, "blocks_stacked", "r", vec![Look::Stacked(with(&["q"]))], &[2, 3, 32]);
    graph.finish()
}

#[test]
fn strided_views_in_a_graph_match_onnxruntime() {
    let reader =
        apr_registry::open(model(), "model.safetensors", &Limits::default()).expect("a model");
    let mut view = View::new(&*reader);
    for name in ["q", "r"] {
        let (info, bytes) = quantized(name);
        view.add(info, bytes);
    }
    let (unpacked, parts) = Unpacked::beside(apr_view::Base::Borrowed(&view));
    let mut binder = Binder::new(&unpacked, &parts, Storage::default());
    let mut graph = looks();
    binder.bind(&mut graph).expect("all of it is there");
    infer(&mut graph);
    let (bound, unused) = binder.finish();
    assert!(unused.is_empty(), "{unused:?}");
    let view = View::of(&unpacked, bound.tensors);
    let options = ConvertOptions { targets: bound.targets, ..ConvertOptions::default() };
    let target = PlanOptions {
        models: vec![Model::new("m.onnx", graph)],
        ..PlanOptions::new(&apr_registry::onnx::FORMAT, "m.onnx")
    };
    let mut file = Vec::new();
    let conversion = plan(&view, &options, &target).expect("a plan");
    conversion.run(&view, &mut file, &Serial, &()).expect("a file");
    let sandbox = Sandbox::new().with("m.onnx", &file);
    agreed("onnx/looks", &[("m.onnx".to_owned(), file)], || judge(&sandbox.path("m.onnx")));
}

fn judge(model: &Path) {
    let python = std::env::var("APR_GRAPH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = locate::workspace().join("xtask/interop/looks.py");
    let output = Command::new(python).arg(script).arg(model).output().expect("a Python");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
