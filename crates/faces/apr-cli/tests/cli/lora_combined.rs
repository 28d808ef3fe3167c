//! `apr lora merge` and `apr lora resize`, beside PEFT's `add_weighted_adapter`
//! (`fixtures/lora/make_combined.py`).

use std::collections::BTreeMap;
use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::{Sandbox, f32s, safetensors, tensors};

/// Rows, columns and elements of a matrix.
type Matrix = (usize, usize, Vec<f32>);

fn fixture(path: &str) -> Vec<u8> {
    fs::read(locate::fixture("lora").join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn path(name: &str) -> String {
    locate::fixture("lora").join(name).display().to_string()
}

/// The matrices of a file; dimensions after the first are one.
fn matrices(file: &[u8]) -> BTreeMap<String, Matrix> {
    let matrix = |(name, (_, shape, bytes)): (String, (Value, Value, Vec<u8>))| {
        let values: Vec<f32> =
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let rows = shape[0].as_u64().and_then(|rows| usize::try_from(rows).ok()).unwrap_or(1);
        (name, (rows, values.len() / rows, values))
    };
    tensors(file).into_iter().map(matrix).collect()
}

/// What each pair of matrices of an adapter with alpha as its rank adds.
fn products(file: &BTreeMap<String, Matrix>) -> BTreeMap<String, Vec<f64>> {
    let halves = [
        (".lora_A.weight", ".lora_B.weight"),
        (".lora_embedding_A", ".lora_embedding_B"),
        (".lora_down.weight", ".lora_up.weight"),
    ];
    let product = |(name, (rank, columns, a)): (&String, &Matrix)| {
        let (first, second) = halves.iter().find(|(first, _)| name.ends_with(first))?;
        let module = name.strip_suffix(first)?;
        let (rows, inner, b) = &file[&format!("{module}{second}")];
        assert_eq!(inner, rank, "{name}");
        let element = |row: usize, column: usize| {
            let term =
                |at: usize| f64::from(b[row * rank + at]) * f64::from(a[at * columns + column]);
            (0..*rank).map(term).sum()
        };
        let elements = (0..rows * columns).map(|at| element(at / columns, at % columns));
        Some((module.to_owned(), elements.collect()))
    };
    file.iter().filter_map(product).collect()
}

fn assert_close(found: &[f64], expected: &[f64], limit: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= limit * largest, "{what} {at}: {found} {expected}");
    }
}

#[test]
fn combined_adapters_are_those_of_peft() {
    let cases: Value = serde_json::from_slice(&fixture("combined/cases.json")).expect("JSON");
    let goldens = matrices(&fixture("combined/goldens.safetensors"));
    let sandbox = Sandbox::new();
    for (case, description) in cases.as_object().expect("an object") {
        let mut args = vec!["lora".to_owned(), "merge".to_owned()];
        let texts = |key: &str| {
            let list = description[key].as_array().expect("a list");
            list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect::<Vec<_>>()
        };
        args.extend(texts("adapters").iter().map(|name| path(&format!("combined/{name}"))));
        args.extend(texts("arguments"));
        args.extend(["-o", "made", "-f", "--precision", "fp32"].map(str::to_owned));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        sandbox.run(&args).ok();
        let found = matrices(&sandbox.read("made/adapter_model.safetensors"));
        let expected: BTreeMap<String, Matrix> = goldens
            .iter()
            .filter_map(|(name, matrix)| {
                Some((name.strip_prefix(&format!("{case}/"))?.to_owned(), matrix.clone()))
            })
            .collect();
        assert!(found.keys().eq(expected.keys()), "{case}: {:?}", found.keys());
        // Both decompose in single precision.
        let limit = if description["same_matrices"] == true { 2e-6 } else { 1e-5 };
        if description["same_matrices"] == true && case != "ranks" && case != "embeddings" {
            for (name, (_, _, values)) in &expected {
                let wide =
                    |values: &[f32]| values.iter().map(|it| f64::from(*it)).collect::<Vec<_>>();
                // PEFT pads modules that fewer adapters have with zeros.
                let found = wide(&found[name].2);
                if found.len() == values.len() {
                    assert_close(&found, &wide(values), 1e-6, &format!("{case}: {name}"));
                }
            }
        }
        let (found, expected) = (products(&found), products(&expected));
        for (module, expected) in &expected {
            assert_close(&found[module], expected, limit, &format!("{case}: {module}"));
        }
    }
    assert_eq!(cases.as_object().map(serde_json::Map::len), Some(12));
}

#[test]
fn a_merged_adapter_adds_what_its_adapters_add() {
    let sandbox = Sandbox::new();
    let (a, b, c) = (path("combined/a"), path("combined/b"), path("combined/c"));
    let (lora, rslora) = (path("lora"), path("rslora"));
    let base = path("llama");
    let given: [(&str, Vec<String>); 2] = [
        ("three", vec![format!("{a}:0.5"), format!("{b}:-0.75"), c]),
        ("rslora", vec![lora, format!("{rslora}:0.25")]),
    ];
    for (case, adapters) in given {
        let mut args = vec!["lora", "merge", "-o", "made", "-f"];
        args.extend(adapters.iter().map(String::as_str));
        sandbox.run(&args).ok();
        let mut args = vec!["merge", &base, "-o", "expected.safetensors", "-f"];
        adapters.iter().for_each(|adapter| args.extend(["--lora", adapter.as_str()]));
        sandbox.run(&args).ok();
        sandbox.run(&["merge", &base, "--lora", "made", "-o", "found.safetensors", "-f"]).ok();
        let found = matrices(&sandbox.read("found.safetensors"));
        for (name, (_, _, expected)) in matrices(&sandbox.read("expected.safetensors")) {
            let wide = |values: &[f32]| values.iter().map(|it| f64::from(*it)).collect::<Vec<_>>();
            let what = format!("{case}: {name}");
            assert_close(&wide(&found[&name].2), &wide(&expected), 1e-6, &what);
        }
    }
    let text = sandbox.read("made/adapter_config.json");
    let config: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &4.into()));
    assert_eq!(config["use_rslora"], false);
    let targets = config["target_modules"].as_array().expect("a list");
    assert_eq!(targets.len(), 5, "{targets:?}");
}

#[test]
fn the_report_has_ranks_and_errors() {
    let sandbox = Sandbox::new();
    let (a, c) = (path("combined/a"), path("combined/c"));
    let made = sandbox.run(&["lora", "merge", &a, &format!("{c}:2"), "-o", "made"]);
    made.ok().says(&["LoRA of rank 2 from", ", times 2: 1 module", "6 modules of rank 4 to 6"]);
    let other = path("combined/turned");
    sandbox.run(&["lora", "merge", &a, &other, "-o", "mixed"]).ok().says(&[
        "the adapters were trained on models of different names: 'gpt2', 'llama'",
        "changes no module that another adapter changes",
    ]);
    let text = sandbox.read("made/adapter_config.json");
    let config: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(config["r"], 6);
    assert_eq!(config["rank_pattern"], config["alpha_pattern"]);
    // One of the adapters changes some layers only, so that the modules are named one by one.
    assert_eq!(config["target_modules"].as_array().map(Vec::len), Some(6));
    assert_eq!(config["layers_to_transform"], Value::Null);

    let report = sandbox.run(&["lora", "resize", &a, "--rank", "2", "--dry-run", "--json"]);
    let report = report.ok().json();
    let combined = &report["combined"];
    assert_eq!((&combined["method"], &combined["rank"]), (&"cat".into(), &2.into()));
    let module = &combined["by_module"][0];
    assert_eq!((&module["ranks_before"][0], &module["rank"]), (&4.into(), &2.into()));
    let [energy, error] = ["energy", "relative_error"].map(|key| module[key].as_f64().expect(key));
    assert!((energy + error.powi(2) - 1.0).abs() < 1e-5, "{energy} {error}");

    // As much as there is: nothing is lost, and no rank is above the change's.
    let report = sandbox.run(&["lora", "resize", &a, "--energy", "1", "-o", "same", "--json"]);
    let report = report.ok().says(&["no module has a lower rank than before"]).json();
    let combined = report["combined"].clone();
    assert!(combined["relative_error"].as_f64().is_some_and(|error| error < 1e-6), "{combined}");
    sandbox.run(&["lora", "resize", &a, "--energy", "0.5", "-o", "half"]).ok();
}

#[test]
fn adapters_of_image_models_are_combined_and_keep_their_form() {
    let sandbox = Sandbox::new();
    let kohya = path("images/kohya.safetensors");
    let unet = path("images/unet");
    let made = ["lora", "merge", &kohya, &format!("{kohya}:0.5"), "-o", "made.safetensors"];
    sandbox.run(&made).ok();
    let merge = |lora: &str, to: &str| {
        sandbox.run(&["merge", &unet, "--lora", lora, "-o", to, "-f"]).ok();
        matrices(&sandbox.read(to))
    };
    let expected = merge(&format!("{kohya}:1.5"), "expected.safetensors");
    let found = merge("made.safetensors", "found.safetensors");
    let wide = |values: &[f32]| values.iter().map(|it| f64::from(*it)).collect::<Vec<_>>();
    for (name, (_, _, expected)) in &expected {
        assert_close(&wide(&found[name].2), &wide(expected), 1e-5, name);
    }
    let [before, after] = [fs::read(&kohya).expect("a file"), sandbox.read("made.safetensors")];
    let (before, after) = (tensors(&before), tensors(&after));
    assert!(before.keys().eq(after.keys()));
    sandbox
        .run(&["lora", "resize", "made.safetensors", "--rank", "1", "-o", "one.safetensors"])
        .ok();
    let alphas = matrices(&sandbox.read("one.safetensors"));
    assert!(alphas.iter().all(|(name, it)| !name.ends_with("alpha") || it.2 == [1.0]));
}

#[test]
fn files_beside_an_adapter_are_kept_or_named() {
    let sandbox = Sandbox::new();
    for (adapter, tokenizer) in [("a", "1"), ("b", "2")] {
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let bytes = fixture(&format!("combined/{adapter}/{file}"));
            sandbox.write(&format!("{adapter}/{file}"), bytes);
        }
        sandbox.write(&format!("{adapter}/added_tokens.json"), format!("{{\"x\":{tokenizer}}}"));
        sandbox.write(&format!("{adapter}/README.md"), "# A card");
    }
    sandbox.apr("lora resize a --rank 2 -o small").clean();
    for file in ["added_tokens.json", "README.md"] {
        assert!(sandbox.read(&format!("small/{file}")) == sandbox.read(&format!("a/{file}")));
    }
    let left_out = ["README.md of a is left out", "added_tokens.json of b is left out"];
    sandbox.apr("lora merge a b -o both").ok().says(&left_out);
    assert!(sandbox.read("both/added_tokens.json") == sandbox.read("a/added_tokens.json"));
    assert!(!sandbox.path("both/README.md").exists());
}

#[test]
fn what_can_not_be_combined_is_refused_by_name() {
    let sandbox = Sandbox::new();
    let adapters = ["dora", "loha", "saved", "experts", "lora", "patterns", "head"].map(path);
    let [dora, loha, saved, experts, lora, patterns, head] = &adapters;
    for (given, expected) in [
        (vec![dora, lora], "only pairs of LoRA's matrices can be combined"),
        (vec![loha, lora], "only pairs of LoRA's matrices can be combined"),
        (vec![lora, saved], "was trained as a whole"),
        (vec![head, lora], "was trained as a whole"),
        (vec![experts], "of single weights"),
    ] {
        let mut args = vec!["lora", "merge", "-o", "made"];
        args.extend(given.iter().map(|path| path.as_str()));
        sandbox.run(&args).fails(4, &["E001", expected]);
    }
    let ranks = ["lora", "merge", lora, patterns, "--method", "linear", "-o", "made"];
    sandbox.run(&ranks).fails(4, &["E001", "rank 2, and 4 in another adapter"]);
    let [images, sgm, kohya] = ["images/diffusers", "images/sgm", "images/kohya"]
        .map(|name| path(&format!("{name}.safetensors")));
    let mixed = ["lora", "merge", lora, &kohya, "-o", "made"];
    sandbox.run(&mixed).fails(4, &["E001", "have other names"]);
    for other in [&images, &sgm] {
        let mixed = ["lora", "merge", other, &kohya, "-o", "made.safetensors"];
        sandbox.run(&mixed).fails(4, &["E001", "in two ways"]);
    }
    for (options, expected) in [
        (vec!["--density", "0.5"], "--density has no effect on the method cat"),
        (vec!["--method", "linear", "--seed", "1"], "--seed has no effect on the method linear"),
        (vec!["--method", "ties"], "the method ties needs --density"),
        (
            vec!["--method", "dare_linear", "--density", "0.5", "--majority-sign", "total"],
            "--majority-sign has no effect on the method dare_linear",
        ),
    ] {
        let mut args = vec!["lora", "merge", lora, "-o", "made"];
        args.extend(options);
        sandbox.run(&args).fails(2, &[expected]);
    }
    for (adapter, output, expected) in [
        (&kohya, "made", "is a file: pass -o NAME.safetensors"),
        (lora, "made.safetensors", "is a folder: pass -o DIR"),
    ] {
        let resize = ["lora", "resize", adapter, "--rank", "1", "-o", output];
        sandbox.run(&resize).fails(2, &[expected]);
    }
    assert!(!sandbox.path("made").exists());

    // Modules that were trained as a whole stay as they are when the only adapter is resized.
    sandbox.run(&["lora", "resize", saved, "--rank", "1", "-o", "small"]).ok();
    let before = tensors(&fixture("saved/adapter_model.safetensors"));
    let after = tensors(&sandbox.read("small/adapter_model.safetensors"));
    for (name, tensor) in before.iter().filter(|(name, _)| !name.contains("lora_")) {
        assert!(after[name] == *tensor, "{name}");
    }

    // A number that is none is found before anything is written.
    let nan = safetensors(&[
        ("base_model.model.a.lora_A.weight", "F32", &[1, 2], f32s(&[1.0, f32::NAN])),
        ("base_model.model.a.lora_B.weight", "F32", &[2, 1], f32s(&[1.0, 1.0])),
    ]);
    sandbox.write("nan/adapter_model.safetensors", nan);
    sandbox.write(
        "nan/adapter_config.json",
        br#"{"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["a"]}"#,
    );
    sandbox.run(&["lora", "merge", "nan", "-o", "made"]).fails(4, &["E002", "lora_A"]);
}

#[test]
fn random_methods_depend_on_the_seed_alone() {
    let sandbox = Sandbox::new();
    let (a, b) = (path("combined/a"), path("combined/b"));
    let made = |seed: &str, threads: &str, method: &str| {
        let args =
            ["lora", "merge", &a, &b, "--method", method, "--density", "0.5", "--seed", seed];
        sandbox.run(&[&args[..], &["--threads", threads, "-o", "made", "-f"]].concat()).ok();
        sandbox.read("made/adapter_model.safetensors")
    };
    for method in ["dare_linear", "dare_ties"] {
        let first = made("1", "1", method);
        assert!(first == made("1", "2", method), "{method}");
        assert!(first != made("2", "1", method), "{method}");
    }
}
