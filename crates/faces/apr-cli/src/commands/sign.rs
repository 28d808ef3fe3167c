//! `apr sign` and `apr verify`.

use std::io::{self, Write};

use apr_core::of_files;
use apr_io::{AtomicOutput, is_manifest};
use apr_ops::session::Session;
use apr_ops::validate::{Level, ValidateOptions, bytes_to_read};
use apr_registry::apr2::Changes;
use apr_registry::crypto::{PublicKey, SignBlock, SigningKey};
use apr_registry::{CheckpointReader, Code, Error, Escaped, Sink};
use serde::Serialize;

use crate::args::{SignArgs, VerifyArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BAD, GOOD, ODD};
use crate::progress::Bar;
use crate::{revise, secrets, signals};

#[derive(Serialize)]
struct SignReport {
    /// Path of the model, as given.
    path: String,
    /// The written file; absent if the model was changed in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// Fingerprint of the key.
    signer: String,
    /// Number of signatures in the file now.
    signatures: usize,
    /// Number of signatures that were removed because they are no longer valid.
    dropped_signatures: usize,
    /// `true` if a licence was removed because it is no longer valid.
    dropped_licence: bool,
    /// Parts of the model that were not read and are therefore unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    unverified: Option<&'static str>,
}

impl Document for SignReport {
    const SCHEMA: &'static str = "sign";
}

/// Adds a signature.
pub(super) fn sign(args: &SignArgs, context: &Context) -> Outcome {
    let Some(key) = &context.key else {
        return Err(Failure::Usage(
            "missing private key: pass --key FILE (`apr keygen` generates one)".to_owned(),
        ));
    };
    let key = secrets::read_signing(key)?;
    if args.output.is_none() {
        // Readers refuse the file until then, and what it is can't be told without reading it.
        revise::undo_interrupted(&args.model, context)?;
    }

    let report = if is_manifest(&args.model)? {
        sign_manifest(args, key, context)
    } else {
        sign_file(args, key, context)
    }?;
    context.printer.report(&report, |out, report| {
        let place = report.output.as_ref().unwrap_or(&report.path);
        writeln!(out, "{}: signed by {}", Escaped(place), report.signer)?;
        writeln!(
            out,
            "The file has {}.",
            apr_core::counted(report.signatures as u64, "signature")
        )?;
        if report.dropped_signatures > 0 {
            let dropped = apr_core::counted(report.dropped_signatures as u64, "signature");
            writeln!(out, "Dropped {dropped} that were invalid for the file.")?;
        }
        if report.dropped_licence {
            writeln!(out, "Dropped the licence, which was issued for the unsigned file.")?;
        }
        revise::render_unverified(out, report.unverified)
    })
}

fn sign_file(args: &SignArgs, key: SigningKey, context: &Context) -> Outcome<SignReport> {
    let signer = PublicKey::Verifying(key.public_bytes()).fingerprint();
    let file = revise::open_to_change(&args.model, args.output.as_deref(), context)?;
    let changes = Changes { signers: vec![key], ..Changes::default() };
    let revision = revise::revise(&file.reader, &changes)?;
    let unverified = file.write(args.output.as_deref(), args.overwrite, &revision, context)?;
    Ok(SignReport {
        path: args.model.display().to_string(),
        output: args.output.as_ref().map(|output| output.display().to_string()),
        signer,
        signatures: revision.signatures,
        dropped_signatures: revision.dropped_signatures,
        dropped_licence: revision.dropped_licence,
        unverified,
    })
}

/// Signs the manifest, and through it the shards, which are not changed.
fn sign_manifest(args: &SignArgs, key: SigningKey, context: &Context) -> Outcome<SignReport> {
    if args.output.is_some() {
        return Err(Failure::Usage(
            "a manifest is signed in place, next to its shards; remove --output".to_owned(),
        ));
    }

    // Held until the file is replaced, so that nobody else's signature gets lost.
    let lock = revise::lock(&args.model, context)?;
    let mut manifest = context
        .sources
        .open_manifest_of(&lock.source()?, &args.model, &context.options)?
        .to_sign()?;
    let signer = PublicKey::Verifying(key.public_bytes()).fingerprint();
    let dropped_signatures = manifest.sign(&[key])?;
    let block =
        manifest.signatures.as_deref().map(SignBlock::decode).transpose()?.unwrap_or_default();
    signals::stop_cleanly(&context.interrupt)?;
    let mut file = AtomicOutput::replacing(lock);
    file.write_all(&manifest.encode())?;
    context.sources.check_unchanged()?;
    context.printer.committed(&file.commit()?);
    Ok(SignReport {
        path: args.model.display().to_string(),
        output: None,
        signer,
        signatures: block.signatures().len(),
        dropped_signatures,
        dropped_licence: false,
        unverified: Some(revise::UNREAD),
    })
}

fn signatures(reader: &dyn CheckpointReader) -> Outcome<SignBlock> {
    let block = reader.container().signed()?.and_then(|signed| signed.signatures);
    Ok(block.map(|block| SignBlock::decode(&block)).transpose()?.unwrap_or_default())
}

#[derive(Serialize)]
struct VerifyReport {
    /// Path of the model, as given.
    path: String,
    /// `true` if a trusted key signed the model; otherwise the exit code is 5.
    verified: bool,
    /// Signatures in the file.
    signers: Vec<SignerReport>,
    /// Parts of the model that were not read and are therefore unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    unverified: Option<&'static str>,
    /// Reason for which the model is not verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Document for VerifyReport {
    const SCHEMA: &'static str = "verify";
}

#[derive(Serialize)]
struct SignerReport {
    /// Fingerprint of the key.
    key: String,
    /// `true` if the signature belongs to the content.
    valid: bool,
    /// `true` if the key is trusted.
    trusted: bool,
}

/// Verifies signatures against keys the user trusts, and the tensors against the digests that are
/// signed.
pub(super) fn verify(args: &VerifyArgs, context: &Context) -> Outcome {
    let trusted = secrets::read_trusted(&args.trusted)?;
    let reader: Box<dyn CheckpointReader> = if is_manifest(&args.model)? {
        Box::new(context.sources.open_manifest(&args.model, &context.options)?)
    } else {
        Box::new(revise::open(&args.model, context)?)
    };
    let block = signatures(&*reader)?;
    let digest = reader.container().signed()?.map(|signed| signed.digest).unwrap_or_default();
    let verification = block.verify(&digest, &trusted);

    // Signatures come first: digests that nobody signed prove nothing.
    let outcome = verification
        .check()
        .map_err(Failure::from)
        .and_then(|()| check_shards(&*reader))
        .and_then(|()| Ok(reader.container().check_uncovered()?))
        .and_then(|()| if args.front { Ok(()) } else { check_tensors(&*reader, context) });
    let signer = |signer: &apr_registry::crypto::Signer| SignerReport {
        key: signer.public.fingerprint(),
        valid: signer.valid,
        trusted: signer.trusted,
    };
    let report = VerifyReport {
        path: args.model.display().to_string(),
        verified: outcome.is_ok(),
        signers: verification.signers.iter().map(signer).collect(),
        unverified: args.front.then_some("tensors"),
        error: outcome.as_ref().err().map(Failure::message),
    };

    context.printer.report(&report, render)?;
    outcome.map_err(|failure| match failure {
        Failure::Model(error) if error.code() == Code::Io => Failure::Reported(error),
        Failure::Model(error) => {
            let model = args.model.display().to_string();
            // Of a model in shards, the one in which it is.
            let shard = error.file().filter(|file| !model.ends_with(file));
            let told =
                Error::new(Code::Signature, error.message()).in_file(shard.unwrap_or(&model));
            Failure::Reported(error.tensor().into_iter().fold(told, Error::for_tensor))
        }
        other => other,
    })
}

/// Compares the fronts of all shards with the signed data.
fn check_shards(reader: &dyn CheckpointReader) -> Outcome {
    let container = of_files(reader).container();
    (0..container.shard_count()).try_for_each(|shard| Ok(container.shard(shard).map(drop)?))
}

/// Compares every byte of the model with the signed data.
fn check_tensors(reader: &dyn CheckpointReader, context: &Context) -> Outcome {
    let options = ValidateOptions {
        nan: false,
        zero: false,
        shapes: false,
        physics: false,
        ..ValidateOptions::default()
    };

    let bar = Bar::new(&context.printer, bytes_to_read(reader));
    let name = &reader.files()[0].name;
    let session = Session::of(context.source(reader, name)?);
    let report = session.validate(options, &context.pipeline()?, &bar)?;
    let Some(bad) = report.findings.into_iter().find(|finding| finding.level == Level::Error)
    else {
        return Ok(());
    };
    let message = match bad.file.filter(|file| file != name) {
        Some(shard) => format!("{}: {}", Escaped(&shard), bad.message),
        None => bad.message,
    };
    let error = Error::new(Code::Checksum, message);
    Err(bad.tensor.into_iter().fold(error, Error::for_tensor).into())
}

fn render(out: &mut dyn Write, report: &VerifyReport) -> io::Result<()> {
    for SignerReport { key, valid, trusted } in &report.signers {
        let (style, mark) = match (valid, trusted) {
            (true, true) => (GOOD, "trusted"),
            (true, false) => (ODD, "not trusted"),
            (false, _) => (BAD, "INVALID"),
        };
        writeln!(out, "{style}{mark:<11}{style:#}  {key}")?;
    }
    if report.verified && report.unverified.is_some() {
        let file = Escaped(&report.path);
        writeln!(out, "{ODD}FRONT VERIFIED{ODD:#}  {file}")?;
        writeln!(out, "unverified: the bytes of tensors were not read (--front)")
    } else if report.verified {
        writeln!(out, "{GOOD}VERIFIED{GOOD:#}  {}", Escaped(&report.path))
    } else {
        writeln!(out, "{BAD}NOT VERIFIED{BAD:#}  {}", Escaped(&report.path))
    }
}
