//! Programs and libraries of operating systems, by their first bytes.

use super::{ContentRemarks, not_examined};
use crate::report::FileVerdict;

/// Text that the system hands to the program of its first line.
const SCRIPT: &str = "an executable script";

/// Extensions of text files and of data files. An executable with one of them is deceptive.
const TEXTS: [&str; 7] = ["csv", "json", "md", "toml", "txt", "yaml", "yml"];
const DATA: [&str; 31] = [
    "bin",
    "caffemodel",
    "ckpt",
    "dat",
    "data",
    "gguf",
    "ggml",
    "h5",
    "hdf5",
    "jpeg",
    "jpg",
    "joblib",
    "keras",
    "mlmodel",
    "model",
    "msgpack",
    "npy",
    "npz",
    "onnx",
    "p",
    "params",
    "pb",
    "pdparams",
    "pickle",
    "pkl",
    "png",
    "pt",
    "pth",
    "safetensors",
    "tflite",
    "weights",
];

/// Returns `true` if files with this extension contain data, not text.
pub(super) fn is_data(extension: &str) -> bool {
    DATA.contains(&extension)
}

/// Returns `true` if the name is one that a loader of models reads, not one of an image.
pub(super) fn is_model(name: &str) -> bool {
    let extension = extension(name);
    let is_image = ["jpeg", "jpg", "png"].contains(&extension.as_str());
    is_data(&extension) && !is_image || ["meta", "ort"].contains(&extension.as_str())
}

/// Returns `true` for the name of an ONNX model.
pub(super) fn is_onnx(name: &str) -> bool {
    extension(name) == "onnx"
}

/// Ends of names of archives that programs are distributed in.
const PACKAGES: [&str; 12] =
    ["aar", "apk", "deb", "ear", "egg", "jar", "jmod", "nupkg", "rpm", "vsix", "war", "whl"];

/// The end of a name, in small letters.
fn extension(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or_default();
    base.rsplit_once('.').map_or("", |(_, extension)| extension).to_ascii_lowercase()
}

/// Judges a program or script; `None` for any other file. A program in an archive is one that
/// loaders of the archive load, unless programs are what such archives are for.
pub(super) fn judge(name: &str, head: &[u8], within: Option<&str>) -> Option<ContentRemarks> {
    let what = kind(head)?;
    let extension = extension(name);
    if is_data(&extension) || TEXTS.contains(&extension.as_str()) {
        // Installers are named so, too.
        let verdict = match extension.as_str() {
            "bin" => FileVerdict::Suspicious,
            _ => FileVerdict::Dangerous,
        };
        return Some(vec![(verdict, format!("this is {what}, despite its name"))]);
    }
    let is_loaded = within.is_some_and(|archive| {
        let outer = self::extension(archive);
        !PACKAGES.contains(&outer.as_str()) && extension != "class"
    });
    if is_loaded && what != SCRIPT {
        return Some(vec![(FileVerdict::Dangerous, format!("this is {what}"))]);
    }
    // A script is a text, which is judged as such.
    (what != SCRIPT).then(|| not_examined(&format!("this is {what}")))
}

/// Returns the kind of program that an operating system would run, or `None` for other files.
fn kind(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x7f, b'E', b'L', b'F', ..] => Some("a program or library for Linux (ELF)"),
        // Actually Portable Executables, as llamafile is one, are also shell scripts.
        [b'M', b'Z', b'q', b'F', b'p', b'D', b'=', ..]
        | [b'j', b'a', b'r', b't', b's', b'r', ..] => Some("a program for several systems (APE)"),
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
            (b"MZqFpD='\n".to_vec(), true),
            (b"\xcf\xfa\xed\xfe\x0c".to_vec(), true),
            (b"\xca\xfe\xba\xbe\0\0\0\x02".to_vec(), true),
            (b"#!/bin/sh".to_vec(), true),
            (b"# a heading".to_vec(), false),
        ] {
            assert_eq!(kind(&head).is_some(), expected, "{head:?}");
        }
    }

    #[test]
    fn a_program_under_the_name_of_data_is_dangerous() {
        let worst = |name: &str, head: &[u8], within| {
            judge(name, head, within).and_then(|found| Some(found.first()?.0))
        };
        let elf = b"\x7fELF\x02\x01\x01";
        assert_eq!(worst("m.safetensors", elf, None), Some(FileVerdict::Dangerous));
        assert_eq!(worst("lib.so", elf, Some("m.pt")), Some(FileVerdict::Dangerous));
        assert_eq!(worst("lib.so", elf, Some("m.whl")), Some(FileVerdict::NotExamined));
        assert_eq!(worst("lib.so.6", elf, None), Some(FileVerdict::NotExamined));
        assert_eq!(worst("m.bin", elf, None), Some(FileVerdict::Suspicious));
        assert_eq!(worst("m.pt", b"#!/bin/sh", None), Some(FileVerdict::Dangerous));
        assert_eq!(worst("start", b"#!/bin/sh", None), None);
    }
}
