use apr_blocks::{GraphOptions, Graphs};
use apr_core::{Code, DType, TensorInfo};
use serde_json::json;

use crate::cases::Case;

/// Adds a tensor to a case.
fn with_tensor(mut case: Case, name: &str, dims: &[u64]) -> Case {
    let info = TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: dims.to_vec().into() };
    case.tensors.push(info);
    case
}

fn graphs(case: &Case) -> Graphs {
    case.graphs(&GraphOptions::default()).expect("it has a graph")
}

/// Checks that every tensor that transformers saves is used by the model's own class or known to be
/// unused.
#[test]
fn the_graph_of_every_saved_model_is_complete() {
    for case in Case::all() {
        let Some(Ok(graphs)) = case.try_graphs(&GraphOptions::default()) else { continue };
        assert_eq!(graphs.check_complete(), Ok(()), "{}", case.name);
    }
}

#[test]
fn tensors_that_are_used_in_training_alone_are_left_out_by_name() {
    assert_eq!(graphs(&Case::named("llama")).left_out(), None);
    assert_eq!(
        graphs(&Case::named("wav2vec2")).left_out().as_deref(),
        Some("tensors without a part in the outputs: masked_spec_embed (used in training alone)")
    );
}

/// `CLIPForImageClassification` of transformers saves the vision side of a whole model with its
/// classifier, and classifies the mean of the patches, before the last norm.
#[test]
fn a_clip_classifier_does_not_use_the_norm_of_the_pooled_vector() {
    let mut case = Case::named("clip").with("architectures", json!(["CLIPForImageClassification"]));
    case.tensors.retain(|tensor| tensor.name.starts_with("vision_model."));
    case = case.with("id2label", json!({ "0": "LABEL_0", "1": "LABEL_1" }));
    case = with_tensor(case, "classifier.weight", &[2, 32]);
    let graphs = graphs(&with_tensor(case, "classifier.bias", &[2]));
    assert_eq!(graphs.check_complete(), Ok(()));
    let names: Vec<&str> = graphs.unused.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["vision_model.post_layernorm.bias", "vision_model.post_layernorm.weight"]);
}

#[test]
fn a_tensor_that_no_block_reads_makes_a_graph_incomplete() {
    let bias = "model.layers.1.self_attn.q_norm.bias";
    let error = graphs(&with_tensor(Case::named("llama"), bias, &[8])).check_complete();
    let error = error.expect_err("a norm that LLaMA does not have");
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some(bias)));
    assert!(error.message().contains("1 tensor"), "{error}");
}

#[test]
fn a_layer_beyond_the_configuration_makes_a_graph_incomplete() {
    let case = Case::named("llama").with("num_hidden_layers", 1.into());
    assert!(graphs(&case).check_complete().is_err());
}

/// Checks a custom task with a head that no family has.
///
/// The graph does not compute the head's output, so it counts as incomplete until a task is chosen.
#[test]
fn an_unknown_head_is_left_out_where_the_task_was_chosen() {
    let case = with_tensor(Case::named("bert"), "regressor.weight", &[1, 32]);
    assert!(graphs(&case).check_complete().is_err());
    let options = GraphOptions { task: Some(String::new()), ..GraphOptions::default() };
    let chosen = case.graphs(&options).expect("it has a graph");
    assert_eq!(chosen.check_complete(), Ok(()));
    assert!(chosen.left_out().is_some_and(|left_out| left_out.contains("regressor.weight")));
}

/// transformers adds them to three of the projections of each layer, and to no other.
#[test]
fn biases_of_latent_attention_are_part_of_the_graph() {
    for name in ["deepseek_v2", "deepseek_v3"] {
        let mut case = Case::named(name).with("attention_bias", true.into());
        let rows = |info: &TensorInfo| info.shape.dims()[..1].to_vec();
        let biases: Vec<(String, Vec<u64>)> = case
            .tensors
            .iter()
            .filter_map(|info| {
                let module = info.name.strip_suffix(".weight")?;
                let projections = ["q_a_proj", "kv_a_proj_with_mqa", "o_proj"];
                let is_biased = projections.iter().any(|name| module.ends_with(name));
                is_biased.then(|| (format!("{module}.bias"), rows(info)))
            })
            .collect();
        assert!(!biases.is_empty());
        for (bias, dims) in &biases {
            case = with_tensor(case, bias, dims);
        }
        let graphs = graphs(&case);
        assert_eq!((graphs.check_complete(), graphs.left_out()), (Ok(()), None), "{name}");
    }
}

#[test]
fn layers_that_predict_further_tokens_may_be_left_out() {
    let mut case = Case::named("deepseek_v3").with("num_nextn_predict_layers", 1.into());
    let layers = case.config["num_hidden_layers"].as_u64().expect("a number");
    let last = format!("model.layers.{}.", layers - 1);
    let beyond: Vec<(String, Vec<u64>)> = case
        .tensors
        .iter()
        .filter_map(|info| {
            let rest = info.name.strip_prefix(&last)?;
            Some((format!("model.layers.{layers}.{rest}"), info.shape.dims().to_vec()))
        })
        .collect();
    for (name, dims) in &beyond {
        case = with_tensor(case, name, dims);
    }
    let graphs = graphs(&case);
    assert_eq!(graphs.check_complete(), Ok(()));
    let left_out = graphs.left_out().expect("they are named");
    assert!(left_out.contains("(layers that predict further tokens)"), "{left_out}");
}
