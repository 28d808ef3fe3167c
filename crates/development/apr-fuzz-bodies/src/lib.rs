//! What the fuzz targets do with their input.
//!
//! An input is read as a file, or as instructions to make one. A body returns when everything is as
//! it should be, and panics when it is not; errors are as good an answer as any other.

mod coded;
mod generated;
mod merged;
mod packed;

use apr_arch::Families;
use apr_ops::convert::{ConvertOptions, plan};
use apr_ops::import::{PrepareOptions, prepare, restore};
use apr_ops::inline::ValidationConfig;
use apr_ops::session::Session;
use apr_ops::validate::{Level, ValidateOptions, ValidateReport};
use apr_registry::{CheckpointReader, DType, Limits, PlanOptions, Serial, Shape, apr2};
use apr_source::Source;
use apr_tensor::block::{can_dequantize, can_quantize, dequantize, needs_importance, quantize};

pub use apr_hub::answers::read_any as read_answers;
pub use coded::read_coded;
pub use generated::{roundtrip_apr2, roundtrip_gguf};
pub use merged::{read_adapter, read_merge};
pub use packed::{decode_block, open_encrypted, read_aprn, read_manifest, read_plan};

/// Name of the input in error messages.
const NAME: &str = "input";

/// Returns limits that keep a run short: the contents of a small input must not be large.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.max_metadata = 1 << 20;
    limits.max_index = 1 << 20;
    limits.max_companion = 1 << 20;
    limits
}

/// Reads the input as an APR2 file.
pub fn read_apr2(data: &[u8]) {
    if let Ok(reader) = apr2::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a safetensors file.
pub fn read_safetensors(data: &[u8]) {
    if let Ok(reader) = apr_registry::safetensors::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a PyTorch checkpoint, and lists what its pickles would do.
pub fn read_pytorch(data: &[u8]) {
    if let Ok(reader) = apr_registry::pytorch::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
    std::hint::black_box(apr_scan::scan_pickles(data.to_vec(), NAME, &limits()))
        .expect("memory can be read");
}

/// Reads the input as Flax' weights.
pub fn read_flax(data: &[u8]) {
    if let Ok(reader) = apr_registry::flax::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as the files of an Orbax checkpoint.
///
/// These are either the files of a database, or the description of an array, a line break and the
/// chunks of the array.
pub fn read_orbax(data: &[u8]) {
    use apr_registry::orbax;

    /// The input as the files of a checkpoint.
    struct Input<'a>(&'a [u8]);

    impl apr_registry::SourceSet for Input<'_> {
        fn open(&self, name: &str) -> apr_registry::Result<Box<dyn apr_registry::ByteSource>> {
            let is_database = self.0.starts_with(&[0x0c, 0xdb]);
            let end = self.0.iter().position(|&byte| byte == b'\n').unwrap_or(self.0.len());
            let bytes = match name {
                orbax::METADATA => {
                    let leaf = r#"{"key_metadata":[{"key":"a"}],"value_metadata":{}}"#;
                    let tree = format!(r#"{{"tree_metadata":{{"a":{leaf}}}"#);
                    format!(r#"{tree},"use_ocdbt":{is_database}}}"#).into_bytes()
                }
                "a/.zarray" => self.0[..end].to_vec(),
                _ if is_database => self.0.to_vec(),
                _ => self.0.get(end + 1..).unwrap_or_default().to_vec(),
            };
            Ok(Box::new(bytes))
        }

        fn list(&self) -> apr_registry::Result<Vec<String>> {
            Ok(Vec::new())
        }
    }

    if let Ok(reader) = orbax::open_in(&Input(data), orbax::METADATA, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as word vectors.
pub fn read_vectors(data: &[u8]) {
    if let Ok(reader) = apr_registry::vectors::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a model of CTranslate2.
pub fn read_ctranslate2(data: &[u8]) {
    if let Ok(reader) = apr_registry::ctranslate2::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a Core ML model and as the model's other files, and searches it for hazards.
pub fn read_coreml(data: &[u8]) {
    use apr_registry::coreml;

    /// The input under every name.
    struct Input<'a>(&'a [u8]);

    impl apr_registry::SourceSet for Input<'_> {
        fn open(&self, _: &str) -> apr_registry::Result<Box<dyn apr_registry::ByteSource>> {
            Ok(Box::new(self.0.to_vec()))
        }

        fn list(&self) -> apr_registry::Result<Vec<String>> {
            Ok(vec!["input".to_owned()])
        }
    }

    let _ = coreml::hazards(&data, &limits());
    if let Ok(reader) = coreml::open_in(&Input(data), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as Keras' weights.
pub fn read_keras(data: &[u8]) {
    if let Ok(reader) = apr_registry::keras::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a graph of TensorFlow, and as the index of a checkpoint and of a SavedModel.
pub fn read_tensorflow(data: &[u8]) {
    use apr_registry::tensorflow;

    /// The input under any name of an index or a graph, and some bytes under others.
    struct Input<'a>(&'a [u8]);

    impl apr_registry::SourceSet for Input<'_> {
        fn open(&self, name: &str) -> apr_registry::Result<Box<dyn apr_registry::ByteSource>> {
            let is_data = name.contains(".data-");
            Ok(Box::new(if is_data { vec![1; 4096] } else { self.0.to_vec() }))
        }

        fn list(&self) -> apr_registry::Result<Vec<String>> {
            Ok(vec!["input".to_owned(), "variables/variables.index".to_owned()])
        }
    }

    if let Ok(reader) = tensorflow::open_in(&Input(data), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as the XML file of an OpenVINO model, with some bytes as its weights.
pub fn read_openvino(data: &[u8]) {
    use apr_registry::openvino;

    /// The input, and the bytes of weights beside it.
    struct Input<'a>(&'a [u8]);

    impl apr_registry::SourceSet for Input<'_> {
        fn open(&self, name: &str) -> apr_registry::Result<Box<dyn apr_registry::ByteSource>> {
            let is_data = name.ends_with(".bin");
            Ok(Box::new(if is_data { vec![1; 4096] } else { self.0.to_vec() }))
        }

        fn list(&self) -> apr_registry::Result<Vec<String>> {
            Ok(vec!["input".to_owned(), "input.bin".to_owned()])
        }
    }

    if let Ok(reader) = openvino::open_in(&Input(data), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a model in onnxruntime's own format.
pub fn read_ort(data: &[u8]) {
    if let Ok(reader) = apr_registry::ort::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as a TensorFlow Lite model.
pub fn read_tflite(data: &[u8]) {
    if let Ok(reader) = apr_registry::tflite::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as trees of XGBoost and of LightGBM.
pub fn read_trees(data: &[u8]) {
    if let Ok(reader) = apr_registry::xgboost::open(data, NAME, &limits()) {
        use_reader(&reader);
    }
    if let Ok(reader) = apr_registry::lightgbm::open(data, NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Lists the code that loading the input would run.
///
/// The input is scanned under each file name that loaders distinguish, as the code of a TorchScript
/// archive, and as texts that loaders evaluate.
pub fn scan_any(data: &[u8]) {
    use apr_testkit::torch::{Entry, zip};

    let scan = |bytes: Vec<u8>, name: &str| {
        std::hint::black_box(apr_scan::scan_file(bytes, name, &limits()))
            .expect("memory can be read");
    };
    for name in [
        "input",
        "a.jinja",
        "MLmodel",
        "a.graphdef",
        "a.keras",
        "a.md",
        "a.meta",
        "a.mil",
        "a.onnx",
        "a.ort",
        "a.pmml",
        "a.prototxt",
        "a.yaml",
        "config.json",
        "config.pbtxt",
        "model_config.yaml",
        "modeling_a.py",
        "pickle_module_info.txt",
    ] {
        scan(data.to_vec(), name);
    }
    scan(zip(&[Entry::new("m/data.pkl", b"\x80\x02}."), Entry::new("m/code/a.py", data)]), "a.pt");
    let text = String::from_utf8_lossy(data);
    let evaluated = serde_json::json!({
        "_target_": text,
        "expr_str": text,
        "expression": format!("${text}"),
    });
    scan(evaluated.to_string().into_bytes(), "a.json");
}

/// Reads the input as an array of NumPy's, or as several.
pub fn read_numpy(data: &[u8]) {
    if let Ok(reader) = apr_registry::numpy::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as an ONNX model, takes it apart and puts it together again.
pub fn read_onnx(data: &[u8]) {
    use apr_registry::onnx;

    let Ok(reader) = onnx::open(data.to_vec(), NAME, &limits()) else { return };
    use_reader(&reader);
    if let Ok(Some(graph)) = reader.graph() {
        use_graph(graph);
    }

    if let Ok(Some(skeleton)) = onnx::skeleton::read_companion(&reader) {
        let options = onnx::skeleton::RestoreOptions::default();
        let tensors =
            onnx::skeleton::tensors(skeleton.clone(), &limits()).expect("what was read before");
        // Tensors that share some of their bytes are refused.
        std::hint::black_box(
            onnx::skeleton::restore(skeleton, &tensors, &options, &limits()).is_ok(),
        );
    }
}

/// Does everything that can be done with a graph.
fn use_graph(mut graph: apr_graph::Graph) {
    use apr_graph::draw::{Depth, dot, mermaid, svg, tree};
    use apr_graph::outline::{OutlineOptions, outline};
    use apr_graph::{Operator, check, cost, infer, inline, upgrade};
    use std::hint::black_box;

    black_box(check(&graph));
    let inference = infer(&mut graph);
    black_box(cost(&graph, &inference, &|_| Some(3)));
    black_box(inline(&graph).is_ok());
    black_box(upgrade(&graph, Operator::newest()).is_ok());
    for fold in [true, false] {
        let scene = outline(&graph, OutlineOptions { fold });
        black_box(tree(&scene, &Depth::that_fits(&scene, 60)));
        let depth = Depth::that_fits(&scene, 160);
        black_box((dot(&scene, &depth), mermaid(&scene, &depth), svg(&scene, &depth).is_ok()));
    }
}

/// Reads the input as a GGUF file.
pub fn read_gguf(data: &[u8]) {
    if let Ok(reader) = apr_registry::gguf::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Reads the input as an APR1 file, and as one of the v2 dialects.
pub fn read_apr1(data: &[u8]) {
    if let Ok(reader) = apr_registry::apr1::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
    if let Ok(reader) = apr_registry::dialect::open(data.to_vec(), NAME, &limits()) {
        use_reader(&reader);
    }
}

/// Dequantizes the input as blocks, and quantizes the values again if that is possible.
///
/// The first byte chooses a dtype, the second the number of blocks in a row.
pub fn dequantize_any(data: &[u8]) {
    let [choice, columns, bytes @ ..] = data else { return };
    let dtypes: Vec<DType> =
        DType::ALL.iter().copied().filter(|&dtype| can_dequantize(dtype)).collect();
    let dtype = dtypes[usize::from(*choice) % dtypes.len()];
    let row_len = (usize::from(*columns) % 8 + 1)
        * usize::try_from(dtype.block_len()).expect("blocks are small");
    let row = Shape::from([row_len as u64]);
    let row_bytes = usize::try_from(dtype.stored_len(&row).expect("a row of whole blocks"))
        .expect("rows are small");
    let rows = bytes.len() / row_bytes;
    let mut values = Vec::new();
    dequantize(dtype, &bytes[..rows * row_bytes], row_len, &mut values);
    assert_eq!(values.len(), rows * row_len, "{dtype}");
    if can_quantize(dtype) && values.iter().all(|value| value.is_finite()) {
        let mut blocks = Vec::new();
        let importance = needs_importance(dtype).then(|| vec![1.0; row_len]);
        quantize(dtype, &values, row_len, importance.as_deref(), &mut blocks);
        assert_eq!(blocks.len(), rows * row_bytes, "{dtype}");
    }
}

/// Reads the input as a legacy GGML file: of the family that it fits, or else of any that can be
/// named.
pub fn read_ggml(data: &[u8]) {
    let open = |arch| apr_registry::gguf::ggml::open(data.to_vec(), NAME, &limits(), arch);
    let found = open(None).or_else(|error| {
        apr_registry::gguf::ggml::architectures()
            .find_map(|name| open(Some(name)).ok())
            .ok_or(error)
    });
    if let Ok(reader) = found {
        use_reader(&reader);
    }
}

/// Reads the input as whatever it is.
pub fn probe_any(data: &[u8]) {
    if let Ok(reader) = apr_registry::open(data.to_vec(), NAME, &limits()) {
        use_reader(&*reader);
    }
}

/// Does with an opened checkpoint what commands do, and checks that it survives a conversion.
fn use_reader(reader: &dyn CheckpointReader) {
    let families = Families::builtin();
    let session = Session::of(apr_source::Source::new(reader, &families).named(NAME));
    std::hint::black_box(session.inspect().is_ok());
    let read = apr_testkit::read_everything(reader);
    if let Ok(Some((_, graphs))) = apr_registry::graphs_of(reader, &limits()) {
        graphs.into_iter().for_each(|(_, graph)| use_graph(graph));
        let source = apr_source::Source::new(reader, &families);
        let ignored = |_: &dyn CheckpointReader, _: &[apr_ops::graph::Runnable]| Ok(());
        let lowered: Result<(), apr_registry::Error> =
            apr_ops::graph::with_graphs(&source, &Default::default(), ignored);
        std::hint::black_box(lowered.is_ok());
    }
    let validated = session.validate(ValidateOptions::default(), &Serial, &());
    std::hint::black_box(session.lint().is_ok());
    if read.is_err() {
        let finds = |report: ValidateReport| {
            report.findings.iter().any(|finding| finding.level == Level::Error)
        };
        assert!(
            reader.container().is_locked() || validated.map_or(true, finds),
            "what cannot be read is not valid"
        );
        return;
    }

    assert!(validated.is_ok(), "what can be read can be validated");
    import(reader, &families);
    for format in [
        &apr_registry::apr2::FORMAT,
        &apr_registry::safetensors::FORMAT,
        &apr_registry::pytorch::FORMAT,
        &apr_registry::gguf::FORMAT,
    ] {
        let target = PlanOptions::new(format, NAME);
        let Ok(conversion) = plan(reader, &ConvertOptions::default(), &target) else { continue };
        let mut file = Vec::new();
        // A digest of the input may be wrong; then nothing is converted.
        if conversion.run(reader, &mut file, &Serial, &()).is_ok() {
            // Metadata is written anew and may exceed what the input was allowed.
            let reopened = apr_registry::open(file, NAME, &Limits::default());
            assert_same(reader, &*reopened.expect("what was written can be read"));
        }
    }
}

/// Imports any checkpoint, and checks that an export restores its own names.
fn import(reader: &dyn CheckpointReader, families: &Families) {
    let options =
        PrepareOptions { validation: ValidationConfig::relaxed(), ..PrepareOptions::default() };
    let prepared =
        prepare(&Source::new(reader, families), &options).expect("companions can be read");
    let target = PlanOptions::new(&apr_registry::apr2::FORMAT, NAME);
    let Ok(conversion) = plan(&prepared.view, &ConvertOptions::default(), &target) else { return };
    let mut file = Vec::new();
    if conversion
        .validated_by(prepared.validator)
        .run(&prepared.view, &mut file, &Serial, &())
        .is_ok()
    {
        let imported = apr_registry::open(file, NAME, &Limits::default())
            .expect("what was written can be read");
        let off = ValidationConfig::integrity();
        let target = if reader.format() == &apr_registry::gguf::FORMAT {
            &apr_registry::gguf::FORMAT
        } else {
            &apr_registry::safetensors::FORMAT
        };
        let restored = restore(&Source::new(&*imported, families), target, off);
        // An export leaves out what an import could have added, though it was in the file.
        if reader.format() != &apr_registry::apr2::FORMAT
            && reader.metadata().auxiliary_tensor().is_none()
        {
            assert_same(
                reader,
                &restored.expect("what was imported can be exported").prepared.view,
            );
        }
        // Other layouts than its own may not exist for what is not a model, but asking does no
        // harm.
        for target in [&apr_registry::gguf::FORMAT, &apr_registry::safetensors::FORMAT] {
            if let Ok(foreign) = restore(&Source::new(&*imported, families), target, off) {
                let view = &foreign.prepared.view;
                (0..view.tensors().len()).for_each(|at| drop(bytes(view, at)));
            }
        }
    }
}

/// Checks that two checkpoints hold the same tensors with the same bytes.
fn assert_same(left: &dyn CheckpointReader, right: &dyn CheckpointReader) {
    assert_eq!(left.tensors().len(), right.tensors().len(), "no tensor is lost or made up");
    for (at, info) in left.tensors().iter().enumerate() {
        let other = right.tensors().iter().position(|other| other == info);
        let other =
            other.unwrap_or_else(|| panic!("{} keeps its name, dtype and shape", info.name));
        assert_eq!(bytes(left, at), bytes(right, other), "{} keeps its bytes", info.name);
    }
}

fn bytes(reader: &dyn CheckpointReader, tensor: usize) -> Vec<u8> {
    let len = reader.tensors()[tensor].byte_len().expect("the reader has checked the shape");
    let mut bytes = vec![0; usize::try_from(len).expect("inputs are small")];
    reader.read_tensor(tensor, 0, &mut bytes).expect("it was read before");
    bytes
}
