"""Hugging Face's Python client and a store that speaks S3, against apr: `hub_check.py APR HUB MODEL`.

APR is the command, HUB the example `hub` of apr-testkit, which serves MODEL, a folder. The client and apr get the same
server and the same cache, in both orders; then apr reads the same model from moto's S3.
"""

import contextlib
import hashlib
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

APR, HUB, MODEL = sys.argv[1:4]
REPO = "tiny/llama"


class Hub:
    """The test hub, which counts what it sends."""

    def __init__(self, *settings):
        self.process = subprocess.Popen(
            [HUB, f"{REPO}={MODEL}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.url = self.process.stdout.readline().strip()
        for setting in settings:
            self.process.stdin.write(setting + "\n")

    def count(self):
        """Requests, bytes, and bytes of the store, since it was asked last."""
        self.process.stdin.write("count\n")
        return [int(word) for word in self.process.stdout.readline().split()]


def apr(home, hub, *args, code=0, **env):
    full = {"PATH": os.environ["PATH"], "HOME": home, "HF_ENDPOINT": hub.url, **env}
    done = subprocess.run([APR, *args, "--json"], env=full, capture_output=True, text=True)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout)


def client(home, hub, script):
    """Runs Hugging Face's client, whose settings are read when it is imported."""
    full = {"PATH": os.environ["PATH"], "HOME": home, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=full, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DOWNLOAD = f"from huggingface_hub import snapshot_download; print(snapshot_download('{REPO}'))"
OFFLINE = (
    "from huggingface_hub import snapshot_download, hf_hub_download, scan_cache_dir\n"
    f"print(hf_hub_download('{REPO}', 'model.safetensors', local_files_only=True))\n"
    "found = scan_cache_dir()\n"
    "assert not found.warnings, found.warnings\n"
    "print(sum(repo.size_on_disk for repo in found.repos))\n"
)


def size(name):
    return (pathlib.Path(MODEL) / name).stat().st_size


def what_apr_fetched_is_a_hit_of_the_client(hub):
    with tempfile.TemporaryDirectory() as home:
        report = apr(home, hub, "download", f"hf://{REPO}", "--all")
        assert report["fetched"] == report["bytes"] > size("model.safetensors")
        hub.count()
        path, total = client(home, hub, OFFLINE).splitlines()
        assert hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() == pathlib.Path(path).resolve().name
        assert int(total) == report["bytes"], (total, report["bytes"])
        folder = client(home, hub, DOWNLOAD)
        assert hub.count()[2] == 0, "the client fetched weights that apr had fetched"
        assert sorted(os.listdir(folder)) == sorted(os.listdir(MODEL))


def what_the_client_fetched_is_a_hit_of_apr(hub):
    with tempfile.TemporaryDirectory() as home:
        client(home, hub, DOWNLOAD)
        hub.count()
        report = apr(home, hub, "download", f"hf://{REPO}", "--all")
        assert report["fetched"] == 0, report
        assert apr(home, hub, "validate", f"hf://{REPO}")["valid"]
        assert hub.count()[2] == 0, "apr fetched weights that the client had fetched"
        assert apr(home, hub, "inspect", f"hf://{REPO}", "--offline")["tensor_count"] == 21
        assert apr(home, hub, "cache", "verify")["valid"]


def both_at_once_fetch_the_weights_once(hub):
    with tempfile.TemporaryDirectory() as home:
        hub.count()
        apr(home, hub, "download", f"hf://{REPO}", "--all")
        once = hub.count()[2]
    with tempfile.TemporaryDirectory() as home:
        python = threading.Thread(target=client, args=(home, hub, DOWNLOAD))
        python.start()
        apr(home, hub, "download", f"hf://{REPO}", "--all")
        python.join()
        stored = hub.count()[2]
        assert stored == once, f"{stored} bytes of weights were fetched, and not {once}"


def a_mirror_that_lists_no_digests_is_shared_too(_):
    hub = Hub("names")
    with tempfile.TemporaryDirectory() as home:
        report = apr(home, hub, "download", f"hf://{REPO}", "--all")
        assert report["fetched"] == report["bytes"], report
        hub.count()
        path, total = client(home, hub, OFFLINE).splitlines()
        assert hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest() == pathlib.Path(path).resolve().name
        assert int(total) == report["bytes"], (total, report["bytes"])
        folder = client(home, hub, DOWNLOAD)
        assert hub.count()[2] == 0, "the client fetched weights that apr had fetched"
        mine = {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    with tempfile.TemporaryDirectory() as home:
        folder = client(home, hub, DOWNLOAD)
        assert mine == {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
        hub.count()
        assert apr(home, hub, "download", f"hf://{REPO}", "--all")["fetched"] == 0
        apr(home, hub, "import", f"hf://{REPO}", "-o", f"{home}/m.apr")
        assert hub.count()[2] == 0, "apr fetched weights that the client had fetched"
    hub.process.kill()


def a_branch_with_slashes_is_the_same_for_both(_):
    names = ["feature/branch", "refs/pr/1", "v1+2"]
    hub = Hub(*(f"branch {REPO} {name}" for name in names))
    script = f"from huggingface_hub import snapshot_download; print(snapshot_download('{REPO}', revision=%r%s))"
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            apr(home, hub, "download", f"hf://{REPO}@{name}/model.safetensors")
            apr(home, hub, "download", f"hf://{REPO}@{name}", "--all")
            client(home, hub, script % (name, ", local_files_only=True"))
        with tempfile.TemporaryDirectory() as home:
            client(home, hub, script % (name, ""))
            assert apr(home, hub, "inspect", f"hf://{REPO}@{name}", "--offline")["tensor_count"] == 21
            assert apr(home, hub, "download", f"hf://{REPO}@{name}", "--all")["fetched"] == 0
    hub.process.kill()


UPLOAD = (
    "from huggingface_hub import HfApi\n"
    "api = HfApi(token='hf_secret')\n"
    "api.create_repo('%s', private=True, exist_ok=True)\n"
    "print(api.upload_folder(repo_id='%s', folder_path='%s', commit_message='a').oid)\n"
)


def both_upload_the_same_files(_):
    """Whole, and in pieces: each client finds nothing to do in the repository that the other one made."""
    for settings in [(), ("pieces 100000",)]:
        hub = Hub(*settings)
        with tempfile.TemporaryDirectory() as home:
            token = {"HF_TOKEN": "hf_secret"}
            theirs = client(home, hub, UPLOAD % ("org/theirs", "org/theirs", MODEL))
            made = apr(home, hub, "upload", MODEL, "hf://org/ours", "--create", "private", **token)
            assert made["created"] and {file["state"] for file in made["files"]} <= {"sent", "stored"}, made
            ours = client(home, hub, UPLOAD % ("org/ours", "org/ours", MODEL))
            assert ours == made["commit"], "the client found something to commit"
            again = apr(home, hub, "upload", MODEL, "hf://org/theirs", **token)
            assert {file["state"] for file in again["files"]} == {"unchanged"} and "commit" not in again, again
            diff = apr(home, hub, "diff", f"hf://org/theirs@{theirs}", f"hf://org/ours@{ours}", **token)
            assert diff["same"], diff
            files = [apr(home, hub, "ls", f"hf://org/{name}", **token)["files"] for name in ("theirs", "ours")]
            assert files[0] == files[1] and len(files[0]) > len(os.listdir(MODEL)), files
        hub.process.kill()


def a_model_in_a_store_that_speaks_s3(hub):
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-1"}
    endpoint = f"http://{host}:{port}"
    s3 = boto3.client(
        "s3", endpoint_url=endpoint, aws_access_key_id="key", aws_secret_access_key="secret", region_name="eu-west-1"
    )
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for path in pathlib.Path(MODEL).iterdir():
        s3.upload_file(str(path), "models", f"a b/llama/{path.name}")
    with tempfile.TemporaryDirectory() as home:
        env = {"AWS_ENDPOINT_URL": endpoint, "APR_CACHE": f"{home}/cache", **keys}
        for location in ["s3://models/a b/llama", "s3://models/a b/llama/", "s3://models/a b/llama/model.safetensors"]:
            assert apr(home, hub, "inspect", location, **env)["tensor_count"] == 21, location
        assert apr(home, hub, "validate", "s3://models/a b/llama", **env)["valid"]
        assert apr(home, hub, "diff", "s3://models/a b/llama", MODEL, **env)["same"]
        report = apr(home, hub, "download", "s3://models/a b/llama", **env)
        assert report["fetched"] == report["bytes"] > 0
        assert apr(home, hub, "download", "s3://models/a b/llama", **env)["fetched"] == 0
        assert apr(home, hub, "inspect", "s3://models/a b/llama", "--offline", **env)["tensor_count"] == 21
        assert "no object" in apr(home, hub, "inspect", "s3://models/nothing", code=3, **env)["error"]["message"]
        error = apr(home, hub, "inspect", "s3://nobucket/x", code=3, **env)["error"]["message"]
        assert "nobucket" in error, error
        # A key is no path: what is between two slashes may be empty.
        for name, body in [("a//m.safetensors", "model.safetensors"), ("a/m.safetensors", "config.json")]:
            s3.upload_file(f"{MODEL}/{body}", "models", name)
        for _ in range(2):
            report = apr(home, hub, "download", "s3://models/a//m.safetensors", **env)
            assert report["bytes"] == size("model.safetensors"), report
            apr(home, hub, "download", "s3://models/a/m.safetensors", **env)
        assert apr(home, hub, "inspect", "s3://models/a//", **env)["tensor_count"] == 21
        # As AWS's own programs, by a profile.
        pathlib.Path(f"{home}/.aws").mkdir()
        pathlib.Path(f"{home}/.aws/credentials").write_text(
            f"[lab]\naws_access_key_id = key\naws_secret_access_key = secret\nendpoint_url = {endpoint}\n"
        )
        report = apr(home, hub, "inspect", "s3://models/a b/llama", AWS_PROFILE="lab", APR_CACHE=f"{home}/other")
        assert report["tensor_count"] == 21
        # One that does not exist is an error, whatever keys are there.
        for profile, code, there in [("lab", 0, True), ("lap", 4, False)]:
            script = "import boto3; boto3.client('s3', region_name='x')"
            own = {"PATH": os.environ["PATH"], "HOME": home, "AWS_PROFILE": profile, **keys}
            done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True)
            assert (done.returncode == 0) == there, done.stderr
            apr(home, hub, "inspect", "s3://models/a b/llama", code=code, AWS_PROFILE=profile, **env)
    server.stop()


def a_signature_is_that_of_aws(hub):
    import datetime
    import http.server
    import urllib.parse

    import botocore.auth
    import botocore.awsrequest
    import botocore.credentials

    asked = []

    class Recorder(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Host"]))
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    keys = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "se/cr+et", "AWS_SESSION_TOKEN": "to/k=en+"}
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as home:
        env = {"AWS_ENDPOINT_URL": endpoint, "APR_CACHE": f"{home}/cache", "AWS_REGION": "eu-west-1", **keys}
        apr(home, hub, "inspect", "s3://models/a b/größe+1/m~.gguf", code=3, **env)
    assert asked
    for path, host in asked:
        parts = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
        found, at = query["X-Amz-Signature"], query["X-Amz-Date"]
        own = "&".join(
            f"{key}={urllib.parse.quote(value, safe='-_.~')}" for key, value in query.items() if not key.startswith("X-Amz-")
        )
        request = botocore.awsrequest.AWSRequest("GET", f"http://{host}{parts.path}" + (f"?{own}" if own else ""))
        credentials = botocore.credentials.Credentials(*keys.values())
        signer = botocore.auth.S3SigV4QueryAuth(credentials, "s3", "eu-west-1", expires=int(query["X-Amz-Expires"]))
        time = datetime.datetime.strptime(at, "%Y%m%dT%H%M%SZ")
        # The signer takes the time from wherever its version asks for it.
        for name in ("get_current_datetime",):
            if hasattr(botocore.auth, name):
                setattr(botocore.auth, name, lambda *_, **__: time)
        signer.add_auth(request)
        signed = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(request.url).query))
        assert signed["X-Amz-Date"] == at, "the time could not be set"
        assert signed["X-Amz-Signature"] == found, path


@contextlib.contextmanager
def encrypted(handler):
    """A server with a certificate that it signed itself, on this machine: its URL, and the file with the certificate."""
    import datetime
    import http.server
    import ipaddress
    import ssl

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/server.pem"
        pem = serialization.Encoding.PEM
        plain = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        pathlib.Path(path).write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, *plain))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}", path
        server.shutdown()


def a_certificate_is_checked(hub):
    import functools
    import http.server

    # It sends no ranges either.
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=MODEL)
    with encrypted(handler) as (server, path), tempfile.TemporaryDirectory() as home:
        url = f"{server}/model.safetensors"
        error = apr(home, hub, "inspect", url, code=1)["error"]["message"]
        assert "TLS connection" in error and "UnknownIssuer" in error, error
        assert apr(home, hub, "inspect", url, SSL_CERT_FILE=path)["tensor_count"] == 21
        assert apr(home, hub, "diff", url, MODEL, SSL_CERT_FILE=path)["same"]
        for name in ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"]:
            script = f"import requests; requests.get({url!r}).raise_for_status()"
            own = {"PATH": os.environ["PATH"], name: path}
            done = subprocess.run([sys.executable, "-c", script], env=own, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert apr(home, hub, "inspect", url, **{name: path})["tensor_count"] == 21


def an_encrypted_local_server_leads_to_no_address_of_the_link(hub):
    import http.server

    targets = ["http://169.254.169.254/x", "https://169.254.169.254/x", "https://[fe80::1]/x", "https://[::ffff:169.254.1.1]/x"]

    class Leads(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", targets[int(self.path[1:])])
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

    with encrypted(Leads) as (server, path), tempfile.TemporaryDirectory() as home:
        for at, target in enumerate(targets):
            error = apr(home, hub, "inspect", f"{server}/{at}", "--insecure", code=1, SSL_CERT_FILE=path)["error"]["message"]
            assert "a redirect leads to a private address" in error, (target, error)


def main():
    hub = Hub()
    for check in [
        what_apr_fetched_is_a_hit_of_the_client,
        what_the_client_fetched_is_a_hit_of_apr,
        both_at_once_fetch_the_weights_once,
        a_mirror_that_lists_no_digests_is_shared_too,
        a_branch_with_slashes_is_the_same_for_both,
        both_upload_the_same_files,
        a_model_in_a_store_that_speaks_s3,
        a_signature_is_that_of_aws,
        a_certificate_is_checked,
        an_encrypted_local_server_leads_to_no_address_of_the_link,
    ]:
        check(hub)
        print(f"ok: {check.__name__.replace('_', ' ')}")
    hub.process.kill()


main()
