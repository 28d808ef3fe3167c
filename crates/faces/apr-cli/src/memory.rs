//! What happens where the system gives no more memory (`ulimit -v`, a container's limit): E008, and
//! no crash.
//!
//! Most of the program asks for memory in ways that can't fail, and the standard library ends the
//! process by SIGABRT where they do. So the allocator notes that it failed, and the signal then
//! leads to the error. A thread that can't be made is a panic, which is looked at as well. The
//! stack of the main thread grows on demand, and there is no error for a page that it does not get:
//! it is made to grow at once, while there is a limit to be told.

#![expect(
    unsafe_code,
    reason = "an allocator and the handler of a signal are unsafe by their nature; both do nothing \
        but call another allocator and the system"
)]

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::os::fd::BorrowedFd;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use apr_ops::command::FORMAT;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGABRT;
use signal_hook::low_level;

/// Bytes of the main thread's stack that are there from the beginning.
const STACK: usize = 1 << 20;
/// Bytes required in addition to the stack for the program to start.
const LEAST: u64 = 2 << 20;

const MESSAGE: &[u8] = b"error: E008: out of memory (see `ulimit -v` and the limits of \
                         containers)\n  raise the limit, or use less: --threads 1, --max-memory\n";
const DOCUMENT: &[u8] = b"{\"error\":{\"code\":\"E008\",\"message\":\"out of \
                          memory\",\"file\":null,\"tensor\":null,\"offset\":null}}\n";

/// `true` once an allocation has failed.
static FAILED: AtomicBool = AtomicBool::new(false);
/// `true` if there is a limit, because then the C library can also abort the process when it gets
/// no memory.
static LIMITED: AtomicBool = AtomicBool::new(false);
/// `true` if errors are also printed as JSON documents.
static JSON: AtomicBool = AtomicBool::new(false);

/// Underlying allocator.
///
/// musl's own allocator returns large blocks to the system immediately and serializes threads on
/// one lock: compression took twice as long with it.
#[cfg(target_env = "musl")]
const ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
#[cfg(not(target_env = "musl"))]
const ALLOCATOR: std::alloc::System = std::alloc::System;

#[global_allocator]
static NOTING: Noting = Noting;

/// Allocator that records failed allocations.
struct Noting;

impl Noting {
    fn noted(place: *mut u8) -> *mut u8 {
        if place.is_null() {
            FAILED.store(true, Ordering::Relaxed);
        }
        place
    }
}

// SAFETY: every call goes to the allocator as it came, and its result back.
unsafe impl GlobalAlloc for Noting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        Self::noted(unsafe { ALLOCATOR.alloc(layout) })
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { ALLOCATOR.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        Self::noted(unsafe { ALLOCATOR.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `realloc`.
        Self::noted(unsafe { ALLOCATOR.realloc(place, layout, size) })
    }
}

/// Prepares for running out of memory; returns an error if there is too little memory to start.
pub(crate) fn prepare() -> Result<(), u8> {
    let limit = getrlimit(Resource::As).current;
    if let (Some(limit), Some(used)) = (limit, address_space())
        && limit.saturating_sub(used) < STACK as u64 + LEAST
    {
        tell();
        return Err(FORMAT);
    }
    if limit.is_some() {
        LIMITED.store(true, Ordering::Relaxed);
        grow_stack();
    }

    // SAFETY: the handler reads atomics, writes to open files and ends the process, which a handler
    // may do at any time.
    let registered = unsafe { low_level::register(SIGABRT, on_abort) };

    // Without it, a crash stays a crash.
    drop(registered);
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if is_about_threads(info) {
            tell();
            low_level::exit(FORMAT.into());
        }
        before(info);
    }));
    Ok(())
}

/// Sets whether out-of-memory errors are also printed as documents on standard output.
pub(crate) fn tell_as_json(json: bool) {
    JSON.store(json, Ordering::Relaxed);
}

fn on_abort() {
    if FAILED.load(Ordering::Relaxed) || LIMITED.load(Ordering::Relaxed) {
        tell();
        low_level::exit(FORMAT.into());
    }
}

/// Returns `true` if the standard library could not create a thread or its signal stack.
fn is_about_threads(info: &panic::PanicHookInfo<'_>) -> bool {
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.is_some_and(|text| {
        text.starts_with("failed to spawn thread")
            || text.starts_with("failed to allocate an alternative stack")
    })
}

/// Reports the error without allocating memory.
fn tell() {
    // The handles of the standard library have buffers, which would have to be made.
    // SAFETY: nothing closes the standard streams.
    let (out, err) = unsafe { (BorrowedFd::borrow_raw(1), BorrowedFd::borrow_raw(2)) };
    let _ = rustix::io::write(err, MESSAGE);
    if JSON.load(Ordering::Relaxed) {
        let _ = rustix::io::write(out, DOCUMENT);
    }
}

/// Bytes of addresses that are in use.
fn address_space() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split_whitespace().next()?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// Touches the stack down to its depth, so that the system gives it now.
#[inline(never)]
fn grow_stack() {
    let mut stack = [0_u8; STACK];
    for page in stack.chunks_mut(1 << 12) {
        if let Some(byte) = page.first_mut() {
            *byte = black_box(1);
        }
    }
    black_box(&mut stack);
}
