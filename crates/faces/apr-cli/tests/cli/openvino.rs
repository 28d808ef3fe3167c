//! Models of OpenVINO, by every command that reads tensors.

use apr_testkit::hub::TestHub;
use apr_testkit::locate::fixture;

use crate::hub::at;
use crate::support::Sandbox;

fn models() -> Sandbox {
    let sandbox = Sandbox::new();
    for name in ["kinds", "lowered/images/openvino_model", "lowered/halves/openvino_model"] {
        for extension in ["xml", "bin"] {
            let name = format!("{name}.{extension}");
            let file = std::fs::read(fixture("openvino").join(&name)).expect("the fixture");
            sandbox.write(name.strip_prefix("lowered/").unwrap_or(&name), file);
        }
    }
    sandbox
}

#[test]
fn a_model_is_inspected_validated_and_compared() {
    let sandbox = models();
    sandbox.apr("inspect images").ok().says(&["OpenVINO IR", "openvino.name"]);
    let report = sandbox.apr("inspect kinds.xml --json").ok().json();
    assert_eq!(report["format"], "openvino", "{report}");
    sandbox.apr("tensors kinds.xml").ok().says(&["f8e4m3", "nf4", "u1", "bf16"]);
    sandbox.apr("validate images").ok();
    sandbox.apr("scan images").ok();
    sandbox.apr("lint images").ok();
    sandbox.apr("explain images").ok();
    for target in ["out.safetensors", "out.apr"] {
        sandbox.apr(&format!("convert images -o {target}")).ok();
        sandbox.apr(&format!("diff images {target}")).ok().says(&["SAME"]);
    }
}

#[test]
fn the_graph_is_shown_kept_and_translated() {
    let sandbox = models();
    let shown = ["openvino::Convolution", "operators of OpenVINO (domain 'openvino') are shown"];
    sandbox.apr("graph images").ok().says(&shown);
    sandbox.apr("import images -o i.apr").ok();
    sandbox.apr("graph i.apr").ok().says(&shown);
    sandbox.apr("graph i.apr --opset 18").ok().says(&["ConvTranspose", "groupnorm"]);
    sandbox.write("x.json", "[[1, 2], [3, 4]]");
    sandbox.apr("trace halves -i x.json").ok().says(&["states"]);
    sandbox.apr("import halves -o h.apr").ok();
    let whole = sandbox.apr("run halves -i x.json").ok().stdout;
    assert_eq!(sandbox.apr("run h.apr -i x.json").ok().stdout, whole);
}

#[test]
fn layers_that_are_not_translated_are_listed_and_nothing_is_written() {
    let sandbox = models();
    let xml = String::from_utf8(sandbox.read("images/openvino_model.xml")).expect("text");
    let xml = xml.replace("type=\"LRN\"", "type=\"Mine\"");
    let xml = xml.replace("mode=\"blocks_first\"", "mode=\"other\"");
    sandbox.write("images/openvino_model.xml", xml);
    let message = "OpenVINO operators that apr does not translate to ONNX: DepthToSpace, Mine, \
                   SpaceToDepth";
    sandbox.apr("convert images -o m.onnx").fails(4, &["E003", message]);
    assert!(!sandbox.path("m.onnx").exists());
    sandbox.apr("graph images").ok().says(&["openvino::Mine"]);
}

#[test]
fn hostile_and_incomplete_models_are_errors_that_name_the_file() {
    let sandbox = models();
    let xml = String::from_utf8(sandbox.read("kinds.xml")).expect("text");
    let entity = xml.replace("<net ", "<!DOCTYPE net [<!ENTITY a SYSTEM '/etc/passwd'>]>\n<net ");
    sandbox.write("entity.xml", entity);
    sandbox.write("entity.bin", sandbox.read("kinds.bin"));
    sandbox.apr("inspect entity.xml").fails(4, &["E001", "entity.xml", "declares a type or"]);
    sandbox.apr("scan entity.xml").says(&["DANGEROUS", "reads a file or a URL"]);
    let library = xml.replace("type=\"Const\"", "library=\"x.so\" type=\"Const\"");
    sandbox.write("library.xml", library);
    sandbox.apr("scan library.xml").says(&["DANGEROUS", "OpenVINO loads the library 'x.so'"]);
    sandbox.write("alone.xml", xml);
    sandbox.apr("inspect alone.xml").fails(3, &["alone.bin"]);
}

#[test]
fn a_folder_with_a_graph_of_any_name_is_its_model() {
    let sandbox = models();
    for end in ["xml", "bin"] {
        sandbox.write(&format!("net/kinds.{end}"), sandbox.read(&format!("kinds.{end}")));
    }
    sandbox.apr("diff net kinds.xml --exit-code").ok();
}

#[test]
fn a_model_of_a_hub_is_the_graph_and_the_weights_beside_it() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let folder = fixture("openvino/lowered/images");
    for end in ["xml", "bin"] {
        let name = format!("openvino_model.{end}");
        let bytes = std::fs::read(folder.join(&name)).expect("a fixture");
        hub.put("tiny/images", &name, bytes);
        // Repositories have their tokenizers as graphs, too.
        hub.put("tiny/images", &format!("openvino_tokenizer.{end}"), b"other");
    }
    let report = at(&hub, &sandbox, "inspect hf://tiny/images --json").ok().json();
    assert_eq!(report["format"], "openvino", "{report}");
    let here = folder.join("openvino_model.xml").display().to_string();
    at(&hub, &sandbox, &format!("diff hf://tiny/images {here} --exit-code")).ok();
}
