//! Byte-level BPE by ranks, as the `tokenizer.json` that cuts texts alike.
//!
//! A list of ranks (`*.tiktoken`, `tiktoken.model`, Llama 3's `tokenizer.model`) has tokens alone:
//! how a text is split, and which special tokens there are, the code of its model says. Mistral's
//! `tekken.json` says both.

use std::collections::{BTreeMap, BTreeSet};

use apr_core::json::from_python;
use apr_core::{Error, Escaped, Result};
use hashbrown::HashMap;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gguf::{Added, Ids, LLAMA3, Model, QWEN2, TokenizerFile};
use crate::vocabulary::{MAX_TOKENS, alphabet, decode_base64, is_ranks, read_ranks};

/// Splitting pattern of Kimi: Chinese characters are words of their own.
const KIMI: &str = concat!(
    r"[\p{Han}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// Special tokens of Llama 3.1, with the ids of Llama 3; the rest of 256 are reserved.
const LLAMA_SPECIAL: [&str; 11] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
];

/// Special tokens of tekken files that do not name them.
const TEKKEN_SPECIAL: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Squares of the lengths of all tokens: work that looking for their parts takes. The vocabularies
/// in use have some ten million.
const MOST_WORK: usize = 1 << 28;

/// Ranks, the splitting pattern, and the special tokens, which are found first.
struct Ranks {
    /// Bytes and their ids.
    tokens: Vec<(Vec<u8>, u64)>,
    pattern: String,
    special: BTreeMap<u64, String>,
    /// Token at the beginning of a text.
    first: Option<&'static str>,
}

/// Returns the `tokenizer.json` for a list of ranks among the files of a model.
///
/// Returns `None` if there is no list of ranks with a known splitting pattern.
///
/// # Errors
/// E001 for a file that is not such a list or lacks a byte, E008 for one that is too large.
pub fn tokenizer_of_ranks(files: &[(String, Vec<u8>)]) -> Result<Option<Vec<u8>>> {
    let named = |name: &str| files.iter().find(|(there, _)| there == name);
    let (name, ranks) = if let Some((name, bytes)) = named("tekken.json") {
        (name, tekken(bytes))
    } else {
        let mut lists = files.iter().filter(|(name, bytes)| {
            let is_list = name.ends_with(".tiktoken") || name.ends_with(".model");
            is_list && is_ranks(bytes)
        });
        let (Some((name, bytes)), None) = (lists.next(), lists.next()) else { return Ok(None) };
        let settings = named("tokenizer_config.json").map(|(_, bytes)| bytes.as_slice());
        let settings: Settings = match settings.map(from_python).transpose() {
            Ok(settings) => settings.unwrap_or_default(),
            Err(error) => {
                let message = format!("not valid JSON: {}", Escaped::short(&error.to_string()));
                return Err(Error::format(message).in_file("tokenizer_config.json"));
            }
        };
        let Some(ranks) = of_list(name, bytes, settings) else { return Ok(None) };
        (name, ranks)
    };
    ranks.and_then(|ranks| ranks.write()).map(Some).map_err(|error| error.in_file(name))
}

/// `tokenizer_config.json`, as far as it matters.
#[derive(Default, Deserialize)]
struct Settings {
    tokenizer_class: Option<String>,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<u64, Named>,
}

#[derive(Deserialize)]
struct Named {
    content: String,
}

/// A list of ranks, whose model is known by the names of the file and of its class.
fn of_list(name: &str, bytes: &[u8], settings: Settings) -> Option<Result<Ranks>> {
    let class = settings.tokenizer_class.as_deref();
    let behind = |tokens: &[(Vec<u8>, u64)]| {
        tokens.iter().map(|(_, id)| id.saturating_add(1)).max().unwrap_or(0)
    };
    let numbered = |first: u64, names: Vec<String>| (first..).zip(names).collect();
    let made = read_ranks(bytes).map_err(Error::format).map(|tokens| {
        let first = behind(&tokens);
        let own = settings.added_tokens_decoder;
        let known = match (name, class) {
            ("qwen.tiktoken", _) | (_, Some("QWenTokenizer")) => {
                let fixed = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"].map(str::to_owned);
                let extra = (0..205).map(|number| format!("<|extra_{number}|>"));
                (QWEN2, numbered(first, fixed.into_iter().chain(extra).collect()), None)
            }
            ("tiktoken.model", Some("TikTokenTokenizer")) => {
                let reserved = (first..first.saturating_add(256))
                    .map(|id| (id, format!("<|reserved_token_{id}|>")));
                let mut special: BTreeMap<u64, String> = reserved.collect();
                special.extend(own.into_iter().map(|(id, named)| (id, named.content)));
                (KIMI, special, None)
            }
            ("tokenizer.model", None | Some("PreTrainedTokenizer" | "PreTrainedTokenizerFast")) => {
                let fixed = LLAMA_SPECIAL.map(str::to_owned);
                let rest = (2..2 + 256 - fixed.len())
                    .map(|number| format!("<|reserved_special_token_{number}|>"));
                let names = fixed.into_iter().chain(rest).collect();
                (LLAMA3, numbered(first, names), Some(LLAMA_SPECIAL[0]))
            }
            _ => return None,
        };
        let (pattern, special, first) = known;
        Some(Ranks { tokens, pattern: pattern.to_owned(), special, first })
    });
    made.transpose()
}

#[derive(Deserialize)]
struct Tekken {
    config: TekkenConfig,
    vocab: Vec<TekkenToken>,
    special_tokens: Option<Vec<TekkenSpecial>>,
}

#[derive(Deserialize)]
struct TekkenConfig {
    pattern: String,
    default_vocab_size: u64,
    default_num_special_tokens: u64,
}

#[derive(Deserialize)]
struct TekkenToken {
    rank: u64,
    token_bytes: String,
}

#[derive(Deserialize)]
struct TekkenSpecial {
    rank: u64,
    token_str: String,
}

/// Reads a file of Mistral. Special tokens are first, and only a given number of others is used.
fn tekken(bytes: &[u8]) -> Result<Ranks> {
    let wrong = |error: serde_json::Error| {
        Error::format(format!("not valid JSON: {}", apr_core::foreign(&error)))
    };
    let file: Tekken = serde_json::from_slice(bytes).map_err(wrong)?;
    let count = file.config.default_num_special_tokens;
    if count > MAX_TOKENS as u64 {
        return Err(Error::memory(format!("it has {count} special tokens")));
    }
    let mut special: BTreeMap<u64, String> =
        (0..count).map(|id| (id, format!("<SPECIAL_{id}>"))).collect();
    match file.special_tokens {
        Some(named) => special.extend(named.into_iter().map(|named| (named.rank, named.token_str))),
        None => special.extend((0..count).zip(TEKKEN_SPECIAL.map(str::to_owned))),
    }
    let size = file.config.default_vocab_size.saturating_sub(count);
    let of_vocabulary = file.vocab.iter().filter(|token| token.rank < size);
    let tokens = of_vocabulary.map(|token| {
        let bytes = decode_base64(&token.token_bytes)
            .ok_or_else(|| Error::format(format!("token {} is not base64", token.rank)))?;
        Ok((bytes, token.rank + count))
    });
    let tokens = tokens.collect::<Result<_>>()?;
    let first = special.values().any(|token| token == "<s>").then_some("<s>");
    Ok(Ranks { tokens, pattern: file.config.pattern, special, first })
}

impl Ranks {
    /// The `tokenizer.json`.
    fn write(&self) -> Result<Vec<u8>> {
        self.check()?;
        let alphabet = alphabet();
        let spelled = |bytes: &[u8]| -> String {
            bytes.iter().map(|byte| alphabet[usize::from(*byte)]).collect()
        };
        let ids: HashMap<&[u8], u64> =
            self.tokens.iter().map(|(bytes, id)| (bytes.as_slice(), *id)).collect();
        let mut by_rank: Vec<&(Vec<u8>, u64)> = self.tokens.iter().collect();
        by_rank.sort_by_key(|(_, id)| *id);
        let texts: Vec<(String, u64)> =
            by_rank.iter().map(|(bytes, id)| (spelled(bytes), *id)).collect();

        // What a token is made of: any two others that it consists of.
        let mut merges = Vec::new();
        for (bytes, _) in &by_rank {
            let mut pairs: Vec<_> = (1..bytes.len())
                .map(|at| bytes.split_at(at))
                .filter_map(|(left, right)| Some((ids.get(left)?, ids.get(right)?, left, right)))
                .collect();
            pairs.sort_by_key(|(left, right, ..)| (**left, **right));
            merges.extend(pairs.iter().map(|(.., left, right)| (spelled(left), spelled(right))));
        }

        let mut vocab = Vec::with_capacity(texts.len());
        for (text, id) in &texts {
            vocab.push((text.as_str(), index(*id)?));
        }
        let mut added_tokens = Vec::with_capacity(self.special.len());
        for (id, content) in &self.special {
            added_tokens.push(Added {
                id: index(*id)?,
                content,
                single_word: false,
                lstrip: false,
                rstrip: false,
                normalized: false,
                special: true,
            });
        }
        let file = TokenizerFile {
            version: "1.0",
            truncation: Value::Null,
            padding: Value::Null,
            added_tokens,
            normalizer: Value::Null,
            pre_tokenizer: json!({ "type": "Sequence", "pretokenizers": [
                { "type": "Split", "pattern": { "Regex": self.pattern }, "behavior": "Isolated",
                  "invert": false },
                { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                  "use_regex": false },
            ] }),
            post_processor: self.first.map_or(Value::Null, |first| self.beginning(first)),
            decoder: json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true }),
            model: Model::Bpe {
                dropout: Value::Null,
                unk_token: None,
                continuing_subword_prefix: Value::Null,
                end_of_word_suffix: Value::Null,
                fuse_unk: false,
                byte_fallback: false,
                ignore_merges: true,
                vocab: Ids(vocab),
                merges: merges
                    .iter()
                    .map(|(left, right)| (left.as_str(), right.as_str()))
                    .collect(),
            },
        };
        let wrong = |error: serde_json::Error| Error::format(apr_core::foreign(&error));
        apr_core::json::to_vec(&file).map_err(wrong)
    }

    /// Rejects invalid lists, and lists whose processing would take too long.
    fn check(&self) -> Result<()> {
        if self.tokens.len() + self.special.len() > MAX_TOKENS {
            return Err(Error::memory(format!("it has {} tokens", self.tokens.len())));
        }
        let work = self.tokens.iter().map(|(bytes, _)| bytes.len().saturating_mul(bytes.len()));
        if work.fold(0, usize::saturating_add) > MOST_WORK {
            return Err(Error::memory("its tokens are too long"));
        }
        let single = self.tokens.iter().filter(|(bytes, _)| bytes.len() == 1);
        let single: BTreeSet<u8> = single.map(|(bytes, _)| bytes[0]).collect();
        if let Some(byte) = (0..=u8::MAX).find(|byte| !single.contains(byte)) {
            return Err(Error::format(format!("the byte {byte} is not a token")));
        }
        Ok(())
    }

    /// A post-processor that puts a token in front.
    fn beginning(&self, token: &str) -> Value {
        let id = self.special.iter().find(|(_, text)| *text == token).map(|(id, _)| *id);
        let first = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
        let text = |id: &str, kind: u8| json!({ "Sequence": { "id": id, "type_id": kind } });
        json!({
            "type": "TemplateProcessing",
            "single": [first, text("A", 0)],
            "pair": [first, text("A", 0), text("B", 1)],
            "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } },
        })
    }
}

fn index(id: u64) -> Result<usize> {
    let fits = usize::try_from(id).ok().filter(|id| *id <= 4 * MAX_TOKENS);
    fits.ok_or_else(|| Error::format(format!("the token id {id} is out of range")))
}
