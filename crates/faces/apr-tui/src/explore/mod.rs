//! A model, looked at by keys (seed 001 §4.13).
//!
//! What a view shows is the report of a command, made by one of two threads in the background
//! (`background/`), as `background/reports.rs` says. `explorer.rs` has the state, `keys.rs` what
//! keys do to it, `views/` how it is drawn: drawing only looks at what is there.

mod answers;
mod background;
mod draw;
mod explorer;
mod export;
mod keys;
mod loaded;
mod view;
mod views;

use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc;
use std::thread;

use apr_arch::Families;
use apr_io::Interrupt;
use apr_registry::{CheckpointReader, Result};
use apr_scan::ScanSummary;
use apr_source::{Architecture, Source};
use apr_trace::Payload;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

pub use self::background::meter::Watch;
use self::background::{Desk, work};
use self::explorer::Explorer;
use self::keys::Asks;
use self::loaded::Loaded;
use self::view::View;
use crate::palette::Palette;
use crate::screen::{Screen, ScreenOptions};
use crate::terminal::{End, show};
use crate::wording::Plain;

/// A model to look at.
#[derive(Clone)]
pub struct Subject<'m> {
    /// Model as the user wrote it.
    pub name: &'m str,
    /// Reader of the model.
    pub reader: &'m dyn CheckpointReader,
    /// The families that are known.
    pub families: &'m Families,
    /// The family that it is taken for.
    pub architecture: Architecture,
}

impl<'m> Subject<'m> {
    fn source(&self) -> Source<'m> {
        Source::new(self.reader, self.families).named(self.name).taken_for(&self.architecture)
    }
}

/// Function of the front end that scans the model's files.
///
/// Its reads pass through the watch, which reports the progress and can stop the scan.
pub type Scan<'m> = dyn Fn(&Watch) -> Result<ScanSummary> + Sync + 'm;

/// Models to show, and the resources for the work.
pub struct Job<'m> {
    /// Model to explore.
    pub model: Subject<'m>,
    /// Another model to compare it with.
    pub other: Option<Subject<'m>>,
    /// Reason for which the other location that the user typed cannot be compared; shown in the
    /// Compare view.
    pub refused: Option<String>,
    /// Payload for the trace of the model; without one, the user types a prompt.
    pub payload: Option<Payload>,
    /// Function that scans the model's files; `None` if there are no files.
    pub scan: Option<&'m Scan<'m>>,
    /// Threads that may work.
    pub threads: NonZeroUsize,
    /// Bytes that the work may take.
    pub max_memory: u64,
    /// Function that checks that the files have not changed.
    pub unchanged: &'m (dyn Fn() -> Result<()> + Sync),
}

/// Shows a model until a key or a signal ends it. The front end opens what it is to be compared
/// with, and shows both.
///
/// # Errors
/// What drawing on the terminal or reading keys ends with.
pub fn explore(
    job: &Job<'_>,
    options: &ScreenOptions<'_>,
    interrupt: &Interrupt,
) -> io::Result<End> {
    let desk = Desk::default();
    with_explorer(job, &desk, options, |explorer| {
        let end = show(explorer, interrupt)?;
        Ok(match explorer.wanted.take() {
            Some(location) if end == End::Quit => End::Compare(location),
            _ => end,
        })
    })
}

/// Returns a model's screen after some keys as rows of text, without a terminal.
///
/// It waits for the results that the keys request.
#[must_use]
pub fn picture(job: &Job<'_>, keys: &str, (columns, rows): (u16, u16)) -> String {
    let desk = Desk::default();
    let options =
        ScreenOptions { palette: Palette::new(false), takes_mouse: false, wording: &Plain };
    with_explorer(job, &desk, &options, |explorer| {
        explorer.settle();
        for key in keys.chars() {
            explorer.key(KeyEvent::from(KeyCode::Char(key)));
            explorer.settle();
        }
        explorer.picture((columns, rows))
    })
}

/// Calls `then` with a screen whose requests are answered.
fn with_explorer<R>(
    job: &Job<'_>,
    desk: &Desk,
    options: &ScreenOptions<'_>,
    then: impl FnOnce(&mut Explorer<'_>) -> R,
) -> R {
    let (sender, answers) = mpsc::channel();
    thread::scope(|scope| {
        for takes_passes in [false, true] {
            let sender = sender.clone();
            scope.spawn(move || work(desk, job, takes_passes, &sender));
        }
        // Closed when this is dropped, by a panic too, so that the threads end.
        let closing = Closing(desk);
        let done = then(&mut Explorer::new(job, desk, answers, *options));
        drop(closing);
        done
    })
}

struct Closing<'d>(&'d Desk);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests;
