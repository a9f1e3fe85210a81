//! An idle process: what it costs, and how soon a lone record is delivered.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use potok_traffic::orders::OrderGenerator;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::measure::now;
use crate::potok::{self, Running};
use crate::report::{median, print_goal};

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let (lone, idle) = if quick { (20, 2) } else { (200, 20) };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let data = scratch.path().join("data");
    let running = Running::start(&program, &data)?;
    let mut generator = OrderGenerator::good_only(3);
    send(&running, &generator.good().bytes)?;
    running.delivered(1)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let database = Connection::open_with_flags(data.join("db/orders.sqlite"), flags)?;

    println!("idle: nothing to do for {idle} s, then {lone} lone orders, one at a time");
    let before = running.process.cpu()?;
    std::thread::sleep(Duration::from_secs(idle));
    let share = (running.process.cpu()? - before) / idle as f64 * 100.0;
    print_goal(&format!("{share:.2} % of a core"), "< 1 %", share < 1.0);

    let mut waits = Vec::new();
    for _ in 0..lone {
        let order = generator.good();
        send(&running, &order.bytes)?;
        let acknowledged = now();
        let mut there = None::<i64>;
        while there.is_none() {
            let mut find = database.prepare_cached("SELECT 1 FROM orders WHERE order_uid = ?")?;
            there = find.query_row([&order.uid], |row| row.get(0)).optional()?;
        }
        waits.push(acknowledged.elapsed().as_secs_f64() * 1e3);
    }
    let worst = waits.iter().copied().fold(0.0, f64::max);
    let figure = format!("delivered after {:.1} ms, at worst {worst:.1} ms", median(waits));
    print_goal(&figure, "≤ 50 ms", worst <= 50.0);
    Ok(())
}

/// One record over HTTP; returns when it is durable.
fn send(running: &Running, value: &[u8]) -> Result<()> {
    let body = serde_json::json!({ "value": std::str::from_utf8(value)? }).to_string();
    let mut stream = TcpStream::connect(running.address())?;
    write!(
        stream,
        "POST /api/v1/topics/orders/records HTTP/1.0\r\nHost: {}\r\n\
         Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
        running.address(),
        body.len(),
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).context("a status")?;
    ensure!(status == "200", "the order was not taken: {answer}");
    Ok(())
}
