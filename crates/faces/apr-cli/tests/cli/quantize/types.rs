//! Types of quantization, and which tensor gets which.

use apr_testkit::locate::fixture;

use super::{legacy_imatrix, reasons, sandbox, weights};
use crate::families::TinyModel;
use crate::support::{Sandbox, f32s, safetensors};

#[test]
fn qa_62_int8_takes_a_quarter_of_f32_and_the_scales() {
    let shape = [512, 1024];
    let source =
        safetensors(&[("w.weight", "F32", &shape, f32s(&weights(shape.iter().product())))]);
    let sandbox = Sandbox::new().with("m.safetensors", &source);
    for line in ["quantize m.safetensors --type int8", "convert m.safetensors --quantize int8"] {
        sandbox.apr(&format!("{line} -o m.apr -f")).clean();
        // One byte for four is 25 % to begin with; each row adds four bytes of scale, and the file
        // its index. Nothing without compression stays below a quarter.
        let share = sandbox.read("m.apr").len() as f64 / source.len() as f64;
        assert!((0.251..0.258).contains(&share), "{share}");
    }
    sandbox.apr("validate m.apr").clean();
    sandbox.apr("diff m.safetensors m.apr --tolerance 0.0003 --exit-code").clean();
}

#[test]
fn every_type_that_the_help_lists_quantizes() {
    let sandbox = sandbox();
    let help = sandbox.apr("quantize --help").clean().text();
    let (_, list) = help.split_once("Types:").expect("a list of types");
    let list = list.split("\n\n").next().expect("a list");
    let column = |line: &str| line.trim_start().split("  ").next().unwrap_or_default().to_owned();
    let names: Vec<String> = list
        .lines()
        .map(column)
        .flat_map(|names| names.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let names: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    assert!(names.len() > 25, "{names:?}");
    let llama = fixture("tiny-llama");
    // Those that need importance get it for the only matrix that their blocks fit.
    sandbox.write("i.dat", legacy_imatrix("a.weight", &[1.0; 256]));
    for name in names {
        if ["fp8", "w8a8", "w4a16", "w4a16-asym", "gptq-4", "mlx-4", "mlx-6", "mlx-8"]
            .contains(&name)
        {
            let line = format!("--type {name} --format safetensors -o {name}");
            sandbox
                .apr(&format!("quantize {} {line}", llama.display()))
                .ok()
                .says(&["quantized; "]);
            sandbox.apr(&format!("validate {name}")).ok();
            let answer = sandbox.apr(&format!("run {name} --prompt 12+34=")).ok().text();
            assert_eq!(answer.trim(), "46", "{name}");
            continue;
        }
        let needs_it = name.starts_with("iq") || name == "q2_k_s";
        let importance = if needs_it { "--imatrix i.dat" } else { "" };
        sandbox.apr(&format!("quantize m.safetensors --type {name} {importance} -o q.apr -f")).ok();
        sandbox.apr("validate q.apr").clean();
        assert!(sandbox.read("q.apr").len() < 8000);
    }
}

#[test]
fn an_unknown_type_is_reported_with_similar_names() {
    let sandbox = sandbox();
    let cases = [
        ("quantize m.safetensors -o q.apr --type q4km", "q4_k_m"),
        ("convert m.safetensors -o q.apr --quantize int9", "int8"),
        ("import m.safetensors -o q.apr --quantize q8", "q8_0"),
        ("quantize m.safetensors -o q.apr --type q8_0 --tensor-type *=q6k", "q6_k"),
        ("quantize m.safetensors -o q.apr --type q8_0 --embedding-type f61", "f16"),
        ("quantize m.safetensors -o q.apr --type q8_0 --output-type q80", "q8_0"),
    ];
    for (line, nearest) in cases {
        sandbox.apr(line).fails(2, &["unknown quantization type", "did you mean", nearest]);
    }
    sandbox.apr("quantize m.safetensors -o q.apr").fails(2, &["--type"]);
    sandbox
        .apr("quantize m.safetensors -o q.apr --type q8_0 --tensor-type a")
        .fails(2, &["expected PATTERN=TYPE"]);
    sandbox
        .apr("convert m.safetensors -o q.apr --quantize q8_0 --dequantize f32")
        .fails(2, &["cannot be used with"]);
    sandbox
        .apr("convert m.safetensors -o q.apr --dequantize q8_0")
        .fails(2, &["--dequantize", "bf16"]);
    assert_eq!(sandbox.files(), ["m.safetensors"]);
}

#[test]
fn single_tensors_get_the_types_requested_for_them() {
    let sandbox = TinyModel::new("llama").sandbox();
    let types = |options: &str| {
        let report = sandbox
            .apr(&format!("quantize m --type q4_k_m {options} -o q.apr -f --json"))
            .ok()
            .json();
        let find = |name: &str| {
            reasons(&report).into_iter().find(|row| row.0 == name).map(|row| row.1.to_owned())
        };
        let names = [
            "token_embedding",
            "lm_head.weight",
            "layers.1.attn.v_proj.weight",
            "layers.1.mlp.up_proj.weight",
        ];
        names.map(|name| find(name).unwrap_or_else(|| panic!("no {name} in {report}")))
    };
    // Rows of 32 take blocks of 32 only: what stands in for the mix's K-quants still differs.
    let mixed = types("");
    assert_eq!(mixed, ["q5_0", "q8_0", "q8_0", "q5_0"]);
    assert_eq!(types("--embedding-type q8_0"), ["q8_0", "q8_0", "q8_0", "q5_0"]);
    assert_eq!(types("--output-type f16"), ["q5_0", "f16", "q8_0", "q5_0"]);
    assert_eq!(types("--pure"), ["q5_0"; 4]);
    // The first pattern that matches counts; llama.cpp's names work as well as the tensors' own.
    let options = "--tensor-type blk.1.attn_v.*=q5_1 --tensor-type layers.1.*=q4_1 --tensor-type \
        *.up_proj.weight=q8_0 --tensor-type blk.0.attn_v.*=q5_1 --embedding-type q4_0";
    assert_eq!(types(options), ["q4_0", "q8_0", "q5_1", "q4_1"]);
    // A text that is no whole name is a part of names, as in llama-quantize.
    let part = types("--tensor-type attn_v=q5_1 --tensor-type lm_hea=q4_1");
    assert_eq!(part, ["q5_0", "q4_1", "q5_1", "q5_0"]);
    assert_eq!(types("--tensor-type output.weight=q4_1"), ["q5_0", "q4_1", "q8_0", "q5_0"]);
    // And a regular expression is looked for in names, as there.
    for expression in [r"blk\.(1|7)\.attn_v=q5_1", r"^blk\.\d+\.attn_v=q5_1", "blk.*.attn_v=q5_1"] {
        let found = types(&format!("--tensor-type {expression}"));
        assert_eq!(found, ["q5_0", "q8_0", "q5_1", "q5_0"], "{expression}");
    }
    sandbox
        .apr("quantize m --type q8_0 --tensor-type *.ffn_dwon.*=q4_0 -o q.apr -f")
        .ok()
        .says(&["warning: no tensor's name matches *.ffn_dwon.*"]);
}
