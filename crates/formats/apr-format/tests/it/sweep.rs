//! Small files cut at every offset and with every bit flipped.

use crate::support::{Model, bytes_of, open, refused, sound, tensor};
use apr_core::{CheckpointReader, DType, Limits};
use apr_format::apr2::{self, CompanionFile};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::{corrupt, peak_memory, read_everything};

/// Returns files small enough for testing every offset, which have every feature between them.
fn small_files() -> Vec<Vec<u8>> {
    let tied = Apr2Entry { flags: 1 << 13, ..Apr2Entry::new("t", DType::F16, &[5], &[]) };
    let metadata = r#"{"tied":{"t":"a.bias"},"files":{"config.json":"{}","v":{"tensor":"v"}}}"#;
    let packed = sound().entry(tied).entry(Apr2Entry::of_bytes("v", &[3; 20])).metadata(metadata);
    let companions = vec![CompanionFile { name: "v".into(), bytes: vec![0xff; 30] }];
    let tensors = vec![tensor("w", DType::Q8_0, &[2, 32]), tensor("s", DType::F32, &[])];
    let written = Model { tensors, companions, ..Model::default() }.write();
    vec![packed.build(), written, Apr2Builder::new().build()]
}

#[test]
fn every_truncation_is_an_error_with_a_code() {
    for file in small_files() {
        for cut in corrupt::truncations(&file) {
            let len = cut.len();
            let code = refused(cut).code().id();
            assert_eq!(code, if len < 4 { "E001" } else { "E002" }, "cut at {len}");
        }
    }
}

#[test]
fn every_flipped_bit_is_an_error_or_leaves_a_file_that_reads() {
    for file in small_files() {
        let justified = 16 * file.len() + 4096;
        for (at, flipped) in corrupt::bit_flips(&file, 0..file.len()).enumerate() {
            let (opened, peak) =
                peak_memory(|| apr2::open(flipped, "model.apr", &Limits::default()));
            assert!(peak < justified, "bit {at}: {peak} bytes");
            let Ok(reader) = opened else { continue };
            read_everything(&reader).unwrap_or_else(|error| panic!("bit {at}: {error}"));
            let extents = reader.container().checksum().expect("APR2 has one").extents;
            let end = extents.iter().fold(0, |end, extent| {
                assert_eq!(extent.offset, end, "bit {at}: {extents:?}");
                end + extent.len
            });
            assert_eq!(end, file.len() as u64 - 16, "bit {at}");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_file_with_factors_is_an_error_or_leaves_numbers() {
    let floats =
        |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let numbers = floats(&[1.0, 2.0, 0.5, -3.0, 4.0, 0.25, 7.0, -1.0, 2.5, 6.0]);
    let stored = [&2_u32.to_le_bytes()[..], &[0; 4], &numbers].concat();
    let raw_size = stored.len() as u64;
    let entry =
        Apr2Entry { flags: 3 << 8, raw_size, ..Apr2Entry::new("w", DType::F32, &[3, 2], &stored) };
    let file = Apr2Builder::new().entry(entry).build();
    let product = floats(&[12.0, 11.0, -4.0, -18.5, 28.625, -2.5]);
    assert_eq!(bytes_of(&open(file.clone()), 0), product);
    for (at, flipped) in corrupt::bit_flips(&file, 0..file.len()).enumerate() {
        let Ok(reader) = apr2::open(flipped, "model.apr", &Limits::default()) else { continue };
        if let Err(error) = read_everything(&reader) {
            assert!(["E001", "E002"].contains(&error.code().id()), "bit {at}: {error}");
        }
    }
}

#[test]
fn a_flipped_bit_before_the_footer_never_goes_unnoticed_by_the_checksum() {
    for file in small_files() {
        for flipped in corrupt::bit_flips(&file, 0..file.len() - 16) {
            let sum = crc32fast::hash(&flipped[..file.len() - 16]);
            if let Ok(reader) = apr2::open(flipped, "model.apr", &Limits::default()) {
                assert_ne!(reader.container().checksum().expect("APR2 has one").crc32, sum);
            }
        }
    }
}

#[test]
fn a_flipped_bit_in_a_tensor_shows_in_its_digest_alone() {
    let file = small_files().swap_remove(0);
    let ranges: Vec<_> = {
        let reader = open(file.clone());
        (0..reader.tensors().len()).map(|tensor| reader.stored(tensor).range).collect()
    };
    for (damaged, range) in ranges.iter().enumerate() {
        let start = usize::try_from(range.offset).expect("a small file");
        let end = start + usize::try_from(range.len).expect("a small file");
        for flipped in corrupt::bit_flips(&file, start..end) {
            let reader = open(flipped);
            for tensor in 0..reader.tensors().len() {
                let Some(digest) = reader.stored(tensor).digest() else { continue };
                let same = digest == *blake3::hash(&bytes_of(&reader, tensor)).as_bytes();
                assert_eq!(same, tensor != damaged, "byte {start}, tensor {tensor}");
            }
        }
    }
}

#[test]
fn every_byte_that_could_be_a_number_is_tried_with_extremes() {
    for file in small_files() {
        for at in 0..file.len() - 8 {
            for value in [0, 1, 1 << 31, u64::from(u32::MAX), 1 << 63, u64::MAX - 63, u64::MAX] {
                let changed = corrupt::overwrite(&file, at, &value.to_le_bytes());
                if let Ok(reader) = apr2::open(changed, "model.apr", &Limits::default()) {
                    read_everything(&reader)
                        .unwrap_or_else(|error| panic!("{value} at {at}: {error}"));
                    assert!(reader.container().checksum().is_some());
                }
            }
        }
    }
}
