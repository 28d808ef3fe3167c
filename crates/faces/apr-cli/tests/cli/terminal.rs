//! How the command behaves towards whoever typed it, and towards other programs.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

use crate::families::TinyModel;
use crate::support::{Sandbox, small_safetensors, sound};

#[test]
fn unknown_commands_and_options_are_exit_2_with_the_nearest_one() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    let cases = [
        ("validate m.apr --nan-chek", "'--nan-check'"),
        ("inspect m.apr --jsn", "'--json'"),
        ("convert m.apr -o x.safetensors --precision bf61", "'bf16'"),
        ("cache inf", "'info'"),
    ];
    for (line, nearest) in cases {
        sandbox.apr(line).fails(2, &["tip: ", "similar", nearest]);
    }
    for (line, tip) in [
        ("inspct m.apr", "tip: did you mean `apr inspect`?"),
        ("tensor m.apr", "tip: did you mean `apr tensors`?"),
        ("chat m.apr", "tip: `apr run MODEL --chat` holds a conversation"),
        ("frobnicate m.apr", "tip: `apr help` lists all commands"),
    ] {
        let run = sandbox.apr(line).fails(2, &[tip]);
        assert!(!run.stderr.contains("similar"), "{run}");
    }
    for line in [
        "",
        "inspect",
        "tensors m.apr --sort colour",
        "inspect m.apr --threads 0",
        "debug m.apr --limit -1",
    ] {
        sandbox.apr(line).fails(2, &[]);
    }
}

#[cfg(unix)]
#[test]
fn words_of_other_tools_get_the_word_of_this_one() {
    let sandbox = Sandbox::new().with("m.apr", sound().build()).with("n.apr", sound().build());
    let cases = [
        ("convert m.apr --outfile x.gguf", "-o PATH (--output)"),
        ("convert m.apr --outtype f16 -o x.apr", "--precision f16"),
        ("convert m.apr --dtype=f16 -o x.apr", "--precision f16"),
        ("convert m.apr --to-format gguf -o x.gguf", "--format"),
        ("quantize m.apr --outtype q8_0 -o x.apr", "-t TYPE (--type)"),
        ("keygen -o key --force", "-f (--overwrite)"),
        ("list m.apr", "`apr tensors MODEL`"),
        ("compare m.apr n.apr", "`apr diff A B`"),
        ("m.apr", "`apr inspect m.apr`"),
        ("run m.apr -p 12+34=", "--prompt TEXT"),
        ("run m.apr 12+34=", "`apr run MODEL --prompt 12+34=`"),
        ("tokenize m.apr hello", "`apr tokenize MODEL --prompt hello`"),
        ("inspect m.apr --format x", "`apr inspect` does not write a model"),
        ("upgrade m.apr n.apr -o c", "`apr upgrade OLD NEW`"),
        ("man -o pages", "`apr man DIR`"),
        ("completions bash -o apr.bash", "`apr completions SHELL > FILE`"),
        ("download hf://a/b -o c", "--local-dir FOLDER"),
        ("convert m.apr x.gguf", "`apr convert MODEL -o x.gguf`"),
        ("quantize m.apr x.gguf", "`apr quantize MODEL -o x.gguf`"),
        ("quantize m.apr x.gguf q4_0", "`apr quantize MODEL -t q4_0 -o x.gguf`"),
        ("quantize m.apr q4_k_m -o x.gguf", "`apr quantize MODEL -t q4_k_m -o OUT`"),
        ("quantize m.apr --bits 4 -o x.gguf", "-t TYPE (--type)"),
        ("run m.apr --bits 4", "`apr quantize MODEL --type TYPE -o OUT`"),
        ("run m.apr --n-predict 4", "--max-tokens N"),
        ("run m.apr -n 4", "--max-tokens N"),
        ("convert m.apr -o d/x.gguf --parents", "creates the missing folders"),
        ("ls m.apr --recursive", "folders below them"),
        ("inspect m.apr -j", "--json prints"),
        ("help serve", "`apr page MODEL`"),
        ("help foo", "`apr help` lists all commands"),
        ("ps", "`apr help` lists all commands"),
        ("unshard m.apr", "`apr join MANIFEST -o OUT.apr`"),
        ("sha256 m.apr", "`apr validate MODEL --sha256 HEX`"),
        ("rm m.apr", "`apr cache clear`"),
        ("convert m.apr n.apr -o x.gguf", "takes one model"),
        ("validate m.apr n.apr", "one model at a time"),
    ];
    for (line, said) in cases {
        let run = sandbox.apr(line).fails(2, &["tip: ", said]);
        assert!(!run.stderr.contains("similar"), "{run}");
    }
    // The usage has no option that only looks similar.
    let run = sandbox.apr("convert m.apr --to-format gguf -o x.gguf");
    run.fails(2, &["Usage: apr convert [OPTIONS] <MODEL>"]);
    sandbox.apr("convert m.apr --to gguf -o x.gguf").fails(2, &["pass --format gguf"]);
    // What a shell makes of `*.apr`.
    sandbox.shell(r#""$APR" convert *.apr -o x.gguf"#).fails(2, &["takes one model", "for m in"]);
    assert_eq!(sandbox.files(), ["m.apr", "n.apr"]);
}

#[test]
fn a_number_that_is_not_one_is_rejected_with_the_expected_form() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    for (line, expected) in [
        ("run m.apr --threads -1", "'-1' for '--threads <N>': expected a whole number"),
        ("run m.apr --threads x", "'x' for '--threads <N>': expected a whole number"),
        ("run m.apr --max-tokens -3", "'-3' for '--max-tokens <N>': expected a whole number"),
        ("bench m.apr -p x", "'x' for '--prompt-tokens <N>': expected a whole number"),
        ("run m.apr --temperature x", "'x' is not a number"),
    ] {
        sandbox.apr(line).fails(2, &[expected]);
    }
}

#[test]
fn errors_in_arguments_are_json_too() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    sandbox.write("home/.config/apr/config.toml", "[defaults]\noutput_format = \"json\"\n");
    let lines = [
        "inspect --json",
        "--json nonsense",
        "inspect m.apr --threads none --json",
        "convert m.apr --outfile x --json",
    ];
    for line in lines.into_iter().chain(["inspect"]) {
        let run = sandbox.apr(line);
        let error = run.json()["error"].take();
        assert_eq!(
            (run.code, &error["code"]),
            (Some(2), &serde_json::Value::Null),
            "{line}: {run}"
        );
        let message = error["message"].as_str().expect("a text");
        assert!(
            !message.is_empty() && !message.starts_with("error") && !message.contains("Usage"),
            "{message}"
        );
    }
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.apr("inspect -- --json").code, Some(3));
    sandbox.apr("inspect").fails(2, &["Usage: apr inspect"]);
    assert!(sandbox.apr("inspect").stdout.is_empty());
}

#[cfg(unix)]
#[test]
fn the_command_that_an_error_suggests_works() {
    let sandbox = TinyModel::new("llama").first("model.layers.0.self_attn.q_proj.weight", f32::NAN);
    let sandbox = sandbox.sandbox();
    sandbox.shell(r"cp -r m 'a model'\''s'").clean();
    let lines = [
        r#""$APR" import m -o x.apr"#,
        r#""$APR" convert m -o x.gguf"#,
        r#""$APR" convert 'a model'\''s' -o x.gguf"#,
        r#""$APR" quantize m --type q8_0 -o x.gguf"#,
        r#""$APR" shard m --size 1MB -o x.apr"#,
        r#""$APR" convert m/model.safetensors --prefix model. -o x.apr --arch llama"#,
    ];
    for line in lines {
        let run = sandbox.shell(line);
        if run.stderr.contains("do not fit") {
            continue;
        }
        let suggested = run.stderr.split('`').nth(1).unwrap_or_else(|| panic!("{run}")).to_owned();
        assert!(suggested.contains("q_proj"), "{run}");
        let again = suggested.replacen("apr ", r#""$APR" "#, 1);
        sandbox
            .shell(&again)
            .ok()
            .says(&["Distribution: model.layers.0.self_attn.q_proj.weight", "NaN: 1"]);
    }
    // What a copy of the weights would take along is taken by the option that the error names.
    sandbox.apr("shard m --size 1MB -o x.apr --relaxed").ok();
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_file_is_reported_with_how_to_read_it() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    sandbox.shell("mkfifo pipe").clean();
    sandbox
        .apr("inspect pipe")
        .fails(1, &["E007", "pipe", "to read a model from a pipe, pass `-`"]);
    sandbox.shell(r#"cat m.apr > pipe & "$APR" inspect - < pipe"#).clean();
}

#[test]
fn an_error_response_of_a_hub_is_not_used_as_a_model() {
    let answers =
        ["Entry not found", r#"{"error":"Repository not found"}"#, "Invalid username or password."];
    for answer in answers {
        for name in ["m.safetensors", "m.bin", "m.gguf", "m.json", "m.apr"] {
            let sandbox = Sandbox::new().with(name, answer);
            let run = sandbox.apr(&format!("inspect {name}"));
            run.fails(4, &["E001", "a server's response, not a model", answer]);
        }
    }
}

#[test]
fn an_unknown_tensor_gets_the_nearest_names() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    for line in [
        "tensors m.safetensors --hist layer.0.weight",
        "debug m.safetensors --hex --tensor layer.0.weight",
    ] {
        let run = sandbox
            .apr(line)
            .fails(1, &["no tensor 'layer.0.weight'", "nearest names:", "\n  layers.0.weight"]);
        assert!(!run.stderr.contains("steps"), "{run}");
        assert!(run.stdout.is_empty(), "{run}");
    }
    let run = sandbox.apr("tensors m.safetensors --hist quux").fails(1, &["no tensor 'quux'"]);
    assert!(run.stderr.contains("no similar name; names that exist:\n  "), "{run}");
}

#[test]
fn version_and_help_are_on_standard_output() {
    let sandbox = Sandbox::new();
    sandbox.apr("--version").clean().says(&[concat!("apr ", env!("CARGO_PKG_VERSION"))]);
    sandbox.apr("help all").clean().says(&["Usage: apr", "Exit codes: 0 ok", "--max-memory"]);
    for command in [
        "inspect", "tensors", "validate", "debug", "explain", "import", "convert", "export",
        "cache",
    ] {
        sandbox.apr(&format!("{command} --help")).clean().says(&["Usage: apr", command]);
    }
}

#[test]
fn a_binary_says_what_it_can_do() {
    let sandbox = Sandbox::new();
    let version = sandbox.apr("version").clean();
    let version = version.says(&["features: ", "reads and writes: ", "reads or detects: ", "GGUF"]);
    let first = version.text().lines().next().unwrap_or_default().to_owned();
    assert!(first.starts_with(concat!("apr ", env!("CARGO_PKG_VERSION"), " (")), "{first}");
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        assert!(first.contains("x86_64-unknown-linux-"), "{first}");
    }
    let report = sandbox.apr("version --json").ok().json();
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    let formats = report["formats"].as_array().expect("a list");
    for (id, writes) in [("safetensors", true), ("gguf", true), ("tflite", false)] {
        let format = formats.iter().find(|format| format["id"] == id);
        assert_eq!(format.expect("it is known")["writes"], writes, "{id}");
    }
}

#[test]
fn short_help_has_what_is_common_and_long_help_the_rest_under_its_heading() {
    let sandbox = Sandbox::new();
    let after = |text: &str, heading: &str| {
        text.split(heading).nth(1).unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    for command in ["convert", "import", "quantize", "export"] {
        let short = sandbox.apr(&format!("{command} -h")).clean().text();
        let long = sandbox.apr(&format!("{command} --help")).clean().text();
        assert!(
            short.lines().count() <= 66 && long.lines().count() <= 190,
            "{command}: {short}{long}"
        );
        for text in [&short, &long] {
            let own = after(text, "\nOptions:");
            let own = own.split("\n\nQuantization:").next().expect("a part");
            assert!(own.contains("--output") && own.contains("--overwrite"), "{text}");
            assert!(
                own.trim_start().starts_with("-o,") || own.trim_start().starts_with("-t,"),
                "{text}"
            );
            assert!(!own.contains("--embedding-type") && !own.contains("--recipient"), "{text}");
            assert!(
                text.contains("Examples:\n  # ") && text.contains(&format!("\n  apr {command} ")),
                "{text}"
            );
            assert!(!text.contains("--max-metadata") && text.contains("`apr help all`"), "{text}");
        }
        assert!(
            !short.contains("--embedding-type")
                && after(&long, "\nQuantization:").contains("--embedding-type"),
            "{long}"
        );
        // What is the command's own stands under no heading of others.
        let quantization = after(&long, "\nQuantization:");
        let quantization = quantization.split("\nExamples:").next().expect("a part");
        assert!(
            ["--prefix", "--shard-size", "--license"].iter().all(|own| !quantization.contains(own)),
            "{long}"
        );
    }
    sandbox.apr("help all").clean().says(&[
        "Look inside:",
        "--max-metadata <SIZE>",
        "--arch-file <FILE>",
    ]);
    let help = sandbox.apr("help").clean().text();
    assert_eq!(help, sandbox.apr("--help").clean().text());
    assert!(help.contains("\nShrink and combine:\n") && !help.contains("--max-metadata"), "{help}");
    sandbox.apr("-h").clean().says(&["Most used:", "apr run MODEL --prompt TEXT", "All commands:"]);
    // Their own options come first, and convert's are one line.
    for (command, first) in
        [("prune", "--prune"), ("factorize", "--lowrank"), ("distill", "--distill")]
    {
        let help = sandbox.apr(&format!("{command} --help")).clean().text();
        let own = after(&help, "\nOptions:");
        assert!(own.trim_start().starts_with(first), "{help}");
        assert!(help.contains("`apr convert --help`") && !help.contains("--recipient"), "{help}");
    }
    sandbox.apr("inspect --help").clean().says(&["apr inspect *.gguf --quantization"]);
}

#[test]
fn completions_and_manual_pages_are_made() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        sandbox.apr(&format!("completions {shell}")).clean().says(&["APR_COMPLETE", "apr"]);
    }
    sandbox.apr("man pages/here").ok().says(&["made the folder pages\n"]);
    let pages = sandbox.files();
    for page in ["pages/here/apr.1", "pages/here/apr-convert.1", "pages/here/apr-cache-info.1"] {
        assert!(pages.iter().any(|name| name == page), "{pages:?}");
        let page = String::from_utf8(sandbox.read(page)).expect("text");
        for section in [".SH EXAMPLES", ".SH ENVIRONMENT", ".SH FILES"] {
            assert!(page.contains(section), "{page}");
        }
    }
    let page = String::from_utf8(sandbox.read("pages/here/apr.1")).expect("text");
    for setting in ["APR_CONFIG", "APR_CACHE", "config.toml", "hex_limit", "require_signature"] {
        assert!(page.replace('\\', "").contains(setting), "{page}");
    }
    // The rare options are explained, too.
    let page = String::from_utf8(sandbox.read("pages/here/apr-convert.1")).expect("text");
    assert!(page.contains("llama.cpp importance matrix"), "{page}");
}

/// Returns the completions that a shell offers for the last word.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let mut command = sandbox.command(&[&["--", "apr"], words].concat());
    let index = words.len().to_string();
    let asked = [
        ("APR_COMPLETE", "bash"),
        ("_CLAP_COMPLETE_INDEX", &index),
        ("_CLAP_IFS", "\n"),
        ("_CLAP_COMPLETE_COMP_TYPE", "9"),
    ];
    command.envs(asked).env("_CLAP_COMPLETE_SPACE", "false");
    crate::support::Run::of(command).clean().text().lines().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_files_types_families_and_names_of_tensors() {
    let hostile = Apr2Builder::new().entry(Apr2Entry::of_bytes("x\u{1b}[2K", &[1])).build();
    let sandbox = Sandbox::new()
        .with("m.apr", sound().build())
        .with("hostile.apr", hostile)
        .with("text.apr", "no model");
    assert_eq!(completed(&sandbox, &["inspect", "m"]), ["m.apr"]);
    assert_eq!(
        completed(&sandbox, &["inspect", ""])[..4],
        [".", "hostile.apr", "m.apr", "text.apr"]
    );
    assert!(
        completed(&sandbox, &["quantize", "m.apr", "--type", "q4_k"])
            .contains(&"q4_k_m".to_owned())
    );
    assert!(
        completed(&sandbox, &["convert", "m.apr", "--quantize", "q8"]).contains(&"q8_0".to_owned())
    );
    assert!(completed(&sandbox, &["inspect", "--arch", "lla"]).contains(&"llama".to_owned()));
    for words in [
        ["tensors", "m.apr", "--hist"],
        ["tensors", "m.apr", "--values"],
        ["explain", "m.apr", "--tensor"],
    ] {
        assert_eq!(completed(&sandbox, &[&words[..], &["b."]].concat()), ["b.weight"]);
        assert_eq!(
            completed(&sandbox, &[&words[..], &[""]].concat()),
            ["b.weight", "a.bias", "c.norm"]
        );
    }
    assert_eq!(completed(&sandbox, &["debug", "m.apr", "--hex", "--tensor", "c"]), ["c.norm"]);
    assert_eq!(completed(&sandbox, &["help", "al"]), ["all"]);
    assert_eq!(completed(&sandbox, &["help", "insp"]), ["inspect"]);
    assert_eq!(completed(&sandbox, &["plan", "-o", "p.json", "conv"]), ["convert"]);
    assert_eq!(completed(&sandbox, &["plan", "-o", "p.json", "convert", "m"]), ["m.apr"]);
    for model in ["hostile.apr", "text.apr", "absent.apr"] {
        assert_eq!(completed(&sandbox, &["tensors", model, "--hist", ""]), [""; 0], "{model}");
    }
}

#[test]
fn colour_is_used_for_terminals_and_on_request() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    let colored = |variables: &[(&str, &str)], line: &str| {
        let run = sandbox.with_env(variables, line);
        (run.stdout.contains(&0x1b), run.stderr.contains('\u{1b}'))
    };
    for (line, out) in [("validate m.apr", true), ("inspect absent", false)] {
        assert_eq!(colored(&[], line), (false, false));
        assert_eq!(colored(&[], &format!("{line} --color auto")), (false, false));
        assert_eq!(colored(&[("NO_COLOR", "1")], line), (false, false));
        assert_eq!(colored(&[], &format!("{line} --color always")), (out, !out));
        assert_eq!(colored(&[("NO_COLOR", "1")], &format!("{line} --color always")), (out, !out));
        assert_eq!(colored(&[("APR_COLOR", "always")], line), (out, !out));
        assert_eq!(
            colored(&[("APR_COLOR", "always")], &format!("{line} --color never")),
            (false, false)
        );
    }
    // JSON has no colour even so.
    let run = sandbox.apr("validate m.apr --json --color always").clean();
    assert!(run.json().is_object());
}

#[test]
fn quiet_commands_print_nothing_unless_they_fail() {
    let odd = Apr2Builder { tail: vec![0], ..sound() }.build();
    let sandbox = Sandbox::new().with("m.apr", sound().build()).with("odd.apr", odd);
    let lines = [
        "inspect odd.apr",
        "tensors odd.apr --stats",
        "tensors odd.apr --hist b.weight",
        "validate odd.apr",
        "debug odd.apr",
        "convert odd.apr -o t.apr",
        "import odd.apr -o u.apr",
        "export odd.apr -o v.safetensors",
        "convert odd.apr --dry-run --format apr",
        "cache clear",
    ];
    for line in lines {
        for quiet in ["-q", "--quiet"] {
            let run = sandbox.apr(&format!("{line} {quiet}"));
            assert!(run.code == Some(0) || run.stderr.contains("already exists"), "{line}: {run}");
            assert_eq!(run.stdout, b"", "{line}");
            assert!(run.stderr.is_empty() || run.code == Some(1), "{line}: {run}");
        }
    }
    sandbox.apr("inspect absent -q").fails(3, &["error: E007: absent"]);
    sandbox.apr("inspect m.apr -q -v").fails(2, &["cannot be used with"]);
}

#[test]
fn the_log_level_selects_the_messages_on_standard_error() {
    let sandbox = Sandbox::new().with("m.apr", Apr2Builder { tail: vec![0], ..sound() }.build());
    let said =
        |level: &str, line: &str| sandbox.with_env(&[("APR_LOG_LEVEL", level)], line).ok().stderr;
    assert_eq!(said("error", "tensors m.apr"), "");
    assert!(said("warn", "tensors m.apr").contains("1 bytes follow the footer"));
    assert!(said("info", "validate m.apr").is_empty());
    assert!(said("debug", "validate m.apr").contains("GB/s"));
    assert!(sandbox.apr("validate m.apr -v").ok().stderr.contains("GB/s"));
    sandbox
        .with_env(&[("APR_LOG_LEVEL", "loud")], "validate m.apr")
        .fails(2, &["APR_LOG_LEVEL", "loud"]);
}

/// A model whose list of tensors is more than a pipe holds.
fn long() -> Vec<u8> {
    let entry =
        |i| Apr2Entry::of_bytes(&format!("layers.{i}.a_rather_long_name_of_a_tensor.weight"), &[1]);
    (0..4000).map(entry).fold(Apr2Builder::new(), Apr2Builder::entry).build()
}

#[test]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    let sandbox = Sandbox::new().with("m.apr", long());
    let lines = [
        "tensors m.apr",
        "tensors m.apr --json",
        "debug m.apr --hex --limit 100000",
        "completions bash",
        "completions zsh",
    ];
    for line in lines {
        let mut command = sandbox.command(&line.split(' ').collect::<Vec<_>>());
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut first = Vec::new();
        let mut stdout = BufReader::with_capacity(16, child.stdout.take().expect("it is piped"));
        stdout.by_ref().take(16).read_until(b'\n', &mut first).expect("there is output");
        drop(stdout);
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
        assert_eq!(output.status.code(), Some(0), "{line}");
    }
}

#[cfg(unix)]
#[test]
fn errors_in_json_survive_a_reader_that_is_gone() {
    let sandbox = Sandbox::new();
    // The pipe's reader ends at once, and the command starts after it did.
    let run =
        sandbox.shell(r#"{ sleep 0.3; "$APR" inspect absent --json; echo "exit $?" >&2; } | true"#);
    run.ok().says(&["exit 3"]);
}

#[test]
fn options_of_every_command_may_stand_anywhere() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    for line in ["--json inspect m.apr", "inspect --json m.apr", "inspect m.apr --json"] {
        assert_eq!(sandbox.apr(line).clean().json()["format"], "apr2");
    }
    let info = sandbox.apr("info m.apr").clean();
    assert_eq!(info.text(), sandbox.apr("inspect m.apr").clean().text());
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    for command in ["tensors m.safetensors --stats", "validate m.safetensors --json"] {
        let one = sandbox.apr(&format!("{command} --threads 1")).clean();
        let many = sandbox.with_env(&[("APR_THREADS", "7")], command).clean();
        assert_eq!(one.text(), many.text());
    }
    sandbox.apr("convert m.safetensors -o one.apr --threads 1").clean();
    sandbox.apr("convert m.safetensors -o many.apr --threads 5").clean();
    assert_eq!(sandbox.read("one.apr"), sandbox.read("many.apr"));
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    let cases = [
        ("export m.apr --format apr1 --shard-size 5 -o x.apr1", "--shard-size"),
        ("convert m.apr --align 32 -o x.safetensors", "--align"),
        ("convert m.apr --shard-size 0 -o x.safetensors", "shard size must be 1 byte or more"),
        ("convert m.apr --format safetensors --shard-size 5 -o -", "several files"),
    ];
    for (line, said) in cases {
        sandbox.apr(line).fails(2, &[said]);
    }
    assert_eq!(sandbox.files(), ["m.apr"]);
}

#[test]
fn debug_takes_folders_and_shard_indexes() {
    let sandbox = Sandbox::new().with("m.safetensors", small_safetensors());
    sandbox.apr("convert m.safetensors --shard-size 8 -o s.safetensors").ok();
    sandbox
        .apr("debug s.safetensors.index.json --drama")
        .clean()
        .says(&["cast of several files", "PRODUCTION READY"]);
    let sandbox = Sandbox::new().with("dir/model.safetensors", small_safetensors());
    sandbox.apr("debug dir").clean().says(&["Format:", "safetensors", "valid"]);
}

#[test]
fn only_commands_that_copy_companion_files_report_what_they_skip() {
    let sandbox =
        Sandbox::new().with("dir/model.safetensors", small_safetensors()).with("dir/train.py", "");
    for line in ["inspect dir", "tensors dir", "validate dir --strict"] {
        sandbox.apr(line).clean();
    }
    sandbox.apr("import dir -o m.apr").ok().says(&["not copied: train.py"]);
}
