//! Changes of a template's text before the engine reads it.

use std::borrow::Cow;

/// A template in the engine's syntax: lines end as Jinja's do, and `{% generation %}`, by which
/// transformers marks what the model wrote, is a block with variables of its own.
pub(super) fn prepared(template: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(template);
    if text.contains('\r') {
        text = Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n"));
    }
    if text.contains("generation") {
        let replaced = without_generation(&text);
        text = Cow::Owned(replaced);
    }
    text
}

/// Replaces the tags `generation` and `endgeneration` by `with` and `endwith`.
fn without_generation(template: &str) -> String {
    let mut made = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        made.push_str(before);
        let word_at = tag.len() - tag.trim_start_matches(['-', '+']).trim_start().len();
        let (marks, body) = tag.split_at(word_at);
        let is_tag =
            |rest: &str| rest.trim_start().trim_start_matches(['-', '+']).starts_with("%}");
        made.push_str(marks);
        rest = body;
        for (name, other) in [("generation", "with"), ("endgeneration", "endwith")] {
            if let Some(behind) = body.strip_prefix(name).filter(|behind| is_tag(behind)) {
                made.push_str(other);
                rest = behind;
            }
        }
    }
    made.push_str(rest);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_generation_are_blocks() {
        let text = "{%- generation -%}a{% endgeneration %}{% if generation %}\r\n";
        assert_eq!(prepared(text), "{%- with -%}a{% endwith %}{% if generation %}\n");
        assert!(matches!(prepared("{% if a %}"), Cow::Borrowed(_)));
    }
}
