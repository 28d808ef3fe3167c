//! The tokenizer that came with a model, run where it can be left alone.
//!
//! Its files come from a stranger, and the libraries that read them may panic or take forever on
//! hostile ones. So they run on a thread of their own, which the program does not wait for without
//! end.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use std::{panic, thread};

use apr::{CheckpointReader, Error, IoCause};
use apr_inputs::text::{Piece, TextTokens, TokenizerSource};

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// How long a tokenizer or template may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the user's interrupt is looked at.
const GLANCE: Duration = Duration::from_millis(50);
/// Stack of the thread, for rules inside rules.
const STACK: usize = 64 << 20;

/// Runs what a stranger's files make a library do, and gives up on it after a minute.
pub(super) fn apart<T: Send + 'static>(
    what: &str,
    context: &Context,
    work: impl FnOnce() -> apr::Result<T> + Send + 'static,
) -> Outcome<T> {
    silence();
    let (sender, receiver) = mpsc::channel();

    // Whoever has given up does not listen any more.
    let run = move || drop(sender.send(work()));
    thread::Builder::new().stack_size(STACK).spawn(run).map_err(|error| {
        Error::memory(format!("the system gives no memory for {what}'s thread: {error}"))
    })?;
    let start = Instant::now();
    loop {
        match receiver.recv_timeout(GLANCE) {
            Ok(done) => return Ok(done?),
            // The thread panicked, and dropped the sender.
            Err(RecvTimeoutError::Disconnected) => {
                return Err(
                    Error::format(format!("{what} can't be used: reading it failed")).into()
                );
            }
            Err(RecvTimeoutError::Timeout) if context.interrupt.0.load(Ordering::Relaxed) => {
                return Err(Error::io(IoCause::Interrupted, "interrupted").into());
            }
            Err(RecvTimeoutError::Timeout) if start.elapsed() > PATIENCE => {
                let seconds = PATIENCE.as_secs();
                return Err(
                    Error::format(format!("{what} takes longer than {seconds} seconds")).into()
                );
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Panics that become errors are not reported as well.
pub(super) fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !apr_inputs::is_guarded() {
                before(info);
            }
        }));
    });
}

/// A model's tokenizer.
#[derive(Clone)]
pub(super) struct Tokens(pub(super) Arc<TextTokens>);

impl Tokens {
    /// Reads it, where the model has one.
    pub(super) fn find(reader: &dyn CheckpointReader, context: &Context) -> Outcome<Option<Self>> {
        let source = TokenizerSource::of(reader)?;
        let found = apart("the tokenizer", context, move || source.read())?;
        let Some((tokens, warnings)) = found else { return Ok(None) };
        warnings.iter().for_each(|warning| context.printer.warn(warning));
        Ok(Some(Self(Arc::new(tokens))))
    }

    /// Reads it, and says what to do where the model has none.
    pub(super) fn of(reader: &dyn CheckpointReader, context: &Context) -> Outcome<Self> {
        Self::find(reader, context)?.ok_or_else(|| {
            let advice = "put its tokenizer.json beside the model, or give ids: --tokens 1,15,7";
            Failure::Model(Error::version(format!(
                "the model has no tokenizer, so a text can't go in; {advice}"
            )))
        })
    }

    /// The tokens of a text; `ends` adds those that begin and end one.
    pub(super) fn encode(&self, text: &str, ends: bool, context: &Context) -> Outcome<Vec<i64>> {
        let (tokens, text) = (Arc::clone(&self.0), text.to_owned());
        apart("the tokenizer", context, move || tokens.encode(&text, ends))
    }

    /// The tokens of a text with their places; `ends` adds those that begin and end one.
    pub(super) fn pieces(&self, text: &str, ends: bool, context: &Context) -> Outcome<Vec<Piece>> {
        let (tokens, text) = (Arc::clone(&self.0), text.to_owned());
        apart("the tokenizer", context, move || tokens.pieces(&text, ends))
    }

    /// The text of tokens; `all` spells out those that stand for no text.
    pub(super) fn decode(&self, ids: &[i64], all: bool, context: &Context) -> Outcome<String> {
        let (tokens, ids) = (Arc::clone(&self.0), ids.to_vec());
        apart("the tokenizer", context, move || match all {
            true => tokens.decode_all(&ids),
            false => tokens.decode(&ids),
        })
    }

    /// The tokens of a text that has this many at most, and how many it has more.
    pub(super) fn encode_at_most(
        &self,
        text: &str,
        most: usize,
        context: &Context,
    ) -> Outcome<(Vec<i64>, usize)> {
        let (tokens, text) = (Arc::clone(&self.0), text.to_owned());
        apart("the tokenizer", context, move || tokens.encode_at_most(&text, most))
    }
}
