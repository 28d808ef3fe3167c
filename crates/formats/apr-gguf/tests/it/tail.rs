//! What follows the last tensor.

use apr_core::{CheckpointReader, CheckpointWriter};
use apr_gguf::{WriteOptions, plan};
use apr_testkit::gguf::{GgufBuilder, GgufEntry};

use super::{contents, open, write_to};

fn file() -> Vec<u8> {
    let builder = GgufBuilder::new().text("general.architecture", "llama");
    builder.entry(GgufEntry::i8("a", &[1; 40])).entry(GgufEntry::i8("b", &[2; 5])).build()
}

#[test]
fn bytes_after_the_last_tensor_come_back_as_they_were() {
    let file = file();
    let end = file.len() - 27;
    let mut odd_padding = file.clone();
    odd_padding[end + 3] = 7;
    let longer = [&file[..], b"and more"].concat();
    for expected in
        [file.clone(), file[..end].to_vec(), file[..end + 9].to_vec(), odd_padding.clone(), longer]
    {
        let reader = open(expected.clone()).expect("a sound file");
        let mut written = Vec::new();
        write_to(&mut written, &contents(&reader), reader.metadata(), &WriteOptions::default())
            .expect("it is written");
        assert!(written == expected, "{} bytes", expected.len());
    }
    let reader = open(odd_padding).expect("a sound file");
    assert!(
        reader.warnings()[0].contains("padding after the last tensor is not zero"),
        "{:?}",
        reader.warnings()
    );
    assert!(
        open(file)
            .expect("a sound file")
            .metadata()
            .get("gguf")
            .expect("pairs")
            .get("tail")
            .is_none()
    );
}

#[test]
fn bytes_after_the_last_tensor_are_a_loss_where_it_is_another_one() {
    let mut odd = file();
    let end = odd.len();
    odd[end - 1] = 7;
    let reader = open(odd).expect("a sound file");
    let fewer = &reader.tensors()[..1];
    let writer = plan(fewer, reader.metadata(), &WriteOptions::default()).expect("a valid plan");
    assert!(
        writer.layout().losses.iter().any(|loss| loss.name == "gguf.tail"),
        "{:?}",
        writer.layout().losses
    );
}
