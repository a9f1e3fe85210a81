//! Who may ask at all: programs of this machine, or those who show a token ([`crate::access`]).
//!
//! A page in a browser can reach loopback too: by a DNS name that is re-pointed to 127.0.0.1 (its
//! `Host` gives it away), or directly from a foreign page (`Origin` or `Sec-Fetch-Site` does).
//! Both are refused before anything is read, and so is what a proxy passes on: it comes from this
//! machine, with the world behind it. Where tokens are asked for, a name is as good as another, and a
//! page must come from the host that it asks. A link on another site may lead to a page.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, LOCATION, ORIGIN,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::{self, Visitor};
use crate::audit::NoteLoss;
use crate::dashboard::{refused, session_ended};
use crate::{Admin, ApiError};

pub(crate) async fn guard(
    State(admin): State<Admin>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let access = admin.access();
    if let Some(address) = admin.identity().address {
        check(address, access.is_some(), request.method(), request.uri(), request.headers())?;
        if is_link(request.method(), request.uri(), request.headers()) && !is_opened(request.uri())
        {
            return Ok(opened_again(request.uri()));
        }
    }
    let visitor = match access {
        None => Visitor::local(),
        Some(access) => {
            let now = admin.engine().clock().now();
            let (method, uri) = (request.method().clone(), request.uri().clone());
            match access.visitor(method, uri, request.headers().clone(), now).await {
                Ok(visitor) => visitor,
                Err(_) if access::is_open(request.uri().path()) => {
                    return Ok(next.run(request).await);
                }
                Err(error) if is_own_form(&request, &error) => {
                    return Ok(session_ended(access, request).await);
                }
                Err(error) => return Ok(turned_away(&request, error)),
            }
        }
    };
    if let Err(error) = access::check(&visitor, request.method(), request.uri()) {
        let headers = request.headers().clone();
        return match access::is_page(request.method(), request.uri().path()) {
            true => Ok(refused(&admin, visitor, &headers, error).await),
            false => Err(error),
        };
    }
    request.extensions_mut().insert(visitor);
    if access::is_look(request.method()) {
        return Ok(next.run(request).await);
    }
    let loss = NoteLoss::default();
    request.extensions_mut().insert(loss.clone());
    // What was begun is finished and noted, also where whoever asked has hung up meanwhile.
    match tokio::spawn(next.run(request)).await {
        Ok(answer) => Ok(loss.told(answer)),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "P0501",
                "the process is ending",
            )),
        },
    }
}

/// Every answer says that it is what it says it is, that nobody keeps it, and that it runs nothing.
pub(crate) async fn sealed(mut answer: Response) -> Response {
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    ] {
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}

/// Without a token: people are led to the way in, programs are told.
fn turned_away(request: &Request, error: ApiError) -> Response {
    if error.status == StatusCode::UNAUTHORIZED
        && access::is_page(request.method(), request.uri().path())
    {
        let back = request.uri().path_and_query().map(|path| path.as_str()).unwrap_or("/");
        let to = crate::dashboard::login_address(back);
        return (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response();
    }
    let mut response = error.into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn check(
    address: SocketAddr,
    has_access: bool,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("\u{fffd}"));
    // A request line with a whole URL names the host there.
    let named = uri.authority().map(|authority| authority.as_str());
    let hosts = [text(HOST.as_str()), named];
    if hosts.iter().flatten().next().is_none() {
        return Err(foreign("a request without Host"));
    }
    // A proxy on this machine comes from loopback as well, with whoever is behind it.
    let passed_on = headers.keys().find(|name| is_of_proxy(name.as_str()));
    if let Some(name) = passed_on.filter(|_| !has_access) {
        return Err(foreign(&format!("a request that a proxy has passed on (`{name}`)")));
    }
    let is_host = |host: &&&str| has_access || is_ours(host, address.port());
    if let Some(host) = hosts.iter().flatten().find(|host| !is_host(host)) {
        return Err(foreign(&format!("a request for the host `{host}`")));
    }
    if let Some(origin) = text(ORIGIN.as_str()) {
        let page =
            origin.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme));
        let ours = page.is_some_and(|(scheme, host)| match has_access {
            true => hosts.iter().flatten().all(|asked| asked.eq_ignore_ascii_case(host)),
            false => scheme == "http" && is_ours(host, address.port()),
        });
        if !ours {
            return Err(foreign(&format!("a request from the page `{origin}`")));
        }
    }
    if is_from_elsewhere(headers) && !is_link(method, uri, headers) {
        return Err(foreign("a request from a page of another site"));
    }
    Ok(())
}

/// Headers that proxies add, and nobody else.
fn is_of_proxy(header: &str) -> bool {
    header.starts_with("x-forwarded-")
        || matches!(
            header,
            "forwarded"
                | "via"
                | "x-real-ip"
                | "x-client-ip"
                | "x-cluster-client-ip"
                | "true-client-ip"
                | "cf-connecting-ip"
        )
}

/// True for what a page of another site makes a browser send.
fn is_from_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    site.is_some_and(|site| site == "cross-site" || site == "same-site")
}

/// True where somebody follows a link to a page from another site, such as a chat: the page is shown in
/// a window of its own and changes nothing.
fn is_link(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let is = |name: &str, wanted: &str| headers.get(name).is_some_and(|value| value == wanted);
    is_from_elsewhere(headers)
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
        && access::is_page(method, uri.path())
}

/// What marks the address of a page that was opened by [`opened_again`].
pub(crate) const OPENED: &str = "opened=1";

fn is_opened(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| part == OPENED))
}

/// A page that leads to the one that a link named. Opened from here the browser sends the session with
/// it, which it does not from another site; without, somebody who is signed in would not seem to be,
/// and forms in other windows would lose their session.
fn opened_again(uri: &Uri) -> Response {
    let address = uri.path_and_query().map_or("/", |address| address.as_str());
    let sign = if address.contains('?') { '&' } else { '?' };
    crate::dashboard::leads_to(&format!("{address}{sign}{OPENED}"))
}

/// True for a form that was sent from a page of ours, by somebody whose session has ended meanwhile.
fn is_own_form(request: &Request, error: &ApiError) -> bool {
    // Browsers say where a form comes from; `check` has refused those of others.
    let says = |name: &str| request.headers().contains_key(name);
    error.status == StatusCode::UNAUTHORIZED
        && request.method() == Method::POST
        && request.uri().path().starts_with("/act/")
        && !says(AUTHORIZATION.as_str())
        && (says(ORIGIN.as_str()) || says("sec-fetch-site"))
}

fn foreign(what: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "P0504", format!("{what} is refused")).hint(
        "without a login this address answers this machine alone, under localhost or a loopback IP; \
         for others set `auth` (issuer, audience) and an `admin` address that is not loopback, such as \
         this machine's own, and let the proxy lead there: everybody signs in then",
    )
}

/// True for `localhost` and loopback IPs with our port (or none, where ours is HTTP's own).
fn is_ours(authority: &str, port: u16) -> bool {
    let (host, named_port) = match authority.rsplit_once(':') {
        // The colons of a bare IPv6 address stand inside brackets.
        Some((host, digits)) if !digits.ends_with(']') => match digits.parse::<u16>() {
            Ok(named_port) => (host, named_port),
            Err(_) => return false,
        },
        _ => (authority, 80),
    };
    let ip = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let local = host.eq_ignore_ascii_case("localhost")
        || ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    local && named_port == port
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ask(uri: &str, headers: &[(&'static str, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let address = "127.0.0.1:7600".parse().unwrap();
        check(address, false, &Method::GET, &uri.parse().unwrap(), &map).is_ok()
    }

    #[test]
    fn with_tokens_a_page_comes_from_the_host_that_it_asks() {
        let ask = |host: &str, origin: &str, site: &str| {
            let mut map = HeaderMap::new();
            map.insert("host", host.parse().unwrap());
            map.insert("origin", origin.parse().unwrap());
            map.insert("sec-fetch-site", site.parse().unwrap());
            let (address, uri) = ("0.0.0.0:7600".parse().unwrap(), "/act/pause".parse().unwrap());
            check(address, true, &Method::POST, &uri, &map)
        };
        assert!(ask("potok.example.com", "https://potok.example.com", "same-origin").is_ok());
        assert!(ask("10.0.0.7:7600", "http://10.0.0.7:7600", "same-origin").is_ok());
        assert!(ask("potok.example.com", "https://evil.example.com", "same-origin").is_err());
        assert!(ask("potok.example.com", "null", "same-origin").is_err());
        assert!(ask("potok.example.com", "https://potok.example.com", "cross-site").is_err());
    }

    #[test]
    fn only_loopback_hosts_with_our_port_pass() {
        for host in ["127.0.0.1:7600", "localhost:7600", "LOCALHOST:7600", "[::1]:7600"] {
            assert!(ask("/live", &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example:7600",
            "127.0.0.1:7601",
            "127.0.0.1",
            "localhost.evil.example:7600",
            "10.0.0.1:7600",
            "127.0.0.1:x",
            "",
        ] {
            assert!(!ask("/live", &[("host", host)]), "{host}");
        }
        assert!(!ask("/live", &[]));
        assert!(!ask("http://evil.example/live", &[("host", "localhost:7600")]));
    }

    #[test]
    fn what_a_proxy_passes_on_does_not_pass_without_a_login() {
        let host = ("host", "127.0.0.1:7600");
        for name in ["x-forwarded-for", "x-forwarded-host", "forwarded", "x-real-ip", "via"] {
            assert!(!ask("/live", &[host, (name, "203.0.113.9")]), "{name}");
        }
        let mut map = HeaderMap::new();
        map.insert("host", "potok.example.com".parse().unwrap());
        map.insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
        let (address, uri) = ("10.0.0.7:7600".parse().unwrap(), "/".parse().unwrap());
        assert!(check(address, true, &Method::GET, &uri, &map).is_ok(), "whoever it is signs in");
        let error = check(address, false, &Method::GET, &uri, &map).unwrap_err();
        assert!(error.body.what.contains("x-forwarded-for"), "{error:?}");
        assert!(error.body.hint.is_some_and(|hint| hint.contains("set `auth`")));
    }

    #[test]
    fn a_link_of_another_site_leads_to_pages_only() {
        let host = ("host", "localhost:7600");
        let from = ("sec-fetch-site", "cross-site");
        let (mode, dest) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        assert!(ask("/dead-letters?pipeline=orders", &[host, from, mode, dest]));
        assert!(!ask("/dead-letters", &[host, from, mode, ("sec-fetch-dest", "iframe")]));
        assert!(!ask("/dead-letters", &[host, from, ("sec-fetch-mode", "no-cors")]));
        for path in ["/api/v1/status", "/metrics", "/events?view=%2F"] {
            assert!(!ask(path, &[host, from, mode, dest]), "{path}");
        }
        let uri: Uri = "/groups?a=1&opened=1".parse().unwrap();
        assert!(is_opened(&uri) && !is_opened(&"/groups?a=opened=1".parse().unwrap()));
    }

    #[test]
    fn pages_of_other_sites_do_not_pass() {
        let host = ("host", "localhost:7600");
        assert!(ask("/live", &[host, ("origin", "http://localhost:7600")]));
        for origin in ["https://evil.example", "http://localhost:3000", "null", "file://"] {
            assert!(!ask("/live", &[host, ("origin", origin)]), "{origin}");
        }
        assert!(!ask("/live", &[host, ("sec-fetch-site", "cross-site")]));
        assert!(ask("/live", &[host, ("sec-fetch-site", "none")]));
    }
}
