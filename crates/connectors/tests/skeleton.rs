//! What `cargo xtask new-connector` writes: it compiles, can be written in YAML, and delivers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../xtask/template/mod.rs"]
mod sample;

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use potok_config::{
    Destination, Env, Flags, Registry, Site, Target, load_connections, load_pipeline,
};
use potok_core::{Batch, DeliveryId, Headers, Message, Move, Position, Sink, Timestamp};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

fn registry() -> Registry {
    let mut registry = Registry::new();
    sample::register(&mut registry);
    registry
}

fn message(offset: u64, value: &'static str) -> Message {
    let position = Position { log: 1, topic: "t".into(), partition: 0, offset };
    let value = Bytes::from_static(value.as_bytes());
    Message {
        id: DeliveryId { position, deliver: 0, element: 0 },
        key: None,
        headers: Headers::none(),
        source: value.clone(),
        value,
        once: None,
        time: Timestamp(0),
    }
}

#[tokio::test]
async fn it_is_built_from_yaml_and_delivers() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let text = "name: a\nsource: { topic: a }\ndeliver: [ { sample: main, timeout: 9s } ]\n";
    fs::write(&file, text).unwrap();
    let pipeline = load_pipeline(&file, &Env::default(), &registry()).unwrap();
    let address = format!("sample://{}", server.local_addr().unwrap());
    let env = Env::of([("POTOK_SAMPLE_MAIN", address)]);
    let connections = load_connections(None, &Flags::default(), &env, &registry()).unwrap();
    let Some(Target::Connector(settings)) = pipeline.deliver[0].target() else { panic!("a sink") };
    let site = Site {
        pipeline: "a",
        label: "x".to_owned(),
        connections: &connections,
        schema: None,
        once_by: Vec::new(),
        shard: None,
        order_key: None,
        dead_table: None,
        file_hash: 0,
    };
    let Ok(Destination::Sink(sink)) = settings.build(&site) else { panic!("it is built") };
    let taken = tokio::spawn(async move {
        let (mut stream, _) = server.accept().await.unwrap();
        let mut taken = String::new();
        stream.read_to_string(&mut taken).await.unwrap();
        taken
    });
    let messages = vec![message(0, "{}"), message(1, "[]")];
    sink.deliver(&Batch { messages }).await.unwrap();
    assert_eq!(taken.await.unwrap(), "{}\n[]\n");
    // The server is gone with the task that listened.
    let fault = sink.probe().await.unwrap_err();
    assert_eq!(fault.next, Move::Wait, "{fault}");
    assert!(
        sample::SampleSink::new("sample://x", Duration::from_secs(1)).limits().batch_records_max
            > 1
    );
}

#[test]
fn its_mistakes_have_places() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let base = "name: a\nsource: { topic: a }\n";
    for (more, code, place) in [
        ("deliver: [ { sample: main, timeot: 9s } ]\n", "P0120", (3, 28)),
        ("deliver: [ { sample: main } ]\ndecode: { format: raw }\n", "P0152", (3, 14)),
        ("deliver: [ { sample: a.b } ]\n", "P0126", (3, 23)),
    ] {
        fs::write(&file, format!("{base}{more}")).unwrap();
        let problems = load_pipeline(&file, &Env::default(), &registry()).unwrap_err();
        let [problem] = problems.0.as_slice() else { panic!("{problems}") };
        assert_eq!((problem.code, (problem.line, problem.column)), (code, place), "{problem}");
    }
}
