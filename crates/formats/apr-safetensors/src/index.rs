//! Writing `*.index.json`: which tensor is in which shard.

use std::collections::BTreeMap;
use std::fmt::Write;

/// An index as transformers writes it: Python's `json.dumps` with sorted keys and an indent of 2.
pub(crate) fn encode(total_size: u64, weights: &BTreeMap<&str, &str>) -> Vec<u8> {
    let mut json = format!(
        "{{\n  \"metadata\": {{\n    \"total_size\": {total_size}\n  }},\n  \"weight_map\": {{"
    );
    for (i, (name, shard)) in weights.iter().enumerate() {
        json += if i == 0 { "\n    " } else { ",\n    " };
        push_ascii(&mut json, name);
        json += ": ";
        push_ascii(&mut json, shard);
    }
    json += "\n  }\n}\n";
    json.into_bytes()
}

/// Appends a JSON string in ASCII, as Python writes it by default.
fn push_ascii(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match short_escape(c) {
            Some(letter) => json.extend(['\\', letter]),
            None if (' '..='~').contains(&c) => json.push(c),
            None => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(json, "\\u{unit:04x}")
                        .unwrap_or_else(|_| unreachable!("a string accepts every write"));
                }
            }
        }
    }

    json.push('"');
}

/// Returns the character after the backslash of a short escape, or `None` if the character has
/// none.
fn short_escape(c: char) -> Option<char> {
    match c {
        '"' | '\\' => Some(c),
        '\n' => Some('n'),
        '\r' => Some('r'),
        '\t' => Some('t'),
        '\u{8}' => Some('b'),
        '\u{c}' => Some('f'),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use apr_core::{Limits, ShardIndex};
    use serde_json::Number;

    use super::*;

    #[test]
    fn an_index_is_written_as_python_writes_it() {
        let weights = BTreeMap::from([("ü\u{7f}\u{1f600}\"\\\n\u{1}", "m-1"), ("a", "m-2")]);
        let expected = "{\n  \"metadata\": {\n    \"total_size\": 7\n  },\n  \"weight_map\": \
            {\n    \"a\": \"m-2\",\n    \"\\u00fc\\u007f\\ud83d\\ude00\\\"\\\\\\n\\u0001\": \
            \"m-1\"\n  }\n}\n";
        let json = encode(7, &weights);
        assert_eq!(str::from_utf8(&json), Ok(expected));

        let index =
            ShardIndex::<Number>::parse(&json, "", &Limits::default()).expect("what we write");
        assert_eq!(index.shards(), ["m-1", "m-2"]);
        assert!(index.weights().eq(weights));
    }
}
