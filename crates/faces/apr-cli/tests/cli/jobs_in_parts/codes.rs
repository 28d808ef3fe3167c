//! Weights in codes and scales.

use super::*;

/// A folder of a small LLaMA that another program quantized.
fn quantized(name: &str) -> Option<String> {
    let path = locate::shared_case(&format!("codes/{name}"))?;
    let path = path.canonicalize().expect("a folder");
    Some(path.to_str().expect("text").to_owned())
}

#[test]
fn weights_in_codes_are_written_in_parts_as_in_one_process() {
    let sandbox = Sandbox::new();
    for name in ["fp8-block", "gptq4", "deepseek-fp8"] {
        let Some(path) = quantized(name) else { return };
        for (command, options) in [
            ("convert", ""),
            ("convert", "--compress"),
            ("convert", "--dequantize f16"),
            ("quantize", "--type q8_0"),
            ("import", ""),
        ] {
            same_files(&sandbox, 3, &format!("{command} {path}"), options);
        }
    }
    let Some(path) = quantized("gptq4") else { return };
    let line = format!("plan --parts 3 -o p.json quantize {path} --type w4a16 --requantize");
    let output = "--format safetensors -o out";
    sandbox.apr(&format!("{line} {output}")).fails(2, &["parts are shards of an .apr model"]);
}

#[test]
fn layouts_for_servers_are_written_in_parts_as_in_one_process() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("tiny-llama").display().to_string();
    for scheme in ["fp8", "w8a8", "w4a16", "w4a16-asym", "gptq-4", "mlx-4"] {
        same_files(&sandbox, 3, &format!("quantize {model}"), &format!("--type {scheme}"));
        // The finished model becomes the folder that one command writes.
        let quantize = format!("quantize {model} --type {scheme}");
        sandbox.apr(&format!("{quantize} -o laid.apr -f")).ok();
        sandbox.apr(&format!("convert laid.apr --format safetensors -o of-apr-{scheme}")).ok();
        sandbox.apr(&format!("{quantize} --format safetensors -o at-once-{scheme}")).ok();
        for file in ["model.safetensors", "config.json"] {
            let read = |folder: &str| {
                fs::read(sandbox.path(&format!("{folder}-{scheme}/{file}"))).expect("a file")
            };
            assert!(read("of-apr") == read("at-once"), "{scheme}: {file}");
        }
    }
}

#[test]
fn weights_in_codes_are_checked_in_parts_as_in_one_process() {
    let sandbox = Sandbox::new();
    let all = ["fp8-block", "gptq4", "deepseek-fp8", "torchao-int8-bin"];
    for name in all {
        let Some(path) = quantized(name) else { return };
        same_report(&sandbox, "validate", &path, "");
        sandbox.apr(&format!("convert {path} -o {name}.apr")).ok();
        same_report(&sandbox, "validate", &format!("{name}.apr"), "");
        same_report(&sandbox, "diff", &format!("{path} {name}.apr"), "--read");
    }
    let Some(path) = quantized("gptq4") else { return };
    sandbox.apr(&format!("convert {path} -o cut.apr --shard-size 60KB")).ok();
    same_report(&sandbox, "validate", "cut.apr", "");
    same_report(&sandbox, "validate", "gptq4.apr", "--checksum");

    // Codes of which the bytes are damaged are not decoded.
    let mut damaged = sandbox.read("gptq4.apr");
    let middle = damaged.len() / 2;
    damaged[middle] ^= 4;
    sandbox.write("damaged.apr", damaged);
    sandbox.apr("validate damaged.apr").fails(5, &["not read: files are damaged"]);
    same_report(&sandbox, "validate", "damaged.apr", "");
    // Codes that stand for nothing: the scale of a block is no number.
    let Some(path) = quantized("fp8-block") else { return };
    copy_folder(&sandbox, &path, "nan");
    let mut file = sandbox.read("nan/model.safetensors");
    let len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let data = 8 + usize::try_from(len).expect("small");
    let header: Value = serde_json::from_slice(&file[8..data]).expect("JSON");
    let name = "model.layers.0.mlp.up_proj.weight_scale_inv";
    let at = header[name]["data_offsets"][0].as_u64().expect("an offset");
    let start = data + usize::try_from(at).expect("small");
    file[start..start + 4].fill(0xff);
    sandbox.write("nan/model.safetensors", file);
    same_report(&sandbox, "validate", "nan", "");
}

/// Copies a folder of files into the sandbox.
fn copy_folder(sandbox: &Sandbox, from: &str, name: &str) {
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let file = entry.file_name().into_string().expect("text");
        sandbox.write(&format!("{name}/{file}"), fs::read(entry.path()).expect("a file"));
    }
}

#[test]
fn codes_and_scales_that_changed_since_the_plan_end_a_part() {
    let Some(path) = quantized("gptq4") else { return };
    let sandbox = Sandbox::new();
    copy_folder(&sandbox, &path, "m");
    let original = sandbox.read("m/model.safetensors");
    let len = original.len() as u64;
    for options in ["-o kept.apr", "-o values.apr --dequantize f16"] {
        sandbox.apr(&format!("plan --parts 2 -o plan.json -f convert m {options}")).ok();
        // All parts of all weights are read, and have digests.
        let plan = plan(&sandbox);
        let parts = plan["parts"].as_array().expect("a list").iter();
        let reads = parts.flat_map(|part| part["reads"].as_array().expect("a list"));
        let read: u64 = reads.filter_map(|read| read["len"].as_u64()).sum();
        let header = u64::from_le_bytes(original[..8].try_into().expect("eight bytes"));
        assert_eq!(read, len - 8 - header, "{options}");
        assert_eq!(plan["inputs"][0]["tensors"].as_array().map(Vec::len), Some(63), "{options}");
        let mut changed = original.clone();
        let last = changed.len() - 100;
        changed[last] ^= 1;
        sandbox.write("m/model.safetensors", changed);
        let failed = (0..2).map(|part| sandbox.apr(&format!("run-part plan.json {part}")));
        let mut failed: Vec<Run> = failed.filter(|run| run.code != Some(0)).collect();
        assert_eq!(failed.len(), 1, "{options}");
        failed.remove(0).fails(5, &["E004", "v_proj", "make a new plan"]);
        sandbox.write("m/model.safetensors", original.clone());
        (0..2).for_each(|part| drop(sandbox.apr(&format!("run-part plan.json {part}")).ok()));
    }
}
