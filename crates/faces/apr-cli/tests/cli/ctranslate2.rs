//! Models of CTranslate2: faster-whisper's folders are run and converted as the folders of
//! transformers that they were made of.

use std::fs;

use apr_testkit::locate;

use crate::support::Sandbox;

/// A sandbox with the folders `ours` of transformers, and `theirs` and `int8` of CTranslate2.
fn folders() -> Sandbox {
    let sandbox = Sandbox::new();
    let source = locate::fixture("run/tiny-whisper");
    for entry in fs::read_dir(&source).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        sandbox.write(&format!("ours/{name}"), fs::read(entry.path()).expect("a file"));
    }
    for (folder, fixture) in [("theirs", "whisper"), ("int8", "int8")] {
        for name in ["model.bin", "config.json"] {
            let file = locate::fixture(&format!("ctranslate2/{fixture}/{name}"));
            sandbox.write(&format!("{folder}/{name}"), fs::read(file).expect("the fixture"));
        }
        let tokenizer = fs::read(source.join("tokenizer.json")).expect("a file");
        sandbox.write(&format!("{folder}/tokenizer.json"), tokenizer);
    }
    sandbox
}

#[test]
fn a_whisper_transcribes_as_the_folder_that_it_was_made_of() {
    let sandbox = folders();
    let sound = locate::fixture("sound/a.wav").display().to_string();
    let text = |folder: &str| {
        let report = sandbox.run(&["run", folder, "--input", &sound, "--json"]).ok().json();
        report["results"][0]["text"].as_str().map(str::to_owned)
    };
    let ours = text("ours").expect("a text");
    assert_eq!(text("theirs").as_ref(), Some(&ours));
    assert!(text("int8").is_some_and(|text| !text.is_empty()));
}

#[test]
fn a_whisper_becomes_the_weights_that_it_was_made_of() {
    let sandbox = folders();
    sandbox.apr("convert theirs -o back --format safetensors").ok();
    assert_eq!(sandbox.read("back/model.safetensors"), sandbox.read("ours/model.safetensors"));
    let (ours, back) = (sandbox.read("ours/config.json"), sandbox.read("back/config.json"));
    let ours: serde_json::Value = serde_json::from_slice(&ours).expect("JSON");
    let back: serde_json::Value = serde_json::from_slice(&back).expect("JSON");
    for (key, value) in back.as_object().expect("an object") {
        if key != "num_hidden_layers" {
            assert_eq!(&ours[key], value, "{key}");
        }
    }
    sandbox.apr("inspect int8").ok().says(&["CTranslate2", "Whisper", "35,432"]);
    sandbox.apr("scan theirs").ok().says(&["clean"]);
}

#[test]
fn a_damaged_file_is_an_error_that_names_the_tensor() {
    let sandbox = folders();
    let file = sandbox.read("theirs/model.bin");
    sandbox.write("theirs/model.bin", &file[..60_000]);
    sandbox.apr("inspect theirs").fails(4, &["E002", "model.bin", "ends within"]);
}
