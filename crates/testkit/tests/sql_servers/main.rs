//! PostgreSQL and MariaDB as destinations, on real servers: every test runs on both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Makes each function a test on PostgreSQL and one on MariaDB.
macro_rules! on_both {
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
