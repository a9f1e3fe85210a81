//! Redis.

use potok_services::Redis;

use crate::processes::stopped;

#[test]
fn redis_keeps_its_data_and_freezes() {
    let redis = Redis::start();
    assert_eq!(redis.command(&["SET", "a", "1"]), "OK");
    redis.stop();
    redis.restart();
    assert_eq!(redis.command(&["GET", "a"]), "1");
    redis.kill();
    redis.restart();
    assert_eq!(redis.command(&["GET", "a"]), "1");
    redis.freeze();
    assert!(stopped(redis.pid()));
    redis.thaw();
    assert_eq!(redis.command(&["PING"]), "PONG");
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
}

/// The thread that starts a service may end long before the service does.
#[test]
fn a_service_outlives_the_thread_that_started_it() {
    let pid = std::thread::spawn(|| potok_services::redis().pid()).join().unwrap();
    let shared = potok_services::redis();
    assert_eq!(shared.command(&["PING"]), "PONG");
    assert_eq!(shared.pid(), pid);
}
