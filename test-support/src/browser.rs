//! A headless Chromium, driven over WebDriver.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::client::{Client, client_waiting};
use crate::edge::{Leashed, emptied, root};
use crate::wait::holds;
use crate::{SOON, eventually};

/// How many browsers may be open at once: each fills a processor while it draws.
const BROWSERS_MAX: usize = 2;

/// How long one command may take. Opening a browser, or a page, on a busy machine has been seen to take 30 s.
const COMMAND_MAX: Duration = Duration::from_secs(180);

/// Chromium dies with its driver, and the driver with the tests.
const CHROMIUM: &str = "#!/bin/sh\nexec setpriv --pdeathsig KILL -- chromium \"$@\"\n";

/// A telephone, held upright.
pub const PHONE: (u32, u32) = (390, 844);
/// A small desktop.
pub const DESKTOP: (u32, u32) = (1280, 800);
/// A desktop of 1280 pixels at 400 %: nothing may have to be scrolled sideways even there (WCAG 1.4.10).
const NARROW: (u32, u32) = (320, 600);

/// Texts whose contrast is below WCAG's 4.5:1, each with its own.
pub const TOO_FAINT: &str = r"(() => {
    const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
    const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ground = (element) => {
        const colour = parts(getComputedStyle(element).backgroundColor);
        return colour[3] === 0 ? ground(element.parentElement) : colour;
    };
    const contrast = (element) => {
        const [dark, bright] = [parts(getComputedStyle(element).color), ground(element)].map(light).sort((a, b) => a - b);
        return (bright + 0.05) / (dark + 0.05);
    };
    const isText = (node) => node.nodeType === 3 && /[\p{L}\p{N}]/u.test(node.data);
    return [...document.body.querySelectorAll('*')]
        .filter((element) => element.checkVisibility() && [...element.childNodes].some(isText) && contrast(element) < 4.5)
        .map((element) => `${element.textContent}: ${contrast(element)}`);
})()";

/// Whether there is a browser to test with. Where all must be tested, its absence is a failure.
pub fn is_here() -> bool {
    let missing: Vec<_> = ["chromium", "chromedriver"].into_iter().filter(|name| !is_on_path(name)).collect();
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(missing.is_empty() || !must, "no {missing:?}: run scripts/setup.sh");
    missing.is_empty()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[derive(Debug)]
struct Driver {
    address: SocketAddr,
    directory: PathBuf,
    _process: Leashed,
}

async fn driver() -> &'static Driver {
    static DRIVER: OnceCell<Driver> = OnceCell::const_new();
    DRIVER.get_or_init(start_driver).await
}

async fn start_driver() -> Driver {
    let directory = emptied("browser");
    let wrapper = directory.join("chromium");
    fs::write(&wrapper, CHROMIUM).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut command = Command::new("chromedriver");
    command.arg(format!("--port={}", address.port())).env("HOME", &directory);
    let process = Leashed::start(&command, &directory.join("driver.log"), &directory.join("profiles"));
    let (client, status) = (client_waiting(COMMAND_MAX), format!("http://{address}/status"));
    eventually(SOON, || async { client.try_get(&status, "").await.map_err(|error| error.to_string()) }).await;
    Driver { address, directory, _process: process }
}

/// A browser with one tab and a fresh profile; ends when it is dropped, also by a test that fails.
#[derive(Debug)]
pub struct Browser {
    client: Client,
    driver: SocketAddr,
    session: String,
    _permit: SemaphorePermit<'static>,
}

impl Browser {
    /// Opens one whose page is of this size, once there are fewer than [`BROWSERS_MAX`].
    pub async fn open(name: &str, size: (u32, u32)) -> Self {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        static PERMITS: Semaphore = Semaphore::const_new(BROWSERS_MAX);
        let permit = PERMITS.acquire().await.expect("it is never closed");
        let driver = driver().await;
        // The same test may be running against another runtime.
        let profile = format!("{name}-{}", OPENED.fetch_add(1, Ordering::Relaxed));
        let profile =
            format!("--user-data-dir={}", driver.directory.join("profiles").join(profile).display());
        let flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
            "--hide-scrollbars",
            "--lang=en",
            &profile,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"binary": driver.directory.join("chromium"), "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let client = client_waiting(COMMAND_MAX);
        let sessions = format!("http://{}/session", driver.address);
        let reply = client.call(Method::POST, &sessions, "", &wanted).await.expect(200);
        let id = reply.json()["value"]["sessionId"].as_str().unwrap().to_owned();
        let browser =
            Self { client, driver: driver.address, session: format!("/session/{id}"), _permit: permit };
        browser.resize(size).await;
        browser
    }

    async fn call(&self, path: &str, body: Value) -> Value {
        let url = format!("http://{}{}/{path}", self.driver, self.session);
        self.client.call(Method::POST, &url, "", &body).await.expect(200).json()["value"].take()
    }

    /// A command of the DevTools protocol.
    pub async fn devtools(&self, command: &str, params: Value) -> Value {
        self.call("goog/cdp/execute", json!({"cmd": command, "params": params})).await
    }

    /// Sets the size of the page itself: a window cannot be as narrow as a telephone.
    pub async fn resize(&self, (width, height): (u32, u32)) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Goes to `url`.
    pub async fn goto(&self, url: &str) {
        self.call("url", json!({"url": url})).await;
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        self.call("refresh", json!({})).await;
    }

    /// What the JavaScript expression is.
    pub async fn eval(&self, expression: &str) -> Value {
        self.call("execute/sync", json!({"script": format!("return {expression}"), "args": []})).await
    }

    /// Waits until the expression is `wanted`.
    pub async fn until(&self, expression: &str, wanted: impl Into<Value>) {
        let wanted = wanted.into();
        eventually(Duration::from_secs(40), || async {
            let value = self.eval(expression).await;
            let seen = || format!("{expression} is {value}, not {wanted}");
            holds(value == wanted, seen)
        })
        .await;
    }

    /// Presses an element as a person does: where it is, and only when it can be pressed.
    pub async fn press(&self, css: &str) {
        let found = self.call("element", json!({"using": "css selector", "value": css})).await;
        let id =
            found.as_object().and_then(|found| found.values().next()).unwrap().as_str().unwrap().to_owned();
        self.call(&format!("element/{id}/click"), json!({})).await;
    }

    /// Presses a key, by its code point in WebDriver or its character.
    pub async fn key(&self, key: char) {
        let strokes = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        self.call("actions", json!({"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]}))
            .await;
    }

    /// What assistive technology is told of: `role: name`, of these roles, the outer before the inner.
    pub async fn told(&self, roles: &[&str]) -> Vec<String> {
        let tree = self.devtools("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] == false);
        let texts = nodes.map(|node| (node["role"]["value"].as_str(), node["name"]["value"].as_str()));
        let known = texts.map(|(role, name)| (role.unwrap_or_default(), name.unwrap_or_default()));
        known.filter(|(role, _)| roles.contains(role)).map(|(role, name)| format!("{role}: {name}")).collect()
    }

    /// Takes the network away, or makes it that slow, or gives it back.
    pub async fn network(&self, offline: bool, latency_ms: u32) {
        self.devtools("Network.enable", json!({})).await;
        let wanted = json!({"offline": offline, "latency": latency_ms, "downloadThroughput": -1, "uploadThroughput": -1});
        self.devtools("Network.emulateNetworkConditions", wanted).await;
    }

    /// What the user has asked of every page: `prefers-color-scheme` and the like.
    pub async fn prefers(&self, feature: &str, value: &str) {
        let features = json!([{"name": feature, "value": value}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Saves what is seen under `target/screenshots`, on a telephone and on a desktop, in light and in dark, and checks
    /// that all can be read and nothing has to be scrolled sideways; leaves the telephone's size.
    pub async fn picture(&self, name: &str) {
        for scheme in ["dark", "light"] {
            self.prefers("prefers-color-scheme", scheme).await;
            assert_eq!(self.eval(TOO_FAINT).await, json!([]), "{name} in {scheme}");
            for (kind, size) in [("narrow", NARROW), ("desktop", DESKTOP), ("phone", PHONE)] {
                self.resize(size).await;
                assert_eq!(self.eval("innerWidth").await, size.0);
                let sideways = self.eval("document.scrollingElement.scrollWidth - innerWidth").await;
                assert!(
                    sideways.as_i64().unwrap() <= 0,
                    "{name} on a {kind} has to be scrolled by {sideways}"
                );
                self.shoot(&format!("{name}-{kind}-{scheme}")).await;
            }
        }
    }

    /// Saves what is seen as `target/screenshots/{name}.png`.
    pub async fn shoot(&self, name: &str) {
        let shot = self.devtools("Page.captureScreenshot", json!({"format": "png"})).await;
        let png = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        let path = root().join(format!("target/screenshots/{name}.png"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, png).unwrap();
    }

    async fn log(&self, kind: &str) -> Vec<Value> {
        self.call("se/log", json!({"type": kind})).await.as_array().unwrap().clone()
    }

    /// Checks that the page made no error and no request to any other host, and closes. What breaks the page's policy is
    /// an error; refusals are none, but the browser logs them as such.
    pub async fn close(self) {
        let mut errors = self.log("browser").await;
        errors.retain(|line| line["level"] == "SEVERE" && line["source"] != "network");
        assert_eq!(errors, Vec::<Value>::new());
        let origin = format!("{}/", self.eval("location.origin").await.as_str().unwrap());
        let asked = requests(&self.log("performance").await);
        assert!(asked.iter().any(|url| url.ends_with("/page.js")), "the log has its requests: {asked:?}");
        let others: Vec<_> = asked.iter().filter(|url| !url.starts_with(&origin)).collect();
        assert_eq!(others, Vec::<&String>::new(), "requests to others than {origin}");
    }

    fn end_session(&self) -> io::Result<()> {
        let mut driver = TcpStream::connect(self.driver)?;
        driver.set_read_timeout(Some(SOON))?;
        write!(
            driver,
            "DELETE {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.session, self.driver
        )?;
        // The head of the answer: then it has ended.
        driver.read(&mut [0]).map(drop)
    }
}

impl Drop for Browser {
    /// A browser that a failed test left open would go on drawing, and take its time from all others.
    fn drop(&mut self) {
        if let Err(error) = self.end_session() {
            eprintln!("the browser of {} is still open: {error}", self.session);
        }
    }
}

/// The URLs that were asked for, but for those of the browser's own pages, by the log of the DevTools protocol's events.
fn requests(log: &[Value]) -> Vec<String> {
    let events =
        log.iter().map(|line| serde_json::from_str::<Value>(line["message"].as_str().unwrap()).unwrap());
    let sent = events.filter(|event| event["message"]["method"] == "Network.requestWillBeSent");
    sent.map(|event| event["message"]["params"].clone())
        .filter(|params| params["documentURL"].as_str().is_some_and(|url| url.starts_with("http")))
        .map(|params| params["request"]["url"].as_str().unwrap().to_owned())
        .collect()
}
