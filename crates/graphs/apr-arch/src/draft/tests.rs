use std::path::PathBuf;

use serde_json::{Value as Json, json};

use super::*;
use crate::file::FamilyFile;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../../fixtures/families"].iter().collect()
}

fn tensors(shapes: &Json) -> Vec<TensorInfo> {
    let shapes = shapes.as_object().unwrap().iter();
    shapes
        .map(|(name, shape)| TensorInfo {
            name: name.clone(),
            dtype: DType::F32,
            shape: serde_json::from_value::<Vec<u64>>(shape.clone()).unwrap().into(),
        })
        .collect()
}

fn metadata(config: &Json) -> Metadata {
    let metadata = json!({ "model_type": config["model_type"], "architecture": config });
    Metadata::from(metadata.as_object().cloned().unwrap())
}

/// Returns the draft for a checkpoint on top of its nearest family, without the family of the type
/// `but`.
fn draft(tensors: &[TensorInfo], metadata: &Metadata, but: Option<&str>) -> Option<String> {
    let families = Families::builtin();
    let but = but.and_then(|but| families.find(but)).map(Family::name);
    let nearest = families.nearest_of(tensors, metadata, |family| but != Some(family.name()));
    families.draft(tensors, metadata, nearest.as_ref().map(|nearest| nearest.family.as_str()))
}

/// Every model of a known family is drafted as if its family were unknown. Names and shapes are
/// those that transformers saves.
#[test]
fn a_drafted_table_describes_the_tensors_of_its_checkpoint() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    let mut drafted = 0;
    for name in names {
        let text = std::fs::read_to_string(folder().join(&name)).unwrap();
        let case: Json = serde_json::from_str(&text).unwrap();
        let (tensors, mut config) = (tensors(&case["tensors"]), case["config"].clone());
        let Some(kind) = config["model_type"].as_str().map(str::to_owned) else { continue };
        if config.get("text_config").is_some() {
            continue;
        }
        config["model_type"] = json!(format!("new_{kind}"));
        config["architectures"] = json!(["NewForCausalLM"]);
        let metadata = metadata(&config);
        let draft = draft(&tensors, &metadata, Some(&kind)).expect("there is a configuration");

        let mut families = Families::builtin();
        if let Err(error) = families.add(&draft) {
            panic!("{name}: {error}\n{draft}");
        }
        let model = families.identify(&tensors, &metadata).expect("the draft names the type");
        assert_eq!(model.family().name(), format!("new_{}", kind.replace('-', "_")));
        assert!(model.graph_settings(None).is_none(), "{name} has the graph of another family");
        assert!(!model.family().is_in_gguf(), "{name} is written as another family");
        let wrong: Vec<String> = model
            .mismatches(&tensors)
            .into_iter()
            .filter(|it| !matches!(it, Mismatch::Beyond { .. }))
            .map(|it| format!("{} {it}", it.name()))
            .collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}\n{draft}");
        drafted += 1;
    }
    assert!(drafted > 150, "{drafted}");
}

/// Layers 1 and 2 of three have experts, and every other layer has a window.
#[test]
fn conditions_name_the_entries_that_say_in_which_layers_a_tensor_is() {
    let mut shapes = json!({ "model.embed_tokens.weight": [96, 24], "model.norm.weight": [24] });
    for layer in 0..4 {
        let mut add = |name: &str, shape: &[u64]| {
            shapes[format!("model.layers.{layer}.{name}")] = json!(shape);
        };
        add("input_layernorm.weight", &[24]);
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            add(&format!("self_attn.{name}.weight"), &[24, 24]);
        }
        if layer % 2 == 1 {
            add("self_attn.sink_gate.weight", &[40, 24]);
        }
        if layer >= 1 {
            add("mlp.router.weight", &[6, 24]);
            for expert in 0..6 {
                add(&format!("mlp.units.{expert}.up.weight"), &[20, 24]);
            }
        }
    }
    let config = json!({
        "model_type": "odd", "hidden_size": 24, "vocab_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 3, "num_routed_units": 6, "first_dense_layers": 1,
        "unit_size": 20, "gate_heads": 5, "layer_kinds": ["full", "wide", "full", "wide"],
    });
    let draft = draft(&tensors(&shapes), &metadata(&config), None).unwrap();
    for line in [
        "name = \"layers.{layer}.self_attn.sink_gate.weight\"",
        "required = \"layer_kinds[layer] == 'wide'\"",
        "name = \"layers.{layer}.mlp.units.{unit}.up.weight\"",
        "required = \"layer >= first_dense_layers\"",
        "unit = \"num_routed_units\"",
        "shape = [\"unit_size\", \"hidden\"]",
        "experts = [\"num_local_experts\", \"num_experts\", \"num_routed_units\"]",
        "#   gate_heads = 5",
    ] {
        assert!(draft.lines().any(|it| it == line), "{line}\n{draft}");
    }
}

#[test]
fn names_of_a_file_stay_text_in_its_draft() {
    let long = "x.".repeat(400) + "weight";
    let names = [
        "a\"]\n[graph]\nkind = \"decoder\".weight",
        "b\\.\u{202e}\u{1b}[2J.weight",
        "{layer}.~.weight",
        "layers.18446744073709551615.w",
        "layers.0.layers.0.w",
        "layers.1.layers.1.w",
        ".",
        "",
        "0",
        &long,
    ];
    let named =
        |name: &str| TensorInfo { name: name.to_owned(), dtype: DType::F32, shape: [3, 5].into() };
    let mut tensors: Vec<TensorInfo> = names.into_iter().map(named).collect();
    tensors.extend((0..2000).map(|number| named(&format!("part{number}.weight"))));
    let mut config = json!({
        "model_type": "new\"\n[graph]", "key\n[graph]": 1, "hidden_size": 3,
        "text": "\u{7}\n[graph]\n", "num_layers": u64::MAX, "list": [[["[graph]"]]],
        "long": vec![0; 50_000],
    });
    for number in 0..5000 {
        config[format!("size_{number}")] = json!(number + 100);
    }
    let draft = draft(&tensors, &metadata(&config), None).unwrap();
    let file = FamilyFile::parse(&draft).unwrap_or_else(|error| panic!("{error}\n{draft}"));
    assert!(file.graph.is_none() && file.extends.is_none());
    assert_eq!(file.model_types, ["new\"\n[graph]"]);
    assert_eq!(file.tensors.len(), MAX_ENTRIES);
    assert_eq!(file.tensors[0].name, names[0]);
    assert!(draft.chars().all(|c| c == '\n' || (' '..='~').contains(&c)));
    assert!(draft.lines().all(|line| !line.starts_with("[graph")));
    assert!(draft.contains("1808 more entries are left out"), "{draft}");
}

#[test]
fn tensors_of_parts_for_images_are_counted() {
    let tensors = tensors(&json!({
        "model.vision_tower.patch.weight": [8, 8], "model.language_model.a.weight": [8, 8],
    }));
    let config = json!({
        "model_type": "odd_vl", "vision_config": {},
        "text_config": { "model_type": "odd", "hidden_size": 8 },
    });
    let draft = draft(&tensors, &metadata(&config), None).unwrap();
    assert!(draft.contains("# 1 tensor of parts for images or sound"), "{draft}");
    assert!(draft.contains("language_model.a") && !draft.contains("vision_tower"), "{draft}");
    assert!(draft.contains("model_types = [\"odd\"]"), "{draft}");
}

#[test]
fn a_draft_is_found_by_the_class_of_a_configuration_without_a_type() {
    let tensors = tensors(&json!({ "net.a.weight": [8, 8], "net.b.weight": [8] }));
    let config = json!({ "architectures": ["OddNetForCausalLM"], "width": 8 });
    let metadata = json!({ "architecture": config });
    let metadata = Metadata::from(metadata.as_object().cloned().unwrap());
    let draft = draft(&tensors, &metadata, None).unwrap();
    let mut families = Families::builtin();
    families.add(&draft).unwrap();
    let model = families.identify(&tensors, &metadata).expect("its class is named");
    assert_eq!((model.family().title(), model.known()), ("OddNet", 2));
}

#[test]
fn a_file_without_metadata_and_known_names_has_no_draft() {
    let tensors = tensors(&json!({ "a.weight": [2, 3], "b.weight": [3] }));
    assert_eq!(draft(&tensors, &Metadata::default(), None), None);
}
