//! Canonical names on the way in, the source's on the way out, and `apr diff` across them.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::families::{TinyModel, names};
use crate::support::Sandbox;

#[test]
fn an_export_gives_back_the_bytes_that_were_imported() {
    for family in ["bert", "gemma", "llama", "llama_tied", "whisper"] {
        let model = TinyModel::new(family);
        let sandbox = model.sandbox().with("m/tokenizer_config.json", "{}\n");
        sandbox.apr("import m -o m.apr").clean();
        sandbox.apr("import m/model.safetensors -o file.apr").clean();
        for packed in ["m.apr", "file.apr"] {
            sandbox.apr(&format!("export {packed} -o back")).clean();
            for name in ["model.safetensors", "config.json", "README.md", "tokenizer_config.json"] {
                assert_eq!(
                    sandbox.read(&format!("back/{name}")),
                    sandbox.read(&format!("m/{name}")),
                    "{family} {name}"
                );
            }
            assert_eq!(names(&sandbox, "back"), model.names(), "{family}");
            fs::remove_dir_all(sandbox.path("back")).expect("it was written");
        }
        // As a file, it is the same weights; companions have no place there.
        for line in ["export m.apr -o back.safetensors -f", "convert m.apr -o back.safetensors -f"]
        {
            sandbox.apr(line).ok().says(&["lost: README.md, config.json"]);
            assert_eq!(sandbox.read("back.safetensors"), model.safetensors(), "{family}: {line}");
        }
    }
}

/// Configuration as transformers 5 saves it: `rope_parameters`, and no `torch_dtype`.
#[test]
fn current_families_are_detected_imported_validated_and_restored() {
    for (case, title) in [
        ("granite", "Granite"),
        ("cohere", "Cohere Command R"),
        ("cohere2", "Cohere Command R7B"),
        ("olmo2", "OLMo 2"),
        ("olmo3", "OLMo 2"),
        ("stablelm", "StableLM"),
        ("stablelm_qk", "StableLM"),
        ("smollm3", "SmolLM3"),
        ("glm4", "GLM-4"),
        ("minicpm", "MiniCPM"),
        ("falcon", "Falcon"),
        ("falcon_grouped", "Falcon"),
        ("starcoder2", "StarCoder2"),
        ("deepseek_v2", "DeepSeek V2"),
        ("deepseek_v3", "DeepSeek V3"),
        ("gpt_oss", "gpt-oss"),
        ("modernbert_mlm", "ModernBERT"),
        ("siglip", "SigLIP"),
        ("siglip_vision", "SigLIP"),
        ("llama_5", "LLaMA"),
        ("gemma3_5", "Gemma 3"),
        ("bart", "BART"),
        ("mbart", "mBART"),
        ("marian_apart", "Marian"),
        ("electra_mlm", "ELECTRA"),
        ("albert", "ALBERT"),
        ("deberta_v2_whole", "DeBERTa v2"),
        ("mpnet", "MPNet"),
        ("nomic_bert_mlm", "Nomic BERT"),
        ("opt_after", "OPT"),
        ("bloom", "BLOOM"),
        ("gptj", "GPT-J"),
        ("olmoe", "OLMoE"),
        ("exaone4", "EXAONE 4.0"),
        ("resnet", "ResNet"),
        ("resnet_basic", "ResNet"),
        ("convnext", "ConvNeXT"),
        ("dinov2_classifier", "DINOv2"),
        ("mamba", "Mamba"),
        ("swin_classifier", "Swin Transformer"),
        ("hubert_ctc", "HuBERT"),
    ] {
        let model = TinyModel::new(case);
        let sandbox = model.sandbox().with("m/chat_template.jinja", "{{ messages }}");
        sandbox
            .apr("validate m")
            .clean()
            .says(&[&format!("shapes of the {title} family\n"), "VALID"]);
        sandbox.apr("import m -o m.apr").clean().says(&[&format!("{title} family, ")]);
        sandbox.apr("validate m.apr --strict").clean().says(&["VALID"]);
        sandbox.apr("export m.apr -o back").clean();
        for name in ["model.safetensors", "config.json", "chat_template.jinja"] {
            assert_eq!(
                sandbox.read(&format!("back/{name}")),
                sandbox.read(&format!("m/{name}")),
                "{case} {name}"
            );
        }
        // One value that no healthy norm has ends the import.
        let gamma = model.names().into_iter().find(|name| {
            ["norm", "Norm", ".ln_"].iter().any(|part| name.contains(part))
                && name.ends_with("weight")
        });
        let gamma = gamma.expect("every family has a norm");
        model.clone().map(gamma, |_| 500.0).write(&sandbox, "bad");
        sandbox.apr("import bad -o bad.apr").fails(5, &[gamma, "the mean of this norm weight"]);
    }
}

/// Without a configuration, names and shapes alone: OLMo 2 has Gemma's and Cohere has LLaMA's, but
/// not all of them.
#[test]
fn names_alone_distinguish_olmo_and_cohere_from_gemma_and_llama() {
    for (case, title) in [
        ("olmo2", "OLMo 2"),
        ("cohere", "Cohere Command R"),
        ("glm4", "GLM-4"),
        ("gpt_oss", "gpt-oss"),
    ] {
        let sandbox = Sandbox::new().with("m.safetensors", TinyModel::new(case).safetensors());
        sandbox
            .apr("import m.safetensors -o m.apr")
            .ok()
            .says(&[&format!("{title} family (guessed from tensor names)")]);
    }
}

#[test]
fn an_import_of_an_import_is_the_same_model() {
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.apr("import m -o a.apr").clean();
    sandbox.apr("import a.apr -o b.apr").clean().says(&["LLaMA family, names unchanged"]);
    sandbox.apr("convert a.apr -o c.apr").clean();
    for again in ["b.apr", "c.apr"] {
        assert_eq!(names(&sandbox, again), names(&sandbox, "a.apr"));
        sandbox.apr(&format!("diff a.apr {again} --exit-code")).clean();
        sandbox.apr(&format!("export {again} -o back -f")).clean();
        assert_eq!(sandbox.read("back/model.safetensors"), sandbox.read("m/model.safetensors"));
    }
}

#[test]
fn an_import_is_its_source_under_mapped_names() {
    for (family, renamed, canonical, count) in [
        ("bert", "embeddings.LayerNorm.weight", None, 39),
        (
            "llama",
            "model.layers.0.self_attn.q_proj.weight",
            Some("layers.0.attn.q_proj.weight"),
            21,
        ),
        ("whisper", "model.encoder.layer_norm.weight", Some("encoder.layer_norm.weight"), 113),
    ] {
        let sandbox = TinyModel::new(family).sandbox();
        sandbox.apr("import m -o m.apr").clean();
        let pair =
            canonical.map_or(renamed.to_owned(), |canonical| format!("{renamed} = {canonical}"));
        for source in ["m", "m/model.safetensors"] {
            let run = sandbox.apr(&format!("diff {source} m.apr --exit-code --tensors *")).clean();
            let all = format!("SAME: {count} of {count} tensors match");
            let run =
                run.says(&["Similarity: 100%", &format!("\n{pair}: MATCH (same bytes)"), &all]);
            assert_eq!(run.text().matches(": MATCH ").count(), count, "{run}");
        }
    }
}

#[test]
fn a_drifted_layer_norm_is_reported() {
    let gamma = "model.encoder.layer_norm.weight";
    let sandbox = TinyModel::new("whisper").sandbox();
    sandbox.apr("import m -o m.apr").clean();
    TinyModel::new("whisper").map(gamma, |value| value + 10.25).write(&sandbox, "m");
    for source in ["m", "m/model.safetensors"] {
        let run = sandbox.apr(&format!("diff m.apr {source} --exit-code"));
        let said = format!("encoder.layer_norm.weight = {gamma}: DRIFT (delta = 10.25");
        let run = run.fails(5, &[&said, "!!!", "DIFFERENT: 112 of 113 tensors match"]);
        assert_eq!(run.text().matches(": DRIFT ").count(), 1, "{run}");
    }
    sandbox.apr("diff m.apr m --exit-code --tolerance 10.5").clean().says(&["SAME"]);
}

/// Offset and size of each tensor of a model in PyTorch's or the native format.
fn places(sandbox: &Sandbox, model: &str) -> Vec<(String, u64, u64)> {
    let report = sandbox.apr(&format!("tensors {model} --json")).ok().json();
    let number = |value: &Value| value.as_u64().expect("a number");
    let tensors = report["tensors"].as_array().expect("a list").iter();
    let place = |tensor: &Value| {
        (
            tensor["name"].as_str().expect("a name").to_owned(),
            number(&tensor["offset"]),
            number(&tensor["bytes"]),
        )
    };
    tensors.map(place).collect()
}

#[test]
fn tied_tensors_stay_tied_from_checkpoint_to_checkpoint() {
    let file = locate::workspace().join("crates/formats/apr-pytorch/tests/golden/tied.pt");
    let sandbox = Sandbox::new().with("m.pt", fs::read(file).expect("a fixture"));
    sandbox.apr("import m.pt -o m.apr").clean();
    sandbox.apr("export m.apr --format pytorch -o back.pt").clean();
    for model in ["m.pt", "m.apr", "back.pt"] {
        let places = places(&sandbox, model);
        let [embed, head, view] = &places[..] else { panic!("{model}: {places:?}") };
        assert_eq!(
            [&embed.0, &head.0, &view.0],
            ["embed.weight", "head.weight", "view"],
            "{model}"
        );
        assert_eq!(embed.1, head.1, "{model} stores them once");
        assert_eq!([embed.2, head.2, view.2], [24; 3], "{model}");
    }
    sandbox.apr("diff m.pt back.pt --exit-code").clean().says(&["SAME: 3 of 3 tensors match"]);
    // Where ties are not known, their bytes stand twice.
    sandbox.apr("export m.apr -o m.safetensors").ok();
    sandbox.apr("convert m.safetensors -o apart.pt").ok();
    let apart = places(&sandbox, "apart.pt");
    assert_ne!(apart[0].1, apart[1].1);
    sandbox.apr("diff m.pt apart.pt --exit-code").clean();
}

#[test]
fn a_checkpoint_of_a_known_family_gets_its_names_back() {
    let model = TinyModel::new("llama");
    let sandbox = model.sandbox();
    sandbox.apr("convert m/model.safetensors -o p/pytorch_model.bin").clean();
    fs::copy(sandbox.path("m/config.json"), sandbox.path("p/config.json")).expect("it is there");
    sandbox
        .apr("import p -o p.apr --license mit")
        .clean()
        .says(&["LLaMA family, 20 tensors renamed"]);
    assert!(names(&sandbox, "p.apr").contains(&"layers.0.attn.q_proj.weight".to_owned()));
    sandbox.apr("export p.apr --format pytorch -o back.bin").ok();
    assert_eq!(names(&sandbox, "back.bin"), model.names());
    sandbox.apr("diff back.bin m/model.safetensors --exit-code").clean();
}

#[test]
fn a_pattern_may_be_of_either_models_names() {
    let sandbox = TinyModel::new("llama").sandbox();
    sandbox.apr("import m -o m.apr").clean();
    for pattern in ["model.layers.0.self_attn*", "layers.0.attn*"] {
        for models in ["m m.apr", "m.apr m"] {
            let run = sandbox.run(&[
                "diff",
                models.split(' ').next().expect("two"),
                models.split(' ').nth(1).expect("two"),
                "--tensors",
                pattern,
            ]);
            run.ok().says(&["SAME: 4 of 4 tensors match"]);
        }
    }
}

#[test]
fn metadata_cannot_declare_a_weight_to_be_dispensable() {
    let metadata = r#"{"apr_version":"2.0.0","model_type":"x","architecture":{},
        "mel_filterbank":{"tensor":"b.weight"}}"#;
    let sandbox = Sandbox::new().with("m.apr", crate::support::sound().metadata(metadata).build());
    let before = names(&sandbox, "m.apr");
    assert!(before.contains(&"b.weight".to_owned()), "{before:?}");
    sandbox.apr("export m.apr -o m.safetensors").ok();
    assert_eq!(names(&sandbox, "m.safetensors").len(), before.len());
}
