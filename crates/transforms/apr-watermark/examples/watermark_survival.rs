//! Measures what a watermark does to a model, what it withstands, and how rarely a wrong key finds
//! one; prints the tables of `docs/watermark.md`.
//!
//! ```sh
//! cargo run --release -p apr-watermark --example watermark_survival -- MODEL.safetensors [KEYS]
//! ```
//!
//! The model has `f32` weights; `KEYS` random keys are tried on it, 10,000 by default.

use std::error::Error;
use std::num::NonZeroUsize;
use std::thread;

use apr_arch::{Families, FamilyModel};
use apr_core::{
    CheckpointReader, Companion, Container, DType, FileInfo, Format, Limits, Metadata, Serial,
    Stored, StoredRange, TensorInfo,
};
use apr_tensor::block;
use apr_tensor::cast::cast_values;
use apr_tensor::element::widen_f32;
use apr_watermark::{
    Carriers, Chips, Correlation, DetectReport, Frame, MAX_CHANCE, MarkKey, Marked, detect,
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const ID: &str = "buyer-0017";
/// Elements of each tensor that many keys are tried on; the correlation has the same distribution
/// on any part.
const PART: usize = 1 << 16;
const SECRET: &[u8] = b"the secret of this experiment";

/// A checkpoint in memory, with the names and metadata of another one.
struct Copied<'a> {
    base: &'a dyn CheckpointReader,
    infos: Vec<TensorInfo>,
    tensors: Vec<Vec<u8>>,
}

impl<'a> Copied<'a> {
    fn of(base: &'a dyn CheckpointReader) -> Outcome<Self> {
        let read = |(at, info): (usize, &TensorInfo)| -> Outcome<Vec<u8>> {
            let mut bytes = vec![0; usize::try_from(info.byte_len()?)?];
            base.read_tensor(at, 0, &mut bytes)?;
            Ok(bytes)
        };
        let tensors = base.tensors().iter().enumerate().map(read).collect::<Outcome<_>>()?;
        Ok(Self { base, infos: base.tensors().to_vec(), tensors })
    }

    /// The tensors of another checkpoint of the same names.
    fn holding(&self, other: &dyn CheckpointReader) -> Outcome<Copied<'a>> {
        let Copied { infos, tensors, .. } = Copied::of(other)?;
        Ok(Copied { base: self.base, infos, tensors })
    }

    /// Copies the model with changed matrices. `change` gets the values and the row length of each.
    fn changed(&self, mut change: impl FnMut(&mut Vec<f32>, usize)) -> Outcome<Copied<'a>> {
        let mut changed =
            Self { base: self.base, infos: self.infos.clone(), tensors: self.tensors.clone() };
        let mut values = Vec::new();
        for (info, bytes) in changed.infos.iter().zip(&mut changed.tensors) {
            if info.shape.dims().len() < 2 || !info.dtype.is_float() {
                continue;
            }
            widen_f32(info.dtype, bytes, &mut values);
            change(&mut values, usize::try_from(info.shape.row_len())?);
            cast_values(&values, info.dtype, bytes);
        }
        Ok(changed)
    }

    /// Copies the model with its floats in another dtype.
    fn cast(&self, dtype: DType) -> Copied<'a> {
        let mut cast =
            Self { base: self.base, infos: self.infos.clone(), tensors: self.tensors.clone() };
        let mut values = Vec::new();
        for (info, bytes) in
            cast.infos.iter_mut().zip(&mut cast.tensors).filter(|(info, _)| info.dtype.is_float())
        {
            widen_f32(info.dtype, bytes, &mut values);
            cast_values(&values, dtype, bytes);
            info.dtype = dtype;
        }
        cast
    }
}

impl CheckpointReader for Copied<'_> {
    fn format(&self) -> &'static Format {
        self.base.format()
    }
    fn metadata(&self) -> &Metadata {
        self.base.metadata()
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }
    fn stored(&self, tensor: usize) -> Stored<'_> {
        Stored::plain(StoredRange { file: 0, offset: 0, len: self.tensors[tensor].len() as u64 })
    }
    fn read_tensor(&self, tensor: usize, offset: u64, buf: &mut [u8]) -> apr_core::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let wanted = self.tensors[tensor].get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(wanted.ok_or_else(|| apr_core::Error::corrupt("past the end"))?);
        Ok(())
    }
    fn files(&self) -> &[FileInfo] {
        &[]
    }
    fn tensor_slice(&self, _: usize) -> Option<&[u8]> {
        None
    }
    fn container(&self) -> Container<'_> {
        Container::default()
    }
    fn companions(&self) -> &[Companion] {
        &[]
    }
    fn read_companion(&self, companion: usize) -> apr_core::Result<Vec<u8>> {
        Err(Companion::absent(companion))
    }
    fn left_out(&self) -> &[String] {
        &[]
    }
    fn warnings(&self) -> &[String] {
        &[]
    }
}

/// SplitMix64, and normal numbers by Box and Muller.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn uniform(&mut self) -> f32 {
        ((self.next() >> 40) as f32 + 0.5) / (1_u32 << 24) as f32
    }

    fn normal(&mut self) -> f32 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * angle).cos()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounded to the weights' own precision")]
fn deviation(values: &[f32]) -> f32 {
    let mean = values.iter().copied().map(f64::from).sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum();
    (squares / values.len() as f64).sqrt() as f32
}

fn through(dtype: DType, values: &mut Vec<f32>, row_len: usize) {
    let mut bytes = Vec::new();
    if dtype.is_quantized() {
        if row_len.is_multiple_of(32) {
            block::quantize(dtype, values, row_len, None, &mut bytes);
            block::dequantize(dtype, &bytes, row_len, values);
        }
    } else {
        cast_values(values, dtype, &mut bytes);
        widen_f32(dtype, &bytes, values);
    }
}

/// The smallest weights become zero.
fn prune(values: &mut [f32], percent: usize) {
    let mut magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
    let at = (values.len() * percent / 100).min(values.len() - 1);
    let (_, threshold, _) = magnitudes.select_nth_unstable_by(at, f32::total_cmp);
    let threshold = *threshold;
    values.iter_mut().filter(|value| value.abs() < threshold).for_each(|value| *value = 0.0);
}

fn noise(values: &mut [f32], size: f32, random: &mut Random) {
    let scale = deviation(values) * size;
    values.iter_mut().for_each(|value| *value += scale * random.normal());
}

/// A walk of 64 steps, each of rank one as the gradient of one example is, and a little noise:
/// together as large as `size` deviations of the weights.
fn drift(values: &mut [f32], row_len: usize, size: f32, random: &mut Random) {
    const STEPS: usize = 64;
    let step = deviation(values) * size / (STEPS as f32 * 2.0).sqrt();
    let rows = values.len() / row_len;
    for _ in 0..STEPS {
        let column: Vec<f32> = (0..rows).map(|_| step * random.normal()).collect();
        let row: Vec<f32> = (0..row_len).map(|_| random.normal()).collect();
        for (values, scale) in values.chunks_exact_mut(row_len).zip(&column) {
            values.iter_mut().zip(&row).for_each(|(value, part)| *value += scale * part);
        }
    }
    noise(values, size / std::f32::consts::SQRT_2, random);
}

fn befall(name: &str, values: &mut Vec<f32>, row_len: usize, random: &mut Random) {
    match name {
        "f16" => through(DType::F16, values, row_len),
        "bf16" => through(DType::BF16, values, row_len),
        "q8_0" => through(DType::Q8_0, values, row_len),
        "q4_0" => through(DType::Q4_0, values, row_len),
        "30 % pruned" => prune(values, 30),
        "noise 1 %" => noise(values, 0.01, random),
        "noise 5 %" => noise(values, 0.05, random),
        "drift 1 %" => drift(values, row_len, 0.01, random),
        "drift 5 %" => drift(values, row_len, 0.05, random),
        "drift 20 %" => drift(values, row_len, 0.2, random),
        "all" => {
            for name in ["drift 5 %", "noise 5 %", "30 % pruned", "bf16", "q4_0"] {
                befall(name, values, row_len, random);
            }
        }
        _ => {}
    }
}

const FATES: [&str; 12] = [
    "nothing",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "30 % pruned",
    "noise 1 %",
    "noise 5 %",
    "drift 1 %",
    "drift 5 %",
    "drift 20 %",
    "all",
];

fn look(
    reader: &dyn CheckpointReader,
    model: Option<&FamilyModel<'_>>,
    key: &MarkKey,
    id: Option<&str>,
) -> Outcome<DetectReport> {
    let carriers = Carriers::survey(reader, model, &Serial, &())?;
    Ok(detect(reader, &carriers, key, id, &Serial, &())?)
}

/// Root mean square and largest change of the carriers, in parts of their norm and of their
/// deviation.
fn change(before: &Copied<'_>, after: &Copied<'_>, carriers: &Carriers) -> (f64, f64) {
    let (mut squares, mut norm, mut largest) = (0.0, 0.0, 0.0_f64);
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for carrier in carriers.list() {
        let dtype = before.infos[carrier.tensor].dtype;
        widen_f32(dtype, &before.tensors[carrier.tensor], &mut old);
        widen_f32(dtype, &after.tensors[carrier.tensor], &mut new);
        for (&old, &new) in old.iter().zip(&new) {
            let moved = f64::from(new) - f64::from(old);
            squares += moved * moved;
            norm += f64::from(old).powi(2);
            largest = largest.max(moved.abs() / carrier.std);
        }
    }
    ((squares / norm).sqrt(), largest)
}

/// Detection results of random keys.
struct Chance {
    /// Correlation with a mark of that id under that key.
    known: Vec<f64>,
    /// Logarithm of the bound for the frame read without an id.
    ln_read: Vec<f64>,
    /// Ids whose check held.
    ids: usize,
}

/// Tries random keys on the first `most` elements of each tensor.
fn chance(reader: &Copied<'_>, carriers: &Carriers, most: usize, keys: usize) -> Outcome<Chance> {
    let mut tensors = Vec::new();
    for carrier in carriers.list() {
        let mut values = Vec::new();
        widen_f32(reader.infos[carrier.tensor].dtype, &reader.tensors[carrier.tensor], &mut values);
        values.truncate(most);
        carrier.normalize(&mut values);
        tensors.push((carrier.name.as_str(), values));
    }
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let try_key = |at: usize| -> Outcome<(f64, f64, bool)> {
        let key = MarkKey::from_secret(format!("random key number {at:08}").as_bytes())?;
        let mut correlation = Correlation::default();
        tensors
            .iter()
            .for_each(|(name, values)| correlation.add(&mut Chips::new(&key, name), 0, values));
        let reading = correlation.read(&key);
        Ok((correlation.score(&Frame::new(&key, ID)?), reading.ln_chance, reading.id.is_some()))
    };
    let tried = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let try_key = &try_key;
                scope.spawn(move || {
                    let keys = (worker..keys).step_by(threads);
                    keys.map(|at| try_key(at).map_err(|error| error.to_string()))
                        .collect::<Result<Vec<_>, _>>()
                })
            })
            .collect();
        let results = workers
            .into_iter()
            .map(|worker| worker.join().map_err(|_| "a thread panicked".to_owned())?);
        results.collect::<Result<Vec<_>, String>>()
    })?;
    let mut chance = Chance { known: Vec::new(), ln_read: Vec::new(), ids: 0 };
    for (z, ln, id) in tried.into_iter().flatten() {
        chance.known.push(z);
        chance.ln_read.push(ln);
        chance.ids += usize::from(id);
    }
    chance.known.sort_by(f64::total_cmp);
    Ok(chance)
}

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: watermark_survival MODEL.safetensors [KEYS]")?;
    let keys: usize = args.next().map_or(Ok(10_000), |text| text.parse())?;
    let file = apr_registry::open(std::fs::read(&path)?, "model.safetensors", &Limits::default())?;
    let families = Families::builtin();
    let model = families.identify(file.tensors(), file.metadata());
    let model = model.as_ref();
    let original = Copied::of(&*file)?;
    let carriers = Carriers::survey(&original, model, &Serial, &())?;
    let key = MarkKey::from_secret(SECRET)?;
    println!(
        "{} tensors with {} weights carry the mark\n",
        carriers.list().len(),
        carriers.weights()
    );

    let chosen = Marked::new(&original, &carriers, &key, ID, None)?.report().strength;
    println!(
        "| weights | strength | change of the norm | largest change of a weight, in deviations | z \
         |"
    );
    println!("|---|---|---|---|---|");
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for strength in [0.0025, 0.005, chosen, 0.02] {
            let base = original.cast(dtype);
            let marked = Marked::new(&base, &carriers, &key, ID, Some(strength))?;
            let marked = base.holding(&marked)?;
            let (relative, largest) = change(&base, &marked, &carriers);
            let z = look(&marked, model, &key, Some(ID))?.z;
            println!(
                "| {dtype} | {:.2} % | {:.2} % | {largest:.3} | {z:.1} |",
                100.0 * strength,
                100.0 * relative
            );
        }
    }

    let strengths = [0.001, 0.0025, 0.005, 0.0075, chosen, 0.02];
    println!(
        "\nz with the id known; + where the id was read without it, - where only the known id is \
         found\n"
    );
    println!(
        "| strength |{}",
        strengths.map(|strength| format!(" {:.2} % |", 100.0 * strength)).concat()
    );
    println!("|---|{}", strengths.map(|_| "---|").concat());
    let mut marked = Vec::new();
    for strength in strengths {
        let reader = Marked::new(&original, &carriers, &key, ID, Some(strength))?;
        marked.push(original.holding(&reader)?);
    }
    for fate in FATES {
        print!("| {fate} |");
        for marked in &marked {
            let mut random = Random(17);
            let altered =
                marked.changed(|values, row_len| befall(fate, values, row_len, &mut random))?;
            let found = look(&altered, model, &key, Some(ID))?;
            let sign = match (found.id.as_deref() == Some(ID), found.detected) {
                (true, _) => "+",
                (false, true) => "-",
                (false, false) => "not found",
            };
            print!(" {:.1} {sign} |", found.z);
        }
        println!();
    }

    println!(
        "\n| model | weights of a tensor | random keys | mean z | deviation | least | greatest | \
         best bound without the id | ids read | found |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (name, model) in [("unmarked", &original), ("marked with another key", &marked[4])] {
        for (most, keys) in [(usize::MAX, keys / 50), (PART, keys)] {
            tell_chance(name, most, &chance(model, &carriers, most, keys)?);
        }
    }
    Ok(())
}

fn tell_chance(name: &str, most: usize, Chance { known, ln_read, ids }: &Chance) {
    let keys = known.len();
    let mean = known.iter().sum::<f64>() / keys as f64;
    let deviation = (known.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / keys as f64).sqrt();
    let best = ln_read.iter().copied().fold(f64::INFINITY, f64::min);
    let is_found = |ln: f64| ln <= MAX_CHANCE.ln();
    let found = known.iter().filter(|&&z| is_found(-z.max(0.0).powi(2) / 2.0)).count();
    let found = found + ln_read.iter().filter(|&&ln| is_found(ln)).count();
    let (least, greatest) =
        (known.first().copied().unwrap_or_default(), known.last().copied().unwrap_or_default());
    let part = if most == usize::MAX { "all".to_owned() } else { format!("the first {most}") };
    println!(
        "| {name} | {part} | {keys} | {mean:+.3} | {deviation:.3} | {least:.2} | {greatest:.2} | \
         e^{best:.1} | {ids} | {found} |"
    );
}
