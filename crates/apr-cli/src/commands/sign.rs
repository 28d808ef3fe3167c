//! `apr sign` and `apr verify`.

use std::io::{self, Write};

use apr::apr2::{Apr2Reader, Changes};
use apr::crypto::{PublicKey, SignBlock};
use apr::{CheckpointReader, Code, Error, Escaped};
use apr_ops::validate::{Level, ValidateOptions, bytes_to_read, validate};
use serde::Serialize;

use crate::args::{SignArgs, VerifyArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::printer::{BAD, GOOD, ODD};
use crate::progress::Bar;
use crate::{Outcome, revise, secrets};

#[derive(Serialize)]
struct SignReport {
    file: String,
    signer: String,
    signatures: usize,
    dropped_signatures: usize,
    dropped_licence: bool,
}

/// Adds a signature.
pub(super) fn sign(args: &SignArgs, context: &Context) -> Outcome {
    let Some(key) = &context.key else {
        return Err(Failure::Usage("name the private key: --key FILE; `apr keygen` makes one".to_owned()));
    };
    let key = secrets::read_signing(key)?;
    let signer = PublicKey::Verifying(key.public_bytes()).fingerprint();
    let reader = revise::open_to_change(&args.model, context)?;
    let changes = Changes { signers: vec![key], ..Changes::default() };
    let revision = revise::revise(&reader, &changes)?;
    drop(reader);
    revise::write(&args.model, args.output.as_deref(), args.force, &revision, context)?;
    let signed = revise::open(args.output.as_deref().unwrap_or(&args.model), context)?;
    let report = SignReport {
        file: signed.files()[0].name.clone(),
        signer,
        signatures: signatures(&signed)?.signatures().len(),
        dropped_signatures: revision.dropped_signatures,
        dropped_licence: revision.dropped_licence,
    };
    context.printer.report(&report, |out, report| {
        writeln!(out, "{}: signed by {}", Escaped(&report.file), report.signer)?;
        writeln!(out, "The file has {}.", apr_ops::counted(report.signatures as u64, "signature"))?;
        if report.dropped_licence {
            writeln!(out, "Its licence was for the unsigned file, and is gone.")?;
        }
        Ok(())
    })
}

fn signatures(reader: &dyn CheckpointReader) -> Outcome<SignBlock> {
    let block = reader.signed()?.and_then(|signed| signed.signatures);
    Ok(block.map(|block| SignBlock::decode(&block)).transpose()?.unwrap_or_default())
}

#[derive(Serialize)]
struct VerifyReport {
    file: String,
    verified: bool,
    signers: Vec<SignerReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct SignerReport {
    key: String,
    valid: bool,
    trusted: bool,
}

/// Verifies signatures against keys the user trusts, and the tensors against the digests that are signed.
pub(super) fn verify(args: &VerifyArgs, context: &Context) -> Outcome {
    let trusted = secrets::read_trusted(&args.trusted)?;
    let reader = revise::open(&args.model, context)?;
    let block = signatures(&reader)?;
    let digest = reader.signed()?.map(|signed| signed.digest).unwrap_or_default();
    let verification = block.verify(&digest, &trusted);
    let outcome = verification.check().and_then(|()| if args.front { Ok(()) } else { check_tensors(&reader, context) });
    let signer = |signer: &apr::crypto::Signer| SignerReport {
        key: signer.public.fingerprint(),
        valid: signer.valid,
        trusted: signer.trusted,
    };
    let report = VerifyReport {
        file: args.model.display().to_string(),
        verified: outcome.is_ok(),
        signers: verification.signers.iter().map(signer).collect(),
        error: outcome.as_ref().err().map(ToString::to_string),
    };
    context.printer.report(&report, render)?;
    outcome
        .map_err(|error| Failure::Reported(Error::new(Code::Signature, error.message()).in_file(args.model.display())))
}

/// Compares every byte of the file with what is signed.
fn check_tensors(reader: &Apr2Reader, context: &Context) -> apr::Result<()> {
    let options =
        ValidateOptions { nan: false, zero: false, shapes: false, physics: false, ..ValidateOptions::default() };
    let bar = Bar::new(&context.printer, bytes_to_read(reader));
    let pipeline = context.pipeline().map_err(|failure| Error::io(apr::IoCause::Other, failure.message()))?;
    let report = validate(reader, &reader.files()[0].name, None, options, &pipeline, &bar)?;
    let bad = report.findings.into_iter().find(|finding| finding.level == Level::Error);
    bad.map_or(Ok(()), |finding| {
        let error = Error::new(Code::Checksum, finding.message);
        Err(finding.tensor.into_iter().fold(error, Error::for_tensor))
    })
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
    if report.verified {
        writeln!(out, "{GOOD}VERIFIED{GOOD:#}  {}", Escaped(&report.file))
    } else {
        writeln!(out, "{BAD}NOT VERIFIED{BAD:#}  {}", Escaped(&report.file))
    }
}
