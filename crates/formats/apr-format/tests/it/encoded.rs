//! Files whose tensors are compressed, encrypted, signed, or all of it.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Model, Tensor, tensor};
use apr_core::digest::TensorDigest;
use apr_core::{CheckpointReader, CheckpointWriter, Code, DType, Error, Limits, Metadata, Notes};
use apr_format::apr2::{self, Apr2Reader, CompanionFile, Encrypt, Keys, WriteOptions};
use apr_format::codec::Choice;
use apr_format::crypto::{
    Argon2Costs, DecryptionKey, EncrBlock, Lock, PublicKey, SignBlock, SigningKey, Unlock,
};
use apr_testkit::corrupt;

/// Costs that tests can afford.
const CHEAP: Argon2Costs = Argon2Costs { m: 8, t: 1, p: 1 };

fn fixed(bytes: &mut [u8]) -> apr_core::Result<()> {
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 37 + 11).to_le_bytes()[0]);
    Ok(())
}

fn password() -> Unlock {
    Unlock::Password(b"correct horse".to_vec().into())
}

fn encrypt(hide_metadata: bool) -> Encrypt {
    let reader = DecryptionKey::from_bytes(&[9; 32]);
    let locks = [
        Lock::Password { password: b"correct horse".to_vec().into(), costs: CHEAP },
        Lock::Recipient(reader.public_bytes()),
    ];
    let (block, key) = EncrBlock::seal(&locks, &mut fixed).expect("two locks");
    Encrypt { block, key, hide_metadata }
}

/// Returns realistic weights: exponents close together, random mantissas.
fn weights(name: &str, rows: u64, columns: u64) -> Tensor {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let info = tensor(name, DType::BF16, &[rows, columns]).info;
    let bytes = (0..rows * columns).flat_map(|_| {
        let sum: f32 = (0..4).map(|_| (next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum();
        let [_, _, low, high] = (sum * 0.02).to_le_bytes();
        [low, high]
    });
    Tensor { info, bytes: bytes.collect() }
}

fn model() -> Model {
    let mut metadata = Metadata::new();
    metadata.set("model_type", "test");
    metadata.set("secret", "plan");
    let noise = Tensor {
        info: tensor("c.noise", DType::U8, &[70_000]).info,
        bytes: blake3::Hasher::new().finalize_xof_bytes(70_000),
    };
    Model {
        tensors: vec![
            weights("a.weight", 900, 700),
            tensor("b.bias", DType::F32, &[3]),
            noise,
            tensor("d.empty", DType::F32, &[0]),
            Tensor {
                info: tensor("e.zeros", DType::F32, &[300, 1000]).info,
                bytes: vec![0; 1_200_000],
            },
        ],
        metadata,
        companions: vec![CompanionFile {
            name: "tokenizer.json".into(),
            bytes: vec![b'x'; 3 << 20],
        }],
        ..Model::default()
    }
}

trait Xof {
    fn finalize_xof_bytes(&self, len: usize) -> Vec<u8>;
}

impl Xof for blake3::Hasher {
    fn finalize_xof_bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.finalize_xof().fill(&mut bytes);
        bytes
    }
}

fn write(model: &Model, options: &WriteOptions, piece: usize) -> Vec<u8> {
    let mut writer = apr2::plan(&model.infos(), &model.metadata, model.companions.clone(), options)
        .expect("it can be written");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes everything");
    for tensor in &model.tensors {
        tensor
            .bytes
            .chunks(piece)
            .for_each(|piece| writer.write_chunk(&mut file, piece, None).expect("planned"));
    }
    writer.finish(&mut file, &Notes::default()).expect("all tensors are there");
    assert_eq!(writer.layout().files[0].len, file.len() as u64);
    file
}

fn open(file: Vec<u8>, keys: &[Unlock]) -> apr_core::Result<Apr2Reader> {
    let keys = Keys { unlock: keys.to_vec(), ..Keys::default() };
    apr2::open_with_keys(file, "model.apr", &Limits::default(), &keys)
}

fn assert_holds(reader: &Apr2Reader, model: &Model) {
    assert_eq!(reader.tensors(), model.infos());
    for (at, expected) in model.tensors.iter().enumerate() {
        assert!(
            reader.tensor_bytes(&expected.info.name).expect("it decodes").as_ref()
                == expected.bytes,
            "{at}"
        );
        for (start, len) in [(0, 1), (1, 7), (65_530, 20), (1_048_570, 40)] {
            let Some(part) = expected.bytes.get(start..start + len) else { continue };
            let mut bytes = vec![0; len];
            reader.read_tensor(at, start as u64, &mut bytes).expect("it decodes");
            assert_eq!(bytes, part, "{at} {start}");
        }
        let stored = reader.stored(at);
        let mut verbatim = vec![0; usize::try_from(stored.range.len).expect("small")];
        match stored.encoded() {
            Some(encoded) => encoded.read_verbatim(0, &mut verbatim).expect("it is there"),
            None => reader.read_tensor(at, 0, &mut verbatim).expect("it is there"),
        }
        let mut digest = TensorDigest::new();
        digest.update(&verbatim);
        assert_eq!(stored.digest(), Some(digest.value()), "digests are of the bytes in the file");
    }
    let tokenizer = reader
        .companions()
        .iter()
        .position(|file| file.name == "tokenizer.json")
        .expect("it travels");
    assert!(reader.read_companion(tokenizer).expect("it decodes") == model.companions[0].bytes);
    assert_eq!(reader.metadata().text("secret"), Some("plan"));
    let checksum = reader.container().checksum().expect("a checksum");
    let end =
        checksum.extents.iter().map(|extent| extent.offset + extent.len).max().expect("extents");
    let mut all = vec![0; usize::try_from(end).expect("small")];
    reader.container().read_raw(0, &mut all).expect("it is there");
    assert_eq!(crc32fast::hash(&all), checksum.crc32);
}

const CHOICES: [Option<Choice>; 5] =
    [None, Some(Choice::Auto), Some(Choice::Lz4), Some(Choice::Zstd(3)), Some(Choice::Best)];

#[test]
fn compressed_and_encrypted_tensors_read_back_whole_and_in_parts() {
    let model = model();
    let plain = write(&model, &WriteOptions::default(), 1 << 20).len();
    for compression in CHOICES {
        for hide_metadata in [None, Some(false), Some(true)] {
            let encryption = hide_metadata.map(encrypt);
            let options = WriteOptions { compression, encryption, ..WriteOptions::default() };
            let file = write(&model, &options, 333_333);
            assert!(write(&model, &options, 1 << 20) == file, "pieces leave no trace");
            assert!(
                compression.is_none() || file.len() < plain * 3 / 4,
                "{compression:?}: {}",
                file.len()
            );
            for key in [password(), Unlock::Identity(DecryptionKey::from_bytes(&[9; 32]))] {
                let reader = open(file.clone(), &[key]).expect("a file");
                assert_holds(&reader, &model);
                for (at, tensor) in model.tensors.iter().enumerate() {
                    let len =
                        reader.stored(at).form().map_or(tensor.bytes.len() as u64, |form| form.len);
                    assert!(
                        len <= tensor.bytes.len() as u64,
                        "{compression:?} {}",
                        tensor.info.name
                    );
                }
            }
        }
    }
}

/// Returns the options that defer work: compression, encryption, and both.
///
/// Data that does not arrive in whole pieces is compressed, and compressed pieces are encrypted.
fn ways_of_putting_off() -> [WriteOptions; 3] {
    let compression = Some(Choice::Auto);
    [
        WriteOptions { compression, ..WriteOptions::default() },
        WriteOptions { encryption: Some(encrypt(false)), ..WriteOptions::default() },
        WriteOptions { compression, encryption: Some(encrypt(false)), ..WriteOptions::default() },
    ]
}

#[test]
fn threads_that_help_the_writer_leave_no_trace() {
    let noise = Tensor {
        info: tensor("c.noise", DType::U8, &[2_500_000]).info,
        bytes: blake3::Hasher::new().finalize_xof_bytes(2_500_000),
    };
    let tensors = vec![weights("a.weight", 2100, 1000), tensor("b.bias", DType::F32, &[3]), noise];
    let model = Model { tensors, ..model() };
    for options in ways_of_putting_off() {
        let alone = write(&model, &options, 777_777);
        for helpers in [1, 3] {
            let mut writer =
                apr2::plan(&model.infos(), &model.metadata, model.companions.clone(), &options)
                    .expect("it can be written");
            let encoder = writer.encoder().expect("there is work");
            let stop = AtomicBool::new(false);
            let help = || {
                while !stop.load(Ordering::Relaxed) {
                    encoder.help();
                    std::thread::yield_now();
                }
            };
            let mut file = Vec::new();
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(help);
                }
                writer.begin(&mut file).expect("memory takes everything");
                for tensor in &model.tensors {
                    let mut pieces = tensor.bytes.chunks(777_777);
                    pieces
                        .try_for_each(|piece| writer.write_chunk(&mut file, piece, None))
                        .expect("planned");
                }
                writer.finish(&mut file, &Notes::default()).expect("all tensors are there");
                stop.store(true, Ordering::Relaxed);
            });
            assert!(file == alone, "{helpers} helpers");
        }
        let reader = open(alone, &[password()]).expect("a file");
        assert_holds(&reader, &model);
    }
}

#[cfg(feature = "std")]
#[test]
fn a_thread_that_helps_does_what_the_writer_has_put_off() {
    let model = Model { tensors: vec![weights("a.weight", 3000, 1000)], ..Model::default() };
    let bytes = &model.tensors[0].bytes;
    for options in ways_of_putting_off() {
        let mut writer = apr2::plan(&model.infos(), &model.metadata, Vec::new(), &options)
            .expect("it can be written");
        let encoder = writer.encoder().expect("there is work");
        let mut file = Vec::new();
        writer.begin(&mut file).expect("memory takes everything");
        let front = file.len();
        writer.write_chunk(&mut file, &bytes[..4 << 20], None).expect("planned");
        assert_eq!(file.len(), front, "nobody has done anything yet");
        // Whoever compresses first finds the compressed bytes to encrypt at the next chunk.
        for at in 4..6 {
            encoder.help();
            let end = bytes.len().min((at + 1) << 20);
            writer.write_chunk(&mut file, &bytes[at << 20..end - 1000], None).expect("planned");
            writer.write_chunk(&mut file, &bytes[end - 1000..end], None).expect("planned");
        }
        assert!(file.len() > front + (1 << 20), "{} bytes", file.len() - front);
    }
}

#[test]
fn weights_shrink_to_two_thirds_and_incompressible_ones_are_stored_plain() {
    let model = model();
    let options = WriteOptions { compression: Some(Choice::Auto), ..WriteOptions::default() };
    let reader = open(write(&model, &options, 1 << 20), &[]).expect("a file");
    let ratio = reader.stored(0).range.len as f64 / model.tensors[0].bytes.len() as f64;
    assert!(ratio < 0.67, "{ratio}");
    assert_eq!(reader.stored(2).form(), None, "noise");
    assert!(reader.stored(4).range.len < 100, "zeros");
}

#[test]
fn without_a_key_only_the_front_is_readable() {
    let options = WriteOptions { encryption: Some(encrypt(true)), ..WriteOptions::default() };
    let file = write(&model(), &options, 1 << 20);
    assert!(!file.windows(4).any(|window| window == b"plan"), "hidden metadata are hidden");
    let reader = open(file.clone(), &[]).expect("the front is plain");
    assert!(reader.container().is_locked());
    assert_eq!(
        reader.tensors().len(),
        model().tensors.len() + 1,
        "the tokenizer looks like a tensor"
    );
    assert_eq!(
        (reader.metadata().text("model_type"), reader.metadata().get("secret")),
        (Some("test"), None)
    );
    assert_eq!(reader.tensor_bytes("a.weight").expect_err("locked").code(), Code::Decrypt);
    for wrong in [
        Unlock::Password(b"Correct horse".to_vec().into()),
        Unlock::Identity(DecryptionKey::from_bytes(&[8; 32])),
    ] {
        assert_eq!(
            open(file.clone(), &[wrong]).map(drop).expect_err("a wrong key").code(),
            Code::Decrypt
        );
    }
}

#[test]
fn any_change_to_an_encrypted_file_is_detected_before_its_bytes_are_used() {
    let small = Model {
        tensors: vec![weights("a.weight", 3, 40), tensor("b.bias", DType::F32, &[3])],
        metadata: model().metadata,
        ..Model::default()
    };
    let options = WriteOptions {
        compression: Some(Choice::Auto),
        encryption: Some(encrypt(false)),
        ..WriteOptions::default()
    };
    let file = write(&small, &options, 1 << 20);
    let intact = open(file.clone(), &[password()]).expect("a file");
    let data = usize::try_from(intact.header().data_offset).expect("small");
    let tail = usize::try_from(
        intact.container().checksum().expect("one").extents.last().expect("the trailer").offset,
    )
    .expect("small");
    let stranger = data + 132..data + 236;
    for at in 0..tail {
        let flipped = corrupt::overwrite(&file, at, &[file[at] ^ 1 << (at % 8)]);
        let outcome = open(flipped, &[password()]).and_then(|reader| {
            small.tensors.iter().try_for_each(|tensor| {
                let bytes = reader.tensor_bytes(&tensor.info.name)?;
                if bytes.as_ref() == tensor.bytes {
                    Ok(())
                } else {
                    Err(Error::format("other bytes were believed"))
                }
            })
        });
        match outcome {
            // Zeros between the sections belong to nothing, and the second stanza to somebody else.
            Ok(()) => {
                assert!((file[at] == 0 && at > data - 1100) || stranger.contains(&at), "byte {at}");
            }
            Err(error) => {
                assert_ne!(error.message(), "other bytes were believed", "byte {at}");
                assert!(
                    at < data
                        || matches!(
                            error.code(),
                            Code::Decrypt
                                | Code::Corrupt
                                | Code::Version
                                | Code::Memory
                                // Padding, which no key covers.
                                | Code::Signature
                        ),
                    "{at}: {error}"
                );
            }
        }
    }
}

#[test]
fn every_cut_of_an_encoded_file_is_an_error() {
    let small = Model { tensors: vec![weights("a.weight", 5, 40)], ..Model::default() };
    let signer = SigningKey::from_bytes(&[3; 32]);
    let options = WriteOptions {
        compression: Some(Choice::Zstd(3)),
        encryption: Some(encrypt(true)),
        signers: vec![signer],
        ..WriteOptions::default()
    };
    let file = write(&small, &options, 1 << 20);
    for len in 0..file.len() {
        assert!(open(file[..len].to_vec(), &[password()]).is_err(), "{len}");
    }
}

#[test]
fn a_signature_is_valid_for_unchanged_files_and_trusted_keys_only() {
    let (vendor, auditor) = (SigningKey::from_bytes(&[3; 32]), SigningKey::from_bytes(&[4; 32]));
    let options =
        WriteOptions { signers: vec![vendor.clone(), auditor.clone()], ..WriteOptions::default() };
    let file = write(&model(), &options, 1 << 20);
    let verify = |file: Vec<u8>, trusted: &[&SigningKey]| {
        let signed = open(file, &[])?.container().signed()?.expect("there are digests");
        let trusted: Vec<_> =
            trusted.iter().map(|key| PublicKey::Verifying(key.public_bytes())).collect();
        SignBlock::decode(&signed.signatures.expect("two"))?
            .verify(&signed.digest, &trusted)
            .check()
    };
    verify(file.clone(), &[&vendor]).expect("by the vendor");
    verify(file.clone(), &[&auditor]).expect("by the auditor");
    assert_eq!(verify(file.clone(), &[]).expect_err("nobody is trusted").code(), Code::Signature);
    let stranger = SigningKey::from_bytes(&[5; 32]);
    assert_eq!(verify(file.clone(), &[&stranger]).expect_err("not theirs").code(), Code::Signature);
    let reader = open(file.clone(), &[]).expect("a file");
    let front = 32 + reader.header().metadata_size as usize + reader.header().index_size as usize;
    for at in (32..front).step_by(3) {
        let flipped = corrupt::overwrite(&file, at, &[file[at] ^ 1]);
        assert!(verify(flipped, &[&vendor]).is_err(), "byte {at}");
    }
}
