//! What is done is what somebody was shown, whatever has come since.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};

use crate::desk::{Browser, Desk};
use crate::wait;

/// Fills in a form and sends it; where it leads.
pub async fn sent(
    browser: &Browser<'_>,
    what: &str,
    mut fields: Vec<(String, String)>,
    typed: &str,
) -> String {
    for (_, value) in fields.iter_mut().filter(|(name, _)| name == "typed") {
        *value = typed.to_owned();
    }
    let fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    browser.post(what, &fields).await.header("location").to_owned()
}

/// Sends a form; the job that does what it asks, once it has ended.
async fn done(
    desk: &Desk,
    browser: &Browser<'_>,
    what: &str,
    fields: Vec<(String, String)>,
    typed: &str,
) -> Value {
    let to = sent(browser, what, fields, typed).await;
    let id = to.strip_prefix("/jobs/").unwrap_or_else(|| panic!("no job: {to}"));
    let id = id.split('?').next().unwrap();
    let job = wait::until("the job has ended", || async {
        let job = desk.json(&format!("/api/v1/jobs/{id}")).await;
        (job["phase"] != "running").then_some(job)
    })
    .await;
    let page = browser.get(&format!("/jobs/{id}")).await;
    assert_eq!(page.command(), format!("potok jobs show {id}"));
    assert!(page.text.contains(&format!("of {typed} confirmed")), "{}", page.text);
    job
}

#[tokio::test]
async fn what_came_after_the_question_is_left_alone() {
    // A form carried the filter only: dead letters that came while somebody made up their mind were
    // dropped with those that they had seen.
    for (what, offsets) in [("drop", 0..3), ("replay", 10..13)] {
        let desk = Desk::start().await;
        desk.dead_letters(offsets.clone()).await;
        desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(3)).await;
        let browser = desk.browser().await;
        let page = browser.get(&format!("/dead-letters/{what}?pipeline=orders&since=1h")).await;
        let fields = page.fields(what);
        let since = fields.iter().find(|(name, _)| name == "x-since").unwrap();
        assert!(since.1.starts_with("20"), "an hour ago is a moment: {since:?}");
        desk.dead_letters(100..105).await;
        let job = done(&desk, &browser, what, fields, "3").await;
        assert_eq!((&job["done"], &job["confirmed"]), (&json!(3), &json!(3)), "{job}");
        desk.sees("orders", "the others stay", |s| s.dead_letters_open == Some(5)).await;
    }
}

#[tokio::test]
async fn a_group_that_has_grown_is_not_dropped() {
    let desk = Desk::start().await;
    let send = |range: std::ops::Range<u64>| {
        desk.send("chat", range.map(|n| json!({ "k": "c", "n": n }).to_string()))
    };
    send(0..2).await;
    desk.sees("chat", "they are held", |status| status.held_records == 2).await;
    let browser = desk.browser().await;
    let shown = browser.get("/groups/chat/c/drop").await.fields("drop-group");
    send(2..3).await;
    desk.sees("chat", "another came", |status| status.held_records == 3).await;
    let to = sent(&browser, "drop-group", shown, "c").await;
    assert!(browser.get(&to).await.text.contains("P1505"), "{to}");
    assert_eq!(desk.sees("chat", "they stay", |_| true).await.held_records, 3);
    let shown = browser.get("/groups/chat/c/drop").await.fields("drop-group");
    let to = sent(&browser, "drop-group", shown, "c").await;
    assert!(to.starts_with("/dead-letters?pipeline=chat"), "{to}");
    desk.sees("chat", "they are dropped", |status| status.dead_letters_open == Some(3)).await;
}

#[tokio::test]
async fn a_group_is_closed_as_it_is_and_its_successor_is_not() {
    // The form named the key: whatever was open under it by then was closed.
    let desk = Desk::start().await;
    let send = |n: u64| desk.send("chat", [json!({ "k": "c", "n": n }).to_string()]);
    send(0).await;
    desk.sees("chat", "it is held", |status| status.held_records == 1).await;
    let browser = desk.browser().await;
    let first = browser.get("/groups").await.fields("close-group");
    // One that only grew is closed with what it has by now.
    send(1).await;
    desk.sees("chat", "another came", |status| status.held_records == 2).await;
    let to = sent(&browser, "close-group", first.clone(), "").await;
    assert!(browser.get(&to).await.text.contains("Group c of chat closes now."), "{to}");
    desk.sees("chat", "both are sent", |status| status.delivered == 2).await;
    // What has opened under its key since is another one.
    send(2).await;
    desk.sees("chat", "the next is held", |status| status.held_records == 1).await;
    let page = browser.get("/groups").await;
    let mut late = page.fields("close-group");
    let mark = |fields: &[(String, String)]| {
        fields.iter().find(|(name, _)| name == "x-generation").map(|(_, value)| value.clone())
    };
    assert_ne!(mark(&first), mark(&late));
    for (_, value) in late.iter_mut().filter(|(name, _)| name == "x-generation") {
        *value = mark(&first).unwrap();
    }
    let to = sent(&browser, "close-group", late, "").await;
    let said = browser.get(&to).await.text;
    assert!(said.contains("P1505") && said.contains("another one has"), "{said}");
    assert_eq!(desk.sees("chat", "it stays", |_| true).await.held_records, 1);
    // The same by the API.
    let of =
        desk.json("/api/v1/groups?pipeline=chat&id=c").await["groups"][0]["generation"].clone();
    let path = "/api/v1/pipelines/chat/groups/c/close?generation=";
    let late = format!("{path}{}", mark(&first).unwrap());
    assert!(desk.post_json(&late, &json!({})).await.contains("P1505"));
    let good = format!("{path}{}", of.as_str().unwrap());
    assert!(desk.post_json(&good, &json!({})).await.contains("\"closed\""));
    desk.sees("chat", "it is sent", |status| status.delivered == 3).await;
}

#[tokio::test]
async fn a_list_names_the_address_of_what_it_shows() {
    let desk = Desk::start().await;
    let page = desk.get("/groups?pipeline=chat&key=tele&state=open").await.text;
    assert!(
        page.contains("/api/v1/groups?pipeline=chat&amp;prefix=tele&amp;state=open&amp;limit=50"),
        "{page}"
    );
}

#[tokio::test]
async fn a_dry_run_says_until_where_and_a_drop_keeps_to_it() {
    let desk = Desk::start().await;
    desk.dead_letters(0..3).await;
    desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(3)).await;
    let dry = json!({ "pipeline": "orders", "dry_run": true });
    let dry = desk.post_json("/api/v1/dead-letters/drop", &dry).await;
    let until = dry.lines().find_map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["until"].as_str().map(str::to_owned)
    });
    let until = until.unwrap_or_else(|| panic!("{dry}"));
    desk.dead_letters(3..5).await;
    let all = json!({ "pipeline": "orders", "until": until });
    let dropped = desk.post_json("/api/v1/dead-letters/drop", &all).await;
    assert_eq!(dropped.matches("\"dropped\"").count(), 3, "{dropped}");
    let page = desk.get("/dead-letters/drop?pipeline=orders").await;
    assert!(page.text.contains("Drop 2 dead letters"), "{}", page.text);
    let bad = json!({ "until": "yesterday" });
    assert!(desk.post_json("/api/v1/dead-letters/drop", &bad).await.contains("P0501"));
}

#[tokio::test]
async fn the_command_of_a_page_does_what_its_button_does() {
    // Cause and id were left out: the command dropped everything of the pipeline.
    let desk = Desk::start().await;
    let error = "it\'s /currency: \"rub\" $(reboot)";
    desk.dead_letter(1, b"k", b"{}".to_vec(), error).await;
    desk.dead_letter(2, b"k", b"{}".to_vec(), "something else").await;
    desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(2)).await;
    let cause = "it%27s%20%2Fcurrency%3A%20%22%E2%80%A6%22%20%24(reboot)";
    for what in ["drop", "replay"] {
        let page = desk.get(&format!("/dead-letters/{what}?pipeline=orders&cause={cause}")).await;
        let command = page.command();
        let wanted = format!(
            "potok dead-letters {what} orders --cause 'it'\\''s /currency: \"…\" $(reboot)' --until "
        );
        assert!(command.starts_with(&wanted), "{command}");
        assert!(command.contains("--until orders-dead:"), "{command}");
        let page = desk.get(&format!("/dead-letters/{what}?id=orders-dead/0/1")).await;
        assert_eq!(page.command(), format!("potok dead-letters {what} orders-dead/0/1"));
    }
    let drop = desk.get("/groups/chat/it%27s%20%2D/drop").await.command();
    assert_eq!(drop, r"potok groups drop chat 'it'\''s -'");
    let show = desk.get("/groups/chat/%2Dx").await.command();
    assert_eq!(show, "potok groups show -- chat -x");
}

#[tokio::test]
async fn a_table_that_does_not_answer_is_not_known_to_be_empty() {
    let desk = Desk::start().await;
    let outbox = desk.with_tables("bad row");
    outbox.hangs.store(true, Ordering::Relaxed);
    let page = wait::until("it is read", || async {
        let page = desk.get("/dead-letters").await.text;
        page.contains("Not known: ").then_some(page)
    })
    .await;
    assert!(!page.contains("No open dead letters"), "{page}");
    assert!(page.contains("the dead letters of outbox: the database does not answer"), "{page}");
    let page = desk.get("/dead-letters?pipeline=outbox").await.text;
    assert!(!page.contains("has none") && !page.contains("No open dead letters"), "{page}");
    // When it answers, it is counted.
    outbox.hangs.store(false, Ordering::Relaxed);
    wait::until("it is counted", || async {
        let page = desk.get("/dead-letters").await.text;
        (page.contains("public.outbox_dead/17") && !page.contains("Not known: ")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_replay_leaves_alone_what_nobody_knows() {
    let desk = Desk::start().await;
    let outbox = desk.with_tables("bad row");
    outbox.hangs.store(true, Ordering::Relaxed);
    let alone = json!({ "pipeline": "outbox" });
    let answer = desk.post_json("/api/v1/dead-letters/replay", &alone).await;
    assert!(answer.contains("P1331"), "{answer}");
    desk.dead_letters(0..2).await;
    let all = desk.post_json("/api/v1/dead-letters/drop", &json!({ "reason": "invalid" })).await;
    assert_eq!(all.matches("\"dropped\"").count(), 2, "{all}");
    assert!(all.contains("they are left alone"), "{all}");
}

#[tokio::test]
async fn a_process_that_stops_notes_how_far_a_replay_was() {
    // Its task died with the process, and the audit said `started` for ever.
    let desk = Desk::start().await;
    desk.dead_letters(0..20).await;
    desk.sees("orders", "they are counted", |s| s.dead_letters_open == Some(20)).await;
    let wish = json!({ "job": "slow", "rate": 5 });
    let begun = desk.post_json("/api/v1/dead-letters/replay", &wish).await;
    let begun: Value = serde_json::from_str(&begun).unwrap();
    let path = format!("/api/v1/jobs/{}", begun["job"].as_str().unwrap());
    wait::until("some are sent", || async {
        desk.json(&path).await["done"].as_u64().filter(|done| *done > 2)
    })
    .await;
    tokio::time::timeout(Duration::from_secs(4), desk.admin.stop_jobs()).await.unwrap();
    let audit = desk.json("/api/v1/audit").await;
    let noted = audit.as_array().unwrap().iter().find(|entry| entry["result"] == "stopped");
    let noted = noted.unwrap_or_else(|| panic!("{audit}"))["count"].as_u64().unwrap();
    assert!((3..20).contains(&noted), "{audit}");
    let job = wait::until("it says so", || async {
        let job = desk.json(&path).await;
        (job["phase"] == "stopped").then_some(job)
    })
    .await;
    assert_eq!(job["done"], noted, "{job}");
    // Nothing new begins.
    let late = desk.post_json("/api/v1/dead-letters/drop", &json!({ "pipeline": "orders" })).await;
    assert!(late.contains("is stopping"), "{late}");
    desk.sees("orders", "the rest is open", |s| s.dead_letters_open == Some(20 - noted)).await;
}

#[tokio::test]
async fn files_are_shown_a_part_at_a_time() {
    let desk = Desk::start().await;
    desk.with_tables("bad row");
    let (mut names, mut before) = (Vec::new(), String::new());
    loop {
        let page = desk.json(&format!("/api/v1/files?pipeline=shop&limit=25{before}")).await;
        let files = &page["pipelines"][0];
        let rows = files["files"].as_array().unwrap();
        assert!(rows.len() <= 50, "{}", rows.len());
        names.extend(rows.iter().map(|row| row["filename"].as_str().unwrap().to_owned()));
        match files["next"].as_str() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    names.dedup();
    assert_eq!(names.len(), 60);
    let page = wait::until("the pipeline is seen", || async {
        let page = desk.get("/files?pipeline=shop").await;
        page.text.contains("Older").then_some(page)
    })
    .await;
    let older = page.text.split("href=\"").find(|link| link.contains("before=")).unwrap();
    let older = older.split('"').next().unwrap().replace("&amp;", "&");
    let second = desk.get(&older).await;
    assert!(second.text.contains("Newest") && second.text.contains("20250101000037<"));
    assert!(!page.text.contains("20250101000037<"), "each once");
    assert_eq!(page.command(), "potok files --pipeline shop");
}
