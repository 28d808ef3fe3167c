//! What goes wrong with hubs and servers, and what is said of it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use apr_testkit::hub::{Fault, TestHub};

use crate::hub::{at, hub_with_llama};
use crate::support::{Sandbox, small_safetensors};

fn status(code: u16) -> Fault {
    Fault::Status(code, Vec::new())
}

#[test]
fn qa_91_a_remote_import_fails_well_without_a_network() {
    let sandbox = Sandbox::new();
    for (endpoint, said) in
        [("http://127.0.0.1:9", "no connection to"), ("https://hub.invalid", "no network")]
    {
        let run = sandbox.with_env(
            &[("HF_ENDPOINT", endpoint)],
            "import hf://openai/whisper-tiny -o whisper.apr",
        );
        run.fails(1, &["E007", "hf://openai/whisper-tiny", said]);
        assert!(!sandbox.path("whisper.apr").exists());
    }
    let run = sandbox
        .with_env(&[("HF_ENDPOINT", "https://hub.invalid")], "import hf://a/b -o m.apr --json");
    let error = &run.fails(1, &[]).json()["error"];
    assert_eq!((&error["code"], &error["file"]), (&"E007".into(), &"hf://a/b".into()), "{error}");
}

#[test]
fn a_missing_file_is_reported_with_similar_names() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.branch("tiny/llama", "v1.0");
    for (location, parts) in [
        ("hf://tiny/lama", &["no repository tiny/lama", "did you mean tiny/llama?"][..]),
        ("hf://tiny", &["no repository tiny", "tiny/llama"]),
        (
            "hf://nobody/nothing",
            &["no repository nobody/nothing", "no token used: set HF_TOKEN, or run `hf auth login"],
        ),
        ("hf://tiny/llama@v1.1", &["unknown revision 'v1.1'", "did you mean v1.0"]),
        (
            "hf://tiny/llama/model.safetensor",
            &["file 'model.safetensor' not found", "did you mean model.safetensors"],
        ),
    ] {
        at(&hub, &sandbox, &format!("inspect {location}")).fails(3, &["E007"]).says(parts);
    }
    sandbox
        .apr(&format!("inspect {}/nothing.gguf", hub.url()))
        .fails(3, &["E007", "/nothing.gguf", "file not found on the server (404)"]);
}

#[test]
fn a_private_repository_reports_the_source_of_the_token_and_never_the_token() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.make_private("tiny/llama", "hf_right_secret");
    let with = |token: &str| {
        sandbox.with_env(
            &[("HF_ENDPOINT", hub.url()), ("HF_TOKEN", token)],
            "import hf://tiny/llama -o m.apr -f -v",
        )
    };
    with("hf_right_secret").ok();
    let run = with("hf_wrong_secret").fails(3, &["private", "used the token of HF_TOKEN"]);
    assert!(!run.to_string().contains("secret"), "{run}");
    at(&hub, &sandbox, "inspect hf://tiny/llama")
        .fails(3, &["no token used: set HF_TOKEN, or run `hf auth login"]);
    let imported = sandbox.read("m.apr");
    assert!(!imported.windows(6).any(|bytes| bytes == b"secret"));
    for file in sandbox.files() {
        let bytes = sandbox.read(&file);
        assert!(!bytes.windows(6).any(|bytes| bytes == b"secret"), "{file}");
    }
}

#[test]
fn a_token_goes_to_the_hub_alone() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    sandbox.write("token", "hf_from_a_file\n");
    let path = sandbox.path("token");
    let variables = [("HF_ENDPOINT", hub.url()), ("HF_TOKEN_PATH", path.to_str().expect("UTF-8"))];
    sandbox.with_env(&variables, "download hf://tiny/llama").ok();
    for request in hub.requests() {
        let expected = (!request.at_store).then_some("Bearer hf_from_a_file");
        assert_eq!(request.authorization.as_deref(), expected, "{request:?}");
    }
    // Other servers get none at all.
    hub.put_file("/m.safetensors", small_safetensors());
    let elsewhere = TestHub::start();
    let variables = [("HF_ENDPOINT", elsewhere.url()), ("HF_TOKEN", "hf_secret")];
    sandbox.with_env(&variables, &format!("inspect {}/m.safetensors", hub.url())).ok();
    assert!(hub.requests().iter().all(|request| request.authorization.is_none()));
}

#[test]
fn a_gated_repository_reports_where_to_request_access() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.make_gated("tiny/llama");
    let page = format!("{}/tiny/llama", hub.url());
    at(&hub, &sandbox, "inspect hf://tiny/llama")
        .fails(1, &["E007", "is restricted", "request it at", &page]);
}

#[test]
fn a_failing_server_is_retried_and_then_given_up() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.fault("/api/models", status(503), 0, 2);
    hub.fault("/store/", status(500), 0, 1);
    at(&hub, &sandbox, "inspect hf://tiny/llama").ok();
    hub.fault("/api/models", status(502), 0, 100);
    at(&hub, &sandbox, "inspect hf://tiny/llama")
        .fails(1, &["E007", "server error (502", "tried 5 times"]);
}

#[test]
fn the_retry_after_time_of_a_server_is_respected_within_bounds() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let later =
        |seconds: &str| Fault::Status(429, vec![("Retry-After".to_owned(), seconds.to_owned())]);
    hub.fault("/api/models", later("0"), 0, 3);
    at(&hub, &sandbox, "inspect hf://tiny/llama").ok();
    hub.fault("/api/models", later("86400"), 0, 100);
    at(&hub, &sandbox, "inspect hf://tiny/llama")
        .fails(1, &["too many requests (429)", "retry in 86400"]);
}

#[test]
fn cut_connections_are_made_again() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.cut_every(2);
    at(&hub, &sandbox, "validate hf://tiny/llama").ok();
}

#[test]
fn a_silent_connection_is_given_up() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_file("/m.safetensors", small_safetensors());
    hub.fault("/m.safetensors", Fault::Cut(0), 0, 100);
    let url = format!("{}/m.safetensors", hub.url());
    sandbox.apr(&format!("inspect {url}")).fails(1, &["E007", "connection was cut"]);
    hub.heal();
    hub.fault("/m.safetensors", Fault::Stall(10, Duration::from_secs(5)), 0, 1);
    sandbox.with_env(&[("HF_HUB_DOWNLOAD_TIMEOUT", "1")], &format!("inspect {url}")).ok();
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.fault("/store/", Fault::OtherEtag, 1, 100);
    at(&hub, &sandbox, "validate hf://tiny/llama")
        .fails(1, &["E007", "changed on the server", "try again"]);
}

#[test]
fn a_file_whose_length_differs_from_the_hub_is_an_error() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    hub.fault("/store/", Fault::Longer(5), 0, 100);
    at(&hub, &sandbox, "inspect hf://tiny/llama")
        .fails(5, &["E004", "model.safetensors", "the server states"]);
    hub.heal();
    hub.put_file("/m.safetensors", small_safetensors());
    hub.fault("/m.safetensors", Fault::Longer(5), 1, 100);
    let url = format!("{}/m.safetensors", hub.url());
    sandbox.apr(&format!("validate {url}")).says(&[]);
}

#[test]
fn redirects_are_bounded_and_never_lead_to_another_scheme() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    let url = format!("{}/m.safetensors", hub.url());
    hub.fault("/m.safetensors", Fault::Redirect(url.clone()), 0, 100);
    sandbox.apr(&format!("inspect {url}")).fails(1, &["E007", "redirects more than"]);
    assert_eq!(hub.requests().len(), 9);
    hub.heal();
    for (target, said) in [
        ("file:///etc/passwd", "the server redirects to an invalid URL"),
        ("ftp://127.0.0.1/x", "unsupported protocol: expected https or http"),
        ("http://example.com/x", "http is not encrypted"),
    ] {
        hub.fault("/m.safetensors", Fault::Redirect(target.to_owned()), 0, 1);
        sandbox.apr(&format!("inspect {url}")).fails(1, &[said]);
    }
}

#[test]
fn a_public_server_leads_to_no_private_address() {
    // The proxy is on this machine, the server that it stands for is not.
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_file("/m.safetensors", small_safetensors());
    let through = |line: &str| {
        sandbox.with_env(&[("HTTP_PROXY", hub.url()), ("http_proxy", hub.url())], line)
    };
    through("inspect http://example.com/m.safetensors --insecure").ok().says(&["Tensors:     5"]);
    for target in [
        "http://169.254.169.254/latest",
        "http://10.0.0.1/x",
        "http://[::1]:1/x",
        "http://localhost/x",
    ] {
        hub.fault("/m.safetensors", Fault::Redirect(target.to_owned()), 0, 1);
        let run = through("inspect http://example.com/m.safetensors --insecure");
        run.fails(1, &["E007", "a redirect leads to a private address"]);
    }
}

#[test]
fn a_server_of_a_private_network_leads_to_no_address_of_the_link() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    hub.put_file("/m.safetensors", small_safetensors());
    let url = format!("{}/m.safetensors", hub.url());
    for target in [
        "http://169.254.169.254/latest/meta-data",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/x",
        "https://[::ffff:169.254.169.254]/x",
        "https://[fd00:ec2::254]/x",
    ] {
        hub.fault("/m.safetensors", Fault::Redirect(target.to_owned()), 0, 1);
        let run = sandbox.apr(&format!("inspect {url} --insecure"));
        run.fails(1, &["E007", "a redirect leads to a private address"]);
    }
}

#[test]
fn an_answer_of_a_hub_that_makes_no_sense_is_an_error() {
    let (hub, sandbox) = (TestHub::start(), Sandbox::new());
    for (body, said) in [
        ("", "invalid response of the hub"),
        ("<html>Sign in</html>", "it is a web page"),
        ("[]", "names no commit"),
        ("{\"sha\":\"../../x\",\"siblings\":[]}", "names no commit"),
        ("{\"sha\":\"0123456789012345678901234567890123456789\"}", "lists no files"),
    ] {
        hub.put_file("/api/models/a/b/revision/main", body);
        at(&hub, &sandbox, "inspect hf://a/b").fails(4, &["E001", "hf://a/b", said]);
    }
}

#[test]
fn qa_93_the_sha256_of_a_remote_source_is_checked() {
    let (hub, sandbox) = (hub_with_llama(), Sandbox::new());
    let wrong = "0".repeat(64);
    let run = at(
        &hub,
        &sandbox,
        &format!("import hf://tiny/llama/model.safetensors -o m.apr --sha256 {wrong}"),
    );
    run.fails(5, &["E004", "its SHA-256 is", &wrong]);
    let bytes = std::fs::read(apr_testkit::locate::fixture("tiny-llama/model.safetensors"))
        .expect("a fixture");
    let right = apr_testkit::hub::sha256(&bytes);
    at(&hub, &sandbox, &format!("import hf://tiny/llama -o m.apr --sha256 {right}")).ok();
}

/// A store reports that its list continues, and never sends an object.
#[test]
fn a_list_without_objects_ends() {
    const PAGE: &str = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x\
        </NextContinuationToken></ListBucketResult>";

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = BufReader::new(&mut stream).lines().map_while(Result::ok);
            request.find(String::is_empty);
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}", PAGE.len());
            let _ = write!(stream, "{head}\r\n\r\n{PAGE}");
        }
    });

    let keys = [("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let env = [&[("AWS_ENDPOINT_URL", endpoint.as_str())], &keys[..]].concat();
    Sandbox::new()
        .with_env(&env, "inspect s3://models/llama/")
        .fails(4, &["E001", "page after page without an object"]);
}
