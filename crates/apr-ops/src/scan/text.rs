//! Text: configurations, templates, sources of Python, YAML and XML.

use apr_registry::pytorch::FileVerdict;
use apr_registry::{Escaped, Result};

use super::examine::{Found, not_examined};
use super::{jinja, json};

/// Sources that a library imports where a model's folder is trusted or loaded from a hub, by the
/// start of their names.
const LOADED_BY_TRANSFORMERS: [&str; 7] = [
    "configuration_",
    "feature_extraction_",
    "image_processing_",
    "modeling_",
    "pipeline",
    "processing_",
    "tokenization_",
];

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

/// Operators of TorchScript that read and write files, or call other machines.
const TORCHSCRIPT: [&str; 9] = [
    "torch.from_file(",
    "torch.save(",
    "ops.aten.from_file(",
    "ops.aten.save(",
    "ops.image.read_file(",
    "ops.image.write_file(",
    "rpc_async(",
    "rpc_remote(",
    "rpc_sync(",
];

/// Tags of YAML that make what PyYAML's unsafe loaders call or import.
const YAML_TAGS: [&str; 2] = ["!!python/", "tag:yaml.org,2002:python/"];

/// Those of them that are plain values.
const YAML_VALUES: [&str; 11] =
    ["bool", "bytes", "complex", "dict", "float", "int", "list", "long", "none", "str", "tuple"];

/// Judges a text by its name and content; `None` for what is no text.
///
/// # Errors
/// E001 for JSON that is none.
pub(super) fn judge(name: &str, bytes: &[u8]) -> Result<Option<Found>> {
    let base = name.rsplit('/').next().unwrap_or_default();
    let extension = base.rsplit_once('.').map_or("", |(_, extension)| extension);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Ok((extension == "model" && is_sentencepiece(bytes)).then(Vec::new));
    };
    if text.contains('\0') {
        return Ok((extension == "model" && is_sentencepiece(bytes)).then(Vec::new));
    }

    let start = text.trim_start_matches('\u{feff}').trim_start();
    Ok(Some(match extension.to_ascii_lowercase().as_str() {
        "py" | "pyw" => python(base, text),
        "jinja" | "jinja2" | "j2" => jinja::judge(text),
        "yaml" | "yml" => yaml(text),
        "ipynb" => not_examined("a notebook, whose cells run where somebody runs it"),
        "sh" | "bat" | "ps1" | "js" | "lua" | "rb" | "pl" => {
            not_examined("a program's source, which nothing here understands")
        }
        "jsonl" => Vec::new(),
        _ if start.starts_with(['{', '[']) => json::judge(bytes)?,
        _ if start.starts_with('<') => xml(text),
        // A loader may go by the content.
        _ => yaml(text),
    }))
}

/// SentencePiece's vocabulary: messages in fields 1 to 5, up to the very end.
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

fn python(name: &str, text: &str) -> Found {
    let stem = name.trim_end_matches(".py");
    let loader = match stem {
        "hubconf" => "torch.hub",
        "handler" => "a server of models",
        _ if LOADED_BY_TRANSFORMERS.iter().any(|start| stem.starts_with(start)) => {
            "transformers, where it is told to trust the model"
        }
        _ => return not_examined("a source of Python, which no loader of models runs by itself"),
    };

    let mut reached: Vec<&str> = REACHING.into_iter().filter(|name| imports(text, name)).collect();
    let calls = ["eval(", "exec(", "compile(", "__import__("];
    reached.extend(calls.iter().filter(|call| calls_builtin(text, call)).map(|call| &call[..]));
    let what = if reached.is_empty() {
        String::new()
    } else {
        format!("; it uses {}", reached.join(", ").replace('(', ""))
    };
    vec![(FileVerdict::Suspicious, format!("a source of Python that {loader} runs{what}"))]
}

fn imports(text: &str, module: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| {
        let named = line.strip_prefix("import ").or_else(|| line.strip_prefix("from "));
        named.is_some_and(|names| {
            names.split([',', ' ', '.']).any(|name| name.trim_end_matches(';') == module)
        })
    })
}

/// Whether a text calls a function of this name, and no method.
fn calls_builtin(text: &str, call: &str) -> bool {
    text.match_indices(call).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '.')
    })
}

/// TorchScript's code: what is no Python here, but calls operators by their names.
///
/// # Errors
/// None: what is no text is said to be unread.
pub(super) fn torchscript(bytes: &[u8]) -> Result<Found> {
    let text = String::from_utf8_lossy(bytes);
    let called = TORCHSCRIPT.iter().filter(|call| text.contains(**call));
    let found = called.map(|call| {
        let name = call.trim_end_matches('(');
        let message = format!("its code calls {name}, which reaches files or other machines");
        (FileVerdict::Dangerous, message)
    });
    Ok(found.collect())
}

fn yaml(text: &str) -> Found {
    let mut found = Found::new();
    for line in text.lines() {
        // A comment holds no tag; one within a text is rare, and looks worse than it is.
        let line = line.split(" #").next().filter(|line| !line.trim_start().starts_with('#'));
        for tag in YAML_TAGS {
            for (at, _) in line.iter().flat_map(|line| line.match_indices(tag)) {
                let rest = &line.unwrap_or_default()[at + tag.len()..];
                let kind: String =
                    rest.chars().take_while(|c| !c.is_whitespace() && *c != '>').collect();
                let is_value = YAML_VALUES.contains(&kind.as_str());
                if !is_value && found.len() < 20 {
                    let kind = Escaped::short(&kind);
                    let message = format!("YAML's tag !!python/{kind} imports or calls a name");
                    found.push((FileVerdict::Dangerous, message));
                }
            }
        }
    }
    found
}

/// XML, such as PMML: entities read files and URLs, or grow without end.
fn xml(text: &str) -> Found {
    let Some(at) = text.find("<!ENTITY") else { return Found::new() };
    let declared: String = text[at..].chars().take_while(|c| *c != '>').collect();
    let outside = declared.contains("SYSTEM") || declared.contains("PUBLIC");
    let (verdict, what) = if outside {
        (FileVerdict::Dangerous, "an entity that reads a file or a URL")
    } else {
        (FileVerdict::Suspicious, "an entity of its own, which may grow without end")
    };
    vec![(verdict, format!("XML declares {what}: {}", Escaped::short(&declared)))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(name: &str, text: &str) -> Option<FileVerdict> {
        let found = judge(name, text.as_bytes()).expect("text").expect("text");
        found.into_iter().map(|(verdict, _)| verdict).max()
    }

    #[test]
    fn texts_are_judged_by_what_their_loaders_run() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
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
            ("train.py", "import os", Some(NotExamined)),
            (
                "m.pmml",
                "<?xml?><!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/passwd\">]>",
                Some(Dangerous),
            ),
            ("m.pmml", "<?xml version=\"1.0\"?><PMML/>", None),
            ("run.sh", "rm x", Some(NotExamined)),
            ("n.ipynb", "{}", Some(NotExamined)),
        ] {
            assert_eq!(verdict(name, text), expected, "{name}: {text}");
        }
        let found = python("hubconf.py", "from os import path\nx.eval()\nexec (1)\nexec(2)");
        assert!(found[0].1.ends_with("it uses os, exec"), "{found:?}");
    }

    #[test]
    fn operators_of_torchscript_that_reach_files_are_found() {
        let harmless = b"def forward(self, x: Tensor) -> Tensor:\n  return torch.relu(x)\n";
        assert_eq!(torchscript(harmless), Ok(Found::new()));
        let harmful = b"  torch.save(x, \"/tmp/x\")\n  y = torch.from_file(\"/etc/passwd\")";
        assert_eq!(torchscript(harmful).map(|found| found.len()), Ok(2));
    }

    #[test]
    fn a_vocabulary_of_sentencepiece_is_known() {
        assert!(is_sentencepiece(b"\x0a\x03abc\x12\x02xy"));
        assert!(!is_sentencepiece(b"\x0a\x09abc"));
        assert!(!is_sentencepiece(b"\x08\x01"));
    }
}
