//! `apr distill`: students learn, trainings go on, and what can't be learnt from is refused.

use std::fs;

use apr_testkit::locate;
use serde_json::{Value, json};

use crate::support::{Sandbox, tensors};

/// A folder with tiny-llama and sums to learn from, and one with tiny-bert.
fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    for (from, to) in [("tiny-llama", "llama"), ("run/tiny-bert", "bert")] {
        for entry in fs::read_dir(locate::fixture(from)).expect("a fixture") {
            let path = entry.expect("a file").path();
            if path.is_dir() {
                continue;
            }
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            if !name.ends_with(".py") {
                sandbox.write(&format!("{to}/{name}"), fs::read(&path).expect("a file"));
            }
        }
    }
    let sum = |row: usize| {
        let (a, b) = (row * 37 % 100, row * 61 % 89);
        format!("{{\"text\": \"{a}+{b}={}\\n\"}}\n", a + b)
    };
    sandbox.write("sums.jsonl", (0..120).map(sum).collect::<String>());
    sandbox
}

#[test]
fn a_student_with_fewer_layers_learns_the_outputs_of_its_teacher() {
    let sandbox = sandbox();
    let report = sandbox
        .apr(
            "distill llama --distill-layers 1 --data sums.jsonl -o student --format safetensors \
             --steps 12 --lr 2e-3 --json",
        )
        .ok()
        .json();
    let found = &report["distillation"];
    let loss = |which: &str| found[which]["loss"].as_f64().expect("a loss");
    assert!(loss("after") < 0.7 * loss("before"), "{found}");
    assert_eq!((found["rows"].as_u64(), found["held_out"].as_u64()), (Some(114), Some(6)));
    assert_eq!(found["layers"].to_string(), "[0]");
    assert!(found["after"]["agreement"].as_f64() > found["before"]["agreement"].as_f64());

    // The result is a model like any other.
    let config = String::from_utf8(sandbox.read("student/config.json")).expect("text");
    assert!(config.contains("\"num_hidden_layers\": 1"), "{config}");
    assert!(config.contains("\"torch_dtype\": \"float32\""), "{config}");
    let weights = tensors(&sandbox.read("student/model.safetensors"));
    assert!(weights.values().all(|(dtype, _, _)| dtype == "F32"));
    let shown = sandbox.apr("inspect student --json").ok().json();
    let text = shown["metadata"]["safetensors"]["metadata"]["distillation"].as_str();
    let said: Value = serde_json::from_str(text.expect("a text")).expect("JSON");
    assert_eq!((&said["layers"], &said["steps"]), (&json!([0]), &found["best_step"]), "{said}");
    sandbox.apr("validate student").ok();
    sandbox.apr("run student --prompt 1+2= --max-tokens 3").ok();
}

#[test]
fn labels_states_and_smaller_widths_go_together() {
    let sandbox = sandbox();
    let report = sandbox
        .apr(
            "distill llama --distill tiny --data sums.jsonl -o tiny.apr --steps 6 --alpha 0.5 \
             --hidden-loss 0.1 --quantize q8_0 --json",
        )
        .ok()
        .json();
    let found = &report["distillation"];
    assert!(found["after"]["loss"].as_f64() < found["before"]["loss"].as_f64());
    assert_eq!(report["widths"]["neurons"].to_string(), "[256,128]");
    let shown = sandbox.apr("inspect tiny.apr --json").ok().json();
    assert_eq!(shown["metadata"]["distillation"]["alpha"], 0.5);
}

#[test]
fn an_encoder_learns_the_states_of_its_teacher() {
    let sandbox = sandbox();
    let rows: String =
        (0..20).map(|row| format!("{{\"tokens\": [2, {}, 5, 3]}}\n", 6 + row)).collect();
    sandbox.write("tokens.jsonl", rows);
    let report = sandbox
        .apr("distill bert --distill small --data tokens.jsonl -o small.apr --steps 20 --json")
        .ok()
        .json();
    let found = &report["distillation"];
    let cosine = |which: &str| found[which]["cosine"].as_f64().expect("a cosine");
    assert!(cosine("after") > cosine("before") + 0.1, "{found}");
}

#[test]
fn a_training_goes_on_to_the_same_bits() {
    let sandbox = sandbox();
    let line = "distill llama --distill-layers 1 --data sums.jsonl --steps 8 --seed 3";
    sandbox.apr(&format!("{line} -o whole.safetensors")).ok();
    let report = sandbox.apr(&format!("{line} -o a.safetensors --checkpoint run --json")).json();
    assert_eq!(report["made_folders"], serde_json::json!(["run"]));
    sandbox
        .apr(&format!("{line} -o b.safetensors --checkpoint run"))
        .fails(2, &["contains a training state: pass --resume"]);
    sandbox.apr(&format!("{line} -o c.safetensors --checkpoint run --resume")).ok();
    let whole = sandbox.read("whole.safetensors");
    assert_eq!(sandbox.read("a.safetensors"), whole);
    assert_eq!(sandbox.read("c.safetensors"), whole);
    sandbox
        .apr(
            "distill llama --distill-layers 1 --data sums.jsonl --steps 9 -o d.safetensors \
             --checkpoint run --resume",
        )
        .fails(4, &["state.safetensors", "of another distillation"]);
    sandbox
        .apr(&format!("{line} -o e.safetensors --checkpoint none --resume"))
        .fails(2, &["none has no training state"]);
}

#[test]
fn a_training_stays_until_its_output_is_there() {
    let sandbox = sandbox();
    sandbox.apr("canary create llama --prompt 1+1= -o canary.json").ok();
    let line = "distill llama --distill-layers 1 --data sums.jsonl --steps 4";
    sandbox.apr(&format!("{line} -o whole.safetensors")).ok();
    assert!(!sandbox.path("whole.safetensors.training").exists());

    // Before the training, and not after it.
    sandbox
        .apr(&format!("{line} -o whole.safetensors"))
        .fails(1, &["the file already exists", "-f (--overwrite)"]);
    assert!(!sandbox.path("whole.safetensors.training").exists());

    // The output has no configuration, so that it can't be run.
    sandbox
        .apr(&format!("{line} -o s.safetensors --canary canary.json"))
        .fails(4, &["the weights have no configuration"]);
    assert!(!sandbox.path("s.safetensors").exists());
    assert!(sandbox.path("s.safetensors.training/state.safetensors").exists());
    sandbox
        .apr(&format!("{line} -o s.safetensors"))
        .fails(2, &["s.safetensors.training contains a training state: pass --resume"]);
    sandbox.apr(&format!("{line} -o s.safetensors --resume")).ok();
    assert_eq!(sandbox.read("s.safetensors"), sandbox.read("whole.safetensors"));
    assert!(!sandbox.path("s.safetensors.training").exists());

    sandbox
        .apr(&format!("{line} -o - --format safetensors --resume"))
        .fails(2, &["--resume needs --checkpoint DIR here"]);
}

#[test]
fn what_a_student_cannot_learn_from_is_refused_before_anything_is_written() {
    let sandbox = sandbox();
    sandbox.write("empty.jsonl", "\n");
    sandbox.write("other.jsonl", "{\"text\": \"1+1=2\"}\n{\"prompt\": \"a\"}\n");
    sandbox.write("beyond.jsonl", "{\"tokens\": [1, 259]}\n");
    sandbox.write("larger.json", "{\"num_hidden_layers\": 3}");
    sandbox.write("wider.json", "{\"hidden_size\": 256, \"num_hidden_layers\": 1}");
    let line = |more: &str| format!("distill llama -o x.apr {more}");
    for (more, code, message) in [
        ("", 2, "nothing to distill"),
        ("--distill-layers 1", 2, "--data <FILE>"),
        ("--distill-layers 1 --data empty.jsonl", 4, "it does not contain rows"),
        ("--distill-layers 1 --data other.jsonl", 4, "line 2: expected"),
        ("--distill-layers 1 --data beyond.jsonl", 4, "token 259 is not one of the model's 259"),
        ("--distill-layers 1 --data absent.jsonl", 3, "absent.jsonl"),
        (
            "--distill-layers 3 --data sums.jsonl",
            2,
            "can't begin with the layers of a teacher of 2",
        ),
        ("--distill-layers 0,1 --data sums.jsonl", 2, "as large as its teacher"),
        ("--distill larger.json --data sums.jsonl", 2, "3 layers, and the teacher 2"),
        ("--distill wider.json --data sums.jsonl", 2, "'hidden_size' is 256"),
        ("--distill huge --data sums.jsonl", 2, "takes small, tiny, or a CONFIG.json"),
        ("--distill small --data sums.jsonl --prune 0.5", 2, "--prune and --distill change"),
        ("--data sums.jsonl", 2, "nothing to distill"),
        ("--distill small --data sums.jsonl --lr 0", 2, "expected a positive number"),
    ] {
        sandbox.apr(&line(more)).fails(code, &[message]);
    }
    sandbox
        .apr(&line("--distill small --data sums.jsonl --steps 9 --lr 1e30"))
        .fails(4, &["step 2: the first value that is not finite is 'layers.0/"])
        .says(&["the last training state is in x.apr.training", "--resume"]);
    assert!(!sandbox.path("x.apr").exists());
    fs::remove_dir_all(sandbox.path("x.apr.training")).expect("its state");
    sandbox
        .apr("convert llama -o x.apr --data sums.jsonl")
        .fails(2, &["pass --distill or --distill-layers"]);
    sandbox
        .apr("plan --parts 2 -o p.json convert llama -o x.apr --distill small --data sums.jsonl")
        .fails(2, &["--distill", "distillation can't be split"]);
    assert!(!sandbox.files().iter().any(|name| name.starts_with("x.apr")));
}

#[test]
fn importance_is_shown_by_layer_and_tensor() {
    let sandbox = sandbox();
    let few: Vec<u8> = sandbox
        .read("sums.jsonl")
        .split_inclusive(|byte| *byte == b'\n')
        .take(4)
        .flatten()
        .copied()
        .collect();
    sandbox.write("few.jsonl", few);
    let line = "explain llama --importance --data few.jsonl";
    sandbox.apr(line).ok().says(&["21 tensors on 4 rows", "saliency", "lm_head.weight"]);
    let report = sandbox.apr(&format!("{line} --json")).ok().json();
    let saliency = |at: usize| report["layers"][at]["saliency"].as_f64().expect("a number");
    assert!(saliency(0) > 0.0 && saliency(1) > 0.0, "{report}");
    assert_eq!(report["tensors"].as_array().map(Vec::len), Some(21));
    for layer in report["units"].as_array().expect("layers") {
        let count = |key: &str| layer[key].as_array().map(Vec::len);
        assert_eq!((count("groups"), count("neurons")), (Some(2), Some(256)));
    }
    sandbox.apr(line).ok().says(&["heads, least and most", "neurons, least and most"]);
    sandbox.apr("explain llama --importance").fails(2, &["--data <FILE>"]);
    sandbox
        .apr("explain bert --importance --data few.jsonl")
        .fails(2, &["the model continues none"]);
}

#[test]
fn layers_and_neurons_can_be_selected_by_their_effect() {
    let sandbox = sandbox();
    let line = "distill llama --data sums.jsonl --steps 10 --lr 3e-4 -f -o student.apr --json";
    let run = |rest: &str| sandbox.apr(&format!("{line} {rest}"));
    let report = run("--distill-layers 1 --distill-by effect").ok().json();
    let influence = report["layers"]["influence"].as_array().expect("numbers");
    let influence: Vec<f64> = influence.iter().filter_map(Value::as_f64).collect();
    assert_eq!(influence.len(), 2);
    let kept = usize::from(influence[1] > influence[0]);
    assert_eq!(report["distillation"]["layers"], json!([kept]));
    assert_eq!(report["layers"]["dropped"], json!([1 - kept]));

    sandbox.write("narrow.json", "{\"intermediate_size\": 128}");
    let by_gradients = run("--distill narrow.json --distill-by effect").ok().json();
    assert_eq!(by_gradients["widths"]["method"], "fisher");
    let by_magnitude = run("--distill narrow.json").ok().json();
    assert_eq!(by_magnitude["widths"]["method"], "magnitude");
    assert_ne!(by_gradients["widths"]["layers"], by_magnitude["widths"]["layers"]);

    run("--distill-layers 0, --distill-by effect")
        .says(&["--distill-by has no effect: the layers are listed"]);
    sandbox
        .apr("distill bert --distill CONFIG -o b.apr --data sums.jsonl --distill-by size")
        .fails(2, &["spacing", "effect"]);
}

#[test]
fn a_step_that_does_not_fit_the_memory_is_computed_again_layer_by_layer() {
    let sandbox = sandbox();
    let line = "distill llama --distill CONFIG --data sums.jsonl --steps 3 --batch 120 --lr 1e-4 \
                --json";
    sandbox.write("narrow.json", "{\"intermediate_size\": 128}");
    let line = line.replace("CONFIG", "narrow.json");
    let whole = sandbox.apr(&format!("{line} -o whole.safetensors")).ok().json();
    assert_eq!(whole["distillation"].get("recomputed"), None);
    let again = sandbox.apr(&format!("{line} -o again.safetensors --max-memory 32M")).ok().json();
    assert_eq!(again["distillation"]["recomputed"], true);
    assert_eq!(sandbox.read("again.safetensors"), sandbox.read("whole.safetensors"));
    sandbox
        .apr(&format!("{line} -o less.safetensors --max-memory 20M"))
        .fails(4, &["E008", "fewer than 120 rows"]);
}

/// A folder with a fixture of two parts.
fn two_parts(fixture: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(locate::fixture(fixture)).expect("a fixture") {
        let path = entry.expect("a file").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        sandbox.write(&format!("teacher/{name}"), fs::read(&path).expect("a file"));
    }
    sandbox
}

#[test]
fn a_decoder_loses_layers_and_its_encoder_stays() {
    let sandbox = two_parts("run/tiny-t5");
    let row = |row: usize| {
        format!("{{\"prompt\": \"what is {row}\", \"completion\": \"it is {}\"}}\n", row * 7 % 40)
    };
    sandbox.write("rows.jsonl", (0..40).map(row).collect::<String>());
    let line = "distill teacher --distill-layers 1 --data rows.jsonl -o student --format \
                safetensors --steps 20 --lr 5e-3 --json";
    let report = sandbox.apr(line).ok().json();
    let found = &report["distillation"];
    let loss = |which: &str| found[which]["loss"].as_f64().expect("a loss");
    assert!(loss("after") < 0.95 * loss("before"), "{found}");
    assert_eq!(found["frozen"], json!(["shared.weight"]));
    assert_eq!((&report["layers"]["of_decoder"], &found["layers"]), (&json!(true), &json!([0])));
    let config: Value = serde_json::from_slice(&sandbox.read("student/config.json")).expect("JSON");
    assert_eq!((&config["num_layers"], &config["num_decoder_layers"]), (&json!(2), &json!(1)));

    // The encoder is the teacher's to the bit, and what is left of the decoder is not.
    let teacher = tensors(&sandbox.read("teacher/model.safetensors"));
    let student = tensors(&sandbox.read("student/model.safetensors"));
    for (name, (_, _, bytes)) in &student {
        let is_frozen = name.starts_with("encoder.") || name == "shared.weight";
        assert_eq!(&teacher[name].2 == bytes, is_frozen, "{name}");
    }
    sandbox.apr("validate student").ok();
    sandbox.apr("run student --prompt hello --max-tokens 3").ok();

    // A file of prompts alone: the teacher writes what is learnt.
    sandbox.write("prompts.txt", "one two\nthree\nfour five six\n");
    let line = "distill teacher --distill small --data prompts.txt -o by_teacher.apr --steps 20 \
                --lr 5e-3 --json";
    let report = sandbox.apr(line).ok().json();
    assert_eq!(report["distillation"]["written"], 3);
}

#[test]
fn a_student_learns_the_transcriptions_of_its_teacher() {
    let sandbox = two_parts("run/tiny-whisper");
    for name in ["a.wav", "b.wav"] {
        let bytes = fs::read(locate::fixture("sound").join(name)).expect("a sound");
        sandbox.write(&format!("clips/{name}"), bytes);
    }
    let settings: Value =
        serde_json::from_slice(&sandbox.read("teacher/generation_config.json")).expect("JSON");
    let mut settings = settings.as_object().cloned().expect("an object");
    settings.insert("alignment_heads".to_owned(), json!([[0, 1], [1, 0], [1, 2]]));
    sandbox.write("teacher/generation_config.json", json!(settings).to_string());
    sandbox.write(
        "clips/rows.jsonl",
        "{\"audio\": \"a.wav\", \"text\": \"one\"}\n{\"audio\": \"b.wav\", \"language\": \"en\"}\n",
    );
    let line = "distill teacher --distill-layers 1 --data clips/rows.jsonl -o student --format \
                safetensors --steps 12 --lr 5e-3 --json";
    let report = sandbox.apr(line).ok().json();
    let found = &report["distillation"];
    let loss = |which: &str| found[which]["loss"].as_f64().expect("a loss");
    assert!(loss("after") < 0.8 * loss("before"), "{found}");
    assert_eq!((&found["written"], &found["rows"]), (&json!(1), &json!(2)));
    let changed = json!(["decoder_layers", "alignment_heads"]);
    assert_eq!(report["layers"]["configuration"], changed);
    let settings: Value =
        serde_json::from_slice(&sandbox.read("student/generation_config.json")).expect("JSON");
    assert_eq!(settings["alignment_heads"], json!([[0, 1]]));
    sandbox.apr("run student --input clips/a.wav --max-tokens 3").ok();
}

#[test]
fn unsuitable_training_data_of_a_decoder_are_rejected() {
    let sandbox = two_parts("run/tiny-t5");
    sandbox.write("texts.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
    sandbox.write("tokens.jsonl", "{\"tokens\": [5], \"labels\": [126]}\n");
    sandbox.write("rows.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    for (options, code, message) in [
        ("--distill small --data texts.jsonl", 4, "line 2: expected \"prompt\" or \"tokens\""),
        ("--distill small --data tokens.jsonl", 4, "token 126 is not one of the model's 126"),
        ("--distill tiny --data rows.jsonl", 2, "only have fewer decoder layers"),
        ("--distill-layers 1-1 --data rows.jsonl", 4, "layer 0 can't be dropped"),
        (
            "--distill small --distill-by effect --data rows.jsonl",
            2,
            "a separate encoder and decoder",
        ),
    ] {
        let line = format!("distill teacher {options} -o student.apr");
        sandbox.apr(&line).fails(code, &[message]);
        assert!(!sandbox.path("student.apr").exists());
    }

    let sandbox = two_parts("run/tiny-whisper");
    let short = fs::read(locate::fixture("sound").join("a.wav")).expect("a sound");
    let (header, samples) = short.split_at(44);
    let samples = samples.repeat(10);
    let len = u32::try_from(samples.len()).expect("a length");
    let mut long = [header, &samples].concat();
    long[4..8].copy_from_slice(&(len + 36).to_le_bytes());
    long[40..44].copy_from_slice(&len.to_le_bytes());
    sandbox.write("long.wav", long);
    sandbox.write("long.txt", "long.wav\n");
    sandbox.write("absent.txt", "absent.wav\n");
    for (data, code, message) in [
        ("long.txt", 4, "longer than the 1 s of the model's input (line 1 of the data)"),
        ("absent.txt", 3, "absent.wav: "),
    ] {
        let line = format!("distill teacher --distill small --data {data} -o student.apr");
        sandbox.apr(&line).fails(code, &[message]);
    }
}

/// A reranker gives one number for a pair, of which every softmax is 1.
#[test]
fn a_student_learns_the_score_of_a_reranker() {
    let sandbox = Sandbox::new();
    let all = fs::read_to_string(locate::fixture("run/rerankers.json")).expect("the fixture");
    let all: Value = serde_json::from_str(&all).expect("JSON");
    crate::run_rerankers::write(&sandbox, "teacher", &all["models"]["bert"]);
    let row =
        |row: usize| format!("{{\"text\": \"city {row}\", \"text_pair\": \"people {row}\"}}\n");
    sandbox.write("pairs.jsonl", (0..40).map(row).collect::<String>());
    let line = "distill teacher --distill-layers 1 --data pairs.jsonl -o small.apr --steps 20 --lr \
                1e-3 --json";
    let report = sandbox.apr(line).ok().json();
    let found = &report["distillation"];
    let loss = |which: &str| found[which]["loss"].as_f64().expect("a loss");
    assert!(loss("before") > 0.0 && loss("after") < loss("before"), "{found}");
    assert!(found["after"]["agreement"].is_null(), "{found}");
}
