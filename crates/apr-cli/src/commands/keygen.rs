//! `apr keygen`: pairs of keys.

use std::io;

use apr::crypto::{KeyKind, PrivateKey};
use apr::{Error, IoCause};
use apr_io::io_error;
use serde::Serialize;
use zeroize::Zeroizing;

use crate::args::{KeyPurpose, KeygenArgs};
use crate::context::Context;
use crate::failure::Failure;
use crate::{Outcome, secrets};

#[derive(Serialize)]
struct KeyReport {
    private: String,
    public: String,
    algorithm: &'static str,
    fingerprint: String,
}

/// Makes a pair of keys.
pub(super) fn run(args: &KeygenArgs, context: &Context) -> Outcome {
    if args.output.as_os_str() == "-" {
        return Err(Failure::Usage("keys are written to files, which only their owner can read".to_owned()));
    }
    let public_path = args.output.with_added_extension("pub");
    if !args.force {
        for path in [&args.output, &public_path] {
            if path.symlink_metadata().is_ok() {
                return Err(Error::io(IoCause::AlreadyExists, "the file exists already")
                    .in_file(path.display())
                    .into());
            }
        }
    }
    let (kind, algorithm) = match args.purpose {
        KeyPurpose::Signing => (KeyKind::Signing, "Ed25519"),
        KeyPurpose::Encryption => (KeyKind::Encryption, "X25519"),
    };
    let mut seed = Zeroizing::new([0; 32]);
    secrets::random(&mut *seed)?;
    let key = PrivateKey::generate(kind, &seed)?;
    let public = key.public();
    secrets::write_secret(&args.output, &key.to_pem(), args.force)?;
    std::fs::write(&public_path, public.to_pem()).map_err(|error| io_error(&error, &public_path))?;
    let report = KeyReport {
        private: args.output.display().to_string(),
        public: public_path.display().to_string(),
        algorithm,
        fingerprint: public.fingerprint(),
    };
    context.printer.report(&report, |out, report| -> io::Result<()> {
        writeln!(out, "Private key: {} (keep it to yourself)", report.private)?;
        writeln!(out, "Public key:  {} (give it to others)", report.public)?;
        writeln!(out, "{} {}", report.algorithm, report.fingerprint)
    })
}
