//! Models whose constants OpenVINO read (`fixtures/openvino`), by their values; broken ones are
//! errors.

use std::collections::BTreeMap;
use std::path::PathBuf;

use apr_core::{
    ByteSource, CheckpointReader, Code, DType, Error, IoCause, Limits, Result, SourceSet, Table,
};
use apr_graph::{Constant, ConstantData, ElementType, Graph};
use apr_runtimes::openvino::{METADATA, graphs_of, lower};
use apr_testkit::{corrupt, peak_memory, read_everything};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: apr_testkit::PeakAlloc = apr_testkit::PeakAlloc;

/// A model in memory.
#[derive(Clone, Default)]
struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    fn read(path: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/openvino");
        let file = |extension: &str| {
            let name = format!("m.{extension}");
            let file = std::fs::read(folder.join(format!("{path}.{extension}")));
            (name, file.expect("the fixture is in the repository"))
        };
        Self(["xml", "bin"].map(file).into())
    }

    fn of(xml: &str, data: Vec<u8>) -> Self {
        Self([("m.xml".to_owned(), xml.as_bytes().to_vec()), ("m.bin".to_owned(), data)].into())
    }

    fn open(&self) -> Result<Table> {
        apr_runtimes::openvino::open_in(self, "m.xml", &Limits::default())
    }
}

impl SourceSet for Files {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        let file = self.0.get(name).cloned();
        let file = file.ok_or_else(|| Error::io(IoCause::NotFound, "no such file"))?;
        Ok(Box::new(file))
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.keys().cloned().collect())
    }
}

fn bytes_of(reader: &dyn CheckpointReader, tensor: usize, piece: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("a possible length");
    let mut bytes = vec![0; usize::try_from(len).expect("a small tensor")];
    let mut offset = 0;
    for chunk in bytes.chunks_mut(piece) {
        reader.read_tensor(tensor, offset, chunk).expect("readable");
        offset += chunk.len() as u64;
    }
    bytes
}

/// The elements as numbers that a text has exactly.
fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let words = bytes.chunks(usize::try_from(dtype.block_bytes()).expect("small"));
    let word = |word: &[u8]| {
        let mut all = [0; 8];
        all[..word.len()].copy_from_slice(word);
        u64::from_le_bytes(all)
    };
    match dtype {
        DType::I8 => words.map(|one| f64::from(i8::from_le_bytes([one[0]]))).collect(),
        DType::I16 => words.map(|one| f64::from(i16::from_le_bytes([one[0], one[1]]))).collect(),
        DType::I32 => {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| f64::from(i32::from_le_bytes(*word))).collect()
        }
        DType::I64 => words.map(|one| word(one).cast_signed() as f64).collect(),
        DType::F64 => words.map(|one| f64::from_bits(word(one))).collect(),
        DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::BOOL => {
            words.map(|one| word(one) as f64).collect()
        }
        dtype => {
            let mut floats = Vec::new();
            apr_tensor::element::widen_f32(dtype, bytes, &mut floats);
            floats.into_iter().map(f64::from).collect()
        }
    }
}

#[test]
fn every_type_of_constants_has_the_values_that_openvino_reads() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/openvino");
    let text = std::fs::read(folder.join("expected.json")).expect("the fixture");
    let expected: BTreeMap<String, Vec<String>> = serde_json::from_slice(&text).expect("JSON");
    let reader = Files::read("kinds").open().expect("a model");
    assert_eq!(reader.left_out(), [""; 0]);
    for (tensor, info) in reader.tensors().iter().enumerate() {
        let wanted = &expected[&info.name];
        let wanted: Vec<f64> = wanted.iter().map(|text| text.parse().expect("a number")).collect();
        for piece in [1, 3, 37, 1 << 20] {
            let found = numbers(info.dtype, &bytes_of(&reader, tensor, piece));
            assert_eq!(found.len(), wanted.len(), "{}", info.name);
            for (found, wanted) in found.iter().zip(&wanted) {
                let are_equal = found.to_bits() == wanted.to_bits()
                    || found == wanted
                    || found.is_nan() && wanted.is_nan();
                assert!(are_equal, "{} by {piece}: {found} for {wanted}", info.name);
            }
        }
    }
    assert_eq!(reader.tensors().len(), expected.len());
}

/// The small tensors of a reader.
struct Weights<'r>(&'r Table);

impl apr_lower::Weights for Weights<'_> {
    fn constant(&self, tensor: &str) -> Option<Constant> {
        let at = self.0.tensors().iter().position(|info| info.name == tensor)?;
        let info = &self.0.tensors()[at];
        let mut bytes = vec![0; usize::try_from(info.byte_len().ok()?.min(1 << 16)).ok()?];
        self.0.read_tensor(at, 0, &mut bytes).ok()?;
        Some(Constant {
            name: String::new(),
            element: ElementType::from_dtype(info.dtype)?,
            shape: info.shape.dims().to_vec(),
            data: ConstantData::Bytes(bytes),
        })
    }
}

fn graph(reader: &Table) -> Result<Graph> {
    let graphs = graphs_of(reader, &Limits::default())?;
    Ok(graphs.expect("a model has a graph").remove(0).1)
}

#[test]
fn layers_are_nodes_with_their_settings() {
    let reader = Files::read("lowered/images/openvino_model").open().expect("a model");
    let graph = graph(&reader).expect("a graph");
    let body = &graph.body;
    let node = body.nodes.iter().find(|node| &*node.op.name == "GroupConvolution");
    let node = node.expect("a layer");
    assert_eq!(node.op.to_string(), "openvino::GroupConvolution");
    assert_eq!(node.ints("strides"), Some(&[2, 2][..]));
    assert_eq!((node.text("auto_pad"), node.text("version")), (Some("explicit"), Some("opset1")));
    let names = |ids: &[apr_graph::ValueId]| -> Vec<&str> {
        ids.iter().map(|id| body.value(*id).name.as_str()).collect()
    };
    assert_eq!(names(&body.inputs), ["x"]);
    assert!(names(&body.outputs).contains(&"groupnorm"));
    let entry = reader.metadata().object(METADATA).expect("what the file says");
    assert_eq!((&entry["name"], &entry["version"]), (&json!("images"), &json!(11)));
    assert_eq!(entry["inputs"], json!([{"name": "x", "type": "f32", "shape": [null, 3, 8, 8]}]));
    assert_eq!(entry["operators"]["Convolution"], 3);
    assert!(matches!(entry["rt_info"], Value::Object(_)), "{entry:?}");
}

#[test]
fn broken_models_are_errors_or_readable_within_bounded_memory() {
    for (name, step) in [("kinds", 11), ("lowered/compressed/openvino_model", 97)] {
        let whole = Files::read(name);
        for part in ["m.xml", "m.bin"] {
            let file = &whole.0[part];
            let flips = corrupt::bit_flips(file, 0..file.len()).step_by(step);
            for broken in corrupt::truncations(file).step_by(step).chain(flips) {
                let mut files = whole.clone();
                files.0.insert(part.to_owned(), broken);
                let ((), peak) = peak_memory(|| {
                    if let Ok(reader) = files.open() {
                        if let Ok(graph) = graph(&reader) {
                            let _ = lower::lower(&graph, &Weights(&reader));
                        }
                        let _ = read_everything(&reader);
                    }
                });
                assert!(peak < 4 << 20, "{name}: {part}: {peak} bytes");
            }
        }
    }
}

/// A model of one constant.
fn constant(settings: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><net name=\"m\" version=\"11\"><layers><layer id=\"0\" \
         name=\"w\" type=\"Const\" version=\"opset1\"><data {settings}/><output><port id=\"0\" \
         precision=\"FP32\"><dim>2</dim></port></output></layer></layers><edges/></net>"
    )
}

#[test]
fn constants_outside_of_their_file_are_errors_that_name_them() {
    let sound = "element_type='f32' shape='2' offset='4' size='8'";
    let reader = Files::of(&constant(sound), vec![0; 12]).open().expect("sound");
    assert_eq!(read_everything(&reader), Ok(()));
    for (settings, code) in [
        ("element_type='f32' shape='2' offset='5' size='8'", Code::Corrupt),
        ("element_type='f32' shape='2' offset='18446744073709551615' size='8'", Code::Corrupt),
        ("element_type='f32' shape='3' offset='0' size='8'", Code::Corrupt),
        ("element_type='f32' shape='4611686018427387904,4' offset='0' size='8'", Code::Corrupt),
        ("element_type='f32' shape='-1' offset='0' size='8'", Code::Corrupt),
        ("element_type='f32' shape='2' offset='x' size='8'", Code::Corrupt),
        ("shape='2' offset='0' size='8'", Code::Corrupt),
    ] {
        let error = Files::of(&constant(settings), vec![0; 12]).open().map(drop);
        let error = error.expect_err(settings);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains('w'), "{error}");
    }
    let mut files = Files::of(&constant(sound), Vec::new());
    files.0.remove("m.bin");
    let error = files.open().map(drop).expect_err("no weights");
    assert_eq!((error.code(), error.file()), (Code::Io, Some("m.bin")), "{error}");
    let xml = constant(sound).into_bytes();
    let error = apr_runtimes::openvino::open(xml, "m.xml", &Limits::default()).map(drop);
    assert!(error.expect_err("alone").message().contains(".bin file next to the .xml"));
}

#[test]
fn texts_are_left_out_by_name_and_an_older_version_is_an_error() {
    let texts = "element_type='string' shape='2' offset='0' size='8'";
    let reader = Files::of(&constant(texts), vec![0; 12]).open().expect("a model");
    assert_eq!(reader.left_out(), ["w (elements of type string)"]);
    let old = constant(texts).replace("version=\"11\"", "version=\"7\"");
    let error = Files::of(&old, vec![0; 12]).open().map(drop).expect_err("too old");
    assert_eq!(error.code(), Code::Version, "{error}");
}

#[test]
fn edges_to_what_is_not_there_are_errors() {
    let sound = "element_type='f32' shape='2' offset='4' size='8'";
    let result = "<layer id=\"1\" name=\"r\" type=\"Result\" version=\"opset1\"><input><port \
                  id=\"0\"/></input></layer></layers>";
    let with = |edge: &str| {
        let xml = constant(sound).replace("</layers>", result);
        let xml = xml.replace("<edges/>", &format!("<edges><edge {edge}/></edges>"));
        graph(&Files::of(&xml, vec![0; 12]).open().expect("a checkpoint")).map(drop)
    };
    let edge = |layer: u8, port: u8| {
        format!("from-layer='{layer}' from-port='{port}' to-layer='1' to-port='0'")
    };
    assert_eq!(with(&edge(0, 0)), Ok(()));
    for bad in [edge(7, 0), edge(0, 7), edge(1, 0)] {
        assert!(with(&bad).is_err_and(|error| error.code() == Code::Corrupt), "{bad}");
    }
    // An id that two layers have.
    let twice = constant(sound).replace("<edges/>", "").replace("</layers>", "</layers><x/>");
    let layer = twice.split_once("<layers>").expect("layers").1.split_once("</layers>");
    let both = twice.replace("</layers>", &format!("{}</layers>", layer.expect("a layer").0));
    let reader = Files::of(&both, vec![0; 12]).open().expect("a checkpoint");
    assert_eq!(reader.tensors().len(), 2);
    assert!(graph(&reader).is_err_and(|error| error.message().contains("another layer")));
}
