//! Runs the bodies over mutated fixtures, where no nightly toolchain is at hand for `cargo fuzz`:
//! `mutate SECONDS SEED FOLDER [TARGET]...`. What fails, or takes more than five seconds, is
//! written to the folder.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, panic};

use apr_fuzz_bodies as bodies;
use apr_testkit::{excessive, locate};

type Body = fn(&[u8]);

const BODIES: [(&str, Body); 33] = [
    ("decode_block", bodies::decode_block),
    ("dequantize_any", bodies::dequantize_any),
    ("open_encrypted", bodies::open_encrypted),
    ("probe_any", bodies::probe_any),
    ("read_adapter", bodies::read_adapter),
    ("read_answers", bodies::read_answers),
    ("read_apr1", bodies::read_apr1),
    ("read_apr2", bodies::read_apr2),
    ("read_aprn", bodies::read_aprn),
    ("read_coded", bodies::read_coded),
    ("read_coreml", bodies::read_coreml),
    ("read_flax", bodies::read_flax),
    ("read_openvino", bodies::read_openvino),
    ("read_orbax", bodies::read_orbax),
    ("read_vectors", bodies::read_vectors),
    ("read_ctranslate2", bodies::read_ctranslate2),
    ("read_ggml", bodies::read_ggml),
    ("read_gguf", bodies::read_gguf),
    ("read_keras", bodies::read_keras),
    ("read_manifest", bodies::read_manifest),
    ("read_merge", bodies::read_merge),
    ("read_numpy", bodies::read_numpy),
    ("read_onnx", bodies::read_onnx),
    ("read_ort", bodies::read_ort),
    ("read_plan", bodies::read_plan),
    ("read_pytorch", bodies::read_pytorch),
    ("read_safetensors", bodies::read_safetensors),
    ("read_tensorflow", bodies::read_tensorflow),
    ("read_tflite", bodies::read_tflite),
    ("read_trees", bodies::read_trees),
    ("roundtrip_apr2", bodies::roundtrip_apr2),
    ("roundtrip_gguf", bodies::roundtrip_gguf),
    ("scan_any", bodies::scan_any),
];

/// Longest input, and longest time that one may take.
const LONGEST: usize = 64 << 10;
const SLOW: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: mutate SECONDS SEED FOLDER [TARGET]...";
    let mut arguments = env::args().skip(1);
    let seconds: u64 = arguments.next().ok_or(usage)?.parse()?;
    let mut random = Random(arguments.next().ok_or(usage)?.parse::<u64>()? | 1);
    let folder = PathBuf::from(arguments.next().ok_or(usage)?);
    fs::create_dir_all(&folder)?;
    let targets: Vec<String> = arguments.collect();
    let chosen: Vec<_> = BODIES
        .iter()
        .filter(|(name, _)| targets.is_empty() || targets.iter().any(|target| target == name))
        .collect();

    let mut corpus = Vec::new();
    read_folder(&locate::fixture(""), &mut corpus)?;
    corpus.extend(excessive::all().map(|construct| construct.of_size(2000)));
    println!("{} files, {} targets", corpus.len(), chosen.len());
    panic::set_hook(Box::new(|_| {}));
    let (start, mut runs, mut findings) = (Instant::now(), 0_u64, 0);
    while start.elapsed().as_secs() < seconds {
        let input = random.mutated(&corpus);
        for (name, body) in &chosen {
            let begin = Instant::now();
            let failed = panic::catch_unwind(|| body(&input)).is_err();
            runs += 1;
            if failed || begin.elapsed() > SLOW {
                findings += 1;
                let path = folder.join(format!("{name}-{runs}"));
                fs::write(&path, &input)?;
                println!("{}: {:?}, panic: {failed}", path.display(), begin.elapsed());
            }
        }
    }

    println!("{runs} runs, {findings} findings");
    Ok(())
}

/// Reads all short files of a folder and its subfolders.
fn read_folder(folder: &Path, into: &mut Vec<Vec<u8>>) -> Result<(), Box<dyn Error>> {
    let mut entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::path);
    for entry in entries {
        let (path, facts) = (entry.path(), entry.metadata()?);
        if facts.is_dir() {
            read_folder(&path, into)?;
        } else if facts.len() <= LONGEST as u64 {
            into.push(fs::read(path)?);
        }
    }
    Ok(())
}

/// Numbers by xorshift: the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).unwrap_or_default() % end.max(1)
    }

    /// A file with a few changes.
    fn mutated(&mut self, corpus: &[Vec<u8>]) -> Vec<u8> {
        let mut file = corpus[self.below(corpus.len())].clone();
        for _ in 0..=self.below(6) {
            self.change(&mut file, corpus);
        }
        file.truncate(LONGEST);
        file
    }

    fn change(&mut self, file: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        const NUMBERS: [u64; 10] =
            [0, 1, 127, 128, 255, 256, 1 << 31, u32::MAX as u64, 1 << 62, u64::MAX];
        // Most of what a reader looks at is at the front.
        let near = if self.below(2) == 0 { file.len().min(512) } else { file.len() };
        let at = self.below(near);
        match self.below(8) {
            0 => file.truncate(at),
            1 | 2 => file.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            3 => {
                let value = u8::try_from(self.below(256)).unwrap_or_default();
                file.iter_mut().skip(at).take(1).for_each(|byte| *byte = value);
            }
            4 => {
                let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                let len = [1, 2, 4, 8][self.below(4)];
                file.iter_mut().skip(at).zip(&number[..len]).for_each(|(byte, new)| *byte = *new);
            }
            5 => {
                let end = (at + self.below(64)).min(file.len());
                let piece = file[at..end].to_vec();
                let times = 1 + self.below(16);
                file.splice(at..at, piece.repeat(times));
            }
            6 => {
                let end = (at + self.below(64)).min(file.len());
                file.drain(at..end);
            }
            _ => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len());
                let piece = other[from..].iter().take(self.below(128)).copied();
                file.splice(at..at, piece.collect::<Vec<_>>());
            }
        }
    }
}
