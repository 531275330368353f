//! A headless Chromium, driven over WebDriver.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::ask::{Client, client};
use crate::edge::{Leashed, emptied, root};
use crate::wait::holds;
use crate::{SOON, eventually};

/// Chromium dies with its driver, and the driver with the tests.
const CHROMIUM: &str = "#!/bin/sh\nexec setpriv --pdeathsig KILL -- chromium \"$@\"\n";

/// A telephone, held upright.
pub const PHONE: (u32, u32) = (375, 740);
/// A small desktop.
pub const DESKTOP: (u32, u32) = (1280, 800);

/// Whether there is a browser to test with. Where all must be tested, its absence is a failure.
pub fn is_here() -> bool {
    let missing: Vec<_> = ["chromium", "chromedriver"].into_iter().filter(|name| !is_on_path(name)).collect();
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(missing.is_empty() || !must, "no {missing:?}: run scripts/setup.sh");
    missing.is_empty()
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[derive(Debug)]
struct Driver {
    url: String,
    folder: PathBuf,
    _process: Leashed,
}

async fn driver() -> &'static Driver {
    static DRIVER: OnceCell<Driver> = OnceCell::const_new();
    DRIVER.get_or_init(start_driver).await
}

async fn start_driver() -> Driver {
    let folder = emptied("browser");
    let wrapper = folder.join("chromium");
    fs::write(&wrapper, CHROMIUM).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    let port = {
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        probe.local_addr().unwrap().port()
    };
    let mut command = Command::new("chromedriver");
    command.arg(format!("--port={port}")).env("HOME", &folder);
    let process = Leashed::start(&command, &folder.join("driver.log"), &folder.join("profiles"));
    let url = format!("http://127.0.0.1:{port}");
    let (client, status) = (client(), format!("{url}/status"));
    eventually(SOON, || async { client.try_get(&status, "").await.map_err(|error| error.to_string()) }).await;
    Driver { url, folder, _process: process }
}

/// A browser with one tab and a fresh profile.
#[derive(Debug)]
pub struct Browser {
    client: Client,
    session: String,
}

impl Browser {
    /// Opens one whose page is of this size.
    pub async fn open(name: &str, size: (u32, u32)) -> Self {
        let driver = driver().await;
        let profile = format!("--user-data-dir={}", driver.folder.join("profiles").join(name).display());
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
            "goog:chromeOptions": {"binary": driver.folder.join("chromium"), "args": flags},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let client = client();
        let reply =
            client.call(Method::POST, &format!("{}/session", driver.url), "", &wanted).await.expect(200);
        let id = reply.json()["value"]["sessionId"].as_str().unwrap().to_owned();
        let browser = Self { client, session: format!("{}/session/{id}", driver.url) };
        browser.resize(size).await;
        browser
    }

    async fn call(&self, path: &str, body: Value) -> Value {
        let url = format!("{}/{path}", self.session);
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

    /// Saves what is seen under `target/screenshots`, on a telephone and on a desktop, and checks that nothing has to be
    /// scrolled sideways; leaves the telephone's size.
    pub async fn picture(&self, name: &str) {
        let folder = root().join("target/screenshots");
        fs::create_dir_all(&folder).unwrap();
        for (kind, size) in [("desktop", DESKTOP), ("phone", PHONE)] {
            self.resize(size).await;
            assert_eq!(self.eval("innerWidth").await, size.0);
            let sideways = self.eval("document.scrollingElement.scrollWidth - innerWidth").await;
            assert!(sideways.as_i64().unwrap() <= 0, "{name} on a {kind} has to be scrolled by {sideways}");
            let shot = self.devtools("Page.captureScreenshot", json!({"format": "png"})).await;
            let png = STANDARD.decode(shot["data"].as_str().unwrap()).unwrap();
            fs::write(folder.join(format!("{name}-{kind}.png")), png).unwrap();
        }
    }

    /// Checks that the page made no error, and closes. Refusals are no errors, but the browser logs them as such.
    pub async fn close(self) {
        let log = self.call("se/log", json!({"type": "browser"})).await;
        let errors = log
            .as_array()
            .unwrap()
            .iter()
            .filter(|line| line["level"] == "SEVERE" && line["source"] != "network");
        assert_eq!(errors.collect::<Vec<_>>(), Vec::<&Value>::new());
        let _ = self.client.call(Method::DELETE, &self.session, "", &Value::Null).await;
    }
}
