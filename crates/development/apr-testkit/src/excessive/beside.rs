//! Constructs of what stands beside weights: tokenizers, configurations, indexes of shards.

use super::Construct;

const fn of(name: &'static str, file: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file, make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    of("tokenizer: tokens", "tokenizer.json", |n| pairs("", &joined(n, token), "")),
    of("tokenizer: merges", "tokenizer.json", |n| {
        pairs("", r#""a":0,"b":1,"ab":2"#, &joined(n, |_| r#""a b""#.into()))
    }),
    of("tokenizer: merges of what was merged", "tokenizer.json", |n| {
        let word = |at: usize| "a".repeat(1 << at);
        let count = n.min(14);
        let tokens = joined(count + 1, |at| format!(r#""{}":{at}"#, word(at)));
        let spaces = " ".repeat(n);
        pairs(&spaces, &tokens, &joined(count, |at| format!(r#""{0} {0}""#, word(at))))
    }),
    of("tokenizer: added tokens", "tokenizer.json", |n| {
        let added = joined(n, |at| format!(r#"{{"id":{at},"content":"<{at}>","special":true}}"#));
        pairs(&format!(r#""added_tokens":[{added}],"#), r#""a":0"#, "")
    }),
    of("tokenizer: normalizers in each other", "tokenizer.json", |n| {
        let open = r#"{"type":"Sequence","normalizers":["#.repeat(n);
        let close = "]}".repeat(n);
        pairs(&format!(r#""normalizer":{open}{{"type":"NFC"}}{close},"#), r#""a":0"#, "")
    }),
    of("tokenizer: normalizers that double", "tokenizer.json", |n| {
        let double = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#;
        let all = joined(n, |_| double.into());
        let normalizer = format!(r#"{{"type":"Sequence","normalizers":[{all}]}}"#);
        pairs(&format!(r#""normalizer":{normalizer},"#), r#""a":0"#, "")
    }),
    of("tokenizer: a pattern", "tokenizer.json", |n| split(&"(a*)*".repeat(n))),
    of("tokenizer: a pattern of counts", "tokenizer.json", |n| {
        let nested = (0..n.min(12)).fold("a".to_owned(), |inner, _| format!("({inner}){{100}}"));
        split(&format!("{nested}{}", " ".repeat(n)))
    }),
    of("config: keys", "config.json", |n| {
        format!(r#"{{"model_type":"llama",{}}}"#, joined(n, |at| format!(r#""k{at}":1"#))).into()
    }),
    of("config: many layers", "config.json", |n| {
        let sizes = r#""hidden_size":64,"num_attention_heads":4,"vocab_size":8"#;
        let layers = format!(r#""num_hidden_layers":{}"#, n * 1000);
        let spaces = " ".repeat(n);
        format!(r#"{{"model_type":"llama",{sizes},{layers},"intermediate_size":64{spaces}}}"#)
            .into()
    }),
    of("adapter: patterns", "adapter_config.json", |n| {
        adapter(&joined(n, |at| format!(r#""(a|b)*{at}|.*":1"#)))
    }),
    of("adapter: patterns of classes", "adapter_config.json", |n| {
        adapter(&joined(n, |at| format!(r#""\\pL{{{}}}":1"#, at % 64 + 1)))
    }),
    of("adapter: names", "adapter_config.json", |n| {
        adapter(&joined(n, |at| format!(r#""layers.{at}.{}q":1"#, ".".repeat(at % 64))))
    }),
    of("index: shards", "model.safetensors.index.json", |n| {
        let map = joined(n, |at| format!(r#""w{at}":"model-{at}.safetensors""#));
        format!(r#"{{"metadata":{{}},"weight_map":{{{map}}}}}"#).into()
    }),
    of("index: tensors of one shard", "model.safetensors.index.json", |n| {
        let map = joined(n, |at| format!(r#""w{at}":"model.safetensors""#));
        format!(r#"{{"metadata":{{}},"weight_map":{{{map}}}}}"#).into()
    }),
];

fn joined(count: usize, piece: impl Fn(usize) -> String) -> String {
    (0..count).map(piece).collect::<Vec<_>>().join(",")
}

fn token(at: usize) -> String {
    format!(r#""t{at}":{at}"#)
}

/// Returns a byte-pair tokenizer with these tokens and merges.
fn pairs(more: &str, tokens: &str, merges: &str) -> Vec<u8> {
    let model = format!(r#"{{"type":"BPE","vocab":{{{tokens}}},"merges":[{merges}]}}"#);
    format!(r#"{{{more}"model":{model}}}"#).into()
}

/// Returns a LoRA configuration with these alphas of modules.
fn adapter(alphas: &str) -> Vec<u8> {
    let alphas = format!(r#""alpha_pattern":{{{alphas}}}"#);
    format!(r#"{{"peft_type":"LORA","r":1,"lora_alpha":1,{alphas}}}"#).into()
}

/// Returns a tokenizer with a pattern that splits texts.
fn split(pattern: &str) -> Vec<u8> {
    let split = r#"{"type":"Split","behavior":"Isolated","invert":false,"pattern""#;
    let cut = format!(r#""pre_tokenizer":{split}:{{"Regex":"{pattern}b"}}}},"#);
    pairs(&cut, r#""a":0"#, "")
}
