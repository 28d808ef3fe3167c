//! Ranks of a byte-level BPE: a base64 token and its rank a line.
//!
//! Tokens are bytes, not text. They are shown in the alphabet that byte-level BPE writes its
//! vocabulary in, a letter a byte, so that one model's tokens read the same from `.tiktoken` as
//! from `vocab.json` and `tokenizer.json`. Special tokens are not in these files.

use base64ct::{Base64, Encoding};

use super::tokenizer::{Tokenizer, check_count};

/// Returns `true` if the first line is a line of a rank file.
pub(crate) fn is_ranks(bytes: &[u8]) -> bool {
    // The longest tokens are 128 spaces and the like.
    let head = &bytes[..bytes.len().min(1024)];
    head.split(|&byte| byte == b'\n').next().is_some_and(|line| rank(line).is_some())
}

pub(super) fn from_ranks(bytes: &[u8]) -> Result<Tokenizer, String> {
    let alphabet = alphabet();
    let mut tokenizer = Tokenizer { model_type: Some("BPE".to_owned()), ..Tokenizer::default() };
    for (token, id) in read_ranks(bytes)? {
        tokenizer.add(id, token.iter().map(|&byte| alphabet[usize::from(byte)]).collect());
    }
    Ok(tokenizer)
}

/// The tokens of a list of ranks, and their ranks.
pub(crate) fn read_ranks(bytes: &[u8]) -> Result<Vec<(Vec<u8>, u64)>, String> {
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let token = rank(line)
            .ok_or_else(|| format!("line {number} is not a base64 token and its rank"))?;
        tokens.push(token);
        check_count(tokens.len())?;
    }
    Ok(tokens)
}

fn rank(line: &[u8]) -> Option<(Vec<u8>, u64)> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (token, rank) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    if !rank.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some((decode_base64(token)?, rank.parse().ok()?))
}

/// Returns the letter for each byte: itself if it is visible in Latin-1, else the next free one.
///
/// Free letters start at U+0100.
pub(crate) fn alphabet() -> [char; 256] {
    let mut free = ('\u{100}'..).take(256);
    std::array::from_fn(|byte| {
        let letter = u8::try_from(byte).map_or(' ', char::from);
        match letter {
            '!'..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{ff}' => letter,
            _ => free.next().unwrap_or(letter),
        }
    })
}

/// Standard alphabet, padded (RFC 4648, section 4).
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    match text {
        // The multilingual ranks of Whisper end in a token of no bytes, written so.
        "=" => Some(Vec::new()),
        "" => None,
        text => Base64::decode_vec(text).ok(),
    }
}

/// Standard alphabet, padded (RFC 4648, section 4).
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}
