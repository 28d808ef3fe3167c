//! Branches and loops.
//!
//! ```text
//! MIL   cond        pred, blocks for true and false         while_loop  loop_vars, blocks that say
//!                                                                       whether to go on, and what
//!                                                                       the variables become
//! ONNX  If          cond, then_branch, else_branch          Loop        cond, variables, body
//! ```

use std::mem;
use std::rc::Rc;

use apr_graph::{AttributeValue, Body, Node, ValueId, ValueOrigin, ValueType};
use apr_lower::{Untranslated, Writer};

use super::super::call::Call;
use super::Lowering;
use super::source::Source;

/// Bodies within each other, at most.
const MAX_DEPTH: usize = 16;

/// Representation of an outer body's value in an inner body.
enum Lent {
    Same(Source),
    Outer { id: ValueId, name: String, kind: ValueType },
}

impl<'g> Lowering<'g> {
    /// Lowers an operation of this kind; `None` for another, and for one that can't be.
    pub(super) fn control(&mut self, node: &'g Node) -> Option<Vec<ValueId>> {
        let call = Call::new(node, self.from)?;
        let bodies: Vec<&Body> = node.bodies().collect();
        match (call.op, bodies.as_slice()) {
            ("cond", [yes, no]) => self.branch(&call, yes, no),
            ("while_loop", [cond, body]) => self.repeat(&call, cond, body),
            _ => None,
        }
    }

    fn branch(&mut self, call: &Call<'g>, yes: &'g Body, no: &'g Body) -> Option<Vec<ValueId>> {
        let which = self.tensor(call, "pred")?;
        (self.out.rank(which)? == 0).then_some(())?;
        let mut made = Vec::with_capacity(2);
        for body in [yes, no] {
            let fits = body.inputs.is_empty() && body.outputs.len() == call.outputs.len();
            fits.then_some(())?;
            let lent = self.lent(body)?;
            let mut inner = self.within(body)?;
            inner.take(lent, true);
            inner.operations();
            for output in &body.outputs {
                let name = &body.value(*output).name;
                let value = inner.value(*output)?;
                inner.out.output(name, value);
            }
            self.add(mem::take(&mut inner.untranslated));
            made.push(inner.out.finish().body);
        }
        let mut node = self.out.main.op("If", [which]);
        for (attribute, body) in ["then_branch", "else_branch"].into_iter().zip(made) {
            node = node.attribute(attribute, AttributeValue::Body(Box::new(body)));
        }
        Some(node.list_of_outputs(&call.name, call.outputs.len()))
    }

    fn repeat(&mut self, call: &Call<'g>, cond: &'g Body, body: &'g Body) -> Option<Vec<ValueId>> {
        let variables = self.tensors(call, "loop_vars")?;
        let all = variables.len();
        let fits = cond.inputs.len() == all
            && cond.outputs.len() == 1
            && body.inputs.len() == all
            && body.outputs.len() == all
            && call.outputs.len() == all;
        fits.then_some(())?;
        let begins = self.condition(cond, &variables)?;

        let lent = self.lent(body)?;
        let mut inner = self.within(body)?;
        inner.take(lent, true);
        inner.out.input("round", &ValueType::tensor(apr_graph::ElementType::I64, []));
        inner.out.input("goes_on", &ValueType::tensor(apr_graph::ElementType::Bool, []));
        for (input, variable) in body.inputs.iter().zip(&variables) {
            let kind = self.out.kind(*variable).clone();
            let own = inner.out.input(&body.value(*input).name, &kind).id;
            inner.values[input.0 as usize] = Some(Source::Made(own));
        }
        inner.operations();
        let mut next = Vec::with_capacity(all);
        for (output, variable) in body.outputs.iter().zip(&variables) {
            let value = inner.value(*output)?;
            // A variable has one type in all rounds.
            (self.out.kind(*variable) == inner.out.kind(value)).then_some(())?;
            next.push(value);
        }
        // Whether to go on is asked within the loop, of what is around it.
        let lent = self.lent(cond)?;
        let mut asked = self.within(cond)?;
        asked.out = mem::take(&mut inner.out);
        asked.take(lent, true);
        let goes_on = asked.asked(&next)?;
        let untranslated = mem::take(&mut asked.untranslated);
        let mut out = asked.out;
        out.output("goes_on_then", goes_on);
        for (output, value) in body.outputs.iter().zip(next) {
            out.output(&body.value(*output).name, value);
        }
        self.add(mem::take(&mut inner.untranslated));
        self.add(untranslated);
        let mut node = self.out.main.op("Loop", []).optional(None).optional(Some(begins));
        for variable in &variables {
            node = node.optional(Some(*variable));
        }
        let node = node.attribute("body", AttributeValue::Body(Box::new(out.finish().body)));
        Some(node.list_of_outputs(&call.name, all))
    }

    /// Writes a condition to this body.
    fn condition(&mut self, cond: &'g Body, variables: &[ValueId]) -> Option<ValueId> {
        let lent = self.lent(cond)?;
        let mut asked = self.within(cond)?;
        // What is written has to be there again, whatever comes of it.
        mem::swap(&mut asked.out, &mut self.out);
        asked.take(lent, false);
        let made = asked.asked(variables);
        mem::swap(&mut asked.out, &mut self.out);
        let untranslated = mem::take(&mut asked.untranslated);
        self.add(untranslated);
        made
    }

    /// Returns the value of a condition for these variables.
    fn asked(&mut self, variables: &[ValueId]) -> Option<ValueId> {
        for (input, variable) in self.from.inputs.iter().zip(variables) {
            self.values[input.0 as usize] = Some(Source::Made(*variable));
        }
        self.operations();
        self.value(*self.from.outputs.first()?)
    }

    /// A lowering of a body of one of this body's operations.
    fn within(&self, body: &'g Body) -> Option<Self> {
        (self.depth < MAX_DEPTH).then_some(())?;
        Some(Self {
            from: body,
            weights: self.weights,
            out: Writer::new(),
            values: body.values.iter().map(Source::fixed).collect(),
            untranslated: Untranslated::new(),
            depth: self.depth + 1,
            nodes_left: Rc::clone(&self.nodes_left),
        })
    }

    /// The values of this body that one within it reads, by their positions there.
    fn lent(&mut self, body: &Body) -> Option<Vec<(usize, Lent)>> {
        let mut lent = Vec::new();
        for (at, value) in body.values.iter().enumerate() {
            let ValueOrigin::Outer(of) = value.origin else { continue };
            let source = self.values[of.0 as usize].clone()?;
            lent.push((
                at,
                match source {
                    Source::Made(id) => {
                        let kind = self.out.kind(id).clone();
                        let name = self.out.main.body().value(id).name.clone();
                        Lent::Outer { id, name, kind }
                    }
                    fixed => Lent::Same(fixed),
                },
            ));
        }
        Some(lent)
    }

    /// Takes over the values of the outer body, as outer values if `within` is set.
    fn take(&mut self, lent: Vec<(usize, Lent)>, within: bool) {
        for (at, lent) in lent {
            self.values[at] = Some(match lent {
                Lent::Same(source) => source,
                Lent::Outer { id, name, kind } if within => {
                    Source::Made(self.out.main.outer(&name, kind, id))
                }
                Lent::Outer { id, .. } => Source::Made(id),
            });
        }
    }

    fn add(&mut self, found: Untranslated) {
        for (name, count) in found {
            *self.untranslated.entry(name).or_default() += count;
        }
    }
}
