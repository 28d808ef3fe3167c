use super::*;

fn split_by(pattern: &str) -> Value {
    json!({
        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
        "invert": false,
    })
}

fn bytes(regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": regex,
    })
}

fn sequence(steps: &[Value]) -> Value {
    json!({ "type": "Sequence", "pretokenizers": steps })
}

#[test]
fn every_definition_is_recognized_as_what_it_is_the_definition_of() {
    for pre in KNOWN.iter().filter(|pre| pre.names != ["default"]) {
        let found =
            recognize(&pre.pre_tokenizer(), "any", pre.ignore_merges, pre.nfc).expect(pre.names[0]);
        assert_eq!(
            named(found).map(|found| &found.steps),
            Some(&pre.steps),
            "{found} for {}",
            pre.names[0]
        );
    }
}

#[test]
fn names_are_given_once() {
    let mut names: Vec<_> = KNOWN.iter().flat_map(|pre| pre.names).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    for (_, name) in KNOWN.iter().flat_map(|pre| pre.architectures) {
        assert!(named(name).is_some(), "{name}");
    }
}

#[test]
fn definitions_of_models_are_recognized() {
    let removed = json!({
        "type": "Split", "pattern": { "Regex": LLAMA3 }, "behavior": "Removed", "invert": true,
    });
    let digits = |each: bool| json!({ "type": "Digits", "individual_digits": each });
    let punctuation = json!({ "type": "Punctuation", "behavior": "Contiguous" });
    // With line breaks as they are, not as escapes.
    let deepseek = DEEPSEEK_V3.replace(r"\r", "\r").replace(r"\n", "\n");
    let cl100k = concat!(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    );
    for (pre_tokenizer, architecture, ignore_merges, nfc, name) in [
        (bytes(true), "gpt2", false, false, "gpt-2"),
        (bytes(true), "phi2", false, false, "phi-2"),
        (bytes(true), "olmo", false, true, "olmo"),
        (sequence(&[split_by(LLAMA3), bytes(false)]), "llama", true, false, "llama-bpe"),
        (sequence(&[removed, bytes(false)]), "llama", true, false, "llama-bpe"),
        (sequence(&[split_by(LLAMA3), bytes(false)]), "chatglm", true, false, "glm4"),
        (sequence(&[split_by(cl100k), bytes(false)]), "phi3", false, false, "dbrx"),
        (sequence(&[split_by(QWEN2), bytes(false)]), "qwen3", false, true, "qwen2"),
        (sequence(&[split_by(QWEN2), bytes(false)]), "stablelm", false, true, "stablelm2"),
        (sequence(&[digits(true), bytes(true)]), "starcoder2", false, false, "starcoder"),
        (sequence(&[digits(true), bytes(true)]), "command-r", false, true, "command-r"),
        (sequence(&[digits(true), bytes(true)]), "llama", false, false, "smollm"),
        (
            sequence(&[
                split_by(r"\p{N}{1,3}"),
                split_by("[一-龥぀-ゟ゠-ヿ]+"),
                split_by(&deepseek),
                bytes(false),
            ]),
            "deepseek2",
            false,
            false,
            "deepseek-v3",
        ),
        (
            sequence(&[punctuation, bytes(true), digits(false), split_by("[0-9][0-9][0-9]")]),
            "falcon",
            false,
            false,
            "falcon",
        ),
    ] {
        let found = recognize(&pre_tokenizer, architecture, ignore_merges, nfc);
        assert_eq!(found.as_deref(), Ok(name), "{architecture}");
    }
}

#[test]
fn definitions_that_differ_are_not() {
    for pre_tokenizer in [
        Value::Null,
        sequence(&[]),
        split_by(LLAMA3),
        sequence(&[split_by(&LLAMA3.replace("{1,3}", "{1,4}")), bytes(false)]),
        sequence(&[split_by(LLAMA3), bytes(true)]),
        sequence(&[
            json!({ "type": "Split", "pattern": { "Regex": LLAMA3 }, "behavior": "Removed" }),
            bytes(false),
        ]),
        json!({ "type": "Whitespace" }),
    ] {
        assert!(recognize(&pre_tokenizer, "llama", false, false).is_err(), "{pre_tokenizer}");
    }
}
