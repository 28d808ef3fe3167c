//! Blocks of tensors through every codec and filter: they come back the same, and broken ones are
//! refused.
#![cfg(feature = "compression")]
#![allow(clippy::cast_possible_truncation, reason = "any bytes will do")]

use apr_core::{Code, DType};
use apr_format::codec::{
    BlockDecoder, BlockEncoder, BlockHead, Choice, Codec, Coding, Element, Filter, Outcome, choose,
};
use apr_testkit::{corrupt, locate, peak_memory};
use proptest::prelude::*;

const CODECS: [Codec; 4] = [Codec::None, Codec::Lz4, Codec::Zstd, Codec::Entropy];

fn codings() -> impl Iterator<Item = Coding> {
    let filters = [Filter::None, Filter::BytePlanes];
    CODECS.into_iter().flat_map(move |codec| filters.map(|filter| Coding { codec, filter }))
}

/// One dtype for each way of splitting.
const DTYPES: [DType; 6] =
    [DType::BF16, DType::F32, DType::I16, DType::U32, DType::I64, DType::Q4_0];

/// A small generator of numbers that need not be good.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 ^ self.0 >> 29) >> 11
    }

    /// Returns a nearly normal number with deviation 0.02: the sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        let sum: f64 = (0..12).map(|_| self.next() as f64 / (1_u64 << 53) as f64).sum();
        ((sum - 6.0) * 0.02) as f32
    }
}

fn gaussian_f32(elements: usize) -> Vec<u8> {
    let mut random = Random(7);
    (0..elements).flat_map(|_| random.normal().to_le_bytes()).collect()
}

fn gaussian_bf16(elements: usize) -> Vec<u8> {
    let mut random = Random(8);
    let narrow = |value: f32| ((value.to_bits() + 0x8000) >> 16) as u16;
    (0..elements).flat_map(|_| narrow(random.normal()).to_le_bytes()).collect()
}

/// Returns the bytes of a block, repetitive, skewed, constant or random by `kind`.
fn block(kind: u8, len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let random_byte = |random: &mut Random| random.next() as u8;
    (0..len)
        .map(|i| match kind % 6 {
            0 => 0,
            1 => random_byte(&mut random),
            2 => (random.next() as u8).leading_zeros() as u8,
            3 => (i / 3 % 50) as u8,
            4 => (random_byte(&mut random) / 2).wrapping_add(random_byte(&mut random) / 2),
            _ => random_byte(&mut random) % 3 / 2 * 200,
        })
        .collect()
}

fn encode(coding: Coding, dtype: DType, block: &[u8]) -> (Vec<u8>, Outcome) {
    let mut stored = Vec::new();
    let outcome = BlockEncoder::new(coding, 3, Element::of(dtype)).encode(block, &mut stored);
    (stored, outcome)
}

fn decode(coding: Coding, dtype: DType, stored: &[u8], len: usize) -> apr_core::Result<Vec<u8>> {
    let (head, body) = stored.split_first_chunk().expect("a block starts with a head");
    let head = BlockHead::read(*head);
    assert_eq!(head.len, body.len());
    let mut decoded = vec![0; len];
    BlockDecoder::new(coding, Element::of(dtype)).decode(body, head.raw, &mut decoded)?;
    Ok(decoded)
}

fn assert_round_trip(coding: Coding, dtype: DType, block: &[u8]) {
    let (stored, outcome) = encode(coding, dtype, block);
    assert!(
        stored.len() <= block.len() + BlockHead::LEN,
        "{coding:?} {dtype}: {} of {}",
        stored.len(),
        block.len()
    );
    assert_eq!(
        outcome == Outcome::Coded,
        stored.len() < block.len() + BlockHead::LEN,
        "{coding:?} {dtype}"
    );
    assert_ne!(outcome, Outcome::Mismatch, "{coding:?} {dtype}");
    let decoded = decode(coding, dtype, &stored, block.len()).expect("what was just encoded");
    assert!(decoded == block, "{coding:?} {dtype}: {} bytes come back changed", block.len());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 600,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn blocks_come_back_the_same(
        coding in prop::sample::select(codings().collect::<Vec<_>>()),
        dtype in prop::sample::select(DType::ALL.to_vec()),
        kind in 0_u8..6,
        len in prop_oneof![0_usize..100, 0_usize..5000, 60_000_usize..65_537],
        seed: u64,
    ) {
        assert_round_trip(coding, dtype, &block(kind, len, seed));
    }

    #[test]
    fn any_body_decodes_or_is_corrupt(
        coding in prop::sample::select(codings().collect::<Vec<_>>()),
        dtype in prop::sample::select(DTYPES.to_vec()),
        body in prop::collection::vec(any::<u8>(), 0..300),
        len in 0_usize..2000,
        raw: bool,
    ) {
        let mut out = vec![0; len];
        let mut decoder = BlockDecoder::new(coding, Element::of(dtype));
        if let Err(error) = decoder.decode(&body, raw, &mut out) {
            prop_assert_eq!(error.code(), Code::Corrupt);
        }
    }
}

#[test]
fn blocks_of_every_awkward_length_come_back_the_same() {
    for coding in codings() {
        for dtype in DTYPES {
            let full = coding.block_len();
            for len in (0..40).chain([63, 64, 65, 1023, 4097, full - 1, full]) {
                assert_round_trip(coding, dtype, &block(2, len, 3));
            }
        }
    }
}

#[test]
fn full_blocks_of_every_kind_come_back_the_same() {
    for coding in codings() {
        for kind in 0..6 {
            assert_round_trip(coding, DType::BF16, &block(kind, coding.block_len(), 9));
        }
    }
}

#[test]
fn skewed_counts_make_codes_of_every_length_and_come_back_the_same() {
    // Twice as many of each symbol as of the next: without a limit, codes would be as long as there
    // are symbols.
    for symbols in 2..=17 {
        let block: Vec<u8> =
            (0..symbols).flat_map(|symbol| vec![symbol as u8 * 15; 1 << symbol]).collect();
        assert_round_trip(
            Coding { codec: Codec::Entropy, filter: Filter::None },
            DType::U8,
            &block,
        );
    }
}

#[test]
fn cut_blocks_decode_or_are_corrupt() {
    for coding in codings() {
        for (dtype, kind) in [(DType::BF16, 2), (DType::F32, 4), (DType::U8, 5)] {
            let block = block(kind, 1501, 4);
            let (stored, _) = encode(coding, dtype, &block);
            let body = &stored[BlockHead::LEN..];
            let raw = BlockHead::read(*stored.first_chunk().expect("a head")).raw;
            let mut decoder = BlockDecoder::new(coding, Element::of(dtype));
            for cut in corrupt::truncations(body) {
                let error =
                    decoder.decode(&cut, raw, &mut [0; 1501]).expect_err("bytes are missing");
                assert_eq!(error.code(), Code::Corrupt, "{coding:?}: {error}");
            }
            let longer = [body, &[0]].concat();
            let error =
                decoder.decode(&longer, raw, &mut [0; 1501]).expect_err("bytes are left over");
            assert_eq!(error.code(), Code::Corrupt, "{coding:?}: {error}");
        }
    }
}

#[test]
fn flipped_bits_decode_to_something_or_are_corrupt() {
    for coding in codings() {
        for (dtype, kind) in [(DType::BF16, 2), (DType::F32, 4), (DType::U8, 5)] {
            let block = block(kind, 1501, 4);
            let (stored, _) = encode(coding, dtype, &block);
            let body = &stored[BlockHead::LEN..];
            for raw in [false, true] {
                let mut decoder = BlockDecoder::new(coding, Element::of(dtype));
                for flipped in corrupt::bit_flips(body, 0..body.len()) {
                    if let Err(error) = decoder.decode(&flipped, raw, &mut [0; 1501]) {
                        assert_eq!(error.code(), Code::Corrupt, "{coding:?}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_block_of_another_length_than_expected_is_corrupt() {
    for coding in codings() {
        let block = block(2, 4000, 5);
        let (stored, _) = encode(coding, DType::BF16, &block);
        for len in [0, 1, 3999, 4001, coding.block_len(), coding.block_len() + 1] {
            let error = decode(coding, DType::BF16, &stored, len).expect_err("another length");
            assert_eq!(error.code(), Code::Corrupt, "{coding:?} {len}: {error}");
        }
    }
}

#[test]
fn bombs_are_corrupt_and_do_not_exhaust_memory() {
    // A frame that declares a window of 2 TiB, one that declares 2^62 bytes, and blocks of 128 KiB
    // from four bytes each.
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let repeated = |last: u8| [2 + last, 0, 16, 7];
    let blocks = [repeated(0).repeat(10_000), repeated(1).to_vec()].concat();
    let wide_window = [&magic[..], &[0x00, 0xff], &blocks].concat();
    let window = [&magic[..], &[0x00, 0x50], &blocks].concat();
    let declared = [&magic[..], &[0xe0], &(1_u64 << 62).to_le_bytes(), &blocks].concat();
    // One literal, then matches at distance one of 255 times the number of bytes.
    let lz4 = [&[0x1f, 7, 1, 0][..], &[255; 60_000], &[0, 0]].concat();
    for (codec, bomb) in [
        (Codec::Zstd, &wide_window),
        (Codec::Zstd, &window),
        (Codec::Zstd, &declared),
        (Codec::Lz4, &lz4),
    ] {
        let coding = Coding { codec, filter: Filter::None };
        let mut out = vec![0; coding.block_len()];
        let (result, peak) = peak_memory(|| {
            BlockDecoder::new(coding, Element::of(DType::U8)).decode(bomb, false, &mut out)
        });
        let error = result.expect_err("more bytes than a block");
        assert_eq!(error.code(), Code::Corrupt);
        assert!(peak < 4 << 20, "{codec:?}: {peak} bytes");
    }
}

#[test]
fn an_encoder_gives_the_same_bytes_whatever_it_encoded_before() {
    for coding in codings() {
        let mut used = BlockEncoder::new(coding, 3, Element::of(DType::BF16));
        for kind in [3, 1, 2, 5, 2] {
            let block = block(kind, coding.block_len() / 3, u64::from(kind));
            let mut again = Vec::new();
            used.encode(&block, &mut again);
            assert!(again == encode(coding, DType::BF16, &block).0, "{coding:?} {kind}");
        }
    }
}

#[test]
fn normally_distributed_floats_shrink_by_their_exponents() {
    let planes = Coding { codec: Codec::Entropy, filter: Filter::BytePlanes };
    let stored =
        encode(planes, DType::BF16, &gaussian_bf16(1 << 19)).0.len() as f64 / f64::from(1 << 20);
    assert!(stored < 0.6650, "bf16: {stored}");
    let stored =
        encode(planes, DType::F32, &gaussian_f32(1 << 18)).0.len() as f64 / f64::from(1 << 20);
    assert!(stored < 0.8335, "f32: {stored}");
}

#[test]
fn the_best_coding_is_found_by_trying() {
    let planes = Coding { codec: Codec::Entropy, filter: Filter::BytePlanes };
    let bf16 = gaussian_bf16(1 << 17);
    assert_eq!(choose(Choice::Auto, DType::BF16, &[&bf16]), (planes, 0));
    let (zstd, level) = choose(Choice::Zstd(5), DType::BF16, &[&bf16]);
    assert_eq!((zstd, level), (Coding { codec: Codec::Zstd, filter: Filter::BytePlanes }, 5));

    // Text repeats itself, which only Zstd and LZ4 see.
    let text: Vec<u8> =
        (0..20_000_u32).flat_map(|i| format!("token {} ", i % 700).into_bytes()).collect();
    assert_eq!(choose(Choice::Auto, DType::U8, &[&text]).0.codec, Codec::Zstd);
    assert_eq!(
        choose(Choice::Lz4, DType::U8, &[&text]).0,
        Coding { codec: Codec::Lz4, filter: Filter::None }
    );

    let noise = block(1, 100_000, 1);
    for choice in [Choice::Auto, Choice::Lz4, Choice::Zstd(3), Choice::Best] {
        assert_eq!(choose(choice, DType::U8, &[&noise]), (Coding::PLAIN, 0), "{choice:?}");
        assert_eq!(choose(choice, DType::BF16, &[]), (Coding::PLAIN, 0), "{choice:?}");
    }
}

#[test]
fn encoders_and_decoders_move_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<BlockEncoder>();
    is_send::<BlockDecoder>();
}

/// Blocks made from the documentation alone, or by the reference libraries: see
/// `fixtures/codec/make.py`.
#[test]
fn blocks_of_other_encoders_decode() {
    let blocks = [
        (
            "entropy_planes",
            Coding { codec: Codec::Entropy, filter: Filter::BytePlanes },
            DType::BF16,
        ),
        ("entropy", Coding { codec: Codec::Entropy, filter: Filter::None }, DType::U8),
        ("constant", Coding { codec: Codec::Entropy, filter: Filter::None }, DType::U8),
        ("lz4", Coding { codec: Codec::Lz4, filter: Filter::None }, DType::U8),
        ("zstd", Coding { codec: Codec::Zstd, filter: Filter::None }, DType::U8),
    ];
    for (name, coding, dtype) in blocks {
        let read = |kind: &str| {
            let path = locate::fixture(&format!("codec/{name}.{kind}"));
            std::fs::read(path).expect("a fixture of the repository")
        };
        let raw = read("raw");
        assert!(
            decode(coding, dtype, &read("block"), raw.len()).expect("a sound block") == raw,
            "{name}"
        );
    }
}
