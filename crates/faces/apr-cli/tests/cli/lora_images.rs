//! Adapters of image models: `fixtures/lora/images` has what diffusers and PEFT merge them to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use apr_testkit::locate;

use crate::support::{Sandbox, safetensors, tensors};

type Tensors = BTreeMap<String, (serde_json::Value, serde_json::Value, Vec<u8>)>;

fn path(name: &str) -> String {
    locate::fixture("lora/images").join(name).display().to_string()
}

fn tensors_of(file: impl AsRef<Path>) -> Tensors {
    tensors(&fs::read(file).expect("a fixture"))
}

/// The weights that a case changes, by diffusers' names.
fn golden(case: &str) -> Tensors {
    let all = tensors_of(path("goldens.safetensors"));
    let of_case = all.into_iter().filter_map(|(name, tensor)| {
        Some((name.strip_prefix(&format!("{case}/"))?.to_owned(), tensor))
    });
    of_case.collect()
}

fn values((_, _, bytes): &(serde_json::Value, serde_json::Value, Vec<u8>)) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[track_caller]
fn assert_close(case: &str, found: &Tensors, expected: &Tensors) {
    assert!(found.keys().eq(expected.keys()), "{case}: {:?}", found.keys());
    for (name, tensor) in expected {
        for (one, other) in values(tensor).into_iter().zip(values(&found[name])) {
            assert!((one - other).abs() <= 2e-6, "{case}: {name}: {one} and {other}");
        }
    }
}

/// The numbers of the first implementation's blocks, for the UNet of the fixtures.
fn first_name(name: &str) -> String {
    let mut name = name.to_owned();
    for (head, first) in [
        ("time_embedding.linear_1", "time_embed.0"),
        ("conv_in", "input_blocks.0.0"),
        ("mid_block.resnets.1", "middle_block.2"),
        ("mid_block.attentions.0", "middle_block.1"),
        ("down_blocks.0.downsamplers.0.conv", "input_blocks.3.0.op"),
        ("up_blocks.0.upsamplers.0.conv", "output_blocks.2.1.conv"),
        ("down_blocks.0.resnets.0", "input_blocks.1.0"),
        ("down_blocks.0.resnets.1", "input_blocks.2.0"),
        ("down_blocks.1.resnets.0", "input_blocks.4.0"),
        ("down_blocks.0.attentions.0", "input_blocks.1.1"),
        ("down_blocks.0.attentions.1", "input_blocks.2.1"),
        ("up_blocks.1.resnets.2", "output_blocks.5.0"),
        ("up_blocks.1.attentions.2", "output_blocks.5.1"),
        (".conv1.", ".in_layers.2."),
        (".conv2.", ".out_layers.3."),
        (".time_emb_proj.", ".emb_layers.1."),
        (".conv_shortcut.", ".skip_connection."),
    ] {
        name = name.replace(head, first);
    }
    format!("model.diffusion_model.{name}")
}

#[test]
fn adapters_of_a_unet_are_merged_as_diffusers_and_peft_merge_them() {
    let sandbox = Sandbox::new();
    for case in [
        "kohya.safetensors",
        "sgm.safetensors",
        "diffusers.safetensors",
        "diffusers_plain.safetensors",
        "diffusers_old.safetensors",
        "locon.safetensors",
        "loha.safetensors",
        "lokr.safetensors",
        "lokr_both.safetensors",
        "peft_loha",
        "peft_lokr",
        "peft_lokr_both",
    ] {
        let mut changed = golden(case.trim_end_matches(".safetensors"));
        changed.retain(|name, _| !name.starts_with("text/"));
        assert!(!changed.is_empty(), "{case}");
        let line = ["merge", &path("unet"), "--lora", &path(case), "-o", "out.safetensors", "-f"];
        sandbox.run(&line).ok();
        let mut expected = tensors_of(path("unet/diffusion_pytorch_model.safetensors"));
        expected.extend(changed.clone());
        assert_close(case, &tensors(&sandbox.read("out.safetensors")), &expected);

        // PEFT's names are those of the model that was trained.
        if case.starts_with("peft") {
            continue;
        }
        let base = path("single.safetensors");
        sandbox.run(&["merge", &base, "--lora", &path(case), "-o", "out.safetensors", "-f"]).ok();
        let mut expected = tensors_of(base);
        expected.extend(changed.into_iter().map(|(name, tensor)| (first_name(&name), tensor)));
        for (name, tensor) in golden(case.trim_end_matches(".safetensors")) {
            if let Some(name) = name.strip_prefix("text/") {
                let name = format!("cond_stage_model.transformer.text_model.{name}");
                expected.insert(name, tensor);
            }
        }
        assert_close(case, &tensors(&sandbox.read("out.safetensors")), &expected);
    }
}

#[test]
fn models_of_the_pipeline_that_the_base_lacks_are_reported() {
    let sandbox = Sandbox::new();
    let adapter = path("kohya.safetensors");
    let line = ["merge", &path("unet"), "--lora", &adapter, "-o", "u.safetensors", "--json"];
    let report = sandbox.run(&line).ok().json();
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("left out, as the base lacks their model: 2 modules of 'lora_te_'"));

    let line = ["merge", &path("text_encoder"), "--lora", &adapter, "-o", "t.safetensors"];
    sandbox.run(&line).ok().says(&["15 modules of 'lora_unet_'", "2 tensors changed"]);
    let found = tensors(&sandbox.read("t.safetensors"));
    for (name, tensor) in golden("kohya") {
        let Some(name) = name.strip_prefix("text/") else { continue };
        let own = found.iter().find(|(own, _)| own.ends_with(name)).expect(name);
        assert_eq!(values(own.1), values(&tensor), "{name}");
    }

    // Of a pipeline with neither, nothing is left.
    let sgm = path("sgm.safetensors");
    let line = ["merge", &path("text_encoder"), "--lora", &sgm, "-o", "n.safetensors"];
    sandbox.run(&line).fails(4, &["E001", "does not have the modules"]);
}

#[test]
fn damaged_adapters_of_image_models_are_rejected_by_name() {
    let sandbox = Sandbox::new();
    let module = "lora_unet_conv_in";
    let down = (format!("{module}.lora_down.weight"), vec![2, 4, 3, 3], vec![0; 288]);
    let up = (format!("{module}.lora_up.weight"), vec![4, 2, 1, 1], vec![0; 32]);
    let alpha = |shape: Vec<u64>, bytes: &[u8]| (format!("{module}.alpha"), shape, bytes.to_vec());
    let nan = f32::NAN.to_le_bytes();
    for (parts, says) in [
        (vec![down.clone()], "the other matrix of the pair is missing"),
        (vec![down.clone(), up.clone(), alpha(vec![2], &[0; 8])], "expected one number"),
        (vec![down.clone(), up.clone(), alpha(vec![], &nan)], "element 0 is NaN"),
        (
            vec![down.clone(), up.clone(), (format!("{module}.dora_scale"), vec![4], vec![0; 16])],
            "DoRA of LyCORIS ('dora_scale') can't be merged",
        ),
        (
            vec![down.clone(), up.clone(), (format!("{module}.other"), vec![4], vec![0; 16])],
            "not a part of an adapter",
        ),
        (
            vec![down, (format!("{module}.lora_up.weight"), vec![5, 2, 1, 1], vec![0; 40])],
            "do not make a change of the base's",
        ),
    ] {
        let list: Vec<(&str, &str, &[u64], Vec<u8>)> = parts
            .iter()
            .map(|(name, shape, bytes)| (name.as_str(), "F32", shape.as_slice(), bytes.clone()))
            .collect();
        sandbox.write("a.safetensors", safetensors(&list));
        let line = ["merge", &path("unet"), "--lora", "a.safetensors", "-o", "out.safetensors"];
        sandbox.run(&line).fails(4, &[says]);
        assert!(!sandbox.path("out.safetensors").exists(), "{says}");
    }
}
