//! What the parts of a conversion share.

use std::collections::HashSet;
use std::sync::Arc;

use apr_core::Result;
use apr_core::protobuf::{Span, Walker};
use apr_graph::{Name, Op, Opset};

use super::small::SmallTensors;
use crate::proto;
use crate::reader::OnnxReader;

/// Reads what messages refer to, and has each name once.
pub(crate) struct Converter<'a> {
    pub(super) walker: Walker<'a>,
    pub(super) small: SmallTensors<'a>,
    /// Operators, domains, attributes: few names, used by many nodes.
    names: HashSet<Name>,
}

impl<'a> Converter<'a> {
    pub(super) fn new(reader: &'a OnnxReader) -> Self {
        let walker = Walker::new(&reader.sources()[0], reader.limits());
        Self { walker, small: SmallTensors::new(reader), names: HashSet::new() }
    }

    pub(super) fn opsets(&mut self, opsets: &[proto::OperatorSet]) -> Vec<Opset> {
        let own =
            |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_owned() };
        opsets
            .iter()
            .map(|set| Opset { domain: self.name(&own(&set.domain)), version: set.version })
            .collect()
    }

    pub(super) fn op(&mut self, domain: &str, name: &str, overload: &str) -> Op {
        // ONNX has two names for its own domain.
        let domain = if domain == "ai.onnx" { "" } else { domain };
        Op { domain: self.name(domain), name: self.name(name), overload: self.name(overload) }
    }

    /// The name, once in memory however many use it.
    pub(super) fn name(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return Arc::clone(name);
        }
        let name: Name = text.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    pub(super) fn doc(&mut self, span: Option<Span>) -> Result<String> {
        match span {
            Some(span) => Ok(String::from_utf8_lossy(&self.walker.bytes(span)?).into_owned()),
            None => Ok(String::new()),
        }
    }
}
