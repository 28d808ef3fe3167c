//! McCabe's number of a function: one, and one for each place where its way divides.
//!
//! Counted are `if`, `if let`, `let ... else`, loops, `&&`, `||`, guards, and the arms of a `match`
//! beyond the first. Not counted are `?`, which leaves the function as an error does, and what
//! macros contain. A closure belongs to the function that it stands in; tests are left out.

use syn::visit::{self, Visit};
use syn::{
    Attribute, BinOp, Expr, ImplItemFn, Item, ItemFn, ItemImpl, ItemMod, Local, Signature,
    TraitItemFn, Type,
};

/// A function that has a body.
#[derive(Debug)]
pub(crate) struct Function {
    /// Name of the function, with the type that it belongs to.
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Arms of `match` beyond the first of each.
    pub(crate) arms: usize,
    /// All other branches.
    pub(crate) branches: usize,
}

impl Function {
    pub(crate) fn complexity(&self) -> usize {
        1 + self.arms + self.branches
    }
}

/// The functions of a file in the order in which they begin.
///
/// # Errors
/// The text is not Rust.
pub(crate) fn functions(text: &str) -> syn::Result<Vec<Function>> {
    let file = syn::parse_file(text)?;
    let mut counter = Counter::default();
    counter.visit_file(&file);
    counter.functions.sort_by_key(|function| function.line);
    Ok(counter.functions)
}

#[derive(Default)]
struct Counter {
    functions: Vec<Function>,
    /// Functions that were entered and not left: a nested one counts for itself.
    open: Vec<Function>,
    owner: Option<String>,
}

impl Counter {
    fn enter(&mut self, signature: &Signature, visit_body: impl FnOnce(&mut Self)) {
        let name = match &self.owner {
            Some(owner) => format!("{owner}::{}", signature.ident),
            None => signature.ident.to_string(),
        };
        self.open.push(Function {
            name,
            line: signature.ident.span().start().line,
            arms: 0,
            branches: 0,
        });
        visit_body(self);
        self.functions.extend(self.open.pop());
    }

    fn branch(&mut self) {
        if let Some(function) = self.open.last_mut() {
            function.branches += 1;
        }
    }
}

impl<'ast> Visit<'ast> for Counter {
    fn visit_item(&mut self, item: &'ast Item) {
        let outside = std::mem::take(&mut self.owner);
        visit::visit_item(self, item);
        self.owner = outside;
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, block: &'ast ItemImpl) {
        if let Type::Path(path) = &*block.self_ty {
            self.owner = path.path.segments.last().map(|segment| segment.ident.to_string());
        }
        visit::visit_item_impl(self, block);
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_test(&function.attrs) {
            self.enter(&function.sig, |counter| visit::visit_item_fn(counter, function));
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.enter(&function.sig, |counter| visit::visit_impl_item_fn(counter, function));
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if function.default.is_some() {
            self.enter(&function.sig, |counter| visit::visit_trait_item_fn(counter, function));
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if local.init.as_ref().is_some_and(|init| init.diverge.is_some()) {
            self.branch();
        }
        visit::visit_local(self, local);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::If(_) | Expr::While(_) | Expr::ForLoop(_) | Expr::Loop(_) => self.branch(),
            Expr::Binary(binary) if matches!(binary.op, BinOp::And(_) | BinOp::Or(_)) => {
                self.branch();
            }
            Expr::Match(choice) => {
                let guards = choice.arms.iter().filter(|arm| arm.guard.is_some()).count();
                if let Some(function) = self.open.last_mut() {
                    function.arms += choice.arms.len().saturating_sub(1);
                    function.branches += guards;
                }
            }
            _ => {}
        }

        visit::visit_expr(self, expression);
    }
}

/// Returns `true` if an item is `#[cfg(test)]` or `#[test]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<syn::Path>()
                    .is_ok_and(|condition| condition.is_ident("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complexities(text: &str) -> Vec<(String, usize)> {
        let functions = functions(text).expect("Rust");
        functions
            .into_iter()
            .map(|function| (function.complexity(), function.name))
            .map(|(n, name)| (name, n))
            .collect()
    }

    #[test]
    fn straight_line_code_counts_one_and_the_question_mark_adds_nothing() {
        assert_eq!(complexities("fn f() -> R { g()?; h()?; Ok(()) }"), [("f".to_owned(), 1)]);
    }

    #[test]
    fn every_kind_of_branch_adds_one() {
        for body in [
            "if a {}",
            "if let Some(a) = b {}",
            "let Some(a) = b else { return };",
            "while a {}",
            "for a in b {}",
            "loop { break }",
            "let c = a && b;",
            "let c = a || b;",
            "match a { 1 => {} _ => {} }",
            "g(|a| if a { 1 } else { 2 });",
        ] {
            assert_eq!(
                complexities(&format!("fn f() {{ {body} }}")),
                [("f".to_owned(), 2)],
                "{body}"
            );
        }
        assert_eq!(
            complexities("fn f() { match a { 1 if b => {} 2 => {} _ => {} } }"),
            [("f".to_owned(), 4)]
        );
    }

    #[test]
    fn nested_functions_count_separately_and_methods_have_their_type_name() {
        let text = "impl A { fn f() { if a {}\n fn g() { if b && c {} } } }\n trait T { fn h() {} \
            fn i(); }";
        let expected = [("A::f", 2), ("g", 3), ("h", 1)]
            .map(|(name, complexity)| (name.to_owned(), complexity));
        assert_eq!(complexities(text), expected);
    }

    #[test]
    fn tests_are_left_out() {
        assert_eq!(complexities("#[cfg(test)] mod tests { fn f() {} } #[test] fn g() {}"), []);
    }
}
