//! Layouts that other libraries load: what is written is read as the values that the report is of,
//! and no value is further from its own than the format makes it.

mod stated;

use apr_core::{CheckpointReader, DType, Limits};
use apr_quantize::{Chosen, Laid, Layout, Quality, Rounded, Scheme};
use apr_tensor::cast::cast_values;
use apr_tensor::drift::Drift;
use apr_tensor::element::widen_f32;
use apr_testkit::FolderInMemory;
use apr_testkit::safetensors::{self, SafeTensor};
use apr_view::Coded;
use serde_json::{Value, json};

const SCHEMES: [Scheme; 9] = [
    Scheme::Fp8,
    Scheme::W8A8,
    Scheme::W4A16,
    Scheme::W4A16Asym,
    Scheme::MXFP4,
    Scheme::NVFP4,
    Scheme::Mlx4,
    Scheme::Mlx6,
    Scheme::Mlx8,
];
const DTYPES: [(&str, DType); 3] =
    [("F32", DType::F32), ("F16", DType::F16), ("BF16", DType::BF16)];

const NAME: &str = "model.layers.0.mlp.up_proj.weight";
const COLUMNS: usize = 256;

/// Numbers by xorshift: the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// Returns a number from -1 to 1.
    fn unit(&mut self) -> f32 {
        let number = u16::try_from(self.next() % 65_536).expect("16 bits");
        f32::from(number) / 32_768.0 - 1.0
    }
}

/// Rows of every kind that a weight may have.
fn rows(dtype: DType, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed | 1);
    let tiny = if dtype == DType::F16 { 6e-7 } else { 3e-39 };
    let mut row = |scale: f32| (0..COLUMNS).map(|_| random.unit() * scale).collect::<Vec<f32>>();
    let [plain, small, mut spiked, mut subnormal, large] =
        [1.0, 0.02, 0.02, tiny, 900.0].map(&mut row);
    spiked[77] = 1000.0;
    subnormal[0] = tiny;
    let positive: Vec<f32> = row(1.0).iter().map(|value| value.abs() + 0.5).collect();
    let negative: Vec<f32> = positive.iter().map(|value| -value).collect();
    let steep = row(1.0).into_iter().zip(0_i32..).map(|(value, at)| value * 0.97_f32.powi(at));
    let mut lonely = vec![0.0; COLUMNS];
    lonely[200] = -0.25;
    let steep = steep.collect();
    let zeros = vec![0.0; COLUMNS];
    let rows = [plain, zeros, small, spiked, subnormal, large, positive, negative, steep, lonely];
    rows.map(|row| in_dtype(&row, dtype)).into()
}

/// Values as a dtype has them.
fn in_dtype(values: &[f32], dtype: DType) -> Vec<f32> {
    let mut rounded = Vec::new();
    widen_f32(dtype, &bytes_in(values, dtype), &mut rounded);
    rounded
}

fn bytes_in(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut bytes = Vec::new();
    cast_values(values, dtype, &mut bytes);
    bytes
}

/// A tensor of a model.
fn tensor(name: &str, (dtype, of): (&str, DType), rows: &[Vec<f32>]) -> SafeTensor {
    SafeTensor {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        shape: vec![rows.len() as u64, rows[0].len() as u64],
        bytes: bytes_in(&rows.concat(), of),
    }
}

fn model(tensors: &[SafeTensor], config: &Value) -> Box<dyn CheckpointReader> {
    let folder = FolderInMemory::from([
        ("config.json", config.to_string().into_bytes()),
        ("model.safetensors", safetensors::file(None, tensors)),
    ]);
    Box::new(apr_registry::open_folder(&folder, &Limits::default()).expect("a model"))
}

/// A model of one weight, laid out.
fn laid(scheme: Scheme, dtype: (&str, DType), rows: &[Vec<f32>]) -> Laid<'static> {
    let base = model(&[tensor(NAME, dtype, rows)], &json!({ "model_type": "llama" }));
    let layout = Layout::of(scheme).expect("a layout");
    let mut chosen = Chosen::default();
    chosen.weights = vec![Some(layout)];
    Laid::new(base.into(), layout, chosen).expect("a layout")
}

/// All bytes of a tensor, read in pieces of this length.
fn bytes_of(reader: &dyn CheckpointReader, tensor: usize, piece: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("a length");
    let mut bytes = vec![0; usize::try_from(len).expect("small")];
    for (number, bytes) in bytes.chunks_mut(piece).enumerate() {
        reader.read_tensor(tensor, (number * piece) as u64, bytes).expect("bytes");
    }
    bytes
}

/// A part, by the end of its name.
fn part(laid: &Laid<'_>, end: &str) -> Vec<u8> {
    let position = laid.tensors().iter().position(|info| info.name.ends_with(end));
    bytes_of(laid, position.expect("a part"), usize::MAX)
}

/// The rows that a reader of codes and scales sees.
fn decoded(laid: Laid<'static>) -> Vec<Vec<f32>> {
    let model = Coded::over(Box::new(laid));
    let [info] = model.tensors() else { panic!("one weight: {:?}", model.tensors()) };
    assert_eq!(info.name, NAME);
    let mut values = Vec::new();
    widen_f32(info.dtype, &bytes_of(&*model, 0, usize::MAX), &mut values);
    values.chunks(COLUMNS).map(<[f32]>::to_vec).collect()
}

#[test]
fn written_layouts_decode_to_the_reported_values() {
    for (scheme, dtype) in SCHEMES.into_iter().flat_map(|scheme| DTYPES.map(|of| (scheme, of))) {
        for seed in 1..4 {
            let rows = rows(dtype.1, seed);
            let decoded = decoded(laid(scheme, dtype, &rows));
            let mut drift = Drift::default();
            for (row, decoded) in rows.iter().zip(&decoded) {
                assert!(decoded.iter().all(|value| value.is_finite()), "{scheme:?} {dtype:?}");
                drift.merge(&Drift::of(row, decoded));
            }
            // Neither whole rows nor whole elements.
            for piece in [usize::MAX, 97] {
                let laid = laid(scheme, dtype, &rows);
                for tensor in 0..laid.tensors().len() {
                    bytes_of(&laid, tensor, piece);
                }
                let report = laid.errors().report().expect("a report");
                let [reported] = &report.tensors[..] else { panic!("one weight") };
                assert_eq!(reported.quality, Quality::from(&drift), "{scheme:?} {dtype:?} {piece}");
            }
        }
    }
}

#[test]
fn values_that_were_rounded_are_stored_exactly() {
    for (scheme, group) in [
        (Scheme::Fp8, COLUMNS),
        (Scheme::W8A8, COLUMNS),
        (Scheme::W4A16, 128),
        (Scheme::W4A16Asym, 128),
        (Scheme::MXFP4, 32),
        (Scheme::Gptq4, 128),
        (Scheme::NVFP4, 16),
    ] {
        let rounding = Layout::of(scheme).expect("a layout").rounding(DType::F32, 448.0);
        let (mut random, dtype) = (Random(99), rounding.dtype());
        // Rows whose scale is that of other rows: codes are chosen by more than the values.
        let rows: Vec<Vec<f32>> = (0..32)
            .flat_map(|at| rows(DType::F32, 2 * at + 1))
            .map(|row| {
                let shrunk = (random.unit() + 1.1) / 2.0;
                let groups = row.chunks(group).flat_map(|values| {
                    let scale = rounding.scale(values, None);
                    values.iter().map(move |value| rounding.round(value * shrunk, scale))
                });
                in_dtype(&groups.collect::<Vec<_>>(), dtype)
            })
            .filter(|row: &Vec<f32>| row.iter().all(|value| value.is_finite()))
            .collect();
        let named = if dtype == DType::F16 { ("F16", dtype) } else { ("BF16", dtype) };
        for dtype in [named, ("F32", DType::F32)] {
            let base = model(&[tensor(NAME, dtype, &rows)], &json!({ "model_type": "llama" }));
            let mut chosen = Chosen::default();
            let layout = Layout::of(scheme).expect("a layout");
            chosen.weights = vec![Some(layout)];
            let drift = Drift::of(&[1.0, 2.0], &[1.0, 1.5]);
            chosen.rounded.insert(0, Rounded { rounding, drift });
            let layout = Layout::of(scheme).expect("a layout");
            let laid = Laid::new(base.into(), layout, chosen).expect("a layout");
            let errors = laid.errors();
            assert!(decoded(laid) == rows, "{scheme:?} {dtype:?}");
            let report = errors.report().expect("a report");
            assert_eq!(report.total, Quality::from(&drift));
        }
    }
}

#[test]
fn sums_of_products_and_biases_that_were_rounded_are_stored_exactly() {
    for (scheme, named) in [Scheme::Mlx4, Scheme::Mlx6, Scheme::Mlx8]
        .into_iter()
        .flat_map(|scheme| DTYPES.map(|named| (scheme, named)))
    {
        let layout = Layout::of(scheme).expect("a layout");
        let (rounding, mut random) = (layout.rounding(named.1, 1.0), Random(77));
        let (largest, rows): (Vec<f32>, Vec<Vec<f32>>) = (0..32)
            .flat_map(|at| rows(named.1, 2 * at + 1))
            .map(|row| {
                let shrunk = (random.unit() + 1.1) / 2.0;
                let groups = row.chunks(64).flat_map(|values| {
                    let scale = rounding.scale(values, None);
                    values.iter().map(move |value| rounding.round(value * shrunk, scale))
                });
                let largest = row.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
                (largest, groups.collect::<Vec<_>>())
            })
            .filter(|(_, row)| row.iter().all(|value| value.is_finite()))
            .unzip();
        assert!(rows.len() > 300, "{scheme:?} {named:?}: {}", rows.len());
        let base = model(&[tensor(NAME, DTYPES[0], &rows)], &json!({ "model_type": "llama" }));
        let mut chosen = Chosen::default();
        chosen.weights = vec![Some(layout)];
        let drift = Drift::of(&[1.0, 2.0], &[1.0, 1.5]);
        chosen.rounded.insert(0, Rounded { rounding, drift });
        let laid = Laid::new(base.into(), layout, chosen).expect("a layout");
        // Reading fails where codes, scales and biases are other values. Libraries round products
        // and sums.
        for ((row, decoded), largest) in rows.iter().zip(decoded(laid)).zip(largest) {
            let digits = match named.1 {
                DType::F32 => 0.0,
                DType::F16 => 1.0 / 512.0,
                _ => 1.0 / 64.0,
            };
            for (value, decoded) in row.iter().zip(decoded) {
                let bound = largest * digits + 1e-7 * f32::from(u8::from(digits > 0.0));
                assert!(
                    (value - decoded).abs() <= bound,
                    "{scheme:?} {named:?}: {value} {decoded}"
                );
            }
        }
    }
}

/// Returns the largest change by rounding to `bf16` twice: once for a scale, once for a product.
fn of_rounding(value: f32) -> f32 {
    value.abs() / 128.0
}

/// Returns the maximum distance between a value and its decoded value, for a layout with this
/// scale.
fn bound(scheme: Scheme, value: f32, scale: f32) -> f32 {
    let size = value.abs();
    let (near, most) = match scheme {
        // Four bits of a significand, or half a step of the smallest.
        Scheme::Fp8 => ((size / 16.0).max(scale / 1024.0), 448.0),
        Scheme::W8A8 => (scale / 2.0, 127.0),
        Scheme::W4A16 => (scale / 2.0, 7.0),
        // Half a step is a fifth of the number in the middle of it, at most.
        Scheme::NVFP4 | Scheme::MXFP4 => ((size / 5.0).max(scale / 4.0), 6.0),
        _ => unreachable!("{scheme:?} has a bias"),
    };
    near.max(size - most * scale) + of_rounding(value)
}

#[test]
fn values_are_as_near_as_the_format_has_them() {
    // What zero points do is bounded below.
    let bounded = SCHEMES.into_iter().filter(|scheme| *scheme != Scheme::W4A16Asym);
    for (scheme, dtype) in bounded.flat_map(|scheme| DTYPES.map(|of| (scheme, of))) {
        let rows = rows(dtype.1, 7);
        let (scales, group) = scales_of(scheme, &laid(scheme, dtype, &rows), dtype.1);
        let values = rows.concat();
        let read = decoded(laid(scheme, dtype, &rows)).concat();
        for (at, (value, read)) in values.iter().zip(&read).enumerate() {
            let (scale, bias) = scales[at / group];
            let bound = match bias {
                None => bound(scheme, *value, scale),
                // The edge is a code exactly, for which the other may be a whole step outside; and
                // a scale is rounded, of which there are as many as a code says.
                Some(bias) => {
                    let codes = (bias.abs() + value.abs()) / scale.abs();
                    scale.abs() * 1.5 + of_rounding(codes.min(255.0) * scale + bias.abs()) + 1.6e-5
                }
            };
            // Scales that are no normal numbers have few digits, or one.
            let is_normal = scale.abs() > 1e-36 && (bias.is_none() || scale.abs() > 1e-4);
            let error = (value - read).abs();
            let is_near = error <= bound || !is_normal && error <= 2.0 * value.abs() + bound;
            assert!(is_near, "{scheme:?} {dtype:?}: {value} is read as {read}, scale {scale}");
        }
    }
}

/// Returns the scale of each group, with the bias if there is one, and the columns of a group.
fn scales_of(scheme: Scheme, laid: &Laid<'_>, dtype: DType) -> (Vec<(f32, Option<f32>)>, usize) {
    let of = |end: &str, dtype: DType| {
        let mut values = Vec::new();
        widen_f32(dtype, &part(laid, end), &mut values);
        values
    };
    let plain = |scales: Vec<f32>| scales.into_iter().map(|scale| (scale, None)).collect();
    match scheme {
        Scheme::Fp8 | Scheme::W8A8 => (plain(of("weight_scale", DType::BF16)), COLUMNS),
        Scheme::W4A16 | Scheme::W4A16Asym => (plain(of("weight_scale", DType::BF16)), 128),
        Scheme::MXFP4 => {
            let exponents = part(laid, "weight_scale").into_iter();
            (plain(exponents.map(|bits| 2_f32.powi(i32::from(bits) - 127)).collect()), 32)
        }
        Scheme::NVFP4 => {
            let global = of("weight_global_scale", DType::F32)[0];
            let scales = of("weight_scale", DType::F8_E4M3);
            (plain(scales.iter().map(|scale| scale / global).collect()), 16)
        }
        _ => {
            let biases = of("biases", dtype).into_iter().map(Some);
            (of("scales", dtype).into_iter().zip(biases).collect(), 64)
        }
    }
}

#[test]
fn a_searched_scale_is_at_least_as_good_as_the_scale_of_the_largest_value() {
    for dtype in DTYPES {
        for seed in 1..6 {
            let rows = rows(dtype.1, seed);
            let laid = laid(Scheme::W4A16, dtype, &rows);
            let (scales, group) = scales_of(Scheme::W4A16, &laid, dtype.1);
            let codes = part(&laid, "weight_packed");
            let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
            let codes: Vec<f32> = codes.map(|code| f32::from(code) - 8.0).collect();
            let values = rows.concat();
            for ((values, codes), (scale, _)) in
                values.chunks(group).zip(codes.chunks(group)).zip(scales)
            {
                let cubes = |code: &dyn Fn(usize) -> f32, scale: f32| -> f64 {
                    let of = |(at, value): (usize, &f32)| f64::from(value - code(at) * scale);
                    values.iter().enumerate().map(of).map(|error| error.abs().powi(3)).sum()
                };
                let largest = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let plain = in_dtype(&[largest / 7.5], DType::BF16)[0];
                if plain > 0.0 {
                    let nearest =
                        |at: usize| (values[at] / plain).round_ties_even().clamp(-8.0, 7.0);
                    let (found, plain) = (cubes(&|at| codes[at], scale), cubes(&nearest, plain));
                    assert!(found <= plain, "{dtype:?}: {found} is more than {plain}");
                }
            }
        }
    }
}

#[test]
fn zero_points_are_at_least_as_good_as_in_compressed_tensors() {
    for seed in 1..6 {
        let rows = rows(DType::F32, seed);
        let laid = laid(Scheme::W4A16Asym, DTYPES[0], &rows);
        let (scales, group) = scales_of(Scheme::W4A16Asym, &laid, DType::F32);
        let codes = part(&laid, "weight_packed");
        let codes = codes.iter().flat_map(|byte| [byte & 15, byte >> 4]);
        let codes: Vec<f32> = codes.map(|code| f32::from(code) - 8.0).collect();
        let decoded = decoded(laid).concat();
        let found = codes.chunks(group).zip(decoded.chunks(group)).zip(scales);
        for (values, ((codes, decoded), (own, _))) in rows.concat().chunks(group).zip(found) {
            // `calculate_qparams` of compressed-tensors, of values that have no outliers.
            let low = values.iter().fold(0.0_f32, |low, value| low.min(*value));
            let high = values.iter().fold(0.0_f32, |high, value| high.max(*value));
            if high - low < 1e-30 {
                continue;
            }
            let scale = in_dtype(&[(high - low) / 15.0], DType::BF16)[0];
            let zero = (-8.0 - (low / scale).round_ties_even()).clamp(-8.0, 7.0);
            let nearest = values.iter().map(|value| {
                let code = ((value / scale).round_ties_even() + zero).clamp(-8.0, 7.0);
                (code - zero) * scale
            });
            let cubes = |others: &mut dyn Iterator<Item = f32>| -> f64 {
                let errors = values.iter().zip(others).map(|(a, b)| f64::from(a - b).abs());
                errors.map(|error| error.powi(3)).sum()
            };
            let plain = cubes(&mut nearest.collect::<Vec<_>>().into_iter());
            // The scale is chosen by products that are not yet rounded to bf16; the code of zero
            // follows from a value and its code.
            let zero = codes[0] - (decoded[0] / own).round_ties_even();
            let found = cubes(&mut codes.iter().map(|code| (code - zero) * own));
            assert!(found <= plain, "{found} is more than {plain}");
        }
    }
}

#[test]
fn values_that_no_code_can_hold_are_refused_by_name() {
    for (scheme, value) in SCHEMES
        .into_iter()
        .flat_map(|scheme| [f32::NAN, f32::INFINITY, f32::MAX].map(|value| (scheme, value)))
        // The search finds a scale with which 4 bits hold even that.
        .filter(|(scheme, value)| {
            ![Scheme::W4A16, Scheme::MXFP4].contains(scheme) || !(*value).is_finite()
        })
    {
        let mut rows = vec![vec![0.5; COLUMNS]; 2];
        (rows[1][3], rows[1][4]) = (value, -value);
        let laid = laid(scheme, DTYPES[0], &rows);
        let mut error = None;
        for tensor in 0..laid.tensors().len() {
            let len = laid.tensors()[tensor].byte_len().expect("a length");
            let mut bytes = vec![0; usize::try_from(len).expect("small")];
            error = error.or(laid.read_tensor(tensor, 0, &mut bytes).err());
        }
        match error {
            Some(error) => {
                assert_eq!((error.code().id(), error.tensor()), ("E001", Some(NAME)), "{scheme:?}");
            }
            // The largest number may be one with such a scale.
            None => {
                assert!(value.is_finite(), "{scheme:?} holds {value}");
                assert!(decoded(laid).concat().iter().all(|value| value.is_finite()));
            }
        }
    }
}

/// A scheme, and the bytes that its parts have, in hexadecimal.
type Known = (Scheme, usize, &'static [(&'static str, &'static str)]);

/// The bytes that a script of NumPy has for a row, by the formulas of the libraries: the remainders
/// of multiples of 37 by 101, less 50, in sixteenths.
#[test]
fn a_known_row_has_known_bytes() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    #[rustfmt::skip]
    let known: [Known; 7] = [
        (Scheme::Fp8, 16, &[
            (".weight", "feef75fbdd7af8687cf372fdeb77fa00"), (".weight_scale", "e53b"),
        ]),
        (Scheme::W8A8, 16, &[
            (".weight", "81df3d9af857b41270cd2b88e745a200"), (".weight_scale", "c93c"),
        ]),
        (Scheme::W4A16, 128, &[
            (".weight_packed", concat!(
                "602cd8935f1bc6824efab5713de8a46f2cd7935f1ac6824ef9b5713ce8a46f2b",
                "d7935e0ac6824df9b5712ce8a46f1bd7934e0ac6823df9b5612ce8a45f1bd783")),
            (".weight_scale", "d13e"),
            (".weight_shape", "01000000000000008000000000000000"),
        ]),
        (Scheme::NVFP4, 16, &[
            (".weight_packed", "bfe5692ec7f45a0e"), (".weight_scale", "7e"),
            (".weight_global_scale", "3d0a5744"),
        ]),
        (Scheme::Mlx4, 64, &[
            (".weight", "afe4387db1f54a8ec2065b9fd3286ca0f4397db1f54a8ec2175b9fe3286ca0f4"),
            (".scales", "c8be"), (".biases", "4840"),
        ]),
        (Scheme::Mlx6, 64, &[
            (".weight", concat!(
                "3f1ae9a23273445bf9e6838348ac09ebc4938ded192f06a4",
                "913e2e3447b4d67f3e7898c8dac0527dd9d8df0163812aed")),
            (".scales", "c8bd"), (".biases", "4840"),
        ]),
        (Scheme::Mlx8, 64, &[
            (".weight", concat!(
                "ffa143e68829cd6e0fb354f89a3bdf8021c56608ac4df19233d7781abd5f00a4",
                "45e98a2ccf7112b657fb9c3de18324c8690aae4ff39436da7b1cc06103a648ec")),
            (".scales", "c8bc"), (".biases", "4840"),
        ]),
    ];
    for (scheme, columns, parts) in known {
        let value = |at: usize| {
            let remainder = u8::try_from(at * 37 % 101).expect("small");
            (f32::from(remainder) - 50.0) / 16.0
        };
        let row: Vec<f32> = (0..columns).map(value).collect();
        let laid = laid(scheme, DTYPES[2], &[row]);
        assert_eq!(laid.tensors().len(), parts.len());
        for (end, bytes) in parts {
            assert_eq!(hex(&part(&laid, &format!("up_proj{end}"))), *bytes, "{scheme:?} {end}");
        }
    }
}
