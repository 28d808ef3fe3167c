//! A folder to run the command in, what came of it, and models made by hand.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use apr_registry::DType;
use apr_testkit::apr2::{Apr2Builder, Apr2Entry};
use apr_testkit::locate;
use apr_testkit::written::Watch;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::schemas::assert_published;

/// After this long a command counts as hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the path of the tested command: the command of this build, or `APR_TEST_BINARY`.
///
/// The variable can name another command, such as one for another processor.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("APR_TEST_BINARY")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_apr")), PathBuf::from)
}

/// An empty folder that commands run in, so that the paths they print are the same everywhere.
pub(crate) struct Sandbox(TempDir);

/// Files of a sandbox: their names, bytes and permissions.
pub(crate) struct Files(Vec<(String, Vec<u8>, Permissions)>);

impl Sandbox {
    /// Returns the sandbox's files, so that similar sandboxes can be created without repeating the
    /// commands.
    pub(crate) fn kept(&self) -> Files {
        let permissions =
            |name: &String| fs::metadata(self.path(name)).expect("a file").permissions();
        let kept = |name: String| (name.clone(), self.read(&name), permissions(&name));
        Files(self.files().into_iter().map(kept).collect())
    }

    pub(crate) fn of(files: &Files) -> Self {
        let sandbox = Self::new();
        for (name, bytes, permissions) in &files.0 {
            sandbox.write(name, bytes);
            fs::set_permissions(sandbox.path(name), permissions.clone())
                .expect("a file of one's own");
        }
        sandbox
    }

    pub(crate) fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder"))
    }

    /// The sandbox with one more file.
    pub(crate) fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        self.write(name, bytes);
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("inside the sandbox")).expect("a folder");
        fs::write(path, bytes).expect("a file");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Writes a sparse safetensors file whose only tensor is `zeros`, of dtype U8.
    pub(crate) fn write_sparse(&self, name: &str, len: u64) {
        let head = safetensors_header(
            &json!({ "zeros": { "dtype": "U8", "shape": [len], "data_offsets": [0, len] } }),
        );
        self.write(name, &head);
        self.extend(name, head.len() as u64 + len, &[]);
    }

    /// Makes a file `len` bytes longer than it needs to be, without taking room for it, and puts
    /// `tail` at its end.
    pub(crate) fn extend(&self, name: &str, len: u64, tail: &[u8]) {
        let file = File::options().write(true).open(self.path(name)).expect("a file");
        file.set_len(len).expect("a file system with sparse files");
        apr_platform::write_all_at(&file, tail, len - tail.len() as u64)
            .expect("room for the tail");
    }

    /// Returns every file of the sandbox, including hidden ones, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        list_into(self.0.path(), self.0.path(), &mut names);
        names.sort();
        names
    }

    /// Returns the command, isolated from the settings of the user who runs the tests.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args);
        self.isolate(command)
    }

    /// Returns `true` if only the owner can access a file, on systems with file modes.
    pub(crate) fn is_private(&self, name: &str) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            self.path(name).metadata().expect("a file").permissions().mode() & 0o777 == 0o600
        }
        #[cfg(not(unix))]
        self.path(name).is_file()
    }

    /// A shell script; `"$APR"` is the command.
    #[cfg(unix)]
    pub(crate) fn shell(&self, script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("APR", binary());
        self.watched(|| Run::of(self.isolate(command)))
    }

    /// Runs `run`, and keeps its ONNX files for `onnx.checker` if that is enabled.
    ///
    /// Files that were invalid before apr rewrote them can remain invalid, and apr reports that.
    fn watched(&self, run: impl FnOnce() -> Run) -> Run {
        let watch = Watch::of(self.0.path());
        let run = run();
        let is_valid = run.code == Some(0) && !run.stderr.contains("was not valid before");
        if let Some(watch) = watch.filter(|_| is_valid) {
            watch.keep();
        }
        run
    }

    fn isolate(&self, mut command: Command) -> Command {
        let settings = std::env::vars_os().map(|(name, _)| name);
        let settings = settings.filter(|name| {
            let name = name.to_string_lossy();
            let starts = ["APR_", "XDG_", "CLICOLOR", "HF_", "HUGGING", "AWS_", "SSL_CERT_"];
            let is_bundle = name.ends_with("_CA_BUNDLE");
            let is_proxy = name.to_ascii_lowercase().ends_with("_proxy");
            starts.iter().any(|start| name.starts_with(start))
                || is_proxy
                || is_bundle
                || name == "NO_COLOR"
        });
        settings.for_each(|name| {
            command.env_remove(name);
        });
        let home = self.path("home");
        command.current_dir(self.0.path()).env("HOME", &home).env("USERPROFILE", &home);
        // Where Windows has settings and caches.
        command.env("APPDATA", home.join(".config")).env("LOCALAPPDATA", home.join(".cache"));
        command.env("TERM", "xterm");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.watched(|| Run::of(self.command(args)))
    }

    /// Runs the command with arguments that do not contain spaces.
    pub(crate) fn apr(&self, line: &str) -> Run {
        self.run(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs the command with this on standard input, through a pipe.
    pub(crate) fn piped(&self, line: &str, input: &[u8]) -> Run {
        let command = self.command(&line.split_whitespace().collect::<Vec<_>>());
        let mut command = assert_cmd::Command::from_std(command);
        let command = command.write_stdin(input).timeout(PATIENCE);
        self.watched(|| Run::from(command.output()))
    }

    /// Runs the command with these variables in its environment.
    pub(crate) fn with_env(&self, variables: &[(&str, &str)], line: &str) -> Run {
        let mut command = self.command(&line.split_whitespace().collect::<Vec<_>>());
        command.envs(variables.iter().copied());
        self.watched(|| Run::of(command))
    }
}

fn list_into(root: &Path, folder: &Path, names: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            list_into(root, &path, names);
        } else {
            let inside = path.strip_prefix(root).expect("inside");
            let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy()).collect();
            names.push(parts.join("/"));
        }
    }
}

/// Result of a command.
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// The documents of some output, each without its envelope, which they must have.
#[track_caller]
pub(crate) fn reports(output: &[u8]) -> Vec<Value> {
    let shown = || String::from_utf8_lossy(output);
    let documents = serde_json::Deserializer::from_slice(output).into_iter::<Value>();
    let report = |document: Result<Value, _>| {
        let document = document.unwrap_or_else(|error| panic!("{error}: {}", shown()));
        assert_published(&document);
        let Value::Object(mut report) = document else { panic!("no object: {}", shown()) };
        let schema = report.remove("schema").unwrap_or_default();
        let schema = schema.as_str().unwrap_or_default();
        assert!(schema.starts_with("apr.") && schema.ends_with("/1"), "{schema}: {}", shown());
        assert!(report.remove("command").is_some_and(|command| command.is_string()));
        Value::Object(report)
    };
    documents.map(report).collect()
}

impl Run {
    pub(crate) fn of(command: Command) -> Self {
        Self::from(assert_cmd::Command::from_std(command).timeout(PATIENCE).output())
    }

    fn from(output: std::io::Result<std::process::Output>) -> Self {
        let output = output.expect("the command starts");
        let stderr = String::from_utf8(output.stderr).expect("remarks are UTF-8");
        Self { code: output.status.code(), stdout: output.stdout, stderr }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).expect("a report is UTF-8")
    }

    /// Standard output, which must be one JSON document.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let mut reports = self.reports();
        assert_eq!(reports.len(), 1, "{self}");
        reports.remove(0)
    }

    /// The reports of several models or texts, each without its envelope.
    #[track_caller]
    pub(crate) fn reports(&self) -> Vec<Value> {
        reports(&self.stdout)
    }

    /// The run, which must have succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// The run, which must have succeeded without a remark.
    #[track_caller]
    pub(crate) fn clean(self) -> Self {
        assert_eq!(self.stderr, "", "{self}");
        self.ok()
    }

    /// Asserts that the run ended with this code and printed all of these parts, on either stream.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        self.says(parts)
    }

    /// Asserts that the run printed all of these parts, on either stream.
    #[track_caller]
    pub(crate) fn says(self, parts: &[&str]) -> Self {
        let said = self.to_string();
        parts.iter().for_each(|part| assert!(said.contains(part), "no '{part}' in {said}"));
        self
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stdout = String::from_utf8_lossy(&self.stdout);
        write!(f, "{stdout}--- stderr\n{}--- exit {:?}", self.stderr, self.code)
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let pause = Duration::from_millis(2);
    let mut waited = Duration::ZERO;
    while !so() {
        assert!(waited < PATIENCE, "{what} never came");
        sleep(pause);
        waited += pause;
    }
}

/// Returns a valid APR2 file: three tensors, not stored in the order of their names.
pub(crate) fn sound() -> Apr2Builder {
    Apr2Builder::new()
        .entry(Apr2Entry::new(
            "b.weight",
            DType::F32,
            &[2, 3],
            &f32s(&[0.5, -0.25, 1.0, 2.0, -1.5, 0.125]),
        ))
        .entry(Apr2Entry::new("a.bias", DType::F32, &[2], &f32s(&[1.0, -1.0])))
        .entry(Apr2Entry::new(
            "c.norm",
            DType::BF16,
            &[4],
            &[0x80, 0x3f, 0x80, 0x3f, 0x80, 0x3f, 0x80, 0xbf],
        ))
}

/// Little-endian bytes.
pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A generator without state to keep: SplitMix64.
pub(crate) fn scrambled(i: u64) -> u64 {
    let mut x = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A tensor of a safetensors file: name, dtype as the format writes it, shape, bytes.
pub(crate) type Tensor<'a> = (&'a str, &'a str, &'a [u64], Vec<u8>);

/// A safetensors file as its library writes it, given tensors in the library's order.
pub(crate) fn safetensors(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let mut header = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let begin = data.len();
        data.extend(bytes);
        let (name, shape) = (json!(name), json!(shape));
        let end = data.len();
        header += &format!(
            r#",{name}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#
        );
    }
    header.push('}');
    [with_length(header.into_bytes()), data].concat()
}

/// Tensors of a safetensors file: dtype, shape and bytes, by name.
pub(crate) fn tensors(file: &[u8]) -> BTreeMap<String, (Value, Value, Vec<u8>)> {
    let len = u64::from_le_bytes(file[..8].try_into().expect("eight bytes"));
    let (header, data) = file[8..].split_at(usize::try_from(len).expect("short"));
    let header: Value = serde_json::from_slice(header).expect("JSON");
    let entries = header.as_object().expect("an object").iter();
    let tensor = |(name, entry): (&String, &Value)| {
        let at = |end: usize| {
            usize::try_from(entry["data_offsets"][end].as_u64().expect("a number")).expect("short")
        };
        let bytes = data[at(0)..at(1)].to_vec();
        (name.clone(), (entry["dtype"].clone(), entry["shape"].clone(), bytes))
    };
    entries.filter(|(name, _)| *name != "__metadata__").map(tensor).collect()
}

/// Length and JSON of a safetensors header.
pub(crate) fn safetensors_header(header: &Value) -> Vec<u8> {
    with_length(header.to_string().into_bytes())
}

fn with_length(mut header: Vec<u8>) -> Vec<u8> {
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header].concat()
}

/// Returns two layers of an unknown family, in the order in which the safetensors library writes
/// them.
pub(crate) fn small_safetensors() -> Vec<u8> {
    let weight: Vec<f32> = (0_u8..48).map(|i| f32::from(i) / 16.0 - 1.5).collect();
    safetensors(&[
        ("layers.0.bias", "F32", &[8], f32s(&weight[..8])),
        ("layers.0.weight", "F32", &[8, 4], f32s(&weight[8..40])),
        ("layers.1.weight", "F32", &[2, 4], f32s(&weight[40..])),
        ("layers.1.bias", "F16", &[2], vec![0x00, 0x3c, 0x00, 0xc0]),
        ("steps", "I64", &[], 7_i64.to_le_bytes().to_vec()),
    ])
}

/// Copies a model's folder to `broken`, with the bytes of a tensor changed.
pub(crate) fn damaged(sandbox: &Sandbox, folder: &str, tensor: &str, change: impl Fn(&mut [u8])) {
    for entry in fs::read_dir(folder).expect("a fixture").flatten() {
        let file = entry.file_name().into_string().expect("a name");
        if entry.path().is_dir() {
            for inner in fs::read_dir(entry.path()).expect("a folder").flatten() {
                let name = inner.file_name().into_string().expect("a name");
                let bytes = fs::read(inner.path()).expect("a file");
                sandbox.write(&format!("broken/{file}/{name}"), bytes);
            }
            continue;
        }
        let mut bytes = fs::read(entry.path()).expect("a file");
        if file == "model.safetensors" {
            let len = bytes[..8].try_into().map(u64::from_le_bytes).expect("eight bytes");
            let end = 8 + usize::try_from(len).expect("a small file");
            let header: Value = serde_json::from_slice(&bytes[8..end]).expect("a header");
            let offset = |at: usize| {
                let offset = header[tensor]["data_offsets"][at].as_u64().expect("an offset");
                end + usize::try_from(offset).expect("a small file")
            };
            change(&mut bytes[offset(0)..offset(1)]);
        }
        sandbox.write(&format!("broken/{file}"), bytes);
    }
}

/// Writes a Hugging Face folder: weights and companion files, including one over a megabyte.
pub(crate) fn model_folder(sandbox: &Sandbox, folder: &str) -> Vec<(String, Vec<u8>)> {
    let vocabulary: Map<String, Value> =
        (0..60_000).map(|id| (format!("token{id}"), id.into())).collect();
    let tokenizer =
        json!({ "model": { "type": "BPE", "vocab": vocabulary }, "added_tokens": [] }).to_string();
    let files: [(&str, &[u8]); 7] = [
        ("model.safetensors", &small_safetensors()),
        ("config.json", br#"{"model_type": "toy", "hidden_size": 8, "vocab_size": 60000}"#),
        ("tokenizer.json", tokenizer.as_bytes()),
        ("tokenizer_config.json", b"{}\n"),
        ("1_Pooling/config.json", br#"{"pooling_mode_mean_tokens": true}"#),
        ("README.md", "---\nlicense: mit\n---\n# größe\r\n".as_bytes()),
        ("LICENSE", b"Do what you like.\n"),
    ];
    files.iter().for_each(|(name, bytes)| sandbox.write(&format!("{folder}/{name}"), bytes));
    files.map(|(name, bytes)| (name.to_owned(), bytes.to_vec())).to_vec()
}

/// Runs a script of `xtask/interop`, which exits with 1 on failure.
#[track_caller]
pub(crate) fn judge(script: &str, arguments: &[&str], folder: &Path) {
    let python = std::env::var("APR_GRAPH_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = locate::workspace().join("xtask/interop").join(script);
    let output = Command::new(python)
        .arg(script)
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("a Python");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
