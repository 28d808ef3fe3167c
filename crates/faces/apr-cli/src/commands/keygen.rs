//! `apr keygen`: pairs of keys.

use std::io;
use std::path::Path;

use apr_io::{AtomicOutput, Target};
use apr_registry::Sink;
use apr_registry::crypto::{KeyKind, PrivateKey};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::args::{KeyPurpose, KeygenArgs};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::{secrets, signals};

#[derive(Serialize)]
struct KeyReport {
    /// File of the private key.
    private: String,
    /// File of the public key.
    public: String,
    /// `Ed25519` for signatures, `X25519` for encryption.
    algorithm: &'static str,
    /// Fingerprint of the public key.
    fingerprint: String,
}

impl Document for KeyReport {
    const SCHEMA: &'static str = "keygen";
}

/// Creates a key pair.
pub(super) fn run(args: &KeygenArgs, context: &Context) -> Outcome {
    if args.output.as_os_str() == "-" {
        return Err(Failure::Usage(
            "keys can't be written to standard output: -o names a file".to_owned(),
        ));
    }

    let public_path = args.output.with_added_extension("pub");
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    let (Some(private_name), Some(public_name)) = (name(&args.output), name(&public_path)) else {
        return Err(Failure::Usage(format!(
            "'{}' is not a file name in UTF-8",
            args.output.display()
        )));
    };

    signals::stop_cleanly(&context.interrupt)?;
    let names = [private_name.as_str(), public_name.as_str()];

    // Both files are complete and on disk before one of an older pair is replaced.
    let mut files = AtomicOutput::create(Target::File(args.output.clone()), args.overwrite, names)?;
    let (kind, algorithm) = match args.purpose {
        KeyPurpose::Signing => (KeyKind::Signing, "Ed25519"),
        KeyPurpose::Encryption => (KeyKind::Encryption, "X25519"),
    };
    let mut seed = Zeroizing::new([0; 32]);
    secrets::random(&mut *seed)?;
    let key = PrivateKey::generate(kind, &seed)?;
    let public = key.public();
    files.next_private_file(&private_name)?;
    files.write_all(key.to_pem().as_bytes())?;
    files.next_file(&public_name)?;
    files.write_all(public.to_pem().as_bytes())?;
    context.printer.committed(&files.commit()?);
    let report = KeyReport {
        private: args.output.display().to_string(),
        public: public_path.display().to_string(),
        algorithm,
        fingerprint: public.fingerprint(),
    };

    context.printer.report(&report, |out, report| -> io::Result<()> {
        writeln!(out, "Private key: {} (keep it secret)", report.private)?;
        writeln!(out, "Public key:  {} (share it)", report.public)?;
        writeln!(out, "{} {}", report.algorithm, report.fingerprint)
    })
}
