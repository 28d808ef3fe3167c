//! How much memory a piece of code holds at most, and how much it asks for.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, which keeps count for each thread. A test binary names it as its
/// `#[global_allocator]`.
///
/// ```
/// use apr_testkit::{PeakAlloc, peak_memory};
///
/// #[global_allocator]
/// static ALLOCATOR: PeakAlloc = PeakAlloc;
///
/// let (_, peak) = peak_memory(|| drop(vec![1_u8; 5000]));
/// assert!((5000..10_000).contains(&peak));
/// ```
#[derive(Debug)]
pub struct PeakAlloc;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// Runs `code`, and returns its result and the total number of bytes it allocated on this thread.
///
/// The number is the same in every run. It grows with the work if the work allocates values.
///
/// # Panics
/// When the binary's allocator is not [`PeakAlloc`], which could not count.
pub fn asked_memory<T>(code: impl FnOnce() -> T) -> (T, u64) {
    let before = ASKED.get();
    drop(std::hint::black_box(Box::new(0_u8)));
    assert!(ASKED.get() > before, "PeakAlloc is not this binary's allocator");
    let result = code();
    (result, ASKED.get() - before)
}

/// Runs `code`, and returns its result and the peak of bytes it held, allocated on this thread.
///
/// # Panics
/// When the binary's allocator is not [`PeakAlloc`], which could not count.
pub fn peak_memory<T>(code: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    drop(std::hint::black_box(Box::new(0_u8)));
    assert!(PEAK.get() > before, "PeakAlloc is not this binary's allocator");
    let result = code();
    (result, PEAK.get().abs_diff(before))
}

fn count(change: isize) {
    // While a thread ends its counters may be gone; nothing is measured then.
    let live = LIVE.try_with(|live| {
        live.set(live.get() + change);
        live.get()
    });
    if let Ok(live) = live {
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live)));
        let asked = u64::try_from(change).unwrap_or(0);
        let _ = ASKED.try_with(|sum| sum.set(sum.get().wrapping_add(asked)));
    }
}

#[allow(unsafe_code, reason = "only an allocator sees all allocations, and the trait is unsafe")]
// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for PeakAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: `pointer` came from `alloc` with this layout, so from the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as for `dealloc`; the caller keeps the contract of `new_size`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}
