//! Points 26 to 38 and 48: what one read of the model shows of its tensors.

use apr_arch::Kind;
use apr_core::{DType, counted};
use apr_ops::physics::expectation;
use apr_ops::validate::{Check, Finding, Level};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, absent, failed, passed};
use crate::made::{self, floats, found, sound};

/// The first finding, with how many there are.
fn first(findings: &[&Finding]) -> Option<String> {
    let finding = findings.first()?;
    let tensor = finding.tensor.as_deref().map(|name| format!("tensor '{name}': "));
    let rest = match findings.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("{}{}{rest}", tensor.unwrap_or_default(), finding.message))
}

/// Fails by the model's findings; otherwise passes with `healthy` and what was found in a made
/// file.
fn judged(findings: &[&Finding], healthy: &str, made: &str) -> Judgement {
    match first(findings) {
        Some(text) => failed(text),
        None => passed(format!("{healthy}; in a made file: {made}")),
    }
}

fn tensors(bench: &Bench<'_>) -> String {
    counted(bench.reader().tensors().len() as u64, "tensor")
}

/// A made file with one more tensor, which must be found by `wanted`.
fn made_odd(entry: Apr2Entry, wanted: impl Fn(&Finding) -> bool) -> Result<String, Fault> {
    found(sound().build(), sound().entry(entry).build(), wanted)
}

fn with_value(bench: &Bench<'_>, value: f32, word: &str) -> Judgement {
    let is_such =
        |finding: &Finding| finding.check == Check::Finite && finding.message.contains(word);
    let seen = made_odd(floats("odd", &[4], &[0.5, 1.0, value, -2.0]), is_such)?;
    if let Some(why) = bench.skipped(Check::Finite)? {
        return absent(why);
    }
    judged(&bench.findings(is_such)?, &format!("none in {}", tensors(bench)), &seen)
}

pub(crate) fn nan(bench: &Bench<'_>) -> Judgement {
    with_value(bench, f32::NAN, "are NaN")
}

pub(crate) fn infinity(bench: &Bench<'_>) -> Judgement {
    with_value(bench, f32::INFINITY, "are infinite")
}

/// Names of the model's tensors of these kinds.
fn of_kinds<'b>(bench: &'b Bench<'_>, kinds: &[Kind]) -> Vec<&'b str> {
    let infos = bench.reader().tensors().iter().enumerate();
    let wanted = infos.filter(|(position, info)| {
        let expected = expectation(bench.family(), *position, info);
        expected.is_some_and(|expected| kinds.contains(&expected.kind))
    });
    wanted.map(|(_, info)| &*info.name).collect()
}

/// Judges the statistics of tensors of these kinds, which the point is about, and of others that
/// are judged with them.
fn statistics(
    bench: &Bench<'_>,
    (kinds, alike): (&[Kind], &[Kind]),
    noun: &str,
    made: &str,
) -> Judgement {
    if let Some(why) = bench.skipped(Check::Physics)? {
        return absent(why);
    }
    let (names, others) = (of_kinds(bench, kinds), of_kinds(bench, alike));
    if names.is_empty() {
        return absent(format!("the model has no {noun} that is known"));
    }
    let findings = bench.findings(|finding| {
        finding.check == Check::Physics
            && !is_of_quants(finding)
            && finding
                .tensor
                .as_deref()
                .is_some_and(|tensor| names.contains(&tensor) || others.contains(&tensor))
    })?;
    let healthy = format!("{} in the expected range", counted(names.len() as u64, noun));
    judged(&findings, &healthy, made)
}

fn is_of_physics(finding: &Finding) -> bool {
    finding.check == Check::Physics
}

fn is_of_quants(finding: &Finding) -> bool {
    finding.message.contains("; quants of ")
}

pub(crate) fn norm_weights(bench: &Bench<'_>) -> Judgement {
    let seen = made_odd(floats("layer_norm.weight", &[8], &[11.0; 8]), is_of_physics)?;
    statistics(bench, (&[Kind::NormGamma], &[]), "norm weight", &seen)
}

pub(crate) fn norm_biases(bench: &Bench<'_>) -> Judgement {
    let seen = made_odd(floats("layer_norm.bias", &[8], &[5.0; 8]), is_of_physics)?;
    statistics(bench, (&[Kind::NormBeta], &[]), "norm bias", &seen)
}

pub(crate) fn embeddings(bench: &Bench<'_>) -> Judgement {
    let seen = in_made_model(bench, "model.embed_tokens.weight", |values| {
        values.iter_mut().for_each(|value| *value *= 35.0);
    })?;
    statistics(bench, (&[Kind::Embedding], &[Kind::Position]), "embedding", &seen)
}

pub(crate) fn linear_weights(bench: &Bench<'_>) -> Judgement {
    let seen = in_made_model(bench, "model.layers.0.self_attn.q_proj.weight", |values| {
        values.iter_mut().for_each(|value| *value += 1.0);
    })?;
    let kinds = (&[Kind::Linear, Kind::Conv, Kind::Head][..], &[Kind::Bias, Kind::Scale][..]);
    statistics(bench, kinds, "linear weight", &seen)
}

/// What is found of a tensor of the made model, once it is changed.
fn in_made_model(
    bench: &Bench<'_>,
    name: &str,
    change: impl FnOnce(&mut Vec<f32>),
) -> Result<String, Fault> {
    let of_tensor = |llama: &made::Llama| -> Result<Option<String>, Fault> {
        let folder = bench.folder()?;
        llama.write(&folder)?;
        let report = apr::Model::open(&folder)?.validate(apr::report::ValidateOptions::default())?;
        let findings = report.findings.into_iter();
        let mut of_it = findings.filter(|finding| finding.tensor.as_deref() == Some(name));
        Ok(of_it.next().map(|finding| finding.message))
    };
    if let Some(message) = of_tensor(&made::Llama::new())? {
        return Err(Fault(format!("the sound model was found fault with: {message}")));
    }
    let broken = made::Llama::new().with(name, |weights| change(&mut weights.values));
    of_tensor(&broken)?.ok_or_else(|| Fault::new("nothing was found in the broken model"))
}

pub(crate) fn zeros(bench: &Bench<'_>) -> Judgement {
    let is_zero = |finding: &Finding| finding.check == Check::Zeros;
    let seen = made_odd(floats("d.weight", &[4], &[0.0; 4]), is_zero)?;
    if let Some(why) = bench.skipped(Check::Zeros)? {
        return absent(why);
    }
    judged(&bench.findings(is_zero)?, &format!("none of {}", tensors(bench)), &seen)
}

/// Findings about names and shapes that are errors.
fn misfits<'b>(
    bench: &'b Bench<'_>,
    wanted: impl Fn(&Finding) -> bool,
) -> Result<Vec<&'b Finding>, Fault> {
    bench.findings(|finding| {
        let checks = [Check::Shapes, Check::Hyperparameters, Check::Graph];
        checks.contains(&finding.check) && finding.level == Level::Error && wanted(finding)
    })
}

fn is_of_mels(finding: &Finding) -> bool {
    finding.message.contains("filterbank")
}

fn is_of_vocabulary(finding: &Finding) -> bool {
    finding.message.contains("the tokenizer has")
}

pub(crate) fn shapes(bench: &Bench<'_>) -> Judgement {
    let wrong = misfits(bench, |finding| !is_of_mels(finding) && !is_of_vocabulary(finding))?;
    if let Some(text) = first(&wrong) {
        return failed(text);
    }
    if let Some(why) = bench.skipped(Check::Shapes)? {
        return absent(why);
    }
    let mut llama = made::Llama::new();
    llama.config["intermediate_size"] = 63.into();
    let seen = refused_model(bench, &llama)?;
    let detail = &bench.check(Check::Shapes)?.detail;
    passed(format!("{detail}: {}; of a made model: {seen}", tensors(bench)))
}

/// The first error about the shapes of a made model.
fn refused_model(bench: &Bench<'_>, llama: &made::Llama) -> Result<String, Fault> {
    let folder = bench.folder()?;
    llama.write(&folder)?;
    let report = apr::Model::open(&folder)?.validate(apr::report::ValidateOptions::default())?;
    let error = report.findings.into_iter().find(|finding| finding.level == Level::Error);
    Ok(error.ok_or_else(|| Fault::new("nothing was found in the broken model"))?.message)
}

pub(crate) fn vocabulary(bench: &Bench<'_>) -> Judgement {
    let names = of_kinds(bench, &[Kind::Embedding]);
    let wrong = misfits(bench, |finding| {
        let of_embedding = finding.tensor.as_deref().is_some_and(|name| names.contains(&name));
        is_of_vocabulary(finding) || of_embedding
    })?;
    if let Some(text) = first(&wrong) {
        return failed(text);
    }
    let rows = bench.family().and_then(|family| family.dimension("vocab"));
    let Some(rows) = rows.filter(|_| !names.is_empty()) else {
        return absent("no embedding of a vocabulary is known");
    };
    let mut llama = made::Llama::new();
    llama.config["vocab_size"] = 65.into();
    let seen = refused_model(bench, &llama)?;
    passed(format!("the embedding has {rows} rows, as the vocabulary; of a made model: {seen}"))
}

pub(crate) fn quants(bench: &Bench<'_>) -> Judgement {
    let block = |quant: u8| [vec![0, 0x3c], vec![quant; 32]].concat();
    let file = |quant: u8| {
        Apr2Builder::new().entry(Apr2Entry::new("q", DType::Q8_0, &[32], &block(quant))).build()
    };
    let seen = found(file(0x81), file(0x80), is_of_quants)?;
    let count = bench.reader().tensors().iter();
    let count = count.filter(|info| ["q8_0", "int8"].contains(&info.dtype.name())).count();
    if count == 0 {
        return absent("no tensor of the model is q8_0 or int8");
    }
    let healthy = format!("none of {} has -128", counted(count as u64, "tensor"));
    judged(&bench.findings(is_of_quants)?, &healthy, &seen)
}

pub(crate) fn filterbank(bench: &Bench<'_>) -> Judgement {
    let is_negative = |finding: &Finding| finding.message.contains("negative values in a filter");
    let seen = made_odd(floats("audio.mel_filterbank", &[3], &[0.0, 0.5, -0.25]), is_negative)?;
    let wrong = bench.findings(is_negative)?;
    let has = bench.reader().tensors().iter().any(|info| info.name.contains("mel_filterbank"));
    if !has && wrong.is_empty() {
        return absent("the model has no mel filterbank");
    }
    judged(&wrong, "all values are 0 or more", &seen)
}

pub(crate) fn positions(bench: &Bench<'_>) -> Judgement {
    let names = of_kinds(bench, &[Kind::Position]);
    if names.is_empty() {
        return absent("the model has no table of positions that is known");
    }
    if let Some(why) = bench.skipped(Check::Shapes)? {
        return absent(why);
    }
    let wrong = misfits(bench, |finding| {
        finding.tensor.as_deref().is_some_and(|name| names.contains(&name))
    })?;
    match first(&wrong) {
        Some(text) => failed(text),
        None => passed(format!(
            "{} with as many rows as the configuration has positions",
            counted(names.len() as u64, "table")
        )),
    }
}

pub(crate) fn mels(bench: &Bench<'_>) -> Judgement {
    let wrong = bench.findings(|finding| finding.check == Check::Shapes && is_of_mels(finding))?;
    if let Some(text) = first(&wrong) {
        return failed(text);
    }
    let infos = bench.reader().tensors().iter();
    let found = infos.into_iter().find(|info| info.name.contains("mel_filterbank"));
    match (found, bench.skipped(Check::Shapes)?) {
        (None, _) => absent("the model has no mel filterbank"),
        (_, Some(why)) => absent(why),
        (Some(info), None) => passed(format!("{} is {}, as configured", info.name, info.shape)),
    }
}
