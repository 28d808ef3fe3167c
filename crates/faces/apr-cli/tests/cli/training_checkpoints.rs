//! Checkpoints of training scripts (`fixtures/torch/wrapped.py`): which of their tensors a
//! conversion writes, and what `--prefix` selects.

use apr_testkit::locate::fixture;
use apr_view::View;
use serde_json::Value;

use crate::support::{Sandbox, f32s, tensors};

fn sandbox(names: &[&str]) -> Sandbox {
    let files = names.iter().map(|name| (name, std::fs::read(fixture("torch").join(name))));
    files.fold(Sandbox::new(), |sandbox, (name, file)| sandbox.with(name, file.expect("there")))
}

/// Names of the tensors of a safetensors file.
fn names(sandbox: &Sandbox, file: &str) -> Vec<String> {
    tensors(&sandbox.read(file)).into_keys().collect()
}

#[test]
fn a_conversion_writes_exactly_the_weights_of_both_containers() {
    let expected = std::fs::read(fixture("torch/wrapped.json")).expect("the fixture");
    let expected: Value = serde_json::from_slice(&expected).expect("JSON");
    for name in ["wrapped.pt", "wrapped_legacy.pt", "two_sets.pt", "parts.pt"] {
        let sandbox = sandbox(&[name]);
        sandbox.apr(&format!("convert {name} -o out.safetensors")).ok();
        let written = tensors(&sandbox.read("out.safetensors"));
        let expected = expected[name].as_object().expect("an object");
        assert_eq!(written.len(), expected.len(), "{name}");
        for (tensor, (dtype, _, bytes)) in written {
            let values: Vec<f32> =
                serde_json::from_value(expected[&tensor].clone()).expect("numbers");
            assert_eq!((dtype, bytes), ("F32".into(), f32s(&values)), "{name}: {tensor}");
        }
    }
}

#[test]
fn values_that_are_not_written_are_listed_and_plain_values_become_metadata() {
    let sandbox = sandbox(&["wrapped.pt", "two_sets.pt"]);
    let said = "optimizer_state_dict (6 tensors)";
    sandbox.apr("convert wrapped.pt -o w.apr").ok().says(&["not copied: ", said]);
    let run = sandbox.apr("inspect wrapped.pt").ok();
    run.says(&["training checkpoint", "pytorch.epoch", &format!("not read: {said}")]);
    sandbox.apr("inspect w.apr").ok().says(&["pytorch.epoch"]);
    let ambiguous = "weights under 'state_dict' and 'model': only 'state_dict' is read";
    for line in ["inspect two_sets.pt", "validate two_sets.pt", "convert two_sets.pt -o t.apr"] {
        sandbox.apr(line).ok().says(&[ambiguous]);
    }
}

#[test]
fn a_prefix_reads_other_entries_in_one_process_and_in_parts() {
    let sandbox = sandbox(&["wrapped.pt", "two_sets.pt"]);
    let weights = ["fc.bias", "fc.weight"];
    for (line, expected) in [
        ("wrapped.pt --prefix model_state_dict.", &weights[..]),
        ("wrapped.pt --prefix model_state_dict.fc.", &["bias", "weight"]),
        ("wrapped.pt --prefix optimizer_state_dict.state.0.", &["exp_avg", "exp_avg_sq", "step"]),
        ("two_sets.pt --prefix model.", &weights),
        ("two_sets.pt --prefix ema.", &weights),
    ] {
        sandbox.apr(&format!("convert {line} -o out.safetensors -f")).ok();
        assert_eq!(names(&sandbox, "out.safetensors"), expected, "{line}");
    }
    sandbox.run(&["convert", "wrapped.pt", "-o", "all.safetensors", "--prefix", ""]).ok();
    assert_eq!(names(&sandbox, "all.safetensors").len(), 8);

    sandbox.apr("convert two_sets.pt -o one.apr --prefix model.").ok();
    sandbox.apr("plan --parts 2 -o p.json convert two_sets.pt -o cut.apr --prefix model.").ok();
    let plan: Value = serde_json::from_slice(&sandbox.read("p.json")).expect("JSON");
    for part in 0..plan["parts"].as_array().expect("a list").len() {
        sandbox.apr(&format!("run-part p.json {part}")).ok();
    }
    sandbox.apr("finish p.json").ok();
    sandbox.apr("diff one.apr cut.apr --exit-code").ok();
}

#[test]
fn a_prefix_with_the_removed_key_of_the_weights_selects_them() {
    let file = std::fs::read(fixture("torch/wrapped.pt")).expect("the fixture");
    let limits = apr_registry::Limits::default();
    let model = apr_registry::open(file, "wrapped.pt", &limits).expect("a good file");
    for (prefix, first) in [("model_state_dict.", "fc.weight"), ("model_state_dict.fc.", "weight")]
    {
        let mut view = View::new(&*model);
        view.select(prefix).expect("they are there");
        assert_eq!(apr_registry::CheckpointReader::tensors(&view)[0].name, first);
    }
    let error = View::new(&*model).select("model.").expect_err("nothing is called so");
    assert!(error.message().contains("prefixes in the file: fc."), "{error}");
}

#[test]
fn deepspeed_partitions_are_rejected_with_the_script_that_joins_them() {
    let states = std::fs::read(fixture("torch/mp_rank_00_model_states.pt")).expect("there");
    let sandbox = Sandbox::new()
        .with("zero/latest", "global_step1")
        .with("zero/global_step1/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", &states)
        .with("zero/global_step1/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", &states)
        .with("zero/global_step1/mp_rank_00_model_states.pt", &states);
    for folder in ["zero", "zero/global_step1"] {
        for line in ["inspect", "validate", "tensors"] {
            let said = [
                "E001",
                "DeepSpeed checkpoint (ZeRO)",
                "2 partitions",
                "python zero_to_fp32.py . OUTPUT",
            ];
            sandbox.apr(&format!("{line} {folder}")).fails(4, &said);
        }
        sandbox.apr(&format!("convert {folder} -o o.apr")).fails(4, &["alone has them in"]);
    }
    sandbox.apr("tensors zero/global_step1/mp_rank_00_model_states.pt").ok().says(&["2 tensors"]);
    // Weights that were gathered beside the partitions are a model.
    sandbox.write("zero/model.safetensors", crate::support::small_safetensors());
    sandbox.apr("inspect zero").ok();
}
