//! The feed on a table that is made up here: what it asks, how often and for how much.

use std::collections::VecDeque;

use potok_core::trouble::Plant;

use super::super::session::{Cells, OutboxSession};
use super::super::shape::{Names, Shape};
use super::super::tenure::need;
use super::*;
use crate::sql::Dialect;

/// A table whose reads take long. Each brings as many rows of so many bytes as there are left, up to the
/// limits; those that look at too much fail.
struct SlowSession {
    rows_left: Mutex<usize>,
    row_bytes: Mutex<usize>,
    /// What the server can look at in time.
    bytes_max: usize,
    /// The limits of each read.
    reads: Mutex<Vec<usize>>,
}

impl SlowSession {
    fn new(rows: usize, row_bytes: usize) -> Arc<Self> {
        let (rows_left, row_bytes) = (Mutex::new(rows), Mutex::new(row_bytes));
        let (bytes_max, reads) = (usize::MAX, Mutex::default());
        Arc::new(SlowSession { rows_left, row_bytes, bytes_max, reads })
    }

    fn reads(&self) -> usize {
        self.reads.lock().unwrap().len()
    }
}

#[async_trait]
impl OutboxSession for SlowSession {
    async fn query(&self, sql: String) -> Result<Vec<Cells>, Fault> {
        if !sql.contains("potok_total") {
            return Ok(Vec::new());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let limit = sql.rsplit_once("LIMIT ").unwrap().1.split(')').next().unwrap();
        let limit: usize = limit.parse().unwrap();
        let number = {
            let mut reads = self.reads.lock().unwrap();
            reads.push(limit);
            reads.len()
        };
        let bytes = *self.row_bytes.lock().unwrap();
        let mut left = self.rows_left.lock().unwrap();
        if limit.min(*left) * bytes > self.bytes_max {
            return Err(Fault::retry("it took too long"));
        }
        let rows = limit.min(*left).min(READ.bytes / bytes + 1);
        *left -= rows;
        let cell = |text: String| Some(Bytes::from(text));
        let row = |row: usize| {
            let id = format!("{number}-{row}");
            let payload = Some(Bytes::from(vec![b'x'; bytes]));
            let (small, none) = (cell("0".to_owned()), None);
            vec![cell(id), cell("A".to_owned()), payload, small, none.clone(), none.clone(), none]
        };
        Ok((0..rows).map(row).collect())
    }

    async fn transact(&self, _: &[String], _: &[String]) -> Result<Vec<Cells>, Fault> {
        Ok(Vec::new())
    }
}

fn names() -> Names {
    let name = str::to_owned;
    Names {
        table: name("outbox"),
        dead: name("outbox_dead"),
        id: name("id"),
        event_type: name("event_type"),
        payload: name("payload"),
        added_at: name("added_at"),
        processed: name("processed"),
        processed_at: name("processed_at"),
        retry_count: name("retry_count"),
        traceparent: name("traceparent"),
        order: None,
        headers: Vec::new(),
    }
}

/// A source that has the lease for an hour, as long as its keeper is there.
async fn owner(
    session: &Arc<SlowSession>,
    has_index: bool,
) -> (watch::Sender<Tenure>, OutboxSource) {
    let shape = Arc::new(Shape::planned(Dialect::Postgres, &names()));
    let table = OutboxTable { shape, session: session.clone() };
    let believed = Instant::now() + Duration::from_secs(3_600);
    let held = Lease { token: 7, believed, changed: false };
    let (told, tenure) = watch::channel(Tenure { held: Some(held), fault: None });
    let relay = Arc::new(Relay {
        label: "outbox".to_owned(),
        notes: table.clone(),
        tenure,
        flight: Mutex::default(),
        turn: tokio::sync::Mutex::default(),
        wake: Notify::new(),
        max_wait: Duration::from_secs(600),
        refused: Mutex::default(),
        counters: Arc::default(),
        marks: BatchSize::up_to(MARK_MAX),
        put_offs: BatchSize::up_to(PUT_OFF_MAX),
        purges: BatchSize::up_to(PURGE_MAX),
        given_up: Arc::default(),
        has_index: AtomicBool::new(has_index),
        _need: need().0,
    });
    let settings = RelayOptions {
        attempts: 10,
        first: Duration::from_secs(1),
        max: Duration::from_secs(600),
        lease: Duration::from_secs(10),
        keep_processed: None,
        create_tables: false,
        poll: None,
        key: None,
        config: String::new(),
        topic: "outbox".into(),
        plant: Plant::default(),
    };
    let mut source = OutboxSource::new(table, &relay, &settings);
    assert!(matches!(source.next().await, Ok(SourceEvent::Assigned(_))));
    (told, source)
}

/// What is handed out within ten seconds; it ends as soon as it is.
async fn ten_seconds(source: &mut OutboxSource) -> usize {
    let end = Instant::now() + Duration::from_secs(10);
    let mut rows = 0;
    while let Ok(event) = tokio::time::timeout_at(end, source.next()).await {
        if let Ok(SourceEvent::Batch(batch)) = event {
            rows += batch.records.len();
            let mut flight = source.relay.flight();
            (batch.first..batch.next).for_each(|offset| flight.ended(offset));
        }
    }
    rows
}

/// `NoIndex`: reading a whole table never takes more than a tenth of the server's time, whether anything
/// comes or not.
#[tokio::test(start_paused = true)]
async fn a_table_without_an_index_is_read_seldom() {
    for rows in [0, usize::MAX] {
        let session = SlowSession::new(rows, 9);
        let (_told, mut source) = owner(&session, false).await;
        let came = ten_seconds(&mut source).await;
        assert!(session.reads() <= 11, "{} reads of {rows} rows", session.reads());
        assert_eq!(came > 0, rows > 0);
        // Somebody makes the index while it runs.
        source.relay.found_index(true);
        ten_seconds(&mut source).await;
        assert!(session.reads() > 30, "with one it is read at the usual pace");
    }
}

/// The server looks at no more rows than it must for a few megabytes, also when rows grow.
#[tokio::test(start_paused = true)]
async fn large_rows_are_read_few_at_a_time() {
    let session = SlowSession::new(usize::MAX, 100);
    let (_told, mut source) = owner(&session, true).await;
    assert!(ten_seconds(&mut source).await > 100_000);
    assert_eq!(session.reads.lock().unwrap().last(), Some(&READ.rows));
    *session.row_bytes.lock().unwrap() = 1 << 20;
    let before = session.reads();
    ten_seconds(&mut source).await;
    let reads: VecDeque<usize> =
        session.reads.lock().unwrap()[before + 1..].iter().copied().collect();
    assert!(reads.iter().all(|limit| *limit <= 10), "{reads:?}");
}

/// What the server cannot look at in time is asked for in smaller pieces, until it can.
#[tokio::test(start_paused = true)]
async fn a_read_that_takes_too_long_is_made_smaller() {
    let session = SlowSession::new(usize::MAX, 1 << 20);
    let session = Arc::new(SlowSession { bytes_max: 8 << 20, ..Arc::into_inner(session).unwrap() });
    let (_told, mut source) = owner(&session, true).await;
    assert!(ten_seconds(&mut source).await > 0, "{:?}", session.reads.lock().unwrap());
}
