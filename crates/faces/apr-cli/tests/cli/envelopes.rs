//! Every command has a JSON report, and each names what it is about.

use serde_json::{Value, json};

use crate::support::{Sandbox, small_safetensors};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures");

/// A report with the two keys that every document begins with.
fn document(output: &[u8]) -> Value {
    let document: Value = serde_json::from_slice(output).expect("one JSON object");
    assert!(document["schema"].is_string() && document["command"].is_string(), "{document}");
    document
}

#[test]
fn commands_that_write_text_have_a_report() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let pages = document(&sandbox.apr("man pages --json").ok().stdout);
    assert_eq!((&pages["schema"], &pages["output"]), (&"apr.man/1".into(), &"pages".into()));
    let files = pages["files"].as_array().expect("files");
    assert!(files.len() > 40 && files.iter().all(|file| file["bytes"].as_u64() > Some(0)));

    let script = document(&sandbox.apr("completions bash --json").ok().stdout);
    assert_eq!(script["shell"], "bash");
    assert!(script["script"].as_str().is_some_and(|text| text.contains("APR_COMPLETE")));

    let drawn = sandbox.apr(&format!("graph {FIXTURES}/tiny-llama -o g.svg --json")).ok();
    let drawn = document(&drawn.stdout);
    assert_eq!(drawn["schema"], "apr.graph.drawing/1");
    assert_eq!((&drawn["output"], &drawn["drawing"]), (&"g.svg".into(), &"svg".into()));
    assert!(sandbox.read("g.svg").starts_with(b"<svg"));
    let aside = sandbox.apr(&format!("graph {FIXTURES}/tiny-llama --format dot --json")).ok();
    assert!(aside.stdout.starts_with(b"digraph"), "{aside}");
    assert_eq!(document(aside.stderr.as_bytes())["output"], "-");

    let plan = sandbox.apr("plan -o p.json --parts 2 validate m.safetensors --json").ok();
    let plan = document(&plan.stdout);
    assert_eq!((&plan["output"], &plan["part_count"]), (&"p.json".into(), &2.into()));
    assert_eq!(plan["path"], "m.safetensors");
    let diff = format!("plan -o d.json --parts 2 diff m.safetensors {FIXTURES}/tiny-llama --json");
    let plan = document(&sandbox.apr(&diff).ok().stdout);
    assert_eq!(plan["path"], "m.safetensors");
    assert_eq!(plan["other_path"], format!("{FIXTURES}/tiny-llama"));
}

/// `path` is the model and `output` what was written, whatever the command.
#[test]
fn reports_of_commands_that_write_have_the_model_and_the_output() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors -o m.apr").ok();
    sandbox.apr("keygen -o key").ok();
    let llama = format!("{FIXTURES}/tiny-llama");
    let licensed = "license issue m.apr --licensee A --expires 2099-01-31 --key key";
    for (line, path, output) in [
        ("edit m.apr --set a=1 -o e.apr", "m.apr", "e.apr"),
        ("edit m.safetensors --set a=1 -o e.safetensors", "m.safetensors", "e.safetensors"),
        ("sign m.apr --key key -o s.apr", "m.apr", "s.apr"),
        (&format!("{licensed} -o l.apr"), "m.apr", "l.apr"),
        ("tensors m.apr -o arrays", "m.apr", "arrays"),
        (&format!("run {llama} --tokens 1 --want logits -o l.npy"), &llama, "l.npy"),
        (&format!("run {llama} --prompt 1 --want features -o f.npz"), &llama, "f.npz"),
        (&format!("trace {llama} --tokens 1 --export t.json"), &llama, "t.json"),
        (&format!("trace {llama} --tokens 1 --dump-activations d"), &llama, "d"),
    ] {
        let report = document(&sandbox.apr(&format!("{line} --json")).ok().stdout);
        assert_eq!((&report["path"], &report["output"]), (&json!(path), &json!(output)), "{line}");
        assert!(report.get("folder").is_none(), "{report}");
    }
    let both = format!("trace {llama} --tokens 1 --export u.json --dump-activations v --json");
    let report = document(&sandbox.apr(&both).ok().stdout);
    assert_eq!((&report["output"], &report["other_output"]), (&json!("v"), &json!("u.json")));
    // In place, nothing else is written.
    for line in ["edit m.apr --set a=1", "sign m.apr --key key", licensed] {
        let report = document(&sandbox.apr(&format!("{line} --force --json")).stdout);
        let report = match report.get("error") {
            // Only some have --force.
            Some(_) => document(&sandbox.apr(&format!("{line} --json")).ok().stdout),
            None => report,
        };
        assert_eq!(report["path"], "m.apr", "{line}");
        assert!(report.get("output").is_none(), "{report}");
    }
}

#[test]
fn runs_and_traces_report_the_peak_memory_of_the_process() {
    let sandbox = Sandbox::new();
    for line in ["run $L --tokens 1 --max-tokens 1", "run $L --tokens 1 --want logits", "trace $L"]
    {
        let line = line.replace("$L", &format!("{FIXTURES}/tiny-llama"));
        let more = if line.starts_with("trace") { "--tokens 1 --json" } else { "--json" };
        let report = sandbox.apr(&format!("{line} {more}")).ok().json();
        if cfg!(target_os = "linux") {
            assert!(report["peak_memory_bytes"].as_u64() > Some(1 << 20), "{report}");
        }
    }
}

#[test]
fn errors_in_the_arguments_name_their_command() {
    let sandbox = Sandbox::new();
    for (line, command) in [
        ("inspect --json", "inspect"),
        ("lora extract a --json", "lora extract"),
        ("plan -o p.json convert a -o b --json", "plan"),
    ] {
        let run = sandbox.apr(line).fails(2, &[]);
        assert_eq!(document(&run.stdout)["command"], command, "{run}");
    }
    let none = document(&sandbox.apr("--json").fails(2, &[]).stdout);
    assert_eq!(none["error"]["message"], "a command is missing: `apr help` lists all");
}

#[test]
fn reports_of_one_model_name_it() {
    let sandbox = Sandbox::new();
    let llama = format!("{FIXTURES}/tiny-llama");
    for line in [
        format!("tensors {llama} --hist lm_head.weight"),
        format!("tensors {llama} --values model.norm.weight"),
        format!("debug {llama} --hex --tensor model.norm.weight"),
        format!("explain {llama} --tensor model.norm.weight"),
        format!("graph {llama} --node mask/causal"),
        format!("run {llama} --prompt 12+34= --max-tokens 1"),
    ] {
        let run = sandbox.apr(&format!("{line} --json"));
        let document = document(&run.stdout);
        match document.get("error") {
            // The graph has no such node: other tests look at one.
            Some(_) => assert!(line.contains("--node"), "{run}"),
            None => assert_eq!(document["path"], llama.as_str(), "{line}"),
        }
    }

    let written = sandbox.apr(&format!("convert {llama} -o m.gguf --json")).ok().json();
    assert_eq!((&written["path"], &written["output"]), (&json!(llama), &json!("m.gguf")));
    assert_eq!(written["format"], "safetensors");
    let planned = sandbox.apr(&format!("convert {llama} -o n.gguf --dry-run --json")).ok().json();
    assert_eq!((&planned["path"], &planned["output"]), (&json!(llama), &json!("n.gguf")));
}

#[test]
fn reports_of_several_texts_name_them() {
    let sandbox = Sandbox::new();
    let line = format!("run {FIXTURES}/tiny-llama --prompt 12+34= --prompt 1+1= --max-tokens 2");
    for more in ["", " --batch 1"] {
        let reports = sandbox.apr(&format!("{line}{more} --json")).ok().reports();
        let of: Vec<_> = reports.iter().map(|it| (&it["index"], &it["input"])).collect();
        assert_eq!(of, [(&json!(0), &json!("12+34=")), (&json!(1), &json!("1+1="))]);
    }
}
