//! A stand-in for Stripe, whose real service tests cannot call. It speaks the documented requests: Checkout sessions
//! (create, retrieve, expire), full refunds, idempotency keys, errors, and signed events. Everything else is simplified.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::stand_in::read_request;
use crate::times::now_ms;

/// The account's secret key.
pub const SECRET_KEY: &str = "sk_test_of_the_stand_in";
/// The secret with which the account signs events.
pub const WEBHOOK_SECRET: &str = "whsec_of_the_stand_in";
/// The account's only price.
pub const PRICE: &str = "price_of_the_stand_in";

/// The limits of a session's `expires_at`, in seconds from now.
const SESSION_S_MIN: i64 = 30 * 60;
const SESSION_S_MAX: i64 = 24 * 60 * 60;

/// The parameters of a new session that the stand-in knows.
const PARAMETERS: [&str; 9] = [
    "mode",
    "payment_method_types[0]",
    "line_items[0][price]",
    "line_items[0][quantity]",
    "metadata[claim_id]",
    "metadata[shop]",
    "expires_at",
    "success_url",
    "cancel_url",
];

/// The service on this machine. Its threads end with the process.
#[derive(Debug)]
pub struct Stripe {
    /// The address on which the service listens.
    pub listen: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The sessions, with their payment intents expanded.
    sessions: Vec<Value>,
    /// The payment intents that were refunded.
    refunds: Vec<String>,
    refuses_refunds: bool,
    /// The errors of the next POST requests.
    faults: VecDeque<Refusal>,
    /// Whether the responses to new sessions are held back.
    stalls_creations: bool,
    /// The request and the response of each idempotency key.
    answered: HashMap<String, (String, Answer)>,
}

/// A form's members by name.
type Form = BTreeMap<String, String>;

/// The status and the error of a response.
type Refusal = (u16, Value);

type Answer = Result<Value, Refusal>;

impl Stripe {
    /// Starts the service.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = listener.local_addr().unwrap();
        let shared = Arc::<Shared>::default();
        let of_threads = Arc::clone(&shared);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = Arc::clone(&of_threads);
                thread::spawn(move || serve(&connection, listen, &shared));
            }
        });
        Self { listen, shared }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap()
    }

    /// Lets the next POST requests fail, each with one status and error code. As documented, a 5xx is stored for the
    /// request's idempotency key, and a conflict or a rate limit is not.
    pub fn fail_next(&self, faults: &[(u16, &str)]) {
        self.state().faults.extend(faults.iter().map(|(status, code)| refusal(*status, "api_error", code)));
    }

    /// Holds the responses to new sessions back while `yes` is set.
    pub fn stall_creations(&self, yes: bool) {
        self.state().stalls_creations = yes;
        self.shared.released.notify_all();
    }

    /// Returns the number of sessions created so far.
    pub fn sessions(&self) -> usize {
        self.state().sessions.len()
    }

    /// Returns the claim's only session, with its payment intent expanded.
    pub fn session(&self, claim: &str) -> Value {
        self.state().only(claim).clone()
    }

    /// Returns the claim whose session has this id.
    pub fn claim_of(&self, session: &str) -> String {
        let state = self.state();
        let session = state.sessions.iter().find(|one| one["id"] == session).expect("a session");
        session["metadata"]["claim_id"].as_str().expect("a claim").to_owned()
    }

    /// Returns the payment intents that were refunded.
    pub fn refunds(&self) -> Vec<String> {
        self.state().refunds.clone()
    }

    /// Sets whether refunds are refused, as with an insufficient balance.
    pub fn refuse_refunds(&self, yes: bool) {
        self.state().refuses_refunds = yes;
    }

    /// Completes the claim's session with a payment that succeeds immediately. Returns the payment intent.
    pub fn pay(&self, claim: &str) -> String {
        self.complete(claim, "paid", "succeeded")
    }

    /// Completes the claim's session with a payment that takes longer.
    pub fn begin_payment(&self, claim: &str) {
        self.complete(claim, "unpaid", "processing");
    }

    fn complete(&self, claim: &str, payment_status: &str, intent: &str) -> String {
        let mut state = self.state();
        let session = state.only(claim);
        assert_eq!(session["status"], "open", "only open sessions can be completed: {session}");
        let id = session["id"].as_str().expect("an id").replace("cs_", "pi_");
        session["status"] = json!("complete");
        session["url"] = Value::Null;
        session["payment_status"] = json!(payment_status);
        session["payment_intent"] = json!({"id": id, "object": "payment_intent", "status": intent});
        id
    }

    /// Ends a payment that took longer.
    pub fn end_payment(&self, claim: &str, succeeds: bool) {
        let mut state = self.state();
        let session = state.only(claim);
        assert_eq!(session["payment_intent"]["status"], "processing", "{session}");
        let (payment_status, intent) =
            if succeeds { ("paid", "succeeded") } else { ("unpaid", "requires_payment_method") };
        session["payment_status"] = json!(payment_status);
        session["payment_intent"]["status"] = json!(intent);
    }

    /// Lets the claim's session expire.
    pub fn expire(&self, claim: &str) {
        let mut state = self.state();
        let session = state.only(claim);
        assert_eq!(session["status"], "open", "{session}");
        expire(session);
    }

    /// Returns an event about the claim's session as it is now.
    pub fn event(&self, kind: &str, claim: &str) -> String {
        event(kind, &unexpanded(&self.session(claim)))
    }
}

/// Returns an event about `object`.
pub fn event(kind: &str, object: &Value) -> String {
    json!({"id": "evt_1", "object": "event", "type": kind, "data": {"object": object}}).to_string()
}

/// Returns the header `Stripe-Signature` of an event, as documented: <https://docs.stripe.com/webhooks/signature>.
pub fn signature(secret: &str, at_s: i64, payload: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes any key");
    mac.update(format!("{at_s}.{payload}").as_bytes());
    let hex: Vec<_> = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at_s},v1={}", hex.concat())
}

impl State {
    fn only(&mut self, claim: &str) -> &mut Value {
        let mut of_claim =
            self.sessions.iter_mut().filter(|session| session["metadata"]["claim_id"] == claim);
        let found = of_claim.next().expect("a session");
        assert!(of_claim.next().is_none(), "{claim} has two sessions");
        found
    }

    /// Answers a repeated request with the first response. Of the errors, only a 5xx is stored.
    fn answer(&mut self, listen: SocketAddr, request: &Request) -> Answer {
        if request.header("authorization") != Some(&format!("Bearer {SECRET_KEY}")) {
            return Err(refusal(401, "invalid_request_error", "api_key_invalid"));
        }
        if request.header("stripe-version").is_none() {
            return Err(refusal(400, "invalid_request_error", "version_missing"));
        }
        let key = request.header("idempotency-key");
        let said = format!("{} {:?}", request.call, request.form);
        if let Some((first, response)) = key.and_then(|key| self.answered.get(key)) {
            let differs = || Err(refusal(400, "idempotency_error", "parameters_differ"));
            return if *first == said { response.clone() } else { differs() };
        }
        let fault = request.call.starts_with("POST ").then(|| self.faults.pop_front()).flatten();
        let response = fault.map_or_else(|| self.execute(listen, request), Err);
        let is_stored = response.as_ref().map_or_else(|(status, _)| *status >= 500, |_| true);
        if let Some(key) = key.filter(|_| is_stored) {
            self.answered.insert(key.to_owned(), (said, response.clone()));
        }
        response
    }

    fn execute(&mut self, listen: SocketAddr, request: &Request) -> Answer {
        let words: Vec<_> = request.call.split(['/', ' ', '?']).collect();
        match words[..] {
            ["POST", "", "v1", "checkout", "sessions"] => self.create(listen, &request.form),
            ["GET", "", "v1", "checkout", "sessions", id, "expand[]=payment_intent"] => {
                self.found(id).cloned()
            }
            ["POST", "", "v1", "checkout", "sessions", id, "expire"] => {
                let session = self.found(id)?;
                if session["status"] != "open" {
                    return Err(refusal(400, "invalid_request_error", "session_not_open"));
                }
                expire(session);
                Ok(unexpanded(session))
            }
            ["POST", "", "v1", "refunds"] => self.refund(&request.form),
            _ => Err(refusal(404, "invalid_request_error", "url_invalid")),
        }
    }

    fn found(&mut self, id: &str) -> Result<&mut Value, Refusal> {
        let missing = || refusal(404, "invalid_request_error", "resource_missing");
        self.sessions.iter_mut().find(|session| session["id"] == id).ok_or_else(missing)
    }

    /// <https://docs.stripe.com/api/checkout/sessions/create>
    fn create(&mut self, listen: SocketAddr, form: &Form) -> Answer {
        let invalid = |code| Err(refusal(400, "invalid_request_error", code));
        let text = |name: &str| form.get(name).map(String::as_str).unwrap_or_default();
        let number = |name: &str| text(name).parse::<i64>().unwrap_or_default();
        let lasts_s = number("expires_at") - now_ms() / 1000;
        if form.keys().any(|name| !PARAMETERS.contains(&name.as_str())) {
            return invalid("parameter_unknown");
        }
        if text("mode") != "payment" || text("payment_method_types[0]") != "card" {
            return invalid("parameter_invalid_string");
        }
        if text("line_items[0][price]") != PRICE {
            return invalid("resource_missing");
        }
        let are_urls = ["success_url", "cancel_url"].iter().all(|name| Url::parse(text(name)).is_ok());
        if number("line_items[0][quantity]") < 1 || !are_urls {
            return invalid("parameter_missing");
        }
        if !(SESSION_S_MIN..=SESSION_S_MAX).contains(&lasts_s) {
            return invalid("expires_at_out_of_range");
        }
        let id = format!("cs_test_{}", self.sessions.len() + 1);
        let session = json!({
            "id": id, "object": "checkout.session", "mode": "payment", "status": "open",
            "payment_status": "unpaid", "payment_intent": null, "expires_at": number("expires_at"),
            "metadata": {"claim_id": text("metadata[claim_id]"), "shop": text("metadata[shop]")},
            "success_url": text("success_url"), "cancel_url": text("cancel_url"),
            "url": format!("http://{listen}/c/pay/{id}"),
        });
        self.sessions.push(session.clone());
        Ok(session)
    }

    /// <https://docs.stripe.com/api/refunds/create>
    fn refund(&mut self, form: &Form) -> Answer {
        let payment = form.get("payment_intent").cloned().unwrap_or_default();
        let has_succeeded = self
            .sessions
            .iter()
            .any(|session| session["payment_intent"]["id"] == payment && session["payment_status"] == "paid");
        if !has_succeeded {
            return Err(refusal(400, "invalid_request_error", "resource_missing"));
        }
        if self.refunds.contains(&payment) {
            return Err(refusal(400, "invalid_request_error", "charge_already_refunded"));
        }
        if self.refuses_refunds {
            return Err(refusal(400, "invalid_request_error", "balance_insufficient"));
        }
        self.refunds.push(payment.clone());
        Ok(
            json!({"id": format!("re_{payment}"), "object": "refund", "payment_intent": payment, "status": "succeeded"}),
        )
    }
}

fn expire(session: &mut Value) {
    session["status"] = json!("expired");
    session["url"] = Value::Null;
}

/// Returns the session with the id of its payment intent.
fn unexpanded(session: &Value) -> Value {
    let mut session = session.clone();
    session["payment_intent"] = session["payment_intent"]["id"].clone();
    session
}

/// <https://docs.stripe.com/api/errors>
fn refusal(status: u16, kind: &str, code: &str) -> Refusal {
    (status, json!({"error": {"type": kind, "code": code, "message": "refused by the stand-in for Stripe"}}))
}

struct Request {
    /// Method and target.
    call: String,
    head: String,
    form: Form,
}

impl Request {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let call = head.split(" HTTP/").next().unwrap_or_default().to_owned();
        let pairs = Url::parse(&format!("http://form/?{body}")).expect("a form");
        let form = pairs.query_pairs().into_owned().collect();
        Self { call, head: head.to_owned(), form }
    }

    /// Returns the value of a header, by its name in lower case.
    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers.filter(|(there, _)| there.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    fn is_form(&self) -> bool {
        let is_urlencoded = |kind: &str| kind.starts_with("application/x-www-form-urlencoded");
        self.form.is_empty() || self.header("content-type").is_some_and(is_urlencoded)
    }
}

fn serve(mut connection: &TcpStream, listen: SocketAddr, shared: &Shared) {
    let Some(text) = read_request(&mut BufReader::new(connection)) else { return };
    let request = Request::parse(&text);
    let (status, kind, body) = if request.call.starts_with("GET /c/pay/") {
        (200, "text/html", "<!doctype html><title>Stand-in for Stripe Checkout</title>".to_owned())
    } else if request.is_form() {
        let mut state = shared.state.lock().unwrap();
        let (status, body) = match state.answer(listen, &request) {
            Ok(body) => (200, body),
            Err(refused) => refused,
        };
        if request.call == "POST /v1/checkout/sessions" {
            drop(shared.released.wait_while(state, |state| state.stalls_creations).unwrap());
        }
        (status, "application/json", body.to_string())
    } else {
        (400, "application/json", refusal(400, "invalid_request_error", "not_a_form").1.to_string())
    };
    let head =
        format!("HTTP/1.1 {status} Stand-in\r\nContent-Type: {kind}\r\nContent-Length: {}", body.len());
    let _ = connection.write_all(format!("{head}\r\nConnection: close\r\n\r\n{body}").as_bytes());
}
