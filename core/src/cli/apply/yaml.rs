//! YAML and JSON as a tree with line numbers. JSON is read as YAML, because YAML includes it.

use std::fmt;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub why: String,
}

impl Mistake {
    /// Creates the mistake of a line.
    pub fn at(line: usize, why: impl Into<String>) -> Self {
        Self { line, why: why.into() }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.why)
    }
}

/// A value with the line where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The line, counted from 1.
    pub line: usize,
    /// The value.
    pub content: Content,
}

/// A value. A number or boolean stays as written: its reader knows what it must be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// `null`, or no value.
    Null,
    /// A string, a number or a boolean.
    Scalar {
        /// The text without quotes.
        text: String,
        /// Whether the text was in quotes, and so is a string.
        is_quoted: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// An object with its members as in the file, including repeated ones.
    Object(Vec<Member>),
}

/// A member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name.
    pub name: String,
    /// The line of the name.
    pub line: usize,
    /// The value.
    pub value: Node,
}

/// An event of the parser with its position.
type Parsed<'a> = Result<(Event<'a>, Span), ScanError>;

/// Parses a file of one document; returns `None` for an empty one.
///
/// # Errors
/// The first mistake. Aliases and tags are mistakes too.
pub fn parse(text: &str) -> Result<Option<Node>, Mistake> {
    let mut events = Parser::new_from_str(text);
    let mut root = None;
    loop {
        match next(&mut events)? {
            (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _) => {}
            (Event::StreamEnd, _) => return Ok(root),
            (_, line) if root.is_some() => {
                return Err(Mistake::at(
                    line,
                    "a second document begins here; write all campaigns as one list",
                ));
            }
            (event, line) => root = Some(node(&mut events, event, line)?),
        }
    }
}

/// Returns the next event and its line.
fn next<'a>(events: &mut impl Iterator<Item = Parsed<'a>>) -> Result<(Event<'a>, usize), Mistake> {
    match events.next() {
        Some(Ok((event, span))) => Ok((event, span.start.line())),
        Some(Err(error)) => Err(Mistake::at(error.marker().line(), error.info())),
        None => Err(Mistake::at(1, "ends too early")),
    }
}

/// Returns the value that begins with `event`.
fn node<'a>(
    events: &mut impl Iterator<Item = Parsed<'a>>,
    event: Event<'a>,
    line: usize,
) -> Result<Node, Mistake> {
    let content = match event {
        Event::Scalar(text, style, _, tag) => {
            refuse_tag(tag.as_deref(), line)?;
            scalar(text.into_owned(), style != ScalarStyle::Plain)
        }
        Event::SequenceStart(_, _, tag) => {
            refuse_tag(tag.as_deref(), line)?;
            Content::List(items(events)?)
        }
        Event::MappingStart(_, _, tag) => {
            refuse_tag(tag.as_deref(), line)?;
            Content::Object(members(events)?)
        }
        Event::Alias(_) => return Err(Mistake::at(line, "aliases are not supported; repeat the value")),
        _ => return Err(Mistake::at(line, "a value is missing")),
    };
    Ok(Node { line, content })
}

fn scalar(text: String, is_quoted: bool) -> Content {
    match text.as_str() {
        "" | "~" | "null" | "Null" | "NULL" if !is_quoted => Content::Null,
        _ => Content::Scalar { text, is_quoted },
    }
}

fn items<'a>(events: &mut impl Iterator<Item = Parsed<'a>>) -> Result<Vec<Node>, Mistake> {
    let mut items = Vec::new();
    loop {
        match next(events)? {
            (Event::SequenceEnd, _) => return Ok(items),
            (event, line) => items.push(node(events, event, line)?),
        }
    }
}

fn members<'a>(events: &mut impl Iterator<Item = Parsed<'a>>) -> Result<Vec<Member>, Mistake> {
    let mut members = Vec::new();
    loop {
        let name = match next(events)? {
            (Event::MappingEnd, _) => return Ok(members),
            (event, line) => node(events, event, line)?,
        };
        let line = name.line;
        let Content::Scalar { text: name, .. } = name.content else {
            return Err(Mistake::at(line, "the name of a member must be a text"));
        };
        let (event, value_line) = next(events)?;
        members.push(Member { name, line, value: node(events, event, value_line)? });
    }
}

fn refuse_tag(tag: Option<&Tag>, line: usize) -> Result<(), Mistake> {
    tag.map_or(Ok(()), |_| Err(Mistake::at(line, "tags are not supported; write the value only")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats a tree without its lines.
    fn shown(node: &Node) -> String {
        match &node.content {
            Content::Null => "null".to_owned(),
            Content::Scalar { text, is_quoted: true } => format!("{text:?}"),
            Content::Scalar { text, is_quoted: false } => text.clone(),
            Content::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(",")),
            Content::Object(members) => {
                let member = |member: &Member| format!("{}:{}", member.name, shown(&member.value));
                format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn yaml_and_json_give_the_same_tree() {
        let yaml =
            "# campaigns\n- id: demo\n  limits:\n    total: 5\n    per_user:\n  at: 2026-12-01 08:00\n";
        let json = r#"[{"id":"demo","limits":{"total":5,"per_user":null},"at":"2026-12-01 08:00"}]"#;
        let tree = |text: &str| shown(&parse(text).unwrap().unwrap()).replace('"', "");
        let expected = "[{id:demo,limits:{total:5,per_user:null},at:2026-12-01 08:00}]";
        assert_eq!((tree(yaml).as_str(), tree(json).as_str()), (expected, expected));
    }

    #[test]
    fn every_form_of_json_is_read() {
        for (json, tree) in [
            ("{\n\t\"a\": 1,\r\n\t\"b\": [\n\t\t1.0,\n\t\t-2e3\n\t]\n}\n", "{a:1,b:[1.0,-2e3]}"),
            ("\u{feff}{\"a\":\"\"}", r#"{a:""}"#),
            (r#"{"a":"\u00e9 \ud83c\udf9f \/ \" null"}"#, "{a:\"é 🎟 / \\\" null\"}"),
            (
                r#"{"a":"null","b":null,"c":true,"d":"yes","e":{},"f":[]}"#,
                r#"{a:"null",b:null,c:true,d:"yes",e:{},f:[]}"#,
            ),
        ] {
            assert_eq!(shown(&parse(json).unwrap().unwrap()), tree, "{json}");
        }
        // A YAML key has at most 1,024 characters, but a value may be longer.
        let items: Vec<_> = (0..1000).map(|number| format!(r#"{{"id":"campaign-{number}"}}"#)).collect();
        let Content::List(list) = parse(&format!("[{}]", items.join(","))).unwrap().unwrap().content else {
            panic!("no list")
        };
        assert_eq!(list.len(), 1000);
    }

    #[test]
    fn each_value_has_its_line() {
        let Content::List(items) = parse("- a: 1\n  b:\n    c: 2\n\n- d\n").unwrap().unwrap().content else {
            panic!("no list")
        };
        let Content::Object(members) = &items[0].content else { panic!("no object") };
        let lines: Vec<_> = members.iter().map(|member| (member.line, member.value.line)).collect();
        assert_eq!((items[0].line, lines, items[1].line), (1, vec![(1, 1), (2, 3)], 5));
    }

    #[test]
    fn unsupported_and_malformed_files_are_rejected_with_the_line() {
        for (text, line, part) in [
            ("a: 1\nb: [1, 2\n", 2, "unclosed bracket"),
            ("a: 1\n---\nb: 2\n", 3, "second document"),
            ("a: &x 1\nb: *x\n", 2, "aliases"),
            ("a: 1\nb: !!str 2\n", 2, "tags"),
            ("? [a]\n: 1\n", 1, "name of a member"),
        ] {
            let mistake = parse(text).unwrap_err();
            assert!(mistake.line == line && mistake.why.contains(part), "{text}: {mistake:?}");
        }
        for malformed in ["a: 1\n  b: 2\n", "a: \"b\n", "{a: 1", "a: {b: 1]\n"] {
            assert!(parse(malformed).is_err(), "{malformed}");
        }
        for empty in ["", "# nothing\n"] {
            assert_eq!(parse(empty), Ok(None));
        }
        assert!(parse(&"[".repeat(100_000)).is_err(), "deep nesting is refused, not followed");
    }
}
