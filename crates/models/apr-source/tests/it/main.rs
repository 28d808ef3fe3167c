//! Companions of any size.

mod companion_memory;

use apr_testkit::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
