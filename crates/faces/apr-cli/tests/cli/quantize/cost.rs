//! What quantization costs: the dry run, the report and the gate on quality.

use serde_json::{Value, json};

use super::{dtypes, reasons, sandbox, text};
use crate::support::safetensors_header;

#[test]
fn a_dry_run_reports_the_size_of_every_tensor_and_reads_none() {
    let sandbox = sandbox();
    let run = sandbox.apr("quantize m.safetensors --type q4_k_m -o q.apr --dry-run").clean();
    run.says(&[
        "a.weight  f32       q4_k          4.1 KB       576 B\n",
        "b.weight  f32       q5_0          1.0 KB       176 B  q5_0 instead of q4_k: row length 64 \
         is not a multiple of 256\n",
        "c.weight  f32       f16            112 B        56 B  f16 instead of q4_k: row length 7",
        "d.bias    f32       f32             32 B        32 B  not quantized (1-D tensor)\n",
        "bits per weight",
        "would write q.apr",
    ]);
    let plan = sandbox
        .apr("quantize m.safetensors --type q4_k_m -o q.apr --dry-run --json")
        .clean()
        .json();
    assert_eq!(sandbox.files(), ["m.safetensors"]);
    let report = sandbox.apr("quantize m.safetensors --type q4_k_m -o q.apr --json").clean().json();
    assert_eq!((&plan["tensors"], &plan["files"]), (&report["tensors"], &report["files"]));
    // What it costs is known only when it is done.
    assert_eq!((plan.get("quantization"), report["quantization"].is_object()), (None, true));

    // A tensor that would take minutes to read, and whose file has no room on disk.
    let len = 1_u64 << 40;
    let head = safetensors_header(&json!({
        "w.weight": { "dtype": "F32", "shape": [len / 4096, 1024], "data_offsets": [0, len] }
    }));
    sandbox.write("huge.safetensors", &head);
    sandbox.extend("huge.safetensors", head.len() as u64 + len, &[]);
    let run = sandbox.apr("quantize huge.safetensors --type q8_0 -o h.apr --dry-run").clean();
    run.says(&["1.1 TB", "292.1 GB", "8.50 bits per weight", "would write h.apr"]);
    assert!(!sandbox.path("h.apr").exists());
}

#[test]
fn the_report_lists_the_error_of_each_type_and_tensor() {
    let sandbox = sandbox();
    let report = sandbox.apr("quantize m.safetensors --type q4_k_m -o q.apr --json").clean().json();
    assert_eq!(report["elements"], 1316);
    let expected = [
        ("a.weight", "q4_k", None),
        ("b.weight", "q5_0", Some("q5_0 instead of q4_k: row length 64 is not a multiple of 256")),
        ("c.weight", "f16", Some("f16 instead of q4_k: row length 7 is not a multiple of 256")),
        ("d.bias", "f32", Some("not quantized (1-D tensor)")),
    ];
    assert_eq!(reasons(&report), expected);
    let cost = &report["quantization"];
    let types: Vec<_> =
        cost["by_type"].as_array().expect("a list").iter().map(|row| text(&row["dtype"])).collect();
    assert_eq!(types, ["q4_k", "q5_0"]);
    assert_eq!(cost["by_type"][0]["bits_per_weight"], 4.5);
    assert_eq!(
        (&cost["by_type"][1]["elements"], &cost["by_type"][1]["tensor_count"]),
        (&json!(256), &json!(1))
    );
    assert_eq!(cost["worst"][0]["name"], "a.weight");
    assert_eq!(cost["tensors"].as_array().map(Vec::len), Some(2));
    for row in [&cost["total"], &cost["by_type"][0], &cost["worst"][0], &cost["tensors"][1]] {
        let relative = row["relative_error"].as_f64().expect("a number");
        let cosine = row["cosine"].as_f64().expect("a number");
        assert!((0.001..0.15).contains(&relative) && cosine > 0.99 && cosine < 1.0, "{row}");
        assert!(row["max_error"].as_f64() >= row["rmse"].as_f64(), "{row}");
    }
    // The same by way of the file: what the report calls rmse is what lies between the two models.
    let diff = sandbox.apr("diff m.safetensors q.apr --json").ok().json();
    let of = |rows: &Value, name: &str| {
        rows.as_array().expect("a list").iter().find(|row| row["name"] == name).cloned()
    };
    let (told, found) = (
        of(&cost["tensors"], "a.weight").expect("told"),
        of(&diff["tensors"], "a.weight").expect("found"),
    );
    let rmse = found["l2"].as_f64().expect("a number") / 1024_f64.sqrt();
    assert!((told["rmse"].as_f64().expect("a number") - rmse).abs() < 1e-9, "{told} {found}");
}

#[test]
fn a_failed_gate_writes_nothing_and_force_writes_with_a_warning() {
    let sandbox = sandbox();
    let line = "quantize m.safetensors --type q4_0 -o q.apr --max-drift 0.01";
    let run = sandbox
        .apr(line)
        .fails(5, &["quality gate failed", "(max: 0.01)", "L2 drift of a.weight as q4_0"]);
    run.says(&["nothing was written; --force ignores the gate"]);
    let error = sandbox.apr(&format!("{line} --json")).fails(5, &[]).json()["error"].take();
    assert_eq!(error["message"], "quality gate failed");
    assert!(text(&error["failures"][0]).starts_with("L2 drift: 0."), "{error}");
    // A gate also judges the cast of c.weight, which is not quantized.
    assert_eq!(error["quantization"]["tensors"].as_array().map(Vec::len), Some(2));
    assert_eq!(sandbox.files(), ["m.safetensors"]);

    sandbox.apr(&format!("{line} --force")).ok().says(&["warning: L2 drift", "(max: 0.01)"]);
    assert_eq!(dtypes(&sandbox, "q.apr"), ["q4_0", "q4_0", "f16", "f32"]);
    // Good enough, by the number given and by the one that there is anyway.
    for options in [
        "--type q8_0 --max-drift 0.01",
        "--type q8_0 --quality-check",
        "--type q4_k_m --quality-check",
    ] {
        sandbox.apr(&format!("quantize m.safetensors {options} -o good.apr -f")).clean();
    }
    sandbox
        .apr("quantize m.safetensors --type tq1_0 --quality-check -o bad.apr")
        .fails(5, &["cosine similarity", "(min: 0.99)"]);
    for wrong in ["-1", "much", "nan"] {
        sandbox
            .apr(&format!("quantize m.safetensors --type q8_0 -o x.apr --max-drift={wrong}"))
            .fails(2, &["--max-drift"]);
    }
}
