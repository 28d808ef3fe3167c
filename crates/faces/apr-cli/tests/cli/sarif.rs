//! `apr validate --sarif`: what code scanning services take.

use std::fs;

use apr_testkit::locate;
use serde_json::Value;

use crate::families::TinyModel;
use crate::support::{Run, Sandbox};

/// The log on standard output.
#[track_caller]
fn log(run: &Run) -> Value {
    serde_json::from_slice(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"))
}

/// The results of the log `out.sarif`, which must be one that the format allows.
#[track_caller]
fn results(sandbox: &Sandbox) -> Vec<Value> {
    let log: Value = serde_json::from_slice(&sandbox.read("out.sarif")).expect("a log is JSON");
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].as_str().is_some_and(|schema| schema.contains("sarif-2.1.0")), "{log}");
    let [run] = &log["runs"].as_array().expect("runs")[..] else { panic!("{log}") };
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "apr");
    let rules: Vec<&Value> =
        driver["rules"].as_array().expect("rules").iter().map(|rule| &rule["id"]).collect();
    let results = run["results"].as_array().expect("results").clone();
    for result in &results {
        assert!(rules.contains(&&result["ruleId"]), "{result}");
        assert!(["error", "warning"].iter().any(|&level| result["level"] == level), "{result}");
        assert!(
            result["message"]["text"].as_str().is_some_and(|text| !text.is_empty()),
            "{result}"
        );
        let place = &result["locations"][0]["physicalLocation"];
        assert!(
            place["artifactLocation"]["uri"].as_str().is_some_and(|uri| !uri.contains(' ')),
            "{result}"
        );
    }
    results
}

fn byte_offset(result: &Value) -> Option<u64> {
    result["locations"][0]["physicalLocation"]["region"]["byteOffset"].as_u64()
}

#[test]
fn a_nan_is_a_result_with_rule_level_place_and_tensor() {
    let name = "encoder.layer.0.attention.self.query.weight";
    let sandbox = TinyModel::new("bert").sandbox();
    sandbox.apr("validate m/model.safetensors --sarif out.sarif").clean().says(&["VALID"]);
    assert_eq!(results(&sandbox), [Value::Null; 0]);

    sandbox
        .write("m/model.safetensors", TinyModel::new("bert").first(name, f32::NAN).safetensors());
    sandbox.apr("validate m/model.safetensors --sarif out.sarif").fails(5, &["INVALID"]);
    let results = results(&sandbox);
    let [result] = &results[..] else { panic!("{results:?}") };
    assert_eq!((&result["ruleId"], &result["level"]), (&"apr/finite".into(), &"error".into()));
    assert_eq!(
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
        "m/model.safetensors"
    );
    assert_eq!(result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"], name);
    // There it is, at the place that was named.
    let offset =
        byte_offset(result).and_then(|offset| usize::try_from(offset).ok()).expect("a place");
    assert_eq!(sandbox.read("m/model.safetensors")[offset..offset + 4], f32::NAN.to_le_bytes());
}

#[test]
fn errors_and_warnings_have_their_levels() {
    let model = TinyModel::new("whisper")
        .map("model.encoder.layer_norm.weight", |gamma| 11.0 * gamma)
        .map("model.encoder.layers.0.fc1.weight", |weight| weight + 1.0);
    let sandbox = model.without("model.encoder.conv1.bias").sandbox();
    sandbox.apr("validate m --sarif out.sarif").fails(5, &["INVALID"]);
    let results = results(&sandbox);
    let found = |rule: &str, level: &str, tensor: &str| {
        results.iter().any(|result| {
            let name = &result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"];
            result["ruleId"] == rule && result["level"] == level && *name == *tensor
        })
    };
    assert!(found("apr/physics", "error", "model.encoder.layer_norm.weight"), "{results:?}");
    assert!(found("apr/physics", "warning", "model.encoder.layers.0.fc1.weight"), "{results:?}");
    assert!(found("apr/shapes", "error", "model.encoder.conv1.bias"), "{results:?}");
    // The two layers also differ from each other, which is one result.
    assert_eq!(results.len(), 4, "{results:?}");
}

#[test]
fn a_name_with_a_space_is_a_reference_all_the_same() {
    let sandbox = Sandbox::new().with("my model.safetensors", crate::support::small_safetensors());
    let sandbox = sandbox.with("bad model.pt", b"cos\nsystem\n(S'touch canary'\ntR.");
    sandbox.run(&["validate", "my model.safetensors", "--sarif", "out.sarif"]).clean();
    results(&sandbox);
    sandbox.run(&["validate", "bad model.pt", "--sarif", "out.sarif"]).fails(5, &["DANGEROUS"]);
    let uri = |result: &Value| {
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].clone()
    };
    assert!(results(&sandbox).iter().all(|result| uri(result) == "bad%20model.pt"));
}

#[test]
fn code_that_a_malicious_pickle_would_run_is_listed_with_its_bytes() {
    let Some(folder) = locate::shared_data("malicious") else { return };
    for (file, offsets) in [
        ("mmaitre314_picklescan__malicious1_v0.pkl", [("import", "eval", 0), ("call", "eval", 43)]),
        ("mmaitre314_picklescan__malicious1_v3.pkl", [("import", "eval", 2), ("call", "eval", 41)]),
    ] {
        let sandbox =
            Sandbox::new().with("m.pkl", fs::read(folder.join(file)).expect("it is shared"));
        sandbox.apr("validate m.pkl --sarif out.sarif").fails(5, &["DANGEROUS", "INVALID"]);
        let results = results(&sandbox);
        assert_eq!(
            (&results[0]["ruleId"], &results[0]["level"]),
            (&"apr/refused".into(), &"error".into())
        );
        assert_eq!(results.len(), 3, "{file}: {results:?}");
        for (result, (action, name, offset)) in results[1..].iter().zip(offsets) {
            assert_eq!(result["ruleId"], format!("pickle/dangerous-{action}"), "{file}");
            assert_eq!(
                (&result["level"], byte_offset(result)),
                (&"error".into(), Some(offset)),
                "{file}"
            );
            assert!(
                result["message"]["text"].as_str().is_some_and(|text| text.contains(name)),
                "{file}: {result}"
            );
        }
    }
}

#[test]
fn a_file_that_does_not_open_is_a_result_too() {
    let sandbox = Sandbox::new().with("m.safetensors", b"\x08\0\0\0\0\0\0\0no json!");
    sandbox.apr("validate m.safetensors --sarif log.json").fails(4, &["E001"]);
    let log: serde_json::Value = serde_json::from_slice(&sandbox.read("log.json")).expect("JSON");
    assert_eq!(log["runs"][0]["results"][0]["ruleId"], "apr/E001");
}

#[test]
fn a_byte_is_one_of_the_file_it_is_in() {
    let sandbox = crate::families::TinyModel::new("bert")
        .first("encoder.layer.0.output.dense.weight", f32::NAN)
        .sandbox();
    sandbox.apr("validate m --sarif log.json").fails(5, &["NaN"]);
    let log: serde_json::Value = serde_json::from_slice(&sandbox.read("log.json")).expect("JSON");
    let place = &log["runs"][0]["results"][0]["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "m/model.safetensors");
}

#[test]
fn a_log_on_standard_output_is_all_that_is_there() {
    let sandbox =
        TinyModel::new("bert").first("encoder.layer.0.output.dense.weight", f32::NAN).sandbox();
    for line in ["validate m --sarif -", "validate m --sarif - --json"] {
        let run = sandbox.apr(line);
        assert_eq!((run.code, &log(&run)["version"]), (Some(5), &"2.1.0".into()), "{run}");
        assert!(
            run.stderr.contains(if line.ends_with("json") {
                "\"valid\": false"
            } else {
                "INVALID"
            }),
            "{run}"
        );
    }
    let sandbox = Sandbox::new().with("m.safetensors", b"\x08\0\0\0\0\0\0\0no json!");
    let run = sandbox.apr("validate m.safetensors --sarif -");
    assert_eq!(
        (run.code, &log(&run)["runs"][0]["results"][0]["ruleId"]),
        (Some(4), &"apr/E001".into()),
        "{run}"
    );
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[test]
fn nothing_is_hidden_in_a_log_or_a_report() {
    // A control sequence of one character, marks that turn the direction of text, tags.
    let hostile = "x\u{9b}2K\u{202e}y\u{2066}\u{e0041}\u{7f}";
    let tensors = [(hostile, "F32", &[2_u64][..], crate::support::f32s(&[1.0, f32::NAN]))];
    let sandbox = Sandbox::new().with("m.safetensors", crate::support::safetensors(&tensors));
    let hides = |text: &str| {
        text.chars()
            .any(|c| c != '\n' && (c.is_control() || "\u{202e}\u{2066}\u{e0041}".contains(c)))
    };
    for line in [
        "tensors m.safetensors --json",
        "validate m.safetensors --json",
        "validate m.safetensors --sarif -",
        "convert m.safetensors -o m.apr --json",
    ] {
        let run = sandbox.apr(line);
        assert!(!hides(&run.text()) && run.text().contains("\\udb40\\udc41"), "{line}: {run}");
        // To a program it is the same name.
        assert!(log(&run).to_string().contains(hostile), "{line}: {run}");
    }
}
