//! Points 76 to 78, 80 and 84 to 95: what an import takes, checks and brings along.

use std::fs;
use std::path::Path;

use apr::{ImportOptions, Model, apr_import};
use apr_core::Code;
use apr_ops::job::{JobError, JobReport};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};
use apr_testkit::torch;
use serde_json::Value;

use crate::bench::{Bench, NO_PROGRAM};
use crate::judge::files::named;
use crate::judge::tooling;
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{CONTEXT, FUSED, HIDDEN, Made, VOCABULARY, bytes_of, spread};

/// A query projection.
const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";

/// Imports a test model into a separate folder. Returns the report and the file.
fn imported(bench: &Bench<'_>, llama: &Made) -> Result<(JobReport, Model), Fault> {
    let folder = bench.folder_of(llama)?;
    let target = bench.folder()?.join("test.apr");
    let report = import(&folder, &target)?;
    Ok((report, Model::open(&target)?))
}

fn import(source: &Path, target: &Path) -> Result<JobReport, Fault> {
    let source = source.to_str().ok_or_else(|| Fault::new("the temporary folder has no name"))?;
    Ok(apr_import(source, target, ImportOptions::default())?)
}

/// Returns the error of importing a broken test model.
fn refusal(bench: &Bench<'_>, llama: &Made) -> Result<JobError, Fault> {
    let folder = bench.folder_of(llama)?;
    let target = bench.folder()?.join("test.apr");
    let error = apr::convert(&folder).write(&target).err();
    let error = error.ok_or_else(|| Fault::new("the broken model was imported"))?;
    ensure(!target.exists(), "an output exists")?;
    Ok(error)
}

/// Writes a broken file with these bytes, and returns the error of opening it.
fn unopened(bench: &Bench<'_>, name: &str, bytes: &[u8]) -> Result<apr_core::Error, Fault> {
    let path = bench.folder()?.join(name);
    fs::write(&path, bytes)?;
    Model::open(&path).err().ok_or_else(|| Fault::new("the broken file was opened"))
}

pub(crate) fn safetensors(bench: &Bench<'_>) -> Judgement {
    let mut made = Made::llama();
    let (report, model) = imported(bench, &made)?;
    let count = report.conversion.tensors.len();
    ensure(count == made.tensors.len(), format!("{count} tensors of a test file were imported"))?;
    let values: Vec<f32> = model.tensor("layers.0.attn.q_proj.weight")?.to_vec()?;
    let own = made.weights(QUERY).map(|weights| &weights.values);
    ensure(own == Some(&values), "a query projection was imported with other values")?;

    let text = b"This is a letter, and no model at all.\n";
    let seen = unopened(bench, "model.safetensors", text)?;
    ensure(is_no_model(&seen), format!("another error: {seen}"))?;
    passed(format!(
        "{count} tensors of a test file are imported, with the same values; a letter: {}",
        seen.message()
    ))
}

/// Returns `true` if an error is about the content of a file.
fn is_no_model(error: &apr_core::Error) -> bool {
    matches!(error.code(), Code::Format | Code::Corrupt | Code::Memory)
}

/// A pickle that would list the folder, if anything loaded it.
const MALICIOUS: &[u8] = b"\x80\x02cos\nsystem\n(S'ls'\ntR.";

pub(crate) fn pytorch(bench: &Bench<'_>) -> Judgement {
    let path = bench.folder()?.join("model.pt");
    fs::write(&path, torch::checkpoint(&torch::tensor("FloatStorage", 2, 0, &[2], &[1])))?;
    let target = bench.folder()?.join("test.apr");
    let report = import(&path, &target)?;
    ensure(
        report.conversion.tensors.len() == 1,
        "a test checkpoint was imported with other tensors",
    )?;
    let values: Vec<f32> = Model::open(&target)?.tensor("w")?.to_vec()?;
    let own = [[1, 2, 3, 4], [5, 6, 7, 8]].map(f32::from_le_bytes);
    ensure(values == own, format!("the values of a test checkpoint are {values:?}"))?;

    // By itself, and within the archive that torch.save writes.
    let mut seen = String::new();
    for file in [torch::checkpoint(MALICIOUS), MALICIOUS.to_vec()] {
        let error = unopened(bench, "model.bin", &file)?;
        let is_named = error.code() == Code::Format && error.message().contains("os.system");
        ensure(is_named, format!("another error: {error}"))?;
        error.message().clone_into(&mut seen);
    }
    passed(format!(
        "a test checkpoint is imported, with the same values; a pickle that calls os.system, in an \
         archive and by itself: {seen}"
    ))
}

pub(crate) fn gguf(bench: &Bench<'_>) -> Judgement {
    let path = bench.folder()?.join("made.gguf");
    apr::convert(bench.folder_of(&Made::llama())?).format(&apr::format::GGUF).write(&path)?;
    let report = import(&path, &bench.folder()?.join("test.apr"))?;
    let family = report.family.map(|family| family.title).unwrap_or_default();
    ensure(family == "LLaMA", format!("another family was detected: '{family}'"))?;

    let values = bytes_of(&spread(3, 64));
    let strange = GgufBuilder::new()
        .text("general.architecture", "strange")
        .entry(GgufEntry::new("net.weight", 0, &[32, 2], &values))
        .build();
    fs::write(&path, strange)?;
    match apr::convert(&path).to_bytes() {
        Err(JobError::Misfit { misfits, .. }) => {
            let why = misfits.first().map(|misfit| misfit.message.clone()).unwrap_or_default();
            passed(format!("a test LLaMA is imported; of another architecture: {why}"))
        }
        Err(error) => failed(format!("another error: {error}")),
        Ok(_) => failed("an unknown architecture was imported"),
    }
}

pub(crate) fn mapping(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Made::llama())?;
    let canonical = "layers.0.attn.q_proj.weight";
    ensure(has(&model, canonical), format!("there is no {canonical}"))?;
    let renamed = Made::llama().with(QUERY, |weights| weights.name = QUERY.replace(".0.", ".7."));
    let seen = misfit(bench, &renamed)?;
    passed(format!("q_proj became {canonical}; in a layer beyond the last: {seen}"))
}

fn has(model: &Model, name: &str) -> bool {
    model.tensors().iter().any(|info| info.name == name)
}

/// The first thing that does not fit in a model that is refused.
fn misfit(bench: &Bench<'_>, llama: &Made) -> Result<String, Fault> {
    match refusal(bench, llama)? {
        JobError::Misfit { misfits, .. } => {
            let first = misfits.first().ok_or_else(|| Fault::new("the report gives no reason"))?;
            Ok(format!("tensor '{}': {}", first.tensor, first.message))
        }
        error => Err(Fault(format!("another error: {error}"))),
    }
}

/// An entry of a model's metadata.
fn entry<'m>(model: &'m Model, key: &str) -> &'m Value {
    model.reader().metadata().get(key).unwrap_or(&Value::Null)
}

pub(crate) fn tokens(bench: &Bench<'_>) -> Judgement {
    let size = |tokens: usize| -> Result<(Option<u64>, Vec<String>), Fault> {
        let (report, model) = imported(bench, &Made::llama().with_tokenizer(tokens))?;
        Ok((entry(&model, "tokenizer.vocab_size").as_u64(), report.conversion.warnings))
    };
    let (whole, _) = size(VOCABULARY)?;
    ensure(whole == Some(VOCABULARY as u64), format!("{whole:?} tokens were imported"))?;
    let (cut, warnings) = size(VOCABULARY / 2)?;
    ensure(cut == Some(VOCABULARY as u64 / 2), format!("{cut:?} tokens were imported"))?;
    let said = warnings.iter().find(|warning| warning.contains("is it complete?"));
    let said = said.ok_or_else(|| Fault::new("half a vocabulary was not reported"))?;
    passed(format!(
        "all {VOCABULARY} tokens of a test model were imported; with half of them: {said}"
    ))
}

pub(crate) fn special_tokens(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Made::llama().with_tokenizer(VOCABULARY))?;
    for (role, id) in [("unk", 0), ("bos", 1), ("eos", 2)] {
        let found = entry(&model, &format!("tokenizer.{role}_token_id"));
        ensure(found == &Value::from(id), format!("{role} is {found}, not {id}"))?;
    }
    passed("unk, bos and eos of a test model are 0, 1 and 2, as in its tokenizer")
}

pub(crate) fn card(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Made::llama())?;
    let (licence, card) = (entry(&model, "license"), entry(&model, "model_card"));
    ensure(licence == "mit", format!("the licence is {licence}"))?;
    ensure(card.is_object(), format!("the model card is {card}"))?;
    let bare = Made { files: Vec::new(), ..Made::llama() };
    let (report, _) = imported(bench, &bare)?;
    let said = report.conversion.warnings.iter().find(|warning| warning.contains("licence"));
    let said = said.ok_or_else(|| Fault::new("a missing licence was not reported"))?;
    passed(format!("licence and card of a test model are in its metadata; without: {said}"))
}

pub(crate) fn normalized(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Made::llama())?;
    let prefixed = model.tensors().iter().find(|info| info.name.starts_with("model."));
    match prefixed {
        Some(info) => failed(format!("'{}' kept its prefix", info.name)),
        None => passed(format!("none of {} names starts with 'model.'", model.tensors().len())),
    }
}

/// A tensor on its way to GGUF and back.
struct Way {
    /// Values in the source, row by row.
    source: Vec<f32>,
    /// Values in the GGUF file.
    gguf: Vec<f32>,
    /// Values in the safetensors file that is converted from the GGUF file.
    back: Vec<f32>,
}

/// Takes a made model to GGUF and back, and one of its tensors out of each.
fn way(bench: &Bench<'_>, mut made: Made, name: &str, in_gguf: &str) -> Result<Way, Fault> {
    let path = bench.folder()?.join("made.gguf");
    apr::convert(bench.folder_of(&made)?).format(&apr::format::GGUF).write(&path)?;
    let target = bench.folder()?.join("back");
    apr::convert(&path).format(&apr::format::SAFETENSORS).write(&target)?;
    let values = |path: &Path, name: &str| -> Result<Vec<f32>, Fault> {
        Ok(Model::open(path)?.tensor(name)?.to_vec()?)
    };
    let source = made.weights(name).map(|weights| weights.values.clone()).unwrap_or_default();
    let (gguf, back) = (values(&path, in_gguf)?, values(&target, name)?);
    Ok(Way { source, gguf, back })
}

pub(crate) fn transposed(bench: &Bench<'_>) -> Judgement {
    let Way { source, gguf, back } = way(bench, Made::gpt2(), FUSED, "blk.0.attn_qkv.weight")?;
    let columns = 3 * HIDDEN;
    let turned: Vec<f32> =
        (0..source.len()).map(|at| source[at % HIDDEN * columns + at / HIDDEN]).collect();
    ensure(gguf == turned, "a projection of GPT-2 was not transposed for GGUF")?;
    // Taken as they lie in the GGUF file, the values would be others.
    ensure(gguf != source, "the projection equals its own transpose, so the test shows nothing")?;
    ensure(back == source, "a projection of GPT-2 was not transposed back")?;

    let name = "model.layers.0.mlp.down_proj.weight";
    let turned = Made::llama().with(name, |weights| weights.shape.reverse());
    passed(format!(
        "a test GPT-2's projection is transposed in GGUF, and as it was in safetensors made of \
         that; a test weight that is turned itself: {}",
        misfit(bench, &turned)?
    ))
}

/// The mean of values.
fn mean(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value)).sum::<f64>() / values.len().max(1) as f64
}

pub(crate) fn scaled(bench: &Bench<'_>) -> Judgement {
    let name = "model.norm.weight";
    let Way { source, gguf, back } = way(bench, Made::gemma(), name, "output_norm.weight")?;
    let [own, shifted] = [&source, &gguf].map(|values| mean(values));
    let drift = shifted - own;
    ensure((drift - 1.0).abs() < 1e-6, format!("a norm in GGUF is {drift} larger, not 1"))?;
    let off = source.iter().zip(&back).map(|(own, back)| (own - back).abs()).fold(0.0, f32::max);
    let is_back = source.len() == back.len() && off < 1e-6;
    ensure(is_back, format!("a norm differs by {off} after the round trip"))?;
    let seen = match refusal(bench, &tooling::scaled())? {
        JobError::Unhealthy { error, .. } => error,
        error => return failed(format!("another error: {error}")),
    };
    passed(format!(
        "the mean of a test Gemma's norm is {own:.3}, in GGUF {shifted:.3}, and as it was in \
         safetensors made of that; a norm 11 times as large: {seen}"
    ))
}

pub(crate) fn shards(bench: &Bench<'_>) -> Judgement {
    let (folder, cut) = (bench.folder_of(&Made::llama())?, bench.folder()?.join("cut"));
    let written =
        apr::convert(&folder).format(&apr::format::SAFETENSORS).shard_size(16 << 10).write(&cut)?;
    let files = written.conversion.files;
    let shard = files.iter().find(|file| file.name.contains("-00002-of-"));
    let shard = shard.ok_or_else(|| Fault::new("the model was not sharded"))?;
    let report = import(&cut, &bench.folder()?.join("test.apr"))?;
    ensure(report.conversion.tensors.len() == 12, "the shards contain other tensors")?;
    fs::remove_file(cut.join(&shard.name))?;
    let error = apr::convert(&cut).to_bytes().err();
    let error = error.ok_or_else(|| Fault::new("a model without a shard was imported"))?;
    let text = named(&error.to_string(), &cut);
    ensure(text.contains(&shard.name), format!("the error does not name the shard: {text}"))?;
    passed(format!("12 tensors of {} files; without one: {text}", files.len()))
}

pub(crate) fn no_network(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    // Nothing listens at the port that discards.
    let environment = [("HF_ENDPOINT", "http://127.0.0.1:9"), ("NO_PROXY", "127.0.0.1")];
    let arguments = ["import", "hf://made/model", "-o", "test.apr"];
    let Some(output) = bench.apr(&folder, &arguments, &environment)? else {
        return absent(NO_PROGRAM);
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.lines().next().unwrap_or_default();
    ensure(!output.status.success() && !folder.join("test.apr").exists(), "it succeeded")?;
    ensure(said.contains("E007"), format!("another error: {said}"))?;
    passed(format!("without a hub: {said}"))
}

pub(crate) fn cached(_: &Bench<'_>) -> Judgement {
    absent("requires a hub; the tests of apr run one")
}

pub(crate) fn sha256(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder_of(&Made::llama())?;
    let source = apr_io::FileSource::open(folder.join("model.safetensors"))?;
    let digest = apr_ops::sha256(&source, &apr_core::Serial, &())?;
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let run = |digest: &str| {
        let arguments = ["import", "model.safetensors", "-o", "test.apr", "-f", "--sha256", digest];
        bench.apr(&folder, &arguments, &[])
    };
    let (Some(right), Some(wrong)) = (run(&hex)?, run(&"0".repeat(64))?) else {
        return absent(NO_PROGRAM);
    };
    let said = String::from_utf8_lossy(&right.stderr).into_owned();
    ensure(right.status.success(), format!("the correct digest was rejected: {said}"))?;
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure(said.contains("E004"), format!("another digest: {said}"))?;
    passed("a test source is imported with its SHA-256, and rejected with another (E004)")
}

pub(crate) fn licence(bench: &Bench<'_>) -> Judgement {
    let with = |licence: &str| -> Result<Option<String>, Fault> {
        let card = format!("---\nlicense: {licence}\n---\n# A test model\n");
        let files = vec![("README.md".to_owned(), card.into_bytes())];
        let (report, _) = imported(bench, &Made { files, ..Made::llama() })?;
        let mut warnings = report.conversion.warnings.into_iter();
        Ok(warnings.find(|warning| warning.contains("forbids commercial use")))
    };
    ensure(with("apache-2.0")?.is_none(), "apache-2.0 gives a warning")?;
    let said = with("cc-by-nc-4.0")?.ok_or_else(|| Fault::new("cc-by-nc-4.0 gives no warning"))?;
    passed(format!("apache-2.0 gives no warning; cc-by-nc-4.0: {said}"))
}

pub(crate) fn family(bench: &Bench<'_>) -> Judgement {
    let mut untold = Made::llama();
    untold.config = serde_json::json!({ "max_position_embeddings": CONTEXT });
    for llama in [&Made::llama(), &untold] {
        let (report, _) = imported(bench, llama)?;
        let title = report.family.map(|family| family.title).unwrap_or_default();
        ensure(title == "LLaMA", format!("a test LLaMA was detected as '{title}'"))?;
    }
    let mut unknown = Made::llama();
    for weights in &mut unknown.tensors {
        weights.name = weights.name.replace("model.", "net.").replace("proj", "p");
    }
    unknown.config = serde_json::json!({ "model_type": "made" });
    let (report, _) = imported(bench, &unknown)?;
    ensure(report.family.is_none(), "unknown names have a family")?;

    let told = |made: &Made| -> Result<Option<String>, Fault> {
        let folder = bench.folder_of(made)?;
        let output = bench.apr(&folder, &["import", ".", "-o", "test.apr"], &[])?;
        Ok(output.map(|output| {
            let lines = [output.stdout, output.stderr].concat();
            let lines = String::from_utf8_lossy(&lines).into_owned();
            let said = lines.lines().find(|line| line.contains("unknown family"));
            said.unwrap_or_default().trim().to_owned()
        }))
    };
    let (Some(known), Some(said)) = (told(&Made::llama())?, told(&unknown)?) else {
        return absent(NO_PROGRAM);
    };
    ensure(known.is_empty(), format!("a test LLaMA gives a warning: {known}"))?;
    ensure(said.contains("--arch"), "an unknown family is imported without a warning")?;
    passed(format!(
        "a test LLaMA is found by its configuration and by its names; of other names: {said}"
    ))
}
