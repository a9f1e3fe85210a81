//! The files that turn webhooks of messengers into messages for chats.

use serde_json::{Value, json};

use crate::posting::{get_from, listener, post_to};
use crate::process::{Home, Running, pipelines};
use crate::samples::signature;

const ENVIRONMENT: [(&str, &str); 5] = [
    ("POTOK_HTTP", "127.0.0.1:0"),
    ("TELEGRAM_SECRET", "told"),
    ("WHATSAPP_APP_SECRET", "app-secret"),
    ("WHATSAPP_VERIFY_TOKEN", "ver/ify"),
    ("AVITO_SECRET", "told"),
];

struct Ingest {
    path: String,
    http: String,
    running: Running,
    _home: Home,
}

impl Ingest {
    fn start(channel: &str) -> Self {
        let home = Home::new();
        let file = pipelines().join(format!("ingest/{channel}.yaml"));
        let running = home.start_file(&file, &ENVIRONMENT).unwrap();
        let http = listener(&running);
        Ingest { path: format!("/ingest/{channel}"), http, running, _home: home }
    }

    fn post(&self, header: &str, body: &str) -> u16 {
        post_to(&self.http, &self.path, header, body).0
    }

    /// What has come out, in order, and the counts.
    fn messages(&self) -> (Vec<Value>, Value) {
        let status = self.running.drained();
        let lines = self.running.run(["read", "queue:incoming"], b"").good().lines();
        let value = |line: Value| serde_json::from_str(line["value"].as_str().unwrap()).unwrap();
        (lines.into_iter().map(value).collect(), status)
    }
}

#[test]
fn telegram_updates_become_messages() {
    let ingest = Ingest::start("telegram");
    let header = "X-Telegram-Bot-Api-Secret-Token: told";
    let update = |message: Value| json!({"update_id": 1, "message": message}).to_string();
    let from = json!({"id": 7, "is_bot": false, "first_name": "Ada", "last_name": "L"});
    let chat = json!({"id": -100, "type": "group"});
    let message = |more: Value| {
        let mut message =
            json!({"message_id": 5, "from": from, "chat": chat, "date": 1_684_984_664});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        update(message)
    };
    assert_eq!(ingest.post("X-Telegram-Bot-Api-Secret-Token: wrong", &message(json!({}))), 401);
    let photo = json!([{"file_id": "small"}, {"file_id": "large"}]);
    let bot = json!({"id": 1, "is_bot": true});
    for body in [
        message(json!({"text": "one"})),
        message(json!({"caption": "two", "photo": photo})),
        message(json!({"location": {"latitude": 1.5, "longitude": 2.5}})),
        message(json!({"text": "our own", "from": bot})),
        message(json!({"new_chat_title": "t"})),
        json!({"update_id": 2, "callback_query": {"id": "c"}}).to_string(),
    ] {
        assert_eq!(ingest.post(header, &body), 200, "{body}");
    }
    let (messages, status) = ingest.messages();
    assert_eq!(
        messages,
        [
            json!({
                "channel": "telegram", "external_chat_id": "tg_-100", "external_user_id": "tg_7",
                "message_id": "5", "name": "Ada L", "text": "one", "media": [],
                "timestamp": "2023-05-25T03:17:44Z",
            }),
            json!({
                "channel": "telegram", "external_chat_id": "tg_-100", "external_user_id": "tg_7",
                "message_id": "5", "name": "Ada L", "text": "two",
                "media": [{"type": "photo", "file_id": "large"}],
                "timestamp": "2023-05-25T03:17:44Z",
            }),
            json!({
                "channel": "telegram", "external_chat_id": "tg_-100", "external_user_id": "tg_7",
                "message_id": "5", "name": "Ada L", "text": "",
                "media": [{"type": "location", "data": {"latitude": 1.5, "longitude": 2.5}}],
                "timestamp": "2023-05-25T03:17:44Z",
            }),
        ]
    );
    assert_eq!((&status["filtered"], &status["dead_lettered"]), (&3.into(), &0.into()));
}

/// A webhook of WhatsApp with one message.
fn message(id: &str, kind: &str, content: &str) -> String {
    let content: Value = serde_json::from_str(content).unwrap();
    let message = json!({"from": "79991234567", "id": id, "timestamp": "1697043225", "type": kind, kind: content});
    let contact = json!({"profile": {"name": "Ada"}, "wa_id": "79991234567"});
    let value =
        json!({"messaging_product": "whatsapp", "contacts": [contact], "messages": [message]});
    let change = json!({"field": "messages", "value": value});
    json!({"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [change]}]})
        .to_string()
}

/// Before Meta sends anything it asks by GET, with a token and a challenge.
#[test]
fn whatsapp_is_told_that_it_has_the_right_address() {
    let ingest = Ingest::start("whatsapp");
    let ask = |query: &str| get_from(&ingest.http, &format!("{}?{query}", ingest.path));
    let (status, body) =
        ask("hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=ver%2Fify");
    assert_eq!((status, body.as_str()), (200, "1158201444"));
    for wrong in [
        "hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=verify",
        "hub.mode=subscribe&hub.challenge=1158201444",
        "",
    ] {
        let (status, body) = ask(wrong);
        assert_eq!(status, 403, "{wrong}");
        assert!(!body.contains("1158201444"), "{body}");
    }
    // A source that is told nothing of it answers nobody.
    let other = Ingest::start("telegram");
    assert_eq!(get_from(&other.http, &other.path).0, 405);
}

#[test]
fn whatsapp_webhooks_become_messages() {
    let ingest = Ingest::start("whatsapp");
    let two = r#"{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","contacts":[{"profile":{"name":"Ada"},"wa_id":"79991234567"}],"messages":[{"from":"79991234567","id":"wamid.1","timestamp":"1697043223","type":"text","text":{"body":"hello"}},{"from":"79991234567","id":"wamid.2","timestamp":"1697043224","type":"image","image":{"id":"77","mime_type":"image/jpeg","caption":"look"}}]}}]}]}"#;
    let people = r#"{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","contacts":[{"profile":{"name":"Ada"},"wa_id":"79991234567"}],"messages":[{"from":"79991234567","id":"wamid.1","timestamp":"1697043223","type":"text","text":{"body":"hello"}},{"from":"79990000000","id":"wamid.2","timestamp":"1697043224","type":"image","image":{"id":"77","mime_type":"image/jpeg","caption":"look"}}]}}]}]}"#;
    let read = r#"{"object":"whatsapp_business_account","entry":[{"id":"1","changes":[{"field":"messages","value":{"messaging_product":"whatsapp","statuses":[{"id":"wamid.1","status":"read"}]}}]}]}"#;
    let signed = |signature: &str| format!("X-Hub-Signature-256: {signature}");
    assert_eq!(
        ingest.post(
            &signed("sha256=6260a6d428592b9cbd20dd4a60fc0763c81b9f136b906928d474c3909727ccfa"),
            people
        ),
        401
    );
    assert_eq!(
        ingest.post(
            &signed("sha256=6260a6d428592b9cbd20dd4a60fc0763c81b9f136b906928d474c3909727ccfa"),
            two
        ),
        200
    );
    assert_eq!(
        ingest.post(
            &signed("sha256=27fa5428c29d45dbf263a73a57939212c1847047c6cc0c2a6b6f6491f7d28a1a"),
            people
        ),
        200
    );
    assert_eq!(
        ingest.post(
            &signed("sha256=d52534e1fe29dfcd4a3ce189829fccfbc19621d0c677cfd80e21901d3e1de8d1"),
            read
        ),
        200
    );
    let place = message("wamid.3", "location", r#"{"latitude":1.5,"longitude":2.5}"#);
    assert_eq!(ingest.post(&signature(&place), &place), 200);
    let (messages, status) = ingest.messages();
    let message = |chat: &str, id: &str, name: Value, text: &str, media: Value, second: u32| {
        json!({
            "channel": "whatsapp", "external_chat_id": chat, "external_user_id": chat, "phone": chat,
            "message_id": id, "name": name, "text": text, "media": media,
            "timestamp": format!("2023-10-11T16:53:{second}Z"),
        })
    };
    let (ada, other) = ("79991234567", "79990000000");
    let image = json!([{"type": "image", "file_id": "77", "mime_type": "image/jpeg"}]);
    let of = |chat: &str| -> Vec<Value> {
        messages.iter().filter(|of| of["external_chat_id"] == chat).cloned().collect()
    };
    // Several messages in one body are a message each, whoever wrote them.
    let hello = message(ada, "wamid.1", "Ada".into(), "hello", json!([]), 43);
    let look = message(ada, "wamid.2", "Ada".into(), "look", image.clone(), 44);
    let ada = of(ada);
    assert_eq!(ada[..3], [hello.clone(), look, hello]);
    assert_eq!(ada[3]["media"][0]["type"], "location");
    assert_eq!(of(other), [message(other, "wamid.2", Value::Null, "look", image, 44)]);
    assert_eq!((&status["filtered"], &status["dead_lettered"]), (&1.into(), &0.into()));
}

#[test]
fn avito_webhooks_become_messages() {
    let ingest = Ingest::start("avito");
    let body = |author: u64, kind: &str, content: Value| {
        let value = json!({
            "id": "m", "chat_id": "u2i-a:b", "author_id": author, "user_id": 9,
            "created": 1_700_000_000, "type": kind, "content": content,
        });
        json!({"id": "1", "version": "v3.0.0", "payload": {"type": "message", "value": value}})
            .to_string()
    };
    let sizes = json!({"32x32": "small", "640x480": "large"});
    for body in [
        body(5, "text", json!({"text": "hi"})),
        body(5, "image", json!({"image": {"sizes": sizes}})),
        body(9, "text", json!({"text": "our own"})),
        body(0, "system", json!({"text": "a notice"})),
    ] {
        assert_eq!(ingest.post("X-Ingest-Secret: wrong", &body), 401, "{body}");
        assert_eq!(ingest.post("X-Other: told", &body), 401, "{body}");
        assert_eq!(ingest.post("X-Ingest-Secret: told", &body), 200, "{body}");
    }
    let (messages, status) = ingest.messages();
    let message = |text: &str, media: Value| {
        json!({
            "channel": "avito", "external_chat_id": "u2i-a:b", "external_user_id": "avito_5",
            "message_id": "m", "text": text, "media": media, "timestamp": "2023-11-14T22:13:20Z",
        })
    };
    let image = json!([{"type": "image", "url": "large"}]);
    assert_eq!(messages, [message("hi", json!([])), message("", image)]);
    assert_eq!((&status["filtered"], &status["dead_lettered"]), (&2.into(), &0.into()));
}
