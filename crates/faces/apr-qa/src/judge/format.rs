//! Points 1 to 25 that are about one APR2 file: the model's, and files that are made and broken.

use std::collections::HashSet;

use apr_core::{Code, DType, TensorInfo, counted, of_files};
use apr_ops::lint::Severity;
use apr_ops::validate::{Check, Level, Status};
use apr_testkit::apr2::{Apr2Builder, Apr2Entry, Apr2Footer};
use apr_testkit::corrupt::{insert, overwrite};

use crate::bench::Bench;
use crate::judgement::{Fault, Judgement, absent, ensure, failed, passed};
use crate::made::{self, changed, found, linted, opened, refused, sound, validated};

/// Returns the judgement for a model whose format lacks the subject of a point.
fn lacks(bench: &Bench<'_>, what: &str, seen: &str) -> Judgement {
    absent(format!("{} has no {what}; of a test .apr file: {seen}", bench.reader().format().name))
}

fn at(offset: u32) -> usize {
    offset as usize
}

pub(crate) fn magic(bench: &Bench<'_>) -> Judgement {
    let seen = refused(overwrite(&sound().build(), 0, b"2RPA"), Code::Format)?;
    let format = bench.reader().format();
    if !bench.is_apr2() || of_files(bench.reader()).container().shard_count() > 0 {
        return passed(format!(
            "{} was recognized by its bytes; another magic: {seen}",
            format.name
        ));
    }
    let mut head = [0; 4];
    bench.reader().container().read_raw(0, &mut head)?;
    ensure(head == *b"APR2", "the file does not start with APR2")?;
    passed(format!("the file starts with APR2; another magic: {seen}"))
}

pub(crate) fn header_size(bench: &Bench<'_>) -> Judgement {
    let file = sound().build();
    let seen = refused(insert(&file, at(sound().data_start()), &[0]), Code::Corrupt)?;
    // Other formats state an offset, too: that of a longer header.
    let fields = bench.reader().container().header_fields();
    match fields["metadata_offset"].as_u64().filter(|_| bench.is_apr2()) {
        Some(32) => passed(format!("the header has 32 bytes; with a byte inserted: {seen}")),
        Some(size) => failed(format!("the header has {size} bytes, not 32")),
        None => lacks(bench, "header of 32 bytes", &seen),
    }
}

pub(crate) fn version(_: &Bench<'_>) -> Judgement {
    let seen = refused(Apr2Builder { version: (3, 0), ..sound() }.build(), Code::Version)?;
    opened(Apr2Builder { version: (2, 7), ..sound() }.build())?;
    passed(format!("a test file of version 2.7 opens, and of 3.0: {seen}"))
}

pub(crate) fn checksum(bench: &Bench<'_>) -> Judgement {
    let mut broken = sound().build();
    broken[at(sound().data_start()) + 9] ^= 0x10;
    let seen = found(sound().build(), broken, |finding| {
        finding.code == Some(Code::Checksum.id()) && finding.tensor.as_deref() == Some("b.weight")
    })?;
    let checks = [bench.check(Check::Checksum)?, bench.check(Check::Digests)?];
    let wrong = bench.findings(|finding| {
        matches!(finding.check, Check::Checksum | Check::Digests) && finding.level == Level::Error
    })?;
    if let Some(first) = wrong.first() {
        let tensor = first.tensor.as_deref().map(|name| format!("tensor '{name}': "));
        return failed(format!("{}{}", tensor.unwrap_or_default(), first.message));
    }
    let agreed: Vec<&str> = checks
        .into_iter()
        .filter(|outcome| outcome.status == Status::Pass)
        .map(|outcome| &*outcome.detail)
        .collect();
    if agreed.is_empty() {
        return lacks(bench, "checksum", &seen);
    }
    passed(format!("{} agree; a bit flipped in a test file: {seen}", agreed.join(" and ")))
}

pub(crate) fn json_metadata(bench: &Bench<'_>) -> Judgement {
    let seen = refused(sound().metadata(r#"{"apr_version":"2.0.0",}"#).build(), Code::Format)?;
    if !["apr2", "safetensors"].contains(&bench.reader().format().id) {
        return lacks(bench, "metadata in JSON", &seen);
    }
    let keys = counted(bench.reader().metadata().iter().count() as u64, "key");
    passed(format!("the model's header is JSON ({keys} of metadata); broken JSON: {seen}"))
}

pub(crate) fn alignment(bench: &Bench<'_>) -> Judgement {
    let entry = Apr2Entry {
        offset: Some(193),
        size: Some(3),
        dims: vec![3],
        ..Apr2Entry::of_bytes("d", &[0, 1, 2, 3])
    };
    let odd = |message: &str| message.contains("do not start at a multiple of");
    let reader = opened(Apr2Builder { digests: false, ..sound().entry(entry) }.build())?;
    let report = linted(&*reader)?;
    let warned = report.remarks.into_iter().find(|remark| odd(&remark.message));
    let seen =
        warned.ok_or_else(|| Fault::new("lint did not report a tensor at byte 193"))?.message;

    let remarks = bench.lint().remarks.iter();
    let said = remarks.map(|remark| &*remark.message);
    if let Some(message) = said.into_iter().find(|it| odd(it) || it.contains("could be aligned")) {
        return failed(format!("lint: {message}"));
    }
    match bench.reader().container().features().alignment {
        Some(bytes) => {
            passed(format!("tensors start at multiples of {bytes}; in a test file: {seen}"))
        }
        None => passed(format!("no note of lint; in a test file: {seen}")),
    }
}

pub(crate) fn sorted_index(bench: &Bench<'_>) -> Judgement {
    let seen = refused(Apr2Builder { unsorted: true, ..sound() }.build(), Code::Corrupt)?;
    if !bench.is_apr2() {
        return lacks(bench, "sorted index", &seen);
    }
    let tensors = counted(bench.reader().tensors().len() as u64, "tensor");
    passed(format!("the index of {tensors} is sorted; with two entries swapped: {seen}"))
}

pub(crate) fn endianness(_: &Bench<'_>) -> Judgement {
    let mut file = sound().build();
    file[4..8].chunks_exact_mut(2).for_each(<[u8]>::reverse);
    file[8..32].chunks_exact_mut(4).for_each(<[u8]>::reverse);
    passed(format!("a test header with its bytes swapped: {}", refused(file, Code::Format)?))
}

pub(crate) fn flags(bench: &Bench<'_>) -> Judgement {
    let unknown = |message: &str| message.contains("unknown flags");
    let report = validated(Apr2Builder { flags: 1 << 20 | 1 << 1, ..sound() }.build())?;
    ensure(report.valid, "an undefined flag made a file invalid")?;
    let warned = report.findings.into_iter().find(|finding| unknown(&finding.message));
    let seen = warned.ok_or_else(|| Fault::new("an undefined flag was not reported"))?.message;
    let fields = bench.reader().container().header_fields();
    let Some(names) = fields["flags"].as_array().filter(|_| bench.is_apr2()) else {
        return lacks(bench, "flags of APR2", &seen);
    };
    if let Some(warning) = bench.reader().warnings().iter().find(|text| unknown(text)) {
        return failed(warning.as_str());
    }
    let names: Vec<&str> = names.iter().filter_map(serde_json::Value::as_str).collect();
    passed(format!("{} in the model; in a test file: {seen}", names.join(", ")))
}

pub(crate) fn footer(bench: &Bench<'_>) -> Judgement {
    let file = sound().build();
    let seen = refused(file[..file.len() - 16].to_vec(), Code::Corrupt)?;
    let other = Apr2Footer { magic: *b"APR2", ..sound().footer };
    refused(Apr2Builder { footer: other, ..sound() }.build(), Code::Corrupt)?;
    match bench.reader().container().header_fields()["crc32"].as_str() {
        Some(sum) if bench.is_apr2() => {
            passed(format!("the footer was read (CRC-32 {sum}); without its 16 bytes: {seen}"))
        }
        _ if bench.is_apr2() => passed(format!("every shard opened has its footer; cut: {seen}")),
        _ => lacks(bench, "footer", &seen),
    }
}

pub(crate) fn file_size(bench: &Bench<'_>) -> Judgement {
    let follows = |message: &str| message.contains("follow the footer");
    let tail = Apr2Builder { tail: b"garbage".to_vec(), ..sound() }.build();
    let seen = found(sound().build(), tail, |finding| follows(&finding.message))?;
    let wrong = Apr2Footer { file_size: Some(1 << 40), ..sound().footer };
    refused(Apr2Builder { footer: wrong, ..sound() }.build(), Code::Corrupt)?;
    if let Some(warning) = bench.reader().warnings().iter().find(|text| follows(text)) {
        return failed(warning.as_str());
    }
    let stated = bench.reader().container().header_fields()["file_size"].as_u64();
    let stated = stated.filter(|_| bench.is_apr2());
    match (stated, bench.reader().files()) {
        (Some(stated), [file]) if stated == file.len => passed(format!(
            "the footer states {stated} bytes, the length of the file; of a test file: {seen}"
        )),
        (Some(stated), [file]) => {
            failed(format!("the footer states {stated} bytes, the file has {}", file.len))
        }
        _ => lacks(bench, "stated size of the file", &seen),
    }
}

pub(crate) fn offsets(bench: &Bench<'_>) -> Judgement {
    let mut builder = sound();
    builder.entries[2].offset = Some(1 << 20);
    let seen = refused(builder.build(), Code::Corrupt)?;
    let (reader, mut last) = (bench.reader(), 0);
    for (position, info) in reader.tensors().iter().enumerate() {
        let range = reader.stored(position).range;
        let end = range.offset.checked_add(range.len);
        let len = reader.files().get(range.file).map_or(0, |file| file.len);
        ensure(end.is_some_and(|end| end <= len), format!("tensor '{}' ends past it", info.name))?;
        last = last.max(end.unwrap_or_default());
    }
    passed(format!("the last tensor ends at byte {last}, within its file; beyond it: {seen}"))
}

pub(crate) fn empty(_: &Bench<'_>) -> Judgement {
    let report = validated(Apr2Builder::new().build())?;
    ensure(report.valid, "a test file without tensors is invalid")?;
    passed("a test file without tensors opens and is valid")
}

pub(crate) fn huge_metadata(_: &Bench<'_>) -> Judgement {
    let builder = Apr2Builder {
        metadata_size: Some(200 << 20),
        index_offset: Some(300 << 20),
        data_offset: Some(400 << 20),
        ..sound()
    };
    // The rest of the file is zeros that take no memory.
    let source = apr_testkit::SparseSource::new(builder.build(), 500 << 20);
    match apr_registry::open(source, "test.apr", apr_registry::OpenOptions::default()) {
        Err(error) if error.code() == Code::Memory => {
            passed(format!("a test file of 500 MiB with 200 MiB of metadata: {error}"))
        }
        Err(error) => failed(format!("expected E008, found: {error}")),
        Ok(_) => failed("a test file with 200 MiB of metadata was opened"),
    }
}

pub(crate) fn utf8_names(bench: &Bench<'_>) -> Judgement {
    let seen = refused(changed(|entry| entry.name = b"\xff.weight".to_vec()), Code::Format)?;
    let names = counted(bench.reader().tensors().len() as u64, "name");
    passed(format!("{names} of the model are UTF-8; other bytes: {seen}"))
}

pub(crate) fn unique_names(bench: &Bench<'_>) -> Judgement {
    let seen = refused(changed(|entry| entry.name = b"a.bias".to_vec()), Code::Corrupt)?;
    let mut names = HashSet::new();
    let twice = bench.reader().tensors().iter().find(|info| !names.insert(&info.name));
    match twice {
        Some(info) => failed(format!("'{}' occurs twice", info.name)),
        None => passed(format!("{} different names; with one of them twice: {seen}", names.len())),
    }
}

pub(crate) fn dimensions(bench: &Bench<'_>) -> Judgement {
    let dims =
        |count: usize| changed(|entry| entry.dims = [vec![1_u64; count - 2], vec![2, 3]].concat());
    opened(dims(8))?;
    let seen = refused(dims(9), Code::Format)?;
    let most = bench.reader().tensors().iter().map(|info| info.shape.dims().len()).max();
    let most = most.unwrap_or_default();
    ensure(most <= 8, format!("a tensor of the model has {most} dimensions"))?;
    passed(format!(
        "the model's tensors have at most {most} dimensions; 8 open in a test file, and 9: {seen}"
    ))
}

pub(crate) fn scalar(_: &Bench<'_>) -> Judgement {
    let file = Apr2Builder::new().entry(made::floats("scale", &[], &[2.5])).build();
    let reader = opened(file)?;
    let elements = reader.tensors()[0].shape.elements();
    ensure(elements == Some(1), format!("a scalar has {elements:?} elements"))?;
    let mut bytes = [0; 4];
    reader.read_tensor(0, 0, &mut bytes)?;
    ensure(bytes == 2.5_f32.to_le_bytes(), "a different value was read")?;
    passed("a test tensor without dimensions has one element, 2.5")
}

pub(crate) fn dtypes(_: &Bench<'_>) -> Judgement {
    let mut builder = Apr2Builder::new();
    for &dtype in DType::ALL {
        let info = TensorInfo { name: dtype.name().into(), dtype, shape: [2, 256].into() };
        let len = usize::try_from(info.byte_len()?)?;
        builder = builder.entry(Apr2Entry::new(&info.name, dtype, &[2, 256], &vec![1; len]));
    }
    let reader = opened(builder.build())?;
    for info in reader.tensors() {
        ensure(info.name == info.dtype.name(), format!("{} is {}", info.name, info.dtype))?;
    }
    let seen = refused(changed(|entry| entry.dtype = 255), Code::Format)?;
    let count = reader.tensors().len();
    passed(format!("a test file with all {count} dtypes opens; with code 255: {seen}"))
}

pub(crate) fn padding(bench: &Bench<'_>) -> Judgement {
    let odd = |message: &str| message.contains("padding is not zero");
    let file = Apr2Builder { padding: 0xff, ..sound() }.build();
    let seen = found(sound().build(), file, |finding| odd(&finding.message))?;
    let remarks = &bench.lint().remarks;
    let of_padding =
        |remark: &&apr_ops::lint::Remark| remark.severity == Severity::Warn && odd(&remark.message);
    if let Some(remark) = remarks.iter().find(of_padding) {
        return failed(format!("lint: {}", remark.message));
    }
    if bench.reader().container().checksum().is_none() {
        return lacks(bench, "padding that is checked", &seen);
    }
    passed(format!("the model's padding is zero; filled with 0xff: {seen}"))
}

pub(crate) fn wasm(_: &Bench<'_>) -> Judgement {
    absent("not tested in this program: the module apr-wasm-smoke tests WebAssembly under Node")
}
