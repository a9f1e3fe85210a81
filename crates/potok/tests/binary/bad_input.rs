//! Bytes nobody should send: each becomes a dead letter with its bytes and a reason, and nothing
//! else stops.

use std::fs;

use potok_traffic::orders::{Order, OrderGenerator, OrderKind, OrderSpoiling};

use crate::check::assert_kept;
use crate::ledger::Ledger;
use crate::load::lines;
use crate::process::Home;

/// A name for messages, whether it is JSON at all, and the bytes.
fn bad() -> Vec<(&'static str, bool, Vec<u8>)> {
    let order = OrderGenerator::good_only(40).good();
    let line = String::from_utf8(order.bytes).unwrap();
    let with = |from: &str, to: &str| line.replacen(from, to, 1).into_bytes();
    let deep = |open: &str, close: &str| {
        format!("{}1{}", open.repeat(250_000), close.repeat(250_000)).into_bytes()
    };
    vec![
        ("deep arrays", false, deep("[", "]")),
        ("deep objects", false, deep("{\"a\":", "}")),
        ("deep and never closed", false, b"[".repeat(250_000)),
        ("a number beyond all numbers", false, with("\"sm_id\":", "\"sm_id\":1e400000")),
        ("the same alone", false, b"1e400000".to_vec()),
        ("a 60 MB string", true, format!("\"{}\"", "x".repeat(60_000_000)).into_bytes()),
        ("a lone surrogate", false, with("\"entry\":\"", "\"entry\":\"\\ud800")),
        (
            "surrogates the wrong way round",
            false,
            with("\"entry\":\"", "\"entry\":\"\\udc00\\ud800"),
        ),
        ("a NUL byte in a string", false, with("\"entry\":\"", "\"entry\":\"\0")),
        ("NUL bytes only", false, vec![0; 1_000]),
        ("a key twice", false, with("{", "{\"order_uid\":\"other\",")),
        ("a key twice, once escaped", false, with("{", "{\"order\\u005fuid\":\"other\",")),
        ("not UTF-8", false, [b"{\"a\":\"".as_slice(), b"\xff\xfe\"}"].concat()),
        ("overlong UTF-8", false, b"\"\xc0\xaf\"".to_vec()),
        ("a byte order mark", false, [b"\xef\xbb\xbf".as_slice(), line.as_bytes()].concat()),
        ("two values", false, format!("{line} {line}").into_bytes()),
        ("nothing but spaces", false, b"   ".to_vec()),
        ("the wrong kind of value", true, b"[]".to_vec()),
        ("null", true, b"null".to_vec()),
    ]
}

#[test]
fn every_bad_record_is_a_dead_letter_and_the_good_ones_pass() {
    let home = Home::new();
    let running = home.start();
    let mut generator = OrderGenerator::good_only(41);
    let mut ledger = Ledger::default();
    let file = home.path().join("record");
    for (name, is_json, bytes) in bad() {
        let good: Vec<_> = (0..5).map(|_| generator.good()).collect();
        assert!(running.send_lines(&lines(&good), &[]), "good ones before {name}");
        ledger.note(good, true);

        fs::write(&file, &bytes).unwrap();
        let path = file.to_str().unwrap();
        let sent = running.run(["send", "orders", "--framing", "whole", "--file", path], b"");
        assert_eq!(sent.code, Some(0), "{name}: {}", sent.stderr);
        // The ledger knows spoiled orders by their bytes, and two reasons for them.
        let how = if is_json { OrderSpoiling::WrongType } else { OrderSpoiling::BrokenJson };
        ledger.note(vec![Order { uid: name.into(), bytes, kind: OrderKind::Spoiled(how) }], true);
    }
    let good: Vec<_> = (0..5).map(|_| generator.good()).collect();
    assert!(running.send_lines(&lines(&good), &[]));
    ledger.note(good, true);

    assert_kept(&home, &running, &ledger);
    // And after a restart they are still there, byte for byte.
    assert!(running.stop().success());
    assert_kept(&home, &home.start(), &ledger);
}

/// Larger than anything may be: refused where it is sent, so that nothing is acknowledged that
/// could not be kept.
#[test]
fn a_record_over_the_limit_is_refused_by_send() {
    let home = Home::new();
    let running = home.start();
    let file = home.path().join("record");
    fs::write(&file, "y".repeat(64 * 1024 * 1024 + 1)).unwrap();
    let path = file.to_str().unwrap();
    let sent = running.run(["send", "orders", "--framing", "whole", "--file", path], b"");
    assert!(matches!(sent.code, Some(1 | 2)), "{}", sent.stderr);
    assert!(sent.stderr.contains("64 MiB"), "says the limit: {}", sent.stderr);
    assert_eq!(running.drained()["received"], 0);
}
