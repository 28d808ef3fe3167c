//! BPE with a large vocabulary, put together from its parts.
//!
//! The library reads a model of a `tokenizer.json` four times, as trees of values in between: a
//! vocabulary of 128,000 tokens takes it half a second. Here it is read once, its texts where they
//! lie, or comes from a GGUF file's keys without any JSON.

use std::borrow::Cow;
use std::fmt;

use apr_core::Result;
use apr_tokenizer::gguf::{self, TokenizerFile, unknown_merges};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use tokenizers::models::bpe::{BPE, BpeBuilder};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper,
};

use super::byte_pairs::{BytePairs, Choices};
use super::pipeline::{PipelineModel, Steps, wrong};

/// A `tokenizer.json` whose model is BPE. Fields are called as in the file.
#[derive(Deserialize)]
pub(super) struct BpeFile<'a> {
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
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
enum Version {
    #[serde(rename = "1.0")]
    First,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    _type: ModelType,
    dropout: Option<f32>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    #[serde(borrow)]
    vocab: Vocab<'a>,
    #[serde(borrow)]
    merges: Merges<'a>,
    /// Tables, if they were made before the rest.
    #[serde(skip)]
    tables: Option<BytePairs>,
}

#[derive(Deserialize)]
enum ModelType {
    #[serde(rename = "BPE")]
    Bpe,
}

/// A text borrowed from the file, unless some of its letters are escaped.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Tokens and their ids, in the order of the file.
struct Vocab<'a>(Vec<(Text<'a>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Vocab<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab<'de>, A::Error> {
                let mut tokens = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    tokens.push(entry);
                }
                Ok(Vocab(tokens))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// Pairs of tokens by rank.
struct Merges<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

/// A pair as a list of two texts, or as one text with a space between them; `None` for the line of
/// a version that old files begin with.
struct Merge<'a>(Option<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Merges<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("pairs of tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merges<'de>, A::Error> {
                let mut merges = Vec::new();
                while let Some(Merge(merge)) = list.next_element()? {
                    merges.extend(merge);
                }
                Ok(Merges(merges))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Merge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two tokens")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Merge<'de>, A::Error> {
                let (left, right) = (list.next_element()?, list.next_element()?);
                match (left, right, list.next_element::<Text<'de>>()?) {
                    (Some(Text(left)), Some(Text(right)), None) => Ok(Merge(Some((left, right)))),
                    _ => Err(A::Error::custom("a merge is not two tokens")),
                }
            }

            fn visit_borrowed_str<E: serde::de::Error>(
                self,
                line: &'de str,
            ) -> Result<Merge<'de>, E> {
                let borrowed = |(left, right)| (Cow::Borrowed(left), Cow::Borrowed(right));
                Ok(Merge(pair_of(line)?.map(borrowed)))
            }

            fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<Merge<'de>, E> {
                let owned = |(left, right): (&str, &str)| {
                    (Cow::Owned(left.to_owned()), Cow::Owned(right.to_owned()))
                };
                Ok(Merge(pair_of(line)?.map(owned)))
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

fn pair_of<E: serde::de::Error>(line: &str) -> Result<Option<(&str, &str)>, E> {
    if line.starts_with("#version") {
        return Ok(None);
    }
    let pair = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
    pair.map(Some).ok_or_else(|| E::custom("a merge is not two tokens"))
}

impl<'a> BpeFile<'a> {
    /// Reads the keys of a GGUF file, and warns of merges that are left out. Returns `None` for a
    /// model other than BPE.
    pub(super) fn of(file: &mut TokenizerFile<'a>, warnings: &mut Vec<String>) -> Option<Self> {
        let choices = choices_of(&file.model)?;
        let tables = tables_of(&file.model, choices.clone());
        warnings.extend(match &tables {
            Some((_, left_out)) => unknown_merges(*left_out),
            None => file.leave_out_unknown_merges(),
        });
        let gguf::Model::Bpe { vocab, merges, .. } = &file.model else { return None };
        let (vocab, merges) = match tables {
            Some(_) => Default::default(),
            None => (&vocab.0[..], &merges[..]),
        };
        let id = |&(text, id): &(&'a str, usize)| {
            Some((Text(Cow::Borrowed(text)), u32::try_from(id).ok()?))
        };
        let pair = |&(left, right): &(&'a str, &'a str)| (left.into(), right.into());
        let model = Model {
            _type: ModelType::Bpe,
            dropout: None,
            unk_token: choices.unk_token,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: Some(choices.fuse_unk),
            byte_fallback: Some(choices.byte_fallback),
            ignore_merges: Some(choices.ignore_merges),
            vocab: Vocab(vocab.iter().filter_map(id).collect()),
            merges: Merges(merges.iter().map(pair).collect()),
            tables: tables.map(|(tables, _)| tables),
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

    /// Returns the steps of the tokenizer.
    ///
    /// # Errors
    /// E001 for parts that the library does not know.
    pub(super) fn steps(self) -> Result<Steps> {
        let mut steps = Steps::new(self.model.build()?);
        let part = |error: serde_json::Error| wrong(&error);
        let normalizer: Option<NormalizerWrapper> =
            serde_json::from_value(self.normalizer).map_err(part)?;
        steps.with_normalizer(normalizer).map_err(|error| wrong(&*error))?;
        let pre_tokenizer: Option<PreTokenizerWrapper> =
            serde_json::from_value(self.pre_tokenizer).map_err(part)?;
        steps.with_pre_tokenizer(pre_tokenizer);
        let post_processor: Option<PostProcessorWrapper> =
            serde_json::from_value(self.post_processor).map_err(part)?;
        steps.with_post_processor(post_processor);
        let decoder: Option<DecoderWrapper> = serde_json::from_value(self.decoder).map_err(part)?;
        steps.with_decoder(decoder);
        // Behind the rest: their ids are the model's, and the normalizer changes them.
        steps.add_tokens(self.added_tokens).map_err(|error| wrong(&*error))?;
        Ok(steps)
    }
}

fn choices_of(model: &gguf::Model<'_>) -> Option<Choices> {
    let gguf::Model::Bpe { unk_token, fuse_unk, byte_fallback, ignore_merges, .. } = model else {
        return None;
    };
    Some(Choices {
        unk_token: unk_token.map(str::to_owned),
        fuse_unk: *fuse_unk,
        byte_fallback: *byte_fallback,
        ignore_merges: *ignore_merges,
    })
}

/// Returns the tables for the keys of a GGUF file, and the number of merges that they omit. Returns
/// `None` if only the library can hold them.
fn tables_of(model: &gguf::Model<'_>, choices: Choices) -> Option<(BytePairs, usize)> {
    let gguf::Model::Bpe { vocab, merges, .. } = model else { return None };
    // Ids have 32 bits; what has more is too far from the others.
    let id = |id: usize| u32::try_from(id).unwrap_or(u32::MAX);
    let tokens = vocab.0.iter().map(|(text, number)| (*text, id(*number)));
    BytePairs::new(tokens, merges.iter().copied(), choices)
}

impl Model<'_> {
    fn build(mut self) -> Result<PipelineModel> {
        Ok(match self.tables.take().or_else(|| self.tables()) {
            Some(tables) => PipelineModel::BytePairs(tables),
            None => PipelineModel::Library(ModelWrapper::BPE(self.library()?)),
        })
    }

    /// Returns the tables, or `None` if only the library supports the model.
    fn tables(&self) -> Option<BytePairs> {
        let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let rare = self.dropout.is_some_and(|dropout| dropout != 0.0)
            || is_set(&self.continuing_subword_prefix)
            || is_set(&self.end_of_word_suffix);
        if rare {
            return None;
        }
        let choices = Choices {
            unk_token: self.unk_token.clone(),
            fuse_unk: self.fuse_unk.unwrap_or(false),
            byte_fallback: self.byte_fallback.unwrap_or(false),
            ignore_merges: self.ignore_merges.unwrap_or(false),
        };
        let tokens = self.vocab.0.iter().map(|(text, id)| (&*text.0, *id));
        let merges = self.merges.0.iter().map(|(left, right)| (&**left, &**right));
        // The library refuses a file with merges of what is no token, and says which.
        let tables = BytePairs::new(tokens, merges, choices);
        tables.filter(|(_, left_out)| *left_out == 0).map(|(tables, _)| tables)
    }

    fn library(self) -> Result<BPE> {
        let tokens = self.vocab.0.into_iter().map(|(text, id)| (text.0.into_owned(), id));
        let merges = self.merges.0.into_iter();
        let merges = merges.map(|(left, right)| (left.into_owned(), right.into_owned()));
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(tokens.collect::<tokenizers::models::bpe::Vocab>(), merges.collect())
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
    use std::collections::BTreeMap;

    use serde_json::json;
    use tokenizers::{Model as _, Tokenizer};

    use super::*;

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

    fn own(json: &str) -> Option<Steps> {
        let file: Option<BpeFile<'_>> = serde_json::from_str(json).ok();
        file.map(|file| file.steps().unwrap())
    }

    #[test]
    fn bpe_files_are_read_as_the_library_reads_them() {
        for merges in
            [r#"[["a", "b"], ["ab", "b"]]"#, r##"["#version: 0.2", "a b", "ab b"]"##, "[]"]
        {
            let rare = file(merges);
            let usual = rare.replace(r#""dropout": 0.5"#, r#""dropout": null"#);
            let usual =
                usual.replace(r#""end_of_word_suffix": "x""#, r#""end_of_word_suffix": """#);
            for (json, in_tables) in [(rare, false), (usual, true)] {
                let own = own(&json).expect("a file that is read here");
                let theirs = Tokenizer::from_bytes(&json).unwrap();
                let is_in_tables = matches!(own.get_model(), PipelineModel::BytePairs(_));
                assert_eq!(is_in_tables, in_tables, "{merges}");

                assert_eq!(
                    [
                        json!(own.get_normalizer()),
                        json!(own.get_pre_tokenizer()),
                        json!(own.get_post_processor()),
                        json!(own.get_decoder()),
                    ],
                    [
                        json!(theirs.get_normalizer()),
                        json!(theirs.get_pre_tokenizer()),
                        json!(theirs.get_post_processor()),
                        json!(theirs.get_decoder()),
                    ]
                );
                assert_eq!(own.get_vocab(true), theirs.get_vocab(true), "{merges}");
                assert_eq!(
                    own.get_added_tokens_decoder().into_iter().collect::<BTreeMap<_, _>>(),
                    theirs.get_added_tokens_decoder().into_iter().collect()
                );
            }
        }
    }

    #[test]
    fn letters_that_are_escaped_are_read() {
        let json = file(r#"[["\u0061", "b"], "\u0061b b"]"#)
            .replace(r#""dropout": 0.5"#, r#""dropout": null"#)
            .replace(r#""end_of_word_suffix": "x""#, r#""end_of_word_suffix": null"#)
            .replace(r#""abb": 3"#, r#""\u0061bb": 3"#);
        let own = own(&json).unwrap();
        assert_eq!(own.get_model().id_to_token(3).as_deref(), Some("abb"));
        assert_eq!(own.encode_fast("abb", false).unwrap().get_ids(), [3]);
    }

    #[test]
    fn other_files_are_left_to_the_library() {
        let without_type = file("[]").replace(r#""type": "BPE", "#, "");
        assert!(own(&without_type).is_none());
        let of_words = r#"{"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}"#;
        assert!(own(of_words).is_none());
        for wrong in [file(r#"["a b c"]"#), file(r#"[["a", "c"]]"#), file("3")] {
            let theirs = Tokenizer::from_bytes(&wrong).map(drop).unwrap_err().to_string();
            let error = crate::text::pipeline::Pipeline::read(wrong.as_bytes()).unwrap_err();
            let theirs = theirs.replace('`', "'");
            assert!(error.message().contains(theirs.split(" at line").next().unwrap()), "{error}");
        }
    }
}
