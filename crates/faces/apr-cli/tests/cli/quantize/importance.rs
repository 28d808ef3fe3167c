//! Importance matrices and calibration.

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::locate;

use super::{dtypes, legacy_imatrix, sandbox, text, weights};
use crate::support::{Sandbox, f32s, safetensors};

#[test]
fn importance_changes_the_bytes_of_the_tensors_that_it_is_about() {
    let sandbox = sandbox();
    let importance: Vec<f32> =
        (0_u16..256).map(|column| 0.01 + f32::from(column * column)).collect();
    sandbox.write("i.dat", legacy_imatrix("a.weight", &importance));
    let line: Vec<String> = importance.iter().map(|value| value.sqrt().to_string()).collect();
    sandbox.write("samples.csv", line.join(",") + "\n");
    let f32_entry = |name: &str, values: &[f32]| {
        GgufEntry::new(name, 0, &[values.len() as u64, 1], &f32s(values))
    };
    let gguf = GgufBuilder::new()
        .text("general.type", "imatrix")
        .texts("imatrix.datasets", &["x.txt"])
        .u32("imatrix.chunk_count", 1)
        .u32("imatrix.chunk_size", 512)
        .entry(f32_entry("a.weight.in_sum2", &importance))
        .entry(f32_entry("a.weight.counts", &[1.0]));
    sandbox.write("i.gguf", gguf.build());

    sandbox.apr("quantize m.safetensors --type q4_k_m -o plain.apr").clean();
    let mut weighted = Vec::new();
    for option in ["--imatrix i.dat", "--imatrix i.gguf", "--calibration samples.csv"] {
        let run =
            sandbox.apr(&format!("quantize m.safetensors --type q4_k_m {option} -o w.apr -f")).ok();
        run.says(&["warning: no importance weights for b.weight: quantized without"]);
        let diff = sandbox.apr("diff plain.apr w.apr --json").ok().json();
        let changed: Vec<_> = diff["tensors"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|row| row["verdict"] != "identical")
            .collect();
        assert_eq!(
            changed.iter().map(|row| text(&row["name"])).collect::<Vec<_>>(),
            ["a.weight"],
            "{option}"
        );
        weighted.push(
            sandbox.apr("tensors w.apr --stats --json").ok().json()["tensors"][0]["stats"].take(),
        );
        sandbox.apr("inspect w.apr --quantization").clean().says(&["Calibration:"]);
    }
    // Both forms of the matrix say the same.
    assert_eq!(weighted[0], weighted[1]);
    sandbox
        .apr(
            "quantize m.safetensors --type q4_0 --tensor-type a.*=iq4_xs --imatrix i.dat -o \
        w.apr -f",
        )
        .ok();
    assert_eq!(dtypes(&sandbox, "w.apr")[0], "iq4_xs");

    let both =
        "quantize m.safetensors --type q4_0 --imatrix i.dat --calibration samples.csv -o x.apr";
    sandbox.apr(both).fails(2, &["cannot be used with"]);
    sandbox
        .apr("quantize m.safetensors --type q4_0 --imatrix none.dat -o x.apr")
        .fails(3, &["none.dat"]);
    sandbox
        .apr("quantize m.safetensors --type q4_0 --imatrix m.safetensors -o x.apr")
        .fails(4, &["m.safetensors"]);
    sandbox.write("wrong.csv", "1,2\n3,x\n");
    sandbox
        .apr("quantize m.safetensors --type q4_0 --calibration wrong.csv -o x.apr")
        .fails(4, &["wrong.csv", "line 2"]);
    assert!(!sandbox.path("x.apr").exists());
}

#[test]
fn importance_for_other_rows_is_refused() {
    let names = ["blk.0.attn_q.weight", "output.weight"];
    let tensors = names.map(|name| (name, "F32", &[2, 32][..], f32s(&weights(64))));
    let sandbox = Sandbox::new().with("m.safetensors", safetensors(&tensors));
    for form in ["dat", "gguf"] {
        let matrix = locate::fixture(&format!("quantize/imatrix.{form}"));
        let matrix = matrix.to_str().expect("a plain path");
        let run = sandbox.run(&[
            "quantize",
            "m.safetensors",
            "--type",
            "q4_0",
            "--imatrix",
            matrix,
            "-o",
            "q.apr",
        ]);
        run.fails(2, &["tensor 'blk.0.attn_q.weight'", "8", "32"]);
    }
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}
