use std::fmt::Write;

use super::rules::{DOMAINS, lists};
use super::*;
use crate::{AttributeValue, ElementType, GraphBuilder, Meaning, Op, infer};

/// Formats an operator as in `fixtures/graph/schemas.txt`.
///
/// That file was generated independently from the schemas of `onnx` and `onnxruntime`.
fn describe(operator: &Operator) -> String {
    let domain = if operator.domain.is_empty() { "ai.onnx" } else { operator.domain };
    let mut text = format!("{domain} {} {}", operator.name, operator.since);
    if operator.deprecated {
        text += " deprecated";
    }
    for (what, (fewest, most)) in
        [("inputs", operator.input_count()), ("outputs", operator.output_count())]
    {
        let most = most.map_or("any".to_owned(), |most| most.to_string());
        write!(text, " {what} {fewest}..{most}").unwrap();
    }
    for setting in &operator.attributes {
        write!(
            text,
            " {}:{}{}",
            setting.name,
            setting.kind,
            if setting.required { "!" } else { "" }
        )
        .unwrap();
    }
    text
}

#[test]
fn the_table_is_what_onnx_and_onnxruntime_define() {
    let theirs = include_str!("../../../../../fixtures/graph/schemas.txt");
    let mut theirs: Vec<_> = theirs.lines().map(str::to_owned).collect();
    let strays =
        Operator::all().filter(|operator| operator.name == "SimplifiedLayerNormalization").count();
    let ours = Operator::all()
        .filter(|operator| operator.name != "SimplifiedLayerNormalization")
        .map(describe);
    let mut ours: Vec<_> = ours.collect();
    // What is gone takes nothing; onnx keeps the last schema for it.
    for line in &mut theirs {
        if let Some((gone, _)) =
            line.split_once(" inputs ").filter(|(gone, _)| gone.ends_with(" deprecated"))
        {
            *line = format!("{gone} inputs 0..0 outputs 0..0");
        }
    }
    ours.sort();
    theirs.sort();
    assert_eq!(strays, 1);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn every_operator_of_onnx_has_a_rule_or_a_body() {
    let control = ["If", "Loop", "Scan", "SequenceMap"];
    let missing: Vec<_> = Operator::all()
        .filter(|operator| operator.domain.is_empty() && rule(operator).is_none())
        .filter(|operator| !control.contains(&operator.name))
        .map(|operator| operator.name)
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn defaults_are_values() {
    let softmax = Operator::of(&Op::onnx("Softmax"), 17).unwrap();
    assert_eq!(softmax.since, 13);
    assert_eq!(softmax.setting("axis").unwrap().default, Some(AttributeValue::Int(-1)));
    let conv = Operator::of(&Op::onnx("Conv"), 17).unwrap();
    assert_eq!(
        conv.setting("auto_pad").unwrap().default,
        Some(AttributeValue::Text(b"NOTSET".to_vec()))
    );
    assert_eq!(conv.setting("strides").unwrap().default, None);
}

#[test]
fn every_rule_names_an_operator() {
    for domain in DOMAINS {
        for (name, _) in lists(domain).iter().copied().flatten() {
            assert!(!Operator::versions(domain, name).is_empty(), "{name}");
        }
    }
}

#[test]
fn huge_repetitions_of_empty_lists_and_empty_splits_do_not_panic() {
    let mut graph = GraphBuilder::new(18);
    let body = graph.body();
    let (empty, times) = (body.ints(&[]), body.ints(&[1 << 62]));
    let tiled = body.op("Tile", [empty, times]).output("tiled");
    body.output("tiled", tiled, Meaning::Unknown);
    let x = body.input("x", ElementType::F32, [4.into()], Meaning::Unknown);
    let [] = body.op("Split", [x]).attribute("axis", 0_i64).outputs("parts");
    infer(&mut graph.finish());
}
