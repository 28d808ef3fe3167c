//! Points 51, 53, 65, 70, 71 and 73 of `docs/qa.md`, C: tooling and operations.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use apr_arch::Families;
use apr_io::FileSource;
use apr_ops::session::Session;
use apr_registry::{DType, Limits};
use apr_source::Source;
use apr_testkit::CountingSource;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry, Apr2Footer};

use crate::support::{Run, Sandbox, model_folder, small_safetensors, sound, wait_until};

/// Bytes of the tensor in the huge files.
const HUGE: u64 = 100_000_000_000;

/// Writes a sparse APR2 file whose only tensor has 100 GB, so that the data after it are at the far
/// end.
fn write_huge_apr(sandbox: &Sandbox, name: &str) {
    let entry =
        Apr2Entry { dims: vec![HUGE], size: Some(HUGE), ..Apr2Entry::of_bytes("huge", &[]) };
    let builder = Apr2Builder::new().entry(entry);
    let start = builder.data_start() as usize;
    let len = builder.build().len() as u64 + HUGE;
    let footer = Apr2Footer { file_size: Some(len), ..builder.footer.clone() };
    let file = Apr2Builder { footer, ..builder }.build();
    sandbox.write(name, &file[..start]);
    sandbox.extend(name, len, &file[start..]);
}

#[cfg(unix)]
#[test]
fn a_tokenizer_that_cannot_be_read_has_one_reason_everywhere() {
    let sandbox = Sandbox::new();
    let folder = apr_testkit::locate::fixture("tiny-llama");
    sandbox.shell(&format!("cp -r '{}' broken", folder.display())).clean();
    sandbox.write("broken/tokenizer.json", "{}");
    let reason = "tokenizer.json: missing field 'model'";
    sandbox.apr("inspect broken --vocab").ok().says(&["vocabulary can't be read", reason]);
    sandbox.apr("convert broken -o broken.apr").ok().says(&[reason]);
    sandbox.apr("convert broken -o broken.gguf").fails(4, &[reason]);
    sandbox.apr("run broken --prompt 1+1=").fails(4, &[reason]);
}

#[cfg(unix)]
#[test]
fn qa_51_inspect_reads_the_front_and_the_trailer_of_a_huge_file_and_no_more() {
    let sandbox = Sandbox::new();
    sandbox.write_sparse("m.safetensors", HUGE);
    write_huge_apr(&sandbox, "m.apr");
    for name in ["m.safetensors", "m.apr"] {
        let source = CountingSource::new(Arc::new(
            FileSource::open(sandbox.path(name)).expect("it is there"),
        ));
        let model =
            apr_registry::open(source.clone(), name, &Limits::default()).expect("a sound file");
        let families = Families::default();
        let session = Session::of(Source::new(&*model, &families).named(name));
        let report = session.inspect().expect("a sound file");
        assert_eq!((report.parameters, report.tensor_count), (HUGE, 1));
        assert!(source.bytes_read() < 1 << 20, "{} bytes of {name}", source.bytes_read());
        // In 200 MB of address space there is no room to map or load it either.
        for command in ["inspect", "tensors"] {
            let run = sandbox.shell(&format!(r#"ulimit -v 200000; exec "$APR" {command} {name}"#));
            run.clean().says(&["100.0 GB"]);
        }
    }
}

#[test]
fn qa_53_the_drama_is_plain_text_without_a_terminal() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    let run = sandbox.apr("debug m.apr --drama").clean();
    assert!(!run.stdout.contains(&0x1b), "{run}");
    run.says(&[
        "====[ DRAMA: m.apr ]====",
        "ACT I",
        "ACT II",
        "ACT III",
        "Model is PRODUCTION READY!",
    ]);

    sandbox.write("m.apr", Apr2Builder { version: (3, 0), ..sound() }.build());
    let run = sandbox.apr("debug m.apr --drama");
    assert!(!run.stdout.contains(&0x1b), "{run}");
    run.fails(4, &["ACT III", "TRAGEDY", "E003"]);
}

#[test]
fn qa_53_the_tragedy_is_about_the_error_and_not_about_a_warning_before_it() {
    let zeros = Apr2Entry::new("a.zeros", DType::F32, &[2], &[0; 8]);
    let nan = Apr2Entry::new("b.nan", DType::F32, &[1], &f32::NAN.to_le_bytes());
    let sandbox = Sandbox::new().with("m.apr", Apr2Builder::new().entry(zeros).entry(nan).build());
    sandbox.apr("debug m.apr --drama").fails(5, &["TRAGEDY: b.nan falls"]);
}

#[test]
fn qa_65_every_error_code_is_explained_and_others_are_unknown() {
    let sandbox = Sandbox::new();
    for code in 1..=8 {
        let run = sandbox.apr(&format!("explain E00{code}")).clean();
        assert!(run.text().starts_with(&format!("**E00{code}: ")), "{run}");
        run.says(&["Common Causes", "Troubleshooting", "1. "]);
    }
    sandbox.apr("explain e002").clean().says(&["E002: Corrupted Data"]);
    for code in ["E999", "E009", "E000", "E", "002", ""] {
        sandbox.run(&["explain", code]).fails(1, &["Unknown Error Code"]);
    }
    sandbox.apr("explain E080").fails(1, &["E008"]);
}

#[test]
fn qa_70_a_piped_model_is_in_the_cache_folder_while_it_is_used_and_gone_after() {
    let sandbox = Sandbox::new();
    let model = small_safetensors();
    let (first, rest) = model.split_at(model.len() / 2);
    let mut command = sandbox.command(&["inspect", "-"]);
    command
        .env("APR_CACHE", "x")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let mut stdin = child.stdin.take().expect("it is piped");

    stdin.write_all(first).expect("someone reads");
    wait_until("the copy of the first half", || {
        let files = sandbox.files();
        files.len() == 1 && files[0].starts_with("x/spool/") && sandbox.read(&files[0]) == first
    });
    let info = sandbox.with_env(&[("APR_CACHE", "x")], "cache info --json").clean().json();
    assert_eq!(
        (&info["folder"], &info["file_count"], &info["bytes"]),
        (&"x".into(), &1.into(), &first.len().into())
    );

    stdin.write_all(rest).expect("someone reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(sandbox.files(), [""; 0]);
    sandbox.with_env(&[("APR_CACHE", "x")], "cache info").clean().says(&["x: holds 0 files"]);
}

#[test]
fn qa_70_clearing_the_cache_removes_what_a_killed_command_left_and_nothing_else() {
    let sandbox = Sandbox::new().with("x/spool/left", "1234").with("x/mine", "keep");
    let cache = [("APR_CACHE", "x")];
    sandbox.with_env(&cache, "cache info").clean().says(&["x: holds 1 file", "4 B"]);
    sandbox.with_env(&cache, "cache clear").clean().says(&["x: cleared 1 file", "4 B"]);
    assert_eq!(sandbox.files(), ["x/mine"]);
    let cache = Path::new("home").join(".cache").join("apr");
    let said = format!("{}: holds 0 files", cache.display());
    sandbox.apr("cache info").clean().says(&[&said]);
}

fn is_json(run: &Run) -> bool {
    serde_json::from_slice::<serde_json::Value>(&run.stdout).is_ok()
}

#[test]
fn qa_71_the_output_format_of_the_configuration_is_used() {
    let sandbox = Sandbox::new().with("m.apr", sound().build());
    let config = [("APR_CONFIG", "my.toml")];
    for (format, expected) in [("json", true), ("text", false)] {
        sandbox.write("my.toml", format!("[defaults]\noutput_format = \"{format}\"\n"));
        assert_eq!(is_json(&sandbox.with_env(&config, "inspect m.apr").clean()), expected);
    }
    // An option wins.
    assert!(is_json(&sandbox.with_env(&config, "inspect m.apr --json").clean()));
    // The file in the user's folder is found without being named, and is not when another is.
    sandbox.write("home/.config/apr/config.toml", "[defaults]\noutput_format = \"json\"\n");
    assert!(is_json(&sandbox.apr("inspect m.apr").clean()));
    assert!(!is_json(&sandbox.with_env(&config, "inspect m.apr").clean()));
}

#[test]
fn qa_71_every_section_of_the_configuration_has_its_effect() {
    let sandbox = Sandbox::new().with("m.apr", Apr2Builder { tail: vec![0], ..sound() }.build());
    model_folder(&sandbox, "folder");
    let with = |toml: &str, line: &str| {
        sandbox.write("my.toml", toml);
        sandbox.with_env(&[("APR_CONFIG", "my.toml")], line)
    };
    let vocabulary = "[inspect]\nshow_vocab = true\nmax_tokens_display = 3\n";
    with(vocabulary, "inspect folder").ok().says(&[
        "Vocabulary (60,000 tokens",
        "token2\n",
        "59,997 more",
    ]);
    with("[debug]\ndrama_mode = true\n", "debug m.apr").ok().says(&["ACT I"]);
    assert_eq!(
        with("[debug]\nhex_limit = 32\n", "debug m.apr --hex").ok().text().lines().count(),
        2
    );
    with("[validate]\nstrict = true\n", "validate m.apr").fails(5, &["1 bytes follow the footer"]);
    with("[validate]\nrequire_signature = true\n", "validate m.apr")
        .fails(5, &["E006", "missing signature, which is required"]);
}

#[test]
fn qa_71_environment_wins_over_configuration_and_options_over_both() {
    let sandbox = Sandbox::new().with("my.toml", "[defaults]\ncolor = false\n");
    let colored = |environment: &[(&str, &str)], line: &str| {
        let all = [environment, &[("APR_CONFIG", "my.toml")]].concat();
        sandbox.with_env(&all, line).clean().stdout.contains(&0x1b)
    };
    assert!(!colored(&[], "explain E001"));
    assert!(colored(&[("APR_COLOR", "always")], "explain E001"));
    assert!(!colored(&[("APR_COLOR", "always")], "explain E001 --color never"));
    assert!(colored(&[("APR_COLOR", "never")], "explain E001 --color always"));
}

#[test]
fn qa_71_a_configuration_that_is_wrong_or_absent_is_refused() {
    let sandbox = Sandbox::new();
    let cases = [
        ("[defaults]\noutput_frmat = \"json\"\n", "unknown field 'output_frmat'"),
        ("[default]\n", "unknown field 'default'"),
        ("[defaults]\noutput_format = \"xml\"\n", "unknown variant 'xml'"),
        ("[defaults\n", "TOML parse error"),
    ];
    for (toml, message) in cases {
        sandbox.write("my.toml", toml);
        sandbox
            .with_env(&[("APR_CONFIG", "my.toml")], "explain E001")
            .fails(2, &["my.toml", "line ", message]);
    }
    sandbox
        .with_env(&[("APR_CONFIG", "absent.toml")], "explain E001")
        .fails(3, &["E007", "absent.toml"]);
}

#[test]
fn qa_73_every_report_is_one_json_document() {
    let sandbox =
        Sandbox::new().with("m.apr", sound().build()).with("m.safetensors", small_safetensors());
    sandbox.write("bad.apr", Apr2Builder { version: (3, 0), ..sound() }.build());
    sandbox.write(
        "nan.apr",
        Apr2Builder::new().entry(Apr2Entry::new("n", DType::BF16, &[1], &[0xc0, 0x7f])).build(),
    );
    model_folder(&sandbox, "folder");
    let good = [
        "inspect m.apr",
        "info m.safetensors --header",
        "inspect folder --full --vocab",
        "tensors m.apr --stats --offset --sort size --filter *.bias",
        "tensors m.apr --hist b.weight",
        "validate m.safetensors",
        "debug m.apr",
        "debug m.apr --drama",
        "debug m.apr --hex",
        "debug m.apr --hex --tensor a.bias",
        "debug m.apr --strings",
        "explain E004",
        "import folder -o i.apr",
        "convert m.apr -o c.safetensors",
        "convert m.apr --dry-run --format safetensors",
        "convert m.apr -o v.apr --precision fp16 -v",
        "export m.apr -o e.safetensors",
        "cache info",
        "cache clear",
    ];
    for line in good {
        let run = sandbox.apr(&format!("{line} --json")).ok();
        assert!(run.json().is_object() || run.json().is_array(), "{line}: {run}");
    }
    let bad = [
        ("inspect bad.apr", 4),
        ("inspect absent", 3),
        ("tensors m.apr --hist absent", 1),
        ("validate bad.apr", 4),
        ("validate nan.apr", 5),
        ("debug bad.apr", 4),
        ("debug nan.apr", 5),
        ("explain E999", 1),
        ("convert m.apr -o m.safetensors", 1),
        ("convert m.apr -o m.what", 2),
        ("inspect http://example.com/m.apr", 1),
        ("validate m.apr --max-memory 1K", 4),
    ];
    for (line, code) in bad {
        let run = sandbox.apr(&format!("{line} --json")).fails(code, &[]);
        assert!(run.json().is_object(), "{line}: {run}");
    }
}

#[test]
fn qa_73_an_error_has_its_code_and_place_in_json() {
    let mut builder = sound();
    builder.entries[0].dtype = 255;
    let sandbox = Sandbox::new().with("m.apr", builder.build());
    let error = sandbox.apr("inspect m.apr --json").fails(4, &[]).json()["error"].clone();
    assert_eq!(
        (&error["code"], &error["file"], &error["tensor"]),
        (&"E001".into(), &"m.apr".into(), &"b.weight".into())
    );
    assert!(error["offset"].is_u64() && error["message"].is_string(), "{error}");
}
