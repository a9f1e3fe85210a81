//! The answer to COMMIT is lost: nobody knows what is there, until it is looked up.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use potok_core::Move;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::order::{orders, orders_config};
use crate::place::{System, TestDatabase, attempt, is};

on_servers!(
    a_lost_answer_to_commit_is_an_unknown_outcome_and_the_repeat_finds_the_rows,
    a_connection_cut_at_commit_is_an_unknown_outcome_too,
    a_commit_that_never_arrived_is_repeated_whole,
);

/// What becomes of a COMMIT.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    /// It arrives; the answer does not, and the connection stays open.
    Answer,
    /// It arrives, and the connection ends.
    Connection,
    /// It does not arrive.
    Commit,
}

/// Stands between, and does that to the first COMMIT while it is armed.
async fn between(to: u16, loss: Loss, armed: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let address = SocketAddr::from(([127, 0, 0, 1], to));
            let server = TcpStream::connect(address).await.unwrap();
            tokio::spawn(pass(client, server, loss, armed.clone()));
        }
    });
    port
}

async fn pass(mut client: TcpStream, mut server: TcpStream, loss: Loss, armed: Arc<AtomicBool>) {
    let (mut request, mut answer) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut lost = false;
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(len @ 1..) = read else { return };
                let bytes = &request[..len];
                // Not the isolation level, READ COMMITTED.
                let is_commit = bytes.windows(6).any(|part| part == b"COMMIT")
                    && !bytes.windows(9).any(|part| part == b"COMMITTED");
                if is_commit && armed.swap(false, Ordering::SeqCst) {
                    lost = true;
                    if loss == Loss::Commit {
                        return;
                    }
                }
                if server.write_all(bytes).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answer) => {
                let Ok(len @ 1..) = read else { return };
                if lost && loss == Loss::Connection {
                    return;
                }
                if !lost && client.write_all(&answer[..len]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn lose(system: System, loss: Loss) -> (TestDatabase, Vec<String>) {
    let place = TestDatabase::orders(system).await;
    let (before, database) = place.url.rsplit_once('/').unwrap();
    let (before, port) = before.rsplit_once(':').unwrap();
    let armed = Arc::new(AtomicBool::new(false));
    let port = between(port.parse().unwrap(), loss, armed.clone()).await;
    let plain = system.pick_server("?sslmode=disable", "?ssl-mode=DISABLED");
    let sink = system.hasty_sink(&format!("{before}:{port}/{database}{plain}"), orders_config());
    assert_eq!(attempt(&sink, orders(0..2)).await.unwrap(), ["delivered"; 2]);

    armed.store(true, Ordering::SeqCst);
    let fault = attempt(&sink, orders(2..102)).await.unwrap_err();
    is(&fault, Move::Wait, system.pick_server("P0706", "P0806"));
    assert!(fault.to_string().contains("the outcome is unknown"), "{fault}");
    assert!(!armed.load(Ordering::SeqCst));
    // A server that is told nothing may hold the transaction for a while.
    let words = crate::place::outcomes(&sink, orders(2..102)).await;
    (place, words)
}

async fn a_lost_answer_to_commit_is_an_unknown_outcome_and_the_repeat_finds_the_rows(
    system: System,
) {
    let (place, words) = lose(system, Loss::Answer).await;
    assert_eq!(words, ["duplicates"; 100]);
    assert_eq!((place.count("orders"), place.count("items")), (102, 204));
}

async fn a_connection_cut_at_commit_is_an_unknown_outcome_too(system: System) {
    let (place, words) = lose(system, Loss::Connection).await;
    assert_eq!(words, ["duplicates"; 100]);
    assert_eq!((place.count("orders"), place.count("items")), (102, 204));
}

async fn a_commit_that_never_arrived_is_repeated_whole(system: System) {
    let (place, words) = lose(system, Loss::Commit).await;
    assert_eq!(words, ["delivered"; 100]);
    assert_eq!((place.count("orders"), place.count("items")), (102, 204));
}
