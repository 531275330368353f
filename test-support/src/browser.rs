//! A headless Chromium, driven over WebDriver.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::available::available;
use crate::client::{Client, client_waiting};
use crate::edge::{ProcessGroup, emptied, root};
use crate::process::own_loopback;
use crate::wait::holds;
use crate::{SOON, eventually};

/// Number of browsers that may be open at a time: as many as tests run on two processors, because most of the time a
/// test waits for its page. A browser uses a whole processor only while it starts or renders.
const BROWSERS_MAX: usize = 4;

/// Time limit of one command. Opening a browser or a page has taken 30 s on a busy machine.
const COMMAND_MAX: Duration = SOON;

/// Chromium without a window; the full Chromium takes four times its CPU time to start.
const CHROMIUM: &str = "chromium-headless-shell";

/// The name of [`own_loopback`] for browsers. Unlike a loopback address, it is not a secure context over plain HTTP.
pub const INSECURE_HOST: &str = "claims.test";

/// A phone held upright.
pub const PHONE: (u32, u32) = (390, 844);
/// A small desktop.
pub const DESKTOP: (u32, u32) = (1280, 800);
/// A desktop of 1280 pixels at 400 %: even here nothing may need horizontal scrolling (WCAG 1.4.10).
const NARROW: (u32, u32) = (320, 600);

/// JavaScript that returns the texts whose contrast is below WCAG's 4.5:1, with their contrast.
pub const TOO_FAINT: &str = r"(() => {
    const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
    const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const around = (element) => element.assignedSlot ?? element.parentElement ?? element.getRootNode().host;
    const ground = (element) => {
        if (!element) return [255, 255, 255]; // the browser's own page
        const colour = parts(getComputedStyle(element).backgroundColor);
        return colour[3] === 0 ? ground(around(element)) : colour;
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

/// Returns whether a browser is installed for the test `what`. In CI a missing browser fails the test.
pub fn is_installed(what: &str) -> bool {
    let missing = [CHROMIUM, "chromedriver"].into_iter().find(|name| !is_on_path(name));
    let found = missing.map_or(Ok(()), |name| Err(format!("no {name}: run scripts/setup.sh")));
    available(what, found).is_some()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[derive(Debug)]
struct Driver {
    address: SocketAddr,
    directory: PathBuf,
    _process: ProcessGroup,
}

async fn driver() -> &'static Driver {
    static DRIVER: OnceCell<Driver> = OnceCell::const_new();
    DRIVER.get_or_init(start_driver).await
}

async fn start_driver() -> Driver {
    let directory = emptied("browser");
    // Chromium dies with its driver, and the driver with the tests. The driver expects a page, which this
    // Chromium opens only if its URL is an argument.
    let wrapper = directory.join("chromium");
    let script = format!("#!/bin/sh\nexec setpriv --pdeathsig KILL -- {CHROMIUM} \"$@\" about:blank\n");
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let mut command = Command::new("chromedriver");
    command.arg(format!("--port={}", address.port())).env("HOME", &directory);
    let process = ProcessGroup::start(&command, &directory.join("driver.log"), &directory.join("profiles"));
    let (client, status) = (client_waiting(COMMAND_MAX), format!("http://{address}/status"));
    eventually(SOON, || async { client.try_get(&status, "").await.map_err(|error| error.to_string()) }).await;
    Driver { address, directory, _process: process }
}

/// A browser with one tab and a fresh profile, closed when dropped, even if the test fails.
#[derive(Debug)]
pub struct Browser {
    client: Client,
    driver: SocketAddr,
    session: String,
    _permit: SemaphorePermit<'static>,
}

impl Browser {
    /// Opens a browser whose page has this size, once fewer than [`BROWSERS_MAX`] are open.
    pub async fn open(name: &str, size: (u32, u32)) -> Self {
        static OPENED: AtomicUsize = AtomicUsize::new(0);
        static PERMITS: Semaphore = Semaphore::const_new(BROWSERS_MAX);
        let permit = PERMITS.acquire().await.expect("an open semaphore");
        let driver = driver().await;
        // The same test may be running against another runtime at the same time.
        let profile = format!("{name}-{}", OPENED.fetch_add(1, Ordering::Relaxed));
        let profile =
            format!("--user-data-dir={}", driver.directory.join("profiles").join(profile).display());
        let resolved = format!("--host-resolver-rules=MAP {INSECURE_HOST} {}", own_loopback());
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
            &resolved,
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

    /// Sends a command of the DevTools protocol.
    pub async fn devtools(&self, command: &str, params: Value) -> Value {
        self.call("goog/cdp/execute", json!({"cmd": command, "params": params})).await
    }

    /// Sets the size of the page itself, because a window cannot be as narrow as a phone.
    pub async fn resize(&self, (width, height): (u32, u32)) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Opens `url`.
    pub async fn goto(&self, url: &str) {
        self.call("url", json!({"url": url})).await;
    }

    /// Reloads the page.
    pub async fn reload(&self) {
        self.call("refresh", json!({})).await;
    }

    /// Returns the value of a JavaScript expression.
    pub async fn eval(&self, expression: &str) -> Value {
        self.call("execute/sync", json!({"script": format!("return {expression}"), "args": []})).await
    }

    /// Waits until the expression is `wanted`.
    pub async fn until(&self, expression: &str, wanted: impl Into<Value>) {
        let wanted = wanted.into();
        eventually(SOON, || async {
            let value = self.eval(expression).await;
            let mismatch = || format!("{expression} is {value}, not {wanted}");
            holds(value == wanted, mismatch)
        })
        .await;
    }

    /// Clicks an element as a person does: at its position, and only if it can be clicked.
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

    /// Returns what assistive technology announces for these roles, as `role: name`, outer elements before
    /// inner ones.
    pub async fn accessible_names(&self, roles: &[&str]) -> Vec<String> {
        let tree = self.devtools("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] == false);
        let texts = nodes.map(|node| (node["role"]["value"].as_str(), node["name"]["value"].as_str()));
        let known = texts.map(|(role, name)| (role.unwrap_or_default(), name.unwrap_or_default()));
        known.filter(|(role, _)| roles.contains(role)).map(|(role, name)| format!("{role}: {name}")).collect()
    }

    /// Takes the page offline, slows its network down, or restores it.
    pub async fn network(&self, offline: bool, latency_ms: u32) {
        self.devtools("Network.enable", json!({})).await;
        let wanted = json!({"offline": offline, "latency": latency_ms, "downloadThroughput": -1, "uploadThroughput": -1});
        self.devtools("Network.emulateNetworkConditions", wanted).await;
        if offline {
            // Chromium answers before its network process knows; a request sent now may still reach the server.
            let probe = "fetch(location.href, { cache: 'no-store' }).then(() => 'online', () => 'offline')";
            self.until(probe, "offline").await;
        }
    }

    /// Sets a preference that the user has for every page, such as `prefers-color-scheme`.
    pub async fn emulate_media(&self, feature: &str, value: &str) {
        let features = json!([{"name": feature, "value": value}]);
        self.devtools("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// Checks contrast, that nothing scrolls sideways, and accessibility: on a narrow screen, a desktop and a
    /// phone, dark and light. With `SCREENSHOTS`, saves pictures under `target/screenshots`. The page keeps
    /// the phone's size.
    pub async fn check_layout(&self, name: &str) {
        let saved = std::env::var_os("SCREENSHOTS").is_some();
        for (kind, size) in [("narrow", NARROW), ("desktop", DESKTOP), ("phone", PHONE)] {
            self.resize(size).await;
            assert_eq!(self.eval("innerWidth").await, size.0);
            let sideways = self.eval("document.scrollingElement.scrollWidth - innerWidth").await;
            assert!(sideways.as_i64().unwrap() <= 0, "{name} on a {kind} has to be scrolled by {sideways}");
            for scheme in ["dark", "light"] {
                self.emulate_media("prefers-color-scheme", scheme).await;
                assert_eq!(self.eval(TOO_FAINT).await, json!([]), "{name} in {scheme}");
                if saved {
                    self.screenshot(&format!("{name}-{kind}-{scheme}")).await;
                }
            }
        }
        self.assert_accessible(name).await;
    }

    /// Checks that axe finds no violation of its rules for accessibility. `state` names the page's state.
    pub async fn assert_accessible(&self, state: &str) {
        static AXE: LazyLock<String> =
            LazyLock::new(|| fs::read_to_string(root().join("node_modules/axe-core/axe.min.js")).unwrap());
        // The script is large, and a page keeps it until it is left.
        if self.eval("'axe' in window").await == false {
            self.call("execute/sync", json!({"script": AXE.as_str(), "args": []})).await;
        }
        let run = "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => \
            violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join()}`))";
        assert_eq!(self.eval(run).await, json!([]), "{state}");
    }

    /// Saves the visible page as `target/screenshots/{name}.png`.
    pub async fn screenshot(&self, name: &str) {
        let shot = self.devtools("Page.captureScreenshot", json!({"format": "png"})).await;
        let png = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
        let path = root().join(format!("target/screenshots/{name}.png"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, png).unwrap();
    }

    async fn log(&self, kind: &str) -> Vec<Value> {
        self.call("se/log", json!({"type": kind})).await.as_array().unwrap().clone()
    }

    /// Checks that the page logged no error and sent no request to another host, then closes the browser.
    /// Violations of the content security policy count as errors. Rejected requests do not, although the
    /// browser logs them.
    pub async fn close(self) {
        self.close_after_visit_to("").await;
    }

    /// Closes the browser like [`close`](Self::close), after a visit to `site`, another origin. The page may have sent
    /// requests to it, and its own pages to anywhere.
    pub async fn close_after_visit_to(self, site: &str) {
        let mut errors = self.log("browser").await;
        errors.retain(|line| line["level"] == "SEVERE" && line["source"] != "network");
        assert_eq!(errors, Vec::<Value>::new());
        let origin = format!("{}/", self.eval("location.origin").await.as_str().unwrap());
        let requested = requests(&self.log("performance").await);
        assert!(
            requested.iter().any(|(_, url)| url.ends_with("/page.js") || url.ends_with("/button.js")),
            "the log must contain the page's requests: {requested:?}"
        );
        let is_of_site = |url: &String| !site.is_empty() && url.starts_with(&format!("{site}/"));
        let others: Vec<_> = requested
            .iter()
            // The browser's own icons, such as those of fields for times, are `data:` URLs.
            .filter(|(_, url)| !url.starts_with("data:"))
            .filter(|(page, url)| !url.starts_with(&origin) && !is_of_site(url) && !is_of_site(page))
            .collect();
        assert_eq!(others, Vec::<&(String, String)>::new(), "requests to hosts other than {origin}");
    }

    fn end_session(&self) -> io::Result<()> {
        let mut driver = TcpStream::connect(self.driver)?;
        driver.set_read_timeout(Some(SOON))?;
        write!(
            driver,
            "DELETE {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
            self.session, self.driver
        )?;
        // The session has ended once the head of the response arrives.
        driver.read(&mut [0]).map(drop)
    }
}

impl Drop for Browser {
    /// Closes the browser: one left open by a failed test would keep rendering and slow down all other tests.
    fn drop(&mut self) {
        if let Err(error) = self.end_session() {
            eprintln!("the browser of {} is still open: {error}", self.session);
        }
    }
}

/// Returns the URLs requested according to the DevTools log, each after its page's, except those of the browser's
/// own pages.
fn requests(log: &[Value]) -> Vec<(String, String)> {
    let events =
        log.iter().map(|line| serde_json::from_str::<Value>(line["message"].as_str().unwrap()).unwrap());
    let sent = events.filter(|event| event["message"]["method"] == "Network.requestWillBeSent");
    sent.map(|event| event["message"]["params"].clone())
        .map(|params| {
            [&params["documentURL"], &params["request"]["url"]]
                .map(|url| url.as_str().unwrap_or_default().to_owned())
        })
        .filter(|[page, _]| page.starts_with("http"))
        .map(|[page, url]| (page, url))
        .collect()
}
