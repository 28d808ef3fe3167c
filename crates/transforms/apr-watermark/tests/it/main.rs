//! Marks over whole models.

mod watermark_memory;

use apr_testkit::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
