//! Pieces of a SentencePiece model, a protobuf message.
//!
//! ```text
//! ModelProto     1: SentencePiece, repeated    2: TrainerSpec    3: NormalizerSpec
//! SentencePiece  1: piece, text    2: score, float    3: type (1 normal, 2 unknown, 3 control,
//!                                                     4 user defined, 5 unused, 6 byte)
//! TrainerSpec    3: model_type (1 Unigram, 2 BPE, 3 word, 4 char)
//!                24: treat_whitespace_as_suffix    35: byte_fallback
//!                40 to 43: ids of unk, bos, eos and pad, below 0 for none
//! NormalizerSpec 2: precompiled_charsmap, bytes    3: add_dummy_prefix
//!                4: remove_extra_whitespaces    5: escape_whitespaces
//! ```
//!
//! A piece's id is its position.

use super::tokenizer::{Tokenizer, check_count};

const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;

/// A model, as far as it decides which ids a text gets.
#[derive(Debug)]
pub(crate) struct SentencePiece<'a> {
    /// Pieces of the vocabulary, by id.
    pub(crate) pieces: Vec<Piece<'a>>,
    trainer: Option<TrainerSpec>,
    /// Replacements that are applied first: a double array trie and its texts. Empty for none.
    pub(crate) charsmap: &'a [u8],
    /// `true` if a space is added before a text.
    pub(crate) adds_prefix: bool,
    /// `true` if leading, trailing and repeated spaces are removed.
    pub(crate) removes_spaces: bool,
    /// `true` if a space is `▁` in pieces.
    pub(crate) escapes_spaces: bool,
}

/// Piece of the vocabulary.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    pub(crate) score: f32,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub(crate) piece_type: u64,
}

impl<'a> SentencePiece<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, String> {
        // The defaults are those of the message's definition.
        let mut model = Self {
            pieces: Vec::new(),
            trainer: None,
            charsmap: &[],
            adds_prefix: true,
            removes_spaces: true,
            escapes_spaces: true,
        };

        for field in Fields(bytes) {
            match field? {
                (1, Wire::Bytes(piece)) => {
                    model.pieces.push(Piece::read(model.pieces.len(), piece)?);
                    check_count(model.pieces.len())?;
                }
                (2, Wire::Bytes(spec)) => model.trainer = Some(TrainerSpec::read(spec)?),
                (3, Wire::Bytes(spec)) => model.read_normalizer(spec)?,
                (1..=3, _) => return Err("not a SentencePiece model".to_owned()),
                _ => {}
            }
        }

        if model.pieces.is_empty() {
            return Err("it holds no SentencePiece pieces".to_owned());
        }

        Ok(model)
    }

    fn read_normalizer(&mut self, message: &'a [u8]) -> Result<(), String> {
        for field in Fields(message) {
            match field? {
                (2, Wire::Bytes(charsmap)) => self.charsmap = charsmap,
                (3, Wire::Varint(value)) => self.adds_prefix = value != 0,
                (4, Wire::Varint(value)) => self.removes_spaces = value != 0,
                (5, Wire::Varint(value)) => self.escapes_spaces = value != 0,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns `true` if pieces are selected by their probability, not merged by their scores.
    pub(crate) fn is_unigram(&self) -> bool {
        self.trainer.as_ref().is_some_and(|trainer| trainer.model_type() == "Unigram")
    }

    /// Returns the kind of training: `Unigram`, `BPE`, `Word` or `Char`.
    pub(crate) fn kind(&self) -> &'static str {
        self.trainer.as_ref().map_or("Unigram", TrainerSpec::model_type)
    }

    /// Returns `true` if unknown text becomes bytes.
    pub(crate) fn falls_back_to_bytes(&self) -> bool {
        self.trainer.as_ref().is_some_and(|trainer| trainer.byte_fallback)
    }

    /// Returns `true` if a space belongs to the end of a word, not to its beginning.
    pub(crate) fn is_suffix(&self) -> bool {
        self.trainer.as_ref().is_some_and(|trainer| trainer.is_suffix)
    }

    /// Ids of unk, bos, eos and pad that the trainer was given and trained a piece for.
    pub(crate) fn roles(&self) -> Vec<(&'static str, u64)> {
        // The trainer's word of an id it did not get to train a piece for means nothing.
        let exists = |&(_, id): &(&str, u64)| id < self.pieces.len() as u64;
        self.trainer.iter().flat_map(TrainerSpec::roles).filter(exists).collect()
    }
}

impl<'a> Piece<'a> {
    fn read(id: usize, message: &'a [u8]) -> Result<Self, String> {
        // Fields and defaults of `sentencepiece_model.proto`, where type 1 is NORMAL.
        let mut piece = Self { text: "", score: 0.0, piece_type: 1 };
        for field in Fields(message) {
            match field? {
                (1, Wire::Bytes(text)) => {
                    piece.text = std::str::from_utf8(text)
                        .map_err(|_| format!("piece {id} is not UTF-8"))?;
                }
                (2, Wire::Fixed32(bytes)) => piece.score = f32::from_le_bytes(bytes),
                (3, Wire::Varint(value)) => piece.piece_type = value,
                (1..=3, _) => return Err(format!("piece {id} is not a SentencePiece piece")),
                _ => {}
            }
        }

        Ok(piece)
    }
}

pub(super) fn from_model(bytes: &[u8]) -> Result<Tokenizer, String> {
    let model = SentencePiece::read(bytes)?;
    let mut tokenizer = Tokenizer::default();
    for (id, piece) in (0..).zip(&model.pieces) {
        if piece.piece_type == UNKNOWN && tokenizer.roles.is_empty() {
            tokenizer.roles.push(("unk", id));
        }
        if matches!(piece.piece_type, UNKNOWN | CONTROL) {
            tokenizer.add_special(id, piece.text);
        } else {
            tokenizer.add(id, piece.text.to_owned());
        }
    }

    if let Some(trainer) = &model.trainer {
        tokenizer.model_type = Some(format!("SentencePiece {}", trainer.model_type()));
        let roles = model.roles();
        tokenizer.roles.retain(|(role, _)| roles.iter().all(|(other, _)| other != role));
        tokenizer.roles.extend(roles);
    }

    Ok(tokenizer)
}

/// Training settings of the pieces. The defaults are from the definition of the message.
#[derive(Debug)]
struct TrainerSpec {
    model_type: u64,
    byte_fallback: bool,
    is_suffix: bool,
    /// Ids of unk, bos, eos and pad, in the order of their fields.
    ids: [i64; 4],
}

impl TrainerSpec {
    fn read(message: &[u8]) -> Result<Self, String> {
        let mut spec =
            Self { model_type: 1, byte_fallback: false, is_suffix: false, ids: [0, 1, 2, -1] };
        for field in Fields(message) {
            match field? {
                (3, Wire::Varint(value)) => spec.model_type = value,
                (24, Wire::Varint(value)) => spec.is_suffix = value != 0,
                (35, Wire::Varint(value)) => spec.byte_fallback = value != 0,
                // An id below zero is stored as the two's complement of 64 bits.
                (field, Wire::Varint(value)) => {
                    let id = usize::try_from(field)
                        .ok()
                        .and_then(|field| spec.ids.get_mut(field.checked_sub(40)?));
                    id.into_iter().for_each(|id| *id = value.cast_signed());
                }
                _ => {}
            }
        }

        Ok(spec)
    }

    fn model_type(&self) -> &'static str {
        match self.model_type {
            2 => "BPE",
            3 => "Word",
            4 => "Char",
            _ => "Unigram",
        }
    }

    fn roles(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        ["unk", "bos", "eos", "pad"]
            .into_iter()
            .zip(self.ids)
            .filter_map(|(role, id)| Some((role, id.try_into().ok()?)))
    }
}

/// The value of a protobuf field. Values of 64 bits are skipped, because they are not needed here.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
    Fixed64,
}

/// The fields of a protobuf message: number and value.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "not a SentencePiece model, or cut short".to_owned()))
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => self.take(8).map(|_| Wire::Fixed64)?,
            2 => {
                let len = self.varint()?;
                Wire::Bytes(self.take(len)?)
            }
            5 => Wire::Fixed32(self.take(4)?.try_into().ok()?),
            _ => return None,
        };

        // In protobuf, no field has the number 0.
        (key >> 3 != 0).then_some((key >> 3, value))
    }

    /// Seven bits a byte, the lowest first, ten bytes at most.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            let bits = u64::from(byte & 0x7f);

            // The tenth byte has one bit of the 64.
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}
