//! The dashboard: what needs a person, at a glance.
//!
//! Every page is made here, complete without a script, from the functions behind `/api/v1`; each
//! names its command and its JSON address. A view is an address: [`View::parse`] reads one, for the
//! page itself and for the stream that keeps it fresh ([`events`]). Changes are POST, then 303, then
//! the page with what came of it ([`actions`]).
//!
//! It promises: other people's text stays text, a page costs the same with ten and with a million
//! groups or dead letters, and nothing changes without a token of this process.

mod actions;
mod audit;
mod draw;
mod events;
mod files;
mod frame;
mod groups;
mod job;
mod letters;
mod login;
mod outbox;
mod overview;
mod pipeline;
mod send;
mod text;
mod token;
mod trace;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::{Markup, html};

use crate::access::{self, Actor, Role, Visitor};
use crate::audit::{Door, NoteLoss};
use crate::error::ErrorBody;
use crate::guard::OPENED;
use crate::letters::{cause_of, without_predicate};
use crate::problems::{self, Problem};
use crate::sampler::Snapshot;
use crate::{Admin, ApiError};
use actions::Actions;
use events::Streams;
use frame::{HtmlPage, Nav, Part};
use login::TypedInputs;
use token::Keys;

pub(crate) use actions::refused;
pub(crate) use login::{address as login_address, session_ended};
pub(crate) use token::session_of;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

/// What the dashboard keeps.
#[derive(Default)]
pub(crate) struct Shared {
    keys: Keys,
    actions: Actions,
    streams: Streams,
    typed: TypedInputs,
}

pub(crate) fn routes() -> Router<Admin> {
    Router::new()
        .route("/", get(page))
        .route("/pipelines/{pipeline}", get(page))
        .route("/groups", get(page))
        .route("/groups/{pipeline}/{key}", get(page))
        .route("/groups/{pipeline}/{key}/drop", get(page))
        .route("/dead-letters", get(page))
        .route("/dead-letters/replay", get(page))
        .route("/dead-letters/drop", get(page))
        .route("/jobs/{id}", get(page))
        .route("/trace", get(page))
        .route("/send", get(page))
        .route("/audit", get(page))
        .route("/files", get(page))
        .route("/outbox", get(page))
        .route("/login", get(login::page).post(login::sign_in))
        .route("/events", get(events::events))
        .route("/act/{what}", post(actions::act))
        .route("/assets/style.css", get(|| asset(include_str!("assets/style.css"), "text/css")))
        .route(
            "/assets/potok.js",
            get(|| asset(include_str!("assets/potok.js"), "text/javascript")),
        )
        .route("/assets/logo.svg", get(|| asset(include_str!("assets/logo.svg"), "image/svg+xml")))
}

async fn asset(text: &'static str, kind: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("max-age=3600")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, text).into_response()
}

/// What came of something that a person did.
#[derive(Clone, Debug)]
pub(super) struct ActionResult {
    pub text: String,
    pub error: Option<ErrorBody>,
}

/// What pages are made of.
pub(super) struct Context {
    pub admin: Admin,
    pub snapshot: Arc<Snapshot>,
    pub problems: Vec<Problem>,
    /// The address of this page, without what was done.
    pub view: String,
    pub done: Option<ActionResult>,
    /// Who looks at it.
    pub visitor: Visitor,
    /// What they had typed here before they had to sign in again.
    pub typed: Option<actions::Fields>,
}

impl Context {
    async fn of(admin: &Admin, view: String, done: Option<ActionResult>, visitor: Visitor) -> Self {
        let mut snapshot = admin.snapshot_soon().await;
        if !visitor.may(Role::Operator) {
            snapshot = Arc::new(snapshot.without_values());
        }
        let problems = problems::problems(&snapshot, admin.sampler());
        Context { admin: admin.clone(), snapshot, problems, view, done, visitor, typed: None }
    }

    /// What somebody had typed into that field before they had to sign in again.
    pub fn input(&self, name: &str) -> Option<&str> {
        self.typed.as_ref()?.get(name).map(String::as_str)
    }

    /// May change what can be undone, and see payloads.
    pub fn is_operator(&self) -> bool {
        self.visitor.may(Role::Operator)
    }

    /// May drop.
    pub fn is_admin(&self) -> bool {
        self.visitor.may(Role::Admin)
    }

    pub fn actor(&self) -> Actor {
        let loss = NoteLoss::default();
        Actor { by: self.visitor.name.clone(), from: None, via: Door::Dashboard, loss }
    }

    /// An error as this visitor may read it: errors quote what they are about.
    pub fn told(&self, error: &str) -> String {
        match self.is_operator() {
            true => error.to_owned(),
            false => cause_of(error),
        }
    }

    /// What names dead letters, as this visitor may read it.
    pub fn named(&self, text: &str) -> String {
        match self.is_operator() {
            true => text.to_owned(),
            false => without_predicate(text),
        }
    }

    /// A form that changes something: one button, and what it is about. What stands for its token is
    /// replaced when the page is sent.
    pub fn form(&self, what: &str, fields: &[(&str, &str)], button: Markup) -> Markup {
        if !self.is_operator() && what != "sign-out" {
            return html! {};
        }
        html! {
            form method="post" action={ "/act/" (what) } {
                (self.hidden(fields))
                (button)
            }
        }
    }

    /// What such a form holds besides what people fill in. Browsers change some characters of a
    /// field, so what must come back as it was is written as in an address, under `x-` and its name.
    pub fn hidden(&self, fields: &[(&str, &str)]) -> Markup {
        html! {
            input type="hidden" name="token" value=(self.admin.inner.dashboard.keys.mark());
            input type="hidden" name="back" value=(self.view);
            @for (name, value) in fields { input type="hidden" name={ "x-" (name) } value=(text::part(value)); }
        }
    }
}

/// The parameters of an address.
pub(super) type Query = BTreeMap<String, String>;

/// What an address shows.
pub(super) enum View {
    Overview,
    Pipeline(String, Query),
    Groups(Query),
    Group(String, String),
    DropGroup(String, String),
    Letters(Query),
    Act(crate::letters::Action, Query),
    Job(String),
    Trace(Query),
    Send(Query),
    Audit,
    Files(Query),
    Outbox,
}

impl View {
    /// Reads an address; `None` where there is no such page.
    pub fn parse(address: &str) -> Option<View> {
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let uri: Uri = format!("/?{query}").parse().ok()?;
        let query = axum::extract::Query::<Query>::try_from_uri(&uri).ok()?.0;
        let decode = |part: &str| {
            percent_encoding::percent_decode_str(part)
                .decode_utf8()
                .ok()
                .map(|text| text.into_owned())
        };
        let parts: Option<Vec<String>> = path.strip_prefix('/')?.split('/').map(decode).collect();
        let parts = parts?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Some(match *parts.as_slice() {
            [""] => View::Overview,
            ["pipelines", pipeline] => View::Pipeline(pipeline.to_owned(), query),
            ["groups"] => View::Groups(query),
            ["groups", pipeline, key] => View::Group(pipeline.to_owned(), key.to_owned()),
            ["groups", pipeline, key, "drop"] => {
                View::DropGroup(pipeline.to_owned(), key.to_owned())
            }
            ["dead-letters"] => View::Letters(query),
            ["dead-letters", "replay"] => View::Act(crate::letters::Action::Replay, query),
            ["dead-letters", "drop"] => View::Act(crate::letters::Action::Drop, query),
            ["jobs", id] => View::Job(id.to_owned()),
            ["trace"] => View::Trace(query),
            ["send"] => View::Send(query),
            ["audit"] => View::Audit,
            ["files"] => View::Files(query),
            ["outbox"] => View::Outbox,
            _ => return None,
        })
    }

    /// The role that somebody needs to see it.
    fn needs(&self) -> Role {
        match self {
            View::Send(_) | View::Act(crate::letters::Action::Replay, _) => Role::Operator,
            View::DropGroup(..) | View::Act(crate::letters::Action::Drop, _) => Role::Admin,
            _ => Role::Viewer,
        }
    }

    async fn render(&self, context: &Context) -> Result<HtmlPage, ApiError> {
        access::require(&context.visitor, self.needs())?;
        match self {
            View::Overview => Ok(overview::page(context)),
            View::Pipeline(pipeline, query) => pipeline::page(context, pipeline, query),
            View::Groups(query) => groups::page(context, query).await,
            View::Group(pipeline, key) => groups::one(context, pipeline, key).await,
            View::DropGroup(pipeline, key) => groups::drop(context, pipeline, key).await,
            View::Letters(query) if query.contains_key("id") => letters::one(context, query).await,
            View::Letters(query) => Ok(letters::page(context, query).await),
            View::Act(action, query) => letters::confirm(context, *action, query).await,
            View::Job(id) => job::page(context, id),
            View::Trace(query) => trace::page(context, query).await,
            View::Send(query) => send::page(context, query).await,
            View::Audit => audit::page(context).await,
            View::Files(query) => files::page(context, query).await,
            View::Outbox => outbox::page(context).await,
        }
    }
}

async fn page(
    State(admin): State<Admin>,
    visitor: Visitor,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let keys = &admin.inner.dashboard.keys;
    let (session, cookie) = keys.session(&headers);
    let (view, done) = without_done(&uri.to_string());
    let done = done.and_then(|id| admin.inner.dashboard.actions.find(&id));
    let mut context = Context::of(&admin, view, done, visitor).await;
    context.typed = admin.inner.dashboard.typed.take(&session, &context.view);
    if context.typed.is_some() && context.done.is_none() {
        let text = "Your session had ended, so nothing was done. What you had typed is here again.";
        context.done = Some(ActionResult { text: text.to_owned(), error: None });
    }
    let rendered = match View::parse(&context.view) {
        Some(view) => view.render(&context).await,
        None => Err(crate::error::not_found(uri).await),
    };
    let (status, page) = match rendered {
        Ok(page) => (StatusCode::OK, page),
        Err(error) => (error.status, error_page(&error)),
    };
    let html = keys.fill(frame::frame(&context, page), &session);
    respond(status, html, cookie)
}

/// The address without the parameter that names what was done, and that.
fn without_done(address: &str) -> (String, Option<String>) {
    let path_of = |address: &str| match address.find("://") {
        // A request line may name the whole address.
        Some(at) => {
            let rest = address.get(at + 3..).unwrap_or_default();
            rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/").to_owned()
        }
        None => address.to_owned(),
    };
    let address = path_of(address);
    let Some((path, query)) = address.split_once('?') else { return (address, None) };
    let mut done = None;
    let mut kept = Vec::new();
    for part in query.split('&') {
        match part.strip_prefix("done=") {
            Some(id) => done = Some(id.to_owned()),
            None if part == OPENED => {}
            None => kept.push(part),
        }
    }
    let kept = kept.join("&");
    (if kept.is_empty() { path.to_owned() } else { format!("{path}?{kept}") }, done)
}

/// A page that says why there is none.
fn error_page(error: &ApiError) -> HtmlPage {
    let ErrorBody { code, what, cause, hint } = &error.body;
    let said = html! {
        (frame::head(html! { "That did not work" }, html! {}, html! {}))
        section class="panel probs bad" {
            div class="pad" {
                p class="strong c-bad" { (text::clean(what, 1_000)) }
                @if let Some(cause) = cause { p { (text::clean(cause, 2_000)) } }
                @if let Some(hint) = hint { p class="muted below" { (text::clean(hint, 1_000)) } }
                @if !code.is_empty() { p class="muted below" { code { "potok explain " (code) } } }
                p class="below" { a class="btn" href="/" { "Overview" } }
            }
        }
    };
    HtmlPage {
        title: "Error".to_owned(),
        nav: Nav::None,
        parts: vec![Part::still("error", said)],
        command: if code.is_empty() {
            "potok status".to_owned()
        } else {
            format!("potok explain {code}")
        },
        json: "/api/v1/status".to_owned(),
    }
}

/// A page that leads on to another one of ours.
pub(crate) fn leads_to(address: &str) -> Response {
    let address = if actions::is_own(address) { address } else { "/" };
    let page = html! {
        (maud::DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="refresh" content={ "0; url=" (address) };
                title { "potok" }
            }
            body { p { a href=(address) { "Open the page" } } }
        }
    };
    respond(StatusCode::OK, page.into_string(), None)
}

fn respond(status: StatusCode, html: String, cookie: Option<HeaderValue>) -> Response {
    let fixed = |value| HeaderValue::from_static(value);
    let headers: [(HeaderName, HeaderValue); 5] = [
        (CONTENT_TYPE, fixed("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, fixed(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
        // Not `no-referrer`: then browsers send our own forms with `Origin: null`, which is refused.
        (REFERRER_POLICY, fixed("same-origin")),
        (CACHE_CONTROL, fixed("no-store")),
    ];
    let mut response = (status, headers, html).into_response();
    if let Some(cookie) = cookie {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_done_is_no_part_of_a_view() {
        assert_eq!(
            without_done("/groups?a=1&done=x&b=2"),
            ("/groups?a=1&b=2".into(), Some("x".into()))
        );
        assert_eq!(without_done("/groups?a=1&opened=1"), ("/groups?a=1".into(), None));
        assert_eq!(without_done("/?done=x"), ("/".into(), Some("x".into())));
        assert_eq!(without_done("http://localhost:1/a?b=c"), ("/a?b=c".into(), None));
    }

    #[test]
    fn addresses_are_views() {
        let group = View::parse("/groups/chat/telegram%3A%2F1");
        assert!(matches!(group, Some(View::Group(p, k)) if p == "chat" && k == "telegram:/1"));
        assert!(matches!(View::parse("/"), Some(View::Overview)));
        for none in ["/nowhere", "nowhere", "/groups/a/b/c", "/pipelines/%ff"] {
            assert!(View::parse(none).is_none(), "{none}");
        }
    }
}
