//! Merging: what methods give is compared with mergekit in `apr-merge`; here is what the command
//! does with it.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::support::{Sandbox, Tensor, f32s, safetensors, tensors};

/// A model of one tensor.
fn model(values: &[f32]) -> Vec<u8> {
    let shape = [values.len() as u64];
    let tensors: [Tensor<'_>; 1] = [("w", "F32", &shape, f32s(values))];
    safetensors(&tensors)
}

/// The folders of `fixtures/merge`, as `a-f32` and so on.
fn with_fixtures() -> Sandbox {
    let sandbox = Sandbox::new();
    for dtype in ["f32", "bf16"] {
        for name in ["a", "b", "c"] {
            for file in ["config.json", "model.safetensors"] {
                let path = format!("{name}-{dtype}/{file}");
                let bytes = fs::read(locate::fixture("merge").join(&path)).expect("there");
                sandbox.write(&path, bytes);
            }
        }
    }
    sandbox
}

/// The elements of the only tensor of a model.
fn values(sandbox: &Sandbox, model: &str) -> Vec<f64> {
    let report = sandbox.apr(&format!("tensors {model} --values w --json")).ok().json();
    numbers(&report["values"])
}

fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(values) => values.iter().flat_map(numbers).collect(),
        Value::Object(object) => object.values().flat_map(numbers).collect(),
        value => value.as_f64().into_iter().collect(),
    }
}

/// The bytes of tensors, without the header.
fn tensor_bytes(file: &[u8]) -> &[u8] {
    let len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    &file[8 + usize::try_from(len).expect("short")..]
}

#[test]
fn qa_58_merging_averages() {
    let sandbox =
        Sandbox::new().with("a.safetensors", model(&[1.0])).with("b.safetensors", model(&[3.0]));
    sandbox
        .apr("merge a.safetensors b.safetensors -o m.safetensors")
        .ok()
        .says(&["average of 2 models: 1 tensor merged", "100.000% from a.safetensors"]);
    assert!(tensor_bytes(&sandbox.read("m.safetensors")) == f32s(&[2.0]));
    sandbox.apr("merge a.safetensors b.safetensors -o m.apr").ok();
    sandbox
        .apr("merge a.safetensors b.safetensors --weights 1,3 --strategy weighted -o w.safetensors")
        .ok();
    assert!(tensor_bytes(&sandbox.read("w.safetensors")) == f32s(&[2.5]));
}

#[test]
fn qa_59_ties_masks_what_disagrees() {
    // Differences of 3, -1, 2 and of 2, 2, -2: the smallest of each goes, and then what
    // contradicts the sign of the sum.
    let sandbox = Sandbox::new()
        .with("base.safetensors", model(&[10.0, 20.0, 30.0, 0.0]))
        .with("a.safetensors", model(&[13.0, 19.0, 33.0, 0.5]))
        .with("b.safetensors", model(&[12.0, 24.0, 28.0, 0.5]));
    sandbox
        .apr(
            "merge a.safetensors b.safetensors --base base.safetensors --strategy ties \
             --density 0.75 -o m.safetensors",
        )
        .ok();
    // The first agree: their mean. In the second and third, the larger one alone.
    let expected = f32s(&[12.5, 24.0, 33.0, 0.0]);
    let found = sandbox.read("m.safetensors");
    assert!(tensor_bytes(&found) == expected, "{:?}", tensor_bytes(&found));
}

#[test]
fn falsification_22_an_average_does_not_depend_on_the_order() {
    let sandbox = with_fixtures();
    for dtype in ["f32", "bf16"] {
        let merge = |order: [&str; 3], out: &str| {
            let models = order.map(|name| format!("{name}-{dtype}")).join(" ");
            sandbox.apr(&format!("merge {models} -o {out}.safetensors -f")).ok();
            sandbox.read(&format!("{out}.safetensors"))
        };
        let first = merge(["a", "b", "c"], "first");
        for order in [["b", "a", "c"], ["c", "b", "a"], ["b", "c", "a"]] {
            let other = merge(order, "other");
            assert!(tensor_bytes(&first) == tensor_bytes(&other), "{order:?} of {dtype}");
        }
    }
}

#[test]
fn falsification_23_a_merge_has_the_models_type() {
    let sandbox = with_fixtures();
    for dtype in ["f32", "bf16"] {
        sandbox.apr(&format!("merge a-{dtype} b-{dtype} -o m-{dtype}")).ok();
        let inspect = |model: &str| sandbox.apr(&format!("inspect {model} --json")).ok().json();
        let (before, after) = (inspect(&format!("a-{dtype}")), inspect(&format!("m-{dtype}")));
        for key in ["family", "dtypes", "parameters"] {
            assert_eq!(before[key], after[key], "{key} of {dtype}");
        }
        let config = |model: &str| sandbox.read(&format!("{model}-{dtype}/config.json"));
        assert!(config("a") == config("m"));
    }
}

#[test]
fn falsification_25_weights_of_one_and_zero_give_the_first_model() {
    let sandbox = with_fixtures();
    for dtype in ["f32", "bf16"] {
        sandbox.apr(&format!("merge a-{dtype} b-{dtype} --weights 1,0 -o m.safetensors -f")).ok();
        let (first, merged) =
            (sandbox.read(&format!("a-{dtype}/model.safetensors")), sandbox.read("m.safetensors"));
        assert!(tensor_bytes(&first) == tensor_bytes(&merged), "{dtype}");
    }
}

#[test]
fn random_methods_depend_on_the_seed_alone_and_keep_all_at_density_one() {
    let sandbox = with_fixtures();
    let merge = |method: &str, options: &str, threads: u32| {
        let line = format!(
            "merge b-f32 c-f32 --base a-f32 --strategy {method} {options} -o m.safetensors -f \
             --threads {threads}"
        );
        sandbox.apr(&line).ok();
        tensor_bytes(&sandbox.read("m.safetensors")).to_vec()
    };
    for (method, whole) in [
        ("dare_linear", "task_arithmetic"),
        ("dare_ties", "ties --normalize false"),
        ("della_linear", "task_arithmetic"),
        ("della", "ties"),
    ] {
        let drawn = merge(method, "--density 0.5 --seed 7", 1);
        assert!(drawn == merge(method, "--density 0.5 --seed 7", 2), "{method}");
        assert!(drawn != merge(method, "--density 0.5 --seed 8", 2), "{method}");
        let all = merge(method, "--density 1 --seed 7", 2);
        assert!(all == merge(whole, "--density 1", 2), "{method}");
    }
}

#[test]
fn a_configuration_of_slices_makes_a_deeper_model() {
    let text = "merge_method: passthrough\nslices:\n- sources:\n  - {model: a-f32, layer_range: \
                [0, 2]}\n- sources:\n  - {model: b-f32, layer_range: [1, 3]}\n";
    let sandbox = with_fixtures().with("merge.yml", text);
    for line in ["merge --config merge.yml -o deep", "merge merge.yml -o deep -f"] {
        sandbox.apr(line).ok().says(&["passthrough of 2 models", "39 copied"]);
        let config: Value =
            serde_json::from_slice(&sandbox.read("deep/config.json")).expect("JSON");
        assert_eq!(config["num_hidden_layers"], 4);
        let card = String::from_utf8(sandbox.read("deep/README.md")).expect("text");
        for part in ["base_model:\n- a-f32\n- b-f32\n", "tags:\n- mergekit\n- merge\n", text.trim()]
        {
            assert!(card.contains(part), "{card}");
        }
        sandbox.apr("validate deep").ok();
    }
}

#[test]
fn later_documents_merge_what_earlier_ones_made() {
    let text = "name: first\nmerge_method: linear\nmodels:\n- {model: a.safetensors, parameters: \
                {weight: 1}}\n- {model: b.safetensors, parameters: {weight: 3}}\n---\n\
                merge_method: linear\nmodels:\n- {model: first, parameters: {weight: 1}}\n\
                - {model: c.safetensors, parameters: {weight: 1}}\n";
    let sandbox = Sandbox::new()
        .with("a.safetensors", model(&[1.0]))
        .with("b.safetensors", model(&[3.0]))
        .with("c.safetensors", model(&[7.5]))
        .with("merge.yml", text);
    sandbox.apr("merge merge.yml -o m.safetensors").ok();
    assert!(tensor_bytes(&sandbox.read("m.safetensors")) == f32s(&[5.0]));
}

#[test]
fn merges_go_into_every_format_and_are_quantized_on_the_way() {
    let sandbox = with_fixtures();
    sandbox
        .apr("merge a-f32 b-f32 --strategy slerp --t 0.3 -o m.apr --quantize f8_e4m3")
        .ok()
        .says(&["slerp of 2 models", "quantized"]);
    sandbox.apr("validate m.apr").ok();
    sandbox.apr("merge a-f32 b-f32 --strategy slerp --t 0.3 -o m.apr -f").ok();
    let metadata = sandbox.apr("inspect m.apr --full --json").ok().to_string();
    for part in ["merge_method: slerp", "\\\"a-f32\\\"", "README.md"] {
        assert!(metadata.contains(part), "no {part} in {metadata}");
    }
    // Files of different conventions are merged under the names that frameworks have.
    sandbox.apr("import a-f32 -o a.apr").ok();
    sandbox.apr("merge a.apr b-f32 -s slerp --t 0.3 -o mixed.safetensors").ok();
    sandbox.apr("merge a-f32 b-f32 -s slerp --t 0.3 -o plain.safetensors").ok();
    let (mixed, plain) = (sandbox.read("mixed.safetensors"), sandbox.read("plain.safetensors"));
    assert!(tensor_bytes(&mixed) == tensor_bytes(&plain));
}

#[test]
fn the_report_lists_the_changes() {
    let sandbox = with_fixtures();
    let line = "merge b-f32 c-f32 --base a-f32 -s model_stock -o m --json";
    let report = sandbox.apr(line).ok().json();
    let merge = &report["merge"];
    assert_eq!(merge["method"], "model_stock");
    assert_eq!(merge["compared_with"], "a-f32");
    assert_eq!((&merge["merged"], &merge["copied"]), (&30.into(), &0.into()));
    assert_eq!(merge["tensors"].as_array().map(Vec::len), Some(30));
    assert_eq!(merge["worst"].as_array().map(Vec::len), Some(10));
    assert_eq!(merge["models"][2]["base"], true);
    let worst = merge["worst"][0]["relative_error"].as_f64().expect("a number");
    assert!(worst >= merge["total"]["relative_error"].as_f64().expect("a number"));
    let plan = sandbox.apr("merge a-f32 b-f32 -o m2 --dry-run").ok();
    plan.says(&["would write model.safetensors"]);
    assert!(!sandbox.files().iter().any(|file| file.starts_with("m2")));
}

#[test]
fn models_that_do_not_match_are_rejected_with_the_first_difference() {
    let two: [Tensor<'_>; 2] = [("w", "F32", &[1], f32s(&[1.0])), ("x", "F32", &[1], f32s(&[1.0]))];
    let sandbox = with_fixtures()
        .with("a.safetensors", model(&[1.0]))
        .with("two.safetensors", safetensors(&two))
        .with("wide.safetensors", model(&[1.0, 2.0]))
        .with("nan.safetensors", model(&[f32::NAN]));
    for (models, parts) in [
        ("a.safetensors wide.safetensors", &["wide.safetensors", "'w'", "[1]", "[2]"][..]),
        ("a.safetensors two.safetensors", &["two.safetensors", "'x'", "missing in a.safetensors"]),
        ("two.safetensors a.safetensors", &["a.safetensors", "'x'", "missing"]),
    ] {
        sandbox.apr(&format!("merge {models} -o m.safetensors")).fails(4, parts);
        assert!(!sandbox.path("m.safetensors").exists(), "{models}");
    }
    // Values that are not finite fail as they do in a conversion, and --relaxed accepts them.
    sandbox.apr("merge a.safetensors nan.safetensors -o m.safetensors").fails(
        5,
        &[
            "error: nan.safetensors: tensor 'w': 1 of 1 values are NaN; the first is element 0",
            "--hist w",
            "--relaxed",
        ],
    );
    sandbox
        .apr("convert nan.safetensors -o m.safetensors")
        .fails(5, &["error: nan.safetensors: tensor 'w': 1 of 1 values are NaN"]);
    // What is missing is copied from the base, and said so, if asked.
    sandbox
        .apr("merge two.safetensors a.safetensors -o m.safetensors --relaxed")
        .ok()
        .says(&["copied from two.safetensors: x"]);

    let config = String::from_utf8(sandbox.read("b-f32/config.json")).expect("text");
    let other = config.replace("\"num_attention_heads\": 4", "\"num_attention_heads\": 2");
    sandbox.write("b-f32/config.json", other);
    sandbox
        .apr("merge a-f32 b-f32 -o m")
        .fails(4, &["b-f32", "num_attention_heads is 2, but 4 in a-f32"]);
}

#[test]
fn parameters_out_of_range_and_of_the_wrong_number_are_refused() {
    let sandbox = with_fixtures();
    for (options, code, parts) in [
        ("--base a-f32 -s ties --density 0", 4, &["density is 0", "a number above 0, up to 1"][..]),
        ("--base a-f32 -s ties --density 2", 4, &["density is 2"]),
        ("-s linear --weights 1,2", 2, &["2 values of 'weight' for 3 models"]),
        (
            "--base a-f32 -s ties --weights 1",
            2,
            &["1 values of 'weight' for 2 models that are not the base"],
        ),
        ("-s slerp --t 0.5", 4, &["slerp takes 2 models with the base, not 3"]),
        ("-s linear --weights 1,-1,0", 4, &["weights whose sum is not zero"]),
        ("-s average --density 0.5", 2, &["unknown parameter 'density' of average"]),
        ("--base a-f32 -s ties --parameter gamma=1", 2, &["unknown parameter 'gamma' of ties"]),
        ("--base a-f32 -s della --density 0.1", 4, &["must be between 0 and 1"]),
        ("-s blend", 2, &["blend"]),
    ] {
        sandbox.apr(&format!("merge a-f32 b-f32 c-f32 {options} -o m")).fails(code, parts);
        assert!(!sandbox.path("m").exists(), "{options}");
    }
    sandbox.apr("merge -o m").fails(2, &["no models"]);
    sandbox.apr("merge a-f32 nowhere -o m").fails(3, &["nowhere"]);
}

#[test]
fn a_threshold_is_asked_for_and_given() {
    let sandbox = with_fixtures();
    sandbox.apr("merge a-f32 b-f32 -s nearswap -o m").fails(2, &["pass --t 0.001"]);
    let line = "merge a-f32 b-f32 -s linear -o m --models-dir .";
    sandbox.apr(line).fails(2, &["--models-dir applies to merge configurations only"]);
    sandbox.apr("merge a-f32 b-f32 -s nearswap --t 0.001 -o m").ok();
}

#[test]
fn hostile_configurations_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..12 {
        let before = vec![format!("*a{}", level - 1); 9].join(", ");
        bomb += &format!("a{level}: &a{level} [{before}]\n");
    }
    let sandbox = with_fixtures();
    let linear = |model: &str| {
        format!("merge_method: linear\nmodels: [{{model: {model}, parameters: {{weight: 1}}}}]\n")
    };
    for (text, code, parts) in [
        (bomb, 4, &["E008", "copies by aliases included"][..]),
        (linear("../secret"), 2, &["'../secret'", "pass --models-dir"]),
        (linear("/etc"), 2, &["'/etc'", "pass --models-dir"]),
        (linear("a-f32/../.."), 2, &["pass --models-dir"]),
        (linear("a-f32") + "modules: {}\n", 4, &["'modules'", "not supported"]),
        (linear("a-f32").replace("linear", "ties"), 4, &["ties needs a base model"]),
        (linear("a-f32").replace("weight: 1", "weight: x"), 4, &["'weight' is \"x\""]),
        ("a: [".to_owned(), 4, &["not valid YAML"]),
        (
            "merge_method: passthrough\nslices: [{sources: [{model: a-f32, layer_range: [2, 9]}]}]"
                .to_owned(),
            4,
            &["slice 0 takes layers 2 to 9, but there are 3"],
        ),
    ] {
        sandbox.write("merge.yml", &text);
        sandbox.apr("merge merge.yml -o m").fails(code, parts);
        assert!(!sandbox.path("m").exists(), "{text:.80}");
    }
    sandbox.write("merge.yml", linear("a-f32"));
    sandbox.apr("merge merge.yml -o m --base b-f32").fails(2, &["--base", "exclude"]);
    sandbox.apr("merge a-f32 --config merge.yml -o m").fails(2, &["--config names its models"]);
    let absolute = sandbox.path("a-f32").display().to_string();
    sandbox.write("merge.yml", linear(&absolute));
    let folder = sandbox.path(".").display().to_string();
    let folder = folder.trim_end_matches("/.");
    sandbox.apr(&format!("merge merge.yml -o m --models-dir {folder}")).ok();
}

#[test]
fn quantized_models_are_decoded_and_their_layers_are_unchanged() {
    let sandbox = with_fixtures();
    for name in ["a", "b"] {
        sandbox.apr(&format!("quantize {name}-f32 -t int8 -o {name}.apr")).ok();
    }
    sandbox.apr("merge a.apr b.apr -o m.apr").ok();
    let dtypes = sandbox.apr("inspect m.apr --json").ok().json()["dtypes"].to_string();
    assert!(dtypes.contains("f32") && !dtypes.contains("int8"), "{dtypes}");
    assert!(
        values(&sandbox.with("one.safetensors", model(&[1.5])), "one.safetensors").contains(&1.5)
    );
}

/// The models of `fixtures/merge/vocabulary`, whose tokens differ.
fn with_vocabularies() -> Sandbox {
    let sandbox = Sandbox::new();
    for model in ["a", "b", "c"] {
        let folder = locate::fixture("merge").join("vocabulary").join(model);
        for entry in fs::read_dir(folder).expect("there").flatten() {
            let name = entry.file_name().into_string().expect("text");
            sandbox.write(&format!("{model}/{name}"), fs::read(entry.path()).expect("readable"));
        }
    }
    sandbox
}

/// Ids by tokens, as readers of the file count them.
fn ids(tokenizer: &[u8]) -> Vec<(String, usize)> {
    let tokenizer: Value = serde_json::from_slice(tokenizer).expect("JSON");
    let id = |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("short");
    let vocabulary = tokenizer["model"]["vocab"].as_object().expect("tokens").iter();
    let mut ids: Vec<(String, usize)> =
        vocabulary.map(|(token, at)| (token.clone(), id(at))).collect();
    for added in tokenizer["added_tokens"].as_array().expect("a list") {
        let token = added["content"].as_str().expect("text").to_owned();
        let pair = (token, id(&added["id"]));
        if !ids.contains(&pair) {
            ids.push(pair);
        }
    }
    ids
}

#[test]
fn rows_of_tokens_move_as_mergekit_moves_them() {
    let sandbox = with_vocabularies();
    let goldens =
        fs::read(locate::fixture("merge").join("vocabulary/goldens.json")).expect("there");
    let goldens: Value = serde_json::from_slice(&goldens).expect("JSON");
    for (case, golden) in goldens.as_object().expect("cases") {
        sandbox.write("merge.yml", golden["configuration"].as_str().expect("text"));
        sandbox.apr("merge merge.yml -o out -f --relaxed").ok();
        let found = tensors(&sandbox.read("out/model.safetensors"));
        let expected = golden["rows"].as_object().expect("tokens");
        let ids = ids(&sandbox.read("out/tokenizer.json"));
        assert_eq!(ids.len(), expected.len(), "{case}");
        let config: Value = serde_json::from_slice(&sandbox.read("out/config.json")).expect("JSON");
        assert_eq!(config["vocab_size"], ids.len(), "{case}");
        for (token, id) in ids {
            if token == "<s>" {
                assert_eq!(config["eos_token_id"], id, "{case}");
            }
            for (at, tensor) in ["model.embed_tokens.weight", "lm_head.weight"].iter().enumerate() {
                let bytes = &found[*tensor].2;
                let row = bytes.chunks_exact(16).nth(id).expect("a row for each token");
                let value = f32::from_le_bytes(row[..4].try_into().expect("four bytes"));
                let golden = expected[&token][at].as_f64().expect("a number");
                let distance = (f64::from(value) - golden).abs();
                assert!(distance <= 2.4e-7, "{case}: {token} of {tensor} is {value}, not {golden}");
            }
        }
    }
    assert_eq!(goldens.as_object().map(serde_json::Map::len), Some(18));

    // The option, and what can't be.
    sandbox
        .apr("merge a b --tokenizer union -o option --relaxed")
        .ok()
        .says(&["2 tokens added to the vocabulary of a"]);
    let [option, recipe] =
        ["option", "out"].map(|folder| sandbox.read(&format!("{folder}/tokenizer.json")));
    assert_eq!(ids(&option).len(), 7);
    assert!(ids(&recipe).len() >= 7);
    let tokenizer = sandbox.read("b/tokenizer.json");
    let far =
        r#"{"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 9000000, "content": "b"}]}"#;
    sandbox.write("b/tokenizer.json", far);
    sandbox.apr("merge a b --tokenizer union -o no").fails(4, &["a token of the id 9000000"]);
    sandbox.write("b/tokenizer.json", tokenizer);
    let config = sandbox.read("b/config.json");
    let other = String::from_utf8_lossy(&config).replace("\"vocab_size\": 6", "\"vocab_size\": 9");
    assert_ne!(other.as_bytes(), config);
    sandbox.write("b/config.json", other);
    sandbox.apr("merge a b --tokenizer union -o no").fails(4, &["no tensor has 9 rows"]);
    sandbox.write("b/config.json", config);
    sandbox.write("b/tokenizer.json", "{}");
    sandbox
        .apr("merge a b --tokenizer union -o no")
        .fails(4, &["E001", "tokenizer.json has no tokens"]);
    let choice = "merge_method: linear\nmodels: [{model: a}, {model: c}]\n\
                  tokenizer: {tokens: {e: {source: a, force: true}}}\n";
    sandbox.write("merge.yml", choice);
    sandbox
        .apr("merge merge.yml -o no")
        .fails(4, &["'e' must be taken from a, which has no such token"]);
    assert!(!sandbox.files().iter().any(|file| file.starts_with("no")));
}

#[test]
fn chat_templates_are_chosen_by_the_configuration() {
    let sandbox = with_vocabularies();
    let template = |model: &str| {
        let config = sandbox.read(&format!("{model}/tokenizer_config.json"));
        let config: Value = serde_json::from_slice(&config).expect("JSON");
        config["chat_template"].as_str().map(str::to_owned)
    };
    let merge = |template: &str| {
        sandbox.write(
            "merge.yml",
            format!(
                "merge_method: linear\nparameters: {{weight: 1}}\ntokenizer_source: base\n\
                 models: [{{model: a}}, {{model: c}}]\nchat_template: {template}\n"
            ),
        );
        sandbox.apr("merge merge.yml -o out -f --relaxed")
    };
    merge("auto").ok().says(&["does not have a chat template"]);
    merge("chatml").ok();
    assert!(template("out").expect("one").contains("<|im_start|>assistant"));
    merge("\"{{ messages }}!\"").ok();
    assert_eq!(template("out").as_deref(), Some("{{ messages }}!"));
    sandbox.write("c/chat_template.jinja", "{{ messages[0] }}");
    merge("auto").ok();
    assert_eq!(template("out").as_deref(), Some("{{ messages[0] }}"));
    merge("alpaca").fails(4, &["'chat_template' is 'alpaca': auto, chatml and Jinja templates"]);
}

/// 1, 2 and 3 as `f8_e4m3` (OCP 8-bit floating point 1.0, table 2).
const ONE_TWO_THREE: [u8; 3] = [0x38, 0x40, 0x44];

#[test]
fn floats_of_8_bits_are_merged() {
    let [one, two, three] = ONE_TWO_THREE;
    let file = |byte: u8| safetensors(&[("w", "F8_E4M3", &[4, 4], vec![byte; 16])]);
    let sandbox =
        Sandbox::new().with("a.safetensors", file(one)).with("b.safetensors", file(three));
    let merge = "merge a.safetensors b.safetensors -o m.safetensors -f";
    let report = sandbox.apr(&format!("{merge} --json")).ok().json();
    assert_eq!((&report["merge"]["merged"], &report["merge"]["copied"]), (&1.into(), &0.into()));
    let (dtype, _, bytes) = tensors(&sandbox.read("m.safetensors"))["w"].clone();
    assert_eq!((dtype, bytes), ("F8_E4M3".into(), vec![two; 16]));

    // Models of two dtypes meet in single precision.
    let wide = safetensors(&[("w", "BF16", &[4, 4], [0x40, 0x40].repeat(16))]);
    sandbox.write("b.safetensors", wide);
    sandbox.apr(merge).ok();
    let (dtype, _, bytes) = tensors(&sandbox.read("m.safetensors"))["w"].clone();
    assert_eq!((dtype, bytes), ("F32".into(), f32s(&[2.0; 16])));
}

#[test]
fn tensors_that_cannot_be_merged_must_be_equal_in_all_models() {
    let model = |ids: i64, scale: f32, weight: u8| {
        safetensors(&[
            ("ids", "I64", &[2], [ids.to_le_bytes(), 7_i64.to_le_bytes()].concat()),
            ("mask", "U8", &[2], vec![weight; 2]),
            ("w", "F32", &[2], f32s(&[scale, 1.0])),
        ])
    };
    let sandbox = Sandbox::new().with("a.safetensors", model(3, 1.0, 0x38));
    let merge = "merge a.safetensors b.safetensors -o m.safetensors -f";
    sandbox.write("b.safetensors", model(3, 3.0, 0x38));
    let report = sandbox.apr(&format!("{merge} --json")).ok().json();
    assert_eq!(report["merge"]["identical"], 2);
    sandbox.apr(merge).ok().says(&["1 tensor merged, 2 copied, the same in all"]);

    for (other, name) in [(model(4, 3.0, 0x38), "'ids'"), (model(3, 3.0, 0x40), "'mask'")] {
        sandbox.write("b.safetensors", other);
        sandbox.apr("merge a.safetensors b.safetensors -o no.safetensors").fails(
            4,
            &["E001", "b.safetensors", name, "can't be merged, and a.safetensors has others"],
        );
        assert!(!sandbox.path("no.safetensors").exists());
    }
    sandbox
        .apr("merge a.safetensors b.safetensors -o m.safetensors -f --relaxed")
        .ok()
        .says(&["copied from a.safetensors: mask"]);
}

#[test]
fn methods_that_compare_models_with_a_base_need_one() {
    let sandbox = with_fixtures();
    let methods = [
        "task_arithmetic",
        "ties",
        "dare_linear",
        "dare_ties",
        "della",
        "della_linear",
        "breadcrumbs",
        "breadcrumbs_ties",
        "sce",
        "ram",
        "ramplus_tl",
        "model_stock",
    ];
    for method in methods {
        sandbox
            .apr(&format!("merge a-f32 b-f32 c-f32 --strategy {method} -o no"))
            .fails(2, &[method, "--base MODEL"]);
        let recipe = format!(
            "merge_method: {method}\nparameters: {{weight: 1}}\nmodels: [{{model: a-f32}}, \
             {{model: b-f32}}]\n"
        );
        sandbox.write("no-base.yml", recipe);
        sandbox.apr("merge --config no-base.yml -o no").fails(4, &["needs a base", "base_model"]);
    }
    assert!(!sandbox.path("no").exists());
    // From one of two models to the other: the first is where it begins.
    sandbox.apr("merge a-f32 b-f32 --strategy slerp -o m").ok();
}
