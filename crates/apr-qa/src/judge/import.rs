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
use crate::made::{CONTEXT, Llama, VOCABULARY, bytes_of, spread};

/// A query projection.
const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";

/// The import of a made model, in a folder of its own: what was reported, and the file.
fn imported(bench: &Bench<'_>, llama: &Llama) -> Result<(JobReport, Model), Fault> {
    let folder = bench.folder()?;
    llama.write(&folder)?;
    let target = bench.folder()?.join("made.apr");
    let report = import(&folder, &target)?;
    Ok((report, Model::open(&target)?))
}

fn import(source: &Path, target: &Path) -> Result<JobReport, Fault> {
    let source = source.to_str().ok_or_else(|| Fault::new("the temporary folder has no name"))?;
    Ok(apr_import(source, target, ImportOptions::default())?)
}

/// Why the import of a made model is refused.
fn refusal(bench: &Bench<'_>, llama: &Llama) -> Result<JobError, Fault> {
    let folder = bench.folder()?;
    llama.write(&folder)?;
    let target = bench.folder()?.join("made.apr");
    let error = apr::convert(&folder).write(&target).err();
    let error = error.ok_or_else(|| Fault::new("the broken model was imported"))?;
    ensure(!target.exists(), "an output was left")?;
    Ok(error)
}

/// A file of these bytes, and what opening it ends with.
fn unopened(bench: &Bench<'_>, name: &str, bytes: &[u8]) -> Result<apr_core::Error, Fault> {
    let path = bench.folder()?.join(name);
    fs::write(&path, bytes)?;
    Model::open(&path).err().ok_or_else(|| Fault::new("the broken file was opened"))
}

pub(crate) fn safetensors(bench: &Bench<'_>) -> Judgement {
    let (report, _) = imported(bench, &Llama::new())?;
    let text = b"This is a letter, and no model at all.\n";
    let seen = unopened(bench, "model.safetensors", text)?;
    let count = report.conversion.tensors.len();
    passed(format!("{count} tensors of a made file are imported; a letter: {}", seen.message()))
}

pub(crate) fn pytorch(bench: &Bench<'_>) -> Judgement {
    let path = bench.folder()?.join("model.pt");
    fs::write(&path, torch::checkpoint(&torch::tensor("FloatStorage", 2, 0, &[2], &[1])))?;
    let target = bench.folder()?.join("made.apr");
    let report = import(&path, &target)?;
    ensure(report.conversion.tensors.len() == 1, "a made checkpoint has another tensor")?;
    // It would list the folder, if anything loaded it.
    let seen = unopened(bench, "model.bin", b"\x80\x02cos\nsystem\n(S'ls'\ntR.")?;
    ensure(
        seen.code() == Code::Format && seen.message().contains("os.system"),
        format!("another error: {seen}"),
    )?;
    passed(format!("a made checkpoint is imported; one that calls os.system: {}", seen.message()))
}

pub(crate) fn gguf(bench: &Bench<'_>) -> Judgement {
    let (folder, path) = (bench.folder()?, bench.folder()?.join("made.gguf"));
    Llama::new().write(&folder)?;
    apr::convert(&folder).format(&apr::format::GGUF).write(&path)?;
    let report = import(&path, &bench.folder()?.join("made.apr"))?;
    let family = report.family.map(|family| family.title).unwrap_or_default();
    ensure(family == "LLaMA", format!("the family is said to be '{family}'"))?;

    let values = bytes_of(&spread(3, 64));
    let strange = GgufBuilder::new()
        .text("general.architecture", "strange")
        .entry(GgufEntry::new("net.weight", 0, &[32, 2], &values))
        .build();
    fs::write(&path, strange)?;
    match apr::convert(&path).to_bytes() {
        Err(JobError::Misfit { misfits, .. }) => {
            let why = misfits.first().map(|misfit| misfit.message.clone()).unwrap_or_default();
            passed(format!("a made LLaMA is imported; of another architecture: {why}"))
        }
        Err(error) => failed(format!("another error: {error}")),
        Ok(_) => failed("an architecture that nobody knows was imported"),
    }
}

pub(crate) fn mapping(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Llama::new())?;
    let canonical = "layers.0.attn.q_proj.weight";
    ensure(has(&model, canonical), format!("there is no {canonical}"))?;
    let renamed = Llama::new().with(QUERY, |weights| weights.name = QUERY.replace(".0.", ".7."));
    let seen = misfit(bench, &renamed)?;
    passed(format!("q_proj became {canonical}; in a layer that is not there: {seen}"))
}

fn has(model: &Model, name: &str) -> bool {
    model.tensors().iter().any(|info| info.name == name)
}

/// The first thing that does not fit in a model that is refused.
fn misfit(bench: &Bench<'_>, llama: &Llama) -> Result<String, Fault> {
    match refusal(bench, llama)? {
        JobError::Misfit { misfits, .. } => {
            let first = misfits.first().ok_or_else(|| Fault::new("nothing says why"))?;
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
        let (report, model) = imported(bench, &Llama::new().with_tokenizer(tokens))?;
        Ok((entry(&model, "tokenizer.vocab_size").as_u64(), report.conversion.warnings))
    };
    let (whole, _) = size(VOCABULARY)?;
    ensure(whole == Some(VOCABULARY as u64), format!("{whole:?} tokens were imported"))?;
    let (cut, warnings) = size(VOCABULARY / 2)?;
    ensure(cut == Some(VOCABULARY as u64 / 2), format!("{cut:?} tokens were imported"))?;
    let said = warnings.iter().find(|warning| warning.contains("is it complete?"));
    let said = said.ok_or_else(|| Fault::new("nothing was said of half a vocabulary"))?;
    passed(format!("all {VOCABULARY} tokens of a made model; of half of them: {said}"))
}

pub(crate) fn special_tokens(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Llama::new().with_tokenizer(VOCABULARY))?;
    for (role, id) in [("unk", 0), ("bos", 1), ("eos", 2)] {
        let found = entry(&model, &format!("tokenizer.{role}_token_id"));
        ensure(found == &Value::from(id), format!("{role} is {found}, not {id}"))?;
    }
    passed("unk, bos and eos of a made model are 0, 1 and 2, as in its tokenizer")
}

pub(crate) fn card(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Llama::new())?;
    let (licence, card) = (entry(&model, "license"), entry(&model, "model_card"));
    ensure(licence == "mit", format!("the licence is {licence}"))?;
    ensure(card.is_object(), format!("the model card is {card}"))?;
    let bare = Llama { files: Vec::new(), ..Llama::new() };
    let (report, _) = imported(bench, &bare)?;
    let said = report.conversion.warnings.iter().find(|warning| warning.contains("licence"));
    let said = said.ok_or_else(|| Fault::new("nothing was said of a missing licence"))?;
    passed(format!("licence and card of a made model are in its metadata; without: {said}"))
}

pub(crate) fn normalized(bench: &Bench<'_>) -> Judgement {
    let (_, model) = imported(bench, &Llama::new())?;
    let prefixed = model.tensors().iter().find(|info| info.name.starts_with("model."));
    match prefixed {
        Some(info) => failed(format!("'{}' kept its prefix", info.name)),
        None => passed(format!("none of {} names starts with 'model.'", model.tensors().len())),
    }
}

pub(crate) fn transposed(bench: &Bench<'_>) -> Judgement {
    let name = "model.layers.0.mlp.down_proj.weight";
    let turned = Llama::new().with(name, |weights| weights.shape.reverse());
    passed(format!("a made weight turned around: {}", misfit(bench, &turned)?))
}

pub(crate) fn scaled(bench: &Bench<'_>) -> Judgement {
    match refusal(bench, &tooling::scaled())? {
        JobError::Unhealthy { error, .. } => {
            let (_, model) = imported(bench, &Llama::new())?;
            let values: Vec<f32> = model.tensor("norm.weight")?.to_vec()?;
            let mut own = Llama::new();
            let norm = own.weights("model.norm.weight").map(|weights| &weights.values);
            ensure(norm == Some(&values), "a norm came out with other values")?;
            passed(format!("a made norm keeps its values; 11 times as large: {error}"))
        }
        error => failed(format!("another error: {error}")),
    }
}

pub(crate) fn shards(bench: &Bench<'_>) -> Judgement {
    let (folder, cut) = (bench.folder()?, bench.folder()?.join("cut"));
    Llama::new().write(&folder)?;
    let written =
        apr::convert(&folder).format(&apr::format::SAFETENSORS).shard_size(16 << 10).write(&cut)?;
    let files = written.conversion.files;
    let shard = files.iter().find(|file| file.name.contains("-00002-of-"));
    let shard = shard.ok_or_else(|| Fault::new("the model was not cut"))?;
    let report = import(&cut, &bench.folder()?.join("made.apr"))?;
    ensure(report.conversion.tensors.len() == 12, "the shards have other tensors")?;
    fs::remove_file(cut.join(&shard.name))?;
    let error = apr::convert(&cut).to_bytes().err();
    let error = error.ok_or_else(|| Fault::new("a model without a shard was imported"))?;
    let text = named(&error.to_string(), &cut);
    ensure(text.contains(&shard.name), format!("the shard is not named: {text}"))?;
    passed(format!("12 tensors of {} files; without one: {text}", files.len()))
}

pub(crate) fn no_network(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    // Nothing listens at the port that discards.
    let environment = [("HF_ENDPOINT", "http://127.0.0.1:9"), ("NO_PROXY", "127.0.0.1")];
    let arguments = ["import", "hf://made/model", "-o", "made.apr"];
    let Some(output) = bench.apr(&folder, &arguments, &environment)? else {
        return absent(NO_PROGRAM);
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.lines().next().unwrap_or_default();
    ensure(!output.status.success() && !folder.join("made.apr").exists(), "it succeeded")?;
    ensure(said.contains("E007"), format!("another error: {said}"))?;
    passed(format!("where no hub answers: {said}"))
}

pub(crate) fn cached(_: &Bench<'_>) -> Judgement {
    absent("it takes a hub, and this program asks none; the tests of apr have one of their own")
}

pub(crate) fn sha256(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    Llama::new().write(&folder)?;
    let source = apr_io::FileSource::open(folder.join("model.safetensors"))?;
    let digest = apr_ops::sha256(&source, &apr_core::Serial, &())?;
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let run = |digest: &str| {
        let arguments = ["import", "model.safetensors", "-o", "made.apr", "-f", "--sha256", digest];
        bench.apr(&folder, &arguments, &[])
    };
    let (Some(right), Some(wrong)) = (run(&hex)?, run(&"0".repeat(64))?) else {
        return absent(NO_PROGRAM);
    };
    let said = String::from_utf8_lossy(&right.stderr).into_owned();
    ensure(right.status.success(), format!("the right digest was refused: {said}"))?;
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    ensure(said.contains("E004"), format!("another digest: {said}"))?;
    passed("a made source is imported by its SHA-256, and by another one refused (E004)")
}

pub(crate) fn licence(bench: &Bench<'_>) -> Judgement {
    let with = |licence: &str| -> Result<Option<String>, Fault> {
        let card = format!("---\nlicense: {licence}\n---\n# A made model\n");
        let files = vec![("README.md".to_owned(), card.into_bytes())];
        let (report, _) = imported(bench, &Llama { files, ..Llama::new() })?;
        let mut warnings = report.conversion.warnings.into_iter();
        Ok(warnings.find(|warning| warning.contains("forbids commercial use")))
    };
    ensure(with("apache-2.0")?.is_none(), "apache-2.0 is warned of")?;
    let said = with("cc-by-nc-4.0")?.ok_or_else(|| Fault::new("cc-by-nc-4.0 is not warned of"))?;
    passed(format!("apache-2.0 is not warned of; cc-by-nc-4.0: {said}"))
}

pub(crate) fn family(bench: &Bench<'_>) -> Judgement {
    let mut untold = Llama::new();
    untold.config = serde_json::json!({ "max_position_embeddings": CONTEXT });
    for llama in [&Llama::new(), &untold] {
        let (report, _) = imported(bench, llama)?;
        let title = report.family.map(|family| family.title).unwrap_or_default();
        ensure(title == "LLaMA", format!("a made LLaMA is taken for '{title}'"))?;
    }
    let mut unknown = Llama::new();
    for weights in &mut unknown.tensors {
        weights.name = weights.name.replace("model.", "net.").replace("proj", "p");
    }
    unknown.config = serde_json::json!({ "model_type": "made" });
    let (report, _) = imported(bench, &unknown)?;
    ensure(report.family.is_none(), "names that nobody knows have a family")?;
    passed("a made LLaMA is found by its configuration and by its names; others have no family")
}
