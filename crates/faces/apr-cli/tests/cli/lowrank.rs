//! `apr factorize` and `apr convert --lowrank`, compared with what numpy makes of the same weights
//! (`fixtures/lowrank/lowrank.py`).

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::Sandbox;

fn expected() -> Value {
    let text = fs::read(locate::fixture("lowrank/lowrank.json")).expect("a fixture");
    serde_json::from_slice::<Value>(&text).expect("JSON")["tiny-llama"].clone()
}

/// The elements of each tensor of single precision of a safetensors file.
fn floats(file: &[u8]) -> Vec<(String, Vec<f32>)> {
    let size = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let data = 8 + usize::try_from(size).expect("a small file");
    let header: Value = serde_json::from_slice(&file[8..data]).expect("a header");
    let entries = header.as_object().expect("an object").iter();
    let offset = |entry: &Value, at: usize| {
        usize::try_from(entry["data_offsets"][at].as_u64().expect("a number")).expect("small")
    };
    let tensor = |(name, entry): (&String, &Value)| {
        assert_eq!(entry["dtype"], "F32", "{name}");
        let bytes = &file[data..][offset(entry, 0)..offset(entry, 1)];
        let values = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        (name.clone(), values)
    };
    entries.filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// A folder with tiny-llama in it.
fn with_llama() -> Sandbox {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(locate::fixture("tiny-llama")).expect("a fixture") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if !name.ends_with(".py") {
            sandbox.write(&format!("llama/{name}"), fs::read(&path).expect("a file"));
        }
    }
    sandbox
}

/// Names of the tensors that are stored as factors.
fn factors(sandbox: &Sandbox, file: &str) -> Vec<String> {
    let report = sandbox.apr(&format!("tensors {file} --json")).ok().json();
    let tensors = report["tensors"].as_array().expect("a list");
    let is_factors = |tensor: &&Value| {
        tensor["codec"].as_str().is_some_and(|codec| codec.starts_with("factors"))
    };
    let names = tensors.iter().filter(is_factors).map(|tensor| tensor["name"].as_str());
    names.map(|name| name.expect("a name").to_owned()).collect()
}

#[test]
fn ranks_energies_errors_and_products_equal_those_of_numpy() {
    let (sandbox, expected) = (with_llama(), expected());
    let expected = expected.as_object().expect("tensors");
    let line = "factorize llama -o m.apr --rank 16 --precision fp32 --json";
    let report = sandbox.apr(line).ok().json();
    let found = report["lowrank"]["tensors"].as_array().expect("a list");
    assert_eq!((found.len(), report["lowrank"]["rank"].as_u64()), (expected.len(), Some(16)));
    for tensor in found {
        let name = tensor["name"].as_str().expect("a name");
        // Singular values are of single precision, as their squares are before they are added.
        for (key, wanted, most) in [("energy", "energy", 2e-5), ("relative_error", "error", 1e-6)] {
            let found = tensor[key].as_f64().expect("a number");
            let wanted = expected[name][wanted].as_f64().expect("a number");
            assert!((found - wanted).abs() < most, "{name}: {key} {found}, not {wanted}");
        }
        let [rows, columns] = [0, 1].map(|at| tensor["shape"][at].as_u64().expect("a number"));
        assert_eq!(tensor["bytes"], 8 + 16 * (rows + columns) * 4);
        assert_eq!(tensor["bytes_before"], rows * columns * 4);
    }

    // The products of the best approximation, in another format.
    sandbox.apr("convert m.apr -o m.safetensors").ok();
    let products = floats(&sandbox.read("m.safetensors"));
    for (name, of) in expected {
        let (_, values) = products.iter().find(|(tensor, _)| tensor == name).expect(name);
        for pair in of["best"].as_array().expect("a list") {
            let at = usize::try_from(pair[0].as_u64().expect("a number")).expect("small");
            let wanted = pair[1].as_f64().expect("a number");
            assert!((f64::from(values[at]) - wanted).abs() < 1e-5, "{name}: {at}");
        }
    }

    let report = sandbox.apr("factorize llama -o e.apr --energy 0.9 --json").ok().json();
    assert_eq!(report["lowrank"]["energy"], 0.9);
    for tensor in report["lowrank"]["tensors"].as_array().expect("a list") {
        let name = tensor["name"].as_str().expect("a name");
        assert_eq!(tensor["rank"], expected[name]["rank"], "{name}");
        // Factors of 8 bits of precision.
        let error = tensor["relative_error"].as_f64().expect("a number");
        let kept = tensor["energy"].as_f64().expect("a number");
        assert!(kept >= 0.9 && (error - (1.0 - kept).sqrt()).abs() < 1e-3, "{name}: {error}");
    }
}

#[test]
fn factorized_tensors_are_reported_and_stored_and_the_others_are_listed() {
    let sandbox = with_llama();
    let dry = sandbox.apr("factorize llama -o m.apr --rank 16 --dry-run").ok();
    let dry = dry.says(&["14 tensors as factors of rank 16 (svd): 131.2 KB instead of 589.8 KB"]);
    dry.says(&[
        "largest errors:",
        "rank 16 of 128 x 256",
        "not factorized: lm_head.weight (the output",
    ]);
    assert!(!sandbox.path("m.apr").exists());

    sandbox.apr("convert llama -o m.apr --lowrank svd --rank 16").ok();
    assert!(sandbox.read("m.apr").len() < 290_000);
    assert_eq!(factors(&sandbox, "m.apr").len(), 14);
    let inspected = sandbox.apr("inspect m.apr --json").ok().json();
    let noted = &inspected["metadata"]["factorized"];
    assert_eq!((&noted["method"], &noted["rank"]), (&"svd".into(), &16.into()));
    assert_eq!(noted["tensors"], 14);
    sandbox.apr("validate m.apr").clean();
    sandbox.apr("inspect m.apr").ok().says(&["factors (14 tensors"]);

    let line = "factorize llama -o one.apr --lowrank lora --rank 8 --target *0*.q_proj.* --json";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(report["lowrank"]["method"], "lora");
    assert_eq!(factors(&sandbox, "one.apr"), ["layers.0.attn.q_proj.weight"]);
    // Embeddings too, where they are named.
    sandbox.apr("factorize llama -o two.apr --rank 8 --target *embed_tokens*").ok();
    assert_eq!(factors(&sandbox, "two.apr"), ["token_embedding"]);

    // A rank that suits some matrices only.
    let run = sandbox.apr("factorize llama -o some.apr --rank 50");
    run.ok().says(&["factors of rank 50 are not smaller than 64 x 128"]);
    assert_eq!(factors(&sandbox, "some.apr").len(), 10);
}

#[test]
fn factors_survive_a_copy_and_every_reader_gets_their_products() {
    let sandbox = with_llama();
    sandbox.apr("factorize llama -o m.apr --energy 0.95").ok();
    let names = factors(&sandbox, "m.apr");
    sandbox.apr("shard m.apr -o shards.apr --size 200K").ok();
    sandbox.apr("join shards.apr -o joined.apr").ok();
    sandbox.apr("convert m.apr -o small.apr --compress zstd").ok();
    sandbox.with_env(&[("APR_PASSWORD", "x")], "encrypt m.apr -o sealed.apr --password").ok();
    let sealed = sandbox.with_env(&[("APR_PASSWORD", "x")], "diff m.apr sealed.apr");
    sealed.ok().says(&["Similarity: 100%"]);
    for copy in ["joined.apr", "small.apr"] {
        assert_eq!(factors(&sandbox, copy), names, "{copy}");
        sandbox.apr(&format!("validate {copy}")).clean();
        sandbox.apr(&format!("diff m.apr {copy}")).ok().says(&["Similarity: 100%"]);
    }
    assert!(sandbox.read("small.apr").len() < sandbox.read("m.apr").len());

    // Dense again.
    sandbox.apr("convert small.apr -o dense.apr --dense").clean();
    assert_eq!(factors(&sandbox, "dense.apr"), Vec::<String>::new());
    sandbox.apr("diff m.apr dense.apr").ok().says(&["Similarity: 100%"]);
    let idle = sandbox.apr("convert dense.apr -o again.apr --dense");
    idle.ok().says(&["--dense has no effect: the model has no sparse tensors"]);
    let idle = sandbox.apr("convert m.apr -o idle.safetensors --dense");
    idle.ok().says(&["--dense has no effect: other formats than .apr"]);

    // The engine multiplies them, and exports have the products.
    let logits = |model: &str| {
        sandbox.apr(&format!("run {model} --tokens 256,49,50,43 --want logits -o l.npy -f")).ok();
        sandbox.read("l.npy")
    };
    assert!(logits("m.apr") == logits("dense.apr"));
    sandbox.apr("convert m.apr -o m.gguf").clean();
    sandbox.apr("convert dense.apr -o dense.gguf").clean();
    sandbox.apr("diff m.gguf dense.gguf").ok().says(&["Similarity: 100%"]);
    let direct = sandbox.apr("factorize llama -o direct.safetensors --energy 0.95");
    direct.ok().says(&["safetensors stores no factors: their products are written, at full size"]);
    sandbox.apr("diff direct.safetensors m.apr").ok().says(&["Similarity: 100%"]);

    // What changes the numbers makes them dense, and says so.
    let cast = sandbox.apr("convert m.apr -o half.apr --precision fp16");
    cast.ok().says(&["14 factorized tensors written dense"]);
    let quantized = sandbox.apr("factorize llama -o q.apr --rank 16 --quantize q8_0");
    quantized.ok().says(&["q8_0 stores no factors: their products are quantized"]);
    sandbox.apr("factorize llama -o f16.apr --rank 16 --quantize fp16 --compress zstd").ok();
    assert_eq!(factors(&sandbox, "f16.apr").len(), 14);
}

#[test]
fn a_gate_judges_what_factorizing_cost() {
    let sandbox = with_llama();
    let line = "factorize llama -o m.apr --rank 16 --max-drift";
    sandbox.apr(&format!("{line} 0.3")).fails(5, &["quality gate failed", "L2 drift: 0.4934"]);
    let report = sandbox.apr(&format!("{line} 0.3 --json")).json();
    assert_eq!(report["error"]["lowrank"]["rank"], 16);
    assert!(!sandbox.path("m.apr").exists());
    sandbox.apr(&format!("{line} 0.3 --force")).ok().says(&["L2 drift: 0.4934"]);
    sandbox.apr(&format!("{line} 0.5 -f")).ok();
}

#[test]
fn weights_are_dequantized_then_pruned_then_factorized() {
    let sandbox = with_llama();
    let line = "convert llama -o m.apr --prune 0.5 --rank 16 --target *.q_proj.* --json";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(report["pruning"]["tensors"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["lowrank"]["tensors"].as_array().map(Vec::len), Some(2));
    let both = sandbox.apr("convert llama -o s.apr --rank 16 --sparse csr");
    both.ok().says(&["it is stored as factors"]);

    sandbox.apr("quantize llama --type q8_0 -o q.gguf").ok();
    sandbox
        .apr("factorize q.gguf -o m.apr -f --rank 16")
        .fails(2, &["blk.0.", "q8_0", "--dequantize f16"]);
    sandbox.apr("factorize q.gguf -o m.apr -f --rank 16 --dequantize f16").ok();
    assert_eq!(factors(&sandbox, "m.apr").len(), 14);
    let tensors = sandbox.apr("tensors m.apr --json").ok().json();
    let dtypes = tensors["tensors"].as_array().expect("a list").iter();
    assert!(dtypes.clone().all(|tensor| tensor["dtype"] != "q8_0"), "{tensors}");
}

#[test]
fn factors_are_multiplied_again() {
    let sandbox = with_llama();
    sandbox.apr("factorize llama -o small.apr --rank 16").ok();
    assert_eq!(factors(&sandbox, "small.apr").len(), 14);
    sandbox.apr("factorize small.apr -o dense.apr --dense").ok();
    assert_eq!(factors(&sandbox, "dense.apr").len(), 0);
    let report = sandbox.apr("diff small.apr dense.apr --json").ok().json();
    assert_eq!(report["same"], true, "{report}");
    let idle = sandbox.apr("factorize dense.apr --dense -o again.apr").ok();
    idle.says(&["--dense has no effect: the model has no sparse tensors and no factors"]);
}

#[test]
fn parts_of_a_factorized_model_equal_the_whole() {
    let sandbox = with_llama();
    sandbox.apr("factorize llama -o whole.apr --rank 16").ok();
    sandbox.apr("plan --parts 2 -o plan.json factorize llama -o parts.apr --rank 16").ok();
    for part in 0..2 {
        sandbox.apr(&format!("run-part plan.json {part}")).ok();
    }
    sandbox.apr("finish plan.json").ok();
    let report = sandbox.apr("diff whole.apr parts.apr --json").ok().json();
    assert_eq!(report["same"], true, "{report}");
    assert_eq!(factors(&sandbox, "parts.apr").len(), 14);
}

#[test]
fn what_can_not_be_factorized_is_refused_before_anything_is_written() {
    let sandbox = with_llama();
    sandbox.apr("factorize llama -o out.apr").fails(2, &["nothing to factorize: pass --rank R"]);
    for (line, said) in [
        ("--lowrank svd", "--lowrank needs --rank R or --energy E"),
        ("--lowrank pca --rank 4", "possible values: svd, lora"),
        ("--rank 0", "--rank must be 1 or more"),
        ("--energy 0", "expected a share above 0 and at most 1"),
        ("--energy 1.01", "expected a share above 0 and at most 1"),
        ("--rank 4 --energy 0.5", "cannot be used with"),
        ("--rank 4 --dense", "cannot be used with"),
        ("--rank 4 --target nothing*", "no tensor's name matches 'nothing*'"),
        ("--rank 4 --target *norm*", "is not a matrix"),
        ("--rank 100", "factors of rank 100 are not smaller than"),
        ("--rank 4 --calibration x.txt", "--calibration applies to quantization and pruning"),
    ] {
        sandbox.apr(&format!("convert llama -o out.apr {line}")).fails(2, &[said]);
        assert!(!sandbox.path("out.apr").exists(), "{line}");
    }
    sandbox
        .apr("factorize llama -o out.apr --rank 8 --max-memory 300K")
        .fails(4, &["E008", "bytes of memory"]);
    let idle = sandbox.apr("factorize llama -o out.apr --energy 1");
    idle.ok().says(&["no weight changes: no tensor is smaller as factors"]);
}
