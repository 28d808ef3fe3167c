//! Text: configurations, templates, sources of Python, YAML and XML.

use apr_registry::{Escaped, Result};

use super::{ContentRemarks, not_examined};
use super::{jinja, json, tensorflow, yaml};
use crate::report::FileVerdict;

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

/// Ends of names of source code that is not examined.
const OTHER_SOURCES: [&str; 8] = ["bash", "sh", "bat", "ps1", "js", "lua", "rb", "pl"];

/// Whether a name is that of source code.
pub(super) fn is_source(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let extension = extension.to_ascii_lowercase();
    ["py", "pyw"].contains(&&*extension) || OTHER_SOURCES.contains(&&*extension)
}

/// Whether loaders take a file for text, although its first bytes are those of another format: by
/// its name, or because it holds nothing else.
pub(super) fn is_text(name: &str, head: &[u8]) -> bool {
    let base = name.rsplit('/').next().unwrap_or_default();
    let extension = base.rsplit_once('.').map_or("", |(_, extension)| extension);
    let named = ["cfg", "conf", "ipynb", "jinja", "jinja2", "json", "md", "py", "toml", "txt"];
    is_plain(head) || named.contains(&extension) || ["yaml", "yml"].contains(&extension)
}

/// Whether bytes are those of text in UTF-8 or the like.
pub(crate) fn is_plain(head: &[u8]) -> bool {
    let is_letter = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    !head.is_empty() && head.iter().all(is_letter)
}

/// Judges a text by its name and content; `None` for what is no text.
///
/// # Errors
/// E001 for JSON that is none.
pub(crate) fn judge(name: &str, bytes: &[u8]) -> Result<Option<ContentRemarks>> {
    let base = name.rsplit('/').next().unwrap_or_default();
    let extension = base.rsplit_once('.').map_or("", |(_, extension)| extension);
    let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let Some(text) = text else {
        return Ok((extension == "model" && is_sentencepiece(bytes)).then(Vec::new));
    };

    let extension = extension.to_ascii_lowercase();
    let mut found = match extension.as_str() {
        "py" | "pyw" => return Ok(Some(python(base, text))),
        "ipynb" => not_examined("a notebook with code cells"),
        extension if OTHER_SOURCES.contains(&extension) => {
            not_examined("source code in a language that is not examined")
        }
        "pbtxt" | "prototxt" => tensorflow::judge_text(text),
        "toml" | "cfg" | "ini" => installed(text),
        _ => ContentRemarks::new(),
    };

    // A loader may go by the content.
    let start = text.trim_start_matches('\u{feff}').trim_start();
    let may_be_json =
        !["jinja", "jinja2", "j2", "jsonl", "md", "toml", "txt", "cfg", "ini", "yaml", "yml"]
            .contains(&extension.as_str());
    if start.starts_with(['{', '['])
        && may_be_json
        && !start.starts_with("{{")
        && !start.starts_with("{%")
    {
        found.extend(json::judge(bytes)?);
    } else {
        found.extend(yaml::judge(text));
        found.extend(jinja::judge(text));
    }
    if start.starts_with('<') {
        found.extend(xml(text));
    }
    Ok(Some(found))
}

/// Settings of projects: what runs code of the folder when it is installed.
fn installed(text: &str) -> ContentRemarks {
    if text.contains("backend-path")
        || text.contains("[options.entry_points]") && text.contains("attr:")
    {
        return not_examined("installing this folder runs Python in it");
    }
    ContentRemarks::new()
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

fn python(name: &str, text: &str) -> ContentRemarks {
    let stem = name.trim_end_matches(".py");
    let loader = match stem {
        "hubconf" => "torch.hub",
        "handler" => "an inference server",
        _ if LOADED_BY_TRANSFORMERS.iter().any(|start| stem.starts_with(start)) => {
            "transformers with trust_remote_code"
        }
        _ => return not_examined("Python source that runs only if a configuration names it"),
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
pub(super) fn torchscript(bytes: &[u8]) -> Result<ContentRemarks> {
    // Its parser takes spaces, line ends and comments between any two words.
    let text = String::from_utf8_lossy(bytes);
    let text: String = text
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().chars())
        .filter(|c| !c.is_whitespace() && *c != '\\')
        .collect();
    let called = TORCHSCRIPT.iter().filter(|call| text.contains(**call));
    let found = called.map(|call| {
        let name = call.trim_end_matches('(');
        let message = format!("its code calls {name}, which accesses files or the network");
        (FileVerdict::Dangerous, message)
    });
    Ok(found.collect())
}

/// XML, such as PMML: entities read files and URLs, or grow without end.
fn xml(text: &str) -> ContentRemarks {
    /// Characters of a declaration that are looked at.
    const DECLARATION: usize = 1024;
    /// Remarks of one verdict.
    const REMARKS: usize = 20;

    let mut found = ContentRemarks::new();
    let declarations = text.match_indices("<!").map(|(at, _)| &text[at..]);
    for rest in
        declarations.filter(|rest| ["<!ENTITY", "<!DOCTYPE"].iter().any(|d| rest.starts_with(d)))
    {
        // A declaration that ends nowhere would be copied as often as there are of them.
        let declared = rest.chars().take_while(|c| !['>', '['].contains(c));
        let declared: String = declared.take(DECLARATION).collect();
        let is_entity = declared.starts_with("<!ENTITY");
        // What stands behind so much is taken for the worst.
        let is_cut = declared.len() >= DECLARATION;
        let is_outside = is_cut || ["SYSTEM", "PUBLIC"].iter().any(|word| declared.contains(word));
        let (verdict, what) = match (is_entity, is_outside) {
            (true, true) => (FileVerdict::Dangerous, "an entity that reads a file or a URL"),
            (true, false) => {
                (FileVerdict::Suspicious, "an entity of its own, which may grow without end")
            }
            (false, true) => (FileVerdict::Suspicious, "a type that is read from a file or a URL"),
            (false, false) => continue,
        };
        // Pages of the web name a type that no browser fetches.
        let is_page = !is_entity && declared.to_ascii_lowercase().contains("html");
        if is_page || found.iter().filter(|(known, _)| *known == verdict).count() == REMARKS {
            continue;
        }
        found.push((verdict, format!("XML declares {what}: {}", Escaped::short(&declared))));
    }

    if text.contains("http://www.w3.org/2001/XInclude") {
        let message = "XML includes other files or URLs".to_owned();
        found.push((FileVerdict::Suspicious, message));
    }
    let declared = text.split("?>").next().unwrap_or_default().to_ascii_lowercase();
    let encoding = declared.split_once("encoding").map(|(_, rest)| {
        rest.trim_start_matches([' ', '=', '"', '\'', '\n', '\t'])
            .chars()
            .take(12)
            .collect::<String>()
    });
    let known = ["utf-8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252"];
    if encoding.is_some_and(|name| {
        declared.starts_with("<?xml") && !known.iter().any(|k| name.starts_with(k))
    }) {
        found.extend(not_examined("XML of an encoding that is not read"));
    }
    if text.contains("<script") || text.contains("javascript:") {
        found.extend(not_examined("a page whose scripts run in a browser"));
    }
    found
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
        let own = r#"<!ENTITY a "b">"#;
        let far = " ".repeat(5000);
        for (text, expected) in [
            (format!("<?xml?>{}<!ENTITY e SYSTEM 'x'>", own.repeat(30)), Dangerous),
            (format!("<?xml?><!ENTITY e {far} SYSTEM 'x'>"), Dangerous),
            (format!("<?xml?><!DOCTYPE p {far} SYSTEM 'x'>"), Suspicious),
        ] {
            assert_eq!(verdict("m.pmml", &text), Some(expected), "{}", text.len());
        }
        let found = python("hubconf.py", "from os import path\nx.eval()\nexec (1)\nexec(2)");
        assert!(found[0].1.ends_with("it uses os, exec"), "{found:?}");
    }

    #[test]
    fn operators_of_torchscript_that_reach_files_are_found() {
        let harmless = b"def forward(self, x: Tensor) -> Tensor:\n  return torch.relu(x)\n";
        assert_eq!(torchscript(harmless), Ok(ContentRemarks::new()));
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
