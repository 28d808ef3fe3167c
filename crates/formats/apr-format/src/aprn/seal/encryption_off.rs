//! A build without encryption.

use alloc::vec::Vec;

use apr_core::{Error, Result};

use super::{FillRandom, Protection};
use crate::aprn::Secret;

pub(in crate::aprn) fn seal(
    _payload: &[u8],
    _protection: &Protection,
    _random: &mut FillRandom<'_>,
) -> Result<Vec<u8>> {
    Err(Error::version("this build can't encrypt"))
}

pub(in crate::aprn) fn open_with_password(_stored: &[u8], _password: &Secret) -> Result<Vec<u8>> {
    Err(cannot_decrypt())
}

pub(in crate::aprn) fn open_for_identity(_stored: &[u8], _identity: &Secret) -> Result<Vec<u8>> {
    Err(cannot_decrypt())
}

fn cannot_decrypt() -> Error {
    Error::version("this build can't decrypt").at(21)
}
