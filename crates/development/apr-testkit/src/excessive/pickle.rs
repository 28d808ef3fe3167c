//! Constructs of pickles, bare and in PyTorch's archives.
#![expect(clippy::cast_possible_truncation, reason = "what is packed here is small")]

use super::Construct;

const fn pickle(name: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file: "model.pkl", make }
}

const fn torch(name: &'static str, make: fn(usize) -> Vec<u8>) -> Construct {
    Construct { name, file: "model.pt", make }
}

/// All constructs of this module.
pub(super) const ALL: &[Construct] = &[
    pickle("pickle: numbers in a list", numbers),
    pickle("pickle: lists in each other", nested),
    pickle("pickle: pairs of what was before", pairs),
    pickle("pickle: a long decimal number", decimal),
    pickle("pickle: a long binary number", binary),
    pickle("pickle: pickles after each other", stops),
    pickle("pickle: imports", imports),
    pickle("pickle: calls", calls),
    pickle("pickle: calls of what was before", calls_of_calls),
    pickle("pickle: marks", marks),
    pickle("pickle: places in the memo", memo),
    pickle("pickle: an item set again and again", same_key),
    pickle("pickle: states that are built", builds),
    pickle("pickle: pickles in texts", pickles_in_texts),
    torch("torch: tensors", tensors),
    torch("torch: tensors of one storage", shared),
    torch("torch: a tensor that is one number many times", expanded),
    torch("torch: one tensor under many names", names),
    torch("torch: dictionaries within each other, two times", doubled),
    torch("torch: a long name around many tensors", long_names),
    torch("torch: a dictionary under many names", dictionaries),
];

const PROTOCOL: &[u8] = b"\x80\x02";

fn numbers(count: usize) -> Vec<u8> {
    [PROTOCOL, b"](", &b"K\x01".repeat(count), b"e."].concat()
}

fn nested(count: usize) -> Vec<u8> {
    [PROTOCOL, &b"]".repeat(count), &b"a".repeat(count - 1), b"."].concat()
}

fn pairs(count: usize) -> Vec<u8> {
    [PROTOCOL, b"K\x01", &b"2\x86".repeat(count), b"."].concat()
}

fn decimal(count: usize) -> Vec<u8> {
    [b"L", &b"7".repeat(count)[..], b"L\n."].concat()
}

fn binary(count: usize) -> Vec<u8> {
    [PROTOCOL, b"\x8b", &(count as u32).to_le_bytes(), &vec![7; count], b"."].concat()
}

fn stops(count: usize) -> Vec<u8> {
    b"\x80\x02N.".repeat(count)
}

fn each(count: usize, piece: impl Fn(usize) -> String) -> Vec<u8> {
    (0..count).flat_map(|at| piece(at).into_bytes()).collect()
}

fn imports(count: usize) -> Vec<u8> {
    [b"](", &each(count, |at| format!("cm{at}\nn\n"))[..], b"e."].concat()
}

fn calls(count: usize) -> Vec<u8> {
    [b"](", &b"ccollections\nOrderedDict\n)R".repeat(count)[..], b"e."].concat()
}

fn calls_of_calls(count: usize) -> Vec<u8> {
    [b"cm\nn\n", &b"2\x86R".repeat(count)[..], b"."].concat()
}

fn marks(count: usize) -> Vec<u8> {
    [&b"(".repeat(count)[..], &b"t".repeat(count), b"."].concat()
}

fn memo(count: usize) -> Vec<u8> {
    let puts: Vec<u8> =
        (0..count).flat_map(|at| [b"r", &(at as u32).to_le_bytes()[..]].concat()).collect();
    [PROTOCOL, b"]", &puts, b"."].concat()
}

fn same_key(count: usize) -> Vec<u8> {
    [PROTOCOL, b"}", &b"K\x01K\x02s".repeat(count), b"."].concat()
}

fn builds(count: usize) -> Vec<u8> {
    [b"ccollections\nOrderedDict\n)R", &b"}b".repeat(count)[..], b"."].concat()
}

fn pickles_in_texts(count: usize) -> Vec<u8> {
    let mut inner = b"\x80\x02N.".to_vec();
    while inner.len() < count {
        let twice = [b"B", &(inner.len() as u32).to_le_bytes()[..], &inner].concat();
        inner = [b"\x80\x03", &twice[..], &twice, b"\x86."].concat();
    }
    inner
}

/// An archive of PyTorch with this pickle and a storage of 64 bytes.
fn archive(pickle: &[u8]) -> Vec<u8> {
    let entries: [(&str, &[u8]); 3] =
        [("model/data.pkl", pickle), ("model/version", b"3\n"), ("model/data/0", &[0; 64])];
    zip(&entries)
}

/// A ZIP archive of stored entries.
pub(super) fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let fixed = [
            &[10_u8, 0, 0, 0, 0, 0, 0, 0, 33, 0][..],
            &crc32fast::hash(data).to_le_bytes(),
            &(data.len() as u32).to_le_bytes(),
            &(data.len() as u32).to_le_bytes(),
            &(name.len() as u16).to_le_bytes(),
            &[0, 0],
        ]
        .concat();
        let at = file.len() as u32;
        directory.extend([b"PK\x01\x02\x14\0", &fixed[..]].concat());
        directory.extend([&[0; 10][..], &at.to_le_bytes(), name.as_bytes()].concat());
        file.extend([b"PK\x03\x04", &fixed[..], name.as_bytes(), data].concat());
    }
    let at = file.len() as u32;
    let count = (entries.len() as u16).to_le_bytes();
    let end = [
        b"PK\x05\x06\0\0\0\0",
        &count[..],
        &count,
        &(directory.len() as u32).to_le_bytes(),
        &at.to_le_bytes(),
        &[0, 0],
    ];
    [file, directory, end.concat()].concat()
}

/// A tensor of `[sizes]` and `[strides]` in storage `0` of 16 floats.
fn tensor(sizes: &str, strides: &str) -> String {
    format!(
        "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\n\
         I16\ntQI0\n({sizes}t({strides}tI00\nccollections\nOrderedDict\n)RtR"
    )
}

fn state_dict(pairs: &[u8]) -> Vec<u8> {
    archive(&[b"}(", pairs, b"u."].concat())
}

fn tensors(count: usize) -> Vec<u8> {
    state_dict(&each(count, |at| format!("S'w{at}'\n{}", tensor("I16\n", "I1\n"))))
}

fn shared(count: usize) -> Vec<u8> {
    let small = tensor("I1\n", "I1\n");
    state_dict(&each(count, |at| format!("S'w{at}'\n{small}")))
}

fn expanded(count: usize) -> Vec<u8> {
    let sizes = format!("I{}\n", count as u64 * 1000);
    let padding = "K\x01p9\n0".repeat(count);
    state_dict(format!("{padding}S'w'\n{}", tensor(&sizes, "I0\n")).as_bytes())
}

fn names(count: usize) -> Vec<u8> {
    let first = format!("S'w'\n{}p7\n", tensor("I16\n", "I1\n"));
    let more = each(count, |at| format!("S'v{at}'\ng7\n"));
    state_dict(&[first.into_bytes(), more].concat())
}

fn doubled(count: usize) -> Vec<u8> {
    let first = format!("}}(S'w'\n{}up0\n0", tensor("I16\n", "I1\n"));
    let more = each(count, |at| format!("}}(S'a'\ng{at}\nS'b'\ng{at}\nup{}\n0", at + 1));
    archive(&[first.as_bytes(), &more, format!("g{count}\n.").as_bytes()].concat())
}

fn long_names(count: usize) -> Vec<u8> {
    let inner = each(count, |at| format!("S'w{at}'\n{}", tensor("I16\n", "I1\n")));
    let name = format!("S'{}'\n}}(", "n".repeat(count * 20));
    state_dict(&[name.as_bytes(), &inner, b"u"].concat())
}

fn dictionaries(count: usize) -> Vec<u8> {
    let first = format!("S'w'\n{}p7\n", tensor("I16\n", "I1\n"));
    let inner = each(count, |at| format!("S'v{at}'\ng7\n"));
    let dictionary = [b"S'd'\n}(", first.as_bytes(), &inner, b"up8\n"].concat();
    let more = each(count, |at| format!("S'e{at}'\ng8\n"));
    state_dict(&[dictionary, more].concat())
}
