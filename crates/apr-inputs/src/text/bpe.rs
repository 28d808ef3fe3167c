//! BPE with a large vocabulary, put together from its parts.
//!
//! The library reads a model of a `tokenizer.json` four times, as trees of values in between: a
//! vocabulary of 128,000 tokens takes it half a second. Here it is read once, or comes from a GGUF
//! file's keys without any JSON; what it becomes is the library's own.

use apr_core::Result;
use apr_tokenizer::gguf::{self, TokenizerFile};
use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value as Json;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::{AddedToken, Tokenizer};

use super::pipeline::wrong;

/// A `tokenizer.json` whose model is BPE. Fields are called as in the file.
#[derive(Deserialize)]
pub(super) struct BpeFile {
    #[serde(rename = "version")]
    _version: Option<Version>,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub(super) normalizer: Json,
    #[serde(default)]
    pub(super) pre_tokenizer: Json,
    #[serde(default)]
    pub(super) post_processor: Json,
    #[serde(default)]
    pub(super) decoder: Json,
    model: Model,
}

#[derive(Deserialize)]
enum Version {
    #[serde(rename = "1.0")]
    First,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    _type: ModelType,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: Merges,
}

#[derive(Deserialize)]
enum ModelType {
    #[serde(rename = "BPE")]
    Bpe,
}

/// Pairs of tokens by rank: lists of two texts, or one text with a space between them.
struct Merges(Vec<(String, String)>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Joint(String),
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("pairs of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges, A::Error> {
                let mut merges = Vec::new();
                while let Some(merge) = list.next_element()? {
                    match merge {
                        Merge::Pair(left, right) => merges.push((left, right)),
                        // The line of a version that old files begin with.
                        Merge::Joint(line) if line.starts_with("#version") => {}
                        Merge::Joint(line) => {
                            let pair =
                                line.split_once(' ').filter(|(_, right)| !right.contains(' '));
                            let (left, right) = pair.ok_or_else(|| {
                                serde::de::Error::custom("a merge is not two tokens")
                            })?;
                            merges.push((left.to_owned(), right.to_owned()));
                        }
                    }
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

impl BpeFile {
    /// What a GGUF file's keys say; `None` for another model than BPE.
    pub(super) fn of(file: &TokenizerFile<'_>) -> Option<Self> {
        let gguf::Model::Bpe {
            unk_token,
            fuse_unk,
            byte_fallback,
            ignore_merges,
            vocab,
            merges,
            ..
        } = &file.model
        else {
            return None;
        };
        let id = |(text, id): &(&str, usize)| Some(((*text).to_owned(), u32::try_from(*id).ok()?));
        let model = Model {
            _type: ModelType::Bpe,
            dropout: None,
            unk_token: unk_token.map(str::to_owned),
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: Some(*fuse_unk),
            byte_fallback: Some(*byte_fallback),
            ignore_merges: Some(*ignore_merges),
            vocab: vocab.0.iter().filter_map(id).collect(),
            merges: Merges(
                merges.iter().map(|(left, right)| ((*left).into(), (*right).into())).collect(),
            ),
        };
        let added = file.added_tokens.iter().map(|token| AddedToken {
            content: token.content.to_owned(),
            single_word: token.single_word,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            normalized: token.normalized,
            special: token.special,
        });
        Some(Self {
            _version: Some(Version::First),
            added_tokens: added.collect(),
            normalizer: file.normalizer.clone(),
            pre_tokenizer: file.pre_tokenizer.clone(),
            post_processor: file.post_processor.clone(),
            decoder: file.decoder.clone(),
            model,
        })
    }

    /// The library's tokenizer.
    ///
    /// # Errors
    /// E001 for parts that the library does not know.
    pub(super) fn tokenizer(self) -> Result<Tokenizer> {
        let mut tokenizer = Tokenizer::new(self.model.build()?);
        let part = |error: serde_json::Error| wrong(&error);
        let normalizer: Option<tokenizers::NormalizerWrapper> =
            serde_json::from_value(self.normalizer).map_err(part)?;
        tokenizer.with_normalizer(normalizer).map_err(|error| wrong(&*error))?;
        let pre_tokenizer: Option<tokenizers::PreTokenizerWrapper> =
            serde_json::from_value(self.pre_tokenizer).map_err(part)?;
        tokenizer.with_pre_tokenizer(pre_tokenizer);
        let post_processor: Option<tokenizers::PostProcessorWrapper> =
            serde_json::from_value(self.post_processor).map_err(part)?;
        tokenizer.with_post_processor(post_processor);
        let decoder: Option<tokenizers::DecoderWrapper> =
            serde_json::from_value(self.decoder).map_err(part)?;
        tokenizer.with_decoder(decoder);
        // Behind the rest: their ids are the model's, and the normalizer changes them.
        tokenizer.add_tokens(self.added_tokens).map_err(|error| wrong(&*error))?;
        Ok(tokenizer)
    }
}

impl Model {
    fn build(self) -> Result<BPE> {
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(self.vocab, self.merges.0)
            .fuse_unk(self.fuse_unk.unwrap_or(false))
            .byte_fallback(self.byte_fallback.unwrap_or(false))
            .ignore_merges(self.ignore_merges.unwrap_or(false));
        if let Some(dropout) = self.dropout {
            builder = builder.dropout(dropout);
        }
        if let Some(token) = self.unk_token {
            builder = builder.unk_token(token);
        }
        if let Some(prefix) = self.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        builder.build().map_err(|error| wrong(&*error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The library's own reading of a file, and this one, as the library writes them.
    fn both(json: &str) -> (String, Option<String>) {
        let theirs = Tokenizer::from_bytes(json).unwrap().to_string(false).unwrap();
        let file: Option<BpeFile> = serde_json::from_str(json).ok();
        (theirs, file.map(|file| file.tokenizer().unwrap().to_string(false).unwrap()))
    }

    fn file(merges: &str) -> String {
        format!(
            r#"{{
                "version": "1.0",
                "truncation": {{"max_length": 4, "strategy": "LongestFirst", "stride": 0}},
                "added_tokens": [
                    {{"id": 4, "content": "<END>", "single_word": false, "lstrip": true,
                      "rstrip": false, "normalized": true, "special": true}},
                    {{"id": 0, "content": "a", "single_word": true, "lstrip": false,
                      "rstrip": true, "normalized": false, "special": false}}
                ],
                "normalizer": {{"type": "Lowercase"}},
                "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false,
                                   "trim_offsets": true, "use_regex": true}},
                "post_processor": null,
                "decoder": {{"type": "ByteLevel", "add_prefix_space": true,
                             "trim_offsets": true, "use_regex": true}},
                "model": {{
                    "type": "BPE", "dropout": 0.5, "unk_token": "a",
                    "continuing_subword_prefix": "", "end_of_word_suffix": "x",
                    "fuse_unk": true, "byte_fallback": true, "ignore_merges": true,
                    "vocab": {{"a": 0, "b": 1, "ab": 2, "abb": 3}}, "merges": {merges}
                }}
            }}"#
        )
    }

    #[test]
    fn what_is_put_together_is_what_the_library_reads() {
        for merges in
            [r#"[["a", "b"], ["ab", "b"]]"#, r##"["#version: 0.2", "a b", "ab b"]"##, "[]"]
        {
            let (theirs, own) = both(&file(merges));
            let own = own.expect("a file that is read here");
            // A truncation is for the caller to choose.
            let theirs: Json = serde_json::from_str(&theirs).unwrap();
            let mut own: Json = serde_json::from_str(&own).unwrap();
            own["truncation"] = theirs["truncation"].clone();
            assert_eq!(own, theirs, "{merges}");
        }
    }

    #[test]
    fn other_files_are_left_to_the_library() {
        let without_type = file("[]").replace(r#""type": "BPE", "#, "");
        assert_eq!(both(&without_type).1, None);
        let of_words = r#"{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
        assert_eq!(both(of_words).1, None);
        for wrong in [file(r#"["a b c"]"#), file(r#"[["a", "c"]]"#), file("3")] {
            let theirs = Tokenizer::from_bytes(&wrong).map(drop).unwrap_err().to_string();
            let error = crate::text::pipeline::Pipeline::read(wrong.as_bytes()).unwrap_err();
            assert!(error.message().contains(theirs.split(" at line").next().unwrap()), "{error}");
        }
    }
}
