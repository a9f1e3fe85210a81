//! A stage of one's own, outside the engine: it converts amounts with rates from a table, filters
//! what is worth nothing, and fails on currencies nobody knows.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use potok_core::{
    Event, Fault, Headers, Log, Output, ReadFrom, Reason, Stage, StageResult, SystemClock,
};
use potok_flow::decode::JsonDecoder;
use potok_flow::{
    DeliverPlan, Engine, Input, OnError, Per, Plan, Retry, StagePlan, Target, TopicTarget,
};
use potok_testkit::memory::MemoryLog;
use serde_json::Value;

/// Adds `euro` to every payment.
struct Convert {
    rates: HashMap<&'static str, f64>,
}

impl Convert {
    fn convert(&self, mut event: Event) -> StageResult {
        let failed = |what: &str| StageResult::Failed(Fault::set_aside(Reason::Stage, what));
        let Ok(mut payment) = serde_json::from_slice::<Value>(&event.value) else {
            return failed("a payment is JSON");
        };
        let rate = payment["currency"].as_str().and_then(|currency| self.rates.get(currency));
        match (payment["amount"].as_f64(), rate) {
            (Some(0.0), _) => StageResult::Filtered,
            (Some(amount), Some(rate)) => {
                payment["euro"] = (amount * rate).into();
                event.value = Bytes::from(payment.to_string());
                StageResult::On(event)
            }
            (None, _) => failed("a payment has an amount"),
            (_, None) => failed("nobody knows the rate of this currency"),
        }
    }
}

#[async_trait]
impl Stage for Convert {
    /// One answer for each event, in order. A fault of the whole call would be for what the stage
    /// itself needs: `Fault::wait` while a service it asks is away, and the engine calls again.
    async fn apply(&self, events: Vec<Event>) -> Result<Vec<StageResult>, Fault> {
        Ok(events.into_iter().map(|event| self.convert(event)).collect())
    }
}

/// From the topic `payments` through the stage to the topic `payments-euro`.
fn plan() -> Plan {
    let rates = HashMap::from([("EUR", 1.0), ("USD", 0.5)]);
    Plan {
        name: "payments".to_owned(),
        workers: 2,
        inputs: vec![Input::topics("payments", vec!["payments".into()])],
        decoder: Arc::new(JsonDecoder::new(None)),
        hold: None,
        stages: vec![StagePlan {
            name: "convert".to_owned(),
            stage: Arc::new(Convert { rates }),
            per: Per::Event,
            on_error: OnError::DeadLetter,
            counts: Vec::new(),
        }],
        delivers: vec![DeliverPlan {
            label: "payments-euro".to_owned(),
            number: 0,
            shard: None,
            kind: None,
            target: Target::Topic(TopicTarget::Fixed("payments-euro".into())),
            key: None,
            once_by: Vec::new(),
            headers_id: true,
        }],
        order_by: None,
        retry: Retry { attempts: 5, first: Duration::from_millis(50), max: Duration::from_secs(5) },
        probe_every: Duration::from_secs(2),
        dead_letter_topic: "payments-dead".into(),
        replays_max: 5,
        keep_resolved: None,
        in_flight_bytes: 64 << 20,
    }
}

/// Sends payments through the pipeline; what came out, and how many were filtered and set aside.
async fn run(payments: &[&str]) -> Result<(Vec<String>, u64, u64), Box<dyn Error>> {
    let log = MemoryLog::new(Arc::new(SystemClock));
    let sent = payments.iter().map(|payment| Output {
        topic: "payments".into(),
        partition: None,
        key: Some(Bytes::from_static(b"shop-1")),
        headers: Headers::none(),
        value: Some(Bytes::copy_from_slice(payment.as_bytes())),
    });
    log.append(&sent.collect::<Vec<_>>()).await?;
    let engine = Engine::new(Arc::new(log.clone()), Arc::new(SystemClock), None);
    engine.start(plan())?;
    let status = loop {
        let status = engine.status().await.pop().ok_or("the pipeline runs")?;
        if status.received == payments.len() as u64 && status.in_flight == 0 {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    engine.drain(Duration::from_secs(5)).await;
    let mut reader = log.read("payments-euro", ReadFrom::Start).await?;
    let mut out = Vec::new();
    while let Some(batch) = reader.next(false).await? {
        let values = batch.records.into_iter().filter_map(|record| record.value);
        out.extend(values.map(|value| String::from_utf8_lossy(&value).into_owned()));
    }
    Ok((out, status.filtered, status.dead_lettered))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let payments = [
        r#"{"amount":10,"currency":"USD"}"#,
        r#"{"amount":0,"currency":"EUR"}"#,
        r#"{"amount":3,"currency":"XYZ"}"#,
        r#"{"amount":7,"currency":"EUR"}"#,
    ];
    let (out, filtered, set_aside) = run(&payments).await?;
    for payment in out {
        println!("{payment}");
    }
    println!("{filtered} filtered, {set_aside} set aside");
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn the_stage_runs_in_the_engine() {
        let payments = [
            r#"{"amount":10,"currency":"USD"}"#,
            r#"{"amount":0,"currency":"EUR"}"#,
            r#"{"amount":3,"currency":"XYZ"}"#,
            r#"{"amount":7,"currency":"EUR"}"#,
        ];
        let (out, filtered, set_aside) = run(&payments).await.unwrap();
        let wanted = [
            r#"{"amount":10,"currency":"USD","euro":5.0}"#,
            r#"{"amount":7,"currency":"EUR","euro":7.0}"#,
        ];
        assert_eq!(out, wanted);
        assert_eq!((filtered, set_aside), (1, 1));
    }

    #[test]
    fn the_guide_shows_this_program() {
        let guide = include_str!("../../../docs/guides/own-stage.md");
        let program = include_str!("main.rs").split("\n#[cfg(test)]").next().unwrap();
        assert!(guide.contains(program), "docs/guides/own-stage.md shows another program");
    }
}
