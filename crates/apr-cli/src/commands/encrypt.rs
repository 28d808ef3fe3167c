//! `apr encrypt` and `apr decrypt`: conversions that change nothing but the encryption.

use std::path::Path;

use apr::{Error, Job, Output};
use apr_ops::inline::ValidationConfig;

use super::convert::{self, Destination, contain};
use crate::args::{ContainerArgs, DecryptArgs, EncryptArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::{Outcome, model};

/// Writes an encrypted copy.
pub(super) fn encrypt(args: &EncryptArgs, context: &Context) -> Outcome {
    let opened = model::open_to_look(&args.model, context)?;
    if model::is_encrypted(&*opened.reader) {
        let message = "the model is encrypted already; `apr decrypt` it first, to choose other keys";
        return Err(Failure::General(format!("{}: {message}", opened.name)));
    }
    drop(opened);
    let container = ContainerArgs {
        encrypt: args.password || args.recipient.is_empty(),
        recipient: args.recipient.clone(),
        encrypt_metadata: args.encrypt_metadata,
        ..ContainerArgs::default()
    };
    rewrite(&args.model, &args.output, args.force, &container, context)
}

/// Writes a copy that is not encrypted.
pub(super) fn decrypt(args: &DecryptArgs, context: &Context) -> Outcome {
    let opened = model::open_to_look(&args.model, context)?;
    if !model::is_encrypted(&*opened.reader) {
        return Err(Error::format("the model is not encrypted").in_file(args.model.display()).into());
    }
    drop(opened);
    rewrite(&args.model, &args.output, args.force, &ContainerArgs::default(), context)
}

fn rewrite(model: &Path, output: &Path, replace: bool, container: &ContainerArgs, context: &Context) -> Outcome {
    let target = contain(Output::layout(&apr::apr2::FORMAT, Some(output)), container, context)?;
    let job = Job { validation: ValidationConfig::off(), opens: true, ..Job::new(target) };
    convert::run(job, model, Destination::at(output, replace), context)
}
