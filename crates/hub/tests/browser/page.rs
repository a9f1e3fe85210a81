//! The stock client in a page of Chromium, of another origin than the hub's.

use axum::Router;
use axum::response::Html;
use axum::routing::get;
use potok_services::{Chromium, Page, signalr_for_pages};
use serde_json::{Value, json};

/// Serves the page; its origin.
pub async fn site() -> String {
    let (signalr, msgpack) = tokio::task::block_in_place(signalr_for_pages);
    let script =
        |text: String| get(move || async move { ([("content-type", "text/javascript")], text) });
    let routes = Router::new()
        .route("/", get(|| async { Html(include_str!("page.html")) }))
        .route("/signalr.js", script(signalr))
        .route("/msgpack.js", script(msgpack));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, routes).await });
    origin
}

/// A page with the client in it.
pub struct PageClient(Page);

impl PageClient {
    pub fn new(
        chromium: &Chromium,
        origin: &str,
        url: &str,
        (transport, protocol): (&str, &str),
    ) -> Self {
        let arguments = json!([url, transport, protocol]);
        PageClient::with(chromium, origin, &arguments)
    }

    /// One that comes back to its connection.
    #[allow(dead_code, reason = "of the browser's tests alone")]
    pub fn stateful(chromium: &Chromium, origin: &str, url: &str, protocol: &str) -> Self {
        let arguments = json!([url, "WebSockets", protocol, true]);
        PageClient::with(chromium, origin, &arguments)
    }

    fn with(chromium: &Chromium, origin: &str, arguments: &Value) -> Self {
        tokio::task::block_in_place(|| {
            let mut page = chromium.page(origin);
            page.until("window.signalR && signalR.protocols && signalR.protocols.msgpack");
            page.evaluate(&format!("void make(...{arguments})"));
            PageClient(page)
        })
    }

    pub fn ask(&mut self, script: &str) -> Value {
        let said = tokio::task::block_in_place(|| self.0.evaluate(script));
        serde_json::from_str(&said).unwrap()
    }

    pub fn start(&mut self, token: &str) -> Value {
        self.ask(&format!("start({})", json!(token)))
    }

    /// What happened next in the page.
    pub fn event(&mut self) -> Value {
        tokio::task::block_in_place(|| self.0.until("events.length > 0"));
        self.ask("take()")
    }
}
