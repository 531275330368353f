//! The examples in the documents. Each example is run verbatim by a test, or left out with a reason.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::edge::root;
use crate::process::command;
use crate::{Core, binary};

/// Marks the beginning and the end of a block.
const FENCE: &str = "```";

/// The fenced blocks of one document, visited in order. An unexpected block fails the test.
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
    /// Reads the examples of `document`, a path in the checkout; in Rust source, those of its module
    /// documentation.
    pub fn of(document: &'static str) -> Self {
        let text = fs::read_to_string(root().join(document));
        let mut text = text.unwrap_or_else(|error| panic!("{document}: {error}"));
        if Path::new(document).extension().is_some_and(|ending| ending == "rs") {
            let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
            text = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect::<Vec<_>>().join("\n");
        }
        Self { document, left: blocks(&text).into() }
    }

    /// Returns the next example, which must begin with `start`, for the test to run.
    pub fn next(&mut self, start: &str) -> String {
        let Some(Example { line, text, .. }) = self.left.pop_front() else {
            panic!("{}: there are no more examples, but the test expects one with {start}", self.document)
        };
        assert!(
            text.starts_with(start),
            "{}:{line}: no test runs this example or excludes it; the test expects one with {start} here:\n{text}",
            self.document
        );
        text
    }

    /// Skips the next example, which must begin with `start`; `why` is the reason.
    pub fn left_out(&mut self, start: &str, why: &str) {
        self.next(start);
        assert!(!why.is_empty());
    }

    /// Checks that another test, in `file`, runs the next example; it must name the example by `start`.
    pub fn run_in(&mut self, start: &str, file: &str) {
        self.next(start);
        let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(
            source.replace(r#"\""#, "\"").contains(start),
            "{file} does not run the example with {start}"
        );
    }

    /// Fails if any example is left.
    pub fn end(self) {
        if let Some(Example { line, text, .. }) = self.left.front() {
            panic!("{}:{line}: no test runs this example or excludes it:\n{text}", self.document);
        }
    }

    /// Checks that the translation `other` has the same examples, except for diagrams.
    pub fn assert_same_as(self, other: Self) {
        let texts = |examples: Self| -> Vec<String> {
            let examples = examples.left.into_iter().filter(|example| example.language != "mermaid");
            examples.map(|example| example.text).collect()
        };
        assert_eq!(texts(self), texts(other));
    }
}

/// Returns the only example of `document` that begins with `start`.
pub fn example(document: &'static str, start: &str) -> String {
    let all = Examples::of(document).left;
    let mut found = all.into_iter().filter(|example| example.text.starts_with(start));
    match (found.next(), found.next()) {
        (Some(example), None) => example.text,
        (found, _) => panic!("{document}: expected exactly one example with {start}: {found:?}"),
    }
}

/// Documents of the checkout that contain examples.
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

/// Returns the fenced blocks of a text, without their indentation.
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

/// A reader's shell for the documents' examples, in a directory with `data`, `target/debug/claimgate` and
/// `target/release/claimgate`.
#[derive(Debug)]
pub struct ExampleShell {
    directory: PathBuf,
    environment: Vec<(String, String)>,
    replaced: Vec<(String, String)>,
}

/// The output and exit status of a command.
#[derive(Debug)]
pub struct CommandOutput {
    /// The exit status.
    pub status: i32,
    /// The standard output.
    pub out: String,
    /// The standard error.
    pub err: String,
}

impl CommandOutput {
    /// Checks the exit status.
    #[must_use]
    pub fn ended(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// Returns the standard output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Checks that the command printed `words`.
    #[must_use]
    pub fn printed(self, words: &str) -> Self {
        assert!(self.out.contains(words) || self.err.contains(words), "not printed: {words}: {self:?}");
        self
    }
}

impl ExampleShell {
    /// Creates a shell in `directory`.
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

    /// Creates a shell beside the data directory of `core`, with the documents' addresses replaced by the
    /// core's.
    pub fn of(core: &Core) -> Self {
        let (listen, admin) = (core.listen().to_string(), core.admin_listen().to_string());
        Self::at(core.data_dir().parent().expect("its parent"))
            .with("CLAIMGATE_LISTEN", &listen)
            .with("CLAIMGATE_ADMIN_LISTEN", &admin)
            .replacing("127.0.0.1:8080", &listen)
            .replacing("127.0.0.1:8081", &admin)
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, variable: &str, value: &str) -> Self {
        self.environment.push((variable.to_owned(), value.to_owned()));
        self
    }

    /// Replaces `written` in the examples by `value`.
    #[must_use]
    pub fn replacing(mut self, written: &str, value: &str) -> Self {
        self.replaced.push((written.to_owned(), value.to_owned()));
        self
    }

    /// Returns the working directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: impl Display) {
        fs::write(self.directory.join(name), text.to_string()).expect("a file");
    }

    /// Returns the commands of an example with their values filled in.
    pub fn commands(&self, example: &str) -> Vec<String> {
        example.replace("\\\n", "").lines().map(|line| self.filled_in(line)).collect()
    }

    fn filled_in(&self, text: &str) -> String {
        let fill = |text: String, (written, value): &(String, String)| text.replace(written, value);
        self.replaced.iter().fold(text.to_owned(), fill)
    }

    /// Runs the commands of an example separately, even if an earlier one fails.
    pub async fn run_each(&self, example: &str) -> Vec<CommandOutput> {
        let mut outputs = Vec::new();
        for line in self.commands(example) {
            outputs.push(self.run(&line).await);
        }
        outputs
    }

    /// Runs an example in one shell, which ends at the first command that fails.
    pub async fn run(&self, example: &str) -> CommandOutput {
        let mut shell = self.shell(example);
        let output = tokio::task::spawn_blocking(move || shell.output()).await.expect("a shell");
        let Output { status, stdout, stderr } = output.expect("a shell");
        CommandOutput {
            status: status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&stdout).into_owned(),
            err: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// Returns the shell command that runs an example.
    pub fn shell(&self, example: &str) -> std::process::Command {
        let mut shell = command(Path::new("sh"));
        shell.args(["-ec", &self.filled_in(example)]).current_dir(&self.directory).stdin(Stdio::null());
        shell.envs(self.environment.iter().map(|(name, value)| (name, value)));
        shell
    }
}
