//! The table of tokens: what is let in, and which rule refuses the rest.

use potok_hub::tokens::issuer::Issuer;
use potok_hub::tokens::{Authority, Refusal};
use potok_hub::{AuthSettings, UserId};
use ring::hmac;
use serde_json::{Value, json};

use crate::issuer::{AUDIENCE, FakeIssuer, base64, now};

/// A change of an object: fields set, or removed where they are null.
fn with(mut object: Value, change: Value) -> Value {
    for (name, value) in change.as_object().unwrap() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(name)),
            value => object[name] = value.clone(),
        }
    }
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn good_tokens_are_let_in() {
    let fake = FakeIssuer::start().await;
    let verifier = Issuer::new(AuthSettings::new(&fake.issuer, AUDIENCE)).unwrap();
    let header = json!({"alg": "RS256", "kid": "rsa", "typ": "JWT"});
    let claims = fake.claims();
    for (header, change) in [
        (header.clone(), json!({})),
        (header.clone(), json!({"aud": ["account", AUDIENCE]})),
        (header.clone(), json!({"nbf": now() + 5})),
        (header.clone(), json!({"exp": now() - 10})),
        (with(header.clone(), json!({"typ": null})), json!({})),
        (with(header.clone(), json!({"typ": "at+jwt"})), json!({"typ": null})),
        (with(header.clone(), json!({"jku": "https://evil.example", "x5u": "x"})), json!({})),
    ] {
        let token = fake.rsa.token(&header, &with(claims.clone(), change.clone()));
        let person = verifier.verify(&token).await;
        assert_eq!(person.unwrap().user, UserId::new("alice"), "{header} {change}");
    }
    let token = fake.ec.token(&json!({"alg": "ES256", "kid": "ec"}), &claims);
    assert!(verifier.verify(&token).await.is_ok());
    let by_name =
        AuthSettings { user: "azp".to_owned(), ..AuthSettings::new(&fake.issuer, AUDIENCE) };
    let person = Issuer::new(by_name).unwrap().verify(&fake.good()).await.unwrap();
    assert_eq!(person.user, UserId::new("app"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_do_not_fit_are_refused() {
    let fake = FakeIssuer::start().await;
    let settings = AuthSettings {
        clients: vec!["app".to_owned()],
        roles: vec!["user".to_owned(), "app:reader".to_owned()],
        ..AuthSettings::new(&fake.issuer, AUDIENCE)
    };
    let verifier = Issuer::new(settings).unwrap();
    let header = json!({"alg": "RS256", "kid": "rsa", "typ": "JWT"});
    assert!(verifier.verify(&fake.good()).await.is_ok());
    let other_realm = fake.issuer.replace("messenger", "other");
    let long = "x".repeat(257);
    for (change, rule) in [
        (json!({"iss": other_realm}), "Issuer"),
        (json!({"iss": null}), "Issuer"),
        (json!({"iss": [fake.issuer]}), "Issuer"),
        (json!({"aud": null}), "Audience"),
        (json!({"aud": "account"}), "Audience"),
        (json!({"aud": ["account"]}), "Audience"),
        (json!({"aud": {"notifications": true}}), "Audience"),
        (json!({"exp": null}), "NoExpiry"),
        (json!({"exp": "2999"}), "NoExpiry"),
        (json!({"exp": now() - 60}), "Expired"),
        (json!({"nbf": now() + 300}), "NotYet"),
        (json!({"nbf": "soon"}), "Malformed"),
        (json!({"typ": "ID"}), "Kind"),
        (json!({"typ": "Refresh"}), "Kind"),
        (json!({"typ": "DPoP"}), "Kind"),
        (json!({"typ": null}), "Kind"),
        (json!({"cnf": {"x5t#S256": "abc"}}), "Bound"),
        (json!({"azp": "other"}), "Client"),
        (json!({"azp": null}), "Client"),
        (json!({"realm_access": {"roles": ["reader"]}}), "Role"),
        (json!({"resource_access": {"other": {"roles": ["reader"]}}}), "Role"),
        (json!({"sub": null}), "NoUser"),
        (json!({"sub": ""}), "NoUser"),
        (json!({"sub": 7}), "NoUser"),
        (json!({"sub": long}), "NoUser"),
    ] {
        let token = fake.rsa.token(&header, &with(fake.claims(), change.clone()));
        let refusal = verifier.verify(&token).await.expect_err(&change.to_string());
        assert!(format!("{refusal:?}").starts_with(rule), "{change}: {refusal:?}");
        assert!(!refusal.to_string().contains(&token));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_and_malformed_tokens_are_refused() {
    let fake = FakeIssuer::start().await;
    let verifier = Issuer::new(AuthSettings::new(&fake.issuer, AUDIENCE)).unwrap();
    let good = fake.good();
    assert!(verifier.verify(&good).await.is_ok());
    let claims = fake.claims();
    let plain =
        |header: Value| format!("{}.{}", base64(header.to_string()), base64(claims.to_string()));
    let signed = |header: Value| fake.rsa.token(&header, &claims);
    // Signed with what everybody knows: the public key, as if it were a secret.
    let public = fake.rsa.jwk().to_string();
    let with_secret = |secret: &[u8], id: &str| {
        let message = plain(json!({"alg": "HS256", "kid": id, "typ": "JWT"}));
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), message.as_bytes());
        format!("{message}.{}", base64(tag))
    };
    let (message, signature) = good.rsplit_once('.').unwrap();
    let changed = with(claims.clone(), json!({"sub": "mallory"}));
    let others = format!(
        "{}.{}.{signature}",
        message.split('.').next().unwrap(),
        base64(changed.to_string())
    );
    for (token, rule) in [
        (String::new(), "Missing"),
        (format!("{}.", plain(json!({"alg": "none", "kid": "rsa"}))), "Algorithm"),
        (format!("{message}."), "Signature"),
        (plain(json!({"alg": "none", "kid": "rsa"})), "Malformed"),
        (with_secret(public.as_bytes(), "rsa"), "Algorithm"),
        (with_secret(b"secret", "secret"), "UnknownKey"),
        (others, "Signature"),
        (signed(json!({"alg": "RS512", "kid": "rsa"})), "Algorithm"),
        (signed(json!({"alg": "PS256", "kid": "rsa"})), "Algorithm"),
        (signed(json!({"kid": "rsa"})), "Algorithm"),
        (signed(json!({"alg": "ES256", "kid": "ec"})), "Signature"),
        (signed(json!({"alg": "RS256", "kid": "encrypting"})), "UnknownKey"),
        (signed(json!({"alg": "RS256", "kid": "unheard-of"})), "UnknownKey"),
        (signed(json!({"alg": "RS256"})), "Malformed"),
        (signed(json!({"alg": "RS256", "kid": 7})), "Malformed"),
        (signed(json!({"alg": "RS256", "kid": "x".repeat(129)})), "Malformed"),
        (signed(json!({"alg": "RS256", "kid": "x".repeat(1 << 20)})), "Malformed"),
        (signed(json!({"alg": "RS256", "kid": "rsa", "crit": ["exp"]})), "Header"),
        (signed(json!({"alg": "RS256", "kid": "rsa", "b64": false})), "Header"),
        (signed(json!({"alg": "RS256", "kid": "rsa", "typ": "dpop+jwt"})), "Kind"),
        (format!("{good}.x"), "Malformed"),
        (format!("{good} "), "Signature"),
        ("a.b.c".to_owned(), "Malformed"),
        ("x".repeat(20_000), "Malformed"),
    ] {
        let refusal = verifier.verify(&token).await.unwrap_err();
        let shown: String = token.chars().take(80).collect();
        assert!(format!("{refusal:?}").starts_with(rule), "{shown}: {refusal:?}");
    }
    assert_eq!(verifier.fetches(), 1);
    assert_eq!(verifier.verify("").await, Err(Refusal::Missing));
}
