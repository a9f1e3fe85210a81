//! Every page in a real browser: narrow and wide, light and dark, with and without the script.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code, reason = "the desk has more than a browser needs")]

#[path = "../dashboard/desk.rs"]
mod desk;
#[path = "../dashboard/wait.rs"]
mod wait;

use std::path::Path;

use base64::Engine as _;
use potok_core::Fault;
use potok_services::{Chromium, Page};
use serde_json::{Value, json};

use desk::Desk;

/// Text that is as long as text gets, and has no place to break.
const LONG: &str =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const PAGES: [&str; 15] = [
    "/",
    "/pipelines/orders",
    "/pipelines/chat",
    "/groups",
    "/groups/chat/telegram%3A1",
    "/groups/chat/telegram%3A1/drop",
    "/dead-letters",
    "/dead-letters?id=orders-dead/0/0",
    "/dead-letters/replay?pipeline=orders",
    "/dead-letters/drop?pipeline=orders",
    "/trace",
    "/trace?id=k1",
    "/send",
    "/audit",
    "/pipelines/nobody",
];

/// Width, dark, with the script.
const LOOKS: [(u32, bool, bool); 6] = [
    (390, false, true),
    (390, true, true),
    (1280, false, true),
    (1280, true, true),
    (390, true, false),
    (1280, false, false),
];

/// What is wrong with a page, as a list of texts.
const FAULTS: &str = r#"(() => {
  const faults = [...(window.violations || [])];
  const root = document.documentElement;
  if (root.scrollWidth > window.innerWidth) {
    const wide = [...document.querySelectorAll("main *")].filter((el) => el.getBoundingClientRect().right > window.innerWidth + 1 && !el.closest(".scroll,.tabs,pre"));
    faults.push(`overflows: ${root.scrollWidth} in ${window.innerWidth}: ` + wide.slice(0, 3).map((el) => el.outerHTML.slice(0, 120)).join(" | "));
  }
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4).reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (el) => { for (; el; el = el.parentElement) { const color = rgba(getComputedStyle(el).backgroundColor); if (color[3] === 255) return color; } return [255, 255, 255]; };
  const seen = new Set();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const el = texts.currentNode.parentElement, box = el.getBoundingClientRect();
    if (!texts.currentNode.data.trim() || box.width < 2 || el.closest(".vh,.skip,svg,option,script")) continue;
    const style = getComputedStyle(el), [a, b] = [light(rgba(style.color)), light(behind(el))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5 && !seen.has(el.className)) { seen.add(el.className); faults.push(`contrast ${ratio.toFixed(2)}: ${el.outerHTML.slice(0, 120)}`); }
  }
  if (!document.querySelector("h1")) faults.push("no heading");
  for (const el of document.querySelectorAll("input:not([type=hidden]),select,textarea")) {
    if (!el.labels.length && !el.ariaLabel) faults.push("no label: " + el.outerHTML.slice(0, 120));
  }
  for (const el of document.querySelectorAll("button,a[href]")) if (!el.textContent.trim() && !el.ariaLabel) faults.push("no name: " + el.outerHTML.slice(0, 120));
  return faults;
})()"#;

fn dressed(page: &mut Page, (width, dark, script): (u32, bool, bool)) {
    let size = format!(r#"{{"width":{width},"height":900,"deviceScaleFactor":1,"mobile":false}}"#);
    page.command("Emulation.setDeviceMetricsOverride", &size);
    let scheme = if dark { "dark" } else { "light" };
    page.command(
        "Emulation.setEmulatedMedia",
        &format!(r#"{{"features":[{{"name":"prefers-color-scheme","value":"{scheme}"}}]}}"#),
    );
    page.command("Emulation.setScriptExecutionDisabled", &format!(r#"{{"value":{}}}"#, !script));
}

fn pressed(page: &mut Page, key: &str, text: &str, code: u32) {
    for kind in ["keyDown", "keyUp"] {
        let text = if kind == "keyDown" { text } else { "" };
        let event = json!({ "type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code });
        page.command("Input.dispatchKeyEvent", &event.to_string());
    }
}

/// Puts a picture where whoever runs the test finds it, and the documents take it from.
fn pictured(page: &mut Page, name: &str) {
    let answer: Value =
        serde_json::from_str(&page.command("Page.captureScreenshot", "{}")).unwrap();
    let data = answer["result"]["data"].as_str().expect("a picture");
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

/// Something of everything: what is held, delivered, set aside, away and done by hand.
async fn furnished(desk: &Desk) {
    desk.send("chat", (1..40).map(|n| json!({ "k": format!("telegram:{}", n % 7) }).to_string()))
        .await;
    desk.send("chat", [json!({ "k": LONG }).to_string()]).await;
    desk.send("orders", (0..50).map(|n| json!({ "n": n }).to_string())).await;
    for n in 0..9 {
        let value =
            json!({ "order_uid": "b563feb7b2b84b6test", "currency": "rub", "n": n, "long": LONG });
        let error = format!("/currency: \"rub{n}\" does not match \"^[A-Z]{{3}}$\"");
        desk.dead_letter(100 + n, b"k1", value.to_string().into_bytes(), &error).await;
    }
    desk.dead_letter(200, LONG.as_bytes(), LONG.as_bytes().to_vec(), LONG).await;
    desk.sees("orders", "orders are delivered", |status| status.delivered == 50).await;
    desk.sees("orders", "dead letters are counted", |status| status.dead_letters_open == Some(10))
        .await;
    desk.sees("chat", "records are held", |status| status.held_records == 40).await;
    desk.sink.set_outage(Some(Fault::wait("postgres 10.0.3.7:5432: connection refused")));
    desk.send("orders", [json!({ "n": 51 }).to_string()]).await;
    desk.sees("orders", "the gate closes", |status| status.gate.state == "closed").await;
}

#[test]
fn every_page_is_well_in_a_browser() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (desk, address) = runtime.block_on(async {
        let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
        let address = listener.local_addr().unwrap();
        let desk = Desk::at(Some(address)).await;
        tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
        furnished(&desk).await;
        (desk, address)
    });
    let chromium = Chromium::start();
    let at = |path: &str| format!("http://{address}{path}");
    let mut page = chromium.page(&at("/"));
    let watch = "window.violations = []; document.addEventListener('securitypolicyviolation', \
                 (e) => window.violations.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI));";
    // Keys go to the page that has the focus.
    page.command("Page.bringToFront", "{}");
    page.command("Emulation.setFocusEmulationEnabled", r#"{"enabled":true}"#);
    page.command("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": watch }).to_string());
    let mut wrong = Vec::new();
    for look in LOOKS {
        dressed(&mut page, look);
        for path in PAGES {
            page.open(&at(path));
            let faults: Vec<String> = serde_json::from_str(&page.evaluate(FAULTS)).unwrap();
            wrong.extend(faults.into_iter().map(|fault| format!("{path} {look:?}: {fault}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // With the script a page follows by itself; without one it is complete.
    dressed(&mut page, (1280, false, true));
    page.open(&at("/"));
    page.until("!document.getElementById('live').classList.contains('off')");
    pictured(&mut page, "overview.png");
    desk.sink.set_outage(None);
    desk.engine.probe("orders").unwrap();
    page.until("!document.getElementById('problems').textContent.includes('orders waits for')");
    for (path, name) in [
        ("/dead-letters", "dead-letters.png"),
        ("/groups", "groups.png"),
        ("/pipelines/orders", "pipeline.png"),
    ] {
        page.open(&at(path));
        pictured(&mut page, name);
    }

    // By keyboard alone: the search, and an action with its answer.
    page.open(&at("/groups"));
    pressed(&mut page, "/", "/", 191);
    page.until("document.activeElement.id === 'q'");
    // Without the script nothing is swapped between the focus and the key.
    dressed(&mut page, (1280, false, false));
    page.open(&at("/groups"));
    page.evaluate("document.querySelector('form[action=\"/act/close-group\"] button').focus()");
    pressed(&mut page, "Enter", "\r", 13);
    page.until("document.querySelector('.done')?.textContent.includes('closes now')");
    dressed(&mut page, (1280, false, true));
    page.open(&at("/groups"));

    // A form of another session, sent from our own page, is refused as well.
    let forged = "fetch('/act/pause', { method: 'POST', headers: { 'content-type': 'application/x-www-form-urlencoded' }, \
                  body: 'pipeline=orders&token=forged.00' }).then((answer) => answer.status)";
    assert_eq!(page.evaluate(forged), "403");
}
