use super::*;
use crate::{BodyBuilder, Dim, ElementType, GraphBuilder, Meaning, ValueId, check, infer};

/// A graph of an older version with one node.
fn graph(
    opset: i64,
    shape: &[u64],
    write: impl FnOnce(&mut BodyBuilder, ValueId) -> ValueId,
) -> Graph {
    let mut graph = GraphBuilder::new(opset);
    let main = graph.body();
    let x =
        main.input("x", ElementType::F32, shape.iter().copied().map(Dim::fixed), Meaning::Unknown);
    let y = write(main, x);
    main.output("y", y, Meaning::Unknown);
    let mut graph = graph.finish();
    let found = check(&graph);
    assert!(found.is_empty(), "{found:?}");
    infer(&mut graph);
    graph
}

/// The operators after an upgrade, whose result has the same type and no findings.
fn upgraded(graph: &Graph, to: i64) -> (Graph, Vec<String>) {
    let mut newer = upgrade(graph, to).unwrap();
    let found = check(&newer);
    assert!(found.is_empty(), "{found:?}");
    let found = infer(&mut newer).findings;
    assert!(found.is_empty(), "{found:?}");
    let kind = |graph: &Graph| graph.body.value(graph.body.outputs[0]).kind.clone();
    assert_eq!(kind(&newer), kind(graph));
    let ops = newer.body.nodes.iter().map(|node| node.op.to_string()).collect();
    (newer, ops)
}

#[test]
fn lists_that_were_attributes_become_inputs() {
    let old = graph(7, &[2, 1, 8], |main, x| {
        let y = main.op("Squeeze", [x]).attribute("axes", [1]).output("squeezed");
        let y = main.op("Unsqueeze", [y]).attribute("axes", [0]).output("unsqueezed");
        let y =
            main.op("ReduceSum", [y]).attribute("axes", [0]).attribute("keepdims", 0).output("sum");
        let y = main.op("ReduceMean", [y]).attribute("axes", [0]).output("mean");
        let y = main
            .op("Slice", [y])
            .attribute("starts", [2])
            .attribute("ends", [6])
            .attribute("axes", [1])
            .output("cut");
        let y = main
            .op("Pad", [y])
            .attribute("pads", [0, 1, 0, 1])
            .attribute("value", 0.5)
            .output("padded");
        main.op("Clip", [y]).attribute("min", -1.0).attribute("max", 6.0).output("clipped")
    });
    let (newer, ops) = upgraded(&old, 21);
    assert_eq!(ops, ["Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean", "Slice", "Pad", "Clip"]);
    let attributes: usize = newer.body.nodes.iter().map(|node| node.attributes.len()).sum();
    assert_eq!(attributes, 1, "only 'keepdims' is left");
}

#[test]
fn a_softmax_of_several_dimensions_is_one_of_a_flat_tensor() {
    let old = graph(11, &[2, 3, 8], |main, x| main.op("Softmax", [x]).output("soft"));
    assert_eq!(upgraded(&old, 17).1, ["Shape", "Flatten", "Softmax", "Reshape"]);
    let old = graph(11, &[2, 3, 8], |main, x| {
        main.op("Softmax", [x]).attribute("axis", 2).output("soft")
    });
    assert_eq!(upgraded(&old, 17).1, ["Softmax"]);
}

#[test]
fn upsample_becomes_resize() {
    let old = graph(7, &[1, 1, 4, 4], |main, x| {
        let scales = AttributeValue::Floats(vec![1.0, 1.0, 2.0, 2.0]);
        main.op("Upsample", [x]).attribute("scales", scales).output("up")
    });
    let (newer, ops) = upgraded(&old, 19);
    assert_eq!(ops, ["Resize"]);
    assert_eq!(newer.body.nodes[0].text("nearest_mode"), Some("floor"));
    assert_eq!(newer.body.nodes[0].inputs.len(), 3);
}

#[test]
fn a_split_without_sizes_gets_its_number_of_outputs() {
    let mut builder = GraphBuilder::new(13);
    let main = builder.body();
    let x = main.input("x", ElementType::F32, [4.into()], Meaning::Unknown);
    let [a, _] = main.op("Split", [x]).outputs("parts");
    main.output("a", a, Meaning::Unknown);
    let mut old = builder.finish();
    infer(&mut old);
    assert_eq!(upgraded(&old, 18).0.body.nodes[0].int("num_outputs"), Some(2));
}

#[test]
fn operators_that_can_not_be_upgraded_are_rejected_by_name() {
    let old = graph(7, &[1, 4, 8], |main, x| {
        let scale = main.weight("scale", ElementType::F32, [4]);
        let inputs = [x, scale, scale, scale, scale];
        main.scope("norm", |main| {
            main.op("BatchNormalization", inputs).attribute("spatial", 0).output("batch")
        })
    });
    let error = upgrade(&old, 9).unwrap_err().to_string();
    assert_eq!(
        error,
        "E003: node 'norm/batch': BatchNormalization can't be converted to version 9: 'spatial' is \
         0"
    );
    assert!(upgrade(&old, 8).is_ok());
    assert!(
        upgrade(&old, 6)
            .unwrap_err()
            .to_string()
            .contains("operators of version 7 can be converted to versions 7 to")
    );
}

#[test]
fn operators_in_branches_and_functions_go_along() {
    let mut builder = GraphBuilder::new(11);
    let mut body = BodyBuilder::default();
    let x = body.parameter("x");
    let y = body.op("Squeeze", [x]).attribute("axes", [0]).output("squeezed");
    body.output("y", y, Meaning::Unknown);
    let function = builder.function("apr", "block", body);
    let main = builder.body();
    let x = main.input("x", ElementType::F32, [1.into(), 4.into()], Meaning::Unknown);
    let y = main.call(&function, [x]).output("call");
    main.output("y", y, Meaning::Unknown);
    let mut old = builder.finish();
    infer(&mut old);
    let (newer, _) = upgraded(&old, 13);
    assert_eq!(newer.functions[0].body.nodes[0].inputs.len(), 2);
}

/// Returns the error of upgrading a node that can't be converted.
fn refusal(
    opset: i64,
    to: i64,
    shape: &[u64],
    write: impl FnOnce(&mut BodyBuilder, ValueId) -> ValueId,
) -> String {
    let error = upgrade(&graph(opset, shape, write), to).unwrap_err();
    assert_eq!(error.code(), apr_core::Code::Version);
    error.message().split(": ").last().unwrap_or_default().to_owned()
}

#[test]
fn meanings_that_newer_versions_can_not_express_are_rejected() {
    let training =
        |main: &mut BodyBuilder, x: ValueId| main.op("Dropout", [x]).outputs::<2>("drop")[0];
    assert_eq!(refusal(6, 7, &[2], training), "it is for training");
    let mask = |main: &mut BodyBuilder, x: ValueId| {
        let [y, mask] = main.op("Dropout", [x]).outputs("drop");
        main.output("mask", mask, Meaning::Unknown);
        y
    };
    assert_eq!(refusal(7, 10, &[2], mask), "its mask would be of other elements");
    let inside =
        |main: &mut BodyBuilder, x: ValueId| main.op("Dropout", [x]).outputs::<2>("drop")[0];
    let newer = upgrade(&graph(7, &[2], inside), 10).unwrap();
    let mask = newer.body.nodes[0].outputs[1].unwrap();
    assert_eq!(newer.body.value(mask).element(), Some(ElementType::Bool));
    let modes = |main: &mut BodyBuilder, x: ValueId| {
        let (roi, scales) = (
            main.constant(crate::Constant::floats(&[])),
            main.constant(crate::Constant::floats(&[2.0])),
        );
        let mode = "tf_half_pixel_for_nn";
        main.op("Resize", [x, roi, scales])
            .attribute("coordinate_transformation_mode", mode)
            .output("y")
    };
    assert_eq!(refusal(11, 13, &[2], modes), "'tf_half_pixel_for_nn' is gone");
    let statistics = |main: &mut BodyBuilder, x: ValueId| {
        let scale = main.weight("scale", ElementType::F32, [4]);
        main.op("BatchNormalization", [x, scale, scale, scale, scale]).outputs::<5>("batch")[0]
    };
    assert_eq!(refusal(9, 14, &[1, 4], statistics), "it has outputs for training");
}

#[test]
fn shapes_that_are_not_known_stop_what_depends_on_them() {
    let unknown = |opset: i64, op: &str, attributes: &[(&str, i64)]| {
        let mut builder = GraphBuilder::new(opset);
        let main = builder.body();
        let (x, y) = (main.parameter("x"), main.parameter("y"));
        let inputs = if op == "GroupNormalization" { vec![x, y, y] } else { vec![x, y] };
        let mut node = main.op(op, inputs);
        for (name, value) in attributes {
            node = node.attribute(name, *value);
        }
        let z = node.output("z");
        main.output("z", z, Meaning::Unknown);
        upgrade(&builder.finish(), Operator::newest()).unwrap_err().message().to_owned()
    };
    let shapes = "unknown shapes of its inputs";
    assert!(unknown(6, "Add", &[("broadcast", 1), ("axis", 0)]).ends_with(shapes));
    assert!(unknown(6, "PRelu", &[]).ends_with(shapes));
    let channels = "unknown number of channels of its input";
    assert!(unknown(18, "GroupNormalization", &[("num_groups", 2)]).ends_with(channels));
}

#[test]
fn a_group_normalization_without_its_scale_is_refused() {
    let mut builder = GraphBuilder::new(18);
    let main = builder.body();
    let x = main.input("x", ElementType::F32, [1.into(), 4.into(), 8.into()], Meaning::Unknown);
    let y = main.op("GroupNormalization", [x]).attribute("num_groups", 2).output("norm");
    main.output("y", y, Meaning::Unknown);
    let refused = upgrade(&builder.finish(), 21).unwrap_err();
    assert!(refused.message().ends_with("it has no scale"), "{refused}");
}

#[test]
fn undeclared_versions_are_rejected_and_functions_get_the_models_version() {
    let mut old = graph(11, &[2], |main, x| main.op("Relu", [x]).output("y"));
    let mut builder = GraphBuilder::new(11);
    let mut body = BodyBuilder::default();
    let x = body.parameter("x");
    let y = body.op("Relu", [x]).output("act");
    body.output("y", y, Meaning::Unknown);
    builder.function("apr", "block", body);
    let mut function = builder.finish().functions.remove(0);
    function.opsets = vec![Opset { domain: "".into(), version: 17 }];
    old.functions.push(function);
    for to in [13, 18] {
        assert_eq!(upgrade(&old, to).unwrap().functions[0].opsets[0].version, to);
    }
    old.opsets.clear();
    assert!(upgrade(&old, 18).unwrap_err().to_string().contains("missing opset import"));
}

#[test]
fn operators_become_older_ones_of_the_same_meaning() {
    let newer = graph(18, &[2, 3, 8], |main, x| {
        let axes = main.ints(&[-1]);
        let y = main.op("ReduceMean", [x, axes]).output("mean");
        let scale = main.weight("scale", ElementType::F32, [1]);
        let y = main.op("LayerNormalization", [y, scale]).attribute("epsilon", 1e-6).output("norm");
        let last = main.op("Shape", [y]).attribute("start", -1).output("last");
        let first = main.op("Shape", [y]).attribute("end", 1).output("first");
        let most = main.op("Max", [last, first]).output("most");
        let is_less = main.op("LessOrEqual", [first, most]).output("is_less");
        let y = main.op("Where", [is_less, y, y]).output("chosen");
        main.op("Softmax", [y]).attribute("axis", -1).output("shares")
    });
    let mut found = Vec::new();
    for to in [16, 14, 11] {
        let (_, ops) = upgraded(&newer, to);
        found.push(ops.join(" "));
    }
    let norm = "ReduceMean ReduceMean Sub Mul ReduceMean Add Sqrt Div Mul";
    assert_eq!(
        found,
        [
            format!("{norm} Shape Shape Max LessOrEqual Where Softmax"),
            format!("{norm} Shape Slice Shape Slice Max LessOrEqual Where Softmax"),
            format!("{norm} Shape Slice Shape Slice Greater Where Less Equal Or Where Softmax"),
        ]
    );
}

#[test]
fn meanings_that_older_versions_can_not_express_are_rejected_by_name() {
    let newer = graph(20, &[2, 8], |main, x| main.op("Gelu", [x]).output("gelu"));
    let error = upgrade(&newer, 17).unwrap_err();
    assert!(error.message().contains("Gelu can't be converted to version 17"), "{error}");
    let summed =
        graph(17, &[2, 8], |main, x| main.op("Softmax", [x]).attribute("axis", 0).output("shares"));
    let error = upgrade(&summed, 12).unwrap_err();
    assert!(error.message().contains("unknown whether axis 0 is the last"), "{error}");
    assert_eq!(upgrade(&summed, 10).unwrap_err().code(), apr_core::Code::Version);
}
