//! `potok dev` in a real browser: what a newcomer sees first, every screen with real data, and the
//! pictures of the documents.
//!
//! `cargo xtask pictures` runs it and takes the pictures over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "shared with the pages of the server")]
#[path = "../../../server/tests/pages/look.rs"]
mod look;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/process.rs"]
mod process;
#[allow(dead_code, reason = "shared with the tests of the embedded default")]
#[path = "../binary/wait.rs"]
mod wait;

use std::path::Path;

use potok_services::{Chromium, Page};

use look::{LOOKS, dressed, faults, pictured, watched};
use process::{Home, Running, potok};

/// The looks that every screen is checked in; the server's own test has all of them.
const WIDE: (u32, bool, bool) = (1280, false, true);

/// The screens, as their pictures are called.
const NAMES: [&str; 14] = [
    "groups",
    "group",
    "dead-letters",
    "dead-letter",
    "replay",
    "job",
    "files",
    "outbox",
    "trace",
    "send",
    "audit",
    "drop",
    "pipeline",
    "overview",
];

/// A screen: its picture, its address, and what it shows when it is worth one.
type Screen = (&'static str, String, &'static str);

fn dev(home: &Home) -> Running {
    let mut command = potok(["dev", "--rate", "40", "--admin", "127.0.0.1:0"]);
    command.current_dir(home.path()).arg("--data-dir").arg(home.data());
    Running::spawn(command, home.path().join("dev.log")).listening(&home.data()).unwrap()
}

/// The text of the first element, once there is one.
fn text_of(page: &mut Page, selector: &str) -> String {
    page.until(&format!("document.querySelector({selector:?})?.textContent.trim()"));
    let text = page.evaluate(&format!("document.querySelector({selector:?}).textContent.trim()"));
    serde_json::from_str(&text).unwrap()
}

/// Where the first link of that kind leads.
fn link(page: &mut Page, selector: &str) -> String {
    page.until(&format!("document.querySelector({selector:?})"));
    let to = page.evaluate(&format!("document.querySelector({selector:?}).getAttribute('href')"));
    serde_json::from_str(&to).unwrap()
}

/// A picture names no folder of the machine that it was taken on.
fn framed(page: &mut Page, name: &str) {
    page.evaluate(
        "(() => { const at = document.querySelector('.foot .mono'); if (at) at.textContent = '/var/lib/potok'; })()",
    );
    pictured(page, name);
}

#[test]
fn every_screen_of_dev_is_worth_a_look() {
    let home = Home::new();
    let running = dev(&home);
    let chromium = Chromium::start();
    let at = |path: &str| format!("http://{}{path}", running.address);
    let mut page = chromium.page(&at("/"));
    watched(&mut page);
    dressed(&mut page, WIDE);
    page.open(&at("/"));

    // What a newcomer sees on the first page, which follows by itself: data flows, what is held and
    // when it closes, and dead letters.
    page.until("[...document.querySelectorAll('.flow .b')].some((el) => /^[1-9][0-9.,]*\\/s$/.test(el.textContent))");
    page.until("document.querySelector('.flow [data-due]')?.textContent.startsWith('in ')");
    page.until("document.querySelector('.flow a[href^=\"/dead-letters\"]')");
    page.until("/held in groups\\s*[1-9]/.test(document.getElementById('figures').textContent)");
    page.until("document.querySelector('#live:not(.off)')");
    assert!(!text_of(&mut page, "#problems h2, #problems .strong").is_empty());

    // From there to the cause of one of them.
    let letters = link(&mut page, ".flow a[href^='/dead-letters']");
    page.open(&at(&letters));
    page.until("document.querySelector('#list a[href*=\"?id=\"]')");
    assert!(!text_of(&mut page, "#causes td.err").is_empty());
    let letter = link(&mut page, "#list a[href*='?id=']");
    page.open(&at(&letter));
    page.until("[...document.querySelectorAll('dt')].some((el) => el.textContent === 'Error')");
    let origin = link(&mut page, "a.mono[href^='/trace']");

    let groups = "/groups?pipeline=em-processor";
    page.open(&at(groups));
    page.until("document.querySelector(\"form[action='/act/close-group']\")");
    // Something by hand, for the audit, and a job.
    page.evaluate("document.querySelector(\"form[action='/act/close-group']\").requestSubmit()");
    page.until("document.querySelector('.done')");
    page.open(&at("/dead-letters/replay?pipeline=orders"));
    page.evaluate("document.querySelector(\"form[action='/act/replay']\").requestSubmit()");
    page.until("location.pathname.startsWith('/jobs/')");
    let job: String = serde_json::from_str(&page.evaluate("location.pathname")).unwrap();

    let screens: [Screen; 14] = [
        ("groups", groups.to_owned(), "#list td"),
        ("group", groups.to_owned(), ".kv"),
        ("dead-letters", "/dead-letters".to_owned(), "#list td"),
        ("dead-letter", letter, "pre.body"),
        ("replay", "/dead-letters/replay?pipeline=orders".to_owned(), "h1"),
        ("job", job, ".figs"),
        ("files", "/files".to_owned(), "table td"),
        ("outbox", "/outbox".to_owned(), ".figs"),
        ("trace", origin, ".tl li"),
        ("send", "/send?pipeline=orders".to_owned(), "textarea"),
        ("audit", "/audit".to_owned(), "table td"),
        ("drop", "/dead-letters/drop?pipeline=orders".to_owned(), "h1"),
        // Last: lines need a while before they show something.
        ("pipeline", "/pipelines/em-processor".to_owned(), ".steps"),
        ("overview", "/".to_owned(), ".flow .name"),
    ];
    assert_eq!(screens.each_ref().map(|(name, ..)| *name), NAMES);
    let mut wrong = Vec::new();
    for (name, path, worth) in &screens {
        for look in LOOKS {
            dressed(&mut page, look);
            // Traffic goes on: what a page needs may come a moment later.
            wait::until(&format!("{path} has {worth}"), || {
                page.open(&at(path));
                if *name == "group" {
                    // Those there were may have closed: the last one has the longest time left.
                    let last = link(&mut page, "#list tr:last-child a.mono[href^='/groups/']");
                    page.open(&at(&last));
                }
                (page.evaluate(&format!("!!document.querySelector({worth:?})")) == "true")
                    .then_some(())
            });
            wrong.extend(faults(&mut page).map(|fault| format!("{path} {look:?}: {fault}")));
            match look {
                WIDE => framed(&mut page, &format!("{name}.webp")),
                (1280, true, true) => framed(&mut page, &format!("{name}-dark.webp")),
                (390, false, true) => framed(&mut page, &format!("{name}-narrow.webp")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_documents_show_what_is_taken_here() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = std::fs::read_dir(docs.join("dashboard")).unwrap();
    let pages: Vec<_> = pages.map(|entry| entry.unwrap().path()).collect();
    let (mut shown, mut missing) = (Vec::new(), Vec::new());
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        let pictures = text.split("](../images/").skip(1);
        let pictures: Vec<_> =
            pictures.filter_map(|rest| rest.split_once(')')).map(|(name, _)| name).collect();
        assert!(!pictures.is_empty(), "{} has no picture", page.display());
        shown.extend(pictures.into_iter().map(str::to_owned));
    }
    let looks = ["", "-dark", "-narrow"];
    let taken = |picture: &str| {
        let is_ours = |name: &str| looks.iter().any(|look| picture == format!("{name}{look}.webp"));
        NAMES.iter().any(|name| is_ours(name)) || picture == "login.webp"
    };
    for picture in &shown {
        if !taken(picture) || !docs.join("images").join(picture).is_file() {
            missing.push(picture);
        }
    }
    assert!(missing.is_empty(), "`cargo xtask pictures` takes them: {missing:?}");
    for name in NAMES {
        assert!(shown.contains(&format!("{name}.webp")), "no page shows {name}");
    }
}
