//! Tokens of a real Keycloak, from its discovery document to the stock client. One start of Keycloak
//! for everything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use potok_hub::tokens::issuer::Issuer;
use potok_hub::tokens::{Authority, Refusal};
use potok_hub::{
    AckRule, Answer, AuthSettings, Frame, Hub, HubSettings, Node, Outgoing, Ticket, UserId,
};
use potok_services::Keycloak;

use crate::stock_client::StockClient;
use crate::support::{AN_HOUR, Recorder, patiently};

const ALICE: &str = "11111111-1111-4111-8111-111111111111";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_of_a_realm_are_let_in_and_nobody_else() {
    let keycloak = tokio::task::spawn_blocking(Keycloak::start).await.unwrap();
    let keycloak = Arc::new(keycloak);
    let token = |user: &'static str, kind: &'static str| {
        let keycloak = keycloak.clone();
        async move { tokio::task::spawn_blocking(move || keycloak.token(user, kind)).await.unwrap() }
    };
    let settings = AuthSettings::new(&keycloak.issuer(), keycloak.audience());
    let issuer = Issuer::start(settings.clone()).unwrap();
    let access = token("alice", "access_token").await;
    let person = issuer.verify(&access).await.unwrap();
    assert_eq!(person.user, UserId::new(ALICE));
    assert!(issuer.verify(&access).await.is_ok());
    assert_eq!(issuer.fetches(), 1);

    for (kind, refused) in [("id_token", "ID"), ("refresh_token", "Refresh")] {
        let refusal = issuer.verify(&token("alice", kind).await).await.unwrap_err();
        // Refresh tokens are signed with a key of Keycloak's own, which nobody publishes.
        let unknown = kind == "refresh_token" && refusal == Refusal::UnknownKey;
        assert!(unknown || refusal == Refusal::Kind(refused.to_owned()), "{kind}: {refusal:?}");
    }
    let roles = AuthSettings { roles: vec!["notify-admin".to_owned()], ..settings.clone() };
    let admins = Issuer::new(roles).unwrap();
    assert!(admins.verify(&access).await.is_ok());
    let bob = token("bob", "access_token").await;
    assert_eq!(admins.verify(&bob).await, Err(Refusal::Role("notify-admin".to_owned())));
    let elsewhere = Issuer::new(AuthSettings { audience: "other".to_owned(), ..settings }).unwrap();
    assert!(matches!(elsewhere.verify(&access).await, Err(Refusal::Audience { .. })));

    let node = Node::start(HubSettings::default(), issuer.clone(), HashMap::new());
    let listener = potok_hub::listen(([127, 0, 0, 1], 0).into()).unwrap();
    let url = format!("http://{}/hubs/notifications", listener.local_addr().unwrap());
    tokio::spawn(potok_hub::serve(listener, node.clone(), std::future::pending()));
    let mut client = StockClient::new(&url, "WebSockets", "messagepack");
    client.start(&access);
    let recorder = Arc::new(Recorder::default());
    let outgoing = Outgoing {
        ticket: Ticket(1),
        user: UserId::new(ALICE),
        frame: Frame::new("notify", "m-1", b"{}", 1_000).unwrap(),
        ack_within: AN_HOUR,
        ack: AckRule::Any,
    };
    node.send(vec![outgoing], recorder.clone()).await.unwrap();
    assert_eq!(recorder.count(1).await, [(Ticket(1), Answer::Acknowledged)]);

    // A new key is learned when the first token signed with it comes, the old one still counts.
    let rotating = keycloak.clone();
    tokio::task::spawn_blocking(move || rotating.rotate_keys()).await.unwrap();
    let newer = token("bob", "access_token").await;
    let key = |token: &str| token.split('.').next().unwrap().to_owned();
    assert_ne!(key(&newer), key(&bob), "another key signs");
    // Not sooner than ten seconds after the keys were asked for the last time.
    let learned = async {
        while issuer.verify(&newer).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    patiently("the new key is learned", learned).await;
    assert!(issuer.verify(&bob).await.is_ok());
    assert_eq!(issuer.fetches(), 2, "one fetch for one rotation");
}
