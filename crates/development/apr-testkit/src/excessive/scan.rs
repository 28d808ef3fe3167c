//! Constructs of what only a scanner reads: templates, settings, documents, code, archives.

use super::Construct;
use super::pickle::zip;
use super::protobuf::field;

const fn of(name: &'static str, file: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file, make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    of("jinja: statements", "model.jinja", |n| "{% x %}".repeat(n).into()),
    of("jinja: expressions", "model.jinja", |n| "{{ x }}".repeat(n).into()),
    of("jinja: marks that end nowhere", "model.jinja", |n| "{{ '".repeat(n).into()),
    of("jinja: texts in one expression", "model.jinja", |n| within("'_' ", n)),
    of("jinja: private names", "model.jinja", |n| within("x.__class__ ", n)),
    of("jinja: escapes", "model.jinja", |n| within(r"'\137\x5f\N{LOW LINE}' ", n)),
    of("jinja: bars", "model.jinja", |n| within("| ", n)),
    of("json: lists in each other", "model.json", |n| {
        format!("{}{}", "[".repeat(n), "]".repeat(n)).into()
    }),
    of("json: objects in each other", "model.json", |n| {
        format!("{}1{}", r#"{"a":"#.repeat(n), "}".repeat(n)).into()
    }),
    of("json: templates", "model.json", |n| {
        format!("[{}1]", r#"{"chat_template":"{{ x.__class__ }}"},"#.repeat(n)).into()
    }),
    of("json: layers of Keras", "model.json", |n| {
        format!("[{}1]", r#"{"class_name":"Lambda","config":{"a":1}},"#.repeat(n)).into()
    }),
    of("yaml: tags", "model.yaml", |n| "- !!python/object/apply:os.system [a]\n".repeat(n).into()),
    of("yaml: directives", "model.yaml", |n| {
        format!("{}--- !a!b\n", "%TAG !a! tag:yaml.org,2002:\n".repeat(n)).into()
    }),
    of("yaml: aliases", "model.yaml", aliases),
    of("yaml: flows in each other", "model.yaml", |n| "[".repeat(n).into()),
    of("yaml: quotes", "model.yaml", |n| "\"a # \" ".repeat(n).into()),
    of("xml: entities", "model.pmml", |n| {
        let entities = r#"<!ENTITY a "b">"#.repeat(n);
        format!(r#"<?xml version="1.0"?><!DOCTYPE p [{entities}]><PMML/>"#).into()
    }),
    of("xml: types", "model.pmml", |n| {
        format!(r#"<?xml version="1.0"?>{}"#, "<!DOCTYPE p ".repeat(n)).into()
    }),
    of("python: imports", "modeling_model.py", |n| "import os\n".repeat(n).into()),
    of("python: parentheses", "modeling_model.py", |n| "x((".repeat(n).into()),
    of("python: strings", "modeling_model.py", |n| "'''a".repeat(n).into()),
    of("zip: entries", "model.zip", entries),
    of("zip: archives in each other", "model.zip", |n| {
        (0..n.min(4000)).fold(b"N.".to_vec(), |inner, _| zip(&[("a.zip", &inner)]))
    }),
    of("torchscript: code", "model.pt", |n| {
        script(&format!("def forward(self, x):\n{}", "  x = torch.relu(x)\n".repeat(n)))
    }),
    of("torchscript: parentheses", "model.pt", |n| {
        script(&format!("def forward(self, x):\n  return {}", "f(".repeat(n)))
    }),
    of("tensorflow: nodes", "saved_model.pb", |n| graph(&node("MatMul").repeat(n))),
    of("tensorflow: nodes that write", "saved_model.pb", |n| graph(&node("WriteFile").repeat(n))),
    of("tensorflow: messages in each other", "saved_model.pb", |n| {
        graph(&(0..n.min(4000)).fold(Vec::new(), |inner, _| field(2, inner)))
    }),
];

fn within(piece: &str, count: usize) -> Vec<u8> {
    format!("{{{{ {} }}}}", piece.repeat(count)).into()
}

/// Lists that name the one before two times.
fn aliases(count: usize) -> Vec<u8> {
    let line = |at: usize| match at {
        0 => "a0: &a0 [x, x]\n".to_owned(),
        _ => format!("a{at}: &a{at} [*a{before}, *a{before}]\n", before = at - 1),
    };
    (0..count).flat_map(|at| line(at).into_bytes()).collect()
}

fn entries(count: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count.min(60_000)).map(|at| format!("{at}.pkl")).collect();
    let entries: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), &b"N."[..])).collect();
    zip(&entries)
}

fn script(code: &str) -> Vec<u8> {
    zip(&[
        ("m/data.pkl", b"\x80\x02}."),
        ("m/constants.pkl", b"\x80\x02)."),
        ("m/code/net.py", code.as_bytes()),
    ])
}

fn node(op: &str) -> Vec<u8> {
    field(1, [field(1, "n"), field(2, op)].concat())
}

fn graph(nodes: &[u8]) -> Vec<u8> {
    [&b"\x08\x01"[..], &field(2, field(2, nodes))].concat()
}
