//! Symbolic sizes of programs of torch.export, which loading hands to `sympy.sympify`: it evaluates
//! Python.
//!
//! ```text
//! expression   words of: NAME  NUMBER  NAME(...)  + - * / % ** // ~ & | < > = ! ,
//! call         of a function of sympy or PyTorch: Mul(Integer(2), Symbol('s0', integer=True))
//! text         as the first argument of a symbol or number only
//! ```
//!
//! Attributes, subscripts, calls of anything else and private names are none of it.

use super::python::{Token, tokens};

/// Functions of sympy and of `torch.utils._sympy.functions` that expressions are printed with.
const FUNCTIONS: [&str; 86] = [
    "Abs",
    "Add",
    "And",
    "BooleanFalse",
    "BooleanTrue",
    "CeilDiv",
    "CeilToInt",
    "CleanDiv",
    "Dummy",
    "Eq",
    "Equality",
    "ExprCondPair",
    "FloatPow",
    "FloatTrueDiv",
    "Float",
    "FloorDiv",
    "FloorToInt",
    "Ge",
    "GreaterThan",
    "Gt",
    "ITE",
    "Identity",
    "IntTrueDiv",
    "Integer",
    "IsNonOverlappingAndDenseIndicator",
    "LShift",
    "Le",
    "LessThan",
    "Lt",
    "Max",
    "Min",
    "Mod",
    "ModularIndexing",
    "Mul",
    "Ne",
    "Not",
    "Or",
    "Piecewise",
    "Pow",
    "PowByNatural",
    "PythonMod",
    "RShift",
    "Rational",
    "Relational",
    "RoundDecimal",
    "RoundToInt",
    "StrictGreaterThan",
    "StrictLessThan",
    "Symbol",
    "ToFloat",
    "TruncToFloat",
    "TruncToInt",
    "Tuple",
    "Unequality",
    "Where",
    "Xor",
    "abs",
    "acos",
    "asin",
    "atan",
    "bool",
    "ceiling",
    "cos",
    "cosh",
    "exp",
    "float",
    "floor",
    "int",
    "log",
    "log2",
    "max",
    "min",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "BitwiseFn_bitwise_and",
    "BitwiseFn_bitwise_or",
    "OpaqueUnaryFn_exp",
    "OpaqueUnaryFn_log",
    "OpaqueUnaryFn_log2",
    "OpaqueUnaryFn_sqrt",
    "OpaqueUnaryFn_cos",
    "OpaqueUnaryFn_sin",
];

/// Functions whose first argument is a text that is not evaluated.
const OF_TEXT: [&str; 5] = ["Dummy", "Float", "Integer", "Rational", "Symbol"];

/// Returns the reason why a text is not a symbolic size, or `None` if it is one.
pub(super) fn reject(expression: &str) -> Option<&'static str> {
    let tokens = tokens(expression);
    let before = |at: usize, back: usize| at.checked_sub(back).map(|at| &tokens[at]);
    for (at, token) in tokens.iter().enumerate() {
        let refused = match token {
            Token::Name(name) if name.contains("__") || !name.is_ascii() => {
                Some("has a private name")
            }
            Token::Name("lambda" | "import" | "for" | "if" | "else" | "await" | "yield") => {
                Some("is a program")
            }
            Token::Name(_) | Token::Number(_) => None,
            Token::Text(_) => {
                let is_first = before(at, 1).is_some_and(|token| token.is('('));
                let of = before(at, 2);
                let is_named =
                    matches!(of, Some(Token::Name(name)) if OF_TEXT.contains(name)) && is_first;
                (!is_named).then_some("has a text")
            }
            Token::Mark('(') => match before(at, 1) {
                Some(Token::Name(name)) if !FUNCTIONS.contains(name) => Some("calls a function"),
                Some(Token::Mark(')') | Token::Text(_) | Token::Number(_)) => Some("calls a value"),
                _ => None,
            },
            Token::Mark(mark) if ")+-*/%,<>=!~&|\n".contains(*mark) => None,
            Token::Mark('.') => Some("takes an attribute"),
            Token::Mark(_) => Some("is a program"),
        };
        if refused.is_some() {
            return refused;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sizes_as_sympy_prints_them_are_accepted() {
        for expression in [
            "s0",
            "2*s1 + 1",
            "((s0 + 1)//2)",
            "Max(1, u0)",
            "Mul(Integer(12), Symbol('s1', positive=True, integer=True))",
            "Eq(Mod(6*s0, 12), 0)",
            "Float('1.5', precision=53)",
            "-int_oo",
            "s0 >= 2",
        ] {
            assert_eq!(reject(expression), None, "{expression}");
        }
        for expression in [
            "__import__('os').system('true')",
            "().__class__",
            "s0.x",
            "eval('1')",
            "Add('1')",
            "Symbol('a', '1')",
            "(lambda: 1)()",
            "[s0][0]",
            "Symbol('a')('b')",
            "e\u{ff56}al(1)",
            "{1: 2}",
            "s0 if s1 else s2",
        ] {
            assert!(reject(expression).is_some(), "{expression}");
        }
    }
}
