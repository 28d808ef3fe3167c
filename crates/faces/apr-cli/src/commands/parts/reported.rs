//! Jobs that write nothing but a report: validating and comparing. Their parts look at some of the
//! tensors each.

use std::ops::Range;
use std::path::Path;

use apr_core::StoredRange;
use apr_ops::diff::PartOfDiff;
use apr_ops::parts::{PartResult, PartsPlan, PlannedPart, Read, smallest_size};
use apr_ops::validate::PartFindings;
use apr_registry::{Error, FileInfo};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::draft::Draft;
use super::input;
use super::on_disk::OpenPlan;
use super::words::{parsed, values};
use super::written::read_of;
use crate::args::{Command, DiffArgs, PlanArgs, ValidateArgs};
use crate::commands::{diff, validate};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::progress::Bar;

/// Plans a validation.
pub(super) fn plan_validate(
    args: &PlanArgs,
    mut plan: PartsPlan,
    folder: &Path,
    context: &Context,
) -> Outcome<Draft> {
    input::pin(&mut plan.job, "model", context)?;
    let cli = parsed(&plan.job, folder)?;
    let context = context.of_job(&cli);
    let Command::Validate(job) = &cli.command else { return Err(not_planned()) };
    let model = model::look_with_companions(&job.model, &context)?;
    let trusted = validate::trusted(job, &context)?;
    let options = validate::options(job, &trusted, &context);
    let files = model.reader.files();
    let units = context.session(&model)?.validate_units(options)?;
    let of_unit =
        |ranges: Vec<StoredRange>| ranges.into_iter().map(|range| read_of(range, files)).collect();
    let reads = units.into_iter().map(of_unit);
    let parts = cut(reads.collect(), args)?;
    draft(plan, &[("model", &model)], parts, &context)
}

/// Plans a comparison.
pub(super) fn plan_diff(
    args: &PlanArgs,
    mut plan: PartsPlan,
    folder: &Path,
    context: &Context,
) -> Outcome<Draft> {
    input::pin(&mut plan.job, "left", context)?;
    input::pin(&mut plan.job, "right", context)?;
    let cli = parsed(&plan.job, folder)?;
    let context = context.of_job(&cli);
    let Command::Diff(job) = &cli.command else { return Err(not_planned()) };
    let models = diff::open(job, &context)?;
    let options = diff::options(job)?;
    let pairs = diff::compare(&models, &context, |models| {
        Ok(models.diff_units(&options, &context.pipeline()?, &())?)
    })?;
    let [left, right] = &models;
    let files: [&[FileInfo]; 2] = [left.reader.files(), right.reader.files()];
    let reads = pairs.into_iter().map(|[left, right]| {
        let left = left.into_iter().map(|range| read_of(range, files[0]));
        let right = right.into_iter().map(|range| Read { input: 1, ..read_of(range, files[1]) });
        left.chain(right).collect()
    });
    let parts = cut(reads.collect(), args)?;
    draft(plan, &[("left", left), ("right", right)], parts, &context)
}

fn not_planned() -> Failure {
    let message = "invalid plan: the command does not match its options; make a new plan";
    Error::format(message).into()
}

/// Cuts units into parts of about the same length; `reads` are the reads of each unit.
fn cut(reads: Vec<Vec<Read>>, args: &PlanArgs) -> Outcome<Vec<PlannedPart>> {
    let lens: Vec<u64> = reads.iter().map(|reads| bytes(reads)).collect();
    let count = |most| Ok(starts(&lens, most).len());
    let for_parts = args.parts.map(|parts| smallest_size(&lens, parts, count)).transpose()?;
    let most = for_parts.into_iter().chain(args.max_part).min().unwrap_or(u64::MAX);
    let starts = starts(&lens, most);
    let ends = starts.iter().skip(1).copied().chain([lens.len()]);
    let mut reads = reads.into_iter();
    let part = |(start, end): (usize, usize)| PlannedPart {
        units: Some([start, end - start]),
        reads: Read::joined(reads.by_ref().take(end - start).flatten().collect()),
        ..PlannedPart::default()
    };
    Ok(starts.iter().copied().zip(ends).map(part).collect())
}

fn bytes(reads: &[Read]) -> u64 {
    reads.iter().map(|read| read.len).fold(0, u64::saturating_add)
}

/// Returns the first units of parts that have at most `most` bytes, or one unit.
fn starts(lens: &[u64], most: u64) -> Vec<usize> {
    let (mut starts, mut size) = (vec![0], 0_u64);
    for (unit, len) in lens.iter().enumerate() {
        if size > 0 && size.saturating_add(*len) > most {
            starts.push(unit);
            size = 0;
        }
        size = size.saturating_add(*len);
    }
    starts
}

/// The plan with its inputs: reading them for digests would be the job itself, so that sizes and
/// times of change count.
fn draft(
    mut plan: PartsPlan,
    models: &[(&str, &model::Model)],
    parts: Vec<PlannedPart>,
    context: &Context,
) -> Outcome<Draft> {
    let mut warnings = Vec::new();
    for (option, model) in models {
        let path = values(&plan.job, option).first().copied().unwrap_or_default().to_owned();
        plan.inputs.push(input::describe(model, &path, false, context)?);
        warnings.extend(model.notes.iter().cloned());
    }
    plan.parts = parts;
    Ok(Draft { plan, warnings })
}

/// Runs a part of the job and returns its result.
pub(super) fn run(open: &OpenPlan, part: usize, context: &Context) -> Outcome<PartResult> {
    let (cli, context) = open.job(context)?;
    let [first, count] = open.plan.parts[part].units.unwrap_or_default();
    let wanted = first..first.saturating_add(count);
    let bar = Bar::new(&context.printer, bytes(&open.plan.parts[part].reads));
    let report = match &cli.command {
        Command::Validate(args) => to_json(&validate_part(open, args, wanted, &context, &bar)?)?,
        Command::Diff(args) => to_json(&compare_part(open, args, wanted, &context, &bar)?)?,
        _ => return Err(not_planned()),
    };
    context.sources.check_unchanged()?;
    Ok(PartResult::new(open.digest.clone(), part, None, report))
}

fn validate_part(
    open: &OpenPlan,
    args: &ValidateArgs,
    wanted: Range<usize>,
    context: &Context,
    bar: &Bar,
) -> Outcome<PartFindings> {
    let model = model::look_with_companions(&args.model, context)?;
    check_inputs(open, &[&model], context)?;
    let trusted = validate::trusted(args, context)?;
    let options = validate::options(args, &trusted, context);
    let session = context.session(&model)?;
    Ok(session.validate_part(options, wanted, &context.pipeline()?, bar)?)
}

fn compare_part(
    open: &OpenPlan,
    args: &DiffArgs,
    wanted: Range<usize>,
    context: &Context,
    bar: &Bar,
) -> Outcome<PartOfDiff> {
    let models = diff::open(args, context)?;
    check_inputs(open, &[&models[0], &models[1]], context)?;
    let options = diff::options(args)?;
    diff::compare(&models, context, |models| {
        Ok(models.diff_part(&options, wanted, &context.pipeline()?, bar)?)
    })
}

/// Combines the results of all parts into the report of one process.
pub(super) fn finish(open: &OpenPlan, results: &[PartResult], context: &Context) -> Outcome {
    let (cli, context) = open.job(context)?;
    match &cli.command {
        Command::Validate(args) => finish_validate(open, args, from_json(results)?, &context),
        Command::Diff(args) => finish_diff(open, args, from_json(results)?, &context),
        _ => Err(not_planned()),
    }
}

fn finish_validate(
    open: &OpenPlan,
    args: &ValidateArgs,
    parts: Vec<PartFindings>,
    context: &Context,
) -> Outcome {
    let model = model::look_with_companions(&args.model, context)?;
    check_inputs(open, &[&model], context)?;
    let trusted = validate::trusted(args, context)?;
    let options = validate::options(args, &trusted, context);
    let session = context.session(&model)?;
    let report = session.validated_in_parts(options, parts, &context.pipeline()?)?;
    context.printer.judge(&report, validate::render, report.valid)
}

fn finish_diff(
    open: &OpenPlan,
    args: &DiffArgs,
    parts: Vec<PartOfDiff>,
    context: &Context,
) -> Outcome {
    let models = diff::open(args, context)?;
    check_inputs(open, &[&models[0], &models[1]], context)?;
    let options = diff::options(args)?;
    let report = diff::compare(&models, context, |models| {
        Ok(models.diff_in_parts(&options, parts, &context.pipeline()?)?)
    })?;
    diff::show(&report, args, &options, context)
}

fn check_inputs(open: &OpenPlan, models: &[&model::Model], context: &Context) -> Outcome {
    if open.plan.inputs.len() != models.len() {
        return Err(Error::format("the plan's inputs are not its job's").into());
    }
    input::check_settings(open)?;
    open.plan
        .inputs
        .iter()
        .zip(models)
        .try_for_each(|(input, model)| input::check(input, model, context))
}

fn to_json(report: &impl Serialize) -> Outcome<serde_json::Value> {
    serde_json::to_value(report).map_err(|error| Failure::General(error.to_string()))
}

fn from_json<T: DeserializeOwned>(results: &[PartResult]) -> Outcome<Vec<T>> {
    let read = |result: &PartResult| {
        let report = serde_json::from_value(result.report.clone());
        report.map_err(|error| {
            Error::format(format!("the result of part {}: {error}", result.part)).into()
        })
    };
    results.iter().map(read).collect()
}
