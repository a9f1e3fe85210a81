//! The parts of `scheme://user:password@host:port/database`, for the command-line clients.

use anyhow::{Context, Result};

#[derive(Debug, PartialEq)]
pub struct Parts<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub host: &'a str,
    pub port: &'a str,
    pub database: &'a str,
}

/// Understands the addresses this crate makes, with nothing in them to decode.
pub fn parts(url: &str) -> Result<Parts<'_>> {
    let all = || {
        let (_, rest) = url.split_once("://")?;
        let (login, rest) = rest.split_once('@')?;
        let (user, password) = login.split_once(':')?;
        let (place, database) = rest.split_once('/')?;
        let (host, port) = place.split_once(':')?;
        let database = database.split('?').next()?;
        Some(Parts { user, password, host, port, database })
    };
    all().with_context(|| format!("`{url}` is not scheme://user:password@host:port/database"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_taken_apart() {
        let expected =
            Parts { user: "u", password: "p", host: "127.0.0.1", port: "1", database: "d" };
        assert_eq!(parts("mysql://u:p@127.0.0.1:1/d?x=y").unwrap(), expected);
        assert!(parts("mysql://127.0.0.1/d").is_err());
    }
}
