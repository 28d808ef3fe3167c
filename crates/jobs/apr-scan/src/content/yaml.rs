//! YAML: tags that import or call, and settings that name what is imported, by the events of a
//! parser.
//!
//! A document becomes the value that a loader makes of it, with its anchors and merge keys, and is
//! judged as JSON is. A key that comes twice counts both times: loaders take different ones.

use apr_core::json::text;
use std::collections::HashMap;

use apr_registry::Escaped;
use granit_parser::{Event, Parser, Tag};
use serde_json::{Map, Value};

use super::{ContentRemarks, bounded, document, dotted, json, not_examined};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// The beginning of tags that PyYAML's unsafe loaders call or import.
const PYTHON: &str = "tag:yaml.org,2002:python/";

/// Tags for plain values.
const VALUES: [&str; 11] =
    ["bool", "bytes", "complex", "dict", "float", "int", "list", "long", "none", "str", "tuple"];

/// Tags by which HyperPyYAML imports and calls.
const HYPER: [&str; 5] = ["!apply:", "!applyref:", "!module:", "!name:", "!new:"];

/// Line breaks of PyYAML that other parsers do not treat as such.
const BREAKS: [char; 3] = ['\u{85}', '\u{2028}', '\u{2029}'];

/// Containers in each other.
const DEPTH: usize = 200;

/// Values that aliases may repeat in one text.
const REPEATED: usize = 100_000;

/// Judges a text that a loader takes for YAML if `is_named`, or may take for it.
pub(super) fn judge(base: &str, text: &str, is_named: bool) -> ContentRemarks {
    let normal = text.replace(BREAKS, "\n");
    let (read, whole) = Reader::read(&normal);
    let mut found = read.found;
    if !whole && !is_named && found.is_empty() {
        // What one parser refuses, another one may read.
        return by_lines(&normal);
    }
    for value in &read.documents {
        found.extend(json::judge_value(base, value));
        bounded(&mut found);
    }
    if !whole && is_named {
        // What one parser refuses, another one may read.
        found.extend(by_lines(&normal));
        found.extend(not_examined("YAML that can't be read to its end"));
    }
    found.dedup();
    found
}

/// Judges the head of a text for people, as model cards have one between two lines of three dashes.
pub(super) fn front(base: &str, text: &str) -> ContentRemarks {
    let head = text.strip_prefix("---").and_then(|rest| rest.split_once("\n---"));
    head.map(|(head, _)| judge(base, head, true)).unwrap_or_default()
}

/// Parses the documents of a text. Returns `None` if it is not YAML.
pub(super) fn values(text: &str) -> Option<Vec<Value>> {
    let (read, whole) = Reader::read(text);
    whole.then_some(read.documents)
}

/// Collection that is open during reading.
enum Open {
    List(Vec<Value>, usize),
    /// A mapping, with the key of the next value.
    Map(Map<String, Value>, Option<String>, usize),
}

#[derive(Default)]
struct Reader {
    documents: Vec<Value>,
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    repeated: usize,
    found: ContentRemarks,
}

impl Reader {
    /// Reads a text. Returns `true` if all of it was read.
    fn read(text: &str) -> (Self, bool) {
        let mut reader = Self::default();
        let parser = Parser::new_from_str(text.trim_start_matches('\u{feff}'));
        for event in parser {
            let Ok((event, _)) = event else {
                reader.close_all();
                return (reader, false);
            };
            if !reader.event(event) {
                reader.close_all();
                return (reader, false);
            }
        }
        (reader, true)
    }

    /// Takes one event; returns whether others may follow.
    fn event(&mut self, event: Event<'_>) -> bool {
        match event {
            Event::Scalar(text, _, anchor, tag) => {
                self.tag(tag.as_deref(), &text);
                self.add(Value::String(text.into_owned()), anchor);
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().unwrap_or(Value::Null);
                self.repeated += size(&value);
                if self.repeated > REPEATED {
                    self.found.extend(not_examined("YAML whose aliases repeat too much"));
                    return false;
                }
                self.add(value, 0);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), "");
                self.open.push(Open::List(Vec::new(), anchor));
            }
            Event::MappingStart(_, anchor, tag) => {
                self.tag(tag.as_deref(), "");
                self.open.push(Open::Map(Map::new(), None, anchor));
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::DocumentStart(..) => self.anchors.clear(),
            _ => {}
        }
        if self.open.len() > DEPTH {
            self.found.extend(not_examined("YAML that nests too deep"));
            return false;
        }
        true
    }

    fn close_all(&mut self) {
        while !self.open.is_empty() {
            self.close();
        }
    }

    fn close(&mut self) {
        match self.open.pop() {
            Some(Open::List(items, anchor)) => self.add(Value::Array(items), anchor),
            Some(Open::Map(map, _, anchor)) => self.add(Value::Object(map), anchor),
            None => {}
        }
    }

    fn add(&mut self, value: Value, anchor: usize) {
        if anchor > 0 {
            self.repeated += size(&value);
            if self.repeated <= REPEATED {
                self.anchors.insert(anchor, value.clone());
            }
        }
        match self.open.last_mut() {
            Some(Open::List(items, _)) => items.push(value),
            Some(Open::Map(map, key, _)) => match key.take() {
                None => *key = Some(as_key(value)),
                Some(key) => insert(map, key, value),
            },
            None => self.documents.push(value),
        }
    }

    fn tag(&mut self, tag: Option<&Tag>, text: &str) {
        let Some(tag) = tag else { return };
        let full = format!("{}{}", tag.handle(), tag.suffix());
        if let Some(kind) = full.strip_prefix(PYTHON) {
            if !VALUES.contains(&kind) {
                let kind = Escaped::short(kind);
                let message = format!("YAML's tag !!python/{kind} imports or calls a name");
                self.found.push((FileVerdict::Dangerous, message));
            }
        } else if let Some(name) = HYPER.iter().find_map(|start| full.strip_prefix(start)) {
            let name = if name.is_empty() { text } else { name };
            let verdict = match name.contains('.') {
                true => dotted::called(name),
                false => Some(FileVerdict::Suspicious),
            };
            let Some(verdict) = verdict else { return };
            let full = Escaped::short(&full);
            self.found.push((verdict, format!("HyperPyYAML's tag {full} imports a name")));
        } else if let Some(file) = full.strip_prefix("!include:").filter(|file| leads_out(file)) {
            // Recipes share settings with those beside them.
            let lower = file.to_ascii_lowercase();
            let is_settings =
                file.starts_with("../") && [".yaml", ".yml"].iter().any(|end| lower.ends_with(end));
            let verdict =
                if is_settings { FileVerdict::Suspicious } else { FileVerdict::Dangerous };
            let message = format!("HyperPyYAML reads the file '{}'", Escaped::short(file));
            self.found.push((verdict, message));
        }
        bounded(&mut self.found);
    }
}

/// Values within a value.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(size).sum::<usize>(),
        Value::String(text) => 1 + text.len() / 64,
        _ => 1,
    }
}

fn as_key(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => text(&other),
    }
}

fn insert(map: &mut Map<String, Value>, key: String, value: Value) {
    if key == "<<" {
        let bases = match value {
            Value::Array(items) => items,
            other => vec![other],
        };
        for (key, value) in bases
            .into_iter()
            .filter_map(|base| match base {
                Value::Object(map) => Some(map),
                _ => None,
            })
            .flatten()
        {
            map.entry(key).or_insert(value);
        }
        return;
    }
    document::insert(map, key, value);
}

/// Searches for Python tags in a text that one parser rejects as YAML.
fn by_lines(text: &str) -> ContentRemarks {
    let tags = ["!!python/", "!<tag:yaml.org,2002:python/"];
    let found = tags.iter().flat_map(|tag| text.match_indices(*tag).map(move |(at, _)| (at, tag)));
    let found = found.filter_map(|(at, tag)| {
        let kind: String = text[at + tag.len()..]
            .chars()
            .take_while(|c| !c.is_whitespace() && !",>]}".contains(*c))
            .take(200)
            .collect();
        let message = || {
            let kind = Escaped::short(&kind);
            format!("YAML's tag !!python/{kind} imports or calls a name")
        };
        (!VALUES.contains(&kind.as_str())).then(|| (FileVerdict::Dangerous, message()))
    });
    found.take(20).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_settings_are_found_however_they_are_spelled() {
        use FileVerdict::{Dangerous, Suspicious};
        for (text, expected) in [
            ("a: 1 # !!python/object/apply:os.system", None),
            ("# !!python/object/apply:os.system\na: 1", None),
            ("a: 'text with !!python/name:os.system'", None),
            ("a: !!python/tuple [1, 2]", None),
            ("\"a #\": !!python/object/apply:os.system []", Some(Dangerous)),
            ("[\"a\n # b\", !!python/object/apply:os.system []]", Some(Dangerous)),
            ("# a\u{2028}b: !!python/object/apply:os.system []", Some(Dangerous)),
            ("a: !!pyth%6fn/object/apply:os.system []", Some(Dangerous)),
            ("a: !<tag:yaml.org,2002:python/name:os.system> x", Some(Dangerous)),
            (
                "%TAG !p! tag:yaml.org,2002:pyth\n---\na: !p!on/object/apply:os.system",
                Some(Dangerous),
            ),
            ("%TAG !p! tag:yaml.org,20\n---\na: !p!02:python/name:os.system x", Some(Dangerous)),
            ("%TAG !p! tag:yaml\n---\na: 1", None),
            ("_target_: os.system", Some(Dangerous)),
            ("model: {a: 1, _target_: os.system}", Some(Dangerous)),
            ("\"_tar\\u0067et_\": os.system", Some(Dangerous)),
            ("? _target_\n: >-\n  os.system", Some(Dangerous)),
            ("x: &a os.system\nm: {_target_: *a}", Some(Dangerous)),
            ("b: &b {_target_: mine.Net}\nm:\n  <<: *b\n  c: 1", Some(Suspicious)),
            ("a: 1\n---\n_target_: os.system", Some(Dangerous)),
            ("_target_: os.system\n_target_: torch.nn.Linear", Some(Dangerous)),
            ("- _target_: torch.nn.Linear", None),
            ("    loader_module: evil", Some(Suspicious)),
            ("    loader_module: mlflow.sklearn", None),
            ("a: !apply:os.system [x]", Some(Dangerous)),
            ("a: !new:speechbrain.nnet.CNN.Conv1d", None),
            ("a: !include:../models/a.yaml", Some(Suspicious)),
            ("a: !include:/etc/a.yaml", Some(Dangerous)),
            ("a: !include:../a.txt", Some(Dangerous)),
        ] {
            let found = judge("x.yaml", text, true);
            let worst = found.iter().map(|(verdict, _)| *verdict).max();
            assert_eq!(worst, expected, "{text}: {found:?}");
        }
    }

    #[test]
    fn unreadable_yaml_is_reported_as_not_examined() {
        let deep = "[".repeat(DEPTH + 2);
        let bomb = (0..30).fold("a0: &a0 [x, x, x, x]\n".to_owned(), |text, at| {
            format!("{text}a{}: &a{} [*a{at}, *a{at}, *a{at}, *a{at}]\n", at + 1, at + 1)
        });
        for text in [deep.as_str(), bomb.as_str(), "a: [1, 2", "a: b: c"] {
            let worst = judge("x.yaml", text, true).into_iter().map(|(verdict, _)| verdict).max();
            assert_eq!(worst, Some(FileVerdict::NotExamined), "{}", &text[..8]);
        }
        // A text that is no YAML for anybody is none, unless it has a tag that runs something.
        assert_eq!(judge("x.txt", "a: b: c", false), ContentRemarks::new());
        let tagged = judge("x.txt", "a: b: c\n!!python/object/apply:os.system []", false);
        assert_eq!(tagged[0].0, FileVerdict::Dangerous);
    }
}
