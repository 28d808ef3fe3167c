//! Tensors as `Read` and `Seek`.

use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apr_registry::codec::Choice;
use apr_registry::{
    ByteSource, CheckpointReader, CheckpointWriter, Code, DType, Error, IoCause, Limits, Metadata,
    Notes, Result, TensorInfo, TensorReader, apr2,
};

/// Bytes that compress, three blocks of them.
fn bytes() -> Vec<u8> {
    (0..2_500_000_u32).map(|at| (at / 3 % 17).to_le_bytes()[0]).collect()
}

fn model(compression: Option<Choice>) -> Box<dyn CheckpointReader> {
    let infos = [
        TensorInfo { name: "empty".into(), dtype: DType::F32, shape: [0].into() },
        TensorInfo { name: "full".into(), dtype: DType::U8, shape: [bytes().len() as u64].into() },
    ];
    let options = apr2::WriteOptions { compression, ..Default::default() };
    let mut writer = apr2::plan(&infos, &Metadata::new(), Vec::new(), &options).expect("a plan");
    let mut file = Vec::new();
    writer.begin(&mut file).expect("memory takes it");
    writer.write_chunk(&mut file, &bytes(), None).expect("the planned bytes");
    writer.finish(&mut file, &Notes::default()).expect("all is there");
    apr_registry::open(file, "m.apr", &Limits::default()).expect("a sound file")
}

#[test]
fn tensor_bytes_are_read_correctly_in_steps_of_any_size() {
    for compression in [None, Some(Choice::Auto)] {
        let model = model(compression);
        for capacity in [1000, 8192, 3 << 20] {
            let mut found = Vec::new();
            let tensor = TensorReader::open(&*model, "full").expect("it is there");
            assert_eq!(tensor.byte_len(), 2_500_000);
            BufReader::with_capacity(capacity, tensor)
                .read_to_end(&mut found)
                .expect("sound bytes");
            assert!(found == bytes(), "{capacity}");
        }
    }
}

#[test]
fn seeking_is_as_in_files() {
    let model = model(None);
    let mut tensor = TensorReader::open(&*model, "full").expect("it is there");
    let mut cursor = std::io::Cursor::new(bytes());
    for to in [
        SeekFrom::Start(1_234_567),
        SeekFrom::Current(-7),
        SeekFrom::End(-5),
        SeekFrom::Current(100),
        SeekFrom::Start(u64::MAX),
        SeekFrom::End(0),
        SeekFrom::Start(0),
    ] {
        assert_eq!(tensor.seek(to).expect("a place"), cursor.seek(to).expect("a place"), "{to:?}");
        let (mut found, mut expected) = ([0; 11], [0; 11]);
        assert_eq!(
            tensor.read(&mut found).expect("sound"),
            cursor.read(&mut expected).expect("memory"),
            "{to:?}"
        );
        assert_eq!(found, expected, "{to:?}");
    }
    assert_eq!(
        tensor.seek(SeekFrom::Current(-12)).expect_err("before the start").kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(tensor.stream_position().expect("as before"), 11);
}

#[test]
fn an_empty_tensor_ends_at_once_and_an_absent_one_does_not_open() {
    let model = model(None);
    let mut found = Vec::new();
    TensorReader::open(&*model, "empty")
        .expect("it is there")
        .read_to_end(&mut found)
        .expect("nothing to read");
    assert!(found.is_empty());
    assert!(TensorReader::open(&*model, "none").is_err());
}

/// A file that fails from some time on.
struct Failing {
    bytes: Vec<u8>,
    fails: Arc<AtomicBool>,
    error: MakeError,
}

type MakeError = fn() -> Error;

impl ByteSource for Failing {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.fails.load(Ordering::Relaxed) {
            Err((self.error)())
        } else {
            self.bytes.read_at(offset, buf)
        }
    }
}

#[test]
fn errors_of_the_file_have_the_kind_that_callers_of_read_know() {
    let header = br#"{"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&[5, 6, 7, 8]);
    let errors: [(MakeError, ErrorKind, Code); 4] = [
        (|| Error::io(IoCause::NotFound, "gone"), ErrorKind::NotFound, Code::Io),
        // One that callers would try again for ever otherwise.
        (|| Error::io(IoCause::Interrupted, "stopped"), ErrorKind::Other, Code::Io),
        (|| Error::memory("too much"), ErrorKind::OutOfMemory, Code::Memory),
        (|| Error::corrupt("broken"), ErrorKind::InvalidData, Code::Corrupt),
    ];
    for (error, kind, code) in errors {
        let fails = Arc::new(AtomicBool::new(false));
        let source = Failing { bytes: bytes.clone(), fails: Arc::clone(&fails), error };
        let model =
            apr_registry::open(source, "m.safetensors", &Limits::default()).expect("a model");
        let mut tensor = TensorReader::open(&*model, "b").expect("it is there");
        assert_eq!(tensor.read(&mut [0; 2]).expect("two bytes"), 2);
        fails.store(true, Ordering::Relaxed);
        let found = tensor.read(&mut [0; 2]).expect_err("the file fails");
        assert_eq!(found.kind(), kind);
        let inner = found
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Error>())
            .expect("the error itself");
        assert_eq!(inner.code(), code);
        let shown = format!("{tensor:?}");
        assert!(shown.contains("position: 2") && shown.contains("len: 4"), "{shown}");
        fails.store(false, Ordering::Relaxed);
        let mut rest = Vec::new();
        tensor.read_to_end(&mut rest).expect("the rest, from where it stopped");
        assert_eq!(rest, [7, 8]);
    }
}
