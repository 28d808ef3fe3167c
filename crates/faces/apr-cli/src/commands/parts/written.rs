//! Jobs that write: their parts are the shards of the model.

use std::path::{Path, PathBuf};

use apr::job::Output;
use apr_io::FileSource;
use apr_ops::job::{Job, JobError, Planned};
use apr_ops::parts::{
    Input, OutputPlan, PartResult, PartsPlan, Pinned, PlannedPart, Read, Sealing, WrittenFile,
    WrittenReport, bytes_digest, check_relative,
};
use apr_registry::apr2::{Encrypt, FOOTER_LEN};
use apr_registry::{
    ByteSource, CheckpointReader, Code, Error, Escaped, FileInfo, PlanOptions, Sharding, read_vec,
};
use apr_view::integrity::Mismatch;
use base16ct::lower::{decode_vec, encode_string};

use super::draft::Draft;
use super::on_disk::OpenPlan;
use super::words::{parsed, values};
use super::{gates, input};
use crate::args::{Command, MergeArgs, PlanArgs};
use crate::commands::merge::{self, Made};
use crate::commands::{convert, encrypt, quantize, weights};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model::Model;
use crate::progress::Bar;
use crate::{secrets, signals};

/// Job that writes an output, with its inputs.
struct Writing<'w> {
    job: &'w Job,
    reader: &'w dyn CheckpointReader,
    name: &'w str,
    /// Models as they are on disk, or as the job changed them before it writes them.
    inputs: Vec<&'w Model>,
    /// For each file of the reader, the indices of the input and of the file in that input.
    files: Vec<(usize, usize)>,
    context: &'w Context,
}

/// Calls `then` with the job of a command that writes; `folder` is the plan's folder.
fn with_writing<R>(
    command: Command,
    folder: &Path,
    context: &Context,
    then: impl FnOnce(Writing<'_>) -> Outcome<R>,
) -> Outcome<R> {
    let (job, model) = match command {
        Command::Convert(args)
        | Command::Prune(args)
        | Command::Factorize(args)
        | Command::Distill(args) => {
            weights::check_for_parts(&args.requantize.options)?;
            convert::convert_job(&args, context)?
        }
        Command::Import(args) => {
            weights::check_for_parts(&args.requantize.options)?;
            convert::import_job(&args, context)?
        }
        Command::Quantize(args) => {
            weights::check_for_parts(&args.options)?;
            quantize::job(&args, context)?
        }
        Command::Encrypt(args) => encrypt::encrypt_job(&args, context)?,
        Command::Merge(mut args) => {
            weights::check_for_parts(&args.requantize.options)?;
            folder.clone_into(&mut args.plan_folder);
            return with_merge(&args, context, then);
        }
        _ => return Err(Failure::Usage("this command does not write a model".to_owned())),
    };
    let files = (0..model.reader.files().len()).map(|file| (0, file)).collect();
    let (job, reader, name) = (&job, &*model.reader, model.name.as_str());
    then(Writing { job, reader, name, inputs: vec![&model], files, context })
}

fn check_merge(args: &MergeArgs) -> Outcome {
    let is_yaml = |path: &Path| path.extension().is_some_and(|end| end == "yml" || end == "yaml");
    if args.models.iter().any(|path| is_yaml(path)) {
        let message = "in parts, a configuration is given as --config FILE";
        return Err(Failure::Usage(message.to_owned()));
    }
    Ok(())
}

fn with_merge<R>(
    args: &MergeArgs,
    context: &Context,
    then: impl FnOnce(Writing<'_>) -> Outcome<R>,
) -> Outcome<R> {
    check_merge(args)?;
    context.sources.expect_whole();
    merge::with_made(args, context, |made| {
        let Made { job, reader, name, inputs, files, context, .. } = made;
        then(Writing { job, reader, name, inputs, files, context })
    })
}

/// Plans a job that writes an output; `plan` describes the job.
pub(super) fn plan(
    args: &PlanArgs,
    mut plan: PartsPlan,
    folder: &Path,
    context: &Context,
) -> Outcome<Draft> {
    for option in ["model", "models", "base"] {
        input::pin(&mut plan.job, option, context)?;
    }
    let cli = parsed(&plan.job, folder)?;
    let context = context.of_job(&cli);
    gates::check(&plan.job, folder, &context)?;
    with_writing(cli.command, folder, &context, |writing| draft(args, plan, folder, &writing))
}

fn draft(
    args: &PlanArgs,
    mut plan: PartsPlan,
    folder: &Path,
    writing: &Writing<'_>,
) -> Outcome<Draft> {
    let Writing { job, reader, name, context, .. } = *writing;
    let output = output_of(&plan, job)?;
    let source = context.source(reader, name)?;
    let planned = job.plan(&source)?;
    planned.check()?;
    let size = size_of(&planned, job, args)?;
    drop(planned);

    // The first plan tells the size of shards; the second one cuts by it.
    let target = PlanOptions { shard_size: Some(size), ..job.target.clone() };
    let job = Job { target, ..job.clone() };
    let replace = plan.job.options.contains_key("overwrite");
    let planned = job.plan(&source)?;
    let path = folder.join(&output);

    // Nothing is written to it: an output that can't be made is found before parts run.
    drop(Output::create(
        &path,
        planned.target(),
        &planned.report().files,
        replace,
        &context.interrupt,
    )?);
    let told = convert::show_warnings(&planned, context);
    plan.parts = parts(&planned, writing);
    let manifest = planned.manifest().and_then(|manifest| serde_json::from_slice(&manifest).ok());
    plan.output = Some(OutputPlan { path: output.clone(), shard_size: size, manifest });
    let warnings: Vec<String> = planned.report().warnings.iter().take(told).cloned().collect();
    plan.inputs = inputs(&plan, args, folder, writing)?;
    context.sources.check_unchanged()?;
    if let Some(encryption) = &job.target.apr2.encryption {
        let block = secrets::shared_block(encryption, &plan.authenticated());
        plan.encryption = Some(Sealing { block: encode_string(&block) });
    }

    let notes = writing.inputs.iter().flat_map(|model| model.notes.clone()).collect();
    let warnings = [warnings, notes, context.tell_notes()].concat();
    Ok(Draft { plan, warnings })
}

/// Returns the plan's descriptions of the models.
fn inputs(
    plan: &PartsPlan,
    args: &PlanArgs,
    folder: &Path,
    writing: &Writing<'_>,
) -> Outcome<Vec<Input>> {
    let Writing { inputs, context, .. } = writing;
    if let [model] = inputs[..]
        && !is_merge(plan)
    {
        let path = values(&plan.job, "model").first().copied().unwrap_or_default();
        return Ok(vec![input::describe(model, path, !args.no_digests, context)?]);
    }
    let describe = |model: &&Model| {
        let path = Path::new(&model.name);
        let path = path.strip_prefix(folder).unwrap_or(path).display().to_string();
        // Several models: to read them for digests would be the job itself.
        input::describe(model, &path, false, context)
    };
    inputs.iter().map(describe).collect()
}

fn is_merge(plan: &PartsPlan) -> bool {
    plan.job.command == "merge"
}

/// Returns the path of the output, below the folder of the plan.
fn output_of(plan: &PartsPlan, job: &Job) -> Outcome<String> {
    if job.target.target()?.sharding != Sharding::Manifest {
        let message = "parts are shards of an .apr model: pass an output that ends in .apr, and \
                       `apr convert` the finished model";
        return Err(Failure::Usage(message.to_owned()));
    }

    let output = values(&plan.job, "output").first().copied().unwrap_or_default();
    check_relative(output).map_err(|_| {
        let output = Escaped(output);
        Failure::Usage(format!(
            "the output '{output}' is not below the folder of the plan: write the plan next to \
             the output, or above it"
        ))
    })?;
    Ok(output.to_owned())
}

/// Returns the maximum bytes of a shard: the smallest of the requested limits.
fn size_of(planned: &Planned<'_>, job: &Job, args: &PlanArgs) -> Outcome<u64> {
    let for_parts = args.parts.map(|parts| planned.shard_size_for(parts)).transpose()?;
    let sizes = [for_parts, args.max_part, job.target.shard_size];
    // One of the first two is always given.
    Ok(sizes.into_iter().flatten().min().unwrap_or(u64::MAX))
}

/// A part for each shard.
fn parts(planned: &Planned<'_>, writing: &Writing<'_>) -> Vec<PlannedPart> {
    let files = &planned.report().files;

    // The manifest comes last.
    let count = if planned.manifest().is_some() { files.len() - 1 } else { files.len() };
    let mut reads = vec![Vec::new(); count];
    for place in &planned.places().tensors {
        let of_tensor = planned.reads(place.source).into_iter();
        let read = |range| {
            let read = read_of(range, writing.reader.files());
            let (input, file) = writing.files.get(read.file).copied().unwrap_or_default();
            Read { input, file, ..read }
        };
        reads[place.file].extend(of_tensor.map(read));
    }

    let part = |(file, reads): (&FileInfo, Vec<Read>)| PlannedPart {
        file: Some(file.name.clone()),
        size: Some(file.len),
        units: None,
        reads: Read::joined(reads),
    };

    files.iter().zip(reads).map(part).collect()
}

/// Returns the bytes of a file for a range: the whole file if the range refers to decoded bytes.
pub(super) fn read_of(range: apr_core::StoredRange, files: &[FileInfo]) -> Read {
    let apr_core::StoredRange { file, offset, len } = range;
    let size = files.get(file).map_or(0, |file| file.len);
    let is_within = offset.checked_add(len).is_some_and(|end| end <= size);
    let (offset, len) = if is_within { (offset, len) } else { (0, size) };
    Read { input: 0, file, offset, len }
}

/// Returns the encryption of all parts, with the key that was passed to this run.
pub(super) fn encryption(plan: &PartsPlan, context: &Context) -> Outcome<Option<Encrypt>> {
    let Some(Sealing { block }) = &plan.encryption else { return Ok(None) };
    let bytes = decode_vec(block)
        .map_err(|_| Error::format("the plan's ENCR block is not hexadecimal digits"))?;
    if context.options.keys.unlock.is_empty() {
        return Err(secrets::locked(context.key.as_deref(), "the plan's output"));
    }
    secrets::shared_encryption(&bytes, &plan.authenticated(), &context.options.keys).map(Some)
}

/// Writes the shard of a part.
pub(super) fn run(open: &OpenPlan, part: usize, context: &Context) -> Outcome<PartResult> {
    let plan = &open.plan;
    output(plan)?;
    let (cli, mut context) = open.job(context)?;
    context.encryption = encryption(plan, &context)?;
    if let Some(encrypt) = &mut context.encryption {
        // A part that is done once more may have other content: an input can change unseen.
        secrets::renew(encrypt)?;
    }
    with_writing(cli.command, open.folder(), &context, |writing| run_in(open, part, &writing))
}

fn run_in(open: &OpenPlan, part: usize, writing: &Writing<'_>) -> Outcome<PartResult> {
    let plan = &open.plan;
    let output = output(plan)?;
    let Writing { job, reader, name, context, .. } = *writing;
    if plan.inputs.len() != writing.inputs.len() {
        return Err(Error::format("the plan's inputs are not its job's").into());
    }
    let mut models = plan.inputs.iter().zip(&writing.inputs);
    models.try_for_each(|(input, model)| input::check(input, model, context))?;
    input::check_settings(open)?;
    let digests = match &plan.inputs[..] {
        [input] if !is_merge(plan) => input.digests()?,
        _ => Vec::new(),
    };
    let input = writing.inputs.first().map_or(reader, |model| &*model.reader);
    let pinned = Pinned::new(reader, input, digests);
    let shard = output.manifest.is_some().then_some(part);
    let target = PlanOptions { shard_size: Some(output.shard_size), shard, ..job.target.clone() };
    let job = Job { target, ..job.clone() };
    let source = context.source(&pinned, name)?;
    let path = open.folder().join(&output.path);
    let planned = job.plan(&source)?;
    check_same(plan, part, &planned)?;
    let files = planned.report().files.iter();
    files
        .map(|file| path.with_file_name(&file.name))
        .try_for_each(|path| open.check_inside(&path))?;
    signals::stop_cleanly(&context.interrupt)?;
    let (target, files) = (planned.target(), &planned.report().files);
    let bar = Bar::new(&context.printer, planned.report().bytes_in);
    // The plan has claimed the names: what a run that was ended left there is replaced.
    let output = Output::create(&path, target, files, true, &context.interrupt)?;
    let pipeline = context.pipeline()?;
    let mut written = output.run(planned, &context.sources, &pipeline, &bar).map_err(changed)?;
    if shard.is_none() {
        // The only part is the whole model, and appears here.
        let judged = gates::judge(open, &|| Ok(written.open(&context.options)?), context)?;
        written.judged(judged.drift, judged.warnings);
    }
    let report = written.commit()?;
    report.conversion.warnings.iter().for_each(|warning| context.printer.detail(warning));
    let name = plan.parts[part].file.clone().unwrap_or_default();
    let file = FileSource::open(path.with_file_name(&name))?;
    let blake3 = encode_string(&bytes_digest(&file, &context.pipeline()?, &())?);
    let file = WrittenFile { name, bytes: file.len(), blake3 };
    let report = serde_json::to_value(WrittenReport::from(&report.conversion));
    let report = report.map_err(|error| Failure::General(error.to_string()))?;
    Ok(PartResult::new(open.digest.clone(), part, Some(file), report))
}

fn output(plan: &PartsPlan) -> Outcome<&OutputPlan> {
    plan.output
        .as_ref()
        .ok_or_else(|| Error::format("the plan has no output, but its job writes").into())
}

/// A digest that does not match is the plan's. A checksum of the file was wrong before.
fn changed(error: JobError) -> Failure {
    let is_digest = |error: &Error| error.message() == Mismatch::Digest.to_string();
    match error {
        JobError::Model(error) if error.code() == Code::Checksum && is_digest(&error) => {
            let mut told = Error::checksum(
                "its digest differs from the plan's; make a new plan, or validate the file if it \
                 was not changed",
            );
            if let Some(file) = error.file() {
                told = told.in_file(file);
            }
            if let Some(tensor) = error.tensor() {
                told = told.for_tensor(tensor);
            }
            error.offset().map_or(told.clone(), |offset| told.at(offset)).into()
        }
        error => error.into(),
    }
}

/// Checks that this part as planned here matches the plan.
fn check_same(plan: &PartsPlan, part: usize, planned: &Planned<'_>) -> Outcome {
    planned.check()?;
    let known = &plan.parts[part];
    let same = match &planned.report().files[..] {
        [file] => Some(&file.name) == known.file.as_ref() && Some(file.len) == known.size,
        _ => false,
    };
    if same {
        return Ok(());
    }
    Err(Error::checksum(format!(
        "the output of part {part} differs from the plan; make a new plan"
    ))
    .into())
}

/// Returns `true` if the file of a result exists and has the expected bytes.
pub(super) fn is_there(open: &OpenPlan, result: &PartResult, context: &Context) -> Outcome<bool> {
    let Some(known) = &result.file else { return Ok(true) };
    if open.plan.parts[result.part].file.as_ref() != Some(&known.name) {
        return Ok(false);
    }
    let Ok(file) = FileSource::open(file_path(open, &known.name)?) else { return Ok(false) };
    if file.len() != known.bytes {
        return Ok(false);
    }
    Ok(encode_string(&bytes_digest(&file, &context.pipeline()?, &())?) == known.blake3)
}

/// Returns the path of a part's file.
pub(super) fn file_path(open: &OpenPlan, name: &str) -> Outcome<PathBuf> {
    Ok(open.folder().join(&output(&open.plan)?.path).with_file_name(name))
}

/// The CRC-32 that the footer of a shard states.
pub(super) fn crc32(path: &Path) -> Outcome<u32> {
    let file = FileSource::open(path)?;
    let footer = u64::from(FOOTER_LEN);
    let start = file
        .len()
        .checked_sub(footer)
        .ok_or_else(|| Error::corrupt("it is too short to be a shard"))?;
    let bytes = read_vec(&file, start, 4)?;
    Ok(bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte)))
}
