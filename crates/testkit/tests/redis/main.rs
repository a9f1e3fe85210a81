//! Redis as working storage, on real servers: what lies there, who may write, what happens when it
//! is away. What holds for both layouts runs on both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// Makes each function a test of readable and one of packed keys.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod readable {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(potok_connectors::redis::KeyStyle::Readable).await;
            })+
        }
        mod packed {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(potok_connectors::redis::KeyStyle::Packed).await;
            })+
        }
    };
}

mod fencing;
mod keys;
mod outage;
mod place;
mod refusal;
mod several;
