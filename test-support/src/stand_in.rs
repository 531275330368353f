//! A server with fixed responses: a fake core of a different version, whose responses the current core cannot
//! send, or a website.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// A stateless server that returns the configured responses.
#[derive(Debug)]
pub struct StandIn {
    /// The address on which the server listens.
    pub listen: SocketAddr,
    answers: Answers,
}

/// Answers by a string that the request contains; the last match is used.
type Answers = Arc<Mutex<Vec<(String, Canned)>>>;

/// A fixed response.
#[derive(Debug, Clone)]
pub struct Canned {
    status: u16,
    headers: Vec<(&'static str, String)>,
    /// The body, sent byte for byte.
    pub body: String,
}

impl Canned {
    /// Creates a response with `body` as JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::typed(status, "application/json", body.to_string())
    }

    /// Creates a response with `body` as a problem.
    pub fn problem(status: u16, body: &Value) -> Self {
        Self::typed(status, "application/problem+json", body.to_string())
    }

    /// Creates a response with a page.
    pub fn html(page: &str) -> Self {
        Self::typed(200, "text/html", page.to_owned())
    }

    fn typed(status: u16, content_type: &str, body: String) -> Self {
        Self { status, headers: vec![("Content-Type", content_type.to_owned())], body }
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let headers: Vec<_> =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let headers = headers.concat();
        let (status, length) = (self.status, self.body.len());
        let head = format!("HTTP/1.1 {status} Canned\r\n{headers}Content-Length: {length}\r\n\r\n");
        [head.as_bytes(), self.body.as_bytes()].concat()
    }
}

impl StandIn {
    /// Starts a server without any responses.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listener.local_addr().unwrap();
        let answers = Answers::default();
        let shared_answers = Arc::clone(&answers);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared_answers = Arc::clone(&shared_answers);
                thread::spawn(move || serve(&connection, &shared_answers));
            }
        });
        Self { listen, answers }
    }

    /// Answers requests whose head or body contains `needle` with `canned` from now on.
    pub fn answers(&self, needle: &str, canned: Canned) {
        self.answers.lock().unwrap().push((needle.to_owned(), canned));
    }
}

/// Answers requests one after another until the connection ends.
fn serve(connection: &TcpStream, answers: &Answers) {
    let mut reader = BufReader::new(connection);
    while let Some(request) = read_request(&mut reader) {
        let known = answers.lock().unwrap();
        let found = known.iter().rev().find(|(needle, _)| request.contains(needle));
        let (bytes, mut connection) =
            (found.map_or_else(not_found, |(_, canned)| canned.clone()).bytes(), connection);
        drop(known);
        if connection.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// Returns the response to requests that the test did not configure.
fn not_found() -> Canned {
    let code = "campaign_not_found";
    Canned::problem(
        404,
        &json!({"code": code, "status": 404, "title": "No such campaign", "detail": "no answer configured"}),
    )
}

/// Reads a request's head and body; `None` if the connection has ended.
pub(crate) fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<String> {
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request).ok()? == 0 {
            return None;
        }
    }
    let head = request.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().expect("a length"))];
    reader.read_exact(&mut body).ok()?;
    request.push_str(&String::from_utf8_lossy(&body));
    Some(request)
}
