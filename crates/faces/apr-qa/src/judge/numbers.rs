//! Points 40, 41, 42 and 50: figures on files and sounds that are made.

use apr::report::DiffOptions;
use apr_core::{Code, DType};
use apr_inputs::sound::{Sound, decode};
use apr_quality::wav;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{bytes_of, compared, floats, linted, opened};

/// A WAV file of 32-bit floats, which are not held to any range.
fn float_wav(samples: &[f32]) -> Vec<u8> {
    let data = bytes_of(samples);
    let mut file = wav(16_000, &vec![0; samples.len() * 2]);
    // Its format is 3 instead of 1, and a sample has four bytes instead of two.
    file[20..22].copy_from_slice(&3_u16.to_le_bytes());
    file[28..32].copy_from_slice(&64_000_u32.to_le_bytes());
    file[32..36].copy_from_slice(&[4, 0, 32, 0]);
    let start = file.len() - data.len();
    file[start..].copy_from_slice(&data);
    file
}

pub(crate) fn audio_range(_: &Bench<'_>) -> Judgement {
    let samples = |loudest: f32| -> Vec<f32> {
        (0..1600_u16).map(|at| if at % 2 == 0 { loudest } else { -0.25 }).collect()
    };
    let heard = |loudest: f32| -> apr_core::Result<(Sound, Vec<String>)> {
        let (sound, warnings) = decode(float_wav(&samples(loudest)), 1 << 20)?;
        let odd = sound.check()?;
        Ok((sound, [warnings, odd].concat()))
    };
    let (sound, odd) = match heard(1.0) {
        Err(error) if error.code() == Code::Version => {
            return absent(format!("this build cannot read audio: {error}"));
        }
        heard => heard?,
    };
    ensure(sound.samples == samples(1.0), "a test WAV file was read with other samples")?;
    ensure(odd.is_empty(), format!("audio within the range has warnings: {}", odd.join(", ")))?;
    let (sound, loud) = heard(-10.0)?;
    ensure(sound.samples == samples(-10.0), "a loud WAV file was changed")?;
    let seen = loud.first().ok_or_else(|| Fault::new("an amplitude of 10 was not reported"))?;
    passed(format!("test WAV files up to 1: no warning; up to 10: {seen}"))
}

pub(crate) fn half_range(bench: &Bench<'_>) -> Judgement {
    let file = Apr2Builder::new().entry(floats("large", &[3], &[65_504.0, 65_520.0, 1e6]));
    let path = bench.folder()?.join("test.apr");
    std::fs::write(&path, file.build())?;
    let (_, report) = apr::convert(&path).precision(DType::F16).to_bytes()?;
    let overflowed = report.conversion.rounding.overflowed;
    ensure(overflowed == 2, format!("{overflowed} of 2 values became infinite"))?;
    let loss = report.conversion.losses.iter().find(|loss| loss.name == "large");
    let loss = loss.ok_or_else(|| Fault::new("the loss was not reported"))?;
    let of_model = bench.findings(|finding| {
        let infos = bench.reader().tensors();
        let is_half =
            |name: &str| infos.iter().any(|info| info.name == name && info.dtype == DType::F16);
        finding.message.contains("are infinite") && finding.tensor.as_deref().is_some_and(is_half)
    })?;
    if let Some(finding) = of_model.first() {
        return failed(format!("{}: {}", finding.tensor.as_deref().unwrap_or(""), finding.message));
    }
    let has_half = bench.reader().tensors().iter().any(|info| info.dtype == DType::F16);
    if let Some(why) = bench.unread()?.filter(|_| has_half) {
        return absent(why);
    }
    passed(format!("65504, 65520 and 10^6 as f16: {}, {}", loss.what, loss.why))
}

/// A 16 x 8 matrix as compressed sparse rows (`docs/format/codecs.md`, "Layouts"), with `filled`
/// entries in each row.
fn sparse_matrix(filled: u32) -> Apr2Entry {
    let rows = 16;
    let mut bytes = u64::from(rows * filled).to_le_bytes().to_vec();
    bytes.extend((0..=rows).flat_map(|row| u64::from(row * filled).to_le_bytes()));
    bytes.extend((0..rows).flat_map(|_| 0..filled).flat_map(u32::to_le_bytes));
    bytes.extend(bytes_of(&vec![1.5; (rows * filled) as usize]));
    let raw_size = bytes.len() as u64;
    let name = "layers.0.weight";
    Apr2Entry { flags: 1 << 8, raw_size, ..Apr2Entry::new(name, DType::F32, &[16, 8], &bytes) }
}

pub(crate) fn sparsity(bench: &Bench<'_>) -> Judgement {
    let dense = |message: &str| message.contains("is stored as sparse, but is dense");
    let remark = |filled: u32| -> Result<Option<String>, Fault> {
        let reader = opened(Apr2Builder::new().entry(sparse_matrix(filled)).build())?;
        let remarks = linted(&*reader)?.remarks.into_iter();
        Ok(remarks.map(|remark| remark.message).find(|message| dense(message)))
    };
    ensure(remark(1)?.is_none(), "a sparse tensor was reported as dense")?;
    let seen = remark(8)?.ok_or_else(|| Fault::new("lint did not report a dense tensor"))?;
    let own = bench.lint().remarks.iter().find(|remark| dense(&remark.message));
    match own {
        Some(remark) => failed(remark.message.as_str()),
        None => passed(format!("the model has no sparse tensor; in a test file: {seen}")),
    }
}

pub(crate) fn distance(_: &Bench<'_>) -> Judgement {
    let file = |values: &[f32]| opened(Apr2Builder::new().entry(floats("w", &[2], values)).build());
    let (left, right) = (file(&[1.0, 2.0])?, file(&[4.0, 6.0])?);
    let options = DiffOptions { max_l2: Some(1.0), ..DiffOptions::default() };
    let same = compared([&*left, &*left], &options)?;
    ensure(same.l2_gate.is_some_and(|gate| gate.passed), "a file differs from itself")?;
    let report = compared([&*left, &*right], &options)?;
    ensure((report.l2 - 5.0).abs() < 1e-12, format!("the distance is {}, not 5", report.l2))?;
    ensure(report.l2_gate.is_some_and(|gate| !gate.passed), "a distance of 5 passed a gate of 1")?;
    passed("[1, 2] and [4, 6] are 5 apart, so a limit of 1 fails; equal files pass")
}
