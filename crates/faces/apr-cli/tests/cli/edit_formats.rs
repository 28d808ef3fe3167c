//! `apr edit` on files of other formats: what it changes, and that the rest stays where it is.

use std::fs;

use apr_testkit::locate::fixture;

use crate::support::{Sandbox, f32s, safetensors, tensors};

/// Two small models: `m.safetensors`, and `tiny.safetensors` of tiny-llama.
fn workshop() -> Sandbox {
    let (a, b) = (f32s(&[1.0, 2.0]), f32s(&[3.0, 4.0, 5.0, 6.0]));
    let file = safetensors(&[("a.weight", "F32", &[2], a), ("b.weight", "F32", &[2, 2], b)]);
    let tiny = fs::read(fixture("tiny-llama/model.safetensors")).expect("a fixture");
    Sandbox::new().with("m.safetensors", file).with("tiny.safetensors", tiny)
}

fn names(sandbox: &Sandbox, file: &str) -> Vec<String> {
    tensors(&sandbox.read(file)).into_keys().collect()
}

#[test]
fn a_safetensors_header_is_rewritten_in_place_where_it_fits() {
    let sandbox = workshop();
    let before = sandbox.read("m.safetensors");
    let length = u64::from_le_bytes(before[..8].try_into().expect("8 bytes"));
    let data = 8 + usize::try_from(length).expect("small");
    sandbox.apr("edit m.safetensors --rename a.weight=a.w").ok().says(&["changed in place"]);
    let after = sandbox.read("m.safetensors");
    assert_eq!((after.len(), &after[..8]), (before.len(), &before[..8]));
    assert_eq!(after[data..], before[data..]);
    assert_eq!(names(&sandbox, "m.safetensors"), ["a.w", "b.weight"]);

    // What does not fit moves the tensors, and their bytes stay.
    let note = "x".repeat(200);
    let report = sandbox.apr(&format!("edit m.safetensors --set note={note} --json")).ok().json();
    assert_eq!((&report["in_place"], &report["written"]), (&false.into(), &true.into()));
    let file = sandbox.read("m.safetensors");
    assert_eq!(file[file.len() - 24..], before[before.len() - 24..]);
    let metadata = sandbox.apr("inspect m.safetensors --json").ok().json();
    assert_eq!(metadata["metadata"]["safetensors"]["metadata"]["note"], note);
    sandbox.apr("edit m.safetensors --unset note").ok().says(&["changed in place"]);
    sandbox.apr("edit m.safetensors --unset note").fails(2, &["no key 'note'"]);
    sandbox.apr("edit m.safetensors --rename a.w=b.weight").fails(4, &["b.weight"]);
    sandbox.apr("validate m.safetensors").ok();
}

#[test]
fn tensors_are_renamed_by_expression_and_chosen_by_glob() {
    let sandbox = workshop();
    let all = names(&sandbox, "tiny.safetensors");
    sandbox
        .run(&[
            "edit",
            "tiny.safetensors",
            "--rename",
            r"^model\.layers\.(\d+)\.mlp\.=blk.\1.",
            "--rename",
            r"^model\.=m.",
            "-o",
            "renamed.safetensors",
        ])
        .ok();
    let found = names(&sandbox, "renamed.safetensors");
    let expected = all.iter().map(|name| match name.strip_prefix("model.layers.") {
        Some(rest) if rest[1..].starts_with(".mlp.") => {
            format!("blk.{}.{}", &rest[..1], &rest[6..])
        }
        _ => name.replacen("model.", "m.", 1),
    });
    let mut expected: Vec<String> = expected.collect();
    expected.sort();
    assert_eq!(found, expected);

    sandbox.apr("edit tiny.safetensors --keep *norm* -o norms.safetensors").ok();
    assert!(names(&sandbox, "norms.safetensors").iter().all(|name| name.contains("norm")));
    sandbox
        .apr("edit tiny.safetensors --keep *norm*")
        .fails(2, &["--keep would remove 16 of 21 tensors"]);
    sandbox.apr("edit tiny.safetensors --keep nothing*").fails(2, &["no tensor matches --keep"]);
    sandbox
        .apr("edit tiny.safetensors --rename lm_haed.weight=x")
        .fails(2, &["no such tensor", "lm_head.weight"]);
    sandbox.apr("edit tiny.safetensors --rename (x=y").fails(2, &["not a regular expression"]);
}

#[test]
fn arrays_become_tensors_of_every_format() {
    let sandbox = workshop();
    let array = fs::read(fixture("edit/arrays/matrix.float16.npy")).expect("a fixture");
    sandbox.write("matrix.npy", &array);
    sandbox.apr("convert m.safetensors -o m.apr").ok();
    sandbox.apr("convert m.safetensors -o m.pt").ok();
    for format in ["safetensors", "apr", "pt"] {
        sandbox.apr(&format!("edit m.{format} --add extra=matrix.npy -o out.{format} -f")).ok();
        sandbox.apr(&format!("convert out.{format} -o back.safetensors -f")).ok();
        let back = tensors(&sandbox.read("back.safetensors"));
        let (dtype, shape, bytes) = &back["extra"];
        assert_eq!((dtype, shape), (&"F16".into(), &serde_json::json!([3, 4])), "{format}");
        assert_eq!(*bytes, array[array.len() - 24..], "{format}");
        assert_eq!(back.len(), 3, "{format}");
    }
    sandbox
        .apr("edit m.safetensors --add a.weight=matrix.npy -o x.safetensors")
        .fails(4, &["a tensor has this name already"]);
    sandbox.apr("edit m.safetensors --drop a.* --add a.weight=matrix.npy -o x.safetensors").ok();
    sandbox
        .apr("edit m.safetensors --add x=matrix.npy --max-memory 100 -o y.safetensors")
        .fails(4, &["E008", "--max-memory"]);
    sandbox.apr("edit m.safetensors --add x=m.safetensors").fails(4, &["one array", "2 arrays"]);
    sandbox.write("cut.npy", &array[..100]);
    sandbox.apr("edit m.safetensors --add x=cut.npy").fails(4, &["cut.npy"]);
}

#[test]
fn properties_of_an_onnx_model_are_those_that_onnx_writes() {
    let sandbox = Sandbox::new();
    let model = fs::read(fixture("edit/properties.onnx")).expect("a fixture");
    sandbox.write("m.onnx", &model);
    let edit =
        ["edit", "m.onnx", "--set", "note=new = ä", "--unset", "gone", "--set", "licence=mit"];
    sandbox.run(&edit).ok().says(&["m.onnx: written"]);
    let expected = fs::read(fixture("edit/properties-set.onnx")).expect("a fixture");
    assert_eq!(sandbox.read("m.onnx"), expected);
    sandbox.apr("edit m.onnx --set licence=mit").ok().says(&["unchanged"]);
    sandbox.apr("edit m.onnx --unset gone").fails(4, &["no metadata property 'gone'", "m.onnx"]);
    sandbox
        .apr("edit m.onnx --rename w=v")
        .fails(2, &["refers to its tensors by name", "`apr convert MODEL --rename"]);
    assert_eq!(sandbox.read("m.onnx"), expected);
    sandbox.write("cut.onnx", &model[..60]);
    sandbox.apr("edit cut.onnx --set a=1").fails(4, &["cut.onnx"]);
}

#[test]
fn a_copy_of_an_onnx_model_stays_with_its_weights() {
    let sandbox = Sandbox::new();
    let tiny = fixture("tiny-llama");
    let tiny = tiny.to_str().expect("UTF-8");
    sandbox
        .run(&["export", tiny, "--format", "onnx", "--external-data", "always", "-o", "model"])
        .ok();
    fs::create_dir(sandbox.path("other")).expect("room");
    sandbox
        .apr("edit model/model.onnx --set a=1 -o other/model.onnx")
        .fails(1, &["weights are in files next to it", "other/model.onnx"]);
    sandbox.apr("edit model/model.onnx --set a=1 -o model/copy.onnx").ok();
    sandbox.apr("edit model/model.onnx --set a=1").ok().says(&["model.onnx: written"]);
    sandbox.apr("validate model/model.onnx").ok();
}

#[test]
fn a_folder_is_its_file_or_a_copy() {
    let sandbox = Sandbox::new();
    for entry in fs::read_dir(fixture("tiny-llama")).expect("a fixture").flatten() {
        let name = entry.file_name().into_string().expect("text");
        sandbox.write(&format!("tiny/{name}"), fs::read(entry.path()).expect("readable"));
    }
    let before = sandbox.read("tiny/model.safetensors");
    sandbox.apr("edit tiny --set note=1").ok().says(&["model.safetensors"]);
    let report = sandbox.apr("inspect tiny --json").ok().json();
    assert_eq!(report["metadata"]["safetensors"]["metadata"]["note"], "1");
    sandbox.apr("edit tiny --unset note").ok();
    assert_eq!(tensors(&sandbox.read("tiny/model.safetensors")), tensors(&before));

    let copy = sandbox.apr("edit tiny --rename lm_head.weight=head.weight -o copy");
    copy.ok().says(&["not copied: check.py, train.py"]);

    fs::create_dir(sandbox.path("packed")).expect("room");
    sandbox.apr("import tiny -o packed/model.apr").ok();
    sandbox.apr("edit packed --set note=1").ok().says(&["model.apr: changed in place"]);

    sandbox.apr("export tiny -o shards --shard-size 300KB").ok();
    sandbox.apr("edit shards --rename lm_head.weight=head.weight").fails(2, &["-o FOLDER"]);
    let shard = sandbox.files().into_iter().find(|file| file.contains("-00001-of-"));
    let shard = shard.expect("a shard");
    let before = sandbox.read(&shard);
    sandbox
        .apr(&format!("edit {shard} --rename (.*)=x.$1"))
        .fails(1, &["lists the tensors of this shard", "`apr edit shards -o FOLDER`"]);
    assert_eq!(sandbox.read(&shard), before);
    sandbox.apr("edit shards --rename lm_head.weight=head.weight -o renamed").ok();
    assert!(sandbox.path("renamed/model.safetensors.index.json").exists());
    assert!(sandbox.path("renamed/config.json").exists());
    let listed = sandbox.apr("tensors renamed --filter head.weight --json").ok().json();
    assert_eq!(listed["tensors"][0]["name"], "head.weight");
    assert_eq!(listed["tensor_count"], 21);
}

#[test]
fn what_can_not_be_edited_is_refused_with_the_reason() {
    let sandbox = workshop();
    sandbox.write("template", "{{ messages }}");
    sandbox
        .apr("edit m.safetensors --chat-template template")
        .fails(2, &["a safetensors file has no chat template"]);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    sandbox
        .apr(&format!("edit {folder} --chat-template template"))
        .fails(2, &["edit its chat_template.jinja"]);
    sandbox.apr("convert m.safetensors -o m.pt").ok();
    sandbox.apr("edit m.pt --set a=1").fails(2, &["does not store metadata"]);
    sandbox.write("keys.npy", fs::read(fixture("edit/arrays/row.float32.npy")).expect("a file"));
    sandbox.apr("edit keys.npy --rename array=x").fails(4, &["does not write it", "keys.npy"]);
    sandbox.write("junk", [7; 100]);
    sandbox.apr("edit junk --set a=1").fails(4, &["junk"]);
    sandbox.apr("edit nowhere --set a=1").fails(3, &["nowhere"]);
}

#[test]
fn a_conversion_chooses_and_renames_tensors_of_its_source() {
    let sandbox = workshop();
    sandbox
        .run(&[
            "convert",
            "tiny.safetensors",
            "--keep",
            "*norm*",
            "--rename",
            r"layers\.(\d)=blocks.\1",
            "-o",
            "some.safetensors",
        ])
        .ok();
    let found = names(&sandbox, "some.safetensors");
    assert_eq!(found.len(), 5);
    assert!(found.contains(&"model.blocks.1.input_layernorm.weight".to_owned()), "{found:?}");
    sandbox
        .apr("convert tiny.safetensors --drop nothing -o x.apr")
        .fails(2, &["no tensor matches --drop nothing"]);
    sandbox
        .apr("convert tiny.safetensors --drop *norm* --prune 0.5 -o x.apr")
        .fails(2, &["`apr edit` first"]);
    sandbox
        .apr("convert m.safetensors --rename a.weight=b.weight -o x.safetensors")
        .fails(4, &["two tensors would have this name", "b.weight"]);
}
