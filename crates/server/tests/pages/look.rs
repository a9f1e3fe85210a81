//! How a page looks in a browser, and what is wrong with it.

use std::path::Path;

use base64::Engine as _;
use potok_services::Page;
use serde_json::{Value, json};

/// Width, dark, with the script.
pub const LOOKS: [(u32, bool, bool); 8] = [
    (390, false, true),
    (390, true, true),
    (1280, false, true),
    (1280, true, true),
    (390, false, false),
    (390, true, false),
    (1280, false, false),
    (1280, true, false),
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
  // What follows is found by its id, and shapes by theirs.
  const ids = [...document.querySelectorAll("[id]")].map((el) => el.id);
  for (const id of ids.filter((id, at) => ids.indexOf(id) !== at)) faults.push("twice: #" + id);
  for (const use of document.querySelectorAll("use")) if (!document.querySelector(use.getAttribute("href"))) faults.push("no shape: " + use.getAttribute("href"));
  for (const el of document.querySelectorAll("input:not([type=hidden]),select,textarea")) {
    if (!el.labels.length && !el.ariaLabel) faults.push("no label: " + el.outerHTML.slice(0, 120));
  }
  for (const el of document.querySelectorAll("button,a[href]")) if (!el.textContent.trim() && !el.ariaLabel) faults.push("no name: " + el.outerHTML.slice(0, 120));
  return faults;
})()"#;

/// Gives a page its size and colours.
pub fn dressed(page: &mut Page, (width, dark, script): (u32, bool, bool)) {
    let size = format!(r#"{{"width":{width},"height":900,"deviceScaleFactor":1,"mobile":false}}"#);
    page.command("Emulation.setDeviceMetricsOverride", &size);
    let scheme = if dark { "dark" } else { "light" };
    page.command(
        "Emulation.setEmulatedMedia",
        &format!(r#"{{"features":[{{"name":"prefers-color-scheme","value":"{scheme}"}}]}}"#),
    );
    page.command("Emulation.setScriptExecutionDisabled", &format!(r#"{{"value":{}}}"#, !script));
}

/// Presses a key.
pub fn pressed(page: &mut Page, key: &str, text: &str, code: u32) {
    for kind in ["keyDown", "keyUp"] {
        let text = if kind == "keyDown" { text } else { "" };
        let event = json!({ "type": kind, "key": key, "code": key, "text": text, "windowsVirtualKeyCode": code });
        page.command("Input.dispatchKeyEvent", &event.to_string());
    }
}

/// Notes from now on what the policy refuses, and gives the page the keys.
pub fn watched(page: &mut Page) {
    let watch = "window.violations = []; document.addEventListener('securitypolicyviolation', \
                 (e) => window.violations.push('policy: ' + e.violatedDirective + ' ' + e.blockedURI));";
    // Keys go to the page that has the focus.
    page.command("Page.bringToFront", "{}");
    page.command("Emulation.setFocusEmulationEnabled", r#"{"enabled":true}"#);
    page.command("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": watch }).to_string());
}

/// What is wrong with the page that is open.
pub fn faults(page: &mut Page) -> impl Iterator<Item = String> + use<> {
    let faults: Vec<String> = serde_json::from_str(&page.evaluate(FAULTS)).unwrap();
    faults.into_iter()
}

/// Puts a picture where whoever runs the test finds it, and the documents take it from.
pub fn pictured(page: &mut Page, name: &str) {
    // Small enough for the documents: what is on the screen, without the emptiness below it.
    let clip = "JSON.stringify({ x: 0, y: 0, width: innerWidth, scale: 1, height: \
                Math.min(innerHeight, (document.querySelector('.cli') || document.querySelector('.hint')).getBoundingClientRect().bottom + 24) })";
    let clip: String = serde_json::from_str(&page.evaluate(clip)).unwrap();
    let clip: Value = serde_json::from_str(&clip).unwrap();
    let wish = json!({ "format": "webp", "quality": 82, "clip": clip }).to_string();
    let answer: Value =
        serde_json::from_str(&page.command("Page.captureScreenshot", &wish)).unwrap();
    let data = answer["result"]["data"].as_str().expect("a picture");
    let bytes = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}
