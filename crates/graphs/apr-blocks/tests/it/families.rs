use apr_arch::Families;
use apr_blocks::{GraphOptions, Graphs};
use apr_core::TensorInfo;
use apr_graph::{Graph, Severity, check, infer};

use crate::cases::Case;

/// Cases that have no head for their task, or no block for one of their parts.
const WITHOUT_GRAPH: [&str; 6] = [
    "albert_pretraining",
    "bert_pretraining",
    "falcon_serial",
    "unispeech_sat_pretraining",
    "wav2vec2_pretraining",
    "wav2vec2_ctc_layer",
];

fn with_graph() -> Vec<Case> {
    Case::all().into_iter().filter(|case| !WITHOUT_GRAPH.contains(&case.name.as_str())).collect()
}

/// A graph's shapes as text, outputs first.
fn outputs(graph: &Graph) -> Vec<String> {
    let port = |id| {
        let value = graph.body.value(id);
        format!("{} {}", value.name, value.tensor().expect("a tensor"))
    };
    graph.body.outputs.iter().copied().map(port).collect()
}

fn inferred(mut graphs: Graphs, name: &str) -> Vec<Graph> {
    graphs.parts.iter_mut().for_each(|part| {
        infer(&mut part.graph);
        let found = check(&part.graph);
        let wrong: Vec<_> =
            found.list.iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert!(wrong.is_empty(), "{name}, {}: {wrong:?}", part.name);
    });
    graphs.parts.into_iter().map(|part| part.graph).collect()
}

#[test]
fn every_built_in_family_has_a_graph_or_an_error_with_the_reason() {
    for case in Case::all() {
        let made = case.graphs(&GraphOptions::default());
        let expected = !WITHOUT_GRAPH.contains(&case.name.as_str());
        assert_eq!(made.is_ok(), expected, "{}: {:?}", case.name, made.err());
    }
}

#[test]
fn graphs_pass_the_checks_at_every_opset() {
    for case in with_graph() {
        for opset in [17, 23] {
            for past in [false, true] {
                let options = GraphOptions { opset, past, ..GraphOptions::default() };
                inferred(case.graphs(&options).expect("it has a graph"), &case.name);
            }
        }
    }
}

/// Checks that the task in the configuration can also be requested by name, for every kind of
/// graph.
#[test]
fn the_task_of_a_model_can_be_requested() {
    let mut asked = 0;
    for case in with_graph() {
        let class = case.config["architectures"][0].as_str().expect("a class");
        let Some((_, task)) = class.split_once("For") else { continue };
        let options = GraphOptions { task: Some(task.to_owned()), ..GraphOptions::default() };
        let own = case.graphs(&GraphOptions::default());
        let found = case.graphs(&options);
        assert!(found == own, "{}: {task}: {:?}", case.name, found.err());
        asked += 1;
    }
    assert!(asked > 100, "{asked}");
}

#[test]
fn outputs_have_the_shapes_of_the_model() {
    let of = |name: &str| -> Vec<Vec<String>> {
        let graphs = Case::named(name).graphs(&GraphOptions::default()).expect("it has a graph");
        inferred(graphs, name).iter().map(outputs).collect()
    };
    let llama = of("llama");
    assert_eq!(llama[0][0], "logits f32[batch_size, sequence_length, 101]");
    assert_eq!(
        llama[0][1],
        "present.0.key f32[batch_size, 2, past_sequence_length + sequence_length, 8]"
    );
    assert_eq!(
        of("bert")[0],
        [
            "last_hidden_state f32[batch_size, sequence_length, 32]",
            "pooler_output f32[batch_size, 32]"
        ]
    );
    let whisper = of("whisper");
    assert_eq!(whisper[0], ["last_hidden_state f32[batch_size, 36, 32]"]);
    assert_eq!(whisper[1][0], "logits f32[batch_size, decoder_sequence_length, 101]");
}

#[test]
fn layers_that_compute_the_same_are_one_function() {
    let mut case = Case::named("llama").with("num_hidden_layers", 80.into());
    let first: Vec<TensorInfo> =
        case.tensors.iter().filter(|info| info.name.contains("layers.0.")).cloned().collect();
    case.tensors.retain(|info| !info.name.contains("layers."));
    for layer in 0..80 {
        let name = |info: &TensorInfo| info.name.replace("layers.0.", &format!("layers.{layer}."));
        case.tensors
            .extend(first.iter().map(|info| TensorInfo { name: name(info), ..info.clone() }));
    }
    let graphs = case.graphs(&GraphOptions::default()).expect("it has a graph");
    let graph = &graphs.parts[0].graph;
    assert_eq!(graph.functions.len(), 1);
    let calls: Vec<&str> = graph
        .body
        .nodes
        .iter()
        .filter(|node| graph.function(&node.op).is_some())
        .map(|node| node.name.as_str())
        .collect();
    assert_eq!(calls.len(), 80);
    assert_eq!((calls[0], calls[79]), ("layers.0", "layers.79"));
    assert!(graph.functions[0].body.nodes.iter().any(|node| node.name == "attention/scores"));
}

#[test]
fn layers_with_windows_and_without_are_two_functions_of_one_kind_each() {
    // Windows reach the layers as masks: what differs here is that one kind turns its queries and
    // the other does not.
    let graphs = Case::named("cohere2").graphs(&GraphOptions::default()).expect("it has a graph");
    let names: Vec<String> = graphs.parts[0]
        .graph
        .functions
        .iter()
        .map(|function| function.op.name.to_string())
        .collect();
    assert!(names.len() <= 2, "{names:?}");
    let graphs = Case::named("mixtral").graphs(&GraphOptions::default()).expect("it has a graph");
    let names: Vec<String> = graphs.parts[0]
        .graph
        .functions
        .iter()
        .map(|function| function.op.name.to_string())
        .collect();
    assert_eq!(names, ["Expert", "Layer"], "experts are one function, which layers call");
}

#[test]
fn a_family_of_ones_own_names_the_same_blocks() {
    let mut families = Families::builtin();
    let text = r#"
        name = "voices"
        title = "Voices"
        extends = "llama"
        model_types = ["voices"]
        [graph]
    "#;
    families.add(text).expect("a family");
    let case = Case::named("llama");
    let options = GraphOptions::default();
    let voices = case.clone().with("model_type", "voices".into());
    let own = voices.graphs_by(&families, &options).expect("it has a graph");
    assert_eq!(own, case.graphs(&options).expect("it has a graph"));
}

/// Names of the tensors that no graph uses, and why they may be left out.
fn unused(graphs: &Graphs) -> Vec<(&str, Option<&str>)> {
    graphs.unused.iter().map(|tensor| (tensor.name.as_str(), tensor.why.as_deref())).collect()
}

#[test]
fn another_task_has_another_head() {
    let case = Case::named("llama");
    let options = GraphOptions { task: Some(String::new()), ..GraphOptions::default() };
    let graphs = case.graphs(&options).expect("it has a graph");
    assert_eq!(
        outputs(&inferred(graphs.clone(), "llama")[0])[0],
        "last_hidden_state f32[batch_size, sequence_length, 32]"
    );
    assert_eq!(unused(&graphs), [("lm_head.weight", Some("heads of other tasks"))]);
}

/// Checks Microsoft's published DeBERTa v3, which has a table of positions that the configuration
/// excludes.
#[test]
fn a_table_that_the_configuration_excludes_is_not_in_the_graph() {
    let mut case = Case::named("deberta_v2");
    let plain = case.graphs(&GraphOptions::default()).expect("it has a graph");
    let mut table = case.tensors[0].clone();
    table.name = "embeddings.position_embeddings.weight".to_owned();
    table.shape = [40, 32].into();
    case.tensors.push(table);
    let graphs = case.graphs(&GraphOptions::default()).expect("it has a graph");
    assert_eq!(graphs.parts, plain.parts);
    let why = "the configuration rules the table of positions out";
    assert_eq!(unused(&graphs), [("embeddings.position_embeddings.weight", Some(why))]);
}

/// Released A.X K1 has a norm behind the network of dense layers, too, which is not computed.
#[test]
fn a_norm_that_layers_do_not_compute_is_not_in_the_graph() {
    let mut case = Case::named("axk1");
    let plain = case.graphs(&GraphOptions::default()).expect("it has a graph");
    let name = "layers.0.post_mlp_layernorm.weight";
    let mut norm = case.tensors[0].clone();
    norm.name = format!("model.{name}");
    norm.shape = [32].into();
    case.tensors.push(norm);
    let graphs = case.graphs(&GraphOptions::default()).expect("it has a graph");
    assert_eq!(graphs.parts, plain.parts);
    let why = "norms that layers without experts do not compute";
    assert_eq!(unused(&graphs), [(name, Some(why))]);
}
