//! Images and audio, which are never run.
//!
//! Their first bytes can also be those of a message of protocol buffers, so more of the header is
//! compared than the magic number.

/// First bytes of formats whose headers say no more.
const PLAIN: [&[u8]; 10] = [
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff",
    b"\xff\xf3",
    b"\xff\xfb",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",
    b"MM\0*",
    b"OggS\0",
    b"fLaC\0",
];

/// Returns `true` if the first bytes of a file are those of an image or of audio.
pub(super) fn is_media(head: &[u8]) -> bool {
    let kind = head.get(8..12).unwrap_or_default();
    match head {
        [b'R', b'I', b'F', b'F', ..] | [b'R', b'F', b'6', b'4', ..] => {
            [b"AVI ", b"WAVE", b"WEBP"].iter().any(|known| kind == *known)
        }
        [b'F', b'O', b'R', b'M', ..] => [b"AIFC", b"AIFF"].iter().any(|known| kind == *known),
        // Two reserved words, and a known length of the second header.
        [b'B', b'M', ..] => {
            head.get(6..10) == Some(&[0; 4])
                && matches!(head.get(14..18), Some([12 | 40 | 52 | 56 | 64 | 108 | 124, 0, 0, 0]))
        }
        // Version, flags, and a length of seven bits each.
        [b'I', b'D', b'3', 2..=4, _, flags, len @ ..] => {
            flags & 0x0f == 0 && len.iter().take(4).all(|byte| *byte < 0x80)
        }
        _ => PLAIN.iter().any(|magic| head.starts_with(magic)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_compared_beyond_the_magic_number() {
        let bitmap = [b"BM\x46\0\0\0".as_slice(), &[0; 4], b"\x36\0\0\0", b"\x28\0\0\0"].concat();
        for head in [b"\x89PNG\r\n\x1a\n\0".as_slice(), b"RIFF\x10\0\0\0WAVEfmt ", &bitmap] {
            assert!(is_media(head), "{head:?}");
        }
        for head in [&[b'B'; 100][..], b"BMxxxxxxxxxxxxxxxxxxxxx", b"RIFFxxxxxxxx", b"ID3", b""] {
            assert!(!is_media(head), "{head:?}");
        }
    }
}
