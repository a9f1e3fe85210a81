//! The way in where tokens are asked for: a page that takes one, and a session that ends with it.
//!
//! The page says nothing of the process. What is typed is sent once and kept nowhere; the session is a
//! name that this process remembers. Whose session has ended while they filled in a form gets what they
//! had typed back: it travels with this page, and waits for them once they are known.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::header::{LOCATION, ORIGIN, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, PreEscaped, html};

use super::actions::{Fields, fields, is_own};
use super::frame::{ASSETS, SHAPES};
use super::text::{self, clean};
use super::{Query, respond, token};
use crate::access::Access;
use crate::{Admin, ApiError};

/// What is read of somebody who is not known yet: a token, and what they had typed.
const FORM_BYTES_MAX: usize = 256 << 10;
/// Of a form whose session has ended; it grows on its way through the page.
const INPUT_BYTES_MAX: usize = 48 << 10;
/// What people fill in. The other fields of a form are made anew with its page.
const INPUTS: [&str; 6] = ["name", "rate", "typed", "topic", "key", "value"];
/// Before the names of such fields on this page.
const INPUT: &str = "input-";
/// Forms that wait for those who filled them in.
const WAITING_MAX: usize = 100;

/// What people had typed whose session ended, until they see its form again: by session and address.
#[derive(Default)]
pub(super) struct TypedInputs(Mutex<VecDeque<(String, String, Fields)>>);

impl TypedInputs {
    fn put(&self, session: &str, back: &str, typed: Fields) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back((session.to_owned(), back.to_owned(), typed));
    }

    /// What somebody had typed on that page, once.
    pub fn take(&self, session: &str, address: &str) -> Option<Fields> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = waiting.iter().position(|(of, to, _)| of == session && to == address)?;
        waiting.remove(at).map(|(_, _, typed)| typed)
    }
}

/// Where somebody signs in who wanted to go there.
pub(crate) fn address(back: &str) -> String {
    text::address("/login", &[("back", if back == "/" { "" } else { back })])
}

pub(super) async fn page(State(admin): State<Admin>, uri: Uri) -> Response {
    if admin.access().is_none() {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    }
    let query = axum::extract::Query::<Query>::try_from_uri(&uri).map(|query| query.0);
    let back = query.ok().and_then(|query| query.get("back").cloned()).unwrap_or_default();
    shown(StatusCode::OK, &LoginForm { back, ..LoginForm::default() })
}

/// Somebody has sent a form, and their session has ended: nothing is done, and what they typed is kept.
pub(crate) async fn session_ended(access: &Access, request: Request) -> Response {
    let headers = request.headers().clone();
    let fields = access.read_form(fields(&headers, request.into_body(), INPUT_BYTES_MAX)).await;
    let mut form = LoginForm { has_ended: true, is_cut: fields.is_err(), ..LoginForm::default() };
    let fields = fields.unwrap_or_default();
    form.back = fields.get("back").cloned().unwrap_or_default();
    form.typed = fields.into_iter().filter(|(name, _)| INPUTS.contains(&&**name)).collect();
    shown(StatusCode::UNAUTHORIZED, &form)
}

/// What this page carries.
#[derive(Default)]
struct LoginForm {
    back: String,
    /// A form was sent without a session.
    has_ended: bool,
    /// What was typed there could not be kept.
    is_cut: bool,
    typed: Fields,
    error: Option<ApiError>,
}

impl LoginForm {
    fn of(fields: &Fields) -> Self {
        let back = fields.get("back").cloned().unwrap_or_default();
        let typed = fields.iter().filter_map(|(name, value)| {
            let name = name.strip_prefix(INPUT).filter(|name| INPUTS.contains(name))?;
            Some((name.to_owned(), value.clone()))
        });
        LoginForm { back, typed: typed.collect(), ..LoginForm::default() }
    }

    fn with(self, error: ApiError) -> Self {
        LoginForm { error: Some(error), ..self }
    }
}

/// Takes a token, and begins a session for whom it speaks.
pub(super) async fn sign_in(State(admin): State<Admin>, request: Request) -> Response {
    let headers = request.headers().clone();
    let Some(access) = admin.access() else {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    };
    let read = fields(&headers, request.into_body(), FORM_BYTES_MAX);
    let fields = match access.read_form(read).await {
        Ok(fields) => fields,
        Err(error) => return shown(error.status, &LoginForm::default().with(error)),
    };
    let form = LoginForm::of(&fields);
    let token = fields.get("token").map(|token| token.trim()).unwrap_or_default();
    let now = admin.engine().clock().now();
    let visitor = match access.admit(token, now).await {
        Ok(visitor) => visitor,
        Err(error) => return shown(error.status, &form.with(error)),
    };
    let seconds = visitor.expires.map(|expires| expires.millis_since(now) / 1_000);
    tracing::info!(by = visitor.name, role = visitor.role.word(), "signed in");
    let session = access.begin(visitor, now);
    let back = if is_own(&form.back) { form.back } else { "/".to_owned() };
    if !form.typed.is_empty() {
        admin.inner.dashboard.typed.put(&session, &back, form.typed);
    }
    let cookie = token::cookie(&session, seconds, is_secure(&headers));
    let Ok(cookie) = HeaderValue::from_str(&cookie) else {
        return shown(StatusCode::BAD_REQUEST, &LoginForm::default());
    };
    (StatusCode::SEE_OTHER, [(LOCATION, back)], [(SET_COOKIE, cookie)]).into_response()
}

/// Ends a session.
pub(super) fn sign_out(admin: &Admin, headers: &HeaderMap) -> Response {
    if let Some(access) = admin.access() {
        access.end(headers);
    }
    let gone = HeaderValue::from_str(&token::cookie("", Some(0), is_secure(headers))).ok();
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, "/login")]).into_response();
    if let Some(gone) = gone {
        response.headers_mut().insert(SET_COOKIE, gone);
    }
    response
}

/// Whether the browser came over TLS, whoever ends that.
fn is_secure(headers: &HeaderMap) -> bool {
    let origin = headers.get(ORIGIN).and_then(|origin| origin.to_str().ok());
    origin.is_some_and(|origin| origin.starts_with("https://"))
}

fn shown(status: StatusCode, form: &LoginForm) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Sign in · potok" }
                link rel="icon" href={ "/assets/logo.svg?v=" (ASSETS) } type="image/svg+xml";
                link rel="stylesheet" href={ "/assets/style.css?v=" (ASSETS) };
            }
            body {
                (PreEscaped(SHAPES))
                main class="login" id="main" {
                    p class="brand" { svg width="22" height="22" aria-hidden="true" { use href="#i-logo" {} } "potok" }
                    h1 { "Sign in" }
                    p class="muted" { "An access token of your identity provider says who you are. It is checked, not kept; you are signed out when it expires." }
                    @if form.has_ended {
                        div class="note-box warn" role="alert" {
                            span class="strong" { "Your session has ended, so nothing was done." } " "
                            @if form.is_cut { "What you had typed was too much to be kept here; your browser still has it, one page back." }
                            @else { "Sign in, and you are back on the page with what you had typed." }
                        }
                    }
                    @if let Some(error) = &form.error {
                        div class="done bad" role="alert" {
                            span class="strong" { (clean(&error.body.what, 200)) }
                            @if let Some(cause) = &error.body.cause { ": " (clean(cause, 400)) }
                            @if let Some(hint) = &error.body.hint { br; span class="muted" { (clean(hint, 400)) } }
                        }
                    }
                    section class="panel" { div class="pad" {
                        form class="form col" method="post" action="/login" autocomplete="off" {
                            @if is_own(&form.back) { input type="hidden" name="back" value=(form.back); }
                            @for (name, value) in &form.typed { input type="hidden" name={ "x-" (INPUT) (name) } value=(text::part(value)); }
                            label class="w" { "Access token " textarea class="mono" name="token" required autofocus spellcheck="false" autocapitalize="off" {} }
                            button class="btn pri" { "Sign in" }
                        }
                    } }
                    p class="hint" { "In a terminal: " code { "POTOK_TOKEN=… potok top --admin HOST:PORT" } }
                }
            }
        }
    };
    respond(status, page.into_string(), None)
}
