//! Adapters (LoRA): what they are, what is wrong with them, and that nobody takes them for a model.

use crate::support::{Sandbox, Tensor, f32s, safetensors};

const CONFIG: &str = r#"{"peft_type": "LORA", "base_model_name_or_path": "org/base", "r": 2,
    "lora_alpha": 4, "target_modules": ["q_proj"]}"#;

const FIRST: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
const SECOND: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

/// Returns an adapter before training: its second half is zero.
fn adapter() -> Sandbox {
    let (first, zeros) = (f32s(&[0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8]), f32s(&[0.0; 8]));
    let tensors: [Tensor<'_>; 2] =
        [(FIRST, "F32", &[2, 4], first), (SECOND, "F32", &[4, 2], zeros)];
    Sandbox::new()
        .with("a/adapter_model.safetensors", safetensors(&tensors))
        .with("a/adapter_config.json", CONFIG)
}

const TOLD: &str = "LoRA adapter for org/base: rank 2, alpha 4, on q_proj";

#[test]
fn an_adapter_is_told_by_its_folder_its_file_and_what_is_made_of_it() {
    let sandbox = adapter();
    sandbox.apr("import a -o a/m.apr").ok().says(&[
        TOLD,
        "names unchanged",
        "2 tensors without NaN",
    ]);
    for model in ["a", "a/adapter_model.safetensors", "a/m.apr"] {
        sandbox.apr(&format!("inspect {model}")).ok().says(&["adapter\n", TOLD]);
        sandbox
            .apr(&format!("explain {model}"))
            .ok()
            .says(&[TOLD, "It contains low-rank updates for the weights of a base model, and"]);
        let report = sandbox.apr(&format!("inspect {model} --json")).ok().json();
        let adapter = &report["adapter"];
        assert_eq!(
            (&adapter["ranks"][0], &adapter["alpha"], &adapter["pairs"]),
            (&2.into(), &4.0.into(), &1.into())
        );
        let lint = sandbox.apr(&format!("lint {model}")).ok();
        assert!(!lint.to_string().contains("family"), "{lint}");
    }
    for model in ["a", "a/m.apr"] {
        let run = sandbox
            .apr(&format!("validate {model}"))
            .clean()
            .says(&["1 pair of a LoRA adapter", "\nVALID"]);
        assert!(!run.to_string().contains("zero"), "{run}");
    }
    sandbox
        .apr("convert a -o a.gguf")
        .fails(4, &["E001", "adapters can't be exported to GGUF", "apr lora convert"]);
}

#[test]
fn an_adapter_whose_halves_do_not_fit_is_not_valid() {
    let sandbox = adapter().with("a/adapter_config.json", CONFIG.replace("\"r\": 2", "\"r\": 8"));
    sandbox.apr("validate a").fails(5, &[FIRST, "rank 2, but the configuration states 8"]);
    let first = f32s(&[0.5; 8]);
    sandbox.write("a/adapter_model.safetensors", safetensors(&[(FIRST, "F32", &[2, 4], first)]));
    sandbox.apr("validate a").fails(5, &["the other matrix of the pair is missing"]);
}

#[test]
fn the_configuration_of_the_base_model_does_not_make_an_adapter_one() {
    let sandbox = adapter().with("a/config.json", r#"{"model_type": "llama", "hidden_size": 4}"#);
    sandbox.apr("validate a").ok().says(&["1 pair of a LoRA adapter"]);
    sandbox.apr("import a -o m.apr").ok().says(&[TOLD]);
}

#[test]
fn an_adapter_with_an_incomplete_configuration_gets_lint_warnings() {
    let sandbox = adapter().with("a/adapter_config.json", r#"{"peft_type": "LORA", "r": 2}"#);
    sandbox.apr("lint a").ok().says(&[
        "missing base model of the adapter (base_model_name_or_path in \
                 adapter_config.json)",
        "missing alpha of the adapter (lora_alpha)",
    ]);
    sandbox.apr("inspect a").ok().says(&["LoRA adapter: rank 2, on q_proj"]);
}

/// PEFT 0.21 gives each of four experts the rank 2, in matrices of rank 8.
#[test]
fn an_adapter_of_stacked_experts_is_valid() {
    let sandbox = Sandbox::new();
    let folder = apr_testkit::locate::fixture("lora/experts");
    for model in [folder.clone(), folder.join("adapter_model.safetensors")] {
        sandbox.run(&["validate", &model.display().to_string(), "--strict"]).ok().says(&["VALID"]);
    }
}
