//! Round trips between formats: byte for byte where nothing was to change.

use std::fs;

use apr_testkit::{corrupt, locate};

use crate::support::{Sandbox, f32s, model_folder, safetensors, small_safetensors, sound};

#[test]
fn a_folder_survives_import_and_export_byte_for_byte() {
    let sandbox = Sandbox::new();
    let files = model_folder(&sandbox, "in");
    sandbox.apr("import in -o m.apr").clean();
    sandbox.apr("validate m.apr --strict").clean();
    sandbox.apr("export m.apr -o out").clean();
    for (name, bytes) in &files {
        assert!(sandbox.read(&format!("out/{name}")) == *bytes, "{name}");
    }
    assert_eq!(fs::read_dir(sandbox.path("out")).expect("a folder").count(), 7);
    // A weights file brings its neighbours along.
    sandbox.apr("import in/model.safetensors -o n.apr").clean();
    assert!(sandbox.read("n.apr") == sandbox.read("m.apr"));
    // Through the container once more, nothing changes.
    sandbox.apr("convert m.apr -o again.apr").clean();
    assert!(sandbox.read("again.apr") == sandbox.read("m.apr"));
}

#[test]
fn the_trained_fixture_survives_import_and_export_byte_for_byte() {
    let fixture = locate::fixture("tiny-llama");
    let sandbox = Sandbox::new();
    let source = fixture.to_str().expect("a plain path");
    sandbox.run(&["import", source, "-o", "m.apr"]).ok();
    sandbox.apr("validate m.apr --strict").clean();
    sandbox.apr("export m.apr -o out").clean();
    let names = sandbox.files();
    let written: Vec<_> = names.iter().filter_map(|name| name.strip_prefix("out/")).collect();
    assert!(
        ["config.json", "model.safetensors", "tokenizer.json"]
            .iter()
            .all(|name| written.contains(name))
    );
    for name in written {
        let expected = fs::read(fixture.join(name)).expect("it came from there");
        assert!(sandbox.read(&format!("out/{name}")) == expected, "{name}");
    }
}

#[test]
fn a_single_file_survives_byte_for_byte() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    for options in ["", "--align 32"] {
        sandbox.apr(&format!("convert m.safetensors -o m.apr -f {options}")).clean();
        sandbox.apr("export m.apr -o back.safetensors -f").clean();
        assert_eq!(sandbox.read("back.safetensors"), small_safetensors());
    }
    sandbox.apr("convert m.safetensors -o copy.safetensors").clean();
    assert_eq!(sandbox.read("copy.safetensors"), small_safetensors());
}

#[test]
fn shards_are_joined_to_the_file_they_were_cut_from() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let cuts = [
        ("convert m.safetensors -o cut.safetensors --shard-size 100", "cut.safetensors.index.json"),
        ("export m.safetensors -o cut --shard-size 100", "cut/model.safetensors.index.json"),
        ("export m.safetensors -o cut", "cut"),
    ];
    for (line, model) in cuts {
        sandbox.apr(line).clean();
        sandbox.apr(&format!("validate {model}")).clean().says(&["5 tensors"]);
        sandbox.apr(&format!("convert {model} -o joined.safetensors -f")).clean();
        sandbox.apr(&format!("convert {model} -o joined.apr -f")).clean();
        sandbox.apr("tensors m.safetensors --stats --sort name --json").clean();
        let rows = |model: &str| {
            let mut report =
                sandbox.apr(&format!("tensors {model} --stats --sort name --json")).clean().json();
            for row in report["tensors"].as_array_mut().expect("a list") {
                row.as_object_mut()
                    .expect("an object")
                    .retain(|key, _| key != "file" && key != "offset");
            }
            report["tensors"].take()
        };
        assert_eq!(rows("joined.safetensors"), rows("m.safetensors"), "{line}");
        assert_eq!(rows("joined.apr"), rows("m.safetensors"), "{line}");
        let _ = fs::remove_dir_all(sandbox.path("cut"));
    }
    let shards = sandbox
        .files()
        .iter()
        .filter(|name| name.starts_with("cut-") && name.ends_with(".safetensors"))
        .count();
    assert!(shards > 1, "{:?}", sandbox.files());
}

#[test]
fn a_folder_of_shards_survives_import_with_its_companions() {
    let sandbox = Sandbox::new();
    let files = model_folder(&sandbox, "in");
    sandbox.apr("import in -o m.apr").clean();
    sandbox.apr("export m.apr -o cut --shard-size 100").clean();
    sandbox.apr("import cut -o joined.apr").clean();
    sandbox.apr("export joined.apr -o out").clean();
    for (name, bytes) in files.iter().filter(|(name, _)| name != "model.safetensors") {
        assert!(sandbox.read(&format!("cut/{name}")) == *bytes, "{name}");
        assert!(sandbox.read(&format!("out/{name}")) == *bytes, "{name}");
    }
}

#[cfg(unix)]
#[test]
fn models_go_through_pipes() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let packed = sandbox.piped("convert - --format apr -o -", &small_safetensors()).ok();
    assert!(packed.stdout.starts_with(b"APR2"));
    assert!(packed.stderr.contains("5 tensors"), "the report goes aside: {packed}");
    let back = sandbox.piped("convert - --format safetensors -o - -q", &packed.stdout).clean();
    assert_eq!(back.stdout, small_safetensors());
    for command in ["validate -", "inspect -", "tensors - --stats", "debug -", "debug --hex -"] {
        sandbox.piped(command, &packed.stdout).clean();
    }
    // A redirected file is read where it is.
    let redirected =
        sandbox.shell(r#"exec "$APR" convert - --format apr -o - -q < m.safetensors"#).clean();
    assert_eq!(redirected.stdout, packed.stdout);
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[test]
fn a_dry_run_writes_nothing_and_predicts_the_size_of_every_file() {
    let large = [
        ("a", "F32", &[4_u64][..], f32s(&[1e6, 1.0, 0.1, -1e9])),
        ("b", "BF16", &[2], vec![0, 1, 2, 3]),
    ];
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&large));
    model_folder(&sandbox, "folder");
    let before = sandbox.files();
    let lines = [
        "convert m.safetensors -o t.apr",
        "convert m.safetensors -o t.safetensors",
        "convert m.safetensors -o t.apr --precision fp16",
        "convert m.safetensors -o t.safetensors --precision bf16",
        "convert m.safetensors -o t.apr --align 32",
        "import folder -o t.apr",
        "export folder -o t",
        "export folder -o t --shard-size 64",
        "convert m.safetensors -o t.safetensors --shard-size 8",
    ];
    for line in lines {
        let plan = sandbox.apr(&format!("{line} --dry-run --json")).ok().json();
        assert_eq!(sandbox.files(), before, "{line}");
        let report = sandbox.apr(&format!("{line} --json")).ok().json();
        assert_eq!(
            (&plan["files"], &plan["bytes_out"]),
            (&report["files"], &report["bytes_out"]),
            "{line}"
        );
        let target = if line.contains("-o t ") || line.ends_with("-o t") { "t/" } else { "" };
        let mut planned = before.clone();
        for file in plan["files"].as_array().expect("a list") {
            let name = format!("{target}{}", file["name"].as_str().expect("a name"));
            assert_eq!(file["bytes"], sandbox.read(&name).len(), "{line}: {name}");
            planned.push(name);
        }
        planned.sort();
        assert_eq!(sandbox.files(), planned, "{line}");
        planned.retain(|name| !before.contains(name));
        planned.iter().for_each(|name| fs::remove_file(sandbox.path(name)).expect("it is there"));
    }
}

#[test]
fn a_tensor_that_does_not_match_its_digest_stops_every_conversion() {
    let file = sound().build();
    let damaged = corrupt::overwrite(
        &file,
        sound().data_start() as usize + 2,
        &[file[sound().data_start() as usize + 2] ^ 8],
    );
    let sandbox = Sandbox::new().with("m.apr", damaged);
    let lines = [
        "convert m.apr -o t.safetensors",
        "convert m.apr -o t.apr",
        "convert m.apr -o t.apr --precision fp16",
        "export m.apr -o t",
        "import m.apr -o t.apr",
        "convert m.apr -o t.safetensors --threads 1",
    ];
    for line in lines {
        sandbox
            .apr(line)
            .fails(5, &["E004", "m.apr", "tensor 'b.weight'", "do not match its digest"]);
        assert_eq!(sandbox.files(), ["m.apr"], "{line}");
    }
    assert!(!sandbox.path("t").exists());
}

#[test]
fn every_real_safetensors_file_survives_byte_for_byte() {
    let Some(folder) = locate::shared_data("safetensors") else { return };
    let sandbox = Sandbox::new();
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.to_str().expect("a plain path");
        sandbox.run(&["convert", name, "-o", "m.apr", "-f"]).clean();
        sandbox.apr("validate m.apr --checksum").clean();
        sandbox.apr("export m.apr -o back.safetensors -f").clean();
        assert!(
            sandbox.read("back.safetensors") == fs::read(&path).expect("it is there"),
            "{name}"
        );
        seen += 1;
    }
    assert!(seen > 10);
}

#[test]
fn a_file_that_was_cut_into_shards_is_the_same_file_when_joined() {
    let original =
        fs::read(locate::fixture("tiny-llama/model.safetensors")).expect("the fixture is there");
    let sandbox = Sandbox::new().with("m.safetensors", &original);
    // Tensors larger than a shard get one of their own, ahead of the smaller ones before them.
    sandbox.apr("convert m.safetensors --shard-size 40KB -o cut/m.safetensors").ok();
    sandbox.apr("convert cut/m.safetensors.index.json -o m.apr").ok();
    sandbox.apr("convert m.apr -o joined.safetensors").ok();
    assert!(sandbox.read("joined.safetensors") == original);
}

#[cfg(unix)]
#[test]
fn devices_and_named_pipes_are_written_to_and_not_replaced() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let run = sandbox.shell(
        r#"mkfifo pipe && { cat pipe > copy.apr & } &&
        "$APR" convert m.safetensors --format apr -o pipe && wait && test -p pipe &&
        "$APR" convert m.safetensors --format apr -o /dev/null && test -c /dev/null &&
        "$APR" diff m.safetensors copy.apr --exit-code"#,
    );
    run.ok().says(&["SAME"]);
}

#[test]
fn a_folder_around_an_apr_file_keeps_what_is_inside_it() {
    let sandbox = Sandbox::new();
    let files = model_folder(&sandbox, "model");
    sandbox.apr("import model -o packed/m.apr -q").ok();
    sandbox.write("packed/config.json", "{}");
    sandbox.write("packed/extra.txt", "new");
    sandbox.apr("export packed -o out").ok();
    for (name, bytes) in files {
        assert_eq!(sandbox.read(&format!("out/{name}")), bytes, "{name}");
    }
    assert_eq!(sandbox.read("out/extra.txt"), b"new");
}

#[cfg(unix)]
#[test]
fn the_report_stays_out_of_a_model_that_is_streamed() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let script = r#""$APR" convert m.safetensors --format apr -o TARGET | cat > copy.apr &&
        "$APR" validate copy.apr --strict"#;
    for target in ["-", "/dev/stdout", "/dev/fd/1"] {
        sandbox.shell(&script.replace("TARGET", target)).ok().says(&["VALID"]);
    }
    let to_a_file = r#""$APR" convert m.safetensors --format apr -o /dev/stdout > copy.apr &&
        "$APR" validate copy.apr"#;
    sandbox.shell(to_a_file).ok();
}
