//! What is compressed, encrypted, sharded or of any type.

use apr_ops::parts::{PartResult, PartsPlan};
use apr_registry::apr2::{self, Apr2Reader, Keys, Manifest};
use apr_registry::aprn::{self, LoadOptions, ModelType};
use apr_registry::codec::{BlockDecoder, BlockHead, Coding, Element};
use apr_registry::crypto::{DecryptionKey, EncrBlock, SignBlock, Stanza, Unlock};
use apr_registry::{CheckpointReader, DType, Limits};

use crate::{NAME, limits, use_reader};

/// Password of `fixtures/valid/apr2/sealed.apr`, an initial input; below, the key of a recipient.
const PASSWORD: &[u8] = b"test password";
const IDENTITY: [u8; 32] = [0xb1; 32];

/// Private key that opens `fixtures/valid/aprn/recipient-x09.apr`.
const APRN_IDENTITY: [u8; 32] = [9; 32];

/// Argon2 work in KiB times passes that a run has time and memory for.
const MAX_WORK: u64 = 4096;

/// Reads the input as an APRN file, with and without keys, and as typed models.
pub fn read_aprn(data: &[u8]) {
    let keys = LoadOptions { identity: Some(APRN_IDENTITY.into()), ..LoadOptions::default() };
    for options in [LoadOptions::default(), keys] {
        if let Ok(reader) = aprn::open(data.to_vec(), NAME, &limits(), &options) {
            use_reader(&reader);
        }
        for kind in [ModelType::LinearRegression, ModelType::KMeans, ModelType::Custom] {
            let loaded = aprn::load_from_bytes_with::<(Option<Vec<f32>>, Vec<String>, f32)>(
                data, kind, &options,
            );
            std::hint::black_box(loaded.is_ok());
        }
    }
    std::hint::black_box(aprn::inspect(&data).is_ok());
}

/// Takes the input for a block: a byte for the coding, one for the dtype, four for the length it
/// decodes to, with the top bit for a raw body; then the body.
pub fn decode_block(data: &[u8]) {
    let Some((&[flags, dtype, ref head @ ..], body)) = data.split_first_chunk::<6>() else {
        return;
    };
    let Some(coding) = Coding::from_flags(flags.into()) else { return };
    let dtype = DType::ALL[usize::from(dtype) % DType::ALL.len()];
    let head = BlockHead::read(*head);
    let mut decoded = vec![0; head.len % (coding.block_len() + 1)];
    let mut decoder = BlockDecoder::new(coding, Element::of(dtype));
    let first = decoder.decode(body, head.raw, &mut decoded).is_ok().then(|| decoded.clone());
    // A decoder is used again for other blocks, and must not remember.
    let second = decoder.decode(body, head.raw, &mut decoded).is_ok().then_some(decoded);
    assert_eq!(first, second, "a block decodes to the same bytes every time");
}

/// Opens the input as an encrypted APR2 file, without keys, by password and by key, and reads
/// everything.
pub fn open_encrypted(data: &[u8]) {
    let open = |unlock| {
        let keys = Keys { unlock, ..Keys::default() };
        apr2::open_with_keys(data.to_vec(), NAME, &limits(), &keys)
    };
    let Ok(locked) = open(vec![]) else { return };
    use_sealed(&locked);
    let mut keys = vec![Unlock::Identity(DecryptionKey::from_bytes(&IDENTITY))];
    if is_cheap(data, &locked) {
        keys.push(Unlock::Password(PASSWORD.to_vec().into()));
    }
    for key in keys {
        if let Ok(reader) = open(vec![key]) {
            use_sealed(&reader);
        }
    }
}

fn use_sealed(reader: &Apr2Reader) {
    std::hint::black_box(apr_testkit::read_everything(reader).is_ok());
    if let Ok(Some(signed)) = reader.container().signed()
        && let Some(Ok(block)) = signed.signatures.as_deref().map(SignBlock::decode)
    {
        assert!(
            block.verify(&signed.digest, &[]).check().is_err(),
            "no key in a file is trusted by itself"
        );
    }
}

/// Returns `true` if trying a password on the file takes little of the work that a file may
/// request.
fn is_cheap(data: &[u8], reader: &Apr2Reader) -> bool {
    let at = reader.header().data_offset as usize;
    let Some(head) = data.get(at..).and_then(|block| block.first_chunk()) else { return false };
    let len = EncrBlock::stored_len(head).ok().and_then(|len| usize::try_from(len).ok());
    let Some(block) = len.and_then(|len| data.get(at..at.checked_add(len)?)) else { return false };
    let Ok(block) = EncrBlock::decode(block) else { return false };
    let work = block.stanzas().iter().map(|stanza| match stanza {
        Stanza::Password { costs, .. } => u64::from(costs.m) * u64::from(costs.t),
        _ => 0,
    });
    work.sum::<u64>() <= MAX_WORK
}

/// Reads the input as the manifest of a sharded model, and writes it again.
pub fn read_manifest(data: &[u8]) {
    let Ok(manifest) = Manifest::parse(data, NAME, &limits()) else { return };
    let written = manifest.encode();
    let again =
        Manifest::parse(&written, NAME, &Limits::default()).expect("what was written can be read");
    assert_eq!(again.encode(), written, "a manifest read and written again is the same");
}

/// Reads the input as the plan of a job in parts, and as the result of a part, and writes them
/// again.
pub fn read_plan(data: &[u8]) {
    if let Ok(plan) = PartsPlan::parse(data, NAME, &limits()) {
        let written = plan.encode();
        let again = PartsPlan::parse(&written, NAME, &Limits::default())
            .expect("what was written can be read");
        assert_eq!(again, plan, "a plan read and written again is the same");
        std::hint::black_box(plan.manifest(&limits())).expect("it was read with the plan");
        // Results that do not belong to it are refused or noted; nothing panics.
        drop(apr_ops::parts::finish(&plan, &[], &[], &limits()));
    }
    if let Ok(result) = PartResult::parse(data, NAME, &limits()) {
        let again = PartResult::parse(&result.encode(), NAME, &Limits::default());
        assert_eq!(again.expect("what was written can be read"), result);
    }
}
