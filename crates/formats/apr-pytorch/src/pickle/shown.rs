//! The arguments of a call, as far as a reader of a report wants to see them.

use std::fmt::Write as _;

use super::value::{Heap, Id, Node};

/// Characters of all arguments together.
const LONGEST: usize = 200;

/// Items of a container, and containers in each other.
const MOST: usize = 8;
const DEEPEST: usize = 3;

impl Heap {
    /// Formats the values in parentheses, as Python prints them. Long output is cut.
    pub(super) fn shown(&self, args: &[Id]) -> String {
        let mut text = String::new();
        self.show_items(args, 0, &mut text);
        if text.chars().count() > LONGEST {
            text = text.chars().take(LONGEST).chain(['…']).collect();
        }
        format!("({text})")
    }

    fn show_items(&self, items: &[Id], depth: usize, text: &mut String) {
        for (at, &item) in items.iter().take(MOST).enumerate() {
            if text.len() > 4 * LONGEST {
                return;
            }
            text.push_str(if at > 0 { ", " } else { "" });
            self.show(item, depth, text);
        }
        if items.len() > MOST {
            text.push_str(", …");
        }
    }

    fn show(&self, id: Id, depth: usize, text: &mut String) {
        // Writing to a text can't fail.
        let _ = match self.get(id) {
            Node::None => write!(text, "None"),
            Node::Bool(value) => write!(text, "{}", if *value { "True" } else { "False" }),
            Node::Int(value) => write!(text, "{value}"),
            Node::Float(value) => write!(text, "{value}"),
            Node::Str(value) => {
                write!(text, "'{}'", value.chars().take(LONGEST).collect::<String>().escape_debug())
            }
            Node::Global(global) => write!(text, "{}.{}", global.module, global.name),
            Node::Bytes(_) => write!(text, "b'…'"),
            _ => match self.items(id).filter(|_| depth < DEEPEST) {
                Some(items) => {
                    text.push('[');
                    self.show_items(items, depth + 1, text);
                    text.push(']');
                    Ok(())
                }
                None => write!(text, "…"),
            },
        };
    }
}
