//! Databases as destinations: SQLite on real files, PostgreSQL and MariaDB on real servers. One
//! suite for all of them; what only one of them can do to a sink is beside it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Makes each function a test on every database; those behind `servers:` only on servers.
macro_rules! on_all {
    ($($name:ident),+ $(,)?) => {
        on_all!($($name),+; servers:);
    };
    ($($name:ident),+ $(,)?; servers: $($server:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name($crate::place::System::Sqlite).await;
            })+
        }
        on_servers!($($name,)+ $($server),*);
    };
}

/// Makes each function a test on PostgreSQL and one on MariaDB.
macro_rules! on_servers {
    ($($name:ident),+ $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name($crate::place::System::Postgres).await;
            })+
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $name() {
                super::$name($crate::place::System::Mariadb).await;
            })+
        }
    };
}

mod commit;
mod once;
mod order;
mod outage;
mod place;
mod refusal;
mod rows;
mod server;
mod setup;
mod sqlite_crash;
mod sqlite_files;
mod sqlite_tables;
mod tracking;
