//! Small files that other programs wrote (`fixtures/valid/make.py`).

use apr_arch::Families;
use apr_ops::session::Session;
use apr_ops::validate::ValidateOptions;
use apr_registry::{CheckpointReader, Limits, Serial};
use apr_source::Source;
use apr_testkit::locate;

fn open(path: &str) -> Box<dyn CheckpointReader> {
    let bytes = std::fs::read(locate::fixture("valid").join(path)).expect("the fixture is there");
    apr_registry::open(bytes, path, &Limits::default()).expect("the fixture opens")
}

fn bytes(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("the reader checked the shape");
    let mut bytes = vec![0; usize::try_from(len).expect("fixtures are small")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("the fixture is whole");
    bytes
}

#[test]
fn every_valid_fixture_is_valid_without_a_remark() {
    for path in
        ["apr2/dtypes.apr", "apr2/shapes.apr", "apr2/none.apr", "safetensors/dtypes.safetensors"]
    {
        let reader = open(path);
        let families = Families::builtin();
        let session = Session::of(Source::new(&*reader, &families).named(path));
        let report =
            session.validate(ValidateOptions::default(), &Serial, &()).expect("it can be read");
        // Nothing was checked in a file without tensors, which is said.
        let remarks = usize::from(reader.tensors().is_empty());
        assert!(report.valid, "{path}: {:?}", report.findings);
        assert_eq!(report.findings.len(), remarks, "{path}: {:?}", report.findings);
    }
}

#[test]
fn one_tensor_has_the_same_bytes_in_both_formats() {
    let (apr, safetensors) = (open("apr2/dtypes.apr"), open("safetensors/dtypes.safetensors"));
    assert_eq!(apr.tensors().len(), 20, "one of every plain dtype");
    for (position, info) in safetensors.tensors().iter().enumerate() {
        let twin = apr
            .tensors()
            .iter()
            .position(|other| other == info)
            .expect("same name, dtype and shape");
        assert_eq!(bytes(&*apr, twin), bytes(&*safetensors, position), "{}", info.name);
    }
}

#[test]
fn scalars_empty_tensors_and_eight_dimensions_are_read() {
    let reader = open("apr2/shapes.apr");
    let shapes: Vec<_> = reader.tensors().iter().map(|info| info.shape.to_string()).collect();
    assert_eq!(shapes, ["[]", "[3, 0]", "[1, 1, 1, 1, 1, 1, 1, 1]"]);
    assert_eq!(bytes(&*reader, 0), 1_f32.to_le_bytes());
    assert_eq!(reader.read_companion(0).expect("it is there"), b"{}");
}
