//! `apr encrypt` and `apr decrypt`: conversions that change nothing but the encryption.

use std::path::Path;

use apr::job::{Output, title};
use apr_ops::inline::ValidationConfig;
use apr_ops::job::Job;
use apr_registry::Error;

use super::convert::{Destination, Extras, check_is_native, contain, write};
use crate::args::{ContainerArgs, DecryptArgs, EncryptArgs};
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::model;
use crate::model::Model;

/// Writes an encrypted copy.
pub(super) fn encrypt(args: &EncryptArgs, context: &Context) -> Outcome {
    let (job, model) = encrypt_job(args, context)?;
    write(&job, &model, Destination::at(&args.output, args.overwrite), Extras::default(), context)
}

/// Returns the job of an encryption and its model.
pub(super) fn encrypt_job(args: &EncryptArgs, context: &Context) -> Outcome<(Job, Model)> {
    check_is_native("encrypt", Some(&args.output))?;
    // Standard input can be read once.
    let opened = model::open_locked(&args.model, context)?;
    if model::is_encrypted(&*opened.reader) {
        let message = "the model is already encrypted; `apr decrypt` it first to change keys";
        return Err(Failure::General(format!("{}: {message}", opened.name)));
    }

    let container = ContainerArgs {
        // The source is not encrypted, so a password that is given is for the copy.
        encrypt: args.password || context.has_password_file || args.recipient.is_empty(),
        recipient: args.recipient.clone(),
        encrypt_metadata: args.encrypt_metadata,
        ..ContainerArgs::default()
    };

    let job = rewritten(&args.model, &args.output, &container, context)?;
    Ok((job, opened))
}

/// Writes a copy that is not encrypted.
pub(super) fn decrypt(args: &DecryptArgs, context: &Context) -> Outcome {
    check_is_native("decrypt", Some(&args.output))?;
    let opened = model::open(&args.model, context)?;
    if !model::is_encrypted(&*opened.reader) {
        return Err(Error::format("the model is not encrypted")
            .in_file(args.model.display())
            .into());
    }
    let job = rewritten(&args.model, &args.output, &ContainerArgs::default(), context)?;
    write(&job, &opened, Destination::at(&args.output, args.overwrite), Extras::default(), context)
}

/// Returns a job that changes only how the container stores the model.
fn rewritten(
    path: &Path,
    output: &Path,
    container: &ContainerArgs,
    context: &Context,
) -> Outcome<Job> {
    let target =
        contain(Output::layout(&apr_registry::apr2::FORMAT, Some(output)), container, context)?;
    Ok(Job {
        validation: ValidationConfig::integrity(),
        opens: true,
        title: title(path),
        ..Job::new(target)
    })
}
