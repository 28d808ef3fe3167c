//! Programs of torch.export (`.pt2`): the JSON of their graphs.
//!
//! Loading one evaluates symbolic sizes, and its nodes call what their targets name: operators, and
//! functions of `torch`, `math` and `operator`.

use apr_core::json::entries;
use apr_registry::Escaped;
use serde_json::{Map, Value};

use super::{ContentRemarks, symbolic, torch_ops};
use crate::report::FileVerdict;

/// Functions of Python that nodes call on symbolic sizes.
const OF_PYTHON: [&str; 34] = [
    "abs", "add", "and_", "ceil", "eq", "floor", "floordiv", "ge", "getitem", "gt", "invert", "le",
    "lshift", "lt", "mod", "mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sqrt",
    "sub", "truediv", "trunc", "xor", "cos", "sin", "exp", "log", "log2", "round",
];

/// Beginnings of functions of `torch` that do the same.
const OF_TORCH: [&str; 3] = ["torch.sym_", "torch._sym_", "torch._check"];

/// Judges an object of a program.
pub(super) fn of_object(object: &Map<String, Value>, found: &mut ContentRemarks) {
    if let Some(size) = object.get("expr_str").and_then(Value::as_str) {
        found.extend(of_size(size));
    }
    if let Some(Value::Object(ranges)) = object.get("range_constraints") {
        found.extend(entries(ranges).find_map(|(size, _)| of_size(size)));
    }
    if let Some(class) = object.get("class_fqn").and_then(Value::as_str) {
        found.extend(of_class(class));
    }
    if is_node(object)
        && let Some(target) = object.get("target").and_then(Value::as_str)
    {
        found.extend(of_target(target));
    }
}

/// Returns `true` if an object is a call in a program's graph.
pub(super) fn is_node(object: &Map<String, Value>) -> bool {
    ["target", "inputs", "outputs"].iter().all(|key| object.contains_key(*key))
}

fn of_size(size: &str) -> Option<(FileVerdict, String)> {
    let why = symbolic::reject(size)?;
    let size = Escaped::short(size);
    let message = format!("sympy evaluates a size that is not symbolic, because it {why}: {size}");
    Some((FileVerdict::Dangerous, message))
}

/// An object of a class of C++ or of the loading program.
fn of_class(class: &str) -> Option<(FileVerdict, String)> {
    let name = class.strip_prefix("__torch__.torch.classes.").unwrap_or(class);
    let (namespace, own) = name.split_once('.').unwrap_or((name, ""));
    let verdict = torch_ops::judge_class(namespace, own)?;
    let class = Escaped::short(class);
    let message = format!("it has an object of the class {class}, which the program registers");
    Some((verdict, message))
}

fn of_target(target: &str) -> Option<(FileVerdict, String)> {
    let shown = Escaped::short(target);
    if let Some(operator) = target.strip_prefix("torch.ops.") {
        let mut parts = operator.split('.');
        let (namespace, name) = (parts.next().unwrap_or_default(), parts.next());
        let name = name.unwrap_or_default();
        let rest = parts.next();
        // `aten.__and__.Tensor` is one.
        let is_special = |part: &str| part.starts_with("__");
        if is_special(namespace)
            || rest.is_some_and(is_special)
            || rest.is_none() && is_special(name)
            || parts.next().is_some()
        {
            let message = format!("a node calls {shown}, which is not an operator");
            return Some((FileVerdict::Dangerous, message));
        }
        let (verdict, what) = torch_ops::judge(namespace, name)?;
        return Some((verdict, format!("a node calls {shown}, which {what}")));
    }
    let of_python = ["_operator.", "operator.", "math."];
    let name = of_python.iter().find_map(|module| target.strip_prefix(module));
    let is_known = name.is_some_and(|name| OF_PYTHON.contains(&name))
        || OF_TORCH
            .iter()
            .any(|start| target.strip_prefix(start).is_some_and(|rest| !rest.contains(['.', '('])))
        || target.is_empty();
    (!is_known).then(|| {
        let message = format!("a node calls {shown}, which is not an operator");
        (FileVerdict::Dangerous, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_sizes_are_judged() {
        use FileVerdict::{Dangerous, NotExamined};
        let node =
            |target: &str| format!(r#"{{"target": "{target}", "inputs": [], "outputs": []}}"#);
        for (text, expected) in [
            (node("torch.ops.aten.add.Tensor"), None),
            (node("torch.ops.aten.__and__.Tensor"), None),
            (node("torch.ops.higher_order.cond"), None),
            (node("_operator.mul"), None),
            (node("math.ceil"), None),
            (node("torch.sym_max"), None),
            (node("torch.ops.mine.f.default"), Some(NotExamined)),
            (node("torch.ops.load_library"), Some(Dangerous)),
            (node("torch.ops.aten.add.__globals__"), Some(Dangerous)),
            (node("_operator.attrgetter"), Some(Dangerous)),
            (node("torch.hub.load"), Some(Dangerous)),
            (r#"{"expr_str": "Mul(Integer(2), Symbol('s0'))"}"#.to_owned(), None),
            (r#"{"expr_str": "__import__('os').getpid()"}"#.to_owned(), Some(Dangerous)),
            (r#"{"range_constraints": {"s0": {}}}"#.to_owned(), None),
            (r#"{"range_constraints": {"f()": {}}}"#.to_owned(), Some(Dangerous)),
            (r#"{"class_fqn": "__torch__.torch.classes.mine.X"}"#.to_owned(), Some(NotExamined)),
        ] {
            let object = serde_json::from_str(&text).expect("an object");
            let mut found = ContentRemarks::new();
            of_object(&object, &mut found);
            assert_eq!(found.first().map(|(verdict, _)| *verdict), expected, "{text}: {found:?}");
        }
    }
}
