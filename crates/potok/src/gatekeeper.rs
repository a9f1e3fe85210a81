//! Who may use the dashboard beyond this machine: users of the issuer in `auth`, by their roles.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::FutureExt;
use futures::future::BoxFuture;
use potok_config::{Auth, DashboardRoles};
use potok_core::Timestamp;
use potok_hub::tokens::issuer::Issuer;
use potok_hub::tokens::rules::AuthSettings;
use potok_hub::tokens::{Authority, Person};
use potok_server::{Gatekeeper, Refusal, Role, Visitor};
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Lets in whom the issuer vouches for and who has a role.
pub struct RoleKeeper {
    authority: Arc<dyn Authority>,
    roles: DashboardRoles,
}

impl RoleKeeper {
    /// Asks the issuer that is set; `None` where none is.
    pub fn start(auth: &Auth) -> Result<Option<Self>, Failure> {
        let Some((issuer, audience)) = &auth.issuer else { return Ok(None) };
        // Roles of hub users are not asked for here: each role says what it allows.
        let settings = AuthSettings {
            jwks_url: auth.jwks_url.clone(),
            user: auth.user.clone(),
            clients: auth.clients.clone(),
            ..AuthSettings::new(issuer, audience)
        };
        let authority = Issuer::start(settings)
            .map_err(|why| Failure::new("P1106", "the issuer cannot be used").because(why))?;
        Ok(Some(RoleKeeper { authority, roles: auth.dashboard.clone() }))
    }

    fn visitor(&self, token: &str, person: &Person) -> Result<Visitor, Refusal> {
        let claims = claims(token).unwrap_or_default();
        let has = |roles: &[String]| roles.iter().any(|role| has_role(&claims, role));
        let role = match () {
            () if has(&self.roles.admins) => Role::Admin,
            () if has(&self.roles.operators) => Role::Operator,
            () if has(&self.roles.viewers) => Role::Viewer,
            () => {
                let all = [&self.roles.viewers, &self.roles.operators, &self.roles.admins];
                let all: Vec<&str> = all.into_iter().flatten().map(String::as_str).collect();
                return Err(Refusal {
                    why: format!("{} has no role here", person.user.as_str()),
                    hint: format!("give them one of these roles: {}", all.join(", ")),
                    is_known: true,
                });
            }
        };
        let expires = person.expires.duration_since(UNIX_EPOCH).unwrap_or_default();
        let expires = Timestamp(i64::try_from(expires.as_millis()).unwrap_or(i64::MAX));
        Ok(Visitor { name: person.user.as_str().to_owned(), role, expires: Some(expires) })
    }
}

impl Gatekeeper for RoleKeeper {
    fn admit<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Visitor, Refusal>> {
        async move {
            let person = self.authority.verify(token).await.map_err(|refusal| Refusal {
                why: refusal.to_string(),
                hint: refusal.hint().to_owned(),
                is_known: false,
            })?;
            self.visitor(token, &person)
        }
        .boxed()
    }
}

/// What a token says; only sensible once its signature holds.
fn claims(token: &str) -> Option<Map<String, Value>> {
    let bytes = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// `name` of the realm, or `client:name`.
fn has_role(claims: &Map<String, Value>, role: &str) -> bool {
    let (holder, name) = match role.split_once(':') {
        Some((client, name)) => {
            (claims.get("resource_access").and_then(|clients| clients.get(client)), name)
        }
        None => (claims.get("realm_access"), role),
    };
    let roles = holder.and_then(|holder| holder.get("roles")).and_then(Value::as_array);
    roles.is_some_and(|roles| roles.iter().any(|other| other.as_str() == Some(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_one_of_the_realm_or_of_a_client() {
        let claims = serde_json::json!({
            "realm_access": { "roles": ["staff"] },
            "resource_access": { "potok": { "roles": ["admin"] } },
        });
        let claims = claims.as_object().cloned().unwrap_or_default();
        assert!(has_role(&claims, "staff") && has_role(&claims, "potok:admin"));
        assert!(!has_role(&claims, "admin") && !has_role(&claims, "potok:staff"));
    }
}
