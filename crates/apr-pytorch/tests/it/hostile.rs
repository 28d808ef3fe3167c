//! Pickles and archives made to break a reader, or to run something on whoever opens them.

use apr_pytorch::{Action, FileVerdict, Verdict};
use apr_testkit::peak_memory;

use super::pack::{Entry, checkpoint, entries, tensor, zip};
use super::*;

fn good() -> Vec<u8> {
    tensor("FloatStorage", 2, 0, &[2], &[1])
}

/// The error of a checkpoint with this pickle, found within bounded memory.
fn pickle_error(pickle: &[u8]) -> Error {
    let file = checkpoint(pickle);
    let len = file.len();
    let (error, peak) = peak_memory(|| refused(file));
    assert!(peak < (64 << 20) + 32 * len, "{peak} bytes for a file of {len}: {error}");
    error
}

#[test]
fn a_checkpoint_packed_by_hand_opens() {
    let reader = open(checkpoint(&good())).expect("a good file");
    assert_eq!(reader.tensors()[0].name, "w");
    assert_eq!(bytes_of(&reader, 0, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn sizes_and_places_may_be_wide() {
    let mut entries = entries(&good());
    entries.iter_mut().for_each(|entry| entry.wide = true);
    let reader = open(zip(&entries)).expect("a good file");
    assert_eq!(bytes_of(&reader, 0, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    entries[1].longer = 1;
    assert_eq!(refused(zip(&entries)).code(), Code::Corrupt);
}

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
        let error = pickle_error(pickle);
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

#[test]
fn what_no_checkpoint_does_is_refused() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("EXT1", b"\x80\x02\x82\x01.", "number that only the loading program knows"),
        ("EXT2", b"\x80\x02\x83\x01\x00.", "number"),
        ("EXT4", b"\x80\x02\x84\x01\x00\x00\x00.", "number"),
        ("STACK_GLOBAL of numbers", b"\x80\x04K\x01K\x02\x93.", "not short text"),
        (
            "BUILD with __setstate__",
            b"ctorch.nn.modules\nLinear\n)\x81}S'__setstate__'\nNsb.",
            "__setstate__",
        ),
        ("BUILD twice", b"ctorch.nn.modules\nLinear\n)\x81}b}b.", "twice"),
        ("a dotted name", b"\x80\x04\x8c\x10torch.nn.modules\x8c\x09os.system\x93.", "os.system"),
        (
            "a persistent id that is a number",
            b"\x80\x02K\x01Q.",
            "neither a storage's nor a module's",
        ),
        ("a persistent id that is text", b"\x80\x02P1\n.", "neither"),
        ("a persistent id that is short", b"(S'storage'\nctorch\nFloatStorage\ntQ.", "wrong shape"),
        ("a persistent id without class", b"(S'storage'\nNS'0'\nS'cpu'\nI2\ntQ.", "wrong shape"),
        ("a recalled value that was not stored", b"\x80\x02h\x07.", "recalls 7"),
        ("POP of nothing", b"0.", "stack is empty"),
        ("TUPLE without MARK", b"K\x01t.", "needs a mark"),
        ("STOP of nothing", b"\x80\x02.", "stack is empty"),
        ("a call of a number", b"K\x01)R.", "not a name"),
        ("a call of a storage", b"ctorch\nFloatStorage\n)R.", "calls a type"),
        ("items for a number", b"K\x01K\x02a.", "not a container"),
        ("a key without value", b"}(K\x01u.", "key without a value"),
        ("a buffer from outside", b"\x80\x05\x97.", "buffer"),
        ("a tensor of text", b"ctorch._utils\n_rebuild_tensor_v2\n(S'a'\nI0\n()tR.", ""),
        (
            "a quantized tensor of too little",
            b"ctorch._utils\n_rebuild_qtensor\n(S'a'\nI0\ntR.",
            "too little",
        ),
        (
            "a quantized tensor of text",
            b"ctorch._utils\n_rebuild_qtensor\n(S'a'\nI0\n))NtR.",
            "not a storage",
        ),
        (
            "a sparse tensor of too little",
            b"ctorch._utils\n_rebuild_sparse_tensor\n(S'torch.sparse_coo'\ntR.",
            "too little",
        ),
        ("another opcode", b"\x80\x02\xff.", "0xff"),
    ];
    for &(what, pickle, expected) in cases {
        let error = pickle_error(pickle);
        assert_eq!(error.code(), Code::Format, "{what}: {error}");
        assert!(error.offset().is_some() && error.message().contains(expected), "{what}: {error}");
    }
    assert_eq!(pickle_error(b"\x80\x06}.").code(), Code::Version);
}

#[test]
fn claims_beyond_the_file_are_refused_before_they_are_believed() {
    let huge = [
        &b"X\xff\xff\xff\xff"[..],
        b"T\xff\xff\xff\x7f",
        b"B\xff\xff\xff\xff",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",
        b"\x96\x00\x00\x00\x00\x01\x00\x00\x00",
    ];
    for pickle in huge {
        let error = pickle_error(&[b"\x80\x05", pickle, b"."].concat());
        assert_eq!(error.code(), Code::Corrupt, "{error}");
    }
    let u64_max = u64::MAX;
    let cases = [
        tensor("FloatStorage", 2_500_000_000, 0, &[2_500_000_000], &[1]),
        tensor("FloatStorage", u64_max, 0, &[2], &[1]),
        tensor("FloatStorage", 2, 1, &[2], &[1]),
        tensor("FloatStorage", 2, u64_max, &[2], &[1]),
        tensor("FloatStorage", 2, 0, &[3], &[1]),
        tensor("FloatStorage", 2, 0, &[2], &[u64_max]),
        tensor("FloatStorage", 2, 0, &[1 << 63, 1 << 63], &[0, 0]),
        tensor("FloatStorage", 2, 0, &[4_194_305, 4_194_305, 211_106_198_978_564], &[1, 1, 1]),
        tensor("DoubleStorage", 2, 0, &[1], &[1]),
    ];
    for pickle in cases {
        let error = pickle_error(&pickle);
        assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some("w")), "{error}");
    }
}

#[test]
fn an_expanded_tensor_may_not_grow_without_bound() {
    let error = pickle_error(&tensor("FloatStorage", 2, 0, &[1 << 40], &[0]));
    assert_eq!((error.code(), error.tensor()), (Code::Memory, Some("w")), "{error}");
    assert!(open(checkpoint(&tensor("FloatStorage", 2, 0, &[1000], &[0]))).is_ok());
}

#[test]
fn bombs_are_defused() {
    // Each list holds the one before it ten times.
    let mut laughs = b"\x80\x02]q\x00".to_vec();
    for level in 1..100_u8 {
        laughs.extend([b']', b'q', level, b'(']);
        laughs.extend([b'h', level - 1].repeat(10));
        laughs.push(b'e');
    }
    laughs.push(b'.');
    assert_eq!(pickle_error(&laughs).code(), Code::Memory);

    let nested = [&b"\x80\x02"[..], &b"]".repeat(100_000), &b"a".repeat(99_999), b"."].concat();
    assert_eq!(pickle_error(&nested).code(), Code::Format);
    assert_eq!(pickle_error(b"\x80\x02]q\x00h\x00a.").code(), Code::Format);

    let marks = [&b"\x80\x02"[..], &b"(".repeat(1 << 20), b"."].concat();
    assert_eq!(pickle_error(&marks).code(), Code::Memory);
    let values = [&b"\x80\x02"[..], &b"]".repeat(3 << 20), b"."].concat();
    assert_eq!(pickle_error(&values).code(), Code::Memory);
    let stack = [&b"\x80\x02N"[..], &b"2".repeat(3 << 20), b"."].concat();
    assert_eq!(pickle_error(&stack).code(), Code::Memory);

    // A dictionary of many keys, copied by a call of six bytes, again and again.
    let mut copies = b"\x80\x02ccollections\nOrderedDict\nq\x00}q\x01(".to_vec();
    copies.extend(b"K\x01N".repeat(100_000));
    copies.extend(b"u");
    copies.extend(b"h\x00h\x01\x85R0".repeat(100_000));
    copies.push(b'.');
    assert_eq!(pickle_error(&copies).code(), Code::Memory);
    // Many modules with one state, of which only two entries count.
    let mut modules = b"\x80\x02ctorch.nn.modules\nLinear\n\
          q\x00}q\x01(X\x0b\x00\x00\x00_parameters}X\x08\x00\x00\x00_modules}"
        .to_vec();
    modules.extend(b"NN".repeat(50_000));
    modules.extend(b"u](");
    modules.extend(b"h\x00)\x81h\x01b".repeat(100));
    modules.extend(b"e.");
    assert_eq!(pickle_error(&modules).code(), Code::Memory);
    // The same for a scan, which goes on past every error.
    scan(checkpoint(&copies));
}

#[test]
fn pickles_after_the_first_are_judged_too() {
    let trailing = |rest: &[u8]| checkpoint(&[&good()[..], rest].concat());
    let error = refused(trailing(b"cos\nsystem\n)R."));
    assert!(error.message().contains("os.system"), "{error}");
    let reader = open(trailing(b"\x80\x02}.")).expect("harmless");
    assert_eq!(reader.warnings().len(), 1);

    let mut beside = entries(&good());
    beside.push(Entry::new("m/extra.pkl", b"cposix\nsystem\n)R."));
    assert!(refused(zip(&beside)).message().contains("posix.system"));
}

#[test]
fn archives_that_show_two_faces_are_refused() {
    let change = |change: &dyn Fn(&mut Vec<Entry>)| {
        let mut entries = entries(&good());
        change(&mut entries);
        refused(zip(&entries))
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Vec<Entry>), Code, &'a str);
    let cases: &[Case<'_>] = &[
        (
            "names differ",
            &|e| e[0].local_name = "m/eviL.pkl".into(),
            Code::Corrupt,
            "disagree on its name",
        ),
        ("flags differ", &|e| e[0].local_flags = 2, Code::Corrupt, "flags"),
        ("encrypted", &|e| (e[1].flags, e[1].local_flags) = (1, 1), Code::Format, "encrypted"),
        ("encrypted in one place", &|e| e[1].local_flags = 1, Code::Corrupt, "flags"),
        ("bad checksum", &|e| e[0].crc32 ^= 1, Code::Checksum, "checksum"),
        ("compressed weights", &|e| e[1].method = 14, Code::Version, "LZMA"),
        ("compressed pickle", &|e| e[0].method = 93, Code::Version, "Zstandard"),
        (
            "a pickle that is no DEFLATE stream",
            &|e| e[0].method = 8,
            Code::Corrupt,
            "damaged or cut off",
        ),
        ("too long", &|e| e[0].longer = 1, Code::Corrupt, "reaches into"),
        ("last too long", &|e| e[1].longer = 9, Code::Corrupt, "reaches into"),
        ("wrong place", &|e| e[1].earlier = 1, Code::Corrupt, "place"),
        ("absolute name", &|e| e.push(Entry::new("/etc/x", b"")), Code::Format, "leads out"),
        ("parent name", &|e| e.push(Entry::new("m/../x", b"")), Code::Format, "leads out"),
        ("drive", &|e| e.push(Entry::new("C:x", b"")), Code::Format, "leads out"),
        ("same name twice", &|e| e.push(e[1].clone()), Code::Format, "two entries"),
        (
            "two checkpoints",
            &|e| e.push(Entry::new("n/data.pkl", b"N.")),
            Code::Format,
            "two checkpoints",
        ),
        ("big-endian", &|e| e.push(Entry::new("m/byteorder", b"big")), Code::Version, "big-endian"),
        ("no pickle", &|e| drop(e.remove(0)), Code::Format, "no data.pkl"),
        ("no storage", &|e| drop(e.remove(1)), Code::Corrupt, "not in the file"),
    ];
    for (what, make, code, expected) in cases {
        let error = change(make);
        assert_eq!(error.code(), *code, "{what}: {error}");
        assert!(error.message().contains(expected), "{what}: {error}");
    }
    let overlap = {
        // Both entries of the directory stand for one header.
        let mut entries = entries(&good());
        let len = 30 + entries[0].name.len() + entries[0].data.len();
        entries[1] = Entry { earlier: u32::try_from(len).expect("small"), ..entries[0].clone() };
        entries[1].name = "m/data/0".into();
        refused(zip(&entries))
    };
    assert_eq!(overlap.code(), Code::Corrupt, "{overlap}");
    let trailing = [&checkpoint(&good())[..], b"x"].concat();
    assert_eq!(refused(trailing).code(), Code::Corrupt);
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let one = good();
    let item = &one[3..one.len() - 2];
    let pickle = [b"\x80\x02}", item, b"s", item, b"s."].concat();
    let error = pickle_error(&pickle);
    assert!(error.message().contains("two tensors"), "{error}");
}

#[test]
fn a_conjugated_view_is_refused_because_its_values_are_not_as_stored() {
    let text = "}S'w'\nctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n\
        ComplexFloatStorage\nS'0'\nS'cpu'\nI1\ntQI0\n(I1\nt(I1\ntI00\nN}S'conj'\nI01\nstRs.";
    let error = pickle_error(text.as_bytes());
    assert_eq!((error.code(), error.tensor()), (Code::Version, Some("w")), "{error}");
}

#[test]
fn eight_bit_floats_come_by_an_untyped_storage() {
    let text = "}S'w'\nctorch._utils\n_rebuild_tensor_v3\n((S'storage'\nctorch.storage\n\
        UntypedStorage\nS'0'\nS'cpu'\nI8\ntQI1\n(I2\nI3\nt(I3\nI1\ntI00\nNctorch\nfloat8_e4m3fn\n\
        tRs.";
    let reader = open(checkpoint(text.as_bytes())).expect("a good file");
    assert_eq!(reader.tensors()[0].dtype, apr_core::DType::F8_E4M3);
    assert_eq!(bytes_of(&reader, 0, 4), [2, 3, 4, 5, 6, 7]);
}

/// A ZIP archive that lists one stored entry so many times.
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
fn archives_that_list_one_archive_eight_times_are_looked_into_so_far_and_no_further() {
    let file = (0..7).fold(b"hello".to_vec(), |content, _| listed(&content, 8));
    let report = apr_pytorch::scan(file, "zips.bin", &Limits::default()).expect("a report");
    assert_eq!(report.problems.iter().filter(|what| what.contains("more in it")).count(), 1);
}

#[test]
fn two_bytes_that_are_a_pickle_are_looked_at_a_few_thousand_times() {
    let file = b"N.".repeat(200_000);
    let report = apr_pytorch::scan(file, "n.bin", &Limits::default()).expect("a report");
    assert!(report.problems.iter().any(|what| what.contains("only the first")));
}

/// What a scan says of a pickle by itself, with so many bytes that are read as pickles.
fn scan_within(pickle: &[u8], max_metadata: u64) -> apr_pytorch::ScanReport {
    let mut limits = apr_core::Limits::default();
    limits.max_metadata = max_metadata;
    let len = pickle.len();
    let (report, peak) =
        peak_memory(|| apr_pytorch::scan(pickle.to_vec(), "x.pkl", &limits).expect("in memory"));
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
fn a_long_pickle_without_a_payload_is_clean_and_the_report_says_how_it_was_read() {
    let good = [
        &b"\x80\x02]("[..],
        &b"X\x05\x00\x00\x00hello\x8a\x01\x07G\x00\x00\x00\x00\x00\x00\x00\x00".repeat(200),
        b"eccollections\nOrderedDict\n)R\x86.",
    ]
    .concat();
    let report = scan_within(&good, 1000);
    assert_eq!(report.verdict, FileVerdict::Clean, "{report:?}");
    assert!(report.notes[0].contains("--max-metadata"), "{report:?}");
    assert_eq!(names(&report), ["collections.OrderedDict"]);

    // What Python can't read either stays unreadable.
    let cut = scan_within(&good[..good.len() - 1], 1000);
    assert_eq!(cut.verdict, FileVerdict::Unreadable, "{cut:?}");
    let broken = scan_within(&[&good[..good.len() - 1], b"\xff."].concat(), 1000);
    assert_eq!(broken.verdict, FileVerdict::Unreadable, "{broken:?}");
}

#[test]
fn attributes_of_what_is_imported_are_not_replaced() {
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
        pickle_error(pickle.as_bytes());
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
fn metadata_of_a_tflite_model_are_looked_into_and_are_nothing_odd() {
    let model = |entries: &[Entry]| [&b"\x1c\0\0\0TFL3"[..], &[7; 100], &zip(entries)].concat();
    let scan = |file| {
        apr_pytorch::scan(file, "m.tflite", &apr_core::Limits::default()).expect("in memory")
    };
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
