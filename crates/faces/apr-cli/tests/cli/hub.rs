//! Models on hubs and servers, looked at without a download.

use apr_testkit::hub::{Fault, Request, TestHub};
use apr_testkit::locate;
use serde_json::json;

use crate::support::{Run, Sandbox, safetensors_header, small_safetensors, sound};

/// The fixture that most tests look at, on a hub.
pub(crate) fn hub_with_llama() -> TestHub {
    let hub = TestHub::start();
    hub.put_folder("tiny/llama", &locate::fixture("tiny-llama"));
    hub
}

/// Runs a command against a hub.
pub(crate) fn at(hub: &TestHub, sandbox: &Sandbox, line: &str) -> Run {
    sandbox.with_env(&[("HF_ENDPOINT", hub.url())], line)
}

/// Bytes of bodies that were sent.
pub(crate) fn sent(requests: &[Request]) -> u64 {
    requests.iter().map(|request| request.sent).sum()
}

#[test]
fn a_model_on_a_hub_is_what_it_is_in_a_folder() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let folder = locate::fixture("tiny-llama");
    let local = folder.to_str().expect("UTF-8");
    for (command, options) in [
        ("inspect", "--full"),
        ("tensors", "--stats"),
        ("validate", ""),
        ("explain", ""),
        ("lint", ""),
    ] {
        let pinned = format!("hf://tiny/llama@{}", hub.commit("tiny/llama"));
        let remote = at(&hub, &sandbox, &format!("{command} {pinned} {options} --json"));
        let here = sandbox.run(
            &[&[command, local, "--json"][..], &options.split_whitespace().collect::<Vec<_>>()]
                .concat(),
        );
        assert_eq!(remote.code, here.code, "{remote}");
        // As JSON has it, without the quotation marks.
        let quoted = json!(local).to_string();
        let remote = remote.text().replace(&pinned, "MODEL");
        let here = here.text().replace(quoted.trim_matches('"'), "MODEL");
        assert_eq!(remote, here, "{command}");
    }
    at(&hub, &sandbox, &format!("diff hf://tiny/llama {local} --exit-code")).ok();
}

#[test]
fn a_baseline_of_a_repository_accepts_its_current_files() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let evil = std::fs::read(locate::fixture("scan/evil_2.pkl")).expect("a fixture");
    hub.put("tiny/llama", "old/training_args.bin", evil.clone());
    let line = "scan hf://tiny/llama";
    at(&hub, &sandbox, line).fails(5, &["dangerous"]);
    at(&hub, &sandbox, &format!("{line} --write-baseline b.json")).clean();
    let report = at(&hub, &sandbox, &format!("{line} --baseline b.json --json")).ok().json();
    assert_eq!((&report["verdict"], &report["accepted"]), (&"clean".into(), &1.into()), "{report}");

    // The same name with other bytes is another file.
    hub.put("tiny/llama", "old/training_args.bin", [&evil[..], b"\n"].concat());
    at(&hub, &sandbox, &format!("{line} --baseline b.json")).fails(5, &["dangerous"]);
}

#[test]
fn a_repository_is_scanned_file_by_file() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let evil = std::fs::read(locate::fixture("scan/evil_2.pkl")).expect("a fixture");
    hub.put("tiny/llama", "old/training_args.bin", evil);
    let report = at(&hub, &sandbox, "scan hf://tiny/llama --json").fails(5, &[]).json();
    let files = report["files"].as_array().expect("a list");
    let verdict_of = |end: &str| {
        let found = files.iter().find(|file| file["path"].as_str().unwrap_or("").ends_with(end));
        found.unwrap_or_else(|| panic!("{end} is in {report}"))["verdict"].clone()
    };
    assert_eq!(verdict_of("tiny/llama/old/training_args.bin"), "dangerous");
    assert_eq!(verdict_of("tiny/llama/model.safetensors"), "clean");
    assert_eq!(verdict_of("tiny/llama/config.json"), "clean");
    let old = at(&hub, &sandbox, "scan hf://tiny/llama/old --json").fails(5, &[]).json();
    assert_eq!(old["files"].as_array().map(Vec::len), Some(1));
    at(&hub, &sandbox, "scan hf://tiny/llama/model.safetensors").ok();

    // What is let through is scanned, and nothing is said of a choice of one model.
    let chosen = at(&hub, &sandbox, "scan hf://tiny/llama --exclude old/* --exclude *.py --json");
    let chosen = chosen.ok().json();
    let paths = chosen["files"].to_string();
    assert!(paths.contains("model.safetensors") && !paths.contains("old/"), "{paths}");
    at(&hub, &sandbox, "scan hf://tiny/llama --include *.none").fails(2, &["no file matches"]);
    let quantized = std::fs::read(locate::fixture("edit/digests.gguf")).expect("a fixture");
    for name in ["m-Q8_0.gguf", "m-Q4_K_M.gguf"] {
        hub.put("tiny/several", name, quantized.clone());
    }
    let several = at(&hub, &sandbox, "scan hf://tiny/several").ok();
    assert!(!several.text().contains("selected"), "{several}");
}

#[test]
fn a_file_of_a_repository_and_a_page_of_it_name_the_same_model() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.branch("tiny/llama", "refs/pr/1");
    let url = hub.url();
    for name in [
        "hf://tiny/llama/model.safetensors".to_owned(),
        "hf://tiny/llama@main/model.safetensors".to_owned(),
        format!("hf://tiny/llama@{}/model.safetensors", hub.commit("tiny/llama")),
        "hf://tiny/llama@refs/pr/1/model.safetensors".to_owned(),
        format!("{url}/tiny/llama/resolve/main/model.safetensors"),
        format!("{url}/tiny/llama/blob/main/model.safetensors"),
        format!("{url}/tiny/llama"),
    ] {
        let report = at(&hub, &sandbox, &format!("inspect {name} --json")).ok().json();
        assert_eq!(report["family"]["title"], "LLaMA", "{name}: {report}");
    }
}

#[test]
fn looking_at_a_huge_model_moves_little_in_few_requests() {
    let len = 100_000_000_000_u64;
    let count = 1000;
    let each = len / count;
    let entries = (0..count).map(|number| {
        let (begin, name) =
            (number * each, format!("model.layers.{number}.self_attn.q_proj.weight"));
        (name, json!({ "dtype": "U8", "shape": [each], "data_offsets": [begin, begin + each] }))
    });
    let header = safetensors_header(&serde_json::Value::Object(entries.collect()));
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_sparse("big/model", "model.safetensors", &header, header.len() as u64 + len);
    hub.put("big/model", "config.json", br#"{"model_type": "toy"}"#);
    hub.put("big/model", "tokenizer.json", vec![b' '; 3_000_000]);
    let report = at(&hub, &sandbox, "inspect hf://big/model --json").ok().json();
    assert_eq!(report["tensor_count"], 1000);
    let requests = hub.requests();
    assert!(
        requests.len() < 6 && sent(&requests) < 1_000_000,
        "{} bytes: {requests:#?}",
        sent(&requests)
    );
}

#[test]
fn statistics_of_one_tensor_move_its_bytes_and_no_others() {
    let each = 3_000_000_u64;
    let entry = |number: u64| {
        json!({
            "dtype": "U8", "shape": [each], "data_offsets": [number * each, (number + 1) * each],
        })
    };
    let header = safetensors_header(&json!({ "a": entry(0), "b": entry(1), "c": entry(2) }));
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_sparse("big/model", "model.safetensors", &header, header.len() as u64 + 3 * each);
    at(&hub, &sandbox, "inspect hf://big/model").ok();
    let before = sent(&hub.requests());
    at(&hub, &sandbox, "tensors hf://big/model --filter b --stats").ok();
    let after = sent(&hub.requests());
    assert!(after - before <= each, "{before} and then {after}");
}

#[test]
fn an_apr_file_and_a_gguf_file_at_any_address_are_read_by_ranges() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_file("/models/m.apr", sound().build());
    hub.put_file("/models/s.safetensors", small_safetensors());
    sandbox.write("s.safetensors", small_safetensors());
    sandbox.apr("convert s.safetensors -o s.gguf --arch auto").says(&[]);
    let url = hub.url();
    sandbox.apr(&format!("inspect {url}/models/m.apr")).ok().says(&["Tensors:     3"]);
    sandbox.apr(&format!("validate {url}/models/m.apr")).ok();
    sandbox.apr(&format!("diff {url}/models/s.safetensors s.safetensors --exit-code")).ok();
    sandbox.apr(&format!("debug {url}/models/s.safetensors --hex --limit 16")).ok();
    let requests = hub.requests();
    assert!(
        requests.iter().all(|request| request.range.is_some() && request.status == 206),
        "{requests:#?}"
    );
}

#[test]
fn shards_beside_an_index_at_an_address_are_found() {
    let sandbox = Sandbox::new();
    sandbox.write("s.safetensors", small_safetensors());
    sandbox.apr("export s.safetensors -o shards --format safetensors --shard-size 100").ok();
    let hub = TestHub::start();
    for file in sandbox.files().iter().filter(|file| file.starts_with("shards/")) {
        hub.put_file(&format!("/{file}"), sandbox.read(file));
        hub.put("in/shards", file.trim_start_matches("shards/"), sandbox.read(file));
    }
    let index = format!("{}/shards/model.safetensors.index.json", hub.url());
    sandbox.apr(&format!("diff {index} s.safetensors --exit-code")).ok();
    at(&hub, &sandbox, "diff hf://in/shards s.safetensors --exit-code").ok();
}

#[test]
fn each_shard_of_a_model_is_requested_once() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    sandbox.write("s.safetensors", small_safetensors());
    sandbox.apr("export s.safetensors -o shards --format safetensors --shard-size 100").ok();
    for file in sandbox.files().iter().filter(|file| file.starts_with("shards/")) {
        hub.put("in/shards", file.trim_start_matches("shards/"), sandbox.read(file));
    }
    let shards = sandbox.files().iter().filter(|file| file.contains("-of-")).count();
    at(&hub, &sandbox, "inspect hf://in/shards").ok();
    let requests = hub.requests();
    let weights = requests.iter().filter(|request| request.at_store).count();
    assert!(shards > 1 && weights == shards, "{shards}: {requests:#?}");
}

#[test]
fn http_is_limited_to_this_machine_unless_it_is_requested() {
    let sandbox = Sandbox::new();
    sandbox
        .apr("inspect http://example.com/m.safetensors")
        .fails(1, &["E007", "http is not encrypted", "--insecure"]);
}

#[test]
fn a_location_that_does_not_name_a_model_is_rejected() {
    let sandbox = Sandbox::new();
    for name in ["hf://", "hf://a/b/../c", "hf://datasets/a/b", "https://", "s3://"] {
        sandbox.apr(&format!("inspect {name}")).fails(4, &["E001"]);
    }
}

#[test]
fn commands_that_change_files_state_that_they_take_local_files() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    for line in [
        "edit hf://tiny/llama/model.safetensors --set a=b -o x.safetensors",
        "license show hf://tiny/llama",
    ] {
        at(&hub, &sandbox, line).fails(3, &["this command takes local files only"]);
    }
    let run = at(&hub, &sandbox, "inspect hf://tiny/nothing").fails(3, &["hf://tiny/nothing"]);
    for advice in ["local files", "for a model of the hub"] {
        assert!(!run.stderr.contains(advice), "{run}");
    }
}

#[test]
fn a_server_without_ranges_sends_the_whole_file_and_apr_reports_that() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let long = crate::support::safetensors(&[("a", "U8", &[100_000], vec![7; 100_000])]);
    hub.put_file("/m.safetensors", long);
    hub.fault("/m.safetensors", Fault::NoRanges, 0, 100);
    let run = sandbox.apr(&format!("inspect {}/m.safetensors", hub.url())).ok();
    run.says(&[
        &format!(
            "{} does not support range requests: each file is read from its \
                         beginning, as far as needed",
            hub.url()
        ),
        "Tensors:     1",
    ]);
    assert_eq!(hub.requests().len(), 1);
}
