//! Orders end to end, against a bare loop that parses and inserts.
//!
//! The bare loop reads the same orders from a file, line by line, on one thread; parses each into
//! structs; inserts into the same four tables, 1,000 orders per transaction, WAL,
//! `synchronous=FULL`, with the same cache. It checks nothing, hashes nothing and remembers nothing; where potok keeps
//! the hash of an order it writes as many bytes, so that the files are of one size.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use potok_traffic::orders::OrderGenerator;
use rusqlite::{Connection, Transaction, params};

use crate::measure::{Run, measure, now};
use crate::order::{NO_HASH, Order};
use crate::potok::{self, Running};
use crate::report::Comparison;

const PER_TRANSACTION: usize = 1_000;

/// Runs and prints.
pub fn run(quick: bool) -> Result<()> {
    let count: u64 = if quick { 20_000 } else { 150_000 };
    let program = potok::build()?;
    let scratch = tempfile::tempdir()?;
    let file = scratch.path().join("orders.ndjson");
    write_orders(&file, count, 1)?;
    let orders_yaml = potok::root().join("pipelines/orders.yaml");
    let ddl = potok::ask(&program, [Path::new("ddl"), &orders_yaml])?;
    let (mut bare_runs, mut our_runs) = (0, 0);
    Comparison::of(
        "orders: log → JSON Schema → four SQLite tables, once per order_uid",
        ("bare parse + insert loop", || {
            bare_runs += 1;
            let database = scratch.path().join(format!("bare-{bare_runs}.sqlite"));
            let run = measure(count, || bare(&file, &database, &ddl))?;
            ensure!(rows(&database)? == count, "the bare loop inserts every order");
            Ok(run)
        }),
        ("potok run orders.yaml", || {
            our_runs += 1;
            ours(&program, &file, &scratch.path().join(format!("potok-{our_runs}")), count)
        }),
    )?
    .ratio(Some(0.6));
    Ok(())
}

/// Good orders, one per line.
pub fn write_orders(path: &Path, count: u64, seed: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut generator = OrderGenerator::good_only(seed);
    for _ in 0..count {
        file.write_all(&generator.good().bytes)?;
        file.write_all(b"\n")?;
    }
    Ok(file.flush()?)
}

/// Fills a log, then measures a fresh process from its start until everything is delivered.
fn ours(program: &Path, file: &Path, data: &Path, count: u64) -> Result<Run> {
    let send = ["send", "orders", "--file"].map(Path::new);
    potok::ask(program, send.into_iter().chain([file, Path::new("--data-dir"), data]))?;
    let start = now();
    let running = Running::start(program, data)?;
    running.delivered(count)?;
    let wall = start.elapsed();
    let (cpu, peak) = (running.process.cpu()?, running.process.peak()?);
    drop(running);
    ensure!(rows(&data.join("db/orders.sqlite"))? == count, "potok delivers every order");
    Ok(Run { records: count, wall, cpu, peak, servers: None })
}

fn rows(database: &Path) -> Result<u64> {
    let database = Connection::open(database)?;
    Ok(database
        .query_row("SELECT count(*) FROM orders", [], |row| row.get::<_, i64>(0))?
        .unsigned_abs())
}

fn bare(file: &Path, database: &Path, ddl: &str) -> Result<()> {
    let mut database = Connection::open(database)?;
    // As potok sets them: a loop with SQLite's small defaults would be easy to beat.
    database.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-32768; \
         PRAGMA wal_autocheckpoint=8192;",
    )?;
    database.execute_batch(ddl)?;
    let mut reader = BufReader::with_capacity(1 << 20, File::open(file)?);
    let (mut line, mut number) = (Vec::new(), 0);
    loop {
        let transaction = database.transaction()?;
        for _ in 0..PER_TRANSACTION {
            line.clear();
            if reader.read_until(b'\n', &mut line)? == 0 {
                transaction.commit()?;
                return Ok(());
            }
            let order = serde_json::from_slice(&line).context("a good order")?;
            insert(&transaction, &order, number)?;
            number += 1;
        }
        transaction.commit()?;
    }
}

fn insert(transaction: &Transaction<'_>, order: &Order<'_>, number: u64) -> Result<()> {
    let position = format!("orders/0/{number}@0000000000000000/0/0");
    let uid = order.order_uid;
    transaction
        .prepare_cached(
            "INSERT INTO orders (order_uid, track_number, entry, locale, internal_signature, \
             customer_id, delivery_service, shardkey, sm_id, date_created, oof_shard, \
             content_hash, potok_id) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
        )?
        .execute(params![
            uid,
            order.track_number,
            order.entry,
            order.locale,
            order.internal_signature,
            order.customer_id,
            order.delivery_service,
            order.shardkey,
            order.sm_id,
            order.date_created,
            order.oof_shard,
            NO_HASH,
            position,
        ])?;
    let d = &order.delivery;
    transaction
        .prepare_cached(
            "INSERT INTO deliveries (order_uid, name, phone, zip, city, address, region, email) \
             VALUES (?,?,?,?,?,?,?,?)",
        )?
        .execute(params![uid, d.name, d.phone, d.zip, d.city, d.address, d.region, d.email])?;
    let p = &order.payment;
    transaction
        .prepare_cached(
            "INSERT INTO payments (order_uid, \"transaction\", request_id, currency, provider, \
             amount, payment_dt, bank, delivery_cost, goods_total, custom_fee) \
             VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        )?
        .execute(params![
            uid,
            p.transaction,
            p.request_id,
            p.currency,
            p.provider,
            p.amount,
            p.payment_dt,
            p.bank,
            p.delivery_cost,
            p.goods_total,
            p.custom_fee,
        ])?;
    let mut items = transaction.prepare_cached(
        "INSERT INTO items (order_uid, element, chrt_id, track_number, price, rid, name, sale, \
         size, total_price, nm_id, brand, status) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)",
    )?;
    for (element, i) in order.items.iter().enumerate() {
        items.execute(params![
            uid,
            element as i64,
            i.chrt_id,
            i.track_number,
            i.price,
            i.rid,
            i.name,
            i.sale,
            i.size,
            i.total_price,
            i.nm_id,
            i.brand,
            i.status,
        ])?;
    }
    Ok(())
}
