//! What no block knows is an error that names it.

use apr_arch::Families;
use apr_blocks::GraphOptions;
use serde_json::json;

use crate::cases::Case;

fn error(case: &Case) -> String {
    case.graphs(&GraphOptions::default()).expect_err("no block knows it").to_string()
}

fn error_of_family(table: &str) -> String {
    let mut families = Families::builtin();
    families.add(table).expect("a family");
    let case = Case::named("llama").with("model_type", json!("own"));
    let error = case.graphs_by(&families, &GraphOptions::default()).err();
    error.expect("it has no graph").to_string()
}

const OWN: &str = "name = \"own\"\ntitle = \"Own\"\nextends = \"llama\"\nmodel_types = [\"own\"]\n";

#[test]
fn an_unknown_type_of_rotary_positions_is_rejected_by_name() {
    let case =
        Case::named("llama").with("rope_scaling", json!({"rope_type": "spiral", "factor": 2.0}));
    assert_eq!(error(&case), "E003: rotary positions of type 'spiral' are not supported");
}

#[test]
fn an_unknown_setting_of_rotary_positions_is_rejected_by_name() {
    let case = Case::named("llama")
        .with("rope_scaling", json!({"rope_type": "linear", "factor": 2.0, "twist": 3}));
    assert_eq!(
        error(&case),
        "E003: the configuration has 'twist' for rotary positions, which no block supports"
    );
}

#[test]
fn a_missing_setting_of_rotary_positions_is_reported_by_name() {
    let case =
        Case::named("llama").with("rope_scaling", json!({"rope_type": "llama3", "factor": 2.0}));
    assert_eq!(
        error(&case),
        "E001: the configuration lacks 'low_freq_factor' for rotary positions of type 'llama3'"
    );
}

#[test]
fn an_unknown_activation_is_rejected_by_name() {
    let case = Case::named("llama").with("hidden_act", json!("wobble"));
    assert_eq!(
        error(&case),
        "E003: the graph of family llama: option 'activation' is 'wobble', which no block supports"
    );
}

#[test]
fn a_task_without_a_head_is_rejected_by_name() {
    let case = Case::named("llama").with("architectures", json!(["LlamaForMindReading"]));
    let said = error(&case);
    let expected = "E003: family llama has no graph for the task 'MindReading'; it has ";
    assert!(said.starts_with(expected), "{said}");
    assert!(said.contains("question-answering"), "{said}");
}

#[test]
fn a_backbone_is_rejected_as_a_task() {
    let case = Case::named("resnet").with("architectures", json!(["ResNetBackbone"]));
    let expected = "E003: family resnet has no graph for the task 'Backbone'; it has ";
    let said = error(&case);
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn windows_that_a_map_is_smaller_than_are_refused() {
    // Transformers makes them smaller, and then has no positions for them.
    let case = Case::named("swin").with("window_size", json!(11));
    let message = "E003: a map of 10 x 10 can't be cut into windows of 11 x 11";
    assert_eq!(error(&case), message);
}

#[test]
fn a_setting_that_the_table_refuses_is_explained() {
    let case = Case::named("bert").with("position_embedding_type", json!("relative_key"));
    assert_eq!(
        error(&case),
        "E003: the graph of family bert: positions that are relative to the keys have no block"
    );
}

#[test]
fn a_missing_tensor_is_reported_by_name() {
    let mut case = Case::named("llama");
    case.tensors.retain(|info| info.name != "model.layers.1.mlp.up_proj.weight");
    assert_eq!(
        error(&case),
        "E001: tensor 'layers.1.mlp.up_proj.weight': the checkpoint lacks this tensor, and the \
         model can't be computed without it"
    );
}

#[test]
fn a_family_without_a_graph_is_rejected() {
    assert_eq!(error_of_family(OWN), "E003: the family own has no [graph]");
}

#[test]
fn an_option_that_no_block_reads_is_rejected_by_name() {
    let table = format!("{OWN}[graph.options]\nsparkle = true\n");
    assert_eq!(
        error_of_family(&table),
        "E003: [graph] of family own has the option 'sparkle', which no block reads"
    );
    let table = format!("{OWN}[graph.weights]\nsparkle = \"norm\"\n");
    assert_eq!(
        error_of_family(&table),
        "E003: [graph] of family own names a weight for 'sparkle', which no block reads"
    );
}

#[test]
fn an_option_of_the_wrong_type_is_rejected_by_name() {
    let table = format!("{OWN}[graph.options]\nheads = \"'four'\"\n");
    assert_eq!(
        error_of_family(&table),
        "E001: the graph of family own: option 'heads' is \"four\", and not a size"
    );
    let table = format!("{OWN}[graph.options]\nheads = \"unheard_of\"\n");
    let message =
        "E001: the graph of family own: option 'heads' can't be computed from the configuration";
    assert_eq!(error_of_family(&table), message);
}

#[test]
fn an_unknown_kind_is_rejected_by_name() {
    let table = format!("{OWN}[graph]\nkind = \"'oracle'\"\n");
    assert_eq!(error_of_family(&table), "E003: unknown kind 'oracle' in [graph]");
}

#[test]
fn an_unsupported_opset_is_rejected_with_the_supported_range() {
    let options = GraphOptions { opset: 10, ..GraphOptions::default() };
    let error = Case::named("llama").graphs(&options).expect_err("too old").to_string();
    assert!(error.starts_with("E003: graphs are written with opset 11 to 2"), "{error}");
    assert!(error.ends_with(", not 10"), "{error}");
}

#[test]
fn absurd_sizes_are_refused_before_anything_is_built() {
    let layers = Case::named("llama").with("num_hidden_layers", json!(1_000_000_000_000_u64));
    assert!(error(&layers).contains("a graph has 4096 at most"), "{}", error(&layers));
    let heads = Case::named("llama")
        .with("num_attention_heads", json!(7))
        .with("num_key_value_heads", json!(3));
    assert!(error(&heads).contains("can't share"), "{}", error(&heads));
    let dim = Case::named("llama").with("head_dim", json!(1_u64 << 39));
    assert!(error(&dim).contains("can't share"), "{}", error(&dim));
    let experts = Case::named("mixtral").with("num_local_experts", json!(1_u64 << 33));
    assert!(error(&experts).contains("experts"), "{}", error(&experts));
}

#[test]
fn a_graph_that_names_a_missing_tensor_is_rejected() {
    let error = Families::builtin()
        .add(&format!("{OWN}[graph.weights]\nup = \"nowhere\"\n"))
        .expect_err("no tensor")
        .to_string();
    assert_eq!(error, "E001: [graph] names 'nowhere' for up, and the family has no such tensor");
}

/// Changes every entry of every configuration to absurd values.
///
/// The result must be a graph or an error, without a panic and within a short time.
#[test]
fn absurd_configurations_end_in_a_graph_or_an_error() {
    let absurd = [
        json!(0),
        json!(-1),
        json!(4_611_686_018_427_387_904_u64),
        json!(1e300),
        json!("x"),
        json!([]),
    ];
    for case in Case::all() {
        for key in case
            .config
            .keys()
            .filter(|key| !["model_type", "architectures"].contains(&key.as_str()))
        {
            // One value for each key; which one depends on both names, so that all meet all.
            let at =
                key.bytes().chain(case.name.bytes()).map(usize::from).sum::<usize>() % absurd.len();
            let case = case.clone().with(key, absurd[at].clone());
            let _ = case.try_graphs(&GraphOptions::default());
        }
    }
}

#[test]
fn rotary_positions_wider_than_a_head_are_refused() {
    let case = Case::named("phi").with("partial_rotary_factor", json!(1.5)).with(
        "rope_parameters",
        json!({ "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.5 }),
    );
    assert_eq!(error(&case), "E001: rotary positions turn 12 dimensions of heads that have 8");
}
