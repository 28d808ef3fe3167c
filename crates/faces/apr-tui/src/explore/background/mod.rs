//! What is computed in the background: requests, and the two threads that answer them.
//!
//! One thread answers what is on the screen: lists, a histogram, a slice of values. The other makes
//! passes over whole models; between two tensors of the statistics it looks for other requests, and
//! for which tensors are on the screen. Each has half of the memory.

pub(super) mod meter;
pub(super) mod reports;
pub(super) mod request;
pub(super) mod runs;

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use apr_core::IoCause;
use apr_io::{Interrupt, Threads};
use apr_registry::Result;
use apr_run::{RunError, RunResult};

use self::meter::{Meter, Watch};
use self::reports::{Bench, Report, answer};
use self::request::Request;
use super::Job;

/// Request with its result.
pub(crate) struct Answer {
    pub(crate) request: Request,
    pub(crate) result: RunResult<Report>,
}

/// Requests of one of the two threads.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Request>,
    running: Option<(Request, Interrupt)>,
}

#[derive(Default)]
struct State {
    looks: Lane,
    passes: Lane,
    /// Tensors whose statistics are requested but not computed yet; those on the screen are last.
    unmeasured: Vec<usize>,
    is_closed: bool,
}

/// Queue of requests, from which the threads take them.
#[derive(Default)]
pub(crate) struct Desk {
    state: Mutex<State>,
    wake: Condvar,
    /// Progress of the request for the screen, and of the pass.
    meters: [Arc<Meter>; 2],
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request, and cancels the requests that it replaces.
    pub(crate) fn ask(&self, request: Request) {
        let mut state = self.state();
        let lane = if request.is_pass() { &mut state.passes } else { &mut state.looks };
        lane.waiting.retain(|waiting| !waiting.is_replaced_by(&request));
        if let Some((running, interrupt)) = &lane.running {
            if *running == request && interrupt.check().is_ok() {
                return;
            }
            if running.is_replaced_by(&request) {
                interrupt.cancel();
            }
        }
        lane.waiting.push_back(request);
        drop(state);
        self.wake.notify_all();
    }

    /// Requests the statistics of tensors, which are computed from the last one to the first.
    pub(crate) fn measure(&self, tensors: Vec<usize>) {
        self.state().unmeasured = tensors;
        self.wake.notify_all();
    }

    /// Moves these tensors to the front of the measurements.
    pub(crate) fn prefer(&self, tensors: &[usize]) {
        let mut state = self.state();
        if state.unmeasured.is_empty() {
            return;
        }
        // The end of a long list is where those on the screen were put before.
        for tensor in tensors.iter().rev() {
            let near = state.unmeasured.len().saturating_sub(4 * tensors.len());
            let at = state.unmeasured[near..].iter().position(|waiting| waiting == tensor);
            let at = at.map(|at| at + near);
            let at = at.or_else(|| state.unmeasured.iter().position(|waiting| waiting == tensor));
            if let Some(at) = at {
                state.unmeasured.remove(at);
                state.unmeasured.push(*tensor);
            }
        }
    }

    /// Returns the progress of a pass, or of the request for the screen.
    pub(crate) fn meter(&self, is_pass: bool) -> &Arc<Meter> {
        &self.meters[usize::from(is_pass)]
    }

    /// Cancels reads of tensors for the screen, because another view is shown.
    pub(crate) fn cancel_looks(&self) {
        let mut state = self.state();
        state.looks.waiting.retain(|request| !request.is_for_one_view());
        if let Some((request, interrupt)) = &state.looks.running
            && request.is_for_one_view()
        {
            interrupt.cancel();
        }
    }

    /// Cancels all passes, including waiting ones, and returns `true` if there were any.
    pub(crate) fn cancel_passes(&self) -> bool {
        let mut state = self.state();
        let State { passes, unmeasured, .. } = &*state;
        let is_busy =
            passes.running.is_some() || !passes.waiting.is_empty() || !unmeasured.is_empty();
        state.passes.waiting.clear();
        state.unmeasured.clear();
        if let Some((_, interrupt)) = &state.passes.running {
            interrupt.cancel();
        }
        is_busy
    }

    /// The pass that runs.
    pub(crate) fn running_pass(&self) -> Option<Request> {
        self.state().passes.running.as_ref().map(|(request, _)| request.clone())
    }

    /// Returns `true` if a request is running or waiting.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.state();
        let is_busy = |lane: &Lane| lane.running.is_some() || !lane.waiting.is_empty();
        is_busy(&state.looks) || is_busy(&state.passes) || !state.unmeasured.is_empty()
    }

    /// Ends both threads.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        for lane in [&state.looks, &state.passes] {
            if let Some((_, interrupt)) = &lane.running {
                interrupt.cancel();
            }
        }
        drop(state);
        self.wake.notify_all();
    }

    /// The next request of a thread, once there is one; `None` at the end.
    fn next(&self, takes_passes: bool) -> Option<(Request, Interrupt)> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            let lane = if takes_passes { &mut state.passes } else { &mut state.looks };
            let mut request = lane.waiting.pop_front();
            if request.is_none() && takes_passes {
                request = state.unmeasured.pop().map(Request::Statistics);
            }
            if let Some(request) = request {
                let interrupt = Interrupt::default();
                let lane = if takes_passes { &mut state.passes } else { &mut state.looks };
                lane.running = Some((request.clone(), interrupt.clone()));
                return Some((request, interrupt));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn done(&self, was_pass: bool) {
        let mut state = self.state();
        let lane = if was_pass { &mut state.passes } else { &mut state.looks };
        lane.running = None;
    }
}

/// Answers requests until the desk is closed.
pub(crate) fn work(desk: &Desk, job: &Job<'_>, takes_passes: bool, answers: &Sender<Answer>) {
    let bench = Bench::of(job);
    while let Some((request, interrupt)) = desk.next(takes_passes) {
        let meter = desk.meter(takes_passes);
        meter.reset();
        let watch = Watch::new(interrupt, Arc::clone(meter));
        let result = answered(job, &request, &bench, &watch);
        let is_given_up = matches!(&result, Err(RunError::Model(error))
            if error.cause() == Some(IoCause::Interrupted));
        let is_heard = is_given_up || answers.send(Answer { request, result }).is_ok();
        desk.done(takes_passes);
        if !is_heard {
            return;
        }
    }
}

fn answered(
    job: &Job<'_>,
    request: &Request,
    bench: &Bench<'_>,
    watch: &Watch,
) -> RunResult<Report> {
    let threads = pipeline(job, watch.interrupt().clone())?;
    let report = answer(request, bench, &threads, watch)?;
    // What was read in two states is not shown.
    (job.unchanged)()?;
    Ok(report)
}

/// Half of the threads and of the memory: the other half is the other thread's.
fn pipeline(job: &Job<'_>, interrupt: Interrupt) -> Result<Threads> {
    Threads::new(half(job.threads), job.max_memory / 2, interrupt)
}

fn half(threads: NonZeroUsize) -> NonZeroUsize {
    NonZeroUsize::new(threads.get().div_ceil(2)).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_request_replaces_an_older_one_of_its_kind() {
        let desk = Desk::default();
        desk.ask(Request::Histogram(1));
        desk.ask(Request::List);
        desk.ask(Request::Histogram(2));
        let (first, _) = desk.next(false).expect("a request");
        let (second, interrupt) = desk.next(false).expect("a request");
        assert_eq!(first, Request::List);
        assert_eq!(second, Request::Histogram(2));
        desk.ask(Request::Histogram(3));
        assert!(interrupt.check().is_err(), "what runs is given up");
    }

    #[test]
    fn tensors_on_the_screen_are_measured_first_and_passes_before_them() {
        let desk = Desk::default();
        desk.measure((0..1000).rev().collect());
        desk.prefer(&[500, 501]);
        let next = || desk.next(true).map(|(request, _)| request);
        assert_eq!(next(), Some(Request::Statistics(500)));
        desk.ask(Request::Checks);
        assert_eq!(next(), Some(Request::Checks));
        assert_eq!(next(), Some(Request::Statistics(501)));
        assert_eq!(next(), Some(Request::Statistics(0)));
        assert!(desk.cancel_passes());
        desk.close();
        assert_eq!(next(), None);
    }
}
