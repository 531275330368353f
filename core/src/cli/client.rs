//! The running core that a command talks to.

use std::time::Duration;

use claimgate_client::{Admin, Answer, Error, Internal, Retries};

use super::call_args::CallArgs;
use super::exit_status::{REFUSED, UNAVAILABLE, USAGE};
use super::printer::{print_json, say};
use crate::config::{ConfigError, Secrets};

/// For how long a call that is safe to repeat is repeated while its outcome is unknown: a person waits for it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a command did not get what it wanted.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Wrong configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Wrong usage.
    #[error("{0}")]
    Usage(String),
    /// The answer cannot be written.
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
    /// Redis and SQL do not agree.
    #[error("Redis and SQL do not agree")]
    Differs,
    /// A rule forbids it.
    #[error("{0}")]
    NotDone(String),
    /// Redis or SQL did not answer.
    #[error("{0}")]
    Unavailable(String),
    /// Core refused, could not decide, or was not reached.
    #[error("{0}{hint}", hint = hint(.0))]
    Call(#[from] Error),
}

/// What may be wrong where there is no answer.
fn hint(error: &Error) -> &'static str {
    match error {
        Error::NoAnswer { .. } => "; is `claimgate serve` running there?",
        Error::Problem(_) | Error::Unread(_) | Error::Setup(_) => "",
    }
}

impl CallError {
    /// The command's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Output(_) | Self::Call(Error::Setup(_)) => USAGE,
            Self::Call(Error::Problem(problem)) => match problem.status.as_u16() {
                400 | 401 | 413 | 415 => USAGE,
                408 | 500.. => UNAVAILABLE,
                _ => REFUSED,
            },
            Self::Differs | Self::NotDone(_) => REFUSED,
            Self::Call(Error::NoAnswer { .. } | Error::Unread(_)) | Self::Unavailable(_) => UNAVAILABLE,
        }
    }
}

/// A running core.
#[derive(Debug)]
pub struct Core {
    /// Its internal API.
    pub internal: Internal,
    /// Its admin API.
    pub admin: Admin,
    json: bool,
}

impl Core {
    /// The core that `args` name, with the admin token of this machine.
    pub fn new(args: &CallArgs) -> Result<Self, CallError> {
        let token = admin_token(args)?;
        let retries = Retries { timeout: PATIENCE, before: repeats };
        Ok(Self {
            internal: Internal::new(&format!("http://{}", args.listen), &token)?.with_retries(retries),
            admin: Admin::new(&format!("http://{}", args.admin_listen), &token)?.with_retries(retries),
            json: args.json,
        })
    }

    /// Waits for the answer of a call to this core; a problem is printed as it came where JSON is asked for.
    pub async fn ask<T>(
        &self,
        call: impl Future<Output = Result<Answer<T>, Error>>,
    ) -> Result<Answer<T>, CallError> {
        let answer = call.await;
        if let Err(Error::Problem(problem)) = &answer
            && self.json
        {
            print_json(&problem.json)?;
        }
        Ok(answer?)
    }
}

/// Says the first of the repetitions. A core that cannot be reached is not called again: most often none runs there.
fn repeats(error: &Error, repetition: u32) -> bool {
    if matches!(error, Error::NoAnswer { sent: false, .. }) {
        return false;
    }
    if repetition == 1 {
        say(&format_args!("{error}; asking again for at most {} s", PATIENCE.as_secs()));
    }
    true
}

/// The admin token of this machine: from the environment, else from the data directory, where none is made.
pub fn admin_token(args: &CallArgs) -> Result<String, CallError> {
    let data_dir = &args.data.data_dir;
    if std::env::var_os("CLAIMGATE_ADMIN_TOKEN").is_none()
        && std::env::var_os("CLAIMGATE_ADMIN_TOKEN_FILE").is_none()
        && !data_dir.join("admin.token").is_file()
    {
        let problem = format!(
            "no admin.token in {}; set CLAIMGATE_DATA_DIR or CLAIMGATE_ADMIN_TOKEN",
            data_dir.display()
        );
        return Err(CallError::Usage(problem));
    }
    Ok(Secrets::of(data_dir).admin_token()?)
}
