//! Language models within models that have parts for images, too (`fixtures/families/parts`).

use apr_arch::Families;
use apr_blocks::{GraphOptions, Graphs, IMAGE_ENCODER, IMAGE_FEATURES};
use apr_core::{Code, DType, TensorInfo};
use serde_json::{Map, Value as Json};

use crate::cases::Case;

fn graphs(case: &Case) -> Graphs {
    case.graphs(&GraphOptions::default()).expect("it has a graph")
}

/// The configuration of the language model as one of its own.
fn alone(case: &Case) -> Map<String, Json> {
    let mut config = case.config["text_config"].as_object().expect("an object").clone();
    let class = match case.config["architectures"][0].as_str() {
        Some(class) if class.ends_with("Model") => "OfTextModel",
        _ => "OfTextForCausalLM",
    };
    config.insert("architectures".to_owned(), serde_json::json!([class]));
    // PaliGemma's class looks at it only where it is told which tokens are of the prompt.
    config.remove("use_bidirectional_attention");
    let is_tied = |config: &Map<String, Json>| {
        config.get("tie_word_embeddings").is_some_and(|tied| tied == true)
    };
    let tied = is_tied(&case.config) || is_tied(&config);
    config.insert("tie_word_embeddings".to_owned(), tied.into());
    config
}

/// Checks that a text is computed with the language model alone, as in transformers.
#[test]
fn the_graph_contains_only_the_language_model() {
    let cases = Case::all_in("families/parts");
    assert!(cases.len() > 10, "{} cases", cases.len());
    for case in cases {
        let whole = graphs(&case);
        let (families, metadata) = (Families::builtin(), case.metadata());
        let model = families.identify(&case.tensors, &metadata).expect("of a known family");
        let of_text = |at: &usize| model.canonical(*at).is_some();
        let tensors: Vec<TensorInfo> = (0..case.tensors.len())
            .filter(of_text)
            .map(|at| TensorInfo {
                name: model.canonical(at).expect("known").to_owned(),
                ..case.tensors[at].clone()
            })
            .collect();
        let text = Case { name: case.name.clone(), config: alone(&case), tensors };
        assert_eq!(whole.parts, graphs(&text).parts, "{}", case.name);
    }
}

#[test]
fn tensors_for_images_are_left_out_by_name() {
    for case in Case::all_in("families/parts") {
        let graphs = graphs(&case);
        assert_eq!(graphs.check_complete(), Ok(()), "{}", case.name);
        let left_out = graphs.left_out().expect("there is a part for images");
        assert!(left_out.contains("(for images, video or audio"), "{}: {left_out}", case.name);
        let is_seeing = |name: &str| name.contains("vision") || name.contains("visual");
        assert!(graphs.unused.iter().any(|tensor| is_seeing(&tensor.name)), "{}", case.name);
    }
}

#[test]
fn the_image_encoder_graph_comes_before_the_decoder_graph() {
    let options = GraphOptions { images: true, ..GraphOptions::default() };
    for name in ["llava", "gemma3_vision"] {
        let case = Case::named(&format!("parts/{name}"));
        let graphs = case.graphs(&options).expect("it has graphs");
        let names: Vec<&str> = graphs.parts.iter().map(|part| part.name).collect();
        assert_eq!(names, [IMAGE_ENCODER, "model"], "{name}");
        let body = &graphs.parts[1].graph.body;
        let mut inputs = body.inputs.iter().map(|id| body.value(*id).name.as_str());
        assert!(inputs.any(|input| input == IMAGE_FEATURES), "{name}");
        assert_eq!(graphs.check_complete(), Ok(()), "{name}");
        let is_used = |part: &str| !graphs.unused.iter().any(|tensor| tensor.name.contains(part));
        assert!(is_used("projector") && is_used("patch_embed"), "{name}");
        assert!(is_used("merger") && is_used("patch_conv"), "{name}");
    }
}

#[test]
fn an_unknown_image_tensor_makes_the_image_graph_incomplete() {
    let mut case = Case::named("parts/llava");
    let name = "vision_tower.encoder.layers.0.self_attn.sinks";
    case.tensors.push(TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: [4].into() });
    let options = GraphOptions { images: true, ..GraphOptions::default() };
    let error = case.graphs(&options).expect("graphs").check_complete().expect_err("no sinks");
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some(name)));
}

#[test]
fn images_are_rejected_if_the_image_encoder_is_missing_or_unknown() {
    let options = GraphOptions { images: true, ..GraphOptions::default() };
    {
        let name = "llama";
        let error = Case::named(name).graphs(&options).expect_err(name);
        assert_eq!(error.code(), Code::Version, "{name}");
        assert!(error.message().contains("no part for images"), "{name}: {error}");
    }
    let tower = serde_json::json!({ "model_type": "dinov2" });
    let error = Case::named("parts/llava").with("vision_config", tower).graphs(&options);
    assert!(error.expect_err("another tower").message().contains("its tower is not CLIP's"));
    for name in ["parts/llava_siglip", "parts/llava_pixtral"] {
        let strategy = "default".into();
        let case = Case::named(name).with("vision_feature_select_strategy", strategy);
        let error = case.graphs(&options).expect_err(name);
        assert!(error.message().contains("the first patch is left out"), "{name}: {error}");
    }
}

#[test]
fn a_tensor_that_is_of_no_known_part_makes_the_graph_incomplete() {
    let mut case = Case::named("parts/llava");
    let name = "language_model.model.layers.0.self_attn.sinks";
    case.tensors.push(TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: [4].into() });
    let error = graphs(&case).check_complete().expect_err("LLaMA has no sinks");
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some(name)));
}

/// Before transformers 4.52, its entries were beside `vision_config`.
#[test]
fn a_flat_configuration_of_qwen2_vl_leads_to_the_same_graph() {
    let case = Case::named("parts/qwen2_vl");
    let mut flat = case.clone();
    let text = flat.config.remove("text_config").expect("there is one");
    for (key, value) in text.as_object().expect("an object") {
        flat.config.entry(key.clone()).or_insert(value.clone());
    }
    flat.config.insert("model_type".to_owned(), "qwen2_vl".into());
    let mrope = serde_json::json!({ "type": "mrope", "mrope_section": [2, 1, 1] });
    flat.config.remove("rope_parameters");
    flat.config.insert("rope_scaling".to_owned(), mrope);
    flat.config.insert("rope_theta".to_owned(), 1_000_000.0.into());
    assert_eq!(graphs(&case).parts, graphs(&flat).parts);
    assert_eq!(graphs(&flat).check_complete(), Ok(()));
}

#[test]
fn a_language_model_of_an_unknown_family_is_rejected_by_name() {
    let mut case = Case::named("parts/llava");
    case.config["text_config"]["model_type"] = "mine".into();
    let families = Families::builtin();
    assert!(families.identify(&case.tensors, &case.metadata()).is_none());
    assert_eq!(families.stranger(&case.metadata()), Some("mine"));
}
