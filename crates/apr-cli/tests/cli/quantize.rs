//! Quantization from outside: types and who gets which, what it costs, when it is refused. Points
//! 34, 62, 81, 82 and 83 of `docs/qa.md` for quantized models.

use std::fs;

use apr::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::locate;
use serde_json::{Value, json};

use crate::families::TinyModel;
use crate::support::{Sandbox, f32s, safetensors, safetensors_header, scrambled};

/// Values of a trained matrix, without a pattern that blocks could profit from.
fn weights(count: u64) -> Vec<f32> {
    (0..count).map(|at| (scrambled(at) >> 40) as f32 / (1 << 24) as f32 * 0.1 - 0.05).collect()
}

/// Rows that every block divides, that only blocks of 32 divide, that none does; and a vector.
fn four_tensors() -> Vec<u8> {
    safetensors(&[
        ("a.weight", "F32", &[4, 256], f32s(&weights(1024))),
        ("b.weight", "F32", &[4, 64], f32s(&weights(256))),
        ("c.weight", "F32", &[4, 7], f32s(&weights(28))),
        ("d.bias", "F32", &[8], f32s(&weights(8))),
    ])
}

fn sandbox() -> Sandbox {
    Sandbox::new().with("m.safetensors", four_tensors())
}

/// The dtypes of a model's tensors, in the order of their names.
#[track_caller]
fn dtypes(sandbox: &Sandbox, model: &str) -> Vec<String> {
    let report = sandbox.apr(&format!("tensors {model} --sort name --json")).ok().json();
    let rows = report["tensors"].as_array().expect("a list");
    rows.iter().map(|row| row["dtype"].as_str().expect("text").to_owned()).collect()
}

/// Type and reason of every tensor in the report of a conversion.
fn reasons(report: &Value) -> Vec<(&str, &str, Option<&str>)> {
    let rows = report["tensors"].as_array().expect("a list");
    rows.iter().map(|row| (text(&row["name"]), text(&row["to"]), row["why"].as_str())).collect()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Two blocks of Q8_0: a scale of one and quants from one end of the range to the other.
fn q8_0_blocks() -> Vec<u8> {
    let quants = (-127_i8..=127).step_by(8).map(|quant| quant.to_le_bytes()[0]);
    let block: Vec<u8> = [0x00, 0x3c].into_iter().chain(quants).collect();
    assert_eq!(block.len(), 34);
    block.repeat(2)
}

#[test]
fn qa_34_a_quant_of_minus_128_is_an_error_that_names_its_tensor() {
    let apr = |bytes: &[u8]| {
        Apr2Builder::new().entry(Apr2Entry::new("w", DType::Q8_0, &[2, 32], bytes)).build()
    };
    let gguf =
        |bytes: &[u8]| GgufBuilder::new().entry(GgufEntry::new("w", 8, &[32, 2], bytes)).build();
    let mut wrong = q8_0_blocks();
    // The last quant of the second block.
    wrong[67] = 0x80;
    let sandbox = Sandbox::new();
    for line in ["validate m --physics", "validate m"] {
        for (sound, odd) in
            [(apr(&q8_0_blocks()), apr(&wrong)), (gguf(&q8_0_blocks()), gguf(&wrong))]
        {
            sandbox.write("m", sound);
            sandbox.apr(line).clean();
            sandbox.write("m", odd);
            sandbox
                .apr(line)
                .fails(5, &["tensor 'w': 1 quant of -128", "quants of q8_0 lie in [-127, 127]"]);
        }
    }
    // Nothing is written of such a model either, unless that is what is wanted.
    fs::remove_file(sandbox.path("m")).expect("it is there");
    sandbox.write("m.apr", apr(&wrong));
    for line in ["import m.apr -o i.apr", "convert m.apr -o i.apr"] {
        sandbox.apr(line).fails(5, &["tensor 'w': 1 quant of -128", "nothing was written"]);
        assert_eq!(sandbox.files(), ["m.apr"]);
        sandbox.apr(&format!("{line} --relaxed")).ok().says(&["bad: tensor 'w': 1 quant of -128"]);
        fs::remove_file(sandbox.path("i.apr")).expect("it is there");
    }
    // The same byte in a scale, and in blocks whose quants do take it, is no error.
    let mut negative = q8_0_blocks();
    negative[34] = 0x80;
    sandbox.write("m", apr(&negative));
    sandbox.apr("validate m").clean();
    let k = Apr2Entry::new(
        "w",
        DType::Q8_K,
        &[1, 256],
        &[&1_f32.to_le_bytes()[..], &[0x80; 288]].concat(),
    );
    sandbox.write("m", Apr2Builder::new().entry(k).build());
    sandbox.apr("validate m --physics").ok();
}

#[test]
fn qa_34_rows_of_int8_have_the_same_range() {
    let mut row = [&1_f32.to_le_bytes()[..], &[0x7f, 0x81, 0x00, 0x05]].concat();
    let apr = |row: &[u8]| {
        Apr2Builder::new().entry(Apr2Entry::new("w", DType::I8_ROW, &[1, 4], row)).build()
    };
    let sandbox = Sandbox::new().with("m.apr", apr(&row));
    sandbox.apr("validate m.apr").clean();
    row[5] = 0x80;
    sandbox.write("m.apr", apr(&row));
    sandbox.apr("validate m.apr").fails(5, &["tensor 'w': 1 quant of -128", "i8_row"]);
}

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
fn qa_81_quantized_tensors_stay_as_they_are_until_asked() {
    let sandbox = sandbox();
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    let lines = [
        "convert q.apr -o r.apr",
        "import q.apr -o r.apr",
        "convert q.apr --keep-quantization -o r.apr",
        "export q.apr -o r.apr",
    ];
    for line in lines {
        sandbox.apr(&format!("{line} -f")).clean();
        assert_eq!(dtypes(&sandbox, "r.apr"), ["q8_0", "q8_0", "f16", "f32"], "{line}");
        sandbox
            .apr("diff q.apr r.apr --exit-code")
            .clean()
            .says(&["SAME: 4 of 4 tensors match (0 B read)"]);
    }
    let original = |model: &str| {
        sandbox.apr(&format!("inspect {model} --quantization --json")).ok().json()["quantization"]
            .take()
    };
    assert_eq!(original("r.apr"), original("q.apr"));
    assert_eq!(original("r.apr")["original"], "f32");
}

#[test]
fn qa_82_qa_83_dequantized_tensors_have_the_float_asked_for() {
    let sandbox = sandbox();
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    for (dtype, tolerance) in [("f32", "0.0003"), ("f16", "0.0003"), ("bf16", "0.0005")] {
        for output in ["d.apr", "d.safetensors", "d.pt"] {
            sandbox.apr(&format!("convert q.apr --dequantize {dtype} -o {output} -f")).ok();
            // Tensors that were no blocks keep their types.
            assert_eq!(dtypes(&sandbox, output), [dtype, dtype, "f16", "f32"]);
            let run = sandbox
                .apr(&format!("diff m.safetensors {output} --tolerance {tolerance} --exit-code"));
            run.ok().says(&["SAME"]);
        }
    }
    let none = sandbox.apr("inspect d.apr --quantization").clean();
    none.says(&["Quantization\n  none"]);
    for (scheme, expected) in
        [("bf16", "bf16"), ("fp32", "f32"), ("f16", "f16"), ("f8_e4m3", "f8_e4m3")]
    {
        sandbox.apr(&format!("quantize m.safetensors --type {scheme} -o cast.apr -f")).ok();
        assert_eq!(dtypes(&sandbox, "cast.apr"), [expected; 4]);
    }
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
    // Those that need importance get it for the only matrix that their blocks fit.
    sandbox.write("i.dat", legacy_imatrix("a.weight", &[1.0; 256]));
    for name in names {
        let importance = if name.starts_with("iq") { "--imatrix i.dat" } else { "" };
        sandbox.apr(&format!("quantize m.safetensors --type {name} {importance} -o q.apr -f")).ok();
        sandbox.apr("validate q.apr").clean();
        assert!(sandbox.read("q.apr").len() < 8000);
    }
}

#[test]
fn a_dry_run_tells_the_size_of_every_tensor_and_reads_none() {
    let sandbox = sandbox();
    let run = sandbox.apr("quantize m.safetensors --type q4_k_m -o q.apr --dry-run").clean();
    run.says(&[
        "a.weight  f32       q4_k          4.1 KB       576 B\n",
        "b.weight  f32       q5_0          1.0 KB       176 B  rows of 64 are not a multiple of \
         256, the block of q4_k\n",
        "c.weight  f32       f16            112 B        56 B  rows of 7 are not a multiple of 256",
        "d.bias    f32       f32             32 B        32 B  kept: a vector\n",
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
fn the_report_says_what_each_type_and_tensor_costs() {
    let sandbox = sandbox();
    let report = sandbox.apr("quantize m.safetensors --type q4_k_m -o q.apr --json").clean().json();
    assert_eq!(report["elements"], 1316);
    let expected = [
        ("a.weight", "q4_k", None),
        ("b.weight", "q5_0", Some("rows of 64 are not a multiple of 256, the block of q4_k")),
        ("c.weight", "f16", Some("rows of 7 are not a multiple of 256, the block of q4_k")),
        ("d.bias", "f32", Some("kept: a vector")),
    ];
    assert_eq!(reasons(&report), expected);
    let cost = &report["quantization"];
    let types: Vec<_> =
        cost["by_type"].as_array().expect("a list").iter().map(|row| text(&row["dtype"])).collect();
    assert_eq!(types, ["q4_k", "q5_0"]);
    assert_eq!(cost["by_type"][0]["bits_per_weight"], 4.5);
    assert_eq!(
        (&cost["by_type"][1]["elements"], &cost["by_type"][1]["tensors"]),
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
fn the_gate_writes_nothing_and_force_writes_with_a_warning() {
    let sandbox = sandbox();
    let line = "quantize m.safetensors --type q4_0 -o q.apr --max-drift 0.01";
    let run = sandbox
        .apr(line)
        .fails(5, &["quality gate failed", "(max: 0.01)", "L2 drift of a.weight as q4_0"]);
    run.says(&["nothing was written; --force ignores the gate"]);
    let error = sandbox.apr(&format!("{line} --json")).fails(5, &[]).json()["error"].take();
    assert_eq!(error["message"], "quality gate failed");
    assert!(text(&error["failures"][0]).starts_with("L2 drift: 0."), "{error}");
    // A gate looks at the cast of c.weight too.
    assert_eq!(error["quantization"]["tensors"].as_array().map(Vec::len), Some(3));
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

#[test]
fn a_value_that_blocks_cannot_hold_is_refused_by_name() {
    for (value, what) in
        [(f32::NAN, "1 of 1,024 values are NaN"), (f32::INFINITY, "1 of 1,024 values are infinite")]
    {
        let mut odd = weights(1024);
        odd[700] = value;
        let tensors = [
            ("a.weight", "F32", &[4, 256][..], f32s(&weights(1024))),
            ("b.weight", "F32", &[4, 256], f32s(&odd)),
        ];
        let sandbox = Sandbox::new().with("m.safetensors", safetensors(&tensors));
        for scheme in ["q8_0", "q4_k_m", "int8", "iq4_xs"] {
            for option in ["", "--relaxed", "--force"] {
                let line = format!("quantize m.safetensors --type {scheme} -o q.apr {option}");
                let run = sandbox
                    .apr(&line)
                    .fails(5, &["tensor 'b.weight'", what, "can't hold", "nothing was written"]);
                assert!(!run.stderr.contains("--relaxed takes"), "{run}");
                assert_eq!(sandbox.files(), ["m.safetensors"], "{line}");
            }
        }
        // A float can.
        let run = sandbox
            .apr("quantize m.safetensors --type fp16 -o q.apr")
            .fails(5, &["--relaxed takes it as it is"]);
        assert!(!run.stderr.contains("can't hold"), "{run}");
        sandbox.apr("quantize m.safetensors --type fp16 -o q.apr --relaxed").ok();
    }
}

#[test]
fn what_is_quantized_is_quantized_again_only_when_told() {
    let sandbox = sandbox();
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.apr").clean();
    for line in ["quantize q.apr --type q4_0 -o r.apr", "convert q.apr --quantize q4_0 -o r.apr"] {
        let run = sandbox.apr(line);
        run.fails(
            2,
            &[
                "tensor 'a.weight'",
                "it is quantized already, as q8_0",
                "q4_0 adds to its error",
                "--requantize",
            ],
        );
        assert_eq!(sandbox.files(), ["m.safetensors", "q.apr"]);
        sandbox.apr(&format!("{line} --requantize")).clean();
        assert_eq!(dtypes(&sandbox, "r.apr"), ["q4_0", "q4_0", "f16", "f32"]);
        fs::remove_file(sandbox.path("r.apr")).expect("it is there");
    }
    // The type that it has already is not a change, so nothing would be done.
    let run = sandbox.apr("quantize q.apr --type q8_0 -o same.apr");
    run.fails(4, &["quantizing to q8_0 changes no tensor", "2 of them: q8_0 already"]);
}

#[test]
fn a_type_that_is_none_gets_the_names_like_it() {
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
        sandbox.apr(line).fails(2, &["no quantization type is called", "the nearest are", nearest]);
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
fn single_tensors_get_the_types_asked_for_them() {
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
    sandbox
        .apr("quantize m --type q8_0 --tensor-type *.ffn_dwon.*=q4_0 -o q.apr -f")
        .ok()
        .says(&["warning: no tensor's name matches *.ffn_dwon.*"]);
}

/// An importance matrix in llama.cpp's older form, for one tensor.
fn legacy_imatrix(name: &str, values: &[f32]) -> Vec<u8> {
    let number = |value: usize| i32::try_from(value).expect("small").to_le_bytes();
    [
        &number(1)[..],
        &number(name.len()),
        name.as_bytes(),
        &number(1),
        &number(values.len()),
        &f32s(values),
    ]
    .concat()
}

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

#[test]
fn a_failure_leaves_what_was_there() {
    let mut odd = weights(256);
    odd[9] = f32::NAN;
    let sandbox = sandbox().with("q.apr", "precious").with("q.gguf", "precious");
    sandbox.write("nan.safetensors", safetensors(&[("w.weight", "F32", &[2, 128], f32s(&odd))]));
    let lines = [
        ("quantize m.safetensors --type q8_0 -o q.apr", 1),
        ("quantize nan.safetensors --type q8_0 -o q.apr -f", 5),
        ("quantize m.safetensors --type nonsense -o q.apr -f", 2),
        ("quantize m.safetensors --type q4_0 --tensor-type a.*=iq1_s -o q.apr -f", 2),
        ("quantize m.safetensors --type q8_0 -o q.gguf -f", 4),
        ("quantize none.safetensors --type q8_0 -o q.gguf -f", 3),
    ];
    for (line, code) in lines {
        sandbox.apr(line).fails(code, &[]);
        let files = (sandbox.read("q.apr"), sandbox.read("q.gguf"));
        assert_eq!(files, (b"precious".to_vec(), b"precious".to_vec()), "{line}");
    }
    assert_eq!(sandbox.files(), ["m.safetensors", "nan.safetensors", "q.apr", "q.gguf"]);
    // And says what to do.
    sandbox.apr("quantize m.safetensors --type q8_0 -o q.gguf -f").says(&["--arch NAME"]);
    let run = sandbox.apr("quantize m.safetensors --type q4_0 --tensor-type a.*=iq1_s -o q.apr -f");
    run.says(&["a.weight", "iq1_s", "needs an importance matrix"]);
}

#[test]
fn integers_and_scales_are_valid_and_come_back() {
    let sandbox = TinyModel::new("llama").sandbox();
    for scheme in ["q8_0", "q4_1"] {
        sandbox.apr(&format!("quantize m --type {scheme} --pure -o q.apr -f")).ok();
        sandbox.apr("export q.apr -o out -f").ok();
        // Neither shapes nor values are those of the family that the names suggest.
        sandbox.apr("validate out").ok().says(&["skip  Names and shapes", "\nVALID"]);
        sandbox.apr("import out -o i.apr -f").ok();
        sandbox.apr("validate i.apr").ok();
        sandbox.apr("export i.apr -o again -f").ok();
        let weights = sandbox.read("out/weights.safetensors");
        assert!(sandbox.read("again/model.safetensors") == weights, "{scheme}");
        assert!(sandbox.read("again/scales.json") == sandbox.read("out/scales.json"), "{scheme}");
    }
}

#[test]
fn a_scheme_that_the_format_has_no_type_for_is_refused() {
    let sandbox = TinyModel::new("llama").sandbox();
    let files = sandbox.files();
    for (scheme, output, what) in [
        ("int8", "q.gguf", "GGUF has no type like int8: q8_0"),
        ("f8_e4m3", "q.gguf", "GGUF has no type like f8_e4m3"),
        ("q8_0", "q.safetensors", "safetensors has no type like q8_0: write an .apr or .gguf file"),
        ("int4", "q.pt", "PyTorch has no type like int4"),
    ] {
        for line in ["quantize m --type", "convert m --quantize", "export m --quantize"] {
            sandbox.apr(&format!("{line} {scheme} -o {output}")).fails(2, &[what]);
            assert_eq!(sandbox.files(), files);
        }
    }
    for (scheme, output) in [("fp16", "f.gguf"), ("f8_e4m3", "f.safetensors"), ("bf16", "f.pt")] {
        sandbox.apr(&format!("quantize m --type {scheme} -o {output}")).ok();
    }
}

#[test]
fn quantized_tensors_become_integers_and_scales_in_safetensors() {
    let rows = f32s(&weights(64));
    let sandbox =
        Sandbox::new().with("m.safetensors", safetensors(&[("w.weight", "F32", &[2, 32], rows)]));
    let cases = [
        ("q8_0", "i8", 34),
        ("int8", "i8", 36),
        ("q4_0", "u8", 18),
        ("q4_1", "u8", 20),
        ("int4", "u8", 20),
    ];
    for (scheme, quants, _) in cases {
        sandbox.apr(&format!("quantize m.safetensors --type {scheme} -o q.apr -f")).clean();
        sandbox.apr("export q.apr -o out -f").ok();
        let report = sandbox.apr("tensors out/weights.safetensors --sort name --json").ok().json();
        let tensors = report["tensors"].as_array().expect("a list");
        assert_eq!(
            (text(&tensors[0]["name"]), text(&tensors[0]["dtype"])),
            ("w.weight", quants),
            "{scheme}"
        );
        let columns = if quants == "u8" { 16 } else { 32 };
        assert_eq!(tensors[0]["shape"], json!([2, columns]), "{scheme}");
        let scales: Value = serde_json::from_slice(&sandbox.read("out/scales.json")).expect("JSON");
        let entry = &scales["w.weight"];
        assert_eq!(
            (&entry["shape"], &entry["scales"]),
            (&json!([2, 32]), &json!("w.weight.scales")),
            "{scheme}"
        );
        assert!(tensors.iter().any(|tensor| tensor["name"] == entry["scales"]), "{scheme}");
        let mins =
            entry.get("mins").map(|name| tensors.iter().any(|tensor| tensor["name"] == *name));
        assert_eq!(mins, (scheme == "q4_1").then_some(true), "{scheme}");
    }
    // The scales of K-quants are quantized themselves.
    let rows = f32s(&weights(512));
    sandbox.write("k.safetensors", safetensors(&[("w.weight", "F32", &[2, 256], rows)]));
    sandbox.apr("quantize k.safetensors --type q4_k -o k.apr").clean();
    sandbox.apr("export k.apr -o k").fails(4, &["tensor 'w.weight'", "q4_k", "--dequantize"]);
    assert!(!sandbox.path("k").exists());
    sandbox.apr("export k.apr -o k --dequantize f32").clean();
}
