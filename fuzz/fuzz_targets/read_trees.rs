#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| apr_fuzz_bodies::read_trees(data));
