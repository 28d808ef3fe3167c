//! Tensors as `Read` and `Seek`.

use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};

use apr_registry::codec::Choice;
use apr_registry::{
    CheckpointReader, CheckpointWriter, DType, Limits, Metadata, Notes, TensorInfo, TensorReader, apr2,
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
fn what_is_read_are_the_tensors_bytes_in_any_steps() {
    for compression in [None, Some(Choice::Auto)] {
        let model = model(compression);
        for capacity in [1000, 8192, 3 << 20] {
            let mut found = Vec::new();
            let tensor = TensorReader::open(&*model, "full").expect("it is there");
            assert_eq!(tensor.byte_len(), 2_500_000);
            BufReader::with_capacity(capacity, tensor).read_to_end(&mut found).expect("sound bytes");
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
        assert_eq!(tensor.read(&mut found).expect("sound"), cursor.read(&mut expected).expect("memory"), "{to:?}");
        assert_eq!(found, expected, "{to:?}");
    }
    assert_eq!(tensor.seek(SeekFrom::Current(-12)).expect_err("before the start").kind(), ErrorKind::InvalidInput);
    assert_eq!(tensor.stream_position().expect("as before"), 11);
}

#[test]
fn an_empty_tensor_ends_at_once_and_an_absent_one_does_not_open() {
    let model = model(None);
    let mut found = Vec::new();
    TensorReader::open(&*model, "empty").expect("it is there").read_to_end(&mut found).expect("nothing to read");
    assert!(found.is_empty());
    assert!(TensorReader::open(&*model, "none").is_err());
}
