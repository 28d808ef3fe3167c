//! The part of XML that models are written in: elements, attributes and text in UTF-8.
//!
//! A model needs neither types nor entities of its own, which read files or grow without end, so
//! that a file with such a declaration is rejected.

use std::borrow::Cow;

use apr_core::{Error, Result};

/// Maximum number of elements in each other.
const MAX_DEPTH: usize = 128;

/// Maximum number of attributes of an element.
const MAX_ATTRIBUTES: usize = 256;

/// What comes next in a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event<'t> {
    Start(Start<'t>),
    /// The end of the innermost open element.
    End,
    Text(Cow<'t, str>),
}

/// The start of an element.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Start<'t> {
    pub(crate) name: &'t str,
    pub(crate) attributes: Vec<(&'t str, Cow<'t, str>)>,
}

impl Start<'_> {
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(own, _)| *own == name);
        found.map(|(_, value)| value.as_ref())
    }
}

/// Reads a file from its start to its end.
pub(crate) struct Reader<'t> {
    text: &'t str,
    at: usize,
    open: Vec<&'t str>,
    /// The element that started last has no content.
    is_empty: bool,
    /// The root has ended.
    is_over: bool,
}

impl<'t> Reader<'t> {
    /// # Errors
    /// E001 for bytes that are not UTF-8.
    pub(crate) fn new(bytes: &'t [u8]) -> Result<Self> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
            return Err(Error::format("the XML is in UTF-16; save it in UTF-8").at(0));
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            Error::corrupt("the XML is not UTF-8").at(error.valid_up_to() as u64)
        })?;
        Ok(Self { text, at: 0, open: Vec::new(), is_empty: false, is_over: false })
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn bad(&self, what: &str) -> Error {
        Error::corrupt(format!("the XML {what}")).at(self.at as u64)
    }

    /// Returns what comes next; `None` at the end of the file.
    ///
    /// # Errors
    /// E001 for declarations and for elements that are too deep, E002 for malformed XML.
    pub(crate) fn next(&mut self) -> Result<Option<Event<'t>>> {
        if std::mem::take(&mut self.is_empty) {
            return Ok(Some(self.end()));
        }
        loop {
            let rest = self.rest();
            if rest.is_empty() {
                return match (self.open.last(), self.is_over) {
                    (None, true) => Ok(None),
                    _ => Err(self.bad("ends before its last element does")),
                };
            }
            if rest.starts_with("<?") {
                self.skip_past("?>")?;
            } else if rest.starts_with("<!--") {
                self.skip_past("-->")?;
            } else if let Some(data) = rest.strip_prefix("<![CDATA[") {
                let len = data.find("]]>").ok_or_else(|| self.bad("has CDATA without an end"))?;
                self.at += rest.len() - data.len() + len + 3;
                return Ok(Some(Event::Text(Cow::Borrowed(&data[..len]))));
            } else if rest.starts_with("<!") {
                let message = "the XML declares a type or entities, which models do not need: \
                               they read files, or grow without end";
                return Err(Error::format(message).at(self.at as u64));
            } else if rest.starts_with("</") {
                return self.end_tag().map(Some);
            } else if rest.starts_with('<') {
                return self.start_tag().map(|start| Some(Event::Start(start)));
            } else {
                let len = rest.find('<').unwrap_or(rest.len());
                let text = &rest[..len];
                if self.open.is_empty() && !text.trim_ascii().is_empty() {
                    return Err(self.bad("has text outside of its elements"));
                }
                let text = self.unescaped(text)?;
                self.at += len;
                if !text.trim_ascii().is_empty() {
                    return Ok(Some(Event::Text(text)));
                }
            }
        }
    }

    /// Skips the content of the element that started last, to its end.
    ///
    /// # Errors
    /// Those of [`next`](Self::next).
    pub(crate) fn skip(&mut self) -> Result<()> {
        let depth = self.open.len();
        while self.open.len() >= depth {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn skip_past(&mut self, end: &str) -> Result<()> {
        let len = self.rest().find(end).ok_or_else(|| self.bad("has a remark without an end"))?;
        self.at += len + end.len();
        Ok(())
    }

    fn end(&mut self) -> Event<'t> {
        self.open.pop();
        self.is_over = self.open.is_empty();
        Event::End
    }

    fn end_tag(&mut self) -> Result<Event<'t>> {
        let rest = &self.rest()[2..];
        let len = rest.find('>').ok_or_else(|| self.bad("has a tag without an end"))?;
        let name = rest[..len].trim_ascii_end();
        if self.open.last() != Some(&name) {
            return Err(self.bad("ends an element that is not open"));
        }
        self.at += 2 + len + 1;
        Ok(self.end())
    }

    fn start_tag(&mut self) -> Result<Start<'t>> {
        if self.is_over {
            return Err(self.bad("has a second root"));
        }
        if self.open.len() >= MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} elements of the XML are in each other");
            return Err(Error::format(message).at(self.at as u64));
        }
        self.at += 1;
        let name = self.name()?;
        let mut attributes: Vec<(&str, Cow<'_, str>)> = Vec::new();
        loop {
            let rest = self.rest();
            let left = rest.trim_ascii_start();
            let is_apart = left.len() < rest.len();
            self.at += rest.len() - left.len();
            if left.starts_with("/>") {
                self.at += 2;
                self.is_empty = true;
                break;
            }
            if left.starts_with('>') {
                self.at += 1;
                break;
            }
            if !is_apart || attributes.len() >= MAX_ATTRIBUTES {
                return Err(self.bad("has a malformed tag"));
            }
            let attribute = self.name()?;
            let value = self.value()?;
            if attributes.iter().any(|(own, _)| *own == attribute) {
                return Err(self.bad("has an attribute twice"));
            }
            attributes.push((attribute, value));
        }
        self.open.push(name);
        Ok(Start { name, attributes })
    }

    fn name(&mut self) -> Result<&'t str> {
        let rest = self.rest();
        let ends = |c: char| c.is_ascii_whitespace() || "=/><\"'&".contains(c);
        let len = rest.find(ends).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.bad("has a malformed tag"));
        }
        self.at += len;
        Ok(&rest[..len])
    }

    /// The value of an attribute, with the `=` before it.
    fn value(&mut self) -> Result<Cow<'t, str>> {
        let rest = self.rest();
        let value = rest.trim_ascii_start().strip_prefix('=').map(str::trim_ascii_start);
        let quote =
            value.and_then(|value| value.chars().next()).filter(|c| ['"', '\''].contains(c));
        let (Some(value), Some(quote)) = (value, quote) else {
            return Err(self.bad("has an attribute without a value"));
        };
        let value = &value[1..];
        self.at += rest.len() - value.len();
        let len = value.find(quote).ok_or_else(|| self.bad("has a value without an end"))?;
        if value[..len].contains('<') {
            return Err(self.bad("has a value without an end"));
        }
        let unescaped = self.unescaped(&value[..len])?;
        self.at += len + 1;
        Ok(unescaped)
    }

    fn unescaped(&self, text: &'t str) -> Result<Cow<'t, str>> {
        if !text.contains('&') {
            return Ok(Cow::Borrowed(text));
        }
        let (mut made, mut rest) = (String::with_capacity(text.len()), text);
        while let Some((before, after)) = rest.split_once('&') {
            made.push_str(before);
            let (name, left) =
                after.split_once(';').ok_or_else(|| self.bad("has a & that is no character"))?;
            let number = name.strip_prefix('#').and_then(|digits| match digits.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16).ok(),
                None => digits.parse().ok(),
            });
            let character = match name {
                "amp" => Some('&'),
                "apos" => Some('\''),
                "gt" => Some('>'),
                "lt" => Some('<'),
                "quot" => Some('"'),
                _ => number.and_then(char::from_u32),
            };
            made.push(character.ok_or_else(|| self.bad("names an entity that it can't have"))?);
            rest = left;
        }
        made.push_str(rest);
        Ok(Cow::Owned(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<String> {
        let (mut reader, mut said) = (Reader::new(text.as_bytes())?, String::new());
        while let Some(event) = reader.next()? {
            match event {
                Event::Start(start) => {
                    said.push_str(start.name);
                    for (name, value) in &start.attributes {
                        said.push_str(&format!(" {name}={value}"));
                    }
                    said.push('(');
                }
                Event::End => said.push(')'),
                Event::Text(text) => said.push_str(&text),
            }
        }
        Ok(said)
    }

    #[test]
    fn elements_attributes_and_text_are_read() {
        let text = "\u{feff}<?xml version='1.0'?>\n<!-- <x> --><a b=\"1 &lt; &#x32;\" c = 'd\"'>\n\
            <e/> &amp;<f  g='h' />text<![CDATA[<&]]></a >\n";
        let said = events(text).expect("well-formed");
        assert_eq!(said, "a b=1 < 2 c=d\"(e() &f g=h()text<&)");
    }

    #[test]
    fn declarations_and_malformed_files_are_errors() {
        for text in [
            "<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><a>&x;</a>",
            "<a>&x;</a>",
            "<a>& b</a>",
            "<a",
            "<a>",
            "<a></b>",
            "</a>",
            "<a/><b/>",
            "<a b/>",
            "<a b=c/>",
            "<a b='1'c='2'/>",
            "<a b='1' b='2'/>",
            "<a b='1",
            "<a><!-- </a>",
            "text",
            "",
            "<>",
        ] {
            assert!(events(text).is_err(), "{text}");
        }
        assert!(Reader::new(b"\xff\xfe<\0a\0").is_err());
        let deep = "<a>".repeat(MAX_DEPTH + 1);
        assert!(events(&deep).is_err_and(|error| error.message().contains("in each other")));
    }

    #[test]
    fn content_is_skipped_to_the_end_of_its_element() {
        let text = "<a><b><c>1</c><d/></b><e/></a>";
        let mut reader = Reader::new(text.as_bytes()).expect("UTF-8");
        reader.next().expect("a");
        reader.next().expect("b");
        reader.skip().expect("well-formed");
        let next = reader.next().expect("well-formed");
        assert!(matches!(next, Some(Event::Start(start)) if start.name == "e"));
        reader.skip().expect("well-formed");
        assert_eq!(reader.next().expect("well-formed"), Some(Event::End));
        assert_eq!(reader.next().expect("well-formed"), None);
    }
}
