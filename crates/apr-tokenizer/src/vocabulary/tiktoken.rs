//! Ranks of a byte-level BPE: a base64 token and its rank a line.
//!
//! Tokens are bytes, not text. They are shown in the alphabet that byte-level BPE writes its vocabulary in, a letter a
//! byte, so that one model's tokens read the same from `.tiktoken` as from `vocab.json` and `tokenizer.json`. Special
//! tokens are not in these files.

use super::tokenizer::{Tokenizer, check_count};

/// Whether the first line is one of a rank file.
pub(crate) fn is_ranks(bytes: &[u8]) -> bool {
    // The longest tokens are 128 spaces and the like.
    let head = &bytes[..bytes.len().min(1024)];
    head.split(|&byte| byte == b'\n').next().is_some_and(|line| rank(line).is_some())
}

pub(super) fn from_ranks(bytes: &[u8]) -> Result<Tokenizer, String> {
    let alphabet = alphabet();
    let mut tokenizer = Tokenizer { model_type: Some("BPE".to_owned()), ..Tokenizer::default() };
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        let (token, id) = rank(line).ok_or_else(|| format!("line {number} is not a base64 token and its rank"))?;
        tokenizer.add(id, token.iter().map(|&byte| alphabet[usize::from(byte)]).collect());
        check_count(tokenizer.tokens.len())?;
    }
    Ok(tokenizer)
}

fn rank(line: &[u8]) -> Option<(Vec<u8>, u64)> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (token, rank) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    if !rank.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    Some((decode_base64(token.as_bytes())?, rank.parse().ok()?))
}

/// The letter for each byte: itself where it is a visible one of Latin-1, else the next free one from U+0100 on.
fn alphabet() -> [char; 256] {
    let mut free = ('\u{100}'..).take(256);
    std::array::from_fn(|byte| {
        let letter = u8::try_from(byte).map_or(' ', char::from);
        match letter {
            '!'..='~' | '\u{a1}'..='\u{ac}' | '\u{ae}'..='\u{ff}' => letter,
            _ => free.next().unwrap_or(letter),
        }
    })
}

/// Standard alphabet, padded.
pub(crate) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    // The multilingual ranks of Whisper end in a token of no bytes, written so.
    if text == b"=" {
        return Some(Vec::new());
    }
    let (groups, rest) = text.as_chunks::<4>();
    if groups.is_empty() || !rest.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(groups.len() * 3);
    for (position, group) in (1..).zip(groups) {
        let padding = group.iter().rev().take_while(|&&symbol| symbol == b'=').count();
        if padding > 2 || (padding > 0 && position < groups.len()) {
            return None;
        }
        let mut bits = 0;
        for &symbol in &group[..4 - padding] {
            bits = bits << 6 | sextet(symbol)?;
        }
        let [_, decoded @ ..] = (bits << (6 * padding)).to_be_bytes();
        bytes.extend_from_slice(&decoded[..3 - padding]);
    }
    Some(bytes)
}

/// Standard alphabet, padded.
pub(crate) fn encode_base64(bytes: &[u8]) -> String {
    const SYMBOLS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits =
            (0..3).fold(0_usize, |bits, place| bits << 8 | group.get(place).map_or(0, |&byte| usize::from(byte)));
        for place in 0..4 {
            let symbol = SYMBOLS[bits >> (18 - 6 * place) & 63];
            text.push(if place > group.len() { '=' } else { char::from(symbol) });
        }
    }
    text
}

fn sextet(symbol: u8) -> Option<u32> {
    let value = match symbol {
        b'A'..=b'Z' => symbol - b'A',
        b'a'..=b'z' => symbol - b'a' + 26,
        b'0'..=b'9' => symbol - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}
