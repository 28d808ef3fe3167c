//! Files cut at every offset, with every bit flipped, and with numbers that lie.

use apr_core::{CheckpointReader, Code, Limits};
use apr_format::aprn::{
    self, Compression, LoadOptions, ModelType, Signal, inspect, load_from_bytes, to_bytes,
    to_bytes_with,
};
use apr_testkit::{corrupt, peak_memory, read_everything};

use super::support::{LinearRegression, as_published, fitted, resealed, sample, seven};

type Loaded = Result<LinearRegression, aprn::Andon>;

/// Returns files small enough for testing every offset, with every feature that needs no key
/// derivation.
fn small_files() -> Vec<Vec<u8>> {
    let options = [
        as_published(Compression::None).with_name("lr"),
        as_published(Compression::Zstd).with_signing_key([7; 32]),
        as_published(Compression::Lz4).with_recipient([3; 32]),
    ];
    let save = |options| {
        to_bytes_with(&fitted(), ModelType::LinearRegression, options, &mut seven).expect("a file")
    };
    options.iter().map(save).collect()
}

fn load(file: &[u8]) -> Loaded {
    load_from_bytes(file, ModelType::LinearRegression)
}

/// Reads everything in a file that may be broken.
fn look(file: Vec<u8>) -> apr_core::Result<()> {
    let reader = aprn::open(file, "model.apr", &Limits::default(), &LoadOptions::default())?;
    assert!(reader.container().checksum().is_some());
    read_everything(&reader)
}

#[test]
fn every_truncation_is_an_error_with_a_code() {
    for file in small_files() {
        for cut in corrupt::truncations(&file) {
            let len = cut.len();
            let code = if len < 4 { Code::Format } else { Code::Corrupt };
            assert_eq!(load(&cut).expect_err("cut").error().code(), code, "cut at {len}");
            let error = look(cut).expect_err("cut");
            assert_eq!((error.code(), error.file()), (code, Some("model.apr")), "cut at {len}");
        }
    }
}

#[test]
fn every_flipped_bit_stops_the_load() {
    for file in small_files() {
        let justified = 16 * file.len() + 4096;
        for (bit, flipped) in corrupt::bit_flips(&file, 0..file.len()).enumerate() {
            let (loaded, peak) = peak_memory(|| load(&flipped));
            assert!(peak < justified, "bit {bit}: {peak} bytes");
            let signal = loaded.expect_err("flipped").signal();
            let expected = match bit / 8 {
                0..4 => &[Signal::InvalidFormat][..],
                4 | 20 => &[Signal::UnsupportedVersion, Signal::ChecksumMismatch],
                // Sizes that exceed the file say so, and so does a signature that isn't there.
                8..16 | 21 => &[Signal::InvalidFormat, Signal::ChecksumMismatch],
                _ => &[Signal::ChecksumMismatch],
            };
            assert!(expected.contains(&signal), "bit {bit}: {signal:?}");
        }
    }
}

#[test]
fn no_byte_of_a_payload_comes_out_of_a_damaged_file() {
    for file in small_files() {
        for (bit, flipped) in corrupt::bit_flips(&file, 0..file.len()).enumerate() {
            let Ok(reader) = aprn::open(flipped, "m", &Limits::default(), &LoadOptions::default())
            else {
                continue;
            };
            for tensor in 0..reader.tensors().len() {
                assert_eq!(reader.tensor_slice(tensor), None, "bit {bit}");
                if reader.tensors()[tensor].byte_len().expect("checked") > 0 {
                    assert!(reader.read_tensor(tensor, 0, &mut [0]).is_err(), "bit {bit}");
                }
            }
            assert!(
                reader.container().checksum().is_some_and(|checksum| checksum.extents.len() == 1),
                "bit {bit}"
            );
        }
    }
}

#[test]
fn a_damaged_file_without_a_payload_does_not_open() {
    let file = to_bytes(&(), ModelType::Custom, &as_published(Compression::None)).expect("a file");
    look(file.clone()).expect("nothing to read");
    for (bit, flipped) in corrupt::bit_flips(&file, 0..file.len()).enumerate() {
        assert!(look(flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn numbers_that_lie_are_refused_without_much_memory() {
    for file in small_files() {
        for at in 0..file.len() - 4 {
            for value in [0, 1, 23, 1 << 16, 1 << 28, 1 << 31, u32::MAX] {
                let changed = resealed(corrupt::overwrite(&file, at, &u32::to_le_bytes(value)));
                // 64 KiB are the reading buffer of the test itself.
                let ((), peak) = peak_memory(|| {
                    let _ = load(&changed);
                    let _ = inspect(&changed);
                    let _ = look(changed.clone());
                });
                assert!(peak < (1 << 18), "{value} at {at}: {peak} bytes");
            }
        }
    }
}

#[test]
fn loading_another_model_type_reports_both_types() {
    let Some(file) = sample("linreg") else { return };
    let andon =
        load_from_bytes::<LinearRegression>(&file, ModelType::KMeans).expect_err("another type");
    assert_eq!((andon.signal(), andon.error().code()), (Signal::ModelTypeMismatch, Code::Format));
    assert!(andon.to_string().contains("linear_regression, not kmeans"), "{andon}");
}

#[test]
fn a_payload_of_another_rust_type_is_refused() {
    let Some(file) = sample("linreg") else { return };
    let andon = load_from_bytes::<(f32, f32)>(&file, ModelType::LinearRegression)
        .expect_err("another type");
    assert_eq!(andon.signal(), Signal::InvalidFormat);
    let andon = load_from_bytes::<Vec<String>>(&file, ModelType::LinearRegression)
        .expect_err("another type");
    assert_eq!(andon.signal(), Signal::InvalidFormat);
}

#[test]
fn an_unknown_version_or_compression_is_reported() {
    let file = to_bytes(&fitted(), ModelType::LinearRegression, &as_published(Compression::None))
        .expect("a file");
    for (at, value, word) in
        [(4, 2, "version 2.0"), (4, 0, "version 0.0"), (20, 4, "compression 4")]
    {
        let andon = load(&resealed(corrupt::overwrite(&file, at, &[value]))).expect_err("unknown");
        assert_eq!(andon.signal(), Signal::UnsupportedVersion);
        assert!(andon.to_string().contains(word), "{andon}");
    }
    // A minor version may only add.
    assert_eq!(load(&resealed(corrupt::overwrite(&file, 5, &[9]))), Ok(fitted()));
}

/// Returns a file whose payload is `stored` and declares an unpacked length of `len` bytes.
fn claiming(compression: u8, stored: &[u8], len: u32) -> Vec<u8> {
    let mut file =
        to_bytes(&(), ModelType::Custom, &as_published(Compression::None)).expect("a file");
    file[20] = compression;
    file[12..16]
        .copy_from_slice(&u32::try_from(stored.len()).expect("a small payload").to_le_bytes());
    file[16..20].copy_from_slice(&len.to_le_bytes());
    let at = file.len() - 4;
    file.splice(at..at, stored.iter().copied());
    resealed(file)
}

#[test]
fn decompression_bombs_are_refused_before_they_go_off() {
    // A frame of run-length blocks: 128 KiB of zeros in four bytes each, 8,000 times, which is 1
    // GiB from 32 KB.
    let mut zstd = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    for block in 0..8000 {
        let header: u32 = (1 << 17 << 3) | (1 << 1) | u32::from(block == 7999);
        zstd.extend_from_slice(&header.to_le_bytes()[..3]);
        zstd.push(0);
    }
    // A literal, then a match at distance 1 whose length goes on and on.
    let mut lz4 = 1_u32.wrapping_shl(20).to_le_bytes().to_vec();
    lz4.extend_from_slice(&[0x1f, 0, 1, 0]);
    lz4.extend_from_slice(&[0xff; 8000]);
    for (compression, stored) in [(1, &zstd), (2, &zstd), (3, &lz4)] {
        for len in [0, 1, 1 << 16, 64 << 20, 1 << 28, 1 << 30, u32::MAX] {
            let file = claiming(compression, stored, len);
            let (loaded, peak) =
                peak_memory(|| load_from_bytes::<Vec<u8>>(&file, ModelType::Custom));
            assert!(loaded.is_err(), "{compression}: {len}");
            assert!(peak < (65 << 20) + 1024 * stored.len(), "{compression}: {len}: {peak} bytes");
        }
    }
    // Small files that claim much: nothing is made for what they can't hold.
    for compression in 1..=3 {
        for len in [1 << 20, 60 << 20, 1 << 30, u32::MAX] {
            let file = claiming(compression, &[0x28, 0xb5, 0x2f, 0xfd, 0, 0x58, 1, 0, 0], len);
            let (loaded, peak) =
                peak_memory(|| load_from_bytes::<Vec<u8>>(&file, ModelType::Custom));
            assert!(loaded.is_err() && peak < (1 << 16), "{compression}: {len}: {peak} bytes");
        }
    }
}

#[test]
fn an_unpacked_size_that_lies_is_refused() {
    for compression in [Compression::None, Compression::Zstd, Compression::Lz4] {
        let file = to_bytes(&fitted(), ModelType::LinearRegression, &as_published(compression))
            .expect("a file");
        for len in [0_u32, 21, 23, 1 << 20] {
            let andon = load(&resealed(corrupt::overwrite(&file, 16, &len.to_le_bytes())))
                .expect_err("a lie");
            assert_eq!(andon.signal(), Signal::InvalidFormat, "{compression:?}: {len}: {andon}");
        }
    }
}

#[test]
fn metadata_that_is_not_a_map_or_nests_too_deep_or_is_too_large_is_rejected() {
    let deep = vec![0x91; 5000];
    let cases: [&[u8]; 9] = [
        &[],
        &[0x90],
        &[0xc0],
        &[0x81, 0xa1],
        &[0x80, 0x80],
        &[0x81, 0x01, 0x01],
        &[0xdf, 0xff, 0xff, 0xff, 0xff],
        &[0x81, 0xa1, b'a', 0xdb, 0xff, 0xff, 0xff, 0xff],
        &deep,
    ];
    for metadata in cases {
        let mut file =
            to_bytes(&(), ModelType::Custom, &as_published(Compression::None)).expect("a file");
        file.splice(32..79, metadata.iter().copied());
        file[8..12].copy_from_slice(&u32::try_from(metadata.len()).expect("short").to_le_bytes());
        let file = resealed(file);
        let (info, peak) = peak_memory(|| inspect(&file));
        assert_eq!(info.expect_err("broken metadata").error().code(), Code::Format, "{metadata:?}");
        assert!(peak < (1 << 18), "{peak} bytes");
        // The payload does not depend on them.
        assert_eq!(load_from_bytes::<()>(&file, ModelType::Custom), Ok(()));
    }
}

#[test]
fn invalid_parts_of_metadata_are_dropped_with_a_warning() {
    let card = b"\x83\xaacreated_at\x01\xaamodel_card\x03\xa7license\x81\xa5seats\xff";
    let mut file =
        to_bytes(&(), ModelType::Custom, &as_published(Compression::None)).expect("a file");
    file.splice(32..79, card.iter().copied());
    file[8..12].copy_from_slice(&u32::try_from(card.len()).expect("short").to_le_bytes());
    let info = inspect(&resealed(file)).expect("a map");
    assert_eq!((info.metadata.model_card, info.metadata.license), (None, None));
    assert_eq!(info.warnings.len(), 4, "{:?}", info.warnings);
}

#[test]
fn bytes_that_no_flag_announces_are_warned_about() {
    let mut file =
        to_bytes(&fitted(), ModelType::LinearRegression, &as_published(Compression::None))
            .expect("a file");
    let at = file.len() - 4;
    file.splice(at..at, [1, 2, 3]);
    let file = resealed(file);
    assert!(inspect(&file).expect("readable").warnings[0].contains("3 bytes before the checksum"));
    assert_eq!(load(&file), Ok(fitted()));
}
