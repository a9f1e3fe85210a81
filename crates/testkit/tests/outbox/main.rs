//! The outbox as a feed, on SQLite and on real PostgreSQL and MariaDB: every test runs on all of
//! them, straight against the contract.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Makes each function a test on every database.
macro_rules! on_all {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::place::System::Sqlite).await;
            })+
        }
        on_servers!($($name),+);
    };
}

/// Makes each function a test on PostgreSQL and MariaDB.
macro_rules! on_servers {
    ($($name:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::place::System::Postgres).await;
            })+
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name($crate::place::System::Mariadb).await;
            })+
        }
    };
}

mod bounds;
mod failure;
mod lease;
mod naive;
mod notify;
mod order;
mod place;
mod refusals;
mod rows;
mod setup;
mod suite;
