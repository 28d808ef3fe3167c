//! Bodies that are being made, and what names stand for in them.

use std::collections::HashMap;

use apr_core::UniqueNames;
use apr_graph::{Body, Node, Op, ValueId, ValueOrigin, ValueType};

use super::DOMAIN;

/// A body that is being made.
#[derive(Default)]
struct Frame {
    body: Body,
    /// Current values of the names. A name can be assigned again.
    names: HashMap<String, ValueId>,
}

/// Bodies, the outermost first, and the names in use.
#[derive(Default)]
pub(super) struct Frames {
    frames: Vec<Frame>,
    taken: UniqueNames,
}

impl Frames {
    pub(super) fn open(&mut self) {
        self.frames.push(Frame::default());
    }

    pub(super) fn close(&mut self) -> Body {
        self.frames.pop().map(|frame| frame.body).unwrap_or_default()
    }

    pub(super) fn depth(&self) -> usize {
        self.frames.len()
    }

    fn innermost(&mut self) -> &mut Frame {
        if self.frames.is_empty() {
            self.open();
        }
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    /// Adds a value to the innermost body and assigns it to a name.
    pub(super) fn add(&mut self, name: &str, kind: ValueType, origin: ValueOrigin) -> ValueId {
        let unique = self.taken.unique(name);
        let frame = self.innermost();
        let value = frame.body.add_value(unique, kind, origin);
        frame.names.insert(name.to_owned(), value);
        value
    }

    pub(super) fn input(&mut self, name: &str, kind: ValueType) {
        let value = self.add(name, kind, ValueOrigin::Input);
        self.innermost().body.inputs.push(value);
    }

    pub(super) fn output(&mut self, name: &str) {
        let value = self.find(name);
        self.innermost().body.outputs.push(value);
    }

    /// Adds an output to the innermost body, unless its value is an output already.
    ///
    /// The value gets the type `kind` if its own type is unknown.
    pub(super) fn output_of(&mut self, name: &str, kind: &ValueType) {
        let value = self.find(name);
        let body = &mut self.innermost().body;
        if body.outputs.contains(&value) {
            return;
        }
        if body.value(value).kind == ValueType::Unknown {
            body.value_mut(value).kind = kind.clone();
        }
        body.outputs.push(value);
    }

    /// Returns `true` if a name has a value.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame.names.contains_key(name))
    }

    /// Returns the value of a name, in this body or an enclosing one.
    ///
    /// A missing value has no origin.
    pub(super) fn find(&mut self, name: &str) -> ValueId {
        let holder =
            (0..self.frames.len()).rev().find(|at| self.frames[*at].names.contains_key(name));
        let Some(holder) = holder else {
            return self.add(name, ValueType::Unknown, ValueOrigin::Missing);
        };
        let mut value = self.frames[holder].names[name];
        // A body refers only to the one right around it, so all between hand the value on.
        for at in holder + 1..self.frames.len() {
            let kind = self.frames[at - 1].body.value(value).kind.clone();
            let unique = self.taken.unique(name);
            let frame = &mut self.frames[at];
            value = frame.body.add_value(unique, kind, ValueOrigin::Outer(value));
            frame.names.insert(name.to_owned(), value);
        }
        value
    }

    /// Adds a node of the domain.
    pub(super) fn node(
        &mut self,
        name: &str,
        op: &str,
        inputs: Vec<Option<ValueId>>,
        outputs: Vec<Option<ValueId>>,
        attributes: Vec<apr_graph::Attribute>,
    ) {
        let node = Node {
            name: name.to_owned(),
            op: Op::new(DOMAIN, op),
            inputs,
            outputs,
            attributes,
            doc: String::new(),
        };
        self.innermost().body.add_node(node);
    }
}
