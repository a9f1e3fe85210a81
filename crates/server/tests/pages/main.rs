//! Every page in a real browser: narrow and wide, light and dark, with and without the script.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(dead_code, reason = "the desk has more than a browser needs")]

#[path = "../dashboard/desk.rs"]
mod desk;
mod followed;
mod look;
#[path = "../dashboard/tables.rs"]
mod tables;
#[path = "../dashboard/wait.rs"]
mod wait;

use futures::future::BoxFuture;
use potok_core::{Fault, Timestamp};
use potok_server::{Gatekeeper, Refusal, Role, Visitor};
use potok_services::{Chromium, Page};
use serde_json::json;

use desk::Desk;
use look::{LOOKS, dressed, faults, pictured, pressed, watched};

/// Text that is as long as text gets, and has no place to break.
const LONG: &str =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

const PAGES: [&str; 20] = [
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
    "/files?pipeline=shop",
    "/files?pipeline=shop&only=unfinished&before=20250101000050",
    "/files?pipeline=shop&name=20250101000059",
    "/outbox",
    "/dead-letters?pipeline=outbox",
];

/// What somebody hostile would like a page to run or to hide.
const HOSTILE: &str =
    "\"'><script>window.hit=1</script><img src=x onerror=window.hit=1>\u{202e}gnp.exe\u{0}";

/// Where it is shown.
const HOSTILE_PAGES: [&str; 12] = [
    "/",
    "/pipelines/orders",
    "/groups",
    "/groups/chat/{key}",
    "/groups/chat/{key}/drop",
    "/dead-letters",
    "/dead-letters?id=orders-dead/0/0",
    "/dead-letters?id=orders-dead/0/1",
    "/dead-letters/drop?pipeline={key}&cause={key}",
    "/trace?id={key}",
    "/files?pipeline=shop",
    "/outbox",
];

/// By which page, what is typed where, which button, and what is said then.
type ByKeyboard =
    (&'static str, &'static [(&'static str, &'static str)], &'static str, &'static str);

const BY_KEYBOARD: [ByKeyboard; 10] = [
    ("/", &[], "form[action='/act/probe'] button", "are asked now"),
    ("/pipelines/orders", &[], "form[action='/act/pause'] button", "takes no more records"),
    ("/pipelines/orders", &[], "form[action='/act/resume'] button", "orders goes on"),
    ("/groups", &[], "form[action='/act/close-group'] button", "closes now"),
    (
        "/groups/chat/telegram%3A{n}/drop",
        &[("input[name=typed]", "telegram:{n}")],
        "form[action='/act/drop-group'] button",
        "Group telegram:{n} is dropped",
    ),
    ("/dead-letters?id={one}", &[], "form[action='/act/replay'] button", "has begun"),
    (
        "/dead-letters/drop?id={other}",
        &[("input[name=typed]", "{other}")],
        "form[action='/act/drop'] button",
        "has begun",
    ),
    ("/dead-letters/replay?pipeline=orders", &[], "form[action='/act/replay'] button", "has begun"),
    (
        "/send?pipeline=orders",
        &[("input[name=key]", "k9"), ("textarea[name=value]", "{}")],
        "form[action='/act/send'] button",
        "Sent as orders/",
    ),
    ("/outbox", &[], "form[action='/act/retry-rows'] button", "are due now"),
];

/// Goes to it from the beginning of the page, by the Tab key alone.
fn reached(page: &mut Page, selector: &str) {
    for _ in 0..300 {
        let here = format!("document.activeElement?.matches({selector:?}) ?? false");
        if page.evaluate(&here) == "true" {
            return;
        }
        pressed(page, "Tab", "", 9);
    }
    panic!("the Tab key does not come to {selector}");
}

/// Lets in whoever knows the word.
struct Words;

impl Gatekeeper for Words {
    fn admit<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Visitor, Refusal>> {
        let role = match token {
            "viewer" => Some(Role::Viewer),
            "admin" => Some(Role::Admin),
            _ => None,
        };
        let refused = || Refusal {
            why: "its audience is \"shop\", without `potok`".to_owned(),
            hint: "fetch one for `potok`".to_owned(),
            is_known: false,
        };
        let name = format!("{token}@example.com");
        let expires = Some(Timestamp(i64::MAX));
        Box::pin(std::future::ready(
            role.map(|role| Visitor { name, role, expires }).ok_or_else(refused),
        ))
    }
}

#[test]
fn the_way_in_is_well_in_a_browser() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let address = runtime.block_on(async {
        let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), true).await.unwrap();
        let address = listener.local_addr().unwrap();
        let desk = Desk::at(Some(address)).await;
        desk.admin.demand_tokens(Box::new(Words), "key".to_owned());
        tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
        furnished(&desk).await;
        address
    });
    let chromium = Chromium::start();
    let at = |path: &str| format!("http://{address}{path}");
    let mut page = chromium.page(&at("/groups"));
    watched(&mut page);
    let mut wrong = Vec::new();
    for look in LOOKS {
        dressed(&mut page, look);
        page.open(&at("/groups"));
        assert_eq!(page.evaluate("location.pathname"), "\"/login\"");
        wrong.extend(faults(&mut page).map(|fault| format!("/login {look:?}: {fault}")));
        for (token, said) in [("wrong", "without `potok`"), ("viewer", "viewer@example.com")] {
            signed_in(&mut page, token);
            page.until(&format!("document.body.textContent.includes({said:?})"));
            wrong.extend(faults(&mut page).map(|fault| format!("{token} {look:?}: {fault}")));
            if look == (1280, false, true) && token == "wrong" {
                pictured(&mut page, "login.webp");
            }
        }
        assert_eq!(page.evaluate("location.pathname"), "\"/groups\"", "back to where it was");
        assert_eq!(page.evaluate("document.cookie"), "\"\"", "no script reads the session");
        for path in PAGES {
            page.open(&at(path));
            wrong.extend(faults(&mut page).map(|fault| format!("viewer {path} {look:?}: {fault}")));
        }
        // A page that follows may be swapped between the focus and the key.
        page.evaluate("document.querySelector(\"form[action='/act/sign-out']\").requestSubmit()");
        page.until("location.pathname === '/login'");
    }
    // A session that ends while somebody fills in a form: what they had typed comes back.
    for look in LOOKS {
        dressed(&mut page, look);
        page.open(&at("/login?back=%2Fsend%3Fpipeline%3Dorders"));
        signed_in(&mut page, "admin");
        page.until("location.pathname === '/send'");
        reached(&mut page, "textarea[name=value]");
        page.command("Input.insertText", &json!({ "text": "typed <b>before</b>" }).to_string());
        let out = "((form) => fetch(form.action, { method: 'POST', redirect: 'manual', \
                   body: new URLSearchParams(new FormData(form)) }).then((answer) => answer.type))\
                   (document.querySelector(\"form[action='/act/sign-out']\"))";
        assert_eq!(page.evaluate(out), "\"opaqueredirect\"");
        page.evaluate("document.querySelector(\"form[action='/act/send']\").requestSubmit()");
        page.until("document.body.textContent.includes('Your session has ended')");
        wrong.extend(faults(&mut page).map(|fault| format!("session ended {look:?}: {fault}")));
        signed_in(&mut page, "admin");
        page.until(
            "document.querySelector('textarea[name=value]')?.value === 'typed <b>before</b>'",
        );
        wrong.extend(faults(&mut page).map(|fault| format!("back again {look:?}: {fault}")));
        page.evaluate("document.querySelector(\"form[action='/act/sign-out']\").requestSubmit()");
        page.until("location.pathname === '/login'");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fills in the way in.
fn signed_in(page: &mut Page, token: &str) {
    reached(page, "textarea[name=token]");
    page.command("Input.insertText", &json!({ "text": token }).to_string());
    reached(page, "form[action='/login'] button");
    pressed(page, "Enter", "\r", 13);
}

/// Something of everything: what is held, delivered, set aside, away and done by hand.
async fn furnished(desk: &Desk) {
    desk.with_tables(&format!("/card: \"4111\" is no number {LONG}"));
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
fn hostile_text_is_text_in_a_browser() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (_desk, address) = runtime.block_on(async {
        let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
        let address = listener.local_addr().unwrap();
        let desk = Desk::at(Some(address)).await;
        tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
        desk.with_tables(HOSTILE);
        desk.dead_letter(0, HOSTILE.as_bytes(), HOSTILE.as_bytes().to_vec(), HOSTILE).await;
        let long = format!("{{\"a\":\"{HOSTILE}{}\"}}", HOSTILE.repeat((1 << 20) / HOSTILE.len()));
        desk.dead_letter(1, b"\xff\xfe", long.into_bytes(), &HOSTILE.repeat(1_000)).await;
        desk.send("chat", [json!({ "k": HOSTILE }).to_string()]).await;
        desk.sees("chat", "it is held", |status| status.open_groups == 1).await;
        desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(2)).await;
        desk.sink.set_outage(Some(Fault::wait(HOSTILE)));
        desk.send("orders", [json!({ "n": 1 }).to_string()]).await;
        desk.sees("orders", "the gate closes", |status| status.gate.state == "closed").await;
        (desk, address)
    });
    let key: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let chromium = Chromium::start();
    let mut page = chromium.page(&format!("http://{address}/"));
    watched(&mut page);
    let mut wrong = Vec::new();
    for look in LOOKS {
        dressed(&mut page, look);
        for path in HOSTILE_PAGES {
            let path = path.replace("{key}", &key);
            page.open(&format!("http://{address}{path}"));
            wrong.extend(faults(&mut page).map(|fault| format!("{path} {look:?}: {fault}")));
            let ran =
                "window.hit !== undefined || !!document.querySelector('[onerror], main script')";
            assert_eq!(page.evaluate(ran), "false", "{path} {look:?}");
            let hides = "/[\\u0000\\u202e]/.test(document.documentElement.textContent)";
            assert_eq!(page.evaluate(hides), "false", "{path} {look:?}");
        }
    }
    // What follows is swapped in by the script: there it is text, too.
    dressed(&mut page, (1280, false, true));
    page.open(&format!("http://{address}/"));
    page.until("!document.getElementById('live').classList.contains('off')");
    assert_eq!(page.evaluate("window.hit === undefined"), "true");
    wrong.extend(faults(&mut page));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
    watched(&mut page);
    let mut wrong = Vec::new();
    for look in LOOKS {
        dressed(&mut page, look);
        for path in PAGES {
            page.open(&at(path));
            wrong.extend(faults(&mut page).map(|fault| format!("{path} {look:?}: {fault}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    // With the script a page follows by itself; without one it is complete.
    dressed(&mut page, (1280, false, true));
    page.open(&at("/"));
    page.until("!document.getElementById('live').classList.contains('off')");
    desk.sink.set_outage(None);
    desk.engine.probe("orders").unwrap();
    page.until("!document.getElementById('problems').textContent.includes('orders waits for')");

    // By keyboard alone: the search, and then every action with its answer.
    page.open(&at("/groups"));
    pressed(&mut page, "/", "/", 191);
    page.until("document.activeElement.id === 'q'");
    for (n, script) in [(3_u64, false), (4, true)] {
        acted(&runtime, &desk, &mut page, &at, n, script);
    }
    // A job is stopped the same way, on its own page.
    runtime.block_on(desk.dead_letters(1_000..3_000));
    dressed(&mut page, (1280, false, false));
    page.open(&at("/dead-letters/replay?pipeline=orders"));
    page.evaluate("document.querySelector('select[name=rate]').value = '10'");
    reached(&mut page, "form[action='/act/replay'] button");
    pressed(&mut page, "Enter", "\r", 13);
    page.until("location.pathname.startsWith('/jobs/')");
    let job = page.evaluate("location.pathname");
    let job: String = serde_json::from_str(&job).unwrap();
    for look in LOOKS {
        dressed(&mut page, look);
        page.open(&at(&job));
        let wrong: Vec<String> = faults(&mut page).collect();
        assert!(wrong.is_empty(), "{job} {look:?}: {wrong:?}");
    }
    dressed(&mut page, (1280, false, false));
    page.open(&at(&job));
    reached(&mut page, "form[action='/act/stop-job'] button");
    pressed(&mut page, "Enter", "\r", 13);
    page.until("document.querySelector('.done')?.textContent.includes('It stops')");
    dressed(&mut page, (1280, false, true));
    page.open(&at("/groups"));

    // A form of another session, sent from our own page, is refused as well.
    let forged = "fetch('/act/pause', { method: 'POST', headers: { 'content-type': 'application/x-www-form-urlencoded' }, \
                  body: 'pipeline=orders&token=forged.00' }).then((answer) => answer.status)";
    assert_eq!(page.evaluate(forged), "403");
}

/// Takes every action by keyboard; of what there is several of, the `n`th. With the script, what is on
/// the page is swapped meanwhile.
fn acted(
    runtime: &tokio::runtime::Runtime,
    desk: &Desk,
    page: &mut Page,
    at: &dyn Fn(&str) -> String,
    n: u64,
    script: bool,
) {
    desk.sink.set_outage(Some(Fault::wait("connection refused")));
    runtime.block_on(async {
        desk.dead_letters(n * 100..n * 100 + 3).await;
        desk.send("orders", [json!({ "n": n }).to_string()]).await;
        desk.sees("orders", "the gate closes", |status| status.gate.state == "closed").await;
    });
    let listed =
        "fetch('/api/v1/dead-letters?pipeline=orders&brief=true').then((answer) => answer.text())";
    let listed: String = serde_json::from_str(&page.evaluate(listed)).unwrap();
    let listed =
        listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let ids: Vec<String> = listed.map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    let [.., one, other] = ids.as_slice() else { panic!("too few: {ids:?}") };
    let filled = |text: &str| {
        let text = text.replace("{n}", &n.to_string());
        text.replace("{one}", one).replace("{other}", other)
    };
    dressed(page, (1280, false, script));
    for (path, typed, button, said) in BY_KEYBOARD {
        let (path, said) = (filled(path), filled(said));
        // A page may be a second old.
        runtime.block_on(wait::until(button, || {
            page.open(&at(&path));
            let there = page.evaluate(&format!("!!document.querySelector({button:?})")) == "true";
            async move { there.then_some(()) }
        }));
        for (field, text) in typed.iter().copied() {
            reached(page, field);
            page.command("Input.insertText", &json!({ "text": filled(text) }).to_string());
        }
        reached(page, button);
        pressed(page, "Enter", "\r", 13);
        page.until(&format!("document.querySelector('main').textContent.includes({said:?})"));
        if button.contains("/act/probe") {
            desk.sink.set_outage(None);
            desk.engine.probe("orders").unwrap();
        }
    }
    dressed(page, (1280, false, true));
    page.open(&at("/"));
}
