//! `apr page`: the page and a model, served on this machine.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Sandbox, binary};

/// A page that is served, until the test is over.
struct Page {
    process: Child,
    host: String,
    root: String,
    report: Value,
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Page {
    fn of(sandbox: &Sandbox, model: &[&str]) -> Self {
        let site = sandbox.path("site");
        fs::create_dir_all(site.join("page")).expect("a folder");
        fs::write(site.join("index.html"), "<!doctype html>").expect("a file");
        fs::write(site.join("page/main.js"), "// main").expect("a file");
        fs::write(site.join("service-worker.js"), "// keeps").expect("a file");
        let mut command = Command::new(binary());
        command.arg("page").args(model).arg("--site").arg(site);
        Self::served_by(command)
    }

    fn served_by(mut command: Command) -> Self {
        command.args(["--json", "--port", "0"]);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("a process");
        let mut lines = BufReader::new(process.stdout.take().expect("its output"));
        let mut text = String::new();
        let report: Value = loop {
            lines.read_line(&mut text).expect("a line");
            if let Ok(report) = serde_json::from_str(&text) {
                break report;
            }
        };
        let address = report["address"].as_str().expect("an address").to_owned();
        let rest = address.strip_prefix("http://").expect("http");
        let (host, path) = rest.split_once('/').expect("a path");
        let root = format!("/{}", path.split('#').next().expect("a path"));
        Self { process, host: host.to_owned(), root, report }
    }

    /// Status line and body of a request.
    fn get(&self, path: &str, headers: &str, host: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.host).expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        write!(stream, "{request}{headers}\r\n").expect("a request");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        (head.lines().next().unwrap_or_default().to_owned(), answer[end + 4..].to_vec())
    }

    /// The head of an answer.
    fn head(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.host).expect("a connection");
        let (root, host) = (&self.root, &self.host);
        write!(stream, "HEAD {root}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .expect("a request");
        let mut head = String::new();
        stream.read_to_string(&mut head).expect("an answer");
        head
    }

    fn of_page(&self, path: &str) -> (String, Vec<u8>) {
        self.get(&format!("{}{path}", self.root), "", &self.host)
    }
}

#[test]
fn only_the_page_and_the_files_of_a_folder_are_served() {
    let sandbox = Sandbox::new();
    let model = apr_testkit::locate::fixture("tiny-llama");
    let page = Page::of(&sandbox, &[&model.display().to_string()]);
    assert!(page.report["address"].as_str().expect("an address").ends_with("/#model=open/"));
    assert_eq!(page.of_page("").1, b"<!doctype html>");
    assert_eq!(page.of_page("page/main.js").1, b"// main");
    // What would keep the page for later visits does nothing: the address is another one then.
    assert_eq!(page.of_page("page/offline.js"), ("HTTP/1.1 200 OK".to_owned(), Vec::new()));
    let index: Value =
        serde_json::from_slice(&page.of_page("open/files.json").1).expect("a list of files");
    assert_eq!((&index["title"], &index["name"]), (&"tiny-llama".into(), &Value::Null));
    let weights = fs::read(model.join("model.safetensors")).expect("weights");
    let listed = index["files"].as_array().expect("files").iter();
    let of_weights = listed.clone().find(|file| file["name"] == "model.safetensors");
    assert_eq!(of_weights.expect("weights")["size"], weights.len());
    assert_eq!(page.report["file_count"], listed.len());

    let path = format!("{}open/model.safetensors", page.root);
    let (status, bytes) = page.get(&path, "Range: bytes=100-163\r\n", &page.host);
    assert_eq!((status.as_str(), &*bytes), ("HTTP/1.1 206 Partial Content", &weights[100..164]));
    assert!(page.of_page("open/model.safetensors").1 == weights);
    let (status, _) = page.get(&path, "Range: bytes=999999999-\r\n", &page.host);
    assert_eq!(status, "HTTP/1.1 416 Range Not Satisfiable");

    let absent =
        ["open/../../tiny-llama/config.json", "open/absent", "../etc", "service-worker.js"];
    for path in absent {
        assert_eq!(page.of_page(path).0, "HTTP/1.1 404 Not Found", "{path}");
    }
    // Whoever does not know the path gets nothing, and no page of another name does.
    assert_eq!(page.get("/", "", &page.host).0, "HTTP/1.1 404 Not Found");
    assert_eq!(page.get("/open/files.json", "", &page.host).0, "HTTP/1.1 404 Not Found");
    assert_eq!(page.get(&path, "", "evil.example").0, "HTTP/1.1 403 Forbidden");
    assert_eq!(page.get("garbage", "bad header\r\n", &page.host).0, "HTTP/1.1 400 Bad Request");
}

#[test]
fn a_file_comes_with_those_beside_it() {
    let sandbox = Sandbox::new();
    for name in ["model.gguf", "config.json", ".hidden"] {
        fs::write(sandbox.path(name), name).expect("a file");
    }
    let page = Page::of(&sandbox, &[&sandbox.path("model.gguf").display().to_string()]);
    let index: Value =
        serde_json::from_slice(&page.of_page("open/files.json").1).expect("a list of files");
    assert_eq!((&index["title"], &index["name"]), (&"model.gguf".into(), &"model.gguf".into()));
    let names: Vec<_> = index["files"].as_array().expect("files").iter().collect();
    let names: Vec<_> = names.iter().map(|file| file["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["config.json", "model.gguf"]);
    assert_eq!(page.of_page("open/.hidden").0, "HTTP/1.1 404 Not Found");
    assert_eq!((&page.report["file_count"], &page.report["hidden_count"]), (&2.into(), &1.into()));
    let page = Page::of(&sandbox, &[&sandbox.path(".hidden").display().to_string()]);
    assert_eq!((&page.report["file_count"], &page.report["hidden_count"]), (&3.into(), &0.into()));
}

#[cfg(unix)]
#[test]
fn browsers_do_not_render_model_files_and_links_out_are_not_followed() {
    let sandbox = Sandbox::new().with("secret", "mine");
    sandbox.write("model/config.json", "{}");
    sandbox.write("model/card.html", "<script>alert(1)</script>");
    sandbox.write("model/logo.svg", "<svg onload='alert(1)'/>");
    std::os::unix::fs::symlink("../secret", sandbox.path("model/out.json")).expect("links");
    std::os::unix::fs::symlink("config.json", sandbox.path("model/in.json")).expect("links");
    std::os::unix::fs::symlink("nowhere", sandbox.path("model/gone.json")).expect("links");
    sandbox.write("other/one.json", "{}");
    sandbox.write("other/two.json", "{}");
    std::os::unix::fs::symlink("../other", sandbox.path("model/other")).expect("links");
    sandbox.shell("mkfifo model/pipe.json").clean();
    let model = sandbox.path("model").display().to_string();
    let page = Page::of(&sandbox, &[&model]);
    assert_eq!(page.report["hidden_count"], 4, "out.json, gone.json, other and pipe.json");
    assert_eq!(page.of_page("open/other/one.json").0, "HTTP/1.1 404 Not Found");
    for name in ["open/card.html", "open/logo.svg"] {
        let head = page.head(name);
        for line in [
            "content-type: application/octet-stream",
            "content-security-policy: sandbox; default-src 'none'",
            "content-disposition: attachment",
            "x-content-type-options: nosniff",
        ] {
            assert!(head.contains(line), "{name}: {head}");
        }
    }
    assert!(page.head("").contains("text/html"));
    assert_eq!(page.of_page("open/in.json").1, b"{}");
    assert_eq!(page.of_page("open/out.json").0, "HTTP/1.1 404 Not Found");

    // What takes the place of a file that was listed is not waited for, nor followed.
    fs::remove_file(sandbox.path("model/card.html")).expect("ours");
    sandbox.shell("mkfifo model/card.html").clean();
    assert_eq!(page.of_page("open/card.html").0, "HTTP/1.1 404 Not Found");
    fs::remove_file(sandbox.path("model/logo.svg")).expect("ours");
    std::os::unix::fs::symlink("../secret", sandbox.path("model/logo.svg")).expect("links");
    assert_eq!(page.of_page("open/logo.svg").0, "HTTP/1.1 404 Not Found");
}

#[test]
fn silent_connections_do_not_block_others() {
    let sandbox = Sandbox::new();
    let page = Page::of(&sandbox, &[]);
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&page.host).expect("a connection");
            // The server may have closed it by now.
            let _ = stream.write_all(b"GET ");
            stream
        })
        .collect();
    assert_eq!(page.of_page("").1, b"<!doctype html>");
    drop(slow);
}

#[test]
fn locations_are_opened_by_the_page_itself() {
    let sandbox = Sandbox::new();
    let page = Page::of(&sandbox, &["hf://org/model@main"]);
    assert!(
        page.report["address"].as_str().expect("text").ends_with("/#model=hf://org/model@main")
    );
    assert_eq!(page.of_page("open/files.json").0, "HTTP/1.1 404 Not Found");
    let page = Page::of(&sandbox, &["hf://org/a+b&c@main"]);
    let address = page.report["address"].as_str().expect("text");
    assert!(address.ends_with("/#model=hf://org/a%2Bb%26c@main"), "{address}");
    let site = sandbox.path("site").display().to_string();
    sandbox.apr(&format!("page s3://bucket/model --site {site}")).fails(4, &["E003", "hf://"]);
    sandbox.apr(&format!("page absent.gguf --site {site}")).fails(3, &["E007", "absent.gguf"]);
    sandbox.apr("page --site absent").fails(4, &["E001", "page/main.js"]);
}

/// For a command with the page's files built in. The gate builds one with the files of
/// `fixtures/page`.
#[test]
fn a_program_without_a_page_folder_serves_its_built_in_files() {
    let sandbox = Sandbox::new();
    let version = Command::new(binary()).args(["version", "--json"]).output().expect("a process");
    let version: Value = serde_json::from_slice(&version.stdout).expect("a report");
    if !version["features"].as_array().expect("features").contains(&"page".into()) {
        assert!(std::env::var_os("APR_PAGE").is_none(), "the program lacks the page of APR_PAGE");
        eprintln!("skipped: the program has no files of the page");
        return;
    }
    let program = sandbox.path("apr");
    fs::copy(binary(), &program).expect("a copy");
    let page = {
        let mut command = Command::new(&program);
        command.arg("page");
        Page::served_by(command)
    };
    assert_eq!(page.report["site"], Value::Null);
    let site = std::env::var_os("APR_PAGE").unwrap_or("../../../target/web".into());
    let site = std::path::Path::new(&site);
    let built = fs::read(site.join("page/main.js")).expect("the built page");
    let path = format!("{}page/main.js", page.root);
    let (status, packed) = page.get(&path, "Accept-Encoding: gzip, deflate\r\n", &page.host);
    assert_eq!(status, "HTTP/1.1 200 OK");
    let unpacked = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("zlib");
    assert!(unpacked == built);
    assert_eq!(page.get(&path, "", &page.host).0, "HTTP/1.1 406 Not Acceptable");
    // Parts of the example are read.
    let path = format!("{}example/model.apr", page.root);
    let (status, bytes) = page.get(&path, "Range: bytes=0-3\r\n", &page.host);
    assert_eq!((status.as_str(), &*bytes), ("HTTP/1.1 206 Partial Content", &b"APR2"[..]));
}
