//! Advice about keys, sealed files, shards, changes, and jobs in parts.

use super::{Advice, followed, with_llama};

/// Keys, signatures, shards, changes.
pub(super) const SEALS: &[Advice] = &[
    (
        "apr sign m.apr",
        2,
        "pass --key FILE (`apr keygen` generates one)",
        "apr keygen -o signer; apr sign m.apr --key signer; apr verify m.apr \
         --trusted signer.pub",
    ),
    (
        "apr license issue m.apr --licensee Ann",
        2,
        "pass --key FILE (`apr keygen` generates one)",
        "apr license issue m.apr --licensee Ann --key signer",
    ),
    (
        "apr keygen -o reader --for encryption; apr sign m.apr --key reader",
        4,
        "signing needs one of `apr keygen --for signing`",
        "apr keygen --for signing -o signer2; apr sign m.apr --key signer2",
    ),
    (
        "apr encrypt m.apr -o e.apr --recipient signer.pub",
        4,
        "encryption needs one of `apr keygen --for encryption`",
        "apr keygen --for encryption -o reader2; \
         apr encrypt m.apr -o e.apr --recipient reader2.pub",
    ),
    (
        "apr convert e.apr -o d.safetensors",
        4,
        "pass --key FILE or --password-file FILE, or set APR_PASSWORD",
        "apr convert e.apr -o d.safetensors --key reader2",
    ),
    (
        "apr encrypt m.apr -o w.apr",
        2,
        "missing password: pass --password-file FILE or set APR_PASSWORD",
        "apr encrypt m.apr -o w.apr --password-file word; \
         APR_PASSWORD=secret apr encrypt m.apr -o w2.apr",
    ),
    (
        "apr tensors w.apr --stats",
        4,
        "pass --key FILE or --password-file FILE, or set APR_PASSWORD",
        "apr tensors w.apr --stats --password-file word; \
         APR_PASSWORD=secret apr tensors w2.apr --stats",
    ),
    (
        "apr encrypt e.apr -o f.apr --recipient reader.pub",
        1,
        "`apr decrypt` it first",
        "apr decrypt e.apr -o f0.apr --key reader2; \
         apr encrypt f0.apr -o f.apr --recipient reader.pub",
    ),
    (
        "apr sign llama/model.safetensors --key signer",
        4,
        "`apr convert` it first",
        "apr convert llama/model.safetensors -o c.apr; apr sign c.apr --key signer",
    ),
    (
        "apr sign s.apr --key signer -o s2.apr",
        2,
        "a manifest is signed in place, next to its shards; remove --output",
        "apr sign s.apr --key signer; apr verify s.apr --trusted signer.pub",
    ),
    (
        "apr edit s.apr --set a=b",
        4,
        "`apr join` joins it into one file",
        "apr join s.apr -o j.apr; apr edit j.apr --set a=b",
    ),
    (
        "apr edit g-00001-of-*.gguf --set a=b",
        1,
        "`apr join` joins them",
        "apr join g-00001-of-*.gguf -o j.gguf; apr edit j.gguf --set general.name=b",
    ),
    (
        "apr join g-00001-of-*.gguf -o j2.apr",
        2,
        "`apr convert` writes other formats",
        "apr convert g-00001-of-*.gguf -o j2.apr",
    ),
    (
        "apr join m.apr -o j3.apr",
        2,
        "`apr convert` writes one .apr file from any model",
        "apr convert m.apr -o j3.apr",
    ),
    (
        "apr shard e.apr --size 100KB -o t.apr --key reader2",
        1,
        "`apr decrypt` it first, or convert it with --shard-size and --recipient or \
         --encrypt",
        "apr decrypt e.apr -o plain.apr --key reader2; \
         apr shard plain.apr --size 100KB -o t.apr; \
         apr convert e.apr --key reader2 -o u.apr --shard-size 100KB --recipient \
         reader2.pub; APR_PASSWORD=secret apr convert w2.apr -o v.apr --shard-size \
         100KB --encrypt",
    ),
    (
        "apr edit m.apr",
        2,
        "pass --set, --unset, --rename, --drop, --keep, --add or --chat-template",
        "cp m.apr n.apr; apr edit n.apr --set x=y; apr edit n.apr --unset x; \
         apr edit n.apr --rename lm_head.weight=n",
    ),
    (
        "apr edit j3.apr --drop '*layers.0*'",
        2,
        "-o PATH writes a copy without them, --force changes the file",
        "apr edit j3.apr --drop '*layers.0*' -o less.apr; \
         apr edit j3.apr --drop '*layers.0*' --force",
    ),
    (
        "apr watermark detect m.apr",
        2,
        "--key FILE",
        "apr watermark detect m.apr --key signer || test $? = 5",
    ),
    (
        "mkdir -p home/.cache/huggingface/hub/models--o--m/refs; apr cache clear o/m",
        1,
        "--all-hub removes it nevertheless",
        "apr cache clear o/m --all-hub --yes; ! test -e home/.cache/huggingface/hub/models--o--m",
    ),
    (
        "mkdir -p home/.cache/huggingface/hub/models--o--m/refs; apr cache clear o/m --all-hub",
        2,
        "answer it with --yes",
        "apr cache clear o/m --all-hub --yes; ! test -e home/.cache/huggingface/hub/models--o--m",
    ),
    (
        "mkdir -p home/.cache/huggingface/hub/models--o--m/refs; apr cache clear",
        0,
        "kept, because another program fetched it (--all-hub): hf://o/m",
        "apr cache clear --all-hub --yes; ! test -e home/.cache/huggingface/hub/models--o--m",
    ),
    ("apr cache clear nothing", 1, "`apr cache info` lists the contents", "apr cache info"),
    (
        "apr convert m.apr -o p9.apr --recipient reader.pub --password-file word",
        0,
        "only recipients can decrypt the output; add --encrypt to also use the password",
        "apr convert m.apr -o p10.apr --recipient reader.pub --password-file word --encrypt; \
         apr decrypt p10.apr -o p11.apr --password-file word; \
         apr decrypt p10.apr -o p12.apr --key reader",
    ),
    (
        "apr import llama -o l.apr; apr sign l.apr --key signer; \
         apr license issue l.apr --licensee Ann --key signer2",
        1,
        "--force drops them",
        "apr license issue l.apr --licensee Ann --key signer2 --force; \
         apr sign l.apr --key signer; apr verify l.apr --trusted signer.pub",
    ),
    ("apr inspect l.apr", 0, "(`apr verify` checks it)", "apr verify l.apr --trusted signer.pub"),
    (
        "apr edit e.apr --rename lm_head.weight=x --key reader2",
        1,
        "`apr decrypt` it first",
        "apr decrypt e.apr -o e1.apr --key reader2; apr edit e1.apr --rename lm_head.weight=x",
    ),
    (
        "apr sign s-00001-of-*.apr --key signer",
        1,
        "-o writes a copy, and `apr sign` signs the manifest",
        "apr sign s-00001-of-*.apr --key signer -o copy.apr; apr sign s.apr --key signer",
    ),
    (
        "apr convert $FIXTURES/run/tiny-whisper -o o.apr --format apr1; apr edit o.apr --set a=b",
        4,
        "this is an older APR file; `apr upgrade` it first",
        "apr upgrade o.apr new.apr; apr edit new.apr --set a=b",
    ),
    (
        "cp l.apr dirty.apr; echo more >> dirty.apr; apr verify dirty.apr --trusted signer.pub",
        5,
        "the signature does not cover these bytes; `apr convert` writes the model without them",
        "apr convert dirty.apr -o clean.apr; apr sign clean.apr --key signer; \
         apr verify clean.apr --trusted signer.pub",
    ),
    (
        "cp m.apr bad.apr; printf 'x%.0s' $(seq 40) | \
         dd of=bad.apr bs=1 seek=400000 conv=notrunc 2> /dev/null; apr diff m.apr bad.apr",
        0,
        "equal by digest, not read; --read compares the bytes",
        "apr diff m.apr bad.apr --read | grep -q differ",
    ),
    (
        "apr diff m.apr bad.apr --read",
        0,
        "`apr validate` finds the damaged file",
        "apr validate m.apr; ! apr validate bad.apr",
    ),
];

/// Advice about jobs in parts.
pub(super) const JOBS: &[Advice] = &[
    (
        "apr plan --parts 2 -o p.json convert m.apr -o p.apr --threads 2",
        2,
        "pass it to `apr plan` before the job, and to `apr run-part`",
        "apr plan --parts 2 -o p.json --threads 2 convert m.apr -o p.apr; \
         apr run-part p.json 0 --threads 2; apr run-part p.json 1 --threads 2; \
         apr finish p.json",
    ),
    (
        "apr plan --parts 2 -o q.json convert m.apr -o q.apr --dry-run",
        2,
        "`apr plan` writes only the plan",
        "apr plan --parts 2 -o q.json convert m.apr -o q.apr; test ! -e q.apr",
    ),
    (
        "apr plan --parts 2 -o g.json convert m.apr -o g.gguf",
        2,
        "pass an output that ends in .apr, and `apr convert` the finished model",
        "apr plan --parts 2 -o g.json convert m.apr -o g.apr; apr run-part g.json 0; \
         apr run-part g.json 1; apr finish g.json; apr convert g.apr -o g.gguf",
    ),
    (
        "apr plan --parts 2 -o v.json validate m.apr --sarif v.sarif",
        2,
        "`apr finish` prints the report, with --json as JSON",
        "apr plan --parts 2 -o v.json validate m.apr; apr run-part v.json 0; \
         apr run-part v.json 1; apr finish v.json | grep -q pass; \
         apr finish v.json --json | grep -q '{'",
    ),
    (
        "apr plan --parts 2 -o s.json convert m.apr -o s.apr --sign signer",
        2,
        "sign the manifest with `apr sign` after `apr finish`",
        "apr plan --parts 2 -o s.json convert m.apr -o s.apr; apr run-part s.json 0; \
         apr run-part s.json 1; apr finish s.json; apr sign s.apr --key signer",
    ),
    (
        "apr plan --parts 2 -o w.json validate m.apr --source",
        2,
        "run `apr validate --source` for that",
        // Nothing else than that the model does not say where it comes from.
        "apr validate m.apr --source | grep -q Source",
    ),
    (
        "apr plan -o w.json --max-part 1MB validate m.apr --parts 2",
        2,
        "write options of `apr plan` before the job",
        "apr plan -o w.json --parts 2 validate m.apr",
    ),
];

#[test]
fn advice_about_sealed_files_helps() {
    let sandbox = with_llama();
    sandbox.write("word", "secret\n");
    sandbox.apr("shard m.apr --size 100KB -o s.apr").ok();
    sandbox.apr("convert m.apr -o g.gguf --shard-size 100KB").ok();
    followed(&sandbox, SEALS);
}

#[test]
fn advice_about_jobs_in_parts_helps() {
    let sandbox = with_llama();
    sandbox.apr("keygen -o signer").ok();
    followed(&sandbox, JOBS);
}
