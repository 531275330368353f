//! Calls to a running core over HTTP.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use claimgate_shared::http;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::call_args::CallArgs;
use super::exit_status::{REFUSED, UNAVAILABLE, USAGE};
use super::printer::print_json;
use crate::config::{ConfigError, Secrets};

const WAIT: Duration = Duration::from_secs(10);

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
    /// Core refused, or could not decide.
    #[error("{} ({}): {}", .problem.title, .problem.code, .problem.detail)]
    Refused {
        /// The answer's status.
        status: StatusCode,
        /// What core says of it.
        problem: ProblemText,
    },
    /// No core there, or not one that speaks our language.
    #[error("no answer from core at {address}: {error:#}; is `claimgate serve` running there?")]
    NoAnswer {
        /// Where we asked.
        address: String,
        /// What happened.
        #[source]
        error: anyhow::Error,
    },
}

impl CallError {
    /// The command's exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Output(_) => USAGE,
            Self::Refused { status, .. } => match status.as_u16() {
                400 | 401 | 413 | 415 => USAGE,
                408 | 500.. => UNAVAILABLE,
                _ => REFUSED,
            },
            Self::Differs | Self::NotDone(_) => REFUSED,
            Self::NoAnswer { .. } | Self::Unavailable(_) => UNAVAILABLE,
        }
    }
}

/// A problem as it is told to people. The core that answers may be newer: its code is whatever it says.
#[derive(Debug, Deserialize)]
pub struct ProblemText {
    title: String,
    code: String,
    detail: String,
}

/// An idempotency key that no other call has.
pub fn random_key() -> Result<String, CallError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| CallError::Usage(format!("no randomness: {error}")))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Where a call goes.
#[derive(Debug, Clone, Copy)]
pub enum Api {
    /// The internal API.
    Internal,
    /// The admin API.
    Admin,
}

/// A running core.
#[derive(Debug)]
pub struct Core {
    client: Client,
    args: CallArgs,
    token: String,
}

impl Core {
    /// The core that `args` name, with the admin token of this machine.
    pub fn new(args: &CallArgs) -> Result<Self, CallError> {
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
        let token = Secrets::of(data_dir).admin_token()?;
        let client = Client::builder().timeout(WAIT).no_proxy().build();
        let client = client
            .map_err(|error| CallError::NoAnswer { address: args.listen.clone(), error: error.into() })?;
        Ok(Self { client, args: args.clone(), token })
    }

    /// Calls `path`; `Ok` is the answer's JSON, and whether it was a replay.
    pub async fn call(
        &self,
        api: Api,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), CallError> {
        let address = match api {
            Api::Internal => &self.args.listen,
            Api::Admin => &self.args.admin_listen,
        };
        let mut request = self.request(method, address, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        self.answer(address, request).await
    }

    /// Sends a CSV file to `path` of the admin API, and waits for the answer for `wait`.
    pub async fn send_file(&self, path: &str, csv: Vec<u8>, wait: Duration) -> Result<Value, CallError> {
        let address = &self.args.admin_listen;
        let request = self.request(Method::POST, address, path).header(CONTENT_TYPE, http::CSV);
        Ok(self.answer(address, request.body(csv).timeout(wait)).await?.1)
    }

    fn request(&self, method: Method, address: &str, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{address}{path}")).bearer_auth(&self.token)
    }

    async fn answer(&self, address: &str, request: RequestBuilder) -> Result<(StatusCode, Value), CallError> {
        let no_answer = |error: anyhow::Error| CallError::NoAnswer { address: address.to_owned(), error };
        let response = request.send().await.map_err(|error| no_answer(error.without_url().into()))?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(|error| no_answer(error.without_url().into()))?;
        if status.is_success() {
            let value = serde_json::from_slice(&bytes).map_err(|error| no_answer(error.into()))?;
            return Ok((status, value));
        }
        let said: Value = serde_json::from_slice(&bytes).map_err(|error| no_answer(error.into()))?;
        let problem = ProblemText::deserialize(&said).map_err(|error| no_answer(error.into()))?;
        if self.args.json {
            print_json(&said)?;
        }
        Err(CallError::Refused { status, problem })
    }

    /// All items of the list of the admin API at `path`, which has a query, page by page.
    pub async fn list(&self, path: &str) -> Result<Vec<Value>, CallError> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let (_, mut page) = self.call(Api::Admin, Method::GET, &format!("{path}{cursor}"), None).await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                all.extend(items);
            }
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(all),
            }
        }
    }
}
