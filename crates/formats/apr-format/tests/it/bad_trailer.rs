//! Trailer blocks and footers that are wrong, missing or elsewhere.

use crate::support::{open, refused, sound};
use apr_core::{CheckpointReader, Error};
use apr_testkit::apr2::{Apr2Block, Apr2Builder, Apr2Footer};
use apr_testkit::{corrupt, read_everything};

const SIGNED: u32 = 1 << 5;
const LICENSED: u32 = 1 << 8;

/// Returns the offset of the trailer of the sound file. Its two tensors take one unit each.
fn trailer() -> u64 {
    u64::from(sound().data_start()) + 128
}

fn refused_at(offset: u64, builder: &Apr2Builder) -> Error {
    let error = refused(builder.build());
    assert_eq!(error.offset(), Some(offset), "{error}");
    error
}

fn with_footer(change: impl FnOnce(&mut Apr2Footer)) -> Apr2Builder {
    let mut builder = sound();
    change(&mut builder.footer);
    builder
}

fn digests(body: &[u8]) -> Apr2Builder {
    Apr2Builder { digests: false, ..sound() }.block(Apr2Block::new(*b"DGST", body))
}

#[test]
fn a_footer_that_is_missing_or_elsewhere_is_corrupt() {
    let end = sound().build().len() as u64;
    let error = refused_at(end - 16, &with_footer(|footer| footer.present = false));
    assert_eq!(error.code().id(), "E002");
    assert!(error.message().contains("truncated: the footer is missing"), "{error}");

    let error = refused_at(end - 16, &with_footer(|footer| footer.magic = *b"APR2"));
    assert_eq!(error.code().id(), "E002", "{error}");

    for file_size in [0, end - 1, end + 1, u64::MAX] {
        let error = refused_at(end - 8, &with_footer(|footer| footer.file_size = Some(file_size)));
        assert_eq!(error.code().id(), "E002");
        assert!(error.message().contains(&file_size.to_string()), "{error}");
    }
    // Moved by one byte, by a unit of zeros, and before the block that should precede it.
    let file = sound().build();
    for zeros in [1, 16, 64] {
        let moved = corrupt::insert(&file, file.len() - 16, &vec![0; zeros]);
        assert_eq!(refused(moved).code().id(), "E002");
    }
    let early = corrupt::insert(
        &file,
        usize::try_from(trailer()).expect("small"),
        &file[file.len() - 16..],
    );
    assert_eq!(refused(early).code().id(), "E002");
}

#[test]
fn digest_blocks_that_do_not_fit_are_refused() {
    let right: Vec<u8> = [1, 0, 0, 0, 0, 0, 0, 0].into_iter().chain([7; 96]).collect();
    assert_eq!(open(digests(&right).build()).stored(0).digest(), Some([7; 32]));
    for body in
        [&right[..8 + 95], &right[..8 + 64], &right[..8], &[], &[&right[..], &[0; 32]].concat()]
    {
        let error = refused_at(trailer() + 16, &digests(body));
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("does not fit 3 tensors"), "{error}");
    }
    for algorithm in [0, 2, 255] {
        let body = corrupt::overwrite(&right, 0, &[algorithm]);
        let error = refused_at(trailer() + 16, &digests(&body));
        assert_eq!(error.code().id(), "E003", "{error}");
    }
    let mut newer = digests(&right);
    newer.blocks[0].version = 2;
    assert_eq!(refused_at(trailer(), &newer).code().id(), "E003");

    let twice = sound().block(Apr2Block::new(*b"DGST", &right));
    let error = refused(twice.build());
    assert_eq!(error.code().id(), "E002");
    assert!(error.message().contains("'DGST' appears twice"), "{error}");
}

#[test]
fn block_lengths_that_leave_the_file_or_wrap_are_corrupt() {
    for len in [1 << 20, 1 << 63, u64::MAX - 16, u64::MAX - 15, u64::MAX] {
        let builder = Apr2Builder { digests: false, ..sound() };
        let error = refused_at(
            trailer(),
            &builder.block(Apr2Block { len: Some(len), ..Apr2Block::new(*b"NEWS", b"x") }),
        );
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("ends past the file"), "{error}");
    }
}

#[test]
fn flags_and_their_blocks_come_together_or_not_at_all() {
    let end = sound().build().len() as u64 - 16;
    for (flag, kind) in [(SIGNED, *b"SIGN"), (LICENSED, *b"LICN")] {
        let flagged = Apr2Builder { flags: flag | 2, ..sound() };
        let error = refused_at(end, &flagged);
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("is missing"), "{error}");

        let block = Apr2Block::new(kind, &[0; 16]);
        let error = refused(sound().block(block.clone()).build());
        assert_eq!(error.code().id(), "E002", "{error}");
        assert!(error.message().contains("does not flag"), "{error}");

        let reader = open(flagged.block(block).build());
        assert_eq!(reader.warnings(), [""; 0]);
    }
}

#[test]
fn signatures_without_digests_are_rejected() {
    let builder = Apr2Builder { flags: SIGNED | 2, digests: false, ..sound() };
    let error = refused(builder.block(Apr2Block::new(*b"SIGN", &[0; 16])).build());
    assert_eq!(error.code().id(), "E002", "{error}");
    assert!(error.message().contains("no digests"), "{error}");
}

#[test]
fn unknown_blocks_are_skipped_with_a_warning() {
    let newer = Apr2Block { version: 9, ..Apr2Block::new(*b"ABC2", &[1; 100]) };
    let reader = open(sound().block(Apr2Block::new(*b"NEWS", b"")).block(newer).build());
    assert_eq!(reader.warnings().len(), 2, "{:?}", reader.warnings());
    assert!(reader.warnings()[0].contains("'NEWS'") && reader.warnings()[1].contains("'ABC2'"));
    read_everything(&reader).expect("a sound file");
}

#[test]
fn a_trailer_of_endless_blocks_is_refused() {
    let mut builder = sound();
    for number in 0..1000_u16 {
        let kind = format!("X{number:03}");
        builder
            .blocks
            .push(Apr2Block::new(kind.as_bytes().try_into().expect("four characters"), b""));
    }
    let error = refused(builder.build());
    assert_eq!(error.code().id(), "E002", "{error}");
    assert!(error.message().contains("more than 64"), "{error}");
}

#[test]
fn a_file_without_digests_opens() {
    let reader = open(Apr2Builder { digests: false, ..sound() }.build());
    assert_eq!(reader.stored(0).digest(), None);
    assert_eq!(reader.warnings(), [""; 0]);
    read_everything(&reader).expect("a sound file");
}
