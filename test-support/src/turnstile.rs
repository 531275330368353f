//! A stand-in for Cloudflare's Turnstile, whose real service tests cannot call. It speaks the documented requests: the
//! script's `render` and `remove`, and `siteverify` with its responses and error codes. Everything else is simplified.

use std::collections::HashSet;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::process::free_address;
use crate::stand_in::read_request;

/// The widget's secret and site key.
pub const SECRET: &str = "0x4AAAAAAA-a-secret-for-tests";
/// See [`SECRET`].
pub const SITE_KEY: &str = "0x4AAAAAAA-a-site-key";

/// A fault of `siteverify`, which then checks no token.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing is sent, and the connection stays open.
    Silence,
    /// The connection is closed immediately.
    Closed,
    /// The head of a response, without its body.
    Cut,
    /// Status, header lines and body.
    Answer(u16, String, String),
}

/// The service on this machine. Its threads end with the process.
#[derive(Debug)]
pub struct Turnstile {
    listen: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Whether the widget asks the visitor.
    asks: bool,
    used: HashSet<String>,
    questions: Vec<Value>,
}

impl Turnstile {
    /// Starts the service.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(&connection, &shared));
            }
        });
        Self { listen, state }
    }

    /// Returns the base URL, for `TURNSTILE_URL`.
    pub fn url(&self) -> String {
        format!("http://{}/v0", self.listen)
    }

    /// Returns the edge's variables for this service, for pages of 127.0.0.1 and of the address that edges listen on.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("CHALLENGE", "turnstile".to_owned()),
            ("TURNSTILE_SECRET", SECRET.to_owned()),
            ("TURNSTILE_SITE_KEY", SITE_KEY.to_owned()),
            ("TURNSTILE_HOSTNAMES", format!("127.0.0.1, {}", free_address().ip())),
            ("TURNSTILE_URL", self.url()),
        ]
    }

    /// Makes `siteverify` fail with `fault`; `None` ends the fault.
    pub fn fail(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().fault = fault;
    }

    /// Sets whether the widget asks the visitor.
    pub fn ask(&self, asks: bool) {
        self.state.lock().unwrap().asks = asks;
    }

    /// Returns the bodies that `siteverify` got so far.
    pub fn questions(&self) -> Vec<Value> {
        self.state.lock().unwrap().questions.clone()
    }
}

/// Returns a token as the widget on a page of `hostname` gives it.
pub fn token(hostname: &str, action: &str, id: &str) -> String {
    format!("token|{hostname}|{action}|{id}")
}

fn serve(mut connection: &TcpStream, shared: &Mutex<State>) {
    let mut reader = BufReader::new(connection);
    let Some(request) = read_request(&mut reader) else { return };
    let path = request.split(' ').nth(1).unwrap_or_default();
    let host =
        request.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("host: ").map(str::to_owned));
    let (kind, body) = match path.split('?').next().unwrap_or_default() {
        "/v0/api.js" => ("text/javascript", script(&host.unwrap_or_default(), shared.lock().unwrap().asks)),
        "/v0/frame" => ("text/html", FRAME.to_owned()),
        "/v0/siteverify" => {
            let fault = shared.lock().unwrap().fault.clone();
            let answer = siteverify(&request, &mut shared.lock().unwrap());
            match fault {
                None => ("application/json", answer.to_string()),
                Some(fault) => return fail(connection, &mut reader, &fault),
            }
        }
        _ => return,
    };
    let _ = connection.write_all(&answer(200, &format!("Content-Type: {kind}\r\n"), &body));
}

fn answer(status: u16, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} Stand-in\r\n{headers}Content-Length: {length}\r\nConnection: close");
    format!("{head}\r\n\r\n{body}").into_bytes()
}

fn fail(mut connection: &TcpStream, reader: &mut BufReader<&TcpStream>, fault: &Fault) {
    let bytes = match fault {
        Fault::Closed => return,
        Fault::Silence => Vec::new(),
        Fault::Cut => b"HTTP/1.1 200 Stand-in\r\nContent-Length: 90\r\n\r\n{\"success\":".to_vec(),
        Fault::Answer(status, headers, body) => answer(*status, headers, body),
    };
    let _ = connection.write_all(&bytes);
    if matches!(fault, Fault::Silence) {
        // Keeps the connection open until the client closes it.
        let _ = read_request(reader);
    }
}

/// Answers as documented: <https://developers.cloudflare.com/turnstile/get-started/server-side-validation/>.
fn siteverify(request: &str, state: &mut State) -> Value {
    let refused = |code: &str| json!({"success": false, "error-codes": [code], "messages": []});
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let is_json = head.to_ascii_lowercase().contains("content-type: application/json");
    let question: Value = serde_json::from_str(body).unwrap_or_default();
    if !request.starts_with("POST ") || !is_json || !question.is_object() {
        return refused("bad-request");
    }
    state.questions.push(question.clone());
    let Some(secret) = question["secret"].as_str() else { return refused("missing-input-secret") };
    if secret != SECRET {
        return refused("invalid-input-secret");
    }
    let Some(token) = question["response"].as_str() else { return refused("missing-input-response") };
    let parts: Vec<_> = token.split('|').collect();
    let [kind, hostname, action, _] = parts[..] else { return refused("invalid-input-response") };
    if kind == "expired" || !state.used.insert(token.to_owned()) {
        return refused("timeout-or-duplicate");
    }
    json!({"success": true, "challenge_ts": "2026-11-28T08:00:00.000Z", "hostname": hostname, "error-codes": [],
        "action": action, "cdata": "", "metadata": {"interactive": state.asks}})
}

/// The documented functions that the page uses.
fn script(host: &str, asks: bool) -> String {
    let base = format!("http://{host}/v0");
    format!(
        r#"window.turnstile = {{
    boxes: {{}},
    render(box, options) {{
        const id = "widget-" + Math.random();
        this.boxes[id] = box;
        const token = ["token", location.hostname, options.action, id].join("|");
        const frame = document.createElement("iframe");
        Object.assign(frame, {{ src: "{base}/frame", title: "Widget containing a security challenge", width: 300, height: 65 }});
        addEventListener("message", ({{ origin, data }}) => origin === "http://{host}" && data === "answered" && options.callback(token));
        frame.onload = () => {{
            if (options.sitekey !== "{SITE_KEY}") options["error-callback"]("110100");
            else if (!{asks}) options.callback(token);
        }};
        box.append(frame);
        return id;
    }},
    remove(id) {{ this.boxes[id].replaceChildren(); }},
}};
"#
    )
}

const FRAME: &str = r#"<!doctype html><html lang="en"><title>Stand-in</title><main><h1 style="font-size:1em;margin:0">Stand-in for Turnstile</h1>
<button onclick="parent.postMessage('answered', '*')">I am human</button></main></html>"#;
