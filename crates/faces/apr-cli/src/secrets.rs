//! Keys and passwords: from files, from the environment, from the user.

#[cfg(feature = "seals")]
mod keys;
#[cfg(not(feature = "seals"))]
#[path = "secrets/keys_off.rs"]
mod keys;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use apr_io::io_error;
use apr_registry::Error;
use zeroize::Zeroizing;

pub(crate) use self::keys::*;

use crate::failure::{Failure, Outcome};

/// Longest password, in bytes.
const MAX_PASSWORD: usize = 4 << 10;

/// Random bytes from the operating system.
pub(crate) fn random(bytes: &mut [u8]) -> apr_registry::Result<()> {
    getrandom::fill(bytes).map_err(|error| {
        Error::io(apr_registry::IoCause::Other, format!("no random bytes from the system: {error}"))
    })
}

/// The password of `--password-file`, or else of `APR_PASSWORD`.
pub(crate) fn given_password(file: Option<&Path>) -> Outcome<Option<Zeroizing<Vec<u8>>>> {
    if let Some(path) = file {
        let line = first_line(path)?;
        if line.is_empty() {
            return Err(Failure::Usage(format!("{}: the first line is empty", path.display())));
        }
        return Ok(Some(line));
    }
    let given = std::env::var_os("APR_PASSWORD").filter(|password| !password.is_empty());
    Ok(given.map(|password| Zeroizing::new(password.into_encoded_bytes())))
}

/// Reads the first line of a file or a pipe.
///
/// It consumes no further bytes, so that a model can follow on standard input.
fn first_line(path: &Path) -> Outcome<Zeroizing<Vec<u8>>> {
    let failed = |error: &io::Error| io_error(error, path);
    let mut file = if path.as_os_str() == "-" {
        apr_platform::standard_input()?
    } else {
        File::open(path).map_err(|error| failed(&error))?
    };

    // A buffer that grew would leave copies of the password behind.
    let mut line = Zeroizing::new(Vec::with_capacity(MAX_PASSWORD));
    let mut byte = [0];
    while file.read(&mut byte).map_err(|error| failed(&error))? > 0 && byte != *b"\n" {
        if line.len() == MAX_PASSWORD {
            return Err(Error::format("not a password: the first line is too long")
                .in_file(path.display())
                .into());
        }
        line.push(byte[0]);
    }

    if line.last() == Some(&b'\r') {
        line.pop();
    }

    Ok(line)
}
