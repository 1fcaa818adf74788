//! Chromium without a window, spoken to over its debugging pipe.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long anything may take: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    last_id: u64,
    /// What was told without being asked.
    events: Vec<Value>,
    _profile: tempfile::TempDir,
}

/// A page in it.
pub(crate) struct Tab<'a> {
    browser: &'a mut Browser,
    session: String,
}

impl Browser {
    /// Starts it; `None` where there is none.
    pub(crate) fn start() -> Option<Browser> {
        let names = ["chromium", "chromium-browser", "google-chrome"];
        let program = names.into_iter().find(|name| {
            let asked =
                Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            asked.is_ok_and(|status| status.success())
        })?;
        let profile = tempfile::tempdir().unwrap();
        // It reads its pipe at descriptor 3 and writes at 4; the shell lays our pipes there.
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null"#, program]);
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
        ]);
        command.args(["--disable-background-networking", "--disable-component-update", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).env("HOME", profile.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("sh can be started");
        let (to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (told, heard) = channel();
        std::thread::spawn(move || {
            let mut message = vec![];
            while from.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                message.pop();
                let parsed = serde_json::from_slice(&message).expect("a message is JSON");
                if told.send(parsed).is_err() {
                    return;
                }
                message.clear();
            }
        });
        Some(Browser { child, to, from: heard, last_id: 0, events: vec![], _profile: profile })
    }

    fn ask(&mut self, session: Option<&str>, method: &str, params: &Value) -> Value {
        self.last_id += 1;
        let mut message = json!({ "id": self.last_id, "method": method, "params": params });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            let answer = self.from.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no answer to {method}"));
            if answer["id"] == self.last_id {
                assert!(answer["error"].is_null(), "{method} {params}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    /// Opens a tab without a network, of this size, for people who like it light or dark.
    pub(crate) fn tab(&mut self, (width, height): (u32, u32), theme: &str) -> Tab<'_> {
        let target = self.ask(None, "Target.createTarget", &json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session =
            self.ask(None, "Target.attachToTarget", &attach)["sessionId"].as_str().unwrap().to_owned();
        self.events.clear();
        let mut tab = Tab { browser: self, session };
        for domain in ["Page", "Runtime", "Log", "Network", "Audits"] {
            tab.ask(&format!("{domain}.enable"), &json!({}));
        }
        let offline =
            json!({ "offline": true, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1 });
        tab.ask("Network.emulateNetworkConditions", &offline);
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        tab.ask("Emulation.setDeviceMetricsOverride", &size);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
        tab.ask("Emulation.setEmulatedMedia", &scheme);
        tab
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Asked to close it ends its other processes too.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(10) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tab<'_> {
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.browser.ask(Some(&self.session), method, params)
    }

    /// The value of an expression, which may be a promise.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.ask("Runtime.evaluate", &asked);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    pub(crate) fn text(&mut self, expression: &str) -> String {
        self.value(expression).as_str().unwrap_or_default().to_owned()
    }

    /// Opens a file and waits until all charts are drawn; returns how long that took.
    pub(crate) fn open(&mut self, page: &Path) -> Duration {
        self.open_until(page, "document.documentElement?.dataset.drawn > 0")
    }

    pub(crate) fn open_until(&mut self, page: &Path, condition: &str) -> Duration {
        let began = Instant::now();
        self.ask("Page.navigate", &json!({ "url": format!("file://{}", page.display()) }));
        self.wait(condition);
        began.elapsed()
    }

    pub(crate) fn wait(&mut self, condition: &str) {
        let began = Instant::now();
        while self.value(condition) != true {
            assert!(began.elapsed() < PATIENCE, "never: {condition}; {:?}", self.complaints());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Moves the pointer to a place of the viewport.
    pub(crate) fn point(&mut self, x: f64, y: f64) {
        self.ask("Input.dispatchMouseEvent", &json!({ "type": "mouseMoved", "x": x, "y": y }));
    }

    /// Presses a key in what has the focus.
    pub(crate) fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.ask("Input.dispatchKeyEvent", &json!({ "type": kind, "key": key }));
        }
    }

    /// Everything that the browser found wrong with the page: exceptions, errors and warnings on the console,
    /// violations of its policy.
    pub(crate) fn complaints(&self) -> Vec<&Value> {
        let is_complaint = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown" | "Audits.issueAdded") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] != "log",
            Some("Log.entryAdded") => event["params"]["entry"]["level"] != "verbose",
            _ => false,
        };
        self.browser.events.iter().filter(is_complaint).collect()
    }

    /// The addresses that were asked for.
    pub(crate) fn requests(&self) -> Vec<String> {
        let asked = |event: &&Value| event["method"] == "Network.requestWillBeSent";
        let address =
            |event: &Value| event["params"]["request"]["url"].as_str().unwrap_or_default().to_owned();
        self.browser.events.iter().filter(asked).map(address).collect()
    }
}
