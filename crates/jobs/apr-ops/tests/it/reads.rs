//! A job reads a model once: its weights, and the files beside them.

#![cfg(all(feature = "std", feature = "quantize"))]

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;

use apr_arch::Families;
use apr_ops::job::{Job, JobError, Weights};
use apr_quantize::{Quantization, Scheme};
use apr_registry::{
    ByteSource, Limits, MemoryFolder, PlanOptions, Result, Serial, SourceSet, apr2, gguf, onnx,
    open_folder, safetensors,
};
use apr_source::Source;
use apr_testkit::{CountingSource, FolderInMemory, locate};

/// A model's folder that counts what is read of each file.
struct CountingFolder {
    files: FolderInMemory,
    opened: Mutex<BTreeMap<String, CountingSource<Vec<u8>>>>,
}

impl CountingFolder {
    /// The trained model of the fixtures.
    fn tiny_llama() -> Self {
        let entries = fs::read_dir(locate::fixture("tiny-llama")).expect("the fixture is there");
        let files = entries.map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a file"))
        });
        Self { files: FolderInMemory(files.collect()), opened: Mutex::default() }
    }

    /// Bytes read so far of each file.
    fn read(&self) -> BTreeMap<String, u64> {
        let opened = self.opened.lock().expect("no panic");
        opened.iter().map(|(name, file)| (name.clone(), file.bytes_read())).collect()
    }
}

impl SourceSet for CountingFolder {
    fn open(&self, name: &str) -> Result<Box<dyn ByteSource>> {
        self.files.open(name)?;
        let mut opened = self.opened.lock().expect("no panic");
        let new = || CountingSource::new(self.files.0[name].clone());
        Ok(Box::new(opened.entry(name.to_owned()).or_insert_with(new).clone()))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.files.list()
    }
}

/// Runs a job and returns the number of bytes that it read of each file.
fn reads_of(job: &Job, folder: &CountingFolder) -> BTreeMap<String, u64> {
    let model = open_folder(folder, &Limits::default()).expect("a model");
    let families = Families::builtin();
    let source = Source::new(&model, &families).named("tiny-llama");
    let mut written = MemoryFolder::default();
    job.plan(&source)
        .and_then(|planned| planned.run(&mut written, &Serial, &()))
        .unwrap_or_else(|error: JobError| panic!("{error}"));
    folder.read()
}

fn jobs() -> [Job; 6] {
    let to = |format, name: &str| Job::new(PlanOptions::new(format, name));
    let folder =
        |format, name: &str| PlanOptions { folder: true, ..PlanOptions::new(format, name) };
    let quantize = Some(Quantization::to(Scheme::Q8_0));
    let weights = Weights { quantize, ..Weights::default() };
    [
        to(&apr2::FORMAT, "m.apr"),
        to(&gguf::FORMAT, "m.gguf"),
        to(&safetensors::FORMAT, "m.safetensors"),
        Job::new(folder(&safetensors::FORMAT, "model.safetensors")),
        Job::new(folder(&onnx::FORMAT, "model.onnx")),
        Job { weights, ..to(&apr2::FORMAT, "m.apr") },
    ]
}

#[test]
fn a_job_reads_each_file_of_a_model_once() {
    for job in jobs() {
        let folder = CountingFolder::tiny_llama();
        let output = &job.target.file_name;
        for (name, bytes) in reads_of(&job, &folder) {
            let len = folder.files.0[&name].len() as u64;
            // The first bytes of the weights are looked at to tell which format they have.
            let most = if name == "model.safetensors" { len + 4096 } else { len };
            assert!((len..=most).contains(&bytes), "{output}: {name}: {bytes} of {len} bytes");
        }
    }
}

#[test]
fn companion_files_are_read_for_their_settings() {
    let read = reads_of(&jobs()[0], &CountingFolder::tiny_llama());
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    files.iter().for_each(|name| assert!(read.contains_key(*name), "{name}: {read:?}"));
    assert!(!read.contains_key("train.py"), "it is no companion");
}
