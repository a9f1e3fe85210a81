//! Updates as messengers send them, from the webhook to the group that is posted: `chat` and the files of
//! `pipelines/ingest` in one process.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ring::hmac;
use serde_json::{Value, json};

use crate::posting::{listener, post_to};
use crate::process::{Home, Running, pipelines};
use crate::receiver::Receiver;
use crate::wait;

const TELEGRAM: &str = include_str!("../samples/telegram.json");
const WHATSAPP: &str = include_str!("../samples/whatsapp.json");

/// Starts `chat` from this file, and what feeds it.
pub fn start(home: &Home, chat: PathBuf, receiver: &Receiver) -> Running {
    let ingest = ["telegram", "whatsapp", "avito"];
    let ingest = ingest.map(|name| pipelines().join(format!("ingest/{name}.yaml")));
    let mut command = home.command([PathBuf::from("run"), chat].into_iter().chain(ingest));
    command.args(["--admin", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    command.envs([
        ("POTOK_WEBHOOK_CHAT_BATCHES", receiver.url.as_str()),
        ("TELEGRAM_SECRET", "told"),
        ("WHATSAPP_APP_SECRET", "app-secret"),
        ("AVITO_SECRET", "told"),
    ]);
    let running = Running::spawn(command, home.path().join("stderr.log"));
    running.listening(&home.data()).and_then(Running::ready).unwrap()
}

/// What Meta sends along, of the body that it sends.
pub fn signature(body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"app-secret");
    let hex = hmac::sign(&key, body.as_bytes());
    let hex: String = hex.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("X-Hub-Signature-256: sha256={hex}")
}

/// Posts all samples, and waits for the groups they make.
pub fn come_out_grouped(running: &Running, receiver: &Receiver) {
    let http = listener(running);
    let samples =
        |text: &str| -> serde_json::Map<String, Value> { serde_json::from_str(text).unwrap() };
    for (name, update) in samples(TELEGRAM) {
        let header = "X-Telegram-Bot-Api-Secret-Token: told";
        let (status, said) = post_to(&http, "/ingest/telegram", header, &update.to_string());
        assert_eq!(status, 200, "{name}: {said}");
    }
    for (name, update) in samples(WHATSAPP) {
        let body = update.to_string();
        let (status, said) = post_to(&http, "/ingest/whatsapp", &signature(&body), &body);
        assert_eq!(status, 200, "{name}: {said}");
    }
    let expected = expected();
    let shown = wait::until("all chats are posted", || {
        let taken: BTreeMap<String, Value> = receiver
            .taken()
            .into_values()
            .map(|batch| (batch["batch_key"].as_str().unwrap().to_owned(), shown(&batch)))
            .collect();
        let messages = |of: &BTreeMap<String, Value>| {
            of.values().map(|batch| batch["ids"].as_array().unwrap().len()).sum::<usize>()
        };
        (messages(&taken) >= messages(&expected)).then_some(taken)
    });
    assert_eq!(shown, expected);
}

fn shown(batch: &Value) -> Value {
    let kinds: Vec<_> =
        batch["media"].as_array().unwrap().iter().map(|of| of["type"].clone()).collect();
    json!({
        "text": batch["text"], "media": kinds, "ids": batch["message_ids"], "name": batch["name"],
        "reason": batch["meta"]["batch_reason"],
    })
}

/// Edits, statuses, reactions, calls, payments, our own messages and notices make none.
fn expected() -> BTreeMap<String, Value> {
    let group = |text: &str, media: &[&str], ids: &[&str], name: &str| json!({ "text": text, "media": media, "ids": ids, "name": name, "reason": "silence_reached" });
    let all = [
        (
            "telegram:tg_501",
            group(
                "good morning\n\nis this one in stock?",
                &["photo", "voice"],
                &["11", "12", "13"],
                "Ada L",
            ),
        ),
        ("telegram:tg_-1002", group("me too", &[], &["900"], "Ben")),
        ("telegram:tg_503", group("do you deliver?\n\ntoday?", &[], &["31", "33"], "Dot")),
        (
            "telegram:tg_505",
            group(
                "",
                &["web_app_data", "checklist", "story", "sticker", "venue"],
                &["41", "42", "43", "44", "45"],
                "Eve",
            ),
        ),
        (
            "telegram:tg_506",
            group(
                "/start\n\nlike this\n\nbold 👍 and a link\n\nas they said",
                &[
                    "animation",
                    "audio",
                    "video",
                    "video_note",
                    "document",
                    "contact",
                    "dice",
                    "location",
                    "poll",
                ],
                &["51", "52", "53", "54", "55", "56", "57", "58", "59", "60", "61", "62"],
                "Fay",
            ),
        ),
        (
            "telegram:tg_-1004",
            group("which size?\n\nM\n\nhello all", &[], &["63", "64", "65"], "Fay"),
        ),
        (
            "whatsapp:79991110001",
            group("hello\n\nthis one", &["image"], &["wamid.a1", "wamid.a2"], "Ada"),
        ),
        (
            "whatsapp:79991110002",
            group("Yes, please", &["location"], &["wamid.b1", "wamid.b2"], "Ben"),
        ),
        (
            "whatsapp:79991110003",
            group(
                "Tomorrow\n\nLarge",
                &["form", "contacts", "order", "audio"],
                &["wamid.c1", "wamid.c2", "wamid.c3", "wamid.c5", "wamid.c6", "wamid.c7"],
                "Cem",
            ),
        ),
        (
            "whatsapp:79991110004",
            group(
                "how it opens\n\nthat one\n\nas they said\n\nas everybody says\n\nis it still there?",
                &["video", "document", "sticker", "image", "location"],
                &[
                    "wamid.e31",
                    "wamid.e32",
                    "wamid.e33",
                    "wamid.e34",
                    "wamid.e35",
                    "wamid.e36",
                    "wamid.e37",
                    "wamid.e38",
                    "wamid.e39",
                ],
                "Dot",
            ),
        ),
    ];
    all.into_iter().map(|(key, group)| (key.to_owned(), group)).collect()
}
