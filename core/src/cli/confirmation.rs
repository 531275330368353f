//! Confirmation of commands that cannot be undone, or that change several campaigns.

use std::io::{self, IsTerminal as _};

use clap::Args;

use super::client::CallError;
use super::printer::prompt;

/// The arguments of every command that asks for confirmation.
#[derive(Debug, Clone, Copy, Args)]
pub struct ConfirmArgs {
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Returns immediately with `--yes`, otherwise after the user has typed `word`. `what` is a clause that
    /// describes the action, which cannot be undone.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub fn confirm(self, what: &str, word: &str) -> Result<(), CallError> {
        self.ask(&format!("{what}; this cannot be undone"), word)
    }

    /// Returns whether [`Self::ask`] asks: there is a terminal, and `--yes` is not given.
    pub fn will_ask(self) -> bool {
        !self.yes && has_terminal()
    }

    /// Returns immediately with `--yes`, otherwise after the user has typed `word`. `what` is a sentence
    /// without a full stop that describes the action.
    ///
    /// # Errors
    /// [`CallError::Usage`] if there is no terminal, [`CallError::NotDone`] if anything else was typed.
    pub fn ask(self, what: &str, word: &str) -> Result<(), CallError> {
        if self.yes {
            return Ok(());
        }
        if !has_terminal() {
            let problem = format!("{what}. There is no terminal to confirm on: give --yes");
            return Err(CallError::Usage(problem));
        }
        prompt(&format_args!("{what}. Type {word} to continue: "));
        let mut typed = String::new();
        io::stdin()
            .read_line(&mut typed)
            .map_err(|error| CallError::Usage(format!("standard input: {error}")))?;
        match typed.trim() {
            typed if typed == word => Ok(()),
            typed => Err(CallError::NotDone(format!("nothing was done: '{typed}' is not {word}"))),
        }
    }
}

fn has_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}
