//! Opens a model and reads every tensor into memory of its own, as a loader does; prints the
//! seconds it took.
//!
//! `cargo run --release -p apr-io --example read_all -- MODEL`

use std::time::Instant;

use apr_io::FileSource;
use apr_registry::Limits;

fn main() -> apr_registry::Result<()> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "fixtures/tiny-llama/model.safetensors".to_owned());
    let start = Instant::now();
    let model = apr_registry::open(FileSource::open(&path)?, &path, &Limits::default())?;
    let mut bytes = 0;
    for (tensor, info) in model.tensors().iter().enumerate() {
        let len = usize::try_from(info.byte_len()?)
            .map_err(|_| apr_registry::Error::memory("the tensor is too large"))?;
        let mut buffer = vec![0; len];
        model.read_tensor(tensor, 0, &mut buffer)?;
        bytes += std::hint::black_box(buffer).len();
    }
    println!("{:.6} {bytes}", start.elapsed().as_secs_f64());
    Ok(())
}
