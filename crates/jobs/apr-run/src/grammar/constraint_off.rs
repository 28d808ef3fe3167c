//! Where the binary was built without the feature `grammar`.

use apr_registry::{Error, Result};

use super::{Grammar, KeptGrammar};
use crate::error::RunResult;
use crate::tokens::Tokenizer;

/// No grammar ever is.
#[derive(Debug, Clone)]
pub(crate) enum Compiled {}

/// No text is kept to any.
#[derive(Debug, Clone)]
pub(crate) enum Constraint {}

/// No token is ruled out.
pub(crate) enum Allowed {}

impl Compiled {
    pub(crate) fn of(_: &Grammar, _: &Tokenizer<'_>, _: &[i64]) -> RunResult<Self> {
        let message = "JSON schemas, regular expressions and grammars for generated text need the \
                       feature `grammar`, which this build lacks";
        Err(Error::version(message).into())
    }

    pub(crate) fn begin(&self, _: &Tokenizer<'_>, _: &[i64]) -> RunResult<Constraint> {
        match *self {}
    }
}

impl Constraint {
    pub(crate) fn allowed(&mut self) -> Result<Allowed> {
        match *self {}
    }

    pub(crate) fn take(&mut self, _: i64) -> Result<()> {
        match *self {}
    }

    pub(crate) fn behind(&self, _: &[i64]) -> Result<Self> {
        match *self {}
    }

    pub(crate) fn check(&self, _: i64, _: &[u8]) -> Result<()> {
        match *self {}
    }

    pub(crate) fn is_complete(&self) -> bool {
        match *self {}
    }

    pub(crate) fn kept(&mut self, _: &str) -> KeptGrammar {
        match *self {}
    }
}

impl Allowed {
    pub(crate) fn keep(&self, _: &mut [f32]) {
        match *self {}
    }
}
