//! New names of values in graphs: inputs, outputs, weights and what nodes compute.

use std::collections::{BTreeMap, BTreeSet};

use apr_core::{Error, Result};
use apr_graph::{Body, Graph, ValueOrigin};
use apr_view::Renamings;

use crate::simplify::bodies_mut;

/// Renames the values of graphs without function calls, by names or expressions. A weight is also
/// found by the name of its tensor. Returns the new names by the old ones.
///
/// # Errors
/// E001 for a renaming that matches no value, and for two values of one name.
pub(crate) fn rename(
    graphs: &mut [(String, Graph)],
    pairs: &[(String, String)],
) -> Result<BTreeMap<String, String>> {
    let renamings = Renamings::new(pairs.iter().cloned())?;
    let mut known = BTreeSet::new();
    for (_, graph) in graphs.iter() {
        for value in &graph.body.values {
            match &value.origin {
                ValueOrigin::Missing => continue,
                ValueOrigin::Weight(weight) => _ = known.insert(weight.tensor.as_str()),
                _ => {}
            }
            known.insert(value.name.as_str());
        }
    }
    let known: Vec<&str> = known.into_iter().filter(|name| !name.is_empty()).collect();
    let renamed = renamings.of(&known)?;
    for (_, graph) in graphs {
        for value in &mut graph.body.values {
            let tensor = match &value.origin {
                ValueOrigin::Weight(weight) => renamed.get(&weight.tensor),
                _ => None,
            };
            if let Some(new) = renamed.get(&value.name).or(tensor) {
                value.name.clone_from(new);
            }
        }
        follow(&mut graph.body)?;
    }
    Ok(renamed)
}

/// Renames what bodies within read of this body, and checks that names are unique.
fn follow(body: &mut Body) -> Result<()> {
    let mut names = BTreeSet::new();
    for value in &body.values {
        let is_named = !matches!(value.origin, ValueOrigin::Missing) && !value.name.is_empty();
        if is_named && !names.insert(value.name.clone()) {
            return Err(Error::format(format!("two values would be named '{}'", value.name)));
        }
    }
    let outer: Vec<String> = body.values.iter().map(|value| value.name.clone()).collect();
    for inner in body.nodes.iter_mut().flat_map(bodies_mut) {
        for value in &mut inner.values {
            match value.origin {
                ValueOrigin::Outer(of) => value.name.clone_from(&outer[of.0 as usize]),
                ValueOrigin::Missing => {}
                _ if names.contains(&value.name) => {
                    let message = format!("two values would be named '{}'", value.name);
                    return Err(Error::format(message));
                }
                _ => {}
            }
        }
        follow(inner)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use apr_graph::{Dim, ElementType, GraphBuilder, Meaning};

    use super::*;

    fn graphs() -> [(String, Graph); 1] {
        let mut builder = GraphBuilder::new(17);
        let main = builder.body();
        let x = main.input("x", ElementType::F32, [Dim::fixed(2)], Meaning::Unknown);
        let w = main.weight("w", ElementType::F32, [2]);
        let sum = main.op("Add", [x, w]).output("sum");
        main.output("sum", sum, Meaning::Unknown);
        [("m".to_owned(), builder.finish())]
    }

    fn renamed(old: &str, new: &str) -> Result<Vec<String>> {
        let mut graphs = graphs();
        rename(&mut graphs, &[(old.to_owned(), new.to_owned())])?;
        Ok(graphs[0].1.body.values.iter().map(|value| value.name.clone()).collect())
    }

    #[test]
    fn inputs_outputs_and_weights_get_new_names() {
        assert_eq!(renamed("x", "image").expect("renamed"), ["image", "w", "sum"]);
        assert_eq!(renamed("^(.)$", r"net.\1").expect("renamed"), ["net.x", "net.w", "sum"]);
        renamed("nothere", "y").expect_err("no value has this name");
        let error = renamed("x", "w").expect_err("two values of one name");
        assert!(error.message().contains("two values would be named 'w'"), "{error}");
    }
}
