//! Pages that follow by themselves: what a person is about to press stays what it was, and what is not
//! followed says so.

use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
use potok_services::{Chromium, Page};
use serde_json::json;
use tower::ServiceExt;

use crate::desk::Desk;
use crate::look::{dressed, pressed, watched};
use crate::reached;

/// A desk that listens.
async fn served() -> (Desk, std::net::SocketAddr) {
    let listener = potok_server::bind("127.0.0.1:0".parse().unwrap(), false).await.unwrap();
    let address = listener.local_addr().unwrap();
    let desk = Desk::at(Some(address)).await;
    tokio::spawn(potok_server::serve(listener, desk.admin.clone()));
    (desk, address)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// A page with the script.
fn opened(chromium: &Chromium, url: &str) -> Page {
    let mut page = chromium.page(url);
    watched(&mut page);
    dressed(&mut page, (1280, false, true));
    page.open(url);
    page
}

#[test]
fn the_focus_stays_with_what_it_is_on() {
    // It was restored by its place: the row above went, and the key closed another group.
    let runtime = runtime();
    let (desk, address) = runtime.block_on(served());
    let hold = |keys: &[&str], held: u64| {
        runtime.block_on(async {
            for key in keys {
                desk.send("chat", [json!({ "k": key }).to_string()]).await;
            }
            desk.sees("chat", "they are held", |status| status.held_records == held).await;
        });
    };
    hold(&["a"], 1);
    hold(&["b"], 2);
    hold(&["c"], 3);
    let chromium = Chromium::start();
    let mut page = opened(&chromium, &format!("http://{address}/groups?pipeline=chat"));
    page.until("!document.getElementById('live').classList.contains('off')");
    let shows = |key: &str| {
        format!(
            "[...document.querySelectorAll('#list a.mono')].some((a) => a.textContent === {key:?})"
        )
    };
    let button = |key: &str| format!("form:has(input[name=x-key][value={key}]) button");
    let focused = |key: &str| format!("document.activeElement.matches({:?})", button(key));

    reached(&mut page, &button("b"));
    desk.engine.close_group("chat", "a", None).unwrap();
    page.until(&format!("!{}", shows("a")));
    assert_eq!(page.evaluate(&focused("b")), "true");
    pressed(&mut page, "Enter", "\r", 13);
    page.until(
        "document.querySelector('.done')?.textContent.includes('Group b of chat closes now')",
    );
    runtime.block_on(desk.sees("chat", "only c is held", |status| status.held_records == 1));

    // What goes away takes the focus to no other button.
    page.open(&format!("http://{address}/groups?pipeline=chat"));
    hold(&["d"], 2);
    page.until(&format!("{} && !{}", shows("d"), shows("b")));
    reached(&mut page, &button("c"));
    desk.engine.close_group("chat", "c", None).unwrap();
    page.until(&format!("!{}", shows("c")));
    assert_eq!(page.evaluate("document.activeElement.matches('button,a')"), "false");
    // And Tab goes on from there.
    pressed(&mut page, "Tab", "", 9);
    assert_eq!(page.evaluate("document.activeElement.closest('#list') !== null"), "true");
}

/// Follows as many pages as may be followed, once nobody else follows any.
async fn all_places(desk: &Desk, address: std::net::SocketAddr) -> Vec<Response> {
    crate::wait::until("nobody else follows a page", || async {
        let mut all = Vec::new();
        loop {
            let request = Request::get("/events?view=%2F").header("host", address.to_string());
            let request = request.body(Body::empty()).unwrap();
            let answer = desk.router.clone().oneshot(request).await.unwrap();
            if answer.status() != 200 {
                return (all.len() == 64).then_some(all);
            }
            all.push(answer);
        }
    })
    .await
}

#[test]
fn a_page_that_is_not_followed_says_so_and_tries_again() {
    // The dot stayed as it was, and nothing was tried again while somebody typed.
    let runtime = runtime();
    let (desk, address) = runtime.block_on(served());
    let chromium = Chromium::start();
    let url = format!("http://{address}/");
    let mut page = opened(&chromium, &url);
    // Nobody waits a quarter of a minute here.
    let hasty = "const patient = setTimeout; window.setTimeout = (act, ms) => patient(act, Math.min(ms, 300));";
    page.command("Page.addScriptToEvaluateOnNewDocument", &json!({ "source": hasty }).to_string());
    let is_live = "!document.getElementById('live').classList.contains('off')";
    let silent = "document.getElementById('live').textContent.includes('no word for')";
    page.until(is_live);

    page.open("about:blank#away");
    let all = runtime.block_on(all_places(&desk, address));
    page.open(&url);
    page.until(&format!("{silent} && !({is_live})"));
    drop(all);
    page.until(is_live);

    // While somebody types, nothing is loaded anew.
    page.open("about:blank#away");
    let all = runtime.block_on(all_places(&desk, address));
    page.open(&url);
    page.evaluate("(document.getElementById('q').focus(), window.kept = true)");
    page.until(&format!("{silent} && !({is_live})"));
    drop(all);
    page.until(&format!("window.kept && {is_live}"));
}
