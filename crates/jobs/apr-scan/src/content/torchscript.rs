//! TorchScript's code: what is not Python here, but calls operators by their names.
//!
//! The code is cut into words as its parser does it, and every path that begins at `torch` or `ops`
//! is resolved: called, handed on as a value, under another name, or taken by `getattr`.

use std::collections::HashMap;

use apr_registry::Escaped;

use super::ContentRemarks;
use super::python::{self, Token};
use super::torch_ops;
use crate::report::FileVerdict;

/// Names through which code accesses operators: `torch` has the operators of `aten`, `ops` has all.
const ROOTS: [&str; 2] = ["torch", "ops"];

/// Remarks of one file.
const REMARKS: usize = 20;

/// Maximum number of remembered names for one file, a root or a namespace.
const ALIASES: usize = 10_000;

/// Judges a file of code.
pub(super) fn judge(bytes: &[u8]) -> ContentRemarks {
    let code = String::from_utf8_lossy(bytes);
    let tokens = python::tokens(&code);
    let mut aliases: HashMap<String, Vec<String>> = HashMap::new();
    let mut found = ContentRemarks::new();
    let mut at = 0;
    while at < tokens.len() && found.len() < REMARKS {
        let Some((parts, end)) = python::path(&tokens, at) else {
            at += 1;
            continue;
        };
        // An attribute of something else, or a name of an argument.
        let is_inner = at > 0 && tokens[at - 1].is('.');
        let is_assigned = tokens.get(end).is_some_and(|token| token.is('='))
            && !tokens.get(end + 1).is_some_and(|token| token.is('='));
        if let (true, [name]) = (is_assigned && !is_inner, parts.as_slice()) {
            let value = python::path(&tokens, end + 1);
            let value = value.map(|(value, end)| (resolved(value, &aliases), end));
            match value.filter(|(value, end)| is_handle(value) && ends(&tokens, *end)) {
                Some((value, end)) if aliases.len() < ALIASES => {
                    // What leads to operators is judged by them.
                    let is_operator = value.len() > 2 || value[0] == "torch" && value.len() > 1;
                    found.extend(of_path(&value).filter(|_| is_operator));
                    aliases.insert(name.clone(), value);
                    at = end;
                    continue;
                }
                _ => drop(aliases.remove(name)),
            }
            at = end;
            continue;
        }
        if !is_inner {
            let parts = resolved(parts, &aliases);
            found.extend(of_path(&parts).filter(|new| !found.contains(new)));
        }
        at = end;
    }
    found
}

/// A path whose first name may be another one's.
fn resolved(mut parts: Vec<String>, aliases: &HashMap<String, Vec<String>>) -> Vec<String> {
    if let Some(value) = parts.first().and_then(|name| aliases.get(name)) {
        parts.splice(..1, value.iter().cloned());
    }
    parts
}

/// Returns `true` if a value is a path to operators, or an operator that is not called.
fn is_handle(parts: &[String]) -> bool {
    parts.first().is_some_and(|root| ROOTS.contains(&root.as_str())) && parts.len() <= 3
}

/// Returns `true` if a statement ends here.
fn ends(tokens: &[Token<'_>], at: usize) -> bool {
    tokens.get(at).is_none_or(|token| token.is('\n'))
}

/// Returns the finding for a path, if any.
fn of_path(parts: &[String]) -> Option<(FileVerdict, String)> {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let (namespace, name) = match parts.as_slice() {
        ["ops", namespace, name, ..] => (*namespace, *name),
        ["torch" | "ops"] | ["ops", _] => {
            let message = format!(
                "its code uses '{}' as a value, so that the operators it calls can't be listed",
                parts.join(".")
            );
            return Some((FileVerdict::Suspicious, message));
        }
        ["torch", name, ..] => ("aten", *name),
        ["__torch__", "torch", "classes", namespace, name, ..] => {
            let verdict = torch_ops::judge_class(namespace, name)?;
            let name = format!("{namespace}.{name}");
            let message = format!(
                "it has an object of the class {}, which the loading program registers",
                Escaped::short(&name)
            );
            return Some((verdict, message));
        }
        // Functions without a namespace are those of TorchScript itself.
        [name] if name.starts_with("rpc_") => ("prim", *name),
        _ => return None,
    };
    let (verdict, what) = torch_ops::judge(namespace, name)?;
    let path = Escaped::short(&parts.join(".")).to_string();
    Some((verdict, format!("its code calls {path}, which {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_that_reach_files_are_found_however_they_are_called() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
        for (code, expected) in [
            ("return torch.relu(x)", None),
            ("y = torch.relu(x)\nz = y.save(1)", None),
            ("# torch.save(x)\n", None),
            ("raise Exception(\"torch.save(x)\")", None),
            ("y = ops.torchvision.nms(x, y, 0.5)", None),
            ("_0 = getattr(self.layers, \"0\")", None),
            ("x : __torch__.torch.classes.quantized.Conv2dPackedParamsBase", None),
            ("torch.save(x, \"/tmp/x\")", Some(Dangerous)),
            ("_9, _0 = (\"#\", torch.from_file(\"/x\", False))", Some(Dangerous)),
            ("_0 = (torch.from_file)(\"/x\")", Some(Dangerous)),
            ("_0 = ((torch).from_file)(\"/x\")", Some(Dangerous)),
            ("f = torch.from_file\ny = f(\"/x\")", Some(Dangerous)),
            ("t = torch\ny = t.from_file(\"/x\")", Some(Dangerous)),
            ("t = torch\nu = t\n(y) = u.from_file(\"/x\")", Some(Dangerous)),
            ("o = ops\na = o.aten\na.save(x)", Some(Dangerous)),
            ("y = getattr(torch, \"from_file\")(\"/x\")", Some(Dangerous)),
            ("y = getattr(ops.image, 'read_' 'file')", Some(Dangerous)),
            ("y = getattr(ops, x)", Some(Suspicious)),
            ("t, u = (torch, 1)", Some(Suspicious)),
            ("y = ops. image.\\\n read_file (\"/x\")", Some(Dangerous)),
            ("y = rpc_async(\"w\", f)", Some(Dangerous)),
            ("y = ops.mine.f(x)", Some(NotExamined)),
            ("x : __torch__.torch.classes.mine.Handle", Some(NotExamined)),
        ] {
            let found = judge(code.as_bytes());
            let worst = found.iter().map(|(verdict, _)| *verdict).max();
            assert_eq!(worst, expected, "{code}: {found:?}");
        }
    }
}
