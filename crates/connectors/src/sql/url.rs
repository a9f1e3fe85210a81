//! What the address of a database says besides the server and the database.
//!
//! An unknown parameter is refused: the driver would pass over it, and `sslmod=require` would
//! connect without TLS. Only the name is shown; the address and its values may hold a password.
//!
//! Where the address does not say how to encrypt, the server's certificate is checked, by authority
//! and name, unless the way to it does not leave this machine.

use std::net::IpAddr;

use potok_core::Fault;

/// Refuses an address with a parameter that is not in `known`.
pub(crate) fn check_parameters(
    label: &str,
    url: &str,
    known: &[&str],
    code: &'static str,
) -> Result<(), Fault> {
    for name in parameters(url) {
        let is_option = name.starts_with("options[") && known.contains(&"options");
        if !known.contains(&name) && !is_option {
            let name = name.escape_debug();
            return Err(Fault::fix(format!("{label}: the address has an unknown `{name}`"))
                .hint(format!("known are: {}", known.join(", ")))
                .code(code));
        }
    }
    Ok(())
}

/// True where nobody has said otherwise and the way to `host` may be listened to: the server must
/// then prove who it is. `socket` is true where it is reached by a file.
pub(crate) fn must_verify(url: &str, host: &str, socket: bool) -> bool {
    let is_said = parameters(url).any(|name| matches!(name, "sslmode" | "ssl-mode"));
    !is_said && !socket && !is_loopback(host)
}

/// The host without the brackets that an address puts around an IPv6 one: no certificate has them.
pub(crate) fn bare_host(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// True for names and addresses that mean this machine, whoever resolves them.
fn is_loopback(host: &str) -> bool {
    if let Ok(address) = bare_host(host).parse::<IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    // A path is a folder with a socket.
    host == "localhost" || host.ends_with(".localhost") || host.starts_with('/')
}

/// The names of the parameters.
fn parameters(url: &str) -> impl Iterator<Item = &str> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    let all = query.split('&').filter(|parameter| !parameter.is_empty());
    all.map(|parameter| parameter.split_once('=').map_or(parameter, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parameters_are_named_and_values_are_not_shown() {
        let check = |url: &str| check_parameters("db `x`", url, &["sslmode", "options"], "P0709");
        for url in [
            "postgres://u:p@h/d",
            "postgres://u:p@h/d?",
            "postgres://u:p@h/d?sslmode=require&options[search_path]=x#f?y",
        ] {
            assert!(check(url).is_ok(), "{url}");
        }
        let shown = check("postgres://u:p@h/d?pasword=secret").map_err(|fault| fault.to_string());
        let shown = shown.err().unwrap_or_default();
        assert!(shown.contains("`pasword`") && !shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_server_beyond_this_machine_must_prove_who_it_is() {
        for (host, verified) in [
            ("db.example", true),
            ("10.0.0.1", true),
            ("[fd00::2]", true),
            ("0.0.0.0", true),
            ("localhost.example", true),
            ("notlocalhost", true),
            ("localhost", false),
            ("LocalHost.", false),
            ("db.localhost", false),
            ("127.0.0.1", false),
            ("127.8.9.1", false),
            ("[::1]", false),
            ("[::ffff:127.0.0.1]", false),
            ("/run/postgresql", false),
        ] {
            let url = format!("postgres://u:p@{host}/d");
            assert_eq!(must_verify(&url, host, false), verified, "{host}");
            assert!(!must_verify(&url, host, true), "by a socket: {host}");
        }
        for said in ["sslmode=disable", "sslrootcert=x&ssl-mode=PREFERRED"] {
            assert!(!must_verify(&format!("mysql://u:p@h/d?{said}"), "h", false), "{said}");
        }
        let unsaid = "mysql://u:p@h/d?ssl-ca=sslmode#?sslmode=disable";
        assert!(must_verify(unsaid, "h", false), "{unsaid}");
        assert_eq!((bare_host("[::1]"), bare_host("h")), ("::1", "h"));
    }
}
