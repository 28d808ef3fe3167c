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

/// A tip names what serves, and no tip is better than one that is merely the least unlike.
#[test]
fn tips_are_what_serves_or_a_slip_of_the_keys() {
    let sandbox = with_llama();
    for (line, tip) in [
        // Slips.
        ("run m.apr --top_k 5", "a similar argument exists: '--top-k'"),
        ("convert m.apr -o x.apr --percision f16", "a similar argument exists: '--precision'"),
        ("license ckeck m.apr", "a similar subcommand exists: 'check'"),
        // Options of other tools.
        ("convert m.apr -o x.apr --revision main", "hf://ORG/REPO@REVISION"),
        ("convert m.apr -o x.apr --filter a", "--keep GLOB and --drop GLOB"),
        ("convert m.apr -o x.apr --stats", "`apr tensors --stats`"),
        ("convert m.apr -o x.apr --type q8_0", "--quantize TYPE"),
        ("run m.apr --temp 1", "--temperature T"),
        ("run m.apr --ctx-size 9", "the context is the model's"),
        ("run m.apr --system-prompt x", "--system TEXT"),
        ("run m.apr --num-beams 2", "--beams N"),
        ("run m.apr --do-sample", "--temperature T"),
        ("run m.apr --n-gpu-layers 9", "apr has no GPU support"),
        ("run m.apr --ngl 9", "apr has no GPU support"),
        ("run m.apr --device cuda", "apr has no GPU support"),
        ("run m.apr --trust-remote-code", "apr runs no code of a model"),
        ("run m.apr --cache-dir x", "APR_CACHE"),
        ("run m.apr --chat-template x", "`apr edit MODEL --chat-template FILE`"),
        ("run m.apr --grammar-file x", "--grammar FILE"),
        ("shard m.apr -o x.apr --max-size 1GB", "--size SIZE"),
        ("inspect m.apr --tensors", "`apr tensors MODEL`"),
        ("inspect m.apr --metadata", "--full shows all metadata"),
        ("edit m.apr --add-metadata a=1", "--set KEY=VALUE"),
        ("validate m.apr --ppl", "`apr validate MODEL --quality --text FILE`"),
        // Commands within commands.
        ("license verify m.apr", "`apr license check MODEL --trusted PUB`"),
        ("watermark find m.apr", "`apr watermark detect MODEL --key SECRET`"),
        ("cache list", "`apr cache info`"),
        ("cache rm x", "`apr cache clear`"),
        ("canary test m.apr", "`apr canary check MODEL --canary FILE`"),
        ("lora apply m.apr", "`apr merge MODEL --lora ADAPTER -o OUT`"),
        // Commands.
        ("meta m.apr", "`apr inspect MODEL`"),
        ("visualize m.apr", "`apr graph MODEL`"),
        ("ui m.apr", "`apr tui MODEL`"),
        ("kl m.apr m.apr", "`apr validate A B --quality --text FILE`"),
        ("fuse m.apr", "`apr merge MODEL --lora ADAPTER -o OUT`"),
        ("merge-lora m.apr", "`apr merge MODEL --lora ADAPTER -o OUT`"),
        ("convert-hf llama", "`apr convert MODEL -o OUT`"),
        ("join-shards x", "`apr join MANIFEST -o OUT.apr`"),
        ("license-check m.apr", "`apr license check MODEL --trusted PUB`"),
        ("install", "`apr download hf://ORG/REPO`"),
        ("update", "apr does not update itself"),
        ("slim m.apr", "`apr quantize MODEL --type TYPE -o OUT`"),
        ("debugger m.apr", "`apr debug FILE`"),
        ("decompile m.apr", "`apr debug FILE`"),
    ] {
        sandbox.apr(line).fails(2, &["tip: ", tip]);
    }
    for line in [
        "convert m.apr -o x.apr --top 5",
        "convert m.apr -o x.apr --topk 5",
        "convert m.apr -o x.apr --name x",
        "convert m.apr -o x.apr --scale x",
    ] {
        let run = sandbox.apr(line).fails(2, &["unexpected argument"]);
        assert!(!run.stderr.contains("tip:"), "{run}");
    }
    for name in ["one.safetensors", "di.apr", "bom.json", "p.json", "merged.apr"] {
        sandbox.write(name, "x");
    }
    for name in ["none.safetensors", "wm.apr", "ids.json", "nope.json", "merge.yml"] {
        let run = sandbox.apr(&format!("inspect {name}")).fails(3, &["E007"]);
        assert!(!run.stderr.contains("did you mean"), "{run}");
    }
    sandbox.apr("inspect mergde.apr").fails(3, &["did you mean merged.apr?"]);
    let run = sandbox.apr("convert m.apr -o x.apr --quantize foo").fails(2, &["one of: "]);
    assert!(!run.stderr.contains("did you mean"), "{run}");
    for line in [
        "tensors m.apr --values foo",
        "explain m.apr --tensor zzz",
        "graph llama --node foo",
        "run llama --prompt 1 --want foo",
    ] {
        let run = sandbox.apr(line).fails(1, &["no similar name; names that exist:"]);
        assert!(!run.stderr.contains("nearest"), "{run}");
    }
}

/// A location of the hub is advised for a model that is missing, and for nothing else.
#[test]
fn the_hub_is_advised_for_models_alone() {
    let sandbox = with_llama();
    let hub = "for a model of the hub: hf://a/b";
    for line in [
        "inspect a/b",
        "convert a/b -o x.apr",
        "diff m.apr a/b",
        "merge m.apr a/b -o x.apr",
        "lora extract m.apr --base a/b --rank 4 -o x",
        "run m.apr --prompt 1 --lora a/b:0.5",
        "plan --parts 2 -o p.json convert a/b -o x.apr",
    ] {
        sandbox.apr(line).fails(3, &[hub]);
    }
    for line in [
        "validate m.apr --quality --text a/b",
        "quantize m.apr -t q4_0 -o x.gguf --imatrix a/b",
        "sign m.apr --key a/b",
        "run-part a/b 0",
        "finish a/b",
        "scan m.apr --baseline a/b",
        "edit m.apr --chat-template a/b -o x.apr",
        "run m.apr --prompt 1 --grammar a/b",
    ] {
        let run = sandbox.apr(line);
        assert!(run.code != Some(0) && run.stderr.contains("a/b"), "{line}: {run}");
        assert!(!run.stderr.contains("hf://"), "{line}: {run}");
    }
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
