//! Text from files, made safe for a terminal.

use core::fmt;

/// Displays text from a file with everything escaped that could steer a terminal or fool a reader:
/// control characters, line breaks, invisible and direction-changing marks.
///
/// ```
/// use apr_core::Escaped;
///
/// assert_eq!(Escaped("a\u{1b}[31m\n\u{202e}b").to_string(), r"a\u{1b}[31m\n\u{202e}b");
/// assert_eq!(Escaped("größe.weight").to_string(), "größe.weight");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Escaped<'a>(pub &'a str);

impl<'a> Escaped<'a> {
    /// Maximum length of a name in an error message. Longer names are shortened.
    const SHORT: usize = 200;

    /// The first characters of `text`, at most 200 bytes.
    #[must_use]
    pub fn short(text: &'a str) -> Self {
        let mut end = text.len().min(Self::SHORT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self(&text[..end])
    }
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if is_hidden(c) => write!(f, "\\u{{{:x}}}", u32::from(c))?,
                c => fmt::Write::write_char(f, c)?,
            }
        }
        Ok(())
    }
}

/// Returns `true` if a character could control a terminal or mislead a reader.
///
/// Such characters are control characters of any kind and invisible characters.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Zero-width, direction-changing and tag characters (Unicode UTS #39 and UAX #9).
fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}
