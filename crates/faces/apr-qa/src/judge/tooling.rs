//! Points 51 to 59 and 63 to 75: what commands do, on the model and on files that are made.

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use apr::report::{JobError, ValidationConfig};
use apr_core::{Code, Serial, counted};
use apr_inputs::sound::decode;
use apr_ops::analyze::analyze;
use apr_ops::diff::DiffOptions;
use apr_ops::explain::{error_code, known_tensor};
use apr_ops::lint::Severity;
use apr_ops::physics::Violation;
use apr_quality::{CanaryInput, Tolerance, check, record};
use apr_run::{RunOptions, Runner};
use apr_testkit::SparseSource;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry, Apr2Footer};
use apr_trace::{AnomalyKind, Payload, TraceOptions, anomalies};

use crate::bench::{Bench, NO_PROGRAM};
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{Made, changed, compared, inspected, linted, opened, sound};

/// The longest that looking at a model may take.
const INSPECT: Duration = Duration::from_millis(100);
/// Bytes of the tensor in a huge file.
const HUGE: u64 = 100_000_000_000;
/// Samples of a sound that is read.
const SAMPLES: usize = 1 << 20;
/// A weight that is broken.
const GATE: &str = "model.layers.0.mlp.gate_proj.weight";
/// A norm that is scaled.
const NORM: &str = "model.norm.weight";

pub(crate) fn inspect_speed(bench: &Bench<'_>) -> Judgement {
    let (tensors, took) = timed(|| {
        bench.subject.reopen.map_or(Ok(()), |reopen| reopen())?;
        Ok(bench.session().inspect()?.tensor_count)
    })?;
    let entry =
        Apr2Entry { dims: vec![HUGE], size: Some(HUGE), ..Apr2Entry::of_bytes("huge", &[]) };
    let builder = Apr2Builder { digests: false, ..Apr2Builder::new().entry(entry) };
    let start = u64::from(builder.data_start());
    let footer = Apr2Footer { file_size: Some(start + HUGE + 16), ..builder.footer.clone() };
    let file = Apr2Builder { footer, ..builder }.build();
    let (front, end) = file.split_at(usize::try_from(start)?);
    let (parameters, huge) = timed(|| {
        let sparse = SparseSource::new(front.to_vec(), start + HUGE);
        let source = Ended { sparse, end: end.to_vec() };
        let reader = apr_registry::open(source, "huge.apr", apr_registry::OpenOptions::default())?;
        Ok(inspected(&*reader)?.parameters)
    })?;
    ensure(parameters == HUGE, "another number of parameters was reported")?;
    let what = match bench.subject.reopen {
        Some(_) => "the model opened and inspected",
        None => "the model inspected, without opening it",
    };
    let seen = format!(
        "{what} ({}) in {:.1} ms, a test file of 100 GB opened and inspected in {:.1} ms",
        counted(tensors as u64, "tensor"),
        took.as_secs_f64() * 1e3,
        huge.as_secs_f64() * 1e3
    );
    if took.max(huge) < INSPECT { passed(seen) } else { failed(seen) }
}

/// The shortest of three times that something takes: others may use the machine.
fn timed<T>(work: impl Fn() -> apr_core::Result<T>) -> apr_core::Result<(T, Duration)> {
    let once = || {
        let begun = Instant::now();
        work().map(|made| (made, begun.elapsed()))
    };
    let first = once()?;
    let rest = [once()?, once()?];
    Ok(rest.into_iter().fold(first, |best, next| if next.1 < best.1 { next } else { best }))
}

/// A file of zeros with something at its end.
#[derive(Debug)]
struct Ended {
    sparse: SparseSource,
    end: Vec<u8>,
}

impl apr_core::ByteSource for Ended {
    fn len(&self) -> u64 {
        self.sparse.len() + self.end.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> apr_core::Result<()> {
        let begin = self.sparse.len();
        for (at, byte) in (offset..).zip(buf.iter_mut()) {
            match at.checked_sub(begin).map(usize::try_from) {
                None => self.sparse.read_at(at, std::slice::from_mut(byte))?,
                Some(place) => {
                    let found = place.ok().and_then(|place| self.end.get(place));
                    let past = || apr_core::Error::corrupt("a read past the end").at(at);
                    *byte = *found.ok_or_else(past)?;
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn lint(bench: &Bench<'_>) -> Judgement {
    let licence = |message: &str| message.contains("license'");
    let report = linted(&*opened(sound().build())?)?;
    let warned = report.remarks.into_iter().find(|remark| licence(&remark.message));
    let seen = warned.ok_or_else(|| Fault::new("lint did not report a missing licence"))?.message;
    let missing = bench.lint().remarks.iter().find(|remark| licence(&remark.message));
    match missing {
        Some(remark) => failed(format!("lint: {}", remark.message)),
        None => {
            let others = counted(bench.lint().count(Severity::Warn) as u64, "other warning");
            passed(format!("the licence is stated ({others}); in a test file: {seen}"))
        }
    }
}

/// Returns the output of the program.
fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn drama(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    fs::write(folder.join("test.apr"), sound().build())?;
    let Some(output) = bench.apr(&folder, &["debug", "test.apr", "--drama"], &[])? else {
        return absent(NO_PROGRAM);
    };
    let shown = text(&output);
    ensure(output.status.success(), "the program failed")?;
    ensure(!output.stdout.contains(&0x1b), "escape sequences were printed without a terminal")?;
    let missing = ["ACT I", "ACT II", "ACT III"].into_iter().find(|act| !shown.contains(act));
    match missing {
        Some(act) => failed(format!("{act} is missing")),
        None => passed("three acts in plain text for a test file, without a terminal"),
    }
}

pub(crate) fn identity(bench: &Bench<'_>) -> Judgement {
    let reader = bench.reader();
    if reader.container().is_locked() {
        return absent("the tensors are encrypted: no key given");
    }
    // Where no digests vouch for the bytes, they are read again.
    let model = bench.session();
    let report = model.beside(&model).diff(&DiffOptions::default(), &bench.pipeline()?, &())?;
    let (similarity, count) = (report.similarity, report.tensors.len());
    ensure(report.same, format!("the model is only {similarity} % similar to itself"))?;
    passed(format!("the model and itself: {similarity} % similar, {count} tensors"))
}

pub(crate) fn change(_: &Bench<'_>) -> Judgement {
    let left = opened(sound().build())?;
    let right = opened(changed(|entry| entry.bytes[3] ^= 1))?;
    let report = compared([&*left, &*right], &DiffOptions::default())?;
    let differs = report.tensors.iter().filter(|pair| pair.max_delta.unwrap_or(0.0) > 0.0);
    let names: Vec<&str> = differs.map(|pair| &*pair.name).collect();
    ensure(!report.same, "a changed file was reported as equal")?;
    ensure(names == ["b.weight"], format!("another list of different tensors: {names:?}"))?;
    passed(format!(
        "one changed value of b.weight was reported, {:.3} % similar",
        report.similarity
    ))
}

/// A made model, opened.
pub(crate) fn model(bench: &Bench<'_>, llama: &Made) -> Result<apr::Model, Fault> {
    Ok(apr::Model::open(bench.folder_of(llama)?)?)
}

/// A made model whose gate has NaN.
fn with_nan() -> Made {
    Made::llama().with(GATE, |weights| weights.values[5] = f32::NAN)
}

fn tokens() -> Payload {
    Payload::Tokens(vec![3, 14, 15, 9, 26, 5])
}

fn watching() -> TraceOptions {
    let mut options = TraceOptions::new(RunOptions::reading());
    options.payload = true;
    options
}

/// Returns broken copies of a WAV file, each with its defect.
fn damaged(whole: &[u8]) -> [(&'static str, Vec<u8>); 4] {
    let with = |at: usize, byte: u8| {
        let mut file = whole.to_vec();
        file[at] = byte;
        file
    };
    [
        ("another magic", with(0, b'Q')),
        ("no channels", with(22, 0)),
        ("cut within the header", whole[..30].to_vec()),
        ("empty", Vec::new()),
    ]
}

pub(crate) fn trace_output(bench: &Bench<'_>) -> Judgement {
    let trace = model(bench, &Made::llama())?.trace(&tokens(), &watching(), |_, _| {})?;
    let json = apr_core::json::to_vec(&trace)?;
    let back: serde_json::Value = serde_json::from_slice(&json)?;
    let steps = back["passes"][0]["steps"].as_array().ok_or_else(|| Fault::new("no steps"))?;
    let is_whole = |path: &str| {
        let step = steps.iter().find(|step| step["path"] == path);
        step.is_some_and(|step| step["shape"].is_array() && step["statistics"]["mean"].is_number())
    };
    for path in ["layers.0/attention", "layers.0/mlp"] {
        ensure(is_whole(path), format!("the trace of a test model lacks {path}"))?;
    }

    let whole = crate::ran::sound(|at| if at % 64 < 32 { 1000 } else { -1000 });
    let (sound, warnings) = match decode(whole.clone(), SAMPLES) {
        Err(error) => return absent(format!("this build cannot read audio: {error}")),
        Ok(read) => read,
    };
    let is_read = sound.samples.len() == 16_000 && warnings.is_empty();
    ensure(is_read, format!("a complete audio file has {} samples", sound.samples.len()))?;
    let mut seen = String::new();
    for (what, file) in damaged(&whole) {
        let error = decode(file, SAMPLES).err();
        seen = error
            .ok_or_else(|| Fault(format!("a damaged audio file was read: {what}")))?
            .to_string();
    }
    passed(format!(
        "{} steps of a test model in JSON; a test sound is read, and four damaged copies are not, \
         the last: {seen}",
        steps.len()
    ))
}

pub(crate) fn error_codes(_: &Bench<'_>) -> Judgement {
    for code in Code::ALL {
        let explained = error_code(code.id());
        let steps = explained.map_or(0, |explained| explained.steps.len());
        ensure(steps > 0, format!("{} is not explained", code.id()))?;
    }
    ensure(error_code("E999").is_none(), "E999 is explained")?;
    passed(format!("all {} codes are explained with steps to take; E999 is not", Code::ALL.len()))
}

pub(crate) fn tensor_names(bench: &Bench<'_>) -> Judgement {
    let families = bench.source().families();
    let known = known_tensor(families, "model.layers.3.self_attn.q_proj.weight");
    let role = known.ok().and_then(|known| Some(known.first()?.role.clone()));
    let role = role.ok_or_else(|| Fault::new("a query projection is not explained"))?;
    match known_tensor(families, "encodr.conv1.weight") {
        Err(similar) if similar.iter().any(|name| name == "encoder.conv1.weight") => {
            passed(format!("q_proj: {role}; 'encodr.conv1.weight': {}", similar.join(", ")))
        }
        Err(similar) => failed(format!("other names were proposed: {similar:?}")),
        Ok(_) => failed("a name of no family is explained"),
    }
}

pub(crate) fn analysis(bench: &Bench<'_>) -> Judgement {
    let pass = |llama: &Made| -> Result<(bool, Vec<Violation>), Fault> {
        let model = model(bench, llama)?;
        let source = model.source();
        let report = analyze(source.reader(), source.name(), source.family()?, &Serial, &())?;
        let all = report.tensors.into_iter().flat_map(|tensor| tensor.violations);
        Ok((report.pass, all.collect()))
    };
    let (is_sound, violations) = pass(&Made::llama())?;
    ensure(is_sound, format!("a valid source fails: {violations:?}"))?;
    let (passes, violations) = pass(&with_nan())?;
    ensure(!passes, "a source with NaN passes")?;
    let seen = violations.first().ok_or_else(|| Fault::new("the report gives no reason"))?;
    let folder = bench.folder_of(&Made::llama())?;
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path)?;
    fs::write(&path, &bytes[..bytes.len() - 1])?;
    let cut = apr::Model::open(&folder).err();
    let cut = cut.ok_or_else(|| Fault::new("a truncated source opens"))?;
    passed(format!("a test source passes, with a NaN: {seen}; cut: {}", cut.message()))
}

/// A made model whose norm is eleven times too large.
pub(crate) fn scaled() -> Made {
    Made::llama().with(NORM, |weights| weights.values.iter_mut().for_each(|value| *value *= 11.0))
}

pub(crate) fn inline_validation(bench: &Bench<'_>) -> Judgement {
    let (folder, target) = (bench.folder_of(&scaled())?, bench.folder()?.join("test.apr"));
    match apr::convert(&folder).write(&target) {
        Err(JobError::Unhealthy { error, .. }) => {
            ensure(!target.exists(), "an output exists")?;
            passed(format!("a test norm with a mean of 11: {error}; nothing was written"))
        }
        Err(error) => failed(format!("another error: {error}")),
        Ok(_) => failed("a norm with a mean of 11 was converted"),
    }
}

pub(crate) fn relaxed(bench: &Bench<'_>) -> Judgement {
    let (folder, target) = (bench.folder_of(&scaled())?, bench.folder()?.join("test.apr"));
    let report = apr::convert(&folder).validate(ValidationConfig::relaxed()).write(&target)?;
    let errors = report.conversion.validation.map_or(0, |validation| validation.errors.len());
    ensure(errors == 1, format!("{errors} violations were reported"))?;
    let model = apr::Model::open(&target)?;
    let recorded = model.reader().metadata().get("violations");
    let recorded = recorded.and_then(serde_json::Value::as_array).map_or(0, Vec::len);
    ensure(recorded == 1, format!("{recorded} violations are in the file"))?;
    passed("the norm of point 68 was written, reported, and recorded in the file")
}

pub(crate) fn cache_folder(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    fs::create_dir_all(folder.join("here/spool"))?;
    fs::write(folder.join("here/spool/left"), b"1234")?;
    let environment = [("APR_CACHE", "here")];
    let Some(output) = bench.apr(&folder, &["cache", "info", "--json"], &environment)? else {
        return absent(NO_PROGRAM);
    };
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let found = (report["folder"].as_str(), report["bytes"].as_u64());
    ensure(found == (Some("here"), Some(4)), format!("the program reports {found:?}"))?;
    passed("with APR_CACHE=here, the program counts the 4 bytes in it")
}

pub(crate) fn configuration(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    fs::write(folder.join("test.apr"), sound().build())?;
    let is_json = |format: &str| -> Result<Option<bool>, Fault> {
        let toml = format!("[defaults]\noutput_format = \"{format}\"\n");
        fs::write(folder.join("my.toml"), toml)?;
        let output = bench.apr(&folder, &["inspect", "test.apr"], &[("APR_CONFIG", "my.toml")])?;
        let is_json =
            |output: Output| serde_json::from_slice::<serde_json::Value>(&output.stdout).is_ok();
        Ok(output.map(is_json))
    };
    match (is_json("json")?, is_json("text")?) {
        (Some(true), Some(false)) => passed(
            "an inspection is printed as JSON with output_format = \"json\", and not with \"text\"",
        ),
        (None, _) | (_, None) => absent(NO_PROGRAM),
        found => failed(format!("printed as JSON with \"json\" and with \"text\": {found:?}")),
    }
}

pub(crate) fn canary(bench: &Bench<'_>) -> Judgement {
    let (whole, broken) = (model(bench, &Made::llama())?, model(bench, &regressed())?);
    let load = |_: &str| Err(apr_core::Error::format("no files"));
    let options = RunOptions::default();
    let inputs = vec![("tokens".to_owned(), CanaryInput::Tokens { ids: vec![3, 14, 15] })];
    let canary = whole.run_with(
        &options,
        |_, _| {},
        |runner: &Runner<'_>| record(runner, "made", inputs, Some(4), Tolerance::default(), &load),
    )?;
    let passes = |model: &apr::Model| {
        model.run_with(
            &options,
            |_, _| {},
            |runner: &Runner<'_>| check(runner, "made", &canary, &load, &mut |_| {}),
        )
    };
    ensure(passes(&whole)?.passed, "the model that was recorded fails its own canary")?;
    let report = passes(&broken)?;
    ensure(!report.passed, "a model with other weights passes")?;
    let failures = report.cases.into_iter().flat_map(|case| case.failures);
    let why = failures.into_iter().next().unwrap_or_default();
    passed(format!("a test model passes its canary, with a changed head: {why}"))
}

/// A made model whose head is turned around, so that it answers otherwise.
fn regressed() -> Made {
    Made::llama().with("lm_head.weight", |weights| weights.values.reverse())
}

pub(crate) fn json(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    fs::write(folder.join("test.apr"), sound().build())?;
    let parsed = |arguments: &[&str]| -> Result<Option<Option<serde_json::Value>>, Fault> {
        let output = bench.apr(&folder, arguments, &[])?;
        Ok(output.map(|output| serde_json::from_slice(&output.stdout).ok()))
    };
    let asked = parsed(&["inspect", "test.apr", "--json"])?;
    let unasked = parsed(&["inspect", "test.apr"])?;
    let (Some(asked), Some(unasked)) = (asked, unasked) else { return absent(NO_PROGRAM) };
    ensure(unasked.is_none(), "text output parses as JSON")?;
    let report = asked.ok_or_else(|| Fault::new("the report for programs is not JSON"))?;
    let tensors = &report["tensor_count"];
    ensure(tensors == 3, format!("a test file with 3 tensors was reported with {tensors}"))?;
    passed(
        "the program's inspection of a test file, with three tensors, is one JSON document where \
         that is asked for, and none otherwise",
    )
}

pub(crate) fn anomaly(bench: &Bench<'_>) -> Judgement {
    let found = |llama: &Made| -> Result<Vec<AnomalyKind>, Fault> {
        let trace = model(bench, llama)?.trace(&tokens(), &watching(), |_, _| {})?;
        let kinds = anomalies(&trace).anomalies.into_iter().map(|anomaly| anomaly.kind);
        Ok(kinds.filter(|kind| matches!(kind, AnomalyKind::NotFinite { .. })).collect())
    };
    ensure(found(&Made::llama())?.is_empty(), "a valid model has NaN")?;
    match &found(&with_nan())?[..] {
        [AnomalyKind::NotFinite { operator, count }] => {
            passed(format!("NaN in a test gate: {count} values are not finite from {operator} on"))
        }
        others => failed(format!("NaN in a test gate: {others:?}")),
    }
}

pub(crate) fn trace_diff(bench: &Bench<'_>) -> Judgement {
    let [one, other] = [model(bench, &Made::llama())?, model(bench, &Made::llama())?];
    let options = TraceOptions::new(RunOptions::reading());
    let same = one.trace_diff(&other, &tokens(), &options, 0, |_, _| {})?;
    ensure(same.is_equal(), "equal test models drift")?;
    let changed = model(bench, &regressed())?;
    let found = one.trace_diff(&changed, &tokens(), &options, 0, |_, _| {})?;
    ensure(!found.is_equal(), "a test model with another head does not drift")?;
    let steps: usize = same.passes.iter().map(|pass| pass.steps.len()).sum();
    passed(format!("{steps} steps of two equal test models, and no drift; another head drifts"))
}
