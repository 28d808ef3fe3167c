//! Files of other programs, by what these programs have in them; broken ones are errors.

mod ctranslate2;
mod vectors;

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;
