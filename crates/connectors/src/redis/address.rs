//! The address of Redis: one server, sentinels that know it, or a cluster.
//!
//! ```text
//! redis://[user:password@]host[:port][/db]              one server; rediss:// with TLS
//! redis+sentinel://[user:password@]host[:port],…/name[/db]   ask sentinels for the server `name`
//! redis+cluster://[user:password@]host[:port],…         a cluster, for the packed keys
//! ```
//!
//! `?ca=FILE` names the certificates (PEM) to trust instead of the system's. User and password are
//! the servers'; sentinels are asked without. Nothing of an address is ever shown but its hosts.

use potok_core::Fault;
use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult, TlsCertificates};

/// Where sentinels listen.
const SENTINEL_PORT: u16 = 26379;
const CODE: &str = "P0909";
const HINT: &str = "it looks like `redis://[user:password@]host:6379/0`, \
                    `redis+sentinel://host1,host2/name` or `redis+cluster://host1,host2`";

/// A parsed address.
pub(super) struct RedisAddress {
    pub kind: RedisTopology,
    pub hosts: Vec<ConnectionInfo>,
    pub tls: bool,
    pub certificates: Option<TlsCertificates>,
}

/// The kind of Redis at the address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RedisTopology {
    Server,
    Sentinel { name: String },
    Cluster,
}

impl RedisAddress {
    /// Reads an address; asks nobody, and reads no file but the one of certificates.
    pub fn parse(url: &str) -> Result<Self, Fault> {
        let wrong =
            |what: &str| Fault::fix(format!("the address of Redis {what}")).hint(HINT).code(CODE);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("has no scheme"))?;
        if rest.contains('#') {
            return Err(wrong("has a `#`; in a password it is written `%23`"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut certificates = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if name != "ca" {
                return Err(wrong(&format!("has an unknown `{}`", name.escape_debug())));
            }
            let pem = std::fs::read(value).map_err(|error| {
                Fault::fix(format!("cannot read the certificates in `{value}`"))
                    .because(error)
                    .code(CODE)
            })?;
            certificates = Some(TlsCertificates { client_tls: None, root_cert: Some(pem) });
        }
        let (tls, kind) = match scheme {
            "redis" => (false, RedisTopology::Server),
            "rediss" => (true, RedisTopology::Server),
            "redis+sentinel" => (false, RedisTopology::Sentinel { name: String::new() }),
            "rediss+sentinel" => (true, RedisTopology::Sentinel { name: String::new() }),
            "redis+cluster" => (false, RedisTopology::Cluster),
            "rediss+cluster" => (true, RedisTopology::Cluster),
            _ => return Err(wrong("has an unknown scheme")),
        };
        if certificates.is_some() && !tls {
            return Err(wrong("has `ca`, but no TLS; with TLS it begins with `rediss`"));
        }
        let (login, places) = rest.rsplit_once('@').map_or(("", rest), |(l, p)| (l, p));
        let (hosts, path) = places.split_once('/').unwrap_or((places, ""));
        let (kind, db) = match kind {
            RedisTopology::Server if hosts.contains(',') => return Err(wrong("has several hosts")),
            RedisTopology::Server => (RedisTopology::Server, path),
            RedisTopology::Cluster if !path.is_empty() => {
                return Err(wrong("has a database; a cluster has only one"));
            }
            RedisTopology::Cluster => (RedisTopology::Cluster, ""),
            RedisTopology::Sentinel { .. } => {
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(wrong("does not say which server the sentinels shall name"));
                }
                (RedisTopology::Sentinel { name: name.to_owned() }, db)
            }
        };
        let sentinel = matches!(kind, RedisTopology::Sentinel { .. });
        let scheme = if tls { "rediss" } else { "redis" };
        let at = if login.is_empty() { String::new() } else { format!("{login}@") };
        let parse = |host: &str| -> RedisResult<ConnectionInfo> {
            let port = if sentinel && !has_port(host) {
                format!(":{SENTINEL_PORT}")
            } else {
                String::new()
            };
            format!("{scheme}://{at}{host}{port}/{db}").into_connection_info()
        };
        let hosts: RedisResult<Vec<_>> = hosts.split(',').map(parse).collect();
        // The parser's message may hold a part of the address.
        let hosts = hosts.map_err(|error| wrong(&format!("is wrong ({})", error.category())))?;
        Ok(RedisAddress { kind, hosts, tls, certificates })
    }

    /// What tells this data from other data: the hosts, the name that sentinels know, and the database.
    pub fn place(&self) -> String {
        let name = match &self.kind {
            RedisTopology::Sentinel { name } => name.as_str(),
            RedisTopology::Server | RedisTopology::Cluster => "",
        };
        let database = self.hosts.first().map_or(0, |info| info.redis_settings().db());
        format!("{} {name}/{database}", self.label())
    }

    /// The hosts, for messages.
    pub fn label(&self) -> String {
        let hosts: Vec<_> = self.hosts.iter().map(|info| info.addr().to_string()).collect();
        format!("Redis {}", hosts.join(","))
    }
}

fn has_port(host: &str) -> bool {
    let port = host.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hosts(url: &str) -> (RedisTopology, String) {
        let address = RedisAddress::parse(url).unwrap();
        (address.kind.clone(), address.label())
    }

    #[test]
    fn servers_sentinels_and_clusters() {
        let name = || RedisTopology::Sentinel { name: "main".to_owned() };
        for (url, kind, label) in [
            ("redis://h", RedisTopology::Server, "Redis h:6379"),
            ("redis://u:p%40@h:7/3", RedisTopology::Server, "Redis h:7"),
            ("rediss://:p@[::1]:7", RedisTopology::Server, "Redis ::1:7"),
            ("redis+sentinel://a,b:7/main", name(), "Redis a:26379,b:7"),
            ("rediss+sentinel://u:p@a,[::1]/main/2", name(), "Redis a:26379,::1:26379"),
            ("redis+cluster://a:1,b", RedisTopology::Cluster, "Redis a:1,b:6379"),
        ] {
            assert_eq!(hosts(url), (kind, label.to_owned()), "{url}");
        }
        let login = RedisAddress::parse("redis://u:p%40@h:7/3").unwrap();
        let settings = login.hosts[0].redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("u"), Some("p@")));
        assert_eq!(settings.db(), 3);
    }

    #[test]
    fn every_database_is_a_place_of_its_own_whoever_logs_in() {
        let place = |url: &str| RedisAddress::parse(url).unwrap().place();
        assert_eq!(place("redis://h"), place("redis://u:p@h:6379/0"));
        assert_ne!(place("redis://h"), place("redis://h/1"));
        assert_ne!(place("redis+sentinel://h/main"), place("redis+sentinel://h/other"));
        assert!(!place("redis://u:secret@h").contains("secret"));
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for url in [
            "localhost:6379",
            "http://u:secret@h",
            "redis://u:secret@",
            "redis://u:secret@h/secret",
            "redis://u:secret@h:secret",
            "redis://u:secret@h#insecure",
            "redis://u:secret@h?tls=secret",
            "redis://u:secret@h?ca=file",
            "redis://u:secret@a,b",
            "redis+sentinel://u:secret@a,b",
            "redis+cluster://u:secret@a,b/3",
            "rediss://u:secret@h?ca=/no/such/file",
        ] {
            let Err(fault) = RedisAddress::parse(url) else { panic!("{url}") };
            assert_eq!((fault.next, fault.code), (potok_core::Move::Fix, "P0909"), "{url}");
            assert!(!fault.to_string().contains("secret"), "{fault}");
        }
    }
}
