//! Hints for what other tools' users type.

use super::{backquoted, shell, with_llama};
use crate::support::small_safetensors;

/// The arguments are those of other tools. Each hint names a command, whose placeholders are filled
/// in.
#[test]
fn hints_name_commands_that_work() {
    let sandbox = with_llama();
    sandbox.write("w.safetensors", small_safetensors());
    sandbox.apr("shard m.apr --size 100KB -o s.apr").ok();
    let placeholders = [
        ("MODEL", "m.apr"),
        ("SOURCE", "llama"),
        ("OUT.apr", "new.apr"),
        ("OUT", "new.apr"),
        ("FOLDER", "new"),
        ("MANIFEST", "s.apr"),
        ("OLD=NEW", "lm_head.weight=other"),
        ("FILE", "m.apr"),
        ("KEY", "key"),
        ("SHELL", "bash"),
        ("A", "m.apr"),
        ("B", "llama"),
        ("TYPE", "q8_0"),
        ("NAME", "lm_head.weight"),
        ("SIZE", "100KB"),
    ];
    let filled = |command: &str| {
        let words = command.split(' ').map(|word| {
            let found = placeholders.iter().find(|(placeholder, _)| *placeholder == word);
            found.map_or(word, |(_, value)| *value)
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let mut tried = 0;
    for word in [
        "list",
        "show",
        "stats",
        "check",
        "compare",
        "pack",
        "unpack",
        "transcode",
        "dequantize",
        "split",
        "concat",
        "rename",
        "hexdump",
        "key",
        "completion",
        "gguf",
        "upload",
    ] {
        let refused = sandbox.apr(word).fails(2, &["tip:"]);
        let commands = backquoted(&refused);
        assert!(!commands.is_empty(), "{refused}");
        // Those that name an option of a command alone are begun by a reader.
        for command in commands.iter().filter(|command| command.split(' ').count() > 2) {
            let line = match command.as_str() {
                "apr convert --shard-size" => {
                    "apr convert m.apr -o shards.apr --shard-size 100KB".to_owned()
                }
                // Of a model that is not quantized, it would be a copy.
                command if command.contains("--dequantize") => {
                    let quantized = "apr quantize m.apr -t q8_0 -o q.apr -f";
                    format!("{quantized} && {}", filled(command).replace("m.apr", "q.apr"))
                }
                command => filled(command),
            };
            let begin = "rm -rf new.apr new key key.pub; cp m.apr kept";
            let run =
                shell(&sandbox, &format!("{begin}; {line}; code=$?; mv kept m.apr; exit $code"));
            assert_eq!(run.code, Some(0), "{word}: {line}: {run}");
            tried += 1;
        }
    }
    assert!(tried >= 16, "{tried}");

    let refused = sandbox.apr("m.apr").fails(2, &["the command must be first"]);
    shell(&sandbox, &backquoted(&refused)[0]).ok();
    let refused = sandbox.apr("convert w.safetensors out.apr").fails(2, &["-o names the output"]);
    shell(&sandbox, &filled(&backquoted(&refused)[0])).ok();
    // A loop of the shell, to the letter.
    let refused = sandbox.apr("convert w.safetensors m.apr").fails(2, &["one by one"]);
    let line = refused.stderr.split('`').find(|text| text.starts_with("for m in")).expect("a loop");
    sandbox.write("b.safetensors", small_safetensors());
    shell(&sandbox, line).ok();
    assert!(sandbox.path("w.apr").exists() && sandbox.path("b.apr").exists());
}

/// Options that other tools call otherwise: the words of a hint are appended.
#[test]
fn hints_name_options_that_work() {
    let sandbox = with_llama();
    for (refused, said, then) in [
        ("convert m.apr --outfile x.gguf", "-o PATH (--output)", "convert m.apr -o a.gguf"),
        (
            "convert m.apr --outtype f16 -o b.apr",
            "--precision f16",
            "convert m.apr --precision f16 -o b.apr",
        ),
        (
            "convert m.apr --output-format gguf -o c",
            "otherwise pass --format",
            "convert m.apr --format gguf -o c",
        ),
        ("inspect -m m.apr", "`apr COMMAND MODEL`", "inspect m.apr"),
        (
            "convert m.apr --qtype q8_0 -o d.apr",
            "--quantize TYPE",
            "convert m.apr --quantize q8_0 -o d.apr",
        ),
        (
            "quantize m.apr --qtype q8_0 -o e.apr",
            "-t TYPE (--type)",
            "quantize m.apr -t q8_0 -o e.apr",
        ),
        ("convert m.apr -o m.gguf --clobber", "-f (--overwrite)", "convert m.apr -o m.gguf -f"),
        (
            "convert m.apr -o f.apr --max-shard-size 100KB",
            "--shard-size SIZE",
            "convert m.apr -o f.apr --shard-size 100KB",
        ),
        (
            "shard m.apr -o g.apr --shard-size 100KB",
            "--size SIZE",
            "shard m.apr -o g.apr --size 100KB",
        ),
        (
            "quantize m.apr -t q4_k -o h.gguf --leave-output-tensor",
            "--output-type TYPE",
            "quantize m.apr -t q4_k -o h.gguf --output-type f16",
        ),
        (
            "quantize m.apr -t q4_k -o i.gguf --token-embedding-type f16",
            "--embedding-type",
            "quantize m.apr -t q4_k -o i.gguf --embedding-type f16",
        ),
        (
            "tensors m.apr --pattern x",
            "--filter of `apr tensors`",
            "tensors m.apr --filter lm_head",
        ),
        (
            "diff m.apr llama --grep x",
            "--tensors of `apr diff`",
            "diff m.apr llama --tensors lm_head",
        ),
        ("tensors m.apr --histogram", "--hist NAME", "tensors m.apr --hist lm_head.weight"),
        ("inspect m.apr --no-color", "--color never", "inspect m.apr --color never"),
        ("validate m.apr -j 2", "--threads N", "validate m.apr --threads 2"),
    ] {
        sandbox.apr(refused).fails(2, &[said]);
        sandbox.apr(then).ok();
    }
}
