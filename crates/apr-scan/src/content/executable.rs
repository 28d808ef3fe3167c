//! Programs and libraries of operating systems, by their first bytes.

/// Text that the system hands to the program of its first line.
pub(super) const SCRIPT: &str = "an executable script";

/// What a file that starts so is to an operating system; `None` for all others.
pub(super) fn kind(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x7f, b'E', b'L', b'F', ..] => Some("a program or library for Linux (ELF)"),
        [b'M', b'Z', ..] if is_pe(head) => Some("a program or library for Windows (PE)"),
        [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..] | [0xce | 0xcf, 0xfa, 0xed, 0xfe, ..] => {
            Some("a program or library for macOS (Mach-O)")
        }
        // Java's class files have the same bytes, and a version above 44 where this has a count.
        [0xca, 0xfe, 0xba, 0xbe, 0, 0, 0, count, ..] if *count < 30 => {
            Some("a program or library for macOS (Mach-O, several processors)")
        }
        [0xca, 0xfe, 0xba, 0xbe, ..] => Some("a Java class"),
        [b'#', b'!', b'/', ..] | [b'#', b'!', b' ', b'/', ..] => Some(SCRIPT),
        _ => None,
    }
}

/// `MZ` alone is two letters; the word at 60 leads to the header `PE`.
fn is_pe(head: &[u8]) -> bool {
    let Some(at) = head.get(60..64).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()) else {
        return false;
    };
    let at = u32::from_le_bytes(at) as usize;
    // One beyond the bytes at hand is taken for what its start says.
    at >= 64 && head.get(at..at + 2).is_none_or(|magic| magic == b"PE") && at < 1 << 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_their_first_bytes() {
        let pe =
            |at: u8, magic: &[u8]| [&b"MZ"[..], &[0; 58], &[at, 0, 0, 0], &[0; 64], magic].concat();
        for (head, expected) in [
            (b"\x7fELF\x02\x01\x01".to_vec(), true),
            (pe(128, b"PE\0\0"), true),
            (pe(128, b"no"), false),
            (b"MZ are two letters".to_vec(), false),
            (b"\xcf\xfa\xed\xfe\x0c".to_vec(), true),
            (b"\xca\xfe\xba\xbe\0\0\0\x02".to_vec(), true),
            (b"#!/bin/sh".to_vec(), true),
            (b"# a heading".to_vec(), false),
        ] {
            assert_eq!(kind(&head).is_some(), expected, "{head:?}");
        }
    }
}
