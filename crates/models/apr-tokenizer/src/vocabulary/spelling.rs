//! How the tokens of a vocabulary spell text, and the text that they spell.

use std::sync::OnceLock;

use super::tiktoken::alphabet;

/// Spelling of text in tokens.
///
/// ```
/// use apr_tokenizer::Spelling;
///
/// let spelling = Spelling::of(["Ġthe", "Ċ", "Ã"].into_iter());
/// assert_eq!(spelling.bytes("Ġthe"), b" the");
/// assert_eq!(spelling.readable("Ċ"), "⏎");
/// assert_eq!(spelling.readable("Ã"), "<0xC3>");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Spelling {
    /// Plain text, as in the input.
    #[default]
    Text,
    /// Byte-level BPE: a letter for each byte, `Ġ` for a space.
    Letters,
    /// SentencePiece: `▁` for a space, `<0x0A>` for a byte.
    Pieces,
}

/// The mark of a space in SentencePiece's pieces.
const SPACE: char = '▁';

impl Spelling {
    /// The spelling of a vocabulary. Tokens that were added to it are spelled as text in each of
    /// them, so that a few may differ.
    #[must_use]
    pub fn of<'t>(tokens: impl Iterator<Item = &'t str>) -> Self {
        let (mut all, mut pieces, mut letters, mut has_space) = (0_u64, 0_u64, 0_u64, false);
        for token in tokens {
            all += 1;
            pieces += u64::from(token.starts_with(SPACE));
            letters += u64::from(token.chars().all(is_letter));
            has_space |= token.starts_with(['Ġ', 'Ċ']);
        }
        if all > 0 && pieces * 100 >= all {
            Self::Pieces
        } else if has_space && letters * 20 >= all * 19 {
            Self::Letters
        } else {
            Self::Text
        }
    }

    /// Returns the bytes that a token represents.
    #[must_use]
    pub fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::Letters => {
                let bytes = token.chars().map(byte_of).collect::<Option<Vec<_>>>();
                // One that was added is text.
                bytes.unwrap_or_else(|| token.as_bytes().to_vec())
            }
            Self::Pieces => match byte_piece(token) {
                Some(byte) => vec![byte],
                None => token.replace(SPACE, " ").into_bytes(),
            },
            Self::Text => token.as_bytes().to_vec(),
        }
    }

    /// Returns the text that a token represents, with all characters visible.
    ///
    /// These are `␣` for a space, `⏎` for a new line, `⇥` for a tabulator, and `<0xE2>` for other
    /// control characters and for bytes that are not UTF-8 by themselves.
    #[must_use]
    pub fn readable(self, token: &str) -> String {
        let mut text = String::new();
        for chunk in self.bytes(token).utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    ' ' => text.push('␣'),
                    '\n' => text.push('⏎'),
                    '\t' => text.push('⇥'),
                    control if control.is_control() => {
                        add_bytes(&mut text, control.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                    other => text.push(other),
                }
            }
            add_bytes(&mut text, chunk.invalid());
        }
        text
    }
}

fn add_bytes(text: &mut String, bytes: &[u8]) {
    bytes.iter().for_each(|byte| text.push_str(&format!("<0x{byte:02X}>")));
}

/// The byte of `<0x0A>`.
fn byte_piece(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hexadecimal = digits.len() == 2 && digits.bytes().all(|it| it.is_ascii_hexdigit());
    is_hexadecimal.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The bytes of the letters of byte-level BPE, by their numbers.
fn letters() -> &'static [Option<u8>] {
    static LETTERS: OnceLock<Vec<Option<u8>>> = OnceLock::new();
    LETTERS.get_or_init(|| {
        let alphabet = alphabet();
        let last = alphabet.iter().max().map_or(0, |letter| *letter as usize);
        let mut bytes = vec![None; last + 1];
        for (letter, byte) in alphabet.into_iter().zip(0_u8..=255) {
            bytes[letter as usize] = Some(byte);
        }
        bytes
    })
}

fn byte_of(letter: char) -> Option<u8> {
    letters().get(letter as usize).copied().flatten()
}

fn is_letter(character: char) -> bool {
    byte_of(character).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_of_a_vocabulary_is_detected() {
        let of = |tokens: &[&str]| Spelling::of(tokens.iter().copied());
        assert_eq!(of(&[]), Spelling::Text);
        assert_eq!(of(&["[CLS]", "##ing", "caf\u{e9}", "the"]), Spelling::Text);
        assert_eq!(of(&["<unk>", "<0x0A>", "▁the", "s"]), Spelling::Pieces);
        // One token in a hundred was added as text.
        let mut tokens = vec!["Ġthe"; 99];
        tokens.push("<｜begin of sentence｜>");
        assert_eq!(of(&tokens), Spelling::Letters);
    }

    /// Checks spellings against GPT-2's `bytes_to_unicode`, ByteFallback and UTF-8.
    ///
    /// ByteFallback is a decoder of Hugging Face.
    #[test]
    fn tokens_are_the_bytes_that_they_stand_for() {
        let cases: [(Spelling, &str, &[u8], &str); 11] = [
            (Spelling::Letters, "Ġthe", b" the", "␣the"),
            (Spelling::Letters, "ĊĊ", b"\n\n", "⏎⏎"),
            (Spelling::Letters, "ĉ", b"\t", "⇥"),
            (Spelling::Letters, "č", b"\r", "<0x0D>"),
            (Spelling::Letters, "Ã©", "\u{e9}".as_bytes(), "\u{e9}"),
            (Spelling::Letters, "Ã", b"\xc3", "<0xC3>"),
            (Spelling::Letters, "<｜end｜>", "<｜end｜>".as_bytes(), "<｜end｜>"),
            (Spelling::Pieces, "▁a▁b", b" a b", "␣a␣b"),
            (Spelling::Pieces, "<0x0A>", b"\n", "⏎"),
            (Spelling::Pieces, "<0xZZ>", b"<0xZZ>", "<0xZZ>"),
            (Spelling::Text, "Ġ \n", "Ġ \n".as_bytes(), "Ġ␣⏎"),
        ];
        for (spelling, token, bytes, readable) in cases {
            assert_eq!(spelling.bytes(token), bytes, "{token}");
            assert_eq!(spelling.readable(token), readable, "{token}");
        }
    }
}
