//! Text: what kind of text a file is, and what its loaders run of it.
//!
//! A kind is decided before anything is judged: manual pages, programs, prose, settings, markup,
//! templates and lists of labels have one each, by the name and the first lines.

use apr_registry::{Escaped, Result};

use super::{ContentRemarks, UNKNOWN, bounded, not_examined, not_run};
use super::{coreml, dotted, executable, jinja, json, tensorflow, textproto, xml, yaml};
use crate::report::FileVerdict;

/// Prefixes of source files that a library imports if a model's folder is trusted or from a hub.
const LOADED_BY_TRANSFORMERS: [&str; 7] = [
    "configuration_",
    "feature_extraction_",
    "image_processing_",
    "modeling_",
    "pipeline",
    "processing_",
    "tokenization_",
];

/// File that transformers runs on `generate` if the folder is trusted, and its folder.
const GENERATING: &str = "custom_generate/generate.py";

/// Start of the message about such a source file.
pub(crate) const OF_TRANSFORMERS: &str =
    "Python source that transformers with trust_remote_code runs";

/// First line of a file that Git LFS has in place of a large one.
const OF_LFS: &str = "version https://git-lfs.github.com/spec/";

/// Modules of Python by which code reaches the system.
const REACHING: [&str; 12] = [
    "base64",
    "builtins",
    "ctypes",
    "importlib",
    "marshal",
    "os",
    "pickle",
    "requests",
    "shutil",
    "socket",
    "subprocess",
    "urllib",
];

/// Ends of names of programs in languages that are not examined.
const SOURCES: [(&str, &str); 60] = [
    ("adb", "Ada"),
    ("asm", "assembly"),
    ("awk", "AWK"),
    ("bash", "shell script"),
    ("bat", "batch script"),
    ("c", "C"),
    ("cc", "C++"),
    ("cl", "OpenCL"),
    ("clj", "Clojure"),
    ("cmake", "CMake"),
    ("cmd", "batch script"),
    ("cpp", "C++"),
    ("cs", "C#"),
    ("csh", "shell script"),
    ("css", "style sheet"),
    ("cu", "CUDA"),
    ("cuh", "CUDA"),
    ("cxx", "C++"),
    ("dart", "Dart"),
    ("el", "Lisp"),
    ("erl", "Erlang"),
    ("ex", "Elixir"),
    ("f90", "Fortran"),
    ("fish", "shell script"),
    ("go", "Go"),
    ("h", "C"),
    ("hh", "C++"),
    ("hpp", "C++"),
    ("hs", "Haskell"),
    ("inc", "source"),
    ("java", "Java"),
    ("jl", "Julia"),
    ("js", "JavaScript"),
    ("jsx", "JavaScript"),
    ("kt", "Kotlin"),
    ("lisp", "Lisp"),
    ("lua", "Lua"),
    ("m4", "M4"),
    ("mjs", "JavaScript"),
    ("mk", "make"),
    ("ml", "OCaml"),
    ("php", "PHP"),
    ("pl", "Perl"),
    ("pm", "Perl"),
    ("ps1", "PowerShell"),
    ("pxd", "Cython"),
    ("pyi", "Python"),
    ("pyx", "Cython"),
    ("r", "R"),
    ("rb", "Ruby"),
    ("rs", "Rust"),
    ("s", "assembly"),
    ("scala", "Scala"),
    ("sh", "shell script"),
    ("sql", "SQL"),
    ("swift", "Swift"),
    ("tcl", "Tcl"),
    ("ts", "TypeScript"),
    ("tsx", "TypeScript"),
    ("vim", "Vim script"),
];

/// Ends of names of texts for people.
const PROSE: [&str; 11] =
    ["adoc", "bib", "htm", "html", "log", "markdown", "md", "po", "rst", "tex", "texi"];

/// Names of texts for people.
const PROSE_NAMES: [&str; 9] = [
    "AUTHORS",
    "CHANGELOG",
    "CHANGES",
    "COPYING",
    "LICENCE",
    "LICENSE",
    "NEWS",
    "NOTICE",
    "README",
];

/// Kind of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Python,
    /// A program in another language.
    Source(&'static str),
    /// A manual page.
    Manual,
    /// A text for people.
    Prose,
    Notebook,
    Json,
    Yaml,
    Template,
    /// Messages of protocol buffers.
    TextProto,
    /// Settings of a project.
    Settings,
    /// Rows of values.
    Table,
    /// Any other: labels, vocabularies, notes.
    Plain,
}

impl TextKind {
    /// Returns the kind as reports show it.
    fn word(self) -> &'static str {
        match self {
            Self::Python => "Python source",
            Self::Source(language) => language,
            Self::Manual => "manual page",
            Self::Notebook => "notebook",
            Self::Json => "JSON",
            Self::Yaml => "YAML",
            Self::Template => "template",
            Self::TextProto => "protocol buffer text",
            Self::Settings => "settings",
            Self::Table => "table",
            Self::Prose | Self::Plain => "text",
        }
    }
}

/// The end of a name, in small letters.
fn extension(base: &str) -> String {
    base.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase()
}

/// Returns the kind of a text, from its name and its first characters.
fn kind(base: &str, text: &str) -> TextKind {
    let extension = extension(base);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    match extension.as_str() {
        "py" | "pyw" => return TextKind::Python,
        "ipynb" => return TextKind::Notebook,
        "json" | "webmanifest" => return TextKind::Json,
        "yaml" | "yml" => return TextKind::Yaml,
        "jinja" | "jinja2" | "j2" => return TextKind::Template,
        "pbtxt" | "prototxt" | "textproto" | "txtpb" | "textpb" => return TextKind::TextProto,
        "toml" | "cfg" | "ini" | "conf" => return TextKind::Settings,
        // Names that are an extension alone.
        "dockerignore" | "editorconfig" | "gitattributes" | "gitignore" | "gitmodules"
        | "npmignore" => return TextKind::Settings,
        "csv" | "tsv" => return TextKind::Table,
        _ => {}
    }
    if let Some((_, language)) = SOURCES.iter().find(|(end, _)| *end == extension) {
        return TextKind::Source(language);
    }
    if start.starts_with("#!") {
        let program = start.lines().next().unwrap_or_default();
        return match program.contains("python") {
            true => TextKind::Python,
            false => TextKind::Source("script"),
        };
    }
    if is_manual(start) {
        return TextKind::Manual;
    }
    let stem = base.split(['.', '-', '_']).next().unwrap_or_default().to_ascii_uppercase();
    if PROSE.contains(&extension.as_str()) || PROSE_NAMES.contains(&stem.as_str()) {
        return TextKind::Prose;
    }
    match base {
        "Makefile" | "makefile" | "GNUmakefile" => TextKind::Source("make"),
        "Dockerfile" => TextKind::Source("Dockerfile"),
        "MLmodel" => TextKind::Yaml,
        _ if start.starts_with(['{', '['])
            && !start.starts_with("{{")
            && !start.starts_with("{%") =>
        {
            TextKind::Json
        }
        _ => TextKind::Plain,
    }
}

/// Returns `true` for a manual page.
///
/// Requests of roff are lines that start with a point, comments start with `.\"`. A title can
/// follow other requests.
fn is_manual(start: &str) -> bool {
    let requests = [".\\\"", "'\\\"", ".TH ", ".Dd ", ".so ", ".de ", ".if ", ".ig", ".nh", ".ad "];
    let has_title = || {
        let mut lines = start.lines().take_while(|line| line.starts_with(['.', '\'']));
        lines.any(|line| line.starts_with(".TH ") || line.starts_with(".Dd "))
    };
    requests.iter().any(|request| start.starts_with(request)) || has_title()
}

/// Returns `true` if loaders read a file as text although its first bytes match another format.
///
/// This depends on its name, or on all of its bytes being text.
pub(super) fn is_text(name: &str, head: &[u8]) -> bool {
    let extension = extension(name.rsplit('/').next().unwrap_or_default());
    let named = ["cfg", "conf", "ipynb", "jinja", "jinja2", "json", "md", "py", "toml", "txt"];
    is_plain(head) || named.contains(&&*extension) || ["yaml", "yml"].contains(&&*extension)
}

/// Returns `true` if all bytes can be text in UTF-8 or a similar encoding.
pub(crate) fn is_plain(head: &[u8]) -> bool {
    let is_letter = |byte: &u8| matches!(byte, b'\t' | b'\n' | 0x0c | b'\r' | b' '..=b'~' | 0x80..);
    !head.is_empty() && head.iter().all(is_letter)
}

/// Returns `true` if the name or the first line of a text makes its kind certain.
///
/// This is not the case for JSON, whose content must match, and for labels and notes.
pub(super) fn has_kind(name: &str, head: &[u8]) -> bool {
    let base = name.rsplit('/').next().unwrap_or_default();
    let kind = || kind(base, &String::from_utf8_lossy(head));
    is_plain(head) && !matches!(kind(), TextKind::Json | TextKind::Plain)
}

/// Returns the kind of a text as reports show it, or `None` for other files.
pub(super) fn kind_of(name: &str, bytes: &[u8]) -> Option<&'static str> {
    let base = name.rsplit('/').next().unwrap_or_default();
    if let Some(text) = decoded(base, bytes) {
        return Some(kind(base, text).word());
    }
    if is_vocabulary(base, bytes) {
        return Some("SentencePiece vocabulary");
    }
    let of_older = || match kind(base, &String::from_utf8_lossy(bytes)) {
        TextKind::Plain if executable::is_data(&extension(base)) => UNKNOWN,
        kind => kind.word(),
    };
    is_older(bytes).then(of_older)
}

/// Returns the text of a file in UTF-8.
///
/// Small messages of protocol buffers are UTF-8, too: a file that is named like data has no control
/// characters as a text.
fn decoded<'b>(base: &str, bytes: &'b [u8]) -> Option<&'b str> {
    let is_data = executable::is_data(&extension(base));
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))?;
    (!is_data || is_plain(bytes)).then_some(text)
}

fn is_vocabulary(base: &str, bytes: &[u8]) -> bool {
    ["model", "spm"].contains(&&*extension(base)) && is_sentencepiece(bytes)
}

/// Returns `true` for a text of an older encoding.
fn is_older(bytes: &[u8]) -> bool {
    // Letters beyond ASCII are the smaller part of it.
    let high = bytes.iter().filter(|byte| !byte.is_ascii()).count();
    is_plain(bytes) && high <= bytes.len() / 2
}

/// Examines a text by its name and content. Returns `None` if the file is not a text.
///
/// `is_inner` is `true` for a file in an archive, which the program that opens the archive may
/// load.
///
/// # Errors
/// E001 for invalid JSON.
pub(crate) fn judge(name: &str, bytes: &[u8], is_inner: bool) -> Result<Option<ContentRemarks>> {
    let base = name.rsplit('/').next().unwrap_or_default();
    let Some(text) = decoded(base, bytes) else {
        if is_vocabulary(base, bytes) {
            return Ok(Some(Vec::new()));
        }
        return Ok(is_older(bytes).then(|| of_bytes(base, bytes)));
    };

    if text.starts_with(OF_LFS) {
        let message = "a pointer of Git LFS in place of the file: `git lfs pull` fetches it";
        return Ok(Some(not_examined(message)));
    }
    let start = text.trim_start_matches('\u{feff}').trim_start();
    let mut found = match kind(base, text) {
        TextKind::Python if name.ends_with(GENERATING) => {
            let message =
                "Python source that transformers runs to generate, with trust_remote_code";
            vec![(FileVerdict::Suspicious, message.to_owned())]
        }
        TextKind::Python => python(base, text, is_inner),
        TextKind::Source(language) => not_run(language),
        TextKind::Notebook => not_run("a notebook with code cells"),
        TextKind::Manual | TextKind::Table => ContentRemarks::new(),
        TextKind::Prose => yaml::front(base, text),
        // Without a name that says so, a bracket alone does not make a text JSON.
        TextKind::Json => match (json::judge(base, bytes), extension(base).as_str()) {
            (Err(_), end) if end != "json" => {
                yaml::judge(base, text, false).into_iter().chain(jinja::judge(text)).collect()
            }
            (found, _) => found?,
        },
        TextKind::Yaml => {
            let found = yaml::judge(base, text, true);
            found.into_iter().chain(jinja::judge(text)).collect()
        }
        TextKind::Template => jinja::judge(text),
        TextKind::TextProto => {
            tensorflow::judge_text(text).into_iter().chain(textproto::judge(text)).collect()
        }
        TextKind::Settings => {
            installed(text).into_iter().chain(yaml::judge(base, text, false)).collect()
        }
        // MLflow imports the module that this file names, to unpickle a model of PyTorch.
        TextKind::Plain if base == "pickle_module_info.txt" => {
            let module = text.trim();
            let message = format!("MLflow imports the module {}", Escaped::short(module));
            // Their pickles are examined as files.
            let is_known = ["cloudpickle", "dill", "pickle"].contains(&module);
            let verdict = dotted::module(module).filter(|_| !is_known);
            verdict.map(|verdict| (verdict, message)).into_iter().collect()
        }
        TextKind::Plain => {
            let found = yaml::judge(base, text, false).into_iter().chain(coreml::of_text(text));
            let templates = match is_list(text) {
                // Words can be the marks of a template, with thousands of words between them.
                true => text.lines().flat_map(jinja::judge).collect(),
                false => jinja::judge(text),
            };
            found.chain(templates).collect()
        }
    };
    if start.starts_with('<') {
        found.extend(xml::judge(base, text));
    }
    bounded(&mut found);
    Ok(Some(found))
}

/// A text of an older encoding: its letters beyond ASCII are not decoded.
fn of_bytes(base: &str, bytes: &[u8]) -> ContentRemarks {
    let text = String::from_utf8_lossy(bytes);
    match kind(base, &text) {
        TextKind::Manual | TextKind::Prose | TextKind::Table => ContentRemarks::new(),
        TextKind::Source(language) => not_run(language),
        TextKind::Plain if executable::is_data(&extension(base)) => not_examined(UNKNOWN),
        TextKind::Plain if !text.contains("{{") && !text.contains("{%") && !text.contains("!!") => {
            ContentRemarks::new()
        }
        _ => not_examined("text that is not UTF-8"),
    }
}

/// Returns `true` for a list of words, such as a vocabulary: most of its many lines are one word.
fn is_list(text: &str) -> bool {
    /// Lines that are looked at, and the least number of them.
    const MOST: usize = 10_000;
    const LEAST: usize = 200;

    let lines: Vec<&str> = text.lines().take(MOST).collect();
    let is_word = |line: &&&str| !line.trim().contains([' ', '\t']);
    lines.len() >= LEAST && lines.iter().filter(is_word).count() * 20 >= lines.len() * 19
}

/// Examines project settings for code of the folder that is run on installation.
fn installed(text: &str) -> ContentRemarks {
    if text.contains("backend-path")
        || text.contains("[options.entry_points]") && text.contains("attr:")
    {
        return not_examined("installing this folder runs Python in it");
    }
    ContentRemarks::new()
}

/// Returns `true` for a SentencePiece vocabulary: messages in fields 1 to 5, up to the end.
fn is_sentencepiece(mut bytes: &[u8]) -> bool {
    let varint = |bytes: &mut &[u8]| {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    };
    while !bytes.is_empty() {
        let Some(key) = varint(&mut bytes) else { return false };
        if key & 7 != 2 || !(1..=5).contains(&(key >> 3)) {
            return false;
        }
        let len = varint(&mut bytes).and_then(|len| usize::try_from(len).ok());
        let Some(rest) = len.and_then(|len| bytes.get(len..)) else { return false };
        bytes = rest;
    }
    true
}

/// Examines Python source. Its name determines which program runs it.
fn python(name: &str, text: &str, is_inner: bool) -> ContentRemarks {
    let stem = name.trim_end_matches(".py");
    let loader = match stem {
        "setup" => return not_examined("Python source that installing this folder runs"),
        "hubconf" => "torch.hub",
        "handler" => "an inference server",
        _ if LOADED_BY_TRANSFORMERS.iter().any(|start| stem.starts_with(start)) => {
            "transformers with trust_remote_code"
        }
        _ if is_inner => {
            return not_examined("Python source that runs only if a configuration names it");
        }
        _ => return not_run("Python source"),
    };

    let mut reached: Vec<&str> = REACHING.into_iter().filter(|name| imports(text, name)).collect();
    let calls = ["eval(", "exec(", "compile(", "__import__("];
    reached.extend(calls.iter().filter(|call| calls_builtin(text, call)).map(|call| &call[..]));
    let what = if reached.is_empty() {
        String::new()
    } else {
        format!("; it uses {}", reached.join(", ").replace('(', ""))
    };
    vec![(FileVerdict::Suspicious, format!("Python source that {loader} runs{what}"))]
}

fn imports(text: &str, module: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| {
        let named = line.strip_prefix("import ").or_else(|| line.strip_prefix("from "));
        named.is_some_and(|names| {
            names.split([',', ' ', '.']).any(|name| name.trim_end_matches(';') == module)
        })
    })
}

/// Returns `true` if a text calls a function of this name that is not a method.
fn calls_builtin(text: &str, call: &str) -> bool {
    text.match_indices(call).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(name: &str, text: &str) -> Option<FileVerdict> {
        let found = judge(name, text.as_bytes(), false).expect("text").expect("text");
        found.into_iter().map(|(verdict, _)| verdict).max()
    }

    #[test]
    fn texts_are_judged_by_the_code_that_their_loaders_run() {
        use FileVerdict::{Dangerous, NotExamined, NotRun, Suspicious};
        for (name, text, expected) in [
            ("README.md", "# A model\n\nuse `eval(x)`", None),
            ("c.yaml", "a: !!python/tuple [1, 2]", None),
            ("c.yaml", "a: 1 # !!python/object/apply:os.system", None),
            ("c.yaml", "a: !!python/object/apply:os.system ['id']", Some(Dangerous)),
            ("c.yml", "a: !<tag:yaml.org,2002:python/name:os.system> x", Some(Dangerous)),
            (
                "c.cfg",
                "%TAG ! tag:yaml.org,2002:python/\n--- !object/apply:os.system",
                Some(Dangerous),
            ),
            ("hubconf.py", "import os\nos.system('id')", Some(Suspicious)),
            ("modeling_x.py", "import torch", Some(Suspicious)),
            ("train.py", "import os", Some(NotRun)),
            ("setup.py", "import os", Some(NotExamined)),
            (
                "m.pmml",
                "<?xml?><!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]>",
                Some(Dangerous),
            ),
            ("m.pmml", "<?xml version=\"1.0\"?><PMML/>", None),
            ("run.sh", "rm x", Some(NotRun)),
            ("n.ipynb", "{}", Some(NotRun)),
            ("x.1", ".TH X 1\nuse {{ x.__class__ }}", None),
            ("x.3pm", ".\\\" made by Pod\n{% x.__init__ %}", None),
            ("x.1", ".ie \\n(.g .ds Aq '\n.el .ds Aq '\n.TH x 1\n{% x.__init__ %}", None),
            ("x.md", "```\n{{ x.__class__ }}\n!!python/name:os.system\n```", None),
            ("x.md", "---\n_target_: os.system\n---\n# x", Some(Dangerous)),
            ("prompt.txt", "{{ x.__class__ }}", Some(Dangerous)),
            ("labels.txt", "background\ntench\n", None),
            ("x/custom_generate/generate.py", "import torch", Some(Suspicious)),
            ("generate.py", "import torch", Some(NotRun)),
            ("x", "#!/usr/bin/env python3\nimport os", Some(NotRun)),
            ("x", "#!/bin/sh\nrm x", Some(NotRun)),
            ("x.c", "int main() {}", Some(NotRun)),
            ("x", "{\"_target_\": \"os.system\"}", Some(Dangerous)),
            ("pickle_module_info.txt", "mlflow.pytorch.pickle_module\n", None),
            ("pickle_module_info.txt", "evil", Some(Suspicious)),
            ("pickle_module_info.txt", "cloudpickle", None),
            ("pickle_module_info.txt", "os", Some(Dangerous)),
            (
                "model.safetensors",
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
                Some(NotExamined),
            ),
            ("x.csv", "a,b\n1,2", None),
            ("x.service", "[Unit]\nDescription=x\n", None),
            ("x.prototxt", "python_param { module: 'os' }", Some(Dangerous)),
            ("x.pbtxt", "node { op: 'PyFunc' }", Some(Dangerous)),
        ] {
            assert_eq!(verdict(name, text), expected, "{name}: {text}");
        }
        let own = r#"<!ENTITY a "b">"#;
        let far = " ".repeat(5000);
        for (text, expected) in [
            (format!("<?xml?>{}<!ENTITY e SYSTEM 'x'>", own.repeat(30)), Dangerous),
            (format!("<?xml?><!ENTITY e {far} SYSTEM 'x'>"), Dangerous),
            (format!("<?xml?><!DOCTYPE p {far} SYSTEM 'x'>"), Suspicious),
        ] {
            assert_eq!(verdict("m.pmml", &text), Some(expected), "{}", text.len());
        }
        let found = python("hubconf.py", "from os import path\nx.eval()\nexec (1)\nexec(2)", false);
        assert!(found[0].1.ends_with("it uses os, exec"), "{found:?}");
    }

    #[test]
    fn words_of_a_vocabulary_are_no_template() {
        let words = format!("{{{{\n'\n{}__x__\n{{%\n}}}}", "word\n".repeat(300));
        assert_eq!(verdict("vocab.txt", &words), None);
        let template = format!("{}{{{{ x.__class__ }}}}\n", "word\n".repeat(300));
        assert_eq!(verdict("vocab.txt", &template), Some(FileVerdict::Dangerous));
        assert_eq!(verdict("x.txt", "{{\nx.__class__\n}}"), Some(FileVerdict::Dangerous));
    }

    #[test]
    fn a_vocabulary_of_sentencepiece_is_known() {
        assert_eq!(decoded("m.onnx", b"\x7a\x02ab"), None);
        assert_eq!(decoded("m.txt", b"\x7a\x02ab"), Some("z\u{2}ab"));
        assert!(is_sentencepiece(b"\x0a\x03abc\x12\x02xy"));
        assert!(!is_sentencepiece(b"\x0a\x09abc"));
        assert!(!is_sentencepiece(b"\x08\x01"));
    }
}
