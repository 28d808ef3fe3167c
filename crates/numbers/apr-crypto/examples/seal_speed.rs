//! How fast one core enciphers and deciphers a tensor, and what one try at a password costs.
//!
//! `cargo run --release -p apr-format --example seal_speed`

use std::time::{Duration, Instant};

use apr_crypto::{Argon2Costs, DecryptionKey, EncrBlock, Lock, password_key};

const LEN: usize = 64 << 20;
const RUNS: usize = 5;

fn fastest(mut run: impl FnMut()) -> Duration {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}

fn main() -> Result<(), apr_core::Error> {
    // Speed does not depend on the bytes.
    let mut random = |bytes: &mut [u8]| {
        bytes.fill(7);
        Ok(())
    };
    let lock = Lock::Recipient(DecryptionKey::from_bytes(&[1; 32]).public_bytes());
    let (block, key) = EncrBlock::seal(&[lock], &mut random)?;
    let cipher = key.tensor(&block.salt(), "weight");
    let (plain, mut sealed, mut opened) = (vec![3; LEN], Vec::new(), vec![0; LEN]);

    let sealing = fastest(|| {
        sealed.clear();
        cipher.seal_all(&plain, &mut sealed);
    });
    let mut outcome = Ok(());
    let opening = fastest(|| outcome = cipher.open_chunks(0, true, &sealed, &mut opened));
    outcome?;
    assert_eq!(opened, plain);
    for (what, time) in [("seal", sealing), ("open", opening)] {
        println!("{what}  {:.2} GB/s", LEN as f64 / time.as_secs_f64() / 1e9);
    }
    let trying = fastest(|| drop(password_key(b"password", &[0; 16], Argon2Costs::default())));
    println!("password  {:.0} ms", trying.as_secs_f64() * 1e3);
    Ok(())
}
