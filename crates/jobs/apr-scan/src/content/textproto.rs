//! Protocol buffers as text: graphs of TensorFlow and ONNX, networks of Caffe.

use apr_registry::{Escaped, onnx};

use super::python::{self, Token};
use super::{ContentRemarks, servers};
use crate::paths::leads_out;
use crate::report::FileVerdict;

/// Messages in each other whose names are remembered.
const DEPTH: usize = 100;

/// Calls `take` with each scalar field: the messages that it is in, with its own name last, and its
/// text.
pub(super) fn fields(text: &str, mut take: impl FnMut(&[&str], &str)) {
    let tokens = python::tokens(text);
    let mut tokens = tokens.iter().filter(|token| !token.is('\n')).peekable();
    let (mut path, mut deeper) = (Vec::new(), 0_usize);
    let mut name = "";
    while let Some(token) = tokens.next() {
        match token {
            // `true` and names of enumerations are values, which hold no text.
            Token::Name(word) => name = word,
            Token::Text(first) => {
                let mut value = first.clone();
                // A text may be in parts.
                while let Some(Token::Text(more)) =
                    tokens.next_if(|token| matches!(token, Token::Text(_)))
                {
                    value.push_str(more);
                }
                path.push(name);
                take(&path, &value);
                path.pop();
            }
            Token::Mark('{' | '<') if path.len() < DEPTH => path.push(name),
            Token::Mark('{' | '<') => deeper += 1,
            Token::Mark('}' | '>') if deeper > 0 => deeper -= 1,
            Token::Mark('}' | '>') => drop(path.pop()),
            _ => {}
        }
    }
}

/// Examines Caffe networks and ONNX models that are written as text.
pub(super) fn judge(text: &str) -> ContentRemarks {
    let mut found = ContentRemarks::new();
    fields(text, |path, value| {
        let shown = Escaped::short(value);
        let remark = match path {
            [.., "python_param", "module"] => {
                (FileVerdict::Dangerous, format!("Caffe imports the module {shown}"))
            }
            [.., "external_data", "value"] if leads_out(value) => {
                (FileVerdict::Dangerous, format!("weights outside the model's folder: '{shown}'"))
            }
            [.., "node", "domain"] if !onnx::scan::is_known_domain(value) => (
                FileVerdict::NotExamined,
                format!("operators of the domain {shown}, which apr does not know"),
            ),
            [.., "op_type"] if ["PyOp", "PythonOp", "PyCustomOp"].contains(&value) => {
                (FileVerdict::Suspicious, format!("the operator {shown} runs Python"))
            }
            _ => match servers::of_triton(path, value) {
                Some(remark) => remark,
                None => return,
            },
        };
        if found.len() < 20 && !found.contains(&remark) {
            found.push(remark);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_however_they_are_written() {
        let mut found = Vec::new();
        let text = "a: 'x' 'y' # b: 'z'\nm { n <\n o : \"\\x6f\" > } p: [ 'q', 'r' ] e: TRUE";
        fields(text, |path, value| found.push(format!("{}={value}", path.join("."))));
        assert_eq!(found, ["a=xy", "m.n.o=o", "p=q", "p=r"]);
    }

    #[test]
    fn networks_and_models_are_judged_by_the_files_and_code_they_use() {
        use FileVerdict::{Dangerous, NotExamined, Suspicious};
        for (text, expected) in [
            ("layer { type: 'Convolution' name: 'c' }", None),
            ("layer { type: 'Python' python_param { module: 'os' layer: 'x' } }", Some(Dangerous)),
            ("layer { python_param: < module: 'o' 's' > }", Some(Dangerous)),
            ("initializer { external_data { key: 'location' value: 'w.bin' } }", None),
            ("initializer { external_data { key: 'location' value: '../w' } }", Some(Dangerous)),
            ("node { op_type: 'PyOp' }", Some(Suspicious)),
            ("graph { node { op_type: 'X' domain: 'mine' } }", Some(NotExamined)),
            ("graph { node { op_type: 'X' domain: 'com.microsoft' } }", None),
            ("backend: 'python'", Some(Suspicious)),
        ] {
            let found = judge(text);
            assert_eq!(found.first().map(|(verdict, _)| *verdict), expected, "{text}");
        }
    }
}
