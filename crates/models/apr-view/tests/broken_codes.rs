//! Broken weights in codes and scales are values or errors that name them: never a panic, nor more
//! memory than the file is worth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use apr_core::{CheckpointReader, Code, Error, Limits};
use apr_testkit::locate::shared_case;
use apr_testkit::safetensors::{self, SafeTensor};
use apr_testkit::{CountingSource, FolderInMemory, PeakAlloc, SparseSource, peak_memory};
use apr_view::Coded;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Bytes that are read at a time.
const PIECE: u64 = 1 << 16;

/// The most bytes that a changed tensor is filled up to.
const MOST: u64 = 1 << 22;

/// Memory allowed for opening and reading in addition to the file: a tile of values, in a few
/// forms.
const ALLOWANCE: usize = 16 << 20;

/// A model: the tensors of its file and its other files.
#[derive(Clone)]
struct Model {
    metadata: Option<Value>,
    tensors: Vec<SafeTensor>,
    files: FolderInMemory,
}

impl Model {
    /// The model in a folder with one file of tensors.
    fn read(path: &Path) -> Option<Self> {
        let file = std::fs::read(path.join("model.safetensors")).ok()?;
        let len = usize::try_from(u64::from_le_bytes(file[..8].try_into().expect("a length")));
        let data = 8 + len.expect("small");
        let header: serde_json::Map<String, Value> =
            serde_json::from_slice(&file[8..data]).expect("a header");
        let number = |value: &Value| value.as_u64().expect("a number");
        let at = |value: &Value| data + usize::try_from(number(value)).expect("small");
        let tensor = |(name, entry): (&String, &Value)| SafeTensor {
            name: name.clone(),
            dtype: entry["dtype"].as_str().expect("a dtype").to_owned(),
            shape: entry["shape"].as_array().expect("a shape").iter().map(number).collect(),
            bytes: file[at(&entry["data_offsets"][0])..at(&entry["data_offsets"][1])].to_vec(),
        };
        let is_tensor = |(name, _): &(&String, &Value)| *name != "__metadata__";
        let tensors = header.iter().filter(is_tensor).map(tensor).collect();
        let mut files = FolderInMemory::default();
        for entry in std::fs::read_dir(path).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name");
            if name.ends_with(".json") {
                files.0.insert(name, std::fs::read(entry.path()).expect("a file"));
            }
        }
        Some(Self { metadata: header.get("__metadata__").cloned(), tensors, files })
    }

    fn folder(&self) -> FolderInMemory {
        let mut folder = self.files.clone();
        let file = safetensors::file(self.metadata.as_ref(), &self.tensors);
        folder.0.insert("model.safetensors".into(), file);
        folder
    }

    fn open(&self) -> Box<dyn CheckpointReader> {
        let model = apr_registry::open_folder(&self.folder(), &Limits::default());
        Coded::over(Box::new(model.expect("a model")))
    }

    fn with(&self, position: usize, part: SafeTensor) -> Self {
        let mut other = self.clone();
        other.tensors[position] = part;
        other
    }
}

/// A weight of a model that is stored in codes, and the positions of its parts in the file.
struct Weight {
    name: String,
    parts: Vec<usize>,
}

impl Weight {
    /// The smallest of each kind.
    fn all_of(model: &Model) -> Vec<Self> {
        let reader = model.open();
        let mut found: Vec<(&str, usize, Self)> = Vec::new();
        for (position, info) in reader.tensors().iter().enumerate() {
            let Some(coding) = reader.stored(position).coding() else { continue };
            let names: Vec<&str> = coding.names().collect();
            let is_part = |at: &usize| names.contains(&&*model.tensors[*at].name);
            let parts: Vec<usize> = (0..model.tensors.len()).filter(is_part).collect();
            let len = parts.iter().map(|part| model.tensors[*part].bytes.len()).sum();
            found.push((coding.description, len, Self { name: info.name.clone(), parts }));
        }
        found.sort_by_key(|(kind, len, _)| (*kind, *len));
        found.dedup_by_key(|(kind, ..)| *kind);
        found.into_iter().map(|(.., weight)| weight).collect()
    }

    fn is_named(&self, model: &Model, text: &str) -> bool {
        let parts = self.parts.iter().map(|part| &*model.tensors[*part].name);
        parts.chain([&*self.name]).any(|name| text.contains(name))
    }

    /// Returns the problem if a model without one of the parts has other values, or shows the codes
    /// as values.
    ///
    /// Codes have no meaning without their parts.
    fn differs(&self, original: &Model, changed: &Model) -> Option<String> {
        let reader = changed.open();
        let read = |reader: &dyn CheckpointReader, name: &str| {
            let tensor = reader.tensors().iter().position(|info| info.name == name)?;
            let len = reader.tensors()[tensor].byte_len().ok()?;
            let mut bytes = vec![0; usize::try_from(len).expect("small")];
            reader.read_tensor(tensor, 0, &mut bytes).ok()?;
            Some((reader.tensors()[tensor].clone(), bytes))
        };
        let parts = self.parts.iter().map(|part| &original.tensors[*part]);
        let codes = &parts.max_by_key(|part| part.bytes.len()).expect("codes").name;
        if *codes != self.name && read(&*reader, codes).is_some() {
            return Some("codes that are read as numbers".to_owned());
        }
        let values = read(&*reader, &self.name)?;
        let known = read(&*original.open(), &self.name);
        (known != Some(values)).then(|| "values that are others".to_owned())
    }

    /// Opens a changed model, reads the rest of the weight, and returns the problem with the
    /// result.
    fn wrong(&self, original: &Model, changed: &Model) -> Option<String> {
        let folder = changed.folder();
        let size = folder.0.values().map(Vec::len).sum::<usize>();
        let read = || peak_memory(|| self.read(original, &folder));
        let Ok((errors, peak)) = catch_unwind(AssertUnwindSafe(read)) else {
            return Some("a panic".to_owned());
        };
        if peak > 8 * size + ALLOWANCE {
            return Some(format!("{peak} bytes of memory"));
        }
        let is_known = |error: &&Error| {
            let codes = [Code::Format, Code::Corrupt, Code::Version];
            codes.contains(&error.code()) && self.is_named(original, &error.to_string())
        };
        let unknown = errors.iter().find(|error| !is_known(error))?;
        Some(format!("{:?}: {unknown}", unknown.code()))
    }

    fn read(&self, original: &Model, folder: &FolderInMemory) -> Vec<Error> {
        let model = match apr_registry::open_folder(folder, &Limits::default()) {
            Ok(model) => Coded::over(Box::new(model)),
            Err(error) => return vec![error],
        };
        let mut errors = Vec::new();
        for (tensor, info) in model.tensors().iter().enumerate() {
            if self.is_named(original, &info.name) {
                errors.extend(read_all(&*model, tensor).err());
            }
        }
        errors
    }
}

/// Reads a tensor from the beginning to the end.
fn read_all(model: &dyn CheckpointReader, tensor: usize) -> Result<(), Error> {
    let len = model.tensors()[tensor].byte_len()?;
    let mut at = 0;
    let mut bytes = vec![0; usize::try_from(PIECE.min(len)).expect("small")];
    // What can't be decoded says so even where there is nothing to read.
    model.read_tensor(tensor, 0, &mut [])?;
    while at < len {
        let now = usize::try_from(PIECE.min(len - at)).expect("small");
        model.read_tensor(tensor, at, &mut bytes[..now])?;
        // Of what a file says to be long, the beginning and the end are enough.
        at =
            if at >= 64 * PIECE { (at + PIECE).max(len.saturating_sub(PIECE)) } else { at + PIECE };
    }
    Ok(())
}

const DTYPES: [&str; 14] = [
    "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I16", "F16", "BF16", "I32", "U32", "F32",
    "I64", "F64",
];

/// Shapes near this one, and such as no model has.
fn other_shapes(shape: &[u64]) -> Vec<Vec<u64>> {
    let mut shapes = vec![shape.iter().rev().copied().collect(), vec![], vec![0]];
    shapes.push(vec![shape.iter().product()]);
    shapes.push([shape, &[1]].concat());
    shapes.push([&[1], shape].concat());
    for (at, &dim) in shape.iter().enumerate() {
        let lengths = [dim + 1, dim - 1, 2 * dim, dim / 2, 0, 1 << 20, 1 << 62, u64::MAX / 2];
        shapes.extend(lengths.map(|len| {
            let mut shape = shape.to_vec();
            shape[at] = len;
            shape
        }));
        // A tensor without elements may be as long as it likes elsewhere.
        for other in (0..shape.len()).filter(|other| *other != at) {
            for len in [1 << 61, 1 << 63, u64::MAX] {
                let mut shape = shape.to_vec();
                (shape[at], shape[other]) = (len, 0);
                shapes.push(shape);
            }
        }
    }
    shapes
}

/// Bits of a part that are turned: all of a short one, and some of a long one.
fn bits(len: usize) -> Vec<usize> {
    match len {
        0..=16 => (0..len * 8).collect(),
        17..=400 => (0..len).map(|byte| byte * 8 + byte % 8).collect(),
        _ => (0..24).map(|at| at * (len * 8 / 24) + at % 8).collect(),
    }
}

/// Every change of one part.
fn changes(part: &SafeTensor) -> Vec<(String, SafeTensor)> {
    let mut changes = Vec::new();
    for dtype in DTYPES.into_iter().filter(|dtype| *dtype != part.dtype) {
        let changed = SafeTensor { dtype: dtype.to_owned(), ..part.clone() }.filled(MOST);
        changes.push((format!("as {dtype}"), changed));
    }
    for shape in other_shapes(&part.shape) {
        let change = format!("of shape {shape:?}");
        changes.push((change, SafeTensor { shape, ..part.clone() }.filled(MOST)));
    }
    for bit in bits(part.bytes.len()) {
        let mut bytes = part.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        changes.push((format!("with bit {bit} turned"), SafeTensor { bytes, ..part.clone() }));
    }
    for byte in [0, 1, 0x7f, 0x80, 0xff] {
        let bytes = vec![byte; part.bytes.len()];
        changes.push((format!("of {byte:#x}"), SafeTensor { bytes, ..part.clone() }));
    }
    changes
}

/// Places in a configuration that hold a number or a text.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let key = key.replace('~', "~0").replace('/', "~1");
                places(value, &format!("{at}/{key}"), found);
            }
        }
        Value::Array(_) => found.push(at.to_owned()),
        _ => found.push(at.to_owned()),
    }
}

/// Returns models with one value of the quantization configuration changed.
fn configurations(model: &Model) -> Vec<(String, Model)> {
    let mut changed = Vec::new();
    for (name, bytes) in &model.files.0 {
        let mut without = model.clone();
        without.files.0.remove(name);
        changed.push((format!("without {name}"), without));
        let Ok(config) = serde_json::from_slice::<Value>(bytes) else { continue };
        let mut found = Vec::new();
        for entry in ["/quantization_config", "/quantization"] {
            if let Some(value) = config.pointer(entry) {
                places(value, entry, &mut found);
            }
        }
        let values = [json!(0), json!(-1), json!(3), json!(1_u64 << 63), json!(1e300)];
        let others = [json!(""), json!("auto"), Value::Null, json!([1]), json!({}), json!(true)];
        for place in found {
            for value in values.iter().chain(&others) {
                let mut config = config.clone();
                *config.pointer_mut(&place).expect("a place") = value.clone();
                let mut other = model.clone();
                let bytes = serde_json::to_vec(&config).expect("JSON");
                other.files.0.insert(name.clone(), bytes);
                changed.push((format!("{name} with {value} at {place}"), other));
            }
        }
    }
    changed
}

/// Folders without a quantization configuration, in which 8-bit floats can be plain numbers.
const UNSTATED: [&str; 1] = ["comfy-scaled-fp8"];

/// Returns the model with only the weights to break, and these weights.
///
/// If the shapes depend on the names of all tensors, all tensors are kept.
fn small(model: Model) -> (Model, Vec<Weight>) {
    let weights = Weight::all_of(&model);
    let mut small = model.clone();
    let is_kept = |at: usize| weights.iter().any(|weight| weight.parts.contains(&at));
    small.tensors = (0..)
        .zip(&model.tensors)
        .filter(|(at, _)| is_kept(*at))
        .map(|(_, tensor)| tensor.clone())
        .collect();
    small.files.0.retain(|name, _| name.contains("config"));
    let fewer = Weight::all_of(&small);
    if fewer.len() == weights.len() { (small, fewer) } else { (model, weights) }
}

/// Returns the problems with the results for a broken folder.
fn wrong(folder: &str) -> Vec<String> {
    let Some(model) = shared_case(&format!("codes/{folder}")).and_then(|path| Model::read(&path))
    else {
        return Vec::new();
    };
    let (model, weights) = small(model);
    assert!(!weights.is_empty(), "{folder} has a weight in codes");
    let mut found = Vec::new();
    let mut say = |weight: &Weight, change: &str, wrong: Option<String>| {
        found.extend(wrong.map(|wrong| format!("{folder}: {} {change}: {wrong}", weight.name)));
    };
    for weight in &weights {
        for &position in &weight.parts {
            let part = &model.tensors[position];
            let mut without = model.clone();
            without.tensors.remove(position);
            let change = format!("without {}", part.name);
            say(weight, &change, weight.wrong(&model, &without));
            if !UNSTATED.contains(&folder) {
                say(weight, &change, weight.differs(&model, &without));
            }
            for (change, changed) in changes(part) {
                let wrong = weight.wrong(&model, &model.with(position, changed));
                say(weight, &format!("{} {change}", part.name), wrong);
            }
        }
    }
    for (change, changed) in configurations(&model) {
        say(&weights[0], &change, weights[0].wrong(&model, &changed));
    }
    found
}

macro_rules! kinds {
    ($($test:ident: $($folder:literal)+;)+) => {$(
        #[test]
        fn $test() {
            let wrong: Vec<String> = [$($folder),+].into_iter().flat_map(wrong).collect();
            assert!(wrong.is_empty(), "{} answers: {wrong:#?}", wrong.len());
        }
    )+};
}

kinds! {
    broken_fp8_is_named: "fp8-block" "qwen3-fp8" "modelopt-fp8" "modelopt-fp8-nocfg" "fbgemm-fp8"
        "comfy-scaled-fp8" "torchao-fp8-st" "ct-fp8-channel" "ct-fp8-tensor";
    broken_int8_is_named: "ct-naive-int4" "ct-w8a8-int" "bnb-int8" "quanto-int8" "quanto-float8"
        "eetq8";
    broken_fp4_is_named: "ct-nvfp4" "modelopt-nvfp4" "gptoss-mxfp4";
    broken_blocks_of_bitsandbytes_are_named: "bnb-nf4" "bnb-nf4-dq" "bnb-fp4";
    broken_ternary_weights_are_named: "bitnet158";
    broken_folds_are_named: "hqq4" "quanto-int4";
    broken_gptq_is_named: "gptq3" "gptq4" "gptq4-actorder" "gptq4-sym-v2" "gptq8" "autoround4";
    broken_awq_is_named: "awq4";
    broken_packed_integers_are_named: "ct-w4a16" "ct-w4a16-asym" "ct-w8a16";
    broken_modes_of_mlx_are_named: "mlx-affine4" "mlx-affine6" "mlx-affine8" "mlx-mxfp44";
}

/// A file of these tensors, filled up with a few bytes.
fn hand_made(tensors: &[(&str, &str, &[u64], &[u8])], config: &Value) -> Model {
    let tensor = |&(name, dtype, shape, bytes): &(&str, &str, &[u64], &[u8])| SafeTensor {
        name: name.to_owned(),
        dtype: dtype.to_owned(),
        shape: shape.to_vec(),
        bytes: bytes.to_vec(),
    };
    let filled = |tensor: SafeTensor| tensor.filled(MOST);
    let tensors = tensors.iter().map(tensor).map(filled).collect();
    let config = json!({ "quantization_config": config }).to_string().into_bytes();
    let files = FolderInMemory::from([("config.json", config)]);
    Model { metadata: None, tensors, files }
}

/// The error that reading ends with, after its code.
fn error_of(model: &Model) -> String {
    let reader = model.open();
    let errors = (0..reader.tensors().len()).filter_map(|at| read_all(&*reader, at).err());
    let errors: Vec<String> = errors.map(|error| format!("{} {error}", error.code())).collect();
    errors.into_iter().next().expect("an error")
}

/// Reads a model of no elements, whose errors must name them.
fn check_empty(model: &Model) {
    let reader = model.open();
    for tensor in 0..reader.tensors().len() {
        let error = read_all(&*reader, tensor).err().map(|error| error.to_string());
        assert!(error.as_ref().is_none_or(|error| error.contains("up.")), "{error:?}");
    }
}

#[test]
fn lengths_near_the_largest_number_are_refused_or_empty() {
    for big in [1_u64 << 60, 1 << 61, 1 << 62, 1 << 63, u64::MAX] {
        let shape = [0_u64.to_le_bytes(), big.to_le_bytes()].concat();
        for words in [big, big / 8, big / 16 + 1] {
            let packed = hand_made(
                &[
                    ("up.weight_packed", "I32", &[0, words], &[]),
                    ("up.weight_scale", "BF16", &[0, 1], &[]),
                    ("up.weight_shape", "I64", &[2], &shape),
                ],
                &json!({ "quant_method": "compressed-tensors" }),
            );
            check_empty(&packed);
        }
        for method in ["gptq", "awq"] {
            for [long, wide] in [[big, 0], [0, big]] {
                let layer = hand_made(
                    &[
                        ("up.qweight", "I32", &[long, wide], &[]),
                        ("up.qzeros", "I32", &[long, wide], &[]),
                        ("up.scales", "F16", &[long, wide], &[]),
                    ],
                    &json!({ "quant_method": method, "bits": 4, "group_size": big }),
                );
                check_empty(&layer);
            }
        }
    }
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let [codes, scale] = [
        ("up.weight._data", "I8", &[2_u64, 2][..], &[1_u8, 2][..]),
        ("up.weight._scale", "F16", &[2, 1], &[0, 0x3c]),
    ];
    let beside = |other| error_of(&hand_made(&[codes, other, scale], &json!({})));
    let error = beside(("up.weight", "F16", &[2, 2], &[0, 0x3c]));
    assert!(error.contains("E001") && error.contains("whose name another tensor has"), "{error}");
    let torchao = [
        ("up._weight_qdata", "I8", &[2_u64, 2][..], &[1_u8][..]),
        ("up._weight_scale", "F16", &[2, 1], &[0, 0x3c]),
    ];
    let error = error_of(&hand_made(&[codes, torchao[0], torchao[1], scale], &json!({})));
    assert!(error.contains("E001") && error.contains("up.weight"), "{error}");
}

#[test]
fn a_part_of_a_gigabyte_that_should_be_text_is_not_read() {
    let len = 1_u64 << 30;
    let header = json!({
        "up.weight": {"dtype": "U8", "shape": [2, 1], "data_offsets": [0, 2]},
        "up.weight.absmax": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
        "up.weight.quant_map": {"dtype": "F32", "shape": [16], "data_offsets": [6, 70]},
        "up.weight.quant_state.bitsandbytes__nf4":
            {"dtype": "U8", "shape": [len], "data_offsets": [70, 70 + len]},
    });
    let header = header.to_string();
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header.as_bytes());
    let len = head.len() as u64 + 70 + len;
    let source = CountingSource::new(SparseSource::new(head, len));
    let (error, peak) = peak_memory(|| {
        let file = apr_registry::open(source.clone(), "m.safetensors", &Limits::default());
        let model = Coded::over(file.expect("a file"));
        (0..model.tensors().len()).find_map(|at| read_all(&*model, at).err())
    });
    let error = error.expect("an error").to_string();
    assert!(error.contains("'up.weight.quant_state.bitsandbytes__nf4'"), "{error}");
    assert!(peak < 1 << 20, "{peak} bytes of memory");
    assert!(source.bytes_read() < 1 << 20, "{} bytes were read", source.bytes_read());
}
