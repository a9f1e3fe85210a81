//! Many dead letters, and what a replay of them would come to.

use serde_json::json;

use crate::desk::Desk;
use crate::wait;

#[tokio::test]
async fn a_dry_run_says_what_a_replay_would_come_to_and_changes_nothing() {
    let desk = Desk::start().await;
    desk.dead_letter(1, b"a", b"{\"n\":1}".to_vec(), "the table is gone").await;
    desk.dead_letter(2, b"b", b"{\"n\":".to_vec(), "not JSON").await;
    desk.sees("orders", "they are counted", |status| status.dead_letters_open == Some(2)).await;
    let page = desk.get("/dead-letters/replay?pipeline=orders").await.text;
    assert!(page.contains("Dry run, as it runs now"), "{page}");
    assert!(page.contains("come to their destination") && page.contains("fail again"), "{page}");
    let asked = desk.post_json("/api/v1/dead-letters/replay", &json!({ "dry_run": true })).await;
    let lines: Vec<serde_json::Value> =
        asked.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["outcome"], "reaches_destination");
    assert_eq!(lines[0]["why"], "db orders");
    assert_eq!(lines[1]["outcome"], "dead_lettered");
    let forecast = &lines[2]["forecast"];
    assert_eq!(
        (&forecast["reaches_destination"], &forecast["dead_lettered"]),
        (&json!(1), &json!(1))
    );
    let status = desk.sees("orders", "it runs", |status| status.since.is_some()).await;
    assert_eq!((status.dead_letters_open, status.received), (Some(2), 0), "nothing was replayed");
}

#[tokio::test]
async fn the_list_of_dead_letters_follows_and_is_bounded() {
    const MANY: u64 = 12_000;
    let desk = Desk::start().await;
    desk.dead_letters(0..MANY).await;
    desk.sees("orders", "they are counted", |status| status.dead_letters_open == Some(MANY)).await;
    let shows = async |wanted: &str| {
        wait::until(wanted, || async {
            let page = desk.get("/dead-letters?pipeline=orders").await.text;
            page.contains(wanted).then_some(page)
        })
        .await
    };
    let page = shows("among the newest 10,000").await;
    assert!(page.contains("of the newest 10,000") && page.contains("12,000"), "{page}");
    assert!(page.len() < 150_000, "{}", page.len());
    // One more, and one that is dropped: the list follows.
    desk.dead_letters(MANY..MANY + 1).await;
    shows("12,001").await;
    let ids = json!({ "ids": ["orders-dead/0/0"] });
    let dropped = desk.post_json("/api/v1/dead-letters/drop", &ids).await;
    assert!(dropped.contains("dropped"), "{dropped}");
    shows("12,000").await;
    let all = json!({ "pipeline": "orders" });
    desk.post_json("/api/v1/dead-letters/drop", &all).await;
    shows("No open dead letters.").await;
}

#[tokio::test]
async fn groups_are_found_by_how_they_begin_a_part_at_a_time() {
    const GROUPS: u64 = 25_000;
    let desk = Desk::start().await;
    let of = |n: u64| json!({ "k": format!("chat:{n:05}") }).to_string();
    desk.send("chat", (0..GROUPS).map(of)).await;
    desk.sees("chat", "all are held", |status| status.open_groups == GROUPS).await;
    let (mut found, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = desk.json(&format!("/api/v1/groups?prefix=chat:2499&limit=7{after}")).await;
        assert!(page["looked_at"].as_u64().is_some_and(|looked| looked <= 10_000), "{page}");
        assert_eq!(page["total"], GROUPS);
        let groups = page["groups"].as_array().unwrap().iter();
        found.extend(groups.map(|group| group["id"].as_str().unwrap().to_owned()));
        pages += 1;
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    found.sort();
    let wanted: Vec<String> = (24_990..25_000).map(|n| format!("chat:{n}")).collect();
    assert_eq!(found, wanted);
    assert!(pages > 2, "no page looks at all of them");
    let sealed = desk.json("/api/v1/groups?state=sealed").await;
    assert_eq!(sealed["groups"], json!([]));
    assert_eq!(desk.get("/api/v1/groups?state=half").await.status, 400);
    // On the page, a whole key is found at once, and another one says how far it looked.
    let whole = desk.get("/groups?pipeline=chat&key=chat:24999").await.text;
    assert!(whole.contains("chat:24999") && whole.contains("1 of 1 group"), "{whole}");
    let none = desk.get("/groups?pipeline=chat&key=nobody").await.text;
    assert!(none.contains("looked at") && none.contains("Go on"), "{none}");
}

#[tokio::test]
async fn rates_are_kept_by_seconds_and_by_tens() {
    let desk = Desk::start().await;
    for (query, every) in [("", 1), ("?every=1", 1), ("?every=10&seconds=3600", 10)] {
        let rates = desk.json(&format!("/api/v1/rates{query}")).await;
        assert_eq!(rates["every"], every, "{rates}");
        assert_eq!(rates["pipelines"].as_array().map(Vec::len), Some(2), "{rates}");
    }
    assert_eq!(desk.get("/api/v1/rates?every=7").await.status, 400);
    let page = desk.get("/pipelines/orders?window=6h").await.text;
    assert!(page.contains("last 6 hours") && page.contains("−4.8 h"), "{page}");
}
