//! Points 40, 41, 42 and 50: figures on files and sounds that are made.

use apr::report::DiffOptions;
use apr_core::{DType, Serial};
use apr_inputs::sound::Sound;
use apr_ops::diff::{Side, diff};
use apr_ops::lint::lint;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, ensure, failed, passed};
use crate::made::{bytes_of, floats, opened};

pub(crate) fn audio_range(_: &Bench<'_>) -> Judgement {
    let of = |samples: Vec<f32>| Sound { rate: 16_000, channels: 1, samples };
    let quiet = of(vec![0.5, -0.25, 1.0]).check()?;
    ensure(quiet.is_empty(), format!("a sound within the range: {}", quiet.join(", ")))?;
    let loud = of(vec![0.5, -10.0, 1.0]).check()?;
    let seen = loud.first().ok_or_else(|| Fault::new("a sound of amplitude 10 was not noticed"))?;
    passed(format!("a made sound of amplitude 10: {seen}"))
}

pub(crate) fn half_range(bench: &Bench<'_>) -> Judgement {
    let file = Apr2Builder::new().entry(floats("large", &[3], &[65_504.0, 65_520.0, 1e6]));
    let path = bench.folder()?.join("made.apr");
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
        let remarks = lint(&*reader, "made.apr", None)?.remarks.into_iter();
        Ok(remarks.map(|remark| remark.message).find(|message| dense(message)))
    };
    ensure(remark(1)?.is_none(), "a sparse tensor was called dense")?;
    let seen = remark(8)?.ok_or_else(|| Fault::new("lint said nothing of a dense tensor"))?;
    let own = bench.lint().remarks.iter().find(|remark| dense(&remark.message));
    match own {
        Some(remark) => failed(remark.message.as_str()),
        None => passed(format!("no tensor of the model; in a made file: {seen}")),
    }
}

pub(crate) fn distance(_: &Bench<'_>) -> Judgement {
    let file = |values: &[f32]| opened(Apr2Builder::new().entry(floats("w", &[2], values)).build());
    let (left, right) = (file(&[1.0, 2.0])?, file(&[4.0, 6.0])?);
    let side = |reader| Side { reader, name: "made.apr", model: None };
    let options = DiffOptions { max_l2: Some(1.0), ..DiffOptions::default() };
    let same = diff(side(&*left), side(&*left), &options, &Serial, &())?;
    ensure(same.l2_gate.is_some_and(|gate| gate.passed), "a file is too far from itself")?;
    let report = diff(side(&*left), side(&*right), &options, &Serial, &())?;
    ensure((report.l2 - 5.0).abs() < 1e-12, format!("the distance is {}, not 5", report.l2))?;
    ensure(report.l2_gate.is_some_and(|gate| !gate.passed), "a distance of 5 passed a gate of 1")?;
    passed("[1, 2] and [4, 6] are 5 apart, which a limit of 1 refuses; equal files pass it")
}
