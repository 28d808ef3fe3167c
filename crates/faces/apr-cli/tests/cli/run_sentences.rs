//! Models of sentence-transformers: vectors are those of the library.

use std::fs;

use apr_testkit::{from_base64, locate};
use serde_json::{Value, json};

use crate::support::{Run, Sandbox};

/// The texts, and the cases of each version: name, files beside tiny-bert's, vectors.
fn cases() -> (Vec<String>, Vec<(String, Value)>) {
    let all = fs::read_to_string(locate::fixture("run/sentences.json")).expect("the fixture");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    let texts = all["texts"].as_array().expect("texts");
    let texts = texts.iter().map(|text| text.as_str().expect("a text").to_owned()).collect();
    let mut cases = Vec::new();
    for (version, of_version) in all["versions"].as_object().expect("versions") {
        for (name, case) in of_version.as_object().expect("cases") {
            let major = version.split('.').next().expect("a number");
            cases.push((format!("{major}-{name}"), case.clone()));
        }
    }
    (texts, cases)
}

/// Writes the model of a case.
fn write(sandbox: &Sandbox, name: &str, case: &Value) {
    // A table of vectors has weights and a tokenizer of its own, and no configuration.
    let is_whole = case["files"].get("model.safetensors").is_some();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        if !is_whole {
            let bytes = fs::read(locate::fixture(&format!("run/tiny-bert/{file}")));
            sandbox.write(&format!("{name}/{file}"), bytes.expect("the fixture"));
        }
    }
    for (file, bytes) in case["files"].as_object().expect("files") {
        let bytes = bytes.as_str().expect("base64");
        sandbox.write(&format!("{name}/{file}"), from_base64(bytes));
    }
}

fn run(sandbox: &Sandbox, model: &str, texts: &[String], more: &[&str]) -> Run {
    let mut line = vec!["run", model, "--json"];
    texts.iter().for_each(|text| line.extend(["--prompt", text]));
    line.extend(more);
    sandbox.run(&line)
}

fn vectors(report: &Value) -> Vec<Vec<f64>> {
    let results = report["results"].as_array().expect("results");
    let numbers = |made: &Value| {
        let vector = made["vector"].as_array().unwrap_or_else(|| panic!("no vector: {made}"));
        vector.iter().map(|number| number.as_f64().expect("a number")).collect()
    };
    results.iter().map(numbers).collect()
}

fn expected(case: &Value) -> Vec<Vec<f64>> {
    serde_json::from_value(case["vectors"].clone()).expect("vectors")
}

#[track_caller]
fn assert_close(made: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(made.len(), expected.len(), "{what}");
    for (one, other) in made.iter().zip(expected) {
        assert_eq!(one.len(), other.len(), "{what}");
        let most = one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(most <= 1e-5, "{what}: {most}");
    }
}

#[test]
fn vectors_match_sentence_transformers() {
    let (texts, cases) = cases();
    assert!(cases.len() >= 30, "{}", cases.len());
    for (name, case) in &cases {
        let sandbox = Sandbox::new();
        write(&sandbox, name, case);
        let report = run(&sandbox, name, &texts, &[]).ok().json();
        assert_close(&vectors(&report), &expected(case), name);
        sandbox.apr(&format!("import {name} -o m.apr")).ok();
        let report = run(&sandbox, "m.apr", &texts, &[]).ok().json();
        assert_close(&vectors(&report), &expected(case), &format!("{name} as .apr"));
    }
}

#[test]
fn an_onnx_file_has_the_vectors_of_texts_as_an_output() {
    let (texts, cases) = cases();
    // What a prompt adds, and what texts are cut to, is for whoever feeds the graph. A table has no
    // family that is exported.
    let is_whole =
        |name: &str| !["prompt", "short", "static"].iter().any(|kind| name.contains(kind));
    for (name, case) in cases.iter().filter(|(name, _)| is_whole(name)) {
        let sandbox = Sandbox::new();
        write(&sandbox, name, case);
        sandbox.apr(&format!("export {name} --format onnx -o out")).ok();
        // Without the modules, the graph says alone what the vectors are.
        fs::remove_file(sandbox.path("out/modules.json")).expect("it was copied");
        let report = run(&sandbox, "out", &texts, &[]).ok().json();
        assert_eq!(report["results"][0]["pooling"], "model");
        assert_close(&vectors(&report), &expected(case), name);
    }
}

#[test]
fn steps_that_an_onnx_file_leaves_to_its_caller_are_reported() {
    let (_, cases) = cases();
    let case = |name: &str| &cases.iter().find(|(it, _)| it == name).expect("a case").1;
    let sandbox = Sandbox::new();
    write(&sandbox, "m", case("6-prompt_apart"));
    let run = sandbox.apr("convert m -o m.onnx").ok();
    run.says(&["put the default prompt 'query' before each text", "include_prompt"]);
}

#[test]
fn a_gguf_file_has_one_pooling_method_and_its_losses_are_reported() {
    let (texts, cases) = cases();
    let case = |name: &str| &cases.iter().find(|(it, _)| it == name).expect("a case").1;
    for name in ["6-normalized", "6-mean", "6-cls", "5-lasttoken"] {
        let sandbox = Sandbox::new();
        write(&sandbox, name, case(name));
        let run_of = sandbox.apr(&format!("convert {name} -o m.gguf")).ok();
        assert_eq!(run_of.stderr.contains("lengths of vectors"), name != "6-normalized");
        let mut expected = expected(case(name));
        for vector in &mut expected {
            let length = vector.iter().map(|number| number * number).sum::<f64>().sqrt();
            vector.iter_mut().for_each(|number| *number /= length);
        }
        let report = run(&sandbox, "m.gguf", &texts, &[]).ok().json();
        assert_close(&vectors(&report), &expected, name);
    }
    let lost = [
        ("6-joined", "pooling cls+max+weighted_mean"),
        ("6-dense", "2_Dense"),
        ("6-layer_norm", "2_LayerNorm"),
        ("6-prompt", "prompt 'query'"),
        ("6-prompt_apart", "include_prompt"),
        ("6-short", "max_seq_length 6"),
        ("6-truncated", "truncate_dim 12"),
    ];
    for (name, what) in lost {
        let sandbox = Sandbox::new();
        write(&sandbox, name, case(name));
        let report = sandbox.apr(&format!("convert {name} -o m.gguf --json")).ok().json();
        assert!(report["losses"].to_string().contains(what), "{name}: {}", report["losses"]);
    }
}

#[test]
fn prompts_dimensions_and_the_way_to_pool_can_be_chosen() {
    let (texts, cases) = cases();
    let case = |name: &str| &cases.iter().find(|(it, _)| it == name).expect("a case").1;
    let sandbox = Sandbox::new();
    write(&sandbox, "m", case("6-prompt"));
    let report = run(&sandbox, "m", &texts, &[]).ok().json();
    let first = &report["results"][0];
    assert_eq!(first["prompt"], "The Licensor: ");
    assert_eq!(first["similarity"], "cosine");
    assert_eq!((&first["pooling"], &first["normalized"]), (&json!("mean"), &json!(true)));
    // A prompt without a text is none: this model is then that of the case without prompts.
    let report = run(&sandbox, "m", &texts, &["--prompt-name", "document"]).ok().json();
    assert_close(&vectors(&report), &expected(case("6-normalized")), "without a prompt");
    let report = run(&sandbox, "m", &texts, &["--dimensions", "5"]).ok().json();
    let cut: Vec<Vec<f64>> =
        expected(case("6-prompt")).into_iter().map(|vector| vector[..5].to_vec()).collect();
    assert_close(&vectors(&report), &cut, "5 dimensions");
    let line = |more: &[&str]| run(&sandbox, "m", &texts, more);
    line(&["--dimensions", "33"]).fails(2, &["33 dimensions are more than the 32"]);
    line(&["--prompt-name", "none"])
        .fails(2, &["unknown prompt 'none'; the model has document, query"]);

    // A requested number takes precedence over `truncate_dim`, which is 12.
    write(&sandbox, "truncated", case("6-truncated"));
    let report = run(&sandbox, "truncated", &texts, &["--dimensions", "20"]).ok().json();
    let cut: Vec<Vec<f64>> =
        expected(case("6-normalized")).into_iter().map(|vector| vector[..20].to_vec()).collect();
    assert_close(&vectors(&report), &cut, "20 dimensions of a truncated model");

    write(&sandbox, "plain", case("6-mean"));
    let report = run(&sandbox, "plain", &texts, &["--pooling", "weighted_mean"]).ok().json();
    assert_close(&vectors(&report), &expected(case("6-weightedmean")), "another pooling");
    line(&["--task", "fill-mask", "--pooling", "cls"]).fails(2, &["apply to embeddings only"]);
}

#[test]
fn an_unknown_module_is_reported() {
    let (texts, cases) = cases();
    let (name, case) = &cases[0];
    let sandbox = Sandbox::new();
    write(&sandbox, name, case);
    for class in
        ["sentence_transformers.models.CNN", "sentence_transformers.models.LSTM", "mine.Pooling"]
    {
        let module = |index: u32, path: &str, class: &str| {
            let name = index.to_string();
            json!({ "idx": index, "name": name, "path": path, "type": class })
        };
        let modules = json!([
            module(0, "", "sentence_transformers.models.Transformer"),
            module(1, "1_Other", class),
            module(2, "1_Pooling", "sentence_transformers.models.Pooling"),
        ]);
        sandbox.write(&format!("{name}/modules.json"), modules.to_string());
        let module = class.rsplit('.').next().expect("a name");
        run(&sandbox, name, &texts, &[])
            .fails(4, &["E003", "modules.json", &format!("'{module}'")]);
        let export = sandbox.apr(&format!("export {name} --format onnx -o out"));
        export.fails(4, &["E003", &format!("'{module}'")]);
        let report = sandbox.apr(&format!("convert {name} -o m.gguf -f --json")).ok().json();
        assert!(report["losses"].to_string().contains(&format!("'{module}'")), "{report}");
    }
    sandbox.write(&format!("{name}/modules.json"), "[{]");
    run(&sandbox, name, &texts, &[]).fails(4, &["E001", "modules.json", "not valid JSON"]);
}

/// Moves the files of the first module to a folder of its own.
fn move_first_module(root: &std::path::Path, folder: &str) {
    fs::create_dir(root.join(folder)).expect("a folder");
    for entry in fs::read_dir(root).expect("a folder") {
        let entry = entry.expect("an entry");
        let file = entry.file_name().into_string().expect("a name");
        let stays = ["modules.json", "config_sentence_transformers.json"].contains(&&*file);
        if entry.file_type().expect("a type").is_file() && !stays {
            fs::rename(entry.path(), root.join(folder).join(file)).expect("a file");
        }
    }
    let listed = root.join("modules.json");
    let text = fs::read_to_string(&listed).expect("modules.json");
    let moved = text.replacen(r#""path": """#, &format!(r#""path": "{folder}""#), 1);
    assert_ne!(moved, text);
    fs::write(&listed, moved).expect("modules.json");
}

#[test]
fn a_first_module_in_a_folder_of_its_own_is_the_model() {
    let (texts, cases) = cases();
    let sandbox = Sandbox::new();
    for (name, folder) in [("6-static", "0_StaticEmbedding"), ("5-dense", "0_Transformer")] {
        let case = &cases.iter().find(|(it, _)| it == name).expect("a case").1;
        write(&sandbox, name, case);
        let sharded = format!("sharded-{name}");
        sandbox
            .apr(&format!("convert {name} --format safetensors --shard-size 4KB -o {sharded}"))
            .ok();
        for model in [name, &sharded] {
            move_first_module(&sandbox.path(model), folder);
            let report = run(&sandbox, model, &texts, &[]).ok().json();
            assert_close(&vectors(&report), &expected(case), model);
            let out = format!("out-{model}");
            sandbox.apr(&format!("convert {model} --format safetensors -o {out}")).ok();
            assert!(!sandbox.path(&out).join(folder).exists(), "its files are at the top");
            let report = run(&sandbox, &out, &texts, &[]).ok().json();
            assert_close(&vectors(&report), &expected(case), &out);
        }
    }
}

#[test]
fn models_that_an_output_or_a_run_does_not_support_are_named() {
    let (_, cases) = cases();
    let case = &cases.iter().find(|(it, _)| it == "6-static").expect("a case").1;
    let sandbox = Sandbox::new();
    write(&sandbox, "m", case);
    sandbox.apr("convert m -o m.gguf").fails(4, &["StaticEmbedding", "GGUF can't store"]);
    sandbox.apr("export m --format onnx -o out").fails(4, &["StaticEmbedding", "can be run"]);

    sandbox.write("router/modules.json", "[]");
    sandbox.write("router/router_config.json", "{}");
    sandbox.write("router/document_0_Transformer/model.safetensors", "");
    sandbox
        .apr("run router --prompt x")
        .fails(4, &["a Router of sentence-transformers", "document_0_Transformer"]);
}
