//! A server that publishes an issuer's key set, well or badly.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub const DISCOVERY: &str = "/.well-known/openid-configuration";
pub const JWKS: &str = "/jwks";

/// The response to a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Status, header lines and body.
    Complete(u16, String, String),
    /// The connection is closed immediately.
    Closed,
    /// Nothing is sent, and the connection stays open.
    Silence,
    /// The head, without an end of the body.
    Endless,
    /// A response after this time.
    Slow(Duration, Box<Answer>),
    /// A response that is sent one byte per interval.
    Trickle(Duration, Box<Answer>),
}

impl Answer {
    /// A set of these keys.
    pub fn keys(keys: &[Value]) -> Self {
        Self::json(&json!({"keys": keys}))
    }

    pub fn json(body: &Value) -> Self {
        Self::Complete(200, String::new(), body.to_string())
    }
}

/// The server. Its threads end with the process.
#[derive(Debug)]
pub struct KeyServer {
    listen: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    answers: Mutex<Vec<(String, Answer)>>,
    requests: Mutex<Vec<String>>,
}

impl KeyServer {
    /// Starts a server whose key set gets `answer`.
    pub fn start(answer: Answer) -> Self {
        let server = Self::empty();
        let discovery = json!({"issuer": server.url(""), "jwks_uri": server.url(JWKS)});
        server.answer(DISCOVERY, Answer::json(&discovery));
        server.answer(JWKS, answer);
        server
    }

    /// Starts a server that gives every path 404.
    pub fn empty() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { listen: listener.local_addr().unwrap(), shared: Arc::default() };
        let shared = Arc::clone(&server.shared);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&connection, &shared));
            }
        });
        server
    }

    /// Gives `path` this response from now on.
    pub fn answer(&self, path: &str, answer: Answer) {
        self.shared.answers.lock().unwrap().push((path.to_owned(), answer));
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.listen)
    }

    /// Number of requests for `path` so far.
    pub fn requests(&self, path: &str) -> usize {
        self.shared.requests.lock().unwrap().iter().filter(|one| *one == path).count()
    }

    /// Returns the URLs requested so far.
    pub fn requested(&self) -> Vec<String> {
        self.shared.requests.lock().unwrap().iter().map(|path| self.url(path)).collect()
    }
}

/// Answers the first request of a connection.
fn serve(mut connection: &TcpStream, shared: &Shared) {
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    let Some(path) = lines.next().and_then(|line| Some(line.split(' ').nth(1)?.to_owned())) else { return };
    for _ in lines.by_ref().take_while(|line| !line.is_empty()) {}
    shared.requests.lock().unwrap().push(path.clone());
    let answers = shared.answers.lock().unwrap().clone();
    let path = path.split('?').next().unwrap_or_default();
    let answer = answers.into_iter().rev().find(|(known, _)| *known == path).map(|(_, answer)| answer);
    let mut answer = answer.unwrap_or(Answer::Complete(404, String::new(), String::new()));
    let mut interval = Duration::ZERO;
    while let Answer::Slow(time, inner) = answer {
        thread::sleep(time);
        answer = *inner;
    }
    if let Answer::Trickle(time, inner) = answer {
        (interval, answer) = (time, *inner);
    }
    match answer {
        Answer::Complete(status, headers, body) => {
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} Keys\r\n{headers}Content-Length: {length}\r\nConnection: close");
            let _ = connection.write_all(format!("{head}\r\n\r\n").as_bytes());
            let size = if interval.is_zero() { length.max(1) } else { 1 };
            for part in body.as_bytes().chunks(size) {
                thread::sleep(interval);
                if connection.write_all(part).is_err() {
                    return;
                }
            }
        }
        // The time before the response is over.
        Answer::Slow(..) | Answer::Trickle(..) => {}
        Answer::Closed => {}
        // Keeps the connection open until the client closes it.
        Answer::Silence => drop(lines.next()),
        Answer::Endless => {
            let _ = connection.write_all(b"HTTP/1.1 200 Keys\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
            while connection.write_all(chunk.as_bytes()).is_ok() {}
        }
    }
}
