//! Core ML models and packages, by every command that reads tensors.

use std::fs;
use std::path::Path;

use apr_testkit::locate::fixture;

use crate::support::Sandbox;

/// Copies a folder of fixtures, with the folders in it.
fn copy(sandbox: &Sandbox, from: &Path, to: &str) {
    for entry in fs::read_dir(from).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let to = format!("{to}/{name}");
        if path.is_dir() {
            copy(sandbox, &path, &to);
        } else {
            sandbox.write(&to, fs::read(&path).expect("a fixture"));
        }
    }
}

fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    copy(&sandbox, &fixture("coreml"), "coreml");
    sandbox
}

#[test]
fn a_network_is_inspected_validated_compared_and_converted() {
    let sandbox = models();
    sandbox.apr("inspect coreml/network.mlmodel").ok().says(&["Core ML model", "An author"]);
    let report = sandbox.apr("inspect coreml/network.mlmodel --json").ok().json();
    assert_eq!(report["format"], "coreml", "{report}");
    assert_eq!(report["metadata"]["coreml"]["user_defined"]["key"], "value");
    sandbox.apr("tensors coreml/network.mlmodel").ok().says(&[
        "conv/weight",
        "[4, 3, 3, 3]",
        "both/backward/inputGateWeightMatrix",
    ]);
    sandbox.apr("validate coreml/network.mlmodel").ok();
    sandbox
        .apr("convert coreml/network.mlmodel -o out.safetensors")
        .ok()
        .says(&["model.graph (companion file)"]);
    sandbox.apr("diff coreml/network.mlmodel out.safetensors").ok().says(&["SAME"]);
    sandbox.apr("lint coreml/network.mlmodel").ok();
    sandbox.apr("convert coreml/table3.mlmodel -o table.safetensors").ok();
    sandbox.apr("diff coreml/table3.mlmodel table.safetensors").ok().says(&["SAME"]);
    sandbox.apr("validate coreml/others.mlmodel").ok();
    sandbox.apr("inspect coreml/others.mlmodel").ok().says(&["pipelineClassifier"]);
}

#[test]
fn a_package_is_a_folder_with_a_model_and_its_weights() {
    let sandbox = models();
    let package = "coreml/program18.mlpackage";
    let report = sandbox.apr(&format!("inspect {package} --json")).ok().json();
    assert_eq!(report["format"], "coreml-package", "{report}");
    sandbox.apr(&format!("tensors {package}")).ok().says(&["int4_blocks", "f16", "[6, 32]"]);
    sandbox.apr(&format!("validate {package}")).ok();
    sandbox.apr(&format!("import {package} -o p.apr")).ok();
    sandbox.apr(&format!("diff {package} p.apr")).ok().says(&["SAME"]);
    sandbox.apr(&format!("convert {package} -o p.safetensors")).ok();
    let model = format!("{package}/Data/com.apple.CoreML/model.mlmodel");
    sandbox.apr(&format!("diff {model} p.safetensors")).ok().says(&["SAME"]);
    sandbox.apr(&format!("scan {package}")).ok();

    let weights = format!("{package}/Data/com.apple.CoreML/weights/weight.bin");
    fs::remove_file(sandbox.path(&weights)).expect("it was there");
    sandbox.apr(&format!("inspect {package}")).fails(3, &["E007", "weights/weight.bin"]);
}

#[test]
fn code_that_a_loading_program_would_run_is_found() {
    let sandbox = models();
    let report = sandbox.apr("scan coreml/hazards.mlmodel");
    report.says(&["MySwish", "c/choice/ifBranch/swish", "../elsewhere/other.mlmodelc"]);
    sandbox.apr("scan coreml/network.mlmodel").ok();
}

#[test]
fn layers_and_operations_are_shown() {
    let sandbox = models();
    sandbox.apr("graph coreml/network.mlmodel").ok().says(&[
        "coreml::convolution",
        "operators of Core ML (domain 'coreml') are shown and not checked",
    ]);
    sandbox
        .apr("graph coreml/network.mlmodel --node conv")
        .ok()
        .says(&["tensor conv/weight", "kernelSize = [3, 3]"]);
    sandbox.apr("graph coreml/program18.mlpackage").ok().says(&["coreml::linear"]);
    sandbox.apr("import coreml/program18.mlpackage -o p.apr").ok();
    sandbox.apr("graph p.apr").ok().says(&["coreml::linear"]);
    sandbox.apr("graph coreml/others.mlmodel").ok().says(&["inner/model0"]);
    sandbox
        .apr("convert coreml/network.mlmodel -o n.onnx")
        .fails(4, &["E003", "operators that apr does not translate to ONNX", "convolution"]);
}
