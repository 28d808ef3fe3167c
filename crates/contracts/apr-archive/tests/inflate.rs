//! Streams that miniz_oxide compressed are read at any place; damaged ones are errors.

use std::sync::Arc;

use apr_archive::{Cache, Inflated, MAX_PAGES, PAGE, Wrapper, inflated_len};
use apr_core::{ByteSource, Code, Result};
use apr_testkit::{CountingSource, corrupt, peak_memory};
use miniz_oxide::deflate::{compress_to_vec, compress_to_vec_zlib};

/// Bytes of a page.
const LEN: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

/// Returns bytes that compress to about half, the same for the same length.
fn text(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 60) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn inflated(stream: Vec<u8>, len: u64) -> Result<Inflated<Vec<u8>>> {
    let place = (0, stream.len() as u64);
    Inflated::new(stream, place, len, Wrapper::Raw, &Arc::new(Cache::default()))
}

#[test]
fn any_range_in_any_order_is_what_was_compressed() {
    let plain = text(9 * LEN + 12_345);
    let source = inflated(compress_to_vec(&plain, 6), plain.len() as u64).expect("a stream");
    let last = plain.len() - 1;
    let (page, ranges) = (LEN, [0, 1, 4095, 700_000]);
    for start in
        [last, 5 * page + 3, 0, 8 * page - 1, page, page - 1, 3 * page, 2, 9 * page, 4 * page]
    {
        for len in ranges.map(|len| len.min(plain.len() - start)) {
            let mut buf = vec![0; len];
            source.read_at(start as u64, &mut buf).expect("within");
            assert!(buf == plain[start..start + len], "{len} bytes from {start} on");
        }
    }
    assert_eq!(
        source.read_at(last as u64, &mut [0; 2]).expect_err("past the end").code(),
        Code::Corrupt
    );
}

#[test]
fn reading_on_and_stepping_back_a_little_reads_the_stream_once() {
    let plain = text(40 * LEN);
    let stream = compress_to_vec(&plain, 1);
    let (len, place) = (stream.len() as u64, (0, stream.len() as u64));
    let counter = CountingSource::new(stream);
    let source = Inflated::new(
        counter.clone(),
        place,
        plain.len() as u64,
        Wrapper::Raw,
        &Arc::new(Cache::default()),
    );
    let source = source.expect("a stream");
    let mut buf = vec![0; LEN];
    // As several threads ask for the chunks of a tensor.
    for page in (0..40_u64).map(|page| page ^ 3) {
        source.read_at(page * PAGE, &mut buf).expect("within");
        assert!(buf == plain[usize::try_from(page * PAGE).expect("small")..][..buf.len()]);
    }
    assert!(counter.bytes_read() < len + len / 8, "{} of {len}", counter.bytes_read());
}

#[test]
fn memory_does_not_grow_with_the_stream() {
    let plain = vec![7; 300 << 20];
    let stream = compress_to_vec(&plain, 1);
    let source = inflated(stream, plain.len() as u64).expect("a stream");
    let mut buf = vec![0; 1 << 16];
    let ((), peak) = peak_memory(|| {
        for step in 0..300 {
            source.read_at(step << 20, &mut buf).expect("within");
        }
    });
    assert!(peak < (MAX_PAGES + 16) << 20, "{peak}");
}

/// Reads like a view whose elements are each in another page.
#[test]
fn jumping_from_page_to_page_ends_when_it_decodes_far_more_than_there_is() {
    let plain = vec![7; 20 << 20];
    let source = inflated(compress_to_vec(&plain, 1), plain.len() as u64).expect("a stream");
    let jumps = (0..1000).map(|jump| jump * 19 % 20 * PAGE);
    let read: Vec<_> = jumps.map(|place| source.read_at(place, &mut [0; 4])).collect();
    let done = read.iter().take_while(|read| read.is_ok()).count();
    assert!((100..300).contains(&done), "{done} jumps");
    let error = read[done].as_ref().expect_err("over the budget");
    assert_eq!(error.code(), Code::Memory);
    assert!(error.message().ends_with(apr_core::Work::NOT_JUSTIFIED), "{error}");
}

#[test]
fn the_declared_length_must_be_the_true_one() {
    let plain = text(70_000);
    let stream = compress_to_vec(&plain, 6);
    for (declared, what) in [(plain.len() - 1, "hold more than"), (plain.len() + 1, "end before")] {
        let source = inflated(stream.clone(), declared as u64).expect("not yet read");
        let error = source.read_at(0, &mut vec![0; declared]).expect_err("a lie");
        assert!(error.code() == Code::Corrupt && error.message().contains(what), "{error}");
    }
    let error = inflated(stream, 1 << 40).expect_err("a bomb");
    assert!(error.code() == Code::Corrupt && error.message().contains("can't hold"), "{error}");
}

#[test]
fn the_length_of_a_stream_is_counted_within_its_limit() {
    let plain = text(3 << 20);
    let stream = compress_to_vec_zlib(&plain, 6);
    let range = (0, stream.len() as u64);
    let with_more = [&stream[..], b"more"].concat();
    let counted = inflated_len(&with_more, (0, with_more.len() as u64), Wrapper::Zlib, u64::MAX);
    assert_eq!(counted, Ok((plain.len() as u64, stream.len() as u64)));
    let error = inflated_len(&stream, range, Wrapper::Zlib, 1 << 20).expect_err("too much");
    assert_eq!(error.code(), Code::Memory, "{error}");
    let past = inflated_len(&stream, (range.1 + 1, range.1 + 9), Wrapper::Raw, u64::MAX);
    assert_eq!(past.expect_err("nothing there").code(), Code::Corrupt);
    let mut damaged = stream;
    *damaged.last_mut().expect("a checksum") ^= 1;
    assert_eq!(
        inflated_len(&damaged, range, Wrapper::Zlib, u64::MAX).expect_err("bad").code(),
        Code::Checksum
    );
}

#[test]
fn broken_streams_are_errors_or_other_bytes_of_the_same_length() {
    let plain = text(3000);
    let stream = compress_to_vec(&plain, 9);
    let broken = corrupt::truncations(&stream).chain(corrupt::bit_flips(&stream, 0..stream.len()));
    for broken in broken {
        let Ok(source) = inflated(broken, plain.len() as u64) else { continue };
        let mut buf = vec![0; plain.len()];
        if let Err(error) = source.read_at(0, &mut buf) {
            assert_eq!(error.code(), Code::Corrupt, "{error}");
        }
    }
}
