//! The tables of operators, as text. The lines of an operator are read when it is first asked for:
//! a model uses a few of the many.
//!
//! A line is a version of an operator: `name|since|inputs|outputs|attributes|types`. No name: that
//! of the line above. `=` in a column: as in the line above. `name|since|deprecated`: from this
//! version on the operator is gone.
//!
//! - inputs and outputs: `X:T`; `B?:T` may be left out; `inputs*1:T` is one or more; `~V`: each of
//!   a type of its own; `=80`: a fixed set of types instead of a name
//! - attributes: `axis:i=1`, letter and default; `to:i!` must be there
//! - types: `T=c02/s2`: sets of element types as bits, by their numbers in ONNX; `s` for sequences
//!   of such tensors, `o` for optional ones, `q` for optional sequences, `m` for maps

use std::collections::HashMap;
use std::sync::OnceLock;

use super::operator::{AttributeKind, Occurs, Operator, Parameter, Setting, TypeSet};
use crate::{AttributeValue, Op};

const TABLES: [(&str, &str); 5] = [
    ("", include_str!("onnx.txt")),
    ("", include_str!("strays.txt")),
    ("ai.onnx.ml", include_str!("ml.txt")),
    ("ai.onnx.preview.training", include_str!("training.txt")),
    ("com.microsoft", include_str!("microsoft.txt")),
];

impl Operator {
    /// Returns the operator in a version of its domain's operators.
    ///
    /// Returns `None` if the domain is not known or does not have the operator yet. An operator
    /// that was removed is returned as `deprecated`.
    #[must_use]
    pub fn of(op: &Op, version: i64) -> Option<&'static Self> {
        Self::versions(&op.domain, &op.name).iter().rev().find(|operator| operator.since <= version)
    }

    /// Returns all versions of an operator, oldest first; empty if the operator is not known.
    #[must_use]
    pub fn versions(domain: &str, name: &str) -> &'static [Self] {
        Tables::get().versions(domain, name)
    }

    /// Returns `true` if the operators of a domain are known.
    #[must_use]
    pub fn knows_domain(domain: &str) -> bool {
        Tables::get().has_domain(domain)
    }

    /// Every version of every operator, in no order.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        Tables::get().all()
    }

    /// The newest version of ONNX's own operators that is known.
    #[must_use]
    pub fn newest() -> i64 {
        Tables::get().newest
    }
}

/// The operators by domain and name.
struct Tables {
    domains: HashMap<&'static str, HashMap<&'static str, Lines>>,
    /// The newest version of ONNX's own operators.
    newest: i64,
}

impl Tables {
    fn get() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(Self::index)
    }

    fn index() -> Self {
        let mut domains: HashMap<_, HashMap<_, Lines>> = HashMap::new();
        let mut newest = 1;
        for (domain, text) in TABLES {
            let operators = domains.entry(domain).or_default();
            let mut name = "";
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let (own_name, rest) = line.split_once('|').unwrap_or((line, ""));
                if !own_name.is_empty() {
                    name = own_name;
                }
                operators.entry(name).or_insert_with(|| Lines::of(domain)).lines.push(line);
                if domain.is_empty() {
                    newest = since(rest).max(newest);
                }
            }
        }

        Self { domains, newest }
    }

    fn versions(&self, domain: &str, name: &str) -> &[Operator] {
        let lines = self.domains.get(domain).and_then(|names| names.get(name));
        lines.map_or(&[], Lines::operators)
    }

    fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    fn all(&self) -> impl Iterator<Item = &Operator> {
        self.domains.values().flat_map(HashMap::values).flat_map(Lines::operators)
    }
}

/// The lines of one operator, the oldest version first.
struct Lines {
    domain: &'static str,
    lines: Vec<&'static str>,
    read: OnceLock<Vec<Operator>>,
}

impl Lines {
    fn of(domain: &'static str) -> Self {
        Self { domain, lines: Vec::new(), read: OnceLock::new() }
    }

    fn operators(&self) -> &[Operator] {
        self.read.get_or_init(|| {
            let mut above = Above::default();
            self.lines.iter().map(|line| above.read(self.domain, line)).collect()
        })
    }
}

/// Parses the version that follows the name in a line.
fn since(rest: &str) -> i64 {
    let cell = rest.split('|').next();
    cell.and_then(|cell| cell.parse().ok()).unwrap_or(1)
}

/// The name and the columns of the line above.
#[derive(Default)]
struct Above {
    name: &'static str,
    columns: [&'static str; 4],
}

impl Above {
    fn read(&mut self, domain: &'static str, line: &'static str) -> Operator {
        let (name, rest) = line.split_once('|').unwrap_or((line, ""));
        if !name.is_empty() {
            self.name = name;
        }

        let since = since(rest);
        let cells: Vec<_> = rest.split('|').skip(1).collect();
        let deprecated = cells == ["deprecated"];
        // A line that says so has no columns; those above hold for a later version.
        if !deprecated {
            for (column, cell) in self.columns.iter_mut().zip(cells) {
                if cell != "=" {
                    *column = cell;
                }
            }
        }

        let columns = if deprecated { [""; 4] } else { self.columns };
        let types: Vec<_> =
            columns[3].split_whitespace().filter_map(|cell| cell.split_once('=')).collect();
        let parameters = |column: &'static str| {
            column.split_whitespace().map(|cell| parameter(cell, &types)).collect()
        };
        Operator {
            domain,
            name: self.name,
            since,
            deprecated,
            inputs: parameters(columns[0]),
            outputs: parameters(columns[1]),
            attributes: columns[2].split_whitespace().map(setting).collect(),
        }
    }
}

fn parameter(cell: &'static str, types: &[(&'static str, &'static str)]) -> Parameter {
    let (name, label) = cell.split_once(':').unwrap_or((cell, ""));
    let (name, occurs) = match name.split_once('*') {
        Some((name, fewest)) => (name, Occurs::Many(fewest.parse().unwrap_or(0))),
        None => name.strip_suffix('?').map_or((name, Occurs::Once), |name| (name, Occurs::Maybe)),
    };
    let (label, alike) = label.strip_prefix('~').map_or((label, true), |label| (label, false));
    let set = match label.strip_prefix('=') {
        Some(set) => set,
        None => types.iter().find(|(name, _)| *name == label).map_or("", |(_, set)| set),
    };
    let label = if label.starts_with('=') { "" } else { label };
    Parameter { name, occurs, label, alike, types: type_set(set) }
}

fn type_set(text: &str) -> TypeSet {
    let mut set = TypeSet::default();
    for part in text.split('/').filter(|part| !part.is_empty()) {
        // Parts are ASCII, and not empty.
        let (into, mask) = match part.as_bytes()[0] {
            b's' => (&mut set.sequence, &part[1..]),
            b'o' => (&mut set.optional, &part[1..]),
            b'q' => (&mut set.optional_sequence, &part[1..]),
            b'm' => (&mut set.map, &part[1..]),
            _ => (&mut set.tensor, part),
        };
        *into = u32::from_str_radix(mask, 16).unwrap_or(0);
    }
    set
}

fn setting(cell: &'static str) -> Setting {
    let (name, kind) = cell.split_once(':').unwrap_or((cell, ""));
    let (kind, default) =
        kind.split_once('=').map_or((kind, None), |(kind, default)| (kind, Some(default)));
    let (kind, required) = kind.strip_suffix('!').map_or((kind, false), |kind| (kind, true));
    let kind = AttributeKind::from_letter(kind);
    Setting { name, kind, required, default: default.and_then(|default| value(kind, default)) }
}

fn value(kind: AttributeKind, text: &str) -> Option<AttributeValue> {
    Some(match kind {
        AttributeKind::Int => AttributeValue::Int(text.parse().ok()?),
        AttributeKind::Float => AttributeValue::Float(text.parse().ok()?),
        AttributeKind::Text => AttributeValue::Text(text.as_bytes().to_vec()),
        AttributeKind::Ints => {
            AttributeValue::Ints(text.split(',').filter_map(|item| item.parse().ok()).collect())
        }
        AttributeKind::Floats => {
            AttributeValue::Floats(text.split(',').filter_map(|item| item.parse().ok()).collect())
        }
        AttributeKind::Texts => {
            AttributeValue::Texts(text.split(',').map(|item| item.as_bytes().to_vec()).collect())
        }
        _ => return None,
    })
}
