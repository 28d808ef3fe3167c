//! Points 26 to 38, 48 and 103: what one read of the model shows of its tensors.

use apr_arch::TensorKind;
use apr_core::{DType, Escaped, counted, keys};
use apr_ops::physics::{IN_OTHER_LAYERS, expectation};
use apr_ops::validate::{Check, Finding, Level};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{CONTEXT, Made, POSITIONS, floats, found, sound};

/// Returns the first finding, with the number of further ones.
fn first(findings: &[&Finding]) -> Option<String> {
    let finding = findings.first()?;
    let tensor = finding.tensor.as_deref().map(|name| format!("tensor '{name}': "));
    let rest = match findings.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    Some(format!("{}{}{rest}", tensor.unwrap_or_default(), finding.message))
}

/// Fails with the model's findings. Otherwise passes with `healthy` and the finding in a test file.
fn judged(findings: &[&Finding], healthy: &str, made: &str) -> Judgement {
    match first(findings) {
        Some(text) => failed(text),
        None => passed(format!("{healthy}; in a test file: {made}")),
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
fn of_kinds<'b>(bench: &'b Bench<'_>, kinds: &[TensorKind]) -> Vec<&'b str> {
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
    (kinds, alike): (&[TensorKind], &[TensorKind]),
    noun: &str,
    made: &str,
) -> Judgement {
    if let Some(why) = bench.skipped(Check::Physics)? {
        return absent(why);
    }
    let (names, others) = (of_kinds(bench, kinds), of_kinds(bench, alike));
    if names.is_empty() {
        return absent(format!("no {noun} is known in the model"));
    }
    let findings = bench.findings(|finding| {
        finding.check == Check::Physics
            && !is_of_quants(finding)
            && !is_of_layers(finding)
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

/// Returns `true` if a weight was compared with those of other layers.
fn is_of_layers(finding: &Finding) -> bool {
    finding.message.contains(IN_OTHER_LAYERS) || finding.message.contains("times the median of")
}

pub(crate) fn layers(bench: &Bench<'_>) -> Judgement {
    let up = "model.layers.1.mlp.up_proj.weight";
    let seen = in_made(bench, Made::two_layers, up, |values| {
        values.iter_mut().for_each(|value| *value *= 20.0);
    })?;
    if let Some(why) = bench.skipped(Check::Physics)? {
        return absent(why);
    }
    let place = |at: usize| bench.family().and_then(|family| family.place_in_layer(at));
    let mut places: Vec<String> = (0..bench.reader().tensors().len()).filter_map(place).collect();
    let count = places.len() as u64;
    places.sort_unstable();
    places.dedup();
    if places.len() as u64 == count {
        return absent("the model has no layers of the same shapes");
    }
    let healthy = format!("{} in {} of a layer", counted(count, "weight"), places.len());
    judged(&bench.findings(is_of_layers)?, &healthy, &seen)
}

/// Values that are read to compare the rows and columns of weights, at most.
const MOST_COMPARED: u64 = 1 << 30;

pub(crate) fn orientation(bench: &Bench<'_>) -> Judgement {
    if let Some(why) = bench.unread()? {
        return absent(why);
    }
    let Some(family) = bench.family() else { return absent("the family is unknown") };
    let found = apr_ops::physics::orientation(family, bench.reader(), MOST_COMPARED)?;
    if found.of == 0 {
        return absent("the model has no pairs of square weights of attention");
    }
    let seen = format!("{} of {} pairs of weights of attention compared", found.compared, found.of);
    let Some(pair) = found.turned.first() else {
        return passed(format!("{seen}; none fits better if one of them is transposed"));
    };
    let [one, other] = pair.tensors.each_ref().map(|name| Escaped(name));
    failed(format!(
        "{one} or {other} is transposed: the sizes of their rows and columns correlate by {:.2}, \
         and by {:.2} with one of them transposed ({seen}, {} such)",
        pair.fit,
        pair.turned,
        found.turned.len()
    ))
}

pub(crate) fn norm_weights(bench: &Bench<'_>) -> Judgement {
    let seen = made_odd(floats("layer_norm.weight", &[8], &[11.0; 8]), is_of_physics)?;
    statistics(bench, (&[TensorKind::NormGamma], &[]), "norm weight", &seen)
}

pub(crate) fn norm_biases(bench: &Bench<'_>) -> Judgement {
    let seen = made_odd(floats("layer_norm.bias", &[8], &[5.0; 8]), is_of_physics)?;
    statistics(bench, (&[TensorKind::NormBeta], &[]), "norm bias vector", &seen)
}

pub(crate) fn embeddings(bench: &Bench<'_>) -> Judgement {
    let seen = in_made_model(bench, "model.embed_tokens.weight", |values| {
        values.iter_mut().for_each(|value| *value *= 35.0);
    })?;
    statistics(bench, (&[TensorKind::Embedding], &[TensorKind::Position]), "embedding", &seen)
}

pub(crate) fn linear_weights(bench: &Bench<'_>) -> Judgement {
    let seen = in_made_model(bench, "model.layers.0.self_attn.q_proj.weight", |values| {
        values.iter_mut().for_each(|value| *value += 1.0);
    })?;
    let kinds = (
        &[TensorKind::Linear, TensorKind::Conv, TensorKind::Head][..],
        &[TensorKind::Bias, TensorKind::Scale][..],
    );
    statistics(bench, kinds, "linear weight", &seen)
}

/// Returns the finding for a tensor of the test model after a change.
fn in_made_model(
    bench: &Bench<'_>,
    name: &str,
    change: impl FnOnce(&mut Vec<f32>),
) -> Result<String, Fault> {
    in_made(bench, Made::llama, name, change)
}

/// Returns the finding for a tensor of a sound model after a change.
fn in_made(
    bench: &Bench<'_>,
    sound: fn() -> Made,
    name: &str,
    change: impl FnOnce(&mut Vec<f32>),
) -> Result<String, Fault> {
    let of_tensor = |llama: &Made| -> Result<Option<String>, Fault> {
        let model = apr::Model::open(bench.folder_of(llama)?)?;
        let report = model.validate(apr::report::ValidateOptions::default())?;
        let findings = report.findings.into_iter();
        let mut of_it = findings.filter(|finding| finding.tensor.as_deref() == Some(name));
        Ok(of_it.next().map(|finding| finding.message))
    };
    if let Some(message) = of_tensor(&sound())? {
        return Err(Fault(format!("the undamaged model has a finding: {message}")));
    }
    let broken = sound().with(name, |weights| change(&mut weights.values));
    of_tensor(&broken)?.ok_or_else(|| Fault::new("the broken model has no finding"))
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
    finding.message.starts_with("the preprocessor has ")
}

fn is_of_vocabulary(finding: &Finding) -> bool {
    finding.message.contains("the tokenizer has")
}

/// Reason why points that compare the model with its configuration do not apply.
const NO_CONFIGURATION: &str = "the model has no configuration to compare its tensors \
                                against";

pub(crate) fn shapes(bench: &Bench<'_>) -> Judgement {
    let wrong = misfits(bench, |finding| !is_of_mels(finding) && !is_of_vocabulary(finding))?;
    if let Some(text) = first(&wrong) {
        return failed(text);
    }
    if let Some(why) = bench.skipped(Check::Shapes)? {
        return absent(why);
    }
    // Pairs of an adapter are held against each other.
    if bench.family().is_some() && !bench.has_configuration() {
        return absent(NO_CONFIGURATION);
    }
    let gate = "model.layers.0.mlp.gate_proj.weight";
    let seen = refused_model(bench, Made::llama(), ("intermediate_size", 63), gate, "[63, 32]")?;
    let detail = &bench.check(Check::Shapes)?.detail;
    passed(format!("{detail}: {}; of a test model: {seen}", tensors(bench)))
}

/// Changes a number in the configuration of a test model, and returns the error for the tensor.
///
/// The error must contain the shape that follows from the number. The unchanged model must not have
/// findings.
fn refused_model(
    bench: &Bench<'_>,
    mut made: Made,
    (key, value): (&str, u64),
    tensor: &str,
    shape: &str,
) -> Result<String, Fault> {
    let of_tensor = |made: &Made| -> Result<Option<String>, Fault> {
        let model = apr::Model::open(bench.folder_of(made)?)?;
        let report = model.validate(apr::report::ValidateOptions::default())?;
        let error = report.findings.into_iter().find(|finding| {
            finding.level == Level::Error
                && finding.check == Check::Shapes
                && finding.tensor.as_deref() == Some(tensor)
        });
        Ok(error.map(|error| error.message))
    };
    if let Some(message) = of_tensor(&made)? {
        return Err(Fault(format!("the undamaged test model has a finding: {message}")));
    }
    made.config[key] = value.into();
    let message = of_tensor(&made)?;
    let message = message.ok_or_else(|| Fault::new("the broken model has no finding"))?;
    ensure(message.contains(shape), format!("another error: {message}"))?;
    Ok(format!("tensor '{tensor}': {message}"))
}

pub(crate) fn vocabulary(bench: &Bench<'_>) -> Judgement {
    let names = of_kinds(bench, &[TensorKind::Embedding]);
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
    // Without either the number of rows is all that tells how many tokens there are.
    let configured = bench.facts().vocabulary().map(|size| size as u64);
    let tokens = bench.facts().get("tokenizer.vocab_size").and_then(serde_json::Value::as_u64);
    let stated = match (configured, tokens) {
        (Some(size), _) => format!("the configuration's vocabulary of {size}"),
        (None, Some(size)) => format!("the tokenizer's {}", counted(size, "token")),
        (None, None) => return absent("no configuration and no tokenizer states its size"),
    };
    let embedding = "model.embed_tokens.weight";
    let seen = refused_model(bench, Made::llama(), ("vocab_size", 65), embedding, "[65, 32]")?;
    passed(format!("an embedding of {rows} rows for {stated}; of a test model: {seen}"))
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
        return absent("the model has no tensor of type q8_0 or int8");
    }
    if let Some(why) = bench.unread()? {
        return absent(why);
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
    if let Some(why) = bench.unread()? {
        return absent(why);
    }
    judged(&wrong, "all values are 0 or more", &seen)
}

pub(crate) fn positions(bench: &Bench<'_>) -> Judgement {
    let names = of_kinds(bench, &[TensorKind::Position]);
    if names.is_empty() {
        return absent("no table of positions is known in the model");
    }
    if let Some(why) = bench.skipped(Check::Shapes)? {
        return absent(why);
    }
    let wrong = misfits(bench, |finding| {
        finding.tensor.as_deref().is_some_and(|name| names.contains(&name))
    })?;
    if let Some(text) = first(&wrong) {
        return failed(text);
    }
    if !bench.has_configuration() {
        return absent(NO_CONFIGURATION);
    }
    let positions = (CONTEXT + 1) as u64;
    let shape = format!("[{positions}, 32]");
    let seen = refused_model(bench, Made::gpt2(), ("n_positions", positions), POSITIONS, &shape)?;
    passed(format!(
        "{} with as many rows as the configuration has positions; of a test model: {seen}",
        counted(names.len() as u64, "table")
    ))
}

/// Creates a test file with a filterbank of 80 mels and a configuration for `wanted` mels.
fn with_filterbank(wanted: u64) -> Vec<u8> {
    let metadata =
        serde_json::json!({ "apr_version": "2.0.0", "architecture": { "num_mel_bins": wanted } });
    let bank = floats(keys::MEL_FILTERBANK_TENSOR, &[80, 4], &[0.25; 320]);
    sound().metadata(metadata.to_string()).entry(bank).build()
}

pub(crate) fn mels(bench: &Bench<'_>) -> Judgement {
    let is_misfit = |finding: &Finding| {
        finding.check == Check::Shapes && finding.level == Level::Error && is_of_mels(finding)
    };
    let seen = found(with_filterbank(80), with_filterbank(128), is_misfit)?;
    if let Some(text) = first(&bench.findings(is_misfit)?) {
        return failed(text);
    }
    let infos = bench.reader().tensors();
    let Some(bank) = infos.iter().find(|info| info.name == keys::MEL_FILTERBANK_TENSOR) else {
        return absent("the model has no mel filterbank");
    };
    let config = bench.reader().metadata().object(keys::ARCHITECTURE);
    let wanted = ["num_mel_bins", "n_mels"];
    let wanted = config.and_then(|config| wanted.iter().find_map(|key| config.get(*key)?.as_u64()));
    let Some(wanted) = wanted else {
        return absent("no configuration states the number of mel bands");
    };
    passed(format!("{} is {}, for {wanted} mels; of a test file: {seen}", bank.name, bank.shape))
}
