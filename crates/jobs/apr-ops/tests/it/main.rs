//! Passes over whole models.

mod agreement;
mod gguf;
mod gguf_memory;
mod reads;
mod second_opinion;
mod trained_statistics;
mod valid_fixtures;
mod wrappers;

use apr_testkit::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;
