//! Paths in TensorFlow's graphs: those of constants, followed through the operators that pass texts
//! on, up to the operators that open files.

use std::collections::HashSet;
use std::rc::Rc;

use apr_core::protobuf::{Message, Walker};
use apr_registry::{Escaped, Result};

use super::tensorflow::{Graph, MAX_PATH};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Paths out of the model's folder that a graph has for its operators.
pub(super) fn paths(graph: &Graph) -> impl Iterator<Item = (FileVerdict, String)> {
    let assets = graph.assets.iter().filter(|(_, file)| leads_out(file)).map(|(_, file)| {
        let file = Escaped::short(file);
        (FileVerdict::Dangerous, format!("an asset outside the model's folder: '{file}'"))
    });
    let names: HashSet<&str> = graph.assets.iter().map(|(constant, _)| constant.as_str()).collect();
    let names = Rc::new(names);
    let given = graph.given.iter().flat_map(move |(operator, node, inputs)| {
        let names = Rc::clone(&names);
        inputs.iter().filter_map(move |input| {
            let (verdict, opened) = match origin(graph, &names, input)? {
                Path::Text(text) if leads_out(&text) => {
                    (FileVerdict::Dangerous, format!("opens '{}'", Escaped::short(&text)))
                }
                Path::Text(_) => return None,
                Path::Made(by) => {
                    let by = Escaped::short(&by).to_string();
                    (FileVerdict::Suspicious, format!("opens a path that {by} makes"))
                }
            };
            // Tables keep the place where their author's vocabulary was.
            let verdict = match operator.starts_with("InitializeTable") {
                true => FileVerdict::Suspicious,
                false => verdict,
            };
            let node = Escaped::short(node);
            Some((verdict, format!("the operator {operator} {opened} (node '{node}')")))
        })
    });
    assets.chain(given)
}

/// Operators that hand a text on, or join texts.
const PASSING: [&str; 7] =
    ["Identity", "IdentityN", "Reshape", "Squeeze", "StopGradient", "StringJoin", "StringStrip"];

/// Operators that make one text of others.
const MAKING: [&str; 10] = [
    "DecodeBase64",
    "RegexReplace",
    "StaticRegexReplace",
    "StringFormat",
    "StringLower",
    "StringUpper",
    "Substr",
    "UnicodeEncode",
    "AsString",
    "ReduceJoin",
];

/// A path that a graph has itself.
enum Path {
    /// The path, from constants.
    Text(String),
    /// A path that this operator makes of constants.
    Made(String),
}

/// Returns the path that a graph has for an input, or `None` if the loader gives it.
fn origin(graph: &Graph, assets: &HashSet<&str>, input: &str) -> Option<Path> {
    /// Nodes on the way to constants.
    const STEPS: usize = 64;

    // The parts of a text from left to right; a list of what is left needs no stack.
    let (mut rest, mut text, mut made) = (vec![input], String::new(), None);
    for _ in 0..STEPS {
        let Some(node) = rest.pop() else {
            return Some(made.map_or(Path::Text(text), Path::Made));
        };
        if assets.contains(node) {
            return None;
        }
        if let Some(part) = graph.texts.get(node) {
            text.push_str(part);
            continue;
        }
        let (operator, inputs) = graph.passing.get(node)?;
        let count = match operator.as_str() {
            "StringJoin" => inputs.len(),
            _ if MAKING.contains(&operator.as_str()) => {
                made = Some(operator.clone());
                inputs.len().min(1)
            }
            _ => 1,
        };
        rest.extend(inputs.iter().take(count).rev().map(String::as_str));
    }
    None
}

pub(super) fn passes(operator: &str) -> bool {
    PASSING.contains(&operator) || MAKING.contains(&operator)
}

/// A text of a tensor of texts: the first, or one that is a path out of the model's folder.
pub(super) fn text_of(walker: &mut Walker<'_>, mut tensor: Message) -> Result<Option<String>> {
    let (mut text, mut is_text) = (None, false);
    while let Some(field) = tensor.next(walker)? {
        let is_short = field.range().is_ok_and(|range| range.len <= MAX_PATH);
        match field.number {
            1 => is_text = field.integer().is_ok_and(|kind| kind == DT_STRING),
            8 if is_short => choose(&mut text, &field.bytes(walker)?),
            // The same texts as lengths and bytes.
            4 if is_short && is_text => {
                let bytes = field.bytes(walker)?;
                strings(&bytes).into_iter().for_each(|string| choose(&mut text, string));
            }
            _ => {}
        }
    }
    Ok(text)
}

/// Number of the type of texts.
const DT_STRING: u64 = 7;

/// Keeps the first text, or one that is a path out of the model's folder.
fn choose(text: &mut Option<String>, bytes: &[u8]) {
    let new = String::from_utf8_lossy(bytes);
    if text.is_none() || leads_out(&new) {
        *text = Some(new.into_owned());
    }
}

/// Returns the texts of `tensor_content`: their lengths, and then their bytes.
fn strings(bytes: &[u8]) -> Vec<&[u8]> {
    let (mut lens, mut rest, mut sum) = (Vec::new(), bytes, 0_usize);
    while sum < rest.len() || lens.is_empty() {
        let (mut len, mut shift) = (0_usize, 0);
        loop {
            let Some((byte, left)) = rest.split_first() else { return Vec::new() };
            rest = left;
            len |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 || shift > 21 {
                break;
            }
        }
        lens.push(len);
        sum += len;
    }
    if sum != rest.len() {
        return Vec::new();
    }
    let mut texts = Vec::new();
    for len in lens {
        let (text, left) = rest.split_at(len);
        texts.push(text);
        rest = left;
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::tensorflow::judge_text;

    #[test]
    fn texts_are_found_in_the_bytes_of_a_tensor() {
        assert_eq!(strings(b"\x01\x03x/ab"), [&b"x"[..], b"/ab"]);
        assert_eq!(strings(b"\x02ab"), [b"ab"]);
        for bytes in [&b""[..], b"\x05ab", b"\xff\xff\xff\xff\xff"] {
            assert!(strings(bytes).is_empty(), "{bytes:?}");
        }
        let mut text = None;
        for part in [&b"a"[..], b"/etc/x", b"b"] {
            choose(&mut text, part);
        }
        assert_eq!(text.as_deref(), Some("/etc/x"));
    }

    #[test]
    fn paths_are_followed_through_operators_that_pass_texts_on() {
        use FileVerdict::{Dangerous, Suspicious};
        let constant = |name: &str, text: &str| {
            format!(
                "node {{ name: '{name}' op: 'Const' attr {{ key: 'value' value {{ tensor {{ \
                 string_val: '{text}' }} }} }} }} "
            )
        };
        let node = |name: &str, operator: &str, inputs: &str| {
            format!("node {{ name: '{name}' op: '{operator}' {inputs} }} ")
        };
        let two = |first: &str, second: &str| constant("a", first) + &constant("b", second);
        let opened = |by: &str| node("d", "TextLineDataset", &format!("input: '{by}'"));
        let joined = node("j", "StringJoin", "input: 'a' input: 'b:0'");
        for (graph, expected) in [
            (two("/etc", "") + &opened("a"), Some(Dangerous)),
            (two("x", "") + &opened("a"), None),
            (
                two("/etc", "") + &node("i", "Identity", "input: 'a'") + &opened("i"),
                Some(Dangerous),
            ),
            (two(".", "./x") + &joined + &opened("j"), Some(Dangerous)),
            (two("a", "/x") + &joined + &opened("j"), None),
            (
                two("x", "") + &node("m", "DecodeBase64", "input: 'a'") + &opened("m"),
                Some(Suspicious),
            ),
            // The loader gives it.
            (node("p", "Placeholder", "") + &joined + &opened("j"), None),
            (node("j", "Identity", "input: 'j'") + &opened("j"), None),
        ] {
            let found = judge_text(&graph);
            let worst = found.iter().map(|(verdict, _)| *verdict).max();
            assert_eq!(worst, expected, "{graph}: {found:?}");
        }
    }
}
