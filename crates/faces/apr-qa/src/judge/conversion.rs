//! Points 60 to 62, 79, 81 to 83 and 96 to 99: conversions of files that are made.

use std::fs;
use std::path::{Path, PathBuf};

use apr::{Compression, Model, Scheme};
use apr_core::{Code, DType, IoCause};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};

use crate::bench::Bench;
use crate::judge::files::{code_of, named};
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{Made, floats, sound, spread};

/// Writes a built file to the folder of the bench, and returns its path.
fn written(bench: &Bench<'_>, file: &Apr2Builder) -> Result<PathBuf, Fault> {
    let path = bench.folder()?.join("test.apr");
    fs::write(&path, file.build())?;
    Ok(path)
}

/// Matrix products of the made model with weights: seven of its layer, and the head.
const PRODUCTS: usize = 8;

/// Returns the number of nodes in a model's graphs, and the number of matrix products among them.
fn nodes(computed: &apr::graph::Computed) -> (usize, usize) {
    let bodies = computed.parts.iter().flat_map(|part| {
        let functions = part.graph.functions.iter().map(|function| &function.body);
        functions.chain([&part.graph.body])
    });
    let nodes: Vec<&apr_graph::Node> = bodies.flat_map(|body| &body.nodes).collect();
    let is_product = |node: &&&apr_graph::Node| node.op.is("MatMul") || node.op.is("Gemm");
    (nodes.len(), nodes.iter().filter(is_product).count())
}

/// The first error that the checker finds.
fn refused(computed: &apr::graph::Computed) -> Option<String> {
    let mut findings = computed.parts.iter().flat_map(|part| &part.findings.list);
    let error = findings.find(|finding| finding.severity == apr_graph::Severity::Error);
    error.map(ToString::to_string)
}

pub(crate) fn onnx(bench: &Bench<'_>) -> Judgement {
    let path = bench.folder()?.join("model.onnx");
    apr::convert(bench.folder_of(&Made::llama())?).format(&apr::format::ONNX).write(&path)?;
    let options = apr::graph::GraphOptions::default();
    let computed = Model::open(&path)?.graphs(&options)?;
    if let Some(error) = refused(&computed) {
        return failed(error);
    }
    let (nodes, products) = nodes(&computed);
    ensure(products >= PRODUCTS, format!("the export has {products} matrix products"))?;

    // The same file with an operator that ONNX does not have.
    let mut file = fs::read(&path)?;
    let at = file.windows(6).position(|name| name == b"MatMul" || name == b"\x22\x04Gemm");
    let at = at.ok_or_else(|| Fault::new("the file contains no operator"))?;
    file[at + 5] = b'q';
    fs::write(&path, file)?;
    let seen = match Model::open(&path).and_then(|model| model.graphs(&options)) {
        Ok(computed) => refused(&computed),
        Err(error) => Some(error.to_string()),
    };
    let seen =
        seen.ok_or_else(|| Fault::new("an operator that does not exist was not reported"))?;
    passed(format!(
        "a test LLaMA as ONNX, {nodes} nodes, {products} of them matrix products: nothing that \
         apr's own checker, which has the rules of onnx.checker, refuses; with another operator: \
         {seen}"
    ))
}

pub(crate) fn llama_cpp(_: &Bench<'_>) -> Judgement {
    absent("requires llama.cpp; the tests of apr load exports in it")
}

pub(crate) fn int8(bench: &Bench<'_>) -> Judgement {
    // Sums of four are near a normal distribution, as weights are.
    let parts: Vec<Vec<f32>> = (1..5).map(|seed| spread(seed, 256 * 1024)).collect();
    let values: Vec<f32> =
        (0..256 * 1024).map(|at| parts.iter().map(|part| part[at]).sum()).collect();
    let path =
        written(bench, &Apr2Builder::new().entry(floats("w.weight", &[256, 1024], &values)))?;
    let len = fs::metadata(&path)?.len();
    let share = |convert: apr::Convert| -> Result<f64, Fault> {
        let (bytes, _) = convert.quantize(Scheme::Int8).to_bytes()?;
        #[expect(clippy::cast_precision_loss, reason = "a small file")]
        Ok(100.0 * bytes.len() as f64 / len as f64)
    };
    let plain = share(apr::convert(&path))?;
    let compressed = share(apr::convert(&path).compress(Compression::Auto))?;
    let seen = format!(
        "a test tensor of 1 MiB in f32: {plain:.2} % of it as int8 with its scales, \
         {compressed:.2} % compressed"
    );
    if plain < 26.0 && compressed < 25.0 { passed(seen) } else { failed(seen) }
}

/// Returns the largest difference between the values of two models, and the tensors of only one.
fn difference(left: &Model, right: &Model) -> Result<(f64, Vec<String>), Fault> {
    let report = left.diff(right, &apr::report::DiffOptions::default())?;
    let compared = report.tensors.iter().all(|pair| pair.max_delta.is_some());
    ensure(compared, "shapes differ, so values were not compared")?;
    Ok((report.max_delta, [report.removed, report.added].concat()))
}

pub(crate) fn round_trip(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder()?;
    let [apr, onnx, back, other] =
        ["a.apr", "m.onnx", "b.apr", "c.apr"].map(|name| folder.join(name));
    apr::convert(bench.folder_of(&Made::llama())?).write(&apr)?;
    apr::convert(&apr).format(&apr::format::ONNX).write(&onnx)?;
    apr::convert(&onnx).write(&back)?;
    let (first, last) = (Model::open(&apr)?, Model::open(&back)?);
    let (most, lonely) = difference(&first, &last)?;
    ensure(lonely.is_empty(), format!("only one of the two has {}", lonely.join(", ")))?;

    // A model with another norm is not taken for the same.
    let name = "model.norm.weight";
    let changed = Made::llama().with(name, |weights| weights.values[0] += 0.01);
    apr::convert(bench.folder_of(&changed)?).write(&other)?;
    let (apart, _) = difference(&first, &Model::open(&other)?)?;
    ensure(apart > 1e-3, format!("a value that is 0.01 larger differs by {apart}"))?;
    let count = first.tensors().len();
    let seen = format!(
        "a test LLaMA, .apr to ONNX and back: the same {count} tensors, largest difference {most}; \
         with one value 0.01 larger: {apart:.3}"
    );
    if most < 1e-5 { passed(seen) } else { failed(seen) }
}

pub(crate) fn quantized(bench: &Bench<'_>) -> Judgement {
    let blocks = [vec![0, 0x3c], vec![7; 32]].concat();
    let entry = Apr2Entry::new("w", DType::Q8_0, &[32], &blocks);
    let path = written(bench, &Apr2Builder::new().entry(entry))?;
    let gguf = bench.folder()?.join("made.gguf");
    let llama = bench.folder_of(&Made::llama())?;
    apr::convert(&llama).quantize(Scheme::Q8_0).format(&apr::format::GGUF).write(&gguf)?;
    let source = Model::open(&gguf)?;
    let count =
        |model: &Model| model.tensors().iter().filter(|info| info.dtype == DType::Q8_0).count();
    let target = bench.folder()?.join("test.apr");
    apr::convert(&gguf).write(&target)?;
    let (before, after) = (count(&source), count(&Model::open(&target)?));
    ensure(before > 0 && before == after, format!("{before} tensors of q8_0 became {after}"))?;
    let (bytes, _) = apr::convert(&path).to_bytes()?;
    ensure(bytes.windows(34).any(|window| window == blocks), "blocks were coded again")?;
    passed(format!("{before} tensors of q8_0 in a test GGUF file are q8_0 in the .apr file"))
}

/// The dtypes of a made file after a conversion.
fn cast(
    bench: &Bench<'_>,
    (from, bytes): (DType, &[u8]),
    to: DType,
) -> Result<(DType, Vec<f32>), Fault> {
    let entry = Apr2Entry::new("w", from, &[2], bytes);
    let path = written(bench, &Apr2Builder::new().entry(entry))?;
    let target = bench.folder()?.join("cast.apr");
    apr::convert(&path).precision(to).write(&target)?;
    let model = Model::open(&target)?;
    let values: Vec<f32> = model.tensor("w")?.to_vec()?;
    Ok((model.tensors()[0].dtype, values))
}

pub(crate) fn to_bf16(bench: &Bench<'_>) -> Judgement {
    let bytes = crate::made::bytes_of(&[1.0, 0.1]);
    let (dtype, values) = cast(bench, (DType::F32, &bytes), DType::BF16)?;
    let is_right = dtype == DType::BF16 && values == [1.0, f32::from_bits(0x3dcd_0000)];
    let seen = format!("1 and 0.1 of a test f32 tensor are {dtype} {values:?}");
    if is_right { passed(seen) } else { failed(seen) }
}

pub(crate) fn to_f32(bench: &Bench<'_>) -> Judgement {
    let (dtype, values) = cast(bench, (DType::BF16, &[0x80, 0x3f, 0x49, 0xc0]), DType::F32)?;
    let is_right = dtype == DType::F32 && values == [1.0, f32::from_bits(0xc049_0000)];
    let seen = format!("1 and -3.140625 of a test bf16 tensor are {dtype} {values:?}");
    if is_right { passed(seen) } else { failed(seen) }
}

pub(crate) fn output(bench: &Bench<'_>) -> Judgement {
    let path = bench.folder()?.join("new/folders/out.apr");
    let report = apr::convert(written(bench, &sound())?).write(&path)?;
    let len = fs::metadata(&path)?.len();
    let said = report.conversion.bytes_out;
    ensure(len == said, format!("{said} bytes were reported, the file has {len}"))?;
    passed(format!("new/folders/out.apr was written, {len} bytes, and the folders made"))
}

pub(crate) fn overwrite(bench: &Bench<'_>) -> Judgement {
    let path = bench.folder()?.join("there.apr");
    fs::write(&path, b"precious")?;
    let source = written(bench, &sound())?;
    let error = apr::convert(&source).write(&path).err();
    let error = error.ok_or_else(|| Fault::new("a file was replaced without being asked"))?;
    let is_right = matches!(
        &error,
        apr::report::JobError::Model(error) if error.cause() == Some(IoCause::AlreadyExists)
    );
    ensure(is_right, format!("another error: {error}"))?;
    ensure(fs::read(&path)? == b"precious", "the file was changed")?;
    apr::convert(&source).replace().write(&path)?;
    ensure(fs::read(&path)?.starts_with(b"APR2"), "the file was not replaced on request")?;
    let folder = path.parent().unwrap_or(Path::new("."));
    passed(format!("by default: {}; replaced on request", named(&error.to_string(), folder)))
}

pub(crate) fn full_disk(bench: &Bench<'_>) -> Judgement {
    let folder = bench.folder_of(&Made::llama())?;
    let files = |folder: &Path| -> Result<usize, Fault> { Ok(fs::read_dir(folder)?.count()) };
    let before = files(&folder)?;
    // No file may have more than eight blocks of 512 bytes. Shells on Windows can't say so.
    let script = "ulimit -f 8 || exit 86; exec \"$APR\" convert . -o out.apr";
    let output = bench.shell(&folder, script)?;
    let Some(output) = output.filter(|output| output.status.code() != Some(86)) else {
        return absent(
            "requires the program `apr` in the same folder, and a shell that limits \
                       files",
        );
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said.lines().find(|line| line.contains("E007"));
    let said = said.ok_or_else(|| Fault::new("no E007 with a file limit of 4 KiB"))?;
    ensure(files(&folder)? == before, "a partial file exists")?;
    passed(format!("with a file limit of 4 KiB: {said}; no partial file remains"))
}

pub(crate) fn memory_limit(bench: &Bench<'_>) -> Judgement {
    let source = written(bench, &sound())?;
    let target = bench.folder()?.join("out.apr");
    let error = apr::convert(&source).max_memory(1 << 10).write(&target).err();
    let error = error.ok_or_else(|| Fault::new("a conversion ran in 1 KiB of memory"))?;
    ensure(code_of(&error) == Some(Code::Memory), format!("another error: {error}"))?;
    ensure(!target.exists(), "an output exists")?;
    passed(format!("a conversion in 1 KiB: {error}; nothing was written"))
}
