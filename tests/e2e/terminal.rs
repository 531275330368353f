//! Commands on a terminal.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::process::command;
use support::{Core, binary};

use crate::command_line::CommandOutput;

/// Returns a command that runs claimgate on a terminal with this many columns.
fn terminal(core: &Core, columns: u16, arguments: &[&str]) -> Command {
    let quoted: Vec<_> = arguments.iter().map(|argument| format!("'{argument}'")).collect();
    let line = format!("stty cols {columns}; exec {} {}", binary::claimgate().display(), quoted.join(" "));
    let mut script = command(Path::new("script"));
    script
        .args(["--quiet", "--return", "--echo", "never", "--command", &line, "/dev/null"])
        .current_dir(core.data_dir());
    script.env("CLAIMGATE_LISTEN", core.listen().to_string());
    script.env("CLAIMGATE_ADMIN_LISTEN", core.admin_listen().to_string());
    script.env("CLAIMGATE_DATA_DIR", core.data_dir()).env("SHELL", "/bin/sh");
    script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    script
}

/// Runs a command on a terminal with this many columns, and types `typed`.
pub(crate) async fn on_a_terminal(
    core: &Core,
    columns: u16,
    arguments: &[&str],
    typed: &'static str,
) -> CommandOutput {
    answered(terminal(core, columns, arguments).spawn().unwrap(), typed).await
}

/// Starts a command on a terminal, and returns it with its output once it asks for a word.
pub(crate) async fn asking(core: &Core, arguments: &[&str]) -> (Child, String) {
    // The child would be killed at the end of the thread that starts it: this one lives as long as the test.
    let mut child = terminal(core, 120, arguments).spawn().unwrap();
    let asked = tokio::task::spawn_blocking(move || {
        let (mut output, mut byte) = (Vec::new(), [0]);
        while !output.ends_with(b"to continue: ") {
            let read = child.stdout.as_mut().unwrap().read(&mut byte).unwrap();
            assert!(read > 0, "the command does not ask: {}", String::from_utf8_lossy(&output));
            output.push(byte[0]);
        }
        (child, String::from_utf8(output).unwrap().replace('\r', ""))
    });
    asked.await.unwrap()
}

/// Types `typed`, and returns the status and the rest of the output.
pub(crate) async fn answered(mut child: Child, typed: &'static str) -> CommandOutput {
    let output = tokio::task::spawn_blocking(move || {
        child.stdin.take().unwrap().write_all(typed.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    });
    let output = CommandOutput::from(output.await.unwrap());
    CommandOutput { out: output.out.replace('\r', ""), ..output }
}
