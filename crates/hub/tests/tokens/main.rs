//! Tokens, good and bad, against an issuer of the test's own: not Keycloak, but every mistake can be
//! made with it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod issuer;
mod table;

use std::time::Duration;

use potok_hub::AuthSettings;
use potok_hub::tokens::issuer::Issuer;
use potok_hub::tokens::{Authority, Refusal};
use serde_json::json;

use crate::issuer::{AUDIENCE, FakeIssuer, Key};

fn settings(fake: &FakeIssuer) -> AuthSettings {
    AuthSettings::new(&fake.issuer, AUDIENCE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_unknown_keys_costs_one_fetch() {
    let fake = FakeIssuer::start().await;
    let verifier = std::sync::Arc::new(Issuer::new(settings(&fake)).unwrap());
    let storm = (0..500).map(|number| {
        let stranger = Key::rsa(&format!("stranger-{number}"));
        let token = fake.rsa.token(&json!({"alg": "RS256", "kid": stranger.id}), &fake.claims());
        let verifier = verifier.clone();
        tokio::spawn(async move { verifier.verify(&token).await })
    });
    for verified in futures::future::join_all(storm.collect::<Vec<_>>()).await {
        assert_eq!(verified.unwrap(), Err(Refusal::UnknownKey));
    }
    assert_eq!(verifier.fetches(), 1);
    assert_eq!(fake.fetches(), 1);
    // Those that are known are not hurt by it.
    assert!(verifier.verify(&fake.good()).await.is_ok());
}

/// A storm that goes on costs a fetch each time that keys may be asked for again, whatever comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_that_goes_on_costs_a_fetch_at_a_time() {
    const EVERY: Duration = Duration::from_secs(1);
    let fake = FakeIssuer::start().await;
    let slowly = AuthSettings { ask_keys_every: EVERY, ..settings(&fake) };
    let verifier = Issuer::new(slowly).unwrap();
    let (started, mut tokens) = (tokio::time::Instant::now(), 0);
    while verifier.fetches() < 3 {
        let header = json!({"alg": "RS256", "kid": format!("stranger-{tokens}")});
        let token = fake.rsa.token(&header, &fake.claims());
        assert_eq!(verifier.verify(&token).await, Err(Refusal::UnknownKey));
        tokens += 1;
        let most = 1 + started.elapsed().as_millis() / EVERY.as_millis();
        assert!(u128::from(verifier.fetches()) <= most, "{tokens} tokens");
    }
    assert_eq!(fake.fetches(), verifier.fetches());
    assert!(tokens > 3, "{tokens} tokens");
}

/// A stranger who hangs up while the keys are fetched takes them from nobody.
#[tokio::test]
async fn a_fetch_outlives_who_caused_it() {
    let fake = FakeIssuer::start().await;
    let verifier = Issuer::new(settings(&fake)).unwrap();
    let token = fake.rsa.token(&json!({"alg": "RS256", "kid": "stranger"}), &fake.claims());
    {
        let asking = std::pin::pin!(verifier.verify(&token));
        assert!(futures::poll!(asking).is_pending());
    }
    assert!(verifier.verify(&fake.good()).await.is_ok());
    assert_eq!(verifier.fetches(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_key_does_not_live_on() {
    let fake = FakeIssuer::start().await;
    let quickly = AuthSettings {
        ask_keys_every: Duration::ZERO,
        refresh_keys_every: Duration::from_millis(20),
        ..settings(&fake)
    };
    let verifier = Issuer::start(quickly).unwrap();
    let good = fake.good();
    assert!(verifier.verify(&good).await.is_ok());
    // Also where the token was verified and remembered before.
    fake.publish(&[&fake.ec]);
    let gone = async {
        while verifier.verify(&good).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    assert_eq!(verifier.verify(&good).await, Err(Refusal::UnknownKey));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_is_away_leaves_its_keys_in_force() {
    let fake = FakeIssuer::start().await;
    let often = AuthSettings {
        ask_keys_every: Duration::ZERO,
        refresh_keys_every: Duration::from_millis(20),
        ..settings(&fake)
    };
    let verifier = Issuer::start(often.clone()).unwrap();
    let good = fake.good();
    assert!(verifier.verify(&good).await.is_ok());
    fake.go_away();
    let before = verifier.fetches();
    let asked = async {
        while verifier.fetches() < before + 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap();
    assert!(verifier.verify(&good).await.is_ok());
    // One that never had keys is not ready, and says why.
    let late = Issuer::new(often).unwrap();
    assert_eq!(late.verify(&good).await, Err(Refusal::NoKeys));
    assert!(late.not_ready().unwrap().contains("status 503"), "{:?}", late.not_ready());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_under_another_name_is_not_believed() {
    let fake = FakeIssuer::start().await;
    let elsewhere = fake.issuer.replace("127.0.0.1", "localhost");
    let verifier = Issuer::new(AuthSettings::new(&elsewhere, AUDIENCE)).unwrap();
    assert_eq!(verifier.verify(&fake.good()).await, Err(Refusal::NoKeys));
    let why = verifier.not_ready().unwrap();
    assert!(why.contains(&fake.issuer) && why.contains(&elsewhere), "{why}");
    // Not encrypted, and not on this machine.
    let open = Issuer::new(AuthSettings::new("http://192.0.2.1/realms/a", AUDIENCE)).unwrap();
    assert_eq!(open.verify(&fake.good()).await, Err(Refusal::NoKeys));
    assert!(open.not_ready().unwrap().contains("https"));
}
