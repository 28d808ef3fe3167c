//! `apr tensors` and `apr inspect`: several models, values, and what fits a terminal.

use serde_json::{Value, json};

use crate::support::{Run, Sandbox, f32s, safetensors, small_safetensors};

fn tiny_llama() -> Sandbox {
    let sandbox = Sandbox::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    sandbox.apr(&format!("import {folder} -o m.apr")).ok();
    sandbox
}

#[test]
fn shortened_names_stay_different() {
    let sandbox = tiny_llama();
    let run = in_columns(&sandbox, "60", "tensors m.apr");
    let text = run.text();
    let mut names: Vec<&str> =
        text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    let count = names.len();
    assert!(names.iter().any(|name| name.contains('…')), "{text}");
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "{text}");
}

fn in_columns(sandbox: &Sandbox, columns: &str, line: &str) -> Run {
    sandbox.with_env(&[("COLUMNS", columns)], line).clean()
}

#[test]
fn lists_fit_the_terminal_and_names_lose_their_middle() {
    let sandbox = tiny_llama();
    for line in ["tensors m.apr", "tensors m.apr --stats", "ls m.apr --sort name"] {
        let text = in_columns(&sandbox, "80", line).text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("layers.0.post_attention_layernorm.weight"), "{text}");
    }
    let text = in_columns(&sandbox, "52", "inspect m.apr").text();
    let table = text.lines().skip_while(|line| !line.starts_with("Dtype")).take(3);
    assert!(table.clone().all(|line| line.chars().count() <= 52), "{text}");
    assert_eq!(table.count(), 3, "{text}");
    for line in ["convert m.apr --dry-run --format safetensors", "inspect m.apr"] {
        let text = in_columns(&sandbox, "80", line).text();
        // Sentences below the list are left to the terminal to break.
        let list = |line: &&str| !line.starts_with("  lost:");
        assert!(text.lines().filter(list).all(|line| line.chars().count() <= 80), "{text}");
    }
    // A name that is like no other when it is cut is cut; the others stay whole.
    let text = in_columns(&sandbox, "40", "tensors m.apr").text();
    assert!(text.contains("lm_he…eight  bf16   [259, 128]   66.3 KB\n"), "{text}");
    assert!(text.contains("layers.1.mlp.up_proj.weight  bf16"), "{text}");
    // To a file or a program, names are whole whatever their length.
    let long = format!("{}.weight", "block".repeat(30));
    let file = safetensors(&[(long.as_str(), "F32", &[1], f32s(&[1.0]))]);
    let sandbox = Sandbox::new().with("m.safetensors", file);
    sandbox.apr("tensors m.safetensors --stats").clean().says(&[&long]);
    assert!(!in_columns(&sandbox, "80", "tensors m.safetensors").text().contains(&long));
}

#[test]
fn several_models_are_looked_at_and_one_that_fails_keeps_no_other() {
    let sandbox = Sandbox::new()
        .with("a.safetensors", small_safetensors())
        .with("b.safetensors", small_safetensors());
    for command in ["inspect", "tensors"] {
        let run = sandbox.apr(&format!("{command} a.safetensors b.safetensors")).clean();
        run.says(&["=== a.safetensors ===", "=== b.safetensors ==="]);
        let run = sandbox.apr(&format!("{command} a.safetensors absent b.safetensors"));
        let run = run.fails(3, &["E007: absent", "=== a.safetensors ===", "=== b.safetensors ==="]);
        assert_eq!(run.stderr.matches("absent").count(), 1, "{run}");
        let run = sandbox.apr(&format!("{command} a.safetensors absent b.safetensors --json"));
        let documents = run.reports();
        let [a, absent, b] = &documents[..] else { panic!("{run}") };
        assert_eq!(run.text().lines().count(), 3, "each is a line");
        assert_eq!(
            (run.code, &a["path"], &b["path"]),
            (Some(3), &json!("a.safetensors"), &json!("b.safetensors"))
        );
        assert_eq!((&absent["path"], &absent["error"]["code"]), (&json!("absent"), &json!("E007")));
        let alone = sandbox.apr(&format!("{command} a.safetensors --json")).clean();
        assert_eq!(&alone.json(), a, "one of several is what it is alone");
    }
    let listed = sandbox.apr("tensors a.safetensors").clean().text();
    assert_eq!(sandbox.apr("ls a.safetensors").clean().text(), listed);
}

#[test]
fn a_filter_without_a_wildcard_finds_a_part_of_the_name() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    let found = |filter: &str| -> Vec<Value> {
        let report =
            sandbox.apr(&format!("tensors m.safetensors --filter {filter} --json")).clean().json();
        report["tensors"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|row| row["name"].clone())
            .collect()
    };
    assert_eq!(found("bias"), ["layers.0.bias", "layers.1.bias"]);
    assert_eq!(found("layers.1"), ["layers.1.weight", "layers.1.bias"]);
    assert_eq!(found("*bias"), ["layers.0.bias", "layers.1.bias"]);
    assert_eq!(found("bias*"), [""; 0]);
    let run = sandbox.apr("diff m.safetensors m.safetensors --tensors bias").clean();
    run.says(&["layers.0.bias: MATCH", "2 of 2 tensors match"]);
    // What takes tensors out takes them by their whole names.
    sandbox.apr("convert m.safetensors -o m.apr").ok();
    sandbox.apr("edit m.apr --drop bias --force").fails(2, &["no tensor matches"]);
}

/// Codecs have a column as wide as they are, and names that are alike when they are cut stay whole.
#[test]
fn names_are_told_apart_in_80_columns() {
    let sandbox = Sandbox::new();
    let llama = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");
    sandbox.apr(&format!("quantize {llama} --type fp8 --format safetensors -o fp8")).ok();
    let listed = in_columns(&sandbox, "80", "tensors fp8").text();
    let names: Vec<&str> =
        listed.lines().skip(1).filter_map(|line| line.split("  ").next()).collect();
    let unique: std::collections::BTreeSet<_> = names.iter().collect();
    assert_eq!(unique.len(), names.len(), "{listed}");
    assert!(listed.lines().all(|line| line.chars().count() <= 80), "{listed}");

    let name = |layer: u32| format!("a.very.long.name.of.a.module.{layer}.attention.query.weight");
    let (left, right) = (name(0), name(1));
    let half: Vec<u8> = vec![0; 4];
    let tensors =
        [(left.as_str(), "F16", &[2_u64][..], half.clone()), (right.as_str(), "F16", &[2], half)];
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&tensors));
    in_columns(&sandbox, "40", "tensors m.safetensors").says(&[&left, &right]);
}

#[test]
fn values_match_the_requested_ranges() {
    let values: Vec<f32> = (0_u8..24).map(f32::from).collect();
    let half: Vec<u8> = vec![0x00, 0x3c, 0x00, 0x7e];
    let tensors = [
        ("cube", "F32", &[2_u64, 3, 4][..], f32s(&values)),
        ("half", "F16", &[2], half),
        ("odd[1]", "I64", &[], 7_i64.to_le_bytes().to_vec()),
    ];
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&tensors));
    let of = |part: &str| {
        sandbox.run(&["tensors", "m.safetensors", "--values", part, "--json"]).clean().json()
    };
    let report = of("cube[1, :2, -2:]");
    assert_eq!(report["values"], json!([14.0, 15.0, 18.0, 19.0]));
    assert_eq!(
        (&report["ranges"], &report["tensor"]["name"]),
        (&json!([[1, 2], [0, 2], [2, 4]]), &json!("cube"))
    );
    assert_eq!(of("cube[-1,2]")["values"], json!([20.0, 21.0, 22.0, 23.0]));
    assert_eq!(of("half")["values"], json!([1.0, null]));
    assert_eq!(of("odd[1]")["values"], json!([7.0]));
    let run = sandbox.run(&["tensors", "m.safetensors", "--values", "cube"]).clean();
    run.says(&[
        "cube (f32 [2, 3, 4], of which [0:1, 0:3, 0:4])",
        "0,2          8          9         10         11",
    ]);
    let run = in_columns(&sandbox, "40", "tensors m.safetensors --values cube[1,2]");
    run.says(&["1,2,0         20         21\n", "1,2,2         22         23\n"]);
    let run = sandbox.run(&["tensors", "m.safetensors", "--values", "cube[0:500]"]).ok();
    assert!(run.stderr.contains("[0:500] is longer than the tensor"), "{run}");
    for (part, code, said) in [
        ("cube[2]", 2, "2' is not a valid range of 2"),
        ("cube[0,0,0,0]", 2, "4 ranges"),
        ("cub", 1, "nearest names"),
        ("nosuch", 1, "no tensor 'nosuch' and no similar name; names that exist:\n  cube\n"),
        ("cube[", 1, "no tensor"),
    ] {
        sandbox.run(&["tensors", "m.safetensors", "--values", part]).fails(code, &[said]);
    }
    sandbox.apr("tensors m.safetensors --values cube --stats").fails(2, &["cannot be used with"]);
}

#[test]
fn values_of_blocks_match_a_full_read() {
    let sandbox = tiny_llama();
    for kind in ["q8_0", "q4_0", "int8", "int4", "q4_k_m"] {
        sandbox.apr(&format!("quantize m.apr --type {kind} -o q.apr -f")).ok();
        let of = |part: &str| {
            sandbox.run(&["tensors", "q.apr", "--values", part, "--json"]).clean().json()
        };
        let all = of("layers.0.attn.q_proj.weight[:, :]")["values"].take();
        let part = of("layers.0.attn.q_proj.weight[5:7, 29:35]")["values"].take();
        let expected: Vec<&Value> = [5, 6]
            .into_iter()
            .flat_map(|row| (29..35).map(move |at| (row, at)))
            .map(|(row, at)| &all[row * 128 + at])
            .collect();
        assert_eq!(part, json!(expected), "{kind}");
        assert_ne!(part[0], part[1], "{kind}");
    }
}

#[test]
fn a_folder_of_several_models_is_not_taken_for_one() {
    let sandbox = Sandbox::new().with("dir/a.safetensors", small_safetensors());
    sandbox.apr("convert dir/a.safetensors -o dir/b.apr").ok();
    sandbox.apr("convert dir/a.safetensors -o dir/c.pt").ok();
    for command in ["validate", "inspect", "lint", "import -o x.apr"] {
        let run = sandbox.apr(&format!("{command} dir"));
        run.fails(4, &["E001", "the folder has 3 models; name one of a.safetensors, b.apr, c.pt"]);
    }
    // A configuration says that they are one, for several programs.
    sandbox.write("dir/config.json", "{}");
    sandbox.apr("convert dir/b.apr -o dir/b.pt").ok();
    std::fs::remove_file(sandbox.path("dir/b.apr")).expect("ours");
    sandbox.apr("inspect dir").ok().says(&["safetensors"]);
    // Shards and their manifest are one, too.
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    std::fs::create_dir(sandbox.path("cut")).expect("a folder");
    sandbox.apr("shard m.safetensors --size 130 -o cut/m.apr").ok();
    sandbox.apr("validate cut").clean();
}

#[test]
fn floats_have_the_same_names_everywhere() {
    let sandbox = tiny_llama();
    sandbox.apr("quantize m.apr --type q8_0 -o q.apr").ok();
    sandbox.apr("convert m.apr --precision fp32 -o f.apr").ok();
    for (names, dtype) in [
        (["f16", "fp16", "float16"], "f16"),
        (["bf16", "bfloat16", "BF16"], "bf16"),
        (["f32", "fp32", "float32"], "f32"),
    ] {
        for name in names {
            for line in [
                "convert m.apr --precision",
                "convert q.apr --dequantize",
                "quantize m.apr --type",
                "convert m.apr --quantize",
            ] {
                // A cast to the type that floats have is an error.
                let line =
                    if dtype == "f32" { line.into() } else { line.replace("m.apr", "f.apr") };
                sandbox.apr(&format!("{line} {name} -o x.apr -f")).ok();
                let first =
                    sandbox.apr("tensors x.apr --filter q_proj --json").clean().json()["tensors"]
                        [0]["dtype"]
                        .take();
                assert_eq!(first, dtype, "{line} {name}");
            }
        }
    }
}

#[test]
fn the_size_of_a_compressed_model_is_given_decoded_and_stored() {
    let sandbox = tiny_llama();
    sandbox.apr("convert m.apr -o c.apr --compress").ok();
    let (plain, small) = (sandbox.read("m.apr").len(), sandbox.read("c.apr").len());
    let run = sandbox.apr("inspect c.apr").clean();
    let line =
        run.text().lines().find(|line| line.starts_with("Size:")).expect("a size").to_owned();
    assert!(line.contains(&format!("(compressed: {:.1} KB)", small as f64 / 1e3)), "{line}");
    // The same tensors, and metadata that are nearly the same.
    let decoded: f64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    assert!((decoded - plain as f64 / 1e3).abs() < 5.0, "{line} of {plain}");
    sandbox.apr("inspect m.apr").clean().says(&["of tensors)"]);
}
