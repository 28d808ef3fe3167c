//! `apr encrypt` and `apr decrypt`: conversions that change nothing but the encryption.

use std::path::Path;

use apr::Error;

use super::convert::{self, Request};
use super::quantize::Wanted;
use crate::args::{ContainerArgs, DecryptArgs, EncryptArgs, QuantizeOptions, WriteArgs};
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
    rewrite(&args.model, &args.output, args.force, container, context)
}

/// Writes a copy that is not encrypted.
pub(super) fn decrypt(args: &DecryptArgs, context: &Context) -> Outcome {
    let opened = model::open_to_look(&args.model, context)?;
    if !model::is_encrypted(&*opened.reader) {
        return Err(Error::format("the model is not encrypted").in_file(args.model.display()).into());
    }
    drop(opened);
    rewrite(&args.model, &args.output, args.force, ContainerArgs::default(), context)
}

fn rewrite(model: &Path, output: &Path, force: bool, container: ContainerArgs, context: &Context) -> Outcome {
    let write = WriteArgs {
        output: Some(output.to_path_buf()),
        force,
        relaxed: false,
        precision: None,
        dry_run: false,
        container,
    };
    let wanted = Wanted { scheme: None, dequantize: None, precision: None, options: &QuantizeOptions::default() };
    let request = Request {
        model,
        prefix: None,
        format: Some(&apr::apr2::FORMAT),
        write: &write,
        shard_size: None,
        align: None,
        wanted,
        streaming: false,
        judged: false,
        changes: None,
    };
    convert::run(&request, context)
}
