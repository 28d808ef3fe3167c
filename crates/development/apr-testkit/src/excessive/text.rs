//! Constructs of JSON, of what is compressed, and of arrays.
#![expect(clippy::cast_possible_truncation, reason = "what is packed here is small")]

use super::Construct;
use super::pickle::zip;

const fn tensors(name: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file: "model.safetensors", make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    tensors("safetensors: tensors without elements", empty_tensors),
    tensors("safetensors: tensors", one_byte_tensors),
    tensors("safetensors: tensors of one name", tensors_of_one_name),
    tensors("safetensors: dimensions", dimensions),
    tensors("safetensors: metadata", metadata),
    tensors("safetensors: lists in each other", nested_lists),
    tensors("safetensors: paths of names", deep_names),
    tensors("safetensors: layers", layers),
    Construct { name: "npz: arrays", file: "model.npz", make: arrays },
    Construct { name: "npy: dimensions", file: "model.npy", make: npy_dimensions },
    Construct { name: "npy: parentheses", file: "model.npy", make: npy_parentheses },
    Construct { name: "npy: spaces", file: "model.npy", make: npy_spaces },
];

fn file(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

fn joined(count: usize, piece: impl Fn(usize) -> String) -> String {
    (0..count).map(piece).collect::<Vec<_>>().join(",")
}

fn entry(name: &str, shape: &str, start: usize, end: usize) -> String {
    format!(r#""{name}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[{start},{end}]}}"#)
}

fn empty_tensors(count: usize) -> Vec<u8> {
    file(&format!("{{{}}}", joined(count, |at| entry(&format!("w{at}"), "0", 0, 0))), 0)
}

fn one_byte_tensors(count: usize) -> Vec<u8> {
    let entries = joined(count, |at| entry(&format!("w{at}"), "1", at, at + 1));
    file(&format!("{{{entries}}}"), count)
}

fn tensors_of_one_name(count: usize) -> Vec<u8> {
    file(&format!("{{{}}}", joined(count, |_| entry("w", "0", 0, 0))), 0)
}

fn dimensions(count: usize) -> Vec<u8> {
    file(&format!("{{{}}}", entry("w", &joined(count, |_| "1".into()), 0, 1)), 1)
}

fn metadata(count: usize) -> Vec<u8> {
    let pairs = joined(count, |at| format!(r#""k{at}":"v""#));
    file(&format!(r#"{{"__metadata__":{{{pairs}}},{}}}"#, entry("w", "1", 0, 1)), 1)
}

fn nested_lists(count: usize) -> Vec<u8> {
    let lists = ["[".repeat(count), "]".repeat(count)].concat();
    file(&format!(r#"{{"w":{lists}}}"#), 0)
}

fn deep_names(count: usize) -> Vec<u8> {
    let name = "a.".repeat(count);
    let entries = joined(count.min(200), |at| entry(&format!("{name}{at}"), "1", at, at + 1));
    file(&format!("{{{entries}}}"), count.min(200))
}

fn layers(count: usize) -> Vec<u8> {
    let name = |at| format!("model.layers.{at}.self_attn.q_proj.weight");
    let entries = joined(count, |at| entry(&name(at), "1", at, at + 1));
    file(&format!("{{{entries}}}"), count)
}

fn npy(header: &str) -> Vec<u8> {
    let len = (header.len() as u32).to_le_bytes();
    [b"\x93NUMPY\x02\0", &len[..], header.as_bytes(), &[0; 8]].concat()
}

fn arrays(count: usize) -> Vec<u8> {
    let array = npy("{'descr':'<f4','fortran_order':False,'shape':(2,),}\n");
    let names: Vec<String> = (0..count.min(60_000)).map(|at| format!("a{at}.npy")).collect();
    let entries: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), array.as_slice())).collect();
    zip(&entries)
}

fn npy_dimensions(count: usize) -> Vec<u8> {
    let shape = "1,".repeat(count);
    npy(&format!("{{'descr':'<f4','fortran_order':False,'shape':({shape}2),}}\n"))
}

fn npy_parentheses(count: usize) -> Vec<u8> {
    let shape = ["(".repeat(count), ")".repeat(count)].concat();
    npy(&format!("{{'descr':'<f4','fortran_order':False,'shape':{shape},}}\n"))
}

fn npy_spaces(count: usize) -> Vec<u8> {
    let spaces = " ".repeat(count);
    npy(&format!("{{'descr':'<f4','fortran_order':False,{spaces}'shape':(2,),}}\n"))
}
