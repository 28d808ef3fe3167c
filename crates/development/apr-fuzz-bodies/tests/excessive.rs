//! Files that ask for more work than their size justifies take no more than that.

use std::path::Path;

use apr_fuzz_bodies::{
    read_adapter, read_apr1, read_apr2, read_aprn, read_ggml, read_gguf, read_numpy, read_onnx,
    read_pytorch, read_safetensors, scan_any,
};
use apr_testkit::excessive::{self, Construct};
use apr_testkit::{PeakAlloc, asked_memory, peak_memory};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes that any file may allocate: values written once, tables that are read, and free budgets.
const FREE: u64 = 24 << 20;

/// Maximum factor by which allocations may grow faster than the file.
const FASTER: u64 = 3;

fn body(construct: &Construct) -> fn(&[u8]) {
    if construct.file == "adapter_config.json" {
        return read_adapter;
    }
    match Path::new(construct.file).extension().and_then(|extension| extension.to_str()) {
        Some("onnx") => read_onnx,
        Some("pkl" | "pt") => read_pytorch,
        Some("safetensors") => read_safetensors,
        Some("gguf") => read_gguf,
        Some("npy" | "npz") => read_numpy,
        Some("apr") => |file| {
            read_apr2(file);
            read_apr1(file);
            read_aprn(file);
        },
        Some("bin") => read_ggml,
        // What has no reader is only scanned.
        _ => |_| (),
    }
}

/// Reads and scans files of two sizes, and compares the bytes that were allocated.
fn grows_no_faster(construct: &Construct, sizes: [usize; 2]) {
    let reader = body(construct);
    let body = |file: &[u8]| {
        reader(file);
        scan_any(file);
    };
    let [(few, asked_few), (many, asked_many)] = sizes.map(|size| {
        let file = construct.of_size(size);
        (file.len() as u64, asked_memory(|| body(&file)).1)
    });
    let most = asked_few.saturating_mul(FASTER * many.div_ceil(few)).saturating_add(FREE);
    assert!(
        asked_many <= most,
        "{}: {few} bytes asked for {asked_few}, and {many} for {asked_many}",
        construct.name
    );
}

#[test]
fn work_grows_no_faster_than_the_file() {
    for construct in excessive::all() {
        grows_no_faster(&construct, [2000, 16_000]);
    }
}

#[test]
#[ignore = "takes minutes: `cargo test -p apr-fuzz-bodies -- --ignored`"]
fn work_grows_no_faster_than_files_of_a_megabyte() {
    for construct in excessive::all() {
        eprintln!("{}", construct.name);
        grows_no_faster(&construct, [100_000, 1_000_000]);
        let file = construct.of_size(1_000_000);
        let (_, peak) = peak_memory(|| body(&construct)(&file));
        assert!(peak < 1 << 30, "{}: {peak} bytes", construct.name);
    }
}
