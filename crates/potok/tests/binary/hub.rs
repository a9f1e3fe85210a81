//! `potok hub` and `potok token`: a message from a line of input to a stock client, and its answer.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use potok_services::{NodeScript, Redis};
use serde_json::{Value, json};

use crate::process::{Home, potok, run};

/// A hub that ends with its test.
struct Hub(Child);

impl Drop for Hub {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A hub, its addresses, and what it prints.
struct RunningHub {
    hub: Hub,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    url: String,
    admin: String,
}

impl RunningHub {
    fn start(home: &Home, more: &[&str]) -> Self {
        RunningHub::logging(home, more, Stdio::inherit())
    }

    fn logging(home: &Home, more: &[&str], log: Stdio) -> Self {
        RunningHub::of(RunningHub::command(home, more), log)
    }

    /// One that is told of its Redis as the guide has it.
    fn on(redis: &Redis, home: &Home, more: &[&str]) -> Self {
        let mut command = RunningHub::command(home, more);
        command.env("POTOK_HUB_REDIS", redis.url());
        RunningHub::of(command, Stdio::inherit())
    }

    fn command(home: &Home, more: &[&str]) -> Command {
        let data = home.path().to_str().unwrap();
        let mut command = potok(["hub", "--json", "--listen", "127.0.0.1:0", "--data-dir", data]);
        command.args(["--admin", "127.0.0.1:0"]).args(more).current_dir(home.path());
        command
    }

    fn of(mut command: Command, log: Stdio) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut hub = Hub(command.spawn().unwrap());
        let input = hub.0.stdin.take().unwrap();
        let mut output = BufReader::new(hub.0.stdout.take().unwrap()).lines();
        let line: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        let (url, admin) = (text("hub"), text("admin").replace("http://", ""));
        RunningHub { hub, input, output, url, admin }
    }

    /// Sends to alice; the answer.
    fn send(&mut self, id: u32) -> String {
        self.ask(id, "notify");
        self.answer(id)
    }

    fn ask(&mut self, id: u32, method: &str) {
        let name = format!("m-{id}");
        let line = json!({"user": "alice", "payload": {"n": id}, "id": name, "method": method});
        writeln!(self.input, "{line}").unwrap();
    }

    fn answer(&mut self, id: u32) -> String {
        let answer: Value = serde_json::from_str(&self.output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], format!("m-{id}"));
        answer["answer"].as_str().unwrap().to_owned()
    }

    fn signal(&self, signal: &str) {
        let pid = self.hub.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }
}

/// A client in a terminal.
struct Listening {
    _process: Hub,
    output: Lines<BufReader<ChildStdout>>,
}

impl Listening {
    fn start(home: &Home, url: &str) -> Self {
        Listening::of("alice", home, url)
    }

    fn of(user: &str, home: &Home, url: &str) -> Self {
        Listening::logging(user, home, url, &[], Stdio::null())
    }

    fn logging(user: &str, home: &Home, url: &str, more: &[&str], log: Stdio) -> Self {
        let data = home.path().to_str().unwrap();
        let mut command =
            potok(["listen", "--json", "--user", user, "--url", url, "--data-dir", data]);
        command.args(more).stdout(Stdio::piped()).stderr(log);
        let mut process = Hub(command.spawn().unwrap());
        let output = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let mut listening = Listening { _process: process, output };
        assert_eq!(listening.next()["event"], "connected");
        listening
    }

    fn next(&mut self) -> Value {
        serde_json::from_str(&self.output.next().unwrap().unwrap()).unwrap()
    }

    /// The next message.
    fn message(&mut self) -> Value {
        loop {
            let event = self.next();
            if event["event"] == "message" {
                return event;
            }
        }
    }
}

/// Two processes on one Redis: frozen beyond its lease, killed, flushed. Acknowledged is only what
/// a client has printed.
#[test]
fn hubs_on_one_redis_are_one_hub() {
    let (home, redis) = (Home::new(), Redis::start());
    let url = redis.url();
    let options = ["--redis", url.as_str(), "--lease", "2s", "--ack-within", "20s"];
    let (mut a, b) = (RunningHub::start(&home, &options), RunningHub::start(&home, &options));
    let mut alice = Listening::start(&home, &b.url);
    // There all the time: nothing of hers is for him.
    let bob = Listening::of("bob", &home, &a.url);
    // From when the nodes know each other.
    let (mut id, mut last) = (0, String::new());
    let mut until = |a: &mut RunningHub, wanted: &str, but: &[&str]| {
        last.clear();
        while last != wanted {
            assert!(last.is_empty() || but.contains(&last.as_str()), "{last} for {wanted}");
            id += 1;
            last = a.send(id);
        }
        id
    };
    let acknowledged = until(&mut a, "acknowledged", &["nobody", "unavailable"]);
    let message = alice.message();
    assert_eq!(message["id"], format!("m-{acknowledged}"));
    assert_eq!(
        (&message["method"], &message["payload"]["n"]),
        (&json!("notify"), &json!(acknowledged))
    );

    let who = run(potok(["hub", "who", "--json", "--admin", &a.admin]), b"").good();
    let [who, him] = &who.lines()[..] else { panic!("{}", who.text()) };
    assert_eq!(him["user"], "bob");
    assert_eq!((&who["user"], &who["transport"]), (&json!("alice"), &json!("WebSockets")));
    assert_eq!(who["address"], "127.0.0.1");

    // It stands still: taken by the line, answered by nobody, given up with its lease.
    b.signal("-STOP");
    until(&mut a, "no_answer", &[]);
    b.signal("-CONT");
    until(&mut a, "acknowledged", &["nobody", "no_answer", "unavailable"]);

    redis.command(&["FLUSHALL"]);
    // Not known again at once, but never said to be away.
    until(&mut a, "acknowledged", &["unavailable"]);

    // Killed while a client has a message in its hands: it may have been seen, whatever is said now.
    let data = home.path().to_str().unwrap();
    let token = run(potok(["token", "mint", "--sub", "alice", "--data-dir", data]), b"").good();
    let mut holding = stock_client(&b.url, token.text().trim());
    drop(alice);
    let who = || run(potok(["hub", "who", "--json", "--admin", &a.admin]), b"").good();
    while who().lines().len() > 2 {}
    const HELD: u32 = 1_000_000;
    a.ask(HELD, "hold");
    assert_eq!(told(&mut holding)["method"], "hold");
    b.signal("-KILL");
    assert_eq!(a.answer(HELD), "no_answer");
    drop(holding);
    // Nobody has her until she comes back elsewhere.
    until(&mut a, "nobody", &["no_answer", "unavailable"]);
    let mut alice = Listening::start(&home, &a.url);
    let acknowledged = until(&mut a, "acknowledged", &["nobody", "no_answer"]);
    assert_eq!(alice.message()["id"], format!("m-{acknowledged}"));

    let metrics = get(&a.admin, "/metrics");
    for line in [
        "potok_hub_connections{hub=\"notifications\",transport=\"WebSockets\",protocol=\"json\"} 2",
        "potok_hub_users{hub=\"notifications\"} 2",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let kicked = run(potok(["hub", "disconnect", "alice", "--json", "--admin", &a.admin]), b"");
    assert_eq!(kicked.good().lines()[0], json!({"user": "alice", "closed": 1}));
    // Told to go for good, it goes.
    while alice.output.next().is_some() {}
    let kicked = run(potok(["hub", "disconnect", "bob", "--json", "--admin", &a.admin]), b"");
    assert_eq!(kicked.good().lines()[0], json!({"user": "bob", "closed": 1}));
    let heard: Vec<_> = bob.output.map(Result::unwrap).filter(|line| line.contains("m-")).collect();
    assert_eq!(heard, Vec::<String>::new(), "messages for somebody else");
    let refused = run(potok(["hub", "who", "--admin", "127.0.0.1:1"]), b"").exits(1);
    assert!(refused.stderr.contains("P1110"), "{}", refused.stderr);
}

fn get(address: &str, path: &str) -> String {
    ask(address, "GET", path, &[])
}

/// One request, and all that is answered.
fn ask(address: &str, method: &str, path: &str, headers: &[String]) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for header in headers {
        head.push_str(&format!("{header}\r\n"));
    }
    write!(stream, "{head}Content-Length: 0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Where a hub's clients go: its address, and the path.
fn parts(url: &str) -> (&str, String) {
    let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    (address, format!("/{path}"))
}

fn mint(home: &Home, user: &str) -> String {
    let data = home.path().to_str().unwrap();
    let minted = run(potok(["token", "mint", "--sub", user, "--data-dir", data]), b"").good();
    minted.text().trim().to_owned()
}

/// The commands of the guide, in its order, each on addresses of the test's own. One that is new or
/// changed has to be walked too.
#[test]
fn the_guide_is_walked() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/hub.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let block = |language: &str| -> Vec<&str> {
        let (begin, mut inside) = (format!("```{language}"), false);
        let is_shown = |line: &&str| {
            let was_inside = inside;
            inside = *line == begin || (inside && *line != "```");
            was_inside && inside
        };
        guide.lines().filter(is_shown).collect()
    };
    let sh: Vec<_> = block("sh").iter().map(|line| line.split("  ").next().unwrap()).collect();
    let walked = [
        "potok hub",
        "potok token mint --sub alice",
        "potok listen --user alice",
        "potok hub who",
        "potok hub disconnect alice",
        "curl http://127.0.0.1:7603/metrics",
    ];
    assert_eq!(sh, walked, "what is new is walked too");
    for inline in [
        "`potok token check -`",
        "`POTOK_HUB_REDIS=redis://127.0.0.1:6379 potok hub`",
        "`--trusted-proxy 10.0.0.0/8`",
        "`--origin https://app.example.com`",
        "`--websockets-only`",
        "`--sticky`",
    ] {
        assert!(guide.contains(inline), "{inline}");
    }
    let home = Home::new();
    let data = home.path().to_str().unwrap();
    let mut hub = RunningHub::start(&home, &[]);
    let token = mint(&home, "alice");
    let checked = run(potok(["token", "check", "-", "--data-dir", data]), token.as_bytes()).good();
    assert!(checked.text().contains("good: user alice"), "{}", checked.text());
    let mut alice = Listening::start(&home, &hub.url);
    // The message of the guide, and the answer it promises.
    let [said, promised] = block("text")[..] else { panic!("a message and its answer") };
    writeln!(hub.input, "{said}").unwrap();
    let answer: Value = serde_json::from_str(&hub.output.next().unwrap().unwrap()).unwrap();
    assert_eq!(answer, serde_json::from_str::<Value>(promised).unwrap());
    assert_eq!(alice.message()["payload"], json!({"text": "hi"}));
    let who = run(potok(["hub", "who", "--admin", &hub.admin]), b"").good();
    assert!(who.text().contains("alice"), "{}", who.text());
    let kicked = run(potok(["hub", "disconnect", "alice", "--admin", &hub.admin]), b"").good();
    assert_eq!(kicked.text().trim(), "closed 1");
    while alice.output.next().is_some() {}
    // The tokens she has are refused from now on.
    let (address, path) = parts(&hub.url);
    let negotiate = format!("{path}/negotiate?negotiateVersion=1");
    let refused = ask(address, "POST", &negotiate, &[format!("Authorization: Bearer {token}")]);
    assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    let metrics = get(&hub.admin, "/metrics");
    for family in
        ["connections", "users", "sent_messages_total", "answers_total", "slow_clients_total"]
    {
        assert!(metrics.contains(&format!("\npotok_hub_{family}{{")), "{family}: {metrics}");
    }
    assert!(get(&hub.admin, "/ready").starts_with("HTTP/1.1 200"));
}

/// Several nodes as the guide starts them, and what they offer to clients.
#[test]
fn nodes_find_each_other_where_the_environment_says() {
    let (home, redis) = (Home::new(), Redis::start());
    let mut a = RunningHub::on(&redis, &home, &["--sticky"]);
    let b = RunningHub::on(&redis, &home, &[]);
    let mut alice = Listening::start(&home, &b.url);
    let mut id = 1;
    while a.send(id) != "acknowledged" {
        id += 1;
    }
    assert_eq!(alice.message()["id"], format!("m-{id}"));
    let token = format!("Authorization: Bearer {}", mint(&home, "alice"));
    for (hub, offers_all) in [(&a, true), (&b, false)] {
        let (address, path) = parts(&hub.url);
        let negotiate = format!("{path}/negotiate?negotiateVersion=1");
        let said = ask(address, "POST", &negotiate, std::slice::from_ref(&token));
        assert!(said.contains("\"WebSockets\""), "{said}");
        assert_eq!(said.contains("\"LongPolling\""), offers_all, "{said}");
        assert_eq!(said.contains("\"ServerSentEvents\""), offers_all, "{said}");
    }
}

/// What a proxy says of a page's address counts where the proxy is named, and only there.
#[test]
fn pages_behind_a_named_proxy_are_the_hubs_own() {
    let home = Home::new();
    let forwarded = ["X-Forwarded-Proto: https", "X-Forwarded-Host: app.example.com"];
    let origin = |page: &str| format!("Origin: {page}");
    for (more, page, is_let_in) in [
        (&[][..], "https://app.example.com", false),
        (&["--trusted-proxy", "10.0.0.0/8"], "https://app.example.com", false),
        (&["--trusted-proxy", "127.0.0.0/8"], "https://app.example.com", true),
        (&["--trusted-proxy", "127.0.0.0/8"], "https://other.example.com", false),
        (&["--origin", "https://app.example.com"], "https://app.example.com", true),
        (&["--origin", "https://app.example.com"], "https://other.example.com", false),
    ] {
        let hub = RunningHub::start(&home, more);
        let (address, path) = parts(&hub.url);
        let mut headers: Vec<_> = forwarded.iter().map(|header| header.to_string()).collect();
        headers.push(origin(page));
        // A preflight carries no token.
        let said = ask(address, "OPTIONS", &format!("{path}/negotiate"), &headers);
        assert_eq!(!said.starts_with("HTTP/1.1 403"), is_let_in, "{more:?} {page}: {said}");
        let allows = said.to_lowercase().contains(&format!("access-control-allow-origin: {page}"));
        assert_eq!(allows, is_let_in, "{more:?} {page}: {said}");
    }
}

/// `auth` of potok.yaml is checked, and used.
#[test]
fn whose_tokens_count_is_read_from_the_connections() {
    let home = Home::new();
    let file = home.path().join("potok.yaml");
    std::fs::write(&file, "auth:\n  issuer: http://id.example.com\n  audience: hub\n").unwrap();
    let path = file.to_str().unwrap();
    for command in [["check", path, "--json"].as_slice(), &["hub", "--config", path]] {
        let refused = run(potok(command), b"").exits(2);
        let said = format!("{}{}", refused.text(), refused.stderr);
        assert!(said.contains("P0129"), "{said}");
    }
    // A name that can become another person's is worth a word.
    std::fs::write(
        &file,
        "auth:\n  issuer: https://id.example.com\n  audience: hub\n  user: email\n",
    )
    .unwrap();
    let checked = run(potok(["check", path, "--config", path]), b"").good();
    assert!(checked.stderr.contains("warning: users are named by `email`"), "{}", checked.stderr);
    // An issuer that is not there: the hub runs, and is not ready.
    std::fs::write(&file, "auth:\n  issuer: http://127.0.0.1:9/realms/a\n  audience: hub\n")
        .unwrap();
    let hub = RunningHub::start(&home, &["--config", path]);
    let ready = get(&hub.admin, "/ready");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    let data = home.path().to_str().unwrap();
    let listen =
        ["listen", "--user", "alice", "--url", &hub.url, "--data-dir", data, "--count", "1"];
    let mut listening = Hub(potok(listen).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(listening.0.stderr.take().unwrap()).lines();
    assert!(said.next().unwrap().unwrap().contains("cannot check tokens yet"));
}

/// A stock client that has connected.
fn stock_client(url: &str, token: &str) -> NodeScript {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/clients/client.js");
    let mut client = NodeScript::start(&script, &[url, "WebSockets", "json"]);
    client.say(&json!({"token": token, "start": true}).to_string());
    assert_eq!(told(&mut client)["event"], "started");
    client
}

fn told(client: &mut NodeScript) -> Value {
    serde_json::from_str(&client.line().unwrap()).unwrap()
}

/// At every level, also where somebody asks for more: neither what a client says later, nor what the
/// client in the terminal says first.
#[test]
fn tokens_are_in_no_log() {
    let home = Home::new();
    let data = home.path().to_str().unwrap();
    let level = ["--log-level", "trace,tungstenite::protocol=trace"];
    let log = |name: &str| Stdio::from(File::create(home.path().join(name)).unwrap());
    let mut hub = RunningHub::logging(&home, &level, log("hub.log"));
    let minted = run(potok(["token", "mint", "--sub", "alice", "--data-dir", data]), b"").good();
    let token = minted.text().trim().to_owned();
    let mut client = stock_client(&hub.url, &token);
    client.say(&json!({"invoke": ["Refresh", token]}).to_string());
    assert_eq!(told(&mut client)["event"], "result");
    let mut listening = Listening::logging("alice", &home, &hub.url, &level, log("listen.log"));
    assert_eq!(hub.send(1), "acknowledged");
    assert_eq!(listening.message()["id"], "m-1");
    drop((listening, hub));
    for name in ["hub.log", "listen.log"] {
        let log = std::fs::read_to_string(home.path().join(name)).unwrap();
        assert!(log.contains("TRACE"), "{name} is looked at: {log}");
        // What every token begins with.
        let told = log.lines().find(|line| line.contains("eyJ"));
        assert_eq!(told, None, "{name}");
    }
}

#[test]
fn a_line_reaches_a_stock_client_and_its_answer_is_printed() {
    let home = Home::new();
    let data = home.path().to_str().unwrap();
    let RunningHub { hub: _hub, mut input, mut output, url, .. } = RunningHub::start(&home, &[]);
    let mut printed =
        || -> Value { serde_json::from_str(&output.next().unwrap().unwrap()).unwrap() };

    let minted = run(potok(["token", "mint", "--sub", "alice", "--data-dir", data]), b"").good();
    let token = minted.text().trim().to_owned();
    let checked = run(potok(["token", "check", "-", "--data-dir", data]), token.as_bytes()).good();
    assert!(checked.text().contains("good: user alice"), "{}", checked.text());
    // A character that stands for six whole bits of the signature.
    let (kept, changed) = token.split_at(token.len() - 10);
    let other = if changed.starts_with('A') { "B" } else { "A" };
    let forged = format!("{kept}{other}{}", &changed[1..]);
    let refused =
        run(potok(["token", "check", "-", "--data-dir", data]), forged.as_bytes()).exits(1);
    assert!(refused.stderr.contains("P1105"), "{}", refused.stderr);
    assert!(refused.stderr.contains("signature"), "{}", refused.stderr);
    assert!(!refused.stderr.contains(&forged));

    let mut client = stock_client(&url, &token);
    for user in ["alice", "bob"] {
        writeln!(input, "{}", json!({"user": user, "payload": {"text": "hi"}, "id": "m-1"}))
            .unwrap();
    }
    let message = told(&mut client);
    assert_eq!(message["args"], json!([{"text": "hi"}, {"id": "m-1"}]));
    let mut answers = [printed(), printed()];
    answers.sort_by_key(|answer| answer["user"].to_string());
    assert_eq!(answers[0], json!({"user": "alice", "id": "m-1", "answer": "acknowledged"}));
    assert_eq!(answers[1], json!({"user": "bob", "id": "m-1", "answer": "nobody"}));
}

/// A line that is no message is refused, and costs nobody a connection.
#[test]
fn bad_lines_are_refused_and_the_next_is_sent() {
    let home = Home::new();
    let mut hub = RunningHub::start(&home, &[]);
    let mut alice = Listening::start(&home, &hub.url);
    let large = "x".repeat(70_000);
    let named = |more: Value| {
        let mut line = json!({"user": "alice", "id": "bad", "payload": 1});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line.to_string().into_bytes()
    };
    let lines: [(&[u8], &str, bool); 5] = [
        (b"nonsense", "expected", false),
        (b"{\"user\":\"\xff\"}", "unicode", false),
        (&named(json!({"colour": "red"})), "colour", false),
        (&named(json!({"payload": large})), "bytes", true),
        (&named(json!({"method": "constructor"})), "method", true),
    ];
    for (number, (line, why, is_named)) in lines.into_iter().enumerate() {
        hub.input.write_all(line).unwrap();
        hub.input.write_all(b"\n").unwrap();
        let refused: Value = serde_json::from_str(&hub.output.next().unwrap().unwrap()).unwrap();
        // Each is followed by a good one.
        let place = json!(2 * number + 1);
        assert_eq!((&refused["answer"], &refused["line"]), (&json!("refused"), &place));
        assert!(refused["why"].as_str().unwrap().contains(why), "{refused}");
        let name = if is_named { json!("bad") } else { Value::Null };
        assert_eq!(refused["id"], name, "{refused}");
        let id = number as u32;
        assert_eq!(hub.send(id), "acknowledged");
        assert_eq!(alice.message()["id"], format!("m-{id}"));
    }
}

#[test]
fn a_hub_for_everybody_needs_an_issuer() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, code) in [
        (vec!["hub", "--listen", "0.0.0.0:0"], "P1102"),
        (vec!["hub", "--issuer", "http://127.0.0.1:1/realms/a"], "P1103"),
        (vec!["hub", "--audience", "a"], "P1103"),
        (vec!["hub", "--listen", "nonsense"], "P1101"),
        (vec!["hub", "--redis", "nonsense"], "P1108"),
        (vec!["hub", "--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0"], "P1109"),
        (vec!["listen", "--user", "alice", "--url", "nonsense"], "P1111"),
    ] {
        let mut command = potok(arguments);
        // Some make a key in the data folder before they look further.
        command.current_dir(folder.path());
        let refused = run(command, b"").exits(2);
        assert!(refused.stderr.contains(code), "{}", refused.stderr);
    }
}
