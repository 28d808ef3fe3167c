//! Pickles and archives made to break a reader, or to run something on whoever opens them.

use apr_testkit::peak_memory;
use apr_testkit::torch::{Entry, checkpoint, entries, tensor, zip};

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
fn opcodes_and_ids_that_no_checkpoint_uses_are_rejected() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("EXT1", b"\x80\x02\x82\x01.", "number that only the loading program defines"),
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
fn declared_lengths_beyond_the_file_are_rejected_before_they_are_used() {
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
}

#[test]
fn pickles_after_the_first_are_judged_too() {
    let trailing = |rest: &[u8]| checkpoint(&[&good()[..], rest].concat());
    let error = refused(trailing(b"cos\nsystem\n)R."));
    assert!(error.message().contains("os.system"), "{error}");
    let reader = open(trailing(b"\x80\x02}.")).expect("harmless");
    assert_eq!(reader.warnings().len(), 1);

    let behind_many = [&b"N.".repeat(5000)[..], b"cos\nsystem\n)R."].concat();
    assert!(refused(trailing(&behind_many)).message().contains("os.system"));
    let error = refused(trailing(&b"N.".repeat(20_000)));
    assert_eq!(error.code(), Code::Memory, "{error}");

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
