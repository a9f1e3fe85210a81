//! The parameters of a database's address.
//!
//! An unknown one is refused: the driver would pass over it, and `sslmod=require` would connect
//! without TLS. Only the name is shown; the address and its values may hold a password.

use potok_core::Fault;

/// Refuses an address with a parameter that is not in `known`.
pub(crate) fn check_parameters(
    label: &str,
    url: &str,
    known: &[&str],
    code: &'static str,
) -> Result<(), Fault> {
    let Some((_, query)) = url.split_once('?') else { return Ok(()) };
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let name = parameter.split_once('=').map_or(parameter, |(name, _)| name);
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
}
