//! Branches and loops: `If`, `While`, and the functions that they call.
//!
//! A loop of TensorFlow has variables, which its function `body` takes and returns, and goes on
//! while `cond` says so. Those that the body returns as they are belong to the body around. Where
//! `cond` compares counters with limits, the number of rounds is known before the loop.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use apr_graph::{
    AttributeValue, Body, Constant, ConstantData, Dim, ElementType, Function, Graph, Node, Op,
    TensorType, ValueId, ValueOrigin, ValueType, inline,
};
use apr_lower::{Order, Placed, Untranslated, Writer};

use super::list::Count;
use super::{Lowering, PASSED, Source};

/// Bodies within each other, at most.
const MAX_DEPTH: usize = 16;
/// Maximum number of nodes in all lowered bodies, counted each time that they are lowered.
const MOST_NODES: usize = 1 << 16;
/// Maximum number of times that a body is lowered until the shapes of its variables are stable.
const ATTEMPTS: usize = 3;

/// The functions that branches and loops call.
pub(super) struct Functions<'g> {
    graph: &'g Graph,
    /// Without the calls in them.
    flat: RefCell<HashMap<String, Option<Rc<Body>>>>,
    nodes_left: Cell<usize>,
}

impl<'g> Functions<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, flat: RefCell::default(), nodes_left: Cell::new(MOST_NODES) }
    }

    /// The body of a function, to be written once. `None` for one that is missing, calls itself, or
    /// is too much.
    fn body(&self, name: &str) -> Option<Rc<Body>> {
        let known = self.flat.borrow().get(name).cloned();
        let body = match known {
            Some(body) => body?,
            None => {
                let body = self.inlined(name).map(Rc::new);
                self.flat.borrow_mut().insert(name.to_owned(), body.clone());
                body?
            }
        };
        self.spend(body.nodes.len() + 1)?;
        Some(body)
    }

    fn spend(&self, nodes: usize) -> Option<()> {
        self.nodes_left.set(self.nodes_left.get().checked_sub(nodes)?);
        Some(())
    }

    fn inlined(&self, name: &str) -> Option<Body> {
        let find = |op: &Op| self.graph.functions.iter().find(|function| function.op == *op);
        let own = find(&Op::new(crate::graph::DOMAIN, name))?;
        // Only what it calls is copied.
        let mut called: Vec<&Function> = Vec::new();
        let mut open = vec![&own.body];
        let mut seen: HashSet<&Op> = HashSet::new();
        while let Some(body) = open.pop() {
            for function in body.nodes.iter().filter_map(|node| find(&node.op)) {
                if seen.insert(&function.op) {
                    called.push(function);
                    open.push(&function.body);
                }
            }
        }
        let spent = called.iter().map(|function| function.body.nodes.len()).sum::<usize>();
        self.spend(spent)?;
        let opsets = self.graph.opsets.clone();
        let functions = called.into_iter().cloned().collect();
        let graph = Graph { opsets, functions, body: own.body.clone() };
        inline(&graph).ok().map(|flat| flat.body)
    }
}

/// Role of a loop variable.
enum Variable {
    /// The value is the same in all rounds.
    Fixed,
    /// Each round computes the next.
    State,
    /// A list of which each round sets an item, which this value of the body is.
    Items { item: ValueId, is_last: bool },
}

/// A value of an outer body, as an inner body accesses it.
#[derive(Clone)]
enum Lent {
    /// A weight or a constant.
    Same(Source),
    /// A value of the outer body.
    Outer { id: ValueId, name: String, kind: ValueType },
    /// A list whose items are not known yet.
    Nothing,
}

impl Lent {
    fn within(&self, out: &mut Writer) -> Option<Source> {
        match self {
            Self::Same(source) => Some(source.clone()),
            Self::Outer { id, name, kind } => {
                Some(Source::Made(Placed::natural(out.main.outer(name, kind.clone(), *id))))
            }
            Self::Nothing => None,
        }
    }
}

/// A loop that is written.
struct Loop<'l> {
    body: &'l Body,
    cond: &'l Body,
    variables: Vec<Variable>,
    /// Values that are the same in all rounds.
    lent: Vec<Lent>,
    /// Limits of the counters, if the condition consists only of comparisons with them.
    limits: Option<Vec<Count>>,
}

/// A body of a loop, with the types that its variables have before and after a round.
struct Round {
    body: Body,
    kinds: Vec<ValueType>,
    untranslated: Untranslated,
}

impl<'g> Lowering<'g> {
    /// Lowers an operator of this kind; `None` for another, and for one that can't be.
    pub(super) fn control(&mut self, node: &Node) -> Option<()> {
        match &*node.op.name {
            "If" | "StatelessIf" => self.branch(node),
            "While" | "StatelessWhile" => self.repeat(node),
            _ => None,
        }
    }

    /// A lowering of a body within this one.
    fn within<'b>(&self, body: &'b Body) -> Option<Lowering<'b>>
    where
        'g: 'b,
    {
        (self.depth < MAX_DEPTH).then_some(())?;
        Some(Lowering {
            from: body,
            weights: self.weights,
            functions: self.functions,
            out: Writer::new(),
            values: body.values.iter().map(|value| Source::fixed(value, self.weights)).collect(),
            untranslated: Untranslated::new(),
            depth: self.depth + 1,
        })
    }

    /// Returns a value of this body as an inner body accesses it.
    fn lent(&mut self, source: &Source) -> Option<Lent> {
        let id = match source {
            Source::Made(placed) => self.out.ordered(*placed, Order::Natural)?,
            Source::List { .. } => match self.written(source, Order::Natural, 0) {
                Some(id) => id,
                None => return Some(Lent::Nothing),
            },
            fixed => return Some(Lent::Same(fixed.clone())),
        };
        let kind = self.out.kind(id).clone();
        if let ValueType::Tensor(tensor) = &kind
            && let Some(known) = self.out.ints(id)
            && let Some(constant) = constant(tensor, &known)
        {
            return Some(Lent::Same(Source::Constant(constant)));
        }
        Some(Lent::Outer { id, name: self.out.main.body().value(id).name.clone(), kind })
    }

    fn branch(&mut self, node: &Node) -> Option<()> {
        let (_, name) = self.output(node)?;
        let which = self.natural(node, 0)?;
        (self.out.rank(which)? == 0).then_some(())?;
        let which = self.out.cast(which, ElementType::Bool, &format!("{name}/which"));
        let mut lent = Vec::with_capacity(node.inputs.len());
        for position in 1..node.inputs.len() {
            let source = self.source(node, position)?.clone();
            lent.push(self.lent(&source)?);
        }
        let (mut bodies, mut untranslated) = (Vec::new(), Untranslated::new());
        for attribute in ["then_branch", "else_branch"] {
            let body = self.functions.body(node.text(attribute)?)?;
            let fits = body.inputs.len() == lent.len() && body.outputs.len() >= node.outputs.len();
            fits.then_some(())?;
            let mut inner = self.within(&body)?;
            for (input, lent) in body.inputs.iter().zip(&lent) {
                inner.values[input.0 as usize] = lent.within(&mut inner.out);
            }
            let outputs = &body.outputs[..node.outputs.len()];
            inner.nodes(outputs, |_| false);
            for (number, output) in outputs.iter().enumerate() {
                let value = inner.value(*output, Order::Natural)?;
                inner.out.output(&format!("{name}/{attribute}:{number}"), value);
            }
            add(&mut untranslated, std::mem::take(&mut inner.untranslated));
            bodies.push((attribute, inner.out.finish().body));
        }
        if self.is_left(node, untranslated) {
            return Some(());
        }
        let mut made = self.out.main.op("If", [which]);
        for (attribute, body) in bodies {
            made = made.attribute(attribute, AttributeValue::Body(Box::new(body)));
        }
        let made = made.list_of_outputs(&name, node.outputs.len());
        for (output, made) in node.outputs.iter().zip(made) {
            if let Some(output) = output {
                self.values[output.0 as usize] = Some(Source::Made(Placed::natural(made)));
            }
        }
        Some(())
    }

    /// Returns `true` if the bodies of a node have operators that cannot be translated.
    ///
    /// These operators are counted instead of the node.
    fn is_left(&mut self, node: &Node, untranslated: Untranslated) -> bool {
        let is_any = !untranslated.is_empty();
        if is_any {
            add(&mut self.untranslated, untranslated);
            self.leave(node);
        }
        is_any
    }

    fn repeat(&mut self, node: &Node) -> Option<()> {
        let body = self.functions.body(node.text("body")?)?;
        let cond = self.functions.body(node.text("cond")?)?;
        let count = node.inputs.len();
        let fits = body.inputs.len() == count
            && body.outputs.len() == count
            && cond.inputs.len() == count
            && cond.outputs.len() == 1
            && node.outputs.len() <= count;
        fits.then_some(())?;
        let counters: Vec<bool> = (0..count).map(|at| self.is_counter(node, &body, at)).collect();
        let limits = self.limits(node, &body, &cond, &counters);
        let (mut variables, mut lent) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut kinds = vec![ValueType::Unknown; count];
        for (at, kind) in kinds.iter_mut().enumerate() {
            let variable = self.variable(node, &body, at, &counters, limits.as_deref())?;
            let source = self.source(node, at)?.clone();
            lent.push(match variable {
                Variable::Fixed => self.lent(&source)?,
                Variable::State => {
                    let id = self.natural(node, at)?;
                    kind.clone_from(self.out.kind(id));
                    Lent::Nothing
                }
                Variable::Items { .. } => Lent::Nothing,
            });
            variables.push(variable);
        }
        let own = Loop { body: &body, cond: &cond, variables, lent, limits };
        for _ in 0..ATTEMPTS {
            let round = self.round(&own, &kinds)?;
            if self.is_left(node, round.untranslated) {
                return Some(());
            }
            if round.kinds == kinds {
                return self.looped(node, &own, round.body);
            }
            kinds = round.kinds;
        }
        None
    }

    /// Returns `true` if a variable starts at 0 and increases by one in each round.
    fn is_counter(&mut self, node: &Node, body: &Body, at: usize) -> bool {
        if self.ints(node, at).as_deref() != Some(&[0]) {
            return false;
        }
        let output = passed(body, body.outputs[at]);
        let ValueOrigin::Node(maker) = body.value(output).origin else { return false };
        let maker = body.node(maker);
        let [Some(a), Some(b)] = maker.inputs.as_slice() else { return false };
        let sides = [passed(body, *a), passed(body, *b)];
        let is_one = |id: ValueId| self.fixed_int(body, id) == Some(1);
        let own = body.inputs[at];
        matches!(&*maker.op.name, "Add" | "AddV2")
            && ((sides[0] == own && is_one(sides[1])) || (sides[1] == own && is_one(sides[0])))
    }

    /// The number that a value of a body is, if it is one.
    fn fixed_int(&self, body: &Body, id: ValueId) -> Option<i64> {
        match Source::fixed(body.value(passed(body, id)), self.weights)? {
            Source::Constant(constant) => match constant.as_ints()?.as_slice() {
                [one] => Some(*one),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the limits of the counters, if the condition only compares counters with them.
    fn limits(
        &mut self,
        node: &Node,
        body: &Body,
        cond: &Body,
        counters: &[bool],
    ) -> Option<Vec<Count>> {
        /// Comparisons of a condition, at most.
        const MOST: usize = 16;

        let position = |id: ValueId| cond.inputs.iter().position(|input| *input == id);
        let mut limits = Vec::new();
        let mut open = vec![cond.outputs[0]];
        let mut steps = 0;
        while let Some(id) = open.pop() {
            steps += 1;
            (steps <= MOST).then_some(())?;
            let ValueOrigin::Node(maker) = cond.value(passed(cond, id)).origin else { return None };
            let maker = cond.node(maker);
            let [Some(a), Some(b)] = maker.inputs.as_slice() else { return None };
            match &*maker.op.name {
                "LogicalAnd" => open.extend([*a, *b]),
                "Less" if counters[position(passed(cond, *a))?] => {
                    let limit = match self.fixed_int(cond, *b) {
                        Some(limit) => Count::Known(limit),
                        None => {
                            let at = position(passed(cond, *b))?;
                            let is_fixed = passed(body, body.outputs[at]) == body.inputs[at];
                            is_fixed.then_some(())?;
                            self.count(node, at)?
                        }
                    };
                    if !limits.contains(&limit) {
                        limits.push(limit);
                    }
                }
                _ => return None,
            }
        }
        Some(limits)
    }

    fn variable(
        &mut self,
        node: &Node,
        body: &Body,
        at: usize,
        counters: &[bool],
        limits: Option<&[Count]>,
    ) -> Option<Variable> {
        let output = passed(body, body.outputs[at]);
        if output == body.inputs[at] {
            return Some(Variable::Fixed);
        }
        let Source::List { count, .. } = self.source(node, at)?.clone() else {
            return Some(Variable::State);
        };
        let ValueOrigin::Node(setter) = body.value(output).origin else { return None };
        let setter = body.node(setter);
        let is_setter = &*setter.op.name == "TensorListSetItem"
            && setter.input(0).map(|list| passed(body, list)) == Some(body.inputs[at]);
        let (true, Some(index), Some(item)) = (is_setter, setter.input(1), setter.input(2)) else {
            return Some(Variable::State);
        };
        let index = passed(body, index);
        let counter = body.inputs.iter().position(|input| *input == index);
        // As many rounds as items.
        if counter.is_some_and(|counter| counters[counter]) && limits == Some(&[count][..]) {
            return Some(Variable::Items { item, is_last: false });
        }
        if count == Count::Known(1) && limits.is_some() && self.fixed_int(body, index) == Some(0) {
            return Some(Variable::Items { item, is_last: true });
        }
        Some(Variable::State)
    }

    /// Writes the body of a loop whose variables have these types before a round.
    fn round(&mut self, own: &Loop<'_>, kinds: &[ValueType]) -> Option<Round> {
        self.functions.spend(own.body.nodes.len())?;
        let mut inner = self.within(own.body)?;
        inner.out.input("round", &ValueType::tensor(ElementType::I64, []));
        let goes_on = inner.out.input("goes_on", &ValueType::tensor(ElementType::Bool, []));
        let mut wanted = Vec::new();
        for (at, variable) in own.variables.iter().enumerate() {
            let input = own.body.inputs[at].0 as usize;
            inner.values[input] = match variable {
                Variable::Fixed => own.lent[at].within(&mut inner.out),
                Variable::State => {
                    wanted.push(own.body.outputs[at]);
                    Some(Source::Made(inner.out.input(&format!("before{at}"), &kinds[at])))
                }
                Variable::Items { item, .. } => {
                    wanted.push(*item);
                    None
                }
            };
        }
        inner.nodes(&wanted, |_| false);
        let (mut next, mut items) = (Vec::new(), Vec::new());
        let mut after = kinds.to_vec();
        let mut known = Vec::new();
        for (at, variable) in own.variables.iter().enumerate() {
            known.push(match variable {
                Variable::Fixed => inner.values[own.body.inputs[at].0 as usize].clone(),
                Variable::State => {
                    let value = inner.value(own.body.outputs[at], Order::Natural)?;
                    after[at] = both(&kinds[at], inner.out.kind(value))?;
                    next.push(value);
                    Some(Source::Made(Placed::natural(value)))
                }
                Variable::Items { item, .. } => {
                    items.push(inner.value(*item, Order::Natural)?);
                    None
                }
            });
        }
        let goes_on = match own.limits {
            Some(_) => goes_on.id,
            None => inner.condition(own.cond, known)?,
        };
        inner.out.output("goes_on_then", goes_on);
        for (number, value) in next.into_iter().enumerate() {
            inner.out.output(&format!("after{number}"), value);
        }
        for (number, value) in items.into_iter().enumerate() {
            inner.out.output(&format!("item{number}"), value);
        }
        let untranslated = std::mem::take(&mut inner.untranslated);
        Some(Round { body: inner.out.finish().body, kinds: after, untranslated })
    }

    /// Writes a loop's condition to this body, of variables that are these here.
    fn condition(&mut self, cond: &Body, variables: Vec<Option<Source>>) -> Option<ValueId> {
        let mut own = self.within(cond)?;
        std::mem::swap(&mut own.out, &mut self.out);
        for (input, source) in cond.inputs.iter().zip(variables) {
            own.values[input.0 as usize] = source;
        }
        own.nodes(&cond.outputs, |_| false);
        let made = own.value(cond.outputs[0], Order::Natural);
        std::mem::swap(&mut own.out, &mut self.out);
        let untranslated = std::mem::take(&mut own.untranslated);
        add(&mut self.untranslated, untranslated);
        Some(self.out.cast(made?, ElementType::Bool, "condition"))
    }

    /// Writes the loop.
    fn looped(&mut self, node: &Node, own: &Loop<'_>, body: Body) -> Option<()> {
        let (_, name) = self.output(node)?;
        let (mut most, mut begins) = (None, None);
        match &own.limits {
            Some(limits) => {
                let mut longs = Vec::with_capacity(limits.len());
                for limit in limits {
                    longs.push(self.counted(*limit, &format!("{name}/limit")));
                }
                most = match longs.as_slice() {
                    [one] => Some(*one),
                    _ => Some(self.out.main.op("Min", longs).output(&format!("{name}/rounds"))),
                };
            }
            None => {
                let known: Option<Vec<_>> =
                    (0..node.inputs.len()).map(|at| Some(self.source(node, at).cloned())).collect();
                begins = Some(self.condition(own.cond, known?)?);
            }
        }
        let mut states = Vec::new();
        for (at, variable) in own.variables.iter().enumerate() {
            if let Variable::State = variable {
                states.push(self.natural(node, at)?);
            }
        }
        let mut made = self.out.main.op("Loop", []).optional(most).optional(begins);
        for state in &states {
            made = made.optional(Some(*state));
        }
        let is_items = |variable: &&Variable| matches!(variable, Variable::Items { .. });
        let items = own.variables.iter().filter(is_items).count();
        let made = made.attribute("body", AttributeValue::Body(Box::new(body)));
        let made = made.list_of_outputs(&name, states.len() + items);
        let (states, items) = made.split_at(states.len());
        let is_round = |count: &Count| matches!(count, Count::Known(1..));
        let has_rounds = own.limits.as_ref().is_some_and(|limits| limits.iter().all(is_round));
        let (mut states, mut items) = (states.iter(), items.iter());
        for (at, variable) in own.variables.iter().enumerate() {
            let source = match variable {
                Variable::Fixed => self.source(node, at)?.clone(),
                Variable::State => Source::Made(Placed::natural(*states.next()?)),
                Variable::Items { is_last, .. } => {
                    let all = *items.next()?;
                    let mut own = all;
                    if *is_last {
                        // Without a round, it is as it was before.
                        let before = match self.source(node, at)?.clone() {
                            source @ Source::List { .. } if !has_rounds => {
                                self.written(&source, Order::Natural, 0)
                            }
                            _ => None,
                        };
                        own = self.last(before, all, &name);
                    }
                    Source::Made(Placed::natural(own))
                }
            };
            if let Some(output) = node.outputs.get(at).copied().flatten() {
                self.values[output.0 as usize] = Some(source);
            }
        }
        Some(())
    }

    /// Returns the last item of a list, as a list of one.
    ///
    /// `before` is prepended to the list, so it is the result if the list is empty.
    fn last(&mut self, before: Option<ValueId>, all: ValueId, name: &str) -> ValueId {
        let main = &mut self.out.main;
        let all = match before {
            Some(before) => {
                let both = main.op("Concat", [before, all]).attribute("axis", 0);
                both.output(&format!("{name}/all"))
            }
            None => all,
        };
        let (start, end) = (main.ints(&[-1]), main.ints(&[i64::MAX]));
        main.op("Slice", [all, start, end]).output(&format!("{name}/last"))
    }
}

fn add(to: &mut Untranslated, found: Untranslated) {
    for (name, count) in found {
        *to.entry(name).or_default() += count;
    }
}

/// The value that another one is, through nodes that return what they get.
fn passed(body: &Body, id: ValueId) -> ValueId {
    let mut id = id;
    // Damaged graphs may have cycles.
    for _ in 0..=body.nodes.len() {
        let ValueOrigin::Node(node) = body.value(id).origin else { break };
        let node = body.node(node);
        let is_passed = &*node.op.domain == crate::graph::DOMAIN
            && PASSED.contains(&&*node.op.name)
            && node.outputs.len() == 1;
        match node.input(0).filter(|_| is_passed) {
            Some(input) => id = input,
            None => break,
        }
    }
    id
}

/// Integers that are known as a constant of this type.
fn constant(tensor: &TensorType, known: &[i64]) -> Option<Constant> {
    let element = tensor.element?;
    let data = match element {
        ElementType::I64 => known.iter().flat_map(|one| one.to_le_bytes()).collect(),
        ElementType::I32 => {
            let narrow: Option<Vec<i32>> =
                known.iter().map(|one| i32::try_from(*one).ok()).collect();
            narrow?.iter().flat_map(|one| one.to_le_bytes()).collect()
        }
        _ => return None,
    };
    let shape: Option<Vec<u64>> = tensor.shape.as_ref()?.iter().map(Dim::size).collect();
    Some(Constant { name: String::new(), element, shape: shape?, data: ConstantData::Bytes(data) })
}

/// Returns the common part of two types, or `None` if their element types differ.
fn both(a: &ValueType, b: &ValueType) -> Option<ValueType> {
    let (ValueType::Tensor(a), ValueType::Tensor(b)) = (a, b) else {
        return Some(ValueType::Unknown);
    };
    let element = match (a.element, b.element) {
        (Some(a), Some(b)) if a != b => return None,
        (a, b) => a.or(b),
    };
    let shape = match (&a.shape, &b.shape) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let dim = |(a, b): (&Dim, &Dim)| if a == b { a.clone() } else { Dim::Unknown };
            Some(a.iter().zip(b).map(dim).collect())
        }
        _ => None,
    };
    Some(ValueType::Tensor(TensorType { element, shape }))
}
