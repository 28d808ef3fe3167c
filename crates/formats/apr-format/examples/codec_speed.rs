//! Size and speed of the codecs on one core.
//!
//! ```text
//! cargo run --release -p apr-format --example codec_speed -- bf16 \
//!     [--mib 64] [--seconds 1] [--json] [--file RAW] [--save RAW]
//! ```
//!
//! Without `--file`, the tensor is normally distributed with mean 0 and deviation 0.02, of a fixed
//! seed, in rows of 1024; `q8_0`, `q4_0` and `i8_row` are that quantized with the greatest
//! magnitude at the end of their range. `--save` writes the bytes measured, for other programs to
//! measure. `--codec` takes `auto`, `lz4`, `zstd`, `zstd:N` or `best`; without it all codecs are
//! tried with all filters. Each figure is the best of as many passes over the tensor as fit the
//! time.

#![allow(clippy::cast_possible_truncation, reason = "values are rounded and in range")]

use std::env;
use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::time::{Duration, Instant};

use apr_core::DType;
use apr_format::codec::{
    BlockDecoder, BlockEncoder, BlockHead, Choice, Codec, Coding, DEFAULT_ZSTD_LEVEL, Element,
    Filter, choose,
};

const ROW: usize = 1024;

struct Options {
    dtype: DType,
    mib: usize,
    seconds: f64,
    json: bool,
    file: Option<String>,
    save: Option<String>,
    codec: Option<String>,
}

struct Figures {
    coding: Coding,
    level: i32,
    ratio: f64,
    encode: f64,
    encode_unchecked: f64,
    decode: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let bytes = match &options.file {
        Some(path) => fs::read(path)?,
        None => gaussian(options.dtype, (options.mib << 20) / 4)?,
    };
    if let Some(path) = &options.save {
        fs::write(path, &bytes)?;
    }
    let element = Element::of(options.dtype);
    let mut rows = Vec::new();
    for (coding, level) in codings(&options, &bytes)? {
        rows.push(measure(coding, level, element, &bytes, options.seconds)?);
    }
    print(&options, bytes.len(), &rows);
    Ok(())
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        dtype: DType::BF16,
        mib: 64,
        seconds: 1.0,
        json: false,
        file: None,
        save: None,
        codec: None,
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--mib" => options.mib = value()?.parse()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--json" => options.json = true,
            "--file" => options.file = Some(value()?),
            "--save" => options.save = Some(value()?),
            "--codec" => options.codec = Some(value()?),
            name => {
                let known = DType::ALL.iter().find(|dtype| dtype.name() == name);
                options.dtype = *known.ok_or_else(|| format!("no dtype is called '{name}'"))?;
            }
        }
    }
    Ok(options)
}

fn codings(options: &Options, bytes: &[u8]) -> Result<Vec<(Coding, i32)>, Box<dyn Error>> {
    let Some(codec) = &options.codec else {
        let codecs = [(Codec::Lz4, 0), (Codec::Zstd, DEFAULT_ZSTD_LEVEL), (Codec::Entropy, 0)];
        let filters = if Element::of(options.dtype).width() > 1 { 2 } else { 1 };
        let filters = &[Filter::None, Filter::BytePlanes][..filters];
        let all = codecs
            .iter()
            .flat_map(|&(codec, level)| filters.iter().map(move |&filter| (codec, filter, level)));
        return Ok(all.map(|(codec, filter, level)| (Coding { codec, filter }, level)).collect());
    };
    let choice = match codec.split_once(':') {
        Some(("zstd", level)) => Choice::Zstd(level.parse()?),
        None if codec == "auto" => Choice::Auto,
        None if codec == "lz4" => Choice::Lz4,
        None if codec == "zstd" => Choice::Zstd(DEFAULT_ZSTD_LEVEL),
        None if codec == "best" => Choice::Best,
        _ => return Err(format!("no codec is called '{codec}'").into()),
    };
    Ok(vec![choose(choice, options.dtype, &[&bytes[..bytes.len().min(1 << 20)]])])
}

fn measure(
    coding: Coding,
    level: i32,
    element: Element,
    bytes: &[u8],
    seconds: f64,
) -> apr_core::Result<Figures> {
    let mut encoder = BlockEncoder::new(coding, level, element);
    let mut stored = Vec::with_capacity(bytes.len() + bytes.len() / 1024);
    let encode = best_of(seconds, || {
        stored.clear();
        for block in bytes.chunks(coding.block_len()) {
            black_box(encoder.encode(block, &mut stored));
        }
        Ok(())
    })?;
    let encode_unchecked = best_of(seconds, || {
        stored.clear();
        for block in bytes.chunks(coding.block_len()) {
            black_box(encoder.encode_unchecked(block, &mut stored));
        }
        Ok(())
    })?;
    let mut decoder = BlockDecoder::new(coding, element);
    let mut decoded = vec![0; bytes.len()];
    let decode = best_of(seconds, || {
        let mut rest = &stored[..];
        for block in decoded.chunks_mut(coding.block_len()) {
            let (head, after) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
            let head = BlockHead::read(*head);
            let (body, after) = after.split_at(head.len);
            decoder.decode(body, head.raw, block)?;
            rest = after;
        }
        Ok(())
    })?;
    assert!(decoded == bytes, "the codec changed the bytes");
    let ratio = stored.len() as f64 / bytes.len() as f64;
    let speed = |time: Duration| bytes.len() as f64 / time.as_secs_f64() / 1e9;
    Ok(Figures {
        coding,
        level,
        ratio,
        encode: speed(encode),
        encode_unchecked: speed(encode_unchecked),
        decode: speed(decode),
    })
}

fn best_of(
    seconds: f64,
    mut pass: impl FnMut() -> apr_core::Result<()>,
) -> apr_core::Result<Duration> {
    let start = Instant::now();
    let mut best = Duration::MAX;
    while best == Duration::MAX || start.elapsed().as_secs_f64() < seconds {
        let pass_start = Instant::now();
        pass()?;
        best = best.min(pass_start.elapsed());
    }
    Ok(best)
}

fn print(options: &Options, len: usize, rows: &[Figures]) {
    if options.json {
        let rows: Vec<_> = rows.iter().map(json).collect();
        println!(
            "{{\"dtype\":\"{}\",\"bytes\":{len},\"codings\":[{}]}}",
            options.dtype,
            rows.join(",")
        );
        return;
    }
    println!("{}: {len} bytes; GB/s of raw bytes on one core", options.dtype);
    println!(
        "{:24} {:>7} {:>8} {:>12} {:>8}",
        "coding", "ratio", "encode", "not checked", "decode"
    );
    for row in rows {
        println!(
            "{:24} {:7.4} {:8.3} {:12.3} {:8.3}",
            name(row),
            row.ratio,
            row.encode,
            row.encode_unchecked,
            row.decode
        );
    }
}

fn name(row: &Figures) -> String {
    format!("{:?} {} / {:?}", row.coding.codec, row.level, row.coding.filter)
}

fn json(row: &Figures) -> String {
    let Figures { coding, level, ratio, encode, encode_unchecked, decode } = row;
    format!(
        "{{\"codec\":\"{:?}\",\"level\":{level},\"filter\":\"{:?}\",\"ratio\":{ratio:.5},\"encode_g\
         bps\":{encode:.3},\"encode_unchecked_gbps\":{encode_unchecked:.3},\"decode_gbps\":{decode:\
         .3}}}",
        coding.codec, coding.filter
    )
}

/// Returns `elements` normally distributed values as `dtype`.
fn gaussian(dtype: DType, elements: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let values: Vec<f32> = (0..elements / ROW * ROW).map(|_| random.normal() * 0.02).collect();
    Ok(match dtype {
        DType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|&value| bf16(value)).collect(),
        DType::F16 => values.iter().flat_map(|&value| f16(value)).collect(),
        DType::I8_ROW => values.chunks(ROW).flat_map(|row| scaled(row, row, 4)).collect(),
        DType::Q8_0 => values.chunks(32).flat_map(|block| scaled(block, block, 2)).collect(),
        DType::Q4_0 => values.chunks(32).flat_map(nibbles).collect(),
        _ => return Err(format!("{dtype} needs a --file").into()),
    })
}

fn bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let [_, _, low, high] = (bits + 0x7fff + (bits >> 16 & 1)).to_le_bytes();
    [low, high]
}

/// Encodes a value below 2 as little-endian `f16`.
fn f16(value: f32) -> [u8; 2] {
    let sign = (value.to_bits() >> 16) & 0x8000;
    let magnitude = value.abs();
    let bits = if magnitude < 2.0_f32.powi(-14) {
        (magnitude * 2.0_f32.powi(24)).round_ties_even() as u32
    } else {
        let bits = magnitude.to_bits();
        ((bits + 0xfff + (bits >> 13 & 1)) >> 13) - (112 << 10)
    };
    let [low, high, ..] = (sign | bits).to_le_bytes();
    [low, high]
}

/// Returns a scale of `scale_len` bytes, followed by the values as bytes.
fn scaled(values: &[f32], range: &[f32], scale_len: usize) -> Vec<u8> {
    let scale = range.iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0;
    let mut bytes = if scale_len == 2 { f16(scale).to_vec() } else { scale.to_le_bytes().to_vec() };
    bytes.extend(values.iter().flat_map(|value| ((value / scale).round() as i8).to_le_bytes()));
    bytes
}

/// Encodes a block of Q4_0 as ggml does: the value of the greatest magnitude becomes -8.
fn nibbles(values: &[f32]) -> Vec<u8> {
    let extreme = values
        .iter()
        .fold(0.0_f32, |most, &value| if value.abs() > most.abs() { value } else { most });
    let scale = extreme / -8.0;
    let nibble = |value: f32| ((value / scale + 8.5) as u8).min(15);
    let mut bytes = f16(scale).to_vec();
    bytes.extend((0..16).map(|i| nibble(values[i]) | nibble(values[i + 16]) << 4));
    bytes
}

/// xorshift64*, and the polar method of Marsaglia over it.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                return (x * (-2.0 * square.ln() / square).sqrt()) as f32;
            }
        }
    }
}
