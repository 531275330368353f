//! YAML and JSON as a tree with line numbers. JSON is read as YAML, because YAML includes it.

use std::fmt;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag};

/// A mistake in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The line, counted from 1.
    pub line: usize,
    /// The explanation, with the remedy.
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

/// A value. A number or boolean stays as written: its member determines the type. Quotes make no difference,
/// except that a quoted null or an empty text in quotes is a string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// No value, as after the colon of `total:`.
    Empty,
    /// `null` or `~`.
    Null,
    /// A string, a number or a boolean, without quotes.
    Scalar(String),
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
    let mut events = Parser::new_from_str(text).map(|parsed| as_written(text, parsed));
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

/// Returns an empty text for an absent value. The parser returns `~`, as for a written one.
fn as_written<'a>(text: &str, parsed: Parsed<'a>) -> Parsed<'a> {
    let (event, span) = parsed?;
    let is_written = span.slice(text) == Some("~");
    Ok(match event {
        Event::Scalar(value, ScalarStyle::Plain, anchor, tag) if value == "~" && !is_written => {
            (Event::Scalar("".into(), ScalarStyle::Plain, anchor, tag), span)
        }
        event => (event, span),
    })
}

/// Returns the next event and its line.
fn next<'a>(events: &mut impl Iterator<Item = Parsed<'a>>) -> Result<(Event<'a>, usize), Mistake> {
    match events.next() {
        Some(Ok((event, span))) => Ok((event, span.start.line())),
        Some(Err(error)) => {
            let why = match error.kind() {
                ErrorKind::RecursionLimitExceeded => "is nested too deeply".to_owned(),
                _ => error.info(),
            };
            Err(Mistake::at(error.marker().line(), why))
        }
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
        _ if is_quoted => Content::Scalar(text),
        "" => Content::Empty,
        "~" | "null" | "Null" | "NULL" => Content::Null,
        _ => Content::Scalar(text),
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
        let Content::Scalar(name) = name.content else {
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
            Content::Empty => "(empty)".to_owned(),
            Content::Null => "(null)".to_owned(),
            Content::Scalar(text) => text.clone(),
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
            "# campaigns\n- id: demo\n  limits:\n    total: 5\n    per_user: ~\n  at: 2026-12-01 08:00\n";
        let json = r#"[{"id":"demo","limits":{"total":5,"per_user":null},"at":"2026-12-01 08:00"}]"#;
        let tree = |text: &str| shown(&parse(text).unwrap().unwrap());
        let expected = "[{id:demo,limits:{total:5,per_user:(null)},at:2026-12-01 08:00}]";
        assert_eq!((tree(yaml).as_str(), tree(json).as_str()), (expected, expected));
    }

    #[test]
    fn every_form_of_json_is_read() {
        for (json, tree) in [
            ("{\n\t\"a\": 1,\r\n\t\"b\": [\n\t\t1.0,\n\t\t-2e3\n\t]\n}\n", "{a:1,b:[1.0,-2e3]}"),
            ("\u{feff}{\"a\":\"\"}", "{a:}"),
            (r#"{"a":"\u00e9 \ud83c\udf9f \/ \" null"}"#, "{a:é 🎟 / \" null}"),
            (
                r#"{"a":"null","b":null,"c":true,"d":"yes","e":{},"f":[]}"#,
                "{a:null,b:(null),c:true,d:yes,e:{},f:[]}",
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
    fn an_empty_value_null_and_text_are_distinguished() {
        for (yaml, tree) in [
            ("a:", "{a:(empty)}"),
            (
                "\u{feff}é: ~\nb: ~ # none\nc:\n  d:\n  e: [~,]\nf:",
                "{é:(null),b:(null),c:{d:(empty),e:[(null)]},f:(empty)}",
            ),
            ("a: # none\nb: 1", "{a:(empty),b:1}"),
            ("{a, b: }", "{a:(empty),b:(empty)}"),
            ("-\n- ~\n- null\n- Null\n- NULL", "[(empty),(null),(null),(null),(null)]"),
            ("['', \"~\", 'null', none]", "[,~,null,none]"),
        ] {
            assert_eq!(shown(&parse(yaml).unwrap().unwrap()), tree, "{yaml}");
        }
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
        let block = (0..500).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<Vec<_>>().concat();
        for nested in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), block] {
            assert_eq!(parse(&nested).unwrap_err().why, "is nested too deeply");
        }
    }
}
