use apr_core::{CheckpointReader, DType, Limits, Pipeline, Result, Serial};
use apr_tensor::block;
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;

use super::chips::Chips;
use super::correlation::Correlation;
use super::frame::Frame;
use super::*;

type Model = Box<dyn CheckpointReader>;

const ID: &str = "buyer-0017";
/// Strong enough for models as small as these.
const STRENGTH: f64 = 0.1;

/// SplitMix64, and numbers with nearly normal distribution.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Four uniform numbers have a deviation of the square root of a third.
    fn normal(&mut self) -> f32 {
        let sum: f32 =
            (0..4).map(|_| (self.next() >> 40) as f32 / (1_u64 << 24) as f32 - 0.5).sum();
        sum * 3.0_f32.sqrt()
    }
}

/// A safetensors file of these tensors.
fn file(tensors: &[(&str, DType, Vec<u64>, Vec<u8>)]) -> Model {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend_from_slice(bytes);
        let dtype = dtype.name().to_uppercase();
        let entry = serde_json::json!({
            "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()],
        });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::from(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    apr_registry::open(bytes, "model.safetensors", &Limits::default()).expect("a well-made file")
}

fn normals(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.normal() * 0.02).collect()
}

fn stored(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    cast_values(values, dtype, &mut bytes);
    bytes
}

/// Two matrices that carry, one of them with an odd length; a norm and a small matrix that do not.
fn model(dtype: DType) -> Model {
    let tensor = |name: &'static str, shape: [usize; 2], seed| {
        let bytes = stored(dtype, &normals(shape[0] * shape[1], seed));
        (name, dtype, shape.map(|dim| dim as u64).to_vec(), bytes)
    };
    file(&[
        tensor("a.weight", [512, 640], 1),
        tensor("b.weight", [331, 320], 2),
        ("norm.weight", dtype, vec![8192], stored(dtype, &normals(8192, 3))),
        tensor("small.weight", [32, 32], 4),
    ])
}

fn key(secret: &str) -> MarkKey {
    MarkKey::from_secret(secret.as_bytes()).expect("long enough")
}

fn owner() -> MarkKey {
    key("the owner's secret")
}

fn survey(reader: &dyn CheckpointReader) -> Carriers {
    Carriers::survey(reader, None, &Serial, &()).expect("readable")
}

fn marked<'a>(base: &'a dyn CheckpointReader, id: &str) -> Marked<'a> {
    Marked::new(base, &survey(base), &owner(), id, Some(STRENGTH)).expect("a fitting mark")
}

fn look(reader: &dyn CheckpointReader, key: &MarkKey, id: Option<&str>) -> DetectReport {
    detect(reader, &survey(reader), key, id, &Serial, &()).expect("readable")
}

fn bytes_of(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("a length");
    let mut bytes = vec![0; len.try_into().expect("small")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("readable");
    bytes
}

/// The model with every matrix changed, as single floats.
fn altered(reader: &dyn CheckpointReader, mut change: impl FnMut(&mut Vec<f32>, usize)) -> Model {
    let tensors: Vec<_> = reader
        .tensors()
        .iter()
        .enumerate()
        .map(|(at, info)| {
            let mut values = Vec::new();
            widen_f32(info.dtype, &bytes_of(reader, at), &mut values);
            if let &[_, row_len] = info.shape.dims() {
                change(&mut values, row_len.try_into().expect("small"));
            }
            (
                info.name.as_str(),
                DType::F32,
                info.shape.dims().to_vec(),
                stored(DType::F32, &values),
            )
        })
        .collect();
    file(&tensors)
}

fn through(dtype: DType) -> impl FnMut(&mut Vec<f32>, usize) {
    move |values, row_len| {
        if dtype.is_quantized() {
            let mut blocks = Vec::new();
            block::quantize(dtype, values, row_len, None, &mut blocks);
            block::dequantize(dtype, &blocks, row_len, values);
        } else {
            widen_f32(dtype, &stored(dtype, &values.clone()), values);
        }
    }
}

#[test]
fn ids_of_every_length_are_read_without_being_known() {
    let base = model(DType::F32);
    for len in [1, 12, 13, 28, 29, MAX_ID] {
        let id = "Käufer".chars().cycle().take(len.min(52)).collect::<String>();
        let id: String = id
            .chars()
            .scan(0, |bytes, c| {
                *bytes += c.len_utf8();
                (*bytes <= len).then_some(c)
            })
            .collect();
        let marked =
            Marked::new(&*base, &survey(&*base), &owner(), &id, Some(0.2)).expect("a fitting mark");
        let report = look(&marked, &owner(), None);
        assert_eq!((report.id.as_deref(), report.detected), (Some(id.as_str()), true));
        assert_eq!(report.symbols.len(), marked.report().frame);
        let expected = marked.report().expected_z;
        assert!(
            (report.z / expected - 1.0).abs() < 0.1,
            "{} deviations, {expected} were to be expected",
            report.z
        );
        assert!((report.strength / 0.2 - 1.0).abs() < 0.1, "{}", report.strength);
    }
}

#[test]
fn other_keys_other_ids_and_unmarked_models_are_not_detected() {
    let base = model(DType::F32);
    let marked = marked(&*base, ID);
    let report = look(&marked, &key("somebody else's secret"), None);
    assert!(!report.detected && report.id.is_none(), "{report:?}");
    assert!(!look(&*base, &owner(), None).detected);
    assert!(!look(&*base, &owner(), Some(ID)).detected);
    let other = look(&marked, &owner(), Some("buyer-0018"));
    assert!(!other.detected && other.id.as_deref() == Some(ID), "{other:?}");
    assert!(look(&marked, &owner(), Some(ID)).detected);
}

#[test]
fn the_correlation_under_wrong_keys_has_the_deviation_it_is_measured_in() {
    let base = model(DType::F32);
    let marked = marked(&*base, ID);
    let carriers = survey(&marked);
    let tensors: Vec<(&Carrier, Vec<f32>)> = carriers
        .list()
        .iter()
        .map(|carrier| {
            let mut values = Vec::new();
            widen_f32(DType::F32, &bytes_of(&marked, carrier.tensor), &mut values);
            carrier.normalize(&mut values);
            (carrier, values)
        })
        .collect();
    let keys = 400;
    let scores: Vec<f64> = (0..keys)
        .map(|at| {
            let key = key(&format!("random key number {at}"));
            let mut correlation = Correlation::default();
            for (carrier, values) in &tensors {
                correlation.add(&mut Chips::new(&key, &carrier.name), 0, values);
            }
            let reading = correlation.read(&key);
            assert!(
                reading.id.is_none() && reading.ln_chance > MAX_CHANCE.ln(),
                "key {at}: {reading:?}"
            );
            correlation.score(&Frame::new(&key, ID).expect("an id"))
        })
        .collect();
    let mean = scores.iter().sum::<f64>() / f64::from(keys);
    let variance = scores.iter().map(|z| z * z).sum::<f64>() / f64::from(keys);
    // Four standard errors of either.
    assert!(mean.abs() < 4.0 / f64::from(keys).sqrt(), "{mean}");
    assert!((variance - 1.0).abs() < 4.0 * (2.0 / f64::from(keys)).sqrt(), "{variance}");
}

#[test]
fn the_mark_survives_precision_quantization_pruning_and_noise() {
    let base = model(DType::F32);
    let marked = marked(&*base, ID);
    for dtype in [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0] {
        let report = look(&*altered(&marked, through(dtype)), &owner(), None);
        assert_eq!(report.id.as_deref(), Some(ID), "{dtype}: {report:?}");
    }
    let pruned = altered(&marked, |values, _| {
        let mut sizes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
        sizes.sort_by(f32::total_cmp);
        let threshold = sizes[sizes.len() * 3 / 10];
        values.iter_mut().filter(|value| value.abs() < threshold).for_each(|value| *value = 0.0);
    });
    assert_eq!(look(&*pruned, &owner(), None).id.as_deref(), Some(ID));
    for size in [0.01, 0.05, 0.5] {
        let mut random = Random(99);
        let noisy = altered(&marked, |values, _| {
            values
                .iter_mut()
                .for_each(|value| *value += 0.02 / 3.0_f32.sqrt() * size * random.normal());
        });
        assert_eq!(look(&*noisy, &owner(), None).id.as_deref(), Some(ID), "noise of {size}");
    }
}

#[test]
fn a_shift_below_the_spacing_of_16_bit_floats_is_there_on_average() {
    for dtype in [DType::BF16, DType::F16] {
        // Values of one binade, whose spacing is much wider than the shift.
        let mut random = Random(7);
        let values: Vec<f32> = (0..1 << 20)
            .map(|_| {
                let value = 1.0 + (random.next() >> 40) as f32 / (1 << 24) as f32;
                if random.next() & 1 == 0 { value } else { -value }
            })
            .collect();
        let base = file(&[("w", dtype, vec![1024, 1024], stored(dtype, &values))]);
        // A quarter of the spacing of bf16 and less than twice that of f16, and one eighth of that.
        for strength in [0.00125, 0.00016] {
            let marked = Marked::new(&*base, &survey(&*base), &owner(), ID, Some(strength))
                .expect("a fitting mark");
            let before = look(&*base, &owner(), Some(ID));
            let after = look(&marked, &owner(), Some(ID));
            let gain = (after.z - before.z) / marked.report().expected_z;
            // The rounding's own noise is spacing / sqrt(weights), and weighs more the smaller the
            // shift is.
            let noise = match dtype {
                DType::BF16 => 0.0033,
                _ => 0.00042,
            } / strength
                / 1024.0
                * 5.0;
            assert!(
                (gain - 1.0).abs() < 0.02 + noise,
                "{dtype}: {gain} of a strength of {strength}"
            );
        }
    }
}

#[test]
fn tensors_that_are_not_carriers_and_zeros_are_unchanged() {
    let mut values = normals(1 << 16, 5);
    values.iter_mut().step_by(3).for_each(|value| *value = 0.0);
    values[1] = f32::NAN;
    let zeros = file(&[("w", DType::F32, vec![256, 256], stored(DType::F32, &values))]);
    // Infinities leave a tensor without a deviation.
    let carriers = survey(&*zeros);
    assert_eq!(
        (carriers.list().len(), carriers.weights()),
        (1, (1 << 16) - (1_u64 << 16).div_ceil(3))
    );
    let marked_zeros = marked(&*zeros, ID);
    let mut after = Vec::new();
    widen_f32(DType::F32, &bytes_of(&marked_zeros, 0), &mut after);
    assert!(values.iter().zip(&after).all(|(before, after)| (*before == 0.0) == (*after == 0.0)));
    assert!(after[1].is_nan());

    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        let base = if dtype == DType::F64 {
            let wide = |value: f32| f64::from(value).to_le_bytes();
            let bytes = normals(1 << 16, 1).into_iter().flat_map(wide).collect();
            file(&[
                ("a.weight", dtype, vec![256, 256], bytes),
                ("norm", dtype, vec![2], vec![7; 16]),
            ])
        } else {
            model(dtype)
        };
        let marked = marked(&*base, ID);
        for (at, info) in base.tensors().iter().enumerate() {
            let carries = ["a.weight", "b.weight"].contains(&info.name.as_str());
            assert_eq!(
                bytes_of(&*base, at) != bytes_of(&marked, at),
                carries,
                "{dtype} {}",
                info.name
            );
            assert_eq!(
                marked.tensor_slice(at).is_none(),
                carries || base.tensor_slice(at).is_none()
            );
        }
        assert_eq!(
            look(&marked, &owner(), Some(ID)).detected,
            dtype != DType::F64 || STRENGTH * 256.0 > 6.5,
            "{dtype}"
        );
    }
}

#[test]
fn any_range_reads_the_same_bytes() {
    for dtype in [DType::F32, DType::BF16] {
        let base = model(dtype);
        let marked = marked(&*base, ID);
        let whole = bytes_of(&marked, 1);
        let mut random = Random(11);
        for _ in 0..300 {
            let start = usize::try_from(random.next() % whole.len() as u64).expect("small");
            let len = usize::try_from(random.next() % 3000).expect("small");
            let end = (start + len).min(whole.len());
            let mut part = vec![0; end - start];
            marked.read_tensor(1, start as u64, &mut part).expect("within the tensor");
            assert_eq!(part, whole[start..end], "{dtype} {start}..{end}");
        }
        assert!(marked.read_tensor(1, whole.len() as u64 - 3, &mut [0; 8]).is_err());
    }
}

/// Pipeline that runs all tasks at the same time.
struct Crowd;

impl Pipeline for Crowd {
    fn run<S: Default + Send>(
        &self,
        tasks: usize,
        produce: impl Fn(usize, &mut S) -> Result<()> + Sync,
        mut consume: impl FnMut(usize, &mut S) -> Result<()>,
    ) -> Result<()> {
        let produce = &produce;
        let slots: Vec<(S, Result<()>)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..tasks)
                .map(|task| {
                    scope.spawn(move || {
                        let mut slot = S::default();
                        let outcome = produce(task, &mut slot);
                        (slot, outcome)
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        for (task, (mut slot, outcome)) in slots.into_iter().enumerate() {
            outcome?;
            consume(task, &mut slot)?;
        }
        Ok(())
    }
}

#[test]
fn threads_change_no_bit() {
    let base = model(DType::F32);
    let marked = marked(&*base, ID);
    let serial = look(&marked, &owner(), None);
    let carriers = Carriers::survey(&marked, None, &Crowd, &()).expect("readable");
    assert_eq!(carriers, survey(&marked));
    let crowd = detect(&marked, &carriers, &owner(), None, &Crowd, &()).expect("readable");
    assert_eq!(crowd, serial);
}

#[test]
fn the_chips_match_the_first_release() {
    // Marks are looked for years after they were made. From BLAKE3's Python binding:
    // blake3(b"chips\0a.weight", key=blake3(b"the owner's secret",
    //     derive_key_context="apr 2026-01 watermark v1").digest()).digest(length=68)
    let mut chips = [0; 32];
    Chips::new(&owner(), "a.weight").read(0, &mut chips);
    assert_eq!(chips[..4], [242, 143, 228, 116]);
    assert_eq!(Chips::new(&owner(), "a.weight").slot(0), 1);
    // The first four bytes of b"buyer-0017\0\0" hashed under b"check\0", then those bytes under the
    // stream of b"mask\0" and the check.
    let frame = Frame::new(&owner(), ID).expect("an id");
    assert_eq!(
        frame.bytes(),
        [222, 215, 203, 191, 140, 176, 70, 199, 244, 11, 163, 193, 229, 73, 41, 115]
    );
}

#[test]
fn ids_keys_strengths_and_models_that_do_not_do_are_refused() {
    let base = model(DType::F32);
    for id in ["", "a\nb", "\0", &"a".repeat(MAX_ID + 1)] {
        assert!(Frame::new(&owner(), id).is_err(), "{id:?}");
    }
    for secret in
        [&b"fifteen bytes.."[..], b"", b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9E"]
    {
        assert!(MarkKey::from_secret(secret).is_err());
    }
    let mark = |base: &dyn CheckpointReader, strength| {
        Marked::new(base, &survey(base), &owner(), ID, strength)
            .map(|marked| marked.report().strength)
    };
    for strength in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(mark(&*base, Some(strength)).is_err(), "{strength}");
    }
    let few = mark(&*base, None).expect_err("too few weights");
    assert!(few.message().contains("pass `strength` 0.07"), "{few}");
    let large =
        file(&[("w", DType::F32, vec![2048, 1024], stored(DType::F32, &normals(1 << 21, 1)))]);
    let strength = mark(&*large, None).expect("weights enough");
    assert!((strength - 12.0 * (16.0_f64 / f64::from(1 << 21)).sqrt()).abs() < 1e-5, "{strength}");
}

#[test]
fn models_without_carriers_have_no_mark() {
    let none = file(&[("norm", DType::F32, vec![16], vec![0; 64])]);
    let found = |id| detect(&*none, &survey(&*none), &owner(), id, &Serial, &());
    for id in [Some(ID), None] {
        let error = found(id).expect_err("nothing to test");
        assert!(error.message().contains("no mark can be detected"), "{error}");
    }
}
