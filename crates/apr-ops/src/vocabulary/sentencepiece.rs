//! Pieces of a SentencePiece model, a protobuf message.
//!
//! ```text
//! ModelProto     1: SentencePiece, repeated    2: TrainerSpec
//! SentencePiece  1: piece, text    2: score, float    3: type (1 normal, 2 unknown, 3 control, 4 user defined, 6 byte)
//! TrainerSpec    3: model_type (1 Unigram, 2 BPE, 3 word, 4 char)    40 to 43: ids of unk, bos, eos and pad, below 0
//!                for none
//! ```
//!
//! A piece's id is its position. Scores, the trainer's other settings and the normalizer serve who tokenizes, and stay in
//! the file.

use super::tokenizer::{Tokenizer, check_count};

const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;

pub(super) fn from_model(bytes: &[u8]) -> Result<Tokenizer, String> {
    let mut tokenizer = Tokenizer::default();
    let mut trainer = None;
    let mut next = 0;
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Bytes(piece)) => {
                add_piece(&mut tokenizer, next, piece)?;
                next += 1;
                check_count(tokenizer.tokens.len())?;
            }
            (2, Wire::Bytes(spec)) => trainer = Some(TrainerSpec::read(spec)?),
            (1 | 2, _) => return Err("not a SentencePiece model".to_owned()),
            _ => {}
        }
    }
    if tokenizer.tokens.is_empty() {
        return Err("it holds no SentencePiece pieces".to_owned());
    }
    if let Some(trainer) = trainer {
        tokenizer.model_type = Some(format!("SentencePiece {}", trainer.model_type()));
        // The trainer's word of an id it did not get to train a piece for means nothing.
        let exists = |&(_, id): &(&str, u64)| tokenizer.tokens.contains_key(&id);
        let roles: Vec<_> = trainer.roles().filter(exists).collect();
        tokenizer.roles.retain(|(role, _)| roles.iter().all(|(other, _)| other != role));
        tokenizer.roles.extend(roles);
    }
    Ok(tokenizer)
}

fn add_piece(tokenizer: &mut Tokenizer, id: u64, message: &[u8]) -> Result<(), String> {
    let (mut text, mut piece_type) = ("", 1);
    for field in Fields(message) {
        match field? {
            (1, Wire::Bytes(piece)) => {
                text = std::str::from_utf8(piece).map_err(|_| format!("piece {id} is not UTF-8"))?;
            }
            (3, Wire::Varint(value)) => piece_type = value,
            (1 | 3, _) => return Err(format!("piece {id} is not a SentencePiece piece")),
            _ => {}
        }
    }
    if piece_type == UNKNOWN && tokenizer.roles.is_empty() {
        tokenizer.roles.push(("unk", id));
    }
    if matches!(piece_type, UNKNOWN | CONTROL) {
        tokenizer.add_special(id, text);
    } else {
        tokenizer.add(id, text.to_owned());
    }
    Ok(())
}

/// What the pieces were trained as; the defaults are those of the message's definition.
struct TrainerSpec {
    model_type: u64,
    /// Of unk, bos, eos and pad, in the order of their fields.
    ids: [i64; 4],
}

impl TrainerSpec {
    fn read(message: &[u8]) -> Result<Self, String> {
        let mut spec = Self { model_type: 1, ids: [0, 1, 2, -1] };
        for field in Fields(message) {
            match field? {
                (3, Wire::Varint(value)) => spec.model_type = value,
                // An id below zero is stored as the two's complement of 64 bits.
                (field, Wire::Varint(value)) => {
                    let id = usize::try_from(field).ok().and_then(|field| spec.ids.get_mut(field.checked_sub(40)?));
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

    fn roles(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ["unk", "bos", "eos", "pad"]
            .into_iter()
            .zip(self.ids)
            .filter_map(|(role, id)| Some((role, id.try_into().ok()?)))
    }
}

/// The value of a protobuf field; fixed-width ones are skipped, nothing here needs them.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed,
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
            1 => self.take(8).map(|_| Wire::Fixed)?,
            2 => {
                let len = self.varint()?;
                Wire::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| Wire::Fixed)?,
            _ => return None,
        };
        (key >> 3 != 0).then_some((key >> 3, value))
    }

    /// Seven bits a byte, the lowest first, ten bytes at most.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            let bits = u64::from(byte & 0x7f);
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
