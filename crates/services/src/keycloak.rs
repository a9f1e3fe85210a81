//! Keycloak: one server with the realm `messenger`, its client `messenger-app`, whose tokens name
//! the audience `notifications`, and the users alice and bob.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::folder::Folder;
use crate::process::Process;
use crate::{cache, install, lifecycle, must, ports, programs, run};

const REALM: &str = "messenger";
/// Of tokens that the hub accepts.
const AUDIENCE: &str = "notifications";
const ADMIN: &str = "admin";

#[derive(Clone, Debug, Default)]
pub struct KeycloakOptions {
    /// Where its data is kept; without it, in a scratch folder.
    pub data: Option<PathBuf>,
    /// Its port; without it, a free one.
    pub port: Option<u16>,
}

#[derive(Debug)]
pub struct Keycloak {
    // Dropped in this order: first the process, then its folder.
    process: Process,
    port: u16,
    management: u16,
    folder: Folder,
}

lifecycle!(Keycloak);

impl Keycloak {
    #[track_caller]
    pub fn start() -> Self {
        must(Keycloak::open(&KeycloakOptions::default()))
    }

    pub fn open(options: &KeycloakOptions) -> Result<Self> {
        Keycloak::open_installed(options, &cache::keycloak()?)
    }

    /// The one that lies in that folder, which stays as it is.
    pub(crate) fn open_installed(options: &KeycloakOptions, installed: &Path) -> Result<Self> {
        ports::with_free(options.port, |port| {
            let folder = Folder::open("keycloak", options.data.as_deref())?;
            let home = folder.join("home");
            if !home.is_dir() {
                // It writes beside its programs. Links where the cache is on the same disk.
                if copy("-al", installed, &home).is_err() {
                    let _ = fs::remove_dir_all(&home);
                    copy("-a", installed, &home)?;
                }
                // What it changes must be its own.
                let (ours, theirs) = (home.join("data"), installed.join("data"));
                let _ = fs::remove_dir_all(&ours);
                if theirs.is_dir() {
                    copy("-a", &theirs, &ours)?;
                }
            }
            fs::create_dir_all(home.join("data/import"))?;
            fs::write(home.join("data/import/realm.json"), realm())?;
            let process = Process::new("Keycloak", folder.path(), "log", libc::SIGTERM);
            let keycloak = Keycloak { process, port, management: ports::free()?, folder };
            keycloak.launch()?;
            Ok(keycloak)
        })
    }

    fn launch(&self) -> Result<()> {
        let mut command = Command::new(self.folder.join("home").join("bin/kc.sh"));
        command.args(["start", "--optimized", "--cache=local", "--http-enabled=true"]);
        command.args(["--http-host=127.0.0.1", "--import-realm"]);
        command.arg(format!("--http-port={}", self.port));
        command.arg(format!("--hostname={}", self.base()));
        command.arg(format!("--http-management-port={}", self.management));
        command.env("KC_BOOTSTRAP_ADMIN_USERNAME", ADMIN).env("KC_BOOTSTRAP_ADMIN_PASSWORD", ADMIN);
        command.env("JAVA_OPTS_KC_HEAP", "-Xms64m -Xmx384m");
        command.env("JAVA_OPTS_APPEND", "-XX:TieredStopAtLevel=1");
        programs::java()?;
        if let Some(home) = install::java_home() {
            command.env("JAVA_HOME", home);
        }
        let path = format!("/realms/{REALM}/.well-known/openid-configuration");
        self.process.launch(command, || self.ask("GET", &path, None, "").map(drop))
    }

    fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// As in its tokens.
    pub fn issuer(&self) -> String {
        format!("{}/realms/{REALM}", self.base())
    }

    pub fn audience(&self) -> &'static str {
        AUDIENCE
    }

    /// What the token endpoint answers to a user's name; passwords are the names with `-pw`. One of
    /// `access_token`, `refresh_token`, `id_token`.
    #[track_caller]
    pub fn token(&self, user: &str, kind: &str) -> String {
        must(self.token_of(REALM, "messenger-app", (user, &format!("{user}-pw")), kind))
    }

    /// An access token of the realm for a client whose tokens name no audience of ours.
    #[track_caller]
    pub fn token_without_audience(&self, user: &str) -> String {
        let login = (user, &*format!("{user}-pw"));
        must(self.token_of(REALM, "admin-cli", login, "access_token"))
    }

    /// An access token of another realm of the same server.
    #[track_caller]
    pub fn token_of_another_realm(&self) -> String {
        must(self.token_of("master", "admin-cli", (ADMIN, ADMIN), "access_token"))
    }

    /// The keys of the realm, as it publishes them.
    #[track_caller]
    pub fn keys(&self) -> String {
        let path = format!("/realms/{REALM}/protocol/openid-connect/certs");
        must(self.ask("GET", &path, None, ""))
    }

    /// How long access tokens of the realm live that are made from now on.
    #[track_caller]
    pub fn set_token_life(&self, life: Duration) {
        let change = || {
            let admin = self.token_of("master", "admin-cli", (ADMIN, ADMIN), "access_token")?;
            let setting = format!(r#"{{"accessTokenLifespan":{}}}"#, life.as_secs());
            self.ask("PUT", &format!("/admin/realms/{REALM}"), Some(&admin), &setting)
        };
        must(change());
    }

    fn token_of(
        &self,
        realm: &str,
        client: &str,
        (user, password): (&str, &str),
        kind: &str,
    ) -> Result<String> {
        let form = format!(
            "grant_type=password&client_id={client}&username={user}&password={password}&scope=openid"
        );
        let path = format!("/realms/{realm}/protocol/openid-connect/token");
        self.ask("POST", &path, None, &form).and_then(|answer| text(&answer, kind))
    }

    /// A new key signs from now on; the old one still counts.
    #[track_caller]
    pub fn rotate_keys(&self) {
        must(self.add_key());
    }

    fn add_key(&self) -> Result<()> {
        let token = self.token_of("master", "admin-cli", (ADMIN, ADMIN), "access_token")?;
        let path = format!("/admin/realms/{REALM}");
        let parent = text(&self.ask("GET", &path, Some(&token), "")?, "id")?;
        let key = format!(
            r#"{{"name":"newer","providerId":"rsa-generated","providerType":"org.keycloak.keys.KeyProvider","parentId":"{parent}","config":{{"priority":["200"],"enabled":["true"],"active":["true"],"algorithm":["RS256"]}}}}"#
        );
        let path = format!("/admin/realms/{REALM}/components");
        self.ask("POST", &path, Some(&token), &key).map(drop)
    }

    /// One request; the body of a good answer.
    fn ask(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let kind = match body.starts_with('{') {
            true => "application/json",
            false => "application/x-www-form-urlencoded",
        };
        let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let (bearer, port, length) = (bearer.unwrap_or_default(), self.port, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {kind}\r\n\
             {bearer}Content-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("half an answer")?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(status.starts_with('2'), "Keycloak answers {status} to {path}: {body}");
        Ok(body.to_owned())
    }
}

fn copy(how: &str, from: &Path, to: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    command.arg(how).arg(from).arg(to);
    run::output(command).map(drop)
}

/// Starts the one in `installed` once and leaves it the data of that start: half of the time of a
/// first start goes into its tables.
pub(crate) fn prepare(installed: &Path) -> Result<()> {
    let keycloak = Keycloak::open_installed(&KeycloakOptions::default(), installed)?;
    keycloak.process.stop()?;
    let (theirs, ours) = (keycloak.folder.join("home").join("data"), installed.join("data"));
    let _ = fs::remove_dir_all(&ours);
    copy("-a", &theirs, &ours)
}

/// The text of a field that is there once, and has nothing in it that would need escaping.
fn text(json: &str, field: &str) -> Result<String> {
    let mark = format!("\"{field}\":\"");
    match json.split_once(&mark).and_then(|(_, rest)| rest.split_once('"')) {
        Some((value, _)) => Ok(value.to_owned()),
        None => bail!("Keycloak's answer has no `{field}`"),
    }
}

fn realm() -> String {
    let user = |id: &str, name: &str, roles: &str| {
        let last = name.to_uppercase();
        format!(
            r#"{{"id":"{id}","username":"{name}","enabled":true,"email":"{name}@example.test","firstName":"{name}","lastName":"{last}","credentials":[{{"type":"password","value":"{name}-pw"}}],"realmRoles":[{roles}]}}"#
        )
    };
    let alice = user("11111111-1111-4111-8111-111111111111", "alice", "\"notify-admin\"");
    let bob = user("22222222-2222-4222-8222-222222222222", "bob", "");
    let mapper = format!(
        r#"{{"name":"aud","protocol":"openid-connect","protocolMapper":"oidc-audience-mapper","config":{{"included.custom.audience":"{AUDIENCE}","access.token.claim":"true"}}}}"#
    );
    format!(
        r#"{{"realm":"{REALM}","enabled":true,"roles":{{"realm":[{{"name":"notify-admin"}}]}},"clients":[{{"clientId":"messenger-app","publicClient":true,"directAccessGrantsEnabled":true,"redirectUris":["*"],"webOrigins":["*"],"protocolMappers":[{mapper}]}}],"users":[{alice},{bob}]}}"#
    )
}
