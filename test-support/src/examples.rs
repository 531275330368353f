//! The examples in the documents: each is run by a test as it stands there, or left out for a reason that the test gives.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::edge::root;
use crate::process::command;
use crate::{Core, binary};

/// Begins and ends a block.
const FENCE: &str = "```";

/// The fenced blocks of one document, gone through in their order. One that a test does not expect fails it.
#[derive(Debug)]
pub struct Examples {
    document: &'static str,
    left: VecDeque<Example>,
}

/// A fenced block.
#[derive(Debug, Clone)]
pub struct Example {
    line: usize,
    language: String,
    text: String,
}

impl Examples {
    /// Those of `document`, a path in the checkout; of a crate's source those in its own documentation.
    pub fn of(document: &'static str) -> Self {
        let text = fs::read_to_string(root().join(document));
        let mut text = text.unwrap_or_else(|error| panic!("{document}: {error}"));
        if Path::new(document).extension().is_some_and(|ending| ending == "rs") {
            let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
            text = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
        }
        Self { document, left: blocks(&text).into() }
    }

    /// The next one, which begins with `start`, for the test to run.
    pub fn next(&mut self, start: &str) -> String {
        let Some(Example { line, text, .. }) = self.left.pop_front() else {
            panic!("{}: there is no further example; the test is to run the one with {start}", self.document)
        };
        assert!(
            text.starts_with(start),
            "{}:{line}: no test runs this example, or says why not; here one with {start} is to come:\n{text}",
            self.document
        );
        text
    }

    /// Leaves the next one out, which begins with `start`: `why` it cannot be run.
    pub fn left_out(&mut self, start: &str, why: &str) {
        self.next(start);
        assert!(!why.is_empty());
    }

    /// Leaves the next one to another test, whose source is `file`: it names the example by `start`, too.
    pub fn run_in(&mut self, start: &str, file: &str) {
        self.next(start);
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(
            source.replace(r#"\""#, "\"").contains(start),
            "{file} does not run the example with {start}"
        );
    }

    /// Fails when any is left.
    pub fn end(self) {
        if let Some(Example { line, text, .. }) = self.left.front() {
            panic!("{}:{line}: no test runs this example, or says why not:\n{text}", self.document);
        }
    }

    /// Checks that another language's document has the same ones; drawings may differ.
    pub fn are_those_of(self, other: Self) {
        let texts = |examples: Self| -> Vec<String> {
            let examples = examples.left.into_iter().filter(|example| example.language != "mermaid");
            examples.map(|example| example.text).collect()
        };
        assert_eq!(texts(self), texts(other));
    }
}

/// The one example of `document` that begins with `start`.
pub fn example(document: &'static str, start: &str) -> String {
    let all = Examples::of(document).left;
    let mut found = all.into_iter().filter(|example| example.text.starts_with(start));
    match (found.next(), found.next()) {
        (Some(example), None) => example.text,
        (found, _) => panic!("{document}: not one example with {start}: {found:?}"),
    }
}

/// Documents of the checkout that have examples.
pub fn documents() -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).expect("a directory").flatten() {
            let (path, name) = (directory.join(entry.file_name()), entry.file_name());
            let is_ours = !["target", "data", "build", "node_modules"].iter().any(|other| name == *other);
            if entry.file_type().expect("a file").is_dir() {
                if is_ours && !name.to_string_lossy().starts_with('.') {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|ending| ending == "md") {
                let text = fs::read_to_string(root().join(&path)).expect("a document");
                if !blocks(&text).is_empty() {
                    found.push(path.display().to_string());
                }
            }
        }
    }
    found
}

/// The fenced blocks of a text, without the indentation that they have in it.
fn blocks(text: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let mut open: Option<(Example, usize)> = None;
    for (line, content) in (1..).zip(text.lines()) {
        let indentation = content.len() - content.trim_start().len();
        match (&mut open, content.trim_start().strip_prefix(FENCE)) {
            (None, None) => {}
            (None, Some(language)) => {
                let example = Example { line, language: language.to_owned(), text: String::new() };
                open = Some((example, indentation));
            }
            (Some((example, indented)), None) => {
                example.text += content.get((*indented).min(indentation)..).unwrap_or_default();
                example.text += "\n";
            }
            (Some(_), Some(_)) => found.extend(open.take().map(|(example, _)| example)),
        }
    }
    found
}

/// Where a reader of the documents sits: a shell in a directory with `data`, `target/debug/claimgate` and
/// `target/release/claimgate`.
#[derive(Debug)]
pub struct Desk {
    directory: PathBuf,
    environment: Vec<(String, String)>,
    replaced: Vec<(String, String)>,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub struct Said {
    /// Its exit status.
    pub status: i32,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

impl Said {
    /// Checks how it ended.
    #[must_use]
    pub fn ended(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Its standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Checks that it said so.
    #[must_use]
    pub fn said(self, words: &str) -> Self {
        assert!(self.out.contains(words) || self.err.contains(words), "not said: {words}: {self:?}");
        self
    }
}

impl Desk {
    /// In `directory`.
    pub fn at(directory: &Path) -> Self {
        let programs = directory.join("target/debug");
        for build in [&programs, &directory.join("target/release")] {
            fs::create_dir_all(build).expect("a directory");
            let _ = std::os::unix::fs::symlink(binary::claimgate(), build.join("claimgate"));
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let environment = vec![("PATH".to_owned(), format!("{}:{path}", programs.display()))];
        Self { directory: directory.to_owned(), environment, replaced: vec![] }
    }

    /// Beside the data directory of `core`, which listens where the documents say that it does.
    pub fn of(core: &Core) -> Self {
        let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
        Self::at(core.data_dir().parent().expect("its parent"))
            .with("CLAIMGATE_LISTEN", &listen)
            .with("CLAIMGATE_ADMIN_LISTEN", &admin)
            .replacing("127.0.0.1:8080", &listen)
            .replacing("127.0.0.1:8081", &admin)
    }

    /// With a variable set.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.environment.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// With `value` for what stands for it in the examples.
    #[must_use]
    pub fn replacing(mut self, written: &str, value: &str) -> Self {
        self.replaced.push((written.to_owned(), value.to_owned()));
        self
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: impl Display) {
        fs::write(self.directory.join(name), text.to_string()).expect("a file");
    }

    /// The commands of an example as they are run.
    pub fn commands(&self, example: &str) -> Vec<String> {
        example.replace("\\\n", "").lines().map(|line| self.filled_in(line)).collect()
    }

    fn filled_in(&self, text: &str) -> String {
        let fill = |text: String, (written, value): &(String, String)| text.replace(written, value);
        self.replaced.iter().fold(text.to_owned(), fill)
    }

    /// Runs the commands of an example, each by itself; the next after one that fails, too.
    pub async fn run_each(&self, example: &str) -> Vec<Said> {
        let mut said = Vec::new();
        for line in self.commands(example) {
            said.push(self.run(&line).await);
        }
        said
    }

    /// Runs an example in one shell, which ends at the first command that fails.
    pub async fn run(&self, example: &str) -> Said {
        let mut shell = self.shell(example);
        let output = tokio::task::spawn_blocking(move || shell.output()).await.expect("a shell");
        let Output { status, stdout, stderr } = output.expect("a shell");
        Said {
            status: status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// The shell that runs an example.
    pub fn shell(&self, example: &str) -> std::process::Command {
        let mut shell = command(Path::new("sh"));
        shell.args(["-ec", &self.filled_in(example)]).current_dir(&self.directory).stdin(Stdio::null());
        shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
        shell
    }
}
