//! A process with two pipelines, and a browser without a script that looks at it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use bytes::Bytes;
use potok_core::{
    Clock, Envelope, Headers, HeadersBuilder, Log, Output, Reason, Sink, SystemClock, Timestamp,
};
use potok_expr::Template;
use potok_flow::decode::JsonDecoder;
use potok_flow::{
    ClosePlan, DeliverPlan, Engine, GroupPlan, Input, OnRepeat, Plan, Retry, Status, Target,
    TrackPlan,
};
use potok_server::{Admin, Identity, router};
use potok_testkit::memory::{MemoryLog, MemorySink};
use serde_json::Value;
use tower::ServiceExt;

use crate::tables::{OutboxDouble, TrackerDouble};
use crate::wait;

/// What an answer consists of.
pub struct Answer {
    pub status: u16,
    pub headers: axum::http::HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The tokens of forms that lead to `/act/{what}`, in order.
    pub fn tokens(&self, what: &str) -> Vec<String> {
        let forms = self.text.split("<form").skip(1);
        let forms = forms.filter(|form| form.contains(&format!("action=\"/act/{what}\"")));
        let token = |form: &str| {
            let rest = form.split_once("name=\"token\" value=\"")?.1;
            Some(rest.split_once('"')?.0.to_owned())
        };
        forms.filter_map(token).collect()
    }

    /// What a form holds before anybody fills it in, as a browser sends it.
    pub fn fields(&self, what: &str) -> Vec<(String, String)> {
        let action = format!("action=\"/act/{what}\"");
        let mut forms =
            self.text.split("<form").skip(1).filter_map(|form| form.split("</form>").next());
        let form = forms.find(|form| form.contains(&action));
        let form = form.unwrap_or_else(|| panic!("no form for {what}: {}", self.text));
        let part = |tag: &str, name: &str| {
            let rest = tag.split_once(&format!(" {name}=\""))?.1;
            Some(rest.split_once('"')?.0.replace("&quot;", "\"").replace("&amp;", "&"))
        };
        let tags = form.split("<input").skip(1).filter_map(|tag| tag.split('>').next());
        tags.filter_map(|tag| Some((part(tag, "name")?, part(tag, "value").unwrap_or_default())))
            .collect()
    }

    /// The command that a page names.
    pub fn command(&self) -> String {
        let rest = self.text.split_once("In a terminal <code>").expect("a command").1;
        let command = rest.split_once("</code>").expect("its end").0;
        let plain = [("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
        plain.iter().fold(command.to_owned(), |text, (from, to)| text.replace(from, to))
    }

    pub fn token(&self, what: &str) -> String {
        self.tokens(what).into_iter().next().unwrap_or_else(|| panic!("no form for {what}"))
    }
}

pub struct Desk {
    pub log: Arc<MemoryLog>,
    pub engine: Engine,
    pub admin: Admin,
    pub router: Router,
    pub sink: MemorySink,
}

impl Desk {
    /// `chat` holds records by `.k`, `orders` delivers them.
    pub async fn start() -> Self {
        Self::at(None).await
    }

    pub async fn at(address: Option<std::net::SocketAddr>) -> Self {
        Self::on(address, |log| log).await
    }

    /// On what is made of a log in memory.
    pub async fn on(
        address: Option<std::net::SocketAddr>,
        made: impl FnOnce(Arc<MemoryLog>) -> Arc<dyn Log>,
    ) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::new(made(log.clone()), clock, None);
        let identity = Identity {
            version: "0",
            data_dir: "/data".to_owned(),
            pid: 1,
            nonce: "n".to_owned(),
            address,
        };
        let admin = Admin::new(engine.clone(), identity);
        let sink = MemorySink::new();
        engine.start(plan("orders", Arc::new(sink.clone()))).unwrap();
        let chat = plan("chat", Arc::new(MemorySink::new()));
        engine.start(Plan { hold: Some(hold("potok-chat")), ..chat }).unwrap();
        let desk = Desk { log, engine, router: router(admin.clone()), admin, sink };
        desk.sees("orders", "both run", |status| status.gate.state == "open").await;
        desk
    }

    /// Two more pipelines: `outbox` relays a table, `shop` tracks files. What is wrong with them is
    /// somebody else's text.
    pub fn with_tables(&self, error: &str) -> Arc<OutboxDouble> {
        let outbox = Arc::new(OutboxDouble { error: error.to_owned(), ..OutboxDouble::default() });
        self.engine.know_feed("outbox", outbox.clone());
        let tracker = Arc::new(TrackerDouble::new(60, error));
        let track = TrackPlan { tracker, written: 1, process: 1, deliver: 1 };
        let hold = GroupPlan { track: Some(track), ..hold("potok-shop") };
        let shop = plan("shop", Arc::new(MemorySink::new()));
        self.engine.start(Plan { hold: Some(hold), ..shop }).unwrap();
        outbox
    }

    pub async fn send(&self, topic: &str, values: impl IntoIterator<Item = String>) {
        let output = |value: String| Output {
            topic: topic.into(),
            partition: Some(0),
            key: None,
            headers: Headers::none(),
            value: Some(value.into()),
        };
        let outputs: Vec<Output> = values.into_iter().map(output).collect();
        self.log.append(&outputs).await.unwrap();
    }

    /// Many dead letters of `orders`, of a few causes.
    pub async fn dead_letters(&self, offsets: std::ops::Range<u64>) {
        let outputs: Vec<Output> = offsets
            .map(|offset| {
                let error = format!("/n{}: \"{offset}\" is no number", offset % 3);
                letter(offset, b"k", format!("{{\"n\":\"{offset}\"}}").into_bytes(), &error)
            })
            .collect();
        self.log.append(&outputs).await.unwrap();
    }

    /// A dead letter of `orders`.
    pub async fn dead_letter(&self, offset: u64, key: &[u8], value: Vec<u8>, error: &str) {
        let output = letter(offset, key, value, error);
        self.log.append(&[output]).await.unwrap();
    }

    /// Waits for a state of a pipeline.
    pub async fn sees(
        &self,
        pipeline: &str,
        what: &str,
        wanted: impl Fn(&Status) -> bool,
    ) -> Status {
        wait::until(what, || async {
            let all = self.engine.status().await;
            all.into_iter().find(|status| status.pipeline == pipeline).filter(|s| wanted(s))
        })
        .await
    }

    pub async fn ask(&self, request: Request<Body>) -> Answer {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        Answer { status, headers, text: String::from_utf8(bytes.into()).unwrap() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.ask(Request::get(path).body(Body::empty()).unwrap()).await
    }

    pub async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        serde_json::from_str(&answer.text).unwrap_or_else(|_| panic!("{path}: {}", answer.text))
    }

    /// The text that a change by the API answers with.
    pub async fn post_json(&self, path: &str, body: &Value) -> String {
        let request = Request::post(path).header("content-type", "application/json");
        self.ask(request.body(Body::from(body.to_string())).unwrap()).await.text
    }

    /// A browser with a session.
    pub async fn browser(&self) -> Browser<'_> {
        let cookie = self.get("/").await.header("set-cookie").to_owned();
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Browser { desk: self, cookie }
    }
}

pub struct Browser<'a> {
    desk: &'a Desk,
    pub cookie: String,
}

impl Browser<'_> {
    pub async fn get(&self, path: &str) -> Answer {
        let request = Request::get(path).header("cookie", &self.cookie);
        self.desk.ask(request.body(Body::empty()).unwrap()).await
    }

    /// Sends a form, with these headers besides.
    pub async fn post_with(
        &self,
        what: &str,
        headers: &[(&str, &str)],
        fields: &[(&str, &str)],
    ) -> Answer {
        let body: Vec<String> =
            fields.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
        let mut request = Request::post(format!("/act/{what}"))
            .header("content-type", "application/x-www-form-urlencoded")
            .header("cookie", &self.cookie);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.desk.ask(request.body(Body::from(body.join("&"))).unwrap()).await
    }

    pub async fn post(&self, what: &str, fields: &[(&str, &str)]) -> Answer {
        self.post_with(what, &[], fields).await
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn letter(offset: u64, key: &[u8], value: Vec<u8>, error: &str) -> Output {
    let envelope = Envelope {
        pipeline: "orders".to_owned(),
        origin: format!("orders/0/{offset}@00000000000000ff").parse().unwrap(),
        deliver: Some(0),
        reason: Reason::Invalid,
        error: error.to_owned(),
        attempts: 1,
        time: Timestamp(SystemClock.now().0),
        replay_of: None,
        shard: None,
        piece: None,
    };
    let own = HeadersBuilder::new().add("<b>own</b>", Some(key)).build();
    Output {
        topic: "orders-dead".into(),
        partition: Some(0),
        key: Some(Bytes::copy_from_slice(key)),
        headers: envelope.headers(&own),
        value: Some(value.into()),
    }
}

fn hold(internal: &str) -> GroupPlan {
    GroupPlan {
        by: Some(Template::parse(".k").unwrap()),
        shard: None,
        kinds: Vec::new(),
        id: None,
        close: ClosePlan { max_age: Some(Duration::from_secs(3_600)), ..ClosePlan::default() },
        on_repeat: OnRepeat::Keep,
        store: None,
        memory_max: potok_flow::HELD_MEMORY_DEFAULT,
        internal: internal.into(),
        files: None,
        track: None,
    }
}

fn plan(name: &str, sink: Arc<dyn Sink>) -> Plan {
    Plan {
        name: name.into(),
        workers: 1,
        inputs: vec![Input::topics(format!("{name}-group"), vec![name.into()])],
        decoder: Arc::new(JsonDecoder::new(None)),
        hold: None,
        stages: Vec::new(),
        delivers: vec![DeliverPlan {
            label: format!("db {name}"),
            number: 0,
            shard: None,
            kind: None,
            target: Target::Sink(sink),
            key: None,
            once_by: Vec::new(),
            headers_id: false,
        }],
        order_by: None,
        retry: Retry {
            attempts: 2,
            first: Duration::from_millis(1),
            max: Duration::from_millis(5),
        },
        // Nobody asks by itself: a probe is somebody's.
        probe_every: Duration::from_secs(3_600),
        dead_letter_topic: format!("{name}-dead").into(),
        replays_max: 5,
        keep_resolved: Some(Duration::from_secs(3_600)),
        in_flight_bytes: 64 << 20,
    }
}
