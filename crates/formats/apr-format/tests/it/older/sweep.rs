//! Small files cut at every offset, with every bit flipped, and with extremes in place of every
//! number.

use apr_testkit::older::apr1_json;
use apr_testkit::{corrupt, peak_memory, read_everything};

use super::built::{dialect, whisper, whisper_0_3};
use super::{covered, open};

fn small_files() -> Vec<Vec<u8>> {
    let index = r#"[{"name":"a","dtype":"F32","shape":[2],"offset":0,"size":8}]"#;
    let json = apr1_json(r#"{"model_type":"whisper"}"#, 1, index, &[1; 8]);
    let is_0_2 = apr_testkit::older::Apr1Builder { is_0_2: true, ..whisper() };
    vec![whisper().build(), is_0_2.build(), json, dialect(), whisper_0_3()]
}

/// Opens a broken file, and reads all of it if it opens. Errors must have a code and name the file.
/// Returns `true` if it opened.
fn survives(file: Vec<u8>, what: &str) -> bool {
    let justified = 64 * file.len() + 8192;
    let (opened, peak) = peak_memory(|| open(file));
    assert!(peak < justified, "{what}: {peak} bytes");
    match opened {
        Ok(reader) => {
            read_everything(&*reader).unwrap_or_else(|error| panic!("{what}: {error}"));
            true
        }
        Err(error) => {
            assert_eq!(error.file(), Some("old.apr"), "{what}: {error}");
            false
        }
    }
}

#[test]
fn a_truncated_file_is_refused_but_where_only_the_checksum_is_gone() {
    for file in small_files() {
        for cut in corrupt::truncations(&file) {
            let len = cut.len();
            let lost = file.len() - len;
            let opened = survives(cut, &format!("cut at {len}"));
            // The last tensor of the dialect is padded, and some programs write no padding there.
            assert!(
                !opened || lost == 4 || len > file.len() - 70,
                "cut at {len} of {}",
                file.len()
            );
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_shows_in_the_checksum() {
    for file in small_files() {
        for (bit, flipped) in corrupt::bit_flips(&file, 0..file.len()).enumerate() {
            if survives(flipped.clone(), &format!("bit {bit}")) {
                let reader = open(flipped.clone()).expect("it opened before");
                assert_ne!(covered(&*reader, &flipped), Some(true), "bit {bit}");
            }
        }
    }
}

#[test]
fn extremes_in_place_of_any_number_are_survived() {
    for file in small_files() {
        for at in 4..file.len() - 8 {
            for value in [0, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX - 63, u64::MAX] {
                let mut changed = corrupt::overwrite(&file, at, &value.to_le_bytes());
                survives(changed.clone(), &format!("{value} at {at}"));
                // The dialect's header has its own checksum, which would stop most of them.
                if at < 64 && changed[4..6] == [2, 0] {
                    apr_testkit::older::set_header_crc(&mut changed);
                    survives(changed, &format!("{value} at {at}, with a sound header"));
                }
            }
        }
    }
}
