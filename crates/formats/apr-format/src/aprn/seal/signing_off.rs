//! A build without signatures.

use alloc::vec::Vec;

use apr_core::{Error, Result};

use crate::aprn::Secret;
use crate::aprn::container::SIGNATURE_LEN;

pub(in crate::aprn) fn sign(_content: &[u8], _key: &Secret) -> Result<Vec<u8>> {
    Err(Error::version("this build can't sign"))
}

pub(in crate::aprn) fn verify(
    _content: &[u8],
    _signature: &[u8; SIGNATURE_LEN],
    _key: &[u8; 32],
) -> Result<()> {
    Err(Error::version("this build can't verify signatures").at(21))
}
