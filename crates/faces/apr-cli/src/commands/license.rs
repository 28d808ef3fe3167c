//! `apr license` (`docs/format/sealing.md`, "Licences").

use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use apr_registry::apr2::Changes;
use apr_registry::crypto::{Licence, LicenceBlock, Timestamp, hash_licensee, parse_time};
use apr_registry::{CheckpointReader, Code, Error, Escaped};
use serde::Serialize;

use crate::args::{IssueArgs, LicenseAction};
use crate::context::Context;
use crate::documents::Document;
use crate::failure::{Failure, Outcome};
use crate::printer::{BAD, BOLD, GOOD};
use crate::{revise, secrets};

#[derive(Serialize)]
struct LicenceReport {
    /// Path of the model, as given.
    path: String,
    /// The written file; absent if the model was changed in place or only read.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
    /// UUID of the licence.
    uuid: String,
    /// Digest of the licensee; `None` for any licensee.
    licensee_hash: Option<String>,
    /// End of the licence, as in RFC 3339; `None` for no end.
    expires: Option<String>,
    /// Maximum number of seats; `None` for any number.
    seats: Option<u64>,
    /// Terms of the licence.
    terms: String,
    /// Trusted key that issued the licence, or `None` if the issuer was not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    issuer: Option<String>,
    /// Reasons for which the licence is not valid here.
    #[serde(skip_serializing_if = "Option::is_none")]
    violations: Option<Vec<String>>,
    /// Parts of the model that were not read when the licence was issued.
    #[serde(skip_serializing_if = "Option::is_none")]
    unverified: Option<&'static str>,
}

impl Document for LicenceReport {
    const SCHEMA: &'static str = "license";
}

impl LicenceReport {
    fn new(file: &Path, licence: &Licence) -> Self {
        Self {
            path: file.display().to_string(),
            output: None,
            uuid: licence.uuid.clone(),
            licensee_hash: licence.licensee_hash.clone(),
            expires: licence.expires.map(|time| time.to_string()),
            seats: licence.seats,
            terms: licence.terms.clone(),
            issuer: None,
            violations: None,
            unverified: None,
        }
    }
}

/// Issues, shows or checks a licence.
pub(super) fn run(action: &LicenseAction, context: &Context) -> Outcome {
    match action {
        LicenseAction::Issue(args) => issue(args, context),
        LicenseAction::Show { model } => {
            let block = block(&revise::open(model, context)?)?;
            context.printer.report(&LicenceReport::new(model, block.licence()), render)
        }
        LicenseAction::Check { model, trusted, licensee, seats } => {
            check(model, trusted, licensee.as_deref(), *seats, context)
        }
    }
}

fn issue(args: &IssueArgs, context: &Context) -> Outcome {
    let uuid = random_uuid()?;
    let licence = Licence {
        licensee_hash: Some(hash_licensee(&uuid, &args.licensee)),
        uuid,
        expires: args.expires.as_deref().map(moment).transpose()?,
        seats: args.seats,
        terms: args.terms.clone().unwrap_or_default(),
    };

    let Some(key) = &context.key else {
        return Err(Failure::Usage(
            "missing private key of the issuer: pass --key FILE (`apr keygen` generates one)"
                .to_owned(),
        ));
    };
    let key = secrets::read_signing(key)?;
    let output = args.output.as_deref();
    let file = revise::open_to_change(&args.model, output, context)?;
    let mut report = LicenceReport::new(&args.model, &licence);
    report.output = output.map(|output| output.display().to_string());
    let changes = Changes { licence: Some((licence, key)), ..Changes::default() };
    let revision = revise::revise(&file.reader, &changes)?;
    if revision.dropped_signatures > 0 {
        let signatures = apr_core::counted(revision.dropped_signatures as u64, "signature");
        if !args.force {
            let message = format!(
                "a licence changes the signed header: {signatures} by other keys would become \
                 invalid"
            );
            return Err(Failure::General(format!("{message}; --force drops them")));
        }
        context
            .printer
            .warn(&format!("dropped {signatures} by other keys, invalid with this licence"));
    }

    report.unverified = file.write(output, args.overwrite, &revision, context)?;
    context.printer.report(&report, render)
}

fn block(reader: &dyn CheckpointReader) -> Outcome<LicenceBlock> {
    let block = reader.container().signed()?.and_then(|signed| signed.licence);
    let block = block
        .ok_or_else(|| Error::new(Code::Signature, "the file contains no licence"))
        .map_err(|error| error.in_file(&reader.files()[0].name))?;
    Ok(LicenceBlock::decode(&block)?)
}

fn check(
    model: &Path,
    trusted: &[std::path::PathBuf],
    licensee: Option<&str>,
    seats: Option<u64>,
    context: &Context,
) -> Outcome {
    let trusted = secrets::read_trusted(trusted)?;
    let reader = revise::open(model, context)?;
    let named = |error: Error| error.in_file(model.display());
    let block = block(&reader)?;
    let digest = reader.container().signed()?.map(|signed| signed.digest).unwrap_or_default();
    let issuer = block.verify(&digest, &trusted).map_err(named)?;

    // What no signature covers could have been put there by anybody.
    reader.container().check_uncovered()?;
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    let now =
        Timestamp::from_second(seconds).map_err(|error| Failure::General(error.to_string()))?;
    let violations = block.licence().check(now, licensee, seats);
    let report = LicenceReport {
        issuer: Some(issuer.fingerprint()),
        violations: Some(violations.iter().map(ToString::to_string).collect()),
        ..LicenceReport::new(model, block.licence())
    };
    context.printer.judge(&report, render, violations.is_empty())
}

fn render(out: &mut dyn Write, report: &LicenceReport) -> io::Result<()> {
    let place = report.output.as_ref().unwrap_or(&report.path);
    writeln!(out, "{BOLD}Licence of {}{BOLD:#}", Escaped(place))?;
    writeln!(out, "  Id:       {}", report.uuid)?;
    writeln!(out, "  Licensee: {}", report.licensee_hash.as_deref().unwrap_or("anybody"))?;
    writeln!(out, "  Expires:  {}", report.expires.as_deref().unwrap_or("never"))?;
    match report.seats {
        Some(seats) => writeln!(out, "  Seats:    {seats}")?,
        None => writeln!(out, "  Seats:    unlimited")?,
    }

    if !report.terms.is_empty() {
        writeln!(out, "  Terms:    {}", Escaped(&report.terms))?;
    }
    if let Some(issuer) = &report.issuer {
        writeln!(out, "  Issuer:   {issuer}, trusted")?;
    }

    revise::render_unverified(out, report.unverified)?;
    let Some(violations) = &report.violations else { return Ok(()) };
    for violation in violations {
        writeln!(out, "{BAD}error{BAD:#}: {}", Escaped(violation))?;
    }

    let (style, verdict) =
        if violations.is_empty() { (GOOD, "LICENSED") } else { (BAD, "NOT LICENSED") };
    writeln!(out, "{style}{verdict}{style:#}")
}

/// A moment; a day alone means its beginning, in UTC.
fn moment(text: &str) -> Outcome<Timestamp> {
    let whole = if text.len() == "2027-01-31".len() {
        format!("{text}T00:00:00Z")
    } else {
        text.to_owned()
    };
    parse_time(&whole).map_err(|_| {
        Failure::Usage(format!("--expires '{text}' is not a time such as 2027-01-31T00:00:00Z"))
    })
}

/// A random UUID, version 4 (RFC 9562 §5.4).
fn random_uuid() -> Outcome<String> {
    let mut bytes = [0; 16];
    secrets::random(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex = base16ct::lower::encode_string(&bytes);
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}
