//! `apr quantize --search`.

use std::fs;

use crate::support::{Sandbox, scrambled};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/run/tiny-bert");

/// Sums as tiny-llama writes them, of random numbers.
fn sums(seed: u64, count: u64) -> String {
    let number = |at: u64| 10 + scrambled(seed + at) % 70;
    let line = |at: u64| {
        let (a, b) = (number(2 * at), number(2 * at + 1));
        format!("{a}+{b}={}\n", a + b)
    };
    (0..count).map(line).collect()
}

#[test]
fn types_that_were_searched_are_nearer_than_a_mix_of_the_same_size() {
    let sandbox = Sandbox::new();
    sandbox.write("seen.txt", sums(0, 120));
    sandbox.write("unseen.txt", sums(9000, 250));
    let quantize = format!("quantize {LLAMA} --calibration seen.txt");
    sandbox.apr(&format!("{quantize} --type q3_k_m -o mix.gguf")).ok();
    let size = fs::metadata(sandbox.path("mix.gguf")).expect("written").len();
    let line =
        format!("{quantize} --search --max-size {size} --context 64 --chunks 12 -o s.gguf --json");
    let report = sandbox.apr(&line).ok().json();
    assert!(fs::metadata(sandbox.path("s.gguf")).expect("written").len() <= size);

    let search = &report["search"];
    assert_eq!(search["effect"], "softened_divergence");
    let curve = search["curve"].as_array().expect("points");
    assert_eq!(curve.iter().filter(|point| point["chosen"] == true).count(), 1, "{curve:?}");
    let sizes: Vec<u64> = curve.iter().filter_map(|point| point["bytes"].as_u64()).collect();
    assert!(sizes.len() == 5 && sizes.is_sorted(), "{sizes:?}");
    assert_eq!(search["types"].as_array().map(Vec::len), Some(16));
    // What was found is no wish of the user's, of which reports say what it changed.
    assert!(
        report["warnings"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|it| { !it.as_str().expect("text").contains("--tensor-type") })
    );

    let divergence = |file: &str| {
        let line = format!("validate {LLAMA} {file} --quality --text unseen.txt --json");
        let report = sandbox.apr(&line).ok().json();
        report["kl_divergence"]["mean"]["value"].as_f64().expect("a number")
    };
    let (searched, mix) = (divergence("s.gguf"), divergence("mix.gguf"));
    assert!(searched < mix, "{searched} beside {mix}");
}

#[test]
fn vectors_of_an_encoder_are_kept_near_too() {
    let sandbox = Sandbox::new();
    sandbox.write("lines.txt", "a word\n\nanother word of many\nwords\n");
    let line = format!(
        "quantize {BERT} --search --bits-per-weight 9 --calibration lines.txt -o w.apr --json"
    );
    let report = sandbox.apr(&line).ok().json();
    assert_eq!(report["search"]["effect"], "squared_distance");
    let chosen = &report["search"]["curve"]
        .as_array()
        .expect("points")
        .iter()
        .find(|point| point["chosen"] == true)
        .expect("one")["bits_per_weight"];
    assert!(chosen.as_f64().expect("a number") <= 9.0, "{chosen}");
}

/// Casting half-precision tensors to half precision changes nothing, so that no effect can be
/// measured.
#[test]
fn a_larger_budget_than_needed_loses_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt", sums(0, 60));
    let line = format!(
        "quantize {LLAMA} --search --bits-per-weight 18 --calibration a.txt --context 32 \
         --chunks 2 -o s.gguf --json"
    );
    let report = sandbox.apr(&line).ok().json();
    let types = report["search"]["types"].as_array().expect("types");
    assert!(types.iter().all(|chosen| chosen["type"] == "f16"), "{types:?}");
    let dry = line.replace("-o s.gguf", "--format gguf --dry-run");
    let dry = sandbox.apr(&dry).ok().json();
    assert_eq!(dry["search"]["types"], report["search"]["types"]);
}

#[test]
fn what_can_not_be_searched_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt", sums(0, 120));
    let search = format!("quantize {LLAMA} --search --calibration a.txt -o s.gguf");
    let usage = |line: &str, says: &[&str]| {
        sandbox.apr(line).fails(2, says);
        assert!(!sandbox.path("s.gguf").exists(), "{line}");
    };
    usage(&search, &["--bits-per-weight N or --max-size SIZE"]);
    usage(&format!("{search} --bits-per-weight 1"), &["the smallest types make"]);
    usage(&format!("{search} --bits-per-weight 99"), &["4.25"]);
    usage(&format!("{search} --bits-per-weight 4 --type q4_0"), &["leave out --type q4_0"]);
    usage(&format!("quantize {LLAMA} --search --bits-per-weight 4 -o s.gguf"), &["--calibration"]);
    usage(&format!("quantize {LLAMA} -o s.gguf"), &["--type"]);
    sandbox.write("empty.txt", "\n\n");
    let bert = format!("quantize {BERT} --search --bits-per-weight 9 -o s.gguf --calibration");
    usage(&format!("{bert} empty.txt"), &["empty"]);
    usage(&format!("{bert} a.txt --context 32"), &["--context"]);
    usage(&format!("{search} --bits-per-weight 6 --chunks 0"), &["--chunks"]);
    let folder = format!("quantize {LLAMA} --search --calibration a.txt --bits-per-weight 6");
    sandbox.apr(&format!("{folder} -o s.safetensors")).fails(2, &["--type mlx-4"]);
    sandbox.apr(&format!("{folder} -o s.onnx")).fails(4, &["GGUF, .apr"]);
    let plan = format!("plan --parts 2 -o p.json {search} --bits-per-weight 6");
    sandbox.apr(&plan).fails(2, &["--search"]);
}
