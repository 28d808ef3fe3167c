//! The tables against models that another library built: every name, every shape
//! (`fixtures/families`).

use std::path::PathBuf;

use apr_arch::{Families, HUGGING_FACE, Mismatch, TensorKind, TensorNameMapper};
use apr_core::{DType, Metadata, TensorInfo};
use apr_testkit::locate::fixture;
use serde_json::Value;

struct Case {
    name: String,
    family: String,
    tensors: Vec<TensorInfo>,
    metadata: Metadata,
}

fn cases() -> Vec<Case> {
    cases_in("families")
}

fn cases_in(folder: &str) -> Vec<Case> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(fixture(folder))
        .expect("the fixtures are there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    assert!(paths.len() > 10, "{} cases", paths.len());
    paths.iter().map(|path| case(path)).collect()
}

fn case(path: &std::path::Path) -> Case {
    let json: Value =
        serde_json::from_slice(&std::fs::read(path).expect("it can be read")).expect("it is JSON");
    let mut config = json["config"].as_object().expect("a configuration").clone();
    let model_type = config.remove("model_type").expect("a model type");
    let mut metadata = Metadata::new();
    metadata.set("model_type", model_type);
    metadata.set("architecture", config);
    let shape = |shape: &Value| {
        shape.as_array().expect("a shape").iter().filter_map(Value::as_u64).collect::<Vec<_>>()
    };
    let tensors = json["tensors"].as_object().expect("tensors").iter().map(|(name, dims)| {
        TensorInfo { name: name.clone(), dtype: DType::F32, shape: shape(dims).into() }
    });
    Case {
        name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
        family: json["family"].as_str().expect("a family").to_owned(),
        tensors: tensors.collect(),
        metadata,
    }
}

#[test]
fn every_family_file_loads() {
    let families = Families::builtin();
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/families"));
    let paths = files.expect("a folder").map(|entry| entry.expect("an entry").path());
    let tables = paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert_eq!(families.iter().count(), tables.count());
}

#[test]
fn every_tensor_is_known_and_has_the_expected_shape() {
    let families = Families::builtin();
    for Case { name, family, tensors, metadata } in cases() {
        let model = families
            .identify(&tensors, &metadata)
            .unwrap_or_else(|| panic!("{name} is not identified"));
        assert_eq!(model.family().name(), family, "{name}");
        assert_eq!(model.mismatches(&tensors), [], "{name}");
        assert_eq!(model.known(), tensors.len(), "{name}");
        let unchecked: Vec<_> = (0..tensors.len())
            .filter(|&at| model.expected_shape(at).is_none())
            .map(|at| &tensors[at].name)
            .collect();
        assert!(unchecked.is_empty(), "{name}: no shape is expected of {unchecked:?}");
    }
}

/// Checks that the family matches all tensors of the language model and none of the other parts.
#[test]
fn the_language_model_within_a_model_that_sees_is_known() {
    let families = Families::builtin();
    for Case { name, family, tensors, metadata } in cases_in("families/parts") {
        let model = families
            .identify(&tensors, &metadata)
            .unwrap_or_else(|| panic!("{name} is not identified"));
        assert_eq!(model.family().name(), family, "{name}");
        for mismatch in model.mismatches(&tensors) {
            let is_other = matches!(&mismatch, Mismatch::Unexpected { extra: true, .. });
            assert!(is_other && model.is_of_other_part(mismatch.name()), "{name}: {mismatch:?}");
        }
        for (at, info) in tensors.iter().enumerate() {
            let is_known = model.canonical(at).is_some();
            assert!(is_known != model.is_of_other_part(&info.name), "{name}: {}", info.name);
            assert!(!is_known || model.expected_shape(at).is_some(), "{name}: {}", info.name);
        }
    }
}

#[test]
fn parts_for_images_that_have_a_table_are_known() {
    const DESCRIBED: [&str; 16] = [
        "gemma3_vision",
        "gemma4_standard",
        "gemma4_vision",
        "idefics3",
        "internvl",
        "llava",
        "llava_mistral",
        "llava_model",
        "llava_pixtral",
        "llava_siglip",
        "mistral3",
        "paligemma",
        "qwen2_5_vl",
        "qwen2_vl",
        "qwen3_vl",
        "smolvlm",
    ];
    let families = Families::builtin();
    for Case { name, mut tensors, metadata, .. } in cases_in("families/parts") {
        let model = families.identify(&tensors, &metadata).expect("identified");
        assert_eq!(model.vision().is_some(), DESCRIBED.contains(&name.as_str()), "{name}");
        let Some(vision) = model.vision() else { continue };
        assert_eq!(model.mismatches(&tensors), [], "{name}");
        for (at, info) in tensors.iter().enumerate() {
            let is_known = vision.canonical(at).is_some();
            assert_eq!(is_known, model.is_of_other_part(&info.name), "{name}: {}", info.name);
            assert!(!is_known || vision.expected_shape(at).is_some(), "{name}: {}", info.name);
        }

        let patches = |info: &&mut TensorInfo| {
            let is_patch = info.name.contains("patch_embed") || info.name.contains("patch_conv");
            is_patch && info.name.ends_with(".weight") && info.shape.dims().len() > 1
        };
        let changed = tensors.iter_mut().find(patches).expect("there is a tower");
        changed.shape = [7].into();
        let model = families.identify(&tensors, &metadata).expect("identified");
        let mismatches = model.mismatches(&tensors);
        assert!(matches!(mismatches[..], [Mismatch::Shape { .. }]), "{name}: {mismatches:?}");
    }
}

/// Before transformers 5, modules of towers were in `vision_model`.
#[test]
fn older_names_of_parts_for_images_are_known() {
    let families = Families::builtin();
    for Case { name, mut tensors, metadata, .. } in cases_in("families/parts") {
        if !["gemma3_vision", "llava"].contains(&name.as_str()) {
            continue;
        }
        for info in &mut tensors {
            info.name = info.name.replace("vision_tower.", "vision_tower.vision_model.");
        }
        let model = families.identify(&tensors, &metadata).expect("identified");
        assert!(model.vision().is_some(), "{name}");
        assert_eq!(model.mismatches(&tensors), [], "{name}");
    }
}

/// Checks names as transformers has them in memory, which torch saves in a state dict or exports.
///
/// The names are from `fixtures/families/in_memory.py`.
#[test]
fn names_in_memory_match_like_names_of_checkpoints() {
    let bytes = std::fs::read(fixture("families/memory/names.json")).expect("it can be read");
    let names: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    let families = Families::builtin();
    for (family, pairs) in names.as_object().expect("families") {
        let family = families.find(family).expect("it is built in");
        for (memory, saved) in pairs.as_object().expect("names") {
            let known = family.map_name(saved.as_str().expect("a name"));
            assert!(known.is_some() && family.map_name(memory) == known, "{memory} {known:?}");
        }
    }
}

#[test]
fn canonical_names_lead_back_to_the_source() {
    let families = Families::builtin();
    for Case { name, tensors, metadata, .. } in cases() {
        let model = families.identify(&tensors, &metadata).expect("identified");
        // A side of a model of two, saved alone by transformers 5, and its ViT-MSN, whose layers
        // lack the prefix.
        let is_bare =
            ["siglip_text", "siglip_vision", "clip_text_5", "clip_vision_5", "vit_msn_classifier"]
                .contains(&name.as_str());
        assert_eq!(
            model.naming().convention == HUGGING_FACE,
            !is_bare,
            "{name}: {:?}",
            model.naming()
        );
        for (position, info) in tensors.iter().enumerate() {
            let canonical = model.canonical(position).expect("known");
            assert!(!canonical.starts_with("model."), "{name}: {canonical}");
            let back = model.family().source_name(canonical, model.naming());
            assert_eq!(back.as_deref(), Some(info.name.as_str()), "{name}");
            assert!(
                model.family().role(canonical).is_some_and(|role| !role.contains('{')),
                "{name}: {canonical}"
            );
        }
    }
}

#[test]
fn canonical_checkpoints_are_known_by_their_canonical_names() {
    let families = Families::builtin();
    for Case { name, tensors, metadata, .. } in cases() {
        let model = families.identify(&tensors, &metadata).expect("identified");
        let canonical: Vec<TensorInfo> = tensors
            .iter()
            .enumerate()
            .map(|(at, info)| TensorInfo {
                name: model.canonical(at).expect("known").to_owned(),
                ..info.clone()
            })
            .collect();
        let again = families.identify(&canonical, &metadata).expect("identified");
        assert_eq!(again.mismatches(&canonical), [], "{name}");
        assert!(
            (0..canonical.len()).all(|at| again.canonical(at) == Some(canonical[at].name.as_str())),
            "{name}"
        );
    }
}

/// Checks that dimensions derived from the tensors, without a configuration, cause no mismatches.
#[test]
fn names_alone_cry_no_wolf() {
    let families = Families::builtin();
    let nothing = Metadata::new();
    let mut found = 0;
    for Case { name, tensors, .. } in cases() {
        let Some(model) = families.identify(&tensors, &nothing) else { continue };
        found += 1;
        assert_eq!(model.mismatches(&tensors), [], "{name} as {}", model.family().name());
    }
    assert!(found > 20, "{found} were found by their names");
}

#[test]
fn a_broken_checkpoint_is_not_passed() {
    let families = Families::builtin();
    for Case { name, tensors, metadata, .. } in cases() {
        let mut missed = Vec::new();
        for at in 0..tensors.len() {
            let mut broken = tensors.clone();
            let mut dims = broken[at].shape.dims().to_vec();
            let Some(first) = dims.first_mut() else { continue };
            *first += 1;
            broken[at].shape = dims.into();
            let model = families.identify(&broken, &metadata).expect("identified");
            let told = model.mismatches(&broken);
            // The configuration does not state the number of classes, and a head without a bias has
            // nothing to contradict.
            if model.expected_shape(at).is_some_and(|(_, formula)| formula.starts_with("[label")) {
                continue;
            }
            if !told.iter().any(|mismatch| matches!(mismatch, Mismatch::Shape { .. })) {
                missed.push(&tensors[at].name);
            }
        }
        assert!(missed.is_empty(), "{name}: a longer {missed:?} is not noticed");
    }
}

/// Checks initializations of `torch.nn.init` and of the models' own code, which do not depend on
/// the tables.
#[test]
fn initial_deviations_are_healthy_and_absurd_ones_are_not() {
    let families = Families::builtin();
    for Case { name, tensors, metadata, .. } in cases() {
        let model = families.identify(&tensors, &metadata).expect("identified");
        for (at, info) in tensors.iter().enumerate() {
            let expected = model.expectation(at).expect("known");
            // The length of a weight norm's direction means nothing.
            let is_free = ["weight_v", "original1"].iter().any(|end| info.name.ends_with(end));
            if is_free
                || !matches!(
                    expected.kind,
                    TensorKind::Linear | TensorKind::Head | TensorKind::Conv
                )
            {
                continue;
            }
            let std = expected.std.expect("a range");
            let dims = info.shape.dims();
            let inputs = dims[1..].iter().product::<u64>() as f64;
            let (kaiming, xavier) =
                ((1.0 / (3.0 * inputs)).sqrt(), (2.0 / (inputs + dims[0] as f64)).sqrt());
            // GPT-2 shrinks its outputs by the layers' root; 126 is as many as there are.
            for law in [0.02, 0.02 / 252_f64.sqrt(), kaiming, xavier, 1.0 / inputs.sqrt()] {
                assert!(std.contains(law), "{name}: {} of {law} in {std}", info.name);
            }
            for absurd in [0.02 * 1e-6, 100.0, 0.0] {
                assert!(!std.contains(absurd), "{name}: {} of {absurd} in {std}", info.name);
            }
        }
    }
}
