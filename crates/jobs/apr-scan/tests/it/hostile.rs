//! Pickles made to run something on whoever opens them, or to keep a scan from seeing it.

use apr_core::Code;
use apr_scan::{Action, FileVerdict, Verdict};
use apr_testkit::peak_memory;
use apr_testkit::torch::{Entry, checkpoint, zip};

use super::*;

#[test]
fn payloads_are_refused_by_name_and_offset_however_they_are_spelled() {
    // Opcodes of protocols 0 to 5, each with what would run `os.system`.
    let cases: &[(&str, &[u8], u64)] = &[
        ("REDUCE", b"cos\nsystem\n(S'id'\ntR.", 0),
        ("REDUCE hidden before POP", b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R0}.", 2),
        ("INST", b"(S'id'\nios\nsystem\n.", 7),
        ("OBJ", b"(cos\nsystem\nS'id'\no.", 1),
        ("NEWOBJ", b"\x80\x02cos\nsystem\n)\x81.", 2),
        ("NEWOBJ_EX", b"\x80\x04\x8c\x02os\x8c\x06system\x93)}\x92.", 14),
        (
            "STACK_GLOBAL from the memo",
            b"\x80\x04\x8c\x02os\x940\x8c\x06system\x940h\x00h\x01\x93)R.",
            22,
        ),
        ("payload, then a broken stream", b"\x80\x02cos\nsystem\n)R\xff\xff", 2),
        ("payload, then no STOP", b"\x80\x02cos\nsystem\n)R", 2),
    ];
    for &(what, pickle, offset) in cases {
        let error = refused(checkpoint(pickle));
        let start = error.offset().expect("an offset") - offset;
        assert_eq!(error.code(), Code::Format, "{what}: {error}");
        assert!(error.message().contains("os.system"), "{what}: {error}");
        // The pickle starts after its header of 30 bytes and its name.
        assert_eq!(start, 40, "{what}: {error}");
        let report = scan(checkpoint(pickle));
        let finding = report.findings().next().expect(what);
        assert_eq!((finding.offset, finding.verdict), (40 + offset, Verdict::Dangerous), "{what}");
    }
}

/// Returns a ZIP archive that lists one stored entry `times` times.
fn listed(content: &[u8], times: u16) -> Vec<u8> {
    let mut crc = apr_core::digest::Crc32::new();
    crc.update(content);
    let crc = crc.value().to_le_bytes();
    let len = u32::try_from(content.len()).expect("it is short").to_le_bytes();
    let sizes = [crc, len, len].concat();
    let local = [b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0", &sizes[..], b"\x01\0\0\0a"].concat();
    let entry =
        [b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0", &sizes[..], b"\x01\0", &[0; 16], b"a"].concat();
    let directory = entry.repeat(usize::from(times));
    let count = times.to_le_bytes();
    let start = u32::try_from(local.len() + content.len()).expect("it is short").to_le_bytes();
    let size = u32::try_from(directory.len()).expect("it is short").to_le_bytes();
    let end = [b"PK\x05\x06\0\0\0\0", &count[..], &count, &size, &start, &[0; 2]].concat();
    [&local, content, &directory, &end].concat()
}

#[test]
fn nested_archives_that_list_one_archive_eight_times_reach_the_limit() {
    let file = (0..7).fold(b"hello".to_vec(), |content, _| listed(&content, 8));
    let report = scan_pickles(file, "zips.bin", &Limits::default()).expect("a report");
    assert_eq!(report.problems.iter().filter(|what| what.contains("more in it")).count(), 1);
}

#[test]
fn two_bytes_that_are_a_pickle_are_looked_at_a_few_thousand_times() {
    let file = b"N.".repeat(200_000);
    let report = scan_pickles(file, "n.bin", &Limits::default()).expect("a report");
    assert!(report.problems.iter().any(|what| what.contains("only the first")));
}

/// Scans a pickle on its own, with a limit on the bytes that are read as pickles.
fn scan_within(pickle: &[u8], max_metadata: u64) -> ScanReport {
    let mut limits = apr_core::Limits::default();
    limits.max_metadata = max_metadata;
    let len = pickle.len();
    let (report, peak) =
        peak_memory(|| scan_pickles(pickle.to_vec(), "x.pkl", &limits).expect("in memory"));
    assert!(peak < (64 << 20) + 32 * len, "{peak} bytes for a file of {len}");
    report
}

#[test]
fn a_payload_beyond_what_the_machine_holds_is_dangerous() {
    let payload = b"cposix\nsystem\n(S'id'\ntR.";
    let memoized = b"\x8c\x05posix\x940\x8c\x06system\x940h\x00h\x01\x93)R.";
    let computed = b"\x8c\x02ix\x8c\x05posix\x86\x8c\x06system\x93)R.";
    let cases: [(&str, Vec<u8>, u64); 6] = [
        ("open containers", [&b"(".repeat(10_001)[..], payload].concat(), 100 << 20),
        ("stacked values", [&b"N"[..], &b"2".repeat(3 << 20), payload].concat(), 100 << 20),
        ("long", [&b"K\x010".repeat(1000)[..], payload].concat(), 2000),
        ("long, by the memo", [b"\x80\x04", &b"N0".repeat(1000)[..], memoized].concat(), 1000),
        ("long, computed", [b"\x80\x04", &b"N0".repeat(1000)[..], computed].concat(), 1000),
        ("EXT1", [b"\x80\x02", &b"N0".repeat(1000)[..], b"\x82\x01."].concat(), 1000),
    ];
    for (what, pickle, limit) in cases {
        let report = scan_within(&pickle, limit);
        assert_eq!(report.verdict, FileVerdict::Dangerous, "{what}: {report:?}");
        assert_eq!(report.notes.len(), 1, "{what}: {report:?}");
    }
}

#[test]
fn a_long_pickle_without_a_payload_is_clean_and_has_a_note_on_the_limit() {
    let good = [
        &b"\x80\x02]("[..],
        &b"X\x05\x00\x00\x00hello\x8a\x01\x07G\x00\x00\x00\x00\x00\x00\x00\x00".repeat(200),
        b"eccollections\nOrderedDict\n)R\x86.",
    ]
    .concat();
    let report = scan_within(&good, 1000);
    assert_eq!(report.verdict, FileVerdict::Clean, "{report:?}");
    assert!(report.notes[0].contains("`max_metadata`"), "{report:?}");
    assert_eq!(names(&report), ["collections.OrderedDict"]);

    // What Python can't read either stays unreadable.
    let cut = scan_within(&good[..good.len() - 1], 1000);
    assert_eq!(cut.verdict, FileVerdict::Unreadable, "{cut:?}");
    let broken = scan_within(&[&good[..good.len() - 1], b"\xff."].concat(), 1000);
    assert_eq!(broken.verdict, FileVerdict::Unreadable, "{broken:?}");
}

#[test]
fn replacing_attributes_of_imported_names_is_dangerous() {
    // The state is given to a module, a function, a class: no instance.
    for (module, name) in [
        ("torch.nn.functional", "np"),
        ("torch.nn.functional", "relu"),
        ("torch.nn.modules.linear", "Linear"),
        ("collections", "OrderedDict"),
    ] {
        let pickle = format!("c{module}\n{name}\n}}S'load'\nccollections\nCounter\nsb.");
        let report = scan(checkpoint(pickle.as_bytes()));
        assert_eq!(report.verdict, FileVerdict::Dangerous, "{module}.{name}: {report:?}");
        let change = report.findings().find(|finding| finding.action == Action::Change);
        assert_eq!(change.expect("it is listed").name, name);
        refused(checkpoint(pickle.as_bytes()));
    }
    let instance = b"ctorch.nn.modules.linear\nLinear\n)\x81}S'training'\nI01\nsb.";
    assert_eq!(scan(checkpoint(instance)).verdict, FileVerdict::Clean);
}

#[test]
fn a_pickle_in_hexadecimal_digits_is_looked_into() {
    let inner: String = b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R."
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    for text in [inner.clone(), inner.to_uppercase(), format!("x = bytes.fromhex('{inner}')")] {
        let pickle = format!("V{text}\n.");
        let report = scan(checkpoint(pickle.as_bytes()));
        assert_eq!(names(&report), ["posix.system"], "{text}");
        assert_eq!(report.verdict, FileVerdict::Dangerous);
    }
}

#[test]
fn metadata_of_a_tflite_model_are_examined_without_a_warning() {
    let model = |entries: &[Entry]| [&b"\x1c\0\0\0TFL3"[..], &[7; 100], &zip(entries)].concat();
    let scan =
        |file| scan_pickles(file, "m.tflite", &apr_core::Limits::default()).expect("in memory");
    let report = scan(model(&[Entry::new("labels.txt", b"cat\ndog\n")]));
    assert_eq!(report.verdict, FileVerdict::Clean, "{report:?}");
    let payload = b"cos\nsystem\n(S'id'\ntR.";
    let report = scan(model(&[Entry::new("labels.pkl", payload)]));
    assert_eq!(report.verdict, FileVerdict::Dangerous, "{report:?}");
}

#[test]
fn states_of_random_generators_and_uuids_are_harmless() {
    for (module, name) in [
        ("numpy.random._pickle", "__randomstate_ctor"),
        ("numpy.random._mt19937", "MT19937"),
        ("uuid", "UUID"),
    ] {
        let pickle = format!("c{module}\n{name}\n)R}}b.");
        let report = scan(checkpoint(pickle.as_bytes()));
        assert_eq!(report.verdict, FileVerdict::Clean, "{report:?}");
    }
}

#[test]
fn a_bomb_of_copied_dictionaries_is_scanned() {
    // A dictionary of many keys, copied by a call of six bytes, again and again.
    let mut copies = b"\x80\x02ccollections\nOrderedDict\nq\x00}q\x01(".to_vec();
    copies.extend(b"K\x01N".repeat(100_000));
    copies.extend(b"u");
    copies.extend(b"h\x00h\x01\x85R0".repeat(100_000));
    copies.push(b'.');
    let file = checkpoint(&copies);
    let len = file.len();
    let (_, peak) = peak_memory(|| scan(file));
    assert!(peak < (64 << 20) + 32 * len, "{peak} bytes for a file of {len}");
}
