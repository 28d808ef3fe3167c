//! Tokens and merges, which are bytes, as the texts of the metadata, and back.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use apr_core::{Error, Metadata, Result};
use serde_json::Value;

use crate::older::Fields;

/// Metadata keys.
pub(super) const VOCABULARY: &str = "tokenizer.vocabulary";
pub(super) const VOCABULARY_ENCODING: &str = "tokenizer.vocabulary_encoding";
pub(super) const VOCAB_SIZE: &str = "tokenizer.vocab_size";
pub(super) const MERGES: &str = "tokenizer.merges";

/// Encoding of a vocabulary whose texts are the tokens themselves.
const UTF8: &str = "utf8";
/// Every byte is a character, as in GPT-2's `vocab.json`.
const BYTE_TO_UNICODE: &str = "byte_to_unicode";

/// A vocabulary section without its length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Vocabulary {
    /// Tokens by id.
    pub(super) tokens: Vec<Vec<u8>>,
    /// Pairs of tokens, the ones that are joined first in front.
    pub(super) merges: Vec<[Vec<u8>; 2]>,
}

impl Vocabulary {
    /// Reads the section that `bytes`, which start at `at`, are.
    ///
    /// # Errors
    /// E002 when counts or lengths end past it.
    pub(super) fn decode(bytes: &[u8], at: u64) -> Result<Self> {
        let mut fields = Fields::new(bytes, at);
        let (tokens, merges) =
            (fields.u32("the number of tokens")?, fields.u32("the number of merges")?);

        // Each takes a length of two bytes at least.
        let least = 2 * u64::from(tokens) + 4 * u64::from(merges);
        if least > fields.left() as u64 {
            let message = format!(
                "{tokens} tokens and {merges} merges do not fit into {} bytes",
                fields.left()
            );
            return Err(Error::corrupt(message).at(at));
        }

        let mut vocabulary = Self::default();
        for _ in 0..tokens {
            vocabulary.tokens.push(short_bytes(&mut fields, "a token")?);
        }

        for _ in 0..merges {
            let left = short_bytes(&mut fields, "a merge")?;
            vocabulary.merges.push([left, short_bytes(&mut fields, "a merge")?]);
        }

        Ok(vocabulary)
    }

    /// # Errors
    /// E001 when a token is longer than its length can say, or there are too many.
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for count in [self.tokens.len(), self.merges.len()] {
            let count = u32::try_from(count)
                .map_err(|_| Error::format("a vocabulary of over 2^32 tokens"))?;
            bytes.extend(count.to_le_bytes());
        }

        for token in self.tokens.iter().chain(self.merges.iter().flatten()) {
            let len = u16::try_from(token.len()).map_err(|_| {
                Error::format(format!("a token has {} bytes; APR1 holds 65,535", token.len()))
            })?;
            bytes.extend(len.to_le_bytes());
            bytes.extend(token);
        }

        Ok(bytes)
    }

    /// Sets the metadata of a vocabulary.
    ///
    /// Merges are pairs separated by a space, so no token may contain a space. If there are merges,
    /// or a token is not UTF-8, bytes are written as characters.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        let utf8 = self.merges.is_empty()
            && self.tokens.iter().all(|token| core::str::from_utf8(token).is_ok());
        let alphabet = byte_to_unicode();
        let text = |token: &Vec<u8>| -> String {
            match utf8 {
                true => String::from_utf8_lossy(token).into_owned(),
                false => token.iter().map(|&byte| alphabet[usize::from(byte)]).collect(),
            }
        };

        metadata.set(VOCAB_SIZE, self.tokens.len());
        metadata.set(VOCABULARY_ENCODING, if utf8 { UTF8 } else { BYTE_TO_UNICODE });
        metadata.set(VOCABULARY, self.tokens.iter().map(text).collect::<Vec<_>>());
        if !self.merges.is_empty() {
            let pairs =
                self.merges.iter().map(|[left, right]| format!("{} {}", text(left), text(right)));
            metadata.set(MERGES, pairs.collect::<Vec<_>>());
        }
    }

    /// Returns the vocabulary of the metadata, or `None` if they list no tokens.
    ///
    /// `merges` provides the merges if the metadata have none. An id without a token gets the empty
    /// one.
    pub(super) fn of(metadata: &Metadata, merges: impl FnOnce() -> Vec<String>) -> Option<Self> {
        let texts = metadata.get(VOCABULARY)?.as_array()?;
        let texts: Vec<&str> = texts.iter().map(|text| text.as_str().unwrap_or_default()).collect();
        let bytes_of: BTreeMap<char, u8> = byte_to_unicode().into_iter().zip(0..=255).collect();
        let encoding = metadata.text(VOCABULARY_ENCODING);
        let as_characters = encoding.map_or_else(
            || texts.iter().all(|text| text.chars().all(|c| bytes_of.contains_key(&c))),
            |encoding| encoding == BYTE_TO_UNICODE,
        );

        // A token that no tokenizer of bytes wrote stands for itself.
        let token = |text: &str| match as_characters {
            true => text.chars().map(|c| bytes_of.get(&c).copied()).collect::<Option<_>>(),
            false => None,
        };
        let token = |text: &str| token(text).unwrap_or_else(|| text.as_bytes().to_vec());
        let listed = metadata.get(MERGES).and_then(Value::as_array);
        let listed = listed
            .map(|pairs| pairs.iter().filter_map(|pair| Some(pair.as_str()?.into())).collect());
        let merges: Vec<String> = listed.unwrap_or_else(merges);
        let pairs = merges.iter().filter_map(|pair| pair.split_once(' '));
        Some(Self {
            tokens: texts.into_iter().map(token).collect(),
            merges: pairs.map(|(left, right)| [token(left), token(right)]).collect(),
        })
    }
}

fn short_bytes(fields: &mut Fields<'_>, what: &str) -> Result<Vec<u8>> {
    let len = fields.u16(what)?;
    fields.take(len.into(), what).map(<[u8]>::to_vec)
}

/// Returns the character of every byte in GPT-2's vocabularies. Bytes that print in Latin-1 map to
/// themselves, the others to U+0100 and on, in order.
fn byte_to_unicode() -> [char; 256] {
    let mut alphabet = ['\0'; 256];
    let mut next = '\u{100}'..;
    for (character, byte) in alphabet.iter_mut().zip(0_u8..=255) {
        let prints = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        *character = if prints { char::from(byte) } else { next.next().unwrap_or_default() };
    }
    alphabet
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn described(vocabulary: &Vocabulary) -> Metadata {
        let mut metadata = Metadata::new();
        vocabulary.describe(&mut metadata);
        metadata
    }

    #[test]
    fn every_byte_comes_back() {
        let bytes = (0..=255).map(|byte| vec![byte]).collect::<Vec<_>>();
        let merges = vec![[b" ".to_vec(), b"t".to_vec()], [vec![0xf0], vec![0x9f, 0x98]]];
        for vocabulary in [
            Vocabulary { tokens: bytes, merges: Vec::new() },
            Vocabulary {
                tokens: vec![b" the".to_vec(), Vec::new(), "größe".into()],
                merges: Vec::new(),
            },
            Vocabulary { tokens: vec![b" the".to_vec(), b"<|endoftext|>".to_vec()], merges },
        ] {
            assert_eq!(
                Vocabulary::of(&described(&vocabulary), Vec::new).as_ref(),
                Some(&vocabulary)
            );
            let encoded = vocabulary.encode().expect("short tokens");
            assert_eq!(Vocabulary::decode(&encoded, 0), Ok(vocabulary));
        }
    }

    #[test]
    fn texts_match_gpt2s_vocabulary() {
        let merges = vec![[b" ".to_vec(), b"t".to_vec()]];
        let metadata =
            described(&Vocabulary { tokens: vec![b" the".to_vec(), b"\n".to_vec()], merges });
        // As in GPT-2's vocab.json and merges.txt.
        assert_eq!(metadata.get(VOCABULARY), Some(&serde_json::json!(["\u{120}the", "\u{10a}"])));
        assert_eq!(metadata.get(MERGES), Some(&serde_json::json!(["\u{120} t"])));
    }

    #[test]
    fn tokens_of_an_imported_tokenizer_are_bytes_where_all_of_them_can_be() {
        let listed = |texts: Value| {
            let mut metadata = Metadata::new();
            metadata.set(VOCABULARY, texts);
            Vocabulary::of(&metadata, || vec!["\u{120} t".into()]).expect("a list")
        };
        let ours = listed(serde_json::json!(["\u{120}t", null]));
        assert_eq!(ours.tokens, [b" t".to_vec(), Vec::new()]);
        assert_eq!(ours.merges, [[b" ".to_vec(), b"t".to_vec()]]);
        assert_eq!(
            listed(serde_json::json!(["\u{120}", "\u{2581}"])).tokens,
            ["\u{120}".as_bytes(), "\u{2581}".as_bytes()]
        );
    }

    #[test]
    fn counts_that_do_not_fit_into_the_section_are_rejected() {
        for counts in [[u32::MAX, 0], [0, u32::MAX], [3, 0], [1, 1]] {
            let mut bytes = counts.map(u32::to_le_bytes).concat();
            bytes.extend([0; 4]);
            assert!(Vocabulary::decode(&bytes, 0).is_err(), "{counts:?}");
        }
    }
}
