//! Advice about outputs, models that do not fit, and files with code.

use std::fs;

use apr_testkit::{excessive, locate};

use super::{Advice, backquoted, copy, followed, shell, with_llama};
use crate::support::{Sandbox, safetensors, small_safetensors};

const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../fixtures/tiny-llama");

/// Advice about outputs: names, formats, and options that do not suit them.
pub(super) const OUTPUTS: &[Advice] = &[
    (
        "apr convert w.safetensors -o m.apr",
        1,
        "-f (--overwrite) replaces it; --force does not",
        "cp m.apr k.apr; apr convert w.safetensors -o k.apr -f; \
         apr convert w.safetensors -o k.apr --overwrite",
    ),
    ("apr import llama -o m.gguf", 2, "`apr convert` writes .gguf", "apr convert llama -o m.gguf"),
    (
        "apr convert llama -o out.x",
        2,
        "pass --format apr, apr1, aprn, gguf, onnx, pytorch, safetensors or torchscript",
        // APR1 and APRN are for models of a few types, which their errors say.
        "for f in apr gguf onnx pytorch safetensors torchscript; do \
         apr convert llama -o out-$f --format $f; done",
    ),
    (
        "apr convert m.apr -o l.safetensors; apr convert l.safetensors -o folder --format \
         safetensors",
        0,
        "no config.json in the folder, which libraries need: pass --config FILE",
        "apr convert l.safetensors -o folder2 --format safetensors --config llama/config.json; \
         test -s folder2/config.json",
    ),
    (
        "apr convert llama -o x.apr --pure",
        2,
        "applies to quantization only: pass --quantize TYPE",
        "apr convert llama -o x.apr --pure --quantize q8_0",
    ),
    (
        "apr quantize llama -t q4_k -o gate.gguf --max-drift 0.00001",
        5,
        "--force ignores the gate",
        "apr quantize llama -t q4_k -o gate.gguf --max-drift 0.00001 --force",
    ),
    (
        "apr convert m.apr -o p.apr --password-file w.safetensors",
        0,
        "the output is not encrypted; add --encrypt to use the password",
        "echo secret > word; apr convert m.apr -o p2.apr --password-file word --encrypt",
    ),
    (
        "apr convert m.apr -o p3.apr --encrypt-metadata",
        2,
        "--encrypt-metadata needs --encrypt or --recipient",
        "apr convert m.apr -o p3.apr --encrypt-metadata --encrypt --password-file word",
    ),
    (
        "apr upgrade w.safetensors new.apr",
        4,
        "`apr import` packs it",
        "apr import w.safetensors -o new.apr",
    ),
    (
        "apr convert llama -o s.onnx --shard-size 100KB",
        2,
        "--shard-size works for .apr, .safetensors, .gguf output",
        "apr convert llama -o s1.apr --shard-size 100KB; \
         apr convert llama -o s2.safetensors --shard-size 100KB; \
         apr convert llama -o s3.gguf --shard-size 100KB",
    ),
    (
        "apr convert m.apr -o w1.safetensors --compress",
        2,
        "--compress, --encrypt, --recipient and --sign are for .apr output",
        "apr convert m.apr -o w1.apr --compress",
    ),
    (
        "apr quantize llama -t q4_k -o q.gguf; apr convert q.gguf -o q.safetensors",
        2,
        "or floats with --dequantize f16",
        "apr convert q.gguf -o q.safetensors --dequantize f16",
    ),
    (
        "apr quantize llama -t fp8 -o fp8.gguf",
        2,
        "write one with --format safetensors",
        "apr quantize llama -t fp8 --format safetensors -o fp8",
    ),
    (
        "apr convert q.gguf -o q.pt",
        4,
        "a state dict does not support q8_0; --dequantize f16 writes floats",
        "apr convert q.gguf -o q.pt --dequantize f16",
    ),
    (
        "apr export q.gguf --format torchscript -o q1.pt",
        0,
        "PyTorch has no such types; --dequantize f16 halves the size",
        "apr export q.gguf --format torchscript -o q2.pt --dequantize f16 2> said; test ! -s said; \
         test $(wc -c < q2.pt) -lt $(wc -c < q1.pt)",
    ),
    (
        "apr export q.gguf -o q1.onnx",
        0,
        "ONNX has no operator for this block type; --dequantize f16 halves the size",
        "apr export q.gguf -o q2.onnx --dequantize f16 2> said; ! grep half said; \
         test $(wc -c < q2.onnx) -lt $(wc -c < q1.onnx)",
    ),
    (
        "apr export q.gguf -o folder --format safetensors",
        4,
        "integers and scales can't represent q5_0; --dequantize f16 makes it floats",
        "apr export q.gguf -o folder3 --format safetensors --dequantize f16",
    ),
    (
        "apr export llama -o folder4 --format safetensors --quantize q8_0",
        2,
        "write an .apr or .gguf file; `apr export` makes integers and scales of it",
        "apr convert llama -o q8.gguf --quantize q8_0; apr convert llama -o q8.apr --quantize \
         q8_0; apr export q8.gguf -o folder4 --format safetensors; \
         apr export q8.apr -o folder5 --format safetensors",
    ),
    (
        "apr export q8.gguf -o folder7 --format safetensors",
        0,
        "--dequantize f16 writes floats, which libraries load",
        "apr export q8.gguf -o folder8 --format safetensors --dequantize f16 2> said; \
         ! grep scales said",
    ),
    (
        "apr convert q.gguf -o r.gguf --quantize q8_0",
        2,
        "pass --requantize to quantize it to q8_0",
        "apr convert q.gguf -o r.gguf --quantize q8_0 --requantize",
    ),
    (
        "apr export llama -o y.onnx --quantize q8_0 --opset 17",
        2,
        "blocks need --opset 21 or later",
        "apr export llama -o y.onnx --quantize q8_0 --opset 21",
    ),
    (
        "apr convert $FIXTURES/onnx/storages.onnx -o s.onnx --simplify",
        4,
        "--relaxed writes it without the comparison",
        "apr convert $FIXTURES/onnx/storages.onnx -o s.onnx --simplify --relaxed",
    ),
    (
        "apr export llama -o x.onnx --opset 12 --precision bf16",
        4,
        "need --opset 13 or later; for 12 pass --precision fp16 or fp32",
        "apr export llama -o x.onnx --opset 13 --precision bf16; \
         apr export llama -o x2.onnx --opset 12 --precision fp16; \
         apr export llama -o x3.onnx --opset 12 --precision fp32",
    ),
    (
        "apr convert $FIXTURES/run/tiny-whisper -o o.apr --format apr1 --precision bf16",
        4,
        "--precision fp32 casts floats",
        "apr convert $FIXTURES/run/tiny-whisper -o o.apr --format apr1 --precision fp32",
    ),
    (
        "apr diff m.apr b.safetensors",
        0,
        "--json lists them all",
        "apr diff m.apr b.safetensors --json > all; test $(grep -c weight all) -gt 35",
    ),
    ("apr inspect m.apr", 0, "(`apr validate` checks it)", "apr validate m.apr"),
    (
        "apr inspect m.apr",
        0,
        "--full shows them",
        "apr inspect m.apr --full > all; ! grep -e --full all",
    ),
    (
        "apr convert llama -o -",
        2,
        "standard output has no extension to set the format: pass --format",
        "apr convert llama -o - --format safetensors > piped.safetensors",
    ),
    (
        "apr export llama -o x.h5",
        2,
        "no format for the output's extension: pass --format FORMAT",
        "apr export llama -o x.h5 --format safetensors",
    ),
    (
        "apr canary create m.apr --tokens 1 --chat -o c.json",
        2,
        "--chat is for prompts: pass --prompt or --from",
        "apr canary create m.apr --prompt 1+1= -o chat.json",
    ),
    (
        "apr canary create m.apr -o c.json",
        2,
        "a canary needs an input: --prompt, --from, --input or --tokens",
        "apr canary create m.apr -o c.json --prompt 1+; \
         apr canary create m.apr -o c2.json --tokens 1,15,7; echo 1+ > one.txt; \
         apr canary create m.apr -o c3.json --input one.txt",
    ),
];

/// Advice about models that do not match their configuration, or have none.
pub(super) const MODELS: &[Advice] = &[
    (
        "apr import wide -o w.apr",
        5,
        "--relaxed writes the model anyway, --arch NAME sets the family",
        "apr import wide -o w.apr --relaxed; ! apr import wide -o w2.apr --arch mistral",
    ),
    (
        "apr convert other -o o.gguf",
        4,
        "`apr explain MODEL` names the nearest known family, --arch-file FILE defines another",
        "apr explain other | grep -q 'tensor names match .*LLaMA'",
    ),
    (
        "apr graph other",
        4,
        "`apr explain MODEL` shows the differences",
        "apr explain other | grep -q 'tensor names match .*LLaMA'",
    ),
    (
        "apr import other -o o.apr",
        0,
        "--arch-file FILE defines one",
        "sed '0,/^name = .*/s||name = \"fooma\"|; s|^model_types = .*|model_types = \
         [\"fooma\"]|' $FAMILIES/llama.toml > mine.toml; \
         apr import other -o o2.apr --arch-file mine.toml | grep -q 'LLaMA family'",
    ),
    (
        "apr convert w.apr -o w.gguf",
        5,
        "--relaxed writes the model anyway",
        "apr convert w.apr -o w.gguf --relaxed",
    ),
    (
        "apr convert m.apr -o l.safetensors; apr convert l.safetensors -o l.gguf",
        4,
        "pass the config.json of this LLaMA with --config FILE",
        "apr convert l.safetensors -o l.gguf --config llama/config.json",
    ),
    (
        "apr import wide -o w3.apr",
        5,
        "--json lists them all",
        "apr import wide -o w3.apr --json 2> /dev/null > all || \
         test $(grep -c expected all) -gt 10",
    ),
    (
        "apr graph other",
        4,
        "--arch-file FILE defines it (docs/families.md)",
        "sed '0,/^name = .*/s||name = \"fooma\"|; s|^model_types = .*|model_types = \
         [\"fooma\"]|' $FAMILIES/llama.toml > fooma.toml; apr graph other --arch-file fooma.toml",
    ),
    (
        "apr graph $FIXTURES/run/tiny-whisper --format svg -o w.svg",
        2,
        "an image shows one: pass --part encoder_model or --part decoder_model",
        "apr graph $FIXTURES/run/tiny-whisper --format svg -o w.svg --part encoder_model; \
         apr graph $FIXTURES/run/tiny-whisper --format svg -o w2.svg --part decoder_model",
    ),
];

/// Pictures that are too large, with groups and without.
pub(super) const PICTURES: &[Advice] = &[
    (
        "apr graph fan.onnx --format svg -o p.svg",
        2,
        "--format dot has no such limit",
        "apr graph fan.onnx --format dot -o p.dot",
    ),
    (
        "apr graph fan.onnx --format mermaid -o p.mmd 2> said; cat said; ! grep depth said",
        0,
        "--format dot has no such limit",
        "apr graph fan.onnx --format dot -o p2.dot",
    ),
    (
        "apr graph calls.onnx --format svg -o g.svg --depth 99 --unfold",
        2,
        "a smaller --depth helps",
        "apr graph calls.onnx --format svg -o g.svg --depth 0 --unfold",
    ),
    (
        "apr graph calls.onnx --format mermaid -o g.mmd --depth 99 --unfold",
        0,
        "a smaller --depth helps",
        "apr graph calls.onnx --format mermaid -o g2.mmd --depth 0 --unfold 2> said; \
         test ! -s said",
    ),
];

/// Files with code.
pub(super) const HOSTILE: &[Advice] = &[
    (
        "apr convert m.pkl -o m.apr",
        4,
        "`apr validate` lists everything that loading it would execute",
        "apr validate m.pkl > list || grep -q \"os.system('id')\" list",
    ),
    (
        "apr inspect a.npy",
        4,
        "`apr scan` lists what they would execute",
        "apr scan a.npy > list || grep -q system list",
    ),
    (
        "apr convert old.pt -o old.apr",
        4,
        "`apr scan` lists the code that it would run",
        "apr scan old.pt --json > list; grep -q clean list",
    ),
    (
        "apr inspect s.safetensors --max-metadata 10",
        4,
        "raise the limit with --max-metadata",
        "apr inspect s.safetensors --max-metadata 1MiB",
    ),
    (
        "apr inspect g.gguf --max-metadata 1000",
        4,
        "raise the limit with --max-metadata",
        "apr inspect g.gguf --max-metadata 1MiB",
    ),
    (
        "apr inspect good.pt --max-metadata 10",
        4,
        "raise the limit with --max-metadata",
        "apr inspect good.pt --max-metadata 1MiB",
    ),
    (
        "apr inspect $FIXTURES/../crates/formats/apr-pytorch/tests/golden/tied_legacy.pt \
         --max-metadata 3",
        4,
        "the pickle is longer than the limit on metadata; raise it with --max-metadata",
        "apr inspect $FIXTURES/../crates/formats/apr-pytorch/tests/golden/tied_legacy.pt \
         --max-metadata 1MiB",
    ),
    (
        "apr scan $FIXTURES/scan/plain_lz4.joblib --max-metadata 20",
        5,
        "an LZ4 frame decodes to more than 20 bytes; raise the limit with --max-metadata",
        "apr scan $FIXTURES/scan/plain_lz4.joblib --max-metadata 1MiB",
    ),
];

#[test]
fn advice_about_outputs_helps() {
    let sandbox = with_llama();
    sandbox.write("w.safetensors", small_safetensors());
    sandbox.apr("convert m.apr -o b.safetensors --precision fp16 --prefix layers. --relaxed").ok();
    followed(&sandbox, OUTPUTS);
}

#[test]
fn advice_about_models_that_do_not_fit_helps() {
    let sandbox = with_llama();
    let config = String::from_utf8(sandbox.read("llama/config.json")).expect("UTF-8");
    copy("tiny-llama", &sandbox, "other");
    sandbox.write("other/config.json", config.replace("\"llama\"", "\"fooma\""));
    copy("tiny-llama", &sandbox, "wide");
    sandbox
        .write("wide/config.json", config.replace("\"hidden_size\": 128", "\"hidden_size\": 64"));
    let nan = [f32::NAN, 1.0].map(f32::to_le_bytes).concat();
    sandbox.write("it's.safetensors", safetensors(&[("a b", "F32", &[2], nan)]));
    followed(&sandbox, MODELS);

    let refused = sandbox.run(&["convert", "it's.safetensors", "-o", "n.apr"]).fails(5, &["NaN"]);
    let command = backquoted(&refused).remove(0);
    shell(&sandbox, &command).ok().says(&["a b"]);
    refused.says(&["--relaxed writes it nevertheless"]);
    sandbox.run(&["convert", "it's.safetensors", "-o", "n.apr", "--relaxed"]).ok();
}

#[test]
fn advice_about_pictures_helps() {
    let of_size = |name: &str, size| {
        let construct = excessive::all().find(|construct| construct.name == name);
        construct.expect("a construct").of_size(size)
    };
    let sandbox = Sandbox::new()
        .with("fan.onnx", of_size("onnx: a fan of nodes", 1_000_000))
        .with("calls.onnx", of_size("onnx: nested branches", 1_000_000));
    followed(&sandbox, PICTURES);
}

#[test]
fn advice_about_hostile_files_helps() {
    let sandbox = Sandbox::new()
        .with("m.pkl", b"cos\nsystem\n(S'id'\ntR.")
        .with("old.pt", b"\x80\x02]q\0.")
        .with("bare.bin", b"\x80\x02]q\0.");
    sandbox.write("a.npy", fs::read(locate::fixture("scan/evil.npy")).expect("a fixture"));
    sandbox.write("s.safetensors", small_safetensors());
    sandbox.write("good.pt", fs::read(locate::fixture("scan/good.pt")).expect("a fixture"));
    sandbox.apr(&format!("convert {LLAMA} -o g.gguf")).ok();
    followed(&sandbox, HOSTILE);
    // Each code has its page, whose commands run.
    for code in 1..=8 {
        let page = sandbox.apr(&format!("explain E00{code}")).clean();
        let text = page.text();
        let quoted = text.split('`').skip(1).step_by(2);
        for command in quoted.filter(|text| text.starts_with("apr ")) {
            assert!(command.contains("FILE"), "{command}");
            shell(&sandbox, &command.replace("FILE", "g.gguf")).ok();
        }
    }
    let module = "../crates/formats/apr-pytorch/tests/golden/user_module.pt";
    sandbox.write("module.pt", fs::read(locate::fixture(module)).expect("a fixture"));
    let refused = sandbox.apr("validate module.pt").fails(5, &["the model's own classes"]).text();
    let options =
        refused.lines().find(|line| line.starts_with("  --pickle-class")).expect("advice");
    sandbox.apr(&format!("validate module.pt{options}")).ok();
    let refused = sandbox.with("x.bin", b"nothing").apr("inspect x.bin").fails(4, &["E001"]);
    assert_eq!(backquoted(&refused), ["apr explain E001"]);
}
