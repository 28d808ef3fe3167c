//! Families exported to ONNX, models of their own graph exported with newer operators, and models
//! too large for one file. What the files compute is judged by onnxruntime and transformers in
//! `cargo xtask interop`; the files that they agreed with are the ones that are written here.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use apr_testkit::locate;
use apr_testkit::peers::agreed;
use serde_json::{Value, json};

use crate::support::{Sandbox, f32s, judge, safetensors, safetensors_header, scrambled};

/// Names of the files of an encoder-decoder model that generates text.
const ENCODER_DECODER: &[&str] = &["decoder_model", "decoder_with_past_model", "encoder_model"];

/// Cases of `fixtures/families`, and the files that Optimum has of such a model with keys and
/// values of earlier tokens.
const CASES: [(&str, &[&str]); 6] = [
    ("bert", &["model"]),
    ("bert_classifier", &["model"]),
    ("distilbert", &["model"]),
    ("gpt2", &["model"]),
    ("t5", ENCODER_DECODER),
    ("whisper", ENCODER_DECODER),
];

/// Writes a Hugging Face folder of a case: its configuration, and weights that are made up.
pub(crate) fn made_up(sandbox: &Sandbox, case: &str) {
    let path = locate::fixture("families").join(case).with_extension("json");
    let json: Value =
        serde_json::from_slice(&std::fs::read(path).expect("a fixture")).expect("JSON");
    let shapes: BTreeMap<String, Vec<u64>> =
        serde_json::from_value(json["tensors"].clone()).expect("shapes");
    let mut drawn = 0;
    let tensors: Vec<_> = shapes
        .iter()
        .map(|(name, shape)| {
            // Weights of norms are near one.
            let middle = if shape.len() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
            let value = |_| {
                drawn += 1;
                let step = u16::try_from(scrambled(drawn) % 2001).expect("a small number");
                middle + (f32::from(step) - 1000.0) / 8192.0
            };
            let values: Vec<f32> = (0..shape.iter().product::<u64>()).map(value).collect();
            (name.as_str(), "F32", shape.as_slice(), f32s(&values))
        })
        .collect();
    sandbox.write(&format!("{case}/model.safetensors"), safetensors(&tensors));
    sandbox.write(&format!("{case}/config.json"), json["config"].to_string());
}

#[test]
fn exports_of_families_compute_what_transformers_computes() {
    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for (case, parts) in CASES {
        made_up(&sandbox, case);
        for (way, option) in [("plain", ""), ("past", "--with-past")] {
            let folder = format!("{case}_out/{way}");
            let run =
                sandbox.apr(&format!("export {case} --format onnx -o {folder} {option}")).ok();
            let is_idle =
                way == "past" && ["bert", "bert_classifier", "distilbert"].contains(&case);
            assert_eq!(
                run.to_string().contains("--with-past has no effect"),
                is_idle,
                "{case} {way}"
            );
            let entries = std::fs::read_dir(sandbox.path(&folder)).expect("a folder");
            let names =
                entries.filter_map(|entry| entry.expect("an entry").file_name().into_string().ok());
            let mut models: Vec<String> =
                names.filter_map(|name| Some(name.strip_suffix(".onnx")?.to_owned())).collect();
            models.sort();
            let wanted = parts.iter().filter(|part| way == "past" || !part.contains("with_past"));
            assert_eq!(models, wanted.copied().collect::<Vec<_>>(), "{folder}");
            files.extend(models.iter().map(|part| format!("{folder}/{part}.onnx")).map(|path| {
                let bytes = sandbox.read(&path);
                (path, bytes)
            }));
        }
    }
    for case in ["t5", "whisper"] {
        let folder = format!("{case}_out/merged");
        sandbox.apr(&format!("export {case} --format onnx -o {folder} --merged")).ok();
        let [encoder, merged] = ["encoder_model", "decoder_model_merged"]
            .map(|part| sandbox.read(&format!("{folder}/{part}.onnx")));
        let alone = sandbox.read(&format!("{case}_out/past/decoder_model.onnx"));
        // Both branches read the same weights; the second one's nodes are what is more.
        let weights = |bytes: &[u8]| {
            sandbox.write("one.onnx", bytes);
            let report = sandbox.apr("inspect one.onnx --json").ok().json();
            report["parameters"].as_u64().expect("a number")
        };
        // Each branch has its own numbers, such as an epsilon.
        assert!(weights(&merged) < weights(&alone) + 50, "{case}");
        assert!(!sandbox.path(&format!("{folder}/decoder_model.onnx")).exists());
        files.push((format!("{folder}/encoder_model.onnx"), encoder));
        files.push((format!("{folder}/decoder_model_merged.onnx"), merged));
    }
    for (case, said) in [("gpt2", "--merged has no effect"), ("bert", "--merged has no effect")] {
        let folder = format!("{case}_out/idle");
        let run = sandbox.apr(&format!("export {case} --format onnx -o {folder} --merged"));
        run.ok().says(&[said]);
    }
    agreed("onnx/families", &files, || {
        for (case, _) in CASES {
            judge("graphs.py", &["--exported", case, &format!("{case}_out")], &sandbox.path(""));
        }
    });
}

/// Names of inputs and outputs of a part.
fn ends(sandbox: &Sandbox, path: &str) -> (Vec<String>, Vec<String>) {
    let report = sandbox.run(&["graph", path, "--json"]).ok().json();
    let part = &report["parts"][0];
    let names = |list: &Value| -> Vec<String> {
        let ends = list.as_array().expect("a list").iter();
        ends.map(|end| end["name"].as_str().expect("a name").to_owned()).collect()
    };
    (names(&part["inputs"]), names(&part["outputs"]))
}

/// The names are those of Optimum 2.3, by which `optimum.onnxruntime` finds the inputs.
#[test]
fn inputs_and_outputs_are_called_as_optimum_calls_them() {
    let sandbox = Sandbox::new();
    let of_layers = |start: &str, sides: &[&str], layers: usize| -> Vec<String> {
        let layers = 0..layers;
        let of_layer = |layer| {
            sides.iter().flat_map(move |side| {
                ["key", "value"].map(|kind| format!("{start}.{layer}.{side}{kind}"))
            })
        };
        layers.flat_map(of_layer).collect()
    };
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let cases: [(&str, &str, &[&str], &[&str]); 6] = [
        ("t5", "encoder_model", &["input_ids", "attention_mask"], &["last_hidden_state"]),
        (
            "t5",
            "decoder_model",
            &["encoder_attention_mask", "input_ids", "encoder_hidden_states"],
            &["logits"],
        ),
        ("t5", "decoder_with_past_model", &["encoder_attention_mask", "input_ids"], &["logits"]),
        ("whisper", "encoder_model", &["input_features"], &["last_hidden_state"]),
        ("whisper", "decoder_model", &["input_ids", "encoder_hidden_states"], &["logits"]),
        ("whisper", "decoder_with_past_model", &["input_ids"], &["logits"]),
    ];
    for (case, part, inputs, outputs) in cases {
        if part == "encoder_model" {
            made_up(&sandbox, case);
            sandbox.apr(&format!("export {case} --format onnx -o {case}_out --with-past")).ok();
        }
        // Three layers; what the encoder gave goes in with the past, and comes out of the first
        // step alone.
        let past = |wanted: bool, start: &str, sides: &[&str]| match wanted {
            true => of_layers(start, sides, 3),
            false => Vec::new(),
        };
        let both = ["decoder.", "encoder."];
        let owned =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (found_inputs, found_outputs) = ends(&sandbox, &format!("{case}_out/{part}.onnx"));
        let with_past = part == "decoder_with_past_model";
        let inputs = [owned(inputs), past(with_past, "past_key_values", &both)].concat();
        let mut outputs = owned(outputs);
        outputs.extend(past(part == "decoder_model", "present", &both));
        outputs.extend(past(with_past, "present", &both[..1]));
        assert_eq!(sorted(found_inputs), sorted(inputs), "{case} {part}");
        assert_eq!(sorted(found_outputs), sorted(outputs), "{case} {part}");
    }
}

/// Returns the small files of many old versions in the collection: those of the `onnx` package.
fn older_models() -> Option<Vec<std::path::PathBuf>> {
    let folder = locate::shared_data("onnx/onnx_onnx__backend")?;
    let mut folders = vec![folder];
    let mut models = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|extension| extension == "onnx") => {
                    models.push(path);
                }
                false => {}
            }
        }
    }
    models.sort();
    Some(models)
}

#[test]
fn newer_operators_compute_the_same() {
    let Some(models) = older_models() else { return };
    let sandbox = Sandbox::new();
    let (mut files, mut pairs) = (Vec::new(), String::new());
    for model in &models {
        let name = model
            .parent()
            .and_then(Path::file_name)
            .and_then(|name| name.to_str())
            .expect("a plain name");
        let path = model.to_str().expect("a plain name");
        let target = format!("{name}.onnx");
        let run = sandbox.run(&["export", path, "-o", &target, "--opset", "21"]);
        if sandbox.path(&target).exists() {
            files.push((name.to_owned(), sandbox.read(&target)));
            pairs.push_str(&format!("{path}\t{target}\n"));
        } else {
            let said = run.fails(4, &["E003", "can't be converted to version 21"]).text();
            let reason = said
                .lines()
                .find(|line| line.contains("can't be converted"))
                .expect("a reason")
                .to_owned();
            files.push((name.to_owned(), reason.replace(path, "").into_bytes()));
        }
    }
    assert!(files.len() > 50);
    sandbox.write("pairs", &pairs);
    agreed("onnx/upgraded", &files, || {
        judge("onnx_upgrade.py", &["--pairs", "pairs"], &sandbox.path(""));
    });
}

/// Families in the words of each version, from the oldest that is written to the newest.
#[test]
fn every_version_of_the_operators_computes_the_same() {
    let sandbox = Sandbox::new();
    let (mut files, mut pairs) = (Vec::new(), String::new());
    let model = locate::fixture("tiny-llama");
    let model = model.to_str().expect("a plain name");
    sandbox.run(&["export", model, "-o", "17.onnx", "--precision", "fp32"]).ok();
    for opset in ["11", "12", "13", "14", "15", "16", "18", "24", "25"] {
        for (from, name) in [(model, "family"), ("17.onnx", "file")] {
            let path = format!("{name}_{opset}.onnx");
            let line = ["export", from, "-o", &path, "--precision", "fp32", "--opset", opset];
            sandbox.run(&line).ok();
            pairs.push_str(&format!("17.onnx\t{path}\n"));
            let bytes = sandbox.read(&path);
            files.push((path, bytes));
        }
    }
    sandbox.write("pairs", &pairs);
    agreed("onnx/versions", &files, || {
        judge("onnx_upgrade.py", &["--pairs", "pairs"], &sandbox.path(""));
    });
}

#[test]
fn operators_do_not_become_older_than_eleven() {
    let sandbox = Sandbox::new();
    let model = locate::fixture("tiny-llama");
    sandbox.run(&["export", model.to_str().expect("a plain name"), "-o", "m.onnx"]).ok();
    sandbox
        .apr("export m.onnx -o old.onnx --opset 10 --precision fp32")
        .fails(4, &["E003", "version 17 can be converted to versions 11 to"]);
    sandbox.apr("export m.onnx -o new.onnx --opset 21").ok();
    sandbox.apr("graph new.onnx").says(&["ai.onnx 21"]);
    sandbox
        .apr("graph m.onnx --opset 20 --with-past")
        .says(&["ai.onnx 20", "--with-past has no effect"]);
    // What travels in an .apr is converted too.
    sandbox.apr("convert m.onnx -o m.apr").ok();
    sandbox.apr("export m.apr -o also.onnx --opset 21").ok();
    assert!(sandbox.read("new.onnx") == sandbox.read("also.onnx"));
}

/// Writes a LLaMA of 2.4 GB whose weights are zeros in a sparse file.
fn large(sandbox: &Sandbox) {
    const HIDDEN: u64 = 1024;
    const INNER: u64 = 64;
    const WORDS: u64 = 600_000;
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![WORDS, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        (layer("input_layernorm"), vec![HIDDEN]),
        (layer("post_attention_layernorm"), vec![HIDDEN]),
        (layer("mlp.gate_proj"), vec![INNER, HIDDEN]),
        (layer("mlp.up_proj"), vec![INNER, HIDDEN]),
        (layer("mlp.down_proj"), vec![HIDDEN, INNER]),
    ];
    tensors.extend(
        ["q", "k", "v", "o"]
            .map(|kind| (layer(&format!("self_attn.{kind}_proj")), vec![HIDDEN, HIDDEN])),
    );
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let len = shape.iter().product::<u64>() * 4;
        header.insert(
            name,
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [end, end + len] }),
        );
        end += len;
    }
    let header = safetensors_header(&header.into());
    let len = header.len() as u64 + end;
    sandbox.write("large/model.safetensors", header);
    let file =
        File::options().write(true).open(sandbox.path("large/model.safetensors")).expect("ours");
    file.set_len(len).expect("it takes no room");
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN,
        "vocab_size": WORDS, "intermediate_size": INNER, "num_hidden_layers": 1,
        "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": true,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "hidden_act": "silu",
    });
    sandbox.write("large/config.json", config.to_string());
}

#[test]
fn weights_of_2_gib_and_more_lie_beside_their_graph() {
    let sandbox = Sandbox::new();
    large(&sandbox);
    let planned = sandbox.apr("export large -o m.onnx --dry-run --json").ok().json();
    let files: Vec<_> = planned["files"].as_array().expect("a list").iter().collect();
    let len = |name: &str| {
        files.iter().find(|file| file["name"] == name).and_then(|file| file["bytes"].as_u64())
    };
    assert!(len("m.onnx").is_some_and(|len| len < 1 << 20), "{files:?}");
    assert!(len("m.onnx_data").is_some_and(|len| len > 1 << 31), "{files:?}");
    let refused = ["E008", "an ONNX file less than 2 GiB", "without --external-data never"];
    sandbox.apr("export large -o m.onnx --external-data never").fails(4, &refused);
    assert!(!sandbox.path("m.onnx").exists());
}

/// Optimum's task names refer to the classes that it exports for them.
#[test]
fn a_task_may_be_called_as_optimum_calls_it() {
    let sandbox = Sandbox::new();
    let export = |case: &str, options: &str, out: &str| {
        sandbox.apr(&format!("export {case} --format onnx -o {out} {options}"))
    };
    // The case, Optimum's task, and the same said otherwise.
    for (case, task, options) in [
        ("bert_mlm", "fill-mask", ""),
        ("bert_mlm", "feature-extraction", "--task="),
        ("bert_classifier", "text-classification", ""),
        ("bert_tokens", "token-classification", ""),
        ("bert_qa", "question-answering", ""),
        ("gpt2", "text-generation", ""),
        ("gpt2", "text-generation-with-past", "--with-past"),
        ("gpt2", "causal-lm-with-past", "--with-past"),
        ("whisper", "automatic-speech-recognition-with-past", "--with-past"),
        ("wav2vec2_ctc", "automatic-speech-recognition", ""),
        ("vit_classifier", "image-classification", ""),
        ("clip", "zero-shot-image-classification", ""),
        ("t5", "text2text-generation-with-past", "--with-past"),
    ] {
        made_up(&sandbox, case);
        export(case, &format!("--task {task}"), &format!("{case}_{task}")).ok();
        export(case, options, &format!("{case}_{task}_same")).ok();
        for part in ["model", "encoder_model", "decoder_model", "decoder_with_past_model"] {
            let path = |folder: String| sandbox.path(&format!("{folder}/{part}.onnx"));
            let files = [path(format!("{case}_{task}")), path(format!("{case}_{task}_same"))]
                .map(|path| std::fs::read(path).ok());
            assert_eq!(files[0], files[1], "{case} {task} {part}");
        }
    }

    export("bert_mlm", "--task text-generatoin", "x")
        .fails(2, &["'text-generatoin'", "text-generation-with-past", "fill-mask"]);
    export("bert_mlm", "--task fill-mask-with-past", "x")
        .fails(2, &["'--task <TASK>'", "unknown task"]);
    let lacks = ["E003", "text-generation", "it has feature-extraction, fill-mask"];
    export("bert_mlm", "--task text-generation", "x").fails(4, &lacks);
    let lacks_pictures =
        ["E003", "zero-shot-image-classification'; it has feature-extraction, fill"];
    export("bert_mlm", "--task zero-shot-image-classification", "x").fails(4, &lacks_pictures);
    let script = "export bert_mlm --format torchscript -o x.pt --task text-generation";
    sandbox.apr(script).fails(4, &lacks);
    export("bert_mlm", "--task feature-extraction-with-past", "idle")
        .ok()
        .says(&["feature-extraction-with-past has no effect"]);
}

/// transformers 5 keeps the short vectors, Optimum's classes and transformers 4 what they become.
#[test]
fn a_latent_cache_may_be_keys_and_values_of_every_head() {
    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for case in ["deepseek_v2_lite", "deepseek_v3"] {
        made_up(&sandbox, case);
        let export = |way: &str, options: &str| {
            let line = format!("export {case} --format onnx -o {case}_out/{way} {options}");
            sandbox.apr(&line).ok()
        };
        let run = export("plain", "--latent-cache heads");
        run.says(&["no cache without --with-past, so --latent-cache has no effect"]);
        let run = export("past", "--with-past --latent-cache heads").to_string();
        assert!(!run.contains("--latent-cache has no effect"), "{run}");
        export("latents", "--with-past --latent-cache latents");
        export("default", "--with-past");
        let [heads, latents, default] = ["past", "latents", "default"]
            .map(|way| sandbox.read(&format!("{case}_out/{way}/model.onnx")));
        assert!(latents == default && heads != latents);
        files.push((format!("{case}_out/plain/model.onnx"), default));
        files.push((format!("{case}_out/past/model.onnx"), heads));
    }
    agreed("onnx/latent_cache", &files, || {
        for case in ["deepseek_v2_lite", "deepseek_v3"] {
            judge("graphs.py", &["--exported", case, &format!("{case}_out")], &sandbox.path(""));
        }
    });

    made_up(&sandbox, "gpt2");
    for (format, file) in [("onnx", "gpt2.onnx"), ("torchscript", "gpt2.pt")] {
        let line = format!("export gpt2 --format {format} -o {file} --latent-cache heads");
        sandbox
            .apr(&format!("{line} --with-past"))
            .ok()
            .says(&["the model has no latent attention, so --latent-cache has no effect"]);
    }
    sandbox
        .apr("convert gpt2.onnx -o again.onnx --latent-cache heads")
        .fails(2, &["the file has its own graph", "--latent-cache"]);
    sandbox.apr("export gpt2 -o again.gguf --latent-cache heads").fails(2, &["--latent-cache"]);
}
