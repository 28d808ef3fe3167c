//! The small language of family files: `heads * head_dim`, `layer % 2 == 0`,
//! `text_config.hidden_size`.
//!
//! | from loosest to tightest | |
//! |---|---|
//! | `a ? b : c` | `b` where `a` holds, else `c`; without `: c`, no value then |
//! | `||` | either, as logic |
//! | `&&` | both |
//! | `==` `!=` `<` `<=` `>` `>=` | comparison; the last four of numbers |
//! | `+` `-` | |
//! | `*` `/` `%` | division rounds down |
//! | `!` `-` | of what follows |
//! | `name` `a.b` `list[index]` `12` `0.5` `'text'` `true` `[1, 2]` `(...)` | |
//! | `ratio(a, b)` `sqrt(a)` | the quotient as it is, and the square root |
//! | `power(a, b)` | a to the power of b |
//! | `length(list)` `largest(list)` `smallest(list)` | how many elements it has, and the largest or smallest of its numbers |
//! | `quantile(a)` | the number that a normal variable is below with the probability a: infinite for 0 and 1 |
//! | `contains(list, a)` | whether a is one of its elements |
//!
//! What can't be computed (an unknown name, text times a number, division by zero) is not an error
//! but no value: a family then simply expects less. `true || x` and `x && false` need no `x`.

use std::iter::Peekable;
use std::str::Chars;

use apr_core::{Error, Result};
use serde_json::Value as Json;

use crate::quantile::normal_quantile;

/// Deepest nesting of an expression.
const MAX_DEPTH: usize = 32;

/// Bytes of an expression: each operator of a sum is a level of its tree.
const MAX_TEXT: usize = 4096;

/// Value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Number(f64),
    Truth(bool),
    Text(String),
    List(Vec<Self>),
}

impl Value {
    /// Returns the value of a configuration entry, or `None` for null and objects.
    pub(crate) fn of(json: &Json) -> Option<Self> {
        match json {
            Json::Number(number) => number.as_f64().map(Self::Number),
            Json::Bool(truth) => Some(Self::Truth(*truth)),
            Json::String(text) => Some(Self::Text(text.clone())),
            Json::Array(items) => items.iter().map(Self::of).collect::<Option<_>>().map(Self::List),
            Json::Null | Json::Object(_) => None,
        }
    }

    /// The value as JSON has it: whole numbers without a point. Numbers that JSON does not know
    /// have none.
    pub(crate) fn to_json(&self) -> Option<Json> {
        match self {
            Self::Number(number) => match self.as_size() {
                Some(size) => Some(size.into()),
                None => serde_json::Number::from_f64(*number).map(Json::Number),
            },
            Self::Truth(truth) => Some((*truth).into()),
            Self::Text(text) => Some(text.clone().into()),
            Self::List(items) => {
                items.iter().map(Self::to_json).collect::<Option<Vec<_>>>().map(Json::Array)
            }
        }
    }

    /// A count or a length: a whole number from 0 on that `f64` holds exactly.
    pub(crate) fn as_size(&self) -> Option<u64> {
        const EXACT: f64 = (1_u64 << 53) as f64;
        match self {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "whole and in range"
            )]
            &Self::Number(number) if number.fract() == 0.0 && (0.0..=EXACT).contains(&number) => {
                Some(number as u64)
            }
            _ => None,
        }
    }

    /// The item of a list at this place.
    fn element(&self, index: u64) -> Option<Self> {
        let index = usize::try_from(index).ok()?;
        match self {
            Self::List(items) => items.get(index).cloned(),
            Self::Text(text) => Some(Self::Text(text.chars().nth(index)?.into())),
            _ => None,
        }
    }

    fn as_number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn as_truth(&self) -> Option<bool> {
        if let Self::Truth(truth) = self { Some(*truth) } else { None }
    }
}

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expression {
    Constant(Value),
    Name(String),
    Element(Box<Self>, Box<Self>),
    List(Vec<Self>),
    Not(Box<Self>),
    Negative(Box<Self>),
    Binary(Operator, Box<Self>, Box<Self>),
    Conditional(Box<Self>, Box<Self>, Option<Box<Self>>),
    Call(Function, Vec<Self>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Ratio,
    Sqrt,
    Power,
    Length,
    Largest,
    Smallest,
    Quantile,
    Contains,
}

impl Function {
    /// Returns the function of this name and its number of arguments.
    fn named(name: &str) -> Option<(Self, usize)> {
        match name {
            "ratio" => Some((Self::Ratio, 2)),
            "sqrt" => Some((Self::Sqrt, 1)),
            "power" => Some((Self::Power, 2)),
            "length" => Some((Self::Length, 1)),
            "largest" => Some((Self::Largest, 1)),
            "smallest" => Some((Self::Smallest, 1)),
            "quantile" => Some((Self::Quantile, 1)),
            "contains" => Some((Self::Contains, 2)),
            _ => None,
        }
    }

    fn apply(self, arguments: &[Value]) -> Option<Value> {
        let number = match (self, arguments) {
            (Self::Ratio, [a, b]) => a.as_number()? / b.as_number()?,
            (Self::Sqrt, [a]) => a.as_number()?.sqrt(),
            (Self::Power, [a, b]) => a.as_number()?.powf(b.as_number()?),
            (Self::Length, [Value::List(items)]) => items.len() as f64,
            (Self::Largest | Self::Smallest, [Value::List(items)]) => {
                let numbers: Option<Vec<f64>> = items.iter().map(Value::as_number).collect();
                let chosen = if self == Self::Largest { f64::max } else { f64::min };
                numbers?.into_iter().reduce(chosen)?
            }
            (Self::Quantile, [a]) => {
                let share = a.as_number().filter(|share| (0.0..=1.0).contains(share))?;
                return Some(Value::Number(normal_quantile(share)));
            }
            (Self::Contains, [Value::List(items), item]) => {
                return Some(Value::Truth(items.contains(item)));
            }
            _ => return None,
        };
        number.is_finite().then_some(Value::Number(number))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operator {
    Or,
    And,
    Equal,
    Different,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Plus,
    Minus,
    Times,
    Divide,
    Remainder,
}

impl Operator {
    /// Spelling and how tightly it binds; longer spellings before their beginnings.
    const ALL: [(&'static str, Self, u8); 13] = [
        ("||", Self::Or, 1),
        ("&&", Self::And, 2),
        ("==", Self::Equal, 3),
        ("!=", Self::Different, 3),
        ("<=", Self::LessOrEqual, 3),
        (">=", Self::GreaterOrEqual, 3),
        ("<", Self::Less, 3),
        (">", Self::Greater, 3),
        ("+", Self::Plus, 4),
        ("-", Self::Minus, 4),
        ("*", Self::Times, 5),
        ("/", Self::Divide, 5),
        ("%", Self::Remainder, 5),
    ];

    /// Returns `true` if one side alone gives the result.
    fn is_decided_by(self, side: &Value) -> bool {
        matches!((self, side), (Self::Or, Value::Truth(true)) | (Self::And, Value::Truth(false)))
    }

    fn apply(self, left: &Value, right: &Value) -> Option<Value> {
        let numbers = || Some((left.as_number()?, right.as_number()?));
        let compared =
            |holds: fn(f64, f64) -> bool| numbers().map(|(a, b)| Value::Truth(holds(a, b)));
        let computed = |of: fn(f64, f64) -> f64| {
            numbers().map(|(a, b)| of(a, b)).filter(|number| number.is_finite()).map(Value::Number)
        };
        match self {
            Self::Or => Some(Value::Truth(left.as_truth()? || right.as_truth()?)),
            Self::And => Some(Value::Truth(left.as_truth()? && right.as_truth()?)),
            // Values of two types differ, which is no error.
            Self::Equal => Some(Value::Truth(left == right)),
            Self::Different => Some(Value::Truth(left != right)),
            Self::Less => compared(|a, b| a < b),
            Self::LessOrEqual => compared(|a, b| a <= b),
            Self::Greater => compared(|a, b| a > b),
            Self::GreaterOrEqual => compared(|a, b| a >= b),
            Self::Plus => computed(|a, b| a + b),
            Self::Minus => computed(|a, b| a - b),
            Self::Times => computed(|a, b| a * b),
            Self::Divide => computed(|a, b| (a / b).floor()),
            Self::Remainder => computed(f64::rem_euclid),
        }
    }
}

impl Expression {
    /// # Errors
    /// E001 when the text is not an expression.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_TEXT {
            let message = format!("an expression of {} bytes; {MAX_TEXT} are allowed", text.len());
            return Err(Error::memory(message));
        }
        let mut parser = Parser { rest: text.chars().peekable(), depth: 0 };
        let whole = parser.conditional().filter(|_| parser.next_token().is_none());
        whole.ok_or_else(|| Error::format(format!("'{text}' is not an expression")))
    }

    /// Returns the value of the expression; `lookup` returns the values of names.
    pub(crate) fn value(&self, lookup: &mut dyn FnMut(&str) -> Option<Value>) -> Option<Value> {
        match self {
            Self::Constant(value) => Some(value.clone()),
            Self::Name(name) => lookup(name),
            Self::Element(list, index) => {
                let index = index.value(lookup)?.as_size()?;
                list.value(lookup)?.element(index)
            }
            Self::List(items) => {
                items.iter().map(|item| item.value(lookup)).collect::<Option<_>>().map(Value::List)
            }
            Self::Not(inner) => Some(Value::Truth(!inner.value(lookup)?.as_truth()?)),
            Self::Negative(inner) => Some(Value::Number(-inner.value(lookup)?.as_number()?)),
            Self::Binary(operator, left, right) => {
                let decided = |side: &Option<Value>| {
                    side.as_ref().is_some_and(|side| operator.is_decided_by(side))
                };
                let left = left.value(lookup);
                if decided(&left) {
                    return left;
                }
                // A side without a value leaves the other one to decide.
                let right = right.value(lookup);
                if decided(&right) {
                    return right;
                }
                operator.apply(&left?, &right?)
            }
            Self::Conditional(when, then, otherwise) => {
                let is_so = when.value(lookup)?.as_truth()?;
                if is_so { then.value(lookup) } else { otherwise.as_ref()?.value(lookup) }
            }
            Self::Call(function, arguments) => {
                let values: Option<Vec<Value>> =
                    arguments.iter().map(|argument| argument.value(lookup)).collect();
                function.apply(&values?)
            }
        }
    }

    /// Returns the names in the expression, in order.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::Constant(_) => Vec::new(),
            Self::Name(name) => vec![name],
            Self::Not(inner) | Self::Negative(inner) => inner.names(),
            Self::Element(left, right) | Self::Binary(_, left, right) => {
                [left.names(), right.names()].concat()
            }
            Self::Conditional(when, then, otherwise) => {
                let parts = [Some(when), Some(then), otherwise.as_ref()];
                parts.into_iter().flatten().flat_map(|part| part.names()).collect()
            }
            Self::Call(_, inner) | Self::List(inner) => {
                inner.iter().flat_map(Self::names).collect()
            }
        }
    }

    /// Returns `true` if the expression contains a name.
    pub(crate) fn mentions(&self, name: &str) -> bool {
        match self {
            Self::Constant(_) => false,
            Self::Name(known) => known == name,
            Self::Not(inner) | Self::Negative(inner) => inner.mentions(name),
            Self::Element(left, right) | Self::Binary(_, left, right) => {
                left.mentions(name) || right.mentions(name)
            }
            Self::Conditional(when, then, otherwise) => {
                let parts = [Some(when), Some(then), otherwise.as_ref()];
                parts.into_iter().flatten().any(|part| part.mentions(name))
            }
            Self::Call(_, inner) | Self::List(inner) => {
                inner.iter().any(|inner| inner.mentions(name))
            }
        }
    }

    /// Returns the name, if the expression consists only of a name.
    pub(crate) fn as_name(&self) -> Option<&str> {
        if let Self::Name(name) = self { Some(name) } else { None }
    }
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    depth: usize,
}

impl Parser<'_> {
    fn next_token(&mut self) -> Option<char> {
        while self.rest.next_if(|character| character.is_whitespace()).is_some() {}
        self.rest.peek().copied()
    }

    fn eat(&mut self, expected: &str) -> bool {
        self.next_token();
        let mut ahead = self.rest.clone();
        let found = expected.chars().all(|character| ahead.next() == Some(character));
        if found {
            self.rest = ahead;
        }
        found
    }

    /// A whole expression.
    fn conditional(&mut self) -> Option<Expression> {
        let when = self.binary(0)?;
        if !self.eat("?") {
            return Some(when);
        }

        // A chain of conditions nests as well: each is the last part of the one before.
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let then = self.conditional()?;
        let otherwise = if self.eat(":") { Some(Box::new(self.conditional()?)) } else { None };
        self.depth -= 1;
        Some(Expression::Conditional(Box::new(when), Box::new(then), otherwise))
    }

    fn arguments(&mut self, count: usize) -> Option<Vec<Expression>> {
        let mut arguments = Vec::with_capacity(count);
        for at in 0..count {
            if !self.eat(if at == 0 { "(" } else { "," }) {
                return None;
            }
            arguments.push(self.conditional()?);
        }
        self.eat(")").then_some(arguments)
    }

    /// Operators that bind tighter than `loosest`, from left to right.
    fn binary(&mut self, loosest: u8) -> Option<Expression> {
        let mut left = self.unary()?;
        loop {
            self.next_token();
            let ahead = self.rest.clone();
            let found = Operator::ALL.iter().find(|(spelling, _, _)| self.eat(spelling));
            let Some(&(_, operator, strength)) =
                found.filter(|(_, _, strength)| *strength > loosest)
            else {
                // A looser operator is left to the caller.
                self.rest = ahead;
                return Some(left);
            };
            left = Expression::Binary(operator, Box::new(left), Box::new(self.binary(strength)?));
        }
    }

    fn unary(&mut self) -> Option<Expression> {
        self.depth += 1;
        let expression = if self.depth > MAX_DEPTH {
            None
        } else if self.eat("!") {
            Some(Expression::Not(Box::new(self.unary()?)))
        } else if self.eat("-") {
            Some(Expression::Negative(Box::new(self.unary()?)))
        } else {
            self.element()
        };
        self.depth -= 1;
        expression
    }

    fn element(&mut self) -> Option<Expression> {
        let atom = self.atom()?;
        if !self.eat("[") {
            return Some(atom);
        }
        let index = self.conditional()?;
        self.eat("]").then(|| Expression::Element(Box::new(atom), Box::new(index)))
    }

    fn atom(&mut self) -> Option<Expression> {
        if self.eat("(") {
            let inner = self.conditional()?;
            return self.eat(")").then_some(inner);
        }

        if self.eat("[") {
            let mut items = vec![self.conditional()?];
            while self.eat(",") {
                items.push(self.conditional()?);
            }
            return self.eat("]").then_some(Expression::List(items));
        }

        if self.eat("'") {
            let text = self.take_while(|character| character != '\'');
            return self.eat("'").then_some(Expression::Constant(Value::Text(text)));
        }

        let word = self
            .take_while(|character| character.is_ascii_alphanumeric() || "_.".contains(character));
        if let Some((function, count)) = Function::named(&word) {
            return Some(Expression::Call(function, self.arguments(count)?));
        }

        match (word.as_str(), word.chars().next()?) {
            ("true", _) => Some(Expression::Constant(Value::Truth(true))),
            ("false", _) => Some(Expression::Constant(Value::Truth(false))),
            (number, '0'..='9' | '.') => {
                number.parse().ok().map(Value::Number).map(Expression::Constant)
            }
            _ => Some(Expression::Name(word)),
        }
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        std::iter::from_fn(|| self.rest.next_if(|&character| wanted(character))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<Value> {
        let known = |name: &str| match name {
            "heads" => Some(Value::Number(6.0)),
            "text_config.hidden_size" => Some(Value::Number(384.0)),
            "act" => Some(Value::Text("gelu".to_owned())),
            "conv_dim" => Some(Value::List(vec![Value::Number(512.0), Value::Number(256.0)])),
            _ => None,
        };
        Expression::parse(text).expect("an expression").value(&mut { known })
    }

    #[test]
    fn operators_bind_as_in_arithmetic() {
        let number = |text| value(text).and_then(|value| value.as_number());
        assert_eq!(number("1 + 2 * 3"), Some(7.0));
        assert_eq!(number("(1 + 2) * 3"), Some(9.0));
        assert_eq!(number("10 - 3 - 2"), Some(5.0));
        assert_eq!(number("text_config.hidden_size / heads"), Some(64.0));
        assert_eq!(number("7 / 2 * 2"), Some(6.0));
        assert_eq!(number("-heads + 7 % 4"), Some(-3.0));
        assert_eq!(number("conv_dim[2 - 1]"), Some(256.0));
    }

    #[test]
    fn comparisons_and_logic_give_truth() {
        let truth = |text| value(text).and_then(|value| value.as_truth());
        assert_eq!(truth("heads == 6 && act == 'gelu'"), Some(true));
        assert_eq!(truth("heads > 6 || act != 'gelu'"), Some(false));
        assert_eq!(truth("!(heads <= 5)"), Some(true));
        assert_eq!(truth("act == 'relu' || heads >= 6"), Some(true));
        assert_eq!(truth("nothing > 6 || heads == 6"), Some(true));
        assert_eq!(truth("nothing > 6 && heads == 7"), Some(false));
        assert_eq!(truth("nothing > 6 || heads == 7"), None);
    }

    #[test]
    fn a_condition_chooses() {
        let number = |text| value(text).and_then(|value| value.as_number());
        assert_eq!(number("heads == 6 ? 1 : 2"), Some(1.0));
        assert_eq!(number("heads == 7 ? 1 : heads == 6 ? 2 : 3"), Some(2.0));
        assert_eq!(number("heads == 7 ? 1"), None, "there is nothing else");
        assert_eq!(number("unknown ? 1 : 2"), None, "nobody knows which");
        assert_eq!(number("2 * (heads == 6 ? unknown : 3)"), None);
        assert_eq!(number("(heads == 7 ? unknown : 3) + 1"), Some(4.0));
    }

    #[test]
    fn functions_do_not_round() {
        let number = |text| value(text).and_then(|value| value.as_number());
        assert_eq!(number("ratio(heads, 4)"), Some(1.5));
        assert_eq!(number("sqrt(heads * heads / 1)"), Some(6.0));
        assert_eq!(number("3 * power(2, heads - 4)"), Some(12.0));
        assert_eq!(number("ratio(1.4, sqrt(2))"), Some(1.4 / 2_f64.sqrt()));
        assert_eq!(
            (number("sqrt(-1)"), number("ratio(1, 0)"), number("sqrt(act)")),
            (None, None, None)
        );
    }

    #[test]
    fn lists_are_written_and_measured() {
        let number = |text| value(text).and_then(|value| value.as_number());
        assert_eq!(number("[3, 4, heads][2]"), Some(6.0));
        assert_eq!(number("length(conv_dim) + length([1])"), Some(3.0));
        assert_eq!(number("largest(conv_dim)"), Some(512.0));
        assert_eq!(number("contains([1, heads], 6) ? 1 : 0"), Some(1.0));
        assert_eq!(number("contains(conv_dim, 6) ? 1 : 0"), Some(0.0));
        assert_eq!(number("contains(heads, 6) ? 1 : 0"), None);
        for (text, truth) in [("contains([3, 4], 4)", true), ("contains([3, 4], heads)", false)] {
            assert_eq!(value(text), Some(Value::Truth(truth)), "{text}");
        }
        assert_eq!(value("'M-*'[2]"), Some(Value::Text("*".to_owned())));
        for text in
            ["length(heads)", "largest([act])", "[heads, unknown][0]", "[1, 2][2]", "'M'[1]"]
        {
            assert_eq!(number(text), None, "{text}");
        }
        for text in ["[", "[]", "[1,", "[1 2]", "length()"] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn expressions_that_can_not_be_computed_have_no_value() {
        for text in [
            "unknown",
            "heads * unknown",
            "heads / 0",
            "act + 1",
            "conv_dim[2]",
            "heads && true",
            "heads[0]",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value("false && unknown"), Some(Value::Truth(false)), "one side decides");
        assert_eq!(value("true || unknown"), Some(Value::Truth(true)), "one side decides");
    }

    #[test]
    fn malformed_expressions_are_rejected() {
        let nested = "(".repeat(1000) + "1" + &")".repeat(1000);
        let chosen = "1 == 1 ? 1 : ".repeat(1000) + "2";
        for text in ["sqrt 4", "sqrt()", "sqrt(1", "ratio(1)", "1 ? ", "1 ? 2 :", ": 2", &chosen] {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
        for text in
            ["", "1 +", "* 2", "(1", "1)", "a b", "'open", "1.2.3", "conv_dim[1", "a = b", &nested]
        {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
        let long = "1+".repeat(1 << 20) + "1";
        assert_eq!(Expression::parse(&long).unwrap_err().code(), apr_core::Code::Memory);
    }

    #[test]
    fn sizes_are_whole_and_exact() {
        assert_eq!(Value::Number(384.0).as_size(), Some(384));
        for number in [-1.0, 0.5, 1e300, f64::NAN] {
            assert_eq!(Value::Number(number).as_size(), None, "{number}");
        }
    }
}
