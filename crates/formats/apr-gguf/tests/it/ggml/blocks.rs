//! Quantized blocks of every version. Expected values come from ggml's formulas of that time,
//! applied by hand.

use super::*;

/// Returns 16 bytes of nibbles: byte `j` has `j` below and `15 - j` above.
fn codes() -> Vec<u8> {
    (0..16).map(|at| at | (15 - at) << 4).collect()
}

/// Returns the codes of 32 elements, with their nibbles in pairs or in halves.
fn elements(halves: bool) -> Vec<f32> {
    let (low, high) = ((0..16_u8).map(f32::from), (0..16_u8).rev().map(f32::from));
    if halves {
        low.chain(high).collect()
    } else {
        low.zip(high).flat_map(|(low, high)| [low, high]).collect()
    }
}

fn quantized(
    magic: [u8; 4],
    version: Option<i32>,
    number: i32,
    dims: &[i32],
    block: &[u8],
) -> GgmlBuilder {
    llama(magic, version).tensor(GgmlTensor::new("layers.0.w", number, dims, block))
}

/// Containers whose blocks have f32 scales, and whether nibbles are in halves.
const OLD: [([u8; 4], Option<i32>, bool); 4] = [
    (*b"lmgg", None, false),
    (*b"fmgg", Some(1), false),
    (*b"tjgg", Some(1), false),
    (*b"tjgg", Some(2), true),
];

/// 1/3 is not an f16.
const SCALE: f32 = 1.0 / 3.0;

#[test]
fn blocks_with_f32_scales_are_read_as_f32_with_ggmls_values() {
    for (magic, version, halves) in OLD {
        let codes = [&SCALE.to_le_bytes()[..], &codes()].concat();
        let reader = open(quantized(magic, version, 2, &[32], &codes).build()).expect("q4_0");
        assert_eq!(reader.tensors()[2].dtype.name(), "f32");
        let expected: Vec<f32> = elements(halves).iter().map(|code| (code - 8.0) * SCALE).collect();
        assert_eq!(floats_of(&reader, 2), expected, "{version:?}");
        assert!(reader.tensor_slice(2).is_none());
        assert_eq!(reader.stored(2).range.len, 20);
        assert_eq!(reader.warnings().len(), 1);
        assert!(
            reader.warnings()[0].starts_with("1 tensors have the q4_0 layout of "),
            "{:?}",
            reader.warnings()
        );

        let with_minimum = [&SCALE.to_le_bytes()[..], &0.1_f32.to_le_bytes(), &codes[4..]].concat();
        let reader =
            open(quantized(magic, version, 3, &[32], &with_minimum).build()).expect("q4_1");
        let expected: Vec<f32> = elements(halves).iter().map(|code| code * SCALE + 0.1).collect();
        assert_eq!(floats_of(&reader, 2), expected, "{version:?}");

        let bytes: Vec<u8> = SCALE
            .to_le_bytes()
            .into_iter()
            .chain((0..32_i8).map(|at| (at - 16).cast_unsigned()))
            .collect();
        let reader = open(quantized(magic, version, 8, &[32], &bytes).build()).expect("q8_0");
        let expected: Vec<f32> = (0..32_i8).map(|at| f32::from(at - 16) * SCALE).collect();
        assert_eq!(floats_of(&reader, 2), expected, "{version:?}");
    }
}

#[test]
fn blocks_that_are_gone_are_read_as_f32() {
    let half_scale = [0, 0x38];
    let codes = codes();
    let expected = |at: usize| elements(false)[at];
    let reader = open(
        quantized(*b"tjgg", Some(1), 4, &[16], &[&half_scale[..], &codes[..8]].concat()).build(),
    )
    .unwrap();
    assert!(
        floats_of(&reader, 2)
            .into_iter()
            .enumerate()
            .all(|(at, value)| value == (expected(at) - 8.0) * 0.5)
    );
    let block = [&half_scale[..], &[0, 0x3c], &codes[..8]].concat();
    let reader = open(quantized(*b"tjgg", Some(1), 5, &[16], &block).build()).unwrap();
    assert!(
        floats_of(&reader, 2)
            .into_iter()
            .enumerate()
            .all(|(at, value)| value == expected(at) * 0.5 + 1.0)
    );
    let error = refused(quantized(*b"tjgg", Some(2), 5, &[16], &block).build());
    assert_eq!((error.code(), error.tensor()), (Code::Format, Some("layers.0.w")));
}

#[test]
fn five_bits_in_pairs_get_todays_order() {
    for (number, front, name) in [(6, 6, "q5_0"), (7, 8, "q5_1")] {
        let front: Vec<u8> = (1..=front).collect();
        let stored = [&front[..], &codes()].concat();
        // Elements in pairs are 0, 15, 1, 14, ...; today byte j has element j below and j + 16
        // above.
        let order = elements(false);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "nibbles")]
        let turned = (0..16).map(|at| order[at] as u8 | (order[at + 16] as u8) << 4);
        let turned: Vec<u8> = front.iter().copied().chain(turned).collect();
        for (magic, version, halves) in OLD {
            let reader =
                open(quantized(magic, version, number, &[32], &stored).build()).expect(name);
            assert_eq!(reader.tensors()[2].dtype.name(), name);
            assert_eq!(
                bytes_of(&reader, 2),
                if halves { &stored } else { &turned }[..],
                "{version:?}"
            );
            assert_eq!(reader.warnings(), [""; 0]);
        }
    }
}

#[test]
fn blocks_in_the_current_layout_are_read_unchanged() {
    for (number, dims, len, name) in [
        (2, [32, 2], 36, "q4_0"),
        (3, [32, 2], 40, "q4_1"),
        (6, [32, 2], 44, "q5_0"),
        (7, [32, 2], 48, "q5_1"),
        (8, [32, 2], 68, "q8_0"),
        (10, [256, 1], 84, "q2_k"),
        (11, [256, 1], 110, "q3_k"),
        (12, [256, 1], 144, "q4_k"),
        (13, [256, 1], 176, "q5_k"),
        (14, [256, 1], 210, "q6_k"),
    ] {
        let bytes: Vec<u8> = (0..len).collect();
        let llama = quantized(*b"tjgg", Some(3), number, &dims, &bytes);
        let whisper = GgmlBuilder::whisper().ftype(2002).tensor(GgmlTensor::new(
            "encoder.w",
            number,
            &dims,
            &bytes,
        ));
        for (file, at) in [(llama, 2), (whisper, 1)] {
            let reader = open(file.build()).expect(name);
            assert_eq!(reader.tensors()[at].dtype.name(), name);
            assert_eq!(bytes_of(&reader, at), bytes);
            assert_eq!(reader.tensor_slice(at), Some(&bytes[..]));
        }
    }
}

#[test]
fn the_version_of_blocks_is_in_the_thousands_of_ftype() {
    let block = [&SCALE.to_le_bytes()[..], &codes()].concat();
    let file = |ftype| {
        GgmlBuilder::whisper().ftype(ftype).tensor(GgmlTensor::new("encoder.w", 2, &[32], &block))
    };
    for (ftype, halves) in [(2, false), (1002, true)] {
        let reader = open(file(ftype).build()).expect("q4_0");
        assert_eq!(floats_of(&reader, 1)[1], (elements(halves)[1] - 8.0) * SCALE);
        assert_eq!(field(&reader, "ggml")["ftype"], 2);
        assert_eq!(field(&reader, "ggml")["quantization_version"], i32::from(halves));
    }
    let error = refused(file(3002).build());
    assert_eq!((error.code(), error.tensor()), (Code::Version, Some("encoder.w")));
}

#[test]
fn blocks_of_two_possible_layouts_are_refused() {
    let file =
        GgmlBuilder::gpt2().ftype(2).tensor(GgmlTensor::new("model/h0/w", 2, &[32], &[0; 20]));
    let error = refused(file.build());
    assert_eq!((error.code(), error.tensor()), (Code::Version, Some("model/h0/w")));
    assert!(error.message().contains("convert the original model again"), "{error}");
    let file = GgmlBuilder::rwkv(101).tensor(GgmlTensor::new("emb.weight", 2, &[32], &[0; 20]));
    assert_eq!(refused(file.build()).code(), Code::Version);
}

#[test]
fn any_range_of_a_decoded_tensor_can_be_read() {
    let block = |at: u8| [&f32::from(at).to_le_bytes()[..], &codes()].concat();
    let blocks: Vec<u8> = (0..6).flat_map(block).collect();
    let reader = open(quantized(*b"tjgg", Some(1), 2, &[64, 3], &blocks).build()).expect("q4_0");
    let whole = bytes_of(&reader, 2);
    assert_eq!(whole.len(), 6 * 128);
    for offset in (0..whole.len()).step_by(7) {
        for len in [0, 1, 127, 128, 129, 400].into_iter().filter(|len| offset + len <= whole.len())
        {
            let mut piece = vec![0; len];
            reader.read_tensor(2, offset as u64, &mut piece).expect("inside");
            assert_eq!(piece, whole[offset..offset + len]);
        }
    }
    let error = reader.read_tensor(2, 767, &mut [0; 2]).expect_err("past the end");
    assert_eq!((error.code(), error.tensor()), (Code::Corrupt, Some("layers.0.w")));
}

#[test]
fn a_row_must_hold_whole_blocks() {
    for version in [1, 3] {
        let error = refused(quantized(*b"tjgg", Some(version), 2, &[16, 2], &[0; 20]).build());
        assert_eq!((error.code(), error.tensor()), (Code::Format, Some("layers.0.w")));
    }
}
