//! A build without compression: no tensor is ever compressed, and compressed ones can't be read.
//!
//! Nobody can make a value of these types, so that what is done with one needs no code.

use alloc::vec::Vec;

use apr_core::{DType, Error, Result};

/// Choice of a codec. This build has no compression, so there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {}

pub(super) enum Compression {}

pub(super) enum Compressed {}

impl Compression {
    pub(super) fn new(choice: Choice) -> Self {
        match choice {}
    }

    pub(super) fn learn(&self, _tensor: &Compressed, _samples: &[&[u8]]) {
        match *self {}
    }

    pub(super) fn compress(&self, _tensor: &Compressed, _piece: &[u8], _out: &mut Vec<u8>) -> u64 {
        match *self {}
    }

    pub(super) fn start(&self, _dtype: DType) -> Compressed {
        match *self {}
    }
}

impl Compressed {
    pub(super) fn coding(&self) -> Option<(u32, u64)> {
        match *self {}
    }

    pub(super) fn give_up(&self) {
        match *self {}
    }

    pub(super) fn show_first(&self, _piece: &[u8]) {
        match *self {}
    }
}

pub(super) enum Decoder {}

impl Decoder {
    pub(super) fn new(_flags: u32, _dtype: DType) -> Result<Self> {
        Err(Error::version("the tensor is compressed, and this build has no compression"))
    }

    pub(super) fn suits(&self, _flags: u32, _dtype: DType) -> bool {
        match *self {}
    }

    pub(super) fn decode(&mut self, _body: &[u8], _raw: bool, _target: &mut [u8]) -> Result<()> {
        match *self {}
    }
}
