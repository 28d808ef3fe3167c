//! Constructs of GGUF files.
#![expect(clippy::cast_possible_truncation, reason = "what is packed here is small")]

use super::Construct;
use crate::gguf::{GgufBuilder, GgufEntry};

const fn gguf(name: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file: "model.gguf", make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    gguf("gguf: pairs", pairs),
    gguf("gguf: pairs of one key", pairs_of_one_key),
    gguf("gguf: tensors", tensors),
    gguf("gguf: tensors at one place", tensors_at_one_place),
    gguf("gguf: arrays in each other", nested_arrays),
    gguf("gguf: tokens", tokens),
    gguf("gguf: merges", merges),
    gguf("gguf: layers", layers),
    gguf("gguf: a template of loops", template),
    gguf("gguf: a template in parentheses", parentheses),
    gguf("gguf: a template of doubled texts", doubled),
];

fn model() -> GgufBuilder {
    GgufBuilder::new().text("general.architecture", "llama")
}

fn pairs(count: usize) -> Vec<u8> {
    (0..count).fold(model(), |model, at| model.u32(&format!("k{at}"), 1)).build()
}

fn pairs_of_one_key(count: usize) -> Vec<u8> {
    (0..count).fold(model(), |model, _| model.u32("k", 1)).build()
}

fn tensors(count: usize) -> Vec<u8> {
    let tensor = |at| GgufEntry::i8(&format!("w{at}"), &[1]);
    (0..count).fold(model(), |model, at| model.entry(tensor(at))).build()
}

fn tensors_at_one_place(count: usize) -> Vec<u8> {
    let tensor = |at| GgufEntry { offset: Some(0), ..GgufEntry::i8(&format!("w{at}"), &[1]) };
    (0..count).fold(model(), |model, at| model.entry(tensor(at))).build()
}

fn nested_arrays(count: usize) -> Vec<u8> {
    let mut inner = [&0_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
    for _ in 0..count.min(5000) {
        inner = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &inner].concat();
    }
    model().pair("k", 9, &inner).build()
}

fn vocabulary(count: usize) -> GgufBuilder {
    let tokens: Vec<String> = (0..count).map(|at| format!("t{at}")).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    model().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", &tokens)
}

fn tokens(count: usize) -> Vec<u8> {
    vocabulary(count).build()
}

fn merges(count: usize) -> Vec<u8> {
    vocabulary(10).texts("tokenizer.ggml.merges", &vec!["t 1"; count]).build()
}

fn layers(count: usize) -> Vec<u8> {
    let tensor = |at| GgufEntry::i8(&format!("blk.{at}.attn_q.weight"), &[1]);
    let model = model().u32("llama.block_count", count as u32);
    (0..count).fold(model, |model, at| model.entry(tensor(at))).build()
}

fn templated(template: &str) -> Vec<u8> {
    vocabulary(10).text("tokenizer.chat_template", template).build()
}

fn template(count: usize) -> Vec<u8> {
    let open = "{% for a in range(1000000) %}".repeat(count.min(60));
    let close = "{% endfor %}".repeat(count.min(60));
    templated(&format!("{open}x{close}{}", "{{ messages }}".repeat(count)))
}

fn parentheses(count: usize) -> Vec<u8> {
    templated(&format!("{{{{ {}1{} }}}}", "(".repeat(count), ")".repeat(count)))
}

fn doubled(count: usize) -> Vec<u8> {
    let set = "{% set a = a + a %}".repeat(count);
    templated(&format!("{{% set a = 'aaaaaaaa' %}}{set}{{{{ a }}}}"))
}
