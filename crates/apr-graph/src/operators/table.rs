//! The tables of operators, as text that is read once.
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
    /// What an operator is in a version of its domain's operators. `None` where the domain is not
    /// known, or has no such operator yet. One that is gone is returned as `deprecated`.
    #[must_use]
    pub fn of(op: &Op, version: i64) -> Option<&'static Self> {
        Self::versions(&op.domain, &op.name).iter().rev().find(|operator| operator.since <= version)
    }

    /// All versions of an operator, oldest first; empty where it is not known.
    #[must_use]
    pub fn versions(domain: &str, name: &str) -> &'static [Self] {
        Tables::get().versions(domain, name)
    }

    /// Whether the operators of a domain are known.
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
        Self::all()
            .filter(|operator| operator.domain.is_empty())
            .map(|operator| operator.since)
            .max()
            .unwrap_or(1)
    }
}

/// All versions of each operator, oldest first, by domain and name.
struct Tables {
    domains: HashMap<&'static str, HashMap<&'static str, Vec<Operator>>>,
}

impl Tables {
    fn get() -> &'static Self {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        TABLES.get_or_init(Self::read)
    }

    fn read() -> Self {
        let mut domains: HashMap<_, HashMap<_, Vec<Operator>>> = HashMap::new();
        for (domain, text) in TABLES {
            let operators = domains.entry(domain).or_default();
            let mut above = Above::default();
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let operator = above.read(domain, line);
                operators.entry(operator.name).or_default().push(operator);
            }
        }
        Self { domains }
    }

    fn versions(&self, domain: &str, name: &str) -> &[Operator] {
        self.domains
            .get(domain)
            .and_then(|operators| operators.get(name))
            .map_or(&[], Vec::as_slice)
    }

    fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    fn all(&self) -> impl Iterator<Item = &Operator> {
        self.domains.values().flat_map(HashMap::values).flatten()
    }
}

/// The name and the columns of the line above.
#[derive(Default)]
struct Above {
    name: &'static str,
    columns: [&'static str; 4],
}

impl Above {
    fn read(&mut self, domain: &'static str, line: &'static str) -> Operator {
        let mut cells = line.split('|');
        match cells.next() {
            None | Some("") => {}
            Some(name) => self.name = name,
        }
        let since = cells.next().and_then(|cell| cell.parse().ok()).unwrap_or(1);
        let cells: Vec<_> = cells.collect();
        let deprecated = cells == ["deprecated"];
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
