//! What opening costs: time and memory follow the header, whatever the file claims.

use std::iter;

use apr_core::{ByteSource, CheckpointReader, Code, DType, Limits, Metadata, Result};
use apr_safetensors::{WriteOptions, plan};

use crate::{assert_refused, entry, file, open, tensor, write};

/// A file of any length whose bytes are zero after the first few.
struct Sparse {
    start: Vec<u8>,
    len: u64,
}

impl ByteSource for Sparse {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        assert!(buf.len() <= self.start.len(), "{} bytes are read at once", buf.len());
        for (byte, at) in buf.iter_mut().zip(offset..) {
            *byte =
                usize::try_from(at).ok().and_then(|at| self.start.get(at).copied()).unwrap_or(0);
        }
        Ok(())
    }
}

#[test]
fn a_terabyte_opens_by_its_header_alone() {
    let start =
        file(format!("{{{}}}", entry("w", "U8", "[1048576,1048576]", "[0,1099511627776]")), b"");
    let len = start.len() as u64 + (1 << 40);
    let reader = apr_safetensors::open(Sparse { start, len }, "sparse", &Limits::default())
        .expect("a valid file");
    assert_eq!(reader.read_tensor(0, (1 << 40) - 4, &mut [1; 4]), Ok(()));
    assert_eq!(reader.tensor_slice(0), None);
}

#[test]
fn headers_over_the_limit_are_refused_before_they_are_read() {
    let open = |header_len: u64, limits: &Limits| {
        let start = [&header_len.to_le_bytes()[..], b"{"].concat();
        apr_safetensors::open(Sparse { start, len: 1 << 40 }, "sparse", limits)
    };
    let mut limits = Limits::default();
    assert_refused(
        open(100_000_001, &limits),
        Code::Memory,
        "the format's limit is 100000000 (at byte 0)",
    );
    assert_refused(open(1 << 39, &limits), Code::Memory, "limit");
    limits.max_metadata = 1000;
    assert_refused(open(1001, &limits), Code::Memory, "limit of 1000");
    limits.max_metadata = u64::MAX;
    assert_refused(open(100_000_001, &limits), Code::Memory, "the format's limit");
}

#[test]
fn a_hundred_thousand_tensors_open_without_quadratic_work() {
    let infos: Vec<_> = (0..100_000)
        .map(|i| tensor(&format!("model.layers.{i}.self_attn.q_proj.weight"), DType::U8, &[1]))
        .collect();
    let tensors: Vec<_> = infos.iter().cloned().zip(iter::repeat(vec![7])).collect();
    let bytes = write(&tensors, &Metadata::new(), &WriteOptions::default());

    let start = std::time::Instant::now();
    let reader = open(bytes).expect("a large file");
    let opening = start.elapsed();
    assert_eq!(reader.tensors(), infos);
    plan(&infos, reader.metadata(), &WriteOptions::default()).expect("a large plan");
    eprintln!("opened in {opening:?}, planned and opened in {:?}", start.elapsed());
    // Some 0.1 s; work by the square would take minutes.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());

    let entries: Vec<_> = (0..100_000).map(|_| entry("same", "U8", "[0]", "[0,0]")).collect();
    let twice = open(file(format!("{{{}}}", entries.join(",")), b""));
    assert_refused(twice, Code::Format, "two tensors of this name");
}
