//! Quantized files beside those of llama.cpp's own quantizer.

use std::process::Command;

use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::locate;
use apr_testkit::peers::agreed;
use half::f16;

use crate::support::{Run, Sandbox, f32s, scrambled};

/// Our names of file types, and llama.cpp's numbers of them.
const FILE_TYPES: [(&str, u32); 20] = [
    ("fp16", 1),
    ("bf16", 32),
    ("q4_0", 2),
    ("q4_1", 3),
    ("q5_0", 8),
    ("q5_1", 9),
    ("q8_0", 7),
    ("q2_k", 10),
    ("q3_k_s", 11),
    ("q3_k_m", 12),
    ("q3_k_l", 13),
    ("q4_k_s", 14),
    ("q4_k_m", 15),
    ("q5_k_s", 16),
    ("q5_k_m", 17),
    ("q6_k", 18),
    ("iq4_nl", 25),
    ("iq4_xs", 30),
    ("tq1_0", 36),
    ("tq2_0", 37),
];

/// Types with few bits, which require an importance matrix.
const WITH_IMPORTANCE: [(&str, u32); 12] = [
    ("iq1_s", 24),
    ("iq1_m", 31),
    ("iq2_xxs", 19),
    ("iq2_xs", 20),
    ("iq2_s", 28),
    ("iq2_m", 29),
    ("iq3_xxs", 23),
    ("iq3_xs", 22),
    ("iq3_s", 26),
    ("iq3_m", 27),
    ("q1_0", 40),
    ("q2_0", 41),
];

const F32: u32 = 0;
const F16: u32 = 1;
const HIDDEN: u64 = 256;
const FEED_FORWARD: u64 = 512;
const EXPERTS: u64 = 2;
const VOCABULARY: u64 = 64;

/// Bell-shaped values around zero, as weights have them, and exact in f16: sums of eight random
/// bytes, over 8192.
fn matrix(name: &str, dims: &[u64], seed: u64) -> GgufEntry {
    let value = |i: u64| {
        let random = scrambled(seed << 32 | i).to_le_bytes();
        let sum: i16 = random.iter().map(|&byte| i16::from(byte.cast_signed())).sum();
        f16::from_f32(f32::from(sum) / 8192.0)
    };
    let count = dims.iter().product::<u64>();
    let bytes: Vec<u8> = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    GgufEntry::new(name, F16, dims, &bytes)
}

fn ones(name: &str) -> GgufEntry {
    let values: Vec<f32> = (0..HIDDEN).map(|_| 1.0).collect();
    GgufEntry::new(name, F32, &[HIDDEN], &f32s(&values))
}

/// Returns a LLaMA of one layer with two experts and grouped queries, so that every rule of the
/// mixes applies.
fn model() -> Vec<u8> {
    let mut model = GgufBuilder::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", 256)
        .u32("llama.feed_forward_length", 512)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .pair("llama.attention.layer_norm_rms_epsilon", 6, &1e-5_f32.to_le_bytes())
        .u32("llama.vocab_size", 64)
        .u32("general.file_type", 1)
        .u32("llama.expert_count", 2)
        .u32("llama.expert_used_count", 2);
    let layers = [
        ("attn_q", vec![HIDDEN, HIDDEN]),
        ("attn_k", vec![HIDDEN, HIDDEN / 2]),
        ("attn_v", vec![HIDDEN, HIDDEN / 2]),
        ("attn_output", vec![HIDDEN, HIDDEN]),
        ("ffn_gate_exps", vec![HIDDEN, FEED_FORWARD, EXPERTS]),
        ("ffn_up_exps", vec![HIDDEN, FEED_FORWARD, EXPERTS]),
        ("ffn_down_exps", vec![FEED_FORWARD, HIDDEN, EXPERTS]),
    ];
    model = model.entry(matrix("token_embd.weight", &[HIDDEN, VOCABULARY], 1));
    for (seed, (name, dims)) in (2..).zip(layers) {
        model = model.entry(matrix(&format!("blk.0.{name}.weight"), &dims, seed));
    }
    let router: Vec<f32> =
        (0..HIDDEN * EXPERTS).map(|i| (scrambled(i) >> 58) as f32 / 1024.0).collect();
    model
        .entry(GgufEntry::new("blk.0.ffn_gate_inp.weight", F32, &[HIDDEN, EXPERTS], &f32s(&router)))
        .entry(ones("blk.0.attn_norm.weight"))
        .entry(ones("blk.0.ffn_norm.weight"))
        .entry(ones("output_norm.weight"))
        .entry(matrix("output.weight", &[HIDDEN, VOCABULARY], 99))
        .build()
}

#[test]
fn whole_files_are_the_bytes_that_llama_quantize_writes() {
    let sandbox = Sandbox::new().with("m.gguf", model());
    let ours: Vec<_> = FILE_TYPES
        .iter()
        .map(|(name, _)| {
            sandbox.apr(&format!("quantize m.gguf --type {name} -o {name}.ours.gguf")).ok();
            ((*name).to_owned(), sandbox.read(&format!("{name}.ours.gguf")))
        })
        .collect();
    agreed("llama.cpp/whole_files", &ours, || {
        let mut command =
            Command::new(locate::reference_python().expect("`cargo xtask interop` makes it"));
        command.arg(locate::workspace().join("xtask/interop/llama_quantize.py"));
        command.arg(sandbox.path("m.gguf")).arg(sandbox.path(""));
        command.args(FILE_TYPES.iter().map(|(name, number)| format!("{name}={number}")));
        Run::of(command).ok();
        for (name, bytes) in &ours {
            assert!(
                sandbox.read(&format!("{name}.gguf")) == *bytes,
                "{name} differs from llama.cpp's"
            );
        }
    });
}

/// An importance matrix of all weights of [`model`], in the older of llama.cpp's formats.
fn importance() -> Vec<u8> {
    let experts = |columns: u64| columns * EXPERTS;
    let entries = [
        ("blk.0.attn_q", HIDDEN),
        ("blk.0.attn_k", HIDDEN),
        ("blk.0.attn_v", HIDDEN),
        ("blk.0.attn_output", HIDDEN),
        ("blk.0.ffn_gate_exps", experts(HIDDEN)),
        ("blk.0.ffn_up_exps", experts(HIDDEN)),
        ("blk.0.ffn_down_exps", experts(FEED_FORWARD)),
        ("output", HIDDEN),
        ("token_embd", HIDDEN),
    ];
    let number = |number: usize| i32::try_from(number).expect("a small number").to_le_bytes();
    let mut file = number(entries.len()).to_vec();
    for (seed, (name, len)) in (1_u64..).zip(entries) {
        let name = format!("{name}.weight");
        file.extend(number(name.len()));
        file.extend(name.as_bytes());
        // Counted once, so that what is stored is what counts.
        file.extend([number(1), number(usize::try_from(len).expect("few columns"))].concat());
        let values: Vec<f32> =
            (0..len).map(|i| (scrambled(seed << 32 | i) >> 48) as f32 / 4096.0 + 0.01).collect();
        file.extend(f32s(&values));
    }
    file
}

#[test]
fn whole_files_of_few_bits_are_the_bytes_that_llama_quantize_writes() {
    let sandbox = Sandbox::new().with("m.gguf", model()).with("i.dat", importance());
    let ours: Vec<_> = WITH_IMPORTANCE
        .iter()
        .map(|(name, _)| {
            sandbox
                .apr(&format!("quantize m.gguf --type {name} --imatrix i.dat -o {name}.ours.gguf"))
                .ok();
            ((*name).to_owned(), sandbox.read(&format!("{name}.ours.gguf")))
        })
        .collect();
    agreed("llama.cpp/whole_files_of_few_bits", &ours, || {
        let mut command =
            Command::new(locate::reference_python().expect("`cargo xtask interop` makes it"));
        command.current_dir(sandbox.path(""));
        command.arg(locate::workspace().join("xtask/interop/llama_quantize.py"));
        command.args(["m.gguf", ".", "--imatrix=i.dat"]);
        command.args(WITH_IMPORTANCE.iter().map(|(name, number)| format!("{name}={number}")));
        Run::of(command).ok();
        for (name, bytes) in &ours {
            assert!(
                sandbox.read(&format!("{name}.gguf")) == *bytes,
                "{name} differs from llama.cpp's"
            );
        }
    });
}

#[test]
fn types_of_few_bits_are_refused_without_importance() {
    let sandbox = Sandbox::new().with("m.gguf", model());
    for name in ["iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs"] {
        let refused = sandbox.apr(&format!("quantize m.gguf --type {name} -o q.gguf"));
        refused.fails(2, &["needs an importance matrix", "blk.0.", "--imatrix FILE"]);
    }
    // These llama-quantize makes without one, but not of the embeddings a type that can't be made
    // so.
    for name in ["iq3_s", "iq3_m", "q1_0", "q2_0"] {
        sandbox.apr(&format!("quantize m.gguf --type {name} -o {name}.gguf")).ok();
    }
    let refused = sandbox.apr("quantize m.gguf --type iq3_s --embedding-type iq2_xs -o q.gguf");
    refused.fails(2, &["needs an importance matrix", "token_embd.weight"]);
    assert!(!sandbox.path("q.gguf").exists());
}
