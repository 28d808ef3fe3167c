//! Files cut at every offset and with every bit flipped: an error or a readable checkpoint, within
//! bounded memory.

use apr_testkit::torch::{checkpoint, tensor};
use apr_testkit::{corrupt, peak_memory, read_everything};

use super::*;

/// A small file of each kind.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("ZIP", golden("tied.pt")),
        ("strided", checkpoint(&tensor("ByteStorage", 8, 0, &[4, 2], &[1, 4]))),
        ("pre-ZIP", golden("tied_legacy.pt")),
        ("TAR", tar()),
    ]
}

/// A TAR checkpoint as PyTorch 0.1 wrote it: tensors in a member of their own, named by number.
fn tar() -> Vec<u8> {
    let storages = [
        b"\x80\x02K\x01.\x80\x02(K\x07U\x03cpuctorch\nFloatStorage\nt.",
        &[2_u8, 0, 0, 0, 0, 0, 0, 0][..],
        &[0, 0, 128, 63, 0, 0, 0, 64],
        b"\x80\x02](K\x08K\x07K\x01K\x01ta.",
    ]
    .concat();
    let tensor = |key: u8, storage: u8, len: u64| {
        let pickle =
            [b"\x80\x02(K", &[key][..], b"K", &[storage], b"ctorch\nFloatTensor\nt."].concat();
        [pickle, [1, len, 1, 0].map(u64::to_le_bytes).concat()].concat()
    };
    let tensors = [b"\x80\x02K\x02.".to_vec(), tensor(9, 7, 2), tensor(10, 8, 1)].concat();
    let members = [
        ("sys_info", &b"\x80\x02}U\x0dlittle_endian\x88s."[..]),
        ("pickle", b"\x80\x02}(U\x01aU\x019QU\x01bP10\nu."),
        ("tensors", &tensors),
        ("storages", &storages),
    ];
    let mut file = Vec::new();
    for (name, data) in members {
        let mut header = vec![0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        file.extend(header);
        file.extend(data);
        file.resize(file.len().next_multiple_of(512), 0);
    }
    file
}

#[test]
fn tensors_of_a_tar_file_are_found_by_number_through_views() {
    let reader = open(tar()).expect("a TAR checkpoint");
    let names: Vec<_> = reader.tensors().iter().map(|info| info.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(bytes_of(&reader, 0, 8), [0, 0, 128, 63, 0, 0, 0, 64]);
    assert_eq!(bytes_of(&reader, 1, 8), [0, 0, 0, 64]);
}

fn survives(file: Vec<u8>, what: &str) -> bool {
    let (opened, peak) = peak_memory(|| match open(file) {
        Ok(reader) => {
            // What opens can be read, unless it claims a size no test has time for.
            let total: u64 = reader.tensors().iter().filter_map(|info| info.byte_len().ok()).sum();
            if total < 1 << 20 {
                read_everything(&reader).expect(what);
            }
            true
        }
        Err(_) => false,
    });
    assert!(peak < 64 << 20, "{what}: opening held {peak} bytes");
    opened
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    for (kind, file) in samples() {
        // Blocks of zeros at the end of a TAR file are only padding.
        let needed = file.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        for cut in corrupt::truncations(&file) {
            let len = cut.len();
            let opened = survives(cut, kind);
            assert!(
                !opened || (kind != "ZIP" && kind != "strided" && len >= needed),
                "{kind} cut at {len}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_another_readable_checkpoint() {
    for (kind, file) in samples() {
        for flipped in corrupt::bit_flips(&file, 0..file.len().min(4096)) {
            survives(flipped, kind);
        }
    }
}
