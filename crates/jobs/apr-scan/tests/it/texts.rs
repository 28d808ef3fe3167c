//! Texts, whose lines can be opcodes by chance.

use apr_core::Limits;
use apr_scan::{FileVerdict, ScanReport, scan_file};

fn scanned(name: &str, bytes: &[u8]) -> ScanReport {
    scan_file(bytes.to_vec(), name, &Limits::default()).expect("in memory")
}

#[test]
fn a_text_that_starts_with_a_stop_opcode_is_not_a_pickle() {
    use FileVerdict::{Clean, NotRun};
    for (name, text, kind, verdict) in [
        ("x.1", ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n.TH apr 1\n", "manual page", Clean),
        ("b.css", ".info\n.image\n.link\n", "style sheet", NotRun),
        ("b.css", ".content\nfoo\n.x\n", "style sheet", NotRun),
        ("x.asm", ".include \"x\"\nimport y\n", "assembly", NotRun),
        ("x.s", ".include \"x\"\nimport y\n.globl x\n", "assembly", NotRun),
        (".gitignore", "coverage\nhtmlcov\n.tox\n", "settings", Clean),
        (".gitignore", ".coverage\nhtmlcov\n.tox\n", "settings", Clean),
        ("patterns", ".gitignore\n.env\nnode_modules/\n", "text", Clean),
        (".hgignore", ".gitignore\n.env\nnode_modules/\n", "text", Clean),
        ("labels.txt", ".\ndog.\ncat.\n", "text", Clean),
    ] {
        let report = scanned(name, text.as_bytes());
        assert_eq!((&*report.kind, report.verdict), (kind, verdict), "{text:?}: {report:?}");
        assert!(report.pickles.is_empty(), "{text:?}: {report:?}");
    }
}

#[test]
fn a_pickle_in_the_clothes_of_a_text_is_found() {
    use FileVerdict::{Dangerous, Suspicious};
    for (name, bytes, verdict) in [
        ("x", ".cos\nsystem\n(S'id'\ntR.", Dangerous),
        ("x.css", ".cos\nsystem\n(S'id'\ntR.", Dangerous),
        ("x.css", "(S'id'\nios\nsystem\n.", Dangerous),
        ("x.css", "cos\nsystem\n.", Dangerous),
        ("x.css", "cmine\nrun\n(S'id'\ntR.", Suspicious),
        ("x.css", "\u{80}\u{2}cmine\nrun\n.", Suspicious),
        ("x.bin", "cmine\nrun\n.", Suspicious),
        ("x.bin", ".cmine\nrun\n.", Suspicious),
        ("x.pkl", ".info\n.image\n.link\n", Suspicious),
    ] {
        // Letters below 256 are one byte each.
        let bytes: Vec<u8> = bytes.chars().map(|letter| letter as u8).collect();
        let report = scanned(name, &bytes);
        assert_eq!(report.verdict, verdict, "{name}: {report:?}");
        assert_eq!(report.kind, "pickle", "{name}: {report:?}");
    }
}

#[test]
fn files_without_pickles_have_a_kind() {
    for (name, bytes, kind) in [
        ("README.md", &b"# A model\n"[..], "text"),
        ("check.py", b"import os\n", "Python source"),
        ("run.sh", b"rm x\n", "shell script"),
        ("config.json", b"{}", "JSON"),
        ("broken.json", b"{", "JSON"),
        ("c.yaml", b"a: 1\n", "YAML"),
        ("x.csv", b"a,b\n1,2\n", "table"),
        ("x.png", b"\x89PNG\r\n\x1a\n\0\0\0", "image or audio"),
        ("lib.so", b"\x7fELF\x02\x01\x01\0", "program"),
        ("tokenizer.model", b"\x0a\x03abc\x12\x02xy\x0a\x01\0", "SentencePiece vocabulary"),
        ("old.txt", b"gr\xfc\xdfe\n", "text"),
        ("x.bin", &[7, 0, 0xff, 0xfe, 1, 2, 3, 4], "unknown format"),
        ("x", b"", "empty file"),
    ] {
        assert_eq!(scanned(name, bytes).kind, kind, "{name}");
    }
}
