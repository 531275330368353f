//! A server that stands in for a core of another release: it says what the core of this checkout cannot say.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// A core as a test makes it up. It knows nothing, decides nothing, and answers as it was told.
#[derive(Debug)]
pub struct StandIn {
    /// Where it listens.
    pub listen: SocketAddr,
    answers: Answers,
}

/// By what is to be found in the request; of several the one given last.
type Answers = Arc<Mutex<Vec<(String, Canned)>>>;

/// One answer, to every caller and every time.
#[derive(Debug, Clone)]
pub struct Canned {
    status: u16,
    headers: Vec<(&'static str, String)>,
    /// Sent byte for byte.
    pub body: String,
}

impl Canned {
    /// `body` as JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::typed(status, "application/json", body)
    }

    /// `body` as a problem.
    pub fn problem(status: u16, body: &Value) -> Self {
        Self::typed(status, "application/problem+json", body)
    }

    fn typed(status: u16, content_type: &str, body: &Value) -> Self {
        Self { status, headers: vec![("Content-Type", content_type.to_owned())], body: body.to_string() }
    }

    /// With this header, too.
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
        let head = format!("HTTP/1.1 {status} As told\r\n{headers}Content-Length: {length}\r\n\r\n");
        [head.as_bytes(), self.body.as_bytes()].concat()
    }
}

impl StandIn {
    /// One that knows no answer yet.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listener.local_addr().unwrap();
        let answers = Answers::default();
        let told = Arc::clone(&answers);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let told = Arc::clone(&told);
                thread::spawn(move || serve(&connection, &told));
            }
        });
        Self { listen, answers }
    }

    /// From now on a request with `needle` in its head or body is answered so.
    pub fn answers(&self, needle: &str, canned: Canned) {
        self.answers.lock().unwrap().push((needle.to_owned(), canned));
    }
}

/// Answers one request after the other until the connection ends.
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

/// To whatever no test has thought of.
fn not_found() -> Canned {
    let code = "campaign_not_found";
    Canned::problem(
        404,
        &json!({"code": code, "status": 404, "title": "No such campaign", "detail": "not told"}),
    )
}

/// A request's head and body; `None` at the end.
fn read_request(reader: &mut BufReader<&TcpStream>) -> Option<String> {
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
